"""Schedules that extend others: which clauses they take over, replace and take back, and what is refused."""

import pytest

import tilelink
from tilelink import compiler
from tilelink.errors import ParseError, ScheduleError, SeveralErrors, TileLinkError, UnknownNameError
from tilelink.scheduling.schedule import Schedule

PROGRAMS = """
program p(M):
    x : in [M]
    h : symmetric [M]
    y : out [M]
    comm send(i: M):
        tile_push_data(h[i] @ (rank + 1), x[i])
        producer_tile_notify(h[i] @ (rank + 1))
    compute add(i: M):
        consumer_tile_wait(h[i])
        y[i] = h[i] + 1.0

program q(M):
    x : in [M]
    y : out [M]
    compute add(i: M):
        y[i] = x[i] + 1.0
"""
BASE = """
schedule a for p:
    send on sm(2), tile(i=8), num_warps 2
    add tile(i=8)
    h channel(i=8), buffers 2
    reuse_wait off
"""


def extended(head: str, *lines: str) -> Schedule:
    text = PROGRAMS + BASE + "\n" + "\n".join([f"schedule {head}:", *(f"    {line}" for line in lines)]) + "\n"
    return compiler.parse(text).schedules[-1]


def test_an_extended_schedule_says_all_of_its_base_and_prints_flat() -> None:
    schedule = extended(
        "b for p like a", "send tile(i=4), num_warps off", "h buffers 3", "add num_stages 2", "reuse_wait on"
    )
    assert str(schedule).splitlines() == [
        "schedule b for p:",
        "    send on sm(2), tile(i=4)",
        "    add tile(i=8), num_stages 2",
        "    h channel(i=8), buffers 3",
    ]


def test_without_lines_it_is_its_base_under_another_name() -> None:
    text = compiler.parse(PROGRAMS + BASE).schedules[0]
    assert str(extended("b for p like a")) == str(text).replace("schedule a", "schedule b")


def test_a_schedule_of_another_program_is_taken_over_where_its_names_are_there() -> None:
    text = PROGRAMS + "schedule c for q:\n    add tile(i=16)\n\nschedule d for p like q:c:\n    h buffers 2\n"
    assert str(compiler.parse(text).schedules[-1]) == "schedule d for p:\n    add tile(i=16)\n    h buffers 2\n"
    with pytest.raises(SeveralErrors) as caught:
        extended("d for q like p:a")
    first, second = caught.value.errors
    assert first.message == "schedule d extends p:a: no stage 'send'"
    assert second.message == "schedule d extends p:a: no tensor 'h'"
    assert first.location is not None and first.location.length == len("p:a")
    assert first.related is not None and first.related.line < first.location.line


def test_the_place_of_a_clause_is_the_line_that_gave_it() -> None:
    schedule = extended("b for p like a", "send tile(i=4)")
    send = schedule.stage("send")
    tile, resource = send.at("tile"), send.at("resource")
    assert tile is not None and resource is not None and tile.line > resource.line


@pytest.mark.parametrize(
    ("head", "line", "error", "message"),
    [
        ("b for p like c", "default", UnknownNameError, "no schedule 'c' for p"),
        ("b for p like q:a", "default", UnknownNameError, "no schedule 'a' for q"),
        ("b for p like b", "default", ParseError, "schedule b extends itself"),
        ("b for p like a", "send num_stages off", ParseError, "num_stages off takes nothing back: a does not say"),
        ("b for p like a", "reuse_wait off\n    send reuse_wait on", ParseError, "did not expect"),
        ("b for p", "reuse_wait on", ParseError, "reuse_wait on takes nothing back"),
        ("b for p", "send num_warps off", ParseError, "num_warps off takes nothing back"),
        ("b for p like", "default", ParseError, "not the head of a schedule"),
    ],
)
def test_a_base_that_is_not_there_and_clauses_taken_back_in_vain(
    head: str, line: str, error: type[TileLinkError], message: str
) -> None:
    with pytest.raises(error) as caught:
        extended(head, line)
    assert message in caught.value.message
    assert caught.value.location is not None and caught.value.hint


@pytest.mark.parametrize(
    ("second", "message"), [("p", "which comes later in the file"), ("p like b", "which extends b")]
)
def test_a_base_stands_before_what_extends_it(second: str, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        compiler.parse(f"{PROGRAMS}schedule b for p like c:\n    default\n\nschedule c for {second}:\n    default\n")
    assert caught.value.related is not None and caught.value.hint


def test_a_part_is_still_scheduled_on_one_line() -> None:
    with pytest.raises(ParseError, match="send is scheduled twice"):
        extended("b for p like a", "send tile(i=4)", "send num_warps 4")


def test_a_chain_begins_with_another_schedule() -> None:
    module = compiler.parse(PROGRAMS + BASE)
    made = tilelink.schedule(module.programs[0], "b", like=module.schedules[0]).tile("send", i=4)
    assert str(made) == str(module.schedules[0]).replace("schedule a", "schedule b").replace("i=8), num", "i=4), num")
    with pytest.raises(ScheduleError, match="send"):
        tilelink.schedule(module.programs[1], like=module.schedules[0])


OWN = """program mine = all_gather_kept()

schedule a for mine like all_gather_kept:{base}:
    {line}
"""


def test_a_schedule_of_the_library_can_be_extended() -> None:
    """Also for a program of another name, whose stages, tensors and indices have the names that it says."""
    base = next(one for one in compiler.library_module("all_gather_kept").schedules if one.name == "more")
    module = compiler.parse(OWN.format(base="more", line="default"), "mine.tl")
    assert str(module.schedules[0]) == str(base).replace("schedule more for all_gather_kept", "schedule a for mine")
    changed = compiler.parse(OWN.format(base="more", line="keep num_warps 2"), "mine.tl").schedules[0]
    assert str(changed) == str(module.schedules[0]).replace("num_warps 16", "num_warps 2")
    assert compiler.plan(module.programs[0], "a", ranks=2, dims={"Ms": 64, "K": 64}).tasks > 0


def test_what_the_library_does_not_have_is_refused_with_what_it_has() -> None:
    with pytest.raises(UnknownNameError, match="no schedule 'mor' for all_gather_kept") as caught:
        compiler.parse(OWN.format(base="mor", line="default"), "mine.tl")
    assert str(caught.value.hint).startswith("did you mean more? the library has ")
    other = OWN.replace("all_gather_kept()", "gemm_ar()").format(base="more", line="default")
    with pytest.raises(SeveralErrors, match="schedule a extends all_gather_kept:more: ") as several:
        compiler.parse(other, "mine.tl")
    for error in several.value.errors:
        assert error.location is not None and error.location.file == "mine.tl"
        assert error.related is not None and error.related.file.endswith("all_gather.tl")


MINE = """schedule first for all_gather_kept like more:
    keep num_warps 2

schedule second for all_gather_kept like first:
    keep num_warps 4

schedule third for all_gather_kept like {name}:
    keep num_warps 8
"""


def test_a_file_of_schedules_extends_those_of_the_library() -> None:
    """Though it has schedules of its own for the same program."""
    base = next(one for one in compiler.library_module("all_gather_kept").schedules if one.name == "more")
    for one in compiler.parse(MINE.format(name="more"), "mine.tl").schedules:
        number = {"first": 2, "second": 4, "third": 8}[one.name]
        assert str(one) == str(base).replace("schedule more", f"schedule {one.name}").replace(
            "num_warps 16", f"num_warps {number}"
        )
    with pytest.raises(UnknownNameError, match="no schedule 'moer' for all_gather_kept") as caught:
        compiler.parse(MINE.format(name="moer"), "mine.tl")
    assert "did you mean more?" in str(caught.value.hint) and "before it" in str(caught.value.hint)


def test_the_schedules_of_the_library_are_not_those_of_a_program_of_ones_own() -> None:
    """A program of the same name has the schedules of its file alone."""
    program = "program all_gather_kept(M):\n    y : out [M]\n\n    compute keep(i: M):\n        y[i] = zeros(f32)\n\n"
    with pytest.raises(UnknownNameError, match="no schedule 'more' for all_gather_kept"):
        compiler.parse(program + MINE.format(name="first"), "mine.tl")
