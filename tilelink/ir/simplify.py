"""Simplification of integer expressions: the same value on all ranks for all indices, with fewer operations.

before: tile % 112 // 112 * 8 + tile % 112 % 112 % min(8 - tile % 112 // 112 * 8, 8)
after:  tile % 8  (of 112 tiles, 8 rows of 14 in groups of 8)

A sum becomes a sum of multiples of terms. In a quotient or a remainder by a constant, the multiples of the divisor are
taken out of the dividend. If the interval of the dividend lies between two multiples of the divisor, the operation
disappears. The dividend of a remainder is shifted to be non-negative if its interval is known, so that languages that
round toward zero compute the same remainder.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import gcd

from tilelink.ir.intervals import MAX_INT32, MIN_INT32, Bounds
from tilelink.ir.scalar import (
    Binary,
    Choose,
    Compare,
    Index,
    Int,
    Logic,
    Lookup,
    Rank,
    Scalar,
    add,
    binary,
    const,
    mul,
)


def simplify(expr: Scalar, bounds: Bounds) -> Scalar:
    """Return an expression with the same value for all ranks, indices and table entries within the bounds.

    Its locations may be those of an equal expression.
    """
    if isinstance(expr, Int | Index | Rank):
        return _simplified(expr, bounds)
    known = bounds.simplified.get(expr)
    if known is None:
        known = bounds.simplified[expr] = _simplified(expr, bounds)
    return known


def _simplified(expr: Scalar, bounds: Bounds) -> Scalar:
    match expr:
        case Binary(op=op, left=left, right=right):
            new = _binary(op, simplify(left, bounds), simplify(right, bounds), bounds)
        case Compare(op=op, left=left, right=right):
            return Compare(op=op, left=simplify(left, bounds), right=simplify(right, bounds), location=expr.location)
        case Logic(op=op, args=args):
            return Logic(op=op, args=tuple(simplify(arg, bounds) for arg in args), location=expr.location)
        case Lookup(coords=coords):
            inner = tuple(simplify(c, bounds) if isinstance(c, Scalar) else c for c in coords)
            new = replace(expr, coords=inner)
        case Choose(selector=selector, values=values):
            chosen = simplify(selector, bounds)
            new = const(values[chosen.value]) if isinstance(chosen, Int) else Choose(selector=chosen, values=values)
        case _:
            new = expr
    low, high = bounds.of(new)
    return const(low) if low == high else new


def _binary(op: str, left: Scalar, right: Scalar, bounds: Bounds) -> Scalar:
    """`left op right` of simplified operands."""
    plain = binary(op, left, right)
    match op:
        case "+" | "-":
            return _fitting(_Sum.of(left).plus(_Sum.of(right), 1 if op == "+" else -1), plain, bounds)
        case "*" if isinstance(right, Int):
            return _fitting(_Sum().plus(_Sum.of(left), right.value), plain, bounds)
        case "*" if isinstance(left, Int):
            return _fitting(_Sum().plus(_Sum.of(right), left.value), plain, bounds)
        case "//" | "%" if isinstance(right, Int) and right.value > 0:
            divide = _quotient if op == "//" else _remainder
            return divide(_Sum.of(left), right.value, plain, bounds)
        case "//" | "%" if bounds.of(left)[0] >= 0 and bounds.of(left)[1] < bounds.of(right)[0]:
            return const(0) if op == "//" else left
        case "min" | "max":
            return _extreme(op, left, right, bounds) or plain
        case _:
            return plain


def _extreme(op: str, left: Scalar, right: Scalar, bounds: Bounds) -> Scalar | None:
    """The operand that `min` or `max` always selects, or None if it may select either."""
    smaller, larger = (left, right) if op == "min" else (right, left)
    if bounds.of(smaller)[1] <= bounds.of(larger)[0]:
        return left
    return right if bounds.of(larger)[1] <= bounds.of(smaller)[0] else None


@dataclass(frozen=True, kw_only=True)
class _Sum:
    """A sum of a constant and multiples of terms: term -> factor. No term is itself a sum."""

    terms: dict[Scalar, int] = field(default_factory=dict[Scalar, int])
    constant: int = 0

    @staticmethod
    def of(expr: Scalar) -> _Sum:
        """Return a simplified expression as a sum."""
        match expr:
            case Int(value=value):
                return _Sum(constant=value)
            case Binary(op="+" | "-" as op, left=left, right=right):
                return _Sum.of(left).plus(_Sum.of(right), 1 if op == "+" else -1)
            case Binary(op="*", left=left, right=Int(value=factor)):
                return _Sum().plus(_Sum.of(left), factor)
            case _:
                return _Sum(terms={expr: 1})

    def plus(self, other: _Sum, factor: int) -> _Sum:
        """Return `self + factor * other`."""
        terms = dict(self.terms)
        for term, times in other.terms.items():
            terms[term] = terms.get(term, 0) + factor * times
        terms = {term: times for term, times in terms.items() if times}
        return _Sum(terms=terms, constant=self.constant + factor * other.constant)

    def expression(self) -> Scalar:
        """Return the sum as an expression: added terms first, then subtracted ones, the constant last in each group."""
        summands = [(times > 0, mul(term, const(abs(times)))) for term, times in self.terms.items()]
        if self.constant:
            summands.append((self.constant > 0, const(abs(self.constant))))
        total: Scalar = const(0)
        for added, summand in sorted(summands, key=lambda signed: not signed[0]):
            total = add(total, summand) if added else binary("-", total, summand)
        return total


def _fitting(total: _Sum, plain: Scalar, bounds: Bounds) -> Scalar:
    """A sum as an expression, or the equal expression `plain` if an intermediate result may overflow 32 bits."""
    new = total.expression()
    return new if _fits(new, bounds) else plain


def _fits(expr: Scalar, bounds: Bounds) -> bool:
    low, high = bounds.of(expr)
    below = (expr.left, expr.right) if isinstance(expr, Binary) and expr.op in ("+", "-", "*") else ()
    return low >= MIN_INT32 and high <= MAX_INT32 and all(_fits(operand, bounds) for operand in below)


def _quotient(dividend: _Sum, divisor: int, plain: Scalar, bounds: Bounds) -> Scalar:
    """`dividend // divisor`: multiples of the divisor are divided term by term, and the rest as one sum."""
    exact = _Sum(
        terms={term: times // divisor for term, times in dividend.terms.items() if times % divisor == 0},
        constant=dividend.constant // divisor,
    )
    rest = _Sum(
        terms={term: times for term, times in dividend.terms.items() if times % divisor},
        constant=dividend.constant % divisor,
    )
    inner = _floor(rest, divisor, bounds)
    return plain if inner is None else _fitting(exact.plus(inner, 1), plain, bounds)


def _floor(dividend: _Sum, divisor: int, bounds: Bounds) -> _Sum | None:
    """`dividend // divisor`, both divided by the greatest common divisor of the divisor and the factors of the terms.

    The remainder of the constant does not change the quotient. None if an intermediate result may overflow 32 bits.
    """
    shared = gcd(divisor, *dividend.terms.values())
    terms = {term: times // shared for term, times in dividend.terms.items()}
    reduced = _Sum(terms=terms, constant=dividend.constant // shared)
    divisor //= shared
    numerator = reduced.expression()
    low, high = bounds.of(numerator)
    if divisor == 1:
        return reduced
    if low // divisor == high // divisor:
        return _Sum(constant=low // divisor)
    match numerator:
        case Binary(op="//", left=left, right=Int(value=value)) if value > 0 and value * divisor <= MAX_INT32:
            return _Sum.of(binary("//", left, const(value * divisor)))
        case _:
            return _Sum.of(binary("//", numerator, const(divisor))) if _fits(numerator, bounds) else None


def _remainder(dividend: _Sum, divisor: int, plain: Scalar, bounds: Bounds) -> Scalar:
    """`dividend % divisor`, without multiples of the divisor and with the common factor taken out."""
    total = _modulo(dividend, divisor, bounds)
    return plain if total is None else _fitting(total, plain, bounds)


def _modulo(dividend: _Sum, divisor: int, bounds: Bounds) -> _Sum | None:
    terms = {term: times if abs(times) < divisor else times % divisor for term, times in dividend.terms.items()}
    terms = {term: times for term, times in terms.items() if times}
    constant = dividend.constant % divisor
    shared = gcd(divisor, *terms.values())
    reduced = _Sum(terms={term: times // shared for term, times in terms.items()}, constant=constant // shared)
    inner = _wrapped(reduced, divisor // shared, bounds)
    return None if inner is None else _Sum(constant=constant % shared).plus(inner, shared)


def _wrapped(dividend: _Sum, divisor: int, bounds: Bounds) -> _Sum | None:
    """`dividend % divisor`, with a non-negative dividend if its interval is known; None if it may overflow 32 bits."""
    numerator = dividend.expression()
    low, high = bounds.of(numerator)
    if low // divisor == high // divisor:
        return dividend.plus(_Sum(constant=-(low // divisor) * divisor), 1)
    match numerator:
        case Binary(op="%", left=left, right=Int(value=value)) if value > 0 and value % divisor == 0:
            return _modulo(_Sum.of(left), divisor, bounds)
        case _:
            pass
    if MIN_INT32 <= low < 0:
        numerator = dividend.plus(_Sum(constant=-(low // divisor) * divisor), 1).expression()
    return _Sum.of(binary("%", numerator, const(divisor))) if _fits(numerator, bounds) else None
