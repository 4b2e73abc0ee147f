"""Why a simulated launch takes as long as it does: what its critical path consists of most, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilelink.simulator.around import Launch, launch_of
from tilelink.simulator.critical_path import LAUNCH, Part, critical_path
from tilelink.simulator.result import Simulated

US = 1e6
IDLE_SHARE = 0.5
"""Part of a launch that a stage takes which leaves SMs idle, from which on it is said without being asked."""
WAYS = {"sms": "try `on sm`", "tiles": "try smaller tiles"}
"""Cause -> the way to make a stage faster that leaves SMs idle."""


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a launch takes as long as it does. key: what two launches with one cause have in common."""

    key: tuple[str, str]
    text: str


def around_cause(launch: Launch, late: float) -> Cause:
    """Return what is around the kernels of a launch, as its cause. late: as for `cause_of`."""
    parts = [f"{launch.helpers} helper kernels"] if launch.helpers else []
    many = "copies" if launch.copies > 1 else "copy"
    parts += [f"{launch.copies} {many} of inputs and outputs"] if launch.copies else []
    told = f"{' and '.join(parts)} are {launch.around * US:.1f} of {(launch.seconds - late) * US:.1f} us"
    return Cause(key=("around", ""), text=told)


AROUND_SHARE = 0.25
"""Share of a launch from which on what is around its kernels is what explains its time."""


def cause_of(result: Simulated, launch: Launch | None = None, late: float = 0.0) -> Cause:
    """Return the largest part of a launch's critical path, in words.

    launch: how it is issued (None: eagerly); what is around it is looked at first. late: seconds by which a rank began
    later than others, which explain nothing.
    """
    launch = launch or launch_of(result)
    if launch.around >= AROUND_SHARE * (launch.seconds - late):
        return around_cause(launch, late)
    whole, path, stages = result.seconds - late, critical_path(result), _stages(result)
    stages[LAUNCH] = stages.get(LAUNCH, 0.0) - late
    stage = max(stages, key=lambda name: stages[name])
    share = f"{100 * stages[stage] / whole:.0f} % of the time"
    if stage == LAUNCH:
        return Cause(key=("launch", ""), text=f"the start and the end of the launch and of its kernels are {share}")
    plan, sms = result.plan, result.machine.sms
    kernel = next(one for one in plan.bound.kernels if stage in one.stage_names)
    own = {part: found for (name, part), found in path.items() if name == stage}
    if kernel.on_copy_engine:
        return Cause(key=("copies", stage), text=_copies(stage, own, share))
    tiles = max(plan.bound.stages[name].total for name in kernel.stage_names)
    if kernel.blocks <= sms // 4 and tiles > kernel.programs:
        return Cause(key=("sms", stage), text=f"`{stage}` has {kernel.blocks} of {sms} SMs and is {share}")
    if tiles <= sms // 2:
        return Cause(key=("tiles", stage), text=f"`{stage}` has {tiles} tiles for {sms} SMs and is {share}")
    part = max(own, key=lambda name: own[name].seconds)
    told = f"{part} for {own[part].seconds * US:.1f} us ({tiles} tiles on {kernel.blocks} SMs)"
    return Cause(key=(part, stage), text=f"`{stage}` is {share}: it {told}")


def _copies(stage: str, own: Mapping[str, Part], share: str) -> str:
    """Return what a copy engine does on the path."""
    made = own.get("moves", Part(seconds=0.0, count=0))
    others = sum(part.count for name, part in own.items() if name != "moves")
    if not made.count:
        return f"the copy engine of `{stage}` is {share}, with {others} waits and flags"
    each = made.seconds / made.count * US
    return f"`{stage}` is {share}: {made.count:,} copies at {each:.1f} us and {others:,} flags"


def idle_sms(result: Simulated) -> list[str]:
    """Return a remark if a stage takes most of a launch to which the schedule gives few SMs, or few tiles."""
    cause = cause_of(result)
    kind, stage = cause.key
    if kind not in WAYS or _stages(result).get(stage, 0.0) < IDLE_SHARE * result.seconds:
        return []
    return [f"{cause.text}: {WAYS[kind]}"]


def path_of(result: Simulated) -> str:
    """Return whose the critical path of a launch is, in words: stages, with what they do on it, and the launch."""
    path, said = critical_path(result), list[str]()
    whole = sum(part.seconds for part in path.values())
    stages = _stages(result)
    for stage in sorted(stages, key=lambda name: -stages[name]):
        parts = {part: found.seconds for (name, part), found in path.items() if name == stage}
        inside = ", ".join(f"{part} {100 * parts[part] / whole:.0f}" for part in sorted(parts, key=lambda p: -parts[p]))
        said.append(f"{stage or 'launch'} {100 * stages[stage] / whole:.0f} %{f' ({inside})' if stage else ''}")
    return f"critical path: {', '.join(said)}"


def _stages(result: Simulated) -> dict[str, float]:
    """Return stage -> its seconds of the critical path."""
    stages: dict[str, float] = {}
    for (stage, _), part in critical_path(result).items():
        stages[stage] = stages.get(stage, 0.0) + part.seconds
    return stages
