"""Programs that wait for a place on their rank: the simulator's time for each does not grow with their number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from time import process_time

from tests.simulator.cases import Fixed
from tilelink import compiler
from tilelink.simulator.engine import _Programs
from tilelink.simulator.machine import load_machine
from tilelink.simulator.script import Script, make_script
from tilelink.target import target

TEXT = """program doubled(M, N):
    x : in  [M, N]
    y : out [M, N]

    compute take(i: M):
        y[i, :] = x[i, :] * 2.0

schedule one for doubled:
    take on sm, tile(i=16), program_per_tile
"""
ENDED = 400


def script_of(programs: int) -> Script:
    module = compiler.parse(TEXT, "doubled.tl")
    machine = replace(target("sm_90"), sms=4)
    sizes = {"M": 16 * programs, "N": 16}
    plan = compiler.plan(module.program(), module.schedules[0], ranks=1, dims=sizes, dtype="f32", target=machine)
    assert len(plan.workers) == programs
    return make_script(plan, load_machine("8xH200"), Fixed())


def ends(script: Script) -> Iterator[float]:
    """Yield the seconds in which programs end, one after the other, each of which lets another one begin."""
    for _ in range(5):
        programs = _Programs(script, [0.0])
        running = [worker for worker, _ in programs.launch()]
        begin = process_time()
        for _ in range(ENDED):
            started = programs.ended(running.pop(0), 1.0)
            running += [worker for worker, _ in started]
        yield process_time() - begin
        assert len(running) == 4 and running == sorted(running)


def test_the_time_of_an_end_does_not_depend_on_how_many_wait() -> None:
    few, many = (min(ends(script_of(programs))) for programs in (ENDED + 4, 100 * ENDED))
    assert many < 5 * few
