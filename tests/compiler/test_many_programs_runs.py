"""CPU ranks have as many programs as a schedule asks for, each of them a process, however many wait for one another."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tilelink.errors import BindingError

RING = """program ring(M, N):
    x    : in        [M, N]
    left : symmetric [M, N]
    back : symmetric [M, N]
    y    : out       [M, N]

    comm send(i: M):
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])

    compute add(i: M, j: N):
        tile_push_data(back[i, j] @ (rank - 1), left[i, j] + x[i, j])

    compute twice(i: M, j: N):
        y[i, j] = back[i, j] * 2.0

schedule many for ring:
    send  on sm(16), tile(i=4)
    add   on sm(16), tile(i=4, j=8)
    twice on sm(16), tile(i=4, j=8)
"""


def test_three_kernels_of_sixteen_programs_that_wait_for_one_another_run_on_two_ranks() -> None:
    kernel = tilelink.compile(tilelink.parse(RING).program(), "many", ranks=2, dims={"M": 64, "N": 8})
    assert [one.programs for one in kernel.bound.kernels] == [16, 16, 16]
    launches = [[{"x": torch.randn(64, 8)} for _ in range(2)] for _ in range(2)]
    result = kernel.run(launches, seed=3, max_delay_s=0.0005, trace=True)
    assert len(result.traces) == 2 * 3 * 16, "each program is a process of its own"
    for given, outputs in zip(launches, result.outputs, strict=True):
        for rank in range(2):
            expected = (given[rank]["x"] + given[1 - rank]["x"]) * 2.0
            assert torch.equal(outputs[rank]["y"], expected)


def test_more_processes_than_a_run_may_have_are_refused_before_they_are_made() -> None:
    text = RING.replace("sm(16)", "sm(132)").replace("i=4", "i=1")
    kernel = tilelink.compile(tilelink.parse(text).program(), "many", ranks=4, dims={"M": 256, "N": 8})
    inputs = [{"x": torch.zeros(256, 8)} for _ in range(4)]
    with pytest.raises(BindingError, match="1,584 programs of 4 CPU ranks are as many processes") as caught:
        kernel(inputs)
    assert caught.value.hint is not None and "fewer SMs" in caught.value.hint
