"""Texts with random mistakes: each is refused with an error of the language, or is a program that prints and parses."""

from __future__ import annotations

from random import Random

import pytest

from tests.frontend import test_called_names, test_examples, test_launch_syntax, test_variants
from tests.tiers import thorough
from tilelink import compiler
from tilelink.errors import TileLinkError
from tilelink.ir.printer import print_program

TEXTS = [
    test_variants.HEAD + test_variants.VARIANTS,
    test_called_names.HEAD + test_called_names.SEND + test_called_names.TAKE,
    test_examples.TEXT,
    test_launch_syntax.ALL,
    test_launch_syntax.PROGRAM,
    *(print_program(module.programs[-1]) for module in compiler.library()),
]
PARTS = [
    "let", "def", "by 1", "elif", "=", "0", "from", "to", "within", "function", "dtype", "(", ")", ":", "\n", "@",
    "rank", "call", "True", "1e9", "-", "x", "return", ",", "[", "]", " ", "for", "if", "table", "symmetric",
    "<=", "distinct", "offsets", "[: m]", "rows[", "starts",
]  # fmt: skip


def spoiled(text: str, chance: Random) -> str:
    """The text with a few characters left out, put in, repeated elsewhere, or a line moved."""
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(text))
        match chance.randrange(4):
            case 0:
                text = text[:at] + text[at + chance.randrange(1, 8) :]
            case 1:
                text = text[:at] + chance.choice(PARTS) + text[at:]
            case 2:
                begin = chance.randrange(len(text))
                text = text[:at] + text[begin : begin + chance.randrange(20)] + text[at:]
            case _:
                lines = text.split("\n")
                lines.insert(chance.randrange(len(lines)), lines.pop(chance.randrange(len(lines))))
                text = "\n".join(lines)
    return text


@thorough(unless=lambda seed: seed == 0)
@pytest.mark.parametrize("seed", range(4))
def test_a_spoiled_text_is_refused_or_a_program(seed: int) -> None:
    chance, programs, refused = Random(seed), 0, 0
    for _ in range(160):
        text = spoiled(chance.choice(TEXTS), chance)
        try:
            for program in compiler.parse(text, "spoiled.tl").programs:
                checked = compiler.check(program)
                assert compiler.parse(print_program(checked)).programs == (checked,), text
                programs += 1
        except TileLinkError as error:
            assert error.message and str(error)
            refused += 1
    assert programs > 0 and refused > 20
