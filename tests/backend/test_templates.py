"""Nodes and their macros: every statement that a kernel may hold is one that every dialect can write."""

from __future__ import annotations

import pytest

from tilelink.backend import nodes
from tilelink.backend.context import CallArguments
from tilelink.backend.dialects import DIALECTS
from tilelink.backend.nodes import Block, Branch, Comment, Loop, Node
from tilelink.backend.render import body, compact
from tilelink.backend.writer import Writer

KINDS = [
    kind
    for kind in vars(nodes).values()
    if isinstance(kind, type) and issubclass(kind, Node) and kind not in (Node, Block)
]
OF_NETWORK = (nodes.Put, nodes.Get, nodes.NetworkNotify, nodes.NetworkFence, nodes.NetworkQuiet)
"""Statements of programs on several nodes, which dialects without addresses refuse as a whole."""
OF_PEERS = (
    nodes.Pad, nodes.WaitAll, nodes.WaitEach, nodes.NotifyEach, nodes.CopyBoxes, nodes.Send, nodes.Receive, *OF_NETWORK
)  # fmt: skip
"""Statements of dialects whose kernels know the addresses of peers."""


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_dialect_can_write_every_statement(name: str, kind: type[Node]) -> None:
    dialect = DIALECTS[name]
    if kind in OF_PEERS and not dialect.passes_addresses:
        with pytest.raises(AttributeError):
            getattr(dialect.macros, kind.macro.fget(kind.__new__(kind)))  # pyright: ignore
        return
    assert callable(getattr(dialect.macros, kind.macro.fget(kind.__new__(kind))))  # pyright: ignore


def test_statements_stand_under_the_block_that_they_were_added_to() -> None:
    writer = Writer()
    with writer.block(Loop(index="i", over="range(2)")):
        with writer.block(Branch(condition="i == 0")):
            writer.add(Comment(text="# nothing"))
        writer.let("a", "i")
    writer.let("b", "a")
    lines = "for i in range(2):\n    if i == 0:\n        # nothing\n        pass\n    a = i\nb = a\n"
    assert body(writer.nodes, DIALECTS["triton"].macros, CallArguments()) == lines


def test_a_block_whose_statements_write_nothing_is_one_for_python() -> None:
    writer = Writer()
    with writer.block(Loop(index="i", over="range(2)")):
        writer.add(nodes.TileEnd(stage=0))
    assert body(writer.nodes, DIALECTS["triton"].macros, CallArguments()) == "for i in range(2):\n    pass\n"


def test_parts_that_write_nothing_leave_no_empty_lines() -> None:
    assert compact("a\n    \n    b\n\n") == "a\n    b\n"


OF_PROGRAMS: list[Node] = [
    nodes.Wait(channel="c", target="1", stage=0, consumed=True),
    nodes.WaitAll(channel="c", count=2, step=1, target="1", stage=0),
    nodes.Notify(pad=None, channel="c", rank="r", stage=0, remote=True, waited=False),
    nodes.Barrier(),
]


@pytest.mark.parametrize("node", OF_PROGRAMS, ids=lambda node: type(node).__name__)
def test_barriers_and_signals_of_a_program_of_one_warp_are_those_of_the_warp(node: Node) -> None:
    """A barrier of the whole block would wait for the other programs of the block for ever."""
    dialect = DIALECTS["triton"]
    assert "scope=dl.WARP)" in body([node], dialect.macros, dialect.call_arguments(of_warps=True))
    assert "scope" not in body([node], dialect.macros, dialect.call_arguments())
