# pyright: basic, reportArgumentType=false
"""Clocks of GPUs of several nodes: compared as in runtime/cuda/clock.py, with signals of the network as messages."""

import torch
import torch.distributed as dist
import triton
import triton.language as tl

from tilelink import device as dl
from tilelink.device.debug import armed
from tilelink.runtime.cuda.clock import BUDGET_NS, ROUNDS, Clocks, now
from tilelink.runtime.cuda.functions import HelperKernel, Link
from tilelink.runtime.nvshmem.library import Library

ASKED, ANSWERED, ANSWERS = (tl.constexpr(n) for n in range(3))
"""Words of a row of mail: the questions that came, the answers that came, and the times in them."""
WORDS = 2 + ROUNDS
"""Number of words of a row."""


@triton.jit(do_not_specialize=["peer"])
def ping(mail, answers, debug_block, peer, ROW: tl.constexpr, ROUNDS: tl.constexpr):
    """Ask a peer ROUNDS times for the time, and wait for each answer.

    mail: int64, the registered memory of this rank, whose row for the peer begins at ROW. answers: int64 [ROUNDS, 3],
    the time sent, the peer's time, the time received; zeros after a wait that took too long.
    """
    for i in range(ROUNDS):
        sent = now()
        dl.network_notify(mail, None, 0, peer, ROW + ASKED, debug_block, 0, i)
        dl.wait(mail, ROW + ANSWERED, i + 1, debug_block, 0, i)
        received = now()
        place = answers + 3 * i
        came = tl.load(mail + ROW + ANSWERS + i, volatile=True)
        tl.store(place, sent)
        tl.store(place + 1, came)
        tl.store(place + 2, received)
    dl.network_quiet()


@triton.jit(do_not_specialize=["rank"])
def pong(mail, own, debug_block, rank, ROW: tl.constexpr, ROUNDS: tl.constexpr):
    """Answer ROUNDS questions of rank 0 with the time at which each came.

    mail, debug_block: as of `ping`. own: int64, of which word `rank` is the address of this rank's mail.
    """
    for i in range(ROUNDS):
        dl.wait(mail, ROW + ASKED, i + 1, debug_block, 0, i)
        source = mail + ROW + ANSWERS + i
        tl.store(source, now())
        dl.put_signal(own, rank, 0, ROW + ANSWERS + i, source, 1, mail, None, ROW + ANSWERED, debug_block, 0, i)
    dl.network_quiet()


class NetworkClocks(Clocks):
    """The clocks of ranks of several nodes. Construction is collective."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, library: Library, link: Link) -> None:
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        mail = library.allocate(8 * ranks * WORDS).view(torch.int64)
        own = torch.full((ranks,), mail.data_ptr(), dtype=torch.int64, device=device)
        debug_block = torch.tensor(armed(BUDGET_NS / 1e9), dtype=torch.int64, device=device)
        answers = torch.zeros(ranks, ROUNDS, 3, dtype=torch.int64, device=device)
        exchanges: list[HelperKernel] = []
        for peer in range(1, ranks):
            options = {"ROW": WORDS * peer, "ROUNDS": ROUNDS}
            if rank == 0:
                exchanges.append(HelperKernel(ping, (mail, answers[peer], debug_block, peer), options, link))
            elif rank == peer:
                exchanges.append(HelperKernel(pong, (mail, own, debug_block, rank), options, link))
        super().__init__(group, device, mail, answers, exchanges)
