"""`roles` in loops that carry a state: what they become, how their work is divided, and what is refused."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.lowered import parse_lowered
from tests.lowering.roles_interpreter import run_roles
from tests.tiers import thorough
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import RolesError, ScheduleError
from tilelink.lowering import bound as bound_programs
from tilelink.lowering.bound import Bound
from tilelink.lowering.carried import carried
from tilelink.lowering.clauses.roles import ROLES
from tilelink.lowering.iterations import loop_of
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs
from tilelink.scheduling.schedule import RolesChoice, Schedule
from tilelink.search.knobs import knobs
from tilelink.target import target
from tilelink.verifier import refusals, verify

TEXT = """program loops(H, N, B, D, scale: f32):
    q  : in        [H, N, B, D]
    k  : in        [H, N, B, D]
    v  : in        [H, N, B, D]
    ks : symmetric [ranks, H, N, B, D]
    vs : symmetric [ranks, H, N, B, D]
    o  : {space} [H, N, B, D]
    y  : out       [H, N, B, D]
{rows}
    comm gather(p: ranks, h: H by 1, n: N by 1):
        tile_push_data(ks[rank, h, n, :, :] @ p, k[h, n, :, :])
        tile_push_data(vs[rank, h, n, :, :] @ p, v[h, n, :, :])
        producer_tile_notify(ks[rank, h, n, :, :] @ p)
        producer_tile_notify(vs[rank, h, n, :, :] @ p)
{sent}
    compute attn(h: H by 1, n: N by 1, i: B):
{body}
    compute keep(h: H by 1, n: N by 1, i: B):
        consumer_tile_wait(o[h, n, i, :])
        y[h, n, i, :] = o[h, n, i, :]

schedule one for loops:
    gather on sm(1)
    attn on sm, tile(i={i}, j={j}), roles({roles}){more}
    keep on sm(1), tile(i=128)
"""
WAITS = ("consumer_tile_wait(ks[s, h, t, j, :])", "consumer_tile_wait(vs[s, h, t, j, :])")
ATTEND = "state = attend(state, q[h, n, i, :], ks[s, h, t, j, :], vs[s, h, t, j, :], scale{mask})"
FOR = "for (s: ranks, t: N by 1, j: B):"
END = ("o[h, n, i, :] = finish(state)", "producer_tile_notify(o[h, n, i, :])")


def body(
    *iteration: str, begin: str = "state = online_softmax(f32)", loop: str = FOR, end: tuple[str, ...] = END
) -> str:
    lines = [begin, loop, *(f"    {line}" for line in iteration), *end]
    return "".join(f"        {line}\n" for line in lines)


SOFTMAX = body(*WAITS, ATTEND.format(mask=""))
GUARDED = body(
    "if t <= n:", *(f"    {line}" for line in WAITS),
    f"    {ATTEND.format(mask=', (pos(i) + n * B)[:, None] >= (pos(j) + t * B)[None, :]')}",
    loop=FOR.replace("ranks", "1"),
)  # fmt: skip
DIAGONAL = body(
    "if u <= n:", "    let t = n - u", *(f"    {line}" for line in WAITS),
    f"    {ATTEND.format(mask=', (pos(i) + n * B)[:, None] >= (pos(j) + t * B)[None, :]')}",
    loop=FOR.replace("ranks", "1").replace("t:", "u:"),
)  # fmt: skip
LINEAR = body(
    *WAITS, "scores = dot(q[h, n, i, :], ks[s, h, t, j, :].T) * scale",
    "state += dot(maximum(scores, 0.0), vs[s, h, t, j, :])", begin="state = zeros(f32)",
    end=("o[h, n, i, :] = state * 2.0", END[1]),
)  # fmt: skip
AGAIN = body(
    *WAITS, "s1 = dot(q[h, n, i, :], ks[s, h, t, j, :].T)", "half = s1 * 0.5", "s1 = maximum(s1, 0.0)",
    "state += dot(half + s1, vs[s, h, t, j, :])", begin="state = zeros(f32)",
    end=("o[h, n, i, :] = state * 2.0", END[1]),
)  # fmt: skip
"""A product that is changed after it has been used: what was computed with it keeps its value."""
DECAY = body(
    *WAITS, "s1 = dot(q[h, n, i, :], ks[s, h, t, j, :].T)", "total = total * 0.5 + sum(s1, axis=1)",
    "state += dot(s1, vs[s, h, t, j, :])", begin="state = zeros(f32)\n        total = zeros(f32)",
    end=("o[h, n, i, :] = state * total[:, None]", END[1]),
)  # fmt: skip
ROWS = body(
    WAITS[0], "s1 = dot(q[h, n, i, :], ks[s, h, t, j, :].T)", "total += sum(maximum(s1, 0.0), axis=1)", WAITS[1],
    "state += dot(s1, vs[s, h, t, j, :])", begin="state = zeros(f32)\n        total = zeros(f32)",
    end=("o[h, n, i, :] = state * 2.0", "logs = log(total + 1.0)", "sums[h, n, i] = logs", END[1]),
)  # fmt: skip
"""A number of each row is stored next to the tile, and after it; one of the waits is after a product."""
WAITS0 = tuple(one.replace("[s,", "[0,") for one in WAITS)
SEEN = ", (pos(j) + t * B)[None, :] <= row[:, None] and (pos(j) + t * B)[None, :] >= {begin}[:, None]"
PART = "for (t: N[first[n] : n + 1] by 1, j: B):"
DOCUMENTS = body(
    *WAITS0,
    ATTEND.format(mask=SEEN.format(begin="begin[n, i]")).replace("s, h", "0, h"),
    loop=PART,
    begin="row = pos(i) + n * B\n        state = online_softmax(f32)",
)
"""A launch decides which iterations there are, none of some tiles, and which elements are masked."""
ENDS = body(
    *WAITS0,
    "seen = (pos(j) + t * B)[None, :] >= since[:, None]",
    ATTEND.format(mask=", seen & ((pos(j) + t * B)[None, :] <= row[:, None])").replace("s, h", "0, h"),
    loop=PART,
    begin="row = pos(i) + n * B\n"
    "        since = max(where(ends[:][None, :] <= row[:, None], ends[:][None, :], 0), axis=1)\n"
    "        state = online_softmax(f32)",
)
"""Each row finds where its document begins among the ends of all."""
VECTORS = body(
    *WAITS, "s1 = dot(q[h, n, i, :], ks[s, h, t, j, :].T) * weight[h, n, i][:, None] + column[t, j][None, :]",
    "s1 = maximum(s1, bias[n, i, t, j])", "state += dot(s1 * weight[h, n, i][:, None], vs[s, h, t, j, :])",
    begin="state = zeros(f32)", end=("o[h, n, i, :] = state * weight[h, n, i][:, None]", END[1]),
)  # fmt: skip
SENT = body(
    "consumer_tile_wait(us[s, h, t, j])", *WAITS,
    "state += dot(dot(q[h, n, i, :], ks[s, h, t, j, :].T) * us[s, h, t, j][None, :], vs[s, h, t, j, :])",
    begin="state = zeros(f32)", end=("o[h, n, i, :] = state", END[1]),
)  # fmt: skip
"""Vectors of columns arrive."""
LESS = GUARDED.replace("t <= n", "t < n")
"""The first tiles have no iteration."""
ENTRY = body(
    "if t <= n and t >= first[n]:",
    "    state = attend(state, q[h, n, i, :], k[h, t, j, :], v[h, t, j, :], scale)",
    loop="for (t: N by 1, j: B):",
)
"""An entry leaves iterations out that wait for nothing."""
MORE = {
    "begin": "in [N, B] i32 from 0 to 300",
    "first": "in [N] < N",
    "ends": "in [70] i32 from 0 to 700",
    "weight": "in [H, N, B] f32",
    "column": "in [N, B] f32",
    "bias": "in [N, B, N, B]",
    "many": "in [N] <= B",
    "told": "local [1] < N",
    "us": "symmetric [ranks, H, N, B] f32",
}
"""Tensors of these bodies."""
PUSHED = """        tile_push_data(us[rank, h, n, :] @ p, weight[h, n, :])
        producer_tile_notify(us[rank, h, n, :] @ p)
"""
AFTER = LINEAR.replace("state += dot(", "c = 2.0\n            state += dot(").replace("state * 2.0", "state * c")
"""A name of an iteration that is read after the loop."""
SIZES = {"H": 1, "N": 6, "B": 128, "D": 64, "scale": 0.1}


def bound(
    text: str = SOFTMAX, i: int = 128, j: int = 128, roles: str = "consumers=2, buffers=4", space: str = "local    ",
    sms: int = 132, more: str = "", on: str = "sm_90", dtype: str = "bf16", rows: str = "out [H, N, B] f32",
    **sizes: Any,
) -> Bound:  # fmt: skip
    """rows: the space and the shape of `sums`, where a body stores numbers of rows."""
    stored = f"    sums : {rows}\n" if "sums[" in text else ""
    sent = PUSHED if " us[" in text else ""
    named = (name for name in MORE if re.search(rf"\b{name}\[", text + sent))
    stored += "".join(f"    {name} : {MORE[name]}\n" for name in named)
    whole = TEXT.format(body=text, i=i, j=j, roles=roles, space=space, more=more, rows=stored, sent=sent)
    module = compiler.parse(whole, "loops.tl")
    machine = replace(target(on), sms=sms)
    dims = {**SIZES, **sizes}
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=dims, dtype=dtype, target=machine)


@thorough(unless=lambda text, roles: "in_flight" not in roles or text == SOFTMAX)
@pytest.mark.parametrize(
    "text",
    [SOFTMAX, GUARDED, DIAGONAL, LINEAR, AGAIN, AFTER, ROWS, DOCUMENTS, ENDS, VECTORS, SENT, LESS, ENTRY],
    ids=[
        "softmax",
        "guarded",
        "diagonal",
        "linear",
        "again",
        "after",
        "rows",
        "documents",
        "ends",
        "vectors",
        "sent",
        "less",
        "entry",
    ],
)
@pytest.mark.parametrize("roles", ["consumers=2, buffers=4", "consumers=2, buffers=2, in_flight=1"])
def test_roles_keep_the_meaning_and_the_proof_accepts_them(text: str, roles: str) -> None:
    sizes = {**SIZES, "N": 3}
    made = bound(text, roles=roles, sms=4, N=3)
    verify(make_plan(made))
    assert listing(parse_lowered(listing(made))) == listing(made)
    program = made.source
    (inputs,) = random_inputs(program, ranks=2, dims=sizes, dtype="bf16", launches=1, seed=3)
    wanted = reference(program, inputs, sizes, dtype="bf16")
    found, ahead = run_roles(made, inputs)
    for rank in range(2):
        for name, one in wanted[rank].items():
            assert torch.allclose(found[rank][name].float(), one.float(), atol=2e-2)
    assert ahead > 1


def test_consumers_store_a_number_of_each_row_before_they_hand_the_tile_over() -> None:
    made = bound(ROWS)
    source = emit(made, make_plan(made).thresholds).text
    assert re.findall(r"store_rows\((.*)\)", source) == ["sums + n * B + rows, logs, mask=None"]
    assert "rows = PART * CONSUMER_ROWS + roles.rows(s1)" in source
    printed = listing(made)
    assert printed.index("sums[h, n, i] =") < printed.index("o[h, n, i, :] =")
    assert 0 < printed.index("wait(vs[") < printed.index("s1 = dot(")


@pytest.mark.parametrize("roles", ["consumers=2, buffers=4", "consumers=2, buffers=2, in_flight=1"])
def test_a_number_of_each_row_has_a_place_where_a_loop_had_no_iteration(roles: str) -> None:
    """Triton knows no name of what a loop or a branch computes after it."""
    made = bound(ROWS.replace(FOR, PART).replace("[s,", "[0,"), roles=roles)
    source = emit(made, make_plan(made).thresholds).text
    assert "rows = PART * CONSUMER_ROWS + roles.rows(like)" in source and "like = roles.filled(" in source


def test_a_number_that_a_sum_of_rows_is_multiplied_with_has_no_layout() -> None:
    made = bound(DECAY)
    source = emit(made, make_plan(made).thresholds).text
    assert "total * 0.5" in source and "roles.across(0.5" not in source


def test_what_names_begin_with_is_a_number() -> None:
    text = LINEAR.replace("state = zeros(f32)", "state = full(1.0, f32) - 1.0")
    with pytest.raises(ScheduleError, match="before its loop its tiles do more than"):
        bound(text)


def test_online_softmax_becomes_steps_and_products() -> None:
    made = bound()
    tile = loop_of(made.stages["attn"])
    assert "attend" not in str(made.program) and "online_softmax" not in str(made.program)
    assert [one.name for one in tile.compute] == [
        "state_new", "state_shift", "state_weights", "state_old", "state_total", "state_top"
    ]  # fmt: skip
    assert [one.name for one in tile.products] == ["scores", "state"]


def test_what_consumers_compute_takes_few_instructions_and_is_printed_so() -> None:
    text = listing(bound(GUARDED))
    steps = {line.split(" = ")[0].strip(): line.split(" = ")[1] for line in text.splitlines() if " = " in line}
    scale, log2e = bound().numbers["scale"], 1 / math.log(2)
    assert steps["state_new"] == f"maximum(state_top, max(masked, axis=1) * {scale})"
    assert steps["state_weights"] == f"exp2(masked * {log2e * scale} - (state_shift * {log2e})[:, None])"
    assert steps["state_old"] == f"exp2(state_top * {log2e} - state_shift * {log2e})"
    assert steps["o[h, n, i, :]"].startswith("state * (1.0 / where(state_total > 0.0")


def test_a_search_tries_roles_for_a_loop_that_carries_a_state() -> None:
    found = knobs(bound().source, SIZES, 2, target("sm_90"))
    knob = next(one for one in found if one.name == "attn pipeline")
    assert knob.labels == ("tile by tile", "by warps with roles")
    changed = knob.changes[1](Schedule(name="s", program="loops"))
    assert changed.stage("attn")[ROLES] == RolesChoice(consumers=2, buffers=4)
    assert not any(one.name == "attn pipeline" for one in knobs(bound().source, SIZES, 2, target("sm_80")))


def test_processors_without_groups_have_the_program_as_it_was_written() -> None:
    made = bound(i=64, j=64, on="sm_80")
    assert "attend" in str(made.program) and made.stages["attn"].roles is None


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a condition on another index": (GUARDED.replace("t <= n", "t <= s"), {}, "does not compare t alone"),
    "a part of another index": (
        LINEAR.replace("j: B)", "j: B[: many[n]])"), {}, "elements of j its loop has, which is not its first index",
    ),
    "a part that is told": (DOCUMENTS.replace("first[n]", "told[0]"), {}, "roles would read told at different times"),
    "a whole vector": (
        VECTORS.replace("bias[n, i, t, j]", "sum(bias[n, i, t, :], axis=1)[:, None]"), {}, "no vector along the rows",
    ),
    "a tile after the loop": (
        VECTORS.replace("state * weight[h, n, i][:, None]", "state * q[h, n, i, :]"), {}, "after its loop it computes",
    ),
    "a vector that its kernel writes": (VECTORS.replace("column[t, j]", "o[h, t, j, 0]"), {}, "its own tiles write"),
    "a whole vector before the loop": (
        VECTORS.replace("state = zeros(f32)", "state = zeros(f32)\n        more = sum(column[n, :], axis=0)")
        .replace("column[t, j][None, :]", "more"), {}, "no elementwise function or reduction of rows",
    ),
    "two loops": (body(*WAITS, ATTEND.format(mask="")).replace(
        "        o[h", f"        {FOR}\n            {ATTEND.format(mask='')}\n        o[h"), {}, "more loops than one"),
    "no second product": (
        body(*WAITS, "state += sum(dot(q[h, n, i, :], ks[s, h, t, j, :].T), axis=1)", begin="state = zeros(f32)",
             end=("o[h, n, i, :] = state[:, None] + q[h, n, i, :]", END[1])), {}, "does not multiply regions and then",
    ),
    "a third product": (
        body(*WAITS, ATTEND.format(mask=""), 
             end=("o[h, n, i, :] = finish(state) + sum(dot(q[h, n, i, :], q[h, 0, :, :].T), axis=1)[:, None]", END[1])),
        {}, "multiply after their loop",
    ),
    "rows of a tile": (SOFTMAX, {"i": 64}, "64 rows of a tile are not 2 times"),
    "an odd iteration": (SOFTMAX, {"j": 96, "B": 384, "i": 128}, "96 rows of an iteration are no power of two"),
    "a cut iteration": (SOFTMAX, {"B": 192, "i": 128}, "the end of j cuts a tile"),
    "many registers": (SOFTMAX, {"D": 256, "B": 256, "i": 128, "j": 128}, "hold 224 values in each thread"),
    "shared memory": (SOFTMAX, {"D": 256, "B": 256, "i": 128, "j": 64, "roles": "consumers=2, buffers=5"},
                      "bytes of shared memory, and an SM has"),
    "numbers of rows that others read": (
        ROWS.replace(END[1], f"producer_tile_notify(sums[h, n, i])\n        {END[1]}"), {"rows": "local [H, N, B] f32"},
        "store sums, which is no output",
    ),
    "numbers that are no rows": (ROWS.replace("sums[h, n, i] = logs", "sums[h, n, i, :] = state"),
                                 {"rows": "out [H, N, B, D] f32"}, "sums has other elements than o"),
    "numbers of rows that a stage reads": (
        ROWS + "\n    compute use(h: H by 1, n: N by 1, i: B):\n        consumer_tile_wait(o[h, n, i, :])\n"
        "        twice[h, n, i] = sums[h, n, i] * 2.0\n",
        {"rows": "out [H, N, B] f32\n    twice : out [H, N, B] f32"},
        "store sums and notify nobody, and a stage reads it",
    ),
    "a wait for what was read": (
        body(WAITS[0], ATTEND.format(mask=""), WAITS[1]), {}, "does more than to wait and then compute",
    ),
    "long elements": (SOFTMAX, {"dtype": "f32"}, "not all bf16 or f16"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_loop_that_cannot_have_roles_is_refused(case: str) -> None:
    text, options, reason = REFUSED[case]
    with pytest.raises(ScheduleError, match=f"attn cannot .*{reason}") as caught:
        bound(text, **options)
    assert caught.value.location is not None and caught.value.hint


@pytest.mark.parametrize(("change", "reason"), [
    ({"rows": 32}, "multiply 32 rows each, of 128"),
    ({"columns": 128}, "multiply 128 columns, of 64"),
    ({"block": 64}, "buffers have 64 rows, and an iteration 128"),
    ({"consumers": 3}, "multiply 64 rows each"),
    ({"kept": None}, "those of the other kind of tiles"),
])  # fmt: skip
def test_numbers_that_do_not_fit_are_refused(change: dict[str, Any], reason: str) -> None:
    made = bound()
    stage = made.stages["attn"]
    assert stage.roles is not None
    wrong = replace(stage, roles=replace(stage.roles, **change))
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "attn": wrong})))
    assert isinstance(found, RolesError) and reason in found.message


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("load kept 16384", "load kept 8192", "its loads are"),
    ("vacant 2", "vacant 1", "in the rings of operands and of what is kept"),
    ("retire 1; arrive empty 0", "retire 2; arrive empty 0", "in the rings of operands and of what is kept"),
    ("await empty 1 next; ", "", "in the rings of operands and of what is kept"),
    ("compute; retire 0 next", "retire 0 next", "does not multiply, compute"),
    ("multiply trailing next; ", "", "does not multiply, compute"),
    ("; fence", "", "in the ring of results"),
    ("await staged 0; store;", "await staged 0;", "other steps or numbers than any kernel"),
    ("vacant 2\n", "vacant 2\n            loader first: await vacant 1; expect ready 16384; load kept 16384\n",
     "other steps or numbers than any kernel"),
])  # fmt: skip
def test_steps_of_a_lowered_program_are_checked_as_they_are_printed(old: str, new: str, reason: str) -> None:
    made = bound()
    text = listing(made)
    assert old in text
    again = parse_lowered(text.replace(old, new, 1))
    wrong = replace(made.stages["attn"], roles=again.stages["attn"].roles)
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "attn": wrong})))
    assert reason in found.message, found.message


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("first always; further never", "first never; further never", "no proof says that masked needs no other mask"),
    ("first always; further never", "first if n < 0; further never", "no proof says that masked needs no other mask"),
    ("        mask 0: first always; further never\n", "", "masks are not those of its choices by positions"),
    ("row_sums[state_total]", "row_sums[state_new]", "state_new does more than to sum up rows"),
    ("further never", "further always", ""),
    (", row_sums[state_total]", "", ""),
])  # fmt: skip
def test_consumers_leave_out_what_is_proved_to_be_needless(old: str, new: str, reason: str) -> None:
    made = bound(DIAGONAL)
    text = listing(made)
    assert old in text
    again = parse_lowered(text.replace(old, new, 1))
    wrong = replace(made, stages={**made.stages, "attn": again.stages["attn"]})
    found = [one.message for one in refusals(make_plan(wrong))]
    assert len(found) == bool(reason) and all(reason in message for message in found), found


def test_emitted_masks_and_sums_are_those_that_are_printed() -> None:
    text = listing(bound(DIAGONAL)).replace("further never", "further if n < 1").replace(", row_sums[state_total]", "")
    made = parse_lowered(text)
    assert listing(made) == text
    source = emit(made, make_plan(made).thresholds).text
    assert "            if n < 1:\n                masked = " in source
    assert "roles.row_sum(state_weights)" in source and "whole_sums" not in source


def test_stages_without_iterations_have_no_masks() -> None:
    made = bound(DIAGONAL)
    wrong = replace(made.stages["keep"], masks=made.stages["attn"].masks)
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "keep": wrong})))
    assert "keep has masks or sums of rows" in found.message


def test_roles_need_not_have_room_for_two_products_in_flight() -> None:
    one: dict[str, Any] = {"i": 192, "B": 384, "N": 2, "D": 128}
    made = bound(roles="consumers=3, buffers=4, in_flight=1", **one)
    verify(make_plan(made))
    with pytest.raises(ScheduleError, match="hold 160 values in each thread, and 136 fit"):
        bound(roles="consumers=3, buffers=4", **one)


CHANNELS = "\n    ks channel(n=2)\n    vs channel(n=3)"


@pytest.mark.parametrize(("more", "awaited"), [
    ("", []),
    (CHANNELS, ["ks", "vs"]),
    ("\n    ks channel(n=6, b=128)", ["ks"]),
    ("\n    ks channel(s=1, n=2)", ["ks"]),
])  # fmt: skip
def test_iterations_wait_where_channels_begin(more: str, awaited: list[str]) -> None:
    made = bound(more=more)
    plan = make_plan(made)
    verify(plan)
    assert ("skips_repeated_waits=1" in listing(made)) == bool(awaited)
    assert listing(parse_lowered(listing(made))) == listing(made)
    assert sorted(re.findall(r"(\w+)_awaited = -1", emit(made, plan.thresholds).text)) == awaited


def test_iterations_wait_once_for_what_none_of_them_loads() -> None:
    """The gradients of some keys wait for these, in a loop over the rows that see them."""
    module = compiler.load("ag_attention_gradients")
    sizes = {"H": 2, "G": 2, "M": 512, "D": 64, "scale": 0.125}
    made = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    source = emit(made, make_plan(made).thresholds).text
    columns = source[source.index("def _columns_loader") : source.index("def _columns_consumer")]
    assert re.findall(r"(\w+)_awaited = -1", columns) == ["ks", "vs"]


@pytest.mark.parametrize(
    ("case", "tiles"), [("many registers", True), ("shared memory", True), ("long elements", False)]
)
def test_a_refusal_says_what_a_stage_is_taken_for_and_its_tiles_where_sizes_are_the_cause(
    case: str, tiles: bool
) -> None:
    text, options, _ = REFUSED[case]
    with pytest.raises(ScheduleError) as caught:
        bound(text, **options)
    hint = caught.value.hint or ""
    assert "it is taken for a loop that carries a state" in hint
    assert ("its tiles have i=" in hint) is tiles


def test_a_loop_is_taken_apart_once_for_each_form_of_its_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is unfolded, with its roles, rings and masks, and after the passes: proof and emission ask the last one."""
    asked: list[object] = []
    monkeypatch.setattr(bound_programs, "carried", lambda body: asked.append(body) or carried(body))  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    made = bound(GUARDED)
    plan = make_plan(made)
    verify(plan)
    emit(made, plan.thresholds)
    assert len(asked) <= 4
