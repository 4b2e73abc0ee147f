# pyright: basic
"""A pass of torch.compile that joins collectives and the products next to them into operators of TileLink.

    overlap = tilelink.parallel.Overlap()
    torch._inductor.config.post_grad_custom_pre_pass = overlap        # torch's own hook for such passes
    model = torch.compile(model)

It takes the graphs of models that know nothing of TileLink: those of torch's styles for tensor parallelism, of
`torch.distributed._functional_collectives`, and their gradients. After the first step, `overlap.report()` has a line
for each all-gather, reduce-scatter and all-reduce: the operator that took its place, or why none did. Graphs that torch
takes from its cache of compiled graphs are joined, and not in the report (TORCHINDUCTOR_FORCE_DISABLE_CACHES=1).
"""

from __future__ import annotations

import logging
import operator
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
from torch.fx import Graph
from torch.fx.node import map_arg

from tilelink.errors import RankError
from tilelink.ops import registered  # declares the operators  # noqa: F401
from tilelink.ops.calls import DTYPES
from tilelink.ops.groups import group_named

Node = Any
"""torch.fx.Node: its arguments are anything, which code that takes graphs apart knows better."""

aten, functional, own = torch.ops.aten, torch.ops._c10d_functional, torch.ops.tilelink
GATHER, SCATTER, REDUCE = (
    functional.all_gather_into_tensor.default, functional.reduce_scatter_tensor.default, functional.all_reduce.default,
)  # fmt: skip
WAIT, MM, ADDMM, ADD, CAT = (
    functional.wait_tensor.default, aten.mm.default, aten.addmm.default, aten.add.Tensor, aten.cat.default,
)  # fmt: skip
VIEWS = (aten.view.default, aten.reshape.default, aten._unsafe_view.default)
TRANSPOSES = (aten.t.default, aten.permute.default, aten.transpose.int)
SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.split.sizes)
OTHERS = {
    functional.all_gather_into_tensor_coalesced.default: "several tensors at once",
    functional.reduce_scatter_tensor_coalesced.default: "several tensors at once",
    functional.all_reduce_coalesced.default: "several tensors at once",
    functional.all_to_all_single.default: "no operator has an all-to-all with a product",
}
SHOWN = {GATHER: "all-gather", SCATTER: "reduce-scatter", REDUCE: "all-reduce"}
KEPT = 4096
"""Pairs that a report has."""
_log = logging.getLogger("tilelink.parallel")


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A collective of a graph. operator: that took its place, with the product, or "" and then the reason."""

    collective: str
    operator: str = ""
    reason: str = ""

    def __str__(self) -> str:
        if self.operator:
            return f"{self.collective}: {self.operator}"
        return f"{self.collective}: not joined: {self.reason}"


class _Refused(Exception):
    """Says why a collective is left as it is."""


class Overlap(CustomGraphPass):
    """The pass; `pairs` has what it found in graphs since it was made, in their order, the last KEPT."""

    def __init__(self) -> None:
        self.pairs: deque[Pair] = deque(maxlen=KEPT)  # models with changing sizes are compiled again and again

    def __call__(self, graph: Graph) -> None:
        for node in [node for node in graph.nodes if node.op == "call_function"]:
            if node.target in OTHERS:
                self._say(Pair(collective=f"{node.target._opname} {_shape(node)}", reason=OTHERS[node.target]))
            join = {GATHER: _gathered, SCATTER: _scattered, REDUCE: _reduced}.get(node.target)
            if join is None:
                continue
            shown = f"{SHOWN[node.target]} of {_shape(node.args[0])}"
            try:
                self._say(Pair(collective=shown, operator=join(graph, node)))
            except _Refused as why:
                self._say(Pair(collective=shown, reason=str(why)))
        graph.eliminate_dead_code()
        graph.lint()

    def uuid(self) -> Any:
        """Return the key of this pass in torch's cache of compiled graphs: its code, and that of operators."""
        package = Path(__file__).parents[1]
        files = sorted(str(one) for folder in ("parallel", "ops") for one in (package / folder).glob("*.py"))
        return get_hash_for_files(tuple(files))

    def report(self) -> str:
        """Return a line for each collective that was seen, in the order of graphs."""
        return "\n".join(map(str, self.pairs))

    def _say(self, pair: Pair) -> None:
        self.pairs.append(pair)
        _log.log(logging.DEBUG if pair.operator else logging.INFO, "%s", pair)


# All-gather and product --------------------------------------------------------------------------------------


def _gathered(graph: Graph, gather: Node) -> str:
    """Join an all-gather with the largest product that takes its rows. Return the operator's name."""
    x, ranks, group = gather.args
    wait = _waited(gather)
    full, dim = _whole(wait, ranks)
    found = list(_products(full))
    if not found:
        taken = sorted({_name(user) for user in full.users})
        raise _Refused(f"its rows go to {', '.join(taken) or 'nothing'}, and to no product")
    _fits(x, group)
    value, whole = _value(x), _value(full)
    if value.dim() < 2 or dim == value.dim() - 1:
        raise _Refused("it gathers columns, and operators gather rows")
    product = max(found, key=lambda one: _value(one).shape[1])
    bias, rows, w = product.args if product.target is ADDMM else (None, *product.args)
    if prod(_value(rows).shape[:-1]) != prod(whole.shape[:-1]) or _value(rows).shape[-1] != whole.shape[-1]:
        raise _Refused("the product takes its rows in another shape")
    if product.kwargs:
        raise _Refused(f"its product has {', '.join(product.kwargs)}")
    weight = _Weight(graph, w)
    order = {node: number for number, node in enumerate(graph.nodes)}
    if not weight.is_before(gather, order):
        raise _Refused("the weight of its product is computed after it")
    before = prod(value.shape[:dim])
    with graph.inserting_before(gather):
        flat = _call(graph, aten.reshape.default, x, [-1, value.shape[-1]])
        y, rows_of_all = _results(graph, own.ag_gemm_gathered.default, flat, weight.rows(), group, "")
        if before > 1:  # the rows of a rank lie together, and go to where the dimension has them
            N = _value(y).shape[-1]
            y = _call(graph, aten.view.default, y, [ranks, before, -1, N])
            y = _call(graph, aten.permute.default, y, [1, 0, 2, 3])
            y = _call(graph, aten.reshape.default, y, [-1, N])
        if bias is None:
            new = y
    if bias is not None:
        with graph.inserting_before(product):
            new = _call(graph, ADD, y, bias)
    _replace(product, new)
    with graph.inserting_after(rows_of_all):
        seen = _call(graph, aten.view.default, rows_of_all, list(_value(wait).shape))
    _replace(wait, seen)
    _erase(graph, wait, gather)
    return "ag_gemm_gathered"


def _whole(wait: Node, ranks: int) -> tuple[Node, int]:
    """Return what has all gathered elements in order, and the dimension that was gathered."""
    split = next(iter(wait.users), None)
    if split is None or len(wait.users) > 1 or split.target not in SPLITS:
        return wait, 0
    parts = list(split.users)
    cat = next(iter(parts[0].users), None) if parts else None
    if cat is None or cat.target is not CAT or any(list(one.users) != [cat] for one in parts):
        return wait, 0
    dim = cat.args[1] if len(cat.args) > 1 else 0
    in_order = [one.args[1] for one in cat.args[0] if one.target is operator.getitem and one.args[0] is split]
    if in_order != list(range(ranks)) or (split.args[2] if len(split.args) > 2 else 0) != 0:
        return wait, 0
    return cat, dim % _value(cat).dim()


def _products(rows: Node) -> Iterator[Node]:
    """Yield the products that take a tensor, or a view of it, as their rows."""
    for user in rows.users:
        at = {MM: 0, ADDMM: 1}.get(user.target)
        if at is not None and user.args[at] is rows:
            yield user
        elif user.target in VIEWS:
            yield from _products(user)


# Product and reduce-scatter, product and all-reduce -----------------------------------------------------------


def _scattered(graph: Graph, scatter: Node) -> str:
    source, how, ranks, group = scatter.args
    dim = 0
    if source.target is CAT:
        parts = source.args[0]
        split: Any = parts[0].args[0] if parts and parts[0].target is operator.getitem else None
        in_order = [tuple(one.args) for one in parts] == [(split, number) for number in range(ranks)]
        along = source.args[1] if len(source.args) > 1 else 0
        if split is None or not in_order or along != 0 or split.target not in SPLITS:
            raise _Refused(f"it takes the result of {_name(source)}, and not of a product")
        _alone(source, split, *parts)
        source, dim = split.args[0], split.args[2] if len(split.args) > 2 else 0
    return _summed(graph, scatter, source, how, ranks, group, dim)


def _reduced(graph: Graph, reduce: Node) -> str:
    source, how, group = reduce.args
    return _summed(graph, reduce, source, how, 1, group, 0)


def _summed(graph: Graph, node: Node, source: Node, how: str, ranks: int, group: str, dim: int) -> str:
    """Join a sum over ranks with the products that it takes. ranks: among which it is spread along dim, or 1."""
    wait, value = _waited(node), _value(source)
    factors = list(_terms(source))
    if how != "sum":
        raise _Refused(f"it takes the {how}, and operators take sums")
    _fits(source, group)
    dim %= value.dim()
    part = prod(value.shape[dim:]) // ranks
    if part % _value(factors[0][1]).shape[1]:  # of what a rank gets together
        raise _Refused("it scatters columns, and operators scatter rows")
    if len({(_value(a).shape[0], _value(w).shape[1]) for a, w in factors}) > 1:  # views may hide it
        raise _Refused("it takes a sum of products of different shapes")
    weights = [_Weight(graph, w) for _, w in factors]
    before = prod(value.shape[:dim])
    with graph.inserting_before(node):
        rows = [a for a, _ in factors]
        x = rows[0] if len(rows) == 1 else _call(graph, CAT, rows, 1)
        K = _value(x).shape[-1]
        if before > 1 and ranks > 1:
            x = _call(graph, aten.reshape.default, x, [before, ranks, -1, K])
            x = _call(graph, aten.permute.default, x, [1, 0, 2, 3])
            x = _call(graph, aten.reshape.default, x, [-1, K])
        w = weights[0].rows() if len(weights) == 1 else _call(graph, CAT, [one.seen() for one in weights], 1)
        target = own.gemm_rs.default if ranks > 1 else own.gemm_ar.default
        y = _call(graph, target, x, w, None, "", group, "")
        new = _call(graph, aten.view.default, y, list(_value(wait).shape))
    _replace(wait, new)
    _erase(graph, wait, node)
    return target._opname if len(factors) == 1 else f"{target._opname} of {len(factors)} products"


def _terms(source: Node) -> Iterator[tuple[Node, Node]]:
    """Yield the factors of the products whose sum a tensor is. Raises _Refused for anything else."""
    if source.target is MM:
        yield source.args[0], source.args[1]
    elif source.target in VIEWS:
        yield from _terms(source.args[0])
    elif source.target is ADD and not source.kwargs and all(isinstance(one, torch.fx.Node) for one in source.args):
        for one in source.args:
            if _value(one).shape != _value(source).shape:
                raise _Refused("it takes a sum of tensors of different shapes")
            yield from _terms(one)
    elif source.target is ADDMM:
        raise _Refused("a bias is added to its product before the sum over ranks")
    else:
        raise _Refused(f"it takes the result of {_name(source)}, and not of a product")
    _alone(source)


def _alone(*nodes: Node) -> None:
    for one in nodes:
        if len(one.users) > 1 and one.target not in SPLITS:
            others = sorted({_name(user) for user in one.users})
            raise _Refused(f"what it takes goes to {', '.join(others)} too")


# Nodes -------------------------------------------------------------------------------------------------------


class _Weight:
    """The second factor of a product, [K, N], as operators have it."""

    def __init__(self, graph: Graph, w: Node) -> None:
        self._graph, self._turned = graph, False
        while w.target in TRANSPOSES and _value(w).dim() == 2 and _turns(w):
            w, self._turned = w.args[0], not self._turned
        self._w = w

    def is_before(self, node: Node, order: dict[Node, int]) -> bool:
        return order[self._w] < order[node]

    def seen(self) -> Node:
        """Return it as [N, K], perhaps a view of [K, N]."""
        return self._w if self._turned else _call(self._graph, aten.permute.default, self._w, [1, 0])

    def rows(self) -> Node:
        """Return it as [N, K], row by row."""
        seen = self.seen()
        if _value(seen).is_contiguous():
            return seen
        return _call(self._graph, aten.clone.default, seen, memory_format=torch.contiguous_format)


def _turns(node: Node) -> bool:
    """True if a node of TRANSPOSES changes the two dimensions of a matrix."""
    if node.target is aten.permute.default:
        return [one % 2 for one in node.args[1]] == [1, 0]
    return node.target is aten.t.default or {one % 2 for one in node.args[1:]} == {0, 1}


def _waited(node: Node) -> Node:
    users = list(node.users)
    if len(users) != 1 or users[0].target is not WAIT:
        raise _Refused("nothing waits for it in this graph")
    return users[0]


def _fits(x: Node, group: str) -> None:
    """Raise _Refused for tensors that kernels do not take."""
    value = _value(x)
    if value.is_cuda and value.dtype not in DTYPES:
        raise _Refused(f"it is of {value.dtype}, and kernels take {' and '.join(DTYPES.values())}")
    if any(not isinstance(size, int) for size in value.shape):
        raise _Refused("its sizes are not known while compiling (dynamic=True)")
    try:
        group_named(group)
    except RankError as error:
        raise _Refused(str(error)) from error


def _call(graph: Graph, target: Callable[..., Any], *arguments: Any, **named: Any) -> Node:
    """Insert a call, with its value."""
    node = graph.call_function(target, arguments, named)
    values: Any = map_arg((arguments, named), lambda one: one.meta["val"])
    node.meta["val"] = target(*values[0], **values[1])
    return node


def _results(graph: Graph, target: Callable[..., Any], *arguments: Any) -> list[Node]:
    """Insert a call with several results, and return these."""
    node = _call(graph, target, *arguments)
    return [_call(graph, operator.getitem, node, number) for number in range(len(node.meta["val"]))]


def _replace(old: Node, new: Node) -> None:
    new.meta = {**old.meta, "val": new.meta["val"]}
    old.replace_all_uses_with(new)


def _erase(graph: Graph, *nodes: Node) -> None:
    """Remove nodes that nothing uses, also such as are kept for what they do."""
    for one in nodes:
        graph.erase_node(one)


def _value(node: Any) -> torch.Tensor:
    return node.meta["val"]


def _shape(node: Any) -> str:
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    return str(list(value.shape)) if isinstance(value, torch.Tensor) else ""


def _name(node: Node) -> str:
    return node.target._opname if isinstance(node.target, torch._ops.OpOverload) else str(node.target)
