"""docs/stable_api.txt is what the package promises: no name and no parameter comes or goes without it."""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command

import tilelink
from tests.conftest import Golden
from tests.house import sources
from tilelink import cli, errors


def parameters(value: Any) -> str:
    """`(program, schedule=, *, ranks)`: names, which have defaults, and which are given by name alone."""
    said: list[str] = []
    starred = False
    for one in inspect.signature(value).parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.KEYWORD_ONLY and not starred:
            said.append("*")
        starred |= one.kind in (one.KEYWORD_ONLY, one.VAR_POSITIONAL)
        stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        said.append(f"{stars}{one.name}{'' if one.default is one.empty else '='}")
    return f"({', '.join(said)})"


def described(name: str, value: Any) -> Iterator[str]:
    """Yield a line for a name, and one for each public attribute of a class or name of a module."""
    if isinstance(value, ModuleType):
        for inner in sorted(value.__all__):
            yield from described(f"{name}.{inner}", getattr(value, inner))
    elif isinstance(value, type):
        yield f"{name}{'' if issubclass(value, Exception) else parameters(value)}"
        for inner, member in sorted(vars(value).items()):
            if inner.startswith("_") and inner != "__call__":
                continue
            yield f"{name}.{inner}{parameters(member) if inspect.isfunction(member) else ''}"
    else:
        yield f"{name}{parameters(value) if callable(value) else ''}"


def commands() -> Iterator[str]:
    """Yield each command with its options."""
    group: Any = get_command(cli.app)
    for name in group.list_commands(None):
        _, command, _ = group.resolve_command(None, [name])
        of_name = command.commands[name] if hasattr(command, "commands") else command
        words = sorted(max(one.opts, key=len) for one in of_name.params)
        yield f"$ tilelink {name} {' '.join(words)}"


def test_the_list_is_what_the_package_has(request: pytest.FixtureRequest) -> None:
    of_errors = {name: one for name, one in vars(errors).items() if isinstance(one, type)}
    refusals = {name: one for name, one in of_errors.items() if issubclass(one, errors.TileLinkError)}
    lines = [
        line for name in sorted(tilelink.__all__) for line in described(f"tilelink.{name}", getattr(tilelink, name))
    ]
    lines += [line for name in sorted(refusals) for line in described(f"tilelink.errors.{name}", refusals[name])]
    lines += commands()
    named = set(re.findall(r"\bTILELINK_\w+", (sources.ROOT / "tilelink" / "settings.py").read_text()))
    assert named
    lines += [f"environment {name}" for name in sorted(named)]
    Golden(sources.ROOT / "docs", bool(request.config.getoption("--update-golden")))("stable_api", "\n".join(lines))


def test_what_the_package_offers_is_what_it_lists() -> None:
    offered = {name for name in dir(tilelink) if name[0] != "_"}
    submodules = {path.stem for path in (sources.ROOT / "tilelink").iterdir()}
    assert offered - submodules - set(tilelink.__all__) <= {"import_module", "TYPE_CHECKING", "Any", "built_in"}
    assert set(tilelink.__all__) <= offered


def test_the_changelog_has_the_version() -> None:
    version = tomllib.loads((sources.ROOT / "pyproject.toml").read_text())["project"]["version"]
    released = re.findall(r"^## ([\d.]+)", (sources.ROOT / "CHANGELOG.md").read_text(), re.M)
    assert released[0] == version
