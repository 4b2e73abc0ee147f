"""Long sums of integers as shallow expressions: `a + b - c + d` is `(a + b) - (c - d)`, exactly."""

from __future__ import annotations

from dataclasses import replace

from tilelink.ir.depth import NUMBER_LEVELS, too_deep
from tilelink.ir.scalar import Binary, Compare, Logic, Scalar, children

Term = tuple[bool, Scalar]
"""Whether it is subtracted, and what."""


def shortened(expr: Scalar) -> Scalar:
    """An expression as it is, or a shallow one of the same value where it is too deep."""
    return expr if too_deep(expr, children, NUMBER_LEVELS) is None else shallow(expr)


def shallow(expr: Scalar) -> Scalar:
    """The same number, with as few levels as its sums allow."""
    match expr:
        case Binary(op="+" | "-"):
            return _halves([(minus, shallow(part)) for minus, part in _terms(expr)], expr)
        case Binary(left=left, right=right) | Compare(left=left, right=right):
            return replace(expr, left=shallow(left), right=shallow(right))
        case Logic(args=args):
            return replace(expr, args=tuple(map(shallow, args)))
        case _:
            return expr


def _terms(expr: Scalar) -> list[Term]:
    """What is added and subtracted one after the other; the first one is added."""
    found: list[Term] = []
    while isinstance(expr, Binary) and expr.op in ("+", "-"):
        found.append((expr.op == "-", expr.right))
        expr = expr.left
    return [(False, expr), *reversed(found)]


def _halves(terms: list[Term], whole: Scalar) -> Scalar:
    if len(terms) == 1:
        return terms[0][1]
    middle = (len(terms) + 1) // 2
    minus = terms[middle][0]
    right = [(other != minus, part) for other, part in terms[middle:]]
    left, rest = _halves(terms[:middle], whole), _halves(right, whole)
    return Binary(op="-" if minus else "+", left=left, right=rest, location=whole.location)
