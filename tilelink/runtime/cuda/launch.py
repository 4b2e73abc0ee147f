"""Launches of compiled kernels with parameters that stay in memory: a launch changes a few of them in a single call.

Triton's own launcher processes all arguments again. It asks every tensor for its address and encodes every tensor
descriptor, which together costs more than the launch. Triton's compiler gives a kernel these parameters: one for each
argument that is not constant; for a descriptor its 128 bytes and then its shape (int32) and strides (int64); and two
pointers to scratch memory. If the driver reports other parameters, Triton launches the kernel. The driver reads the
grid from memory as well, so that a call passes four numbers. Signatures: CUDA driver API reference, "Execution Control"
and "Tensor Map Object Management".
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tilelink.runtime.cuda.driver import function_of

MAP_BYTES = 128
"""Bytes of a CUtensorMap, which is aligned to 64 bytes."""
_ON_HOST = {8: 10, 9: 8, 10: 9}  # Triton's numbers of element types on the device -> CUtensorMapDataType
_L2_PROMOTION = 2  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
_NUMBERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64}

Addresses = tuple[int, ...]


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class UnsupportedLaunch(Exception):
    """Raised for a kernel with parameters that this module does not support."""


class TensorMap:
    """A tensor descriptor as a kernel's parameter, re-encoded for another address."""

    def __init__(self, library: Any, descriptor: Any, meta: Mapping[str, Any]) -> None:
        """descriptor: Triton's host descriptor. meta: its metadata from Triton's compiler."""
        if meta.get("fp4_padded") or getattr(descriptor, "padding", "zero") != "zero":
            raise UnsupportedLaunch("a descriptor that pads")
        if getattr(descriptor, "round_f32_to_tf32", False):
            raise UnsupportedLaunch("a descriptor that rounds")
        pointer = ctypes.c_void_p
        self._encode = function_of(
            library, "cuTensorMapEncodeTiled", pointer, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, pointer,
            pointer, pointer, pointer, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int,
        )  # fmt: skip
        shape, strides, box = list(descriptor.shape), list(descriptor.strides), list(meta["block_size"])
        rank, item = len(shape), int(meta["elem_size"])
        bytes_of = [item * stride for stride in strides[:-1]]
        self._memory = ctypes.create_string_buffer(MAP_BYTES + 64)
        start = ctypes.addressof(self._memory)
        self.place = start + -start % 64
        self._tables = (
            (ctypes.c_uint64 * rank)(*reversed(shape)),
            (ctypes.c_uint64 * max(1, rank - 1))(*reversed(bytes_of)),
            (ctypes.c_uint32 * rank)(*reversed(box)),
            (ctypes.c_uint32 * rank)(*([1] * rank)),
        )
        kind = int(meta["elem_type"])
        self._before = (self.place, _ON_HOST.get(kind, kind), rank)
        self._after = (*(ctypes.addressof(t) for t in self._tables), 0, int(meta["swizzle"]), _L2_PROMOTION, 0)
        self._address = 0
        self.point(descriptor.base.data_ptr())

    def point(self, address: int) -> None:
        """Set the address of the tensor. Raises UnsupportedLaunch if the driver cannot describe it."""
        if address == self._address:
            return
        if status := self._encode(*self._before, address, *self._after):
            raise UnsupportedLaunch(f"the driver describes no such tensor: error {status}")
        self._address = address


class PreparedLaunch:
    """A compiled kernel with its parameters. `point` changes addresses among them, calling it launches."""

    def __init__(self, library: Any, compiled: Any, programs: int, arguments: Sequence[Any]) -> None:
        """arguments: one for each of the kernel's own, in order.

        Raises UnsupportedLaunch for parameters that this module does not support.
        """
        meta = compiled.metadata
        if (
            getattr(meta, "num_ctas", 1) != 1 or getattr(meta, "launch_pdl", False)
            or getattr(meta, "launch_cooperative_grid", False) or getattr(meta, "global_scratch_size", 0)
            or getattr(meta, "profile_scratch_size", 0)
        ):  # fmt: skip
            raise UnsupportedLaunch("a launch with attributes")
        self._maps: dict[int, TensorMap] = {}
        self._pointers: dict[int, ctypes.c_uint64] = {}
        self._cells: list[Any] = []
        self._places: list[int] = []
        descriptions = iter(getattr(meta, "tensordesc_meta", None) or ())
        for position, (kind, value) in enumerate(zip(compiled.src.signature.values(), arguments, strict=True)):
            self._parameter(library, position, kind, value, descriptions)
        for _ in range(2):
            self._keep(ctypes.c_uint64(0))
        handle = int(compiled.function)
        if _sizes(library, handle) != [*map(self._size, range(len(self._places)))]:
            raise UnsupportedLaunch("other parameters than expected")
        self._launch = function_of(library, "cuLaunchKernelEx", *([ctypes.c_void_p] * 4))
        self._table = (ctypes.c_void_p * len(self._places))(*self._places)
        self._config = _Config(
            grid=(programs, 1, 1), block=(32 * int(meta.num_warps), 1, 1), shared=int(meta.shared), count=0
        )
        self._arguments = (ctypes.addressof(self._config), handle, ctypes.addressof(self._table), None)
        self._stream = 0

    def _parameter(self, library: Any, position: int, kind: str, value: Any, descriptions: Any) -> None:
        if kind == "constexpr":
            return
        if kind.startswith("*"):
            self._pointers[position] = self._keep(ctypes.c_uint64(value.data_ptr()))
        elif kind in _NUMBERS:
            self._keep(_NUMBERS[kind](value))
        elif kind.startswith("tensordesc"):
            meta = next(descriptions, None)
            if meta is None:
                raise UnsupportedLaunch("a descriptor without a box")
            tensor_map = self._maps[position] = TensorMap(library, value, meta)
            self._places.append(tensor_map.place)
            self._cells.append(tensor_map)
            for size in value.shape:
                self._keep(ctypes.c_int32(size))
            for stride in value.strides:
                self._keep(ctypes.c_int64(stride))
        else:
            raise UnsupportedLaunch(f"a parameter of type {kind}")

    def _keep(self, cell: Any) -> Any:
        self._cells.append(cell)
        self._places.append(ctypes.addressof(cell))
        return cell

    def _size(self, number: int) -> int:
        cell = self._cells[number]
        return MAP_BYTES if isinstance(cell, TensorMap) else ctypes.sizeof(cell)

    def target(self, positions: Collection[int]) -> Target:
        """Return the parameters of one tensor, by the positions of the arguments that are made of it."""
        return Target(
            [self._pointers[at] for at in positions if at in self._pointers],
            [self._maps[at] for at in positions if at in self._maps],
        )

    def __call__(self, stream: int) -> int:
        """Launch the kernel on a stream. Return the driver's error number, 0 for success."""
        if stream != self._stream:
            self._config.stream = self._stream = stream
        return self._launch(*self._arguments)


class Target:
    """The parameters of a kernel with the address of one tensor: pointers and descriptors. Nobody else changes them."""

    __slots__ = ("_address", "_maps", "_pointers")

    def __init__(self, pointers: Sequence[ctypes.c_uint64], maps: Sequence[TensorMap]) -> None:
        self._pointers, self._maps = pointers, maps
        self._address = 0

    def point(self, address: int) -> None:
        """Set the address of the tensor.

        Raises UnsupportedLaunch if the driver cannot describe it. Then Triton must perform the next launches.
        """
        if address == self._address:
            return
        for pointer in self._pointers:
            pointer.value = address
        for one in self._maps:
            one.point(address)
        self._address = address


def _sizes(library: Any, handle: int) -> list[int]:
    """Return the bytes of each parameter of a kernel.

    Raises UnsupportedLaunch if the driver is too old to report them.
    """
    if not hasattr(library, "cuFuncGetParamInfo"):
        raise UnsupportedLaunch("a driver that does not know the parameters of kernels")
    size_t = ctypes.POINTER(ctypes.c_size_t)
    ask = function_of(library, "cuFuncGetParamInfo", ctypes.c_void_p, ctypes.c_size_t, size_t, size_t)
    offset, size = ctypes.c_size_t(), ctypes.c_size_t()
    sizes: list[int] = []
    while not ask(handle, len(sizes), ctypes.byref(offset), ctypes.byref(size)):
        sizes.append(size.value)
    return sizes
