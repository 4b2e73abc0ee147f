"""What a launch costs besides its kernels: helper kernels of the runtime, and copies that the host issues.

A simulation has the copies and the announcement of the entry, but neither other helper kernels nor replays of a CUDA
graph (ARCHITECTURE.md, "GPU ranks").
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from tilelink.artifact import LaunchProtocol
from tilelink.lowering.bound import Bound
from tilelink.simulator.machine import Machine
from tilelink.simulator.result import Simulated

HELPER_S = 6.9e-6
"""Seconds of a helper kernel: as nodes of a graph on two H100s, `skip_launches` took 6.6 us and `close_launch` 7.2."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch with what is around its kernels. captured: as a node of a CUDA graph that is replayed.

    helpers: helper kernels. copies: copies of symmetric inputs and outputs. around: seconds of both. seconds: of the
    launch, with them.
    """

    captured: bool
    helpers: int
    copies: int
    around: float
    seconds: float


def launch_of(result: Simulated, *, captured: bool = False) -> Launch:
    """Return a simulated launch as it is issued, eagerly or in a graph.

    A graph of one launch starts no sooner than the launch alone: on two H200s, 8 launches of 9 to 56 us took 0.79 to
    1.28 of what is predicted for an eager one, and 1.2 to 2.5 times what it would be if the start were left out.
    """
    machine, script, bound = result.machine, result.timeline.script, result.plan.bound
    helpers, copies = len(helper_kernels(bound, captured=captured)), _copies(bound)
    around = helpers * HELPER_S + script.staging + script.keeping
    seconds = result.seconds + helpers * HELPER_S - _announced(bound, machine)
    return Launch(captured=captured, helpers=helpers, copies=copies, around=around, seconds=seconds)


def helper_kernels(bound: Bound, *, captured: bool) -> tuple[str, ...]:
    """Return the helper kernels of a launch, in order, by their names in runtime/cuda/helper_kernels.py.

    captured: of one that a caller captures: its replays skip launches unless `replays_in_turn`.
    """
    skips = captured and not replays_in_turn(bound)
    if not skips and bound.protocol.in_kernels:
        return ()
    written = any(t.decl.symmetric and t.decl.space == "out" for t in bound.tensors.values())
    awaited = any(bound.tensors[name].decl.space == "out" for name, _ in bound.channels)
    return tuple(
        name
        for name, there in (
            ("skip_launches", skips and (_cycle(bound) > 1 or bound.protocol.announces_late)),
            ("open_launch", any(kernel.needs_entry for kernel in bound.kernels)),
            ("await_outputs", written and awaited),
            ("close_launch", True),
        )
        if there
    )


def replays_in_turn(bound: Bound) -> bool:
    """True if a replay of a captured launch is simply the next launch (Artifact.replays_in_turn)."""
    shared = [t.decl for t in bound.tensors.values() if t.decl.symmetric]
    by_host = any(decl.is_given or decl.space == "out" for decl in shared)
    return len(bound.on_sms) == len(bound.kernels) and (_cycle(bound) == 1 or not by_host)


def _cycle(bound: Bound) -> int:
    return lcm(*(t.buffers for t in bound.tensors.values()))


def _copies(bound: Bound) -> int:
    return sum(t.decl.symmetric and t.decl.space in ("in", "out") for t in bound.tensors.values())


def _announced(bound: Bound, machine: Machine) -> float:
    """Return the seconds of the helper kernel that a simulation has already."""
    opens = bound.protocol is LaunchProtocol.HELPER_KERNELS and any(kernel.needs_entry for kernel in bound.kernels)
    return machine.kernel_gap if opens else 0.0
