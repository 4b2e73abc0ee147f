"""The nodes of a group's ranks, by their hosts or by a setting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tilelink.errors import RankError
from tilelink.ops import nodes


@pytest.mark.parametrize(
    ("hosts", "chosen", "sizes"),
    [
        ("aabb", None, [2, 2]),
        ("aaaa", None, [4]),
        ("abab", None, [1, 1, 1, 1]),
        ("aab", None, [2, 1]),
        ("aaaa", 2, [2, 2]),
        ("aabb", 4, [4]),
        ("aaa", 2, [2, 1]),
    ],
)
def test_ranks_of_a_host_next_to_each_other_are_a_node(hosts: str, chosen: int | None, sizes: list[int]) -> None:
    assert nodes.sizes_of(hosts, chosen) == sizes


@pytest.mark.parametrize(("sizes", "count"), [([2, 2, 2], 3), ([4], 1), ([1, 1], 2)])
def test_nodes_of_equally_many_ranks_are_counted(sizes: list[int], count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_sizes", SimpleNamespace(of=lambda _: sizes))
    group: Any = None
    assert nodes.nodes_of(group) == count
    assert nodes.is_one_node(group) == (count == 1)


def test_ranks_that_lie_unevenly_are_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "_sizes", SimpleNamespace(of=lambda _: [2, 1]))
    group: Any = None
    with pytest.raises(RankError, match="in nodes of 2, 1") as caught:
        nodes.nodes_of(group)
    assert "unfused" in str(caught.value.hint)
    assert not nodes.is_one_node(group)


def test_a_first_call_in_a_capture_is_refused_before_ranks_tell_their_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(nodes.dist, "all_gather_object", lambda *_, **__: pytest.fail("the ranks communicate"))
    with pytest.raises(RankError, match=r"tell each other their hosts(?s:.*)once before the capture"):
        nodes._sizes_by(SimpleNamespace(size=lambda: 2))  # type: ignore[arg-type]
