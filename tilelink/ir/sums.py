"""Rebalancing of long integer sums into shallow expressions: `a + b - c + d` becomes `(a + b) - (c - d)`, exactly."""

from __future__ import annotations

from dataclasses import replace

from tilelink.ir.depth import NUMBER_LEVELS, too_deep
from tilelink.ir.scalar import Binary, Compare, Logic, Scalar, children

Term = tuple[bool, Scalar]
"""(True if the term is subtracted, the term)."""


def shortened(expr: Scalar) -> Scalar:
    """Return the expression itself, or an equal shallow expression if it is too deep."""
    return expr if too_deep(expr, children, NUMBER_LEVELS) is None else shallow(expr)


def shallow(expr: Scalar) -> Scalar:
    """Return an equal expression with balanced sums."""
    match expr:
        case Binary(op="+" | "-"):
            return _halves([(minus, shallow(term)) for minus, term in _terms(expr)], expr)
        case Binary(left=left, right=right) | Compare(left=left, right=right):
            return replace(expr, left=shallow(left), right=shallow(right))
        case Logic(args=args):
            return replace(expr, args=tuple(map(shallow, args)))
        case _:
            return expr


def _terms(expr: Scalar) -> list[Term]:
    """The terms of a sum in order; the first one is added."""
    rest: list[Term] = []
    while isinstance(expr, Binary) and expr.op in ("+", "-"):
        rest.append((expr.op == "-", expr.right))
        expr = expr.left
    return [(False, expr), *reversed(rest)]


def _halves(terms: list[Term], whole: Scalar) -> Scalar:
    if len(terms) == 1:
        return terms[0][1]
    middle = (len(terms) + 1) // 2
    minus = terms[middle][0]
    right = [(other != minus, term) for other, term in terms[middle:]]
    left, rest = _halves(terms[:middle], whole), _halves(right, whole)
    return Binary(op="-" if minus else "+", left=left, right=rest, location=whole.location)
