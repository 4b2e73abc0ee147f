# pyright: basic
"""Random programs as text and as the equivalent Python function; they parse, and are usually ill-typed."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tilelink.ir.program import DTYPES

LOOSE, NOT, COMPARE, XOR, SUM, PRODUCT, UNARY, ATOM = range(8)
BINARY = {"+": SUM, "-": SUM, "*": PRODUCT, "//": PRODUCT, "%": PRODUCT, "^": XOR}
PAIRS = ("producer_tile_notify", "consumer_tile_wait", "peer_tile_notify", "peer_tile_wait", "rank_notify", "rank_wait")
UNARY_FUNCTIONS = (
    "exp",
    "exp2",
    "log",
    "sqrt",
    "rsqrt",
    "abs",
    "silu",
    "gelu",
    "relu",
    "sigmoid",
    "tanh",
    "f16",
    "bf16",
    "f32",
    "f8e4m3",
    "f8e5m2",
    "i8",
    "u8",
    "i64",
)
NUMBERS = ("0", "1", "2", "7", "0.5", "1e-3", "2.5", "1e30", "1e+20", ".25", "3.")

Draw = Any


@dataclass(kw_only=True)
class Names:
    """The names in scope: tensors, tables and index tensors with their numbers of dimensions, and all others.

    launch: index tensors whose entries are known only in a launch.
    """

    draw: Draw
    tensors: dict[str, int] = field(default_factory=dict)
    tables: dict[str, int] = field(default_factory=dict)
    symmetric: list[str] = field(default_factory=list)
    params: list[str] = field(default_factory=list)
    launch: dict[str, int] = field(default_factory=dict)
    indices: list[str] = field(default_factory=list)
    locals: list[str] = field(default_factory=list)

    def pick(self, options: Any) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def wrap(self, text: str, own: int, needed: int) -> str:
        return f"({text})" if own < needed or self.draw(st.integers(0, 9)) == 0 else text

    # Scalars -------------------------------------------------------------------------------------------------

    def scalar(self, needed: int = LOOSE, depth: int = 2) -> str:
        kinds = ["leaf"] * 2 + (["binary", "binary", "minus", "minmax", "lookup"] if depth else [])
        match self.pick(kinds):
            case "binary":
                op = self.pick(BINARY)
                level = BINARY[op]
                left, right = self.scalar(level, depth - 1), self.scalar(level + 1, depth - 1)
                return self.wrap(f"{left} {op} {right}", level, needed)
            case "minus":
                return self.wrap(f"-{self.scalar(UNARY, depth - 1)}", UNARY, needed)
            case "minmax":
                op = self.pick(("min", "max"))
                return f"{op}({self.scalar(LOOSE, depth - 1)}, {self.scalar(LOOSE, depth - 1)})"
            case "lookup" if self.launch and self.draw(st.booleans()):
                return self.entry(depth - 1)
            case "lookup" if self.tables:
                return self.box(self.pick(self.tables), self.tables, depth - 1)
            case _:
                return self.pick(["rank", "ranks", "0", "3", *self.params, *self.indices])

    def entry(self, depth: int) -> str:
        """An entry of an index tensor: with all of its coordinates."""
        name = self.pick(self.launch)
        coords = ", ".join(self.scalar(LOOSE, depth) for _ in range(self.launch[name]))
        return f"{name}[{coords}]" if coords else name

    def part(self, extent: str) -> str:
        """An extent of an index, or a part of it."""
        if not self.launch or self.draw(st.integers(0, 2)):
            return extent
        size = f"({extent})" if not extent.isidentifier() else extent
        start, stop = self.scalar(LOOSE, 1), self.scalar(LOOSE, 1)
        return size + self.pick((f"[: {stop}]", f"[{start} :]", f"[{start} : {stop}]"))

    def condition(self, needed: int = LOOSE, depth: int = 2) -> str:
        match self.pick(["compare", *(["not", "and", "or"] if depth else [])]):
            case "not":
                return self.wrap(f"not {self.condition(NOT, depth - 1)}", NOT, needed)
            case "and" | "or" as word:
                # Python has three levels here; brackets keep to one.
                parts = [self.wrap(self.condition(LOOSE, depth - 1), -1, 0) for _ in range(self.pick((2, 3)))]
                return self.wrap(f" {word} ".join(parts), -1, 0)
            case _:
                op = self.pick(("==", "!=", "<", "<=", ">", ">="))
                text = f"{self.scalar(XOR, 1)} {op} {self.scalar(XOR, 1)}"
                return self.wrap(text, COMPARE, needed)

    # Regions and values --------------------------------------------------------------------------------------

    def box(self, name: str, sizes: dict[str, int], depth: int = 1, whole: bool = True) -> str:
        """A region of a tensor: all its coordinates, or the first ones."""
        count = self.draw(st.integers(1, sizes[name]))
        coords = [":" if whole and self.draw(st.booleans()) else self.scalar(LOOSE, depth) for _ in range(count)]
        return f"{name}[{', '.join(coords)}]"

    def region(self, remote: bool = True, needed: int = LOOSE) -> str:
        name = self.pick(self.tensors)
        text = name if self.draw(st.integers(0, 5)) == 0 else self.box(name, self.tensors)
        if remote and self.draw(st.booleans()):
            return self.wrap(f"{text} @ {self.scalar(UNARY, 1)}", PRODUCT, needed)
        return text

    def value(self, needed: int = LOOSE, depth: int = 2) -> str:
        simple = ["number", "region", "local", "param", "zeros", "full", "pos"]
        deep = ["binary", "binary", "minus", "function", "reduce", "dot", "transpose", "expand", "where", "compare"]
        deep += ["logic", "max", "to", "call", "attend", "not", "integers"]
        match self.pick(simple + (deep if depth else [])):
            case "number":
                return self.pick(NUMBERS)
            case "region":
                return self.region(needed=needed)
            case "local" if self.locals:
                return self.pick(self.locals)
            case "zeros":
                return f"zeros({self.pick(('f32', 'f16', 'f8e4m3', 'u8', 'i32', 'i64'))})"
            case "full":
                return f"full({self.pick(('', '-'))}{self.pick(NUMBERS)}, f32)"
            case "pos" if self.indices:
                return f"pos({self.pick(self.indices)})"
            case "binary":
                op, level = self.pick([("+", SUM), ("-", SUM), ("*", PRODUCT), ("/", PRODUCT)])
                text = f"{self.value(level, depth - 1)} {op} {self.value(level + 1, depth - 1)}"
                return self.wrap(text, level, needed)
            case "integers":
                return self.scalar(needed, 2)
            case "minus":
                return self.wrap(f"-{self.value(UNARY, depth - 1)}", UNARY, needed)
            case "not":
                return self.wrap(f"not {self.value(NOT, depth - 1)}", NOT, needed)
            case "compare":
                op = self.pick(("==", "!=", "<", "<=", ">", ">="))
                text = f"{self.value(XOR, depth - 1)} {op} {self.value(XOR, depth - 1)}"
                return self.wrap(text, COMPARE, needed)
            case "logic":
                word = self.pick(("and", "or"))
                parts = [f"({self.value(LOOSE, depth - 1)})" for _ in range(self.pick((2, 3)))]
                return f"({f' {word} '.join(parts)})"
            case kind:
                return self.called(kind, depth - 1)

    def called(self, kind: str, depth: int) -> str:
        if kind in ("local", "pos", "param"):
            return self.pick(["1", "0.25", *self.params])
        inner = [self.value(LOOSE, depth) for _ in range(2)]
        match kind:
            case "function":
                return f"{self.pick(UNARY_FUNCTIONS)}({inner[0]})"
            case "reduce":
                return f"{self.pick(('sum', 'max', 'min'))}({inner[0]}, axis={self.pick(('0', '1', '-1'))})"
            case "dot" | "max" as word:
                return f"{word}({inner[0]}, {inner[1]})"
            case "transpose":
                return f"({inner[0]}).T"
            case "expand":
                tile = inner[0] + "[:]" if inner[0] in self.tensors else inner[0]  # x[:, None] would be coordinates
                return f"({tile})[{self.pick((':, None', 'None, :', ':, None, None', 'None'))}]"
            case "where":
                return f"where({inner[0]}, {inner[1]}, 1.5)"
            case "to":
                return f"({inner[0]}).to({self.pick(DTYPES)})"
            case "call":
                return f"CALL<{self.pick(('mine.gate', 'a.b.c'))}>({inner[0]}, {inner[1]})"
            case "attend":
                return f"finish(attend(online_softmax(f32), {inner[0]}, {inner[1]}, {inner[1]}, 0.5))"
            case _:
                raise ValueError(kind)

    # Statements ----------------------------------------------------------------------------------------------

    def body(self, depth: int, extents: list[str]) -> list[str]:
        lines: list[str] = []
        for _ in range(self.draw(st.integers(1, 3))):
            lines += self.statement(depth, extents)
        return lines

    def statement(self, depth: int, extents: list[str]) -> list[str]:
        match self.pick(["assign", "augment", "store", "move", "signal", "signal", *(["if", "for"] if depth else [])]):
            case "assign":
                name = self.pick(("acc", "t0", "t1"))
                line = f"{name} = {self.value()}"
                self.locals += [name] if name not in self.locals else []
                return [line]
            case "augment" if self.locals:
                return [f"{self.pick(self.locals)} {self.pick(('+=', '-=', '*=', '/='))} {self.value()}"]
            case "move":
                word = self.pick(("tile_push_data", "tile_pull_data", "rank_copy_data"))
                source = self.value() if word == "tile_push_data" else self.region()
                return [f"{word}({self.region()}, {source})"]
            case "signal":
                return [f"{self.pick(PAIRS)}({self.region()})"]
            case "if":
                lines = [f"if {self.condition()}:", *indented(self.body(depth - 1, extents))]
                if self.draw(st.booleans()):
                    lines += ["else:", *indented(self.body(depth - 1, extents))]
                return lines
            case "for":
                fresh = [n for n in ("u", "v", "w2") if n not in self.indices][: self.pick((1, 2))]
                pairs = [(n, self.part(self.pick(extents))) for n in fresh]
                self.indices += fresh
                inner = self.body(depth - 1, extents)
                self.indices = [n for n in self.indices if n not in fresh]
                return [f"FOR {'; '.join(f'{n}: {e}' for n, e in pairs)}", *indented(inner)]
            case _:
                return [f"{self.region(remote=False)} {self.pick(('=', '+=', '*='))} {self.value()}"]


def indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


@dataclass(frozen=True, kw_only=True)
class Written:
    """One program in both forms."""

    text: str
    python: str


INDEX_TENSORS = (
    ("most", (), "N", ""),
    ("place", ("M",), "M", "distinct"),
    ("told", ("ranks",), "M + N", ""),
    ("cuts", ("ranks", "N + 1"), "M", "offsets"),
    ("chosen", ("M", "2"), "ranks", ""),
    ("slot", ("M", "2"), "told[chosen]", "rising"),
    ("under", ("ranks",), "told * 2 - 1", ""),
)
"""Name, shape, bound and promise of index tensors."""


@st.composite
def programs(draw: Draw) -> Written:
    names = Names(draw=draw, params=["M", "N", "n", "f", "flag"])
    head = "M, N, n: i32, f: f32, flag: bool"
    extents = ["M", "N", "ranks", "M * 2", "(M + N) // ranks", "4"]
    text, python = [f"program p({head}):"], ["@tilelink.program", f"def p({head}):"]
    for number in range(draw(st.integers(1, 4))):
        name = f"x{number}"
        space = names.pick(
            ("in", "in symmetric", "out", "out symmetric", "inout", "kept", "kept symmetric", "local", "symmetric")
        )
        shape = [names.pick(extents) for _ in range(names.pick((1, 2, 3)))]
        dtype = names.pick((None, *DTYPES))
        text.append(f"    {name} : {space} [{', '.join(shape)}]" + (f" {dtype}" if dtype else ""))
        words = {"in": "input", "out": "output"}
        options = ([f"dtype='{dtype}'"] if dtype else []) + (["symmetric=True"] if " " in space else [])
        kind = space.split()[0]
        word = words.get(kind, kind)
        python.append(f"    {name} = tilelink.{word}({', '.join([*shape, *options])})")
        names.tensors[name] = len(shape)
    if draw(st.booleans()):
        names.tables["rows"] = 2
        text.append("    rows : table [M, ranks] < N - 1")
        python.append("    rows = tilelink.table(M, ranks, bound=N - 1)")
    if draw(st.booleans()):
        for name, shape, bound, word in INDEX_TENSORS:
            names.launch[name] = len(shape)
            space, call = ("in", "input") if name != "told" else ("symmetric", "symmetric")
            sign, option = ("<=", "at_most") if name in ("most", "told") else ("<", "bound")
            text.append(f"    {name} : {space} [{', '.join(shape)}] {sign} {bound} {word}")
            options = [f"{option}={bound}", *([f"{word}=True"] if word else [])]
            python.append(f"    {name} = tilelink.{call}({', '.join([*shape, *options])})")
        if names.draw(st.booleans()):
            text.append("    part : out [ranks, M[: told], (N + 1)[: most - 1]]")
            python.append("    part = tilelink.output(ranks, M[: told], (N + 1)[: most - 1])")
            names.tensors["part"] = 3
    for number in range(draw(st.integers(1, 2))):
        kind = names.pick(("comm", "compute"))
        names.indices, names.locals = ["i", "s"][: names.pick((1, 2))], []
        own, names.indices, ranges = names.indices, [], list[str]()
        for index in own:  # a range may depend on the indices before
            ranges.append(f"{index}: {names.part(names.pick(extents))}")
            names.indices.append(index)
        domain = ", ".join(ranges)
        body = indented(indented(names.body(2, extents)))
        text += ["", f"    {kind} f{number}({domain}):", *map(as_text, body)]
        python += ["", f"    @tilelink.{kind}", f"    def f{number}({domain}):", *map(as_python, body)]
    return Written(text="\n".join(text) + "\n", python="\n".join(python) + "\n")


def as_text(line: str) -> str:
    """`FOR u: M; v: N` and `CALL<f>(a)` as the text language writes them."""
    line = re.sub(r"FOR (.*)", lambda m: f"for ({m[1].replace(';', ',')}):", line)
    return re.sub(r"CALL<([\w.]+)>\(", r"call \1(", line)


def as_python(line: str) -> str:
    """The same as Python."""

    def loop(match: re.Match[str]) -> str:
        pairs = [part.split(": ", 1) for part in match[1].split("; ")]
        return f"for {', '.join(n for n, _ in pairs)} in tiles({', '.join(e for _, e in pairs)}):"

    return re.sub(r"CALL<([\w.]+)>\(", r"call(\1, ", re.sub(r"FOR (.*)", loop, line))
