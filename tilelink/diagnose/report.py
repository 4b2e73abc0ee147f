"""The diagnosis of a hang in words: roots, the chain of waits that leads to the first, and the state of each rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tilelink.diagnose.progress import Node
from tilelink.diagnose.waits import CERTAIN, Cause, Waits

LONGEST = 12
"""Waits of a chain that are said, at most."""
SAID = 3
"""Roots that are said, at most."""


@dataclass(frozen=True, kw_only=True)
class Root:
    """A cause that holds a launch up.

    kind: "differs" (other programs), "promise", "died", "silent" (no dump), "not begun", "late", "lost" (a notify),
    "beyond" (a wait for more than there is), "circle".
    rank, kernel, program: where; None if it is more than one. others: ranks, if the counters do not tell which it is.
    before: kernels before it on its stream that may hold it up as well, for nothing shows that they have ended.
    explains: number of waits that come from it.
    """

    kind: str
    rank: int | None
    text: str
    kernel: str | None = None
    program: int | None = None
    others: tuple[int, ...] = ()
    before: tuple[str, ...] = ()
    explains: int = 0


@dataclass(frozen=True, kw_only=True)
class Report:
    """The diagnosis: roots, the likeliest first, the chain of waits that leads to it, and a line for each rank."""

    roots: tuple[Root, ...]
    chain: tuple[str, ...]
    ranks: tuple[str, ...]

    @property
    def root(self) -> Root | None:
        return self.roots[0] if self.roots else None

    def __str__(self) -> str:
        first = [self.root.text if self.root else "nothing is missing: every wait has what it waits for"]
        certain = self.root is not None and self.root.kind in CERTAIN
        further = [f"also: {root.text}" for root in self.roots[1:SAID] if root.explains and not certain]
        return "\n".join([*first, *further, *(f"  {line}" for line in self.chain), *self.ranks])

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "roots": [{name: getattr(root, name) for name in root.__dataclass_fields__} for root in self.roots],
            "chain": list(self.chain),
            "ranks": list(self.ranks),
        }


def report_of(waits: Waits) -> Report:
    """Return the diagnosis."""
    words, run = _Words(waits), waits.run
    found = waits.ranked()
    roots = [words.root(waits.causes[key], len(waits.because[key])) for key in found]
    chain = [words.says(node) for node in waits.chain(found[0])] if found else []
    if not roots and waits.edges:
        circle = waits.circle()
        text = f"{words.who(circle[0])} waits in a circle, in which no program can go on: the program is not proved"
        roots = [Root(kind="circle", rank=waits.rank_of(circle[0]), text=text, explains=len(waits.edges))]
        chain = [words.says(node) for node in circle]
    elif len(chain) > LONGEST:
        chain = [*chain[:4], f"... {len(chain) - 8} more ...", *chain[-4:]]
    return Report(roots=tuple(roots), chain=tuple(chain), ranks=tuple(map(words.line, run.ranks)))


class _Words:
    """Nodes and causes of a graph of waits, in words."""

    def __init__(self, waits: Waits) -> None:
        self.waits, self.run, self.plan = waits, waits.run, waits.plan

    def tile(self, task: int) -> str:
        """Return a tile in words."""
        name, _, _ = self.plan.task_name(task)
        indices = ", ".join(f"{index}={value}" for index, value in self.plan.tile_indices(task).items())
        return f"tile ({indices}) of `{name}`"

    def region(self, counter: int) -> str:
        """Return the part of a tensor that a counter is for, as `xs[1, 1024:2048] of rank 3`."""
        rank, channel = divmod(counter, self.plan.channels)
        tensor, kind, cell = self.plan.channel_name(channel)
        grid, shape = self.run.bound.channels[tensor, kind], self.run.bound.tensors[tensor].shape
        parts = [
            str(at) if size == 1 else f"{at * size}:{min((at + 1) * size, extent)}"
            for at, size, extent in zip(cell, grid.sizes, shape, strict=True)
        ]
        return f"{tensor}[{', '.join(parts)}] of rank {rank}"

    def who(self, node: Node) -> str:
        rank = self.waits.rank_of(node)
        if node[0] != "program":
            return f"rank {rank}, at the {node[0]} of launch {self.run.launch[rank]},"
        script = self.run.scripts[node[1]]
        cursor = int(self.run.cursor[node[1]])
        if cursor >= len(script) or self.run.blocked[node] != "signal":
            return f"rank {rank}, program {self.plan.workers[node[1]][2]} of {self._kernel(node[1])},"
        return f"rank {rank}, {self.tile(int(self.plan.signals.task[script[cursor]]))}"

    def _kernel(self, worker: int) -> str:
        kernel = self.run.bound.kernels[self.plan.workers[worker][0]]
        return f"its copy queue (`{kernel.name}`)" if kernel.on_copy_engine else f"`{kernel.name}`"

    def says(self, node: Node) -> str:
        """Return what a node waits for, as a sentence."""
        why, who = self.run.blocked[node], self.who(node)
        if why == "launch":
            peer, launch = self.run.awaited(node)[0]
            return f"{who} waits for rank {peer} to come to launch {launch}"
        if why != "signal":
            return f"{who} has not begun"
        if node[1] in self.run.beyond and node[0] == "program":
            wait = self.run.beyond[node[1]]
            return f"{who} waits for {wait.expected} notifies, of {self.run.target(self.run.reported[node[1]][0])}"
        counter = self.waits.counters(node)[0][0]
        lacking = self.run.exits(node[1]) if node[0] == "end" else self.run.lacking.get(
            int(self.run.scripts[node[1]][self.run.cursor[node[1]]]), [])  # fmt: skip
        there = f", {lacking[0][1]} of {lacking[0][2]} notifies are there" if lacking else ", words that have not come"
        return f"{who} waits for {self.region(counter)}{there}"

    def root(self, cause: Cause, explains: int) -> Root:
        run, rank = self.run, cause.rank
        launch = run.launch[rank]
        head = f"rank {rank}"
        workers = sorted({int(run.worker[row]) for row in cause.rows})
        own = [run.bound.kernels[run.plan.workers[w][0]] for w in workers]
        if cause.kind != "lost" and (busy := run.busy(rank)):
            own = busy
            workers = [w for w in workers if run.bound.kernels[run.plan.workers[w][0]] in busy]
        kernels = sorted({kernel.name for kernel in own})
        before = list[str]()
        if len(kernels) == 1 and not run.busy(rank):
            stream, last = own[0].stream, own[0].position
            first = run.begun.get((stream, rank), 0)
            before = [k.name for k in run.bound.kernels if k.stream == stream and first <= k.position < last]
        alone = self.plan.workers[workers[0]][2] if len(workers) == 1 else None
        kernel = kernels[0] if len(kernels) == 1 else None
        others: tuple[int, ...] = ()
        match cause.kind:
            case "beyond":
                node = ("program", cause.worker)
                kernel, alone = (
                    run.bound.kernels[self.plan.workers[cause.worker][0]].name,
                    self.plan.workers[cause.worker][2],
                )
                text = f"{self.says(node)}, and no more come: its kernel is not the one that was planned"
            case "not begun":
                issued = run.seen[rank].issued if rank in run.seen else None
                host = f", and its host has issued {issued} launches" if issued is not None else ""
                text = f"{head} has ended its launch {launch}{host}, and never began {max(cause.launch, launch + 1)}"
            case "lost":
                assert cause.counter is not None
                ranks = sorted({int(run.rank[row]) for row in cause.rows})
                others = tuple(ranks) if len(ranks) > 1 else ()
                row = min(cause.rows)
                what = self.region(int(self.plan.counters[row]))
                who = f"{head}, {self.tile(int(self.plan.signals.task[row]))}" if len(cause.rows) == 1 else (
                    f"one of {len(cause.rows)} tiles of {said_ranks(ranks)} ({_names(kernels)})")  # fmt: skip
                text = f"a notify of {what} is lost in launch {launch}: {who} has gone on without it"
            case _:
                text = f"{head} {self._late_text(cause, workers, kernels, before)}"
        return Root(kind=cause.kind, rank=None if others else rank, text=text, kernel=kernel, program=alone,
                    others=others, before=tuple(before), explains=explains)  # fmt: skip

    def _late_text(self, cause: Cause, workers: list[int], kernels: list[str], before: list[str]) -> str:
        run, rank = self.run, cause.rank
        seen, launch = run.seen.get(rank), run.launch[rank]
        where = ""
        if workers:
            rows = [row for row in cause.rows if int(run.worker[row]) in workers]
            first = min(rows, key=lambda row: (int(run.at[row]), row))
            task = int(self.plan.signals.task[first])
            named = self._kernel(workers[0]) if len(kernels) == 1 else _names(kernels)
            number = f"program {self.plan.workers[workers[0]][2]} of {named}" if len(workers) == 1 else (
                f"{len(workers)} programs of {named}")  # fmt: skip
            begun = run.lower[int(run.worker[first])] > 0
            gone = "whose next notify has not come" if begun else "none of whose notifies has come"
            what = self.region(int(self.plan.counters[first]))
            where = f"{number}, {gone} in launch {launch}: {self.tile(task)} is to notify {what}"
            where += f" (or {_names(before)} before it on its stream)" if before else ""
        elif kernels:
            where = f"{_names(kernels)} in launch {launch}"
        if cause.kind == "silent":
            ended = run.counter(run.bound.finished_base, rank)
            known = f", and its peers saw it end launch {ended}" if ended else ""
            return f"has written no dump: it is dead or cannot be reached{known}{f' ({where})' if where else ''}"
        if cause.kind == "died":
            assert seen is not None
            died = next(p for p in seen.programs if p.died)
            return f"died: program {died.program} of its stream {died.stream} {died.died} in launch {died.launch}"
        if cause.kind == "promise":
            assert seen is not None
            return f"breaks a promise of its index tensors in launch {launch}: {seen.broken}"
        if rank not in run.pads:
            what = f": {where}" if where else ""
            return f"has not sent what is missing, and what it waits for is in its own dump{what}"
        if not where:
            return f"has not come to the end of launch {launch}, and waits for nothing: it computes or is dead"
        lost = "" if run.busy(rank) else ", or its notify is lost"
        return f"waits for nothing, and computes or is dead{lost}: {where}"

    def line(self, rank: int) -> str:
        """Return the state of a rank."""
        run = self.run
        if rank not in run.seen:
            return f"rank {rank}: no dump"
        seen = run.seen[rank]
        issued = f" of {seen.issued} issued" if seen.issued is not None else ""
        waiting = [n for n in run.blocked if self.waits.rank_of(n) == rank and run.blocked[n] in ("signal", "launch")]
        late = {int(run.worker[row]) for rows in run.late.values() for row in rows if int(run.rank[row]) == rank}
        said = [f"{len(waiting)} programs wait: {self.says(waiting[0]).partition(', ')[2]}"] if waiting else []
        said += [f"{len(late)} programs wait for nothing and have notifies left"] if late else []
        said += [f"program {p.program} of {p.stream} {p.died}" for p in seen.programs if p.died]
        return f"rank {rank}: launch {seen.launch}{issued}: {'; '.join(said) or 'no program waits'}"


def said_ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"


def _names(kernels: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in kernels)
