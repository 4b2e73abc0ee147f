"""Index tensors, parts of dimensions and what outputs define: both front ends, printing, and mistakes."""

from __future__ import annotations

import linecache
from dataclasses import replace

import pytest

import tilelink
from tests.reference.launch_texts import EXPERTS, MOE, ROWS
from tilelink import compiler
from tilelink.errors import SeveralErrors, TileLinkError
from tilelink.frontend.checker import check
from tilelink.frontend.parser import parse_text
from tilelink.ir.depth import NUMBER_LEVELS
from tilelink.ir.printer import print_program
from tilelink.ir.program import For, Program
from tilelink.ir.scalar import Binary, Coordinate, Int, Lookup, Param, Scalar
from tilelink.ir.typing import infer
from tilelink.language import (
    Dim,
    Index,
    by,
    consumer_tile_wait,
    dot,
    f32,
    let,
    producer_tile_notify,
    rank,
    ranks,
    tile_push_data,
    tiles,
    zeros,
)

ALL = """
program p(M = 8, N = 4, T = 6, E = 2):
    m      : in        [] <= M from 1 to M
    rows   : in        [T] < M rising
    place  : in        [T] < T distinct
    starts : in        [2, E + 1] <= T offsets distinct
    sent   : in symmetric [ranks] <= M
    owner  : in        [T, N] < ranks
    slot   : in        [T, N] < sent[(owner + 1) % ranks] - 1
    told   : symmetric [ranks] <= M
    made   : local     [T, 2] < M + N
    x      : in        [M, N]
    v      : in        [M[: m], T[: sent[0]]]
    y      : out       [T, M[: m], N]
    z      : out       [ranks, M[: told + 1 - 1]] i32 within 0.5
    s      : out       [2, T[: starts[0, E]]]

    comm tell(p: ranks, i: M[m :]):
        tile_push_data(told[rank] @ p, min(m + i, M))
        producer_tile_notify(told[rank] @ p)
    compute f(e: E by 1, t: T[starts[1, e] : starts[1, e + 1]] by 1, j: N):
        let row = rows[place[t]]
        made[t, 0] = row
        if made[t, 0] > 2 and m != 1 or told[rank] == rank:
            acc = zeros(f32)
            for (r: T[: starts[0, 1]], k: M[rows[0] : m] by 1):
                acc += x[k, j] * x[rows[r], k]
            y[place[t], 0, j] = acc + m * 2 + rows[t]
"""


@pytest.mark.parametrize("text", [ALL, ROWS, MOE, EXPERTS], ids=["all", "rows", "moe", "experts"])
def test_a_printed_program_is_the_same_program(text: str) -> None:
    (program,) = parse_text(text).programs
    printed = print_program(program)
    assert parse_text(printed).programs == (program,)
    assert print_program(parse_text(printed).programs[0]) == printed


def test_what_declarations_say() -> None:
    program = compiler.parse(ALL).program()
    rows, starts, slot = (program.tensor(name) for name in ("rows", "starts", "slot"))
    assert (rows.dtype, rows.bound, rows.properties) == ("i32", Param(name="M"), ("rising",))
    assert starts.bound == Binary(op="+", left=Param(name="T"), right=Int(value=1))
    assert starts.properties == ("offsets", "distinct")
    here = (Coordinate(dim=0), Coordinate(dim=1))
    assert Lookup(table="owner", coords=here, launch=True) in _parts(slot.bound)
    assert program.tensor("y").defined == (None, Lookup(table="m", coords=(), launch=True), None)
    assert program.tensor("v").defined[0] == Lookup(table="m", coords=(), launch=True)
    assert program.tensor("sent").symmetric and program.tensor("made").space == "local"
    e, t, j = program.stage("f").indices
    assert e.number and t.number and t.counted and not j.counted and not e.counted
    loop = next(s for s in print_program(program).splitlines() if "for (" in s)
    assert "r: T[:starts[0, 1]], k: M[rows[0] : m] by 1" in loop


def _parts(expr: object) -> list[object]:
    inner = expr.coords if isinstance(expr, Lookup) else (expr.left, expr.right) if isinstance(expr, Binary) else ()
    return [expr, *(part for one in inner for part in _parts(one))]


# The Python form ---------------------------------------------------------------------------------------------


@tilelink.program
def rows(Ms: Dim = 40, N: Dim = 24, K: Dim = 16) -> None:  # type: ignore[assignment]
    m = tilelink.input(at_most=Ms)
    x = tilelink.input(Ms, K)
    w = tilelink.input(N, K)
    ms = tilelink.symmetric(ranks, at_most=Ms)
    xs = tilelink.symmetric(ranks, Ms, K)
    y = tilelink.output(ranks, Ms[:ms], N)

    @tilelink.comm
    def tell(p: Index = ranks) -> None:
        tile_push_data(ms[rank] @ p, m)
        producer_tile_notify(ms[rank] @ p)

    @tilelink.comm
    def gather(p: Index = ranks, i: Index = Ms[:m]) -> None:
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)

    @tilelink.compute
    def gemm(s: Index = ranks, i: Index = Ms, j: Index = N) -> None:
        """Rows that there are."""
        i = Ms[: ms[s]]
        consumer_tile_wait(ms[s])
        consumer_tile_wait(xs[s, i, :])
        y[s, i, j] = dot(xs[s, i, :], w[j, :].T)


@tilelink.program
def moe(Ms: Dim = 32, K: Dim = 16, N: Dim = 24, E: Dim = 4, T: Dim = 48) -> None:  # type: ignore[assignment]
    x = tilelink.input(Ms, K)
    w = tilelink.input(E, N, K)
    rows = tilelink.input(T, bound=ranks * Ms)
    starts = tilelink.input(E + 1, at_most=T, offsets=True)
    xs = tilelink.symmetric(ranks * Ms, K)
    y = tilelink.output(T[: starts[E]], N)

    @tilelink.comm
    def gather(p: Index = ranks, i: Index = Ms) -> None:
        tile_push_data(xs[rank * Ms + i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank * Ms + i, :] @ p)

    @tilelink.compute
    def experts(e: Index = E, r: Index = T, j: Index = N) -> None:
        r = T[starts[e] : starts[e + 1]]
        consumer_tile_wait(xs[rows[r], :])
        y[r, j] = dot(xs[rows[r], :], w[e, j, :].T)


@tilelink.program
def many(M: Dim, T: Dim) -> None:
    n = tilelink.input(M, at_most=T)
    at = tilelink.input(T, bound=T, distinct=True, rising=False)
    up = tilelink.local(T, bound=M, rising=True)
    told = tilelink.symmetric(ranks, at_most=M)
    q = tilelink.input(M, bound=n)
    y = tilelink.output(M, T)

    @tilelink.compute
    def f(i: Index = by(M, 1), t: Index = by(T, 1)) -> None:
        t = T[: n[i]]
        own = let(at[t] + 1)
        up[t] = n[0] * 2
        total = zeros(f32)
        for k in tiles(T[:own]):
            total += n[0] + told[rank] + q[k]
        for _, b in tiles(ranks, by(M[up[t] :], 1)):
            total += 1.0 * b
        y[i, at[t]] = total


MANY = """
program many(M, T):
    n    : in        [M] <= T
    at   : in        [T] < T distinct
    up   : local     [T] < M rising
    told : symmetric [ranks] <= M
    q    : in        [M] < n
    y    : out       [M, T]

    compute f(i: M by 1, t: T[: n[i]] by 1):
        up[t] = n[0] * 2
        total = zeros(f32)
        for (k: T[: at[t] + 1]):
            total += n[0] + told[rank] + q[k]
        for (_: ranks, b: M[up[t] :] by 1):
            total += 1.0 * b
        y[i, at[t]] = total
"""


@pytest.mark.parametrize(("function", "text"), [(rows, ROWS), (moe, MOE), (many, MANY)], ids=["rows", "moe", "many"])
def test_a_python_program_is_that_of_the_text(function: Program, text: str) -> None:
    (program,) = parse_text(text).programs
    assert function == program and print_program(function) == print_program(program)


FORM = """\
@tilelink.program
def p(M, T):
    m = tilelink.input({options})
    y = tilelink.output(M, T)

    @tilelink.compute
    def f(i: Index = {extent}, j: Index = T):
        {first}
        y[i, j] = 1.0
"""


@pytest.mark.parametrize(
    ("options", "extent", "first", "message", "hint"),
    [
        ("bound=M, at_most=M", "M", "", "two bounds", "at_most=M where M may occur"),
        ("M, distinct=True", "M", "", "m cannot be distinct", "m : in [T] < M distinct"),
        ("M, bound=M, distinct=1", "M", "", "distinct is True or False", "distinct=True"),
        ("M, bound=M, sorted=True", "M", "", "unknown option sorted", "distinct=True"),
        ("at_most=M", "M", "i = T[:m]", "i runs over M, and this is a part of T", "i = M[...], once"),
        ("at_most=M", "M[:m]", "i = M[:m]", "i runs over M[:m], and this is a part of M", "once"),
        ("at_most=M", "by(M, 1)", "i = T[:m]", "i runs over M, and this is a part of T", "i = M[...], once"),
        ("at_most=M", "M", "i = M[:m:2]", "not a part of a dimension", "M[a : b]"),
        ("at_most=M", "M", "i = M[:]", "not a part of a dimension", "M[a : b]"),
        ("at_most=M", "M", "i = M[: m[0]]", "m has 0 dimensions, not 1", "one coordinate each"),
    ],
)
def test_a_mistake_in_the_python_form(options: str, extent: str, first: str, message: str, hint: str) -> None:
    text = FORM.format(options=options, extent=extent, first=first)
    linecache.cache["launch.py"] = (len(text), None, text.splitlines(keepends=True), "launch.py")
    names = {"tilelink": tilelink, "M": [0], "T": None, "Index": int, "m": None, "by": lambda *_: None}
    with pytest.raises(TileLinkError) as caught:
        exec(compile(text.replace("M[:m]", "M"), "launch.py", "exec"), names)
    assert message in caught.value.message and hint in str(caught.value.hint)
    assert caught.value.location is not None and caught.value.location.file == "launch.py"


# Mistakes ----------------------------------------------------------------------------------------------------

PROGRAM = """program p(M, N, T, E):
    m      : in        [] <= M
    rows   : in        [T] < M
    starts : in        [E + 1] <= T offsets
    owner  : in        [T] < ranks
    x      : in        [M, N]
    h      : symmetric [M, N]
    n      : symmetric [ranks] <= M
    y      : out       [T[: starts[E]], N]

    comm tell(p: ranks):
        tile_push_data(n[rank] @ p, m)
        producer_tile_notify(n[rank] @ p)
    comm send(i: M[: m]):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))
    compute f(e: E, r: T[starts[e] : starts[e + 1]], j: N):
        y[r, j] = x[rows[r], j]
"""
M, Z, H, Y, P, D, TELL, S = (PROGRAM.splitlines()[k] for k in (1, 2, 6, 8, 10, 13, 15, 17))

# A line, what is in its place, and the error: its message, line, column and a part of its hint
MISTAKES = [
    (M, "    m : in [] <= M offsets", "m cannot rise", 2, 5, "has one entry"),
    (Z, "    rows : in [T] distinct", "rows cannot be distinct", 3, 5, "rows : in [T] < M distinct"),
    (Z, "    rows : in [T] < M rising rising", "one property twice", 3, 5, "name each once"),
    (Z, "    rows : table [T] < M rising", "rows cannot be rising", 3, 5, "take rising away"),
    (Z, "    rows : in [T] f32 < M", "an index tensor of f32", 3, 19, "an index tensor holds i32"),
    (Z, "    rows : in [T] < 0", "the bound of rows is 0", 3, 21, "sizes are positive"),
    (Z, "    rows : in [T] < rank", "the bound of rows cannot depend on rank", 3, 21, "the same on every rank"),
    (Z, "    rows : in [T] < M + m", "the bound of rows cannot be M + m", 3, 21, "count[owner]"),
    (Z, "    rows : in [T] < owner", "unknown name 'owner'", 3, 21, "known"),
    (Z, "    rows : in [T] < count[m]", "unknown index tensor 'count'", 3, 21, "m"),
    (Z, "    rows : in [T] < M = 0", "did not expect '='", 3, 23, "docs/language.md"),
    (Z, "    rows : in [T] < M within 0.5", "not the tolerance of an output", 3, 30, "y : out"),
    (Z, "    rows : in [T[: m]] < M", "a part of a dimension", 3, 16, "given, from the first element up to m"),
    (Y, "    y : out [T[: starts[E]], N] <= M", "the output y has a bound", 9, 5, "local and symmetric"),
    (Y, "    y : out [T[m : starts[E]], N]", "a part of a dimension", 9, 14, "given, from the first element up to m"),
    (Y, "    y : out [T[: x[0, 0]], N]", "x is not an index tensor", 9, 18, "entries of x : in [...] < M"),
    (Y, "    y : out [T[: starts], N]", "which entry of starts[:]?", 9, 18, "starts[i] is one"),
    (Y, "    y : out [T[: M], N]", "T[: M] of y is the same in every launch", 9, 18, "let the dimension be M"),
    (Y, "    y : out [T[:], N]", "not a part of a dimension", 9, 14, "M[a : b]"),
    (H, "    h : symmetric [M[: m], N]", "a part of a dimension", 7, 20, "given, from the first element up to m"),
    (P, "    comm tell(p: ranks[: m]):", "a part of the ranks", 11, 15, "loop over all ranks"),
    (D, "    comm send(i: M[: i]):", "unknown name 'i'", 14, 22, "known"),
    (D, "    comm send(i: M[: rank]):", "nothing of i: M[...] comes from an index tensor", 14, 15, "n : in [] <= M"),
    (D, "    comm send(i: M[m]):", "M is no index tensor", 14, 18, "(i: M[a : b])"),
    (D, "    comm send(i: M[: rows]):", "which entry of rows[:]?", 14, 22, "rows[i] is one"),
    (D, "    comm send(i: M[: rows[:]]):", "all of rows is no integer", 14, 22, "by an index"),
    (D, "    comm send(i: M[: h[0, 0]]):", "h is not an index tensor", 14, 22, "entries of h"),
    (
        D,
        "    comm send(i: M[: m * (rank > 0)]):",
        "an end of the range of i cannot be the truth value",
        14,
        27,
        "integer",
    ),
    (D, "    comm send(i: M[: m : 2]):", "did not expect ':'", 14, 24, "(i: M[a : b])"),
    (S, "        y[r, j] = x[rows, j]", "which entry of rows[:]?", 18, 21, "rows[i] is one"),
    (S, "        y[r, j] = x[rows[r, 0], j]", "rows has 1 dimensions, not 2", 18, 21, "one coordinate each"),
    (S, "        y[r, j] = x[m[0], j]", "m has 0 dimensions, not 1", 18, 21, "one coordinate each"),
    (S, "        y[r, j] = x[row[r], j]", "unknown index tensor 'row'", 18, 21, "rows"),
    (S, S + "\n        rows[r] = 1", "rows is an input", 19, 9, "write to an out, local or symmetric"),
    (TELL, TELL + "\n        n[0] = x[0, 0]", "n holds i32, and x[0, 0] is of the element type", 17, 16, "i32(value)"),
]


@pytest.mark.parametrize("kind", ["f32", "bool"])
@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        (D, "    comm send(i: M[: m * E]):", "an end of the range of i"),
        (Y, "    y : out [T[: starts[E]], N[: m + E]]", "the end of what is defined of y"),
        (Z, "    rows : in [T] < m + E", "the bound of rows"),
    ],
)
def test_an_end_is_an_integer(old: str, new: str, what: str, kind: str) -> None:
    text = PROGRAM.replace("T, E):", f"T, E, F: {kind}):").replace(old, new.replace("E]", "F]").replace("+ E", "+ F"))
    with pytest.raises(TileLinkError) as caught:
        check(compiler.parse(text).program())
    assert f"DtypeError: {what} cannot be F, which is {kind}" in str(caught.value)


@pytest.mark.parametrize("place", ["i: M[: {}]", "i: M[{} :]"])
def test_an_end_that_is_too_deep_is_refused(place: str) -> None:
    deep_end: Scalar = Lookup(table="m", coords=(), launch=True)
    for _ in range(NUMBER_LEVELS + 2):
        deep_end = Binary(op="%", left=Int(value=7), right=deep_end)
    program = compiler.parse(PROGRAM).program()
    send = program.stage("send")
    index = replace(send.indices[0], **{"stop" if "[: " in place else "start": deep_end})
    stages = tuple(replace(s, indices=(index,)) if s.name == "send" else s for s in program.stages)
    loop = replace(send, body=(For(indices=(replace(index, name="k"),), body=send.body),))
    for changed in (stages, tuple(loop if s.name == "send" else s for s in program.stages)):
        with pytest.raises(TileLinkError, match="an integer expression has more than"):
            check(replace(program, stages=changed))
    defined = replace(program.tensor("y"), defined=(deep_end, None))
    with pytest.raises(TileLinkError, match="an integer expression has more than"):
        check(replace(program, tensors=tuple(defined if t.name == "y" else t for t in program.tensors)))


@pytest.mark.parametrize(("old", "new", "message", "line", "column", "hint"), MISTAKES)
def test_a_mistake_is_one_error_with_its_place(
    old: str, new: str, message: str, line: int, column: int, hint: str
) -> None:
    assert PROGRAM.count(old) == 1
    with pytest.raises(TileLinkError) as caught:
        check(compiler.parse(PROGRAM.replace(old, new)).program())
    error = caught.value
    assert not isinstance(error, SeveralErrors), str(error)
    assert message in error.message and hint in str(error.hint), str(error)
    assert error.location is not None
    assert (error.location.line, error.location.column) == (line, column), str(error)


# A line, what is in its place, and what the plan is refused for
UNSAFE = [
    (TELL, "        producer_tile_notify(h[rows[i], :] @ (rank + 1))", "whose place only a launch decides"),
    (TELL, "        producer_tile_notify(h[i, :] @ owner[0])", "whose place only a launch decides"),
    (TELL, "        if m > 2:\n    " + TELL, "notifies in a branch that only a launch decides"),
    (TELL, TELL + "\n        if m > 2:\n            h[0, :] = x[0, :]", "nothing orders the two"),
    (S, "        if rows[0] > 1:\n    " + S, "in a part of the launches"),
    (Y, "    y : out [T, N]", "the end of the last segment of starts only"),
    (Z, "    rows : in [T] < M + 1", "reaches outside x"),
]


@pytest.mark.parametrize(("old", "new", "message"), UNSAFE)
def test_what_a_launch_may_not_decide_is_refused(old: str, new: str, message: str) -> None:
    program = check(compiler.parse(PROGRAM.replace(old, new)).program())
    with pytest.raises(TileLinkError) as caught:
        compiler.plan(program, ranks=3, dims={"M": 4, "N": 3, "T": 6, "E": 2})
    assert message in str(caught.value)


def test_the_program_of_the_mistakes_is_safe() -> None:
    program = check(compiler.parse(PROGRAM).program())
    assert compiler.plan(program, ranks=3, dims={"M": 4, "N": 3, "T": 6, "E": 2}).tasks


ONE = """
program p(M, N):
    n : in    [] <= M
    t : local [] <= M
    x : in    [M, N]
    y : out   [M[: t], N]

    compute count():
        {}
        producer_tile_notify(t)

    compute copy(i: M[: t], j: N):
        consumer_tile_wait(t)
        y[i, j] = x[i, j]
"""


def test_one_integer_is_written_with_brackets_or_without() -> None:
    bare, brackets = (compiler.parse(ONE.format(line)).program() for line in ("t = n // 2", "t[] = n[] // 2"))
    assert str(bare) == str(brackets) == str(compiler.parse(str(brackets)).program())
    assert "t = n // 2" in str(bare)


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("    t : local [] <= M\n", "", "unknown name 't'", "known"),
        ("t : local [] <= M", "t : local [] i32", "t is a tile, and an integer is needed here", "t : local [] <= M"),
        ("y[i, j] = x[i, j]", "y[i, j] = x[]", "x has 2 dimensions, not 0", "one coordinate each"),
        (
            "y[i, j] = x[i, j]",
            "k = n // 2\n        if k > 0:\n            y[i, j] = x[i, j]",
            "k is a tile, and an integer is needed here",
            "let k = ... names an integer",
        ),
    ],
)
def test_hints_for_integers_of_a_launch(old: str, new: str, message: str, hint: str) -> None:
    text = ONE.format("t = n")
    assert old in text
    with pytest.raises(TileLinkError) as caught:
        compiler.check(compiler.parse(text.replace(old, new)).program())
    assert message in str(caught.value) and hint in str(caught.value) and caught.value.location is not None


TWO_RANGES = """program p(M = 6, N = 4):
    n : in  [] <= M
    m : in  [] <= M
    x : in  [M, N]
    y : out [2, N]

    compute f(j: N):
        a = zeros(f32)
        b = zeros(f32)
        for (q: {first}):
            a += x[q, j]
        for (q: {second}):
            b += x[q, j]
        y[0, j] = a
        y[1, j] = b
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [("M[: n] by 1", "M by 1"), ("M by 1", "M[: n] by 1"), ("M[: n] by 1", "M[: m] by 1"), ("M[n :]", "M[n : m]")],
)
def test_an_index_of_two_ranges_is_refused_with_both(first: str, second: str) -> None:
    """All that belongs to an index is known by its name: the second range would be that of both loops."""
    with pytest.raises(TileLinkError) as caught:
        check(compiler.parse(TWO_RANGES.format(first=first, second=second)).program())
    error = caught.value
    ranges = [one.removesuffix(" by 1").replace("[: ", "[:") for one in (first, second)]
    if "[n :" not in first:
        assert error.message == f"q runs over {ranges[0]} and over {ranges[1]}"
    assert error.location is not None and error.location.line == 12
    assert error.related is not None and error.related.line == 10
    assert "a name of its own" in str(error.hint)
    check(compiler.parse(TWO_RANGES.format(first=first, second=first)).program())


@pytest.mark.parametrize(("first", "second"), [("M by 1", "M"), ("M", "M by 1")])
def test_an_index_by_1_in_one_of_two_loops_is_a_number_in_both(first: str, second: str) -> None:
    text = f"""
program p(M):
    x : in  [M]
    y : out [2, M]
    compute f():
        for (q: {first}):
            y[0, q] = x[q]
        for (q: {second}):
            y[1, q] = x[q]
"""
    assert infer(compiler.parse(text).program()).scalar_indices("f") == {"q"}
