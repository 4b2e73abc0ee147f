"""Masks of loops with roles: which iterations need them, against all elements of all iterations."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.lowering.test_loop_roles import ATTEND, FOR, WAITS, body, bound
from tilelink.ir.program import Apply
from tilelink.ir.scalar import Env, Scalar, evaluate
from tilelink.lowering.bound import Bound
from tilelink.lowering.iterations import loop_of, range_of
from tilelink.lowering.masks import Iterations, Masks

ROWS, COLUMNS = "(pos(i) + n * B)[:, None]", "(pos(j) + t * B)[None, :]"
CAUSAL = f"{ROWS} >= {COLUMNS}"
DOWN, UP = "n - u", "u - 1 + (n + 1) * (1 - min(u, 1))"
N, B = 4, 128
FIRST, LATER, ALL = Iterations.FIRST, Iterations.LATER, Iterations.ALL


def made(mask: str, guard: str, block: str, i: int = 128, j: int = 128) -> Bound:
    iteration = (f"let t = {block}", *WAITS, ATTEND.format(mask=f", {mask}"))
    lines = (f"    {line}" for line in iteration)
    text = body(f"if {guard}:", *lines, loop=FOR.replace("ranks", "1").replace("t:", "u:"))
    return bound(text, i=i, j=j, N=N, B=B)


def masks_of(of: Bound) -> Masks:
    stage = of.stages["attn"]
    tile, bounds = loop_of(stage), of.bounds("attn")
    iterations = range_of(stage, bounds)
    assert stage.roles is not None and not isinstance(iterations, str)
    return Masks(
        stage=stage, tile=tile, iterations=iterations, rows=stage.roles.rows, consumers=stage.roles.consumers,
        row_index="i", bounds=bounds, extremes={},
    )  # fmt: skip


def condition(of: Bound, iterations: Iterations) -> Scalar | bool | None:
    masks = masks_of(of)
    (masked,) = (s.value for s in masks.tile.compute if s.name == "masked")
    assert isinstance(masked, Apply)
    return masks.condition(masked, iterations)


def whole(mask: str, n: int, t: int, rows: range, columns: range) -> bool:
    """True if a mask is true for all of some rows of block n and some columns of block t."""
    positions = {"i": np.array(rows), "j": np.array(columns)}
    names: dict[str, Any] = {"pos": positions.__getitem__, "i": "i", "j": "j", "n": n, "t": t, "B": B}
    return all(bool(eval(one, names).all()) for one in mask.split(" and "))


@pytest.mark.parametrize("j", [128, 64])
@pytest.mark.parametrize(("mask", "guard", "block"), [
    (CAUSAL, "u <= n", DOWN),
    (CAUSAL, "u <= n", UP),
    (CAUSAL, "u <= n", "u"),
    (CAUSAL.replace(">=", ">"), "u <= n", DOWN),
    (f"{COLUMNS} <= {ROWS}", "u <= n", DOWN),
    (f"{COLUMNS} < {ROWS} - 64", "u <= n", DOWN),
    (f"{CAUSAL} and {ROWS} - 200 < {COLUMNS}", "u <= n and u >= n - 2", "u"),
    (f"{ROWS} + 1000 >= {COLUMNS}", "u <= n", "u"),
])  # fmt: skip
def test_an_iteration_has_a_mask_where_some_element_needs_it(mask: str, guard: str, block: str, j: int) -> None:
    made_of = made(mask, guard, block, j=j)
    first, later, every = (condition(made_of, iterations) for iterations in (FIRST, LATER, ALL))
    rows = masks_of(made_of).rows
    for n, part in product(range(N), range(B // rows)):
        done = False
        for u in range(N):
            if not eval(guard.replace("and", "*"), {"u": u, "n": n}):
                continue
            for at in range(B // j):
                t = int(eval(block, {"u": u, "n": n}))
                needed = not whole(mask, n, t, range(part * rows, (part + 1) * rows), range(at * j, (at + 1) * j))
                env = Env(rank=0, ranks=1, params={}, indices={"n": n, "u": u, "i": 0, "j": at, "PART": part, "h": 0})
                for found in (every, later if done else first):
                    assert found is not None
                    value = found if isinstance(found, bool) else bool(evaluate(found, env))
                    assert value or not needed, (n, u, at, part)
                    assert needed or not isinstance(found, bool) or not found, "a mask is applied without need"
                done = True


@pytest.mark.parametrize("block", [DOWN, UP])
def test_iterations_after_the_diagonal_are_proved_to_need_none(block: str) -> None:
    of = made(CAUSAL, "u <= n", block)
    assert condition(of, LATER) is False and condition(of, FIRST) is True
    assert isinstance(condition(of, ALL), Scalar)


def test_nothing_is_proved_of_iterations_that_share_a_block() -> None:
    assert isinstance(condition(made(CAUSAL, "u <= n", DOWN, j=64), LATER), Scalar)


def test_a_mask_of_other_values_is_computed_in_each_iteration() -> None:
    of = bound(body(*WAITS, ATTEND.format(mask=", (pos(i) * 2)[:, None] >= pos(j)[None, :]")), N=2)
    assert condition(of, ALL) is None
