"""Grids and groups of ranks: what their names stand for, in both front ends, and what is wrong with them."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
import torch

import tilelink
from tests.tiers import thorough
from tilelink import compiler
from tilelink.errors import TileLinkError
from tilelink.ir.printer import print_program, print_scalar
from tilelink.ir.program import Program, Transfer
from tilelink.ir.scalar import Env, evaluate
from tilelink.ir.visitor import statements
from tilelink.language import (
    Dim,
    Index,
    consumer_tile_wait,
    let,
    producer_tile_notify,
    rank,
    ranks,
    tile_push_data,
)
from tilelink.reference.trial import compared, random_inputs, relative_error

HYBRID = """program hybrid(M, N) over (dp, tp = 2):
    x    : in        [M, N]
    left : symmetric [tp, M, N]
    sums : symmetric [dp, M, N]
    y    : out       [dp, M, N]

    comm spread(q: tp, i: M):
        let sent = left[tp, i, :] @ (tp = q)
        tile_push_data(sent, x[i, :])
        producer_tile_notify(sent)

    compute across(n: dp, i: M, j: N):
        consumer_tile_wait(left[:, i, j])
        let sent = sums[dp, i, j] @ (dp = n)
        tile_push_data(sent, left[tp + 1, i, j] - left[tp, i, j])
        producer_tile_notify(sent)

    compute take(n: dp, i: M, j: N):
        consumer_tile_wait(sums[n, i, j])
        if n == dp + 1:
            y[n, i, j] = sums[n, i, j] * 2.0
        else:
            y[n, i, j] = sums[n, i, j]
"""
WRITTEN_OUT = """program hybrid(M, N) over (dp, tp = 2):
    x    : in        [M, N]
    left : symmetric [2, M, N]
    sums : symmetric [ranks // 2, M, N]
    y    : out       [ranks // 2, M, N]

    comm spread(q: 2 by 1, i: M):
        tile_push_data(left[rank % 2, i, :] @ (rank // 2 * 2 + q), x[i, :])
        producer_tile_notify(left[rank % 2, i, :] @ (rank // 2 * 2 + q))

    compute across(n: ranks // 2 by 1, i: M, j: N):
        consumer_tile_wait(left[:, i, j])
        tile_push_data(sums[rank // 2, i, j] @ (n * 2 + rank % 2),
                       left[(rank % 2 + 1) % 2, i, j] - left[rank % 2, i, j])
        producer_tile_notify(sums[rank // 2, i, j] @ (n * 2 + rank % 2))

    compute take(n: ranks // 2 by 1, i: M, j: N):
        consumer_tile_wait(sums[n, i, j])
        if n == (rank // 2 + 1) % (ranks // 2):
            y[n, i, j] = sums[n, i, j] * 2.0
        else:
            y[n, i, j] = sums[n, i, j]
"""
M2N = """program m2n(A, C, N) over attention = ranks[0 : A], experts = ranks[A :]:
    x    : in        [experts, C, N]
    got  : symmetric [attention, C, N]
    back : symmetric [experts, C, N]
    y    : out       [experts, C, N]

    comm dispatch(e: experts, c: C) on attention:
        let there = got[rank.attention, c, :] @ experts[e]
        tile_push_data(there, x[e, c, :])
        producer_tile_notify(there)

    compute expert(s: attention, c: C) on experts:
        consumer_tile_wait(got[s, c, :])
        let there = back[rank.experts, c, :] @ attention[s]
        tile_push_data(there, got[s, c, :] * 2.0 + rank.experts)
        producer_tile_notify(there)

    compute combine(e: experts, c: C) on attention:
        consumer_tile_wait(back[e, c, :])
        y[e, c, :] = back[e, c, :]

    compute nothing(e: experts, c: C) on experts:
        y[e, c, :] = 0.0
"""


@tilelink.program
def hybrid(M: Dim, N: Dim) -> None:
    dp, tp = tilelink.grid(None, 2)
    x = tilelink.input(M, N)
    left = tilelink.symmetric(tp, M, N)
    sums = tilelink.symmetric(dp, M, N)
    y = tilelink.output(dp, M, N)

    @tilelink.comm
    def spread(q: Index = tp, i: Index = M) -> None:
        sent = let(left[tp, i, :] @ rank(tp=q))
        tile_push_data(sent, x[i, :])
        producer_tile_notify(sent)

    @tilelink.compute
    def across(n: Index = dp, i: Index = M, j: Index = N) -> None:
        consumer_tile_wait(left[:, i, j])
        sent = let(sums[dp, i, j] @ rank(dp=n))
        tile_push_data(sent, left[tp + 1, i, j] - left[tp, i, j])
        producer_tile_notify(sent)

    @tilelink.compute
    def take(n: Index = dp, i: Index = M, j: Index = N) -> None:
        consumer_tile_wait(sums[n, i, j])
        if n == dp + 1:
            y[n, i, j] = sums[n, i, j] * 2.0
        else:
            y[n, i, j] = sums[n, i, j]


@tilelink.program
def m2n(A: Dim, C: Dim, N: Dim) -> None:
    attention = ranks[0:A]
    experts = ranks[A:]
    x = tilelink.input(experts, C, N)
    got = tilelink.symmetric(attention, C, N)
    back = tilelink.symmetric(experts, C, N)
    y = tilelink.output(experts, C, N)

    @tilelink.comm(on=attention)
    def dispatch(e: Index = experts, c: Index = C) -> None:
        there = let(got[rank.attention, c, :] @ experts[e])
        tile_push_data(there, x[e, c, :])
        producer_tile_notify(there)

    @tilelink.compute(on=experts)
    def expert(s: Index = attention, c: Index = C) -> None:
        consumer_tile_wait(got[s, c, :])
        there = let(back[rank.experts, c, :] @ attention[s])
        tile_push_data(there, got[s, c, :] * 2.0 + rank.experts)
        producer_tile_notify(there)

    @tilelink.compute(on=attention)
    def combine(e: Index = experts, c: Index = C) -> None:
        consumer_tile_wait(back[e, c, :])
        y[e, c, :] = back[e, c, :]

    @tilelink.compute(on=experts)
    def nothing(e: Index = experts, c: Index = C) -> None:
        y[e, c, :] = 0.0


def parsed(text: str) -> Program:
    return compiler.check(compiler.parse(text, "groups.tl").program())


def test_the_names_of_a_grid_are_put_in_where_they_stand() -> None:
    assert parsed(HYBRID) == parsed(WRITTEN_OUT)


@pytest.mark.parametrize(("text", "function"), [(HYBRID, hybrid), (M2N, m2n)])
def test_both_front_ends_and_the_printed_form_are_one_program(text: str, function: Program) -> None:
    program = parsed(text)
    assert function == program
    assert parsed(print_program(program)) == program


def test_a_let_stands_for_a_place_or_for_a_size_where_its_name_stands() -> None:
    text = HYBRID.replace("    x    : in", "    let side = tp\n    x    : in").replace("[tp, M, N]", "[side, M, N]")
    text = text.replace("q: tp", "q: side").replace("left[tp + 1", "left[side + 1")
    assert text.count("side") == 4 and parsed(text) == parsed(HYBRID)


def of_rank(program: str, place: str) -> str:
    """The rank after `@` in a program of one push there, as it is printed."""
    text = f"program p(M) over {program}:\n    x : in [M]\n    h : symmetric [ranks, M]\n    y : out [ranks, M]\n"
    text += f"    comm send(i: M):\n        tile_push_data(h[rank, i] @ {place}, x[i])\n"
    push, *_ = statements(compiler.parse(text, "p.tl").program().stages[0].body)
    assert isinstance(push, Transfer) and push.target.rank is not None
    return print_scalar(push.target.rank)


@pytest.mark.parametrize(
    ("over", "place", "written"),
    [
        ("(dp, tp = 4)", "(tp = tp + 1)", "rank // 4 * 4 + (rank % 4 + 1) % 4"),
        ("(dp, tp = 4)", "(dp = dp - 1)", "(rank // 4 - 1) % (ranks // 4) * 4 + rank % 4"),
        ("(dp, tp = 4)", "(tp = tp)", "rank // 4 * 4 + rank % 4"),
        ("(dp, tp = 4)", "(dp = 0, tp = 5)", "0 * 4 + 5 % 4"),
        ("(dp = 2, tp = 4)", "(dp = 1)", "4 + rank % 4"),
        ("(tp)", "(tp = tp + 1)", "(rank + 1) % ranks"),
        ("a = ranks[2 : 5]", "a[4]", "2 + 4 % 3"),
        ("a = ranks[2 : 5]", "a[ranks.a - 1]", "2 + (3 - 1) % 3"),
        ("a = ranks[2 :]", "a[rank % ranks.a]", "2 + rank % (ranks - 2)"),
        ("a = ranks[2 :]", "a[rank - 2]", "2 + (rank - 2)"),
        ("a = ranks[: 2]", "a[rank]", "rank"),
        ("(tp)", "(tp = rank + 1)", "(rank + 1) % ranks"),
        ("a = ranks[: 2]", "a[1]", "1"),
    ],
)
def test_places_are_modulo_their_number(over: str, place: str, written: str) -> None:
    assert of_rank(over, place) == written


def test_every_coordinate_of_a_grid_of_three_can_be_another_one() -> None:
    """With places of some coordinates replaced, the rank is the one at these places that else is where this one is."""
    shape = (2, 3, 4)
    names = ("a", "b", "c")
    text = (
        "program p(M) over (a, b = 3, c = 4):\n    x : in [M]\n    h : symmetric [ranks, M]\n    y : out [ranks, M]\n"
    )
    for count in (1, 2, 3):
        for changed in itertools.combinations(range(3), count):
            places = ", ".join(f"{names[d]} = {names[d]} + {d + 1}" for d in changed)
            body = f"    comm send(i: M):\n        tile_push_data(h[rank, i] @ ({places}), x[i])\n"
            push, *_ = statements(compiler.parse(text + body, "p.tl").program().stages[0].body)
            assert isinstance(push, Transfer) and push.target.rank is not None
            for number, own in enumerate(itertools.product(*map(range, shape))):
                at = [(p + d + 1) % n if d in changed else p for d, (p, n) in enumerate(zip(own, shape, strict=True))]
                wanted = (at[0] * 3 + at[1]) * 4 + at[2]
                env = Env(rank=number, ranks=24, params={}, indices={})
                assert evaluate(push.target.rank, env) == wanted, (places, own)


def ran(program: Program, number: int, dims: dict[str, int]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The inputs x of all ranks, and the outputs y of a launch on CPU ranks, which agree with the reference."""
    kernel = tilelink.compile(program, dims=dims, ranks=number)
    (inputs,) = random_inputs(program, ranks=number, dims=dims, dtype="f32", launches=1)
    outputs, expected = kernel(inputs), kernel.reference(inputs)
    for own, wanted in zip(outputs, expected, strict=True):
        torch.testing.assert_close(own["y"], wanted["y"])
    return [one["x"] for one in inputs], [one["y"] for one in outputs]


@thorough(unless=lambda number: number == 4)
@pytest.mark.parametrize("number", [2, 4, 6])
def test_a_program_over_a_grid_runs(number: int) -> None:
    x, y = ran(hybrid, number, {"M": 8, "N": 16})
    for dp, tp in itertools.product(range(number // 2), range(2)):
        for n in range(number // 2):
            difference = x[2 * n + 1 - tp] - x[2 * n + tp]
            factor = 2.0 if n == (dp + 1) % (number // 2) else 1.0
            torch.testing.assert_close(y[2 * dp + tp][n], factor * difference)


@thorough(unless=lambda number, attention: (number, attention) == (3, 1))
@pytest.mark.parametrize(("number", "attention"), [(3, 1), (3, 2), (4, 2)])
def test_a_program_of_two_groups_runs(number: int, attention: int) -> None:
    x, y = ran(m2n, number, {"A": attention, "C": 8, "N": 16})
    for rank_ in range(number):
        own = torch.arange(number - attention)[:, None, None]
        wanted = 2.0 * x[rank_] + own if rank_ < attention else torch.zeros_like(y[rank_])
        torch.testing.assert_close(y[rank_], wanted)


def test_a_missing_wait_between_groups_is_refused() -> None:
    wait = "        consumer_tile_wait(got[s, c, :])\n"
    assert wait in M2N
    with pytest.raises(TileLinkError, match="nothing orders the two"):
        tilelink.compile(parsed(M2N.replace(wait, "")), dims={"A": 2, "C": 8, "N": 16}, ranks=4)


@pytest.mark.parametrize(
    ("program", "number", "dims", "message", "column"),
    [
        (HYBRID, 3, {"M": 8, "N": 16}, "3 ranks do not form a grid dp x 2", 32),
        (HYBRID.replace("(dp,", "(dp = 3,"), 4, {"M": 8, "N": 16}, "4 ranks do not form a grid 3 x 2", 36),
        (HYBRID.replace("tp = 2", "tp = N - 16"), 4, {"M": 8, "N": 16}, "tp = 0", 32),
        (M2N, 4, {"A": 4, "C": 8, "N": 16}, r"experts = ranks\[4 : 4\] has no ranks", 53),
        (M2N, 2, {"A": 3, "C": 8, "N": 16}, r"attention = ranks\[0 : 3\] is no part of 2 ranks", 27),
    ],
)
def test_ranks_that_do_not_fit_are_refused(
    program: str, number: int, dims: dict[str, int], message: str, column: int
) -> None:
    made = parsed(program)
    with pytest.raises(TileLinkError, match=message) as refused:
        tilelink.compile(made, dims=dims, ranks=number)
    place = refused.value.location
    assert place is not None and (place.line, place.column) == (1, column) and refused.value.hint
    with pytest.raises(TileLinkError, match=message):
        tilelink.reference.run(made, [{} for _ in range(number)], dims)


@pytest.mark.parametrize(
    ("old", "new", "message", "underlined"),
    [
        ("(dp, tp = 2)", "(dp, tp)", "tp has no size", "tp"),
        ("(dp, tp = 2)", "(dp, dp = 2)", "dp is declared twice", "dp"),
        ("(dp, tp = 2)", "(dp, M = 2)", "M is declared twice", "M"),
        ("(dp, tp = 2)", "(dp, tp = 0)", "the size of tp is 0", "0"),
        ("(dp, tp = 2)", "(dp, tp = rank)", "the size of tp cannot depend on rank", "rank"),
        ("@ (tp = q)", "@ (pp = q)", "unknown coordinate or group 'pp'", "pp = q"),
        ("@ (tp = q)", "@ (tp = q, tp = 1)", "tp twice", "tp = 1"),
        ("@ (tp = q)", "@ rank()", "not a rank", "rank()"),
        ("@ (tp = q)", "@ rank(1)", "not a rank", "rank(1)"),
        ("@ (tp = q)", "@ (tp = rank)", "rank counts all ranks, and this is a place of the coordinate tp", "rank"),
        ("left[tp, i, :] @", "left[rank, i, :] @", "rank counts all ranks", "rank"),
        ("left[tp + 1, i, j]", "left[1 + -rank, i, j]", "rank counts all ranks", "rank"),
        ("sums[dp, i, j] @", "sums[rank * 2, i, j] @", "a place of the coordinate dp", "rank"),
        ("n == dp + 1", "n == sums[rank, 0, 0]", "rank counts all ranks", "rank"),
        ("@ (tp = q)", "@ tp[q]", "tp is a coordinate of the grid, and no group", "tp[q]"),
        ("left[tp, i, :] @", "left[rank.sp, i, :] @", "unknown coordinate or group 'sp'", "rank.sp"),
        ("n == dp + 1", "n == dq + 1", "unknown name 'dq'", "dq"),
        ("take(n: dp, i: M, j: N)", "take(n: dp, i: M, j: N) on tp", "tp is a coordinate of the grid", "tp"),
        ("take(n: dp, i: M, j: N)", "take(n: dp, i: M, j: N) on ep", "unknown group 'ep'", "ep"),
    ],
)
def test_mistakes_with_a_grid_are_said_where_they_are(old: str, new: str, message: str, underlined: str) -> None:
    check_refused(HYBRID, old, new, message, underlined)


@pytest.mark.parametrize(
    ("old", "new", "message", "underlined"),
    [
        ("experts = ranks[A :]", "experts = A", "experts is no part of the ranks", "A"),
        ("experts = ranks[A :]", "experts = ranks[:]", "experts is no part of the ranks", "ranks[:]"),
        ("experts = ranks[A :]", "experts = ranks[rank :]", "cannot depend on rank", "rank"),
        ("@ experts[e]", "@ experts", "experts is a group, and an integer is needed here", "experts"),
        ("@ experts[e]", "@ experts[:]", "which rank of experts?", "experts[:]"),
        ("@ experts[e]", "@ (experts = e)", "experts is a group", "experts = e"),
        ("@ experts[e]", "@ experts[rank]", "a place of the group experts", "rank"),
        ("back[rank.experts", "back[rank", "a place of the group experts", "rank"),
        ("back[rank.experts", "back[rank - A + 1", "a place of the group experts", "rank"),
        ("@ attention[s]", "@ attention[rank + 1]", "a place of the group attention", "rank"),
        ("got[rank.attention", "got[rank.experts", "a rank outside of experts has no place in it", "rank.experts"),
        ("c: C) on attention", "c: C) on attentoin", "unknown group 'attentoin'", "attentoin"),
        ("x    : in        [experts", "x    : in        [expert", "unknown name 'expert'", "expert"),
    ],
)
def test_mistakes_with_groups_are_said_where_they_are(old: str, new: str, message: str, underlined: str) -> None:
    check_refused(M2N, old, new, message, underlined)


def check_refused(program: str, old: str, new: str, message: str, underlined: str) -> None:
    """The program with a mistake is refused with one error, whose caret is under what is wrong."""
    assert old in program
    with pytest.raises(TileLinkError, match=message) as refused:
        parsed(program.replace(old, new, 1))
    place = refused.value.location
    assert place is not None and place.text is not None, str(refused.value)
    assert place.text[place.column - 1 :][: place.length] == underlined and refused.value.hint


def test_the_number_of_a_rank_is_a_place_where_it_is_that_of_the_group() -> None:
    """So are its neighbours, in a stage of the group; and what is no more than the place of this rank."""
    for old, new in (("got[rank.attention", "got[rank"), ("back[rank.experts", "back[rank - A")):
        assert parsed(M2N.replace(old, new)) == parsed(M2N)
    next_one = M2N.replace("got[rank.attention,", "got[rank + 1,")
    assert parsed(next_one) == parsed(M2N.replace("rank.attention,", "rank.attention + 1,"))
    with pytest.raises(TileLinkError, match=r"rank.experts is the place of this rank; if places repeat on purpose"):
        parsed(M2N.replace("back[rank.experts", "back[rank"))
    with pytest.raises(TileLinkError, match=r"rank.experts is the place of this rank, in a stage on experts; if"):
        parsed(M2N.replace("@ experts[e]", "@ experts[rank]"))


def test_a_place_in_a_group_outside_of_its_stages_is_refused() -> None:
    text = M2N.replace(" on attention:\n        let there = got", ":\n        let there = got")
    with pytest.raises(TileLinkError, match="a rank outside of attention has no place in it"):
        parsed(text)


COUNTED = """program counted(A, C, N) over attention = ranks[0 : A], experts = ranks[A :]:
    x     : in        [experts, C, N] on attention
    count : in        [experts] <= C on attention
    n     : symmetric [attention] <= C on experts
    got   : symmetric [attention, C, N] on experts
    y     : out       [N] on experts

    comm tell(e: experts) on attention:
        tile_push_data(n[rank.attention] @ experts[e], count[e])
        producer_tile_notify(n[rank.attention] @ experts[e])

    comm send(e: experts) on attention:
        for (c: C[: count[e]]):
            tile_push_data(got[rank.attention, c, :] @ experts[e], x[e, c, :])
            producer_tile_notify(got[rank.attention, c, :] @ experts[e])

    compute total(j: N) on experts:
        acc = zeros(f32)
        for (s: attention):
            consumer_tile_wait(n[s])
            for (c: C[: n[s]]):
                consumer_tile_wait(got[s, c, j])
                acc += sum(got[s, c, j], axis=0)
        y[j] = acc
"""


def test_counts_that_a_group_has_end_loops_of_its_stages() -> None:
    program, dims = parsed(COUNTED), {"A": 2, "C": 12, "N": 16}
    kernel = tilelink.compile(program, dims=dims, ranks=4)
    inputs = random_inputs(program, ranks=4, dims=dims, dtype="f32", launches=1)[0]
    outputs = kernel(inputs)
    for e in range(2):
        wanted = sum(inputs[s]["x"][e, : int(inputs[s]["count"][e])].sum(0) for s in range(2))
        torch.testing.assert_close(outputs[2 + e]["y"], wanted)


def test_the_programs_of_the_language_page_run() -> None:
    text = (Path(__file__).parents[2] / "docs" / "language.md").read_text()
    blocks = [one for one in re.findall(r"```tilelink\n(.*?)```", text, re.S) if " over " in one.partition("\n")[0]]
    assert blocks
    for block in blocks:
        program = parsed(block)
        dims = {p.name: 8 for p in program.params if p.kind == "dim"} | {p.name: 1 for p in program.params if p.example}
        kernel = tilelink.compile(program, dims=dims, ranks=4)
        inputs = random_inputs(program, ranks=4, dims=dims, dtype="f32", launches=1)[0]
        outputs, expected = kernel(inputs), kernel.reference(inputs)
        assert relative_error(*compared(outputs, expected, "y")) < 1e-5


def test_positions_of_a_coordinate_or_a_group_are_its_places() -> None:
    text = """program places(M) over attention = ranks[0 : 1], experts = ranks[1 :]:
    ids : in  [M] i32 from 0 to 2 on attention
    y   : out [experts] i32 on attention

    compute count() on attention:
        y[:] = sum(i32(ids[:][:, None] == pos(experts)[None, :]), axis=0)
"""
    program = tilelink.parse(text).program()
    ids = torch.tensor([0, 2, 2, 1, 2], dtype=torch.int32)
    outputs = tilelink.compile(program, ranks=4, dims={"M": 5})([{"ids": ids}, {}, {}, {}])
    assert outputs[0]["y"].tolist() == [1, 1, 3]
