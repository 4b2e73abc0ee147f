"""Sphinx: `make docs`. Pages are Markdown, the API comes from docstrings, and nothing is loaded from a network."""

import re
import sys
import textwrap
from collections.abc import Iterator
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from pygments.lexers.python import PythonLexer  # pyright: ignore[reportMissingTypeStubs]
from pygments.token import Keyword, Name

sys.path.insert(0, str(Path(__file__).parents[1]))

project = "TileLink"
copyright = "the TileLink authors"
release = version_of("tilelink")
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
root_doc = "index"

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
add_module_names = False

html_theme = "furo"
html_title = f"TileLink {release}"
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
pygments_style = "default"


def as_rst(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: indented paragraphs are code, `name: ...` begins a line, and no sign has a meaning."""
    parts = re.split(r"```python\n(.*?)\n```", "\n".join(lines), flags=re.S)
    made: list[str] = []
    for n, part in enumerate(parts):
        made += _indented(part, ".. code-block:: python") if n % 2 else _paragraphs(part)
    lines[:] = made


def _indented(code: str, head: str) -> list[str]:
    return [head, "", *(f"    {line}" for line in code.split("\n")), ""]


def _paragraphs(text: str) -> Iterator[str]:
    for block in text.strip("\n").split("\n\n"):
        own = block.split("\n")
        if all(line.startswith("    ") for line in own):
            yield from _indented(textwrap.dedent(block), "::")
            continue
        for n, line in enumerate(own):
            named = re.match(r"([a-z_]\w*(?:, \w+)*): (.*)", line.strip())
            if n and (named or line.startswith("Raises ")):
                yield ""
            yield f"**{named[1]}**: {_escaped(named[2])}" if named else _escaped(line.strip())
        yield ""


def _escaped(line: str) -> str:
    parts = re.split("(`[^`]+`)", line)
    return "".join(f"`{part}`" if n % 2 else re.sub(r"([*|_`\\\\])", r"\\\1", part) for n, part in enumerate(parts))


class TileLinkLexer(PythonLexer):
    """Programs and schedules: Python's words, and their own."""

    name, aliases = "TileLink", ["tilelink"]
    WORDS = ("program", "schedule", "comm", "compute", "symmetric", "local", "out", "inout", "kept", "on", "like")

    def get_tokens_unprocessed(self, text: str, stack: Any = ("root",)) -> Any:
        for index, token, value in super().get_tokens_unprocessed(text, stack):
            yield index, Keyword if token in Name and value in self.WORDS else token, value


def setup(app: Any) -> None:
    app.connect("autodoc-process-docstring", as_rst)
    app.add_lexer("tilelink", TileLinkLexer)
