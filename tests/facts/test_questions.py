"""What is said to be inside, apart or covered is, in every launch; and wrong encodings are seen to be wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest

from tests.facts.launches import Question, drawn
from tests.facts.mutants import judged
from tests.tiers import thorough
from tilelink.facts import encode, linear, questions, regions
from tilelink.facts.encode import Encoder
from tilelink.facts.linear import ONE, AtLeast, Formula, Sum, at_least, either, plus, refuted
from tilelink.facts.questions import Facts
from tilelink.facts.regions import Elements, Listed
from tilelink.ir.intervals import Bounds
from tilelink.ir.scalar import Binary, Index, Int, Lookup, Scalar

FEW, MANY = 120, 6000


@thorough(unless=lambda first: first == 0)
@pytest.mark.parametrize("first", range(0, MANY, FEW))
def test_answers_are_those_of_all_launches(first: int) -> None:
    said: list[tuple[bool, bool]] = []
    for seed in range(first, first + FEW):
        question = drawn(seed)
        said.append((question.answer(), question.true()))
        assert said[-1] != (True, False), f"{seed}: {question}"
    true = [answer for answer, holds in said if holds]
    assert len(true) > FEW // 3 and sum(true) > 0.95 * len(true), "most of what is true is proved"


def _stronger(left: Sum, right: Sum) -> AtLeast:
    return at_least(right, plus(left, {ONE: 2}))


def _forgetful(parts: Iterable[Formula]) -> Formula:
    every = [*parts]
    return either(every[:-1] if len(every) > 1 else every)


def _one_side(self: Elements, guard: Any, side: str, own: Callable[..., Any] = Elements.inside) -> Any:
    return own(self, guard, "")


def _bounded_without_access(self: Elements, part: Any, own: Callable[..., Any] = Elements.outside) -> Any:
    found = own(self, part)
    self._encoder.below_bounds()
    return found


def _far_below(self: Encoder, own: Callable[..., None] = Encoder.below_bounds) -> None:
    known = len(self.axioms)
    own(self)
    added = [one for one in self.axioms[known:] if isinstance(one, AtLeast)]
    self.axioms[known:] = [at_least(dict(one.terms), {ONE: 1}) for one in added]


def _promised(*words: str) -> Callable[..., Any]:
    return lambda _, one, other, own=encode._of_pair: own(frozenset(words), one, other)


def _of_all_tables(self: Encoder, table: str) -> frozenset[str]:
    return frozenset(self._tensors["a"].properties)


def _exact(self: Encoder, dividend: Sum, by: int, own: Callable[..., Sum] = Encoder._quotient) -> Sum:
    value = own(self, dividend, by)
    self.axioms.append(at_least(plus({}, value, by), dividend))
    return value


def _longer(self: Elements, part: Listed, at: Sum, own: Callable[..., Any] = Elements._listed) -> Any:
    return [one for number, one in enumerate(own(self, part, at)) if number != 1]


def _one_entry(self: Encoder, lookup: Lookup, own: Callable[..., Sum] = Encoder._entry) -> Sum:
    first = tuple(Int(value=0) if isinstance(c, Int) else c for c in lookup.coords)
    return own(self, Lookup(table=lookup.table, coords=first, launch=True))


def _entries(part: Any) -> object:
    return part.at if isinstance(part, regions.Place) and isinstance(part.at, Lookup) else None


MUTANTS: dict[str, tuple[object, str, object]] = {
    "what is not at least 0 is at most -2": (linear, "less", _stronger),
    "a range ends one element early": (regions, "less", _stronger),
    "a condition holds from one more on": (encode, "less", _stronger),
    "a range begins one element late": (regions, "at_least", lambda a, b: at_least(a, plus(b, {ONE: 1}))),
    "elements begin at 1": (Elements, "there", lambda self: [at_least(x, {ONE: 1}) for x in self._along.values()]),
    "a choice has one part less": (linear, "either", _forgetful),
    "a minimum is its first operand": (encode, "either", _forgetful),
    "one region of several is left out": (questions, "either", _forgetful),
    "two accesses share a position of a list": (Elements, "inside", _one_side),
    "entries that nobody names are below their bounds": (Elements, "outside", _bounded_without_access),
    "entries are two below their bounds": (Encoder, "below_bounds", _far_below),
    "all entries are distinct": (encode, "_of_pair", _promised("distinct")),
    "different entries are never alike": (
        Facts,
        "_other_entries",
        lambda _, one, other: _entries(one) != _entries(other),
    ),
    "all entries rise": (encode, "_of_pair", _promised("rising")),
    "all tensors have the promises of one": (Encoder, "_words", _of_all_tables),
    "entries of a tensor are one": (Encoder, "_entry", _one_entry),
    "a quotient is exact": (Encoder, "_quotient", _exact),
    "a box ends one element early": (questions, "less", _stronger),
    "a box begins one element late": (questions, "at_least", lambda a, b: at_least(a, plus(b, {ONE: 1}))),
    "a list has no end": (Elements, "_listed", _longer),
}


@cache
def unproved() -> list[Question]:
    return [one for one in map(drawn, range(1000)) if not one.answer()]


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_encoding_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these says of some question that it is proved, of which a launch says otherwise."""
    unproved()
    monkeypatch.setattr(*MUTANTS[name])
    assert any(question.answer() and not question.true() for question in unproved())


def test_mistakes_in_formulas_are_seen() -> None:
    """Some mutant of each kind that says too much proves what a launch refutes; of the others none here."""
    seen = {one.kind for seed in range(FEW // 2) for one in judged(seed) if not one.true}
    assert seen == {
        "a threshold one less", "no less is equal", "a part of a choice forgotten", "two symbols are one",
        "what is promised without its condition",
    }  # fmt: skip


@thorough(unless=lambda first: first == 0)
@pytest.mark.parametrize("first", range(0, MANY, FEW))
def test_a_solver_says_the_same(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is refuted a solver refutes, too. It finds next to nothing that is not."""
    z3: Any = pytest.importorskip("z3")

    def translated(formula: Formula) -> Any:
        match formula:
            case linear.AtLeast(terms=terms) | linear.Equal(terms=terms):
                total = sum((times * (z3.Int(f"v{one}") if one else 1) for one, times in terms), z3.IntVal(0))
                return total >= 0 if isinstance(formula, linear.AtLeast) else total == 0
            case linear.All(parts=parts):
                return z3.And(*map(translated, parts))
            case linear.Some(parts=parts):
                return z3.Or(*map(translated, parts))

    said: list[tuple[bool, str]] = []

    def both(formula: Formula) -> bool:
        solver = z3.Solver()
        solver.set("rlimit", 2_000_000)
        solver.add(translated(formula))
        said.append((refuted(formula), str(solver.check())))
        return said[-1][0]

    monkeypatch.setattr(questions, "refuted", both)
    for seed in range(first, first + FEW):
        drawn(seed).answer()
    assert {(True, "unsat"), (False, "sat")} <= {*said} and not {(True, "sat"), (True, "unknown")} & {*said}
    assert said.count((False, "unsat")) <= 0.02 * len(said)


N = Lookup(table="n", coords=(Int(value=0),), launch=True)


def _nested(levels: int) -> Scalar:
    total: Scalar = N
    for number in range(levels):
        other = Lookup(table="n", coords=(Int(value=number),), launch=True)
        total = Binary(op="min" if number % 2 else "max", left=Binary(op="+", left=total, right=other), right=other)
    return total


def test_a_question_with_many_choices_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps of an answer are counted, no clock is asked, and what is not answered is not proved."""
    bounds, most = Bounds(ranks=1, tables={"n": (0, 9)}), Int(value=27)
    assert Facts(bounds=bounds).at_most(_nested(2), most)
    assert not Facts(bounds=bounds).at_most(_nested(24), _nested(26))
    monkeypatch.setattr(linear, "MAX_STEPS", 3)
    refuted.cache_clear()
    assert not Facts(bounds=bounds).at_most(_nested(2), most)
    refuted.cache_clear()


@pytest.mark.parametrize(
    ("left", "right", "proved"),
    [
        ("3 * i", "3 * j + 2", False),
        ("3 * (i // 3)", "i", True),
        ("i", "3 * (i // 3) + 2", True),
        ("i", "3 * (i // 3) + 1", False),
        ("i % 4", "3", True),
        ("(i + 4) // 4", "i // 4 + 1", True),
        ("max(i, j) + min(i, j)", "i + j", True),
        ("i + j", "max(i, j) + min(i, j)", True),
        ("i * j", "i * j", True),
        ("i * j", "j * i + 1", False),  # products are taken as they stand, in normal form elsewhere
    ],
)
def test_integers_are_compared(left: str, right: str, proved: bool) -> None:
    def parsed(text: str) -> Scalar:
        names: dict[str, Any] = {name: _Written(Index(name=name)) for name in "ij"}
        words: dict[str, Any] = {"min": lambda a, b: a.made("min", b), "max": lambda a, b: a.made("max", b)}
        value = eval(text, names | words)
        return value.expr if isinstance(value, _Written) else Int(value=value)

    assert Facts(bounds=Bounds(ranks=1)).at_most(parsed(left), parsed(right)) == proved


class _Written:
    """An expression of Python as one of the language."""

    def __init__(self, expr: Scalar) -> None:
        self.expr = expr

    def made(self, op: str, other: _Written | int, *, swapped: bool = False) -> _Written:
        sides = [self.expr, other.expr if isinstance(other, _Written) else Int(value=other)]
        left, right = reversed(sides) if swapped else sides
        return _Written(Binary(op=op, left=left, right=right))

    def __add__(self, other: _Written | int) -> _Written:
        return self.made("+", other)

    def __mul__(self, other: _Written | int) -> _Written:
        return self.made("*", other)

    def __rmul__(self, other: int) -> _Written:
        return self.made("*", other, swapped=True)

    def __floordiv__(self, other: int) -> _Written:
        return self.made("//", other)

    def __mod__(self, other: int) -> _Written:
        return self.made("%", other)


def test_the_questions_take_what_they_are_asked() -> None:
    """Another seed, another question: the drawn ones are of all kinds, with all parts."""
    asked: list[Question] = [drawn(seed) for seed in range(400)]
    assert {type(part) for one in asked for part in one.given} == {*regions.GuardPart.__args__}
    assert len({(one.kind, one.words, one.bound) for one in asked}) == 3 * 4 * 3
