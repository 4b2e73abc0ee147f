"""Every designed error that the package makes tells the user what to do."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.house import sources
from tilelink import errors

WITHOUT = {
    "SeveralErrors": "each of its errors has its own hint",
    "ConsequenceError": "dropped by Mistakes: no user sees it",
}

POINTER = re.compile(r"see (?:[\w ]+ (?:in|of) )?docs/\S+")

DESIGNED = frozenset(
    name
    for name, one in vars(errors).items()
    if isinstance(one, type) and issubclass(one, errors.TileLinkError) and name not in WITHOUT
)


def without_hint(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of what leaves an error without a hint, or may."""
    for node in sources.walk(tree):
        match node:
            case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name), keywords=keywords) if name in DESIGNED:
                hints = [keyword.value for keyword in keywords if keyword.arg == "hint"]
                if not hints or may_be_empty(hints[0]):
                    yield node.lineno, ast.unparse(node)
            case ast.Assign(targets=[ast.Name("hint")], value=value) if may_be_empty(value):
                yield node.lineno, ast.unparse(node)
            case _:
                pass


def may_be_empty(value: ast.expr) -> bool:
    """True if an expression is or has a branch that is None or an empty text, as `did_you_mean` without more gives.

    Also for the name of a document alone, which is no remedy.
    """
    match value:
        case ast.Constant(value=str(text)) if POINTER.fullmatch(text):
            return True
        case ast.Constant(value=constant):
            return not constant
        case ast.Call(func=ast.Name("did_you_mean"), args=[_, _]):
            return True
        case ast.IfExp(body=one, orelse=other):
            return may_be_empty(one) or may_be_empty(other)
        case ast.BoolOp(op=ast.Or(), values=values):
            return may_be_empty(values[-1])
        case _:
            return False


def test_every_error_has_a_hint() -> None:
    found = [
        f"{path.relative_to(sources.ROOT)}:{line}: {text}"
        for path in sources.modules()
        for line, text in without_hint(sources.tree(path))
    ]
    assert not found, "\n".join(found)


def test_errors_are_of_the_classes_that_the_rule_knows() -> None:
    """A class of errors anywhere else in the package would be unknown to the rule."""
    bases = DESIGNED | WITHOUT.keys()
    derived = [
        f"{path.relative_to(sources.ROOT)}:{node.lineno}: {node.name}"
        for path in sources.modules()
        if path.name != "errors.py"
        for node in sources.walk(sources.tree(path))
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).split(".")[-1] in bases for base in node.bases)
    ]
    assert {"TileLinkError", "RankError"} <= DESIGNED and not derived, "\n".join(derived)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("raise ShapeError('x')", True),
        ("raise errors.ShapeError('x', location=place)", True),
        ("error = ShapeError('x', hint='')", True),
        ("raise ShapeError('x', hint=None)", True),
        ("hint = None\nraise ShapeError('x', hint=hint)", True),
        ("raise ShapeError('x', hint=did_you_mean(name, known))", True),
        ("raise ShapeError('x', hint=did_you_mean(name, known) or '')", True),
        ("hint = 'transpose it' if square else ''", True),
        ("raise ShapeError('x', hint=did_you_mean(name, known) or 'see the names')", False),
        ("raise ShapeError('x', hint=did_you_mean(name, known, 'see the names'))", False),
        ("raise ShapeError('x', hint='see docs/language.md')", True),
        ("raise ShapeError('x', hint='see the list of values in docs/language.md')", True),
        ("raise ShapeError('x', hint='exp(a), see docs/language.md')", False),
        ("raise ShapeError('x', hint='transpose it')", False),
        ("raise ConsequenceError('x')", False),
        ("raise ValueError('x')", False),
    ],
)
def test_the_rule_sees_what_has_none(text: str, wrong: bool) -> None:
    assert bool([*without_hint(ast.parse(text))]) is wrong
