"""`roles` of a stage of which a launch decides where the rows of its tiles end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.lowered import parse_lowered
from tests.lowering.roles_interpreter import run_roles
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import RolesError, ScheduleError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.target import target
from tilelink.verifier import refusals, verify

TEXT = """program experts(T, N, K, E):
    starts : in  [E + 1] <= T offsets
    x      : in  [T[: starts[E]], K]
    w      : in  [E, N, K]
    bias   : in  [E, N]
    z      : in  [T[: starts[E]], N]
    y      : out [T[: starts[E]], N]

    compute product(e: E, r: T[starts[e] : starts[e + 1]], j: N):
        y[r, j] = silu(dot(x[r, :], w[e, j, :].T) + bias[e, j][None, :]) + z[r, j]

schedule one for experts:
    product on sm, tile(r=128, j=128, k=64), order({order}), roles(consumers=2, buffers=4)
"""
N_MAJOR = TEXT.replace("[E, N, K]", "[E, K, N]").replace("w[e, j, :].T", "w[e, :, j]")
"""Experts whose weights lie the other way round, as gradients of what experts take need them."""
SIZES = {"T": 384, "N": 256, "K": 64, "E": 3}


def bound(text: str = TEXT, *, order: str = "e, group(r, 2), j", on: Any = "sm_90", **sizes: int) -> Bound:
    module = compiler.parse(text.format(order=order), "experts.tl")
    dims = sizes or SIZES
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=dims, dtype="bf16", target=on)


def inputs(starts: list[int]) -> list[dict[str, torch.Tensor]]:
    """Return numbers for two ranks, with the same rows of each expert."""
    made = torch.Generator().manual_seed(3)
    T, N, K, E = SIZES.values()

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=made).to(torch.bfloat16)

    offsets = torch.tensor(starts, dtype=torch.int32)
    return [
        {
            "starts": offsets, "x": numbers(T, K), "w": numbers(E, N, K), "bias": numbers(E, N), "z": numbers(T, N),
        }
        for _ in range(2)
    ]  # fmt: skip


@pytest.mark.parametrize("given", [TEXT, N_MAJOR])
def test_a_launch_decides_which_rows_there_are(given: str) -> None:
    made = bound(given)
    stage = made.stages["product"]
    assert stage.roles is not None and stage.roles.cut and stage.roles.n_major == (given == N_MAJOR)
    compact = made.kernel_of["product"].loops[0].compact
    assert compact is not None and compact.segments == 3
    verify(make_plan(made))
    text = listing(made)
    assert "cut=1" in text
    again = parse_lowered(text)
    assert again.stages["product"].roles == stage.roles and listing(again) == text


@pytest.mark.parametrize(("order", "starts"), [
    ("e, group(r, 2), j", [0, 128, 256, 384]), ("e, group(r, 2), j", [0, 0, 0, 0]), ("e, j, r", [0, 1, 130, 384]),
    ("j, e, r", [0, 0, 384, 384]), ("e, r, j", [0, 100, 101, 301]),
])  # fmt: skip
def test_roles_compute_the_rows_of_a_launch(order: str, starts: list[int]) -> None:
    made = bound(order=order, on=replace(target("sm_90"), sms=6))
    verify(make_plan(made))
    given = inputs(starts)
    wanted = reference(made.source, given, made.numbers, dtype="bf16")
    found, _ = run_roles(made, given)
    for rank in range(2):
        assert torch.equal(found[rank]["y"][: starts[-1]], wanted[rank]["y"][: starts[-1]])


SCALED = """program scaled(T, N, E, P, B):
    starts : in    [E + 1] <= T offsets
    x      : in    [T[: starts[E]], P * B]
    s      : in    [P, T] f32
    w      : in    [E, N, P * B]
    v      : in    [E, P] f32
    u      : local [P, T] f32
    y      : out   [T[: starts[E]], N]

    compute scale(e: E, r: T[starts[e] : starts[e + 1]], p: P by 1):
        u[p, r] = s[p, r] * 2.0

    compute product(e: E, r: T[starts[e] : starts[e + 1]], j: N):
        total = zeros(f32)
        for (p: P by 1):
            part = dot(x[r, p * B : (p + 1) * B], w[e, j, p * B : (p + 1) * B].T)
            total += part * (u[p, r] * v[e, p])[:, None]
        y[r, j] = total

schedule one for scaled:
    scale on sm, tile(r=64)
    product on sm, tile(r=128, j=128, k=64), order(e, r, j), roles(consumers=2, buffers=4)
    u kernel_order
"""


def scaled(starts: list[int]) -> tuple[Bound, list[dict[str, torch.Tensor]]]:
    """Return a loop that scales products of rows that a launch cuts, by what a kernel before wrote, and inputs."""
    module = compiler.parse(SCALED, "scaled.tl")
    dims = {"T": 384, "N": 256, "E": 3, "P": 3, "B": 64}
    made = compiler.bound(
        module.program(), module.schedules[0], ranks=2, dims=dims, dtype="bf16", target=replace(target("sm_90"), sms=6)
    )
    given = torch.Generator().manual_seed(5)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randint(-2, 3, shape, generator=given).to(torch.bfloat16)

    offsets = torch.tensor(starts, dtype=torch.int32)
    inputs = [
        {
            "starts": offsets, "x": numbers(384, 192), "s": numbers(3, 384).float(), "w": numbers(3, 256, 192),
            "v": numbers(3, 3).float(),
        }
        for _ in range(2)
    ]  # fmt: skip
    return made, inputs


@pytest.mark.parametrize("starts", [[0, 0, 0, 0], [0, 1, 130, 384], [0, 100, 101, 301]])
def test_a_loop_scales_products_of_the_rows_of_a_launch(starts: list[int]) -> None:
    made, given = scaled(starts)
    verify(make_plan(made))
    wanted = reference(made.source, given, made.numbers, dtype="bf16")
    found, _ = run_roles(made, given)
    for rank in range(2):
        assert torch.allclose(
            found[rank]["y"][: starts[-1]].float(), wanted[rank]["y"][: starts[-1]].float(), rtol=2e-2, atol=2e-2
        )


def test_scales_that_kernels_before_have_written_are_loaded_an_iteration_ahead() -> None:
    """Those that a wait of the iteration is for are loaded in it: tests/lowering/test_roles_summed.py."""
    made, _ = scaled([0, 1, 130, 384])
    source = emit(made, make_plan(made).thresholds).text
    consumer = source[source.index("def _product_consumer") : source.index("def _product_storer")]
    assert consumer.index("gl.load(u") < consumer.index("roles.wait(full")


def test_roles_that_would_store_rows_that_are_not_there_are_refused() -> None:
    made = bound()
    stage = made.stages["product"]
    assert stage.roles is not None
    wrong = replace(stage, roles=replace(stage.roles, cut=False))
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "product": wrong})))
    assert isinstance(found, RolesError) and "do not store the rows of a tile that is cut" in found.message


NEVER_CUT = """program plain(M, N, K, E):
    n : in  [] < E
    x : in  [M, K]
    w : in  [E, N, K]
    y : out [M, N]

    compute product(i: M, j: N):
        y[i, j] = dot(x[i, :], w[n, j, :].T)

schedule one for plain:
    product on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=4)
"""


def test_a_launch_may_decide_what_is_multiplied() -> None:
    made = bound(NEVER_CUT, M=256, N=256, K=64, E=3)
    stage = made.stages["product"]
    assert stage.roles is not None and not stage.roles.cut
    verify(make_plan(made))
    given = [
        {"n": torch.tensor(2 - rank, dtype=torch.int32), "x": one["x"][:256], "w": one["w"]}
        for rank, one in enumerate(inputs([0, 0, 0, 0]))
    ]
    wanted = reference(made.source, given, made.numbers, dtype="bf16")
    found, _ = run_roles(made, given)
    assert all(torch.equal(found[rank]["y"], wanted[rank]["y"]) for rank in range(2))
    wrong = replace(stage, roles=replace(stage.roles, cut=True))
    (refused,) = refusals(make_plan(replace(made, stages={**made.stages, "product": wrong})))
    assert isinstance(refused, RolesError) and "of tiles that are cut, and none is" in refused.message


FRAME = """program other(M, N, K):
    m : in        [] <= M
    n : in        [] <= N
    at : in       [M] < M distinct
    x : in        [M, K]
    w : in        [N, K]
    h : symmetric [M, K]
    y : out       [M[: m], N[: n]]
    t : out       [M, K]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute seen(i: M):
        consumer_tile_wait(h[i, :])
        t[i, :] = h[i, :]

    compute product({domain}):
{body}

schedule one for other:
    product on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=4)
    seen on sm(1)
"""
REFUSED = {
    "columns": (
        "i: M, j: N[: n]", ["y[i, j] = dot(x[i, :], w[j, :].T)"],
        "only a launch decides where the columns of its tiles of y end",
    ),
    "a wait for places": (
        "i: M[m :], j: N", ["consumer_tile_wait(h[i, :])", "y[i, j] = dot(h[i, :], w[j, :].T)"],
        "only a launch decides for which channels its tiles wait",
    ),
    "rows that an index tensor lists": (
        "i: M[: m], j: N", ["y[i, j] = dot(x[at[i], :], w[j, :].T)"], "is not rows of whole dimensions",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_roles_cannot_have_of_a_launch_is_refused(case: str) -> None:
    domain, body, reason = REFUSED[case]
    lines = "".join(f"        {line}\n" for line in body)
    with pytest.raises(ScheduleError, match=f"product cannot have roles: .*{reason}"):
        bound(FRAME.replace("{domain}", domain).replace("{body}", lines), M=256, N=256, K=256)
