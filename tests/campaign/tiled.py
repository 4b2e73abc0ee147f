"""Stages with a loop over tiles whose iterations read and write one tensor, and may meet in it or not."""

from __future__ import annotations

from collections.abc import Callable

from tests.campaign.writer import INDEX, Source, Writer

TILES = (1, 2, 4, 4, 8, 8, 16)
"""Small, so that loops have iterations."""
MORE = 2
"""How far a tensor reaches beyond the loop, at most."""


def _rows_of(w: Writer) -> tuple[str, str, str]:
    """The dimensions of rows, of the loop, and a longer one."""
    rows, loop = w.pick((("M", "K"), ("N", "K"), ("M", "N")))
    longer = w.fresh("L")
    w.dim(rows)
    w.dim(longer, w.size(w.dim(loop)) + MORE)
    return rows, loop, longer


def _offsets(w: Writer) -> tuple[int, int]:
    """By how much two tiles are moved: the same more often than not."""
    one = w.rng.randrange(MORE + 1)
    return one, (one if w.chance(0.6) else w.rng.randrange(MORE + 1))


def _input(w: Writer, *shape: str) -> Source:
    """An input that no other stage reads."""
    found = w.input(*shape)
    w.sources.remove(found)
    return found


def _cut(w: Writer, stage: str, loop: str) -> None:
    """Gives the loop tiles, often smaller than its dimension."""
    if w.chance(0.85):
        w.tiles[stage] = f"tile({INDEX[loop]}={w.pick(TILES)})"


def _indented(lines: list[str]) -> list[str]:
    return ["    " + line for line in lines]


def handed_on(w: Writer) -> None:
    """Iterations that read what they, or others, write: at one offset, at two, or in another row."""
    rows, loop, longer = _rows_of(w)
    x, i, k = _input(w, rows, longer), INDEX[rows], INDEX[loop]
    a, b = _offsets(w)
    w.features.add("iterations at one offset" if a == b else "iterations at two offsets")
    how = w.pick(("t", "t * 0.5", "t + 1.0"))
    y = w.tensor("out", (rows, longer), word="e" if how == "t" else "y")
    if w.chance(0.3):
        w.features.add("iterations in two rows")
        c = w.tensor("local", (w.dim("P", 2), rows, longer))
        source, target = w.pick((("0", "1"), ("0", "1"), ("1", "1"), ("0", "0")))
        first = [f"{c}[0, {i}, :] = {x.name}[{i}, :]", f"{c}[1, {i}, :] = {x.name}[{i}, :]"]
        body = [f"t = {c}[{source}, {i}, {a} + {k}]", f"{c}[{target}, {i}, {b} + {k}] = {how}"]
        last = f"{y}[{i}, :] = {c}[1, {i}, :]"
    else:
        c = w.tensor("local", (rows, longer))
        first = [f"{c}[{i}, :] = {x.name}[{i}, :]"]
        body = [f"t = {c}[{i}, {a} + {k}]", f"{c}[{i}, {b} + {k}] = {how}"]
        last = f"{y}[{i}, :] = {c}[{i}, :]"
    if w.chance(0.2):
        body = [f"if {w.pick(('rank > 0', 'rank < ranks', 'rank == 0'))}:", *_indented(body)]
    _cut(w, w.stage("compute", [rows], [*first, f"for ({k}: {loop}):", *_indented(body), last]), loop)


def one_by_one(w: Writer) -> None:
    """Iterations of one element each, which read what the one before wrote: the index is a number."""
    rows, loop, _ = _rows_of(w)
    x, i, k = _input(w, rows, loop), INDEX[rows], INDEX[loop]
    c, y = w.tensor("local", (rows, loop)), w.tensor("out", (rows, loop))
    w.features.add("iterations of one element")
    body = [f"if {k} > 0:", f"    t = {c}[{i}, {k} - 1]",
            f"    {c}[{i}, {k}] = t * 0.5 + {x.name}[{i}, {k}]"]  # fmt: skip
    lines = [f"{c}[{i}, :] = {x.name}[{i}, :]", f"for ({k}: {loop}):", *_indented(body)]
    _cut(w, w.stage("compute", [rows], [*lines, f"{y}[{i}, :] = {c}[{i}, :]"]), loop)


def crossed(w: Writer) -> None:
    """Iterations that read columns and write rows of one square, or of another one."""
    _, loop, longer = _rows_of(w)
    x, k = _input(w, longer, longer), INDEX[loop]
    c, y = w.tensor("local", (longer, longer)), w.tensor("out", (longer, longer), word="e")
    a, b = _offsets(w)
    source, first = c, [f"{c}[:, :] = {x.name}[:, :]"]
    if w.chance(0.4):
        source = w.tensor("local", (longer, longer))
        first.append(f"{source}[:, :] = {x.name}[:, :]")
    w.features.add("iterations that cross" if source == c else "iterations that cross two tensors")
    body = [f"t = {source}[:, {a} + {k}]", f"{c}[{b} + {k}, :] = t.T"]
    lines = [*first, f"for ({k}: {loop}):", *_indented(body), f"{y}[:, :] = {c}[:, :]"]
    _cut(w, w.stage("compute", ["d: 1"], lines), loop)


def written_twice(w: Writer) -> None:
    """Iterations that write a tile after the whole, or two tiles at offsets, here or at a peer."""
    rows, loop, longer = _rows_of(w)
    x, z, i, k = _input(w, rows, longer), _input(w, rows, longer), INDEX[rows], INDEX[loop]
    a, b = _offsets(w)
    away = w.chance(0.3)
    c = w.tensor("symmetric" if away else "local", (rows, longer))
    peer = " @ (rank + 1)" if away else ""

    def write(where: str, value: str) -> str:
        target = f"{c}[{i}, {where}]{peer}"
        return f"tile_push_data({target}, {value})" if away else f"{target} = {value}"

    whole = write(":", w.pick((f"{z.name}[{i}, :]", "zeros(f32)")) if not away else f"{z.name}[{i}, :]")
    tile, other = (f"{x.name}[{i}, {n} + {k}]" for n in (a, b))
    body = [write(f"{a} + {k}", tile)]
    match w.pick(("whole first", "whole before", "two tiles", "steps inside", "steps outside")):
        case "whole first":
            w.features.add("iterations that write all first")
            lines = [f"for ({k}: {loop}):", *_indented([whole, *body])]
        case "whole before":
            w.features.add("all written before iterations")
            lines = [whole, f"for ({k}: {loop}):", *_indented(body)]
        case "two tiles":
            w.features.add("iterations at one offset" if a == b else "iterations at two offsets")
            lines = [whole, f"for ({k}: {loop}):", *_indented([*body, write(f"{b} + {k}", f"{other} * 2.0")])]
        case order:
            w.features.add(f"iterations with {order}")
            s = w.fresh("s")
            moved = f"{x.name}[{i}, {s} + {k}]"
            inner = [write(f"{s} + {k}", w.pick((f"{moved} * 2.0", f"{moved} + {s}")))]
            if w.chance(0.5):
                heads = [f"for ({k}: {loop}, {s}: 2):"] if order == "steps inside" else [f"for ({s}: 2, {k}: {loop}):"]
                lines = [whole, *heads, *_indented(inner)]
            else:
                outer, within = (f"for ({k}: {loop}):", f"for ({s}: 2):")
                outer, within = (outer, within) if order == "steps inside" else (within, outer)
                lines = [whole, outer, f"    {within}", *_indented(_indented(inner))]
    y = w.tensor("out", (rows, longer))
    read = f"{y}[{i}, :] = {c}[{i}, :]"
    if away:
        lines.append(f"producer_tile_notify({c}[{i}, :]{peer})")
        _cut(w, w.stage("comm", [rows], lines), loop)
        w.stage("compute", [rows], [f"consumer_tile_wait({c}[{i}, :])", read])
    else:
        _cut(w, w.stage("compute", [rows], [*lines, read]), loop)


TILED: tuple[Callable[[Writer], None], ...] = (handed_on, handed_on, one_by_one, crossed, written_twice, written_twice)
