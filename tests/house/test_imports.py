"""The import table: which layer of the package may import which, and where third-party packages may appear."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import pytest

from tests.house import sources
from tilelink.ir import scalar

CLI = frozenset({"cli", "__main__"})
EVERY_LAYER = CLI | frozenset({"calibration", "compiler", "hunt", "ops", "parallel", "routing", "tuning"})

# Layer -> what it may import besides itself: layers or single modules. The layers of EVERY_LAYER may import all.
# "" is the package itself: the public API.
TABLE: dict[str, tuple[str, ...]] = {
    "files": (),
    "dtypes": (),
    "errors": ("files",),
    "data": ("files", "errors"),
    "generated": ("files", "settings", "errors"),
    "settings": ("errors",),
    "dump": ("data", "files", "settings", "errors"),
    "stragglers": ("simulator", "planning", "lowering", "ir", "data", "files", "errors"),
    "diagnose": ("dump", "ir", "lowering", "planning", "errors"),
    "target": ("errors",),
    "capabilities": ("target", "errors"),
    "artifact": ("data", "errors"),
    "ir": ("errors",),
    "scheduling": ("ir", "errors"),
    "frontend": ("ir", "scheduling", "target", "files", "settings", "errors"),
    "language": ("frontend", "errors"),
    "reference": (
        "ir.program",
        "ir.scalar",
        "ir.typing",
        "ir.printer",
        "ir.parameters",
        "ir.depth",
        "ir.groups",
        "ir.visitor",
        "dtypes",
        "errors",
    ),
    "facts": ("ir", "errors"),
    "lowering": ("facts", "ir", "scheduling", "target", "capabilities", "artifact", "errors"),
    "planning": ("facts", "ir", "lowering", "errors"),
    "verifier": ("facts", "ir", "lowering", "planning", "errors"),
    "simulator": ("ir", "lowering", "planning", "verifier", "target", "artifact", "data", "files", "errors"),
    "search": ("ir", "scheduling", "lowering", "planning", "verifier", "simulator", "target", "errors"),
    "backend": ("ir", "scheduling", "lowering", "generated", "settings", "target", "artifact", "files", "errors"),
    "device": ("settings", "errors"),
    "runtime": ("device", "generated", "settings", "target", "artifact", "dump", "dtypes", "errors"),
    "programs": ("",),
}

THIRD_PARTY: dict[str, frozenset[str]] = {
    "lark": frozenset({"frontend"}),
    "jinja2": frozenset({"backend"}),
    "torch": frozenset({"device", "dtypes", "runtime", "reference"}) | EVERY_LAYER,
    "triton": frozenset({"device", "runtime"}),
    "cuda": frozenset({"runtime"}),
    "nvshmem": frozenset({"runtime"}),
    "numpy": frozenset(
        [
            "artifact",
            "data",
            "dump",
            "diagnose",
            "ir",
            "lowering",
            "planning",
            "verifier",
            "simulator",
            "stragglers",
            "search",
            "backend",
            "device",
            "runtime",
            "reference",
            "compiler",
            "hunt",
            "ops",
            "cli",
        ]
    ),
    "rich": CLI,
    "typer": CLI,
    "matplotlib": frozenset({"simulator", "stragglers"}),
}


def layer_of(module: str) -> str:
    """tilelink.ir.program -> ir; tilelink -> "" """
    return module.partition(".")[2].partition(".")[0]


def allowed(layer: str, target: str) -> bool:
    """Whether a module of `layer` may import the module `target`."""
    package, _, inner = target.partition(".")
    if package == "tilelink":
        if layer in EVERY_LAYER or layer == "":
            return True
        permitted = (layer, *TABLE.get(layer, ()))
        return any(inner == one or (one and inner.startswith(one + ".")) for one in permitted)
    if package in sys.stdlib_module_names:
        return True
    return layer in THIRD_PARTY.get(package, frozenset())


def violations(source: ast.Module, module: str, is_package: bool, known: frozenset[str]) -> Iterator[str]:
    for found in sources.imports(source, module, is_package, known):
        if not allowed(layer_of(module), found.target):
            yield f"{module}:{found.line}: {layer_of(module)} may not import {found.target}"


def known_modules() -> frozenset[str]:
    return frozenset(map(sources.module_name, sources.modules()))


def test_every_import_is_in_the_table() -> None:
    known = known_modules()
    wrong = [
        line
        for path in sources.modules()
        for line in violations(sources.tree(path), sources.module_name(path), path.stem == "__init__", known)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_reference_reads_expressions_by_itself() -> None:
    """What judges the plan and the kernels takes the words of the language from `ir.scalar`, and no arithmetic."""
    folder = sources.ROOT / "tilelink" / "reference"
    taken = {
        name.name
        for path in folder.glob("*.py")
        for node in sources.walk(sources.tree(path))
        if isinstance(node, ast.ImportFrom) and node.module == "tilelink.ir.scalar"
        for name in node.names
    }
    assert {"Binary", "Lookup"} <= taken
    assert {name for name in taken if not isinstance(getattr(scalar, name), type)} == set()


def test_every_layer_is_in_the_table() -> None:
    layers = {layer_of(module) for module in known_modules()} - {""}
    assert layers <= TABLE.keys() | EVERY_LAYER


def test_no_module_imports_itself_through_others() -> None:
    known = known_modules()
    graph: dict[str, set[str]] = {}
    for path in sources.modules():
        name = sources.module_name(path)
        found = sources.imports(sources.tree(path), name, path.stem == "__init__", known)
        graph[name] = {one.target for one in found if one.target in known} - {name}
    assert sum(map(len, graph.values())) > len(graph) > 200
    assert not circle(graph), "these modules import each other: " + " <- ".join(circle(graph))
    back = graph | {"tilelink.errors": graph["tilelink.errors"] | {"tilelink.ir.scalar"}}
    assert {"tilelink.errors", "tilelink.ir.scalar"} <= {*circle(back)}, "one more import would be seen"


def test_any_module_can_be_imported_first() -> None:
    """An import executes the packages around a module first. Modules that so need each other have one of their own."""
    known = known_modules()
    graph = {sources.module_name(path): at_once(path, known) for path in sources.modules()}
    below = {name: reached(graph, name) for name in graph}
    for name in graph:
        tangled = [other for other in below[name] if name in below[other]]
        parts = zip(*(one.split(".") for one in tangled), strict=False)
        package = ".".join(first for first, *others in parts if {*others} <= {first})
        assert package in (*tangled, ""), f"imported first, one of these finds another one unfinished: {tangled}"


def at_once(path: Path, known: frozenset[str]) -> set[str]:
    """The modules that are executed before a module is: those it imports outside of functions, and all packages."""
    name, found, stack = sources.module_name(path), set[str](), list[ast.AST](sources.tree(path).body)
    while stack:
        node = stack.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            one = ast.Module(body=[node], type_ignores=[])
            found |= {target.target for target in sources.imports(one, name, path.stem == "__init__", known)}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            stack += node.orelse
        elif not isinstance(node, ast.FunctionDef):
            stack += ast.iter_child_nodes(node)
    around = {one.rpartition(".")[0] for target in found for one in prefixes(target)} | {*prefixes(name)}
    return {one for one in found | around if one in known and one != name}


def prefixes(module: str) -> list[str]:
    """a.b.c -> a, a.b, a.b.c"""
    return [*accumulate(module.split("."), "{}.{}".format)]


def reached(graph: dict[str, set[str]], name: str) -> set[str]:
    """The modules that the import of a module executes, with it."""
    found, stack = set[str](), [name]
    while stack:
        if (one := stack.pop()) not in found:
            found.add(one)
            stack += graph[one]
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Return modules of which each imports the next one, the first one at the end again; none if there is no circle."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return []


@pytest.mark.parametrize(
    ("module", "text", "wrong"),
    [
        ("tilelink.ir.program", "from tilelink.errors import TilelinkError", False),
        ("tilelink.ir.program", "from tilelink.planning import plan", True),
        ("tilelink.ir.program", "from ..schedule import plan", True),
        ("tilelink.ir.program", "from . import ops", False),
        ("tilelink.ir.program", "import tilelink", True),
        ("tilelink.ir.program", "def late():\n    import torch", True),
        ("tilelink.ir.program", "if TYPE_CHECKING:\n    from tilelink.backend import emit", True),
        ("tilelink.ir.program", "importlib.import_module('triton')", True),
        ("tilelink.ir.program", "import dataclasses, xyz_unknown", True),
        ("tilelink.frontend.parser", "import lark", False),
        ("tilelink.frontend.parser", "from tilelink.scheduling.schedule import Schedule", False),
        ("tilelink.frontend.parser", "from tilelink.scheduling import schedule", False),
        ("tilelink.frontend.parser", "from tilelink.planning import plan", True),
        ("tilelink.backend.emit", "from tilelink.lowering import bind; from tilelink.planning import plan", True),
        ("tilelink.runtime.launch", "import torch, triton.language as tl", False),
        ("tilelink.runtime.launch", "from tilelink import ir", True),
        ("tilelink.compiler", "from tilelink import ir, runtime\nimport torch", False),
        ("tilelink.compiler", "import triton", True),
    ],
)
def test_the_table_is_enforced(module: str, text: str, wrong: bool) -> None:
    names = ("ir", "ir.ops", "runtime", "schedule.bind", "schedule.plan", "schedule.values")
    known = frozenset(f"tilelink.{name}" for name in names)
    assert bool(list(violations(ast.parse(text), module, False, known))) == wrong


@pytest.mark.parametrize(
    "module",
    [
        "tilelink",
        "tilelink.ir",
        "tilelink.frontend",
        "tilelink.scheduling",
        "tilelink.lowering",
        "tilelink.backend",
        "tilelink.cli",
    ],
)
def test_importing_needs_neither_torch_nor_triton(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'triton'}} & sys.modules.keys()))"
    run = subprocess.run([sys.executable, "-c", code], cwd=sources.ROOT, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == ""
