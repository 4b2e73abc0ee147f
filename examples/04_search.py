"""A search strategy and a cost model of one's own, to ask which schedule is best where a power limit slows products."""

from collections.abc import Generator
from dataclasses import replace
from random import Random

import tilelink
from tilelink.search import Candidate, Space
from tilelink.simulator.cost import Roofline, TileTime
from tilelink.simulator.machine import Machine
from tilelink.simulator.work import TileWork
from tilelink.tuning import rank


def descent(space: Space, chance: Random) -> Generator[Candidate, float | None, None]:
    """From a random point to the first neighbour that is cheaper, until there is none; then from another point."""
    while True:
        here = space.random(chance)
        best = yield here
        stuck = False
        while not stuck:
            stuck = True
            for there in space.neighbours(here):
                seconds = yield there
                if seconds is not None and (best is None or seconds < best):
                    here, best, stuck = there, seconds, False
                    break


class PowerLimited(Roofline):
    """Products at three quarters of their speed; everything else as it was."""

    def tile(self, work: TileWork, machine: Machine) -> TileTime:
        time = super().tile(work, machine)
        return replace(time, main=time.main / 0.75) if work.products else time


if __name__ == "__main__":
    program = tilelink.load("ag_gemm").program()
    dims = {"Ms": 256, "N": 512, "K": 4096}
    for cost in (Roofline(), PowerLimited()):
        for by in ("random", descent):
            found = rank([program], dims=dims, ranks=4, machine="8xH200", by=by, cost=cost, trials=40, budget_s=None)
            name = by if isinstance(by, str) else by.__name__
            best = found.ranking[0]
            print(f"{type(cost).__name__:>12}, {name:>9}: {best.seconds * 1e6:5.1f} us of {len(found.tried)} schedules")
    print(best.schedule)
