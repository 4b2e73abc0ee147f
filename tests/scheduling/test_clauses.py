"""A clause defined here is parsed, printed, refused, applied and searched like the clauses of the package."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tilelink
from tilelink import search
from tilelink.errors import ParseError, ScheduleError
from tilelink.frontend.parser import parse_text
from tilelink.ir.program import Program, Stage, Tensor
from tilelink.ir.scalar import binary, const, substitute
from tilelink.ir.typing import StageTyping, Typing
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses import (
    CLAUSES,
    Choices,
    Clause,
    Known,
    TensorChoices,
    Ties,
    clauses,
    count,
    forget,
    register,
    switch,
)
from tilelink.lowering.clauses.clause import Numbers, without
from tilelink.lowering.clauses.dynamic import DYNAMIC
from tilelink.lowering.clauses.manual import table
from tilelink.lowering.clauses.roles import ROLES
from tilelink.lowering.orders import TILE
from tilelink.scheduling.schedule import Schedule
from tilelink.scheduling.words import SchedulePart, word_called
from tilelink.target import CPU, H200

TEXT = """program scaled(M, N):
    x : in  [M, N]
    h : symmetric [M, N]
    y : out [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute scale(i: M, j: N):
        consumer_tile_wait(h[i, :])
        y[i, j] = h[i, j] * 2.0

schedule turned for scaled:
    send tile(i=4)
    scale tile(i=4, j=4), backwards
"""


def run_page(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run `check` by a module with a clause of its own, as the page of the language has it."""
    (folder / "mine.py").write_text(code)
    (folder / "turned.tl").write_text(TEXT)
    command = [sys.executable, "mine.py", "check", "turned.tl", "--set", "M=24", "--set", "N=8"]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=folder)


def test_the_clause_of_the_page_is_known_to_commands_and_proved(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "lowered.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    done = run_page(tmp_path, code)
    assert done.returncode == 0 and "turned (" in done.stdout, done.stderr
    wrong = code.replace('binary("-", last, number)', "last")
    assert wrong != code
    done = run_page(tmp_path, wrong)
    assert done.returncode == 1 and "seen in: scaled with turned" in done.stderr, done.stdout


def _check(program: Program, part: SchedulePart) -> None:
    if program.stage(part.name).kind == "comm":
        message = f"{part.name} only moves data, in whatever order"
        raise ScheduleError(message, location=part.at("backwards"), hint="take `backwards` away")


def _apply(bound: Bound) -> Bound:
    stages = dict(bound.stages)
    for name, stage in stages.items():
        if bound.schedule.stage(name)[BACKWARDS]:
            last = {TILE.name: binary("-", const(stage.total - 1), TILE)}
            order = {index: substitute(expr, last) for index, expr in stage.order.items()}
            stages[name] = replace(stage, order=order)
    return replace(bound, stages=stages)


def _reason(stage: Stage, _: StageTyping) -> str | None:
    return "it only moves data" if stage.kind == "comm" else None


BACKWARDS = switch(
    "backwards",
    manual="the tiles of a stage from the last one to the first",
    check=_check,
    apply=_apply,
    choices=Choices(name="direction", labels={"forwards": False, "backwards": True}, reason=_reason),
)


@pytest.fixture(autouse=True)
def backwards() -> Iterator[None]:
    register(BACKWARDS)
    yield
    forget(BACKWARDS)


def module() -> tuple[Program, Schedule]:
    found = parse_text(TEXT, "scaled.tl")
    return found.programs[0], found.schedules[0]


def test_it_is_parsed_and_printed() -> None:
    _, schedule = module()
    assert schedule.stage("scale")[BACKWARDS] and not schedule.stage("send")[BACKWARDS]
    assert "    scale tile(i=4, j=4), backwards\n" in str(schedule)
    assert parse_text(TEXT.split("schedule")[0] + str(schedule)).schedules[0] == schedule
    assert schedule.say("scale", BACKWARDS, False).stage("scale") == part_of("tile(i=4, j=4)")


def part_of(text: str) -> SchedulePart:
    program = TEXT.split("schedule")[0]
    return parse_text(f"{program}schedule s for scaled:\n    scale {text}\n").schedules[0].stage("scale")


def test_it_is_suggested_for_a_similar_word_and_listed_in_the_hint() -> None:
    with pytest.raises(ParseError, match="unknown 'backward'") as caught:
        parse_text(TEXT.replace(", backwards", ", backward"))
    assert str(caught.value.hint).startswith("did you mean backwards? NAME followed by: on sm")
    said = str(caught.value.hint)
    assert "tma_copy n, roles(..), program_per_tile, dynamic, backwards; or for a tensor channel(..)" in said


def test_it_is_refused_at_its_location() -> None:
    found = parse_text(TEXT.replace("send tile(i=4)", "send tile(i=4), backwards"), "scaled.tl")
    with pytest.raises(ScheduleError, match="send only moves data") as caught:
        bind(found.programs[0], found.schedules[0], {"M": 8, "N": 8}, 2, CPU)
    place = caught.value.location
    assert place is not None and (place.line, place.column, place.length) == (15, 21, len("backwards"))
    with pytest.raises(ScheduleError, match="send only moves data") as caught:
        tilelink.schedule(found.programs[0]).say("send", BACKWARDS, True)
    assert caught.value.location is not None and caught.value.location.file == __file__


def test_it_is_applied_and_changes_no_result() -> None:
    program, schedule = module()
    stage = bind(program, schedule, {"M": 8, "N": 8}, 2, CPU).stages["scale"]
    plain = bind(program, schedule.say("scale", BACKWARDS, False), {"M": 8, "N": 8}, 2, CPU).stages["scale"]
    assert [str(stage.order[index]) for index in "ij"] != [str(plain.order[index]) for index in "ij"]
    kernel = tilelink.compile(program, schedule, ranks=2, dims={"M": 8, "N": 8})
    x = [torch.randn(8, 8) for _ in range(2)]
    out = kernel([{"x": one} for one in x])
    assert all(torch.equal(out[rank]["y"], x[1 - rank] * 2.0) for rank in range(2))


def test_it_is_searched() -> None:
    program, schedule = module()
    space = search.Space.of([program], dims={"M": 8, "N": 8}, ranks=2, target=CPU, dtype="f32", declared=[schedule])
    (knob,) = (knob for knob in space.knobs[0] if knob.name == "scale direction")
    assert knob.labels == ("forwards", "backwards")
    assert space.describe(space.seeds[0])["scale direction"] == "backwards", "the declared schedule has it"
    found = {space.schedule(point).stage("scale")[BACKWARDS] for point in space}
    proved = [point for point in list(space)[:16] if space.plan(point) is not None]
    assert found == {space.schedule(point).stage("scale")[BACKWARDS] for point in proved} == {False, True}


def _levels(_: Program, __: Typing, tensor: Tensor, dims: Numbers, ranks: int) -> dict[str, int | None]:
    return {"one": None, "all": int(dims["M"]) * ranks} if tensor.name == "h" else {}


def test_a_clause_of_tensors_is_searched() -> None:
    program, _ = module()
    choices = TensorChoices[int | None](name="level", labels=_levels)
    clause = count("levels", "a tensor has at least one level", of="tensor", manual="", tensor_choices=choices)
    register(clause)
    try:
        space = search.Space.of([program], dims={"M": 8, "N": 8}, ranks=2, target=CPU, dtype="f32")
        (knob,) = (knob for knob in space.knobs[0] if knob.name.endswith(" level"))
        assert knob.name == "h level" and knob.labels == ("one", "all"), "tensors without a choice have no knob"
        assert {space.schedule(point).tensor("h")[clause] for point in space} == {None, 16}
    finally:
        forget(clause)


def test_a_clause_that_excludes_an_unknown_one_is_refused() -> None:
    program, schedule = module()
    assert without("flatten", "roles")(program, schedule, "scale")
    assert not without("flatten", "backwards")(program, schedule, "scale")
    with pytest.raises(ScheduleError, match="no clause 'backward'") as caught:
        without("flatten", "backward")(program, schedule, "scale")
    assert str(caught.value.hint).startswith("did you mean backwards?")


@pytest.mark.parametrize("clause", CLAUSES, ids=lambda one: one.name)
def test_clauses_name_others_rightly(clause: Clause[object]) -> None:
    program, schedule = module()
    if (choices := clause.choices) is not None:
        assert choices.fits(program, schedule, "scale") in (True, False)  # an unknown name raises
        assert not choices.joins or word_called(choices.joins) in CLAUSES


@pytest.mark.parametrize(
    "other",
    [
        switch("flatten", manual=""),
        replace(switch("other", manual=""), rules={"other": '"tile"'}),
        replace(count("other", "", manual=""), rules={"order": '"other" INT'}),
    ],
)
def test_two_clauses_cannot_have_the_same_name(other: Clause[object]) -> None:
    with pytest.raises(ScheduleError, match=r"two clauses called (flat|tile|order)"):
        register(other)
    assert clauses() == (*CLAUSES, BACKWARDS)


@pytest.mark.parametrize("of", ["stage", "tensor"])
def test_the_manual_has_every_clause_in_its_own_words(of: str) -> None:
    assert table(of) in (Path(__file__).parents[2] / "docs" / "language.md").read_text()  # type: ignore[arg-type]


COUNTED = """program rows(M = 64, N = 8):
    n : in  [] <= M
    x : in  [M, N]
    y : out [M[: n], N]

    compute f(i: M[: n], j: N):
        y[i, j] = x[i, j] * 2.0

schedule own for rows:
    f tile(i=4, j=8), neighbours
"""
GATHERED = COUNTED.replace("n : in  [] <= M", "n : in  [M] < M").replace("[: n]", "").replace("x[i, j]", "x[n[i], j]")
SMALL = replace(H200, sms=4)
KNOWN = Known(why="it looks at the next tile", instead="take neighbours away")


@contextmanager
def own(**meanings: object) -> Generator[Clause[bool]]:
    """Add a clause `neighbours` without a pass: only what it means for others matters."""
    clause = switch("neighbours", manual="", **meanings)
    register(clause)
    try:
        yield clause
    finally:
        forget(clause)


def on_sms(text: str) -> Bound:
    found = parse_text(text, "rows.tl")
    dims = {one.name: int(one.example or 0) for one in found.programs[0].params}
    return bind(found.programs[0], found.schedules[0], dims, 1, SMALL, "bf16")


@pytest.mark.parametrize(
    ("text", "alone", "what"),
    [(COUNTED, False, "tiles"), (COUNTED, True, "tiles"), (GATHERED, False, "places"), (GATHERED, True, "")],
)
def test_it_is_refused_where_a_launch_decides_what_it_needs(text: str, alone: bool, what: str) -> None:
    with own(needs=replace(KNOWN, tiles_alone=alone)):
        if not what:
            assert on_sms(text).stages["f"].total == 16
            return
        message = f"neighbours for stage f, whose {what} only a launch decides: it looks at the next tile"
        with pytest.raises(ScheduleError, match=message) as caught:
            on_sms(text)
        assert caught.value.hint == "take neighbours away"
        assert caught.value.location is not None and caught.value.location.length == len("neighbours")
    with own():
        assert on_sms(text).stages["f"].total == 16


@pytest.mark.parametrize("needs", [None, KNOWN])
def test_a_search_leaves_it_out_where_a_launch_decides_what_it_needs(needs: Known | None) -> None:
    choices = Choices(name="tiles", labels={"alone": False, "in pairs": True}, reason=lambda _, __: None)
    with own(needs=needs, choices=choices):
        program = parse_text(COUNTED.replace(", neighbours", ""), "rows.tl").programs[0]
        space = search.Space.of([program], dims={"M": 64, "N": 8}, ranks=1, target=SMALL, dtype="bf16")
        assert any(knob.labels == ("alone", "in pairs") for knob in space.knobs[0]) == (needs is None)


@pytest.mark.parametrize("ties", Ties)
@pytest.mark.parametrize("other", ["dynamic", "program_per_tile"])
def test_programs_do_not_take_tiles_that_it_ties(other: str, ties: Ties) -> None:
    text = (
        COUNTED.replace("[: n]", "").replace("    n : in  [] <= M\n", "").replace("neighbours", f"neighbours, {other}")
    )
    with own(ties=ties):
        if ties is not Ties.SAID:
            (kernel,) = on_sms(text).kernels
            assert kernel.dynamic or kernel.program_per_tile
            return
        with pytest.raises(ScheduleError, match="`neighbours` ties the tiles of a program to one another"):
            on_sms(text)


def test_tiles_that_it_ties_have_no_compact_numbers() -> None:
    with own():
        assert on_sms(COUNTED).kernels[0].loops[0].compact is not None
    with own(ties=Ties.SAID):
        assert on_sms(COUNTED).kernels[0].loops[0].compact is None


@pytest.mark.parametrize(("ties", "tried"), [(Ties.NOWHERE, True), (Ties.SHOWN, False), (Ties.SAID, False)])
def test_a_search_takes_tiles_by_a_counter_where_nothing_ties_them(ties: Ties, tried: bool) -> None:
    with own(ties=ties):
        found = parse_text(COUNTED, "rows.tl")
        assert DYNAMIC.choices is not None
        assert DYNAMIC.choices.fits(found.programs[0], found.schedules[0], "f") == tried


PRODUCT = """program product(M = 512, N = 512, K = 256):
    a : in  [M, K]
    b : in  [N, K]
    y : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(a[i, :], b[j, :].T)

schedule own for product:
    gemm tile(i=128, j=256, k=64), num_warps 8, neighbours
"""


@pytest.mark.parametrize("alone", [False, True])
def test_warps_with_roles_do_not_have_it(alone: bool) -> None:
    text = PRODUCT.replace("neighbours", "roles(consumers=2, buffers=3), neighbours")
    with own(without_roles=alone):
        found = parse_text(text.replace(", roles(consumers=2, buffers=3)", ""), "product.tl")
        assert ROLES.choices is not None
        assert ROLES.choices.fits(found.programs[0], found.schedules[0], "gemm") != alone
        if not alone:
            assert on_sms(text).stages["gemm"].roles is not None
            return
        with pytest.raises(ScheduleError, match="it has `neighbours`, which is for programs without roles"):
            on_sms(text)


def test_a_kernel_has_programs_for_the_parts_of_tiles() -> None:
    text = PRODUCT.replace("M = 512", "M = 128")
    with own():
        assert on_sms(text).kernels[0].programs == 2
    with own(parts=lambda _: 2):
        assert on_sms(text).kernels[0].programs == 4
        with pytest.raises(ScheduleError, match="its last tiles are divided"):
            on_sms(text.replace("neighbours", "neighbours, defer_notify"))
