# pyright: basic
"""Replays of several graphs and other launches by turns on two streams, drawn by seed, and a scenario that runs them.

tests/runtime/test_in_turn.py runs what is drawn here on a model, and shows which mistakes it finds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tests.compiler.library import cases, name
from tests.gpu.cases import EVEN, TOLERANCE, Case, built, dims_of, point, prepare, trial
from tests.gpu.lockstep import Checks, together
from tilelink.reference.trial import compared

KERNELS, GRAPHS, NODES, ACTIONS = 3, 3, 4, 12
INTERLEAVINGS = 1000
VARIANTS = 5
MOST_CYCLES = 20_000_000  # about 10 ms

MIXED = (
    ("all_reduce_one_shot_pushed-few", "ag_gemm-h200_few", "ag_gemm-h200"),
    ("all_reduce_one_shot_pushed-words", "gemm_rs_local_last-h200", "all_reduce_two_shot_kept-few"),
    ("all_gather_kept-few", "gemm_ar_local_last-h200", "ag_gemm-copy_sms"),
    ("all_reduce_two_shot_pushed-few", "all_gather-default", "gemm_ar-after"),
)
"""Programs of each manner of launch: replays are in turn or skip launches, and kernels or helper kernels end them."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """A launch of a kernel in a graph. side: True on a stream that forked from the captured one, without further order
    if the launch before is of the same kernel."""

    kernel: int
    side: bool = False


@dataclass(frozen=True, kw_only=True)
class Action:
    """A replay of graph `which`, or an eager launch of kernel `which`, on one of two streams."""

    replay: bool
    which: int
    stream: int


def drawn_graphs(seed: int) -> tuple[tuple[Node, ...], ...]:
    """The nodes of each graph, in the order of the capture, the same on all ranks."""
    chance = random.Random(seed)
    graphs: list[tuple[Node, ...]] = []
    for _ in range(GRAPHS):
        nodes = [Node(kernel=chance.randrange(KERNELS))]
        while len(nodes) < 2 or (len(nodes) < NODES and chance.random() < 0.7):
            again = chance.random() < 0.4
            kernel = nodes[-1].kernel if again else chance.randrange(KERNELS)
            nodes.append(Node(kernel=kernel, side=kernel == nodes[-1].kernel and chance.random() < 0.6))
        graphs.append(tuple(nodes))
    return tuple(graphs)


def drawn_actions(seed: int, length: int = ACTIONS) -> tuple[Action, ...]:
    """An interleaving, the same on all ranks. An action on another stream than the last one waits for it."""
    chance, found, stream = random.Random(seed), list[Action](), 0
    for _ in range(length):
        stream = 1 - stream if chance.random() < 0.4 else stream
        replay = chance.random() < 0.6
        found.append(Action(replay=replay, which=chance.randrange(GRAPHS if replay else KERNELS), stream=stream))
    return tuple(found)


# On GPUs -----------------------------------------------------------------------------------------------------


class Launches:
    """A kernel with inputs and outputs of several variants on the GPU. No two launches in a row have the same."""

    def __init__(self, case: Case) -> None:
        dims = dims_of(case[0], EVEN)
        self.kernel: Any = built(point(case, dims))
        known = trial(case, dims, VARIANTS)
        self.given = [known.given(variant) for variant in range(VARIANTS)]
        outputs = self.kernel(self.given[0])  # the first call of its kind
        self.names = sorted(outputs)
        self.expected = [
            {name: compared([outputs], [one], name)[1][0].cuda() for name in self.names} for one in known.expected
        ]
        self.launched = 0

    def next(self) -> int:
        self.launched += 1
        return self.launched % VARIANTS

    def wrong(self, outputs: dict[str, torch.Tensor], variant: int) -> torch.Tensor:
        """True, on the GPU, if an output is not that of the variant; one that is NaN is not."""
        there = [self.expected[variant][name] for name in self.names]
        off = [(outputs[n].float() - e).norm() / e.norm() for n, e in zip(self.names, there, strict=True)]
        return ~(torch.stack(off) < TOLERANCE).all()


class Graph:
    """A captured graph. Its nodes have inputs of their own, and outputs of its pool; those on the side, of no pool."""

    def __init__(self, nodes: Sequence[Node], kernels: Sequence[Launches], pool: Any) -> None:
        self._nodes = [(node, kernels[node.kernel]) for node in nodes]
        self._static = [{key: value.clone() for key, value in own.given[0].items()} for _, own in self._nodes]
        self._outputs: list[dict[str, torch.Tensor]] = []
        self.graph = torch.cuda.CUDAGraph()
        side, out = torch.cuda.Stream(), [own.kernel.empty_outputs() for _, own in self._nodes]
        torch.cuda.synchronize()
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            before: Node | None = None
            for (node, own), static, into in zip(self._nodes, self._static, out, strict=True):
                here, there = (side, main) if node.side else (main, side)
                if before is not None and before.kernel != node.kernel:
                    here.wait_stream(there)
                with torch.cuda.stream(here):
                    self._outputs.append(own.kernel(static, out=into if node.side else None))
                before = node
            main.wait_stream(side)

    def replay(self) -> torch.Tensor:
        """Replay with other inputs than before, on the current stream. True, on the GPU, if an output is wrong."""
        variants = [own.next() for _, own in self._nodes]
        for (_, own), static, outputs, variant in zip(self._nodes, self._static, self._outputs, variants, strict=True):
            for key, value in static.items():
                value.copy_(own.given[variant][key])
            for value in outputs.values():
                value.fill_(float("nan"))
        self.graph.replay()
        found = zip(self._nodes, self._outputs, variants, strict=True)
        return torch.stack([own.wrong(outputs, variant) for (_, own), outputs, variant in found]).any()


def interleavings() -> None:
    """1,000 interleavings of three graphs of two pools, eager launches and two streams; ranks up to 10 ms apart."""
    by_name = {str(name(case)): case for case in cases()}
    chosen = [[by_name[one] for one in names] for names in MIXED]
    prepare([point(case, dims_of(case[0], EVEN)) for three in chosen for case in three])
    own = random.Random(1000 + dist.get_rank())
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    rounds = INTERLEAVINGS // len(MIXED)

    def body(number: int, checks: Checks) -> None:
        kernels = [Launches(case) for case in chosen[number]]
        graphs: list[Graph] = []
        for which, nodes in enumerate(drawn_graphs(number)):
            graphs.append(Graph(nodes, kernels, graphs[0].graph.pool() if which == 1 else None))
        torch.cuda.synchronize()
        for seed in range(number * rounds, (number + 1) * rounds):
            actions, wrong, end = drawn_actions(seed), list[torch.Tensor](), torch.cuda.Event()
            for action in actions:
                stream = streams[action.stream]
                with torch.cuda.stream(stream):
                    stream.wait_event(end)
                    torch.cuda._sleep(own.choices((1, 200_000, MOST_CYCLES), (90, 9, 1))[0])
                    if action.replay:
                        wrong.append(graphs[action.which].replay())
                    else:
                        one = kernels[action.which]
                        variant = one.next()
                        wrong.append(one.wrong(one.kernel(one.given[variant]), variant))
                    end.record(stream)
            torch.cuda.synchronize()
            for action, one in zip(actions, wrong, strict=True):
                checks.expect(not bool(one), f"seed {seed}: {action} gives a wrong result")
        for one in kernels:
            dist.barrier(device_ids=[torch.cuda.current_device()])
            one.kernel.close()

    together(range(len(MIXED)), body, lambda number: ", ".join(MIXED[number]))
