"""Sphinx: `make docs`. Pages are Markdown, the API comes from docstrings, and nothing is loaded from a network."""

import re
import sys
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


def as_rst(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: indented paragraphs are code, `name: ...` begins a line, and no sign has a meaning."""
    made: list[str] = []
    for block in "\n".join(lines).strip("\n").split("\n\n"):
        own = block.split("\n")
        if all(line.startswith("    ") for line in own):
            made += ["::", "", *own, ""]
            continue
        for line in own:
            if re.match(r"[a-z]\w*(, \w+)*: |Raises ", line) and made and made[-1]:
                made.append("")
            made.append(_escaped(line.strip()))
        made.append("")
    lines[:] = made


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
