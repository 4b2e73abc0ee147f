"""Programs whose last tiles are in even shares, on CPU ranks: numbers, events, and the same bits in every launch."""

from __future__ import annotations

import pytest
import torch

import tilelink
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
DIMS = {"M": 24, "N": 35, "K": 324}
"""Ten tiles, of which eight are whole if there are two programs; rows, columns and the last step are cut."""
LAUNCHES = 3


@pytest.mark.parametrize(("ranks", "columns"), [(3, 35), (4, 12)])
def test_they_run_as_planned(ranks: int, columns: int) -> None:
    module = tilelink.parse(TEXT)
    program, dims = module.program(), {**DIMS, "N": columns, "M": 24 if columns > 12 else 40}
    kernel = compiler.compile(program, module.schedules[0], ranks=ranks, dims=dims, dtype="f32")
    assert "make_streamed" in kernel.bound.stages
    (given,) = random_inputs(program, ranks=ranks, dims=dims, dtype="f32", launches=1, seed=ranks)
    result = kernel.run([given] * LAUNCHES, seed=ranks, max_delay_s=0.001, trace=True)
    expected = kernel.reference(given)
    for outputs in result.outputs:
        assert relative_error(*compared(outputs, expected, "y")) <= 1e-5
        for one, first in zip(outputs, result.outputs[0], strict=True):
            assert torch.equal(one["y"], first["y"])  # sums have one order, whoever is late
    workers = {(one.rank, one.stream, one.program): one.events for one in result.traces}
    assert differences(kernel.plan, workers, LAUNCHES) == []
