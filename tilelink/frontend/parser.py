"""The text front end: `.tl` text -> syntax (lark) -> IR, and schedule blocks -> schedules."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from lark import Lark, Token, v_args
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken, VisitError
from lark.indenter import DedentError, Indenter
from lark.tree import Meta
from lark.visitors import Transformer_NonRecursive

from tilelink.errors import (
    ConsequenceError,
    DuplicateNameError,
    Location,
    Mistakes,
    ParseError,
    ScheduleError,
    TileLinkError,
    UnknownNameError,
    did_you_mean,
    no_schedule,
)
from tilelink.files import lines_of
from tilelink.frontend.build import parsed_program
from tilelink.frontend.grammar import lalr
from tilelink.frontend.recovery import parse_all
from tilelink.frontend.schedule_parser import Head, parse_head, parse_schedule
from tilelink.frontend.syntax import (
    DefSyntax,
    GridSyntax,
    GroupSyntax,
    IndexSyntax,
    LetSyntax,
    ParamSyntax,
    ProgramSyntax,
    Source,
    StageSyntax,
    TensorSyntax,
    VariantSyntax,
)
from tilelink.frontend.variants import OPEN, Elsewhere, variant_of
from tilelink.ir.depth import deep
from tilelink.ir.program import SUM, Program
from tilelink.scheduling.schedule import Schedule
from tilelink.scheduling.words import check_names

DIGITS = 39
"""Number of digits of the largest f32."""

Node = TypeVar("Node", bound=ast.AST)

_OPERATORS: dict[str, type[ast.operator]] = {
    "+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv, "%": ast.Mod, "@": ast.MatMult,
    "^": ast.BitXor,
    "|": ast.BitOr,
    "&": ast.BitAnd,
    "<<": ast.LShift,
    ">>": ast.RShift,
}  # fmt: skip
_COMPARES: dict[str, type[ast.cmpop]] = {
    "==": ast.Eq, "!=": ast.NotEq, "<": ast.Lt, "<=": ast.LtE, ">": ast.Gt, ">=": ast.GtE,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Module:
    """The programs and schedules of a `.tl` file, in source order."""

    programs: tuple[Program, ...]
    schedules: tuple[Schedule, ...]


def require_text(text: object) -> None:
    """Raise ParseError if the argument is not a str; callers need not be typed."""
    if not isinstance(text, str):
        hint = "parse takes the text itself; tilelink.load(FILE) reads a file"
        raise ParseError(f"a {type(text).__name__} is not a text of programs", hint=hint)


Published = Callable[[str], "tuple[Schedule, ...]"]
"""The schedules that other files have for a program of some name."""


@deep()
def parse_text(
    text: str,
    file: str = "<text>",
    elsewhere: Elsewhere = lambda _: None,
    published: Published = lambda _: (),
    *,
    lowered: bool = False,
) -> Module:
    """Parse programs and schedules, each program with its schedules.

    elsewhere: where bases of variants are looked for that the text does not have. published: the same for schedules
    that others extend. lowered: True for programs that passes have made.

    Raises ParseError, an error of `build_program`, or SeveralErrors.
    """
    require_text(text)
    lines = lines_of(text)
    mistakes = Mistakes()
    blocks = _schedule_blocks(lines)
    extended = _Schedules(
        lines=lines, file=file, heads=[_head(lines[a], file, a + 1) for a, _ in blocks], published=published
    )
    for a, b in blocks:
        with mistakes.noted():
            extended.parse(a, b)
    schedules = extended.parsed
    hidden = {n for a, b in blocks for n in range(a, b)}
    kept = "\n".join("" if n in hidden else line for n, line in enumerate(lines)) + "\n"
    source = Source(file=file, lines=tuple(lines))
    programs: list[Program] = []
    for syntax in parse_all(kept, source, _parse_programs, mistakes):
        with mistakes.noted():
            if isinstance(syntax, VariantSyntax):
                programs.append(variant_of(syntax, {one.name: one for one in programs}, elsewhere))
            else:
                programs.append(parsed_program(syntax, lowered=lowered))
    _check_named_once(programs, schedules, mistakes)
    mistakes.raise_any()
    _check_programs_named(programs, schedules, mistakes)
    mistakes.raise_any()
    extended.check_names({p.name: p for p in programs}, mistakes)
    mistakes.raise_any()
    return Module(programs=tuple(_with_own(one, schedules) for one in programs), schedules=tuple(schedules))


def _with_own(program: Program, schedules: list[Schedule]) -> Program:
    return replace(program, schedules=tuple(one for one in schedules if one.program == program.name))


@dataclass(kw_only=True)
class _Schedules:
    """The schedules of a text as they are parsed, one after the other: one may extend those before it.

    heads: of all of them, None for one that is none. extended: those that extend others, with their heads.
    published: the schedules of other files.
    """

    lines: list[str]
    file: str
    heads: list[Head | None]
    published: Published
    parsed: list[Schedule] = field(default_factory=list[Schedule])
    extended: list[tuple[Schedule, Head]] = field(default_factory=list[tuple[Schedule, Head]])

    def parse(self, first: int, stop: int) -> None:
        """Raise the error of the block of these lines."""
        head = parse_head(self.lines[first], self.file, first + 1)
        base = self._base(head) if head.like else None
        schedule = parse_schedule("\n".join(self.lines[first:stop]), self.file, first + 1, base)
        self.parsed.append(schedule)
        if base is not None:
            self.extended.append((schedule, head))

    def _base(self, head: Head) -> Schedule:
        """Return the schedule that a header extends. Raises ParseError or UnknownNameError."""
        program, name = head.like or ("", "")
        called = name if program == head.program else f"{program}:{name}"
        before = [one for one in self.parsed if (one.program, one.name) == head.like]
        if before:
            return before[0]
        found = [one for one in self.heads if one is not None and (one.program, one.name) == head.like]
        if any(one.location == head.location for one in found):
            message, hint = f"schedule {head.name} extends itself", "name another one, or leave `like` out"
            raise ParseError(message, location=head.like_at, hint=hint)
        for other in found:
            if other.location.line > head.location.line:
                message = f"schedule {head.name} extends {called}, which comes later in the file"
                hint = f"put {called} before {head.name}"
                if self._leads_to(other, head):
                    message = f"schedule {head.name} extends {called}, which extends {head.name}"
                    hint = "take `like` out of one of them"
                raise ParseError(message, location=head.like_at, related=other.location, hint=hint)
        if found:
            raise ConsequenceError(f"{called} is not in the language", location=head.like_at)
        published = [one for one in self._foreign(program) if one.name == name]
        if published:
            return published[0]
        raise no_schedule(name, {program: ()}, hint=self._extensible(program, name), location=head.like_at)

    def _foreign(self, program: str) -> tuple[Schedule, ...]:
        """Return the schedules of other files for a program, unless this text has a program of that name."""
        own = re.compile(rf"program\s+{re.escape(program)}\b")
        return () if any(map(own.match, self.lines)) else self.published(program)

    def _extensible(self, program: str, name: str) -> str:
        """Return a hint: the schedules that one of this program may extend here instead of the one of a name."""
        foreign = [one.name for one in self._foreign(program)]
        known = [one.name for one in self.parsed if one.program == program]
        others = [f"{one.program}:{one.name}" for one in self.parsed if one.name == name]
        if others and not foreign:
            return f"did you mean {others[0]}?"
        there = f"{program} has {', '.join(known) or 'none'} before it"
        if foreign:
            there = f"the library has {', '.join(foreign)} for it" + (f", and {there}" if known else "")
        return did_you_mean(name, [*known, *foreign], there)

    def _leads_to(self, head: Head, end: Head) -> bool:
        """True if a schedule extends another one, directly or through other schedules."""
        by_name = {(other.program, other.name): other for other in self.heads if other is not None}
        seen: set[tuple[str, str]] = set()
        while head.like is not None and head.like not in seen and head.like in by_name:
            seen.add(head.like)
            head = by_name[head.like]
        return (end.program, end.name) in seen

    def check_names(self, programs: dict[str, Program], mistakes: Mistakes) -> None:
        """Add a ScheduleError for each clause inherited from another program's schedule that does not fit."""
        for schedule, head in self.extended:
            if head.program not in programs:
                continue
            for part in (*schedule.stages, *schedule.tensors):
                try:
                    check_names(programs[head.program], part)
                except ScheduleError as error:
                    if error.location is not None and _earlier(error.location, head.location):
                        message = f"schedule {head.name} extends {':'.join(head.like or ())}: {error.message}"
                        hint = f"it is for {head.program}: {error.hint}"
                        related = error.location
                        mistakes.add(ScheduleError(message, location=head.like_at, related=related, hint=hint))


def _earlier(one: Location, other: Location) -> bool:
    """True if a location is in another file, or comes before another one in their file."""
    return one.file != other.file or one.line < other.line


def _head(line: str, file: str, number: int) -> Head | None:
    with suppress(ParseError):
        return parse_head(line, file, number)
    return None


def _check_named_once(programs: list[Program], schedules: list[Schedule], mistakes: Mistakes) -> None:
    for kind, named in (("program", programs), ("schedule", schedules)):
        names = [(n.name, getattr(n, "program", "")) for n in named]
        for number, node in enumerate(named):
            if names[number] in names[:number]:
                first = named[names.index(names[number])].location
                message = f"{kind} {node.name} twice"
                mistakes.add(DuplicateNameError(message, location=node.location, related=first, hint="rename one"))


def _check_programs_named(programs: list[Program], schedules: list[Schedule], mistakes: Mistakes) -> None:
    """Check that each schedule is for a program of the file, unless the file has no programs."""
    names = [p.name for p in programs]
    for schedule in schedules:
        if names and schedule.program not in names:
            hint = did_you_mean(schedule.program, names) or f"its programs are {', '.join(names)}"
            message = f"schedule {schedule.name} is for {schedule.program!r}, which is no program of this file"
            mistakes.add(UnknownNameError(message, location=schedule.location, hint=hint))


def _schedule_blocks(lines: list[str]) -> list[tuple[int, int]]:
    """The line ranges of the schedule blocks: an unindented header and the indented lines after it."""
    blocks: list[tuple[int, int]] = []
    for start, line in enumerate(lines):
        if re.match(r"schedule\b", line):
            stop = start + 1
            while stop < len(lines) and (not lines[stop].strip() or lines[stop][0] in " \t#"):
                stop += 1
            blocks.append((start, stop))
    return blocks


class _Indenter(Indenter):
    """The tokens of lark's indenter; inside brackets, indentation is ignored."""

    @property
    def NL_type(self) -> str:
        return "_NL"

    @property
    def OPEN_PAREN_types(self) -> list[str]:
        return ["LPAR", "LSQB"]

    @property
    def CLOSE_PAREN_types(self) -> list[str]:
        return ["RPAR", "RSQB"]

    @property
    def INDENT_type(self) -> str:
        return "_INDENT"

    @property
    def DEDENT_type(self) -> str:
        return "_DEDENT"

    @property
    def tab_len(self) -> int:
        return 8


@cache
def _grammar() -> Lark:
    text = Path(__file__).with_name("tilelink.lark").read_text(encoding="utf-8")
    return lalr(text, _Indenter())


def _parse_programs(text: str, source: Source) -> list[ProgramSyntax | VariantSyntax]:
    try:
        tree = _grammar().parse(text)
        return _Build(source).transform(tree)
    except UnexpectedInput as error:
        raise _unexpected(error, source) from None
    except DedentError:
        location = Location(file=source.file, line=len(source.lines) or 1)
        raise ParseError(
            "indentation that matches no block", location=location, hint="indent each block alike"
        ) from None
    except VisitError as error:
        if isinstance(error.orig_exc, TileLinkError):
            raise error.orig_exc from None
        raise


def _unexpected(error: UnexpectedInput, source: Source) -> ParseError:
    own, column = error.line, max(error.column or 1, 1)
    if (
        isinstance(error, UnexpectedToken) and error.token.type == "_INDENT"
    ):  # the token begins with the preceding line end
        own, column = error.token.end_line, max(error.token.end_column or 1, 1)
    line = min(max(own or 1, 1), max(1, len(source.lines)))
    text = source.lines[line - 1] if source.lines else ""
    found, length = "this character", 1
    if isinstance(error, UnexpectedToken):
        found = {"_NL": "the end of the line", "_INDENT": "a deeper indent", "_DEDENT": "the end of the block"}.get(
            error.token.type, repr(str(error.token)) if str(error.token) else "the end of the file"
        )
        length = len(str(error.token)) if error.token.type not in ("_NL", "_INDENT", "_DEDENT") else 1
    elif isinstance(error, UnexpectedCharacters):
        found = repr(error.char)
    location = Location(file=source.file, line=line, column=column, length=max(1, length), text=text)
    if found == "a deeper indent" and (above := _line_above(source, line)) is not None:
        own, other = (len(one) - len(one.lstrip()) for one in (text, source.lines[above - 1]))
        hint = f"the lines of a block are indented alike: line {above} has {other} spaces, and this one {own}"
        related = replace(location, line=above, column=other + 1, text=source.lines[above - 1])
        return ParseError(f"did not expect {found} here", location=location, related=related, hint=hint)
    return ParseError(f"did not expect {found} here", location=location, hint=_hint(text, found.strip("'"), column))


def _line_above(source: Source, line: int) -> int | None:
    """Return the number of the last line with code before a line, or None if there is none."""
    earlier = range(line - 1, 0, -1)
    return next((number for number in earlier if source.lines[number - 1].partition("#")[0].strip()), None)


def _hint(line: str, found: str, column: int) -> str:
    """The hint for a construct that is valid in Python or NumPy and not in the language."""
    before = line[: column - 1].rstrip()
    if found in _COMPARES:
        return "one comparison at a time: a < b and b < c"
    if found == "*" and before.endswith("*"):
        return "there is no power: multiply, or exp and log"
    if found == ":" and before.count("[") > before.count("]"):
        return "a coordinate is :, a slice a : b, an index, offset + i, or a number; an index has a part: (i: M[a : b])"
    if found in ("+=", "=") and "@" in before:
        hint = "tile_push_data(target @ r, value) writes to another rank"
        more = "; what several ranks add up has a dimension over them, and a sum of it"
        return hint + more * (found == "+=")
    if found == "within" and re.search(r"\bon\s+\w+\s*$", before):
        return "the tolerance comes before the group: y : out [M] within 0.01 on NAME"
    if found == ";":
        return "a statement ends with its line: leave the semicolon out"
    if found == "if" and before.strip() == "else":
        return "elif condition:"
    if found == "if" and "=" in before:
        return "where(condition, a, b), or an if around statements"
    word = line.split()[0] if line.split() else ""
    if word == "for" and before == line[: line.index("for") + 3]:
        return "for (s: ranks, j: M): a loop over tiles; its block is indented"
    if word in ("def", "return"):
        hint = "an integer function is one line of a program: def NAME(a, b): return EXPRESSION"
        return f"{hint}; a stage is comm or compute"
    if word == "let":
        return "let NAME = an integer expression, or a region: let row = x[i, :]"
    if word in ("while", "import", "from", "with", "pass"):
        return f"{word} is no statement of the language: it has assignments, primitives, if and for (s: ranks):"
    if word in ("program", "comm", "compute", "if", "elif", "else", "else:", "for"):
        return f"{word.rstrip(':')} ... ends in a colon and its block is indented; see docs/language.md"
    return "see docs/language.md for declarations, statements and values"


@v_args(meta=True)
class _Build(Transformer_NonRecursive[Token, Any]):
    """Transformer of a parse tree to declarations and Python syntax nodes, each with its location."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.source = source

    def start(self, _: Meta, items: list[Any]) -> list[ProgramSyntax | VariantSyntax]:
        return [item for item in items if isinstance(item, ProgramSyntax | VariantSyntax)]

    def variant(self, _: Meta, items: list[Any]) -> VariantSyntax:
        name, base, choices = items
        node = _at(ast.Name(id=str(name)), name)
        return VariantSyntax(
            name=str(name), base=str(base), choices=tuple(choices or ()), node=node, source=self.source
        )

    def choices(self, _: Meta, items: list[Any]) -> list[tuple[str, str | bool]]:
        return items

    def choice(self, _: Meta, items: list[Any]) -> tuple[str, str | bool]:
        name, value = items
        if value is None:
            return str(name), True
        return str(name), bool(value.value) if isinstance(value, ast.Constant) else ast.unparse(value)

    def program(self, meta: Meta, items: list[Any]) -> ProgramSyntax:
        name, params, over, *rest = items
        return ProgramSyntax(
            name=str(name),
            params=tuple(params or ()),
            tensors=tuple(i for i in rest if isinstance(i, TensorSyntax)),
            stages=tuple(i for i in rest if isinstance(i, StageSyntax)),
            names=tuple(_program_name(i) for i in rest if isinstance(i, ast.Assign | DefSyntax)),
            node=_at(ast.Name(id=str(name)), name),
            source=self.source,
            over=tuple(over or ()),
        )

    def over(self, _: Meta, items: list[Any]) -> list[GridSyntax | GroupSyntax]:
        return [one for item in items for one in (item if isinstance(item, list) else [item])]

    def grid(self, _: Meta, items: list[Any]) -> list[GridSyntax]:
        return items

    def grid_dim(self, _: Meta, items: list[Any]) -> GridSyntax:
        name, size = items
        return GridSyntax(name=str(name), size=size, node=_at(ast.Name(id=str(name)), name))

    def group(self, _: Meta, items: list[Any]) -> GroupSyntax:
        name, part = items
        return GroupSyntax(name=str(name), part=part, node=_at(ast.Name(id=str(name)), name))

    def params(self, _: Meta, items: list[Any]) -> list[ParamSyntax]:
        return items

    def param(self, meta: Meta, items: list[Any]) -> ParamSyntax:
        name, kind, default = items
        return ParamSyntax(
            name=str(name),
            kind=str(kind or "dim"),
            node=_at(ast.Name(id=str(name)), meta),
            default=ast.unparse(default) if default is not None and kind in OPEN else None,
            example=default if kind not in OPEN else None,
        )

    def tensor(self, _: Meta, items: list[Any]) -> TensorSyntax:
        name, (space, symmetric), dims, dtype, bound, *properties, default, low, high, within, on = items
        return TensorSyntax(
            name=str(name),
            space=space,
            symmetric=symmetric,
            shape=tuple(dims or ()),
            dtype=str(dtype) if dtype is not None else None,
            bound=bound[0] if bound is not None else None,
            inclusive=bound is not None and bound[1],
            properties=tuple(str(one) for one in properties if one != SUM),
            sums=SUM in properties,
            node=_at(ast.Name(id=str(name)), name),
            dtype_node=_at(ast.Name(id=str(dtype)), dtype) if dtype is not None else None,
            default=default,
            low=low,
            high=high,
            within=within,
            on=None if on is None else _at(ast.Name(id=str(on)), on),
        )

    def below(self, _: Meta, items: list[Any]) -> tuple[ast.expr, bool]:
        return items[0], False

    def at_most(self, _: Meta, items: list[Any]) -> tuple[ast.expr, bool]:
        return items[1], True

    def space(self, _: Meta, items: list[Any]) -> tuple[str, bool]:
        words = [str(i) for i in items if i is not None]
        return words[0], "symmetric" in words

    def dims(self, _: Meta, items: list[Any]) -> list[ast.expr]:
        return items

    def named_dim(self, meta: Meta, items: list[Any]) -> ast.expr:
        name, size = items
        return _at(ast.NamedExpr(target=_at(ast.Name(id=str(name)), name), value=size), meta)

    def stage(self, _: Meta, items: list[Any]) -> StageSyntax:
        kind, name, indices, on, body = items
        node = _at(ast.Name(id=str(name)), name)
        return StageSyntax(
            kind=str(kind),
            name=str(name),
            indices=tuple(indices or ()),
            body=tuple(body),
            node=node,
            on=None if on is None else _at(ast.Name(id=str(on)), on),
        )

    def indices(self, _: Meta, items: list[Any]) -> list[IndexSyntax]:
        return items

    def index(self, meta: Meta, items: list[Any]) -> IndexSyntax:
        name, extent, size = items
        if size is not None:
            extent = _at(ast.Call(func=ast.Name(id="by"), args=[extent, self.integer(size, [size])], keywords=[]), meta)
        return IndexSyntax(name=str(name), extent=extent, node=_at(ast.Name(id=str(name)), meta))

    def let(self, meta: Meta, items: list[Any]) -> ast.stmt:
        name, value = items
        call = _at(ast.Call(func=ast.Name(id="let"), args=[value], keywords=[]), value)
        return _at(ast.Assign(targets=[self.name(name, [name])], value=call), name, value)

    def definition(self, _: Meta, items: list[Any]) -> DefSyntax:
        name, parameters, value = items
        own = tuple(_at(ast.arg(arg=str(one)), one) for one in parameters or ())
        return DefSyntax(name=str(name), parameters=own, value=value, node=_at(ast.Name(id=str(name)), name))

    def names(self, _: Meta, items: list[Any]) -> list[Any]:
        return items

    def block(self, _: Meta, items: list[Any]) -> list[ast.stmt]:
        return items

    def assign(self, meta: Meta, items: list[Any]) -> ast.stmt:
        target, operator, value = items
        if str(operator) == "=":
            return _at(ast.Assign(targets=[target], value=value), target, value)
        op = _OPERATORS[str(operator)[:-1]]()
        return _at(ast.AugAssign(target=target, op=op, value=value), target, value)

    def primitive(self, _: Meta, items: list[Any]) -> ast.stmt:
        return _at(ast.Expr(value=items[0]), items[0])

    def conditional(self, meta: Meta, items: list[Any]) -> ast.stmt:
        test, then, *alternatives, orelse = items
        rest: list[ast.stmt] = orelse or []
        for other, block in reversed(alternatives):
            rest = [_at(ast.If(test=other, body=block, orelse=rest), other)]
        return _at(ast.If(test=test, body=then, orelse=rest), test)

    def alternative(self, _: Meta, items: list[Any]) -> tuple[ast.expr, list[ast.stmt]]:
        return items[0], items[1]

    def loop(self, meta: Meta, items: list[Any]) -> ast.stmt:
        indices, body = items
        target = ast.Tuple(elts=[i.node for i in indices])
        extents = ast.Call(func=ast.Name(id="tiles"), args=[i.extent for i in indices], keywords=[])
        return _at(ast.For(target=target, iter=extents, body=body, orelse=[]), indices[0].node)

    def either(self, meta: Meta, items: list[Any]) -> ast.expr:
        return _at(ast.BoolOp(op=ast.Or(), values=_flat(ast.Or, items)), meta)

    def both(self, meta: Meta, items: list[Any]) -> ast.expr:
        return _at(ast.BoolOp(op=ast.And(), values=_flat(ast.And, items)), meta)

    def negation(self, meta: Meta, items: list[Any]) -> ast.expr:
        return _at(ast.UnaryOp(op=ast.Not(), operand=items[0]), meta)

    def compare(self, meta: Meta, items: list[Any]) -> ast.expr:
        left, right = items[0], items[-1]
        symbol = str(items[1]) if len(items) == 3 else "<"
        return _at(ast.Compare(left=left, ops=[_COMPARES[symbol]()], comparators=[right]), meta)

    def binary(self, meta: Meta, items: list[Any]) -> ast.expr:
        left, operator, right = items
        return _at(ast.BinOp(left=left, op=_OPERATORS[str(operator)](), right=right), meta)

    def minus(self, meta: Meta, items: list[Any]) -> ast.expr:
        return _at(ast.UnaryOp(op=ast.USub(), operand=items[-1]), meta)

    def subscripted(self, meta: Meta, items: list[Any]) -> ast.expr:
        value, *parts = items
        index = parts[0] if len(parts) == 1 else _at(ast.Tuple(elts=parts), meta)
        return _at(ast.Subscript(value=value, slice=index), meta)

    def attribute(self, meta: Meta, items: list[Any]) -> ast.expr:
        return _at(ast.Attribute(value=items[0], attr=str(items[1])), meta)

    def call(self, meta: Meta, items: list[Any]) -> ast.expr:
        function, arguments = items
        args = [a for a in arguments or [] if not isinstance(a, ast.keyword)]
        keywords = [a for a in arguments or [] if isinstance(a, ast.keyword)]
        return _at(ast.Call(func=function, args=args, keywords=keywords), meta)

    def user_call(self, meta: Meta, items: list[Any]) -> ast.expr:
        function, arguments = items
        return self.call(meta, [ast.Name(id="call"), [function, *(arguments or [])]])

    def postfix_name(self, meta: Meta, items: list[Any]) -> ast.expr:
        node: ast.expr = _at(ast.Name(id=str(items[0])), meta)
        for part in items[1:]:
            node = _at(ast.Attribute(value=node, attr=str(part)), meta)
        return node

    def arguments(self, _: Meta, items: list[Any]) -> list[Any]:
        return items

    def keyword(self, meta: Meta, items: list[Any]) -> ast.keyword:
        return _at(ast.keyword(arg=str(items[0]), value=items[1]), meta)

    def whole(self, meta: Meta, _: list[Any]) -> ast.expr:
        return _at(ast.Slice(), meta)

    def part_from(self, meta: Meta, items: list[Any]) -> ast.expr:
        return _at(ast.Slice(lower=items[0], upper=items[1]), meta)

    def part_to(self, meta: Meta, items: list[Any]) -> ast.expr:
        return _at(ast.Slice(upper=items[0]), meta)

    def new_axis(self, meta: Meta, _: list[Any]) -> ast.expr:
        return _at(ast.Constant(value=None), meta)

    def integer(self, meta: Meta, items: list[Any]) -> ast.expr:
        if len(items[0].lstrip("0")) > DIGITS:  # int() refuses more than 4300 digits
            location = self.source.location(_at(ast.Pass(), meta))
            hint = "integers have 32 bits, and an f32 is 3.4028235e38 at most"
            raise ParseError("a number that is too large", location=location, hint=hint)
        return _at(ast.Constant(value=int(items[0])), meta)

    def floating(self, meta: Meta, items: list[Any]) -> ast.expr:
        return _at(ast.Constant(value=float(items[0])), meta)

    def true(self, meta: Meta, _: list[Any]) -> ast.expr:
        return _at(ast.Constant(value=True), meta)

    def false(self, meta: Meta, _: list[Any]) -> ast.expr:
        return _at(ast.Constant(value=False), meta)

    def name(self, meta: Meta, items: list[Any]) -> ast.expr:
        return _at(ast.Name(id=str(items[0])), meta)

    def placed(self, meta: Meta, items: list[Any]) -> ast.expr:
        """Convert `(tp = tp + 1)`, short for `rank(tp = tp + 1)`."""
        return _at(ast.Call(func=_at(ast.Name(id="rank"), meta), args=[], keywords=items), meta)

    def inner(self, _: Meta, items: list[Any]) -> ast.expr:
        return items[0]


def _program_name(node: ast.Assign | DefSyntax) -> LetSyntax | DefSyntax:
    """Return the syntax of a `let` or a `def` of a whole program."""
    if isinstance(node, DefSyntax):
        return node
    assert isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call)
    return LetSyntax(name=node.targets[0].id, value=node.value.args[0], node=node.targets[0])


def _flat(kind: type[ast.boolop], items: list[ast.expr]) -> list[ast.expr]:
    """Flatten nested operations: `a or b or c` is one operation on three operands, as in Python."""
    first = items[0]
    if isinstance(first, ast.BoolOp) and isinstance(first.op, kind):
        return [*first.values, *items[1:]]
    return items


def _at(node: Node, begin: Any, end: Any = None) -> Node:
    """Set the location of a node to that of a token, a parse tree's meta, or another node."""
    last = end if end is not None else begin
    node.lineno = getattr(begin, "line", None) or getattr(begin, "lineno", 1)  # type: ignore[attr-defined]
    column = getattr(begin, "column", None)
    node.col_offset = column - 1 if column else getattr(begin, "col_offset", 0)  # type: ignore[attr-defined]
    node.end_lineno = getattr(last, "end_line", None) or getattr(last, "end_lineno", None)  # type: ignore[attr-defined]
    stop = getattr(last, "end_column", None)
    node.end_col_offset = stop - 1 if stop else getattr(last, "end_col_offset", None)  # type: ignore[attr-defined]
    return node
