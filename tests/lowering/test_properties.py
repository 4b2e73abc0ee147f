"""Fields of lowered values as properties of their lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

import pytest

from tilelink.lowering.bound import BoundStage, Kernel
from tilelink.lowering.properties import BESIDE, Form, properties, said, spelled


class Colour(Enum):
    RED = auto()
    BLUE = auto()


@dataclass(frozen=True, kw_only=True)
class Value:
    """One field of each form."""

    name: str = field(metadata=BESIDE)
    text: str
    number: int
    sizes: Mapping[str, int]
    switch: bool = False
    names: frozenset[str] = frozenset()
    maybe: int | None = None
    colour: Colour = field(default=Colour.RED, metadata=spelled("color"))
    pair: tuple[int, int] | None = None


def test_every_form_is_said_by_its_word_and_defaults_are_left_out() -> None:
    short = Value(name="a", text="main", number=0, sizes={})
    assert [*said(short)] == ["text main", "number 0", "sizes()"]
    whole = Value(
        name="a", text="main", number=2, sizes={"i": 16, "j": 8}, switch=True, names=frozenset({"k", "i"}), maybe=0,
        colour=Colour.BLUE, pair=(1, 2),
    )  # fmt: skip
    assert [*said(whole, {"pair": str})] == [
        "text main", "number 2", "sizes(i=16, j=8)", "switch", "names[i, k]", "maybe 0", "color BLUE", "(1, 2)",
    ]  # fmt: skip


def test_properties_know_what_a_line_must_have() -> None:
    found = {one.word: one for one in properties(Value)}
    assert [word for word, one in found.items() if one.required] == ["text", "number", "sizes"]
    assert found["color"].choices is Colour
    assert found["maybe"].form is Form.NUMBER
    assert found["pair"].form is Form.OTHER


@pytest.mark.parametrize(("kind", "others"), [(Kernel, []), (BoundStage, ["resource", "tma_copy", "roles"])])
def test_fields_of_lowered_programs_have_forms(kind: type, others: list[str]) -> None:
    """A field of another form needs a printer and a reader of its own: those that have them are these."""
    assert [one.name for one in properties(kind) if one.form is Form.OTHER] == others
