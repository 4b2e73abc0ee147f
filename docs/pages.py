"""Pages that do what they say: their programs are written, their code and commands run, their output and pictures made.

`python -m docs.pages PAGE...` runs pages and writes what came out into them; tests compare instead. A page is read from
top to bottom, in a folder of its own:

* a `tilelink` block that begins with `program` is the file `NAME.tl`; one that begins with `schedule` is added to the
  file of its program;
* a `diff` block changes the file written last;
* a `python` block is executed, with the names of those before it; a `text` block after it is what it prints;
* of a `console` block the lines `$ tilelink ...` are executed, and the other lines are what they print. `| head -N`,
  `| tail -N` and `| grep TEXT` choose lines;
* a picture `pictures/NAME.svg` after a `tilelink simulate` is the timeline of that launch.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from docs.pictures import picture
from tilelink.cli import app

DOCS = Path(__file__).parent
PART = re.compile(r"^```(?P<kind>\w+)\n(?P<text>.*?)^```$|\]\((?:docs/)?pictures/(?P<picture>\w+\.svg)\)", re.S | re.M)


@dataclass(kw_only=True)
class Played:
    """A page with what its code and commands have printed, and its pictures, by name."""

    text: str
    pictures: dict[str, str] = field(default_factory=dict[str, str])


def play(text: str, folder: Path, name: str = "page") -> Played:
    """Run a page in an empty folder. Raises what its Python code raises."""
    names: dict[str, Any] = {"__name__": "__main__"}
    found, last, printed, drawn = Played(text=""), folder, "", None
    position = 0
    for part in PART.finditer(text):
        kind, body = part["kind"], part["text"]
        if kind == "tilelink":
            last = _written(body, folder)
        elif kind == "diff":
            last.write_text(changed(last.read_text(), body))
        elif kind == "python":
            code = compile("\n" * text.count("\n", 0, part.start("text")) + body, f"{name}.md", "exec")
            with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.chdir(folder):
                exec(code, names)
            printed = out.getvalue()
        elif kind == "console":
            lines = [line for line in body.splitlines() if line.startswith("$ ")]
            said = [_called(line, folder) for line in lines]
            drawn = next((trace for line, (_, trace) in zip(lines, said, strict=True) if " simulate " in line), drawn)
            body = "".join(f"{line}\n{out}" for line, (out, _) in zip(lines, said, strict=True))
        elif kind == "text":
            body = printed
        elif part["picture"] and drawn is not None:  # else it is a picture of another page
            if not drawn:
                raise ValueError(f"{name}: the simulation of {part['picture']} failed")
            found.pictures[part["picture"]] = picture(json.loads(drawn))
        if kind is not None:
            found.text += text[position : part.start("text")] + body
            position = part.end("text")
    found.text += text[position:]
    return found


def _written(block: str, folder: Path) -> Path:
    """Write a block of programs or schedules, and return its file."""
    of = re.match(r"(?:#[^\n]*\n)*(?:program (\w+)|schedule \w+ for (\w+))", block)
    if of is None:
        return folder / "nothing.tl"
    path = folder / f"{of[1] or of[2]}.tl"
    path.write_text(block if of[1] else f"{path.read_text()}\n{block}")
    return path


def changed(text: str, diff: str) -> str:
    """Return a text after a change, whose hunks are apart by empty lines. Raises ValueError if it does not fit once."""
    for hunk in diff.strip("\n").split("\n\n"):
        lines = hunk.split("\n")
        old = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        new = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        if text.count(old) != 1:
            raise ValueError(f"{text.count(old)} times, not once: {old}")
        text = text.replace(old, new)
    return text


def _called(line: str, folder: Path) -> tuple[str, str]:
    """Run `$ tilelink ... | head -N` in a folder. Returns what it prints, and the trace if it is a simulation."""
    command, *filters = (shlex.split(part) for part in line[2:].split(" | "))
    if command[0] != "tilelink":
        return "", ""
    trace = folder / "trace.json"
    more = ["--trace", str(trace)] if command[1] == "simulate" else []
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, command[1:] + more)
    lines = (done.stdout if not done.exit_code else done.output).splitlines()
    for word, value in filters:
        match word:
            case "head":
                lines = lines[: int(value[1:])]
            case "tail":
                lines = lines[-int(value[1:]) :]
            case "grep":
                lines = [one for one in lines if value in one]
            case _:
                raise ValueError(f"unknown filter: {word}")
    return "".join(f"{one}\n" for one in lines), trace.read_text() if more and trace.exists() else ""


def update(path: Path) -> Iterator[str]:
    """Run a page and write it and its pictures anew. Yields the files that have changed."""
    with tempfile.TemporaryDirectory() as folder:
        played = play(path.read_text(), Path(folder), path.stem)
    files = {path: played.text, **{DOCS / "pictures" / name: text for name, text in played.pictures.items()}}
    for file, text in files.items():
        if not file.exists() or file.read_text() != text:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
            yield str(file)


if __name__ == "__main__":
    for one in sys.argv[1:]:
        for file in update(Path(one)):
            print(file)
