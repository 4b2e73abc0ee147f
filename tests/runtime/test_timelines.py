# pyright: basic
"""Timelines of GPU ranks, without GPUs: records, clocks, timed copies, and what is compiled."""

import ctypes
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests.runtime import ptx
from tests.runtime.test_copy_queues import RANKS, TEXT, recorded
from tilelink import compiler
from tilelink.backend import store
from tilelink.backend.context import signature
from tilelink.backend.emit import emit
from tilelink.device.spans import CAPACITY, COUNT, HEAD, RECORD, Span, decoded, empty
from tilelink.errors import RankError
from tilelink.runtime.cuda import clock, queue
from tilelink.runtime.cuda.clock import Offset, moved, offset, resolution
from tilelink.runtime.cuda.compile_offline import compile_source, resources
from tilelink.runtime.cuda.record_copies import Copy, StreamWait, StreamWrite
from tilelink.runtime.cuda.timeline import aligned, what

NOW = 1_790_000_000_000_000_000


def test_records_are_spans_and_what_found_no_room_is_counted() -> None:
    words = empty(3, 2)
    assert words.shape == (3, HEAD + 2 * RECORD) and decoded(words, 1, 5) == ([], 0)
    words[1, HEAD : HEAD + RECORD] = (7 << 32 | 3 << 8 | 2, 9 << 32 | 1, NOW, NOW + 5)
    words[1, COUNT] = 1
    words[2, HEAD : HEAD + 2 * RECORD] = (0, 0, NOW, NOW + 1, 70000 << 32 | 300 << 8 | 1, 80000, NOW + 1, NOW + 2)
    words[2, COUNT] = 6
    assert words[2, CAPACITY] == 2
    spans, dropped = decoded(words, 1, 5)
    assert spans == [
        Span(1, 1, "notify", 3, 7, 1, 9, 5, NOW, NOW + 5),
        Span(1, 2, "tile", 0, 0, 0, 0, 5, NOW, NOW + 1),
        Span(1, 2, "wait", 300, 70000, 80000, 0, 5, NOW + 1, NOW + 2),
    ]
    assert dropped == 4


def test_a_clock_that_is_ahead_is_found_by_the_fastest_exchanges() -> None:
    ahead = 123_456_789
    fast = [(NOW + k, NOW + k + 700 + ahead + k % 3, NOW + k + 1400) for k in range(4)]
    slow = [(NOW + k, NOW + k + 700 + ahead, NOW + k + 9000) for k in range(12)]
    found = offset([*slow[:6], *fast, *slow[6:]])
    assert found.ahead == pytest.approx(ahead + 0.5, abs=1) and found.trip == 1400
    with pytest.raises(RankError, match="did not answer"):
        offset([*fast, (0, 0, 0)])


def test_times_move_to_the_clock_of_rank_0_with_the_drift() -> None:
    first, last = Offset(time=NOW, ahead=1000), Offset(time=NOW + 10**9, ahead=3000)
    assert [moved(NOW + at, first, last) - NOW for at in (0, 5 * 10**8, 10**9, 2 * 10**9)] == [
        -1000, 5 * 10**8 - 2000, 10**9 - 3000, 2 * 10**9 - 3000,
    ]  # fmt: skip
    assert moved(NOW, Offset(), Offset()) == NOW
    span = Span(1, 0, "tile", 0, 0, 0, 0, 1, NOW, NOW + 10)
    assert aligned(span, first, last) == span._replace(begin=NOW - 1000, end=NOW - 990)


def test_the_resolution_is_the_smallest_step() -> None:
    assert resolution([NOW, NOW, NOW + 64, NOW + 64, NOW + 96]) == 32
    assert resolution([NOW, NOW]) == 0


class FakeDriver:
    """Notes what it is asked for; events are numbers."""

    def __init__(self) -> None:
        self.events = 0

    def __getattr__(self, name: str):
        return lambda *arguments: (name, arguments)

    def event(self) -> int:
        self.events += 1
        return self.events

    def elapsed_ns(self, first: ctypes.c_void_p, second: ctypes.c_void_p) -> float:
        return 1000.0 * (second.value or 0) - (first.value or 0)


def test_every_operation_of_a_queue_is_between_two_events(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeDriver()
    monkeypatch.setattr(queue, "driver", lambda: fake)
    _, operations = recorded(TEXT, "rows", 1)
    plain, timed = (
        queue.Queue(operations, lambda name, rank: 10**6, [0] * RANKS, 1, 0, event) for event in (None, fake.event)
    )
    issued, between_marks = ([call for _, call in one._calls] for one in (plain, timed))
    assert plain.timed == [] and not any(function == "record" for function, _ in issued)
    assert [c for c, _ in between_marks if c != "record"] == [c for c, _ in issued]
    assert [operation for operation, _, _ in timed.timed] == operations
    marks = [(before.value, behind.value) for _, before, behind in timed.timed]
    assert marks == [(n, n + 1) for n in range(1, len(operations) + 1)]
    at = {arguments[1].value: place for place, (call, arguments) in enumerate(between_marks) if call == "record"}
    between = [[c for c, _ in between_marks[at[a] + 1 : at[b]]] for a, b in marks]
    kinds = {Copy: {"copy", "copy_rows"}, StreamWrite: {"copy"}, StreamWait: {"wait_and_zero"}}
    for operation, calls in zip(operations, between, strict=True):
        assert calls and set(calls) <= kinds[type(operation)]
    assert timed.elapsed_ns(7, ctypes.c_void_p(3)) == 2993


def test_operations_know_whose_they_are() -> None:
    layout, operations = recorded(TEXT, "rows", 1)
    assert {(o.kernel, o.stage) for o in operations} == {("send", 1)}
    assert [o.tile for o in operations] == sorted(o.tile for o in operations)
    copies = [what(o, 1, layout) for o in operations if isinstance(o, Copy)]
    number = layout.tensor("y").number
    assert {(kind, tensor) for kind, _, tensor in copies} == {("transfer", number)}
    assert {peer for _, peer, _ in copies} == set(range(RANKS))
    pulled = next(o for o in operations if isinstance(o, Copy) and o.target.rank == 2)
    assert what(replace(pulled, source=pulled.target, target=pulled.source), 1, layout) == ("transfer", 2, number)
    flag = next(o for o in operations if isinstance(o, StreamWrite))
    gate = next(o for o in operations if isinstance(o, StreamWait))
    assert what(flag, 1, layout) == ("notify", flag.rank, flag.channel)
    assert what(gate, 1, layout) == ("wait", gate.channel, 0)


def test_programs_are_counted_over_all_kernels() -> None:
    artifact, _ = recorded(TEXT, "rows", 0)
    tracks = [(one.name, one.track, one.programs) for one in artifact.launched]
    for (_, first, programs), (_, following, _) in pairwise(tracks):
        assert following == first + programs
    assert tracks[0][1] == 0 and [name for name, _, _ in tracks] == ["make", "send", "total"]


@pytest.mark.parametrize("schedule", ["h200", "slices", "copy_sms"])
def test_traced_kernels_compile_and_stay_as_they_are(schedule: str) -> None:
    module = compiler.load("ag_gemm")
    program = module.program()
    dims = {"Ms": 1024, "N": 2048, "K": 512}
    chosen = module.schedule(schedule, program).flatten("gemm", False)  # traced loops are never flat
    where: dict[str, Any] = {"ranks": 4, "dims": dims, "dtype": "bf16", "target": "sm_90"}
    plan, measured = (compiler.plan(program, chosen, **where, dialect=name) for name in ("triton", "traced"))
    plain, traced = (emit(one.bound, one.thresholds) for one in (plan, measured))
    for one, other in zip(plain.kernels, traced.kernels, strict=True):
        first, second = (
            compile_source(
                getattr(store.load(store.save(emitted.text)), one.name),
                signature(kernel, plan.bound) | {"debug_block": "*i64"}, {}, "sm_90",
                num_warps=one.num_warps, num_stages=one.num_stages,
            )
            for emitted, kernel in ((plain, one), (traced, other))
        )  # fmt: skip
        assert resources(second)["STACK"] == resources(first)["STACK"] == 0
        for text in ("wgmma.mma_async", "wgmma.wait_group", "cp.async.bulk.tensor", "ld.acquire.sys"):
            assert first.asm["ptx"].count(text) == second.asm["ptx"].count(text), text
        assert all(ptx.guarded_loads(ptx.text(first))) == all(ptx.guarded_loads(ptx.text(second)))
        order = ptx.events(ptx.text(second), "clock", "poll", "barrier")
        polls = [n for n, kind in enumerate(order) if kind == "poll"]
        # begun before it polls (the deadline reads the clock twice), over behind its barrier
        traced_polls = [n for n in polls if order[n - 2 : n] == ["clock", "clock"]]
        assert traced_polls
        around = [order[n - 2 : n + 4] for n in traced_polls]
        assert all(one == ["clock", "clock", "poll", "clock", "barrier", "clock"] for one in around)
        # those of the handshake have a deadline and no span
        others = [order[n - 2 : n + 3] for n in polls if n not in traced_polls]
        assert all(one == ["barrier", "clock", "poll", "clock", "barrier"] for one in others)


def test_the_kernels_that_compare_clocks_compile() -> None:
    ends = {"own": "i64", "there": "i64", "budget": "i64"}
    sent = compile_source(clock.ping, {**ends, "answers": "*i64"}, {"ROUNDS": 4}, "sm_90").asm["ptx"]
    answered = compile_source(clock.pong, ends, {"ROUNDS": 4}, "sm_90").asm["ptx"]
    for text, first, second in ((sent, "st", "ld"), (answered, "ld", "st")):
        assert 0 < text.find(f"{first}.relaxed.sys.global.b64") < text.find(f"{second}.relaxed.sys.global.b64")
    compile_source(clock.stamp, {"times": "*i64"}, {"COUNT": 4}, "sm_90")
