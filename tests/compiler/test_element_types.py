"""Tensors of 8-bit floats and of integers of 8 and 64 bits: on CPU ranks as in the reference, and compiled."""

from __future__ import annotations

import re

import pytest
import torch

import tilelink
from tests.backend.offline import compile_all
from tests.backend.samples import emitted
from tests.tiers import thorough
from tilelink import compiler
from tilelink.errors import EmitError, VerificationError
from tilelink.frontend.parser import parse_text
from tilelink.ir.program import Program
from tilelink.lowering.bind import bind
from tilelink.reference.trial import random_inputs
from tilelink.scheduling.schedule import Schedule
from tilelink.target import target

FLOATS = """
program floats(M, N, K):
    x : in        [M, K] from -3.0 to 3.0
    w : in        [N, K] f8e4m3
    q : symmetric [ranks, M, K] f8e4m3
    y : out       [ranks, M, N] f32
    e : out       [M, K] f8e5m2
    c : out       [M, K] f8e4m3
    b : out       [M, K] bf16

    comm send(p: ranks, i: M):
        tile_push_data(q[rank, i, :] @ p, f8e4m3(x[i, :] * 200.0))
        producer_tile_notify(q[rank, i, :] @ p)

    compute gemm(s: ranks, i: M, j: N):
        consumer_tile_wait(q[s, i, :])
        y[s, i, j] = dot(q[s, i, :], w[j, :].T)

    compute copies(i: M, k: K):
        consumer_tile_wait(q[rank, i, k])
        e[i, k] = f32(q[rank, i, k]) * 100.0
        c[i, k] = q[rank, i, k]
        b[i, k] = q[rank, i, k]

schedule slices for floats:
    send on sm(1), tile(i=16, k=32)
    gemm on sm, tile(i=32, j=32, k=32), order(s = rank step +1), num_stages 2
    q channel(i=16, k=32), buffers 1
"""

INTEGERS = """
program integers(M, N, K):
    x : in  [M, K] i8 from -100 to 100
    w : in  [N, K] i8 from -100 to 100
    u : in  [M, K] u8 from 0 to 255
    n : in  [M, K] i64 from -1000000 to 1000000
    h : symmetric [M, K] i8
    y : out [M, N] i32
    s : out [M, K] i8
    t : out [M, K] u8
    l : out [M, K] i64
    r : out [M] i64
    a : out [M] i32
    p : out [M, K] i64
    z : out [M, K]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute gemm(i: M, j: N):
        consumer_tile_wait(h[i, :])
        y[i, j] = dot(h[i, :], w[j, :].T)

    compute copies(i: M, k: K):
        s[i, k] = i8(x[i, k] * 3 + u[i, k])
        t[i, k] = u8(f32(u[i, k]) * 1.5 - 20.0)
        l[i, k] = (n[i, k] << 40) + x[i, k] - n[i, k] // 3 + full(1099511627776, i64)
        z[i, k] = n[i, k] * 0.5 + u[i, k]

    compute sums(i: M):
        r[i] = sum(n[i, :] << 33, axis=1) + max(n[i, :], axis=1)
        a[i] = argmax(n[i, :], axis=1) + max(u[i, :], axis=1)
        p[i, :] = cumsum(n[i, :] << 33, axis=1)

schedule slices for integers:
    send on sm(1), tile(i=16, k=32)
    gemm on sm, tile(i=32, j=32, k=32), split_k_tail 2
    h channel(i=16, k=32), buffers 1
"""
SIZES = {"M": 40, "N": 24, "K": 96}


def parts(text: str) -> tuple[Program, list[Schedule | None]]:
    module = tilelink.parse(text)
    program = module.program()
    return program, [None, *module.schedules_of(program)]


@thorough(unless=lambda number, ranks: (number, ranks) == (0, 3))
@pytest.mark.parametrize(("number", "ranks"), [(0, 1), (0, 3), (1, 4)])
@pytest.mark.parametrize("text", [FLOATS, INTEGERS], ids=["floats", "integers"])
def test_ranks_compute_what_is_meant_bit_by_bit(text: str, number: int, ranks: int) -> None:
    program, schedules = parts(text)
    kernel = compiler.compile(program, schedules[number], ranks=ranks, dims=SIZES, dtype="f32")
    given = random_inputs(program, ranks=ranks, dims=SIZES, dtype="f32", launches=1, seed=ranks)
    (found,), meant = kernel.run(given, seed=1, max_delay_s=0.0005).outputs, kernel.reference(given[0])
    for rank in range(ranks):
        for name, value in found[rank].items():
            expected = meant[rank][name]
            assert value.dtype == expected.dtype
            if name == "y" and value.is_floating_point():
                torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-3)
            elif value.element_size() == 1:
                assert torch.equal(value.view(torch.uint8), expected.view(torch.uint8)), name
            else:
                assert torch.equal(value, expected), name


CUT = """
program cut(M, N, K):
    x : in  [M, K]
    u : in  [M, K] u8
    d : in  [N, K] i8
    b : in  [N, K] f8e4m3
    y : out [M, N] i32
    z : out [M, N] f32
    compute f(i: M, j: N):
        y[i, j] = dot(i8(u[i, :] - 3), d[j, :].T)
    compute h(i: M, j: N):
        z[i, j] = dot(f8e4m3(x[i, :] + 2.0), b[j, :].T)
"""


def test_operands_that_are_computed_end_with_the_contracted_dimension() -> None:
    """A block of 64 reaches beyond 88, where a computed operand is 0."""
    program, _ = parts(CUT)
    dims = {"M": 24, "N": 24, "K": 88}
    kernel = compiler.compile(program, None, ranks=1, dims=dims, dtype="f32")
    given = random_inputs(program, ranks=1, dims=dims, dtype="f32", launches=1)
    found, meant = kernel.run(given).outputs[0][0], kernel.reference(given[0])[0]
    assert torch.equal(found["y"], meant["y"])
    torch.testing.assert_close(found["z"], meant["z"], rtol=1e-6, atol=1e-4)
    for name, kinds in (("sm_90", ("s8.s8", "e4m3.e4m3")), ("sm_89", ("s8.s8", "e4m3.e4m3"))):
        bound = bind(program, None, {**dims, "M": 64, "N": 64}, 2, target(name), "bf16")
        every = "".join(one.asm["ptx"] for one in compile_all(bound, emitted(bound)))
        assert all(kind in every for kind in kinds)


def test_the_values_of_8_bits_saturate() -> None:
    program, _ = parts(FLOATS)
    given = random_inputs(program, ranks=1, dims=SIZES, dtype="f32", launches=1)
    outputs = compiler.reference(program, given[0], dims=SIZES)[0]
    x = given[0][0]["x"]
    assert outputs["c"].float().max() == 448.0
    assert torch.equal(
        outputs["c"].view(torch.uint8), (x * 200).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    )


@pytest.mark.parametrize(("text", "name"), [(FLOATS, "sm_80"), (FLOATS, "gfx942")])
def test_a_processor_without_8_bit_floats_refuses_them(text: str, name: str) -> None:
    program, _ = parts(text)
    with pytest.raises(EmitError, match=f"w is f8e4m3, which {name} does not have") as raised:
        bind(program, None, SIZES, 2, target(name), "bf16")
    assert "bf16 and f16 hold all values of it; sm_89, sm_90 and CPU ranks have it" in str(raised.value)
    cast = "program p(M):\n    x : in [M]\n    y : out [M]\n    compute f(i: M):\n        y[i] = f32(f8e5m2(x[i]))\n"
    with pytest.raises(EmitError, match=f"{name} has no f8e5m2"):
        bind(tilelink.parse(cast).program(), None, {"M": 64}, 2, target(name), "bf16")


@pytest.mark.parametrize(
    ("text", "name", "instruction"),
    [
        (FLOATS, "sm_90", r"wgmma\S*\.f32\.e4m3\.e4m3"),
        (FLOATS, "sm_89", r"mma\.sync\S*\.f32\.e4m3\.e4m3"),
        (INTEGERS, "sm_90", r"wgmma\S*\.s32\.s8\.s8"),
        (INTEGERS, "sm_80", r"mma\.sync\S*\.s32\.s8\.s8"),
        (INTEGERS, "gfx942", r"v_mfma_i32\S*_i8"),
    ],
)
def test_products_are_those_of_tensor_cores(text: str, name: str, instruction: str) -> None:
    program, _ = parts(text)
    bound = bind(program, None, {"M": 256, "N": 128, "K": 512}, 2, target(name), "bf16")
    found = [one.asm["amdgcn" if name == "gfx942" else "ptx"] for one in compile_all(bound, emitted(bound))]
    assert any(re.search(instruction, one) for one in found)


@pytest.mark.parametrize("name", ["ag_gemm_f8_rows", "ag_gemm_f8_quantised", "ag_gemm_f8_blocks"])
def test_scales_come_with_the_notify_of_their_rows(name: str) -> None:
    """One wait is for both, and without it the rule of ordering names what is read too early."""
    text = str(compiler.load("ag_gemm_f8").program(name))
    sizes = {"Ms": 40, "N": 24, **({"K": 64} if not name.endswith("blocks") else {"KB": 2, "B": 32})}
    compiler.plan(tilelink.parse(text).program(name), None, ranks=3, dims=sizes)
    (bare,) = parse_text(re.sub(r" *consumer_tile_wait.*\n", "", text), lowered=True).programs  # as it is written
    with pytest.raises(VerificationError, match=r"(xs|scales)"):
        compiler.plan(bare, None, ranks=3, dims=sizes)
    late = re.sub(r"( *tile_push_data\(scales.*\n)( *producer_tile_notify.*\n)", r"\2\1", text)
    assert late != text
    with pytest.raises(VerificationError, match="scales"):
        compiler.plan(parse_text(late, lowered=True).programs[0], None, ranks=3, dims=sizes)


def test_parts_of_a_product_of_integers_are_integers() -> None:
    """Their sums are odd numbers beyond 2**24, of which an f32 holds none."""
    text = (
        "program split(M, N, K):\n    x : in [M, K] i8 from 125 to 127\n    w : in [N, K] i8 from 125 to 127\n"
        "    y : out [M, N] i32\n    compute gemm(i: M, j: N):\n        y[i, j] = dot(x[i, :], w[j, :].T)\n"
        "schedule tail for split:\n    gemm on sm, tile(i=32, j=32, k=256), split_k_tail 2\n"
    )
    program, schedules = parts(text)
    dims = {"M": 96, "N": 32, "K": 4096}
    kernel = compiler.compile(program, schedules[1], ranks=1, dims=dims, dtype="f32")
    assert "gemm_parts" in kernel.source
    given = random_inputs(program, ranks=1, dims=dims, dtype="f32", launches=1)
    found, meant = kernel.run(given).outputs[0][0]["y"], kernel.reference(given[0])[0]["y"]
    assert torch.equal(found, meant)
    assert bool((found > 2**24).all() and (found % 2 == 1).any())


def test_casts_of_floats_to_integers_saturate() -> None:
    """On CPU ranks and in the reference as processors convert to i32; a NaN is 0."""
    kinds = [(source, kind) for source in ("f32", "bf16", "f16") for kind in ("i32", "i64")]
    lines = ["program p(M = 14):", *(f"    x{source} : in [M] {source}" for source in ("f32", "bf16", "f16"))]
    lines += [f"    y{source}{kind} : out [M] {kind}" for source, kind in kinds]
    lines += ["    compute f(i: M):", *(f"        y{source}{kind}[i] = {kind}(x{source}[i])" for source, kind in kinds)]
    program = tilelink.parse("\n".join(lines) + "\n").program()
    nan, inf = float("nan"), float("inf")
    x = torch.tensor(
        [nan, inf, -inf, 3e9, -3e9, 2.0**31, 2.0**31 - 128, -(2.0**31), 2.0**63, -(2.0**63), 1e19, 0.9, -0.9, 7.5]
    )
    kernel = tilelink.compile(program, ranks=1, dims={"M": 14})
    given = [{"xf32": x, "xbf16": x.bfloat16(), "xf16": x.half()}]
    made, meant = kernel(given)[0], kernel.reference(given)[0]
    for source, kind in kinds:
        own = given[0][f"x{source}"].double().tolist()
        least, most = (-(2**31), 2**31 - 1) if kind == "i32" else (-(2**63), 2**63 - 1)
        expected = [
            0 if v != v else most if v == inf else least if v == -inf else min(max(int(v), least), most) for v in own
        ]
        assert made[f"y{source}{kind}"].tolist() == expected
        assert meant[f"y{source}{kind}"].tolist() == expected
