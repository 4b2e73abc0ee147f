"""The two tiers of the suite: what every run does, and the cases that are left to `pytest --thorough`.

A thorough test repeats on one more case what a test of the default tier proves. A function of tests has at least one
case in the default tier; tests/house/test_tiers.py names the files and functions that have none, with the reason.

    @thorough(unless=lambda case, ranks: ranks == 4)               # all cases but these
    pytest.param("large", marks=pytest.mark.thorough)              # one case
    pytestmark = pytest.mark.thorough                              # a file
"""

import inspect
from collections.abc import Callable, Sequence
from zlib import crc32

import pytest

THOROUGH = "thorough"


def thorough(*, unless: Callable[..., bool]) -> pytest.MarkDecorator:
    """Marks the cases of a test for which `unless` is false: it takes parameters of the test, by their names."""
    return pytest.mark.thorough(unless=unless)


def one_in(number: int, *names: object) -> bool:
    """True for about one in so many names, which their text alone decides: whatever other names there are."""
    return crc32(" ".join(map(str, names)).encode()) % number == 0


def left_out(items: Sequence[pytest.Item], wanted: Sequence[str]) -> list[pytest.Item]:
    """The thorough ones of some tests. What is wanted by its id, `file::name`, is wanted whole.

    A function of whose cases none would be left has all of them: somebody chose few, as TILELINK_TEST_PROGRAMS does.
    """
    found = [item for item in items if _is_thorough(item) and not is_asked_for(item, wanted)]
    left = {_function(item) for item in set(items) - set(found)}
    return [item for item in found if _function(item) in left or _whole(item)]


def is_asked_for(item: pytest.Item, wanted: Sequence[str]) -> bool:
    """True for a thorough test that is run because what is wanted has its id, or that of a part that it is in."""
    named = [_short(one) for one in wanted if "::" in one.partition("[")[0]]
    return any(_below(item, one) for one in named) and _is_thorough(item)


def _short(nodeid: str) -> str:
    """The id of a test without its folder, which a command may name in its own way."""
    file, colons, rest = nodeid.partition("::")
    return f"{file.rpartition('/')[2]}{colons}{rest}"


def _below(item: pytest.Item, name: str) -> bool:
    """True if an item is what has a name, or a part of it."""
    short = _short(item.nodeid)
    return short == name or short.startswith((f"{name}[", f"{name}::"))


def _is_thorough(item: pytest.Item) -> bool:
    return any(_applies(item, mark) for mark in item.iter_markers(THOROUGH))


def _applies(item: pytest.Item, mark: pytest.Mark) -> bool:
    unless = mark.kwargs.get("unless")
    if unless is None:
        return True
    params = item.callspec.params  # type: ignore[attr-defined]
    return not unless(**{name: params[name] for name in inspect.signature(unless).parameters})


def _whole(item: pytest.Item) -> bool:
    """True if all of a function, of its class or of its file is thorough."""
    marks = [mark for node in item.listchain()[:-1] for mark in node.own_markers]
    marks += getattr(getattr(item, "function", None), "pytestmark", [])
    return any(mark.name == THOROUGH and "unless" not in mark.kwargs for mark in marks)


def _function(item: pytest.Item) -> str:
    return item.nodeid.partition("[")[0]
