"""Normal forms of integer expressions: expressions that are equal as polynomials have the same one.

`2 * n`, `n * 2` and `n + n` are one expression, `(n + 1) - 1` and `n` are, and `min(b, a)` and `min(a, b)` are. What is
no sum or product is a variable of the polynomial, with operands in normal form. The forms are for comparison: no kernel
computes them, so no intermediate result can overflow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilelink.ir.intervals import Bounds
from tilelink.ir.scalar import Binary, Choose, Compare, Int, Logic, Lookup, Scalar, add, binary, const, mul, walk

Monomial = tuple[Scalar, ...]
"""A product of variables, in the order of their texts; the constant term has none."""
Polynomial = dict[Monomial, int]
MAX_TERMS = 64
"""Terms of a product that is multiplied out, at most: a larger product is a variable."""
MAX_SIZE = 2048
"""Parts of an expression that is multiplied out, or put into each operand of a `min` or `max`, at most. What would be
larger stays as it is: that it is equal to another one is then not proved."""


def normal(expr: Scalar, bounds: Bounds) -> Scalar:
    """Return the normal form of an expression, which has the same value for all ranks, indices and entries.

    bounds: a `min` or `max` without the operands that it never selects.
    """
    known = bounds.normals.get(expr)
    if known is None:
        known = bounds.normals[expr] = _normal(expr, bounds)
    return known


def _normal(expr: Scalar, bounds: Bounds) -> Scalar:
    match expr:
        case Binary(op="min" | "max"):
            return _extreme(expr, bounds)
        case Binary():
            return _extreme_outside(_polynomial(expr, bounds), bounds)
        case Compare(left=left, right=right):
            return replace(expr, left=normal(left, bounds), right=normal(right, bounds))
        case Logic(args=args):
            return replace(expr, args=tuple(normal(one, bounds) for one in args))
        case Lookup(coords=coords):
            return replace(expr, coords=tuple(normal(c, bounds) if isinstance(c, Scalar) else c for c in coords))
        case Choose(selector=selector):
            return replace(expr, selector=normal(selector, bounds))
        case _:
            return expr


def _at_most(left: Scalar, right: Scalar, bounds: Bounds) -> bool:
    """True if one expression in normal form is proved to be no more than another one.

    The left one is taken as the maximum of minima, the right one as the minimum of maxima: then each of the minima has
    an operand that is no more than an operand of each of the maxima.
    """
    if _smallest(_sum(_variables(right), _variables(left), -1), bounds) >= 0:
        return True
    return all(
        any(_smallest(_sum(_variables(most), _variables(least), -1), bounds) >= 0 for least in some for most in others)
        for some in _clauses(left, "max", "min")
        for others in _clauses(right, "min", "max")
    )


def _clauses(expr: Scalar, outer: str, inner: str) -> list[tuple[Scalar, ...]]:
    """Return the operands of an expression as the `outer` of `inner`s, max of min or min of max.

    Each of the two distributes over the other one. What would have too many operands is an operand itself.
    """
    match expr:
        case Binary(op=op, left=left, right=right) if op in (outer, inner):
            first, second = _clauses(left, outer, inner), _clauses(right, outer, inner)
            if op == outer:
                return [*first, *second]
            if len(first) * len(second) <= MAX_TERMS:
                return [tuple(dict.fromkeys((*one, *other))) for one in first for other in second]
            return [(expr,)]
        case _:
            return [(expr,)]


def _smallest(total: Polynomial, bounds: Bounds) -> int:
    return bounds.of(_expression(total))[0]


def _operands(expr: Scalar) -> Iterator[Scalar]:
    """Yield the operands of nested operations of one kind, `min(min(a, b), c)`."""
    if not isinstance(expr, Binary):
        yield expr
        return
    for side in (expr.left, expr.right):
        if isinstance(side, Binary) and side.op == expr.op:
            yield from _operands(side)
        else:
            yield side


def _extreme(expr: Binary, bounds: Bounds) -> Scalar:
    """The normal form of `min` or `max`: each operand once, in the order of their texts."""
    forms = {normal(one, bounds) for one in _operands(expr)}
    flat = sorted({part for form in forms for part in _parts(expr.op, form)}, key=repr)
    kept = list(flat)
    for one in flat:
        others = [other for other in kept if other != one]
        below = (_at_most(*((other, one) if expr.op == "min" else (one, other)), bounds) for other in others)
        if any(below):
            kept = others
    total = kept[0]
    for one in kept[1:]:
        total = Binary(op=expr.op, left=total, right=one)
    return total


def _parts(op: str, expr: Scalar) -> Iterator[Scalar]:
    if isinstance(expr, Binary) and expr.op == op:
        yield from _operands(expr)
    else:
        yield expr


def _extreme_outside(total: Polynomial, bounds: Bounds) -> Scalar:
    """A polynomial as an expression; `min(a, b) + c` is `min(a + c, b + c)`."""
    extremes = [m for m in total if len(m) == 1 and isinstance(m[0], Binary) and m[0].op in ("min", "max")]
    if len(extremes) != 1 or total[extremes[0]] != 1:
        return _expression(total)
    rest = {monomial: factor for monomial, factor in total.items() if monomial != extremes[0]}
    if not rest:
        return extremes[0][0]
    inner = extremes[0][0]
    assert isinstance(inner, Binary)
    operands = [*_operands(inner)]
    if _size(rest) * len(operands) > MAX_SIZE:
        return _expression(total)
    sums = [_expression(_sum(_variables(one), rest, 1)) for one in operands]
    result = sums[0]
    for one in sums[1:]:
        result = Binary(op=inner.op, left=result, right=one)
    return _extreme(result, bounds) if isinstance(result, Binary) else result


def _polynomial(expr: Scalar, bounds: Bounds) -> Polynomial:
    """Return an expression, whatever its form, as a polynomial of variables in normal form."""
    match expr:
        case Binary(op="+" | "-" as op, left=left, right=right):
            return _sum(_polynomial(left, bounds), _polynomial(right, bounds), 1 if op == "+" else -1)
        case Binary(op="*", left=left, right=right):
            return _product(_polynomial(left, bounds), _polynomial(right, bounds))
        case Binary(op="//", left=left, right=right):
            return _quotient(_polynomial(left, bounds), normal(right, bounds), bounds)
        case Binary(op="%", left=left, right=right):
            divisor = normal(right, bounds)
            if not isinstance(divisor, Int) or divisor.value <= 0:
                return _variables(binary("%", normal(left, bounds), divisor))
            dividend = _polynomial(left, bounds)  # a % b = a - b * (a // b)
            return _sum(dividend, _quotient(dividend, divisor, bounds), -divisor.value)
        case Binary(op="^", left=left, right=right):
            first, second = sorted((normal(left, bounds), normal(right, bounds)), key=repr)
            return _variables(binary("^", first, second))
        case _:
            return _variables(normal(expr, bounds))


def _variables(expr: Scalar) -> Polynomial:
    """Return an expression in normal form as a polynomial."""
    match expr:
        case Int(value=0):
            return {}
        case Int(value=value):
            return {(): value}
        case Binary(op="+" | "-" as op, left=left, right=right):
            return _sum(_variables(left), _variables(right), 1 if op == "+" else -1)
        case Binary(op="*", left=left, right=right):
            return _product(_variables(left), _variables(right))
        case _:
            return {(expr,): 1}


def _sum(left: Polynomial, right: Polynomial, factor: int) -> Polynomial:
    """Return `left + factor * right`."""
    total = dict(left)
    for monomial, times in right.items():
        total[monomial] = total.get(monomial, 0) + factor * times
    return {monomial: times for monomial, times in total.items() if times}


def _size(total: Polynomial) -> int:
    """Return the number of parts of the variables of a polynomial."""
    return sum(1 for monomial in total for one in monomial for _ in walk(one))


def _product(left: Polynomial, right: Polynomial) -> Polynomial:
    size = len(left) * _size(right) + len(right) * _size(left)
    if len(left) * len(right) > MAX_TERMS or (size > MAX_SIZE and _size(left) and _size(right)):
        first, second = sorted((_expression(left), _expression(right)), key=repr)
        return {(Binary(op="*", left=first, right=second),): 1}
    total: Polynomial = {}
    for one, times in left.items():
        for other, again in right.items():
            monomial = tuple(sorted((*one, *other), key=repr))
            total = _sum(total, {monomial: times * again}, 1)
    return total


def _quotient(dividend: Polynomial, divisor: Scalar, bounds: Bounds) -> Polynomial:
    """Return `dividend // divisor`; multiples of a constant divisor are divided term by term."""
    if not isinstance(divisor, Int) or divisor.value <= 0:
        return _variables(binary("//", _expression(dividend), divisor))
    by = divisor.value
    exact = {monomial: times // by for monomial, times in dividend.items() if monomial and times % by == 0}
    constant = dividend.get((), 0)
    rest = {monomial: times for monomial, times in dividend.items() if monomial and times % by}
    rest = _sum(rest, {(): constant % by}, 1)
    exact = _sum(exact, {(): constant // by}, 1)
    low, high = bounds.of(_expression(rest))
    if low // by == high // by:
        return _sum(exact, {(): low // by}, 1)
    return _sum(exact, {(binary("//", _expression(rest), divisor),): 1}, 1)


def _expression(total: Polynomial) -> Scalar:
    """Return a polynomial as an expression: added terms first, in the order of their texts, the constant last."""
    ordered = sorted(total.items(), key=lambda term: (term[1] < 0, not term[0], repr(term[0])))
    result: Scalar = const(0)
    for monomial, times in ordered:
        term = mul(_multiplied(monomial), const(abs(times)))
        result = add(result, term) if times > 0 else binary("-", result, term)
    return result


def _multiplied(monomial: Monomial) -> Scalar:
    """Return a product of variables as an expression, 1 if there is none."""
    total: Scalar = const(1)
    for one in monomial:
        total = mul(total, one)
    return total
