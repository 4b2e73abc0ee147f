"""Explained survivors are mutants that there are: a rename leaves no explanation that explains nothing."""

import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.mutation.edits import edits

ROOT = Path(__file__).parents[2]
SURVIVORS = tomllib.loads(Path(__file__).with_name("explained.toml").read_text())["survivor"]


@cache
def mutants(file: str) -> frozenset[tuple[str, str, str]]:
    return frozenset((edit.function, edit.old, edit.new) for edit in edits(file, (ROOT / file).read_bytes()))


@pytest.mark.parametrize("survivor", SURVIVORS, ids=lambda one: f"{one['file']}:{one['function']}")
def test_an_explanation_belongs_to_a_mutant(survivor: dict[str, str]) -> None:
    assert (survivor["function"], survivor["old"], survivor["new"]) in mutants(survivor["file"])
    assert survivor["reason"].strip()
