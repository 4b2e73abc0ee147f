"""Programs whose last tiles are in even shares, on CPU ranks: numbers, events, and the same bits in every launch."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tests.tiers import thorough
from tilelink import compiler
from tilelink.planning.traces import differences
from tilelink.reference.trial import compared, random_inputs, relative_error

TEXT = """\
program shared(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    v : in        [N, K]
    h : symmetric [M, K]
    z : symmetric [M, N]
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute make(i: M, j: N):
        consumer_tile_wait(h[i, :])
        a = dot(h[i, :], w[j, :].T)
        b = dot(h[i, :], v[j, :].T) * pos(i)[:, None]
        if rank == 1:
            a = a + 2.0 * pos(j)
        tile_push_data(z[i, j] @ (rank + 1), a + b)
        producer_tile_notify(z[i, j] @ (rank + 1))

    compute take(i: M, j: N):
        consumer_tile_wait(z[i, j])
        y[i, j] = z[i, j] * 2.0

schedule even for shared:
    send on sm(1), tile(i=16)
    make on sm, tile(i=16, j=8, k=16), stream_k
    take on sm, tile(i=16, j=8)
"""
LAUNCHES = 2


@thorough(unless=lambda ranks: ranks == 3)
@pytest.mark.parametrize(("ranks", "columns", "whole"), [(3, 40, 2), (4, 20, 0)])
def test_they_run_as_planned(ranks: int, columns: int, whole: int) -> None:
    """Five or three tiles on two programs; the end of the tensor cuts rows, columns or the last step."""
    module = tilelink.parse(TEXT)
    program, dims = module.program(), {"M": 12, "N": columns, "K": 284}
    kernel = compiler.compile(program, module.schedules[0], ranks=ranks, dims=dims, dtype="f32")
    assert kernel.bound.stages["make"].total == whole and "make_streamed" in kernel.bound.stages
    (given,) = random_inputs(program, ranks=ranks, dims=dims, dtype="f32", launches=1, seed=ranks)
    result = kernel.run([given] * LAUNCHES, seed=ranks, max_delay_s=0.001, trace=True)
    expected = kernel.reference(given)
    for outputs in result.outputs:
        assert relative_error(*compared(outputs, expected, "y")) <= 1e-5
        for one, first in zip(outputs, result.outputs[0], strict=True):
            assert torch.equal(one["y"], first["y"])  # sums have one order, whoever is late
    workers = {(one.rank, one.stream, one.program): one.events for one in result.traces}
    assert differences(kernel.plan, workers, LAUNCHES) == []
