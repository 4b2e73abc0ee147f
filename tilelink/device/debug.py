"""The debug block: int64 words in a rank's device memory through which a compiled wait reports that it took too long.

The host writes the budget (nanoseconds that one wait may take) and a zero into `tripped` before a launch, and reads
the block after it. Once it is tripped every wait of the rank returns at once, so that the kernels end; what they
computed after that is worthless.

Of a program that is traced the block also says where the tracks of its spans are (see device/spans.py): the address of
the first one, and how many bytes each takes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WORDS = 10
BUDGET, TRIPPED, STAGE, TILE, CHANNEL, SEEN, EXPECTED, PROGRAM, TRACE, STRIDE = range(WORDS)


@dataclass(frozen=True, kw_only=True)
class Trip:
    """The wait that outlived the budget first: where it is in the plan and what its counter was."""

    stage: int
    tile: int
    channel: int
    seen: int
    expected: int
    program: int


def armed(deadline: float) -> list[int]:
    """The words of a fresh block whose waits may take `deadline` seconds each."""
    words = [0] * WORDS
    words[BUDGET] = int(deadline * 1e9)
    return words


def trip(words: Sequence[int]) -> Trip | None:
    """The report in a block, or None if no wait took too long."""
    if not words[TRIPPED]:
        return None
    return Trip(
        stage=words[STAGE],
        tile=words[TILE],
        channel=words[CHANNEL],
        seen=words[SEEN],
        expected=words[EXPECTED],
        program=words[PROGRAM],
    )
