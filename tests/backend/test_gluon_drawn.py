"""Loops of warps with roles, drawn at random: sums of products and loops that carry a state, with vectors and masks.

Each is proved, and its emitted source does what the reference does.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.backend.gluon_executor import Kernel, differences, in_memory
from tests.backend.test_gluon_runs import whole_numbers
from tests.lowering import test_loop_roles as loops
from tests.lowering import test_roles_summed as summed
from tests.lowering.roles_interpreter import machine_after
from tests.tiers import thorough
from tilelink.backend.emit import emit
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import make_plan
from tilelink.verifier import verify

DRAWN = 24


def roles_of(rng: random.Random) -> str:
    return f"consumers=2, buffers={rng.choice((2, 3, 4))}" + rng.choice(("", ", in_flight=1"))


def drawn_sum(rng: random.Random) -> Bound:
    """A sum of products over ranks, blocks or both, each with some factors, and what is computed with it."""
    indices = rng.choice((("q: ranks",), ("p: P by 1",), ("q: ranks", "p: P by 1"), ("p: P by 1", "q: ranks")))
    over_ranks, blocks = "q: ranks" in indices, "p: P by 1" in indices
    sliced = not over_ranks
    dot = "dot(xl[i, p * B : (p + 1) * B], wl[p, j, :].T)" if sliced else summed.DOT
    factors = [one for one, there in (
        ("u[q, i][:, None]", over_ranks), ("v[p, j][None, :]", blocks), ("f[p]", blocks), ("s[i][:, None]", True)
    ) if there and rng.random() < 0.5]  # fmt: skip
    shape = rng.choice(("{}", "{}", "maximum({}, 0.0)", "{} + 1.0"))
    added = shape.format(" * ".join([dot, *factors]))
    scaled = added != dot
    lines = [f"for ({', '.join(indices)}):", *([summed.WAIT] if over_ranks else []), f"total += {added}"]
    f8 = rng.random() < 0.3
    block = 128 if f8 else 64
    inner = block if scaled else rng.choice((block, 200, 256))
    value = rng.choice(("total", "total + r[i, j]", "maximum(total, 0.0) * s[i][:, None]"))
    sizes: dict[str, Any] = {"K": inner, "B": block, "P": rng.choice((1, 2, 3)), "M": 256, "N": rng.choice((128, 256))}
    return summed.bound(tuple(lines), value=value, type=" f8e4m3" if f8 else "", k=block, roles=roles_of(rng), **sizes)


def drawn_loop(rng: random.Random) -> Bound:
    """A loop that carries a state, of all blocks or some, with a mask of some terms or vectors in what it computes."""
    over = rng.choice(("", "", "if t <= n:", "if t < n:", "if t >= n:"))
    part = "" if over else rng.choice(("", "[first[n] : n + 1]", "[: first[n]]"))
    column, row = "(pos(j) + t * B)[None, :]", "(pos(i) + n * B)[:, None]"
    terms = [one for one in (
        f"{column} <= {row}", f"{column} >= begin[n, i][:, None]", "column[t, j][None, :] > -0.5",
        f"{column} % 3 != 1", "bias[n, i, t, j] > -1.5",
    ) if rng.random() < 0.4]  # fmt: skip
    if rng.random() < 0.6:
        mask = f", {' and '.join(terms)}" if terms else ""
        inside = [loops.ATTEND.format(mask=mask).replace("s, h", "0, h")]
        begin, end = "state = online_softmax(f32)", loops.END
    else:
        factors = [one for one in ("weight[h, n, i][:, None]", "column[t, j][None, :]") if rng.random() < 0.6]
        scores = " * ".join(["dot(q[h, n, i, :], ks[0, h, t, j, :].T) * 0.125", *factors])
        masked = f"where({' and '.join(terms)}, {scores}, 0.0)" if terms else scores
        inside = [f"state += dot({masked}, vs[0, h, t, j, :])"]
        begin, end = "state = zeros(f32)", ("o[h, n, i, :] = state * weight[h, n, i][:, None]", loops.END[1])
    iteration = [*loops.WAITS0, *inside]
    lines = [over, *(f"    {one}" for one in iteration)] if over else iteration
    body = loops.body(*lines, begin=begin, end=end, loop=f"for (t: N{part} by 1, j: B):")
    return loops.bound(body, j=rng.choice((64, 128)), roles=roles_of(rng), N=rng.choice((1, 2, 3)), sms=3)


@thorough(unless=lambda seed: seed < 4)
@pytest.mark.parametrize("seed", range(DRAWN))
def test_a_drawn_loop_does_what_was_verified(seed: int) -> None:
    rng = random.Random(seed)
    made, stage = (drawn_sum(rng), "gemm") if seed % 2 else (drawn_loop(rng), "attn")
    assert made.stages[stage].roles is not None
    plan = make_plan(made)
    verify(plan)
    final = in_memory(made, machine_after(made, whole_numbers(made)).tensors)
    kernel = Kernel(plan=plan, emitted=emit(made, plan.thresholds), stage=stage)
    wrong = list(differences(kernel, kernel.run(final, 1, seed), final, 1, 2e-2))
    assert not wrong, (made.source, wrong)
