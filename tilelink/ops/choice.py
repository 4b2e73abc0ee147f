"""Which way an operator goes where its caller does not say, and which program of the library stands for it."""

from __future__ import annotations

from math import lcm

from tilelink.errors import UnknownNameError

UNFUSED = "unfused"
"""The way without a generated kernel: the collective of torch.distributed and torch's own product."""

FEW_ROWS = {"ag_gemm": 1024, "gemm_rs": 2048}
"""From so many rows on (of all ranks together) one kernel multiplies and communicates; below torch multiplies."""

FEW_OWN_ROWS = 256
"""The same for the rows of one rank."""

ASKED_ROWS, ASKED_OWN_ROWS = 512, 128
"""From so many rows on, and of one rank, the model may know a fused way that is better."""

MIB = 1024 * 1024
PUSHED = {
    "ag_gemm": ("all_gather_kept:more", 16 * MIB),
    "gemm_rs": ("reduce_scatter_pushed:more", 16 * MIB),
    "gemm_ar": ("all_reduce_two_shot_pushed:more", 8 * MIB),
}
"""The library's own way to communicate beside torch's product, and up to how many bytes of what all ranks hold then."""
TILE, TILES = (64, 256), 1024
"""The tiles of those schedules, and how many there may be: of few rows or columns most of a tile is empty."""
AT_ONCE = "all_reduce_one_shot_pushed:few", MIB * 3 // 4
"""The way to sum where every rank receives at most so many bytes if each sums everything."""

SCHEDULE = "h200"
"""The schedule that fused programs of the library have for GPUs; further ones for certain sizes begin with its name."""

ALONE = ("gated", "gathered", "f32")
"""What follows a product and has no pair of torch's product and a kernel."""

ROW_ALIGNMENT = 8
"""Elements of 16 bit to which rows must be aligned so that descriptors can address them."""

PROGRAMS: dict[tuple[str, str], str] = {
    ("ag_gemm", ""): "ag_gemm_in_place",
    ("ag_gemm", "bias"): "ag_gemm_bias",
    ("ag_gemm", "silu"): "ag_gemm_silu",
    ("ag_gemm", "gelu"): "ag_gemm_gelu",
    ("ag_gemm", "bias_silu"): "ag_gemm_bias_silu",
    ("ag_gemm", "bias_gelu"): "ag_gemm_bias_gelu",
    ("ag_gemm", "gated"): "ag_gemm_gated",
    ("ag_gemm", "gathered"): "ag_gemm_gathered",
    ("gemm_rs", ""): "gemm_rs_own_last",
    ("gemm_rs", "bias"): "gemm_rs_bias",
    ("gemm_rs", "f32"): "gemm_rs_f32",
    ("gemm_ar", ""): "gemm_ar",
    ("gemm_ar", "bias"): "gemm_ar_bias",
    ("gemm_ar", "f32"): "gemm_ar_f32",
    ("all_gather", ""): "all_gather",
    ("reduce_scatter", ""): "reduce_scatter",
    ("all_reduce", ""): "all_reduce_two_shot",
}
"""(operator, what follows the product, or the dtype of sums) -> the program that a schedule's name alone belongs to."""


def choose(op: str, M: int, N: int, K: int, ranks: int, follows: str = "") -> str:
    """The way that an operator takes by default: UNFUSED, the name of a schedule, or "program:name".

    M: rows over all ranks; N, K: the product's columns and contracted dimension on one rank. A plain rule: fused for
    many rows (FEW_ROWS, FEW_OWN_ROWS) that descriptors can address; the library's own communication, beside torch's
    product, for little data (PUSHED), where starting is what costs most; the library of the machine's vendor for the
    rest, for collectives alone, and on one rank.
    """
    if op in FEW_ROWS and _fusable(M, N, K, ranks, FEW_ROWS[op], FEW_OWN_ROWS):
        return SCHEDULE
    return _pushed(op, M, K if op == "ag_gemm" else N, ranks, follows)


def worth_asking(op: str, M: int, N: int, K: int, ranks: int) -> bool:
    """Whether the model is asked for a fused way where the rule has too few rows for one."""
    return op in FEW_ROWS and _fusable(M, N, K, ranks, ASKED_ROWS, ASKED_OWN_ROWS)


def _fusable(M: int, N: int, K: int, ranks: int, least: int, least_own: int) -> bool:
    """Whether there are so many rows, in all and of one rank, and descriptors can address them."""
    aligned = N % ROW_ALIGNMENT == 0 and K % ROW_ALIGNMENT == 0
    return ranks > 1 and aligned and max(least, least_own * ranks) <= M


def _pushed(op: str, M: int, columns: int, ranks: int, follows: str) -> str:
    """How M x columns elements are gathered or summed by a kernel that only communicates; UNFUSED if not so."""
    if op not in PUSHED or ranks == 1 or columns % ROW_ALIGNMENT or follows in ALONE:
        return UNFUSED
    size, sums = 2 * M * columns, op == "gemm_ar"
    rows = rounded_rows(M, ranks) if sums else M
    tiles = ranks * -(-rows // ranks // TILE[0]) * -(-columns // TILE[1])
    if rows % ranks or tiles > TILES:
        return UNFUSED
    if sums and (ranks - 1) * size <= AT_ONCE[1]:
        return AT_ONCE[0]
    way, most = PUSHED[op]
    return way if size <= most else UNFUSED


def rounded_rows(M: int, ranks: int) -> int:
    """The rows of a kernel that sums M: a few more, so that few numbers occur and all ranks have as many.

    A multiple of eight, from 64 rows on of an eighth of the power of two below M, and of the ranks.
    """
    step = max(8, (1 << (M.bit_length() - 1)) // 8)
    multiple = lcm(step, ranks)
    return -(-M // multiple) * multiple


def program_of(op: str, variant: str) -> str:
    """The library's program for an operator and what follows its product. Raises UnknownNameError if there is none."""
    if (op, variant) not in PROGRAMS:
        there = ", ".join(v or "plain" for o, v in PROGRAMS if o == op)
        raise UnknownNameError(f"no fused program for {op} with {variant}", hint=f"there are {there}; or {UNFUSED!r}")
    return PROGRAMS[op, variant]
