"""The layers below the operator library know no operator by its name."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.house import sources

PROGRAMS = sources.PACKAGE / "programs"
KNOWING = {sources.PACKAGE / "ops", sources.PACKAGE / "parallel"}
TEXT = {".py", ".j2", ".lark"}


def operator_names() -> set[str]:
    """The stems of the library's files and the names of the programs in them."""
    names: set[str] = set()
    for path in PROGRAMS.rglob("*.tl"):
        names |= {path.stem, *re.findall(r"^program\s+(\w+)", path.read_text(), re.MULTILINE)}
    return names


def mentions(text: str, names: set[str]) -> Iterator[tuple[int, str]]:
    """(line, name) of each mention as a whole word."""
    if not names:
        return
    pattern = re.compile(rf"\b({'|'.join(sorted(map(re.escape, names)))})\b")
    for number, line in enumerate(text.splitlines(), start=1):
        yield from ((number, match.group(1)) for match in pattern.finditer(line))


def files_below() -> list[Path]:
    files = (path for path in sources.PACKAGE.rglob("*") if path.suffix in TEXT)
    return sorted(path for path in files if {PROGRAMS, *KNOWING}.isdisjoint(path.parents))


def test_no_layer_knows_an_operator() -> None:
    names = operator_names()
    found = [
        f"{path.relative_to(sources.ROOT)}:{line}: {name}"
        for path in files_below()
        for line, name in mentions(path.read_text(), names)
    ]
    assert not found, "\n".join(found)


def test_the_library_has_names() -> None:
    assert {"ag_gemm", "gemm_rs"} <= {name.removesuffix("_ring") for name in operator_names()}


def test_a_mention_is_a_whole_word() -> None:
    text = "all_gather_into_tensor(x)\nif program.name == 'all_gather':"
    assert list(mentions(text, {"all_gather", "gemm"})) == [(2, "all_gather")]
