"""Programs whose integers come with a launch, on CPU ranks: one kernel for every routing, count and length."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import tilelink
from tests.launch_programs import drawn, examples, wrong
from tests.tiers import thorough
from tilelink import compiler
from tilelink.compiler import assembly
from tilelink.errors import BindingError, CoverageError
from tilelink.target import CPU

EXAMPLES = examples()
CASES = [*((name, 1) for name in EXAMPLES), *((name, 0) for name in list(EXAMPLES)[::3])]
"""Small tiles, of which a launch ends or skips some; some examples with the built-in schedule too."""
OFTEN = (
    "ag_gemm_rows", "ag_gemm_batch", "gemm_rs_batch", "expert_parallel", "gated_expert_parallel", "paged_decode",
    "low_latency_experts", "decode_attention_whole", "moe_decode",
)  # fmt: skip
"""Programs of the library that other tests run too, and that decide nothing in a way that no other example does."""


@thorough(unless=lambda name, number: number == 1 and name not in OFTEN)
@pytest.mark.parametrize(("name", "number"), CASES)
def test_one_kernel_is_right_for_every_routing(name: str, number: int) -> None:
    example = EXAMPLES[name]
    ranks = 3 + number
    kernel = tilelink.compile(example.program, example.schedules[number], ranks=ranks, dims=example.sizes)
    launches = [drawn(example, kind, ranks) for kind in example.kinds]
    run = kernel.run(launches, seed=number, max_delay_s=0.002)  # back to back, in every buffer twice
    for kind, inputs, outputs in zip(example.kinds, launches, run.outputs, strict=True):
        for rank in range(ranks):
            assert not wrong(outputs[rank], example.expected(inputs, rank, example.sizes)), (kind, rank)


@pytest.mark.parametrize("name", ["expert_parallel", "grouped_gemm", "ag_gemm_rows"])
def test_a_rank_that_is_alone_serves_itself(name: str) -> None:
    example = EXAMPLES[name]
    kernel = tilelink.compile(example.program, example.schedules[1], ranks=1, dims=example.sizes)
    inputs = drawn(example, "uniform", 1)
    assert not wrong(kernel(inputs)[0], example.expected(inputs, 0, example.sizes))


@pytest.mark.parametrize(
    ("name", "target"),
    [
        *((name, "sm_90") for name in ("expert_parallel", "grouped_gemm", "ag_gemm_rows", "paged_decode")),
        ("expert_parallel", "gfx942"), ("grouped_gemm", "sm_80"), ("ag_gemm_rows", "gfx942"), ("paged_decode", "sm_80"),
        ("decode_attention", "sm_90"),
    ],
)  # fmt: skip
def test_kernels_compile_for_gpus(name: str, target: str) -> None:
    example = EXAMPLES[name]
    text = assembly(example.program, None, ranks=4, dims=example.sizes, target=target)
    assert all(stage.name in text for stage in example.program.stages)


PLACES = """
program places(T = 72, M = 24, N = 40, K = 32):
    rows : in        [T] < ranks * M
    to   : in        [T] < T distinct
    x    : in        [M, K]
    w    : in        [N, K]
    xs   : symmetric [ranks * M, K]
    y    : out       [T, N]

    comm give(p: ranks, i: M):
        tile_push_data(xs[rank * M + i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank * M + i, :] @ p)

    compute make(i: T, j: N):
        consumer_tile_wait(xs[rows[i], :])
        VALUE

schedule tail for places:
    make on sm, tile(i=16, j=32, k=16), CLAUSE
"""
GATHERED = "y[i, j] = dot(xs[rows[i], :], w[j, :].T)"
SCATTERED = GATHERED.replace("y[i", "y[to[i]")
"""What a stage does whose places alone a launch decides; its tiles are known when it is compiled."""


@pytest.mark.parametrize(
    ("value", "clause"), [(GATHERED, "halve_tail"), (SCATTERED, "halve_tail"), (GATHERED, "flatten")]
)
def test_tiles_are_rearranged_where_a_launch_decides_places_alone(value: str, clause: str) -> None:
    module = tilelink.parse(PLACES.replace("VALUE", value).replace("CLAUSE", clause))
    program, ranks, sizes = module.program(), 3, {"T": 72, "M": 24, "N": 40, "K": 32}
    where: dict[str, Any] = {"ranks": ranks, "dims": sizes}
    machine = replace(CPU, grows=False, sms=4, max_programs=None)
    kernel = compiler.compile(program, module.schedules[0], **where, target=machine)
    assert ("make_rest" in kernel.plan.bound.stages) == (clause == "halve_tail")
    inputs = [
        {
            "rows": torch.randint(0, ranks * 24, (72,), dtype=torch.int32), "to": torch.randperm(72).int(),
            "x": torch.randn(24, 32), "w": torch.randn(40, 32),
        }
        for _ in range(ranks)
    ]  # fmt: skip
    every = torch.cat([one["x"] for one in inputs])
    outputs = kernel.run([inputs, inputs], seed=1, max_delay_s=0.002).outputs
    for launch in outputs:
        for own, found in zip(inputs, launch, strict=True):
            expected = every[own["rows"].long()] @ own["w"].T
            at = own["to"].long() if value == SCATTERED else slice(None)
            assert torch.allclose(found["y"][at], expected, atol=2e-3)
    text = assembly(program, module.schedules[0], **where, target="sm_90", dtype="bf16")
    assert "make" in text


def test_an_entry_beyond_its_bound_touches_no_other_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    example = EXAMPLES["pull"]
    kernel = tilelink.compile(example.program, None, ranks=3, dims=example.sizes)
    inputs = drawn(example, "uniform", 3)
    inputs[1]["row"][0] = 10_000_000
    inputs[1]["src"][1] = -5
    with pytest.raises(BindingError, match=r"src\[1\] of rank 1 is -5"):
        kernel(inputs)
    monkeypatch.setitem(vars(kernel), "_promises", ())  # as on GPUs, where nothing checks a launch
    outputs = kernel(inputs)
    every = torch.stack([one["x"] for one in inputs])
    row, src = inputs[1]["row"].clamp(0, 11).long(), inputs[1]["src"].clamp(0, 2).long()
    assert torch.equal(outputs[1]["y"], every[src, row])


def test_an_end_beyond_its_dimension_is_that_of_the_dimension(monkeypatch: pytest.MonkeyPatch) -> None:
    example = EXAMPLES["ends"]
    kernel = tilelink.compile(example.program, example.schedules[1], ranks=2, dims=example.sizes)
    inputs = drawn(example, "full", 2)
    inputs[1]["n"].fill_(17)
    with pytest.raises(BindingError, match="the end of dimension 0 of v of rank 1 is 34"):
        kernel(inputs)
    monkeypatch.setitem(vars(kernel), "_promises", ())  # as on GPUs, where nothing checks a launch
    outputs = kernel(inputs)[1]
    assert torch.equal(outputs["z"], inputs[1]["v"] * 2.0) and torch.equal(outputs["u"][:8], inputs[1]["v"][:8] * 3.0)


@pytest.mark.parametrize("loop", ["for (s: ranks, i: M[: m[s]] by 1):", "for (s: ranks, i: M[: m[s]]):"])
def test_a_range_of_a_loop_may_end_where_an_earlier_index_of_the_loop_says(loop: str) -> None:
    each = "by 1" in loop
    text = f"""
program p(M, N):
    m : in [ranks] <= M
    x : in [M, N]
    z : out [N]
    compute f(j: N):
        a = zeros(f32)
        {loop}
            a += {"x[i, j]" if each else "sum(x[i, j], axis=0)"}
        z[j] = a
"""
    program = compiler.parse(text).program()
    kernel = compiler.compile(program, ranks=2, dims={"M": 12, "N": 9})
    m = torch.tensor([5, 12], dtype=torch.int32)
    inputs = [{"m": m, "x": torch.arange(108.0).reshape(12, 9) + rank} for rank in range(2)]
    for given, found in zip(inputs, kernel.run([inputs]).outputs[0], strict=True):
        assert torch.allclose(found["z"], given["x"][:5].sum(0) + given["x"].sum(0))
    assert compiler.parse(str(program)).program() == program


@pytest.mark.parametrize(
    ("then", "other", "hint"),
    [
        ("y[i, :] = x[n - 1, :]", "y[i, :] = x[0, :]", r"a condition does not narrow what entries may be"),
        ("y[i, :] = x[i, :]", "y[i, :] = x[i, :] * 2", r"give a name its value in each, and store it after them"),
    ],
)
def test_hints_say_what_helps_where_a_launch_decides_a_branch(then: str, other: str, hint: str) -> None:
    text = f"""
program p(M, N):
    n : in [] <= M
    x : in [M, N]
    y : out [M, N]
    compute a(i: M by 1):
        if n > i:
            {then}
        else:
            {other}
"""
    with pytest.raises(CoverageError, match=hint):
        compiler.plan(compiler.parse(text).program(), ranks=2, dims={"M": 12, "N": 5})


UNEVEN = """
program uneven(M = 6, N = 8, T = 5):
    x    : in        [M, N]
    rows : in        [T] < ranks * M
    xs   : symmetric [ranks * M, N]
    y    : out       [T, N]
    comm send(p: ranks, i: M):
        tile_push_data(xs[rank * M + i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank * M + i, :] @ p)
    compute take(t: T, j: N):
        consumer_tile_wait(xs[rows[t], :])
        y[t, j] = xs[rows[t], j]
schedule four for uneven:
    send tile(i=4)
    xs   channel(i=4)
"""


def test_places_are_waited_for_whose_channels_have_different_numbers_of_notifies() -> None:
    """Tiles of 4 of the 6 rows that each of 2 ranks sends meet channels of 4 rows once or twice."""
    module = tilelink.parse(UNEVEN)
    sizes = {"M": 6, "N": 8, "T": 5}
    kernel = tilelink.compile(module.program(), module.schedules[0], ranks=2, dims=sizes)
    assert "target=tl.load(xs_tile_thresholds" in kernel.source
    x = [torch.randn(6, 8) for _ in range(2)]
    rows = torch.tensor([11, 0, 7, 5, 4], dtype=torch.int32)
    for outputs in kernel.run([[{"x": own, "rows": rows} for own in x]], seed=1, max_delay_s=0.002).outputs[0]:
        assert torch.equal(outputs["y"], torch.cat(x)[rows.long()])
    assert assembly(module.program(), module.schedules[0], ranks=2, dims=sizes, target="sm_90")


TOLD_END = """
program told_end(T, E, N):
    which : in        [E] < E
    x     : in        [E, T, N]
    m     : in        [E] <= T
    n     : symmetric [E] <= T
    y     : local     [E, T, N]
    z     : out       [E, N]

    comm tell(e: E by 1):
        tile_push_data(n[e] @ (rank + 1), m[e])
        producer_tile_notify(n[e] @ (rank + 1))

    compute use(e: E by 1, c: T[: n[which[e]]]):
        consumer_tile_wait(n[which[e]])
        y[e, c, :] = x[e, c, :]
        producer_tile_notify(y[e, c, :])

    compute total(e: E by 1):
        consumer_tile_wait(n[which[e]])
        consumer_tile_wait(y[e, :, :])
        s = zeros(f32)
        for (c: T[: n[which[e]]]):
            s += sum(y[e, c, :], axis=0)
        z[e, :] = s
"""


def test_an_end_is_read_after_the_wait_at_its_place() -> None:
    """The plan has the wait before the end is read, so kernels have it there."""
    program = tilelink.parse(TOLD_END).program()
    kernel = tilelink.compile(program, None, ranks=2, dims={"T": 8, "E": 3, "N": 4})
    use = kernel.source.partition("def use(")[2].partition("def total(")[0]
    assert 0 < use.index("dl.wait(") < use.index("end_c =")
    launches = [
        [
            {"which": torch.randperm(3).int(), "x": torch.randn(3, 8, 4), "m": torch.randint(0, 9, (3,)).int()}
            for _ in range(2)
        ]
        for _ in range(4)
    ]  # fmt: skip
    run = kernel.run(launches, seed=2, max_delay_s=0.002)
    for inputs, outputs in zip(launches, run.outputs, strict=True):
        for got, want in zip(outputs, kernel.reference(inputs), strict=True):
            assert torch.allclose(got["z"], want["z"], atol=1e-5)
