"""`program_per_tile`: a CTA for each tile, the proof of it, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backend.samples import unbroken
from tests.lowered import parse_lowered
from tilelink import compiler
from tilelink.artifact import LaunchProtocol
from tilelink.backend.emit import emit
from tilelink.errors import ScheduleError, TilesError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.any_program import together
from tilelink.planning.plan import make_plan
from tilelink.target import target
from tilelink.verifier import refusals, verify

TEXT = """program gathered(M, N):
    x  : in        [M, N]
    xs : symmetric [ranks, M, N]
    y  : out       [ranks, M, N]
    z  : out       [M, N]

    comm gather(p: ranks, i: M):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)

    compute take(s: ranks, i: M):
        consumer_tile_wait(xs[s, i, :])
        y[s, i, :] = xs[s, i, :] * 2.0

    compute rest(i: M):
        z[i, :] = x[i, :]

schedule one for gathered:
    gather {gather}, tile(i=16){told}
    take on sm, tile(i=16), program_per_tile
    rest {rest}
    xs channel(i=16), buffers 2
"""


def bound(gather: str = "on copy_engine", rest: str = "on copy_engine", on: str = "sm_90", told: str = "") -> Bound:
    text = TEXT.format(gather=gather, rest=rest, told=told)
    module = compiler.parse(text, "gathered.tl")
    machine = target(on) if on == "cpu" else replace(target(on), sms=4)
    return compiler.bound(
        module.program(), module.schedules[0], ranks=2, dims={"M": 256, "N": 64}, dtype="f32", target=machine
    )


def test_a_kernel_has_a_program_for_each_tile() -> None:
    made = bound()
    kernel = made.kernel_of["take"]
    assert (kernel.programs, kernel.program_per_tile) == (32, True)
    plan = make_plan(made)
    verify(plan)
    assert listing(parse_lowered(listing(made))) == listing(made)
    first = plan.first_task["take"]
    own = slice(first, first + made.stages["take"].total * 2)
    assert len(np.unique(plan.worker[own])) == 64 and len(np.unique(together(plan).worker[own])) == 2


def test_earlier_launches_are_announced_by_the_program_that_runs_first() -> None:
    made = bound()
    text = unbroken(emit(made, make_plan(made).thresholds).text)
    (line,) = (one for one in text.splitlines() if "begin_copies(" in one or "announce_finished(" in one)
    assert line.endswith("FIRST=True)")


RELAY = """program relay(M, N):
    x : in        [M, N]
    h : symmetric [M, N]
    g : symmetric [M, N]
    y : out       [M, N]

    comm first(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    comm second(i: M):
        consumer_tile_wait(h[i, :])
        tile_push_data(g[i, :] @ (rank + 1), h[i, :])
        producer_tile_notify(g[i, :] @ (rank + 1))

    compute take(i: M):
        consumer_tile_wait(g[i, :])
        y[i, :] = g[i, :] * 2.0

schedule one for relay:
    first on copy_engine, tile(i=16)
    second on copy_engine, tile(i=16)
    take on sm, tile(i=16){more}
"""


@pytest.mark.parametrize(("more", "released"), [("", True), (", program_per_tile", False)])
def test_copies_that_wait_are_not_released_by_a_program_that_may_wait_for_them(more: str, released: bool) -> None:
    """The last program of such a kernel starts after others have ended, which wait for the copies."""
    module = compiler.parse(RELAY.format(more=more), "relay.tl")
    machine = replace(target("sm_90"), sms=4)
    sizes = {"M": 256, "N": 64}
    made = compiler.bound(module.program(), module.schedules[0], ranks=4, dims=sizes, dtype="f32", target=machine)
    verify(make_plan(made))
    assert (made.protocol is LaunchProtocol.COUNTED_WITH_COPIES) == released
    assert made.kernel_of["take"].program_per_tile is not released


def test_cpu_ranks_have_as_many_programs_as_without_the_clause() -> None:
    made = bound(on="cpu")
    assert not made.kernel_of["take"].program_per_tile and made.kernel_of["take"].programs == 2


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another kernel on SMs": ({"gather": "on sm(1)"}, "another kernel runs on SMs at the same time"),
    "a guest": ({"rest": "in take epilogue, tile(i=16)"}, "another stage runs in its kernel"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_kernel_that_cannot_is_refused(case: str) -> None:
    options, reason = REFUSED[case]
    with pytest.raises(ScheduleError, match=f"take cannot have a program for each tile: {reason}") as caught:
        bound(**options)
    assert caught.value.location is not None and "take `program_per_tile` away" in str(caught.value.hint)


def test_copies_are_refused() -> None:
    with pytest.raises(ScheduleError, match="it does not run in CTAs of its own"):
        bound(told=", program_per_tile")


HANDED = RELAY.replace("second on copy_engine, tile(i=16)", "second on sm, tile(i=16), program_per_tile")
AFTER = "its tiles wait for what may come after other tiles that wait"


def handed(text: str) -> Bound:
    module = compiler.parse(text.format(more=""), "relay.tl")
    machine = replace(target("sm_90"), sms=4)
    return compiler.bound(
        module.program(), module.schedules[0], ranks=2, dims={"M": 256, "N": 64}, dtype="f32", target=machine
    )


@pytest.mark.parametrize("first", ["copy_engine", "sm"])
def test_tiles_that_wait_and_notify_have_programs_of_their_own_if_what_they_wait_for_waits_for_nothing(
    first: str,
) -> None:
    """It is told whichever of the tiles have begun."""
    made = handed(HANDED.replace("first on copy_engine", f"first on {first}"))
    assert made.kernel_of["second"].program_per_tile and made.kernel_of["second"].programs == 16
    verify(make_plan(made))


@pytest.mark.parametrize(("old", "new"), [
    ("        tile_push_data(h[", "        consumer_tile_wait(g[i, :])\n        tile_push_data(h["),
    ("    first on copy_engine", "    first on sm"),
])  # fmt: skip
def test_tiles_that_wait_for_tiles_that_wait_are_refused(old: str, new: str) -> None:
    """Stages are those of `relay` with a stage before them that waits, and so may those on SMs after it."""
    before = "    compute zero(i: M):\n        consumer_tile_wait(g[i, :])\n        z[i, :] = g[i, :]\n\n    comm first"
    text = HANDED.replace("    comm first", before).replace("    y : out ", "    z : out       [M, N]\n    y : out ")
    with pytest.raises(ScheduleError, match=f"second cannot have a program for each tile: {AFTER}"):
        handed(text.replace(old, new))


@pytest.mark.parametrize("words", ["", ", low_latency"])
def test_tiles_that_others_wait_for_have_programs_of_their_own_if_they_wait_for_nothing(words: str) -> None:
    """All kernels of a rank run one after the other, more of their programs than fit at once."""
    text = TEXT.format(gather="on sm", rest="on sm", told=", program_per_tile")
    text = text.replace("buffers 2", f"buffers 2{words}")
    module = compiler.parse(text, "gathered.tl")
    made = compiler.bound(
        module.program(), module.schedules[0], ranks=2, dims={"M": 256, "N": 64}, dtype="f32",
        target=replace(target("sm_90"), sms=4),
    )  # fmt: skip
    assert [kernel.programs for kernel in made.kernels] == [32, 32, 4]
    assert made.kernel_of["gather"].program_per_tile and made.kernel_of["take"].program_per_tile
    verify(make_plan(made))
    # A lowered program whose tiles wait too is refused: those that fit may all wait for others that do not fit.
    lines = listing(made).splitlines()
    (at,) = (n for n, line in enumerate(lines) if "tile_push_data(xs" in line or "tile_send_data(xs" in line)
    space = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    waiting = "\n".join([*lines[:at], f"{space}consumer_tile_wait(xs[rank, i, :])", *lines[at:]]) + "\n"
    found = refusals(make_plan(parse_lowered(waiting)))
    assert any(AFTER in str(one) for one in found)


@pytest.mark.parametrize(("change", "reason"), [
    ({"programs": 16}, "16 programs are not one for each tile"),
    ({"stream": "take"}, "another kernel runs on SMs at the same time"),
])  # fmt: skip
def test_a_lowered_program_that_says_otherwise_is_refused(change: dict[str, Any], reason: str) -> None:
    made = bound()
    kernels = tuple(replace(k, **change) if k.name == "take" else k for k in made.kernels)
    found = [one for one in refusals(make_plan(replace(made, kernels=kernels))) if isinstance(one, TilesError)]
    assert found and reason in found[0].message
