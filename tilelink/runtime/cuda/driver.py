"""CUDA driver calls for copy engines: stream-ordered copies, writes and waits.

They use ctypes instead of a binding package, because they are issued on every launch and a call costs a third of a call
through the bindings. Signatures: CUDA driver API reference, "Memory Management" and "Stream Memory Operations".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from tilelink.errors import RankError

_WAIT_GEQ = 0
_WRITE_DEFAULT = 0
_DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE
_NO_CONTEXT = 201  # CUDA_ERROR_INVALID_CONTEXT


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("srcXInBytes", ctypes.c_size_t), ("srcY", ctypes.c_size_t), ("srcMemoryType", ctypes.c_int),
        ("srcHost", ctypes.c_void_p), ("srcDevice", ctypes.c_uint64), ("srcArray", ctypes.c_void_p),
        ("srcPitch", ctypes.c_size_t),
        ("dstXInBytes", ctypes.c_size_t), ("dstY", ctypes.c_size_t), ("dstMemoryType", ctypes.c_int),
        ("dstHost", ctypes.c_void_p), ("dstDevice", ctypes.c_uint64), ("dstArray", ctypes.c_void_p),
        ("dstPitch", ctypes.c_size_t),
        ("WidthInBytes", ctypes.c_size_t), ("Height", ctypes.c_size_t),
    )  # fmt: skip


class _MemoryOperation(ctypes.Structure):
    """CUstreamBatchMemOpParams: waits and writes of values, which have the same layout."""

    _fields_ = (
        ("operation", ctypes.c_int), ("address", ctypes.c_uint64), ("value", ctypes.c_uint64),
        ("flags", ctypes.c_uint), ("alias", ctypes.c_uint64), ("pad", ctypes.c_uint64),
    )  # fmt: skip


_WAIT_VALUE, _WRITE_VALUE = 1, 2  # CU_STREAM_MEM_OP_..._32

Handle = ctypes.c_void_p
Address = ctypes.c_uint64
Call = tuple[Callable[..., int], tuple[Any, ...]]
"""A function of the driver and its arguments. It returns the driver's error number, 0 for success."""


class Driver:
    """Prepared calls. Streams and addresses are cells, whose values are read at the time of the call."""

    def __init__(self, library: Any) -> None:
        address, size, handle, word = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint32
        self._copy = function_of(library, "cuMemcpyDtoDAsync_v2", address, address, size, handle)
        self._copy_2d = function_of(library, "cuMemcpy2DAsync_v2", ctypes.POINTER(_Copy2D), handle)
        self._write = function_of(library, "cuStreamWriteValue32_v2", handle, address, word, ctypes.c_uint)
        operations = ctypes.POINTER(_MemoryOperation)
        self._batch = function_of(library, "cuStreamBatchMemOp_v2", handle, ctypes.c_uint, operations, ctypes.c_uint)
        self._record = function_of(library, "cuEventRecord", handle, handle)
        self._elapsed = function_of(library, "cuEventElapsedTime", ctypes.POINTER(ctypes.c_float), handle, handle)

    def copy(self, stream: Handle, target: Address, source: Address, size: int) -> Call:
        """Return a call that copies `size` bytes."""
        return self._copy, (target, source, ctypes.c_size_t(size), stream)

    def copy_rows(
        self, stream: Handle, target: Address, source: Address, pitches: tuple[int, int], width: int, rows: int
    ) -> Call:
        """Return a call that copies `rows` rows of `width` bytes. pitches: bytes between rows of (target, source)."""
        one = _Copy2D(
            srcMemoryType=_DEVICE_MEMORY, srcPitch=pitches[1], dstMemoryType=_DEVICE_MEMORY, dstPitch=pitches[0],
            WidthInBytes=width, Height=rows,
        )  # fmt: skip
        call = self._copy_2d

        def copy(to: Address, of: Address, handle: Handle) -> int:
            one.dstDevice, one.srcDevice = to.value, of.value
            return call(ctypes.byref(one), handle)

        return copy, (target, source, stream)

    def write(self, stream: Handle, counter: Address, value: int) -> Call:
        """Return a call that writes an int32, after all earlier work of the stream."""
        return self._write, (stream, counter, ctypes.c_uint32(value), ctypes.c_uint(_WRITE_DEFAULT))

    def wait_and_zero(self, stream: Handle, counter: int, value: int) -> Call:
        """Return a call that waits until the int32 at `counter` has reached `value`, and then sets it to zero.

        It is a single call, and a single node of a CUDA graph: the driver executes the operations of a batch in order.
        """
        operations = (_MemoryOperation * 2)(
            _MemoryOperation(operation=_WAIT_VALUE, address=counter, value=value, flags=_WAIT_GEQ),
            _MemoryOperation(operation=_WRITE_VALUE, address=counter, value=0, flags=_WRITE_DEFAULT),
        )
        return self._batch, (stream, ctypes.c_uint(2), operations, ctypes.c_uint(0))

    def record(self, stream: Handle, event: Handle) -> Call:
        """Return a call that records the event after all earlier work of the stream."""
        return self._record, (event, stream)

    def elapsed_ns(self, first: Handle, second: Handle) -> float:
        """Return the time between two completed events in ns. Raises RankError if one is not complete."""
        milliseconds = ctypes.c_float()
        _done(self._elapsed(ctypes.byref(milliseconds), first, second))
        return milliseconds.value * 1e6


def driver_error(what: str, status: int) -> RankError:
    """Return the error of a call of the driver that failed. status: the number that the call returned."""
    hint = "the number is a CUresult of cuda.h; an earlier failure of this process may be its cause"
    return RankError(f"the CUDA driver {what}: error {status}", hint=hint)


def _done(status: int) -> None:
    if status:
        raise driver_error("cannot time the operations of a copy engine", status)


@cache
def driver() -> Driver:
    """Return the driver of this machine. Raises RankError if there is none."""
    return Driver(library())


@cache
def library() -> Any:
    """Return the driver's shared library. Raises RankError if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise RankError(f"the CUDA driver cannot be loaded: {error}", hint="run it where there is a GPU") from error


def with_context(library: Any, status: int, function: Callable[..., int], *arguments: Any) -> int:
    """Return the result of a call that failed with `status`, repeated if the thread lacked a context.

    A thread that has not called CUDA's runtime, such as that of a backward pass, has no context.
    """
    if status != _NO_CONTEXT:
        return status
    enter_context(library, torch.cuda.current_device())
    return function(*arguments)


def enter_context(library: Any, device: int) -> None:
    """Give the calling thread a GPU's primary context. A thread that has not called CUDA's runtime has none.

    Raises RankError if there is none to be had.
    """
    ordinal, context = ctypes.c_int(), ctypes.c_void_p()
    get = function_of(library, "cuDeviceGet", ctypes.POINTER(ctypes.c_int), ctypes.c_int)
    retain = function_of(library, "cuDevicePrimaryCtxRetain", ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
    enter = function_of(library, "cuCtxSetCurrent", ctypes.c_void_p)
    status = get(ctypes.byref(ordinal), device) or retain(ctypes.byref(context), ordinal) or enter(context)
    if status:
        raise driver_error(f"gives this thread no context of GPU {device}", status)


def function_of(library: Any, name: str, *types: Any) -> Any:
    """Return a function of the library with these argument types. It returns the driver's error number."""
    function = getattr(library, name)
    function.argtypes = types
    function.restype = ctypes.c_int
    return function
