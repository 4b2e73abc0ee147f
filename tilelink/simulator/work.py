"""The work of a plan's statements: products, elementwise operations and memory traffic, per execution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilelink.ir.products import products_of
from tilelink.ir.program import (
    ITEM_BYTES,
    Apply,
    Assign,
    Attend,
    Dot,
    For,
    Reduce,
    Scan,
    Statement,
    Store,
    Transfer,
    UserCall,
    Value,
)
from tilelink.ir.scalar import Env, evaluate, indices_in
from tilelink.ir.typing import ELEMENT, Axis, StageTyping, product_dtype
from tilelink.ir.visitor import local_names, reads, statements, value_of, values
from tilelink.lowering.bound import BoundStage, KernelKind
from tilelink.lowering.columns import Ints
from tilelink.lowering.hulls import hull
from tilelink.lowering.iterations import loop_of
from tilelink.lowering.masks import PART, extremes_of
from tilelink.lowering.rings import OPERANDS
from tilelink.lowering.role_statements import products_of_tile
from tilelink.lowering.sink_waits import SlicedProduct, sliced_product
from tilelink.lowering.transform import number_of
from tilelink.lowering.walk import Rows, Walk
from tilelink.planning.plan import Plan
from tilelink.simulator.sampled import SampledPlan, elements_of, existing, part_of
from tilelink.simulator.thinned import ThinnedPlan, kept_steps, kept_tiles, weights_of

SPECIAL = {"exp", "exp2", "log", "sqrt", "rsqrt", "silu", "gelu", "sigmoid", "tanh"}
Floats = NDArray[np.float64]
Operations = tuple[tuple["Product", ...], float, float]
"""(products, elementwise operations, special functions among these)."""
SOFTMAX_STEPS = 6
"""Elementwise operations of an online softmax per score: scale, maximum, difference, sum, two casts."""
SORT_STEPS = 6
"""Elementwise operations of a comparison of a sort per element: the other of a pair, two comparisons, the choice, of
integers of 64 bits."""


@dataclass(frozen=True, kw_only=True)
class Product:
    """`count` matrix products [rows, inner] x [inner, columns]; a fraction is a mean over tiles cut at an edge."""

    rows: float
    columns: float
    inner: float
    count: float = 1

    @property
    def flops(self) -> float:
        return 2.0 * self.rows * self.columns * self.inner * self.count


@dataclass(frozen=True, kw_only=True)
class TileWork:
    """The work of one execution of a statement, and the schedule's choices that affect its time.

    elementwise, special: numbers of operations. traffic: bytes from and to memory; every byte is counted for one of the
    tiles that access it. programs: programs of a rank that run the stage. item: bytes of an operand's element. stages:
    blocks of operands in flight. kind: that of its kernel. overlapped: True if some consumers multiply while
    others compute, as in the iterations of a loop that carries a state.
    """

    stage: str
    products: tuple[Product, ...] = ()
    elementwise: float = 0.0
    special: float = 0.0
    traffic: float = 0.0
    item: int = 2
    block: int = 64
    num_warps: int = 4
    num_stages: int = 3
    flatten: bool = False
    kind: KernelKind = KernelKind.TILES
    overlapped: bool = False
    programs: int = 1


@dataclass(frozen=True, kw_only=True)
class Executions:
    """Executions of one statement of the plan, each a row of `task` and `position`.

    masked: the share of consumers that make each choice by positions of an iteration, by its number; None: not known.
    """

    number: int
    """The index of the statement in plan.statements."""
    stage: BoundStage
    statement: Statement
    rows: Rows
    masked: Mapping[int, float] | None = None

    @property
    def task(self) -> Ints:
        return self.rows.task

    @property
    def position(self) -> Ints:
        return self.rows.position


class _Executed(Walk):
    """Collects the executions of the statements of one stage after the other, without those that a launch leaves out.

    of_launch: True if its tables hold the entries of all index tensors.
    """

    def __init__(self, plan: Plan, tables: Mapping[str, NDArray[Any]]) -> None:
        super().__init__(plan.bound, plan.first_task, tables)
        self.executions: list[Executions] = []
        self._plan, self._of_launch = plan, isinstance(plan, SampledPlan)

    def tiles(self, stage: BoundStage) -> Ints:
        if not isinstance(self._plan, ThinnedPlan):
            return super().tiles(stage)
        return kept_tiles(stage, self.bound.ranks, self.first_task[stage.name], self._plan.repeats)

    def steps(self, stage: BoundStage, loop: For) -> Ints | None:
        return kept_steps(self._plan.loops, stage, loop) if isinstance(self._plan, ThinnedPlan) else None

    def visit(self, stage: BoundStage, number: int, statement: Statement, rows: Rows) -> None:
        if self._of_launch and stage.parts:
            rows = rows.pick(existing(self.bound, stage, statement, rows, self.env(rows)))
        if len(rows.task):
            self.executions.append(Executions(number=number, stage=stage, statement=statement, rows=rows))


def executions(plan: Plan, tables: Mapping[str, NDArray[Any]] | None = None) -> Iterator[Executions]:
    """Yield every statement of the plan that some task executes, in the plan's order, with all its executions.

    tables: the values that the plan was made with, and those of index tensors; needed if conditions read them.
    """
    walk = _Executed(plan, tables or {})
    for stage in plan.bound.stages.values():
        walk.stage(stage)
        yield from walk.executions
        walk.executions.clear()


class WorkOf:
    """The work of each statement of one plan."""

    def __init__(self, plan: Plan, tables: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._plan = plan
        self._tables = dict(tables or {})
        self._elements = elements_of(plan)
        self._typing = plan.bound.typing
        stages = plan.bound.stages
        self._kernels = {name: kernel for kernel in plan.bound.kernels for name in kernel.stage_names}
        taking = {n: loop.taking(k.programs) for k in plan.bound.kernels for loop in k.loops for n in loop.stages}
        resident = {n: plan.bound.resident_programs * k.programs_per_cta for n, k in self._kernels.items()}
        self.programs = {n: max(1, min(most, stages[n].total, resident[n])) for n, most in taking.items()}
        """stage -> programs of a rank that execute a tile of it at the same time."""
        tensors = sorted(plan.bound.tensors.values(), key=lambda t: t.number)
        self.items = np.array([t.item for t in tensors], dtype=np.int64)
        """Bytes of an element of each tensor in memory."""
        self.data = np.array([ITEM_BYTES[t.dtype] for t in tensors], dtype=np.int64)
        """Bytes of its value alone."""
        self._sliced = _sliced(plan)
        self._stores = _stored(plan, self._sliced)
        rows = plan.accesses
        self._order = np.argsort(rows.statement, kind="stable")
        self._starts = np.searchsorted(rows.statement[self._order], np.arange(len(plan.statements) + 1))

    def accesses(self, number: int) -> Ints:
        """Return the rows of plan.accesses of a statement."""
        return self._order[self._starts[number] : self._starts[number + 1]]

    def slices(self, one: Executions) -> int:
        """Return the number of executions of the statement that are slices of one product."""
        product = self._sliced.get(one.number)
        return one.stage.count(product.index) if product else 1

    def works(self, one: Executions) -> Iterator[tuple[Executions, TileWork]]:
        """Yield executions that have the same work, and the work of each; none if the statement computes nothing."""
        for alike in self._alike(one):
            if (work := self._work(alike, one)) is not None:
                yield alike, work

    def _alike(self, one: Executions) -> Iterator[Executions]:
        """Yield the executions of a statement that make the same choices by positions (lowering/masks.py).

        What vectors decide is not known: such a choice is counted as made.
        """
        stage = one.stage
        if not stage.masks or not len(one.task) or not _of_iteration(one):
            yield one
            return
        first = np.full(int(one.task.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, one.task, one.position)
        begins = first[one.task] == one.position
        shares = np.zeros((len(one.task), len(stage.masks)))
        unknown = extremes_of(self._plan.bound, stage).keys()
        consumers = stage.rings[OPERANDS].reader.groups
        for part in range(consumers):
            indices = {**one.rows.indices, PART: np.full(len(one.task), part)}
            env = Env(rank=one.rows.rank, ranks=self._plan.bound.ranks, params={}, indices=indices, tables=self._tables)
            for n, mask in enumerate(stage.masks):
                at_first, later = (
                    when if isinstance(when, bool) else bool(indices_in(when) & unknown) or evaluate(when, env)
                    for when in (mask.first, mask.further)
                )
                shares[:, n] += np.where(begins, at_first, later) / consumers
        kinds, kind = np.unique(shares, axis=0, return_inverse=True)
        for n, share in enumerate(kinds.tolist()):
            masked = dict(zip((mask.statement for mask in stage.masks), share, strict=True))
            yield replace(one, rows=one.rows.pick(kind.ravel() == n), masked=masked)

    def _work(self, one: Executions, every: Executions) -> TileWork | None:
        """Return the work of one execution, or of all slices of one product; None if the statement computes nothing.

        every: all executions of the statement, of which these are some.
        """
        product = self._sliced.get(one.number)
        value = product.whole if product else value_of(one.statement)
        if value is None or not len(one.task):
            return None
        stage = one.stage
        kernel = self._kernels[stage.name]
        typing = self._typing.stage(stage.name)
        of_iteration = _of_iteration(one)
        counted = [
            (share, _operations(typing, lambda axis: self._size(stage, axis), each))
            for each, share in of_iteration or ((value, 1.0),)
        ]
        products = tuple(product for _, (some, _, _) in counted for product in some)
        elementwise = sum(share * each for share, (_, each, _) in counted)
        special = sum(share * each for share, (_, _, each) in counted)
        if of_iteration == ():
            products, elementwise, special = (), 0.0, 0.0
        ring = stage.rings.get(OPERANDS)
        if products and ring is not None and not stage.has_loop:
            products = _side_by_side(stage, one.statement, products)
        traffic = self._traffic(every)
        if not (products or elementwise or special or traffic):
            return None
        return TileWork(
            stage=stage.name,
            products=products,
            elementwise=elementwise,
            special=special,
            traffic=traffic,
            item=max(self._item(typing, each) for each, _ in of_iteration or ((value, 1.0),)),
            block=stage.block if ring is None or stage.has_loop else self._plan.bound.contraction_block(stage.name),
            num_warps=kernel.num_warps,
            num_stages=ring.buffers if ring is not None else kernel.num_stages,
            flatten=stage.flatten,
            kind=stage.kind,
            overlapped=bool(of_iteration),
            programs=self.programs[stage.name],
        )

    def least(self, one: Executions) -> Floats:
        """Return [executions, 3]: flops of products as fast as those of 16 bits, elementwise operations and special
        functions of each execution, without the parts of tiles beyond an edge."""
        product = self._sliced.get(one.number)
        value, count = product.dot if product else value_of(one.statement), len(one.task)
        if value is None or not count:
            return np.zeros((count, 3))
        stage, known = one.stage, self._inside(one, value)

        def inside(axis: Axis) -> Any:
            if axis.index is None:
                return self._size(stage, axis)
            return known.get(axis.index, stage.extents[axis.index] / stage.count(axis.index))

        typing = self._typing.stage(stage.name)
        products, elementwise, special = _operations(typing, inside, value)
        faster = min(1.0, self._item(typing, value) / 2)  # tensor cores multiply 8 bits at twice the rate of 16
        columns = (faster * sum(product.flops for product in products), elementwise, special)
        return np.stack([np.broadcast_to(np.asarray(c, np.float64), (count,)) for c in columns], axis=1)

    def _item(self, typing: StageTyping, value: Value) -> int:
        """Return the bytes of an element of the operands that a value multiplies, the most of its products."""
        sizes: list[int] = []
        for part in values(value):
            if isinstance(part, Dot):
                dtypes = (typing.type_of(one).dtype for one in (part.left, part.right))
                dtype = product_dtype(*(self._plan.bound.dtype if one == ELEMENT else one for one in dtypes))
                sizes.append(ITEM_BYTES[dtype])
        return max(sizes, default=ITEM_BYTES[self._plan.bound.dtype])

    def _inside(self, one: Executions, value: Value) -> dict[str, Ints]:
        """Return index -> elements of its tile inside the edges of all regions of the statement, in each execution."""
        regions, bound = reads(value), self._plan.bound
        match one.statement:
            case Store(region=target) | Transfer(target=target):
                regions = [*regions, target]
            case _:
                pass
        env = Env(rank=one.rows.rank, ranks=bound.ranks, params={}, indices=one.rows.indices, tables=self._tables)
        found: dict[str, Ints] = {}
        for region in regions:
            for span in bound.tile_map(one.stage.name, region).spans:
                if span.index is None:
                    continue
                if span.kind == "tile":
                    size = hull(span.stop, env, bound.entries)[1] - hull(span.start, env, bound.entries)[0]
                elif isinstance(self._plan, SampledPlan):
                    first, stop = part_of(one.stage, span.index, env)
                    size = np.minimum(stop - first, one.stage.tiles[span.index])
                else:
                    size = one.stage.tiles[span.index]
                inside: Ints = np.broadcast_to(np.maximum(size, 0), one.task.shape)
                found[span.index] = np.minimum(inside, found[span.index]) if span.index in found else inside
        return found

    def _size(self, stage: BoundStage, axis: Axis) -> int:
        if axis.index is not None:
            return stage.tiles[axis.index]
        return number_of(axis.dim, self._plan.bound.numbers, self._plan.bound.ranks) if axis.dim is not None else 1

    def _traffic(self, one: Executions) -> float:
        """Return the distinct bytes on the statement's first rank, divided by the number of its executions there.

        A statement that stores the result of a sliced product has no traffic. As for other products, its traffic counts
        with the product, which hides it.
        """
        if one.number in self._stores:
            return 0.0
        plan, total = self._plan, one.stage.total
        first = plan.first_task[one.stage.name]
        rank = int(one.task[0] - first) // total
        begin, end = first + rank * total, first + (rank + 1) * total
        together = [one.number, *(number for number, product in self._stores.items() if product == one.number)]
        rows = np.concatenate([self.accesses(number) for number in together])
        a = plan.accesses
        rows = rows[(a.task[rows] >= begin) & (a.task[rows] < end) & (a.peer[rows] == rank)]
        moved = 0.0
        for tensor in np.unique(a.tensor[rows]):
            own = rows[a.tensor[rows] == tensor]
            lo, hi = a.lo[own], a.hi[own]
            touched = float((self._elements[own] * weights_of(plan, a.task[own], a.position[own])).sum())
            box = float(np.prod(hi.max(axis=0) - lo.min(axis=0), dtype=np.float64))
            moved += min(touched, box) * int(self.items[tensor])
        own = (one.task >= begin) & (one.task < end)
        runs = float(np.broadcast_to(weights_of(plan, one.task[own], one.position[own]), own.sum()).sum())
        return moved / runs * self.slices(one)


def _of_iteration(one: Executions) -> tuple[tuple[Value, float], ...] | None:
    """Return the values of an iteration of a loop whose warps have roles, for the statement that ends it, each with the
    share of consumers that compute it.

    Return () for another statement of the iteration, and None for a statement of no such loop. Consumers do the
    products and the computations of an iteration at the same time, so that it is counted as a whole.
    """
    stage, statement = one.stage, one.statement
    if stage.kind is not KernelKind.ROLES or not stage.has_loop:
        return None
    tile, masked = loop_of(stage), one.masked or {}
    if not isinstance(statement, Assign) or not any(statement is s for s in statements(tile.loop.body)):
        return None
    if statement is not tile.trailing[-1].statement:
        return ()
    computed = ((s.value, masked.get(number, 1.0)) for number, s in enumerate(tile.compute))
    # tensor cores add the trailing products
    sums = ((value, 1.0) for one in tile.trailing for value in (one.added_to, one.dot) if value is not None)
    return (*((one.dot, 1.0) for one in tile.leading), *computed, *sums)


def _side_by_side(stage: BoundStage, statement: Statement, products: tuple[Product, ...]) -> tuple[Product, ...]:
    """Return what counts for a statement of a stage with roles whose products have a left operand in common.

    Consumers do them as one product with the columns of all. It counts for the first statement that has one.
    """
    if (several := len(products_of_tile(stage))) < 2:
        return products
    first = next(s for s in stage.stage.body if products_of(value_of(s)))
    return (replace(products[0], columns=products[0].columns * several),) if statement is first else ()


def _sliced(plan: Plan) -> dict[int, SlicedProduct]:
    """Return statement number -> product, for the statements that multiply the slices of a product."""
    numbers = {id(statement): number for number, (_, statement) in enumerate(plan.statements)}
    found: dict[int, SlicedProduct] = {}
    for stage in plan.bound.stages.values():
        for statement in statements(stage.stage.body):
            if isinstance(statement, For) and (product := sliced_product(stage, statement)) is not None:
                found[numbers[id(statement.body[-1])]] = product
    return found


def _stored(plan: Plan, explicit: Mapping[int, SlicedProduct]) -> dict[int, int]:
    """Return the statements that use the result of a sliced product -> the statement that multiplies its slices."""
    names = {(plan.statements[number][0], product.name): number for number, product in explicit.items()}
    found: dict[int, int] = {}
    for number, (stage, statement) in enumerate(plan.statements):
        value = value_of(statement)
        for name in local_names(value) if value is not None and number not in explicit else ():
            if (stage, name) in names:
                found[number] = names[stage, name]
    return found


def _operations(typing: StageTyping, size: Callable[[Axis], float], value: Value) -> Operations:
    products: list[Product] = []
    elementwise = special = 0.0

    def shape(part: Value) -> list[float]:
        return [size(axis) for axis in typing.type_of(part).axes]

    for part in values(value):
        match part:
            case Dot(left=left, right=right):
                a, b = shape(left), shape(right)
                batch = prod(max(a[:-2], b[:-2], key=len))
                products.append(Product(rows=a[-2], columns=b[-1], inner=a[-1], count=batch))
            case Attend(q=q, v=v):
                a, b = shape(q), shape(v)
                batch = prod(a[:-2])
                products.append(Product(rows=a[-2], columns=b[-2], inner=a[-1], count=batch))
                products.append(Product(rows=a[-2], columns=b[-1], inner=b[-2], count=batch))
                special += a[-2] * b[-2] * batch
                elementwise += SOFTMAX_STEPS * a[-2] * b[-2] * batch
            case Apply(op=op):
                elementwise += prod(shape(part))
                special += prod(shape(part)) if op in SPECIAL else 0
            case Scan(op="sort" | "argsort", value=inner, axis=axis):
                steps = np.ceil(np.log2(np.maximum(shape(inner)[axis], 1)))  # a network of so many stages, each longer
                elementwise += SORT_STEPS * prod(shape(inner)) * steps * (steps + 1) // 2
            case Reduce(value=inner) | Scan(value=inner):
                elementwise += prod(shape(inner))
            case UserCall():
                elementwise += prod(shape(part))
            case _:
                pass
    return tuple(products), elementwise, special
