"""Small mistakes in a module's source: each edit changes one expression or drops one statement.

Not made, because no test could or should see them: edits of docstrings, annotations, decorators, assertions, `__str__`,
and of whatever only words an error (its arguments, and functions that return one).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">=")),
    ast.LtE: ("<=", ("<", ">")),
    ast.Gt: (">", (">=", "<=")),
    ast.GtE: (">=", (">", "<")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: ("is not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: ("not in", ("in",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "//"),
    ast.FloorDiv: ("//", "*"),
    ast.Div: ("/", "*"),
    ast.Mod: ("%", "//"),
    ast.Pow: ("**", "*"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
    ast.LShift: ("<<", ">>"),
    ast.RShift: (">>", "<<"),
}
EXCHANGED = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
EMPTY = {"tuple": "()", "list": "[]", "dict": "{}", "set": "set()", "frozenset": "frozenset()", "Mapping": "{}"}
# What these keywords are given is said to people, or only checks that lengths agree.
SAID = {"hint", "message", "location", "related", "strict", "stacklevel"}
MESSAGES = {"message", "hint", "note", "reason"}
DROPPED = (ast.Expr, ast.AugAssign, ast.Raise, ast.Continue, ast.Break, ast.Delete)


@dataclass(frozen=True, kw_only=True)
class Edit:
    """One mutant: bytes start..stop of `file` become `put`; old and new are the expression or statement for people.

    spans: ranges of lines, from the expression outwards; the tests that execute the first that any executes may see it.
    """

    file: str
    line: int
    function: str
    kind: str
    start: int
    stop: int
    put: str
    old: str
    new: str
    spans: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.old} -> {self.new}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.put.encode() + source[self.stop :]


def edits(file: str, source: bytes) -> list[Edit]:
    """All edits of a module, in the order of its text, each once."""
    found: dict[tuple[int, int, str], Edit] = {}
    for edit in _Finder(file, source).of(ast.parse(source)):
        found.setdefault((edit.start, edit.stop, edit.put), edit)
    return sorted(found.values(), key=lambda edit: (edit.start, edit.stop, edit.put))


class _Finder:
    """Goes through a syntax tree with the function, the spans and the returned type that an edit belongs to."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file = file
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.names: list[str] = []
        self.spans: list[tuple[int, int]] = []
        self.returns: list[str] = []

    def of(self, node: ast.AST) -> Iterator[Edit]:
        """The edits in a node."""
        match node:
            case ast.FunctionDef() | ast.Lambda() | ast.ClassDef():
                yield from self._scope(node)
            case ast.stmt():
                yield from self._statement(node)
            case ast.expr():
                yield from self._expression(node)
            case ast.comprehension():
                for condition in node.ifs:
                    yield from self._condition(condition, node=condition)
                yield from self._children(node)
            case ast.match_case():
                yield from self._case(node)
            case _:
                yield from self._children(node)

    def _children(self, node: ast.AST, without: tuple[str, ...] = ()) -> Iterator[Edit]:
        for name, value in ast.iter_fields(node):
            if name in without:
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from self.of(child)

    def _scope(self, node: ast.FunctionDef | ast.Lambda | ast.ClassDef) -> Iterator[Edit]:
        span = (node.lineno, node.end_lineno or node.lineno)
        if isinstance(node, ast.Lambda):
            yield from self._children(node)
            return
        returns = ast.unparse(node.returns) if isinstance(node, ast.FunctionDef) and node.returns else ""
        if node.name in ("__str__", "__repr__") or re.fullmatch(r"\w*Error|NoReturn", returns):
            return
        self.names.append(node.name)
        self.spans.append(span)
        self.returns.append(returns)
        if isinstance(node, ast.FunctionDef):
            for default in [*node.args.defaults, *node.args.kw_defaults]:
                if default is not None:
                    yield from self.of(default)
        for statement in node.body:
            yield from self.of(statement)
        self.returns.pop()
        self.spans.pop()
        self.names.pop()

    def _statement(self, node: ast.stmt) -> Iterator[Edit]:
        if isinstance(node, ast.Assert | ast.Import | ast.ImportFrom):
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return
        body: list[ast.stmt] = getattr(node, "body", [])
        last = (body[0].lineno - 1) if body else (node.end_lineno or node.lineno)
        self.spans.append((node.lineno, max(last, node.lineno)))
        yield from self._drop(node)
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                pass
            case ast.If() | ast.While():
                yield from self._condition(node.test, node=node.test)
                yield from self._children(node)
            case ast.Return(value=ast.expr() as value):
                yield from self._return(node, value)
                yield from self._children(node)
            case ast.AnnAssign(value=ast.expr() as value):
                yield from self.of(value)
            case ast.AnnAssign() | ast.Raise():
                pass
            case ast.Assign(targets=[ast.Name(id=name)]) if name in MESSAGES or not self.names:
                if name not in MESSAGES and not isinstance(node.value, ast.BinOp | ast.Subscript):
                    yield from self._children(node)
            case _:
                yield from self._children(node)
        self.spans.pop()

    def _drop(self, node: ast.stmt) -> Iterator[Edit]:
        assigned = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript | ast.Attribute)
        if self.names and (isinstance(node, DROPPED) or assigned):
            yield self._edit("drop statement", node, node, "pass", whole=True)

    def _return(self, node: ast.Return, value: ast.expr) -> Iterator[Edit]:
        returns = self.returns[-1] if self.returns else ""
        outer = re.split(r"\[", returns)[0]
        wanted: tuple[str, ...] = ()
        if outer == "bool":
            wanted = ("True", "False")
        elif outer in EMPTY:
            wanted = (EMPTY[outer],)
        elif "None" in returns.split(" | "):
            wanted = ("None",)
        for put in wanted:
            if ast.unparse(value) != put:
                yield self._edit("return another value", node, value, put)

    def _condition(self, test: ast.expr, *, node: ast.expr) -> Iterator[Edit]:
        text = self._text(test)
        if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield self._edit("negate condition", node, test, f"(not ({text}))")
        yield self._edit("condition always holds", node, test, "True")
        yield self._edit("condition never holds", node, test, "False")

    def _case(self, node: ast.match_case) -> Iterator[Edit]:
        idle = all(isinstance(s, ast.Pass | ast.Raise) for s in node.body)
        self.spans.append((node.body[0].lineno, node.body[0].end_lineno or node.body[0].lineno))
        if node.guard is not None:
            yield from self._condition(node.guard, node=node.guard)
        elif not idle:
            stop = self._at(node.pattern.end_lineno or 1, node.pattern.end_col_offset or 0)
            text = self._text(node.pattern)
            yield self._make("drop case", node.pattern.lineno, stop, stop, " if False", text, f"{text} if False")
        self.spans.pop()
        if node.guard is not None:
            yield from self.of(node.guard)
        for statement in node.body:
            yield from self.of(statement)

    def _expression(self, node: ast.expr) -> Iterator[Edit]:
        self.spans.append((node.lineno, node.end_lineno or node.lineno))
        match node:
            case ast.JoinedStr():
                pass
            case ast.Compare():
                yield from self._compare(node)
                yield from self._children(node)
            case ast.BoolOp():
                yield from self._bool(node)
                yield from self._children(node)
            case ast.BinOp():
                yield from self._binary(node)
                yield from self._children(node)
            case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub(), operand=operand):
                yield self._edit("drop sign", node, node, f"({self._text(operand)})")
                yield from self._children(node)
            case ast.IfExp():
                yield from self._condition(node.test, node=node)
                yield from self._children(node)
            case ast.Constant():
                yield from self._constant(node)
            case ast.Call():
                yield from self._call(node)
            case _:
                yield from self._children(node)
        self.spans.pop()

    def _compare(self, node: ast.Compare) -> Iterator[Edit]:
        sides = [node.left, *node.comparators]
        for n, operator in enumerate(node.ops):
            old, wanted = COMPARISONS[type(operator)]
            for new in wanted:
                yield from self._operator("comparison", node, sides[n], sides[n + 1], old, new)

    def _bool(self, node: ast.BoolOp) -> Iterator[Edit]:
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        texts = [self._text(value) for value in node.values]
        yield self._edit("and, or", node, node, "(" + f" {new} ".join(f"({text})" for text in texts) + ")")
        for n in range(len(texts)):
            rest = f" {old} ".join(f"({text})" for text in texts[:n] + texts[n + 1 :])
            yield self._edit("drop operand", node, node, f"({rest})")

    def _binary(self, node: ast.BinOp) -> Iterator[Edit]:
        if type(node.op) not in ARITHMETIC or any(map(_is_display, (node.left, node.right))):
            return
        old, new = ARITHMETIC[type(node.op)]
        yield from self._operator("arithmetic", node, node.left, node.right, old, new)

    def _operator(
        self, kind: str, node: ast.expr, left: ast.expr, right: ast.expr, old: str, new: str
    ) -> Iterator[Edit]:
        start = self._at(left.end_lineno or 1, left.end_col_offset or 0)
        between = self.source[start : self._at(right.lineno, right.col_offset)].decode()
        found = re.search(r"(?<![#\w])" + re.escape(old).replace(r"\ ", r"\s+") + r"(?!\w)", between)
        if found is None:
            return
        low, high = start + len(between[: found.start()].encode()), start + len(between[: found.end()].encode())
        begin, end = self._range(node)
        text = self.source[begin:low].decode() + new + self.source[high:end].decode()
        yield self._make(kind, node.lineno, low, high, new, self._text(node), text)

    def _constant(self, node: ast.Constant) -> Iterator[Edit]:
        value = node.value
        if isinstance(value, bool):
            yield self._edit("constant", node, node, str(not value))
        elif isinstance(value, int | float):
            for other in (value + 1, value - 1):
                yield self._edit("constant", node, node, repr(other) if other >= 0 else f"({other!r})", context=True)

    def _call(self, node: ast.Call) -> Iterator[Edit]:
        name = ast.unparse(node.func)
        words = name.rpartition(".")[2]
        if name.endswith("Error") or any(word.arg in SAID - {"strict"} for word in node.keywords) or words == "cast":
            return
        if words in EXCHANGED:
            stop = self._range(node.func)[1]
            start = stop - len(words)
            begin, end = self._range(node)
            text = self.source[begin:start].decode() + EXCHANGED[words] + self.source[stop:end].decode()
            yield self._make("exchange", node.lineno, start, stop, EXCHANGED[words], self._text(node), text)
        if name == "reversed":
            start, stop = self._range(node.func)
            text = self._text(node)
            yield self._make("exchange", node.lineno, start, stop, "list", text, text.replace("reversed", "list", 1))
        yield from self.of(node.func)
        for argument in node.args[:1] if name == "isinstance" else node.args:
            yield from self.of(argument)
        for keyword in node.keywords:
            if keyword.arg not in SAID:
                yield from self.of(keyword.value)

    def _at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def _range(self, node: ast.expr | ast.stmt | ast.pattern) -> tuple[int, int]:
        return (
            self._at(node.lineno, node.col_offset),
            self._at(node.end_lineno or node.lineno, node.end_col_offset or 0),
        )

    def _text(self, node: ast.expr | ast.stmt | ast.pattern) -> str:
        start, stop = self._range(node)
        return self.source[start:stop].decode()

    def _edit(
        self, kind: str, shown: ast.AST, node: ast.expr | ast.stmt, put: str, whole: bool = False, context: bool = False
    ) -> Edit:
        """`put` in the place of a node; people are shown the line around a bare constant."""
        start, stop = self._range(node)
        old, new = self._text(node), put
        if context:
            low = self.source.rfind(b"\n", 0, start) + 1
            high = self.source.find(b"\n", stop)
            old = self.source[low:high].decode()
            new = (self.source[low:start] + put.encode() + self.source[stop:high]).decode()
        return self._make(kind, node.lineno, start, stop, put, old, new)

    def _make(self, kind: str, line: int, start: int, stop: int, put: str, old: str, new: str) -> Edit:
        return Edit(
            file=self.file,
            line=line,
            function=".".join(self.names),
            kind=kind,
            start=start,
            stop=stop,
            put=put,
            old=" ".join(old.split()),
            new=" ".join(new.split()),
            spans=tuple(reversed(self.spans)),
        )


def _is_display(node: ast.expr) -> bool:
    """Texts and displays of sequences: with another operator than theirs no line that executes them works."""
    return isinstance(node, ast.JoinedStr | ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
