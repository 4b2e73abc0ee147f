# pyright: basic
"""Random stages whose warps have roles: what is accepted computes what the lowered program does, and does not hang.

The epilogues differ in what they add: tiles and vectors of several types, inputs or parts of peers with their waits, in
any order and number. Some products have parts along the contracted dimension, which consumers add, too. The emitted
Gluon source of each accepted stage is executed (tests/backend/gluon_executor.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.backend.gluon_executor import Kernel, differences, in_memory
from tests.backend.test_gluon_runs import check_steps, one_thread, whole_numbers
from tests.lowering.roles_interpreter import machine_after
from tests.tiers import thorough
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import ScheduleError, VerificationError
from tilelink.lowering.bound import Bound
from tilelink.lowering.role_bodies import loaded_tiles
from tilelink.planning.plan import make_plan
from tilelink.target import target
from tilelink.verifier import verify

__all__ = ["one_thread"]

SEEDS = 240
"""Of which every GROUP are a test."""
GROUP = 12


def stage(by: random.Random) -> Bound:
    """Return a lowered program. Raises ScheduleError if its stage cannot have roles."""
    tiles = [by.choice(("in", "in f32", "late", "late", "late f32")) for _ in range(by.choice((0, 1, 1, 2, 3, 5, 6)))]
    tiles = ["in"] * len(tiles) if by.random() < 0.3 else tiles
    late = [n for n, kind in enumerate(tiles) if kind.startswith("late")]
    vectors = [by.choice(("row", "column", "late row") if late else ("row", "column")) for _ in range(by.randrange(3))]
    (j, ring), consumers = by.choice(((64, 4), (128, 3), (128, 4), (256, 3), (256, 4))), by.choice((2, 2, 2, 3))
    rows = 64 * consumers
    alone = _alone(by, tiles, vectors)
    lines = [*_declared(tiles, vectors, bool(alone)), *(_given(late, vectors) if late else ())]
    lines += ["    compute gemm(i: M, j: N):", "        acc = dot(x[i, :], w[j, :].T)", *_computed(by, tiles, vectors)]
    lines += ["        y[i, j] = acc", *alone, "schedule one for stage:"]
    lines += ["    give on sm(1), tile(i=64)"] if late else []
    more = by.choice((", in_flight=1", "", ""))
    tail = by.choice((", split_k_tail 4", "", "")) if not alone else ""
    lines += [f"    gemm on sm, tile(i={rows}, j={j}, k=64), roles(consumers={consumers}, buffers={ring}{more}){tail}"]
    if alone:
        columns = by.choice((64, j, j))
        lines += [
            f"    alone in gemm epilogue, tile(i={rows}, j={columns}), roles(consumers={consumers}, buffers={ring})"
        ]
    module = compiler.parse("\n".join(lines) + "\n", "stage.tl")
    sizes = {
        "M": rows * by.choice((1, 2)),
        "N": j * by.choice((1, 2)),
        "K": 2560 if tail else by.choice((64, 128, 200)),
    }
    on = replace(target("sm_90"), sms=by.choice((2, 5)))
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target=on)


def _declared(tiles: list[str], vectors: list[str], alone: bool) -> Iterator[str]:
    yield from ("program stage(M, N, K):", "    x : in [M, K]", "    w : in [N, K]", "    r : in [M, N]")
    yield from ("    e : in [M] f32", "    y : out [M, N]", *(["    z : out [2, M, N]"] if alone else ()))
    for n, kind in enumerate(tiles):
        where = "symmetric" if kind.startswith("late") else "in"
        yield f"    t{n} : {where} [M, N]{' f32' if kind.endswith('f32') else ''}"
    for n, kind in enumerate(vectors):
        yield f"    v{n} : {'symmetric' if kind == 'late row' else 'in'} [{'N' if kind == 'column' else 'M'}] f32"


def _given(late: list[int], vectors: list[str]) -> Iterator[str]:
    """Yield the stage that sends the late tiles, and before them the vectors that have no signals of their own."""
    yield "    comm give(i: M):"
    yield from (f"        tile_push_data(v{n}[i] @ (rank + 1), e[i])" for n, k in enumerate(vectors) if k == "late row")
    for n in late:
        yield f"        tile_push_data(t{n}[i, :] @ (rank + 1), r[i, :])"
        yield f"        producer_tile_notify(t{n}[i, :] @ (rank + 1))"


def _alone(by: random.Random, tiles: list[str], vectors: list[str]) -> list[str]:
    """Return the lines of a stage without a product in the same kernel, or none."""
    if by.random() < 0.5:
        return []
    lines = ["    compute alone(q: 2 by 1, i: M, j: N):", "        total = r[i, j] * 0.5"]
    for n, kind in enumerate(tiles[:3]):
        lines += [f"        consumer_tile_wait(t{n}[i, j])"] if kind.startswith("late") else []
        lines.append(f"        total = total + t{n}[i, j]")
    late = any(kind.startswith("late") for kind in tiles[:3])
    for n, kind in enumerate(vectors):
        if kind != "late row" or late:
            lines.append(f"        total = total + {f'v{n}[j]' if kind == 'column' else f'v{n}[i][:, None]'}")
    return [*lines, "        z[q, i, j] = total"]


def _computed(by: random.Random, tiles: list[str], vectors: list[str]) -> Iterator[str]:
    """Yield what is computed with the product. Late vectors come after the late tiles, whose waits order them."""
    own: list[list[str]] = []
    for n, kind in enumerate(tiles):
        wait = [f"        consumer_tile_wait(t{n}[i, j])"] if kind.startswith("late") else []
        own.append([*wait, f"        acc = acc + t{n}[i, j] * {by.choice(('0.5', '1.0', '2.0'))}"])
    read = [(kind, f"v{n}[j]" if kind == "column" else f"v{n}[i][:, None]") for n, kind in enumerate(vectors)]
    own += [[f"        acc = acc + {text}"] for kind, text in read if kind != "late row"]
    by.shuffle(own)
    for part in own:
        yield from part
    yield from (f"        acc = acc + {text}" for kind, text in read if kind == "late row")


@thorough(unless=lambda first: first < GROUP)
@pytest.mark.parametrize("first", range(0, SEEDS, GROUP))
def test_accepted_stages_compute_what_was_lowered(first: int) -> None:
    accepted = loaded = alone = split = 0
    for seed in range(first, first + GROUP):
        try:
            made = stage(random.Random(seed))
            plan = make_plan(made)
            verify(plan)
        except (ScheduleError, VerificationError):
            continue
        accepted += 1
        loaded += bool(loaded_tiles(made, made.stages["gemm"]))
        alone += "alone" in made.stages
        split += "gemm_sums" in made.stages
        final = in_memory(made, machine_after(made, whole_numbers(made)).tensors)
        kernel = Kernel(plan=plan, emitted=emit(made, plan.thresholds), stage="gemm")
        launch = 1 + seed % 3
        found = kernel.run(final, launch, seed)
        assert not list(differences(kernel, found, final, launch)), seed
        assert sum(check_steps(kernel, events) for _, _, events in found.events) > 0, seed
    assert accepted > 3 and loaded > 0 and alone > 0 and (split > 0 or first)
