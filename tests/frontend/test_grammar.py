"""Tables of grammars that are kept in the cache folder."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from lark import Lark
from lark.lexer import TerminalDef

from tilelink import settings
from tilelink.compiler.modules import PROGRAMS
from tilelink.frontend import grammar
from tilelink.frontend.parser import _Indenter

GRAMMAR = 'start: "a" NUMBER+ [start]\nNUMBER: /[0-9]/\n'
OTHER = GRAMMAR.replace('"a"', '"b"')


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with settings.environment(TILELINK_CACHE=str(tmp_path)):
        yield tmp_path / "grammars"


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The grammars whose tables were computed, not read."""
    texts: list[str] = []

    def lark(text: str, **options: object) -> Lark:
        texts.append(text)
        return Lark(text, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(grammar, "Lark", lark)
    lark.load = Lark.load  # type: ignore[attr-defined]
    return texts


def test_the_tables_of_a_grammar_are_computed_once(folder: Path, computed: list[str]) -> None:
    trees = [grammar.lalr(text).parse(word) for text, word in [(GRAMMAR, "a1a22"), (OTHER, "b1"), (GRAMMAR, "a1a22")]]
    assert computed == [GRAMMAR, OTHER]
    assert trees[0] == trees[2] and len(list(folder.iterdir())) == 2


@pytest.mark.usefixtures("folder")
def test_kept_tables_parse_the_library_as_computed_ones_do() -> None:
    text = (Path(grammar.__file__).with_name("tilelink.lark")).read_text()
    computed, kept = grammar.lalr(text, _Indenter()), grammar.lalr(text, _Indenter())
    assert computed.source_path != kept.source_path == "<deserialized>"
    assert [said(t) for t in computed.terminals] == [said(t) for t in kept.terminals]
    for name in ("ag_gemm", "expert_parallel", "fsdp"):
        program = (PROGRAMS / f"{name}.tl").read_text().partition("\nschedule")[0] + "\n"
        first, second = computed.parse(program), kept.parse(program)
        assert first == second
        assert [vars(t.meta) for t in first.iter_subtrees()] == [vars(t.meta) for t in second.iter_subtrees()]


def said(terminal: TerminalDef) -> tuple[object, ...]:
    pattern = terminal.pattern
    return terminal.name, terminal.priority, type(pattern), pattern.value, *pattern.flags


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.write_text("[]"),
        lambda path: path.write_text(json.dumps({"data": {}, "memo": {}})),
        lambda path: (path.unlink(), path.mkdir()),
    ],
)
def test_a_file_of_another_form_counts_as_none(
    folder: Path, computed: list[str], spoil: Callable[[Path], object]
) -> None:
    grammar.lalr(GRAMMAR)
    (path,) = folder.iterdir()
    spoil(path)
    assert grammar.lalr(GRAMMAR).parse("a12").children
    assert computed == [GRAMMAR, GRAMMAR]


def test_tables_that_others_may_write_are_not_used(folder: Path, computed: list[str]) -> None:
    """They run nothing, but they say what a program means, and so what is proved."""
    grammar.lalr(GRAMMAR)
    (path,) = folder.iterdir()
    path.chmod(0o666)
    assert grammar.lalr(GRAMMAR).parse("a12").children
    assert computed == [GRAMMAR, GRAMMAR]


def test_without_a_folder_parsers_are_made_all_the_same(tmp_path: Path, computed: list[str]) -> None:
    (tmp_path / "file").write_text("")
    for place in (str(tmp_path / "file"), "~nobody_of_this_name/cache"):
        with settings.environment(TILELINK_CACHE=place):
            assert grammar.lalr(GRAMMAR).parse("a12").children
    assert computed == [GRAMMAR, GRAMMAR]
