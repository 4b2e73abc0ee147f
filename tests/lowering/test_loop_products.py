"""`roles` in loops that multiply more than twice: the gradients of attention, of the rows and of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.lowered import parse_lowered
from tests.lowering.roles_interpreter import run_roles
from tests.tiers import thorough
from tilelink import compiler
from tilelink.errors import RolesError, ScheduleError
from tilelink.lowering.bound import Bound
from tilelink.lowering.iterations import loop_of
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.target import target
from tilelink.verifier import refusals, verify

ROWS = """program gradients(H, G, N, B, D, scale: f32):
    q     : in        [H, G, N, B, D]
    do    : in        [H, G, N, B, D]
    lse   : in        [H, G, N, B] f32
    delta : in        [H, G, N, B] f32
    k     : in        [H, N, B, D]
    v     : in        [H, N, B, D]
    ks    : symmetric [ranks, H, N, B, D]
    vs    : symmetric [ranks, H, N, B, D]
    dq    : out       [H, G, N, B, D]

    comm gather(p: ranks, h: H by 1, n: N by 1):
        tile_push_data(ks[rank, h, n, :, :] @ p, k[h, n, :, :])
        tile_push_data(vs[rank, h, n, :, :] @ p, v[h, n, :, :])
        producer_tile_notify(ks[rank, h, n, :, :] @ p)
        producer_tile_notify(vs[rank, h, n, :, :] @ p)

    compute rows(h: H by 1, g: G by 1, n: N by 1, i: B):
        total = zeros(f32)
        for (s: ranks, t: N by 1, j: B):
            if s <= rank:
                consumer_tile_wait(ks[s, h, t, j, :])
                consumer_tile_wait(vs[s, h, t, j, :])
                scores = dot(q[h, g, n, i, :], ks[s, h, t, j, :].T)
                p = exp(scores * scale - lse[h, g, n, i][:, None])
                dp = dot(do[h, g, n, i, :], vs[s, h, t, j, :].T)
                ds = p * (dp - delta[h, g, n, i][:, None])
                total += dot(ds, ks[s, h, t, j, :])
        dq[h, g, n, i, :] = total * scale

schedule one for gradients:
    gather on sm(1)
    rows on sm, tile(i=128, j={block}), roles({roles})
"""
COLUMNS = """program gradients(H, G, N, B, D, scale: f32):
    q      : in        [H, G, N, B, D]
    do     : in        [H, G, N, B, D]
    lse    : in        [H, G, N, B] f32
    delta  : in        [H, G, N, B] f32
    k      : in        [H, N, B, D]
    v      : in        [H, N, B, D]
    qs     : symmetric [ranks, H, G, N, B, D]
    dos    : symmetric [ranks, H, G, N, B, D]
    lses   : symmetric [ranks, H, G, N, B] f32
    deltas : symmetric [ranks, H, G, N, B] f32
    dk     : out       [H, N, B, D]
    dv     : out       [H, N, B, D]

    comm gather(p: ranks, h: H by 1, g: G by 1, n: N by 1):
        tile_push_data(qs[rank, h, g, n, :, :] @ p, q[h, g, n, :, :])
        tile_push_data(dos[rank, h, g, n, :, :] @ p, do[h, g, n, :, :])
        tile_push_data(lses[rank, h, g, n, :] @ p, lse[h, g, n, :])
        tile_push_data(deltas[rank, h, g, n, :] @ p, delta[h, g, n, :])
        producer_tile_notify(qs[rank, h, g, n, :, :] @ p)
        producer_tile_notify(dos[rank, h, g, n, :, :] @ p)
        producer_tile_notify(lses[rank, h, g, n, :] @ p)
        producer_tile_notify(deltas[rank, h, g, n, :] @ p)

    compute columns(h: H by 1, n: N by 1, j: B):
        dkey = zeros(f32)
        dval = zeros(f32)
        for (s: ranks, g: G by 1, t: N by 1, i: B):
            consumer_tile_wait(qs[s, h, g, t, i, :])
            consumer_tile_wait(dos[s, h, g, t, i, :])
            consumer_tile_wait(lses[s, h, g, t, i])
            consumer_tile_wait(deltas[s, h, g, t, i])
            scores = dot(k[h, n, j, :], qs[s, h, g, t, i, :].T)
            p = exp(scores * scale - lses[s, h, g, t, i][None, :])
            dp = dot(v[h, n, j, :], dos[s, h, g, t, i, :].T)
            dval += dot(p, dos[s, h, g, t, i, :])
            ds = p * (dp - deltas[s, h, g, t, i][None, :])
            dkey += dot(ds, qs[s, h, g, t, i, :])
        dk[h, n, j, :] = dkey * scale
        dv[h, n, j, :] = dval

schedule one for gradients:
    gather on sm(1)
    columns on sm, tile(i={block}, j=128), roles({roles})
"""
EVERY = ROWS.replace("            if s <= rank:\n", "").replace("                ", "            ")
"""Without a condition around an iteration."""
CAUSAL = (
    COLUMNS.replace("(s: ranks, g: G by 1, t: N by 1, i: B):", "(t: N by 1, g: G by 1, i: B):\n            if t >= n:")
    .replace("[s, ", "[0, ").replace("            consumer", "                consumer")
    .replace("            scores = ", "                scores = ").replace("            dp = ", "                dp = ")
    .replace("            dval +=", "                dval +=").replace("            dkey +=", "                dkey +=")
    .replace("            ds =", "                ds =").replace(
        "            p = exp(scores * scale - lses[0, h, g, t, i][None, :])",
        "                seen = (pos(j) + n * B)[:, None] <= (pos(i) + t * B)[None, :]\n"
        "                p = where(seen, exp(scores * scale - lses[0, h, g, t, i][None, :]), 0.0)",
    )
)  # fmt: skip
"""The gradients of keys and values of rank 0's rows that see them."""
SENT = (
    COLUMNS.replace("dk     : out       [H, N, B, D]", "dks : out symmetric [ranks, H, N, B, D] f32")
    .replace("dv     : out       [H, N, B, D]", "dvs : out symmetric [ranks, H, N, B, D] f32")
    .replace("dk[h, n, j, :] = dkey * scale", "tile_push_data(dks[rank, h, n, j, :] @ to, dkey * scale)")
    .replace("dv[h, n, j, :] = dval", "tile_push_data(dvs[rank, h, n, j, :] @ to, dval)")
    .replace("compute columns(h", "compute columns(to: ranks, h")
)  # fmt: skip
"""Results at peers: each rank gets those of all."""
DKEY = "            dkey += dot(ds, qs[s, h, g, t, i, :])\n"
LATE = (
    COLUMNS.replace("            dval += dot(p, dos[s, h, g, t, i, :])\n", "")
    .replace(DKEY, DKEY + "            dval += dot(p, qs[s, h, g, t, i, :])\n")
)  # fmt: skip
"""A sum that is written after another one, and multiplied before it, of the same rows."""
TEXTS = {
    "rows": EVERY,
    "guarded_rows": ROWS,
    "columns": COLUMNS,
    "causal_columns": CAUSAL,
    "sent_columns": SENT,
    "late": LATE,
}
SIZES: dict[str, Any] = {"H": 1, "G": 2, "N": 2, "B": 128, "D": 64, "scale": 0.125}


def bound(
    name: str, roles: str = "consumers=2, buffers=4", block: int = 64, on: str = "sm_90", text: str = "", **sizes: Any
) -> Bound:
    module = compiler.parse((text or TEXTS[name]).format(roles=roles, block=block), "gradients.tl")
    machine = replace(target(on), sms=2)
    return compiler.bound(
        module.program(), module.schedules[0], ranks=2, dims={**SIZES, **sizes}, dtype="bf16", target=machine
    )


def inputs() -> tuple[list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """Return the inputs of two ranks, and the gradients of attention of all rows to all keys, by torch."""
    made = torch.Generator().manual_seed(5)
    H, G, N, B, D, scale = SIZES.values()

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=made).bfloat16()

    q, do = drawn(2, H, G, N, B, D), drawn(2, H, G, N, B, D)
    k, v = drawn(2, H, N, B, D), drawn(2, H, N, B, D)
    queries = q.float().movedim(0, 2).reshape(H, G, -1, D).requires_grad_()
    keys, values = (one.float().movedim(0, 1).reshape(H, 1, -1, D).requires_grad_() for one in (k, v))
    scores = queries @ keys.mT * scale
    result = scores.softmax(-1) @ values
    given = do.float().movedim(0, 2).reshape(result.shape)
    result.backward(given)
    lse, delta = scores.logsumexp(-1), (result * given).sum(-1)

    def of_rank(one: torch.Tensor | None, rank: int, heads: tuple[int, ...]) -> torch.Tensor:
        assert one is not None
        return one.detach().reshape(*heads, 2, N, B, *one.shape[3:]).select(len(heads), rank)

    every = [
        {
            "q": q[r],
            "do": do[r],
            "k": k[r],
            "v": v[r],
            "lse": of_rank(lse, r, (H, G)),
            "delta": of_rank(delta, r, (H, G)),
        }
        for r in range(2)
    ]
    wanted = [
        {"dq": of_rank(queries.grad, r, (H, G)), "dk": of_rank(keys.grad, r, (H,)), "dv": of_rank(values.grad, r, (H,))}
        for r in range(2)
    ]
    return every, wanted


def near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    return float((found.float() - wanted.float()).norm() / wanted.float().norm()) < 1e-2


ROLES = ["consumers=2, buffers=4", "consumers=2, buffers=2", "consumers=2, buffers=3, in_flight=1"]


@thorough(unless=lambda name, roles: name != "guarded_rows" and roles == ROLES[0])
@pytest.mark.parametrize("roles", ROLES)
@pytest.mark.parametrize("name", TEXTS)
def test_roles_compute_gradients_and_the_proof_accepts_them(name: str, roles: str) -> None:
    made = bound(name, roles)
    verify(make_plan(made))
    assert listing(parse_lowered(listing(made))) == listing(made)
    given, wanted = inputs()
    named = [{t.name: one[t.name] for t in made.source.tensors if t.space == "in"} for one in given]
    found, ahead = run_roles(made, named)
    by_program = reference(made.source, named, made.numbers, dtype="bf16")
    for rank in range(2):
        for result, tensor in found[rank].items():
            assert near(tensor, by_program[rank][result]), result
            assert name not in ("rows", "columns") or near(tensor, wanted[rank][result]), result
    assert ahead > 1


def test_a_streamed_operand_has_one_place_for_all_products_that_multiply_it() -> None:
    tile = loop_of(bound("columns").stages["columns"])
    assert [one.name for one in tile.products] == ["scores", "dp", "dval", "dkey"]
    assert [one.tensor for one in tile.kept] == ["k", "v"] and [one.tensor for one in tile.streamed] == ["qs", "dos"]
    assert tile.order.leading == (0, 1) and tile.order.trailing == ((1, 0), (0, 1))
    text = listing(bound("columns"))
    assert (
        "await full 0; multiply leading; await full 0 next; multiply leading1 next; retire 1; compute; carry; "
        "multiply trailing next; retire 1 next; compute 1; carry 1; multiply trailing1; retire 1 next; "
        "arrive empty 0 next; retire 0; arrive empty 0" in text
    )
    assert "load kept 16384; load kept1 16384" in text


def test_results_are_stored_at_peers_before_any_notify() -> None:
    printed, notify = listing(bound("sent_columns")), "producer_tile_notify(dks[rank, h, n, j, :] @ to"
    assert printed.index("(dvs[rank, h, n, j, :] @ to") < printed.index(notify)
    push = "        tile_push_data(dvs"
    text = SENT.replace(push, f"        consumer_tile_wait(lses[0, h, 0, 0, :])\n{push}")
    with pytest.raises(ScheduleError, match="after its loop its tiles do not compute, store and notify"):
        bound("sent_columns", text=text)


WRONG = [
    ("retire 1; compute;", "compute;", "computes with a product that is in flight"),
    ("retire 1 next; compute 1", "compute 1", "computes with a product that is in flight"),
    ("await full 0 next; ", "", "reads a buffer before it is loaded"),
    ("arrive empty 0 next; retire 0; arrive empty 0", "arrive empty 0 next; arrive empty 0; retire 0", "still reads"),
    ("retire 1 next; arrive empty 0 next; retire 0;", "arrive empty 0 next; retire 0;", "still reads"),
    ("compute; carry; multiply trailing next; ", "carry; multiply trailing next; compute; ", "in its order"),
    ("carry; multiply trailing next;", "carry; multiply trailing;", "in its order"),
    ("compute 1; carry 1;", "carry 1; compute 1;", "in its order"),
    ("multiply leading1 next;", "multiply leading next;", "in its order"),
    ("; load kept1 16384", "", "its loads are"),
    ("await vacant 1", "await vacant 0", "in the rings of operands and of what is kept"),
]


@pytest.mark.parametrize(("old", "new", "reason"), WRONG)
def test_a_mistake_in_its_steps_is_refused(old: str, new: str, reason: str) -> None:
    made = bound("columns")
    text = listing(made)
    assert old in text
    again = parse_lowered(text.replace(old, new, 1))
    wrong = replace(made.stages["columns"], roles=again.stages["columns"].roles)
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "columns": wrong})))
    assert isinstance(found, RolesError) and reason in found.message, found.message


REFUSED: dict[str, tuple[str, tuple[str, str], Mapping[str, Any], str]] = {
    "sums that are computed with": (
        "columns", ("dkey += dot(ds, ", "ds = ds * sum(dval, axis=1)[:, None]\n            dkey += dot(ds, "),
        {"block": 128}, "computes with dval",
    ),
    "a product that is no sum": (
        "columns", ("dkey += dot(ds, qs[s, h, g, t, i, :])", "dkey += dot(ds, qs[s, h, g, t, i, :]) * 2.0"), {},
        "neither names a product of regions nor adds a product to a name",
    ),
    "a name that is used before": (
        "columns", ("p = exp(scores", "dp = scores\n            p = exp(dp"), {"block": 128}, "uses dp before it mult",
    ),
    "results of two types": (
        "columns", ("dv     : out       [H, N, B, D]", "dv : out [H, N, B, D] f32"), {},
        "dv has other elements than dk",
    ),
    "many registers": ("columns", ("", ""), {"D": 128, "block": 128}, "hold 288 values in each thread, and 208 fit"),
    "few buffers": (
        "columns", ("dval += dot(p, dos[s, h, g, t, i, :])", "dval += dot(p, k[h, t, i, :])"),
        {"roles": "consumers=2, buffers=2"}, "3 operands in buffers at a time: take buffers=3",
    ),
    "shared memory": ("rows", ("", ""), {"D": 256}, "bytes of shared memory, and an SM has 232,448"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_loop_that_cannot_have_roles_is_refused(case: str) -> None:
    name, (old, new), options, reason = REFUSED[case]
    assert old in TEXTS[name]
    with pytest.raises(ScheduleError, match=f"{name} cannot .*({reason})"):
        bound(name, text=TEXTS[name].replace(old, new, 1), **options)
