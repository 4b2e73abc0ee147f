"""Modules that fit in one sitting, functions that fit on one screen."""

import ast
from collections.abc import Iterator

from tests.house import sources

MODULE_LINES = 600
FUNCTION_LINES = 60


def long_functions(source: ast.Module, limit: int) -> Iterator[tuple[str, int]]:
    for node in ast.walk(source):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > limit:
                yield node.name, size


def test_modules_are_short() -> None:
    sizes = {sources.module_name(path): len(path.read_text().splitlines()) for path in sources.modules()}
    assert {name: size for name, size in sizes.items() if size > MODULE_LINES} == {}


def test_functions_are_short() -> None:
    found = {
        f"{sources.module_name(path)}.{name}": size
        for path in sources.modules()
        for name, size in long_functions(sources.tree(path), FUNCTION_LINES)
    }
    assert found == {}


def test_a_long_function_is_found_wherever_it_stands() -> None:
    text = "class A:\n    def f(self):\n        def g():\n            x = 1\n            return x\n        return g"
    assert list(long_functions(ast.parse(text), 4)) == [("f", 5)]
