"""What a GPU rank has seen of a launch that hangs, and the explanation of its error."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from tilelink.artifact import Artifact
from tilelink.dump import Pad, Seen
from tilelink.errors import DeadlineError
from tilelink.runtime.promises import broken_promise

if TYPE_CHECKING:
    import torch

Explain = Callable[[DeadlineError], None]
"""Called with the error of a late wait and its `witnesses` before it is raised: the compiler knows the program."""

LOOK = 0.9
"""Part of the deadline after which a rank looks at its counters: once a wait is late, its program goes on without what
it has waited for, and notifies. No launch that is well takes so long, so none pays for the look."""


def seen_of(
    artifact: Artifact, rank: int, pads: Mapping[int, Sequence[int]], state: Sequence[int], issued: int, spoiled: bool
) -> Seen:
    """Return what a rank knows. pads: counters by rank, as far as it reads them. state: of launches (handshake.py).

    issued: launches that its host has issued. spoiled: as of Seen.
    """
    number, _, counted, _ = state
    launch = number + (counted // artifact.counted if artifact.counted else 0)
    return Seen(
        rank=rank, time=time.time(), launch=max(1, min(launch, issued)), issued=issued,
        pads=tuple(Pad(rank=one, counters=tuple(map(int, pad))) for one, pad in pads.items()),
        spoiled=spoiled, resets=bool(artifact.copy_programs), ends=not artifact.protocol.counted,
    )  # fmt: skip


@contextmanager
def explained(
    explain: Explain | None, artifact: Artifact, rank: int, given: Mapping[str, torch.Tensor]
) -> Generator[None]:
    """Explain a late wait that the block raises. given: the tensors of the launch, which may break their promises."""
    try:
        yield
    except DeadlineError as error:
        if explain is not None:
            broken = broken_promise(artifact.promises, given, rank) if given else None
            text = str(broken.error()) if broken is not None else ""
            error.witnesses = tuple(replace(one, broken=text) for one in error.witnesses if isinstance(one, Seen))
            explain(error)
        raise
