"""Generated source: no name that nothing reads, and lines that fit a screen."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from tests.backend.test_loop_roles_source import bound as loop
from tests.backend.test_roles_source import bound as product
from tests.compiler import library
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.backend.render import environment
from tilelink.backend.source import WIDTH, needed, used, wrapped
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import make_plan

PROGRAMS = {
    "product": lambda: product(K=320),
    "loop": loop,
    "a mask": lambda: loop("a window"),
}


PLAIN = ("ag_gemm_ring-copy_sms", "attention_gradients-default", "moe_rows_experts-default", "expert_parallel-default")
ROLES = [library.name(case) for case in library.cases() if library.has_roles(case)][::12]


def of_library(name: str) -> Bound:
    case = next(case for case in library.cases() if library.name(case) == name)
    program, schedule = case
    sizes = library.fitted(case, library.wide(program, 2))
    return compiler.plan(program, schedule, ranks=2, dims=sizes, dtype="bf16", target="sm_90").bound


def unread(source: str) -> set[str]:
    """The names of functions that are assigned to, or parameters of roles, and that nothing reads; not of loops."""
    found: set[str] = set()
    for function in (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)):
        names = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        given = {name.id for name in names if isinstance(name.ctx, ast.Store)}
        given |= {arg.arg for arg in function.args.args if function.name.startswith("_")}
        given -= {ast.unparse(node.target) for node in ast.walk(function) if isinstance(node, ast.For)}
        found |= given - {name.id for name in names if isinstance(name.ctx, ast.Load)}
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_name_what_they_read_in_lines_that_fit(name: str) -> None:
    made: Bound = PROGRAMS[name]()
    text = emit(made, make_plan(made).thresholds).text
    source = text[text.index("@gluon.jit") :].partition("@triton.jit")[0]
    assert max(map(len, source.splitlines())) <= WIDTH
    assert unread(source) == set()


@pytest.mark.parametrize("name", PLAIN)
def test_kernels_without_roles_name_what_they_read_in_lines_that_fit(name: str) -> None:
    made = of_library(name)
    text = emit(made, make_plan(made).thresholds).text
    assert unread(text) == set()
    assert max(len(line) for line in text.splitlines() if not line.startswith("#")) <= WIDTH


@pytest.mark.parametrize("name", [*PROGRAMS, *PLAIN, *ROLES])
def test_lines_are_broken_where_the_program_stays_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is proved is what runs: text is changed after the proof."""
    asked: list[str] = []

    def same(text: str) -> str:
        made = wrapped(text)
        assert ast.dump(ast.parse(dedent(made))) == ast.dump(ast.parse(dedent(text)))
        asked.append(text)
        return made

    monkeypatch.setitem(environment().filters, "wrapped", same)
    made: Bound = PROGRAMS[name]() if name in PROGRAMS else of_library(name)
    emit(made, make_plan(made).thresholds)
    assert any(len(line) > WIDTH for text in asked for line in text.splitlines())


def test_statements_after_a_condition_stay_in_its_line() -> None:
    """So do words of a comment, which would be statements in a line of their own."""
    steps = "; ".join(f"step_{n} = {n}" for n in range(20))
    for text in (f"if x: {steps}\n", f"for x in y: {steps}\n", f"x = 1  # {steps}\n"):
        assert wrapped(text) == text
    assert len(wrapped(f"{steps}\n").splitlines()) == 2


def test_statements_are_needed_if_something_reads_their_value_or_they_do_more() -> None:
    text = "    a = 1\n    b = (a + 1).to(tl.int32)\n    c = take(a)\n    for d in range(4):\n        e = d\n"
    assert needed(text) == text.replace("    b = (a + 1).to(tl.int32)\n", "")
    assert used(["a", "b", "c"], "    # b\n    c = a\n") == ["a", "c"]


def test_arguments_by_name_begin_a_line_of_a_long_call() -> None:
    place, named = ", ".join(f"argument_{n}" for n in range(9)), "tile=tile, step=f(x=1)"
    assert wrapped(f"    y = call({place}, {named})\n") == f"    y = call({place},\n            {named})\n"
    assert wrapped(f"    call(a=b, {place}=c, {named})\n").startswith(f"    call(a=b, {place[:9]}")


def test_long_lines_break_after_arguments_and_before_operators() -> None:
    long = ", ".join(f"argument_{n}" for n in range(20))
    sums = " + ".join(f"summand_{n}" for n in range(20))
    text = f"    x = f(1, ({sums}), g({long}))\n    # {' '.join(['word'] * 40)}\n    A = 1; B = 2\n"
    made = wrapped(text)
    assert max(map(len, made.splitlines())) <= WIDTH
    assert ast.dump(ast.parse(made.replace("    x", "x").replace("    A", "A"))) == ast.dump(
        ast.parse(f"x = f(1, ({sums}), g({long}))\nA = 1; B = 2")
    )
