# pyright: basic
"""The order in which launches are issued, by a model of the worst case: all streams of a rank are one hardware queue.

An operation at the head of a queue holds up all behind it until it may begin. A kernel has begun when it is taken from
the queue, and notifies whatever it notifies at some time after; it ends when all that it waits for has come.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.compiler.library import cases, name, sizes
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.artifact import Artifact, HandshakePointer, KernelSpec, LaunchProtocol, SignalsPointer, SignalTablePointer
from tilelink.compiler.cuda import gpu_artifact
from tilelink.lowering.bound import Kernel
from tilelink.lowering.issue_order import issued
from tilelink.runtime.cuda.copy_stream import CopyEngine, defer_early_copies, may_be_begun
from tilelink.runtime.cuda.kernel import GpuKernel
from tilelink.runtime.cuda.launch_driver import LaunchDriver
from tilelink.runtime.cuda.offline import recorded
from tilelink.runtime.cuda.order import between_kernels
from tilelink.runtime.cuda.record_copies import StreamWait, StreamWrite
from tilelink.runtime.order import kernels_in_order

RANKS = 3


class Rank:
    def __init__(self, program: Artifact, number: int, queue: list[Any]) -> None:
        self.program, self.number, self.queue = program, number, queue
        self.begun: list[KernelSpec] = []
        self.flags: Counter[int] = Counter()

    def notified(self, channel: int, everybody: list[Rank]) -> bool:
        """Whether nothing holds up the notifies of a counter: peers are alike, and so are their kernels."""
        grid = self.program.grid(channel)
        by_kernels = [k for k in self.program.kernels if grid.signal in k.notifies]
        if by_kernels:
            return all(k in rank.begun for k in by_kernels for rank in everybody)
        return self.flags[channel] >= grid.thresholds[self.number].reshape(-1)[(channel - grid.base) % grid.count]

    def ended(self, kernel: KernelSpec, everybody: list[Rank]) -> bool:
        grids = [g for g in self.program.grids if g.signal in kernel.awaits]
        channels = [g.base + at for g in grids for at in range(g.count)]  # of the first launch, in the first buffer
        return kernel in self.begun and all(self.notified(channel, everybody) for channel in channels)

    def step(self, everybody: list[Rank]) -> bool:
        """Takes what is at the head of the queue, if that may begin."""
        if not self.queue:
            return False
        match self.queue[0]:
            case KernelSpec() as kernel:
                before = [k for k in self.begun if k.stream == kernel.stream]
                if not all(self.ended(k, everybody) for k in before):
                    return False
                self.begun.append(kernel)
            case StreamWait(channel=channel):
                if not self.notified(channel, everybody):
                    return False
            case StreamWrite(rank=peer, channel=channel):
                everybody[peer].flags[channel] += 1
            case _:
                pass
        del self.queue[0]
        return True


def stuck(program: Artifact, issued: list[list[Any]]) -> list[Any]:
    """What heads the queues at the end, where ranks issue these operations and kernels."""
    ranks = [Rank(program, number, list(queue)) for number, queue in enumerate(issued)]
    while any([rank.step(ranks) for rank in ranks]):
        pass
    assert len({bool(rank.queue) for rank in ranks}) == 1
    return [rank.queue[0] for rank in ranks if rank.queue]


def order_of(program: Artifact, rank: int) -> list[Any]:
    found = recorded(program, rank)
    kernels = kernels_in_order(program.kernels)
    first, *parts = found.late[0]
    return [*found.early[0], *first, *(one for k, part in zip(kernels, parts, strict=True) for one in (k, *part))]


@cache
def gpu_of(case: Any) -> Artifact:
    program, schedule = case
    plan = compiler.plan(program, schedule, ranks=RANKS, dims=sizes(case, RANKS), dtype="bf16", target="sm_90")
    return gpu_artifact(plan)


QUEUED = [case for case in cases() if "copy_engine" in str(case[1]) or " sm(" in str(case[1])]
"""Those whose launches use several streams."""


@thorough(unless=lambda case: one_in(6, name(case)))
@pytest.mark.parametrize("case", QUEUED, ids=name)
def test_launches_end_where_all_streams_share_a_queue(case: Any) -> None:
    program = gpu_of(case)
    assert stuck(program, [order_of(program, rank) for rank in range(RANKS)]) == []


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.thorough)])
def test_copies_that_a_kernel_lets_begin_may_share_its_queue(share: int) -> None:
    """The next kernel begins when a kernel has allowed it, which it does before it waits for anything."""
    tried = 0
    for case in (one for one in QUEUED if "copy_engine" in str(one[1]) and one_in(share, name(one))):
        program = gpu_of(case)
        queues = [recorded(program, rank) for rank in range(RANKS)]
        if program.protocol is LaunchProtocol.COUNTED_WITH_COPIES and all(map(may_be_begun, queues)):
            (kernel,) = kernels_in_order(program.kernels)
            parts = [defer_early_copies(queue.late[0]) for queue in queues]
            assert stuck(program, [[*before, kernel, *after] for before, after in parts]) == [], name(case)
            tried += 1
    assert tried > 10 / share, "of the library's schedules"


def case_of(wanted: str) -> Artifact:
    return gpu_of(next(case for case in cases() if name(case) == wanted))


@pytest.mark.parametrize("wanted", ["gemm_rs_scatter-copy_engine", "gemm_rs_local_last-h200"])
def test_waits_of_a_copy_engine_before_the_kernels_hold_them_up(wanted: str) -> None:
    program = case_of(wanted)
    issued = [order_of(program, rank) for rank in range(RANKS)]
    first = [sorted(queue, key=lambda one: isinstance(one, KernelSpec)) for queue in issued]
    assert all(isinstance(head, StreamWait) for head in stuck(program, first))


def test_copies_that_wait_for_nothing_come_before_the_kernels() -> None:
    program = case_of("ag_gemm-copy_engine")
    late = recorded(program, 1).late[0]
    assert late[0] and late[1:] == [[]]


def test_kernels_that_notify_come_before_those_that_wait() -> None:
    names = {
        "ag_gemm-copy_sms": ["gather", "gemm"], "gemm_rs_slots-copy_sms": ["scatter", "gemm"],
        "gemm_rs_local_last-copy_sms": ["gemm", "scatter", "own"],
    }  # fmt: skip
    for wanted, order in names.items():
        assert [k.name for k in kernels_in_order(case_of(wanted).kernels)] == order


def test_kernels_that_wait_for_one_another_keep_the_order_of_their_streams() -> None:
    def order(*rows: tuple[str, str, int, str, str]) -> list[str]:
        """Rows: a kernel's name, stream and position, and the tensors that it waits for and notifies."""
        kernels = [
            Kernel(name=name, stream=stream, position=position, programs=1, loops=(), num_warps=4, num_stages=2,
                   reuse_lag=0, needs_entry=False)
            for name, stream, position, _, _ in rows
        ]  # fmt: skip
        awaits, notifies = ({row[0]: frozenset((t, "tile") for t in str(row[at])) for row in rows} for at in (3, 4))
        return [kernel.name for kernel in issued(kernels, awaits, notifies)]

    both = order(("a", "main", 0, "y", "x"), ("c", "main", 1, "", ""), ("b", "side", 0, "x", "y"))
    assert both == ["b", "a", "c"]
    assert order(("a", "main", 0, "", "x"), ("b", "main", 1, "", "y"), ("s", "side", 0, "y", "")) == ["a", "b", "s"]


def test_one_wait_holds_back_what_comes_after_it() -> None:
    program = case_of("gemm_rs_local_last-h200")
    kernels = kernels_in_order(program.kernels)
    operations = [o for part in recorded(program, 0).late[0] for o in part]
    before, behind = between_kernels(operations[1:] + operations[:1], kernels, program)
    assert before == operations[1 : len(before) + 1] and isinstance(behind[0], StreamWait)
    assert [*before, *behind] == operations[1:] + operations[:1]


def test_a_launch_issues_what_the_order_says() -> None:
    done: list[str] = []

    class Part:
        """The queue of a copy engine behind so many kernels."""

        def __init__(self, at: int) -> None:
            self.at = at

        def graph(self, stream: int, bases: object, capturing: bool) -> int:
            done.append(f"graph {self.at} on {stream}")
            return 100 + self.at

        def issue(self, stream: int, bases: object, executable: int, capturing: bool) -> None:
            done.append(f"copies {executable} on {stream}" + ", captured" * capturing)

    def function(name: str) -> Any:
        return lambda stream, tensors, instead: done.append(f"{name} on {stream}")

    def note(name: str) -> Any:
        return lambda stream: done.append(f"{name} {stream}")

    copies, side = 3, 2
    engine: Any = SimpleNamespace(
        stream=copies, early=[None], names=[], _captured_replays=[[]], _replays=[[(0, Part(0)), (2, Part(2))]]
    )
    engine.ready = lambda *given: CopyEngine.ready(engine, *given)
    engine.issue = lambda *given: CopyEngine.issue(engine, *given)
    rank: Any = SimpleNamespace(
        _needs_entry=False, _in_kernels=False, _engine=engine, slot=0, _copies_outputs=False,
        end_launch=lambda stream, callers: done.append(f"close {stream}"), _await_outputs=note("await"),
        _sides=SimpleNamespace(fork=note("fork"), join=note("join")),
        _functions=[(None, function("a")), (side, function("b"))],
    )  # fmt: skip
    LaunchDriver.issue(rank, {}, 1, captured=False, callers=False)
    expected = [
        "fork 1", "graph 0 on 3", "graph 2 on 3", "copies 100 on 3", "a on 1", "b on 2", "copies 102 on 3", "join 1",
        "await 1", "close 1",
    ]  # fmt: skip
    assert done == expected
    done.clear()
    LaunchDriver.issue(rank, {}, 1, captured=True, callers=False)
    assert done == [one + ", captured" * one.startswith("copies") for one in expected]


def test_waits_that_peers_end_stay_behind_those_that_kernels_end() -> None:
    layout: Any = SimpleNamespace(grid=lambda channel: SimpleNamespace(signal=("abc"[channel], "tile")))
    kernels: Any = [SimpleNamespace(notifies={(tensor, "tile")}) for tensor in "ab"]
    a, b, c = (StreamWait(channel=channel, threshold=1) for channel in range(3))
    assert between_kernels([c, a, c, b, a, c], kernels, layout) == [[c], [a, c], [b, a, c]]
    assert between_kernels([b, a], [], layout) == [[b, a]]


RELAY = """program relay(M, N):
    x : in        [M, N]
    c : local     [M, N]
    w : symmetric [M, N]
    u : symmetric [M, N]
    v : symmetric [M, N]
    y : out       [M, N]

    compute work(i: M):
        if rank > 0:
            tile_push_data(w[i, :] @ (rank - 1), x[i, :])
            producer_tile_notify(w[i, :] @ (rank - 1))
        if rank == 0:
            consumer_tile_wait(w[i, :])
        c[i, :] = x[i, :]
        producer_tile_notify(c[i, :])

    comm send(i: M):
        if rank == 0:
            consumer_tile_wait(c[i, :])
            tile_push_data(u[i, :] @ 1, c[i, :])
            producer_tile_notify(u[i, :] @ 1)
        if rank == 1:
            consumer_tile_wait(u[i, :])
            tile_push_data(v[i, :] @ 0, u[i, :])
            producer_tile_notify(v[i, :] @ 0)

    compute take(i: M):
        if rank == 0:
            consumer_tile_wait(v[i, :])
        y[i, :] = x[i, :]

schedule engine for relay:
    work on sm, tile(i=64)
    send on copy_engine, tile(i=64)
    take on sm, tile(i=64)
"""


def test_waits_for_a_peers_copy_engine_come_behind_the_kernels_that_it_waits_for() -> None:
    """Rank 0 relays what its kernel made, for which that waits for rank 1's kernel."""
    module = compiler.parse(RELAY, "relay.tl")
    sizes, schedule = {"M": 64, "N": 256}, module.schedules[0]
    plan = compiler.plan(module.program(), schedule, ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    program = gpu_artifact(plan)
    assert not program.free_waits, "rank 1's copy engine waits for what rank 0's tells"
    issued = [order_of(program, rank) for rank in range(2)]
    assert stuck(program, issued) == []
    assert [getattr(one, "name", type(one).__name__) for one in issued[1]] == [
        "work",
        "StreamWait",
        "Copy",
        "StreamWrite",
        "take",
    ]


def waits_first(program: Artifact, rank: int) -> list[Any]:
    """What a rank issues, with all waits of each part of the copy engine's queue in front of that part."""
    found: list[Any] = []
    part: list[Any] = []
    for one in [*order_of(program, rank), None]:
        if one is None or isinstance(one, KernelSpec):
            found += sorted(part, key=lambda operation: not isinstance(operation, StreamWait))
            found, part = [*found, *([one] if one else [])], []
        else:
            part.append(one)
    return found


@thorough(unless=lambda case: one_in(6, name(case)) or case[0].name == "all_gather_ring")
@pytest.mark.parametrize("case", [case for case in cases() if "copy_engine" in str(case[1])], ids=name)
def test_queues_whose_waits_may_come_first_are_told_from_others(case: Any) -> None:
    """A graph may put its branches into the one queue in any order."""
    program = gpu_of(case)
    left = stuck(program, [waits_first(program, rank) for rank in range(RANKS)])
    assert not (program.free_waits and left)
    # a copy waits for one before it
    needs = ("all_gather_ring", "gemm_ar_local_last", "gemm_ar_pulled", "gemm_ar_bias", "gemm_ar_f32")
    assert program.free_waits != case[0].name.startswith(needs), "no other needs its queue as it is"
    assert left or not case[0].name.startswith("all_gather_ring")


def test_a_measured_launch_takes_the_times_of_its_own_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    stream, drained = SimpleNamespace(cuda_stream=7), list[list[str]]()

    def nothing(*_: Any, **__: Any) -> dict[str, Any]:
        return {}

    engine = SimpleNamespace(early=["early 0", "early 1"], late=[["late 0"], ["late 1", "behind 1"]])
    arguments = SimpleNamespace(given=SimpleNamespace(checked=nothing), allocate=nothing, in_place=[], outputs=[])
    driver = SimpleNamespace(order=nothing, current=lambda: stream, slot=1, cycle=2)
    tracer = SimpleNamespace(begin=nothing, drain=lambda queues: drained.append([*queues]))
    rank: Any = SimpleNamespace(
        _debug_block=None, _tracer=tracer, _arguments=arguments, _driver=driver, _copies=SimpleNamespace(engine=engine),
        _elsewhere=lambda: False, captured=False, _promises=(), _launch=nothing,
    )  # fmt: skip
    rank._end_eager = lambda stream, given: GpuKernel._end_eager(rank, stream, given)
    for _ in range(2):
        GpuKernel.__call__(rank, {})
    assert drained == [["early 1", "late 1", "behind 1"], ["early 0", "late 0"]]


def test_a_preset_launch_has_the_kernels_of_the_main_stream_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    caller, side, done = SimpleNamespace(cuda_stream=1), 2, []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: caller)

    def function(name: str) -> Any:
        return lambda stream, tensors, instead: done.append((name, stream, instead))

    functions = [(None, function("a")), (side, function("b")), (None, function("c"))]
    memory, none = SimpleNamespace(pad=torch.zeros(3), signal_table=torch.zeros(2, dtype=torch.int64)), torch.zeros(1)
    driver: Any = SimpleNamespace(
        _functions=functions, _memory=memory, _preset=None, _apart={HandshakePointer: none}
    )  # fmt: skip
    driver.preset = lambda tensors, stream: LaunchDriver.preset(driver, tensors, stream)
    arguments = SimpleNamespace(
        given=SimpleNamespace(checked=lambda _: {}), in_copies=lambda _: {}, allocate=lambda _: {}, outputs=[]
    )
    rank: Any = SimpleNamespace(
        _elsewhere=lambda: False,
        _promises=(),
        device="cuda:0",
        _arguments=arguments,
        _driver=driver,
        _kept=dict,
    )
    assert GpuKernel.preset(rank, {}) == {}
    ((first, one, instead), (second, other, again)) = done
    assert (first, second, one, other) == ("a", "c", 1, 1) and instead is again
    pad, table = instead[SignalsPointer], instead[SignalTablePointer]
    assert pad.tolist() == [2**30] * 3 and table.tolist() == [pad.data_ptr()] * 2 and instead[HandshakePointer] is none
