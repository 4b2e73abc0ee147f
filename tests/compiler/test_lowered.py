"""Lowered programs as text: what is printed after a pass is read back as the same program."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.compiler.library import Case, cases, in_turn, name
from tests.lowering.test_passes import PARTS, SMALL, on_the_way, sizes
from tilelink import compiler
from tilelink.errors import ParseError, TileLinkError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.target import CPU, H200, Target
from tilelink.verifier import refusals


def read(text: str) -> Bound:
    return compiler.parse_lowered(text, "lowered.tl")


def lowered(schedule: str = "parts", target: Target = SMALL) -> Bound:
    module = compiler.parse(PARTS)
    case = module.program(), next(one for one in module.schedules if one.name == schedule)
    return compiler.bound(*case, ranks=2, dims={"M": 64, "N": 64, "K": 2048}, target=target)


@pytest.mark.parametrize("target", [CPU, H200], ids=str)
@pytest.mark.parametrize("case", in_turn(cases()), ids=name)
def test_every_program_of_the_library_is_read_back_after_every_pass(case: Case, target: Target) -> None:
    for bound in on_the_way(case, 3, sizes(case), target).values():
        text = listing(bound)
        found = read(text)
        assert found == replace(bound, source=found.source, schedule=found.schedule)
        assert found.schedule.reuse_wait == bound.schedule.reuse_wait
        assert listing(found) == text


@pytest.mark.parametrize("schedule", ["parts", "filled"])
def test_a_program_that_was_read_is_planned_and_proved(schedule: str) -> None:
    text = listing(lowered(schedule))
    assert refusals(make_plan(read(text))) == []
    lines = [line for line in text.splitlines() if "consumer_tile_wait" not in line]
    assert len(lines) < len(text.splitlines())
    (refusal, *_) = refusals(make_plan(read("\n".join(lines))))
    assert refusal.rule == "ordering"


@pytest.mark.parametrize(
    ("old", "new", "message", "hint"),
    [
        ("channel y tile: base 0, counts[", "channel y tile: base 0, counts[1, ", "y has 2 dimensions", "counts[one"),
        ("lowered for 2 ranks:", "lowered for ranks:", "not the head of a lowered program", "lowered for N ranks:"),
        (", tile(i=16, j=16)", ", transport MAIL, tile(i=16, j=16)", "unknown transport 'MAIL'", "one of STORES, TMA"),
        ("    launch: protocol", "    lunch: protocol", "unknown line 'lunch'", "did you mean launch?"),
        ("protocol ", "protocol NO_", "unknown protocol 'NO_", "one of HELPER_KERNELS"),
        ("target cpu: kind cpu", "target cpu: kind fpga", "no kind of processor 'fpga'", "cpu, cuda or hip"),
        ("sms 6", "sms six", "'six' is no number", "a number as Python writes it"),
        ("sms 6", "cores 6", "unknown property 'cores'", "one of kind"),
        ("tensor a: number 0", "tensor q: number 0", "the program has no tensor 'q'", "they are a, b, y, z"),
        ("tensor a: number 0, ", "tensor a: ", "number is missing", "number VALUE"),
        ("tensor a: number 0", "tensor a: number none", "number is no integer: none", "number NUMBER"),
        ("shape[64, 2048]", "shape 3", "shape is missing", "shape[1, 2]"),
        ("channel y tile:", "channel y word:", "no channels 'y word'", "TENSOR tile|peer|rank"),
        ("stage sums:", "stage sum:", "the program has no stage 'sum'", "did you mean sums?"),
        ("on sm,", "on rocks,", "unknown property 'on'", "one of number, resource"),
        ("tile(i=16, j=16)", "tile(i=16)", "tile does not fit the indices of gemm", "tile(i=1, j=1)"),
        ("tile(i=16, j=16)", "tile(i=16, j=0)", "tile does not fit the indices of gemm", "tile(i=1, j=1)"),
        ("        i = tile // 4\n", "", "gemm has no order of i", "i = an expression over `tile`"),
        ("        i = tile // 4\n", "        i = tile //\n", "not an integer expression", "over `tile`"),
        ("        i = tile // 4\n", "        i = tiles // 4\n", "unknown name 'tiles'", "did you mean tile?"),
        ("): gemm\n", "): gem\n", "the program has no stage 'gem'", "did you mean gemm?"),
        ("program product", "schedule product", "", ""),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(old: str, new: str, message: str, hint: str) -> None:
    text = listing(lowered("filled"))
    assert old in text
    with pytest.raises(TileLinkError) as caught:
        read(text.replace(old, new, 1))
    assert message in caught.value.message and hint in (caught.value.hint or "")
    if message:
        assert caught.value.location is not None
        assert caught.value.location.text == text.replace(old, new, 1).splitlines()[caught.value.location.line - 1]


def test_a_text_of_something_else_is_refused() -> None:
    for text in ("", "program", PARTS, PARTS + PARTS, "lowered for 2 ranks:\n", "\0"):
        with pytest.raises(TileLinkError):
            read(text)
    with pytest.raises(ParseError, match="is not a text of programs"):
        compiler.parse_lowered(3)  # type: ignore[arg-type]


def test_a_spoiled_text_is_read_or_refused() -> None:
    """Lines that are dropped, repeated or moved, and numbers and letters that are changed."""
    text, chance, refused = listing(lowered("parts", H200)), Random(3), 0
    for _ in range(400):
        lines = text.splitlines()
        at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
        match chance.randrange(4):
            case 0:
                del lines[at]
            case 1:
                lines.insert(to, lines[at])
            case 2:
                lines.insert(to, lines.pop(at))
            case _:
                place = chance.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + chance.choice("0a-,([:=.") + lines[at][place + 1 :]
        try:
            read("\n".join(lines))
        except TileLinkError:
            refused += 1
    assert 100 < refused < 400
