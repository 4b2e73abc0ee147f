"""Kernels with their parameters in place, without a GPU: a stand-in for the driver reads what it would be given."""

from __future__ import annotations

import ctypes
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilelink.errors import BindingError, RankError
from tilelink.runtime.cuda import functions
from tilelink.runtime.cuda.launch import MAP_BYTES, InPlace, TensorMap, Unknown

STREAM, HANDLE = 77, 4242
META: dict[str, Any] = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [128, 64], "fp4_padded": False}
SIGNATURE = {"boxes": "tensordesc<bf16[128,64]>", "x": "*bf16", "watch": "constexpr", "rank": "i32", "size": "i64"}
SIZES = [MAP_BYTES, 4, 4, 8, 8, 8, 4, 8, 8, 8]


class Driver:
    """What a kernel's parameters held when it was launched, what was encoded, and what is to fail."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes, self.launched, self.encoded = sizes, list[dict[str, Any]](), list[tuple[Any, ...]]()
        self.launch_status, self.encode_status, self.entered = [0], 0, list[str]()

    def __getattr__(self, name: str) -> Any:
        if name == "cuFuncGetParamInfo" and not self.sizes:
            raise AttributeError(name)
        own = getattr(type(self), f"_{name}", None)
        called = Call(partial(own, self) if own else lambda *_: self.entered.append(name) or 0)
        setattr(self, name, called)
        return called

    def _cuFuncGetParamInfo(self, handle: int, number: int, _: Any, size: Any) -> int:
        assert handle == HANDLE
        if number >= len(self.sizes):
            return 1
        size._obj.value = self.sizes[number]
        return 0

    def _cuTensorMapEncodeTiled(self, place: int, kind: int, rank: int, address: int, *rest: Any) -> int:
        tables = [
            (ctypes.c_uint64, rank),
            (ctypes.c_uint64, rank - 1),
            (ctypes.c_uint32, rank),
            (ctypes.c_uint32, rank),
        ]
        values = [list((t * n).from_address(at)) for (t, n), at in zip(tables, rest[:4], strict=True)]
        self.encoded.append((kind, address, *values, *rest[4:]))
        ctypes.memmove(place, address.to_bytes(8, "little"), 8)
        assert place % 64 == 0
        return self.encode_status

    def _cuLaunchKernel(self, handle: int, *rest: Any) -> int:
        places = (ctypes.c_uint64 * len(self.sizes)).from_address(rest[8])
        values = [int.from_bytes(ctypes.string_at(p, min(n, 8)), "little", signed=True)
                  for p, n in zip(places, self.sizes, strict=True)]  # fmt: skip
        self.launched.append({"handle": handle, "grid": rest[:7], "stream": rest[7], "values": values})
        return self.launch_status.pop(0) if len(self.launch_status) > 1 else self.launch_status[0]


class Call:
    """A function of the library, which may be told its argument types."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> int:
        return self._function(*arguments)


class At:
    """Stands for a tensor at an address."""

    def __init__(self, address: int) -> None:
        self._address = address

    def data_ptr(self) -> int:
        return self._address


def descriptor(address: int, **more: Any) -> Any:
    values: dict[str, Any] = {"base": At(address), "shape": [4096, 512], "strides": [512, 1], **more}
    return SimpleNamespace(**values)


def compiled(**more: Any) -> Any:
    meta = {"num_ctas": 1, "shared": 1000, "num_warps": 8, "tensordesc_meta": [META], "name": "gemm", **more}
    return SimpleNamespace(
        metadata=SimpleNamespace(**meta), src=SimpleNamespace(signature=dict(SIGNATURE)), function=HANDLE
    )  # fmt: skip


ARGUMENTS = (descriptor(0x1000), At(0x2000), None, 3, 1 << 40)


def test_a_launch_passes_every_parameter() -> None:
    driver = Driver(SIZES)
    kernel = InPlace(driver, compiled(), 132, ARGUMENTS)
    assert kernel(STREAM) == 0
    (launch,) = driver.launched
    assert launch["handle"] == HANDLE and launch["stream"] == STREAM
    assert launch["grid"] == (132, 1, 1, 256, 1, 1, 1000)
    assert launch["values"] == [0x1000, 4096, 512, 512, 1, 0x2000, 3, 1 << 40, 0, 0]
    ((kind, address, shape, strides, box, steps, *modes),) = driver.encoded
    assert (kind, address, shape, strides, box, steps) == (9, 0x1000, [512, 4096], [1024], [64, 128], [1, 1])
    assert modes == [0, 3, 2, 0]  # no interleaving, swizzle as compiled, promotion to 128 bytes, zeros outside


def test_only_what_moved_is_written_anew() -> None:
    driver = Driver(SIZES)
    kernel = InPlace(driver, compiled(), 4, ARGUMENTS)
    kernel.point(0, 0x1000)
    kernel.point(1, 0x9000)
    kernel(STREAM)
    assert len(driver.encoded) == 1
    kernel.point(0, 0x5000)
    kernel(STREAM)
    assert [launch["values"][:1] + launch["values"][5:6] for launch in driver.launched] == [
        [0x1000, 0x9000], [0x5000, 0x9000],
    ]  # fmt: skip
    assert len(driver.encoded) == 2 and driver.encoded[1][1] == 0x5000


@pytest.mark.parametrize(
    ("sizes", "more", "arguments"),
    [
        (SIZES[:-1], {}, ARGUMENTS),  # one pointer to scratch memory, as another compiler may have it
        ([*SIZES[:5], 4, *SIZES[6:]], {}, ARGUMENTS),
        ([], {}, ARGUMENTS),  # a driver that cannot be asked
        (SIZES, {"num_ctas": 2}, ARGUMENTS),
        (SIZES, {"launch_pdl": True}, ARGUMENTS),
        (SIZES, {"launch_cooperative_grid": True}, ARGUMENTS),
        (SIZES, {"global_scratch_size": 8}, ARGUMENTS),
        (SIZES, {"profile_scratch_size": 8}, ARGUMENTS),
        (SIZES, {"tensordesc_meta": None}, ARGUMENTS),
        (SIZES, {"tensordesc_meta": [{**META, "fp4_padded": True}]}, ARGUMENTS),
        (SIZES, {}, (descriptor(0x1000, padding="nan"), *ARGUMENTS[1:])),
    ],
)
def test_what_is_not_understood_is_left_to_triton(
    sizes: list[int], more: dict[str, Any], arguments: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Driver(sizes)
    with pytest.raises(Unknown):
        InPlace(driver, compiled(**more), 1, arguments)
    monkeypatch.setattr(functions, "library", lambda: driver)
    assert functions._in_place(compiled(**more), 1, arguments) is None


def test_parameters_of_other_types_are_left_to_triton() -> None:
    one = compiled()
    one.src.signature["size"] = "fp32"
    with pytest.raises(Unknown, match="fp32"):
        InPlace(Driver(SIZES), one, 1, ARGUMENTS)


def test_a_tensor_that_the_driver_cannot_describe() -> None:
    driver = Driver(SIZES)
    found = TensorMap(driver, descriptor(0x1000), META)
    driver.encode_status = 1
    found.point(0x1000)
    with pytest.raises(Unknown, match="error 1"):
        found.point(0x1001)


def test_a_launch_that_fails_is_said() -> None:
    driver = Driver(SIZES)
    driver.launch_status = [700]
    with pytest.raises(RankError, match="did not launch gemm: error 700"):
        functions._launch(InPlace(driver, compiled(), 1, ARGUMENTS), STREAM, "gemm")


def test_a_thread_without_a_context_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(SIZES)
    driver.launch_status = [201, 0]
    monkeypatch.setattr(functions, "library", lambda: driver)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 2)
    functions._launch(InPlace(driver, compiled(), 1, ARGUMENTS), STREAM, "gemm")
    assert driver.entered == ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    assert len(driver.launched) == 2


def test_a_kernel_that_needs_too_much_says_so() -> None:
    def load() -> None:
        raise functions.OutOfResources(300_000, 232_448, "shared memory")

    with pytest.raises(BindingError, match=r"kernel gemm does not fit the GPU.*300000") as caught:
        functions._load(SimpleNamespace(_init_handles=load), "gemm")
    assert "flat" in (caught.value.hint or "")
