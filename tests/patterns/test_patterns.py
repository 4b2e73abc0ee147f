"""The programs of docs/patterns.md are what their files have, right, safe on GPUs, and their mistakes are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tilelink
from tests.patterns.page import PAGE, ROOT, Pattern, patterns
from tests.patterns.truth import TRUTHS
from tilelink.cli import app
from tilelink.reference.trial import random_inputs

PATTERNS = patterns(PAGE.read_text())
DESCRIPTIONS = Path(__file__).with_name("descriptions.txt")

each = pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.program)


def test_the_page_has_the_programs_of_its_files(request: pytest.FixtureRequest) -> None:
    text = PAGE.read_text()
    for pattern in PATTERNS:
        assert text.count(pattern.block) == 1
        text = text.replace(pattern.block, pattern.source)
    if request.config.getoption("--update-golden"):
        PAGE.write_text(text)
    assert text == PAGE.read_text()


def test_the_page_has_every_pattern_of_the_examples() -> None:
    shown = {pattern.file for pattern in PATTERNS}
    assert {str(path.relative_to(ROOT)) for path in ROOT.glob("examples/patterns/*.tl")} <= shown
    assert {pattern.program for pattern in PATTERNS} == set(TRUTHS)


def test_the_descriptions_are_those_of_the_page() -> None:
    """One line each: what a reader is asked to write with the language page alone."""
    assert DESCRIPTIONS.read_text() == "".join(f"{one.title}: {one.description}\n" for one in PATTERNS)


@each
def test_a_pattern_computes_what_plain_torch_does(pattern: Pattern) -> None:
    truth, module = TRUTHS[pattern.program], tilelink.load(str(ROOT / pattern.file))
    program = module.program(pattern.program)
    own = next((one for one in module.schedules_of(program) if one.name == "default"), None)
    kernel = tilelink.compile(program, own, ranks=truth.ranks, dims=truth.dims)
    (inputs,) = random_inputs(program, ranks=truth.ranks, dims=truth.dims, dtype="f32", launches=1, seed=1)
    truth.given(inputs)
    outputs, wanted = kernel(inputs), truth.outputs(inputs)
    assert [set(one) for one in wanted] == [set(one) for one in outputs]
    for rank, tensors in enumerate(wanted):
        for name, right in tensors.items():
            made = outputs[rank][name][: len(right)]  # rows beyond are not defined
            assert made.shape == right.shape
            difference = (made.double() - right.double()).abs().max()
            assert difference <= truth.error * right.double().abs().max(), (rank, name)


@each
def test_the_schedule_of_a_pattern_is_safe_on_gpus_at_sizes_of_production(pattern: Pattern) -> None:
    command = ["check", str(ROOT / pattern.file), "--program", pattern.program, "--schedule", pattern.schedules[-1]]
    done = CliRunner().invoke(app, [*command, "--target", "sm_90", *pattern.options])
    assert done.exit_code == 0, done.output
    assert f"{pattern.program}: safe on {pattern.options[1]} ranks (sm_90, bf16)" in done.output


def refusal(text: str, file: Path) -> str:
    """The first line of the first mistake that `check` finds."""
    file.write_text(text)
    done = CliRunner().invoke(app, ["check", str(file), "--dtype", "bf16"])
    assert done.exit_code == 1, done.output
    return next(line for line in done.output.splitlines() if re.match(r"\w+Error: ", line))


@each
def test_the_mistake_of_a_pattern_is_refused_as_the_page_says(pattern: Pattern, tmp_path: Path) -> None:
    found = refusal(pattern.mistaken, tmp_path / "mistake.tl")
    said, cut, _ = pattern.refusal.partition(" ...")
    assert found.startswith(said) if cut else found == said


def test_an_entry_that_the_page_does_not_have_in_this_form_is_said() -> None:
    text = PAGE.read_text()
    with pytest.raises(ValueError, match="not the form of an entry"):
        patterns(text.replace("**The mistake.**", "**A mistake.**"))
    with pytest.raises(ValueError, match="not once in the block"):
        _ = replace(PATTERNS[0], change="-    nothing\n").mistaken
