"""Slices of fixed length from a computed place on, `x[i, q * D : (q + 1) * D]`: in both fronts, proved and run."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tests.lowered import parse_lowered
from tests.tiers import thorough
from tilelink import compiler
from tilelink.compiler import assembly
from tilelink.errors import TileLinkError
from tilelink.ir.program import Barrier, For
from tilelink.ir.scalar import Block
from tilelink.ir.visitor import stage_regions, statements
from tilelink.language import Dim, Index, consumer_tile_wait, producer_tile_notify, rank, ranks, tile_push_data
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.verifier import verify

EXCHANGE = """
program exchange(Ds = 20, M = 24, N = 12):
    x  : in        [M, ranks * Ds]
    w  : in        [N, ranks * Ds]
    xs : symmetric [M, ranks * Ds]
    y  : out       [M, ranks * Ds]
    z  : out       [M, N]
    s  : out       [M, 4]

    comm send(p: ranks, i: M):
        let sent = xs[i, rank * Ds : (rank + 1) * Ds] @ p
        tile_push_data(sent, x[i, p * Ds : Ds + p * Ds])
        producer_tile_notify(sent)

    compute take(q: ranks, i: M):
        consumer_tile_wait(xs[i, q * Ds : (q + 1) * Ds])
        y[i, q * Ds : (q + 1) * Ds] = xs[i, q * Ds : (q + 1) * Ds] * 2.0

    compute gemm(i: M, j: N):
        consumer_tile_wait(xs[i, :])
        acc = zeros(f32)
        for (q: ranks):
            acc += dot(xs[i, q * Ds : (q + 1) * Ds], w[j, q * Ds : (q + 1) * Ds].T)
        z[i, j] = acc

    compute ends(i: M):
        s[i, :] = x[i, :4] + x[i, ranks * Ds - 4 :] * 2.0

schedule fine for exchange:
    send tile(i=16, ds=8)
    take tile(i=8)
    gemm tile(i=16, j=16, ds=16)

schedule copied for exchange:
    send on copy_engine, tile(i=8)

schedule boxes for exchange:
    send on sm(2), tile(i=8), tma_copy 2
    xs channel(i=8)
"""
SIZES = {"Ds": 20, "M": 24, "N": 12}


@tilelink.program
def moves(Ds: Dim, M: Dim) -> None:
    x = tilelink.input(M, ranks * Ds)
    xs = tilelink.symmetric(M, ranks * Ds)
    y = tilelink.output(M, ranks * Ds)

    @tilelink.comm
    def send(p: Index = ranks, i: Index = M) -> None:
        tile_push_data(xs[i, rank * Ds : (rank + 1) * Ds] @ p, x[i, p * Ds : p * Ds + Ds])
        producer_tile_notify(xs[i, rank * Ds : (rank + 1) * Ds] @ p)

    @tilelink.compute
    def take(q: Index = ranks, i: Index = M) -> None:
        consumer_tile_wait(xs[i, q * Ds : (q + 1) * Ds])
        y[i, q * Ds : (q + 1) * Ds] = xs[i, q * Ds : (q + 1) * Ds]


def expected(every: list[dict[str, torch.Tensor]], here: int) -> dict[str, torch.Tensor]:
    size, own = SIZES["Ds"], every[here]
    xs = torch.cat([one["x"][:, here * size : (here + 1) * size] for one in every], 1)
    return {"y": xs * 2.0, "z": xs @ own["w"].T, "s": own["x"][:, :4] + own["x"][:, -4:] * 2.0}


@thorough(unless=lambda schedule, number: (schedule, number) in (("fine", 3), ("boxes", 4)))
@pytest.mark.parametrize(("schedule", "number", "nodes"), [
    (None, 1, 1), (None, 4, 2), ("fine", 3, 1), ("copied", 3, 1), ("boxes", 4, 2),
])  # fmt: skip
def test_slices_are_what_they_say(schedule: str | None, number: int, nodes: int) -> None:
    program = tilelink.parse(EXCHANGE).program()
    kernel = tilelink.compile(program, schedule, ranks=number, dims=SIZES, nodes=nodes)
    shapes = {"x": (SIZES["M"], number * SIZES["Ds"]), "w": (SIZES["N"], number * SIZES["Ds"])}
    launches = [[{name: torch.randn(shape) for name, shape in shapes.items()} for _ in range(number)] for _ in range(3)]
    run = kernel.run(launches, seed=number, max_delay_s=0.002)
    for inputs, outputs in zip(launches, run.outputs, strict=True):
        meant = compiler.reference(program, inputs, dims=SIZES)
        for one in range(number):
            for name, value in expected(inputs, one).items():
                assert torch.allclose(outputs[one][name], value, atol=1e-4), (name, one)
                assert torch.allclose(meant[one][name], value, atol=1e-4), (name, one)


def test_both_fronts_have_them_and_they_are_printed() -> None:
    texts = [str(tilelink.parse(EXCHANGE).program()), str(moves)]
    for text in texts:
        assert str(tilelink.parse(text).program()) == text
    assert "tile_push_data(xs[i, rank * Ds : rank * Ds + Ds] @ p, x[i, p * Ds : p * Ds + Ds])" in texts[1]
    blocks = [c for stage in moves.stages for region in stage_regions(stage) for c in region.coords]
    assert sum(isinstance(c, Block) for c in blocks) == 6
    tilelink.plan(moves, ranks=4, dims={"Ds": 5, "M": 7})


@pytest.mark.parametrize("schedule", [None, "fine", "boxes"])
def test_lowered_programs_are_read_back(schedule: str | None) -> None:
    program = tilelink.parse(EXCHANGE).program()
    bound = compiler.bound(program, compiler.schedule_of(program, schedule), ranks=3, dims=SIZES)
    again = parse_lowered(listing(bound))
    assert listing(again) == listing(bound)
    verify(make_plan(again))


@pytest.mark.parametrize(
    ("target", "multiplies"), [("sm_90", "wgmma.mma_async"), ("sm_80", "mma.sync"), ("gfx942", "")]
)
def test_kernels_compile_for_gpus_and_load_boxes(target: str, multiplies: str) -> None:
    text = assembly(
        tilelink.parse(EXCHANGE).program(), None, ranks=4, dims={"Ds": 128, "M": 128, "N": 128}, dtype="bf16",
        target=target,
    )  # fmt: skip
    assert multiplies in text
    assert (target != "sm_90") or "cp.async.bulk.tensor" in text


MISTAKES = [
    ("xs[i, q * Ds : (q + 1) * Ds])\n        y", "xs[i, 0 : Ds])\n        y", "nothing orders the two"),
    ("let sent = xs[i, rank * Ds :", "let sent = xs[i, q * Ds :", "unknown name 'q'"),
    ("y[i, q * Ds : (q + 1) * Ds] =", "y[i, q * Ds + 1 : (q + 1) * Ds + 1] =", r"y\[.*reaches outside y"),
    ("x[i, ranks * Ds - 4 :]", "x[i, ranks * Ds - 4 : ranks * Ds + 4 - 4 + 1]", "s has 5|axis :5|do not fit"),
    ("x[i, :4]", "x[i, 4:8] + x[i, 2 * ranks * Ds : 2 * ranks * Ds + 4]", "reaches outside x"),
    ("x[i, :4]", "x[i, i : 4]", "a slice of .* elements"),
    ("x[i, :4]", "x[i, 4 : 4]", "a slice of 0 elements"),
    ("x[i, :4]", "x[i, :4:2]", "did not expect"),
    ("y[i, q * Ds : (q + 1) * Ds] =", "y[i, 0 : Ds] =", "every tile of q writes the same elements of y"),
    ("q * Ds : (q + 1) * Ds] * 2.0", "q * Ds : (q + 1) * Ds][:, 0:4] * 2.0", "a slice of a value"),
]


@pytest.mark.parametrize(("old", "new", "said"), MISTAKES)
def test_mistakes_are_refused(old: str, new: str, said: str) -> None:
    assert old in EXCHANGE
    with pytest.raises(TileLinkError, match=said):
        tilelink.plan(tilelink.parse(EXCHANGE.replace(old, new)).program(), ranks=3, dims=SIZES)


PLACES = """
program places(M = 12, D = 6, P = 4):
    n : in        [] < P
    m : in        [M] < P
    x : in        [M, P * D]
    c : symmetric [M, P * D]
    y : out       [M, D]
    z : out       [M, D]

    comm fill(i: M, p: P by 1):
        tile_push_data(c[i, p * D : (p + 1) * D] @ (rank + 1), x[i, p * D : (p + 1) * D] + 1.0)
        producer_tile_notify(c[i, p * D : (p + 1) * D] @ (rank + 1))

    compute take(i: M):
        consumer_tile_wait(c[i, n * D : (n + 1) * D])
        y[i, :] = c[i, n * D : (n + 1) * D]

    compute each(i: M by 1):
        z[i, :] = x[i, m[i] * D : m[i] * D + D]
"""


def test_a_launch_may_decide_where_a_slice_begins() -> None:
    sizes = {"M": 12, "D": 6, "P": 4}
    kernel = tilelink.compile(tilelink.parse(PLACES).program(), ranks=2, dims=sizes)
    for _ in range(3):
        inputs = [
            {"n": torch.randint(0, 4, ()).int(), "m": torch.randint(0, 4, (12,)).int(), "x": torch.randn(12, 24)}
            for _ in range(2)
        ]
        for given, other, found in zip(inputs, inputs[::-1], kernel(inputs), strict=True):
            parts, sent = (one["x"].reshape(12, 4, 6) for one in (given, other))
            assert torch.equal(found["y"], sent[:, int(given["n"])] + 1.0)
            assert torch.equal(found["z"], parts[torch.arange(12), given["m"].long()])
    assembly(tilelink.parse(PLACES).program(), None, ranks=2, dims=sizes, target="sm_90")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("n : in        [] < P", "n : in        [] <= P", r"reaches outside c"),
        ("m : in        [M] < P", "m : in        [M] <= P", r"reaches outside x"),
        ("consumer_tile_wait(c[i, n * D :", "consumer_tile_wait(c[i, m[0] * D :", "nothing orders the two|elements"),
        ("        consumer_tile_wait(c[i, n * D : (n + 1) * D])\n", "", "nothing orders the two"),
        ("y[i, :] = c[i,", "y[i, n : n + D] = c[i,", "reaches outside y"),
        (
            "data(c[i, p * D : (p + 1) * D] @",
            "data(c[i, n * D : (n + 1) * D] @",
            "place that only a launch decides|written",
        ),
        ("x[i, m[i] * D : m[i] * D + D]", "x[i, m[0 : D]]", "a slice of m is no integer"),
    ],
)
def test_places_are_proved_for_every_launch(old: str, new: str, said: str) -> None:
    assert old in PLACES
    with pytest.raises(TileLinkError, match=said):
        tilelink.plan(tilelink.parse(PLACES.replace(old, new)).program(), ranks=2, dims={"M": 12, "D": 6, "P": 4})


OVERLAPPING = """
program overlapping(N = 8):
    x : in    [8, N]
    c : local [8, N]
    y : out   [4, N]

    compute f(j: N):
        c[0 : 8, j] = x[0 : 8, j]
        for (q: 4 by 1):
            v = c[q : q + 2, j]
            c[q + 1 : q + 3, j] = v + 1.0
            y[q, j] = sum(v, axis=0)
"""


def test_slices_of_iterations_overlap_though_they_begin_at_different_places() -> None:
    program = tilelink.parse(OVERLAPPING).program()
    x = torch.randn(8, 8)
    c, wanted = x.clone(), torch.zeros(4, 8)
    for q in range(4):
        v = c[q : q + 2].clone()
        c[q + 1 : q + 3], wanted[q] = v + 1.0, v.sum(0)
    assert torch.allclose(tilelink.compile(program, ranks=1, dims={"N": 8})([{"x": x}])[0]["y"], wanted)
    bound = compiler.bound(program, ranks=1, dims={"N": 8}, target="sm_90")
    loop = next(one for one in statements(bound.program.stages[0].body) if isinstance(one, For))
    assert any(isinstance(one, Barrier) for one in loop.body)
    verify(make_plan(bound))
