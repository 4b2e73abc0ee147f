"""Which way an operator goes where its caller does not say, and which program of the library stands for it."""

from __future__ import annotations

from tilelink.errors import UnknownNameError

UNFUSED = "unfused"
"""The way without a generated kernel: the collective of torch.distributed and torch's own product."""

FEW_ROWS = {"ag_gemm": 1024, "gemm_rs": 2048}
"""Below so many rows (of all ranks together) an unfused pair is taken."""

FEW_OWN_ROWS = 256
"""The same for the rows of one rank."""

ASKED_ROWS, ASKED_OWN_ROWS = 512, 128
"""From so many rows on, and of one rank, the model may know a fused way that is better than the pair."""

REDUCED_ROWS = 512
"""Up to so many rows a product is summed over the ranks by a kernel of the library's own."""
AT_ONCE = 512 * 1024
"""Up to so many bytes every rank sums all of the product, else a share of it."""
SUMS = "all_reduce_one_shot:few", "all_reduce_two_shot_kept:more"
"""The ways to do that, for less and for more."""

SCHEDULE = "h200"
"""The schedule that fused programs of the library have for GPUs; further ones for certain sizes begin with its name."""

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

    M: rows over all ranks; N, K: the product's columns and contracted dimension on one rank. A plain rule: unfused for
    few rows (FEW_ROWS, FEW_OWN_ROWS), where starting is all that costs; for rows that descriptors cannot address; for
    collectives without a product and for the sums of many rows, where the library of the machine's vendor is hard to
    beat; and on one rank.
    """
    if op == "gemm_ar":
        return _summed(M, N, ranks, follows)
    fused = op in FEW_ROWS and _fusable(M, N, K, ranks, FEW_ROWS[op], FEW_OWN_ROWS)
    return SCHEDULE if fused else UNFUSED


def worth_asking(op: str, M: int, N: int, K: int, ranks: int) -> bool:
    """Whether the model is asked for a fused way where the rule has too few rows for one."""
    return op in FEW_ROWS and _fusable(M, N, K, ranks, ASKED_ROWS, ASKED_OWN_ROWS)


def _fusable(M: int, N: int, K: int, ranks: int, least: int, least_own: int) -> bool:
    """Whether there are so many rows, in all and of one rank, and descriptors can address them."""
    aligned = N % ROW_ALIGNMENT == 0 and K % ROW_ALIGNMENT == 0
    return ranks > 1 and aligned and max(least, least_own * ranks) <= M


def _summed(M: int, N: int, ranks: int, follows: str) -> str:
    """How a product is summed over the ranks: torch multiplies, and a kernel for little data adds."""
    whole = M % ranks == 0 and N % ROW_ALIGNMENT == 0
    if ranks == 1 or M > REDUCED_ROWS or follows == "f32" or not whole:
        return UNFUSED
    return SUMS[2 * M * N > AT_ONCE]


def program_of(op: str, variant: str) -> str:
    """The library's program for an operator and what follows its product. Raises UnknownNameError if there is none."""
    if (op, variant) not in PROGRAMS:
        there = ", ".join(v or "plain" for o, v in PROGRAMS if o == op)
        raise UnknownNameError(f"no fused program for {op} with {variant}", hint=f"there are {there}; or {UNFUSED!r}")
    return PROGRAMS[op, variant]
