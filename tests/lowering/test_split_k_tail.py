"""The last wave of a kernel's tiles, divided among its programs: what is cut, what it becomes, and what cannot be."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import tilelink
from tilelink.errors import OrderingError, ParseError, ScheduleError, VerificationError
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.ir.program import Notify, Wait
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.halve_tail import HALVE_TAIL
from tilelink.lowering.clauses.roles import ROLES
from tilelink.lowering.clauses.split_k_tail import SPLIT_K_TAIL
from tilelink.lowering.events import WAIT, WRITE
from tilelink.planning.plan import Plan, make_plan
from tilelink.scheduling.schedule import Fused, Schedule, Sm
from tilelink.search import Space
from tilelink.search.knobs import Knob
from tilelink.target import CPU, Target, target
from tilelink.verifier import refusals, verify

TEXT = """\
schedule one for product:
    make on sm, tile(i=16, j=16, k=8){}
"""
PRODUCT = """\
program product(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute make(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)
"""


def holding(programs: int) -> Target:
    """A processor for kernels of so many programs."""
    return replace(CPU, grows=False, sms=programs, max_programs=None)


def product(tiles: int, programs: int, most: int = 32, k: int = 256, text: str = PRODUCT) -> Bound:
    """One product of so many tiles, of 16 columns each but for the last."""
    module = tilelink.parse(text + "\n" + TEXT.format(f", split_k_tail {most}" if most else ""))
    dims = {"M": 16, "N": 16 * tiles - 5, "K": k}
    return bind(module.programs[0], module.schedules[0].flatten("make"), dims, 1, holding(programs))


def totals(bound: Bound) -> dict[str, int]:
    return {stage.name: stage.total for stage in bound.stages.values()}


# What is cut -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tiles", "programs", "most", "parts"),
    [
        (13, 4, 32, {"make": 12, "make_parts": 4, "make_sums": 2}),  # one tile is left, of 16 rows
        (13, 4, 3, {"make": 12, "make_parts": 3, "make_sums": 2}),
        (14, 4, 32, {"make": 12, "make_parts": 4, "make_sums": 4}),
        (15, 4, 32, {"make": 15}),  # three of four programs have work: none is left to help
        (16, 4, 32, {"make": 16}),
        (13, 4, 1, {"make": 13}),
        (2, 8, 32, {"make": 0, "make_parts": 8, "make_sums": 4}),  # no wave is whole
    ],
)
def test_the_last_round_is_divided(tiles: int, programs: int, most: int, parts: dict[str, int]) -> None:
    bound = product(tiles, programs, most)
    assert totals(bound) == parts
    assert bound.kernels[0].programs == programs
    verify(make_plan(bound))


def test_without_it_nothing_is() -> None:
    assert totals(product(13, 4, 0)) == {"make": 13}


@pytest.mark.parametrize(("k", "parts"), [(64, 2), (63, 2), (56, 0), (72, 2), (96, 3)])
def test_parts_are_not_short(k: int, parts: int) -> None:
    """Four steps of eight elements at least; the last part may be shorter."""
    assert totals(product(13, 4, k=k)).get("make_parts", 0) == parts


def test_parts_are_steps_of_the_loop() -> None:
    """13 steps in up to 3 parts: 5, 5 and 3."""
    bound = product(13, 4, most=3, k=8 * 13)
    assert not bound.stages["make_parts"].flatten and not bound.stages["make_sums"].flatten
    assert bound.stages["make_parts"].tiles["inner"] == 5 * 8
    assert bound.tensors["make_split"].shape == (1, 3, 1, 16, 16)
    bound = product(13, 9, k=8 * 16)
    assert totals(bound)["make_parts"] == 4 * 2  # 4 tiles left, 9 programs


@pytest.mark.parametrize(("k", "parts"), [(8 * 256, 3 * 3), (8 * 48, 0)])
def test_parts_take_several_rounds_where_these_are_shorter(k: int, parts: int) -> None:
    """Three tiles on five programs: two waves of thirds, if those are long enough for what each part costs."""
    bound = product(13, 5, k=k)
    assert totals(bound).get("make_parts", 0) == parts
    verify(make_plan(bound))


def test_an_index_that_only_the_products_show_to_be_a_number_stays_one() -> None:
    text = PRODUCT.replace("M, N, K)", "H, M, N, K)").replace("in  [M, K]", "in  [H, M, K]")
    text = text.replace("out [M, N]", "out [H, M, N]").replace("(i: M", "(q: H, i: M")
    text = text.replace("y[i, j] = dot(x[i, :]", "y[q, i, j] = dot(x[q, i, :]")
    module = tilelink.parse(text + "\n" + TEXT.format(", split_k_tail 4"))
    dims = {"H": 3, "M": 16, "N": 11, "K": 64}
    bound = bind(module.programs[0], module.schedules[0], dims, 1, holding(2))
    assert totals(bound) == {"make": 2, "make_parts": 2, "make_sums": 2}
    typing = bound.typing
    for name in totals(bound):
        assert "q" in typing.stage(name).scalar_indices & bound.stages[name].scalar_indices
    verify(make_plan(bound))


def test_programs_with_a_tile_of_another_loop_do_that_one() -> None:
    """5 + 6 tiles on 8 programs: 3 are left, but of 5 + 1 on 16 all of both loops are in the first wave."""
    text = PRODUCT.replace("w : in  [N, K]\n", "w : in  [N, K]\n    z : out [M, N]\n")
    text += "\n    compute first(i: M, j: N):\n        z[i, j] = 2.0 * x[i, j]\n"
    text = text.replace("x : in  [M, K]", "x : in  [M, N]").replace("w : in  [N, K]", "w : in  [N, N]")
    text = text.replace("(M, N, K)", "(M, N)")
    lines = "    first in make prologue, tile(i=16, j={})\n"
    module = tilelink.parse(text + "\n" + TEXT.format(", split_k_tail 8").replace("k=8", "n=8") + lines.format(16))
    found = []
    for programs in (8, 16):
        bound = bind(module.programs[0], module.schedules[0], {"M": 16, "N": 96}, 1, holding(programs))
        verify(make_plan(bound))
        found.append((totals(bound), {loop.stages[0]: loop.first for loop in bound.kernels[0].loops}))
    left = {"make": 2, "first": 6, "make_parts": 4 * 2, "make_sums": 8}
    assert found[0] == (left, {"first": 0, "make": 6, "make_parts": 8, "make_sums": 16})
    assert found[1] == ({"make": 6, "first": 6}, {"first": 0, "make": 6})


# What it becomes ---------------------------------------------------------------------------------------------


@cache
def cases() -> tuple[Plan, ...]:
    return tuple(drawn(8))


def drawn(count: int) -> Iterator[Plan]:
    """Plans of the library's products with a tail, at sizes and tiles by chance."""
    chance = random.Random(7)
    own = [
        ("ag_gemm", "ag_gemm", "gemm"), ("ag_gemm", "ag_gemm_in_place", "gemm"),
        ("gemm_rs", "gemm_rs_local_last", "own"), ("gemm_rs", "gemm_rs_slots", "gemm"),
        ("ag_gemm_gated", "ag_gemm_gated", "gemm"),
        ("ag_gemm_epilogues", "ag_gemm_bias_silu", "gemm"), ("gemm_ar", "gemm_ar", "gemm"),
    ]  # fmt: skip
    while count:
        file, name, stage = chance.choice(own)
        program = tilelink.load(file).program(name)
        schedule = chance.choice([s for s in tilelink.load(file).schedules_of(program) if last(s, stage)])
        schedule = schedule.split_k_tail(stage, chance.choice((2, 3, 8)))
        schedule = schedule.tile(stage, i=chance.choice((16, 24)), j=chance.choice((16, 20)), k=chance.choice((8, 16)))
        dims = {p.name: chance.randint(*((64, 128) if p.name == "K" else (20, 64))) for p in program.params}
        processor = replace(CPU, grows=False, sms=20, max_programs=chance.randint(1, 9))
        bound = bind(program, schedule, dims, chance.randint(1, 4), processor)
        if any(name.endswith("_parts") for name in bound.stages):
            count -= 1
            yield make_plan(bound)


def last(schedule: Schedule, stage: str) -> bool:
    """Whether no other stage runs after the tiles of this one in its kernel, and its tail may be divided."""
    others = schedule.stage(stage)[HALVE_TAIL] or schedule.stage(stage)[ROLES] is not None
    return not others and not any(f"in {stage} epilogue" in str(part) for part in schedule.stages)


def test_what_it_becomes_is_safe() -> None:
    """Every output once, every part waited for, nobody waits for ever: all rules."""
    assert len(cases()) == 8
    for plan in cases():
        verify(plan)


def test_sums_that_do_not_wait_for_parts_are_refused() -> None:
    """What is proved of the parts is their order: with all waits for them last, no rule but that of ordering holds."""
    for plan in cases():
        s = plan.signals
        parts = [tensor.number for name, tensor in plan.bound.tensors.items() if name.endswith("_split")]
        late = (s.kind == WAIT) & np.isin(plan.channel_tensors[s.channel], parts)
        assert late.any()
        changed = replace(plan, signals=replace(s, position=np.where(late, 10**6, s.position)))
        assert {refused.rule for refused in refusals(changed)} == {"ordering"}


def test_the_last_round_has_one_part_for_a_program() -> None:
    for plan in cases():
        for name, stage in plan.bound.stages.items():
            if name.endswith("_parts"):
                first = plan.first_task[name]
                workers = plan.worker[first : first + stage.total]
                assert len(set(workers.tolist())) == stage.total


def test_tiles_are_written_where_they_were() -> None:
    """The same boxes of the output, but for rows that several programs add up."""
    whole, cut = (make_plan(product(13, 4, most)) for most in (0, 4))
    painted = []
    for plan in (whole, cut):
        page = np.zeros(plan.bound.tensors["y"].shape, int)
        rows = (plan.accesses.kind == WRITE) & (plan.accesses.tensor == plan.bound.tensors["y"].number)
        for lo, hi in zip(plan.accesses.lo[rows], plan.accesses.hi[rows], strict=True):
            page[lo[0] : hi[0], lo[1] : hi[1]] += 1
        painted.append(page)
    assert (painted[0] == painted[1]).all()


def without(bound: Bound, ending: str, kind: type[Wait] | type[Notify]) -> Plan:
    """The plan of a bound program whose stage of that name has lost its waits or notifies."""
    name = next(name for name in bound.stages if name.endswith(ending))
    old = bound.stages[name]
    body = tuple(s for s in old.stage.body if not isinstance(s, kind))
    return make_plan(
        replace(bound, stages={**bound.stages, name: replace(old, stage=replace(old.stage, body=body))})
    )  # fmt: skip


def test_nothing_of_it_is_trusted() -> None:
    """It is the verifier who says that the sums wait for what they add."""
    bound = product(13, 4)
    with pytest.raises(OrderingError):
        verify(without(bound, "_sums", Wait))
    with pytest.raises(VerificationError):
        verify(without(bound, "_parts", Notify))


def test_names_of_the_program_are_left_alone() -> None:
    text = PRODUCT.replace("x ", "make_split ").replace("x[", "make_split[").replace("j: N", "tail: N")
    text = text.replace("[j", "[tail").replace(", j]", ", tail]") + "\n" + TEXT.format(", split_k_tail 4")
    module = tilelink.parse(text.replace("j=16", "tail=16"))
    bound = bind(module.programs[0], module.schedules[0], {"M": 16, "N": 200, "K": 256}, 1, holding(4))
    assert "make_split_" in bound.tensors
    assert {"tail", "tail_", "tail_in"} <= set(bound.stages["make_parts"].tiles)


# What cannot be ----------------------------------------------------------------------------------------------

DOT = "dot(x[i, :], w[j, :].T)"
REFUSED = {
    "no product outside of loops": ["for (p: ranks):", f"    y[i, j] = {DOT}"],
    "in a loop or under a condition": [f"a = {DOT}", "if rank == 0:", f"    a = {DOT}", "y[i, j] = a"],
    "more than wait before": ["z[i, j] = 1.0", f"y[i, j] = {DOT}"],
    "not of two regions": ["y[i, j] = dot(silu(x[i, :]), w[j, :].T)"],
    "do not contract one `:`": [f"a = {DOT}", "y[i, j] = a + dot(u[i, :], v[j, :].T)"],
    "not the tile that its indices make": [f"a = {DOT}", "y[i, j] = a + dot(w[j, :], x[i, :].T).T"],
}


@pytest.mark.parametrize(("why", "body"), REFUSED.items(), ids=list(REFUSED))
def test_what_cannot_be_divided_says_why(why: str, body: list[str]) -> None:
    text = PRODUCT.replace(f"y[i, j] = {DOT}", "\n        ".join(body)).replace(
        "    y :", "    z : local [M, N]\n    u : in [M, N]\n    v : in [N, N]\n    y :"
    )
    module = tilelink.parse(text + "\n" + TEXT.format(", split_k_tail 4"))
    dims = {"M": 208, "N": 64, "K": 64}
    with pytest.raises(ScheduleError, match=f"the tail of make cannot be split: .*{why}") as refused:
        bind(module.programs[0], module.schedules[0], dims, 1, holding(4))
    assert refused.value.location is not None
    assert refused.value.location.line == text.count("\n") + 3
    assert refused.value.hint == "take `split_k_tail` away"


@pytest.mark.parametrize("value", ["dot(x[i, :], x[i, :].T)", "dot(x[i, :], v[:, i])"])
def test_a_tile_of_one_index_with_itself_is_not_divided(value: str) -> None:
    """Rows and columns have names of their own in what it would become."""
    text = PRODUCT.replace("(i: M, j: N)", "(i: M)").replace("y[i, j]", "y[i, i]").replace(DOT, value)
    text = text.replace("    y : out [M, N]", "    v : in [K, M]\n    y : out [M, M]")
    module = tilelink.parse(text + "\n" + TEXT.format(", split_k_tail 4").replace("j=16, ", ""))
    why = "its products are not the tile that its indices make"
    with pytest.raises(ScheduleError, match=f"the tail of make cannot be split: {why}"):
        bind(module.programs[0], module.schedules[0], {"M": 16, "N": 64, "K": 256}, 1, holding(4))


def test_only_the_last_tiles_of_a_kernel_are_left_over() -> None:
    module = tilelink.load("ag_gemm")
    program = module.program("ag_gemm_in_place")
    for stage, why in (("own", "its kernel executes other tiles"), ("gather", "no tiles of its own on SMs")):
        schedule = module.schedule("copy_engine", program).split_k_tail(stage, 2)
        with pytest.raises(ScheduleError, match=f"the tail of {stage} cannot be split: .*{why}"):
            bind(program, schedule, {"Ms": 64, "N": 64, "K": 64}, 2, CPU)


# Text and search ---------------------------------------------------------------------------------------------


def test_it_is_written_and_read() -> None:
    text = "schedule a for b:\n    gemm on sm, flatten, split_k_tail 8\n"
    assert str(parse_schedule(text)) == text
    assert parse_schedule(text) == Schedule(name="a", program="b").on("gemm", "sm").flatten("gemm").split_k_tail(
        "gemm", 8
    )
    assert parse_schedule(text).split_k_tail("gemm", None).stage("gemm")[SPLIT_K_TAIL] is None


@pytest.mark.parametrize(
    "wrong", ["split_k_tail", "split_k_tail 0", "split_k_tail -1", "split_k_tail 2, split_k_tail 3"]
)
def test_what_is_no_number_of_parts(wrong: str) -> None:
    with pytest.raises(ParseError):
        parse_schedule(f"schedule a for b:\n    gemm on sm, {wrong}\n")
    if wrong == "split_k_tail 0":
        with pytest.raises(ScheduleError, match="at least one part"):
            Schedule(name="a", program="b").split_k_tail("gemm", 0)


def test_the_search_tries_it_where_it_can() -> None:
    module = tilelink.load("gemm_rs")
    programs = [module.program(f"gemm_rs_{p}") for p in ("local_last", "ring")]
    space = Space.of(programs, dims={"Ms": 2048, "N": 4096, "K": 2752}, ranks=4, target=target("sm_90"))
    found = [next(knob for knob in knobs if knob.name.endswith("tail")) for knobs in space.knobs]
    assert [knob.name for knob in found] == ["products tail", "gemm tail"]
    assert [labels(found[0], start) for start in placed()] == [("own",), ("gemm", "own"), ("gemm",)]


def placed() -> list[Schedule]:
    """The own rows' product behind the others', in a kernel of its own, and before them."""
    empty = Schedule(name="a", program="gemm_rs_local_last")
    places = (Fused(stage="gemm"), Sm(), Fused(stage="gemm", place="prologue"))
    return [empty.on("own", place) for place in places]


def labels(knob: Knob, start: Schedule) -> tuple[str, ...]:
    """The stages whose tails its second choice splits; its first one splits none."""
    whole, parts = (change(start) for change in knob.changes)
    assert whole == start
    return tuple(name for name in ("gemm", "own") if parts.stage(name)[SPLIT_K_TAIL] == 32)


# What guards and what goes together --------------------------------------------------------------------------

GUARDED = """\
program guarded(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    h : symmetric [M, K]
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute make(i: M, j: N):
        {}
"""
FIRST = ["consumer_tile_wait(h[i, :])", "y[i, j] = dot(h[i, :], w[j, :].T)"]


@pytest.mark.parametrize(
    ("body", "waits"),
    [
        (FIRST, 1),
        ([FIRST[0], FIRST[1] + " + h[i, 0][:, None]"], 2),
        (["y[i, j] = dot(x[i, :], w[j, :].T)", FIRST[0]], 2),  # whatever it is for: it was not for the product
    ],
    ids=["for the product", "for more", "behind it"],
)
def test_a_wait_stays_where_it_guards_more_than_the_products(body: list[str], waits: int) -> None:
    text = (
        GUARDED.format("\n        ".join(body)) + "\n" + TEXT.format(", split_k_tail 4").replace("product", "guarded")
    )
    module = tilelink.parse(text + "    send on sm(1), tile(i=16)\n")
    bound = bind(module.programs[0], module.schedules[0], {"M": 16, "N": 80, "K": 128}, 2, holding(5))
    assert totals(bound)["make_parts"] == 4
    sums = bound.stages["make_sums"].stage
    assert sum(isinstance(s, Wait) for s in sums.body) == waits
    verify(make_plan(bound))


@pytest.mark.parametrize(
    ("value", "pieces"),
    [
        ("a + 1.0", 2), ("a + pos(i)[:, None]", 2), ("a + pos(j)[None, :]", 2),
        ("a - max(a, axis=0)[None, :]", 1), ("call f.g(a)", 1),
    ],
)  # fmt: skip
def test_what_needs_whole_columns_gets_them(value: str, pieces: int) -> None:
    body = f"a = {DOT}\n        y[i, j] = {value}"
    bound = product(13, 4, text=PRODUCT.replace(f"y[i, j] = {DOT}", body))
    assert totals(bound)["make_sums"] == pieces
