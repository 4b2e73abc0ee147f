"""Ways round what roles refuse: rows of a table in docs/language.md, which refusals name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Way:
    """What a stage with roles cannot do, why, and what to write instead. reasons: beginnings of what says so of one."""

    stage: str
    because: str
    instead: str
    reasons: tuple[str, ...] = ()


WAYS = (
    Way(
        stage="gathers rows of a product, `dot(xs[rows[r], :], ...)`",
        because="operands are loaded as boxes",
        instead="a stage before it packs the rows: `packed[r, :] = xs[rows[r], :]`, notified",
        reasons=("an operand of its product is not rows of whole dimensions",),
    ),
    Way(
        stage="waits for places, `consumer_tile_wait(xs[rows[r], :])`",
        because="a launch decides for which channels it waits",
        instead="the stage that packs waits",
        reasons=("only a launch decides for which channels its tiles wait",),
    ),
    Way(
        stage="looks up, in a loop that carries a state or for an iteration, what a peer tells or a stage computes",
        because="its roles would read it at different times",
        instead="an index tensor that is an input",
        reasons=("its loop carries a state, and its roles would read", "its loop looks up "),
    ),
    Way(
        stage="has `if rank ...` around a tile, or two results of one product",
        because="a tile waits, multiplies, computes, stores one result and notifies, in this order; a loop may store "
        "several, and a number for each row of an output",
        instead="all steps in one loop, with `if t <= n:` around an iteration; or two stages",
        reasons=(
            "its tiles do more than to wait, multiply",
            "it stores several values",
            "after its loop its tiles do not compute, store",
        ),
    ),
    Way(
        stage="leaves out iterations by another condition than `if t <= n and t >= first[n]:` or `t: T[a : b] by 1`",
        because="roles have iterations from one number up to another, and a tile of columns is there or not",
        instead="compare the first index alone, `by 1`, and mask the rest with `where` or the mask of `attend`",
        reasons=(
            "its loop leaves out iterations ",
            "a condition of its loop does not compare",
            "a launch decides which elements of",
        ),
    ),
    Way(
        stage="computes in a loop with other regions than vectors of its rows or columns and tiles of both",
        because="a consumer loads what its own rows and columns need",
        instead="give the vector the dimensions of the rows or of the columns, or compute it in a stage before",
        reasons=(
            "what it computes is no elementwise function or reduction",
            "it computes with ",
            "before its loop it ",
            "after its loop it computes with ",
        ),
    ),
    Way(
        stage="scales products of more contracted elements than a buffer holds, `total += dot(..) * u[k, i]`",
        because="an iteration has one buffer then, of up to 256 bytes of each row",
        instead="blocks of 64, 128 or 256 bytes, with `b` of `tile` as long",
        reasons=("an iteration scales a product of",),
    ),
    Way(
        stage="multiplies three times, as Q, K and V of one row",
        because="a tile multiplies once or twice the same left operand",
        instead="an index over the three, `c: 3`",
        reasons=("its tiles multiply ",),
    ),
    Way(
        stage="adds more than a product in a loop that carries a state, `acc += dot(p, v[j, :]) * 2.0`",
        because="tensor cores add products to the name",
        instead="scale the operand, or the name after the loop",
        reasons=("an iteration of its loop neither names",),
    ),
    Way(
        stage="has operands that travel as words, `low_latency`",
        because="boxes are loaded, and words are polled",
        instead="counters for operands",
    ),
)


def ways_round(reason: str) -> str:
    """Return what to write instead where a stage is refused for a reason, "" if nothing more is known than that."""
    found = [way for way in WAYS if reason.startswith(way.reasons)]
    return "; ".join(f"if it {way.stage}: {way.instead}" for way in found)
