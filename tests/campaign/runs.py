"""Judges many cases, in processes of their own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.campaign.case import Case
from tests.campaign.combined import combined_case
from tests.campaign.drawing import case
from tests.campaign.judge import Verdict, judge
from tests.campaign.launches import launch_case
from tests.campaign.pairs import pair_case

CHUNK = 4


def of_seed(seed: int) -> Verdict:
    """The verdict on the case of a number."""
    return judge(case(seed))


def of_nodes(seed: int) -> Verdict:
    """The verdict on the case of a number on several nodes: two where its ranks fill two, else one for each rank.

    A case of one rank stays on one node.
    """
    return judge(_on_nodes(case(seed)))


def of_launch_on_nodes(number: int) -> Verdict:
    """The verdict on a mutant of a program whose integers come with a launch, on several nodes."""
    return judge(_on_nodes(launch_case(number)))


def _on_nodes(drawn: Case) -> Case:
    nodes = 2 if drawn.ranks % 2 == 0 else drawn.ranks
    return replace(drawn, nodes=nodes, features=(*drawn.features, f"{nodes} nodes"))


def _prepare() -> None:
    import torch

    torch.set_num_threads(1)  # there are as many processes as there is room for


def of_pair(number: int) -> Verdict:
    """The verdict on two clauses together."""
    return judge(pair_case(number))


def of_launch(number: int) -> Verdict:
    """The verdict on a mutant of a program whose integers come with a launch."""
    return judge(launch_case(number))


def of_combined(number: int) -> Verdict:
    """The verdict on a mutant of a program that combines what is new."""
    return judge(combined_case(number))


def verdicts(first: int, programs: int, jobs: int, of: Callable[[int], Verdict] = of_seed) -> Iterator[Verdict]:
    """The verdicts on the cases from a number on, in any order, of so many processes."""
    if jobs == 1:
        yield from map(of, range(first, first + programs))
        return
    context = multiprocessing.get_context("spawn")
    with context.Pool(jobs, initializer=_prepare) as pool:
        yield from pool.imap_unordered(of, range(first, first + programs), chunksize=CHUNK)
