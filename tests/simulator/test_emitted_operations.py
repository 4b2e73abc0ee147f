"""The operations that a simulation counts are those of the emitted statements, in loops that carry a state."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tests.gpu.loop_forms import FORMS
from tests.lowering import test_roles_summed as summed
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.planning.plan import make_plan
from tilelink.simulator.work import WorkOf, executions

SHAPES = {"multiply": "scores", "multiply_rows": "state", "filled_rows": "rows", "rows": "rows", "columns": "columns"}
SIZES = {"ITERATION_ROWS": "scores", "COLUMNS": "state"}
WIDEST = ("", "columns", "rows", "sums", "state", "scores")
SAME = ("retire", "operand")


@dataclass(kw_only=True)
class Counted:
    """Counts operations on tiles in statements of a consumer. shapes: name -> what it is, "" for a number."""

    shapes: dict[str, str] = field(default_factory=dict[str, str])
    every: Counter[str] = field(default_factory=Counter[str])
    special: Counter[str] = field(default_factory=Counter[str])

    def statements(self, body: list[ast.stmt], at: Counter[str] | None = None) -> None:
        for one in body:
            if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name):
                self.shapes[one.targets[0].id] = self.shape(one.value)

    def shape(self, node: ast.expr) -> str:
        """Count the operations of an expression, and return what it is."""
        match node:
            case ast.Name(id=name):
                return self.shapes.get(name, "")
            case ast.BinOp(left=left, right=right):
                return self.elementwise(left, right)
            case ast.Compare(left=left, comparators=[right]):
                return self.elementwise(left, right)
            case ast.Subscript(value=inner):
                return self.shape(inner)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="roles"), attr=name), args=args):
                return self.call(name, args)
            case ast.Call(func=ast.Attribute(attr=name), args=args):
                found = self.elementwise(*args)
                self.special[found] += name in ("exp2", "exp", "log", "sqrt")
                return found
            case _:
                return ""

    def elementwise(self, *args: ast.expr) -> str:
        found = max((self.shape(one) for one in args), key=WIDEST.index)
        self.every[found] += 1
        return found

    def call(self, name: str, args: list[ast.expr]) -> str:
        match name:
            case "across":
                self.shape(args[0])
                return self.shapes.get(ast.unparse(args[1]), "")
            case "row_max" | "row_sum" | "row_min" | "partial_sums":
                self.every[self.shape(args[0])] += 1
                return "sums" if name == "partial_sums" else "rows"
            case "filled":
                return SIZES[ast.unparse(args[2])]
            case _:
                return self.shape(args[0]) if name in SAME else SHAPES.get(name, "")


@dataclass(frozen=True, kw_only=True)
class Iteration:
    """The operations of an iteration, elementwise and special, without a mask and of the mask that a branch has."""

    own: tuple[float, float]
    masked: tuple[float, float]


def iterations(source: str, sizes: dict[str, int]) -> tuple[Iteration, Iteration]:
    """Return what a consumer of the source executes in the first iteration of a tile, and in others."""
    function = next(
        one for one in ast.parse(source).body if isinstance(one, ast.FunctionDef) and "consumer" in one.name
    )
    tiles = next(one for one in function.body if isinstance(one, ast.For))
    loop = next((n for n, one in enumerate(tiles.body) if _over_iterations(one)), len(tiles.body))
    begin = next(n for n, one in enumerate(tiles.body) if "ready_barriers" in ast.unparse(one))
    end = next(n for n, one in enumerate(tiles.body) if "vacant_barriers" in ast.unparse(one))
    own = Counted()
    own.statements(tiles.body[:begin])
    own.every.clear()
    found = [_iteration(own, tiles.body[begin:loop], sizes)]
    if loop < end:
        inside = tiles.body[loop]
        assert isinstance(inside, ast.For)
        found.append(_iteration(own, inside.body, sizes))
    peeled = "roles.multiply(" in ast.unparse(ast.Module(body=tiles.body[begin:loop], type_ignores=[]))
    return found[0] if peeled else found[-1], found[-1]


def _over_iterations(node: ast.stmt) -> bool:
    return isinstance(node, ast.For) and ast.unparse(node.target) == "number"


def _iteration(own: Counted, body: list[ast.stmt], sizes: dict[str, int]) -> Iteration:
    own.every, own.special = Counter(), Counter()
    own.statements(body)
    base = _total(own.every, sizes), _total(own.special, sizes)
    own.every, own.special = Counter(), Counter()
    for branch in body:
        if isinstance(branch, ast.If):
            own.statements(branch.body)
    return Iteration(own=base, masked=(_total(own.every, sizes), _total(own.special, sizes)))


def _total(counts: Counter[str], sizes: dict[str, int]) -> float:
    return sum(number * sizes.get(what, 0) for what, number in counts.items())


@pytest.mark.parametrize(
    "name",
    ["online softmax", "softmax in steps", "linear", "vectors of rows and columns", "documents", "short iterations",
     "causal", "causal, one product in flight",
     "causal, from the diagonal down", "a window"],
)  # fmt: skip
def test_an_iteration_counts_what_its_consumers_execute(name: str) -> None:
    form = FORMS[name]
    module = compiler.parse(form.text, "loops.tl")
    dims: dict[str, Any] = {"H": 2, "D": form.D, "N": form.N, "B": form.B}
    bound = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=dims, dtype="bf16", target="sm_90")
    plan = make_plan(bound)
    sizes = {"scores": form.i * form.j, "state": form.i * form.D, "rows": form.i, "sums": form.i, "columns": form.j}
    first, further = iterations(emit(bound, plan.thresholds).text, sizes)
    of = WorkOf(plan)
    checked = masked = 0
    for one in executions(plan):
        if one.stage.name != "gemm":
            continue
        begin = {task: one.position[one.task == task].min() for task in np.unique(one.task)}
        for alike, work in of.works(one):
            if not work.overlapped:
                continue
            share = max((alike.masked or {0: 0.0}).values())
            starts = {bool(position == begin[task]) for task, position in zip(alike.task, alike.position, strict=True)}
            for start in starts:
                wanted = first if start else further
                by_branch = share if wanted.masked[0] else 0.0
                every, special = (a + by_branch * b for a, b in zip(wanted.own, wanted.masked, strict=True))
                # what is done once for each row, or for each column, is counted roughly
                assert abs(work.elementwise - every) <= 8 * form.i, (start, share, work.elementwise, every)
                assert abs(work.special - special) <= 2 * form.i
                checked += 1
                masked += share > 0
    assert checked and bool(masked) == bool(form.mask)


@pytest.mark.parametrize("lines", [summed.SCALED, summed.BLOCKS, summed.OVER_RANKS], ids=["rows", "blocks", "plain"])
def test_a_sum_of_products_counts_what_its_consumers_execute(lines: tuple[str, ...]) -> None:
    bound = summed.bound(lines, M=128, N=128)
    plan = make_plan(bound)
    source = ast.parse(emit(bound, plan.thresholds).text).body
    consumer = next(one for one in source if isinstance(one, ast.FunctionDef) and "consumer" in one.name)
    assigned = (one for one in ast.walk(consumer) if isinstance(one, ast.Assign))
    sums = [one.value for one in assigned if ast.unparse(one.targets[0]) == "total_1"]
    tiles = {"total_1": "scores", "product": "scores"}
    own = Counted(shapes={**tiles, "u_tile": "rows", "s_tile": "rows", "v_tile": "columns"})
    for one in sums:
        if isinstance(one, ast.BinOp):
            own.shape(one)
    iterations = 2 if "q: ranks" in lines[0] else 3
    every = _total(own.every, {"scores": 128 * 128, "rows": 128, "columns": 128}) * iterations
    works = [work for one in executions(plan) if one.stage.name == "gemm" for _, work in [*WorkOf(plan).works(one)]]
    of_sum = [work for work in works if work.products]
    flops = sum(product.flops for work in of_sum for product in work.products) * (iterations // len(of_sum))
    assert flops == 2 * 128 * 128 * 64 * iterations
    if lines != summed.OVER_RANKS:
        assert sum(work.elementwise for work in of_sum) * (iterations // len(of_sum)) == every > 0
