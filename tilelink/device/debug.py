"""The debug block: int64 words in a rank's device memory in which a compiled wait reports that it took too long.

The host writes the budget (nanoseconds that one wait may take) and a zero into `tripped` before a launch, and reads the
block after it. Once it is tripped every wait of the rank returns at once, so that the kernels end. What they computed
after that is invalid.

For a traced program the block also holds the location of the tracks of its spans (see device/spans.py): the address of
the first one, and the bytes of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

WORDS = 10
BUDGET, TRIPPED, STAGE, TILE, CHANNEL, SEEN, EXPECTED, PROGRAM, TRACE, STRIDE = range(WORDS)


@dataclass(frozen=True, kw_only=True)
class Trip:
    """The wait that first exceeded the budget: its location in the plan and the value of its counter."""

    stage: int
    tile: int
    channel: int
    seen: int
    expected: int
    program: int


def armed(deadline: float) -> list[int]:
    """Return the words of a new block whose waits may take `deadline` seconds each."""
    words = [0] * WORDS
    words[BUDGET] = int(deadline * 1e9)
    return words


def trip(words: Sequence[int]) -> Trip | None:
    """Return the report in a block, or None if no wait took too long."""
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
