# pyright: basic, reportArgumentType=false
"""Interpreted kernels in processes. test_interpreted.py runs this file, with TRITON_INTERPRET=1."""

import pytest
import torch
import triton
import triton.language as tl

from tilelink import device as dl
from tilelink.errors import DeadlineError
from tilelink.runtime.cpu.arena import Arena
from tilelink.runtime.cpu.processes import Process, run_processes

RANKS, SIZE, LAUNCHES = 4, 64, 5


@triton.jit
def pass_on(x, y, table, signal_table, signals, target, rank, ranks, COUNT: tl.constexpr):
    """Rank 0 sends x to the next rank's y; each other rank waits for its y and sends y + 1; rank 0 waits in the end."""
    process = tl.arange(0, COUNT)
    here = x + process
    if rank > 0:
        token = dl.wait(signals, 1, target, None, 0, rank)
        here = y + dl.consume_token(process, token)
    following = (rank + 1) % ranks
    tl.store(dl.symm_at(table, following, y) + process, tl.load(here) + 1)
    dl.notify(dl.symm_at(signal_table, following, signals), 1, following, None, 0, rank, True)
    if rank == 0:
        dl.wait(signals, 1, target, None, 1, rank)


def process(rank: int, ys: list[torch.Tensor], pads: list[torch.Tensor], missing: int) -> Process:
    x = torch.zeros(SIZE)
    table = torch.tensor([one.data_ptr() for one in ys])
    signal_table = torch.tensor([one.data_ptr() for one in pads])

    def step(epoch: int) -> None:
        x.fill_(10 * epoch)
        arguments = (x, ys[rank], table, signal_table, pads[rank], epoch + missing * (rank == 2), rank, RANKS)
        pass_on[(1,)](*arguments, COUNT=SIZE)

    return Process(rank=rank, stream="main", program=0, steps=(step,))


def setup(missing: int = 0) -> tuple[list[torch.Tensor], list[Process]]:
    arena = Arena(1 << 16)
    ys = [arena.allocate((SIZE,), torch.float32) for _ in range(RANKS)]
    pads = [arena.allocate((4,), torch.int32) for _ in range(RANKS)]
    return ys, [process(rank, ys, pads, missing) for rank in range(RANKS)]


@pytest.mark.parametrize("seed", [1, 2])
def test_kernels_of_four_ranks(seed: int) -> None:
    ys, processes = setup()

    def check(rank: int, epoch: int) -> None:
        if rank == 0:
            torch.testing.assert_close(ys[0], torch.full((SIZE,), 10.0 * epoch + RANKS))

    report = run_processes(
        processes, launches=LAUNCHES, finish=check, deadline_s=20, seed=seed, max_delay_s=0.01, trace=True, timeout_s=60
    )
    assert [one[:5] for one in report.traces[2] if one.epoch == 2] == [("wait", 0, 2, 1, 2), ("notify", 0, 2, 3, 1)]


def test_a_signal_that_never_comes_is_a_deadline_error() -> None:
    _, processes = setup(missing=1)
    with pytest.raises(DeadlineError) as caught:
        run_processes(processes, launches=1, deadline_s=0.5)
    places = {caught.value.message.partition(",")[0], *caught.value.waiting}
    assert "rank 2 stage 0 tile 2 waits for channel 1: 1 of 2" in {place.partition(",")[0] for place in places}
    assert len(caught.value.waiting) == 2
