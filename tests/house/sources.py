"""What the house tests read: the package's files, their syntax trees and the imports in them."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "tilelink"


def modules() -> list[Path]:
    """Every Python file of the package."""
    return sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)


@cache
def tree(path: Path) -> ast.Module:
    """The syntax tree of a file, which no test changes."""
    return ast.parse(path.read_text(), str(path))


@cache
def walk(source: ast.Module) -> tuple[ast.AST, ...]:
    """Every node of a tree that no test changes: to find them takes longer than what tests look for."""
    return tuple(ast.walk(source))


def module_name(path: Path) -> str:
    """tilelink/ir/__init__.py -> tilelink.ir"""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@dataclass(frozen=True, kw_only=True)
class Import:
    """One imported module, with the line that imports it."""

    target: str
    line: int


def imports(source: ast.Module, module: str, is_package: bool, known: frozenset[str]) -> Iterator[Import]:
    """Every import in `source`, wherever it stands: in functions, under TYPE_CHECKING, by importlib.

    `from a import b` is an import of a.b if that is one of the `known` modules, else of a.
    """
    for node in walk(source):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield Import(target=alias.name, line=node.lineno)
            case ast.ImportFrom(names=names):
                base = _absolute(node, module, is_package)
                for alias in names:
                    inner = f"{base}.{alias.name}"
                    yield Import(target=inner if inner in known else base, line=node.lineno)
            case ast.Call(args=[ast.Constant(value=str(target)), *_]) if _imports_by_name(node.func):
                yield Import(target=target, line=node.lineno)
            case _:
                pass


def _absolute(node: ast.ImportFrom, module: str, is_package: bool) -> str:
    if not node.level:
        return node.module or ""
    parts = module.split(".")
    kept = parts[: len(parts) - node.level + is_package]
    return ".".join([*kept, node.module] if node.module else kept)


def _imports_by_name(function: ast.expr) -> bool:
    return ast.unparse(function) in {"importlib.import_module", "import_module", "__import__"}
