"""Copies of a copy engine within its rank: they may be issued before the rest of its queue, which changes nothing."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.compiler.library import cases, name, sizes
from tests.lowered import parse_lowered
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.artifact import Artifact
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import TileLinkError
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program
from tilelink.lowering.listing import listing
from tilelink.planning.copy_queues import own_copies
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.queue_order import in_queue_order, with_queue_order
from tilelink.runtime.cuda.offline import recorded
from tilelink.runtime.cuda.record_copies import Copy, Operation, StreamWrite
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator.cost import Roofline
from tilelink.simulator.machine import load_machine
from tilelink.simulator.script import make_script
from tilelink.verifier import refusals

RANKS, SIZES = 2, {"M": 4, "N": 8}
PROGRAM = """program moved(M, N):
    x : in        [M, N]
    z : in        [M, N]
    c : local     [M, N]
    d : local     [M, N]
    h : symmetric [M, N]
    f : symmetric [M, N]
    y : out       [M, N]

    comm send(i: M):
{send}

    compute take(i: M):
{take}
        y[i, :] = {value}

schedule engine for moved:
    send on copy_engine, tile(i={rows})
    take on sm, tile(i=4)
"""
PEER = "((rank + 1) % ranks)"
REWRITTEN = [
    "tile_push_data(c[i, :], x[i, :])",
    f"tile_push_data(h[i, :] @ {PEER}, c[i, :])",
    f"producer_tile_notify(h[i, :] @ {PEER})",
    "tile_push_data(c[i, :], z[i, :])",
]


def planned(send: list[str], take: list[str], value: str = "x[i, :]", rows: int = 4) -> Plan:
    body, rest = ("\n".join(f"        {line}" for line in lines) for lines in (send, take))
    module = compiler.parse(PROGRAM.format(send=body, take=rest, value=value, rows=rows))
    program = module.program()
    return compiler.plan(program, module.schedules[0], ranks=RANKS, dims=SIZES, dtype="f32", target="sm_90")


def memory(plan: Plan) -> dict[tuple[str, int], np.ndarray]:
    """Different bytes for every element of every rank's tensors."""
    chance = np.random.default_rng(0)
    sizes = {t.name: 4 * t.size * t.buffers for t in plan.bound.tensors.values()}
    return {(n, r): chance.integers(0, 256, size, np.uint8) for n, size in sizes.items() for r in range(RANKS)}


def after(plan: Plan, operations: list[Operation]) -> list[bytes]:
    """The memory of all ranks after the copies, and what each notify saw of the rows of its tile."""
    tensors, seen = memory(plan), dict[int, bytes]()
    size = 4 * SIZES["N"] * int(plan.bound.stages["send"].tiles["i"])
    for one in operations:
        match one:
            case Copy(target=target, source=source):
                for to, start in zip(target.offsets, source.offsets, strict=True):
                    data = tensors[source.tensor, source.rank][start : start + source.width].copy()
                    tensors[target.tensor, target.rank][to : to + target.width] = data
            case StreamWrite(number=number, rank=rank, channel=channel, tile=tile):
                grid = next(g for g in gpu_artifact(plan).grids if g.has(channel))
                seen[number] = tensors[grid.tensor, rank][tile * size :][:size].tobytes()
            case _:
                pass
    return [*(t.tobytes() for t in tensors.values()), *(seen[number] for number in sorted(seen))]


def issued(artifact: Artifact, rank: int) -> list[Operation]:
    found = recorded(artifact, rank)
    return [*found.early[0], *(one for part in found.late[0] for one in part)]


def test_an_own_copy_does_not_overtake_one_that_reads_what_it_overwrites() -> None:
    plan = planned(REWRITTEN, ["consumer_tile_wait(h[i, :])"])
    own = own_copies(plan)
    assert len(own.overtaken) == 2 * RANKS and own.conflict
    artifact = gpu_artifact(plan)
    assert not artifact.own_copies_first
    early, late = recorded(artifact, 0).early[0], recorded(artifact, 0).late[0]
    assert [type(one) for one in early] == [Copy, Copy, StreamWrite, Copy] and not any(late), "before the kernels"
    assert [one.source.tensor for one in early if isinstance(one, Copy)] == ["x", "c", "z"]


def test_a_notify_does_not_overtake_a_copy_that_it_announces() -> None:
    """A kernel that waits for the later of two copies, within the rank, may read what the earlier one sent a peer."""
    send = [f"tile_push_data(h[i, :] @ {PEER}, x[i, :])", "tile_push_data(c[i, :], x[i, :])"]
    plan = planned([*send, "producer_tile_notify(c[i, :])"], ["consumer_tile_wait(c[i, :])", READ])
    own = own_copies(plan)
    first = in_queue_order(plan, own_first=True, waits_aside=True)
    assert not own.conflict and {e.rule for e in refusals(first)} == {"ordering"}
    assert not gpu_artifact(plan).own_copies_first
    plan = planned([*send, "producer_tile_notify(c[i, :])"], ["consumer_tile_wait(c[i, :])"])
    assert gpu_artifact(plan).own_copies_first, "nobody reads what was sent"


def has_own_first(plan: Plan) -> bool:
    """True if own notifies come first in the simulator. The plan has one on each rank."""
    script = make_script(plan, load_machine("8xH200"), Roofline())
    assert script.early.sum() in (0, RANKS)
    return bool(script.early.any())


@pytest.mark.parametrize("read", [False, True])
def test_the_runtime_and_the_simulator_have_one_order(read: bool) -> None:
    send = [f"tile_push_data(h[i, :] @ {PEER}, x[i, :])", "tile_push_data(c[i, :], x[i, :])"]
    take = ["consumer_tile_wait(c[i, :])", *([READ] if read else [])]
    plan = planned([*send, "producer_tile_notify(c[i, :])"], take)
    assert has_own_first(plan) == gpu_artifact(plan).own_copies_first == (not read)


def test_the_order_is_printed_and_proved() -> None:
    send = [f"tile_push_data(h[i, :] @ {PEER}, x[i, :])", "tile_push_data(c[i, :], x[i, :])"]
    plan = planned([*send, "producer_tile_notify(c[i, :])"], ["consumer_tile_wait(c[i, :])"])
    assert len(plan.overtaking) == 2 * RANKS and "own_copies_first, waits_aside" in listing(plan.bound)
    in_line = in_queue_order(plan, own_first=False, waits_aside=False)
    assert not len(in_line.overtaking) and "own_copies" not in listing(in_line.bound)
    assert refusals(plan) == refusals(in_line) == []
    again = parse_lowered(listing(plan.bound))
    assert listing(again) == listing(plan.bound) and refusals(with_queue_order(make_plan(again))) == []
    (message,) = (error.message for error in refusals(make_plan(again)))
    assert message == "the plan has copies in another order than the copy engine", "that of the queue was planned"
    assert not has_own_first(in_line) and not gpu_artifact(in_line).own_copies_first
    for wrong in (replace(in_line, overtaking=plan.overtaking), replace(plan, overtaking=plan.overtaking[:1])):
        (message,) = (error.message for error in refusals(wrong))
        assert message == "the plan has copies in another order than the copy engine"


def test_an_order_that_changes_what_is_copied_is_refused() -> None:
    plan = planned(REWRITTEN, ["consumer_tile_wait(h[i, :])"])
    (error,) = refusals(in_queue_order(plan, own_first=True, waits_aside=True))
    assert error.rule == "tiles" and "one writes what the other accesses" in error.message


def test_waits_beside_a_queue_are_refused_that_need_its_copies() -> None:
    """The engine waits for what its peer's engine tells."""
    send = [f"tile_push_data(h[i, :] @ {PEER}, x[i, :])", f"producer_tile_notify(h[i, :] @ {PEER})"]
    plan = planned([*send, "consumer_tile_wait(h[i, :])", "tile_push_data(c[i, :], h[i, :])"], [])
    assert not plan.bound.kernels[0].waits_aside
    (error,) = refusals(in_queue_order(plan, own_first=True, waits_aside=True))
    assert error.rule == "tiles" and "beside the copies" in error.message


@pytest.mark.parametrize("dialect", ["triton", "traced"])
def test_both_have_waits_aside_unless_a_run_is_measured(dialect: str) -> None:
    send = [f"tile_push_data(h[i, :] @ {PEER}, x[i, :])", f"producer_tile_notify(h[i, :] @ {PEER})"]
    plan = planned(send, ["consumer_tile_wait(h[i, :])"])
    able = replace(plan.bound.capabilities, dialect=dialect)
    plan = with_queue_order(replace(plan, bound=replace(plan.bound, capabilities=able)))
    script = make_script(plan, load_machine("8xH200"), Roofline())
    assert script.waits_aside == (dialect == "triton")
    assert gpu_artifact(plan).free_waits == script.waits_aside


READ = f"tile_pull_data(d[i, :], h[i, :] @ {PEER})"
COPIES = [
    f"tile_push_data({target}, {source})"
    for target in ("c[i, :]", f"h[i, :] @ {PEER}", f"f[i, :] @ {PEER}")
    for source in ("x[i, :]", "z[i, :]", "c[i, :]")
    if target != source
]
TELLS = {"c[i, :]": "c[i, :]", f"h[i, :] @ {PEER}": "h[i, :]", f"f[i, :] @ {PEER}": "f[i, :]"}


def drawn(chance: Random) -> Plan:
    """A plan that the verifier accepts."""
    while True:
        send = [chance.choice(COPIES) for _ in range(chance.randrange(2, 6))]
        told = [one for one in TELLS if chance.random() < 0.5]
        for one in told:
            send.insert(chance.randrange(len(send) + 1), f"producer_tile_notify({one})")
        try:
            read = [TELLS[one] for one in told]
            rows = chance.choice((1, 2, 4))
            return planned(send, [f"consumer_tile_wait({one})" for one in read], " + ".join(["x[i, :]", *read]), rows)
        except TileLinkError:
            continue


@pytest.mark.parametrize("draws", [12, pytest.param(24, marks=pytest.mark.thorough)])
def test_the_order_of_issue_changes_nothing(draws: int) -> None:
    """Random copies of two ranks: what is in memory afterwards, and what was there when each notify was sent."""
    chance, moved = Random(7), 0
    for _ in range(draws):
        plan = drawn(chance)
        artifact = gpu_artifact(plan)
        for rank in range(RANKS):
            first, queue = (issued(one, rank) for one in (artifact, replace(artifact, own_copies_first=False)))
            if first != queue:
                moved += 1
                assert after(plan, first) == after(plan, queue), print_program(plan.bound.source)
    assert moved > draws // 4, "some overtake others"


COPIED = [case for case in cases() if "copy_engine" in str(case[1])]


@thorough(unless=lambda case: one_in(6, name(case)))
@pytest.mark.parametrize("case", COPIED, ids=name)
def test_the_plan_knows_what_is_issued_before_the_kernels(case: tuple[Program, Schedule]) -> None:
    program, schedule = case
    plan = compiler.plan(program, schedule, ranks=3, dims=sizes(case, 3), dtype="bf16", target="sm_90")
    artifact, own = gpu_artifact(plan), own_copies(plan)
    assert artifact.own_copies_first
    early = [one for rank in range(3) for one in recorded(artifact, rank).early[0]]
    assert len(early) == len(own.events)


STORED = """program stored(M = 64, N = 16):
    x : in        [M, N]
    h : symmetric [M, N]
    c : local     [M, N]
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        c[i, :] = x[i, :]
        notify(h[i, :] @ (rank + 1))
        notify(c[i, :])

    compute take(i: M, j: N):
        wait(h[i, j])
        wait(c[i, j])
        y[i, j] = h[i, j] + c[i, j]

schedule queued for stored:
    send on copy_engine, tile(i=32)
"""


def test_a_store_in_a_queue_is_a_copy_that_takes_its_notifies_along() -> None:
    """Without overtaking alone: the peer would be told of what is still in the queue."""
    module = compiler.parse(STORED)
    plan = compiler.plan(module.program(), module.schedules[0], ranks=2, dims={"M": 64, "N": 16})
    assert [kernel.own_copies_first for kernel in plan.bound.kernels if kernel.on_copy_engine] == [False]
