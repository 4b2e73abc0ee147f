"""What could run what lies in a file: which modules unpickle, import from files, or run texts, and no others."""

import ast
from collections.abc import Iterator

import pytest

from tests.house import sources

CPU = "tilelink.runtime.cpu"
ALLOWED = {
    "pickle": {
        "tilelink.compiler.samples",
        "tilelink.runtime.cpu.client",
        "tilelink.runtime.cpu.worker",
        "tilelink.runtime.job",
        "tilelink.stragglers.metrics",
        f"{CPU}.processes.child",
        f"{CPU}.processes.parent",
    },
    "exec": {"tilelink.generated"},
}
"""Of a kind of use, the modules that may: those that pickle do so through pipes without a name.

The modules of samples and of traces load recorded tensors, with the flags that allow no objects.
"""
PICKLERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
RUNNERS = {"exec", "eval", "run_path", "spec_from_file_location", "SourceFileLoader", "SourcelessFileLoader"}
LOADERS = {("torch", "load"), ("np", "load"), ("numpy", "load")}


def uses(tree: ast.Module) -> Iterator[str]:
    """ "pickle" for each import of a module that makes objects of bytes, "exec" for what runs texts or files."""
    for node in sources.walk(tree):
        match node:
            case ast.Import(names=names) if PICKLERS & {alias.name.partition(".")[0] for alias in names}:
                yield "pickle"
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in PICKLERS:
                yield "pickle"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if (module, name) in LOADERS:
                yield "pickle"
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) if name in RUNNERS:
                yield "exec"
            case _:
                pass


def test_only_some_modules_unpickle_or_run_texts() -> None:
    found: dict[str, set[str]] = {kind: set() for kind in ALLOWED}
    for path in sources.modules():
        for kind in uses(sources.tree(path)):
            found[kind].add(sources.module_name(path))
    assert found == ALLOWED


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("import pickle", "pickle"), ("from marshal import loads", "pickle"), ("torch.load(path)", "pickle"),
        ("exec(text)", "exec"), ("importlib.util.spec_from_file_location(name, path)", "exec"),
        ("from runpy import run_path", "exec"),
    ],
)  # fmt: skip
def test_each_way_to_run_a_file_is_seen(text: str, kind: str) -> None:
    assert list(uses(ast.parse(text))) == [kind]
