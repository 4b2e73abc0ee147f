"""`roles`: which stages may have them, how their work is divided, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.lowered import parse_lowered
from tests.lowering.roles_interpreter import run_roles
from tilelink import compiler
from tilelink.errors import ParseError, RolesError, ScheduleError
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.defer_notify import DEFER_NOTIFY
from tilelink.lowering.clauses.flatten import FLATTEN
from tilelink.lowering.clauses.halve_tail import HALVE_TAIL
from tilelink.lowering.clauses.roles import ROLES
from tilelink.lowering.clauses.split_k_tail import SPLIT_K_TAIL
from tilelink.lowering.listing import listing
from tilelink.lowering.rings import Roles
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs
from tilelink.scheduling.schedule import RolesChoice, Schedule
from tilelink.search.knobs import knobs
from tilelink.target import target
from tilelink.verifier import refusals, verify

HEAD = """program product(M, N, K):
    a : in        [M, K]
    b : in        [N, K]
    u : in        [2, K, N]
    h : symmetric [ranks, M, K]
    c : local     [M, N]
    y : out       [M, N]
    z : out       [ranks, M, K]
    t : out       [M, N]

    comm send(p: ranks, i: M):
        tile_push_data(h[rank, i, :] @ p, a[i, :])
        producer_tile_notify(h[rank, i, :] @ p)

    compute keep(p: ranks, i: M):
        consumer_tile_wait(h[p, i, :])
        z[p, i, :] = h[p, i, :]

    compute rest(i: M, j: N):
        consumer_tile_wait(c[i, j])
        t[i, j] = c[i, j]

    compute gemm(i: M, j: N):
{body}
schedule one for product:
    gemm {place}
    send on sm(4), tile(i=64)
    keep on sm(4), tile(i=64)
    rest {rest}
    {more}
"""
PLACE = "on sm, tile(i=128, j=256, k=64), num_warps 8, num_stages 3, roles(consumers=2, buffers=4)"
WAIT = "consumer_tile_wait(h[0, i, :])"
DOT = "dot(h[0, i, :], b[j, :].T)"
TELL = "producer_tile_notify(c[i, j])"
BODY = (WAIT, f"c[i, j] = {DOT}", TELL)


def bound(
    *body: str, place: str = PLACE, dtype: str = "bf16", on: str = "sm_90", ranks: int = 2, rest: str = "on sm(4)",
    M: int = 512, N: int = 512, K: int = 256, given: str = "", more: str = "",
) -> Bound:  # fmt: skip
    """The program with such a stage `gemm`. given: dtype of b."""
    lines = "".join(f"        {line}\n" for line in body or BODY)
    text = HEAD.replace("b : in        [N, K]", f"b : in        [N, K]{given}")
    text = text.replace("y : out       [M, N]\n    z", "z").format(body=lines, place=place, more=more, rest=rest)
    module = compiler.parse(text, "product.tl")
    sizes = {"M": M, "N": N, "K": K}
    return compiler.bound(module.program(), module.schedules[0], ranks=ranks, dims=sizes, dtype=dtype, target=on)


def roles(made: Bound) -> Roles:
    found = made.stages["gemm"].roles
    assert found is not None
    return found


def test_the_work_of_a_tile_is_divided() -> None:
    made = roles(bound())
    assert (made.consumers, made.rows, made.columns, made.block, made.pieces) == (2, 64, 256, 64, 4)
    assert (made.operands.buffers, made.results.buffers) == (4, 2)
    assert dict(made.operands.barriers) == {"full": 1, "empty": 2}
    assert [str(step) for step in made.operands.writer.steps] == [
        "await empty 1", "expect full 49152", "load left 16384", "load right 32768"
    ]  # fmt: skip
    assert [str(step) for step in made.operands.reader.steps] == [
        "await full 0", "multiply", "retire 1", "arrive empty 1"
    ]  # fmt: skip


def test_with_fewer_buffers_of_operands_there_is_room_for_all_results() -> None:
    assert roles(bound(place=PLACE.replace("buffers=4", "buffers=3"))).results.buffers == 4


@pytest.mark.parametrize("on", ["cpu", "sm_80", "gfx942"])
def test_other_processors_run_programs_without_roles(on: str) -> None:
    plain = PLACE.replace(", roles(consumers=2, buffers=4)", "").replace("i=128, j=256", "i=64, j=64")
    tiles = PLACE.replace("i=128, j=256", "i=64, j=64")
    made, without = bound(on=on, place=tiles), bound(on=on, place=plain)
    assert made.stages == without.stages and made.kernels == without.kernels
    assert made.stages["gemm"].roles is None
    with pytest.raises(ScheduleError, match="in this order"):  # on no processor
        bound(f"c[i, j] = {DOT}", WAIT, TELL, on=on, place=tiles)


POSSIBLE: dict[str, dict[str, Any]] = {
    "rows of 48 bytes more": {"K": 280},
    "columns that are cut at the end of the tensor": {"N": 328},
    "one product in flight": {"place": PLACE.replace("buffers=4", "buffers=4, in_flight=1")},
    "three consumers": {"place": PLACE.replace("i=128, j=256", "i=192, j=128").replace("=2,", "=3,"), "M": 768},
    "half of the columns": {"place": PLACE.replace("j=256", "j=128")},
    "more rows": {"place": PLACE.replace("i=128, j=256", "i=256, j=128").replace("buffers=4", "buffers=3")},
    "short blocks": {"place": PLACE.replace("k=64", "k=32")},
    "long blocks": {"place": PLACE.replace("k=64", "k=128").replace("buffers=4", "buffers=2")},
    "half precision": {"dtype": "f16"},
}


@pytest.mark.parametrize("case", POSSIBLE)
def test_tiles_that_roles_may_have(case: str) -> None:
    made = bound(**POSSIBLE[case])
    found = roles(made)
    stage = made.stages["gemm"]
    assert found.rows * found.consumers == stage.tiles["i"] and found.columns == stage.tiles["j"]
    verify(make_plan(made))
    text = listing(made)
    again = parse_lowered(text)
    assert again.stages["gemm"].roles == found and listing(again) == text


@pytest.mark.parametrize("statements", [
    (WAIT, f"acc = {DOT}", "c[i, j] = silu(acc * 0.5) + 1.0", TELL),
    (WAIT, f"c[i, j] = maximum({DOT}, 0.0)"),
    (WAIT, f"c[i, j] = gelu({DOT} + b[j, 0])", TELL),
    ("c[i, j] = dot(a[i, :], b[j, :].T)", TELL),
    (WAIT, WAIT, f"c[i, j] = {DOT}", TELL, "producer_tile_notify(c[i, j] @ (rank + 1))"),
])  # fmt: skip
def test_statements_that_roles_may_divide(statements: tuple[str, ...]) -> None:
    if "rank + 1" in statements[-1]:
        statements = statements[:-1]
    assert roles(bound(*statements, TELL) if TELL not in statements else bound(*statements)).consumers == 2


REFUSED: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "a wait in between": ((f"c[i, j] = {DOT}", WAIT, TELL), {}, "in this order"),
    "a loop": (("for (p: ranks):", f"    c[i, j] = {DOT}", TELL), {}, "do not compute, store and"),
    "a condition": (("if rank == 0:", f"    c[i, j] = {DOT}", "else:", "    c[i, j] = 0.0", TELL), {}, "do more than"),
    "no product": (
        ("c[i, j] = 1.0", TELL), {"place": PLACE.replace(", k=64", "")}, "no stage of its kernel multiplies"
    ),
    "three products": ((WAIT, f"c[i, j] = {DOT} + {DOT} * {DOT}", TELL), {}, "multiply 3 times, not once or twice"),
    "two products of two operands": (
        (WAIT, f"c[i, j] = {DOT} + dot(a[i, :], b[j, :].T)", TELL), {}, "not once or twice the same left operand"
    ),
    "two wide products": ((WAIT, f"c[i, j] = {DOT} * {DOT}", TELL), {}, "256 columns of a tile are no power of two"),
    "a tile that is written": ((WAIT, f"c[i, j] = {DOT} + c[i, j]", TELL), {}, "computes with c, which its own tiles"),
    "a vector that is written": ((WAIT, f"c[i, j] = {DOT} + c[0, j]", TELL), {}, "computes with c, which its own"),
    "a sum": ((WAIT, f"c[i, j] = {DOT} + sum(b[j, :], axis=1)", TELL), {}, "is not elementwise"),
    "a computed operand": ((WAIT, "c[i, j] = dot(exp(h[0, i, :]), b[j, :].T)", TELL), {}, "left operand"),
    "two products of rows": (
        (WAIT, f"c[i, j] = {DOT} + dot(h[0, i, :], u[0, :, j])", TELL), {"place": PLACE.replace("j=256", "j=128")},
        "it multiplies twice, and a right operand is N-major",
    ),
    "a cut block of rows": (
        (WAIT, "c[i, j] = dot(h[0, i, :], u[0, :, j])", TELL), {"K": 200}, "it is N-major, .* in whole blocks"
    ),
    "rows of a tile": ((), {"place": PLACE.replace("i=128", "i=64")}, "64 rows of a tile .* such as 128"),
    "columns of a tile": ((), {"place": PLACE.replace("j=256", "j=192")}, "192 columns of a tile are no power of two"),
    "many columns": ((), {"place": PLACE.replace("j=256", "j=512")}, "512 columns"),
    "a short block": ((), {"place": PLACE.replace("k=64", "k=16")}, "a block of 16 contracted elements"),
    "many values": ((), {"place": PLACE.replace("i=128", "i=256"), "M": 512}, "hold 256 values in each thread"),
    "many values of three": (
        (), {"place": PLACE.replace("i=128", "i=192").replace("=2,", "=3,"), "M": 768}, "128 values in each thread"
    ),
    "shared memory": ((), {"place": PLACE.replace("buffers=4", "buffers=5")}, "bytes of shared memory, and an SM has"),
    "odd rows": ((), {"K": 252}, "rows of h are not multiples of 16 bytes"),
    "long elements": ((), {"dtype": "f32", "place": PLACE.replace("j=256", "j=64")}, "not both bf16 or f16"),
    "two types": ((), {"given": " f16"}, "its operands are bf16 and f16"),
    "two pipelines": (
        ("c[i, j] = dot(a[i, :], b[j, :].T)", TELL), {"place": PLACE + ", flatten"}, "it has `flatten`"
    ),
    "a guest": ((), {"rest": "in gemm epilogue"}, "gemm and rest run in its kernel tile by tile"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_stage_that_cannot_have_roles_is_refused(case: str) -> None:
    body, options, reason = REFUSED[case]
    with pytest.raises(ScheduleError, match=f"gemm cannot .*{reason}") as caught:
        bound(*body, **options)
    place = caught.value.location
    assert place is not None and place.text is not None and place.text.strip().startswith("gemm ")


@pytest.mark.parametrize(("tile", "fitting"), [("j=256", 4), ("j=256, k=128", 2)])
def test_too_many_buffers_are_refused_with_how_many_fit(tile: str, fitting: int) -> None:
    place = PLACE.replace("j=256, k=64", tile)
    for buffers in range(fitting + 1, 7):
        with pytest.raises(ScheduleError, match=f"an SM has [0-9,]+ for a program: {fitting} buffers fit"):
            bound(place=place.replace("buffers=4", f"buffers={buffers}"))
    assert roles(bound(place=place.replace("buffers=4", f"buffers={fitting}"))).operands.buffers == fitting


def test_tiles_that_signal_another_node_cannot_have_roles() -> None:
    """A signal of the network is sent by a whole program, and the storer is one warp of it."""
    text = HEAD.replace("c : local ", "c : symmetric").replace("y : out       [M, N]\n    z", "z")
    far = "producer_tile_notify(c[i, j] @ (rank + 1))"
    lines = "".join(f"        {line}\n" for line in (WAIT, f"c[i, j] = {DOT}", far))
    module = compiler.parse(text.format(body=lines, place=PLACE, more="", rest="on sm(4)"), "product.tl")
    sizes: dict[str, Any] = {"M": 512, "N": 512, "K": 256}
    options: dict[str, Any] = {"ranks": 2, "dims": sizes, "dtype": "bf16", "target": "sm_90"}
    assert roles(compiler.bound(module.program(), module.schedules[0], **options)).consumers == 2
    with pytest.raises(ScheduleError, match="gemm cannot have roles: it sends to another node"):
        compiler.bound(module.program(), module.schedules[0], nodes=2, **options)


def test_a_result_that_is_cut_at_the_end_of_rows_is_refused_where_others_follow() -> None:
    """TMA would store the rows of a box that are beyond the end of a shard into the next one."""
    text = HEAD.replace("c : local     [M, N]", "c : local     [2, M, N]").replace("c[i, j]", "c[1, i, j]")
    text = text.replace("y : out       [M, N]\n    z", "z")
    lines = "".join(f"        {line}\n" for line in (WAIT, f"c[1, i, j] = {DOT}", "producer_tile_notify(c[1, i, j])"))
    module = compiler.parse(text.format(body=lines, place=PLACE, more="", rest="on sm(4)"), "product.tl")
    sizes = {"M": 500, "N": 512, "K": 256}
    with pytest.raises(ScheduleError, match="the end of i cuts a tile of c, and other rows follow it"):
        compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    assert roles(bound(M=500)).rows == 64  # nothing follows


def test_a_tile_loads_nothing_that_its_kernel_writes() -> None:
    text = """program square(M):
    x : in    [M, M]
    c : local [M, M]
    y : out   [M, M]

    compute gemm(i: M, j: M):
        c[i, j] = dot(c[i, :], x[j, :].T)

    compute keep(i: M, j: M):
        y[i, j] = c[i, j]

schedule one for square:
    gemm on sm, tile(i=128, j=128, m=64), roles(consumers=2, buffers=4)
"""
    module = compiler.parse(text, "square.tl")
    with pytest.raises(ScheduleError, match="multiplies c, which its own tiles write"):
        compiler.bound(module.program(), module.schedules[0], ranks=2, dims={"M": 512}, dtype="bf16", target="sm_90")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "rows": ({"rows": 32}, "compute 32 rows each, of 128"),
    "columns": ({"columns": 128}, "compute 128 columns, of 256"),
    "block": ({"block": 32}, "have 32 contracted elements, and a step 64"),
    "pieces": ({"pieces": 3}, "3 pieces of 256 columns"),
    "consumers": ({"consumers": 3}, "compute 64 rows each"),
    "registers": ({"registers": (240, 40)}, "its warps take 66560 registers"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_numbers_of_a_lowered_program_that_do_not_fit_are_refused(case: str) -> None:
    changes, reason = WRONG[case]
    made = bound()
    stage = made.stages["gemm"]
    wrong = replace(stage, roles=replace(roles(made), **changes))
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "gemm": wrong})))
    assert isinstance(found, RolesError) and reason in found.message


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("load left 16384", "load left 8192", "its loads are"),
    ("expect full 49152", "expect full 32768", "its loads are"),
    ("full 1, empty 2", "full 1, empty 1", "in the ring of operands"),
    ("consumer x2", "consumer x3", "2 consumers are not those of its rings"),
    ("; fence", "", "in the ring of results, a storer reads a buffer before it is loaded"),
    ("multiply; retire 1", "retire 1", "other steps or numbers than"),
    ("multiply; retire 1", "multiply; multiply; retire 1", "other steps or numbers than"),
    ("            loader: await", "            loader first: await empty 1; expect full 49152; load left 16384; "
     "load right 32768\n            loader: await", "other steps or numbers than"),
    ("consumer: await drained 1; fill", "consumer: await drained 1; await drained 1; fill", "other steps or"),
    ("operands: buffers 4", "operands: buffers 5", "bytes of shared memory"),
    ("operands: buffers 4", "operands: buffers 64", "a ring of 64 buffers"),
    ("results: buffers 2", "results: buffers 4", "4 buffers of results are not 2 to 2, which an SM has room for"),
    ("pieces=4, ", "pieces=4, n_major=1, ", "other steps or numbers than"),
    ("pieces=4", "pieces=1", "other steps or numbers than"),
    ("registers=232, other_registers=40", "registers=231, other_registers=39", "other steps or numbers than"),
])  # fmt: skip
def test_steps_of_a_lowered_program_are_checked_as_they_are_printed(old: str, new: str, reason: str) -> None:
    made = bound()
    text = listing(made)
    assert text.count(old) == 1
    again = parse_lowered(text.replace(old, new))
    wrong = replace(made.stages["gemm"], roles=again.stages["gemm"].roles)
    (found,) = refusals(make_plan(replace(made, stages={**made.stages, "gemm": wrong})))
    assert reason in found.message


@pytest.mark.parametrize(("old", "new", "message"), [
    ("retire 1; arrive empty 1", "retire; arrive empty 1", "not a step of a role: 'retire'"),
    ("multiply;", "multply;", "not a step of a role: 'multply'"),
    ("buffers 4, full", "full", "ring operands has no buffers"),
    ("pieces=4, ", "", "not the roles of a stage"),
    ("            storer: await staged 0; store; retire 1; arrive drained 1\n", "", "ring results has 1 roles"),
    ("ring results", "ring other", "not the roles of a stage"),
])  # fmt: skip
def test_a_text_that_is_no_ring_is_refused(old: str, new: str, message: str) -> None:
    text = listing(bound())
    assert old in text
    with pytest.raises(ParseError) as caught:
        parse_lowered(text.replace(old, new, 1))
    assert message in caught.value.message and caught.value.location is not None


def test_the_text_and_the_method_say_the_same() -> None:
    for choice in (RolesChoice(consumers=2, buffers=4), RolesChoice(consumers=3, buffers=2, in_flight=1)):
        text = f"schedule s for p:\n    a {choice}\n"
        made = Schedule(name="s", program="p").roles("a", choice)
        assert str(made) == text and parse_schedule(text) == made
        assert made.roles("a", None).stage("a")[ROLES] is None


@pytest.mark.parametrize(("clause", "message"), [
    ("roles(consumers=2)", "roles has no buffers"),
    ("roles(consumers=2, buffers=4, depth=1)", "roles has no 'depth'"),
    ("roles(consumers=2, buffers=4, buffers=4)", "roles has buffers twice"),
])  # fmt: skip
def test_a_clause_of_another_form_is_refused(clause: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message) as caught:
        parse_schedule(f"schedule s for p:\n    a {clause}\n")
    assert caught.value.location is not None and "in_flight=1" in str(caught.value.hint)


@pytest.mark.parametrize(("choice", "message"), [
    (RolesChoice(consumers=1, buffers=4), "1 consumers of a"),
    (RolesChoice(consumers=2, buffers=1), "1 buffers of a"),
    (RolesChoice(consumers=2, buffers=7), "7 buffers of a"),
    (RolesChoice(consumers=2, buffers=4, in_flight=3), "in_flight=3 of a"),
    ("many", "roles 'many' of a"),
])  # fmt: skip
def test_numbers_that_no_ring_has_are_refused(choice: Any, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        Schedule(name="s", program="p").say("a", ROLES, choice)


def test_a_product_that_waits_for_its_slices_may_have_roles() -> None:
    module = compiler.load("ag_gemm")
    program = module.program("ag_gemm")
    text = """schedule s for ag_gemm:
    gather on sm(8), tile(i=128, k=512), order(p = rank + 1 step +1)
    gemm on sm, tile(i=128, j=256, k=64), order(s = rank step -1), roles(consumers=2, buffers=4)
    xs channel(i=128, k=512)
"""
    schedule = compiler.parse(f"{program}\n{text}").schedules[0]
    sizes = {"Ms": 256, "N": 512, "K": 2048}
    made = compiler.bound(program, schedule, ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    assert made.stages["gemm"].slices and roles(made).consumers == 2
    verify(make_plan(made))


def test_the_search_tries_roles() -> None:
    module = compiler.load("gemm_rs")
    program = module.program("gemm_rs_scatter")
    found = knobs(program, {"Ms": 1024, "N": 4096, "K": 1376}, 8, target("sm_90"))
    knob = next(one for one in found if one.name == "gemm pipeline")
    assert knob.labels == ("tile by tile", "through all tiles", "by warps with roles")
    empty = Schedule(name="s", program=program.name)
    made = [change(empty.flatten("gemm")).stage("gemm") for change in knob.changes]
    assert [(one[FLATTEN], one[ROLES] is not None) for one in made] == [(False, False), (True, False), (False, True)]
    assert [one[HALVE_TAIL] for one in made] == [False, False, True]
    split = next(one for one in found if one.name == "gemm tail").changes[1]
    later = next(one for one in found if one.name == "gemm notified").changes[1]
    assert later(empty).stage("gemm")[DEFER_NOTIFY] and not later(knob.changes[2](empty)).stage("gemm")[DEFER_NOTIFY]
    both = split(knob.changes[2](empty)).stage("gemm")
    assert both[ROLES] is not None and both[SPLIT_K_TAIL] and not both[HALVE_TAIL]
    assert knob.changes[2](empty.split_k_tail("gemm", 4)).stage("gemm")[ROLES] is None
    for other in ("cpu", "sm_80"):
        few = knobs(program, {"Ms": 64, "N": 64, "K": 64}, 2, target(other))
        assert not any("roles" in label for one in few for label in one.labels)


def test_the_search_tries_roles_where_no_loop_can_be_flat() -> None:
    """A stage that waits and then notifies."""
    found = knobs(bound().source, {"M": 512, "N": 512, "K": 256}, 2, target("sm_90"))
    knob = next(one for one in found if one.name == "gemm pipeline")
    assert knob.labels == ("tile by tile", "by warps with roles")


RELAYED = """program relayed(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    h : symmetric [M, K]
    c : symmetric [M, N]
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute gemm(i: M, j: N):
        consumer_tile_wait(h[i, :])
        c[i, j] = relu(dot(h[i, :], w[j, :].T)) + 1.0
        producer_tile_notify(c[i, j])

    compute keep(i: M, j: N):
        consumer_tile_wait(c[i, j])
        y[i, j] = c[i, j] * 2.0

schedule one for relayed:
    send on sm(1), tile(i=128)
    gemm on sm, tile(i=128, j=128, k=64), order({order}), roles(consumers=2, buffers=4){more}
    keep on sm(1), tile(i=128, j=128)
"""


@pytest.mark.parametrize(("order", "more"), [("i, j", ""), ("group(i, 2)", ", halve_tail"), ("i = 2 step -1, j", "")])
def test_a_loader_that_runs_ahead_changes_no_result(order: str, more: str) -> None:
    """Roles keep the meaning of the lowered program, however far the loader is ahead of the storer."""
    module = compiler.parse(RELAYED.format(order=order, more=more))
    machine = replace(target("sm_90"), sms=6)
    sizes = {"M": 384, "N": 896, "K": 64}
    made = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target=machine)
    assert made.stages["gemm"].roles is not None and ("gemm_rest" in made.stages) is bool(more)
    verify(make_plan(made))
    (inputs,) = random_inputs(module.program(), ranks=2, dims=sizes, dtype="bf16", launches=1, seed=3)
    wanted = reference(module.program(), inputs, sizes, dtype="bf16")
    found, ahead = run_roles(made, inputs)
    assert all(torch.equal(found[rank]["y"], wanted[rank]["y"]) for rank in range(2))
    assert ahead > 1


@pytest.mark.parametrize(
    ("body", "options", "tiles"),
    [
        ((f"c[i, j] = {DOT}", WAIT, TELL), {}, False),  # not in this order
        ((WAIT, f"c[i, j] = {DOT} + {DOT} * {DOT}", TELL), {}, False),
        ((WAIT, f"c[i, j] = {DOT}", TELL), {"K": 252}, True),  # rows of no multiple of 16 bytes
        ((WAIT, f"c[i, j] = {DOT}", TELL), {"place": PLACE.replace("j=256", "j=96")}, True),
    ],
)
def test_a_refusal_says_the_form_and_its_tiles_where_sizes_are_the_cause(
    body: tuple[str, ...], options: dict[str, Any], tiles: bool
) -> None:
    with pytest.raises(ScheduleError) as caught:
        bound(*body, **options)
    hint = caught.value.hint or ""
    assert "it is taken for a product: change that" in hint and ("its tiles have i=128" in hint) is tiles
