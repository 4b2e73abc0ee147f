"""Reads the text of a lowered program (tilelink/lowering/listing.py)."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import partial
from typing import Any, cast

from tests.lowered.layout import misfits
from tilelink.artifact import LaunchProtocol
from tilelink.capabilities import Capabilities, capabilities
from tilelink.errors import BindingError, EmitError, Location, ParseError, TileLinkError, did_you_mean
from tilelink.files import lines_of
from tilelink.frontend.parser import parse_text, require_text
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.frontend.scope import IntegerScope
from tilelink.frontend.syntax import Source
from tilelink.ir.depth import deep
from tilelink.ir.mapping import ChannelGrid
from tilelink.ir.parameters import check_numbers
from tilelink.ir.program import SIGNAL_KINDS, Assign, For, IndexDecl, Program
from tilelink.ir.scalar import Choose, Index, Int, Scalar
from tilelink.ir.visitor import all_indices, map_loops, statements
from tilelink.lowering.bind import FLOATS
from tilelink.lowering.bound import Bound, BoundStage, BoundTensor, Boxes, Kernel, Loop
from tilelink.lowering.carried import Mask
from tilelink.lowering.clauses.order import ORDER
from tilelink.lowering.compact import SEGMENT, THERE, WITHIN, Compact
from tilelink.lowering.limits import check_capabilities
from tilelink.lowering.listing import ALWAYS, NEVER
from tilelink.lowering.masks import PART, extremes
from tilelink.lowering.orders import TILE
from tilelink.lowering.properties import Form, Property, properties
from tilelink.lowering.rings import NEXT, Ring, Role, Roles, Step
from tilelink.lowering.rings import WORDS as STEP_WORDS
from tilelink.scheduling.schedule import Order, Schedule, resource_of
from tilelink.target import Target

_HEAD = re.compile(r"lowered for (\d{1,9}) ranks(?: on (\d{1,9}) nodes)?:\s*$")
_ARCHITECTURE = re.compile(r"sm_[0-9]{2,3}")
_LINE = re.compile(r"    (?P<kind>\w+)(?: (?P<name>[\w ]+))?: (?P<rest>.*)$")
_LOOP = re.compile(r"        for tile in range\((?P<tiles>\d{1,9})\): (?P<stages>[\w, ]+)(?:; (?P<rest>.*))?$")
_NEST = re.compile(r"        (?P<order>order\(.*\))$")
_ORDER = re.compile(r"        (?P<index>\w+) = (?P<value>.*)$")
_COMPACT = re.compile(r"            compact: (?P<rest>index \w+, segments \d+, size \d+, across \d+)$")
_NUMBERED = re.compile(r"                (?P<name>there|tile) = (?P<value>.*)$")
_RING = re.compile(r"        ring (?P<name>\w+): (?P<rest>.*)$")
_ROLE = re.compile(
    r"            (?P<name>\w+)(?: x(?P<groups>\d+))?"
    r"(?: (?P<when>first|last|(?P<further>\d+) further))?: (?P<steps>.*)$"
)
_MASK = re.compile(r"        mask (?P<statement>\d{1,9}): first (?P<first>[^;]+); further (?P<further>[^;]+)$")
_PROPERTY = re.compile(r"(?P<word>\w+)(?:\((?P<named>[^()]*)\)|\[(?P<list>[^\[\]]*)\]| (?P<value>[^,]*))?(?:, |$)")
_SWITCHES = frozenset(one.name for one in fields(Roles) if one.default is False)
"""Properties of roles that are 0 or 1; 0 is not printed."""
_RESOURCE = re.compile(r"(?:on (?:copy_engine|sm(?:\(\d+\))?)|in \w+ (?:prologue|epilogue))(?:, |$)")
_WORDS: Mapping[str, tuple[str, ...]] = {
    "target": tuple(one.name for one in fields(Target) if one.name != "name"),
    "launch": ("protocol", "many_threads", "dialect", "reuse_wait"),
    "sizes": ("dtype", "numbers"),
    "signal_pad": ("entered", "finished", "size"),
    "tensor": (
        "number",
        "dtype",
        "shape",
        "memory",
        "buffers",
        "packed",
        "swept_by",
        "credits",
        "members",
        "fragments",
    ),
    "channel": ("base", "counts", "sizes", "buffers"),
    "kernel": tuple(one.word for one in properties(Kernel)),
    "stage": tuple(one.word for one in properties(BoundStage)),
}
"""Kind of line -> the words of its properties."""

Properties = dict[str, Any]
"""word -> value: True for a word alone, a str, a list of str, or a dict of str."""


@deep()
def parse_lowered(text: str, file: str = "<text>") -> Bound:
    """Return the lowered program that `listing` wrote.

    Its `source` is the program itself, and its `schedule` an empty one: the text does not have those that it comes
    from. Raises ParseError for a text of another form, and what parsing its program raises.
    """
    require_text(text)
    lines = lines_of(text)
    start = next((n for n, line in enumerate(lines) if line.startswith("program ")), len(lines))
    program = _program(lines, start, file)
    reader = _Reader(file=file, lines=lines, program=program)
    for number in range(start):
        if lines[number].strip() and not lines[number].startswith("#"):
            reader.line(number)
    return reader.bound()


def _program(lines: list[str], start: int, file: str) -> Program:
    """The program after the lowered part; lines of that are empty ones, so that errors name the right lines."""
    found = parse_text("\n".join(["" for _ in lines[:start]] + lines[start:]) + "\n", file, lowered=True).programs
    if len(found) != 1:
        location = Location(file=file, line=start + 1, text="")
        raise ParseError(
            f"a lowered text has one program, not {len(found)}", location=location, hint="program NAME(...):"
        )
    return found[0]


def _marked(decl: IndexDecl, *, numbers: frozenset[str]) -> IndexDecl:
    return replace(decl, number=decl.name in numbers)


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdigit()


class _OrderScope(IntegerScope):
    """The names in the order of a stage's tiles, which may choose from constants."""

    def scalar(self, node: ast.expr) -> Scalar:
        match node:
            case ast.Call(func=ast.Name(id="choose"), args=[selector, *values]):
                chosen = [one.value for one in map(self.scalar, values) if isinstance(one, Int)]
                if len(chosen) < len(values) or not chosen:
                    hint = "choose(tile, 2, 0, 1): the values are integers"
                    raise ParseError("not a choice from numbers", location=self.location(node), hint=hint)
                return Choose(selector=self.scalar(selector), values=tuple(chosen))
            case _:
                return super().scalar(node)


@dataclass(kw_only=True)
class _RingLine:
    """A line of a ring, with the roles below it."""

    number: int
    name: str
    properties: Properties
    roles: list[Role] = field(default_factory=list[Role])


@dataclass(kw_only=True)
class _Line:
    """A line of the lowered part, with its properties and the lines below it."""

    number: int
    kind: str
    name: str
    properties: Properties
    loops: list[Loop] = field(default_factory=list[Loop])
    tiles: list[tuple[int, int, str]] = field(default_factory=list[tuple[int, int, str]])
    """Number of the line, tiles and first stage of each loop."""
    nest: Order | None = None
    order: dict[str, Scalar] = field(default_factory=dict[str, Scalar])
    rings: list[_RingLine] = field(default_factory=list["_RingLine"])
    masks: list[Mask] = field(default_factory=list[Mask])
    compact: list[tuple[int, Properties, dict[str, Scalar]]] = field(
        default_factory=list[tuple[int, dict[str, Any], dict[str, Scalar]]]
    )
    """Number of the line, sizes and expressions of each loop's compact numbers."""


@dataclass(kw_only=True)
class _Reader:
    """Reads the lowered part line by line."""

    file: str
    lines: list[str]
    program: Program
    ranks: int | None = None
    nodes: int = 1
    found: dict[str, list[_Line]] = field(default_factory=lambda: {kind: [] for kind in _WORDS})
    last: _Line | None = None

    def line(self, number: int) -> None:
        """Read one line. Raises ParseError for one that cannot be read."""
        text = self.lines[number].rstrip()
        if self.ranks is None:
            head = _HEAD.match(text)
            if head is None:
                raise self.error(number, "not the head of a lowered program", "lowered for N ranks:")
            self.ranks, self.nodes = int(head[1]), int(head[2] or 1)
            if not self.nodes or self.ranks % self.nodes:
                hint = "nodes have equally many ranks"
                raise self.error(number, f"{self.ranks} ranks on {self.nodes} nodes", hint)
        elif (loop := _LOOP.match(text)) and self.last and self.last.kind == "kernel":
            stages = tuple(name.strip() for name in loop["stages"].split(","))
            self._check_stages(number, stages)
            own = self._properties(number, loop["rest"] or "")
            self._check_words(number, "loop", own)
            self.last.tiles.append((number, int(loop["tiles"]), stages[0]))
            first, begin = (self._int(number, own, name) if name in own else 0 for name in ("first", "begin"))
            width, each = (self._int(number, own, name) if name in own else None for name in ("width", "each"))
            self.last.loops.append(Loop(stages=stages, first=first, begin=begin, width=width, each=each))
        elif (compact := _COMPACT.match(text)) and self.last and self.last.loops:
            self.last.compact.append((number, self._properties(number, compact["rest"]), {}))
        elif (numbered := _NUMBERED.match(text)) and self.last and self.last.compact:
            self._numbered(self.last, number, numbered["name"], numbered["value"])
        elif (nest := _NEST.match(text)) and self.last and self.last.kind == "stage":
            self.last.nest = self._nest(self.last, number, nest["order"])
        elif (order := _ORDER.match(text)) and self.last and self.last.kind == "stage":
            if order["index"] in self.last.order:
                raise self.error(number, f"{order['index']} has two orders", "give each index one")
            self.last.order[order["index"]] = self._scalar(number, order["value"])
        elif (ring := _RING.match(text)) and self.last:
            own = self._properties(number, ring["rest"])
            self.last.rings.append(_RingLine(number=number, name=ring["name"], properties=own))
        elif (role := _ROLE.match(text)) and self.last and self.last.rings:
            steps = tuple(self._step(number, one) for one in role["steps"].split("; "))
            self._role(self.last.rings[-1].roles, role, steps)
        elif (mask := _MASK.match(text)) and self.last and self.last.kind == "stage":
            first, further = (self._when(self.last, number, mask[name]) for name in ("first", "further"))
            self.last.masks.append(Mask(statement=int(mask["statement"]), first=first, further=further))
        elif found := _LINE.match(text):
            if found["kind"] not in _WORDS:
                hint = did_you_mean(found["kind"], _WORDS) or f"one of {', '.join(_WORDS)}"
                raise self.error(number, f"unknown line {found['kind']!r}", hint)
            self.last = _Line(
                number=number, kind=found["kind"], name=found["name"] or "",
                properties=self._properties(number, found["rest"]),
            )  # fmt: skip
            self._check_words(number, found["kind"], self.last.properties)
            self.found[found["kind"]].append(self.last)
        else:
            hint = f"KIND NAME: properties, of {', '.join(_WORDS)}"
            raise self.error(number, "not a line of a lowered program", hint)

    def _nest(self, line: _Line, number: int, text: str) -> Order | None:
        """Read the loops of an order. Its clause has them, so the parser of schedules reads them."""
        if line.nest is not None:
            raise self.error(number, f"{line.name} has two orders", "one line `order(...)`")
        try:
            part = parse_schedule(f"schedule lowered for {self.program.name}:\n    {line.name} {text}\n")
        except TileLinkError as error:
            raise self.error(number, error.message, error.hint or "order(s = rank step +1, i)") from None
        return part.stage(line.name)[ORDER]

    def _when(self, line: _Line, number: int, text: str) -> Scalar | bool:
        """Read when consumers apply a mask, over the indices of a stage and the number of the consumer."""
        if text in (ALWAYS, NEVER):
            return text == ALWAYS
        stage = self.program.stage(line.name)
        loops = (decl for s in statements(stage.body) if isinstance(s, For) for decl in s.indices)
        vectors = extremes(s.name for s in stage.body if isinstance(s, Assign))
        names = (*(Index(name=name) for name in (*(decl.name for decl in (*stage.indices, *loops)), *vectors, PART)),)
        if not text.startswith("if "):
            raise self.error(number, f"not when a mask is applied: {text!r}", f"{ALWAYS}, {NEVER}, or `if CONDITION`")
        return self._scalar(number, text.removeprefix("if "), names)

    def _numbered(self, line: _Line, number: int, name: str, value: str) -> None:
        """Read an expression of compact numbers; with the second one they are complete, and the last loop has them."""
        at, own, exprs = line.compact[-1]
        if name in exprs or line.loops[-1].compact is not None:
            raise self.error(number, f"`{name}` has two expressions", "a line `there = ...` and a line `tile = ...`")
        exprs[name] = self._scalar(number, value, (SEGMENT, *((WITHIN, THERE) if name == "tile" else ())))
        if len(exprs) == 2:
            segments, size, across = (self._int(at, own, word) for word in ("segments", "size", "across"))
            made = Compact(
                index=str(own["index"]), segments=segments, size=size, across=across, there=exprs["there"],
                tile=exprs["tile"],
            )  # fmt: skip
            line.loops[-1] = replace(line.loops[-1], compact=made)

    def _role(self, roles: list[Role], line: re.Match[str], steps: tuple[Step, ...]) -> None:
        """Add a role, or steps of its first or after its last iteration: those of the first are the first line.

        Those of its further positions come last.
        """
        groups = int(line["groups"] or 1)
        same = bool(roles) and (roles[-1].name, roles[-1].groups) == (line["name"], groups)
        if line["further"] and same and not roles[-1].further:
            roles[-1] = replace(roles[-1], further=int(line["further"]), after=steps)
        elif line["when"] == "last" and roles:
            roles[-1] = replace(roles[-1], last=steps)
        elif roles and roles[-1].first is not None and not roles[-1].steps:
            roles[-1] = replace(roles[-1], steps=steps)
        else:
            own, first = ((), steps) if line["when"] == "first" else (steps, None)
            roles.append(Role(name=line["name"], groups=groups, steps=own, first=first))

    def error(self, number: int, message: str, hint: str) -> ParseError:
        """Return an error at a line."""
        text = self.lines[number] if self.lines else ""
        indent = len(text) - len(text.lstrip())
        location = Location(
            file=self.file, line=number + 1, text=text, column=indent + 1, length=max(1, len(text.strip()))
        )
        return ParseError(message, location=location, hint=hint)

    def bound(self) -> Bound:
        """Return the whole. Raises ParseError for lines that are missing or do not fit the program."""
        if self.ranks is None:
            raise self.error(0, "no lowered program", "lowered for N ranks:")
        target, launch, sizes, pad = (self._only(kind) for kind in ("target", "launch", "sizes", "signal_pad"))
        protocol = self._word(launch, "protocol")
        if protocol not in LaunchProtocol.__members__:
            known = ", ".join(LaunchProtocol.__members__)
            raise self.error(launch.number, f"unknown protocol {protocol!r}", f"one of {known}")
        schedule = Schedule(name="lowered", program=self.program.name)
        self._check_complete()
        self._mark_numbers()
        ranks, numbers = self.ranks, self._numbers(sizes)
        if ranks < 1:
            raise self.error(0, f"lowered for {ranks} ranks", "a program runs on at least one rank")
        if self._word(sizes, "dtype") not in FLOATS:
            raise self.error(sizes.number, f"no dtype {self._word(sizes, 'dtype')!r}", f"one of {', '.join(FLOATS)}")
        made = Bound(
            source=self.program,
            program=self.program,
            schedule=replace(schedule, reuse_wait=launch.properties.get("reuse_wait") != "off"),
            numbers=numbers,
            ranks=ranks,
            dtype=self._word(sizes, "dtype"),
            target=self._target(target),
            tensors={one.name: self._tensor(one) for one in self.found["tensor"]},
            stages={one.name: self._stage(one) for one in self.found["stage"]},
            kernels=tuple(self._kernel(one) for one in self.found["kernel"]),
            channels={(grid.tensor, grid.kind): grid for grid in map(self._channel, self.found["channel"])},
            entered_base=self._number(pad, "entered"),
            finished_base=self._number(pad, "finished"),
            pad_size=self._number(pad, "size"),
            protocol=LaunchProtocol[protocol],
            many_threads="many_threads" in launch.properties,
            nodes=self.nodes,
            capabilities=self._capabilities(launch, target),
        )
        try:
            check_capabilities(made)
        except EmitError as error:
            raise self.error(launch.number, error.message, error.hint or "dialect triton") from None
        self._check_layout(made)
        return made

    def _check_complete(self) -> None:
        """Raise ParseError unless each tensor and each stage has a line, with all that the indices of a stage need."""
        for kind, wanted in (("tensor", self.program.tensors), ("stage", self.program.stages)):
            lines = self._by_name(kind)
            names = [one.name for one in wanted]
            for name, line in lines.items():
                if name not in names:
                    hint = did_you_mean(name, names, f"they are {', '.join(names)}")
                    raise self.error(line.number, f"the program has no {kind} {name!r}", hint)
            if missing := [name for name in names if name not in lines]:
                raise self.error(0, f"there is no line for {kind} {missing[0]}", f"{kind} {missing[0]}: ...")
        for kind in ("channel", "kernel"):
            self._by_name(kind)
        for line in self.found["stage"]:
            stage = self.program.stage(line.name)
            tiled = {decl.name for decl in all_indices(stage)}
            given = {"tile": self._ints(line, "tile"), "extent": self._ints(line, "extent")}
            for word, own in given.items():
                if own.keys() != tiled or any(size < (word == "tile") for size in own.values()):
                    hint = f"{word}({', '.join(f'{name}=1' for name in sorted(tiled))})"
                    raise self.error(line.number, f"{word} does not fit the indices of {line.name}", hint)
            for decl in stage.indices:
                if decl.name not in line.order:
                    hint = f"{decl.name} = an expression over `tile`"
                    raise self.error(line.number, f"{line.name} has no order of {decl.name}", hint)
            named = [term.index for term in line.nest.nest] if line.nest else []
            grouped = [line.nest.group[0]] if line.nest and line.nest.group else []
            if len(set(named)) < len(named) or not {*named, *grouped} <= line.order.keys():
                hint = f"its indices, each once: {', '.join(decl.name for decl in stage.indices)}"
                raise self.error(line.number, f"{line.nest} does not fit the indices of {line.name}", hint)
            if more := sorted(line.order.keys() - {decl.name for decl in stage.indices}):
                there = [decl.name for decl in stage.indices]
                hint = did_you_mean(more[0], there, f"it has {', '.join(there) or 'none'}")
                raise self.error(line.number, f"{line.name} has no index {more[0]!r}", hint)
        tensors = [one.name for one in self.program.tensors]
        for line in self.found["channel"]:
            tensor, _, kind = line.name.partition(" ")
            if tensor not in tensors or kind not in SIGNAL_KINDS:
                raise self.error(line.number, f"no channels {line.name!r}", f"TENSOR {'|'.join(SIGNAL_KINDS)}")
            dims = len(self.program.tensor(tensor).shape)
            for word in ("counts", "sizes"):
                if len(self._numbers_of(line, word)) != dims:
                    raise self.error(line.number, f"{tensor} has {dims} dimensions", f"{word}[one for each of them]")
        for line in self.found["kernel"]:
            if not line.loops:
                raise self.error(line.number, f"kernel {line.name} runs no tiles", "for tile in range(N): STAGE")
            if len(line.compact) != sum(loop.compact is not None for loop in line.loops):
                hint = "below each line `compact: ...` a line `there = ...` and a line `tile = ...`"
                raise self.error(line.compact[-1][0], f"compact numbers of {line.name} are not complete", hint)

    def _by_name(self, kind: str) -> dict[str, _Line]:
        """Return the lines of a kind. Raises ParseError for two of one name: only the last would count."""
        lines: dict[str, _Line] = {}
        for line in self.found[kind]:
            if line.name in lines:
                raise self.error(line.number, f"a second line for {kind} {line.name}", "give each of them one line")
            lines[line.name] = line
        return lines

    def _check_layout(self, bound: Bound) -> None:
        """Raise ParseError for numbers that do not fit the rest of the text, and what checks of layouts raise."""
        for misfit in misfits(bound):
            lines = (line for line in self.found[misfit.kind] if line.name == misfit.part)
            number = next((line.number for line in lines), 0)
            raise self.error(number, misfit.message, misfit.hint)
        for line in self.found["kernel"]:
            for number, tiles, stage in line.tiles:
                if tiles != bound.stages[stage].total:
                    hint = f"for tile in range({bound.stages[stage].total})"
                    raise self.error(number, f"{stage} has {bound.stages[stage].total} tiles, not {tiles}", hint)

    def _mark_numbers(self) -> None:
        """Mark the indices of the program that are plain numbers: binding finds out which these are."""
        stages = {one.name: one for one in self.program.stages}
        for line in self.found["stage"]:
            numbers = frozenset(self._list(line, "numbers") if "numbers" in line.properties else ())
            stage, mark = stages[line.name], partial(_marked, numbers=numbers)
            stages[line.name] = replace(
                stage, indices=tuple(map(mark, stage.indices)), body=map_loops(stage.body, mark)
            )
        self.program = replace(self.program, stages=tuple(stages.values()))

    def _capabilities(self, launch: _Line, target: _Line) -> Capabilities:
        """Return what the dialect of the launch has on the target. Raises ParseError where there is no such dialect."""
        try:
            return capabilities(self._target(target), str(launch.properties.get("dialect", "triton")))
        except EmitError as error:
            raise self.error(launch.number, error.message, error.hint or "dialect triton") from None

    # Lines -----------------------------------------------------------------------------------------------

    def _target(self, line: _Line) -> Target:
        own = {name: self._value(line.number, value) for name, value in line.properties.items() if name != "kind"}
        for word in ("sms", "shared_memory"):
            self._word(line, word)
        kind = self._word(line, "kind")
        if kind not in ("cpu", "cuda", "hip"):
            raise self.error(line.number, f"no kind of processor {kind!r}", "cpu, cuda or hip")
        for field_of in fields(Target):
            value = own.get(field_of.name)
            if (
                value is not None
                and field_of.name != "name"
                and type(value) is not (bool if isinstance(field_of.default, bool) else int)
            ):
                right = "True" if isinstance(field_of.default, bool) else "1"
                raise self.error(line.number, f"{field_of.name} is {value!r}", f"{field_of.name} {right}")
        if any(own.get(word) is None for word in ("sms", "shared_memory")):
            raise self.error(
                line.number, "sms and shared_memory of a target are numbers", "sms 132, shared_memory 232448"
            )
        if kind == "cuda" and not _ARCHITECTURE.fullmatch(line.name):
            raise self.error(line.number, f"no architecture {line.name}", "target sm_90")
        return Target(name=line.name, kind=kind, **own)

    def _numbers(self, line: _Line) -> dict[str, int | float | bool]:
        found = self._named(line, "numbers")
        numbers = {name: self._value(line.number, value) for name, value in found.items()}
        try:
            return check_numbers(self.program.params, numbers)
        except BindingError as error:
            raise self.error(line.number, error.message, error.hint or "numbers(NAME=NUMBER)") from None

    def _tensor(self, line: _Line) -> BoundTensor:
        shape = self._numbers_of(line, "shape")
        return BoundTensor(
            decl=self.program.tensor(line.name),
            number=self._number(line, "number"),
            shape=shape,
            dtype=self._word(line, "dtype"),
            buffers=self._number(line, "buffers"),
            packed=self._number(line, "packed") if "packed" in line.properties else 0,
            swept_by=self._word(line, "swept_by") if "swept_by" in line.properties else None,
            steps=self._steps(line, shape) if "memory" in line.properties else None,
            credits=self._word(line, "credits") if "credits" in line.properties else None,
            members=self._members(line),
            fragments="fragments" in line.properties and self._switch(line, "fragments"),
        )

    def _steps(self, line: _Line, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the dimension of steps of which memory holds some at a time, and how many."""
        memory = self._numbers_of(line, "memory")
        fewer = [d for d, (kept, every) in enumerate(zip(memory, shape, strict=False)) if kept != every]
        if len(memory) != len(shape) or len(fewer) != 1:
            hint = "memory of the shape, with fewer elements along the dimension of steps"
            raise self.error(line.number, f"memory of {line.name} is not its shape with fewer steps", hint)
        return fewer[0], memory[fewer[0]]

    def _members(self, line: _Line) -> tuple[int, int] | None:
        if "members" not in line.properties:
            return None
        match self._numbers_of(line, "members"):
            case (first, stop) if 0 <= first < stop <= (self.ranks or 0):
                return first, stop
            case _:
                hint = "members[0, 2]: the first rank that has the tensor, and one past the last"
                raise self.error(line.number, f"{line.name} has no such members", hint)

    def _channel(self, line: _Line) -> ChannelGrid:
        tensor, _, kind = line.name.partition(" ")
        return ChannelGrid(
            tensor=tensor,
            kind=kind,
            sizes=self._numbers_of(line, "sizes"),
            counts=self._numbers_of(line, "counts"),
            base=self._number(line, "base"),
            buffers=self._number(line, "buffers"),
        )

    def _kernel(self, line: _Line) -> Kernel:
        return Kernel(name=line.name, loops=tuple(line.loops), **self._said(line, Kernel))

    def _stage(self, line: _Line) -> BoundStage:
        own = self._said(line, BoundStage)
        try:
            own["resource"] = resource_of(self._word(line, "resource"))
        except TileLinkError as error:
            raise self.error(line.number, error.message, error.hint or "on sm") from None
        own |= {word: read(line) for word, read in self._others.items() if word in line.properties}
        return BoundStage(
            stage=self.program.stage(line.name), order=line.order, nest=line.nest, masks=tuple(line.masks), **own
        )

    @property
    def _others(self) -> Mapping[str, Callable[[_Line], Any]]:
        """Field of a stage that no form of properties is for -> its reader."""
        return {"tma_copy": self._boxes, "roles": self._roles}

    def _said(self, line: _Line, kind: type) -> dict[str, Any]:
        """Return the fields of a kernel or a stage that its line says, except those of another form."""
        wanted = [one for one in properties(kind) if one.form is not Form.OTHER]
        return {one.name: self._field(line, one) for one in wanted if one.required or one.word in line.properties}

    def _field(self, line: _Line, one: Property) -> Any:
        match one.form:
            case Form.NUMBER:
                return self._number(line, one.word)
            case Form.SWITCH:
                return self._switch(line, one.word)
            case Form.NAMES:
                return frozenset(self._list(line, one.word))
            case Form.LIST:
                return tuple(self._list(line, one.word))
            case Form.SIZES:
                return self._ints(line, one.word)
            case Form.CHOICE:
                return self._choice(line, one)
            case _:
                return self._word(line, one.word)

    def _choice(self, line: _Line, one: Property) -> Enum:
        word, known = self._word(line, one.word), one.choices.__members__ if one.choices else {}
        if word not in known:
            raise self.error(line.number, f"unknown {one.word} {word!r}", f"one of {', '.join(known)}")
        return known[word]

    def _boxes(self, line: _Line) -> Boxes:
        sizes = self._ints(line, "tma_copy")
        try:
            box = sizes.pop("box_rows"), sizes.pop("box_columns")
            return Boxes(box=box, **sizes)
        except (KeyError, TypeError):
            hint = "tma_copy(programs=, rows=, columns=, box_rows=, box_columns=, buffers=)"
            raise self.error(line.number, "not the boxes of a stage that copies by TMA", hint) from None

    def _roles(self, line: _Line) -> Roles:
        sizes: dict[str, Any] = {**self._ints(line, "roles")}
        rings = {one.name: self._ring(one) for one in line.rings}
        try:
            registers = sizes.pop("registers"), sizes.pop("other_registers")
            sizes |= {name: {0: False, 1: True}[sizes[name]] for name in _SWITCHES & sizes.keys()}
            return Roles(
                registers=registers, operands=rings.pop("operands"), results=rings.pop("results"),
                kept=rings.pop("kept", None), numbers=rings.pop("numbers", None), **sizes,
            )  # fmt: skip
        except (KeyError, TypeError):
            hint = "roles(consumers=, rows=, columns=, block=, pieces=, registers=, other_registers=), and below it "
            hint += "`ring operands: ...` and `ring results: ...`"
            raise self.error(line.number, "not the roles of a stage", hint) from None

    def _ring(self, line: _RingLine) -> Ring:
        if len(line.roles) != 2:
            hint = "two lines below it: `WRITER: STEP; ...` and `READER: STEP; ...`"
            raise self.error(line.number, f"ring {line.name} has {len(line.roles)} roles", hint)
        numbers = {name: self._int(line.number, line.properties, name) for name in line.properties}
        if numbers.pop("buffers", 0) < 1:
            raise self.error(line.number, f"ring {line.name} has no buffers", "buffers NUMBER, BARRIER ARRIVALS, ...")
        writer, reader = line.roles
        return Ring(
            name=line.name, buffers=self._int(line.number, line.properties, "buffers"), barriers=tuple(numbers.items()),
            writer=writer, reader=reader,
        )  # fmt: skip

    def _step(self, number: int, text: str) -> Step:
        word, *rest = text.split() or [""]
        ahead = rest[-1:] == [NEXT]
        rest = rest[:-1] if ahead else rest
        step = Step(
            word=word, what=next((one for one in rest if not _is_count(one)), ""),
            number=next((int(one) for one in rest if _is_count(one)), 0), ahead=ahead,
        )  # fmt: skip
        if word not in STEP_WORDS or str(step) != text:
            hint = did_you_mean(word, STEP_WORDS) or f"WORD, WORD NUMBER or WORD NAME NUMBER of {', '.join(STEP_WORDS)}"
            raise self.error(number, f"not a step of a role: {text!r}", hint)
        return step

    def _check_stages(self, number: int, names: tuple[str, ...]) -> None:
        known = [one.name for one in self.program.stages]
        for name in names:
            if name not in known:
                hint = did_you_mean(name, known, f"its stages are {', '.join(known)}")
                raise self.error(number, f"the program has no stage {name!r}", hint)

    # Properties ------------------------------------------------------------------------------------------

    def _properties(self, number: int, text: str) -> Properties:
        found: Properties = {}
        at = 0
        while at < len(text):
            if resource := _RESOURCE.match(text, at):
                self._check_new(number, "resource", found)
                found["resource"], at = resource[0].removesuffix(", "), resource.end()
                continue
            one = _PROPERTY.match(text, at)
            if one is None:
                raise self.error(number, f"cannot read {text[at:]!r}", "word, word value, word(a=1, b=2) or word[1, 2]")
            self._check_new(number, one["word"], found)
            if one["named"] is not None:
                pairs = [pair.partition("=") for pair in one["named"].split(", ") if pair]
                if len({name for name, _, _ in pairs}) < len(pairs):
                    raise self.error(number, f"{one['word']} names something twice", "give each name one value")
                found[one["word"]] = {name: value for name, _, value in pairs}
            elif one["list"] is not None:
                found[one["word"]] = [value for value in one["list"].split(", ") if value]
            else:
                found[one["word"]] = True if one["value"] is None else one["value"]
            at = one.end()
        return found

    def _check_new(self, number: int, word: str, found: Properties) -> None:
        if word in found:
            raise self.error(number, f"{word} has two values", "give each property one")

    def _check_words(self, number: int, kind: str, own: Properties) -> None:
        known = _WORDS.get(kind, ("first", "begin", "width", "each"))
        if unknown := [word for word in own if word not in known]:
            hint = did_you_mean(unknown[0], known, f"one of {', '.join(known)}")
            raise self.error(number, f"unknown property {unknown[0]!r}", hint)

    def _only(self, kind: str) -> _Line:
        found = self.found[kind]
        if len(found) != 1:
            number = found[1].number if found else 0
            raise self.error(number, f"{len(found)} lines begin with {kind}", f"one line `{kind}: ...`")
        return found[0]

    def _word(self, line: _Line, word: str) -> str:
        value = line.properties.get(word)
        if not isinstance(value, str):
            raise self.error(line.number, f"{word} is missing", f"{word} VALUE")
        return value

    def _switch(self, line: _Line, word: str) -> bool:
        if line.properties[word] is not True:
            raise self.error(line.number, f"{word} has a value", f"{word} alone")
        return True

    def _number(self, line: _Line, word: str) -> int:
        return self._int(line.number, {word: self._word(line, word)}, word)

    def _int(self, number: int, own: Mapping[str, Any], word: str) -> int:
        try:
            return int(own[word])
        except (TypeError, ValueError):
            raise self.error(number, f"{word} is no integer: {own[word]}", f"{word} NUMBER") from None

    def _numbers_of(self, line: _Line, word: str) -> tuple[int, ...]:
        return tuple(self._int(line.number, {word: one}, word) for one in self._list(line, word))

    def _list(self, line: _Line, word: str) -> list[str]:
        value: object = line.properties.get(word)
        if not isinstance(value, list):
            raise self.error(line.number, f"{word} is missing", f"{word}[1, 2]")
        return cast("list[str]", value)

    def _named(self, line: _Line, word: str) -> dict[str, str]:
        value = line.properties.get(word)
        if not isinstance(value, dict):
            raise self.error(line.number, f"{word} is missing", f"{word}(a=1, b=2)")
        return value

    def _ints(self, line: _Line, word: str) -> dict[str, int]:
        return {name: self._int(line.number, {word: value}, word) for name, value in self._named(line, word).items()}

    def _value(self, number: int, text: str) -> Any:
        """A number, a truth value or None, as Python writes it."""
        try:
            return float(text) if text in ("inf", "-inf", "nan") else ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise self.error(number, f"{text!r} is no number", "a number as Python writes it") from None

    def _scalar(self, number: int, text: str, names: tuple[Index, ...] = (TILE,)) -> Scalar:
        """An expression over the number of the tile, or over other names."""
        source = Source(file=self.file, lines=tuple(self.lines))
        scope = _OrderScope(
            source=source,
            params={},  # all numbers are in place
            tensors={one.name: one for one in self.program.tensors},
            indices={one.name: IndexDecl(name=one.name, extent=one) for one in names},
        )
        try:
            node = ast.parse(text.strip(), mode="eval").body
        except SyntaxError:
            hint = f"an expression over {', '.join(f'`{one.name}`' for one in names)}"
            raise self.error(number, "not an integer expression", hint) from None
        for part in ast.walk(node):
            if hasattr(part, "lineno"):
                part.lineno = part.end_lineno = number + 1  # pyright: ignore[reportAttributeAccessIssue]
        return scope.scalar(node)
