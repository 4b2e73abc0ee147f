# pyright: basic
"""Launches whose parameters stay in place, without a GPU: a stand-in for the driver reads what it is handed."""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

from tests import artifacts
from tilelink.artifact import Descriptor, FirstProgram, HandshakePointer, NumPrograms, Rank, TensorPointer
from tilelink.dtypes import DTYPES
from tilelink.errors import BindingError, RankError
from tilelink.runtime.cuda import driver, functions
from tilelink.runtime.cuda.compile_offline import compile_source
from tilelink.runtime.cuda.functions import Function, HelperKernel, described
from tilelink.runtime.cuda.launch import MAP_BYTES, PreparedLaunch, TensorMap, UnsupportedLaunch, _Config

HANDLE, STREAM, WARPS, SHARED, PROGRAMS = 4711, 7, 8, 12345, 132
BOX = {"swizzle": 3, "elem_size": 2, "elem_type": 10, "block_size": [64, 32], "fp4_padded": False}
SIGNATURE = {"a": "*bf16", "d": "tensordesc<bf16[64, 32]>", "n": "i32", "N": "constexpr", "m": "i64", "b": "*fp32"}
SIZES = [8, MAP_BYTES, 4, 4, 8, 8, 4, 8, 8, 8, 8]
"""Of a; d, its shape and strides; n, m, b; two pointers to scratch memory."""


class Call:
    """A function of the driver."""

    def __init__(self, body: Callable[..., int]) -> None:
        self.body = body

    def __call__(self, *arguments: Any) -> int:
        return self.body(*arguments)


class Library:
    """A driver that knows the sizes of a kernel's parameters, and keeps what kernels are launched with."""

    def __init__(self, sizes: list[int] | None) -> None:
        """sizes: None for a driver that cannot be asked."""
        self.sizes, self.encoded, self.launches, self.other = sizes or [], list[Any](), list[Any](), list[str]()
        self.statuses: list[int] = []
        """Of the next launches; then 0."""
        self.refuses, self.made = 0, list[Any]()
        self.cuTensorMapEncodeTiled, self.cuLaunchKernelEx = Call(self._encode), Call(self._launch)
        if sizes is not None:
            self.cuFuncGetParamInfo = Call(self._ask)
        for name in ("cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"):
            setattr(self, name, Call(lambda *_, name=name: self.other.append(name) or 0))

    def launcher(self, src: Any, metadata: Any, keep: Callable[[Any], None]) -> Callable[..., None]:
        """Makes a launcher of Triton's, which keeps its arguments."""
        self.made.append(src)
        return lambda *arguments: keep(arguments)

    def _ask(self, handle: int, number: int, offset: Any, size: Any) -> int:
        assert handle == HANDLE
        if number >= len(self.sizes):
            return 1
        size._obj.value = self.sizes[number]
        return 0

    def _encode(
        self, place: int, kind: int, rank: int, address: int, shape: int, strides: int, box: int, steps: int,
        interleave: int, swizzle: int, promotion: int, fill: int,
    ) -> int:  # fmt: skip
        assert place % 64 == 0
        if self.refuses:
            return self.refuses
        sizes = (ctypes.c_uint64, rank), (ctypes.c_uint64, rank - 1), (ctypes.c_uint32, rank), (ctypes.c_uint32, rank)
        tables = zip(sizes, (shape, strides, box, steps), strict=True)
        found = tuple([*(cell * count).from_address(at)] for (cell, count), at in tables)
        self.encoded.append((address, kind, rank, *found, interleave, swizzle, promotion, fill))
        ctypes.memmove(place, struct.pack("<Q", address) * (MAP_BYTES // 8), MAP_BYTES)
        return 0

    def _launch(self, config: int, handle: int, parameters: int, extra: Any) -> int:
        said = _Config.from_address(config)
        assert (said.attributes, said.count) == (None, 0)
        before, stream = [handle, *said.grid, *said.block, said.shared], said.stream
        places = (ctypes.c_void_p * len(self.sizes)).from_address(parameters)
        values = [ctypes.string_at(at, size) for at, size in zip(places, self.sizes, strict=True)]
        self.launches.append(SimpleNamespace(before=before, stream=stream, extra=extra, values=values))
        return self.statuses.pop(0) if self.statuses else 0


def compiled_as(signature: Mapping[str, Any] = SIGNATURE, box: Mapping[str, Any] | None = BOX, **more: Any) -> Any:
    """What Triton says of a compiled kernel; more: of its metadata."""
    said = {
        "name": "k", "num_ctas": 1, "launch_pdl": False, "launch_cooperative_grid": False, "global_scratch_size": 0,
        "profile_scratch_size": 0, "num_warps": WARPS, "shared": SHARED, "tensordesc_meta": [box] if box else None,
    }  # fmt: skip
    src, metadata = SimpleNamespace(signature=dict(signature)), SimpleNamespace(**{**said, **more})
    return SimpleNamespace(src=src, metadata=metadata, function=HANDLE)


def given() -> tuple[list[Any], torch.Tensor, torch.Tensor, torch.Tensor]:
    """The arguments of a kernel with SIGNATURE, and the tensors of a, d and b."""
    a, d, b = torch.zeros(4), torch.zeros(3, 64, 96, dtype=torch.bfloat16), torch.zeros(4)
    return [a, described(d, Descriptor(tensor="d", box=(64, 32))), -5, 3, 2**40 + 1, b], a, d, b


def bytes_of(*values: tuple[str, int]) -> list[bytes]:
    return [struct.pack(f"<{kind}", value) for kind, value in values]


# Parameters --------------------------------------------------------------------------------------------------


def test_parameters_are_where_the_driver_reads_them() -> None:
    library, (arguments, a, d, b) = Library(SIZES), given()
    kernel = PreparedLaunch(library, compiled_as(), PROGRAMS, arguments)
    assert kernel(STREAM) == 0
    (one,) = library.launches
    assert one.before == [HANDLE, PROGRAMS, 1, 1, 32 * WARPS, 1, 1, SHARED]
    assert (one.stream, one.extra) == (STREAM, None)
    shaped = bytes_of(("i", 192), ("i", 96), ("q", 96), ("q", 1))
    numbers = bytes_of(("i", -5), ("q", 2**40 + 1), ("Q", b.data_ptr()), ("Q", 0), ("Q", 0))
    described = struct.pack("<Q", d.data_ptr()) * (MAP_BYTES // 8)
    assert one.values == [*bytes_of(("Q", a.data_ptr())), described, *shaped, *numbers]


@pytest.mark.parametrize(("said", "asked"), [(10, 9), (9, 8), (8, 10), (7, 7), (6, 6)])
def test_a_descriptor_is_encoded_innermost_dimension_first(said: int, asked: int) -> None:
    """Numbers of bf16, f64, f32 without subnormals, f32 and f16: the first three differ between device and driver."""
    library, meta = Library(SIZES), {**BOX, "elem_type": said, "block_size": [2, 64, 32], "elem_size": 4}
    base = SimpleNamespace(data_ptr=lambda: 640)
    TensorMap(library, SimpleNamespace(base=base, shape=[5, 64, 96], strides=[6144, 96, 1], padding="zero"), meta)
    shape, strides, box, steps = [96, 64, 5], [96 * 4, 6144 * 4], [32, 64, 2], [1, 1, 1]
    assert library.encoded == [(640, asked, 3, shape, strides, box, steps, 0, 3, 2, 0)]


def test_pointing_changes_one_parameter() -> None:
    library, (arguments, _, d, _) = Library(SIZES), given()
    kernel = PreparedLaunch(library, compiled_as(), PROGRAMS, arguments)
    kernel(STREAM)
    kernel.target((0,)).point(4096)
    kernel(STREAM)
    kernel.target((5,)).point(8192)
    kernel(STREAM)
    first, second, third = (one.values for one in library.launches)
    assert second == [*bytes_of(("Q", 4096)), *first[1:]]
    assert third == [*second[:8], *bytes_of(("Q", 8192)), *second[9:]]
    assert [one[0] for one in library.encoded] == [d.data_ptr()]


def test_a_descriptor_is_encoded_again_only_for_another_address() -> None:
    library, (arguments, _, d, _) = Library(SIZES), given()
    kernel = PreparedLaunch(library, compiled_as(), PROGRAMS, arguments)
    kernel(STREAM)
    target = kernel.target((1,))
    for address in (d.data_ptr(), 1024, 1024, d.data_ptr()):
        target.point(address)
        kernel(STREAM)
    assert [one[0] for one in library.encoded] == [d.data_ptr(), 1024, d.data_ptr()]
    assert all(one[1:] == library.encoded[0][1:] for one in library.encoded)
    own, other = (struct.pack("<Q", at) * (MAP_BYTES // 8) for at in (d.data_ptr(), 1024))
    assert [one.values[1] for one in library.launches] == [own, own, other, other, own]
    assert all(one.values[2:] == library.launches[0].values[2:] for one in library.launches)


@triton.jit
def copies(a, d, n, N: tl.constexpr, m, b):
    rows = tl.arange(0, 64)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(a + rows + m, d.load([n, 0]))
    tl.store(b, N)


def test_triton_compiles_kernels_with_these_parameters() -> None:
    kernel = compile_source(copies, {k: t for k, t in SIGNATURE.items() if k != "N"}, {"N": 3}, "sm_90")
    parameter = r"\.param (?:\.align \d+ )?\.[bu](\d+)[^\n]*?copies_param_\d+(?:\[(\d+)\])?[,\n]"
    found = re.findall(parameter, kernel.asm["ptx"])
    sizes = [int(bits) // 8 * int(count or 1) for bits, count in found]
    assert sizes == SIZES
    described = SimpleNamespace(src=kernel.src, metadata=kernel.metadata, function=HANDLE)
    library, (arguments, *_) = Library(sizes), given()
    PreparedLaunch(library, described, PROGRAMS, arguments)(STREAM)
    assert library.launches[0].before[4:] == [32 * 4, 1, 1, kernel.metadata.shared]
    assert library.encoded[0][1] == 9, "bfloat16"


# What is left to Triton --------------------------------------------------------------------------------------

ELSE = {
    "a cluster": {"num_ctas": 2},
    "dependent launches": {"launch_pdl": True},
    "a cooperative grid": {"launch_cooperative_grid": True},
    "scratch memory": {"global_scratch_size": 128},
    "scratch memory of a profiler": {"profile_scratch_size": 128},
    "four bits": {"box": {**BOX, "fp4_padded": True}},
    "no box": {"box": None},
    "a float": {"signature": {**SIGNATURE, "n": "fp32"}},
    "an unsigned number": {"signature": {**SIGNATURE, "m": "u64"}},
}
OTHER_SIZES = {"one more": [*SIZES, 8], "one less": SIZES[:-1], "others": [4, *SIZES[1:]], "an old driver": None}


@pytest.mark.parametrize("case", ELSE)
def test_other_kernels_are_unknown(case: str, library: Library) -> None:
    with pytest.raises(UnsupportedLaunch):
        PreparedLaunch(library, compiled_as(**ELSE[case]), PROGRAMS, given()[0])
    assert functions._prepared(compiled_as(**ELSE[case]), PROGRAMS, given()[0]) is None


@pytest.mark.parametrize("case", OTHER_SIZES)
def test_parameters_that_the_driver_does_not_confirm_are_unknown(case: str) -> None:
    with pytest.raises(UnsupportedLaunch):
        PreparedLaunch(Library(OTHER_SIZES[case]), compiled_as(), PROGRAMS, given()[0])


@pytest.mark.parametrize("said", [{"padding": "nan"}, {"round_f32_to_tf32": True}], ids=str)
def test_descriptors_that_change_what_they_load_are_unknown(said: dict[str, Any]) -> None:
    like = {"base": torch.zeros(4), "shape": [64, 96], "strides": [96, 1], "padding": "zero", **said}
    with pytest.raises(UnsupportedLaunch):
        TensorMap(Library(SIZES), SimpleNamespace(**like), BOX)


def test_a_tensor_that_the_driver_cannot_describe_is_unknown() -> None:
    library, (arguments, *_) = Library(SIZES), given()
    library.refuses = 1
    with pytest.raises(UnsupportedLaunch, match="error 1"):
        PreparedLaunch(library, compiled_as(), PROGRAMS, arguments)
    library.refuses = 0
    kernel = PreparedLaunch(library, compiled_as(), PROGRAMS, arguments)
    library.refuses = 1
    target = kernel.target((1,))
    target.point(arguments[1].base.data_ptr())
    for _ in range(2):
        with pytest.raises(UnsupportedLaunch, match="error 1"):
            target.point(1025)


# Functions ---------------------------------------------------------------------------------------------------


class Compiled:
    """A compiled kernel that Triton would launch by `run`."""

    def __init__(self, said: Any, fails: Exception | None = None) -> None:
        self.src, self.metadata, self.function, self.packed_metadata = said.src, said.metadata, said.function, "packed"
        self.fails, self.loaded, self.runs, self.run = fails, 0, list[Any](), None

    def _init_handles(self) -> None:
        self.loaded += 1
        driver: Any = functions.driver.active
        self.run = driver.launcher_cls(self.src, self.metadata, self.runs.append)
        if self.fails:
            raise self.fails


class Source:
    """A generated function."""

    __name__ = cache_key = "k"
    arg_names = ("a", "d", "n", "N", "m", "b")
    fn = staticmethod(lambda: None)

    def __init__(self, compiled: Compiled) -> None:
        self.compiled = compiled

    def warmup(self, *arguments: Any, **options: Any) -> Compiled:
        return self.compiled


PARAMETERS = (
    TensorPointer(tensor="a"), Descriptor(tensor="d", box=(64, 32)), Rank(), FirstProgram(), NumPrograms(),
    HandshakePointer(),
)  # fmt: skip
EDGE = torch.zeros(4)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library(SIZES)
    here = SimpleNamespace(empty=lambda shape, dtype, device: torch.empty(shape, dtype=dtype))
    monkeypatch.setattr(functions, "library", lambda: made)
    monkeypatch.setattr(functions, "torch", here)
    monkeypatch.setattr(driver, "torch", SimpleNamespace(cuda=SimpleNamespace(current_device=lambda: 0)))
    monkeypatch.setattr(functions, "_hooked", lambda: False)
    active = SimpleNamespace(active=SimpleNamespace(launcher_cls=made.launcher))
    monkeypatch.setattr(functions, "driver", active)
    return made


def function_with(compiled: Compiled) -> tuple[Function, dict[str, torch.Tensor], torch.Tensor]:
    """A function, the tensors that callers pass it (a and d) and the one that is always the same (b)."""
    _, a, d, _ = given()
    tensors = {"a": a, "d": d}
    names = {dtype: name for name, dtype in DTYPES.items()}
    specs = [artifacts.tensor(name, shape=tuple(t.shape), dtype=names[t.dtype]) for name, t in tensors.items()]
    kernel = artifacts.kernel("k", programs=PROGRAMS, num_warps=WARPS, num_stages=3, parameters=PARAMETERS)
    fixed = {Rank(): -5, FirstProgram(): 0, NumPrograms(): PROGRAMS, HandshakePointer(): EDGE}
    artifact = replace(artifacts.EMPTY, tensors=tuple(specs))
    return Function(kernel, Source(compiled), lambda _, one: fixed.get(one), artifact), tensors, EDGE


def test_a_function_points_at_what_its_caller_passes(library: Library) -> None:
    compiled = Compiled(compiled_as())
    function, tensors, b = function_with(compiled)
    function(STREAM, tensors)
    (one,) = library.launches
    assert [one.values[0], one.values[8]] == bytes_of(("Q", tensors["a"].data_ptr()), ("Q", b.data_ptr()))
    assert one.values[1] == struct.pack("<Q", tensors["d"].data_ptr()) * (MAP_BYTES // 8)
    assert compiled.runs == [] and compiled.loaded == 1


def test_a_launch_of_other_sizes_has_its_own_descriptors(library: Library) -> None:
    function, tensors, _ = function_with(Compiled(compiled_as()))
    function(STREAM, tensors)
    own = function.of_sizes({"d": (5, 96)})
    assert own is not None
    own.targets["d"].point(1024)
    own.targets["a"].point(4096)
    own.launch(STREAM)
    function(STREAM, tensors)
    first, other, again = (one.values for one in library.launches)
    assert first == again and other[0] == struct.pack("<Q", 4096)
    assert other[2:6] == bytes_of(("i", 5), ("i", 96), ("q", 96), ("q", 1)) and first[2:3] == bytes_of(("i", 192))
    shapes = [shape for _, _, _, shape, *_ in library.encoded]
    assert shapes[0] == [96, 192] and set(map(tuple, shapes[-2:])) == {(96, 5)}


def test_no_launcher_of_tritons_is_made_where_none_is_used(library: Library) -> None:
    function, tensors, _ = function_with(Compiled(compiled_as()))
    function(STREAM, tensors)
    function(STREAM, tensors, {HandshakePointer: torch.zeros(4)})
    HelperKernel(Source(Compiled(compiled_as())), tuple(given()[0]), {})(STREAM)
    assert len(library.launches) == 3 and library.made == []
    driver: Any = functions.driver.active
    assert driver.launcher_cls == library.launcher


def test_triton_launches_the_rest(library: Library) -> None:
    compiled = Compiled(compiled_as(num_ctas=2))
    function, tensors, handshake_block = function_with(compiled)
    assert library.made == []
    other = torch.zeros(4)
    for instead in (None, {HandshakePointer: other}, None):
        function(STREAM, tensors, instead)
    assert library.launches == [] and len(library.made) == 1
    for last, (*before, a, d, n, first, m, b) in zip(
        (handshake_block, other, handshake_block), compiled.runs, strict=True
    ):
        assert before == [PROGRAMS, 1, 1, STREAM, HANDLE, "packed", None, None, None]
        assert a is tensors["a"] and b is last and (n, first, m) == (-5, 0, PROGRAMS)
        assert (d.base.data_ptr(), d.shape, d.block_shape) == (tensors["d"].data_ptr(), [192, 96], [64, 32])


def test_other_tensors_for_a_kind_change_that_parameter_of_one_launch(library: Library) -> None:
    function, tensors, handshake_block = function_with(Compiled(compiled_as()))
    other, third = torch.zeros(4), torch.zeros(4)
    more = {"a": torch.zeros(4), "d": torch.zeros(3, 64, 96, dtype=torch.bfloat16)}
    launches = [(tensors, handshake_block), (tensors, other), (more, other), (more, third), (more, handshake_block)]
    for passed, last in launches:
        function(STREAM, passed, None if last is handshake_block else {HandshakePointer: last})
    for one, (passed, last) in zip(library.launches, launches, strict=True):
        assert [one.values[0], one.values[8]] == bytes_of(("Q", passed["a"].data_ptr()), ("Q", last.data_ptr()))
        assert one.values[1] == struct.pack("<Q", passed["d"].data_ptr()) * (MAP_BYTES // 8)
    encoded = len(library.encoded)
    for passed, last in ((more, other), (more, third), (more, other)):
        function(STREAM, passed, {HandshakePointer: last})
    assert len(library.encoded) == encoded, "parameters are kept"


def test_triton_launches_what_the_driver_cannot_describe_and_all_after_it(
    library: Library, caplog: pytest.LogCaptureFixture
) -> None:
    compiled = Compiled(compiled_as())
    function, tensors, b = function_with(compiled)
    function(STREAM, tensors)
    library.refuses = 1
    other = {"a": torch.zeros(4), "d": torch.zeros(3, 64, 96, dtype=torch.bfloat16)}
    function(STREAM, other)
    library.refuses = 0
    function(STREAM, tensors)
    function(STREAM, tensors, {HandshakePointer: b})
    assert len(library.launches) == 1
    for passed, (*before, a, d, n, first, m, last) in zip((other, tensors, tensors), compiled.runs, strict=True):
        assert before == [PROGRAMS, 1, 1, STREAM, HANDLE, "packed", None, None, None]
        assert a is passed["a"] and last is b and (n, first, m) == (-5, 0, PROGRAMS)
        assert (d.base.data_ptr(), d.shape, d.block_shape) == (passed["d"].data_ptr(), [192, 96], [64, 32])
    (said,) = caplog.messages
    assert "k is launched by Triton from now on" in said and "error 1" in said


def test_profilers_see_every_launch(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "_hooked", lambda: True)
    assert functions._prepared(compiled_as(), PROGRAMS, given()[0]) is None


def test_a_launch_that_fails_is_reported(library: Library) -> None:
    function, tensors, _ = function_with(Compiled(compiled_as()))
    library.statuses = [700]
    with pytest.raises(RankError, match="did not launch k: error 700"):
        function(STREAM, tensors)
    assert library.other == []


def test_a_thread_without_a_context_gets_one(library: Library) -> None:
    function, tensors, _ = function_with(Compiled(compiled_as()))
    library.statuses = [201]
    function(STREAM, tensors)
    assert library.other == ["cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    assert len(library.launches) == 2
    library.statuses = [201, 201]
    with pytest.raises(RankError, match="error 201"):
        function(STREAM, tensors)


def test_a_kernel_that_does_not_fit_is_refused(library: Library) -> None:
    too_much = Compiled(compiled_as(), fails=OutOfResources(240000, 232448, "shared memory"))
    for make in (lambda: function_with(too_much), lambda: HelperKernel(Source(too_much), tuple(given()[0]), {})):
        with pytest.raises(BindingError, match=r"kernel k does not fit the GPU.*240000") as caught:
            make()
        assert "smaller tiles" in str(caught.value.hint)
    assert library.launches == []


def test_a_boundary_kernel_has_its_arguments_for_ever(library: Library) -> None:
    compiled, (arguments, a, _, b) = Compiled(compiled_as()), given()
    boundary = HelperKernel(Source(compiled), tuple(arguments[:4]), {"m": 9, "b": b})
    for _ in range(2):
        boundary(STREAM)
    assert [one.before[1] for one in library.launches] == [1, 1] and compiled.runs == []
    assert library.launches[1].values[0] == struct.pack("<Q", a.data_ptr())
    assert library.launches[1].values[7:9] == bytes_of(("q", 9), ("Q", b.data_ptr()))
