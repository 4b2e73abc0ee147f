"""Data from files: what is written comes back equal, and what is no value of its type is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.odd_files import ODD
from tilelink.data import DEEPEST, checked, parse_json, plain, read_json
from tilelink.errors import DataError


class Way(Enum):
    IN = 1
    OUT = 2


@dataclass(frozen=True, kw_only=True)
class Inner:
    at: tuple[int, str]
    maybe: float | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    file: Path
    inner: tuple[Inner, ...]
    names: frozenset[str]
    rates: Mapping[str, float]
    anything: Any
    flag: bool
    way: Way
    counts: NDArray[np.int64]


VALUE = Outer(
    file=Path("a/b"), inner=(Inner(at=(1, "x")), Inner(at=(2, "y"), maybe=0.5)), names=frozenset({"p", "q"}),
    rates={"r": 1.5}, anything={"deep": [1, None]}, flag=True, way=Way.OUT, counts=np.arange(6).reshape(2, 3),
)  # fmt: skip


def test_what_is_written_comes_back_equal() -> None:
    text = json.dumps(plain(VALUE))
    again = checked(Outer, parse_json(text.encode(), "it"), "it")
    assert np.array_equal(again.counts, VALUE.counts) and again.counts.dtype == np.int64
    assert replace(again, counts=None) == replace(VALUE, counts=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("file", 3, "file of it is 3, not a text"),
        ("inner", {}, "inner of it is {}, not a list"),
        ("inner", [{"at": [1, "x"]}], "0 of inner of it has no 'maybe'"),
        ("inner", [{"at": [1, "x"], "maybe": "1"}], "maybe of 0 of inner of it is '1', not a number"),
        ("inner", [{"at": [1, 2], "maybe": None}], "at of 0 of inner of it is 2, not a text"),
        ("inner", [{"at": [2**63, "x"], "maybe": None}], "is 9223372036854775808, not a whole number"),
        ("names", [1], "names of it is 1, not a text"),
        ("rates", {"r": float("inf")}, "r of rates of it is inf, not a number"),
        ("rates", {"r": True}, "r of rates of it is True, not a number"),
        ("way", "UP", "way of it is 'UP', not one of IN, OUT"),
        ("way", [], "way of it is [], not one of IN, OUT"),
        ("flag", 1, "flag of it is 1, not true or false"),
        ("counts", {"shape": [-2, -3], "values": [1] * 6}, "not a shape of 6 numbers"),
        ("counts", {"values": [1]}, "counts of it is None, not a list"),
        ("counts", {"shape": [1], "values": [1.5]}, "counts of it is 1.5, not a whole number"),
        ("more", "x" * 100, "it has a 'more', which is no field of it"),
        ("flag", "x" * 100, "flag of it is 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..., not true or false"),
    ],
)
def test_what_is_no_value_of_its_type_is_refused(field: str, value: Any, said: str) -> None:
    with pytest.raises(DataError) as caught:
        checked(Outer, {**plain(VALUE), field: value}, "it")
    assert said in caught.value.message


def test_values_are_read_as_deep_as_is_promised() -> None:
    assert parse_json(b"[" * DEEPEST + b"]" * DEEPEST, "it")
    for levels in (DEEPEST + 1, 10**5):
        with pytest.raises(DataError, match="it cannot be read: its lists are too deep"):
            parse_json(b"[" * levels + b"]" * levels, "it")


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ODD)
def test_only_files_are_read(tmp_path: Path, kind: str) -> None:
    ODD[kind](tmp_path / "it.json")
    with pytest.raises(DataError, match=r"it\.json cannot be read: "):
        read_json(tmp_path / "it.json")
