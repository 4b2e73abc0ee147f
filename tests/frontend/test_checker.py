# pyright: basic
# ruff: noqa: E501 - programs of one line
"""Wrong programs: each mistake is found, with its class, its location and a hint."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

import tilelink
from tilelink import compiler
from tilelink.cli import app
from tilelink.errors import SeveralErrors, TileLinkError, UnknownNameError
from tilelink.frontend.checker import check

HEAD = """\
program p(M, N, K, f: f32, flag: bool, n: i32):
    x : in [M, K]
    w : in [N, K]
    t : table [M] < M
    c : local [M, N]
    h : symmetric [ranks, M, N]
    xs : in symmetric [M, N]
    y : out [M, N]
    z : out [M, N] i32
"""
FILL = "    compute fill(i: M, j: N):\n        z[i, j] = 1\n"
Y = "y[i, j] = 1.0"


def body(*lines: str, domain: str = "i: M, j: N") -> str:
    """Return a program with these lines in a stage."""
    return HEAD + f"    compute f({domain}):\n" + "".join(f"        {line}\n" for line in lines) + FILL


def one(declaration: str, statement: str = "y[i] = 1.0", params: str = "M") -> str:
    """Return a program with one more declaration."""
    return f"program p({params}):\n    {declaration}\n    y : out [M]\n    compute f(i: M):\n        {statement}\n"


# Errors are (class, line, column, message).
WRONG: dict[str, tuple[str, list[tuple[str, int, int, str]]]] = {
    "an axis of a tensor": (body("c[i, :] = x[:, None]", Y), [("ParseError", 11, 24, "None is no coordinate")]),
    "remote wait": (
        body("consumer_tile_wait(h[0, i, j] @ 1)", "producer_tile_notify(h[0,i,j])", Y),
        [("RemoteAccessError", 11, 28, "a wait is on the own rank")],
    ),
    "remote nonsym": (
        body("tile_push_data(c[i, j] @ 1, 1.0)", Y),
        [("RemoteAccessError", 11, 24, "peers cannot reach c, which is local and not symmetric")],
    ),
    "remote read": (
        body("c[i, j] = dot(x[i, :] @ 1, w[j, :].T)", Y),
        [("RemoteAccessError", 11, 23, "peers cannot reach x, which is in and not symmetric")],
    ),
    "notify remote local": (
        body("producer_tile_notify(c[i, j] @ (rank + 1))", Y),
        [("RemoteAccessError", 11, 30, "peers cannot reach c, which is local and not symmetric")],
    ),
    "write in": (
        body("x[i, :] = 0.0", Y),
        [("WriteError", 11, 9, "x is an input")],
    ),
    "write table": (
        body("t[i] = 0", Y),
        [("WriteError", 11, 9, "t is a table, filled before the launch")],
    ),
    "push to in": (
        body("tile_push_data(xs[i, j] @ 1, 1.0)", Y),
        [("WriteError", 11, 24, "xs is an input")],
    ),
    "pull remote": (
        body("tile_pull_data(h[0, i, j] @ 1, xs[i, j])", Y),
        [("RemoteAccessError", 11, 24, "tile_pull_data writes on the own rank")],
    ),
    "push source": (
        body("tile_push_data(h[0, i, j], xs[i, j] @ 1)", Y),
        [("RemoteAccessError", 11, 36, "tile_push_data sends what the own rank has")],
    ),
    "copy both": (
        body("rank_copy_data(h[0, i, j] @ 1, xs[i, j] @ 2)", Y),
        [("RemoteAccessError", 11, 9, "rank_copy_data between two other ranks")],
    ),
    "no notify": (
        body("consumer_tile_wait(h[0, i, j])", Y),
        [
            (
                "AccountingError",
                11,
                9,
                "consumer_tile_wait waits for h, which no producer_tile_notify of the program names",
            )
        ],
    ),
    "wrong pair": (
        body("peer_tile_wait(h[0, i, j])", "producer_tile_notify(h[0, i, j])", Y),
        [("AccountingError", 11, 9, "peer_tile_wait waits for h, which no peer_tile_notify of the program names")],
    ),
    "wait input": (
        body("consumer_tile_wait(x[i, :])", Y),
        [
            (
                "AccountingError",
                11,
                9,
                "consumer_tile_wait waits for x, which no producer_tile_notify of the program names",
            )
        ],
    ),
    "never written": (
        body("c[i, j] = 1.0"),
        [("CoverageError", 8, 5, "nothing writes the output y")],
    ),
    "read never": (
        body("c[i, j] = h[0, i, j]", Y),
        [("CoverageError", 11, 19, "h is read here, and nothing writes it")],
    ),
    "unused index": (
        body(Y, domain="i: M, j: N, s: ranks"),
        [("CoverageError", 11, 9, "every tile of s writes the same elements of y")],
    ),
    "loop write": (
        body("for (s: ranks):", "    y[i, j] = 1.0"),
        [("CoverageError", 12, 13, "every tile of s writes the same elements of y")],
    ),
    "before assigned": (
        body("c[i, j] = acc", "acc = 1.0", Y),
        [("UnknownNameError", 11, 19, "unknown name 'acc'")],
    ),
    "one branch": (
        body("if rank == 0:", "    v = 1.0", "c[i, j] = v", Y),
        [("UnknownNameError", 13, 19, "v has a value in one branch of 'if rank == 0' only")],
    ),
    "ended": (
        body("for (k: K):", "    v = x[i, k]", "c[i, j] = sum(v, axis=1)[:, None]", Y),
        [("ShapeError", 13, 23, "v is a tile of k, whose loop has ended")],
    ),
    "call bare": (
        body("c[i, j] = call g(1.0)", Y),
        [("UnknownNameError", 11, 19, "call g of which module?")],
    ),
    "call nomod": (
        body("c[i, j] = call no_mod.g(1.0)", Y),
        [("UnknownNameError", 11, 19, "no module 'no_mod'")],
    ),
    "call nofn": (
        body("c[i, j] = call textwrap.g(1.0)", Y),
        [("UnknownNameError", 11, 19, "no 'g' in module textwrap")],
    ),
    "table float": (
        body("c[i, j] = t[i][:, None] * 2.5", Y),
        [("DtypeError", 11, 19, "t[i] is an entry of a table, used as a floating-point number")],
    ),
    "dot int": (
        body("c[i, j] = dot(x[i, :], z[i, :].T)", Y),
        [
            ("ShapeError", 11, 19, "dot contracts :K of T[i, :K] with :N of i32[:N, i]"),
            ("DtypeError", 11, 32, "dot multiplies floating-point tiles, and z[i, :].T is i32"),
        ],
    ),
    "where float": (
        body("c[i, j] = where(c[i, j], 1.0, 2.0)", Y),
        [("DtypeError", 11, 25, "where needs a condition, and c[i, j] is a number")],
    ),
    "int store": (
        body("z[i, j] = 1.5", Y),
        [("DtypeError", 11, 19, "z holds i32, and 1.5 is f32")],
    ),
    "rank dim": (
        "program p(M):\n    y : out [rank, M]\n    compute f(i: M):\n        y[0, i] = 1.0\n",
        [("ShapeError", 2, 14, "a dimension of y cannot depend on rank")],
    ),
    "float dim": (
        "program p(M, s: f32):\n    y : out [s, M]\n    compute f(i: M):\n        y[0, i] = 1.0\n",
        [("DtypeError", 2, 14, "a dimension of y cannot be s, which is f32")],
    ),
    "zero dim": (
        "program p(M):\n    y : out [0, M]\n    compute f(i: M):\n        y[0, i] = 1.0\n",
        [("ShapeError", 2, 14, "a dimension of y is 0")],
    ),
    "float coord": (
        body("c[f, j] = 1.0", Y),
        [("DtypeError", 11, 11, "f is f32, no integer")],
    ),
    "truth coord": (
        body("c[i < 3, j] = 1.0", Y),
        [("DtypeError", 11, 11, "i < 3 is a truth value, no integer")],
    ),
    "rank f": (
        body("tile_push_data(h[0, i, j] @ f, 1.0)", Y),
        [("DtypeError", 11, 37, "f is f32, no integer")],
    ),
    "same idx": (
        body("c[i, j] = 1.0", Y, domain="i: M, i: N"),
        [
            ("DuplicateNameError", 10, 21, "i is declared twice"),
            ("UnknownNameError", 11, 14, "unknown name 'j'"),
            ("UnknownNameError", 12, 14, "unknown name 'j'"),
        ],
    ),
    "loop idx": (
        body("for (k: K):", "    c[i, j] = sum(x[i, k], axis=1)[:, None]", "for (k: N):", "    c[i, k] = 1.0", Y),
        [
            ("ShapeError", 12, 27, "index k runs over N, but that dimension of x is K"),
            ("DuplicateNameError", 13, 14, "k runs over K and over N"),
        ],
    ),
    "rank extent": (
        body("for (k: rank):", "    c[i, j] = 1.0", Y),
        [("ShapeError", 11, 17, "the extent of k cannot depend on rank")],
    ),
    "dep extent": (
        body("for (k: i):", "    c[i, j] = 1.0", Y),
        [("ShapeError", 11, 17, "the extent of k cannot depend on i")],
    ),
    "state store": (
        body("s = online_softmax(f32)", "c[i, j] = s", Y),
        [("DtypeError", 12, 9, "a softmax state cannot be stored")],
    ),
    "state sum": (
        body("s = online_softmax(f32)", "c[i, j] = sum(s, axis=0)", Y),
        [
            ("ShapeError", 12, 19, "a reduction over that axis needs 1 axes, not state[]"),
            ("DtypeError", 12, 23, "s is a softmax state, no tile"),
        ],
    ),
    "finish of nothing": (
        body("s = online_softmax(f32)", "c[i, j] = finish(s)", Y),
        [("DtypeError", 12, 26, "s is a softmax state that has attended to nothing")],
    ),
    "finish tile": (
        body("c[i, j] = finish(x[i, :])", Y),
        [
            ("ShapeError", 11, 9, "shapes [i, j] and [i, :K] do not fit"),
            ("DtypeError", 11, 26, "finish needs the name of a softmax state, not x[i, :]"),
        ],
    ),
    "bound": (
        "program p(M):\n    x : in [M]\n    y : out [M] < M\n    compute f(i: M):\n        y[i] = x[i]\n",
        [("ParseError", 3, 5, "the output y has a bound")],
    ),
    "local sym": (
        "program p(M):\n    x : local symmetric [M]\n    y : out [M]\n    compute f(i: M):\n        y[i] = 1.0\n",
        [("ParseError", 2, 5, "a local tensor is never symmetric")],
    ),
    "table nobound": (
        "program p(M):\n    x : table [M]\n    y : out [M]\n    compute f(i: M):\n        y[i] = 1.0\n",
        [("ParseError", 2, 5, "table x has no bound")],
    ),
    "unclosed": (
        "program p(M):\n    y : out [M]\n    compute f(i: M):\n        y[i] = (1.0\n    compute g(i: M):\n        y[i] = 1.0]\n",
        [("ParseError", 4, 16, "'(' is never closed"), ("ParseError", 6, 19, "']' closes nothing")],
    ),
    "dedent": (
        "program p(M):\n    y : out [M]\n    compute f(i: M):\n        if rank == 0:\n            y[i] = 1.0\n          y[i] = 1.0\n",
        [("ParseError", 6, 11, "indentation that matches no block")],
    ),
    "else if": (
        "program p(M):\n    y : out [M]\n    compute f(i: M):\n        if rank == 0:\n            y[i] = 1.0\n        else if rank == 1:\n            y[i] = 1.0\n",
        [("ParseError", 6, 14, "did not expect 'if' here")],
    ),
    "many": (
        body(
            "a = q + 1",
            "b = a + 1",
            "u = x[i, :] + w[j, :]",
            "c[i, j] = u",
            "c[j, i] = 1.0",
            "x[i, 0] = 1.0",
            "tile_wait(x)",
            Y,
        ),
        [
            ("UnknownNameError", 11, 13, "unknown name 'q'"),
            ("UnknownNameError", 17, 9, "unknown primitive 'tile_wait'"),
        ],
    ),
    "syn": (
        "program p(M):\n    y : : out [M]\n    x : in [M]\n    compute f(i: M):\n        y[i] = 1.0\n    compute g(i: M):\n        z[i] = 1 +\n        z[i] = 1 +\nprogram q(M)\n    y : out [M]\n",
        [
            ("ParseError", 2, 9, "did not expect ':' here"),
            ("ParseError", 7, 19, "did not expect the end of the line here"),
            ("ParseError", 9, 13, "did not expect the end of the line here"),
        ],
    ),
    "chain": (
        body("if 0 < rank < 3:", "    c[i, j] = 1.0", Y),
        [("ParseError", 11, 21, "did not expect '<' here")],
    ),
    "float cond": (
        body("if f > 0.5:", "    c[i, j] = 1.0", Y),
        [("ParseError", 11, 16, "not an integer expression")],
    ),
    "tile cond": (
        body("v = x[i, :]", "if v > 0:", "    c[i, j] = 1.0", Y),
        [("ParseError", 12, 12, "v is a tile, and an integer is needed here")],
    ),
    "red axis": (
        body("c[i, j] = sum(c[i, j], axis=2)", Y),
        [("ShapeError", 11, 19, "a reduction over that axis needs 3 axes, not T[i, j]")],
    ),
    "assign in": (
        body("rank = 3", Y),
        [("DuplicateNameError", 11, 9, "rank cannot be assigned")],
    ),
    "pos": (
        body("c[i, j] = pos(Q)", Y),
        [("UnknownNameError", 11, 23, "unknown index or dimension 'Q'")],
    ),
    "pos of what is no size": (
        body("c[i, j] = pos(i + 1)", Y),
        [("ParseError", 11, 19, "i + 1 is no size")],
    ),
    "shape": (
        body("c[i, j] = x[i, :]", Y),
        [("ShapeError", 11, 9, "shapes [i, j] and [i, :K] do not fit")],
    ),
    "attend": (
        body("s = online_softmax(f32)", "s = attend(s, x[i, :], c[j, :], w[j, :], f)", "c[i, :] = finish(s)", Y),
        [
            ("ShapeError", 12, 32, "index j runs over N, but that dimension of c is M"),
            ("ShapeError", 13, 9, "shapes [i, :N] and [i, :K] do not fit"),
        ],
    ),
    "junk": (
        "hello world\n",
        [("ParseError", 1, 1, "did not expect 'hello' here")],
    ),
    "onlyhead": (
        "program p(M):\n",
        [("ParseError", 1, 14, "did not expect the end of the file here")],
    ),
    "chinese": (
        "program p(M):\n    é : out [M]\n",
        [("ParseError", 2, 5, "did not expect 'é' here")],
    ),
    "tab": (
        "program p(M):\n\ty : out [M]\n\tcompute f(i: M):\n\t\ty[i] = qq\n",
        [("UnknownNameError", 4, 10, "unknown name 'qq'")],
    ),
    "two": (
        "program p(M):\n    y : out [M]\n    compute f(i: M):\n        y[i] = 1.0\nprogram p(M):\n    y : out [M]\n    compute f(i: M):\n        y[i] = 1.0\n",
        [("DuplicateNameError", 5, 9, "program p twice")],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_every_mistake_is_found(name: str) -> None:
    text, expected = WRONG[name]
    with pytest.raises(TileLinkError) as caught:
        for program in compiler.parse(text, "wrong.tl").programs:
            check(program)
    errors = caught.value.errors if isinstance(caught.value, SeveralErrors) else (caught.value,)
    found = [(type(e).__name__, e.location.line, e.location.column, e.message) for e in errors if e.location]
    assert found == expected
    for error in errors:
        assert error.hint
        assert "^" in str(error)


def test_check_prints_all_mistakes(tmp_path: Path) -> None:
    path = tmp_path / "wrong.tl"
    path.write_text(body("x[i, :] = 0.0", "t[i] = 0", Y))
    done = CliRunner().invoke(app, ["check", str(path)])
    assert done.exit_code == 1
    assert done.stderr.count("WriteError: ") == 2
    assert f"{path}:11:9" in done.stderr
    assert f"{path}:12:9" in done.stderr
    assert done.stderr.count("^\n") == 4
    assert "2 mistakes" in done.stderr
    assert "Traceback" not in done.output


def test_check_prints_the_mistakes_of_every_program(tmp_path: Path) -> None:
    path = tmp_path / "wrong.tl"
    path.write_text(body("x[i, :] = 0.0", Y) + one("x : in [M]", "x[i] = y[i]").replace("p(", "q(", 1))
    done = CliRunner().invoke(app, ["check", str(path)])
    assert (done.exit_code, done.stderr.count("x is an input")) == (1, 2)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wrong.tl"
    path.write_bytes(b"program \xff\xfe")
    done = CliRunner().invoke(app, ["check", str(path)])
    assert done.exit_code == 1
    assert "ParseError" in done.stderr
    assert "hint: programs are UTF-8 text" in done.stderr


def test_several_errors_contain_each_error(tmp_path: Path) -> None:
    program = tilelink.parse(body("x[i, :] = 0.0", "t[i] = 0", Y)).program()
    with pytest.raises(SeveralErrors) as caught:
        tilelink.check(program)
    assert [e.message for e in caught.value.errors] == ["x is an input", "t is a table, filled before the launch"]
    assert caught.value.location == caught.value.errors[0].location


RIGHT = {
    "a later if": ["if rank == 0:", "    v = 1.0", "if not rank != 0:", "    c[i, j] = v", Y],
    "both branches": ["if rank == 0:", "    v = 1.0", "else:", "    v = 2.0", "c[i, j] = v", Y],
    "an earlier iteration": ["for (s: ranks):", "    if s == 0:", "        v = 1.0", "    c[i, j] = v", Y],
    "behind a loop": ["for (s: ranks):", "    v = x[i, :]", "c[i, j] = sum(v, axis=1)[:, None]", Y],
    "behind a loop over a dimension and more": [
        "for (k: K + ranks - 1):",
        "    v = 1.0 * k",
        "c[i, j] = v",
        Y,
    ],
    "in a loop with as many iterations": [
        "for (s: ranks - 1):",
        "    v = 1.0 * s",
        "for (q: ranks - 1):",
        "    c[i, j] = v",
        Y,
    ],
    "an accumulator": ["v = zeros(f32)", "for (k: K):", "    v += sum(x[i, k], axis=1)[:, None]", "c[i, j] = v", Y],
    "a table in comparisons": ["c[i, j] = where(pos(i)[:, None] < t[i][:, None], 1.0, 0.0)", Y],
    "the own rank by name": ["c[i, j] = dot(x[i, :] @ rank, w[j, :].T)", Y],
    "integers": ["c[i, j] = f32(t[i])[:, None] * 2.5", Y],
}


@pytest.mark.parametrize(
    "extent", ["ranks - 1", "K // 2", "K - 1", "min(ranks - 1, K)", "ranks % 2", "n", "n * n", "(n + 1) // ranks"]
)
def test_a_loop_that_may_have_no_iterations_does_not_assign_a_name(extent: str) -> None:
    text = body(f"for (s: {extent}):", "    v = 1.0 * s", "c[i, j] = v", Y)
    with pytest.raises(UnknownNameError) as caught:
        check(compiler.parse(text).programs[0])
    assert caught.value.message == f"v has a value only where the loop that assigns it has iterations: {extent} > 0"
    assert caught.value.hint == "assign v before the loop"


@pytest.mark.parametrize("name", RIGHT)
def test_valid_programs_are_accepted(name: str) -> None:
    (program,) = compiler.parse(body(*RIGHT[name])).programs
    assert check(program) is program
