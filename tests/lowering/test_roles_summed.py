"""`roles` of products that a loop adds up: over ranks and blocks, as they are or scaled in each iteration."""

from __future__ import annotations

import re
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
from tilelink.lowering.rings import Roles
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs
from tilelink.target import target
from tilelink.verifier import refusals, verify

TEXT = """program summed(M, N, K, P, B):
    x  : in        [M, K]{type}
    w  : in        [ranks, N, K]{type}
    xl : in        [M, P * B]{type}
    wl : in        [P, N, B]{type}
    s  : in        [M] f32
    u  : symmetric [ranks, M] f32
    v  : in        [P, N] f32
    f  : in        [P] f32
    r  : in        [M, N]
    xs : symmetric [ranks, M, K]{type}
    y  : out       [M, N]

    comm gather(q: ranks, i: M):
        tile_push_data(xs[rank, i, :] @ q, x[i, :])
        tile_push_data(u[rank, i] @ q, s[i])
        producer_tile_notify(xs[rank, i, :] @ q)

    compute gemm(i: M, j: N):
        total = zeros(f32)
{body}
        y[i, j] = {value}

schedule one for summed:
    gather on sm(1), tile(i=64)
    gemm on sm, tile(i=128, j={j}, {inner}={k}), roles({roles})
"""
WAIT = "consumer_tile_wait(xs[q, i, :])"
DOT = "dot(xs[q, i, :], w[q, j, :].T)"
OVER_RANKS = ("for (q: ranks):", WAIT, f"total += {DOT}")
SCALED = ("for (q: ranks):", WAIT, f"part = {DOT}", "total += part * u[q, i][:, None]")
BLOCKS = (
    "for (p: P by 1):",
    "total += dot(xl[i, p * B : (p + 1) * B], wl[p, j, :].T) * v[p, j][None, :] * f[p] + s[i][:, None]",
)
PLAIN = ("for (p: P by 1):", "total += dot(xl[i, p * B : (p + 1) * B], wl[p, j, :].T)")
BOTH = ("for (p: P by 1, q: ranks):", WAIT, f"total += maximum({DOT}, 0.0) * v[p, j][None, :]")
F8 = {"type": " f8e4m3", "k": 128, "K": 128, "B": 128}


def bound(
    lines: tuple[str, ...] = OVER_RANKS, value: str = "total", type: str = "", j: int = 128, k: int = 64,
    roles: str = "consumers=2, buffers=3", sms: int = 3, dtype: str = "bf16", **sizes: Any,
) -> Bound:  # fmt: skip
    loop, *inner = lines
    body = "\n".join([f"        {loop}", *(f"            {one}" for one in inner)])
    inner = "k" if DOT in body else "b"
    text = TEXT.format(type=type, inner=inner, body=body, value=value, j=j, k=k, roles=roles)
    used = [
        line for line in text.splitlines()
        if not re.match(r"    (xl|wl|v|f|r) +:", line) or re.search(rf"\b{line.split()[0]}\[", body + value)
    ]  # fmt: skip
    module = compiler.parse("\n".join(used), "summed.tl")
    dims = {"M": 256, "N": 256, "K": 64, "P": 3, "B": 64} | sizes
    machine = replace(target("sm_90"), sms=sms)
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=dims, dtype=dtype, target=machine)


def roles_of(made: Bound) -> Roles:
    found = made.stages["gemm"].roles
    assert found is not None
    return found


CASES: dict[str, dict[str, Any]] = {
    "over ranks": {},
    "several steps of an iteration": {"K": 200, "value": "total + r[i, j]"},
    "scaled rows": {"lines": SCALED},
    "scaled blocks": {"lines": BLOCKS},
    "blocks": {"lines": PLAIN, "roles": "consumers=2, buffers=2, in_flight=1"},
    "two indices": {"lines": BOTH, "value": "maximum(total, 0.0)"},
    "8-bit floats": {"lines": BLOCKS, **F8},
    "8-bit floats as they are": {"lines": PLAIN, **F8},
}


@pytest.mark.parametrize("case", CASES)
def test_roles_keep_the_meaning_and_the_proof_accepts_them(case: str) -> None:
    made = bound(**CASES[case])
    verify(make_plan(made))
    assert listing(parse_lowered(listing(made))) == listing(made)
    (inputs,) = random_inputs(made.source, ranks=2, dims=made.numbers, dtype="bf16", launches=1, seed=3)
    wanted = reference(made.source, inputs, made.numbers, dtype="bf16")
    found, ahead = run_roles(made, inputs)
    for rank in range(2):
        assert torch.allclose(found[rank]["y"].float(), wanted[rank]["y"].float(), rtol=2e-2, atol=5e-2)
    assert ahead > 1


def test_products_as_they_are_add_up_in_tensor_cores_and_others_in_registers() -> None:
    assert [step.word for step in roles_of(bound()).operands.reader.steps] == ["await", "multiply", "retire", "arrive"]
    steps = [step.word for step in roles_of(bound(SCALED)).operands.reader.steps]
    assert steps == ["await", "multiply", "retire", "arrive", "sum"]


def test_scales_are_loaded_while_tensor_cores_multiply() -> None:
    made = bound(SCALED)
    source = emit(made, make_plan(made).thresholds).text
    consumer = source[source.index("def _gemm_consumer") : source.index("def _gemm_storer")]
    order = [
        consumer.index(text)
        for text in ("roles.wait(full", "roles.multiply(", "gl.load(u", "roles.retire(", "total_1 + ")
    ]
    assert order == sorted(order)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "many elements": ({"lines": SCALED, "K": 128}, "scales a product of 128 contracted elements, and a buffer hol"),
    "sums beside sums": ({"lines": SCALED, "j": 256}, "hold 256 values in each thread"),
    "a vector of other rows": (
        {"lines": (*SCALED[:3], "total += part * sum(r[i, :], axis=1)[:, None]")}, "not elementwise",
    ),
    "the sums themselves": ({"lines": (*SCALED[:3], "total += part * total")}, "not a region of its own rank"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_sum_that_cannot_have_roles_is_refused(case: str) -> None:
    options, reason = REFUSED[case]
    with pytest.raises(ScheduleError, match=f"gemm cannot .*{reason}"):
        bound(**options)


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("sums[q]", "sums[j]", "neither names a product of regions"),
    ("; sum", "", "consumers add up products"),
])  # fmt: skip
def test_a_lowered_program_that_does_not_add_up_is_refused(old: str, new: str, reason: str) -> None:
    made = bound(SCALED)
    text = listing(made)
    assert old in text
    again = parse_lowered(text.replace(old, new, 1))
    stage = replace(made.stages["gemm"], roles=again.stages["gemm"].roles, sums=again.stages["gemm"].sums)
    found = refusals(make_plan(replace(made, stages={**made.stages, "gemm": stage})))
    assert found and isinstance(found[0], RolesError) and reason in found[0].message, found[0].message


@pytest.mark.parametrize(("lines", "early"), [(SCALED, False), (BLOCKS, True)])
def test_the_pass_says_what_is_read_before_the_signals_of_an_iteration_and_the_rule_finds_it_again(
    lines: tuple[str, ...], early: bool
) -> None:
    made = bound(lines)
    assert ("reads_early=1" in listing(made)) is early
    source = emit(made, make_plan(made).thresholds).text
    assert ("following = tl.minimum(" in source) is early
    stage = made.stages["gemm"]
    for said, reason in ((early, ""), (True, "other steps or numbers than any kernel")):
        roles = replace(roles_of(made), reads_early=said)
        changed = replace(made, stages={**made.stages, "gemm": replace(stage, roles=roles)})
        found = [one.message for one in refusals(make_plan(changed))]
        assert bool(found) == (said is not early) and all(reason in message for message in found), found
