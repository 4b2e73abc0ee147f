"""Predictions against times measured on H200s (bf16, median of the maximum over ranks), with the shipped machine.

The machine's numbers come from microbenchmarks and from products alone, not from these runs.
"""

from __future__ import annotations

import pytest

from tests.simulator.cases import H200S, planned
from tilelink.planning.plan import Plan
from tilelink.simulator import simulate

GATHERED = """\
program gathered(Ms, N, K):
    x  : in        [Ms, K]
    w  : in        [N, K]
    xs : symmetric [ranks, Ms, K]
    y  : out       [ranks, Ms, N]

    comm gather(p: ranks, i: Ms):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)

    compute gemm(s: ranks, i: Ms, j: N):
        consumer_tile_wait(xs[s, i, :])
        y[s, i, j] = dot(xs[s, i, :], w[j, :].T)

schedule engine for gathered:
    gather on copy_engine, tile(i=8192), order(p = rank step -1)
    gemm on sm, tile(i=128, j=256, k=64), order(s = rank step +1, group(i, 8)), num_warps 8, num_stages 4
    xs channel(i=8192), buffers 2
"""
ROWS = 8192
SHAPES = {"mlp-1": (4096, 11008), "mlp-2": (4096, 14336), "mlp-5": (8192, 28672), "mlp-7": (16384, 53248)}
MEASURED = {
    (4, "mlp-1"): 299e-6, (4, "mlp-2"): 352e-6, (4, "mlp-5"): 1355e-6, (4, "mlp-7"): 5100e-6,
    (8, "mlp-5"): 655e-6, (8, "mlp-7"): 2458e-6,
}  # fmt: skip


@pytest.mark.parametrize(("ranks", "shape"), MEASURED)
def test_a_gathered_product(ranks: int, shape: str) -> None:
    inner, columns = SHAPES[shape]
    plan = planned(GATHERED, ranks=ranks, dtype="bf16", Ms=ROWS // ranks, N=columns // ranks, K=inner)
    assert simulate(plan, H200S).seconds == pytest.approx(MEASURED[ranks, shape], rel=0.1)


@pytest.mark.parametrize(("programs", "rate", "error"), [(16, 296e9, 0.15), (64, 350e9, 0.1)])
def test_copies_by_programs_without_signals_in_between(programs: int, rate: float, error: float) -> None:
    """So many programs as could just fill the link do not quite, which the model does not know."""
    text = f"""\
program ring(M, N):
    x : in            [M, N]
    y : out symmetric [M, N]

    comm send(i: M, j: N):
        tile_push_data(y[i, j] @ (rank + 1), x[i, j])
        producer_tile_notify(y[i, j] @ (rank + 1))

schedule copy_sms for ring:
    send on sm({programs}), tile(i=8192, j=128)
"""
    plan = planned(text, ranks=8, dtype="bf16", M=8192, N=8192)
    assert 8192 * 8192 * 2 / _moving(plan) == pytest.approx(rate, rel=error)


@pytest.mark.parametrize(("pieces", "rate"), [(1, 347e9), (4, 275e9)])
def test_an_all_gather_by_the_copy_engine(pieces: int, rate: float) -> None:
    text = f"""\
program all(M, N):
    x : in            [M, N]
    y : out symmetric [ranks, M, N]

    comm send(p: ranks, i: M):
        if rank != p:
            tile_push_data(y[rank, i, :] @ p, x[i, :])
            producer_tile_notify(y[rank, i, :] @ p)

schedule engine for all:
    send on copy_engine, tile(i={2048 // pieces}), order(p = rank + 1 step +1)
    y channel(i={2048 // pieces})
"""
    plan = planned(text, ranks=8, dtype="bf16", M=2048, N=4096)
    assert 7 * 2048 * 4096 * 2 / _moving(plan) == pytest.approx(rate, rel=0.1)


def _moving(plan: Plan) -> float:
    """Seconds without the copy of the output for the caller, which was not made when these were measured."""
    result = simulate(plan, H200S)
    return result.seconds - result.timeline.script.keeping
