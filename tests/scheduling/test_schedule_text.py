"""Schedules as text: parsing, printing, and the errors of a wrong line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilelink.errors import OrderError, ParseError, ScheduleError, TileLinkError, UnknownNameError
from tilelink.frontend.parser import parse_text
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.ir.scalar import RANK, binary, const
from tilelink.lowering.bind import bind
from tilelink.scheduling.schedule import CopyEngine, Fused, IndexOrder, Schedule, Sm
from tilelink.target import target

TEXT = """\
schedule wide for scatter:
    gather on copy_engine, push, tile(i=1024), order(p = rank - 1 step -1)
    gemm on sm, tile(i=128, j=256, k=64), order(s = rank step +1, group(i, 8)), num_warps 8, num_stages 3
    send in gemm epilogue
    move on sm(16), order(p = rank xor, i)
    xs channel(i=1024, k=1024), buffers 2
"""


def test_a_schedule_prints_as_it_was_written() -> None:
    assert str(parse_schedule(TEXT)) == TEXT


def test_the_chain_builds_the_same_schedule_as_the_text() -> None:
    chain = (
        Schedule(name="wide", program="scatter")
        .on("gather", CopyEngine())
        .direction("gather", "push")
        .tile("gather", i=1024)
        .order("gather", IndexOrder(index="p", kind="sequence", start=binary("-", RANK, const(1)), step=-1))
        .on("gemm", Sm())
        .tile("gemm", i=128, j=256, k=64)
        .order("gemm", IndexOrder(index="s", kind="sequence", start=RANK), group=("i", 8))
        .knobs("gemm", num_warps=8, num_stages=3)
        .on("send", Fused(stage="gemm"))
        .on("move", Sm(programs=16))
        .order("move", IndexOrder(index="p", kind="xor", start=RANK), IndexOrder(index="i"))
        .channel("xs", i=1024, k=1024)
        .buffers("xs", 2)
    )
    assert chain == parse_schedule(TEXT)


def test_comments_and_switches() -> None:
    text = "schedule a for b:  # why\n    # nothing here\n    reuse_wait off  # proven\n"
    assert parse_schedule(text) == Schedule(name="a", program="b").without_reuse_wait()


def test_a_part_without_clauses_has_no_line() -> None:
    empty = Schedule(name="a", program="b")
    for silent in (empty.flatten("f", False), empty.order("f"), empty.tile("f"), empty.knobs("f"), empty.channel("x")):
        assert silent == empty
        assert parse_schedule(str(silent)) == empty
    taken = empty.tile("f", i=8).flatten("g").flatten("f").flatten("g", False)
    assert str(taken) == "schedule a for b:\n    f tile(i=8), flatten\n"


names = st.sampled_from(["alpha", "beta", "gamma"])
sizes = st.dictionaries(st.sampled_from(["i", "j", "k"]), st.integers(1, 4096), min_size=1, max_size=3)


@given(
    tiles=sizes, channel=sizes, buffers=st.integers(1, 4), step=st.integers(-3, 3), offset=st.integers(-4, 4),
    flat=st.booleans(),
)  # fmt: skip
def test_every_schedule_survives_printing(
    tiles: dict[str, int], channel: dict[str, int], buffers: int, step: int, offset: int, flat: bool
) -> None:
    term = IndexOrder(index="p", kind="sequence", start=binary("+", RANK, const(abs(offset))), step=step)
    schedule = (
        Schedule(name="s", program="q")
        .tile("a", **tiles)
        .order("a", term)
        .flatten("a", flat)
        .channel("t", **channel)
        .buffers("t", buffers)
    )
    assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize("inside", ["s step +1", "group(i, 8), s step +1", "s = (rank + 1), 3", "s ="])
def test_the_hint_of_a_mistake_in_brackets_shows_the_clause(inside: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_schedule(f"schedule a for b:\n    gather on sm(2), order({inside})\n", "file.tl")
    assert caught.value.hint == "it is written like `order(s = rank + 1 step +1, i, group(i, 8))`"


@pytest.mark.parametrize(
    ("part", "written"),
    [
        ("roles", "roles(consumers=2, buffers=3)"),
        ("tile(i=8), roles()", "roles(consumers=2, buffers=3)"),
        ("tile(i=8), roles(2, 4)", "roles(consumers=2, buffers=3)"),
        ("tile(i=8), num_warps", "num_warps n"),
    ],
)
def test_the_hint_is_the_form_of_the_clause_that_is_open_or_without_its_arguments(part: str, written: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_text(f"schedule s for p:\n    f {part}\n", "test.tl")
    assert caught.value.hint == f"it is written like `{written}`"


@pytest.mark.parametrize(
    ("line", "message", "column"),
    [
        ("    gather on the_moon", "did not expect 'the_moon' here", 15),
        ("    gather tile(i=)", "did not expect ')' here", 19),
        ("    gather tile(i=0)", "0 is not a size", 17),
        ("    gather on sm(0)", "0 is not a size", 12),
        ("    xs buffers 2147483648", "a number that is too large", 16),
        (f"    gather order(i = rank step -{'9' * 5000}, j)", "a number that is too large", 33),
        ("    gather push, push", "the direction (push / pull) is given twice", 18),
        ("    gather on sm, in f", "where gather runs (on ... / in ...) is given twice", 19),
        ("    gather on", "did not expect 'the end of the line' here", 14),
        ("    xs buffers 2, tile(i=2)", "xs is scheduled as a stage and as a tensor", 5),
    ],
)
def test_the_error_of_a_wrong_line_has_its_location_and_message(line: str, message: str, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse_schedule(f"schedule a for b:\n{line}\n", "file.tl", 10)
    error = caught.value
    assert error.message == message
    assert error.location is not None
    assert (error.location.line, error.location.column) == (11, column)
    assert error.hint
    assert "^" in str(error)


def test_numbers_of_a_chain_have_32_bits_too() -> None:
    largest = Schedule(name="s", program="p").buffers("x", 2**31 - 1).tile("f", i=2**31 - 1)
    for add in (lambda: largest.buffers("x", 2**31), lambda: largest.tile("f", i=10**5000)):
        with pytest.raises(ScheduleError, match=r"(buffers of x|size i of f) is too large") as caught:
            add()
        assert caught.value.hint == "integers have 32 bits: 2,147,483,647 at most"


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x85"])
def test_a_comment_ends_with_its_line(end: str) -> None:
    """Lines end as in editors and in Python, not at other Unicode line separators."""
    text = f"schedule a for b:\n    f tile(i=8)  # or{end}    g tile(i=9)\n    h tile(i=16)\n"
    schedule = parse_schedule(text, "file.tl")
    assert [part.name for part in schedule.stages] == ["f", "h"]
    place = schedule.stage("h").location
    assert place is not None and place.line == 3
    program = f"program copy(M):  # of{end}    nothing\n    x : in [M]\n    y : out [M]\n"
    with pytest.raises(TileLinkError) as caught:
        parse_text(program + "    compute f(i: M):\n        y[i] = z[i]\n", "file.tl")
    assert "file.tl:5:16\n            y[i] = z[i]\n" in str(caught.value)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_as_on_any_system(end: str) -> None:
    schedules = parse_text(TEXT.replace("\n", end)).schedules
    assert [str(one) for one in schedules] == [TEXT]


def test_a_schedule_is_for_a_program_of_its_file() -> None:
    text = "program copy(M):\n    x : in [M]\n    y : out [M]\n    compute f(i: M):\n        y[i] = x[i]\n"
    with pytest.raises(UnknownNameError, match="schedule s is for 'cpoy', which is no program of this file") as caught:
        parse_text(text + "schedule s for cpoy:\n    f tile(i=8)\n", "file.tl")
    assert caught.value.hint == "did you mean copy?"
    assert caught.value.location is not None
    assert caught.value.location.line == 6
    assert parse_text("schedule s for elsewhere:\n    f tile(i=8)\n").schedules


@pytest.mark.parametrize("warps", [3, 64])
def test_a_number_of_warps_that_no_gpu_supports_is_refused(warps: int) -> None:
    text = "program copy(M):\n    x : in [M]\n    y : out [M]\n    compute f(i: M):\n        y[i] = x[i]\n"
    found = parse_text(text + f"schedule s for copy:\n    f tile(i=8), num_warps {warps}\n", "file.tl")
    with pytest.raises(ScheduleError, match=f"{warps} warps for f") as caught:
        bind(found.programs[0], found.schedules[0], {"M": 20}, 2, target("cpu"))
    assert caught.value.location is not None
    assert caught.value.location.line == 7


def test_a_name_scheduled_twice_is_refused() -> None:
    with pytest.raises(ParseError, match="gather is scheduled twice"):
        parse_schedule("schedule a for b:\n    gather push\n    gather pull\n")


def test_sizes_below_one_are_refused_in_the_chain_too() -> None:
    with pytest.raises(ScheduleError, match="size i=0 of a"):
        Schedule(name="s", program="q").tile("a", i=0)
    with pytest.raises(ScheduleError, match="buffers 0"):
        Schedule(name="s", program="q").buffers("t", 0)


COPY = "program copy(M):\n    x : in [M]\n    y : out [M]\n    compute first(i: M):\n        y[i] = x[i]\n"


@pytest.mark.parametrize(
    ("line", "message", "underlined", "hint"),
    [
        ("firts on sm", "no stage 'firts'", "firts", "did you mean first? stages: first"),
        ("x buffers 2", "buffers 2 of x, which no peer reaches", "buffers 2", "take `buffers` away"),
        ("first roles(consumers=4, buffers=3)", "4 consumers of first", "roles(consumers=4, buffers=3)", "2 or 3"),
        ("first roles(consumers=2, buffers=9)", "9 buffers of first", "roles(consumers=2, buffers=9)", "2 to 6"),
        ("x num_warps 4", "no stage 'x'", "x", "x is a tensor, and num_warps is for stages: first"),
        ("first buffers 2", "no tensor 'first'", "first", "first is a stage, and buffers is for tensors: x, y"),
        ("xx buffers 2", "no tensor 'xx'", "xx", "did you mean x? tensors: x, y"),
        ("first tile(i=8), in fist", "no stage 'fist' to run in", "in fist", "did you mean first? stages: first"),
        ("first tile(i=8), num_warps 3", "3 warps for first", "num_warps 3", "one of 1, 2, 4, 8, 16, 32"),
        ("first tile(ii=8), flatten", "stage first has nothing named 'ii' to tile", "ii=8", "did you mean i?"),
        ("first order(ii), flatten", "order of unknown index 'ii'", "ii", "did you mean i? indices: i"),
        ("first tile(i=8), order(i = [2,1])", "[2, 1] is no permutation", "i = [2,1]", "name each of 0..2 once"),
        ("first order(i = rnk step 1)", "unknown name 'rnk' in an order", "i = rnk step 1", "did you mean rank?"),
        ("first flatten, split_k_tail 2", "first cannot be flattened: ", "flatten", "take `flatten` away"),
        ("first til(i=8)", "unknown 'til'", "til", "did you mean tile? NAME followed by"),
        ("first on smm", "unknown 'smm'", "smm", "did you mean sm?"),
        ("first in first prologe", "unknown 'prologe'", "prologe", "did you mean prologue?"),
        ("first order(i = rank stp 1)", "unknown 'stp'", "stp", "did you mean step?"),
        ("first flatten num_warps 2", "did not expect 'num_warps' here", "num_warps", "parts are separated by commas"),
    ],
)
def test_the_wrong_part_is_underlined(line: str, message: str, underlined: str, hint: str) -> None:
    with pytest.raises(TileLinkError) as caught:
        found = parse_text(f"{COPY}schedule s for copy:\n    {line}  # why\n", "file.tl")
        bind(found.programs[0], found.schedules[0], {"M": 24}, 2, target("cpu"))
    error = caught.value
    assert error.message.startswith(message)
    assert error.hint and error.hint.startswith(hint)
    assert error.location is not None and error.location.text is not None
    begin = error.location.column - 1
    assert error.location.text[begin : begin + error.location.length] == underlined


def test_names_before_the_parts_have_all_of_them() -> None:
    def parsed(*lines: str) -> Schedule:
        return parse_text(f"{COPY}schedule s for copy:\n" + "".join(f"    {one}\n" for one in lines)).schedules[0]

    several = parsed("first, second tile(i=8), num_warps 2", "x, y buffers 2")
    assert several == parsed(
        "first tile(i=8), num_warps 2", "second tile(i=8), num_warps 2", "x buffers 2", "y buffers 2"
    )
    with pytest.raises(ParseError, match="y is scheduled twice") as caught:
        parsed("x, y buffers 2", "y buffers 3")
    assert caught.value.related is not None and caught.value.related.column == 8
    with pytest.raises(ParseError, match="buffers is given twice"):
        parsed("x, y buffers 2, buffers 3")


def test_the_index_of_a_loop_has_no_order() -> None:
    loop = "t = zeros(f32)\n        for (s: ranks):\n            t += x[i]\n        y[i] = t"
    text = COPY.replace("y[i] = x[i]", loop)
    with pytest.raises(OrderError) as caught:
        found = parse_text(f"{text}schedule s for copy:\n    first order(s = rank step 1)\n")
        bind(found.programs[0], found.schedules[0], {"M": 24}, 2, target("cpu"))
    assert caught.value.message == "order of unknown index 's'"
    assert caught.value.hint == "s is the index of a loop, which runs as written; indices: i"


def test_the_hint_lists_keywords_that_follow_no_name() -> None:
    with pytest.raises(ParseError, match="did not expect 'maybe' here") as caught:
        parse_text(f"{COPY}schedule s for copy:\n    reuse_wait maybe\n")
    assert str(caught.value.hint).endswith("; or `reuse_wait off`")


def test_the_error_of_a_repeated_part_has_both_locations() -> None:
    with pytest.raises(ParseError) as caught:
        parse_schedule("schedule a for b:\n    f in g prologue, flatten, in h epilogue\n")
    assert caught.value.location is not None and caught.value.related is not None
    assert (caught.value.location.column, caught.value.related.column) == (31, 7)


def test_a_location_covers_its_part_of_the_text() -> None:
    parsed = parse_schedule("schedule a for b:\n    f flatten, num_warps 4\n")
    changed = parsed.knobs("f", num_warps=3).stage("f")
    assert changed.at("num_warps") == changed.location
    assert changed.at("flatten") == parsed.stage("f").locations["flatten"] != changed.location


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("flat", "flatten"), ("split_tail 2", "split_k_tail"), ("fill 2", "backfill"), ("bulk 4", "tma_copy"),
        ("warps 8", "num_warps"), ("stages 3", "num_stages"),
    ],
)  # fmt: skip
def test_a_former_keyword_is_refused_with_a_hint_to_the_current_one(old: str, new: str) -> None:
    with pytest.raises(ParseError, match=f"unknown '{old.split()[0]}'") as caught:
        parse_schedule(f"schedule a for b:\n    f on sm, {old}\n")
    assert (caught.value.hint or "").startswith(f"it is called {new}: {new}")
