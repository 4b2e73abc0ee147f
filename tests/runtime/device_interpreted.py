# pyright: basic, reportArgumentType=false, reportCallIssue=false
"""The device library in Triton's interpreter. test_interpreted.py runs this file, with TRITON_INTERPRET=1."""

import mmap
import multiprocessing
import time
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from tests.runtime import device_expected as expected
from tests.runtime import device_kernels as kernels
from tilelink.device import handshake, monitor
from tilelink.device import words as device_words
from tilelink.device.interpreted import number, reader
from tilelink.runtime.cpu.interpreter import (
    _OPERATIONS,
    ArrayTypes,
    Unwrap,
    like_others,
    of_integers,
    of_known_shapes,
    of_places,
)
from tilelink.runtime.cuda.launch_checks import begin_checked, compare_launches, end_checked
from tilelink.runtime.cuda.report import DIFFERENT, OVERLAPPED

EPOCHS = 12
BOTH = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)


@pytest.fixture(autouse=True)
def deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends a wait that goes on for 20 seconds, in forked processes too."""
    start = time.monotonic()

    def poll(**where: int) -> None:
        if time.monotonic() - start > 20:
            raise TimeoutError(where)

    monkeypatch.setattr(monitor, "poll", poll)


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    seen: list[tuple[Any, ...]] = []
    monkeypatch.setattr(monitor, "record", lambda *event: seen.append(event))
    return seen


def test_the_interpreter_runs() -> None:
    assert kernels.dl.INTERPRETED.value
    assert not isinstance(kernels.push, triton.JITFunction)


def test_integers() -> None:
    expected.check_integers("cpu")


@BOTH
def test_elementwise(dtype: torch.dtype) -> None:
    expected.check_elementwise("cpu", dtype)


@BOTH
def test_product(dtype: torch.dtype) -> None:
    expected.check_product("cpu", dtype)


@BOTH
def test_attention(dtype: torch.dtype) -> None:
    expected.check_attention("cpu", dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32], ids=str)
def test_extremes(dtype: torch.dtype) -> None:
    expected.check_extremes("cpu", dtype)


def test_relu_keeps_nan() -> None:
    expected.check_relu_keeps_nan("cpu")


def test_convert() -> None:
    expected.check_convert("cpu")


@pytest.mark.parametrize("dtype", expected.F8)
def test_convert_to_floats_of_8_bits(dtype: str) -> None:
    expected.check_convert_f8("cpu", dtype)


def test_convert_to_integers_of_8_bits() -> None:
    expected.check_convert_integers("cpu")


def test_products_of_elements_of_8_bits() -> None:
    expected.check_product_of_bytes("cpu")


def test_low_level() -> None:
    expected.check_low_level("cpu")


def test_all_counters_are_waited_for() -> None:
    expected.check_wait_all("cpu")


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_a_counter_is_read_by_its_width_and_stays_as_it_is(dtype: torch.dtype) -> None:
    widest = 2**31 if dtype == torch.int32 else 2**63
    counters = torch.tensor([5, -widest, widest - 1], dtype=dtype)
    for at in range(3):
        place = interpreter.TensorHandle(np.array([counters[at:].data_ptr()], np.uint64), tl.pointer_type(tl.int32))
        wide = tl.int32 if dtype == torch.int32 else tl.int64
        read = reader(tl.tensor(place, tl.pointer_type(wide)))
        assert read() == counters[at] == read()
        counters[at] = 7
        assert read() == 7
    assert counters.tolist() == [7, 7, 7]


def test_types_of_arrays_are_those_of_the_interpreter() -> None:
    asked = interpreter._get_np_dtype
    remembered = ArrayTypes(asked)
    scalars = [
        tl.int1,
        tl.int8,
        tl.uint8,
        tl.int32,
        tl.int64,
        tl.uint64,
        tl.bfloat16,
        tl.float16,
        tl.float32,
        tl.float8e5,
    ]
    for scalar in scalars * 2:
        pointer = tl.pointer_type(scalar)
        for one in (scalar, pointer, tl.block_type(scalar, [4]), tl.block_type(pointer, [2, 2])):
            assert remembered(one) == asked(one), one


SCALARS = (tl.int1, tl.int32, tl.uint8, tl.bfloat16, tl.float32, tl.pointer_type(tl.int8), tl.pointer_type(tl.float32))


def test_types_of_blocks_are_those_of_the_interpreter() -> None:
    init = of_known_shapes(tl.block_type.__init__)
    shapes = ([1], [4], [4, 4], [16, 1], [tl.constexpr(4), tl.constexpr(4)], tl.tuple([tl.constexpr(4), 4]))
    for scalar in SCALARS * 2:
        for shape in shapes:
            made = tl.block_type.__new__(tl.block_type)
            init(made, scalar, shape)
            wanted = tl.block_type(scalar, shape)
            assert vars(made).keys() == vars(wanted).keys() and made.element_ty is scalar
            assert (made.shape.values, made.numel, made.name) == (wanted.shape.values, wanted.numel, wanted.name)
            assert {*map(type, made.shape.values)} == {int}
    made = tl.block_type.__new__(tl.block_type)
    for wrong in ([3], [4.0], []):
        with pytest.raises((TypeError, ValueError)):
            init(made, tl.int32, wrong)


def test_tensors_are_those_of_the_interpreter() -> None:
    init = like_others(tl.tensor.__init__)
    for scalar in SCALARS * 2:
        for one in (scalar, tl.block_type(scalar, [4]), tl.block_type(scalar, [2, 2]), tl.block_type(scalar, [4, 1])):
            handle = object()
            made = tl.tensor.__new__(tl.tensor)
            init(made, handle, one)
            wanted = tl.tensor(handle, one)
            assert vars(made).keys() == vars(wanted).keys()
            assert made.handle is handle and made.type is one and made.dtype is one.scalar
            assert [size.value for size in made.shape] == [size.value for size in wanted.shape]
            assert made.numel.value == wanted.numel.value


def test_values_of_constants_are_those_of_the_interpreter() -> None:
    of = tl.core._unwrap_if_constexpr
    remembered = Unwrap(of)
    size = tl.constexpr(4)
    for one in (4, True, 0.5, "a", None, tl.int32, size, tl.constexpr(None), [size, 3], (size, [size]), tl.tensor):
        assert repr(remembered(one)) == repr(of(one)) and type(remembered(one)) is type(of(one))
    assert [type(one) for one in remembered(tl.tuple([size, 3])).values] == [int, int]


def operator(name: str) -> Any:
    """An operator of tl.tensor as the interpreter has it."""
    member = vars(tl.tensor)[name]
    return lambda a, b: member(a, b, _semantic=interpreter.interpreter_semantic)


def operands() -> list[Any]:
    """Integers of some types and shapes, near the ends of their range too, pointers, floats and constants."""
    numbers = [
        (tl.int32, 7, -3, 2**31 - 1), (tl.int64, 2**62, -5, 9), (tl.uint8, 200, 3, 0), (tl.uint32, 1, 0, 2**31),
        (tl.float32, 0.5, -2.0, 9.0), (tl.int1, True, False, True), (tl.pointer_type(tl.int16), 64, 128, 256),
    ]  # fmt: skip
    made: list[Any] = []
    for scalar, a, b, c in numbers:
        shaped = [([a], None), ([b], None), ([a, b, c, a], [4]), ([[a], [c]], [2, 1]), ([[b, c]], [1, 2])]
        for values, shape in shaped:
            handle = interpreter.TensorHandle(np.array(values, interpreter._get_np_dtype(scalar)), scalar)
            made.append(tl.tensor(handle, scalar if shape is None else tl.block_type(scalar, shape)))
    return [*made, 3, -2, 0, 2**31, 2**40, 2**63, True, 1.5, tl.constexpr(5)]


def result(call: Any, a: Any, b: Any) -> object:
    """What an operation on tensors is, or the type of the error that it raises."""
    with np.errstate(all="ignore"):
        try:
            made = call(a, b)
        except Exception as error:
            return type(error)
    data = made.handle.data
    return data.tolist(), data.dtype, data.shape, made.handle.dtype.name, made.type.name, made.dtype.name


@pytest.mark.parametrize("name", _OPERATIONS)
@pytest.mark.filterwarnings("ignore")
def test_operations_on_integers_are_those_of_the_interpreter(name: str) -> None:
    slow = operator(name)
    seen: list[object] = []
    direct = of_integers(lambda a, b: seen.append(b) or slow(a, b), _OPERATIONS[name])
    if name == "__add__":
        direct = of_places(direct)
    calls = [(a, b) for a in operands() if isinstance(a, tl.tensor) for b in operands()]
    for a, b in calls:
        assert repr(result(direct, a, b)) == repr(result(slow, a, b)), (a.type, a.handle, b)
    assert 0 < len(seen) < len(calls) - 60, "pairs of integers of a type, and a constant with one, are computed at once"


def test_notifies_together() -> None:
    expected.check_notify_each("cpu")


def test_notifies_together_are_the_events_of_a_loop(events: list[tuple[Any, ...]]) -> None:
    expected.check_notify_each("cpu")
    assert events[:4] == [("notify", 7, 5, rank, 2 + rank) for rank in (0, 1, 2, 4)]
    assert events[4:] == [("notify", 7, 5, 6, 9)] * 2


@pytest.fixture
def meets(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPU ranks never begin and end a launch in its kernels; here they do, as NVIDIA's processors would."""
    monkeypatch.setattr(handshake, "isa", lambda: "ptx")
    missing = handshake._missing

    def seen(signals: Any, counters: Any, targets: Any, mask: Any) -> Any:
        if number(found := missing(signals, counters, targets, mask)) > 0:
            awaited = [int(c) for c, there in zip(counters.handle.data, mask.handle.data, strict=True) if there]
            raise TimeoutError(f"waits for {awaited}")
        return found

    monkeypatch.setattr(handshake, "_missing", seen)


@pytest.mark.usefixtures("meets")
def test_launches_that_begin_and_end_by_themselves() -> None:
    expected.check_launches("cpu")


@pytest.mark.usefixtures("meets")
def test_launches_that_others_begin_and_end() -> None:
    expected.check_boundaries("cpu")


@pytest.mark.usefixtures("meets")
def test_launches_whose_programs_are_counted() -> None:
    expected.check_counted_launches("cpu")


@pytest.mark.usefixtures("meets")
def test_launches_that_let_a_copy_engine_begin() -> None:
    expected.check_begun_copies("cpu")


@pytest.mark.usefixtures("meets")
@pytest.mark.parametrize("late", [None, 3, 5])
def test_a_copy_engine_begins_when_peers_have_finished_with_its_buffers(late: int | None) -> None:
    """Launch 4 of two buffers; 3, 5: what peers have told. They are told of the own launches before they are waited
    for."""
    pads = torch.zeros(3, 8, dtype=torch.int32)
    pads[1, 3:6] = 2
    if late is not None:
        pads[1, late] = 1
    flags, ready = torch.zeros((0, 5), dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    handshake_block = torch.tensor([1, 0, 2, 0, 0, 0, flags.data_ptr(), flags.data_ptr(), ready.data_ptr()])
    table = torch.tensor([row.data_ptr() for row in pads])
    epoch = torch.tensor([4, 0, 0, 2])
    given = (torch.zeros(128, dtype=torch.int32), handshake_block, pads[1], table, epoch, None, 1, 3, 3, 4, 2, 64)
    if late is None:
        kernels.copying_launch[(2,)](*given)
    else:
        with pytest.raises(InterpreterError, match=r"waits for \[3, 4, 5\]"):
            kernels.copying_launch[(2,)](*given)
    assert ready.tolist() == [late is None] and pads[0, 4] == 1


@pytest.mark.usefixtures("meets")
@pytest.mark.parametrize(
    ("late", "awaited", "told"), [(6, "6", 0), (3, "3, 4, 5", 1), (5, "3, 4, 5", 1), (2, "", 1)]
)  # fmt: skip
def test_a_launch_ends_when_all_that_it_waits_for_has_come(late: int, awaited: str, told: int) -> None:
    """Counter 6: its own output lacks a notify, so that it has not finished. 3, 5: peers have not finished the launch
    before the next one's buffers. 2: a peer that has not even entered, which is the business of kernels that read its
    inputs."""
    pads = torch.zeros(3, 8, dtype=torch.int32)
    pads[1, :] = 20
    pads[1, late] = {6: 14, 3: 1, 5: 1, 2: 0}[late]
    before, epoch = pads.clone(), torch.tensor([3])
    exits = torch.tensor([[6, 1, 1, 5]], dtype=torch.int32)
    handshake_block = torch.tensor([1, 4, 2, 1, exits.data_ptr()], dtype=torch.int64)
    table = torch.tensor([row.data_ptr() for row in pads])
    given = (torch.zeros(128, dtype=torch.int32), handshake_block, pads[1], table, epoch, None, 1, 0, 3, 3, 4, 64)
    if awaited:
        with pytest.raises(InterpreterError, match=rf"waits for \[{awaited}\]"):
            kernels.launch[(2,)](*given)
    else:
        kernels.launch[(2,)](*given)
    assert (pads[:, 4] - before[:, 4]).tolist() == [told] * 3
    assert epoch.tolist() == [3 if awaited else 4], "the next launch has not begun"


def checked_state(report: torch.Tensor, identity: int = 0, compared: int = 0) -> torch.Tensor:
    """The state of launches that are checked. report: int64 [4]."""
    return torch.tensor([identity, compared, 0, 0, report.data_ptr()], dtype=torch.int64)


def test_a_launch_that_begins_before_the_last_one_has_ended_is_reported() -> None:
    report = torch.zeros(4, dtype=torch.int64)
    state = checked_state(report)
    for _ in range(3):
        begin_checked[(1,)](state)
        end_checked[(1,)](state)
    begin_checked[(1,)](state)
    assert not report.any()
    with pytest.raises(InterpreterError, match="the GPU ends all work"):
        begin_checked[(1,)](state)
    assert report.tolist() == [OVERLAPPED, 4, 3, 0]


@pytest.mark.parametrize(("peer", "what"), [(None, 0), (0, 7), (2, 0)])
@pytest.mark.parametrize("before", [0, 1, 2**31 - 2, 2**31 - 1])
def test_ranks_compare_what_they_launch(peer: int | None, what: int, before: int) -> None:
    """Rank 1 of 3 launches 5, after `before` others; what its peers launch is on its board."""
    boards = torch.zeros(3, 2, 3, dtype=torch.int64)
    number, row = (before + 1) % 2**31, before % 2
    theirs = {0: 5, 2: 5, **({} if peer is None else {peer: what})}
    for one, launched in theirs.items():
        boards[1, row, one] = number << 32 | launched
    report = torch.zeros(4, dtype=torch.int64)
    state, addresses = checked_state(report, 5, before), torch.tensor([one.data_ptr() for one in boards])

    def compare() -> None:
        compare_launches[(1,)](boards[1], addresses, state, 1, RANKS=3, BLOCK=4)

    if peer is None:
        compare()
    else:
        with pytest.raises(InterpreterError, match="the GPU ends all work"):
            compare()
    assert report.tolist() == ([0] * 4 if peer is None else [DIFFERENT, 5, what, peer])
    assert boards[:, row, 1].tolist() == [number << 32 | 5] * 3 and state[:2].tolist() == [5, before + 1]


def test_wrapped_counters() -> None:
    expected.check_wrapped_counters("cpu")


def test_push_and_its_events(events: list[tuple[Any, ...]]) -> None:
    expected.check_push("cpu")
    assert events == [("tile", 7, 5, 0, 0), ("wait", 7, 5, 3, 6), ("transfer", 7, 5, 1, 0, 0), ("notify", 7, 5, 0, 4)]


def test_gemm_with_waits_and_descriptors() -> None:
    from triton.tools.tensor_descriptor import TensorDescriptor

    torch.manual_seed(4)
    a, b, c = torch.randn(32, 64).bfloat16(), torch.randn(32, 64).bfloat16(), torch.zeros(32, 32).bfloat16()
    described = [TensorDescriptor.from_tensor(one, [16, 16]) for one in (a, b, c)]
    signals = torch.zeros(128, dtype=torch.int32)
    signals[:2] = 9
    kernels.gemm_descriptors[(2,)](*described, signals, 9, None, 4, 2, 4, 16, 16, 16, 2, False)
    torch.testing.assert_close(c.float(), a.float() @ b.float().T, rtol=1e-2, atol=1e-2)
    assert signals.tolist() == [9, 9] + [0] * 98 + [1] * 4 + [0] * 24


def test_a_wait_that_goes_on_is_polled_and_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, int]] = []

    def poll(**where: int) -> None:
        calls.append(where)
        if len(calls) == 3:
            raise TimeoutError("too long")

    monkeypatch.setattr(monitor, "poll", poll)
    with pytest.raises(InterpreterError, match="too long"):
        kernels.await_one[(1,)](torch.tensor([0, 4], dtype=torch.int32), 1, 5, None, 8)
    assert calls == [{"channel": 1, "seen": 4, "expected": 5, "stage": 2, "tile": 8}] * 3


def test_the_counter_that_is_late_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def poll(**where: int) -> None:
        raise TimeoutError(f"counter {where['channel']}")

    monkeypatch.setattr(monitor, "poll", poll)
    signals, out = torch.tensor([0, 7, 7, 3, 0], dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(InterpreterError, match="counter 3"):
        kernels.await_all[(1,)](signals, out, 1, 7, None, 3)
    assert out.tolist() == [0]


def test_numbers_of_any_make() -> None:
    assert [number(5), number(triton.language.constexpr(5))] == [5, 5]


SWEPT = 1 << 20, 1 << 10
"""Launches of a period, and those of them that sweep."""


def flags_after(launch: int, flags: torch.Tensor, programs: int = 3) -> torch.Tensor:
    """The flags of words, whose data is their number, after a sweep by a launch."""
    words = (flags << 32) | torch.arange(len(flags))
    before = words.clone()
    kernels.sweep[(programs,)](words, torch.tensor([launch]), len(flags), *SWEPT)
    same = words == before
    assert ((words & 0xFFFFFFFF)[~same] == 0).all(), "nobody reads data with such a flag"
    return words >> 32


@pytest.mark.parametrize(
    "launch", [1 << 20, (1 << 20) + 1023, (1 << 31) + 5, (1 << 32) - (1 << 20), (1 << 32) + 1, 3 << 32]
)
def test_a_sweep_replaces_old_flags(launch: int) -> None:
    """Those of more than half a period ago, also across the end of 32 bits; those of launches of peers stay."""
    ages = torch.tensor([-2, -1, 0, 1, 2, 1 << 19, (1 << 19) + 1, 1 << 20, (1 << 31) - 1] * 400)
    flags = (launch - ages).to(torch.int32).long()
    wanted = torch.where(ages > 1 << 19, torch.tensor(launch - 1).to(torch.int32).long(), flags)
    assert torch.equal(flags_after(launch, flags), wanted)


@pytest.mark.parametrize("launch", [1, 5, (1 << 20) - 1, (1 << 20) + 1024, (1 << 32) - 1])
def test_other_launches_do_not_sweep(launch: int) -> None:
    flags = torch.zeros(2000, dtype=torch.int64)
    assert torch.equal(flags_after(launch, flags), flags)


def test_memory_that_was_never_written_has_no_flag_of_a_launch() -> None:
    """2**32 launches after the first flag of all, 0, there is none of it."""
    flags = torch.zeros(10, dtype=torch.int64)
    for launch in range(1 << 20, (1 << 32) + 1, 1 << 28):
        assert launch % (1 << 32) not in {number % (1 << 32) for number in flags.tolist()}
        flags = flags_after(launch, flags)


def test_a_word_that_comes_during_a_sweep_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    words, fresh, replaced = torch.zeros(4, dtype=torch.int64), (1 << 20) << 32 | 7, device_words._replace

    def late(at: Any, old: Any, new: Any) -> None:
        words[2] = fresh  # after the sweep has looked at it
        replaced(at, old, new)

    monkeypatch.setattr(device_words, "_replace", late)
    kernels.sweep[(1,)](words, torch.tensor([1 << 20]), 4, *SWEPT)
    old = ((1 << 20) - 1) << 32
    assert words.tolist() == [old, old, fresh, old]


def shared(count: int) -> torch.Tensor:
    """int64 zeros that forked processes share."""
    return torch.frombuffer(mmap.mmap(-1, 8 * count), dtype=torch.int64)


def run_forked(*work: Any) -> None:
    """Each callable in a process of its own; all have 60 seconds."""
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=one, daemon=True) for one in work]
    for process in processes:
        process.start()
    until = time.monotonic() + 60
    for process in processes:
        process.join(max(0.0, until - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert codes == [0] * len(processes)


def test_two_processes_hand_data_to_each_other() -> None:
    """Each rank pushes a block to the other as soon as the other's last has come: by turns into two slots, since the
    other may look at one block while the next arrives."""
    count, memory = 256, shared(1024)
    y = memory[:512].view(torch.float32).reshape(2, 2, count)
    pads = memory[512:520].view(torch.int32).reshape(2, 8)
    good = memory[520:522]
    tables = [torch.tensor([y[rank, slot].data_ptr() for rank in range(2)]) for slot in range(2)]
    signal_table = torch.tensor([pad.data_ptr() for pad in pads])

    def work(rank: int) -> None:
        torch.set_num_threads(1)
        epoch = torch.zeros(1, dtype=torch.int64)
        for e in range(1, EPOCHS + 1):
            kernels.await_one[(1,)](pads[rank], 4, e - 1, None, e)
            good[rank] += bool((y[rank, (e - 1) % 2] == (e - 1) * (2 - rank)).all())
            x = torch.full((count,), float(e * (rank + 1)))
            to = (y[rank, e % 2], tables[e % 2], signal_table)
            kernels.push[(1,)](x, *to, pads[rank], epoch, None, rank, 2, 0, count, True, True)

    run_forked(lambda: work(0), lambda: work(1))
    assert good.tolist() == [EPOCHS, EPOCHS]
    assert pads[:, 4].tolist() == [EPOCHS, EPOCHS]


def test_processes_add_to_one_counter() -> None:
    pad = shared(1).view(torch.int32)
    out = torch.zeros(1, dtype=torch.int32)
    pad[0] = 42

    def work() -> None:
        torch.set_num_threads(1)
        for _ in range(100):
            kernels.low_level[(1,)](pad, out)

    run_forked(work, work)
    assert pad[0].item() == 42 + 2 * 100 * 35
