"""A random program while it is written: names, sizes, tables, and the tensors that later stages may read."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")
SIZES = (1, 2, 3, 5, 7, 8, 13, 16, 17, 24, 33, 40, 64, 70)
ROW, PLACE = "row", "place"
"""The coordinates of a grid of ranks."""
INDEX = {"M": "i", "N": "j", "K": "k", "H": "h", "S": "q", "E": "e", "ranks": "s", ROW: "r", PLACE: "p"}
"""The name of an index over each dimension."""
PAIRS = {
    "tile": ("producer_tile_notify", "consumer_tile_wait"),
    "peer": ("peer_tile_notify", "peer_tile_wait"),
    "rank": ("rank_notify", "rank_wait"),
}


@dataclass(kw_only=True)
class Source:
    """A tensor that can be read: its dimensions, and the kind of signal that says so (None: it is an input)."""

    name: str
    shape: tuple[str, ...]
    signal: str | None = None
    symmetric: bool = False
    exact: bool = True
    used: bool = False


@dataclass(kw_only=True)
class Writer:
    """What is drawn so far. `features`: the kinds of things that the program has."""

    rng: random.Random
    ranks: int
    dims: dict[str, Any] = field(default_factory=dict[str, Any])
    params: list[str] = field(default_factory=list[str])
    declared: list[str] = field(default_factory=list[str])
    stages: list[str] = field(default_factory=list[str])
    tables: dict[str, Any] = field(default_factory=dict[str, Any])
    sources: list[Source] = field(default_factory=list[Source])
    features: set[str] = field(default_factory=set[str])
    over: list[str] = field(default_factory=list[str])
    """The grid and the groups of ranks."""
    tiles: dict[str, str] = field(default_factory=dict[str, str])
    """Stage -> the clause with which its loops have several tiles."""
    count: int = 0

    # Chances -------------------------------------------------------------------------------------------------

    def pick(self, options: Sequence[T]) -> T:
        return self.rng.choice(options)

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # Names ---------------------------------------------------------------------------------------------------

    def fresh(self, word: str) -> str:
        self.count += 1
        return f"{word}{self.count}"

    def dim(self, name: str, size: int | None = None) -> str:
        """A dimension, with a size when it has none."""
        if name not in ("ranks", ROW, PLACE) and name not in self.dims:
            self.dims[name] = self.pick(SIZES) if size is None else size
            self.params.append(name)
        return name

    def param(self, kind: str, value: float | int | bool) -> str:
        name = self.fresh({"f32": "f", "i32": "n", "bool": "b"}[kind])
        self.params.append(f"{name}: {kind}")
        self.dims[name] = value
        self.features.add(f"{kind} parameter")
        return name

    def size(self, name: str) -> int:
        return self.ranks if name == "ranks" else int(self.dims[name])

    def grid(self) -> None:
        """Arrange the ranks as a grid, unless they are."""
        self.features.add("grid")
        if not any(one.startswith("(") for one in self.over):
            size = self.pick([n for n in range(1, self.ranks + 1) if self.ranks % n == 0])
            self.over.insert(0, f"({ROW}, {PLACE} = {size})")

    def group(self) -> tuple[str, int, int]:
        """A group of ranks: its name, its first rank and one past the last."""
        name, start = self.fresh("group"), self.rng.randrange(self.ranks)
        stop = self.rng.randint(start + 1, self.ranks)
        self.over.append(f"{name} = ranks[{start} : {'' if stop == self.ranks and self.chance(0.5) else stop}]")
        self.features.add("group")
        return name, start, stop

    def table(self, length: str, below: str, kind: str = "any") -> str:
        """A table over a dimension. kind: of any numbers, or of each number once ("permutation")."""
        name, limit, size = self.fresh("t"), self.size(below), self.size(length)
        rows: list[list[int]] = []
        for _ in range(self.ranks):
            if kind == "permutation" and limit == size:
                rows.append(self.rng.sample(range(limit), limit))
            else:
                rows.append([self.rng.randrange(limit) for _ in range(size)])
        self.tables[name] = rows if self.chance(0.6) else [rows[0]] * self.ranks
        self.declared.append(f"{name} : table [{length}] < {below}")
        self.features.add("table")
        return name

    def written_by(self, table: str) -> None:
        """Note a write to the rows that a table names: a mistake if it names one twice."""
        if any(len({*row}) < len(row) for row in self.tables[table]):
            self.features.add("with a mistake")

    def table_of_ranks(self, length: str, below: str) -> str:
        """A table over the ranks and a dimension, the same on every rank or not."""
        name, limit, size = self.fresh("t"), self.size(below), self.size(length)
        own = [[[self.rng.randrange(limit) for _ in range(size)] for _ in range(self.ranks)] for _ in range(self.ranks)]
        self.tables[name] = own if self.chance(0.6) else [own[0]] * self.ranks
        self.declared.append(f"{name} : table [ranks, {length}] < {below}")
        self.features.add("table of ranks")
        return name

    def tensor(self, space: str, shape: Sequence[str], dtype: str | None = None, word: str = "", on: str = "") -> str:
        name = self.fresh(word or {"in": "x", "out": "y", "local": "c"}.get(space.split()[0], "g"))
        for one in shape:
            self.dim(one)
        self.declared.append(
            f"{name} : {space} [{', '.join(shape)}]" + (f" {dtype}" if dtype else "") + (f" on {on}" if on else "")
        )
        return name

    def input(self, *shape: str, symmetric: bool = False, dtype: str | None = None) -> Source:
        name = self.tensor("in symmetric" if symmetric else "in", shape, dtype)
        found = Source(name=name, shape=shape, symmetric=symmetric)
        if dtype is None:
            self.sources.append(found)
        return found

    def source(self, dims: int = 2, symmetric: bool = False) -> Source:
        """A tensor to read: one that a stage made, sooner than an input."""
        found = [s for s in self.sources if len(s.shape) == dims and ((s.symmetric and not s.signal) or not symmetric)]
        unused = [s for s in found if not s.used and s.signal]
        if unused and self.chance(0.7):
            one = self.pick(unused)
        elif found and self.chance(0.6):
            one = self.pick(found)
        elif dims == 3:
            one = self.input("ranks", *self.plane(), symmetric=symmetric)
        else:
            one = self.input(*self.plane(), symmetric=symmetric)
        one.used = True
        return one

    def plane(self) -> tuple[str, str]:
        return self.pick((("M", "N"), ("M", "N"), ("M", "K"), ("N", "K"), ("S", "K")))

    def made(self, name: str, shape: Sequence[str], signal: str = "tile", exact: bool = True) -> None:
        self.sources.append(Source(name=name, shape=tuple(shape), signal=signal, symmetric=True, exact=exact))

    # Text ----------------------------------------------------------------------------------------------------

    def coords(self, shape: Sequence[str], whole: Sequence[str] = ()) -> list[str]:
        return [self.all_of(d) if d in whole else INDEX[d] for d in shape]

    def all_of(self, dim: str) -> str:
        """All of a dimension, sometimes as a slice."""
        if not self.chance(0.1):
            return ":"
        self.features.add("slice")
        return self.pick((f"0 : {dim}", f"{dim} - {dim} :", f": {dim}", f"rank - rank : {dim}"))

    def wider(self, coords: Sequence[str], share: float = 0.12) -> list[str]:
        """The coordinates, sometimes with a whole dimension in place of a tile or a rank."""
        new = [":" if self.chance(share) else c for c in coords]
        if new != list(coords):
            self.features.add("wider signal")
        return new

    def wait(self, source: Source, coords: Sequence[str]) -> list[str]:
        if source.signal is None:
            return []
        word = PAIRS[source.signal][1]
        return [f"{word}({at(source.name, self.wider(coords))})"]

    def notify(self, name: str, coords: Sequence[str], kind: str = "tile", rank: str | None = None) -> str:
        self.features.add(f"{kind} signals")
        return f"{PAIRS[kind][0]}({at(name, self.wider(coords, 0.06), rank)})"

    def kind(self) -> str:
        return self.pick(("tile", "tile", "tile", "rank", "peer"))

    def nest(self, lines: Sequence[str]) -> list[str]:
        """The lines, sometimes under conditions and loops that leave them as they are."""
        if not self.chance(0.25):
            return list(lines)
        self.features.add("nested")
        inner = ["    " + line for line in self.nest(lines)]
        match self.pick(("if", "else", "loop", "bool", "table", "not")):
            case "if":
                return ["if rank < ranks:", *inner]
            case "not":
                return ["if not rank == rank + ranks * 0:", "    pass_ = 0.0", "else:", *inner]
            case "else":
                return [f"if {self.pick(('rank == 0', 'rank != ranks - 1', 'rank > 1'))}:", *inner, "else:", *inner]
            case "loop":
                return [f"for ({self.fresh('u')}: 1):", *inner]
            case "bool":
                return [f"if {self.param('bool', self.chance(0.5))}:", *inner, "else:", *inner]
            case _:
                return [f"if {self.table('M' if 'M' in self.dims else self.dim('M'), 'ranks')}[0] > 0:", *inner,
                        "else:", *inner]  # fmt: skip

    def number(self, expr: str) -> str:
        """The same number, sometimes by arithmetic that folds away."""
        if not self.chance(0.25):
            return expr
        self.features.add("arithmetic that folds")
        return self.pick(
            (f"{expr} * 1", f"{expr} - 0", f"{expr} // 1", f"({expr} * ranks) // ranks", f"({expr} + rank) - rank")
        )

    def stage(self, kind: str, domain: Sequence[str], lines: Sequence[str], word: str = "f", on: str = "") -> str:
        """domain: dimensions, or `name: extent`. on: the group that executes it."""
        name = self.fresh(word)
        where = ", ".join(d if ":" in d else f"{INDEX[d]}: {d}" for d in domain)
        body = "".join(f"        {line}\n" for line in lines)
        self.stages.append(f"    {kind} {name}({where}){f' on {on}' if on else ''}:\n{body}")
        return name

    def text(self, name: str = "p") -> str:
        over = f" over {', '.join(self.over)}" if self.over else ""
        head = f"program {name}({', '.join(self.params)}){over}:\n"
        return head + "".join(f"    {line}\n" for line in self.declared) + "\n" + "\n".join(self.stages)


def at(name: str, coords: Sequence[str], rank: str | None = None) -> str:
    """A region."""
    return f"{name}[{', '.join(coords)}]" + (f" @ {rank}" if rank else "")
