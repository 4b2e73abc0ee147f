# pyright: basic
"""Random programs survive printing, and both front ends parse them to the same program."""

from __future__ import annotations

import importlib.util
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.frontend.random_programs import Written, programs
from tilelink.errors import TileLinkError
from tilelink.frontend.checker import check
from tilelink.frontend.parser import parse_text
from tilelink.ir.printer import print_program
from tilelink.ir.program import Program

PHASES = (Phase.explicit, Phase.generate, Phase.shrink)
MANY = pytest.mark.parametrize("examples", [25, pytest.param(80, marks=pytest.mark.thorough)])


def for_programs(examples: int, holds: Callable[[Written], None]) -> None:
    """Calls a function with so many random programs, the same ones in each run."""
    some = settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        phases=PHASES,
        suppress_health_check=list(HealthCheck),  # pyright: ignore
    )
    some(given(programs())(holds))()


@MANY
def test_a_printed_program_is_the_same_program(examples: int) -> None:
    def holds(written: Written) -> None:
        (program,) = parse_text(written.text).programs
        printed = print_program(program)
        assert parse_text(printed).programs == (program,)
        assert print_program(parse_text(printed).programs[0]) == printed

    for_programs(examples, holds)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


numbers = itertools.count()


def decorated(source: str, folder: Path) -> Program:
    """The program of a Python module with this source."""
    path = folder / f"random_{next(numbers)}.py"
    path.write_text("from __future__ import annotations\nimport tilelink\n\n" + source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # Python doubts `(0)[:, None]`, which nobody runs
        spec.loader.exec_module(module)
    return module.p


@MANY
def test_the_python_form_is_the_same_program(examples: int, folder: Path) -> None:
    def holds(written: Written) -> None:
        program = decorated(written.python, folder)
        assert program == parse_text(written.text).programs[0]
        assert parse_text(print_program(program)).programs == (program,)

    for_programs(examples, holds)


@MANY
def test_the_checker_raises_only_designed_errors(examples: int) -> None:
    """A random program is nearly always wrong: it is refused with designed errors, never with a traceback."""

    def holds(written: Written) -> None:
        (program,) = parse_text(written.text).programs
        try:
            assert check(program) is program
        except TileLinkError as error:
            for one in getattr(error, "errors", (error,)):
                assert one.location is not None
                assert one.hint

    for_programs(examples, holds)
