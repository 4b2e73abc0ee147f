"""Environment variables are read, and set for child processes, in settings.py alone."""

import ast
from collections.abc import Iterator

import pytest

from tests.house import sources

ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv"}


def uses(source: ast.Module) -> Iterator[int]:
    """The lines that touch the process environment."""
    for node in sources.walk(source):
        match node:
            case ast.Attribute(value=ast.Name(id="os"), attr=name) if name in ENVIRONMENT:
                yield node.lineno
            case ast.ImportFrom(module="os", names=names) if ENVIRONMENT & {alias.name for alias in names}:
                yield node.lineno
            case _:
                pass


def test_only_settings_touches_the_environment() -> None:
    touching = {sources.module_name(path) for path in sources.modules() if any(uses(sources.tree(path)))}
    assert touching == {"tilelink.settings"}


def test_templates_leave_the_environment_alone() -> None:
    for path in sources.PACKAGE.rglob("*.j2"):
        assert not any(name in path.read_text() for name in ENVIRONMENT), path


@pytest.mark.parametrize(
    "text", ["os.environ['A']", "os.getenv('A')", "from os import environ", "def f(): os.environ.get('A')"]
)
def test_each_way_to_the_environment_is_seen(text: str) -> None:
    assert list(uses(ast.parse(text))) == [1]
