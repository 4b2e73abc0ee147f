"""Records of the operators, one each, from which the other modules derive everything.

To add an operator, add its record to RECORDS and a public function to `tilelink.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from types import MappingProxyType
from typing import Any, Literal

import torch

from tilelink.errors import UnknownNameError
from tilelink.ops import gradients, unfused
from tilelink.simulator.machine import Thresholds

UNFUSED = "unfused"
"""The implementation without a generated kernel: the collective of torch.distributed and torch's own product."""

SCHEDULE = "h200"
"""The schedule that fused programs of the library have for GPUs; further ones for certain sizes begin with its name."""


@dataclass(frozen=True, kw_only=True)
class Operand:
    """name: as programs have it. dims: its sizes by name, in order; None for any number of them, rows first."""

    name: str
    dims: tuple[str, ...] | None
    optional: bool = False


@dataclass(frozen=True, kw_only=True)
class Output:
    """name: as programs have it. columns: the operand that gives them, x by its columns and a weight by its rows."""

    name: str
    columns: str


@dataclass(frozen=True, kw_only=True)
class SmallMessage:
    """The library's kernel that communicates next to torch's product, or alone, if there is little data.

    schedule: "program:name", or None for nothing larger than one_shot. limit: largest number of bytes of all ranks
    together. one_shot: the schedule in which every rank sums everything. one_shot_limit: largest number of bytes that
    each rank then receives. words, words_limit: the same by words of data and flag.
    """

    schedule: str | None
    limit: Callable[[Thresholds], int] = lambda thresholds: thresholds.small_reduce_bytes
    tile: tuple[int, int] = (64, 256)
    one_shot: str | None = None
    one_shot_limit: Callable[[Thresholds], int] = lambda thresholds: thresholds.one_shot_bytes
    words: str | None = None
    words_limit: Callable[[Thresholds], int] = lambda thresholds: thresholds.words_bytes

    @property
    def schedules(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.schedule, self.one_shot, self.words)))


@dataclass(frozen=True, kw_only=True)
class FewRows:
    """The library's programs that multiply and communicate in one kernel if there are few rows.

    tiles: of each "program:schedule", the least and the most rows of a call, and the rows and columns of a tile. The
    fastest is taken, if it is faster than a product and a sum after it.
    """

    tiles: Mapping[str, tuple[int, int, int, int]]


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """A program that is taken in place of an operator's where the model predicts its schedule with roles to be faster.

    ranks: the numbers of ranks for which it is considered.
    """

    program: str
    ranks: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Operator:
    """One operator.

    rows: whether the result has the rows of all ranks, the own share of them, or as many as x. Each depends on one row
    of x on every rank, so that kernels for more rows serve too. activation: whether it takes one. programs: the
    library's program by variant: what follows the product, "_" between; a variant that is not listed has no fused
    program, and an activation that is in no variant is taken after the kernel. base, variant: the operator whose rule
    chooses, and the variant that this one is of it; "" for an operator that chooses itself. alternatives: by variant,
    what may replace an operator's program that is not `modelled`. summed: the operator of the sum, of the first
    operands, after which one that has no kernel for its sizes does the rest. numbers: names of the floats that it
    takes, as programs have them. f32_sums: whether ranks send each other f32.
    fused_rows: from how many rows on (of all ranks) one kernel multiplies and communicates, for so many columns,
    contracted elements and ranks; None: the rule never fuses. modelled: whether the model chooses among fused
    implementations. most_rows: up to how many rows the program is taken, of an operator that needs no peers. unfused:
    takes the operands, the activation if there is one, and the group. gradient: what `gradients` has for it; None: it
    has no gradient.
    """

    name: str
    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    rows: Literal["gathered", "scattered", "kept"]
    programs: Mapping[str, str]
    unfused: Callable[..., Any]
    activation: bool = False
    base: str = ""
    variant: str = ""
    alternatives: Mapping[str, Alternative] = field(default_factory=dict[str, Alternative])
    f32_sums: bool = False
    summed: str = ""
    numbers: tuple[str, ...] = ()
    small: SmallMessage | None = None
    few: FewRows | None = None
    fused_rows: Callable[[Thresholds, int, int, int], float] | None = None
    modelled: bool = False
    most_rows: int | None = None
    gradient: gradients.Gradient | None = field(default=None, repr=False)

    @property
    def own_programs(self) -> set[str]:
        """Return the programs that compute the operator in one kernel."""
        few = self.few.tiles if self.few is not None else ()
        return {*self.programs.values(), *(name.partition(":")[0] for name in few)}

    @property
    def rule(self) -> str:
        """Return the operator whose rule chooses."""
        return self.base or self.name

    @property
    def gathers(self) -> bool:
        return self.rows == "gathered"

    @property
    def scatters(self) -> bool:
        return self.rows == "scattered"

    @cached_property
    def weights(self) -> tuple[str, ...]:
        """Return the operands that x is multiplied by."""
        return tuple(operand.name for operand in self.operands if operand.dims == ("N", "K"))

    def schema(self) -> str:
        """Return the schema for torch.library. An absent activation or schedule is ""."""
        given = [f"Tensor{'?' * operand.optional} {operand.name}" for operand in self.operands]
        given += [f"float {name}" for name in self.numbers]
        given += [
            f"str {name}" for name in ("activation", "group", "schedule") if name != "activation" or self.activation
        ]
        made = ", ".join("Tensor" for _ in self.outputs)
        return f"({', '.join(given)}) -> {made if len(self.outputs) == 1 else f'({made})'}"

    def epilogue(self, bias: bool, activation: str) -> tuple[str, str]:
        """Return the variant of a call, and the activation that remains to be applied after its kernel."""
        if self.variant:
            return self.variant, activation
        variant = "_".join(part for part in ("bias" if bias else "", activation) if part)
        return (variant, "") if variant in self.programs else ("bias" if bias else "", activation)

    def shapes(self, given: Mapping[str, torch.Tensor], ranks: int) -> list[tuple[int, ...]]:
        """Return the shapes of the outputs."""
        x = given["x"]
        rows = x.shape[0] * ranks if self.gathers else x.shape[0] // ranks if self.scatters else x.shape[0]
        return [
            (rows, *(x.shape[1:] if output.columns == "x" else given[output.columns].shape[:1]))
            for output in self.outputs
        ]

    def empty(self, given: Mapping[str, torch.Tensor], ranks: int) -> Any:
        """Return results of any value."""
        made = [given["x"].new_empty(shape) for shape in self.shapes(given, ranks)]
        return tuple(made) if len(made) > 1 else made[0]


# Records -----------------------------------------------------------------------------------------------------

_ROWS = Operand(name="x", dims=("rows", "K"))
_WEIGHT = Operand(name="w", dims=("N", "K"))
_PRODUCT = (_ROWS, _WEIGHT, Operand(name="bias", dims=("N",), optional=True))
_ANY = (Operand(name="x", dims=None),)
_Y = (Output(name="y", columns="w"),)
_LIKE_X = (Output(name="y", columns="x"),)


_COLUMNS = Operand(name="x", dims=("rows", "N"))
_RESIDUAL = Operand(name="residual", dims=("rows", "N"))
_NORM = Operand(name="norm", dims=("N",))


_WORDS = {"h200_words_32x64": (1, 32, 32, 64), "h200_words_32x32": (1, 32, 32, 32)}
"""Kernels of just as many rows: with room for others, which would wait for peers, they take 8 to 25 % longer."""
_NORM_TILES = {"h200_64x32": (33, 64, 64, 32)}
"""With more rows or columns a kernel of its own takes the norm faster: it has more programs for them (two H200s)."""
_TILES = {
    "h200_64x32": (33, 64, 64, 32), "h200": (33, 64, 64, 64), "h200_128x64": (65, 256, 128, 64),
    "h200_128x128": (65, 256, 128, 128),
}  # fmt: skip
"""Kernels with room for any number of rows up to a power of two. With that many they take 1 to 3 % longer than kernels
of just as many (64 and 256 rows, two H200s), and with other numbers 0.53 to 0.94 of their time, if x has room too: a
call whose x has none copies it first, which these figures leave out."""


def _few(**tiles: Mapping[str, tuple[int, int, int, int]]) -> FewRows:
    """tiles: by program and schedule."""
    every = {f"{program}:{name}": one for program, named in tiles.items() for name, one in named.items()}
    return FewRows(tiles=every)


def _summed_bytes(thresholds: Thresholds) -> int:
    """Return the most bytes that a rank receives of a sum alone: no product is there to be hindered by them."""
    return thresholds.one_shot_bytes * 3 // 2


def _words_bytes(thresholds: Thresholds) -> int:
    return thresholds.words_bytes


def _one_shot(program: str, words_limit: Callable[[Thresholds], int] = _words_bytes) -> SmallMessage:
    return SmallMessage(
        schedule=None, one_shot=f"{program}:{SCHEDULE}", one_shot_limit=_summed_bytes,
        words=f"{program}:{SCHEDULE}_words", words_limit=words_limit,
    )  # fmt: skip


_PULLED_RANKS = frozenset({2})
"""Of four ranks, pulled sums were predicted at 0.93 to 1.00 of the time of pushed ones, and took 0.93 to 1.07 of it
(six shapes on four H100s, by benchmarks/tp.py)."""


def _reduced_rows(thresholds: Thresholds, N: int, K: int, ranks: int) -> float:
    """Return the rows from which one kernel multiplies and sums on all ranks; infinity for products it is not for."""
    if ranks > thresholds.fused_reduce_ranks or min(N, K) < thresholds.fused_reduce_side:
        return inf
    return ranks * -(-thresholds.fused_reduce_elements // N)


RECORDS = (
    Operator(
        name="ag_gemm",
        operands=_PRODUCT,
        outputs=_Y,
        rows="gathered",
        activation=True,
        programs={
            "": "ag_gemm_in_place",
            "bias": "ag_gemm_bias",
            "silu": "ag_gemm_silu",
            "gelu": "ag_gemm_gelu",
            "bias_silu": "ag_gemm_bias_silu",
            "bias_gelu": "ag_gemm_bias_gelu",
        },
        unfused=unfused.ag_gemm,
        small=SmallMessage(schedule="all_gather_kept:more", limit=lambda thresholds: thresholds.small_gather_bytes),
        fused_rows=lambda thresholds, N, K, ranks: max(
            thresholds.fused_gather_rows, thresholds.fused_rank_rows * ranks
        ),
        modelled=True,
        gradient=gradients.ag_gemm,
    ),
    Operator(
        name="ag_gemm_gated",
        operands=(_ROWS, Operand(name="w_gate", dims=("N", "K")), Operand(name="w_up", dims=("N", "K"))),
        outputs=(Output(name="y", columns="w_gate"),),
        rows="gathered",
        base="ag_gemm",
        variant="gated",
        programs={"gated": "ag_gemm_gated"},
        unfused=unfused.ag_gemm_gated,
    ),
    Operator(
        name="ag_gemm_gathered",
        operands=(_ROWS, _WEIGHT),
        outputs=(*_Y, Output(name="xs", columns="x")),
        rows="gathered",
        base="ag_gemm",
        variant="gathered",
        programs={"gathered": "ag_gemm_gathered"},
        unfused=unfused.ag_gemm_gathered,
    ),
    Operator(
        name="gemm_rs",
        operands=_PRODUCT,
        outputs=_Y,
        rows="scattered",
        activation=True,
        programs={"": "gemm_rs_local_last", "bias": "gemm_rs_bias"},
        unfused=unfused.gemm_rs,
        small=SmallMessage(
            schedule="reduce_scatter_pushed:more", limit=lambda thresholds: thresholds.small_scatter_bytes
        ),
        fused_rows=lambda thresholds, N, K, ranks: max(
            thresholds.fused_scatter_rows, thresholds.fused_rank_rows * ranks
        ),
        modelled=True,
        gradient=gradients.gemm_rs,
    ),
    Operator(
        name="gemm_rs_f32",
        operands=(_ROWS, _WEIGHT),
        outputs=_Y,
        rows="scattered",
        base="gemm_rs",
        variant="f32",
        f32_sums=True,
        programs={"f32": "gemm_rs_f32"},
        unfused=unfused.gemm_rs_f32,
        gradient=gradients.gemm_rs,
    ),
    Operator(
        name="gemm_ar",
        operands=_PRODUCT,
        outputs=_Y,
        rows="kept",
        activation=True,
        programs={"": "gemm_ar_local_last", "bias": "gemm_ar_bias"},
        alternatives={
            "": Alternative(program="gemm_ar_pulled", ranks=_PULLED_RANKS),
            "bias": Alternative(program="gemm_ar_bias_pulled", ranks=_PULLED_RANKS),
        },
        unfused=unfused.gemm_ar,
        small=SmallMessage(
            schedule="all_reduce_two_shot_pushed:more",
            one_shot="all_reduce_one_shot_pushed:few",
        ),
        few=_few(gemm_ar_one_shot=_WORDS, gemm_ar_batch=_TILES),
        fused_rows=_reduced_rows,
        gradient=gradients.gemm_ar,
    ),
    Operator(
        name="gemm_ar_residual",
        operands=(_ROWS, _WEIGHT, _RESIDUAL),
        outputs=_Y,
        rows="kept",
        summed="gemm_ar",
        programs={"": "gemm_ar_one_shot_residual"},
        unfused=unfused.gemm_ar_residual,
        few=_few(gemm_ar_one_shot_residual=_WORDS, gemm_ar_batch_residual=_TILES),
    ),
    Operator(
        name="gemm_ar_norm",
        operands=(_ROWS, _WEIGHT, _RESIDUAL, _NORM),
        outputs=(Output(name="h", columns="w"), *_Y),
        rows="kept",
        summed="gemm_ar",
        numbers=("eps",),
        programs={"": "gemm_ar_one_shot_norm"},
        unfused=unfused.gemm_ar_norm,
        few=_few(gemm_ar_one_shot_norm=_WORDS, gemm_ar_batch_norm=_NORM_TILES),
    ),
    Operator(
        name="add_norm",
        operands=(_COLUMNS, _RESIDUAL, _NORM),
        outputs=(Output(name="h", columns="x"), Output(name="y", columns="x")),
        rows="kept",
        numbers=("eps",),
        programs={"": "add_norm"},
        unfused=unfused.add_norm,
        most_rows=512,  # with more, starting two kernels of torch takes less time
    ),
    Operator(
        name="gemm_ar_f32",
        operands=(_ROWS, _WEIGHT),
        outputs=_Y,
        rows="kept",
        base="gemm_ar",
        variant="f32",
        f32_sums=True,
        programs={"f32": "gemm_ar_f32"},
        unfused=unfused.gemm_ar_f32,
        gradient=gradients.gemm_ar,
    ),
    Operator(
        name="all_gather",
        operands=_ANY,
        outputs=_LIKE_X,
        rows="gathered",
        programs={"": "all_gather"},
        unfused=unfused.all_gather,
        gradient=gradients.all_gather,
    ),
    Operator(
        name="reduce_scatter",
        operands=_ANY,
        outputs=_LIKE_X,
        rows="scattered",
        programs={"": "reduce_scatter"},
        unfused=unfused.reduce_scatter,
        gradient=gradients.reduce_scatter,
    ),
    Operator(
        name="all_reduce",
        operands=_ANY,
        outputs=_LIKE_X,
        rows="kept",
        programs={"": "all_reduce_two_shot"},
        unfused=unfused.all_reduce,
        small=SmallMessage(
            schedule="all_reduce_two_shot_pushed:more",
            one_shot="all_reduce_one_shot_pushed:few",
            one_shot_limit=_summed_bytes,
            words="all_reduce_one_shot_pushed:words",
        ),
        gradient=gradients.all_reduce,
    ),
    Operator(
        name="all_reduce_residual",
        operands=(_COLUMNS, _RESIDUAL),
        outputs=_LIKE_X,
        rows="kept",
        summed="all_reduce",
        programs={"": "all_reduce_one_shot_residual"},
        unfused=unfused.all_reduce_residual,
        small=_one_shot("all_reduce_one_shot_residual"),
    ),
    Operator(
        name="all_reduce_norm",
        operands=(_COLUMNS, _RESIDUAL, _NORM),
        outputs=(Output(name="h", columns="x"), *_LIKE_X),
        rows="kept",
        summed="all_reduce",
        numbers=("eps",),
        programs={"": "all_reduce_one_shot_norm"},
        unfused=unfused.all_reduce_norm,
        small=_one_shot("all_reduce_one_shot_norm", lambda thresholds: thresholds.norm_words_bytes),
    ),
)

_operators: dict[str, Operator] = {record.name: record for record in RECORDS}
OPERATORS: Mapping[str, Operator] = MappingProxyType(_operators)
"""name -> operator: RECORDS, and those that `add` added."""


def add(operator: Operator) -> None:
    """Add an operator to OPERATORS."""
    _operators[operator.name] = operator


def variant_operator(op: str, variant: str) -> Operator:
    """Return the operator that is a variant of `op`, or `op` itself."""
    own = (one for one in OPERATORS.values() if variant and (one.base, one.variant) == (op, variant))
    return next(own, OPERATORS[op])


def program_of(op: str, variant: str) -> str:
    """Return the name of the program of a variant of an operator. Raises UnknownNameError if there is none."""
    programs = {v: name for one in OPERATORS.values() if one.rule == op for v, name in one.programs.items()}
    if variant not in programs:
        there = ", ".join(v or "plain" for v in programs)
        raise UnknownNameError(f"no fused program for {op} with {variant}", hint=f"there are {there}; or {UNFUSED!r}")
    return programs[variant]


def alternative_of(op: str, variant: str) -> Alternative | None:
    """Return the program that may replace that of a variant of an operator, or None."""
    found = (one.alternatives.get(variant) for one in OPERATORS.values() if one.rule == op)
    return next(filter(None, found), None)
