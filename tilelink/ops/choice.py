"""The implementation that an operator takes by default, by a plain rule over its sizes."""

from __future__ import annotations

from math import inf, lcm

from tilelink.ops.operators import OPERATORS, SCHEDULE, UNFUSED, FewRows, Operator
from tilelink.simulator.machine import Thresholds

ROW_ALIGNMENT = 8
"""Elements of 16 bit to which rows must be aligned so that descriptors can address them."""

WAVE = range(96, 133)
"""Numbers of tiles for which a kernel for few rows is taken: with fewer too many of 132 SMs load no weights, and with
more some load those of two tiles."""

DEFAULTS = Thresholds()
"""Thresholds of machines without a description."""


def choose(
    op: str, M: int, N: int, K: int, ranks: int, variant: str = "", *, thresholds: Thresholds = DEFAULTS
) -> str:  # fmt: skip
    """Return the default implementation of an operator: UNFUSED, the name of a schedule, or "program:name".

    M: rows over all ranks; N, K: the product's columns and contracted dimension on one rank. The rule: a fused
    kernel for many rows that descriptors can address; torch's product and a communication kernel of the library for
    little data, where the start of a kernel costs most, and for sums alone; torch's product and the vendor's collective
    otherwise, for other collectives, and on one rank. thresholds: limits of rows and bytes; a Machine has them.
    """
    operator = OPERATORS.get(op)
    if operator is None:
        return UNFUSED
    few = None if operator.few is None or variant else _few(operator.few, M, N, K, ranks)
    if few is not None:
        return few
    least = inf if operator.fused_rows is None else operator.fused_rows(thresholds, N, K, ranks)
    if least <= M and _addressable(N, K, ranks):
        return SCHEDULE
    return _small(operator, M, K if operator.gathers else N, ranks, variant, thresholds)


def _few(few: FewRows, M: int, N: int, K: int, ranks: int) -> str | None:
    """Return the kernel for few rows whose tiles are most SMs' at once, or None."""
    if not _addressable(N, K, ranks) or 2 * (ranks - 1) * M * N > few.bytes:
        return None
    for name, (least, most, rows, columns) in few.tiles.items():
        if least <= M <= most and -(-M // rows) * -(-N // columns) in WAVE:
            return name
    return None


def worth_asking(op: str, M: int, N: int, K: int, ranks: int, thresholds: Thresholds = DEFAULTS) -> bool:
    """True if the model is asked for a fused implementation where the rule has too few rows for one."""
    least = max(thresholds.modelled_rows, thresholds.modelled_rank_rows * ranks)
    return op in OPERATORS and OPERATORS[op].modelled and least <= M and _addressable(N, K, ranks)


def _addressable(N: int, K: int, ranks: int) -> bool:
    return ranks > 1 and N % ROW_ALIGNMENT == 0 and K % ROW_ALIGNMENT == 0


def _small(operator: Operator, M: int, columns: int, ranks: int, variant: str, thresholds: Thresholds) -> str:
    """Return the kernel that only communicates for M x columns elements, or UNFUSED."""
    own = {one.variant for one in OPERATORS.values() if one.variant}
    small = operator.small
    if small is None or ranks == 1 or columns % ROW_ALIGNMENT or variant in own:
        return UNFUSED
    size, sums = 2 * M * columns, operator.rows == "kept"
    rows = rounded_rows(M, ranks) if sums else M
    tiles = ranks * -(-rows // ranks // small.tile[0]) * -(-columns // small.tile[1])
    if rows % ranks or tiles > thresholds.small_tiles:
        return UNFUSED
    received = (ranks - 1) * size
    if small.words is not None and received <= small.words_limit:
        return small.words
    if small.one_shot is not None and received <= small.one_shot_limit(thresholds):
        return small.one_shot
    return small.schedule if small.schedule is not None and size <= small.limit(thresholds) else UNFUSED


def rounded_rows(M: int, ranks: int) -> int:
    """Return the number of rows of a kernel that sums M rows: slightly more than M, so that few numbers occur.

    It is a multiple of the number of ranks and of eight; from 64 rows on, of an eighth of the power of two below M, and
    from 2048 on of a sixteenth.
    """
    rows, rounded = 0, M
    while rows != rounded:  # what is rounded beyond a power of two is a multiple for that one too
        rows = rounded
        below = 1 << (rows.bit_length() - 1)
        multiple = lcm(min(max(8, below // 8), max(128, below // 16)), ranks)
        rounded = -(-rows // multiple) * multiple
    return rows


def rounded_shard(rows: int) -> int:
    """Return the number of rows of a kernel that moves so many rows of each rank: as in sums, and 1, 2 and 4."""
    return rounded_rows(rows, 1) if rows > 4 else 1 << (rows - 1).bit_length()


def room_for(rows: int) -> int:
    """Return how many rows a kernel has room for that takes any number of them: a power of two, and at least 32."""
    return max(32, 1 << (rows - 1).bit_length())
