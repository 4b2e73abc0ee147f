"""What keeps a loop over tiles from being flat."""

from __future__ import annotations

import pytest

import tilelink
from tilelink import compiler
from tilelink.errors import ParseError, ScheduleError
from tilelink.frontend.parser import parse_text
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.flatten import FLATTEN
from tilelink.scheduling.schedule import Schedule
from tilelink.search import Space
from tilelink.target import target

DIMS = {"Ms": 4096, "N": 512, "K": 512}
SCHEDULE = "schedule one for gemm_rs_{}:\n    gemm tile(i=128, j=256, k=64), num_warps 8, num_stages 4{}\n"


def bind(program: str, flat: str) -> Bound:
    module = tilelink.load("gemm_rs")
    text = f"{module.program(f'gemm_rs_{program}')}\n{SCHEDULE.format(program, flat)}"
    parsed = tilelink.parse(text)
    return compiler.bound(parsed.programs[-1], parsed.schedules[-1], ranks=4, dims=DIMS, dtype="bf16", target="sm_90")


def test_what_uses_a_value_of_a_condition_cannot_be_flat() -> None:
    bind("ring", "")
    with pytest.raises(
        ScheduleError, match="gemm cannot be flattened: it uses what a condition after its product computes"
    ):
        bind("ring", ", flatten")


def test_a_condition_that_keeps_its_values_can_be_flat() -> None:
    assert bind("slots", ", flatten").stages["gemm"].flatten
    assert not bind("slots", "").stages["gemm"].flatten


def test_the_search_does_not_propose_it() -> None:
    module = tilelink.load("gemm_rs")
    own = Space.of(
        [module.program(f"gemm_rs_{p}") for p in ("ring", "slots")], dims=DIMS, ranks=4, target=target("sm_90")
    )
    assert [any(knob.name == "gemm pipeline" for knob in knobs) for knobs in own.knobs] == [False, True]


PROGRAM = """\
program product(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    h : symmetric [M, K]
    r : symmetric [M, N]
    c : local     [M, K]
    z : local     [M, N]
    y : out       [M, N]

    compute make(a: M):
        {make}

    compute gemm(i: M, j: N):
        {gemm}

    compute keep(i: M, j: N):
        {keep}

schedule own for product:
    make {place}, tile(a=32){made}
    gemm tile(i=32, j=32, k=32){flat}
    keep in gemm epilogue, tile(i=32, j=32){kept}
"""
DEFAULTS = {
    "make": "c[a, :] = x[a, :] * 2.0", "gemm": "z[i, j] = dot(x[i, :], w[j, :].T)", "keep": "y[i, j] = z[i, j]",
    "place": "on sm", "made": "", "flat": "", "kept": "",
}  # fmt: skip
SENT = "z[i, j] = dot(h[i, :], w[j, :].T); r[i, j] @ (rank + 1) = z[i, j]"
SECOND = "if rank == 0: z[i, j] = z[i, j] + dot(x[i, :], w[j, :].T)"
WAITED = "consumer_tile_wait(c[i, :]); z[i, j] = dot(c[i, :], w[j, :].T)"
TOLD = "; tile_push_data(r[i, j] @ (rank + 1), z[i, j]); producer_tile_notify(r[i, j] @ (rank + 1))"
MADE = "c[a, :] = x[a, :] * 2.0; producer_tile_notify(c[a, :])"


def lines(body: str) -> str:
    """Statements with `;` between them, a branch or loop on a line of its own, as the body of a stage."""
    return body.replace("; ", "\n        ").replace(": z[", ":\n            z[")


def bound(**parts: str) -> Bound:
    """The program with some of its parts put differently; all stages run in two kernels on the CPU."""
    own = {name: lines(part) for name, part in {**DEFAULTS, **parts}.items()}
    parsed = parse_text(PROGRAM.format(**own), "own.tl", lowered=True)  # with the signals that are written
    return compiler.bound(parsed.programs[0], parsed.schedules[0], ranks=2, dims={"M": 64, "N": 64, "K": 64})


def test_what_may_be_flat_is_bound_as_flat() -> None:
    found = bound(flat=", flatten")
    assert [stage.name for stage in found.stages.values() if stage.flatten] == ["gemm"]
    assert not any(stage.flatten for stage in bound().stages.values())


WRONG: dict[str, tuple[dict[str, str], str, str]] = {
    # what is asked for; the stage that cannot be flattened, and why
    "an epilogue of the same tiles": ({"kept": ", flatten"}, "keep", "it has no tiles of its own on SMs"),
    "no product": ({"made": ", flatten"}, "make", "its tiles do not begin with a product"),
    "a load first": (
        {"gemm": "v = z[i, j]; z[i, j] = v + dot(x[i, :], w[j, :].T)"}, "gemm", "its tiles do not begin with a product",
    ),
    "a product under a condition": (
        {"gemm": "if rank == 0: z[i, j] = dot(x[i, :], w[j, :].T)"}, "gemm", "its tiles do not begin with a product",
    ),
    "a product in a loop": (
        {"gemm": "v = zeros(f32); for (s: ranks):\n            v += dot(x[i, :], w[j, :].T); z[i, j] = v"}, "gemm",
        "its product is in a loop of the tile",
    ),
    "two products": (
        {"gemm": f"{DEFAULTS['gemm']}; {SECOND}"}, "gemm", "its tiles have more than one product",
    ),
    "a product in the epilogue": (
        {"keep": "y[i, j] = z[i, j] + dot(x[i, :], w[j, :].T)"}, "gemm", "its tiles have more than one product",
    ),
    "a loop": (
        {"gemm": f"{DEFAULTS['gemm']}; for (s: ranks): z[i, j] = z[i, j] + s"}, "gemm",
        "it has a loop after its product",
    ),
    "waits and notifies": (
        {"make": MADE, "gemm": WAITED + TOLD}, "gemm",
        "it waits before its product and notifies after it: the next tile's wait would come before the notify",
    ),
    "what its kernel writes": (
        {"place": "in gemm prologue", "gemm": "z[i, j] = dot(c[i, :], w[j, :].T)"}, "gemm",
        "it multiplies c, which its own kernel writes",
    ),
    "what the tile in front writes": (
        {"make": MADE, "gemm": f"{WAITED}; c[i, :] = x[i, :]"}, "gemm",
        "it multiplies c, which its own tiles write",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_flat_is_refused_where_it_was_asked_for(name: str) -> None:
    parts, stage, reason = WRONG[name]
    asked = parts if any("flat" in part for part in parts.values()) else {**parts, "flat": ", flatten"}
    with pytest.raises(ScheduleError) as caught:
        bound(**asked)
    error = caught.value
    assert error.message == f"{stage} cannot be flattened: {reason}"
    assert error.hint == "take `flatten` away"
    assert error.location is not None
    text = PROGRAM.format(**{k: lines(part) for k, part in {**DEFAULTS, **asked}.items()})
    assert text.splitlines()[error.location.line - 1].split()[0] == stage
    bound(**{**asked, "flat": "", "made": "", "kept": ""})


def test_copy_engines_have_no_loops_that_can_be_flat() -> None:
    module = tilelink.load("ag_gemm")
    program = module.program("ag_gemm")
    schedule = module.schedule("copy_engine", program).flatten("gather")
    with pytest.raises(ScheduleError, match="gather cannot be flattened: it has no tiles of its own on SMs") as caught:
        compiler.bound(program, schedule, ranks=4, dims=DIMS)
    assert caught.value.location is not None, "the chain keeps the place of the line that it changes"


def test_a_tile_may_wait_for_what_its_own_kernel_writes() -> None:
    assert bound(place="in gemm prologue", make=MADE, gemm=WAITED, flat=", flatten").stages["gemm"].flatten


def test_a_tile_that_only_notifies_may_be_flat() -> None:
    assert bound(gemm=DEFAULTS["gemm"] + TOLD, flat=", flatten").stages["gemm"].flatten


# As text and as a chain ----------------------------------------------------------------------------------------------

TEXT = """\
schedule one for product:
    make flatten
    gemm on sm, tile(i=32), num_warps 8, num_stages 4, flatten
"""


def test_flat_as_text_and_as_a_chain() -> None:
    chain = Schedule(name="one", program="product").flatten("make").tile("gemm", i=32).flatten("gemm")
    parsed = parse_schedule(TEXT)
    assert str(parsed) == TEXT
    assert [(s.name, s[FLATTEN]) for s in chain.stages] == [(s.name, s[FLATTEN]) for s in parsed.stages]
    assert parse_schedule(str(chain)) == chain
    assert "flat" not in str(chain.flatten("gemm", False)).split("gemm", 1)[1]
    assert chain.flatten("gemm", False).flatten("gemm") == chain


def test_flat_is_said_once() -> None:
    with pytest.raises(ParseError, match="flatten is given twice"):
        parse_schedule("schedule a for b:\n    gemm flatten, num_warps 4, flatten\n")
    with pytest.raises(ParseError, match="did not expect") as caught:
        parse_schedule("schedule a for b:\n    gemm flatten 3\n")
    assert caught.value.hint is not None and "flat" in caught.value.hint


@pytest.mark.parametrize(("rows", "flat"), [(1024, False), (4096, True)])
def test_a_stage_whose_programs_have_one_tile_each_is_not_flat(rows: int, flat: bool) -> None:
    module = tilelink.load("gemm_rs")
    parsed = tilelink.parse(f"{module.program('gemm_rs_slots')}\n{SCHEDULE.format('slots', ', flatten')}")
    dims = {**DIMS, "Ms": rows}
    bound = compiler.bound(parsed.programs[-1], parsed.schedules[-1], ranks=4, dims=dims, dtype="bf16", target="sm_90")
    assert bound.stages["gemm"].flatten is flat
