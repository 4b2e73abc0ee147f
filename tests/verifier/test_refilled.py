"""A deadlock because a channel serves several steps of a launch is not one of the order of tiles."""

from dataclasses import replace

import pytest

from tilelink import compiler
from tilelink.errors import ProgressError
from tilelink.target import CPU

RING = """
program ring(L, M):
    x    : in        [L, M]
    slot : symmetric [STEPS, M]
    free : symmetric [STEPS, M] i32
    y    : out       [L, M]

    comm send(l: L, i: M):
        if l >= 2:
            consumer_tile_wait(free[AT, i])
        tile_push_data(slot[AT, i] @ (rank + 1), x[l, i])
        producer_tile_notify(slot[AT, i] @ (rank + 1))

    compute use(l: L, i: M):
        consumer_tile_wait(slot[AT, i])
        y[l, i] = slot[AT, i]
        producer_tile_notify(free[AT, i] @ (rank - 1))

schedule apart for ring:
    send on copy_engine
    use on sm TILES
"""
LATE = """
program late(M, N):
    c : local [M, N]
    y : out   [M, N]

    compute use(i: M, j: N):
        consumer_tile_wait(c[i, :])
        y[i, j] = c[i, j]

    compute make(i: M, j: N):
        c[i, j] = 1.0
        producer_tile_notify(c[i, :])

schedule apart for late:
    make in use epilogue
"""


@pytest.mark.parametrize("name", [None, "apart"])
def test_a_buffer_that_is_filled_twice_in_a_launch_is_said_to_be_the_cause(name: str | None) -> None:
    module = compiler.parse(RING.replace("STEPS", "2").replace("AT", "l % 2").replace("TILES", ""))
    program = module.programs[0]
    schedule = module.schedule(name, program) if name else None
    with pytest.raises(ProgressError) as caught:
        compiler.plan(program, schedule, ranks=2, dims={"L": 4, "M": 16})
    assert "is notified again and again in a launch, by rank" in caught.value.message
    assert "tile (l=0, i=0) and by rank" in caught.value.message and "and the wait is for all" in caught.value.message
    assert "a dimension over these steps, and tiles of one step, so that each has a channel of its own" in str(
        caught.value.hint
    )


def test_the_remedy_works() -> None:
    text = RING.replace("STEPS", "L").replace("AT", "l").replace("free[l, i])", "free[l - 2, i])", 1)
    module = compiler.parse(text.replace("TILES", ", tile(l=1)"))
    program = module.programs[0]
    assert compiler.plan(program, module.schedules[0], ranks=2, dims={"L": 4, "M": 16}).tasks


def test_tiles_that_notify_one_region_together_are_not_blamed() -> None:
    module = compiler.parse(LATE)
    with pytest.raises(ProgressError) as caught:
        compiler.plan(module.programs[0], module.schedules[0], ranks=1, dims={"M": 16, "N": 256})
    assert "again and again" not in caught.value.message and "change the order of tiles" in str(caught.value.hint)


SECOND = """
program second(B):
    x : in    [B]
    c : local [B]
    y : out   [B]

    compute one(b: B):
        if b == 1:
            consumer_tile_wait(c[b])
        y[b] = x[b]
        if b == 1:
            producer_tile_notify(c[b])

schedule apart for second:
    one on sm(2)
"""


@pytest.mark.parametrize("sms", [1, 2])
def test_a_program_that_gets_its_place_when_another_has_ended_is_run_too(sms: int) -> None:
    """It waits for itself, and nothing else waits for it."""
    module = compiler.parse(SECOND)
    with pytest.raises(ProgressError, match=r"rank 0, one tile \(b=1\): waits for ever for c channel \[1\]"):
        compiler.plan(
            module.programs[0], module.schedules[0], ranks=1, dims={"B": 2}, target=replace(CPU, grows=False, sms=sms)
        )
