"""The few calls of the CUDA driver that copy engines need: stream-ordered copies, writes and waits.

Through ctypes, not a binding package: they are issued on every launch, and a call costs a third of what the bindings
cost. Signatures: CUDA driver API reference, "Memory Management" and "Stream Memory Operations".
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from tilelink.errors import RankError

_WAIT_GEQ = 0
_WRITE_DEFAULT = 0
_DEVICE_MEMORY = 2  # CU_MEMORYTYPE_DEVICE


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


class Driver:
    """Calls on streams (their handles) and device addresses. Each raises RankError when the driver refuses."""

    def __init__(self, library: Any) -> None:
        address, size, handle, word = ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_uint32
        self._copy = _function(library, "cuMemcpyDtoDAsync_v2", address, address, size, handle)
        self._copy_2d = _function(library, "cuMemcpy2DAsync_v2", ctypes.POINTER(_Copy2D), handle)
        self._wait = _function(library, "cuStreamWaitValue32_v2", handle, address, word, ctypes.c_uint)
        self._write = _function(library, "cuStreamWriteValue32_v2", handle, address, word, ctypes.c_uint)

    def copy(self, stream: int, target: int, source: int, size: int) -> None:
        """Copies `size` bytes."""
        _checked(self._copy(target, source, size, stream), "a copy")

    def copy_rows(
        self, stream: int, target: int, target_pitch: int, source: int, source_pitch: int, width: int, rows: int
    ) -> None:
        """Copies `rows` rows of `width` bytes, which begin a pitch apart."""
        one = _Copy2D(
            srcMemoryType=_DEVICE_MEMORY, srcDevice=source, srcPitch=source_pitch,
            dstMemoryType=_DEVICE_MEMORY, dstDevice=target, dstPitch=target_pitch, WidthInBytes=width, Height=rows,
        )  # fmt: skip
        _checked(self._copy_2d(ctypes.byref(one), stream), "a copy of rows")

    def wait(self, stream: int, counter: int, value: int) -> None:
        """The stream goes on once the int32 at `counter` has reached `value`."""
        _checked(self._wait(stream, counter, value, _WAIT_GEQ), "a wait")

    def write(self, stream: int, counter: int, value: int) -> None:
        """Writes an int32, after all that the stream did before."""
        _checked(self._write(stream, counter, value, _WRITE_DEFAULT), "a write")


@cache
def driver() -> Driver:
    """The driver of this machine. Raises RankError where there is none."""
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError as error:
        raise RankError(f"the CUDA driver cannot be loaded: {error}", hint="run it where there is a GPU") from error


def _function(library: Any, name: str, *types: Any) -> Any:
    function = getattr(library, name)
    function.argtypes = types
    function.restype = ctypes.c_int
    return function


def _checked(status: int, what: str) -> None:
    if status:
        raise RankError(f"the CUDA driver refused {what} on a stream: error {status}")
