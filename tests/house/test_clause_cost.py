"""A clause costs three files: its own module, the list of clauses, and the chain of schedules.

What else of the package names a clause is listed here with the reason, so that the list can only become shorter.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

from tests.house import sources
from tilelink.lowering import clauses as package
from tilelink.lowering.clauses import CLAUSES
from tilelink.lowering.clauses.clause import Clause

FOLDER = "tilelink.lowering.clauses"
CHAIN = "tilelink.scheduling.schedule"
EVERY = {FOLDER, CHAIN}
"""The list of clauses, and the methods of a schedule: each clause is in both."""

SETTLED = "binding gives every stage and tensor such a number, said or not"
SHARED = "its place in the program, or its size, is where an error is"
EXCLUDED = "the two change the same tiles: it refuses or brings the other one"
SEARCHED = "a search takes it in turn with others: places, sizes and orders of stages are chosen together"
KINDS = "it is not for stages that run elsewhere, as this clause says"
EXCEPTIONS: Mapping[str, Mapping[str, str]] = {
    "resource": {
        "lowering.bind": SETTLED,
        "lowering.choose_network": SHARED,
        "lowering.launch_decided": SHARED,
        "lowering.clauses.backfill": KINDS,
        "lowering.clauses.dynamic": KINDS,
        "lowering.clauses.split_k_tail": KINDS,
        "search.knobs": SEARCHED,
    },
    "direction": {},
    "tile": {
        "lowering.bind": SETTLED,
        "lowering.limits": SHARED,
        "lowering.registers": SHARED,
        "lowering.shared_memory": SHARED,
        "search.knobs": SEARCHED,
    },
    "order": {
        "lowering.bind": SETTLED,
        "lowering.orders": SHARED,
        "search.knobs": SEARCHED,
    },
    "lockstep": {},
    "serpentine": {},
    "num_warps": {"lowering.bind": SETTLED, "search.knobs": SEARCHED},
    "num_stages": {"lowering.bind": SETTLED, "search.knobs": SEARCHED},
    "flatten": {"lowering.clauses.roles": EXCLUDED},
    "split_k_tail": {
        "lowering.clauses.halve_tail": EXCLUDED,
    },
    "halve_tail": {"lowering.clauses.roles": EXCLUDED},
    "backfill": {"lowering.clauses.halve_tail": EXCLUDED},
    "defer_notify": {
        "lowering.bind": "stages that splitting makes of a stage inherit it",
    },
    "tma_copy": {
        "calibration.fit": "the shared memory that its boxes have",
        "search.knobs": SEARCHED,
        "simulator.cost": "the shared memory that its boxes have",
    },
    "roles": {
        "lowering.clauses.defer_notify": EXCLUDED,
        "lowering.clauses.split_k_tail": "it makes other parts of the tiles of warps with roles",
        "lowering.clauses.low_latency": "its pass comes before that of roles, whose loads by TMA take no words",
        "ops.predict": "schedules with roles are for processors that have them",
    },
    "program_per_tile": {"lowering.clauses.dynamic": EXCLUDED},
    "dynamic": {},
    "channel": {
        "lowering.channel_grids": SETTLED,
        "lowering.clauses.slots": "a dimension of a tensor has the same names in both",
        "lowering.slots": "a dimension of a tensor has the same names in both",
        "search.knobs": SEARCHED,
        "simulator.small_copies": "a remark names what a schedule may say of it instead",
    },
    "buffers": {"lowering.bind": SETTLED},
    "slots": {"lowering.slots": "the rewrite of the program, which is before binding and has a module of its own"},
    "low_latency": {},
    "kernel_order": {},
}

BY_WORD = {"at", "say", "_say", "without", "word_called"}
"""Functions and methods that take a clause by its word."""
SCHEDULES = {"schedule", "s"}
"""Names of schedules, with which a chain of methods begins."""


def constants() -> dict[str, Clause[object]]:
    """Name of a constant -> the built-in clause."""
    return {name: one for name, one in vars(package).items() if isinstance(one, Clause)}


@cache
def homes() -> dict[str, str]:
    """Clause -> its module, which defines its constant."""
    found: dict[str, str] = {}
    named = constants()
    for path in sources.modules():
        if path.parent.name == "clauses":
            for node in sources.tree(path).body:
                target = node.target if isinstance(node, ast.AnnAssign) else None
                target = node.targets[0] if isinstance(node, ast.Assign) else target
                if isinstance(target, ast.Name) and target.id in named:
                    found[named[target.id].name] = sources.module_name(path)
    return found


def methods(chain: ast.Module) -> dict[str, set[str]]:
    """Method of a schedule -> the clauses whose values it gives."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(chain):
        if isinstance(node, ast.FunctionDef):
            calls = (
                one for one in ast.walk(node) if isinstance(one, ast.Call) and ast.unparse(one.func)[-5:] == "._say"
            )
            said = {word.value for one in calls for word in one.args if isinstance(word, ast.Constant)}
            if words := {word for word in said if isinstance(word, str)}:
                found[node.name] = words
    return found


def named_in(tree: ast.Module, chain: Mapping[str, set[str]]) -> Iterator[str]:
    """Yield the clauses that a module names: by their modules, constants and words, and by methods of schedules."""
    named, modules = constants(), homes()
    for node in sources.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=names) if module and module.startswith(FOLDER):
                own = {named[one.name].name for one in names if one.name in named}
                yield from own or (clause for clause, home in modules.items() if home == module)
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=args, keywords=keywords):
                words = [one for one in args if name in BY_WORD] + [one.value for one in keywords if one.arg == "joins"]
                texts = [one.value for one in words if isinstance(one, ast.Constant) and isinstance(one.value, str)]
                yield from (text.partition(".")[0] for text in texts if text.partition(".")[0] in modules)
                if name in chain and _receiver(node.func) in SCHEDULES:
                    yield from chain[name]
            case _:
                pass


def _receiver(node: ast.expr) -> str:
    """Return the name that a chain of calls of methods begins with."""
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def naming() -> dict[str, set[str]]:
    """Clause -> the modules that name it, other than its own one and those that each clause is in."""
    found: dict[str, set[str]] = {one.name: set() for one in CLAUSES}
    modules = homes()
    (path,) = (path for path in sources.modules() if sources.module_name(path) == CHAIN)
    chain = methods(sources.tree(path))
    for path in sources.modules():
        module = sources.module_name(path)
        for clause in named_in(sources.tree(path), chain):
            if module not in EVERY and module != modules[clause]:
                found[clause].add(module.removeprefix("tilelink."))
    return found


def test_a_clause_is_named_by_its_module_the_list_and_the_chain_alone() -> None:
    found = {clause: sorted(modules) for clause, modules in naming().items()}
    assert found == {clause: sorted(reasons) for clause, reasons in EXCEPTIONS.items()}


def test_every_clause_has_a_method_of_the_chain() -> None:
    """The chain is written, not made: editors and type checkers read it."""
    (path,) = (path for path in sources.modules() if sources.module_name(path) == CHAIN)
    said = {word for words in methods(sources.tree(path)).values() for word in words}
    assert said == {one.name for one in CLAUSES}


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("from tilelink.lowering.clauses.flatten import FLATTEN", {"flatten"}),
        ("from tilelink.lowering.clauses.dynamic import DYNAMIC", {"dynamic"}),
        ("from tilelink.lowering.clauses import FLATTEN, clauses", {"flatten"}),
        ("place = part.at('tile.i')", {"tile"}),
        ("fits = without('roles', 'order')", {"roles", "order"}),
        ("Choices(name='flatten', joins='flatten')", {"flatten"}),
        ("schedule.flatten('gemm').knobs('gemm', num_warps=4)", {"num_warps", "num_stages", "flatten"}),
        ("tensor.flatten(0, -2)", set[str]()),
        ("from tilelink.lowering.clauses import clauses, register", set[str]()),
    ],
)
def test_the_search_finds_what_names_a_clause(text: str, clauses: set[str]) -> None:
    (path,) = (path for path in sources.modules() if sources.module_name(path) == CHAIN)
    assert set(named_in(ast.parse(text), methods(sources.tree(path)))) == clauses


def test_the_page_for_contributors_says_the_same() -> None:
    page = (Path(sources.ROOT) / "CONTRIBUTING.md").read_text()
    (steps,) = re.findall(r"## Add a clause\n\n(.*?)\n\n", page, re.S)
    assert re.findall(r"^(\d)\.", steps, re.M) == ["1", "2", "3"]
    assert "passes.py" not in steps and "clauses/__init__.py" in steps and "scheduling/schedule.py" in steps
