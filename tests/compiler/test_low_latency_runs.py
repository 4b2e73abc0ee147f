"""Words of data and flag on CPU ranks: every type, tails, packing, late words, back-to-back launches, deadlines."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tilelink
from tests.launch_programs import drawn, examples
from tests.tiers import thorough
from tilelink.errors import DeadlineError
from tilelink.reference.trial import random_inputs

DTYPES = ["bf16", "f8e4m3", "i64", "bool"]
"""Of 2, 4 and 1 elements of a word, and of half an element; the library's programs have those of f32."""
INDENT = "\n        "


def program_of(dtypes: list[str]) -> str:
    """A program that sends a tensor of each type two ranks on, the second time what it has received."""
    lines = ["program ring(M, N):"]
    for t in dtypes:
        lines += [f"    x_{t} : in [M, N] {t}", f"    left_{t} : symmetric [M, N] {t}"]
        lines += [f"    next_{t} : symmetric [M, N] {t}", f"    y_{t} : out [M, N] {t}"]
    send = [f"tile_push_data(left_{t}[i, j] @ (rank + 1), x_{t}[i, j])" for t in dtypes]
    send += [f"peer_tile_notify(left_{t}[i, j] @ (rank + 1))" for t in dtypes]
    forward = [f"peer_tile_wait(left_{t}[i, j])" for t in dtypes]
    forward += [f"tile_push_data(next_{t}[i, j] @ (rank + 1), left_{t}[i, j])" for t in dtypes]
    forward += [f"producer_tile_notify(next_{t}[i, j] @ (rank + 1))" for t in dtypes]
    keep = [f"consumer_tile_wait(next_{t}[i, :])" for t in dtypes]
    keep += [f"y_{t}[i, :] = next_{t}[i, :]" for t in dtypes]
    lines += ["    comm send(i: M, j: N):" + "".join(INDENT + one for one in send)]
    lines += ["    comm forward(i: M, j: N):" + "".join(INDENT + one for one in forward)]
    lines += ["    compute keep(i: M):" + "".join(INDENT + one for one in keep)]
    lines += ["schedule words for ring:", "    send tile(i=2, j=4)", "    forward in send epilogue, tile(i=2, j=4)"]
    lines += ["    keep in send epilogue, tile(i=4)"]
    lines += [f"    {name}_{t} low_latency, buffers 1" for t in dtypes for name in ("left", "next")]
    return "\n".join(lines) + "\n"


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Any pattern of bits of a type, NaN among them."""
    if tensor.dtype == torch.bool:
        return torch.randint(0, 2, tensor.shape).bool()
    every = torch.randint(0, 256, (*tensor.shape, tensor.element_size()), dtype=torch.uint8)
    return every.view(tensor.dtype).reshape(tensor.shape)


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@pytest.mark.parametrize("ranks", [3])
def test_all_types_of_elements_arrive_bit_by_bit(ranks: int) -> None:
    module = tilelink.parse(program_of(DTYPES))
    program = module.program()
    kernel = tilelink.compile(program, module.schedule("words", program), ranks=ranks, dims={"M": 2, "N": 6})
    plain = random_inputs(program, ranks=ranks, dims={"M": 2, "N": 6}, dtype="f32", launches=1, seed=0)[0]
    torch.manual_seed(1)
    given = [[{name: bits(one) for name, one in own.items()} for own in plain] for _ in range(2)]
    result = kernel.run(given, seed=1, max_delay_s=0.0002, deadline_s=20)
    for inputs, outputs in zip(given, result.outputs, strict=True):
        for rank in range(ranks):
            wrong = [t for t in DTYPES if not same(outputs[rank][f"y_{t}"], inputs[rank - 2][f"x_{t}"])]
            assert not wrong, (rank, wrong)


def test_a_word_that_never_comes_ends_at_a_deadline() -> None:
    """Nobody sends, after the proof."""
    module = tilelink.parse(program_of(["bf16"]))
    program = module.program()
    kernel = tilelink.compile(program, module.schedule("words", program), ranks=2, dims={"M": 2, "N": 4})
    given = random_inputs(program, ranks=2, dims={"M": 2, "N": 4}, dtype="f32", launches=1, seed=0)
    text = kernel.emitted.text
    assert "flag=epoch, PACKED=2" in text
    spoiled = text.replace("dl.send_words(left_bf16", "(lambda *_, **__: None)(left_bf16")
    assert spoiled != text
    with pytest.raises(DeadlineError, match=r"waits for left_bf16 peer channel .*: 0 of 4"):
        replace(kernel, emitted=replace(kernel.emitted, text=spoiled)).run(given, deadline_s=2.0)


@thorough(unless=lambda ranks, dtype: (ranks, dtype) == (3, "bf16"))
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
def test_launches_send_as_many_words_as_they_have(ranks: int, dtype: str) -> None:
    """Counts fall and rise from launch to launch, in buffers whose words are those of launches that sent more."""
    example = examples()["low_latency_experts"]
    kernel = tilelink.compile(example.program, "words", ranks=ranks, dims=example.sizes, dtype=dtype)
    assert "dl.wait_all" not in kernel.source and "network_notify" not in kernel.source
    assert kernel.source.count("dl.notify(") == 1, "an expert tells itself"
    kinds = ["full", "one", "single", "uniform", "one", "full", "uniform"]
    launches = [drawn(example, kind, ranks) for kind in kinds]
    given = [[{name: _as(name, one, dtype) for name, one in own.items()} for own in inputs] for inputs in launches]
    run = kernel.run(given, seed=ranks, max_delay_s=0.001, deadline_s=60)
    for kind, inputs, outputs in zip(kinds, given, run.outputs, strict=True):
        wide = [{name: one.float() if one.is_floating_point() else one for name, one in own.items()} for own in inputs]
        for rank in range(ranks):
            (wanted,) = (values for _, values in example.expected(wide, rank, example.sizes)["y"])
            error = (outputs[rank]["y"].float() - wanted).abs().max() / wanted.abs().max()
            assert error < (1e-5 if dtype == "f32" else 0.03), (kind, rank)


def _as(name: str, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.bfloat16() if dtype == "bf16" and tensor.is_floating_point() and name != "weight" else tensor


COUNTED = """
program pairs(M = 7, N = 6):
    m    : in        [] <= M
    x    : in        [M, N]
    n    : symmetric [] <= M
    left : symmetric [M, N]
    y    : out       [M[: n], N]

    comm send(i: M[: m]):
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(left[i, :] @ (rank + 1))

    comm tell():
        tile_push_data(n[] @ (rank + 1), m)
        producer_tile_notify(n[] @ (rank + 1))

    compute take(i: M[: n]):
        consumer_tile_wait(n)
        consumer_tile_wait(left[i, :])
        y[i, :] = left[i, :]

schedule words for pairs:
    send tile(i=2)
    take tile(i=4)
    left low_latency, buffers BUFFERS
"""


@pytest.mark.parametrize("buffers", [1, 2])
def test_words_of_a_longer_range_stay_and_are_not_taken_for_new_ones(buffers: int) -> None:
    module = tilelink.parse(COUNTED.replace("BUFFERS", str(buffers)))
    kernel = tilelink.compile(module.program(), module.schedules[0], ranks=2, dims={"M": 7, "N": 6})
    counts = [(7, 1), (2, 7), (0, 3), (5, 0), (7, 7), (1, 6), (3, 2)]
    given = [[{"m": torch.tensor(m, dtype=torch.int32), "x": torch.randn(7, 6)} for m in both] for both in counts]
    result = kernel.run(given, seed=3, max_delay_s=0.002, deadline_s=30)
    for both, inputs, outputs in zip(counts, given, result.outputs, strict=True):
        for rank in range(2):
            told = both[1 - rank]
            assert torch.equal(outputs[rank]["y"][:told], inputs[1 - rank]["x"][:told]), both
