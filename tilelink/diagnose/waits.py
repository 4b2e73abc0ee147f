"""The graph of waits of a launch that hangs: what waits, for what that is, and the causes at its ends."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilelink.diagnose.progress import Node, Progress
from tilelink.dump import END
from tilelink.lowering.events import NOTIFY

CERTAIN = ("died", "promise")
"""Kinds of causes that ranks know of by themselves; what else is late may be so because of them."""
Key = tuple[Any, ...]
"""The identity of a cause: its kind and its rank, or its counter."""
STRENGTH = {"beyond": 2, "silent": 2, "not begun": 1, "late": 1}
"""Kind -> how likely it is the root, of causes for which equally many wait."""


@dataclass(kw_only=True)
class Cause:
    """A cause that holds waits up. kind: as of `Root`. rows: the missing notifies that it has, or some of which are.

    counter: of a lost notify. launch: that a rank has not begun. worker: of a wait for more than there is.
    """

    kind: str
    rank: int
    rows: set[int] = field(default_factory=set[int])
    counter: tuple[int, int] | None = None
    launch: int = 0
    worker: int = -1


class Waits:
    """The graph of waits, and the causes at its ends.

    whole: False if other ranks may have seen more, so that none of them is taken for dead.
    """

    def __init__(self, run: Progress, *, whole: bool) -> None:
        self.run, self.plan, self.whole = run, run.plan, whole
        self.causes: dict[Key, Cause] = {}
        self.edges: dict[Node, tuple[list[Node], list[Key]]] = {}
        self.by_counter: dict[int, list[int]] = defaultdict(list)
        for row in run.notifies.tolist():
            self.by_counter[int(self.plan.counters[row])].append(row)
        for node in run.blocked:
            self.edges[node] = self._edges(node)
        for rank, seen in run.seen.items():
            certain = seen.broken or any(program.died for program in seen.programs)
            if certain and all(cause.rank != rank for cause in self.causes.values()):
                self._cause(("known", rank), kind=self._kind("late", rank), rank=rank)
        if not self.causes and not self.edges:
            self._nobody_waits()
        self.because = self._because()

    def _edges(self, node: Node) -> tuple[list[Node], list[Key]]:
        """Return what a node waits for: other nodes, and causes."""
        run, plan, why = self.run, self.plan, self.run.blocked[node]
        nodes, causes = dict[Node, None](), dict[Key, None]()
        if node[0] == "program":
            number, rank, _ = plan.workers[node[1]]
            kernel = run.bound.kernels[number]
            if node[1] in run.beyond:
                return [], [self._cause(("beyond", node[1]), kind="beyond", rank=rank, worker=node[1])]
            if why in ("kernel", "taken"):
                for other in run.blocked:
                    if other == ("begin", rank):
                        nodes[other] = None
                    elif other[0] == "program" and other != node:
                        n, r, _ = plan.workers[other[1]]
                        one = run.bound.kernels[n]
                        before = one.stream == kernel.stream and one.position < kernel.position
                        if r == rank and (n == number and run.blocked[other] != why if why == "taken" else before):
                            nodes[other] = None
                for one in run.busy(rank):
                    if one.stream == kernel.stream and one.position < kernel.position:
                        causes[self._late_rank(rank)] = None
        if why == "launch":
            for peer, launch in run.awaited(node):
                self._launch(peer, launch, nodes, causes)
        if why == "signal":
            for counter, launch in self.counters(node):
                self._signal(counter, launch, nodes, causes)
        return list(nodes), list(causes)

    def counters(self, node: Node) -> list[tuple[int, int]]:
        """Return the (counter, launch) that a node waits for and that lack notifies; of words, all."""
        run = self.run
        if node[0] == "end":
            return [(counter, run.launch[node[1]]) for counter, _, _ in run.exits(node[1])]
        row = int(run.scripts[node[1]][run.cursor[node[1]]])
        launch = run.launch[int(run.rank[row])]
        if row in run.lacking:
            return [(counter, launch) for counter, _, _ in run.lacking[row]]
        return [(int(self.plan.counters[row]), launch)]

    def _launch(self, peer: int, launch: int, nodes: dict[Node, None], causes: dict[Key, None]) -> None:
        """Add what keeps a rank from entering or ending a launch."""
        run = self.run
        own = [node for node in run.blocked if self.rank_of(node) == peer]
        nodes |= dict.fromkeys(own)
        late = [row for rows in run.late.values() for row in rows if int(run.rank[row]) == peer]
        if late:
            for row in late:
                causes[self._late(row)] = None
        elif not own:
            open_end = any(one.ends for one in run.seen.values()) and not self._has_ended(peer)
            kind = "late" if open_end or run.launch[peer] >= launch else "not begun"
            key = self._late_rank(peer) if kind == "late" else self._cause(
                (kind, peer), kind=self._kind(kind, peer), rank=peer, launch=launch)  # fmt: skip
            causes[key] = None

    def _has_ended(self, rank: int) -> bool:
        programs = self.run.seen[rank].programs if rank in self.run.seen else ()
        if programs and all(p.launch > self.run.launch[rank] or p.step == END for p in programs):
            return True
        return (self.run.counter(self.run.bound.finished_base, rank) or 0) >= self.run.launch[rank]

    def _signal(self, counter: int, launch: int, nodes: dict[Node, None], causes: dict[Key, None]) -> None:
        """Add what keeps the notifies of a counter from coming."""
        run = self.run
        peer, channel = divmod(counter, self.plan.channels)
        key = peer, int(run.place(np.array([channel]), np.array(launch))[0])
        words = not len(self.by_counter[counter])
        rows = self._words(counter) if words else self.by_counter[counter]
        for row in rows:
            rank, worker = int(run.rank[row]), int(run.worker[row])
            if run.launch[rank] < launch:
                self._launch(rank, launch, nodes, causes)
            elif (
                run.launch[rank] == launch and ("program", worker) in run.blocked and run.at[row] >= run.cursor[worker]
            ):
                nodes["program", worker] = None
            elif words and run.launch[rank] == launch and run.at[row] >= run.lower[worker]:
                causes[self._late(row)] = None
        for row in run.late.get(key, ()):
            causes[self._late(row)] = None
        gone = [row for row in rows if run.launch[int(run.rank[row])] > launch]
        lost = [*run.lost.get(key, ()), *gone]
        more = peer in run.short and run.short[peer][key[1]] > len(run.late.get(key, ()))
        if lost and (more or (gone and run.reset[counter])):  # what was reset says nothing of earlier launches
            first = self._cause(("lost", *key), kind="lost", rank=int(run.rank[lost[0]]), counter=key)
            self.causes[first].rows.update(lost)
            causes[first] = None

    def _words(self, counter: int) -> list[int]:
        s = self.plan.signals
        return np.flatnonzero((s.kind == NOTIFY) & (self.plan.counters == counter)).tolist()

    def _late(self, row: int) -> Key:
        key = self._late_rank(int(self.run.rank[row]))
        self.causes[key].rows.add(row)
        return key

    def _late_rank(self, rank: int) -> Key:
        return self._cause(("late", rank), kind=self._kind("late", rank), rank=rank)

    def _kind(self, kind: str, rank: int) -> str:
        """Return the kind of a cause, if more is known of its rank: "silent", "died" or "promise"."""
        if rank not in self.run.seen:
            return "silent" if self.whole else kind
        seen = self.run.seen[rank]
        if any(program.died for program in seen.programs):
            return "died"
        return "promise" if seen.broken else kind

    def _cause(self, key: Key, **fields: Any) -> Key:
        self.causes.setdefault(key, Cause(**fields))
        return key

    def _is_silent(self, rank: int) -> bool:
        return self.whole and rank not in self.run.seen

    def _nobody_waits(self) -> None:
        """Find the ranks that a host waits for, if no program waits: without a dump, behind, or not at their end."""
        run, last = self.run, max(self.run.launch.values())
        behind = [rank for rank in run.ranks if run.launch[rank] < last or self._is_silent(rank)]
        ends = any(one.ends for one in run.seen.values())
        for rank in behind or run.ranks:
            if self._is_silent(rank) or (not self._has_ended(rank) and (ends or run.busy(rank))):
                self._late_rank(rank)
            elif run.launch[rank] < last:
                self._cause(("not begun", rank), kind=self._kind("not begun", rank), rank=rank, launch=last)

    def ranked(self) -> list[Key]:
        """Return the causes, the likeliest root first: what ranks know of by themselves, then what most wait for."""

        def order(key: Key) -> tuple[bool, int, int, int]:
            cause = self.causes[key]
            return cause.kind not in CERTAIN, -len(self.because[key]), -STRENGTH.get(cause.kind, 0), cause.rank

        return sorted(self.causes, key=order)

    def _because(self) -> dict[Key, set[Node]]:
        """Return cause -> the nodes that wait because of it."""
        back = defaultdict[Node, list[Node]](list)
        for node, (others, _) in self.edges.items():
            for other in others:
                back[other].append(node)
        result: dict[Key, set[Node]] = {}
        for key in self.causes:
            stack = [node for node, (_, causes) in self.edges.items() if key in causes]
            seen = set(stack)
            while stack:
                for node in back[stack.pop()]:
                    if node not in seen:
                        seen.add(node)
                        stack.append(node)
            result[key] = seen
        return result

    def chain(self, key: Key) -> list[Node]:
        """Return nodes, each of which waits for the next one, the last one for a cause; not those that only queue."""
        after: dict[Node, Node | None] = {node: None for node in self.because[key] if key in self.edges[node][1]}
        stack = list(after)
        for node in stack:  # breadth first: the shortest chains
            for other, (targets, _) in self.edges.items():
                if node in targets and other not in after:
                    after[other] = node
                    stack.append(other)
        victims = {("program", worker) for worker, (_, wait) in self.run.reported.items()
                   if any(one.late == wait for one in self.run.seen.values())}  # fmt: skip
        node = next((one for one in after if one in victims), stack[-1] if stack else None)
        found: list[Node] = []
        while node is not None:
            if self.run.blocked[node] in ("signal", "launch") or not found:
                found.append(node)
            node = after[node]
        return found

    def rank_of(self, node: Node) -> int:
        return self.plan.workers[node[1]][1] if node[0] == "program" else node[1]

    def circle(self) -> list[Node]:
        """Return nodes that wait for each other, where nothing else is the cause."""
        node, seen = next(iter(self.edges)), list[Node]()
        while node not in seen:
            seen.append(node)
            if not self.edges[node][0]:
                return seen
            node = self.edges[node][0][0]
        return seen[seen.index(node) :]
