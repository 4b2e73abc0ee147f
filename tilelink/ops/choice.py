"""The implementation that an operator takes by default, by a plain rule over its sizes and a machine's rates."""

from __future__ import annotations

from math import inf, lcm

from tilelink.ops.operators import OPERATORS, SCHEDULE, UNFUSED, FewRows, Operator
from tilelink.simulator.machine import Machine, load_machine

ITEM = 2
"""Bytes of an element: bf16 and f16."""

ROW_ALIGNMENT = 8
"""Elements of 16 bit to which rows must be aligned so that descriptors can address them."""

DEFAULTS = load_machine("8xH200")
"""What is taken for machines without a description."""


def choose(
    op: str, M: int, N: int, K: int, ranks: int, variant: str = "", *, machine: Machine = DEFAULTS
) -> str:  # fmt: skip
    """Return the default implementation of an operator: UNFUSED, the name of a schedule, or "program:name".

    M: rows over all ranks; N, K: the product's columns and contracted dimension on one rank. The rule: for few rows
    one kernel, if it multiplies fast enough; a fused kernel for many rows that descriptors can address; torch's product
    and a communication kernel of the library for little data, where the start of a kernel costs most, and for sums
    alone; torch's product and the vendor's collective otherwise, for other collectives, and on one rank.
    """
    operator = OPERATORS.get(op)
    if operator is None:
        return UNFUSED
    if operator.most_rows is not None:
        return SCHEDULE if ranks > 1 and operator.most_rows >= M else UNFUSED
    few = None if operator.few is None or variant else _few(operator.few, M, N, K, ranks, machine)
    if few is not None:
        return few
    least = inf if operator.fused_rows is None else operator.fused_rows(machine, N, K, ranks)
    if least <= M and _addressable(N, K, ranks):
        return SCHEDULE
    return _small(operator, M, K if operator.gathers else N, ranks, variant, machine)


def _few(few: FewRows, M: int, N: int, K: int, ranks: int, machine: Machine) -> str | None:
    """Return the fastest kernel for few rows, or None if a product and a sum after it are predicted to be faster.

    Both end with the same exchange. So one kernel has to multiply in the time of the vendor's product and of the gap
    between two kernels. In a product of few rows an SM multiplies one tile, step by step along K, unless memory is
    slower.
    """
    if not _addressable(N, K, ranks) or ITEM * (ranks - 1) * M * N > machine.few_bytes:
        return None
    weights = ITEM * N * K / machine.memory_bandwidth

    def seconds(name: str) -> float:
        _, _, rows, columns = few.tiles[name]
        tiles = -(-M // rows) * -(-N // columns)
        steps = K * (machine.few_step + rows * columns * machine.few_step_element)
        stores = ranks * ITEM * rows * columns / machine.sm_push_rate
        waves = [min(machine.sms, tiles - first) for first in range(0, tiles, machine.sms)]
        loaded = sum(max(steps, weights * wave / tiles) + stores for wave in waves)
        return loaded + (len(waves) - 1) * machine.tile_overhead

    multiplied = K * machine.vendor_step * max(1.0, M / 128) * min(1.0, N / machine.vendor_split_columns)
    apart = machine.kernel_gap + max(multiplied, weights / machine.vendor_memory_share)
    fitting = [name for name, (least, most, *_) in few.tiles.items() if least <= M <= most]
    best = min(fitting, key=seconds, default=None)
    return best if best is not None and seconds(best) < apart else None


def worth_asking(op: str, M: int, N: int, K: int, ranks: int, machine: Machine = DEFAULTS) -> bool:
    """True if the model is asked for a fused implementation where the rule has too few rows for one."""
    least = max(machine.modelled_rows, machine.modelled_rank_rows * ranks)
    return op in OPERATORS and OPERATORS[op].modelled and least <= M and _addressable(N, K, ranks)


def _addressable(N: int, K: int, ranks: int) -> bool:
    return ranks > 1 and N % ROW_ALIGNMENT == 0 and K % ROW_ALIGNMENT == 0


def _small(operator: Operator, M: int, columns: int, ranks: int, variant: str, machine: Machine) -> str:
    """Return the kernel that only communicates for M x columns elements, or UNFUSED."""
    own = {one.variant for one in OPERATORS.values() if one.variant}
    small = operator.small
    if small is None or ranks == 1 or columns % ROW_ALIGNMENT or variant in own:
        return UNFUSED
    size, sums = ITEM * M * columns, operator.rows == "kept"
    rows = rounded_rows(M, ranks) if sums else M
    tiles = ranks * -(-rows // ranks // small.tile[0]) * -(-columns // small.tile[1])
    if rows % ranks or tiles > machine.small_tiles:
        return UNFUSED
    received = (ranks - 1) * size
    if small.words is not None and received <= small.words_limit(machine):
        return small.words
    if small.one_shot is not None and received <= small.one_shot_limit(machine):
        return small.one_shot
    return small.schedule if small.schedule is not None and size <= small.limit(machine) else UNFUSED


def rounded_rows(M: int, ranks: int = 1) -> int:
    """Return the number of rows of a kernel for M rows: slightly more than M, so that few numbers occur.

    It is a multiple of the number of ranks among which rows are divided. Up to 4 it is one of a power of two, then of
    eight, from 64 rows on of an eighth of the power of two below M, and from 2048 on of a sixteenth.
    """
    rows, rounded = 0, M if M > 4 else 1 << (M - 1).bit_length()
    while rows != rounded:  # what is rounded beyond a power of two is a multiple for that one too
        rows = rounded
        below = 1 << (rows.bit_length() - 1)
        least = 8 if M > 4 else 1
        multiple = lcm(min(max(least, below // 8), max(128, below // 16)), ranks)
        rounded = -(-rows // multiple) * multiple
    return rows


def room_for(rows: int) -> int:
    """Return how many rows a kernel has room for that takes any number of them: a power of two, and at least 32."""
    return max(32, 1 << (rows - 1).bit_length())
