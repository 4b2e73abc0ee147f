"""Documents: links lead somewhere, and the architecture names every folder of the package, and files that there are."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house import sources

DOCUMENTS = sorted([*sources.ROOT.glob("*.md"), *sources.ROOT.glob("docs/*.md"), *sources.ROOT.glob("examples/*.md")])


def dead(document: Path, text: str) -> Iterator[str]:
    """The links of a document to files or headings that there are not; other sites are not asked."""
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, heading = link.partition("#")
        target = (document.parent / file) if file else document
        if "://" in link:
            continue
        if not target.exists() or (heading and heading not in headings(target.read_text())):
            yield link


def headings(text: str) -> set[str]:
    """As links name them: small letters, hyphens between words, nothing else but underscores."""
    lines = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(sources.ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert list(dead(document, document.read_text())) == []


def test_a_dead_link_is_found() -> None:
    text = "[a](README.md) [b](nowhere.md) [c](ARCHITECTURE.md#signals) [d](ARCHITECTURE.md#nothing) [e](https://x.org)"
    assert list(dead(sources.ROOT / "README.md", text)) == ["nowhere.md", "ARCHITECTURE.md#nothing"]


def test_the_architecture_names_every_folder() -> None:
    text = (sources.ROOT / "ARCHITECTURE.md").read_text()
    folders = {path.parent.relative_to(sources.ROOT / "tilelink") for path in sources.modules()} - {Path()}
    assert [folder for folder in sorted(folders) if f"`tilelink/{folder}/`" not in text] == []


NAMED = re.compile(r"`(?:\.\./)?([\w/]+\.(?:py|j2|py\.j2|tl|json|toml))`")
PLANNED = ("device/nccl.py",)
"""Files of a transport that the architecture has as an example of one that could be added."""


def missing(text: str) -> list[str]:
    """The files that a text names and that there are not, by the end of a path."""
    folders = ("tilelink", "tests", "benchmarks", "examples", "docs")
    files = {f"/{one.relative_to(sources.ROOT).as_posix()}" for f in folders for one in (sources.ROOT / f).rglob("*")}
    files |= {f"/{one.name}" for one in sources.ROOT.iterdir()}
    return [name for name in NAMED.findall(text) if not any(one.endswith(f"/{name}") for one in files)]


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_documents_name_files_that_there_are(document: str) -> None:
    assert set(missing((sources.ROOT / document).read_text())) <= {*PLANNED}


def test_a_file_that_is_not_there_is_found() -> None:
    assert missing("`errors.py`, `lowering/bind.py`, `bind/errors.py` and `../nowhere.py`") == [
        "bind/errors.py",
        "nowhere.py",
    ]


def test_the_index_of_examples_is_complete() -> None:
    text = (sources.ROOT / "examples" / "README.md").read_text()
    assert set(re.findall(r"\(([\w]+\.py)\)", text)) == {path.name for path in sources.ROOT.glob("examples/*.py")}
