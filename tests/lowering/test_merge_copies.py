"""Copy engines move regions as large as their channels: which tiles are merged, and that nothing is later or other."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from tests.lowered import parse_lowered
from tests.lowering.test_passes_keep_results import check
from tests.tiers import thorough
from tests.verifier.campaign import campaign
from tests.verifier.mutations import Case as Verified
from tilelink import compiler
from tilelink.compiler.cuda import gpu_artifact
from tilelink.ir.program import Program
from tilelink.lowering.events import NOTIFY
from tilelink.lowering.listing import listing
from tilelink.planning.plan import Plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs
from tilelink.runtime.cuda.offline import recorded
from tilelink.runtime.cuda.queue import _moves
from tilelink.runtime.cuda.record_copies import Copy, StreamWrite
from tilelink.scheduling.schedule import Schedule
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine
from tilelink.simulator.small_copies import small_copies

ATTENTION = Path(__file__).parents[2] / "benchmarks" / "attention.tl"
KEYS = """program keys(H, NB, T, B, D):
    k  : in        [H, NB, B, D]
    ks : symmetric [H, T, B, D]
    o  : out       [H, T, B, D]

    comm gather(p: ranks, h: H by 1, n: NB by 1):
        tile_push_data(ks[h, rank * NB + n, :, :] @ p, k[h, n, :, :])
        producer_tile_notify(ks[h, rank * NB + n, :, :] @ p)

    compute take(h: H by 1, t: T by 1, i: B):
        consumer_tile_wait(ks[h, t, i, :])
        o[h, t, i, :] = ks[h, t, i, :] * 2.0

schedule s for keys:
    gather on copy_engine, {gather}
    take on sm, tile(i=4)
    ks channel({channel}), buffers 2
"""


def keys(gather: str = "tile(b=8)", channel: str = "H=2, T=4, B=8") -> tuple[Program, Schedule]:
    module = compiler.parse(KEYS.format(gather=gather, channel=channel))
    return module.program(), module.schedules[0]


def dims_of(blocks: int, ranks: int, heads: int = 4, rows: int = 8) -> dict[str, int]:
    return {"H": heads, "NB": blocks, "T": ranks * blocks, "B": rows, "D": 4}


def planned(case: tuple[Program, Schedule], ranks: int, dims: dict[str, Any], dtype: str = "f32") -> Plan:
    return compiler.plan(*case, ranks=ranks, dims=dims, dtype=dtype, target="sm_90")


def operations(plan: Plan) -> list[Any]:
    """What the copy engine of rank 0 does in a launch, without a GPU."""
    found = recorded(gpu_artifact(plan), 0)
    return [*found.early[0], *(one for part in found.late[0] for one in part)]


def calls(plan: Plan) -> list[int]:
    """The bytes of each call of the driver that copies."""
    copies = [one for one in operations(plan) if isinstance(one, Copy)]
    return [m.rows * m.width for one in copies for m in _moves(one.target, one.source, lambda *_: 0)]


def unmerged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilelink.lowering.passes.merge_copies", lambda bound: bound)


# What is merged ----------------------------------------------------------------------------------------------


@thorough(unless=lambda name, schedule: (name == "causal_attention") == (schedule == "h200_roles"))
@pytest.mark.parametrize("schedule", ["h200_roles", "h200_roles_long"])
@pytest.mark.parametrize("name", ["causal_attention", "causal_attention_in_pairs"])
def test_keys_of_causal_attention_are_copied_in_megabytes(name: str, schedule: str) -> None:
    """They were copied by 128 rows of a head: 2048 copies of 32 KiB."""
    module = compiler.load(str(ATTENTION))
    program = module.program(name)
    dims = {"H": 16, "NB": 32, "T": 64, "B": 128, "D": 128, "scale": 0.1, "U": 2, "P": 128}
    own = {param.name: dims[param.name] for param in program.params}
    plan = planned((program, module.schedule(schedule, program)), 2, own, "bf16")
    found = calls(plan)
    assert sum(found) == 2 * 2 * 16 * 4096 * 128 * 2
    assert len(found) <= 32 and min(found) >= 2**21
    assert sum(isinstance(one, StreamWrite) for one in operations(plan)) == len(found)
    machine = load_machine("8xH100")
    result = simulate(compiler.plan(program, module.schedule(schedule, program), ranks=2, dims=own, dtype="bf16",
                                    target=machine.processor), machine)  # fmt: skip
    assert result.seconds < 570e-6 and not small_copies(result)


@pytest.mark.parametrize(
    ("channel", "tiles", "number"),
    [
        ("H=2, T=4, B=8", {"h": 2, "n": 4}, 4),
        ("T=4, B=8", {"h": 1, "n": 4}, 8),
        ("H=4, T=8, B=8", {"h": 4, "n": 8}, 1),
        ("H=3, T=8, B=8", {"h": 3, "n": 8}, 2),  # the last tile has one head
        ("H=4, T=3, B=8", {"h": 4, "n": 1}, 8),
        ("B=8", {"h": 1, "n": 1}, 32),
    ],
)
def test_a_region_is_as_large_as_its_channel(channel: str, tiles: dict[str, int], number: int) -> None:
    ranks = 2
    bound = compiler.bound(*keys(channel=channel), ranks=ranks, dims=dims_of(8, ranks))
    stage = bound.stages["gather"]
    assert {name: stage.tiles[name] for name in tiles} == tiles
    assert stage.total == ranks * number
    assert stage.scalar_indices == {"p", *(name for name, size in tiles.items() if size == 1)}


def test_a_merged_region_is_one_call_and_one_flag() -> None:
    plan = planned(keys(), 2, dims_of(8, 2))
    assert calls(plan) == [2 * 4 * 8 * 4 * 4] * 8
    assert (plan.thresholds["ks", "tile"] == 1).all()


def test_a_lowered_program_says_what_was_merged() -> None:
    bound = compiler.bound(*keys("tile(b=8), order(h, n, p = rank step +1)"), ranks=2, dims=dims_of(8, 2))
    text = listing(bound)
    assert "comm gather(p: ranks, h: H, n: NB, " in text and "tile(h=2, n=4, b=8" in text.replace("p=1, ", "")
    assert listing(parse_lowered(text)) == text


def test_shifted_and_turned_sums_are_places_too() -> None:
    program, schedule = keys()
    text = str(program).replace("rank * NB + n", "n + rank * NB + 1 - 1")
    module = compiler.parse(f"{text}\n{schedule}")
    bound = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=dims_of(8, 2))
    assert bound.stages["gather"].tiles["n"] == 4


# What is not merged ------------------------------------------------------------------------------------------

MOVES = """program moves(M, N):
    x : in        [M, N]
    c : local     [M, N]
    h : symmetric [M, N]
    g : symmetric [N, M]
    t : symmetric [M, M, N]
    y : out       [M, N]

    compute make(i: M, j: N):
        c[i, j] = x[i, j] + 1.0
        producer_tile_notify(c[i, j])

    comm send(i: M{by}):
{send}

    compute take(i: M, j: N):
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j]

schedule s for moves:
    make on sm(1), tile(i=4, j=4)
    send on copy_engine, {clauses}
    take on sm, tile(i=4, j=4)
    c channel(i={before}, j=64)
    h channel(i={after}, j=64)
"""
WAIT, NOTIFY_H = "consumer_tile_wait(c[i, :])", "producer_tile_notify(h[i, :] @ (rank + 1))"
PUSH = "tile_push_data(h[i, :] @ (rank + 1), c[i, :])"
PLAIN = (WAIT, PUSH, NOTIFY_H)
WHOLE: dict[str, Any] = {"by": " by 1", "before": 64, "after": 64, "clauses": "tile(n=64)", "send": PLAIN}
KEPT: dict[str, tuple[dict[str, Any], int]] = {
    "nothing": ({}, 1),
    "a wait for another channel": ({"before": 4}, 4),
    "a channel of what is sent": ({"after": 8}, 2),
    "the smaller of two channels": ({"before": 8, "after": 4}, 4),
    "a condition": ({"send": (WAIT, f"if i >= 0:\n            {PUSH}", NOTIFY_H)}, 16),
    "a rank": ({"send": (WAIT, PUSH.replace("rank + 1", "rank + i"), NOTIFY_H.replace("rank + 1", "rank + i"))}, 16),
    "what another copy of it reads": (
        {"send": (WAIT, "tile_push_data(t[0, i, :], c[i, :])", PUSH.replace("c[i, :]", "t[0, i, :]"), NOTIFY_H)}, 16,
    ),
    "two copies to one tensor": ({"send": (WAIT, "tile_push_data(t[0, i, :], c[i, :])",
                                           "tile_push_data(t[1, i, :], c[i, :])", PUSH, NOTIFY_H)}, 16),
    "a diagonal": ({"send": (WAIT, "tile_push_data(t[i, i, :], c[i, :])", PUSH, NOTIFY_H)}, 16),
    "a place that is multiplied": ({"send": (WAIT, "if rank < 0:\n            tile_push_data(t[0, 2 * i, :], c[i, :])",
                                             PUSH, NOTIFY_H)}, 16),
    "an order of its own": ({"before": 4, "clauses": "tile(n=64), order(i = 1 step +1)"}, 16),
}  # fmt: skip


@pytest.mark.parametrize("why", KEPT)
def test_tiles_stay_apart_for(why: str) -> None:
    said, number = KEPT[why]
    words = {**WHOLE, **said}
    words["send"] = "\n".join(f"        {line}" for line in words["send"])
    module = compiler.parse(MOVES.format(**words))
    bound = compiler.bound(module.program(), module.schedules[0], ranks=2, dims={"M": 16, "N": 16})
    assert bound.stages["send"].total == number


def test_a_region_has_two_distances_at_most() -> None:
    """Of half of the rows of each block: one call copies those of a head."""
    stage = compiler.bound(*keys("tile(b=4)", "H=4, T=8, B=4"), ranks=2, dims=dims_of(8, 2)).stages["gather"]
    assert {name: stage.tiles[name] for name in "hnb"} == {"h": 1, "n": 8, "b": 4}


def test_a_transposition_stays_as_it_is() -> None:
    program, schedule = keys()
    text = str(program).replace("k  : in        [H, NB, B, D]", "k : in [NB, H, B, D]").replace("k[h, n", "k[n, h")
    module = compiler.parse(f"{text}\n{schedule}".replace("ks[n, h", "ks[h, n"))
    stage = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=dims_of(8, 2)).stages["gather"]
    assert 1 in (stage.tiles["h"], stage.tiles["n"])  # along one of them only


# That nothing is later or other ------------------------------------------------------------------------------

ORDERS = (
    "tile(b=8)",
    "tile(b=8), order(n, h)",
    "tile(b=8), order(h, n, p = rank + 1 step +1)",
    "tile(b=4), order(b, p)",
)


def filled(plan: Plan) -> dict[tuple[int, int], int]:
    """Counter -> the bytes that its rank's engine has copied when its last notify is sent."""
    t, s = plan.transfers, plan.signals
    sent = np.flatnonzero((s.kind == NOTIFY) & np.isin(s.task, t.task))
    moved, signalled = plan.key(t.task, t.position), plan.key(s.task[sent], s.position[sent])
    found: dict[tuple[int, int], int] = {}
    for row, key in zip(sent.tolist(), signalled.tolist(), strict=True):
        own = (plan.worker[t.task] == plan.worker[s.task[row]]) & (moved < key)
        place = int(plan.worker[s.task[row]]), int(plan.counters[row])
        found[place] = max(found.get(place, 0), int(t.elements[own].sum()))
    return found


def most_channels(plan: Plan) -> int:
    """The most channels that a task notifies."""
    tasks = plan.signals.task[plan.signals.kind == NOTIFY]
    return int(np.unique(tasks, return_counts=True)[1].max())


@thorough(unless=lambda blocks: blocks == 5)
@pytest.mark.parametrize("gather", ORDERS)
@pytest.mark.parametrize(("blocks", "heads"), [(8, 4), (5, 3), (6, 6)])
def test_no_channel_is_full_later_and_no_task_signals_two(
    gather: str, blocks: int, heads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dims = dims_of(blocks, 3, heads)
    for channel in ("H=2, T=4, B=8", "H=3, T=2, B=4", "H=6, T=1, B=8"):
        with monkeypatch.context() as context:
            unmerged(context)
            before = compiler.plan(*keys(gather, channel), ranks=3, dims=dims)
        after = compiler.plan(*keys(gather, channel), ranks=3, dims=dims)
        sooner = filled(before)
        late = {place: number for place, number in filled(after).items() if number > sooner[place]}
        assert not late and after.tasks <= before.tasks
        assert most_channels(after) == most_channels(before)


def random_case(seed: int) -> tuple[tuple[Program, Schedule], int, dict[str, int]]:
    chance, ranks = Random(seed), seed % 4 + 2
    order = chance.choice(("", ", order(h, n)", ", order(n, p, h)", ", order(b, h)", ", order(p = rank step -1, n)"))
    channel = ", ".join(f"{name}={chance.choice(sizes)}" for name, sizes in
                        (("H", (1, 2, 3, 4)), ("T", (1, 2, 3, 4, 6)), ("B", (3, 5, 8))))  # fmt: skip
    dims = dims_of(chance.choice((1, 2, 3, 5, 6)), ranks, chance.choice((1, 3, 4)), chance.choice((5, 8)))
    return keys(f"tile(b={chance.choice((3, 5, 8))}){order}", channel), ranks, dims


@thorough(unless=lambda seed: seed < 2)
@pytest.mark.parametrize("seed", range(24))
def test_merged_copies_mean_the_same(seed: int) -> None:
    """Interpreted tile by tile after every pass, on 2 to 5 ranks, with uneven sizes."""
    case, ranks, dims = random_case(seed)
    check(case, ranks, dims)


@thorough(unless=lambda ranks: ranks == 3)
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_merged_copies_run_on_cpu_ranks(ranks: int) -> None:
    case, dims = keys(channel="H=2, T=3, B=7"), dims_of(3, ranks, heads=3, rows=7)
    kernel = compiler.compile(*case, ranks=ranks, dims=dims)
    given = random_inputs(case[0], ranks=ranks, dims=dims, dtype="f32", launches=3, seed=ranks)
    assert kernel.plan.bound.stages["gather"].tiles["n"] == 3
    for one in given:
        for own, expected in zip(kernel(one), reference(case[0], one, dims), strict=True):
            assert torch.equal(own["o"], expected["o"])


def test_mistakes_in_programs_with_merged_copies_are_seen() -> None:
    """The verifier and the dynamic checker agree on mutants, and none that fails is accepted."""
    case = Verified(program=(found := keys())[0], schedule=found[1], numbers={**dims_of(4, 2, heads=2)}, ranks=2)
    assert case.bound().stages["gather"].total == 2
    verdicts = list(campaign(1, only=[case], sample=True))
    assert verdicts and not [one for one in verdicts if one.outcome == "accepted, fails"]
    assert any(one.outcome == "refused, fails" for one in verdicts)


# What a simulation says --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("channel", "says"),
    [
        (
            "B=8",
            "a region is no larger than its channels, ks channel(H=1, T=1): make them larger, or take gather on sm(n)",
        ),
        ("H=16, T=64, B=8", None),
    ],
)
def test_a_simulation_names_the_clause_that_keeps_copies_small(channel: str, says: str | None) -> None:
    machine = load_machine("8xH100")
    plan = compiler.plan(*keys(channel=channel), ranks=2, dims={"H": 16, "NB": 64, "T": 128, "B": 8, "D": 128},
                         dtype="bf16", target=machine.processor)  # fmt: skip
    found = small_copies(simulate(plan, machine))
    assert len(found) == (says is not None)
    if says is not None:
        assert found[0].startswith("gather: 2048 copies of 2 KiB and 1024 flags take 67") and found[0].endswith(says)


def test_small_copies_that_nothing_merges_are_for_programs() -> None:
    machine = load_machine("8xH100")
    program, schedule = keys()
    text = str(program).replace("k[h, n, :, :])", "k[h, (n + 0) % NB, :, :])")
    module = compiler.parse(f"{text}\n{schedule}")
    plan = compiler.plan(module.program(), module.schedules[0], ranks=2, target=machine.processor, dtype="bf16",
                         dims={"H": 1, "NB": 512, "T": 1024, "B": 8, "D": 128})  # fmt: skip
    (found,) = small_copies(simulate(plan, machine))
    assert found.endswith("gather on sm(n) copies small regions faster")
