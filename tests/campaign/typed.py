"""Stages that mix types: integers as conditions, conditions as numbers, and names that get values of several."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.campaign.writer import INDEX, Writer

LARGE = (16777217, -16777217, 33554435, 2**31 - 1, -(2**31), 123456789)
"""Integers that are no f32."""
DEEP = 3
"""How many operations stand inside one another, at most."""


@dataclass(kw_only=True)
class _Draw:
    """Expressions over one tile of each type."""

    w: Writer
    floats: str
    whole: tuple[str, ...]
    truths: tuple[str, ...]
    index: str

    def condition(self, depth: int = DEEP) -> str:
        w = self.w
        match w.pick(("of i32", "bool", "both", "not", "compared")) if depth else "bool":
            case "of i32":
                w.features.add("integers as conditions")
                return f"({w.pick(self.whole)} {w.pick(('and', 'or'))} {w.pick((*self.whole, *self.truths))})"
            case "bool":
                return w.pick(self.truths)
            case "both":
                return f"({self.condition(depth - 1)} {w.pick(('and', 'or'))} {self.condition(depth - 1)})"
            case "not":
                w.features.add("integers as conditions")
                return f"(not {w.pick((*self.whole, self.condition(depth - 1)))})"
            case _:
                return f"({self.integer(depth - 1)} {w.pick(('<', '>=', '==', '!='))} {w.pick(self.whole)})"

    def integer(self, depth: int = DEEP) -> str:
        w = self.w
        match w.pick(("name", "of bool", "full", "where", "sum", "bits", "large")) if depth else "name":
            case "bits":
                w.features.add("bits and quotients of integers")
                op = w.pick(("//", "%", "&", "|", "^", "<<", ">>"))
                return f"({self.integer(depth - 1)} {op} {self.integer(depth - 1)})"
            case "name":
                return w.pick((*self.whole, f"pos({self.index})", str(w.rng.randrange(-3, 9))))
            case "of bool":
                w.features.add("conditions as numbers")
                one, other = self.condition(depth - 1), self.condition(depth - 1)
                return w.pick((f"({one} + {other})", f"({one} - {other})", f"({one} * {w.pick(self.whole)})",
                               f"(-{one})", f"abs({one})", f"maximum({one}, {w.pick(self.whole)})",
                               f"i32({one})"))  # fmt: skip
            case "full":
                w.features.add("constants of integers")
                return f"({w.pick(self.whole)} + full({w.pick(LARGE)}, i32))"
            case "where":
                w.features.add("integers as conditions")
                chosen = w.pick((*self.whole, self.condition(depth - 1)))
                return f"where({chosen}, {self.integer(depth - 1)}, {self.integer(depth - 1)})"
            case "sum":
                op = w.pick(("+", "-", "*"))
                return f"({self.integer(depth - 1)} {op} {self.integer(depth - 1)})"
            case _:
                w.features.add("constants of integers")
                return f"({w.pick(self.whole)} * 0 + {w.pick(LARGE)})"

    def small(self) -> str:
        """An integer, or a condition as one, that functions take without an overflow."""
        return self.w.pick((*self.whole, *self.truths, f"minimum({self.integer(1)}, 3)", f"pos({self.index}) * 0 + 2"))

    def number(self, depth: int = DEEP) -> str:
        w = self.w
        match w.pick(("name", "function", "where", "sum", "quotient")) if depth else "name":
            case "name":
                return self.floats
            case "function":
                w.features.add("functions of integers")
                some = self.small()
                return w.pick((f"exp(minimum({some}, 3))", f"sqrt(abs({w.pick(self.whole)}))", f"tanh({some})",
                               f"log(abs({w.pick(self.whole)}) + 1)", f"sigmoid({some})", f"silu({some})",
                               f"relu({some})", f"rsqrt(abs({w.pick(self.whole)}) + 1)", f"gelu({some})"))  # fmt: skip
            case "where":
                w.features.add("integers as conditions")
                chosen = w.pick((*self.whole, self.condition(depth - 1)))
                return f"where({chosen}, {self.number(depth - 1)}, {w.pick((self.small(), self.number(depth - 1)))})"
            case "sum":
                return f"({self.number(depth - 1)} {w.pick(('+', '-', '*'))} {self.small()})"
            case _:
                return f"({self.small()} / (abs({w.pick(self.whole)}) + 1))"


def _draw(w: Writer) -> tuple[_Draw, str, str]:
    a, b = w.plane()
    i, j = INDEX[a], INDEX[b]
    names = [w.tensor("in", (a, b), kind) for kind in ("f32", "i32", "i32", "bool", "bool")]
    x, n, m, p, q = (f"{name}[{i}, {j}]" for name in names)
    return _Draw(w=w, floats=x, whole=(n, m), truths=(p, q), index=j), a, b


def mixed(w: Writer) -> None:
    """One value of integers, conditions and f32."""
    draw, a, b = _draw(w)
    kind = w.pick(("f32", "f32", "i32", "i32", "bool"))
    value = {"f32": draw.number, "i32": draw.integer, "bool": draw.condition}[kind]()
    y = w.tensor("out", (a, b), kind, word="y" if kind == "f32" else "e")
    w.stage("compute", [a, b], w.nest([f"{y}[{INDEX[a]}, {INDEX[b]}] = {value}"]))


def masked(w: Writer) -> None:
    """Attention with a mask of integers, alone or with other conditions."""
    rows, keys, width = "M", w.pick(("S", "N")), "K"
    i, k = INDEX[rows], INDEX[keys]
    queries, source = w.tensor("in", (rows, width)), w.tensor("in", (keys, width))
    n, y = w.tensor("in", (rows, keys), "i32"), w.tensor("out", (rows, width))
    w.features.add("mask of integers")
    own = f"{n}[{i}, {k}]"
    mask = w.pick((own, own, f"{own} and pos({k})[None, :]", f"{own} - 1", f"{own} or {own} > 2",
                   f"{own} * (pos({i})[:, None] >= pos({k})[None, :])"))  # fmt: skip
    box = f"{source}[{k}, :]"
    lines = ["state = online_softmax(f32)", f"for ({k}: {keys}):",
             f"    state = attend(state, {queries}[{i}, :], {box}, {box}, 0.5, {mask})",
             f"{y}[{i}, :] = finish(state)"]  # fmt: skip
    w.stage("compute", [rows], lines)


def selected(w: Writer) -> None:
    """Positions of the largest, sums up to each element, sorted elements, and conditions of all of an axis."""
    a, b = w.plane()
    w.features.add("selecting")
    x, n, p = (w.tensor("in", (a, b), kind) for kind in ("f32", "i32", "bool"))
    rows = w.chance(0.5)
    kept, along = (a, "axis=1") if rows else (b, "axis=0")
    at = f"[{INDEX[a]}, :]" if rows else f"[:, {INDEX[b]}]"
    whole = w.pick((f"{n}{at} % 5", f"{n}{at} & 3", f"where({p}{at}, {n}{at}, 0)", f"{n}{at}"))
    op = w.pick(("argmax", "argmin", "any", "all", "cumsum", "cumsum", "sort", "argsort"))
    value = {
        "argmax": w.pick((f"{x}{at}", whole)), "argmin": w.pick((f"{x}{at}", whole)),
        "cumsum": w.pick((whole, f"{p}{at}")), "sort": w.pick((whole, f"{p}{at}")),
        "argsort": w.pick((whole, f"{p}{at}", f"{x}{at}")),
        "any": f"{whole} > 3", "all": w.pick((f"{p}{at}", f"{n}{at} < {x}{at} + 100.0")),
    }[op]  # fmt: skip
    if op in ("cumsum", "sort", "argsort"):
        y, sums = w.tensor("out", (a, b), "i32"), f"{op}({value}, {along})"
        places = f"pos({b})[None, :]" if rows else f"pos({a})[:, None]"
        lines = [f"{y}{at} = {w.pick((sums, f'{sums} - {n}{at}', f'{places} - {sums}'))}"]
    else:
        y = w.tensor("out", (kept,), "bool" if op in ("any", "all") else "i32")
        lines = [f"{y}[{INDEX[kept]}] = {op}({value}, {along})"]
    w.stage("compute", [kept], lines)


def _condition(w: Writer) -> str:
    return w.pick(("rank > 0", "rank == 0", "rank < ranks", w.param("bool", w.chance(0.5))))


def renamed(w: Writer) -> None:
    """A name that gets values of two or three types, one after the other, under conditions, or in a loop."""
    draw, a, b = _draw(w)
    i, j = INDEX[a], INDEX[b]
    w.features.add("name of several types")
    low = w.input(a, b)
    w.sources.remove(low)
    kinds = {"i32": lambda: draw.integer(2), "bool": lambda: draw.condition(1), "f32": lambda: draw.number(1),
             "T": lambda: f"{low.name}[{i}, {j}]", "f16": lambda: f"f16({draw.floats})"}  # fmt: skip
    first, second = w.rng.sample(sorted(kinds), 2)
    one, other = kinds[first](), kinds[second]()
    whole = {"i32", "bool"}

    def show(*now: str) -> str:
        """What the name has: as integers, which tell every bit, where it can have nothing else."""
        kind = w.pick(("f32", "i32", "i32")) if whole.issuperset(now) else "f32"
        y = w.tensor("out", (a, b), kind)
        value = "t * 1.0" if kind == "f32" else "i32(minimum(maximum(t, -30000000), 30000000))"
        return f"{y}[{i}, {j}] = {value}"

    match w.pick(("after", "after", "under", "either", "loop")):
        case "after":
            then, now = w.pick(((f"t = {other}", second), ("t = t * 0.5", "f32")))
            lines = [f"t = {one}", show(first), then, show(now)]
        case "under":
            lines = [f"t = {one}", f"if {_condition(w)}:", f"    t = {other}", show(first, second)]
        case "either":
            lines = [f"if {_condition(w)}:", f"    t = {one}", "else:", f"    t = {other}", show(first, second)]
        case _:
            lines = [f"t = {one}", f"for ({w.fresh('u')}: ranks):", f"    t = t + {other}", show(first, second)]
    w.stage("compute", [a, b], lines)


def constant_first(w: Writer) -> None:
    """A constant to a name that has axes elsewhere, and a reduction of it."""
    a, b = w.plane()
    i = INDEX[a]
    kind = w.pick((None, None, "i32"))
    x, op = w.tensor("in", (a, b), kind), w.pick(("sum", "max", "min"))
    w.features.add("constant of a name with axes")
    constant = w.pick(("full(0.5, f32)", "zeros(f32)", "full(2.0, f32)", "0.5") if kind is None else
                      ("full(3, i32)", "2", "zeros(i32)", "full(1, i32)"))  # fmt: skip
    under = [f"if {_condition(w)}:", f"    one = {x}[{i}, :]"]
    lines = [*under, "else:", f"    one = {constant}"] if w.chance(0.3) else [f"one = {constant}", *under]
    y = w.tensor("out", (a,), kind)
    lines.append(f"{y}[{i}] = {op}(one, axis=1)")
    if w.chance(0.3):
        z = w.tensor("out", (a, b), kind)
        lines.append(f"{z}[{i}, :] = one")
    w.stage("compute", [a], lines)


def _rounded(w: Writer, a: str, b: str) -> None:
    """Numbers that are rounded to 8 bits, and told a neighbour or not: bit by bit, as powers of two scale them."""
    i, j, kind = INDEX[a], INDEX[b], w.pick(("f8e4m3", "f8e5m2"))
    x, scale = w.tensor("in", (a, b), w.pick(("f32", None))), w.pick(("64.0", "0.0078125", "1024.0"))
    e, value = w.tensor("out", (a, b), kind, word="e"), f"{x}[{i}, {j}] * {scale}"
    if w.chance(0.5):
        w.stage("compute", [a, b], [f"t = {kind}({value})", f"{e}[{i}, {j}] = {w.pick(('t', 'f32(t) * 0.5'))}"])
        return
    h = w.tensor("symmetric", (a, b), kind)
    box = f"{h}[{i}, :]"
    push = f"tile_push_data({box} @ (rank + 1), {x}[{i}, :] * {scale})"
    w.stage("comm", [a], [push, f"producer_tile_notify({box} @ (rank + 1))"])
    own = f"{h}[{i}, {j}]"
    w.stage("compute", [a, b], [f"consumer_tile_wait({own})", f"{e}[{i}, {j}] = {w.pick((own, f'f32({own}) * 2.0'))}"])


def narrow(w: Writer) -> None:
    """Values of 8 and 64 bits: rounded, told to a neighbour, multiplied, and in arithmetic with others."""
    a, b = w.plane()
    i, j = INDEX[a], INDEX[b]
    w.features.add("values of 8 and 64 bits")
    match w.pick(("rounded", "rounded", "product", "integers")):
        case "rounded":
            _rounded(w, a, b)
        case "product":
            kind, inner = w.pick(("f8e4m3", "f8e5m2", "i8")), "D"
            left, right = w.tensor("in", (a, inner), kind), w.tensor("in", (b, inner), kind)
            y = w.tensor("out", (a, b), "i32" if kind == "i8" else "f32")
            scale, own = w.pick(("", " * 3")), w.pick((f"{left}[{i}, :]", f"{kind}(f32({left}[{i}, :]) * 2.0)"))
            w.stage("compute", [a, b], [f"{y}[{i}, {j}] = dot({own}, {right}[{j}, :].T){scale}"])
        case _:
            c, u, n = (f"{w.tensor('in', (a, b), kind)}[{i}, {j}]" for kind in ("i8", "u8", "i64"))
            kind, values = w.pick((
                ("i8", (f"i8({c} * 40)", f"i8({u} - {c})", f"i8({n} << 3)", c)),
                ("u8", (f"u8({c} * {u})", f"u8(f32({c}) * 1.5)", f"u8({n} * 100)", u)),
                ("i64", (f"({n} << 40) + {c}", f"{n} * full(1099511627776, i64) - {u}", f"({n} << 50) // ({u} + 1)",
                         f"where({c} > 0, {n} << 33, {u})", f"({n} << 35) % ({c} - 9)", f"maximum({n} << 34, {c})")),
                ("i32", (f"{c} + {u}", f"i32({n}) * {u}", f"{c} & {u}", f"{u} << {c}")),
            ))  # fmt: skip
            y = w.tensor("out", (a, b), kind)
            w.stage("compute", [a, b], [f"{y}[{i}, {j}] = {w.pick(values)}"])


TYPED: tuple[Callable[[Writer], None], ...] = (
    mixed,
    mixed,
    masked,
    renamed,
    renamed,
    constant_first,
    selected,
    selected,
    narrow,
    narrow,
)
