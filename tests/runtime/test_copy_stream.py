# pyright: basic
"""The copy engine of a rank without a GPU: what waits for a kernel that lets it begin, and what a caller captures."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests import artifacts
from tests.runtime.test_order import case_of
from tests.runtime.test_side_streams import Library
from tilelink.artifact import CopyProgram, LaunchProtocol
from tilelink.runtime.cuda import copies, driver, queue
from tilelink.runtime.cuda.copy_stream import CopyEngine, defer_early_copies, may_be_begun
from tilelink.runtime.cuda.handles import Handles
from tilelink.runtime.cuda.handshake import HandshakeArguments
from tilelink.runtime.cuda.offline import EMPTY, Recorded, helper_options, recorded
from tilelink.runtime.cuda.record_copies import Box, Copy, Operation, StreamWait, StreamWrite

BOX = Box(tensor="x", rank=0, offsets=(0,), width=64)
COPY, FLAG = Copy(target=BOX, source=BOX), StreamWrite(number=0, rank=1, channel=3, step=1, count=1, buffers=1)
GATE = StreamWait(channel=0, threshold=7)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    found = Library()
    monkeypatch.setattr(queue, "library", lambda: found)
    monkeypatch.setattr(queue, "driver", lambda: driver.Driver(found))
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    return found


def found(*late: list[Operation], early: list[Operation] | None = None) -> Recorded:
    return Recorded(early=(early or [],), late=([*late],), gated=frozenset(), exits=[], counters=[], flags=[])


def made(*late: list[Operation], begun: bool = True) -> CopyEngine:
    """Rank 0 of 2, with one buffer."""
    return CopyEngine(
        found(*late), lambda *_: 4096, [1000, 2000], 0, torch.zeros(1, dtype=torch.int32), Handles(Library()),
        branches=False, timed=False, replayed=False, begun=begun,
    )  # fmt: skip


def issued(one: CopyEngine, library: Library, kernels: int = 1, callers: bool = False) -> list[str]:
    """What a launch of so many kernels asks of the driver, "kernel" among it."""
    parts = one.ready(0, {}, False, callers)
    said: list[str] = []
    for number in range(kernels + 1):
        library.calls.clear()
        one.issue(parts, number, {}, False)
        said += [called(call, one) for call in library.calls] + ["kernel"] * (number < kernels)
    return said


def called(call: tuple[Any, ...], one: CopyEngine) -> str:
    if call[0] != "cuStreamBatchMemOp_v2":
        return "copy"
    operations = call[3]
    wait, write = operations[0], operations[1]
    assert (wait.operation, write.operation, write.value) == (1, 2, 0) and wait.address == write.address
    return f"begin at {wait.value}" if wait.address == one.begin.data_ptr() else f"gate at {wait.value}"


def test_a_kernel_lets_the_copies_of_its_launch_begin(library: Library) -> None:
    one = made([COPY, FLAG], [GATE, COPY])
    assert one.begin.tolist() == [0]
    assert issued(one, library) == ["kernel", "begin at 1", "copy", "copy", "gate at 7", "copy"]
    assert issued(made([], [GATE, COPY]), library) == ["kernel", "begin at 1", "gate at 7", "copy"]
    assert issued(made([], []), library) == ["kernel"], "nobody waits for the word"


def test_what_a_caller_captures_begins_at_once(library: Library) -> None:
    expected = ["copy", "copy", "kernel", "gate at 7", "copy"]
    assert issued(made([COPY, FLAG], [GATE, COPY]), library, callers=True) == expected
    other = made([COPY, FLAG], [GATE, COPY], begun=False)
    assert issued(other, library) == issued(other, library, callers=True) == expected


def test_who_may_be_begun() -> None:
    assert may_be_begun(found([COPY], [GATE])) and may_be_begun(found([], []))
    assert not may_be_begun(found([COPY], [], early=[COPY])), "what the main stream copies waits for no kernel"
    some = replace(found([COPY], []), early=([], []), late=([[COPY], []], [[], []]))
    assert not may_be_begun(some), "a word that nobody waited for would let a later launch begin"


@pytest.mark.parametrize(("others", "begun"), [(1, True), (0, False)])
def test_all_ranks_let_their_copy_engines_begin_or_none(
    others: int, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that tells of a launch in its next one must not be waited for at the end of this one."""
    program, made = case_of("ag_gemm_in_place-h200"), list[dict[str, Any]]()
    monkeypatch.setattr(copies, "of_all", lambda own, group, device: [own, others])
    engine = SimpleNamespace(begin=torch.zeros(1))
    monkeypatch.setattr(copies, "CopyEngine", lambda *_, **named: made.append(named) or engine)
    memory: Any = SimpleNamespace(rank=0, device=torch.device("cpu"), place=None, pads=[0] * 3, pad=torch.zeros(99))
    rank = copies.Copies(program, memory, None, Handles(None), timed=False, replayed=True)  # type: ignore[arg-type]
    handshake = HandshakeArguments(program, rank, memory.device)
    assert made[0]["begun"] is begun is handshake.in_kernels
    assert handshake.usual is (handshake.block if begun else handshake.none)
    captured = rank.options.captured
    assert captured is not None and captured["LAG"] == (0 if begun else 2)


def test_copies_that_wait_for_a_kernel_are_issued_behind_it() -> None:
    assert defer_early_copies([[COPY], [GATE]]) == [[], [COPY, GATE]] and defer_early_copies([[], [GATE]]) == [
        [],
        [GATE],
    ]


@pytest.mark.parametrize(
    ("case", "begins", "skips"),
    [("gemm_rs_reduce_last-h200", True, 2), ("ag_gemm_in_place-h200", True, 2), ("gemm_rs_scatter-h200", False, 2),
     ("gemm_rs_local_last-copy_sms", False, 0)],
)  # fmt: skip
def test_where_a_kernel_lets_copies_begin(case: str, begins: bool, skips: int) -> None:
    program = case_of(case)
    options = helper_options(program, recorded(program, 0), begins)
    assert (program.protocol is LaunchProtocol.COUNTED_WITH_COPIES) is begins and len(options.skips) == skips


@pytest.mark.parametrize(
    ("case", "protocol", "in_turn"),
    [
        ("ag_gemm-copy_sms", LaunchProtocol.COUNTED_ANNOUNCED, True),
        ("all_gather_kept-few", LaunchProtocol.COUNTED, True),  # two buffers, which kernels choose
        ("all_reduce_one_shot-large", LaunchProtocol.IN_KERNEL, True),  # one buffer for what peers read
        ("all_reduce_one_shot-small", LaunchProtocol.IN_KERNEL, False),  # two, and inputs are copied into one
        ("all_reduce_two_shot-small", LaunchProtocol.IN_KERNEL, False),  # outputs are copied out of one
        ("gemm_rs_local_last-copy_engine", LaunchProtocol.COUNTED_WITH_COPIES, False),
    ],
)
def test_replays_skip_launches_only_where_the_host_chooses_buffers(
    case: str, protocol: LaunchProtocol, in_turn: bool
) -> None:
    program = case_of(case)
    assert program.protocol is protocol and program.replays_in_turn is in_turn
    options = helper_options(program, recorded(program, 0), protocol.releases_copies)
    assert len(options.skips) == (0 if in_turn else program.cycle) and (options.captured is None) is in_turn


def test_a_captured_launch_is_prepared_before_it_begins() -> None:
    """With one buffer none are skipped; but what the kernel of another launch does must be done before this one."""
    kernel = artifacts.kernel("k", programs=6)
    program = replace(
        artifacts.EMPTY, lag=1, kernels=(kernel,), protocol=LaunchProtocol.COUNTED_ANNOUNCED,
        copy_programs=(CopyProgram(name="c", stream="copy", position=1, track=6, needs_entry=False),),
    )  # fmt: skip
    options = helper_options(program, EMPTY, False)
    assert [skip["SLOT"] for skip in options.skips] == [0] and options.captured is not None
    assert options.captured["LAG"] == options.skips[0]["LAG"] == 1
    begun = helper_options(program, EMPTY, True)
    assert begun.captured is not None and (begun.captured["LAG"], begun.skips[0]["LAG"]) == (0, 1), (
        "peers may tell of this launch in their next one"
    )
    assert helper_options(replace(program, protocol=LaunchProtocol.COUNTED), EMPTY, False).skips == ()


def test_the_block_says_where_flags_and_the_word_are(library: Library) -> None:
    one = made([COPY], [])
    exits, flags, values = (torch.zeros(n, dtype=torch.int32) for n in (0, 5, 1))
    rank: Any = SimpleNamespace(exits=exits, flags=flags, flag_values=values, engine=one, releases_as_meant=True)
    handshake = HandshakeArguments(replace(artifacts.EMPTY, lag=2), rank, torch.device("cpu"))
    on, off = handshake.block, handshake.none
    words = [1, flags.data_ptr(), values.data_ptr(), one.begin.data_ptr()]
    assert on.tolist()[:4] == [1, 0, 2, 0] and on.tolist()[5:] == words and not off.any()
