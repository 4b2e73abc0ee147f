"""Words of data and flag on CPU ranks: every type, tails, packing, late words, back-to-back launches, deadlines."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tilelink.reference.trial import random_inputs

RING = """
program ring(M, N):
    x    : in        [M, N] {dtype}
    left : symmetric [M, N] {dtype}
    next : symmetric [M, N] {dtype}
    y    : out       [M, N] {dtype}

    comm send(i: M, j: N):
        tile_push_data(left[i, j] @ (rank + 1), x[i, j])
        peer_tile_notify(left[i, j] @ (rank + 1))

    compute forward(i: M, j: N):
        peer_tile_wait(left[i, j])
        tile_push_data(next[i, j] @ (rank + 1), left[i, j])
        producer_tile_notify(next[i, j] @ (rank + 1))

    compute keep(i: M):
        consumer_tile_wait(next[i, :])
        y[i, :] = next[i, :]

schedule words for ring:
    send tile(i=2, j={columns})
    forward tile(i=2, j={columns})
    keep tile(i=4)
    left low_latency, buffers 2
    next low_latency, buffers {buffers}
"""
DTYPES = ["f32", "bf16", "f16", "f8e4m3", "f8e5m2", "i8", "u8", "i32", "i64", "bool"]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Any pattern of bits of a type, NaN among them."""
    size = tensor.element_size()
    if tensor.dtype == torch.bool:
        return torch.randint(0, 2, tensor.shape).bool()
    every = torch.randint(0, 256, (*tensor.shape, size), dtype=torch.uint8)
    return every.view(tensor.dtype).reshape(tensor.shape)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_types_of_elements_arrive_bit_by_bit(dtype: str) -> None:
    module = tilelink.parse(RING.format(dtype=dtype, columns=4, buffers=1))
    program = module.program()
    kernel = tilelink.compile(program, module.schedule("words", program), ranks=3, dims={"M": 3, "N": 6})
    plain = random_inputs(program, ranks=3, dims={"M": 3, "N": 6}, dtype="f32", launches=1, seed=0)[0]
    torch.manual_seed(1)
    given = [[{"x": bits(own["x"])} for own in plain] for _ in range(4)]
    result = kernel.run(given, seed=1, max_delay_s=0.0005, deadline_s=5)
    for inputs, outputs in zip(given, result.outputs, strict=True):
        for rank in range(3):
            assert same(outputs[rank]["y"], inputs[rank - 2]["x"]), (rank, outputs[rank]["y"], inputs[rank - 2]["x"])
