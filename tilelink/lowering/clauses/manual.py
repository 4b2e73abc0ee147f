"""The tables of clauses in docs/language.md."""

from __future__ import annotations

from typing import Any

from tilelink.lowering.clauses import CLAUSES, Clause
from tilelink.scheduling.words import Owner


def table(of: Owner) -> str:
    """Return a Markdown table of the built-in clauses of a stage or a tensor: syntax and meaning."""
    rows = [f"| part of a {of} | meaning |", "|---|---|"]
    rows += [f"| {_form(clause)} | {clause.manual} |" for clause in CLAUSES if clause.of == of]
    return "\n".join(rows)


def _form(clause: Clause[Any]) -> str:
    return clause.written if "`" in clause.written else f"`{clause.written}`"
