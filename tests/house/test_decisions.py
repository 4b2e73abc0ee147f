"""Decisions that the proof rests on are made before it: what reads a lowered program asks for no capability."""

import ast

from tests.house import sources

AFTER_THE_PROOF = ("backend", "device", "runtime", "simulator", "planning")
PLAIN = {"dialect", "traced"}
"""Names of a dialect, by which its macros are found and its records are read."""


def asked(tree: ast.AST) -> set[str]:
    """Return the capabilities that a module reads."""
    return {
        node.attr
        for node in ast.walk(tree)
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
