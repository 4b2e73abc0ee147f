"""Decisions that the proof rests on are made before it: what reads a lowered program asks for no capability."""

import ast
from pathlib import Path

from tests.house import sources

AFTER_THE_PROOF = ("backend", "device", "runtime", "simulator", "planning")
PLAIN = {"dialect", "traced"}
"""Names of a dialect, by which its macros are found and its records are read."""


def asked(tree: ast.AST) -> set[str]:
    """Return the capabilities that a module reads."""
    return {
        node.attr
        for node in sources.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute | ast.Name)
        and (node.value.attr if isinstance(node.value, ast.Attribute) else node.value.id) == "capabilities"
    }


def test_nothing_after_the_proof_asks_what_a_dialect_has() -> None:
    found = {
        str(path.relative_to(sources.ROOT)): names
        for path in sources.modules()
        if path.relative_to(sources.ROOT / "tilelink").parts[0] in AFTER_THE_PROOF
        and (names := asked(sources.tree(path)) - PLAIN)
    }
    assert found == {}


def test_the_passes_do_ask() -> None:
    """The search above finds what it is to find."""
    lowering = [path for path in sources.modules() if "lowering" in path.parts]
    found = set[str]().union(*(asked(sources.tree(path)) for path in lowering))
    assert {"flattened_loops", "deferred_notifies", "tma_copies", "roles", "handshakes"} <= found


def processors_asked(tree: ast.AST) -> set[str]:
    """Return what a module asks of the processor of a lowered program, `bound.target.NAME`."""
    return {
        node.attr
        for node in sources.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Attribute)
        and node.value.attr == "target"
        and getattr(node.value.value, "attr", getattr(node.value.value, "id", "")) == "bound"
    }


def test_the_emitter_asks_nothing_of_a_processor() -> None:
    """It has what passes have decided: the forms of loops, boxes, and what consumers prefetch."""
    emitter = [path for path in sources.modules() if path.parent.name == "backend"]
    asked_of = {path.name: found for path in emitter if (found := processors_asked(sources.tree(path)) - {"name"})}
    assert asked_of == {}
    passes = [path for path in sources.modules() if path.parent.name == "lowering"]
    assert {"kind", "shared_memory"} <= set[str]().union(*(processors_asked(sources.tree(path)) for path in passes))


def test_the_emitter_does_not_decide_what_is_read_before_a_signal() -> None:
    """Who writes a tensor decides that: passes and rules ask, and the lowered program says what follows."""

    def asks(path: Path) -> bool:
        return any(isinstance(node, ast.Attribute) and node.attr == "constant" for node in ast.walk(sources.tree(path)))

    assert [path.name for path in sources.modules() if path.parent.name == "backend" and asks(path)] == []
    assert any(asks(path) for path in sources.modules() if path.parent.name == "lowering")


READ_ROLES = (
    "backend.roles_kernel", "backend.roles_shared", "lowering.clauses.roles", "lowering.role_sizes", "verifier.roles",
)  # fmt: skip
"""The modules that need more of the roles of warps than the kind, the rings and the bodies of a stage: the pass and its
sizes, the rule, and two of the emitter."""


def test_few_modules_read_the_roles_of_warps() -> None:
    def reads(path: Path) -> bool:
        found = (node for node in ast.walk(sources.tree(path)) if isinstance(node, ast.Attribute))
        read = (one for one in found if one.attr in ("roles", "roles_in"))
        return any("capabilities" not in ast.dump(one.value) for one in read)

    names = {sources.module_name(path).removeprefix("tilelink."): path for path in sources.modules()}
    read = {name for name, path in names.items() if reads(path)} - {"lowering.bound"}
    assert read == set(READ_ROLES)
