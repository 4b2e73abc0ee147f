"""Stages that move data or make it for others: each makes a tensor that later stages read."""

from __future__ import annotations

from collections.abc import Callable

from tests.campaign.writer import INDEX, PAIRS, PLACE, ROW, Source, Writer, at

WORDS = ("tile_push_data", "tile_push_data", "rank_copy_data")


def _peer(w: Writer) -> str:
    if w.chance(0.15):
        w.grid()
        moved = (f"{PLACE} = {PLACE} + 1", f"{ROW} = {ROW} - 1", f"{ROW} = {ROW} + 1, {PLACE} = {PLACE} - 1")
        return w.pick(("({})", "rank({})")).format(w.pick(moved))
    return w.pick(("(rank + 1)", "(rank - 1)", "(rank + 2)", "(rank + ranks - 1)", "rank"))


def _reached(w: Writer) -> str:
    """A space that peers write into."""
    space = w.pick(("symmetric", "symmetric", "symmetric", "out symmetric"))
    w.features.add(space)
    return space


def _tiling(w: Writer, source: Source) -> tuple[list[str], list[str]]:
    """Which dimensions have an index, and the coordinates; a dimension that comes twice is whole."""
    shape = [d for d in source.shape if d != "ranks"]
    whole = [d for d in shape if shape.count(d) > 1 or w.chance(0.3)]
    if len(whole) == len(shape):
        whole = whole[1:] if shape.count(shape[0]) == 1 else whole
    domain = [d for d in dict.fromkeys(shape) if d not in whole]
    return domain, w.coords(source.shape, whole)


def copy_here(w: Writer) -> None:
    """On the own rank, with some arithmetic."""
    source = w.source()
    domain, coords = _tiling(w, source)
    name = w.tensor("local", source.shape)
    how = w.pick(("{}", "{}", "{} * 2.0", "0.5 * {} + 1.0", "maximum({}, 0.0)", "-{}"))
    exact = how == "{}" and source.exact
    lines = [*w.wait(source, coords), f"{at(name, coords)} = {how.format(at(source.name, coords))}"]
    kind = w.kind()
    w.stage(w.pick(("compute", "compute", "comm")) if how == "{}" else "compute", domain or ["d: 1"],
            w.nest([*lines, w.notify(name, coords, kind)]))  # fmt: skip
    w.made(name, source.shape, kind, exact)


def push(w: Writer) -> None:
    """To a neighbour."""
    source, peer = w.source(), _peer(w)
    domain, coords = _tiling(w, source)
    name, kind = w.tensor(_reached(w), source.shape), w.kind()
    move = f"{w.pick(WORDS)}({at(name, coords, peer)}, {at(source.name, coords)})"
    w.stage("comm", domain or ["d: 1"],
            w.nest([*w.wait(source, coords), move, w.notify(name, coords, kind, peer)]))  # fmt: skip
    w.made(name, source.shape, kind, source.exact)


def gather_push(w: Writer) -> None:
    """To all, from a domain over the ranks, or from a loop, some under conditions."""
    source = w.source(symmetric=w.chance(0.5))
    domain, coords = _tiling(w, source)
    shape = ("ranks", *source.shape)
    name, kind = w.tensor(_reached(w), shape), w.kind()
    slot = [w.number("rank"), *coords]
    move = f"{w.pick(WORDS)}({at(name, slot, 'p')}, {at(source.name, coords)})"
    lines = [move, w.notify(name, slot, kind, "p")]
    wait = w.wait(source, coords)
    if w.chance(0.3):
        w.features.add("own rank apart")
        own = [f"{at(name, slot)} = {at(source.name, coords)}" if w.chance(0.5) else move, lines[1]]
        lines = ["if p != rank:", *("    " + x for x in lines), "else:", *("    " + x for x in own)]
    else:
        lines = w.nest(lines)
    if w.chance(0.3):
        w.features.add("loop over ranks")
        body = [*wait, "for (p: ranks):", *("    " + x for x in lines)]
        w.stage("comm", domain or ["d: 1"], body)
    else:
        w.stage("comm", w.pick((["p: ranks", *domain], [*domain, "p: ranks"])), [*wait, *lines])
    w.made(name, shape, kind, source.exact)


def pull(w: Writer) -> None:
    """From a neighbour."""
    source, peer = w.source(symmetric=True), _peer(w)
    domain, coords = _tiling(w, source)
    space, kind = w.pick(("local", "symmetric")), w.kind()
    name = w.tensor(space, source.shape)
    word = w.pick(("tile_pull_data", "tile_pull_data", "rank_copy_data"))
    move = f"{word}({at(name, coords)}, {at(source.name, coords, peer)})"
    w.stage("comm", domain or ["d: 1"], w.nest([move, w.notify(name, coords, kind)]))
    w.made(name, source.shape, kind, source.exact)


def gather_pull(w: Writer) -> None:
    """From all."""
    source = w.source(symmetric=True)
    domain, coords = _tiling(w, source)
    shape, kind = ("ranks", *source.shape), w.kind()
    name = w.tensor(w.pick(("local", "symmetric")), shape)
    slot = [w.number("p"), *coords]
    move = f"tile_pull_data({at(name, slot)}, {at(source.name, coords, 'p')})"
    w.stage("comm", ["p: ranks", *domain], w.nest([move, w.notify(name, slot, kind)]))
    w.made(name, shape, kind, source.exact)


def exchange(w: Writer) -> None:
    """Slot p of a tensor over the ranks goes to rank p."""
    source = w.source(dims=3)
    if source.shape[0] != "ranks":
        return copy_here(w)
    domain, coords = _tiling(w, source)
    name, kind = w.tensor("symmetric", source.shape), w.kind()
    mine, theirs = [w.number("rank"), *coords[1:]], [w.number("p"), *coords[1:]]
    move = f"{w.pick(WORDS)}({at(name, mine, 'p')}, {at(source.name, theirs)})"
    w.stage("comm", ["p: ranks", *domain],
            w.nest([*w.wait(source, theirs), move, w.notify(name, mine, kind, "p")]))  # fmt: skip
    w.made(name, source.shape, kind, source.exact)
    return None


def ring(w: Writer) -> None:
    """Partial sums on their way round all ranks."""
    source = w.source(dims=3)
    if source.shape[0] != "ranks" or source.shape[1] == source.shape[2]:
        return copy_here(w)
    a, b = source.shape[1:]
    h, y = w.tensor("symmetric", source.shape), w.tensor("out", (a, b))
    box, own = ["s", INDEX[a], INDEX[b]], [INDEX[a], INDEX[b]]
    w.features.add("ring")
    here, there = at(h, box), at(h, box, "(rank + 1)")
    lines = [*w.wait(source, box), f"acc = {at(source.name, box)}", "if rank != s + 1:",
             f"    peer_tile_wait({here})", f"    acc += {here}", "if rank != s:",
             f"    tile_push_data({there}, acc)", f"    peer_tile_notify({there})",
             "else:", f"    {at(y, own)} = acc"]  # fmt: skip
    w.stage("compute", ["ranks", a, b], lines)
    return None


def by_table(w: Writer) -> None:
    """Rows, and ranks, that a table names."""
    source = w.source(symmetric=w.chance(0.5))
    rows, columns = source.shape
    name, kind = w.tensor("symmetric", source.shape), w.kind()
    across = [":" if rows == columns or w.chance(0.5) else INDEX[columns]]
    domain = [f"b: {rows}", *(d for d, c in zip((columns,), across, strict=True) if c != ":")]
    table = w.table(rows, rows, w.pick(("any", "permutation", "permutation")))
    if source.symmetric and not source.signal and w.chance(0.6):
        who = w.table(rows, "ranks")
        move = f"tile_pull_data({at(name, ['b', *across])}, {at(source.name, [f'{table}[b]', *across], f'{who}[b]')})"
        lines = [move, w.notify(name, ["b", *across], kind)]
    elif w.chance(0.5):
        peer, row = _peer(w), f"{table}[b]"
        move = f"tile_push_data({at(name, ['b', *across], peer)}, {at(source.name, [row, *across])})"
        lines = [*w.wait(source, [row, *across]), move, w.notify(name, ["b", *across], kind, peer)]
    else:
        row = f"{table}[b]"  # written by a table: safe where that is a permutation
        w.features.add("written by a table")
        w.written_by(table)
        move = f"{at(name, [row, *across])} = {at(source.name, ['b', *across])}"
        lines = [*w.wait(source, ["b", *across]), move, w.notify(name, [row, *across], kind)]
    w.stage("comm" if "_data" in move else "compute", domain, w.nest(lines))
    w.made(name, source.shape, kind, source.exact)


def gather_by_table(w: Writer) -> None:
    """To or from all ranks, with a row of a table in place of the index."""
    source = w.source(symmetric=w.chance(0.5))
    rows, columns = source.shape
    shape, kind = ("ranks", rows, columns), w.kind()
    name, table = w.tensor("symmetric", shape), w.table(rows, rows, "permutation")
    condition = [f"if {w.table(rows, 'ranks')}[b] >= 0:"] if w.chance(0.4) else []
    box, row = ["rank", "b", ":"], [f"{table}[b]", ":"]
    lines = [f"tile_push_data({at(name, box, 'p')}, {at(source.name, row)})", w.notify(name, box, kind, "p")]
    if condition:
        lines = [*condition, *("    " + x for x in lines)]
    w.stage("comm", ["p: ranks", f"b: {rows}"], [*w.wait(source, row), *lines])
    w.made(name, shape, kind, source.exact)


def from_listed(w: Writer) -> None:
    """From the rank, or of the row, that an entry of a table over the ranks names."""
    source = w.source(symmetric=True)
    rows, columns = source.shape
    name, kind = w.tensor("local", source.shape), w.kind()
    table, place = w.table_of_ranks(rows, "ranks"), w.pick(("rank + 1", "rank - 1", "rank", "ranks - 1", "rank + 2"))
    across = ":" if rows == columns or w.chance(0.5) else INDEX[columns]
    box = ["b", across]
    entry = f"{table}[{place}, b]"
    w.features.add("rank of a table of ranks")
    lines = [f"tile_pull_data({at(name, box)}, {at(source.name, box, entry)})"]
    if w.chance(0.4):
        w.features.add("comparison with an entry")
        there = f"tile_pull_data({at(name, box)}, {at(source.name, box, '(rank + 1)')})"
        lines = [f"if {entry} {w.pick(('==', '!='))} {w.pick(('rank', '0', '1'))}:", f"    {there}", "else:",
                 f"    {lines[0]}"]  # fmt: skip
    domain = [f"b: {rows}", *((columns,) if across != ":" else ())]
    w.stage("comm", domain, [*lines, w.notify(name, box, kind)])
    w.made(name, source.shape, kind, source.exact)


def relay(w: Writer) -> None:
    """Pushes the slot of each rank on to a neighbour."""
    source = w.source(dims=3)
    if source.shape[0] != "ranks":
        return copy_here(w)
    domain, coords = _tiling(w, source)
    name, kind, peer = w.tensor("symmetric", source.shape), w.kind(), _peer(w)
    box = [w.number(w.pick(("s", "s + 1", "s + rank", "rank - s"))), *coords[1:]]
    move = f"{w.pick(WORDS)}({at(name, box, peer)}, {at(source.name, box)})"
    w.stage("comm", ["ranks", *domain], w.nest([*w.wait(source, box), move, w.notify(name, box, kind, peer)]))
    w.made(name, source.shape, kind, source.exact)
    return None


def stepped(w: Writer) -> None:
    """To a neighbour or to all, step by step, with memory for some of the steps."""
    source = w.source(dims=3)
    if source.shape[0] != "ranks":
        return copy_here(w)
    domain, coords = _tiling(w, source)
    kind, step = w.kind(), w.number("s")
    if w.chance(0.5):
        shape, box, peer, around = source.shape, [step, *coords[1:]], _peer(w), ["ranks", *domain]
    else:
        shape, box, peer = ("ranks", *source.shape), [step, "rank", *coords[1:]], "p"
        around = ["ranks", "p: ranks", *domain]
    name = w.tensor(w.pick(("symmetric", "symmetric", "local")) if peer == "rank" else "symmetric", shape)
    moved = at(source.name, [step, *coords[1:]])
    lines = [*w.wait(source, [step, *coords[1:]]), f"{w.pick(WORDS)}({at(name, box, peer)}, {moved})"]
    stage = w.stage("comm", around, w.nest([*lines, w.notify(name, box, kind, peer)]))
    if w.chance(0.9):
        w.tiles |= {stage: "on sm(1)", name: f"slots(s={w.pick((1, 2, 2, 3))})"}
    w.features.add("steps")
    if len(shape) == 3:
        w.made(name, shape, kind, source.exact)
        return None
    y, own = w.tensor("out", source.shape), ["s", *coords[1:]]
    inside = [f"{PAIRS[kind][1]}({at(name, ['s', 'p', *coords[1:]])})", f"acc += {at(name, ['s', 'p', *coords[1:]])}"]
    lines = ["acc = zeros(f32)", "for (p: ranks):", *("    " + line for line in inside), f"{at(y, own)} = acc"]
    w.stage("compute", ["s: ranks", *domain], w.nest(lines))
    return None


def along_grid(w: Writer) -> None:
    """From all that differ in one coordinate; a neighbour's part is taken."""
    w.grid()
    source, (side, index) = w.source(), w.pick(((ROW, "r"), (PLACE, "p")))
    domain, coords = _tiling(w, source)
    name, kind = w.tensor("symmetric", (side, *source.shape)), w.kind()
    there = f"({side} = {index})"
    lines = [f"tile_push_data({at(name, [side, *coords], there)}, {at(source.name, coords)})",
             w.notify(name, [side, *coords], kind, there)]  # fmt: skip
    w.stage("comm", w.pick(([side, *domain], [*domain, side])), [*w.wait(source, coords), *w.nest(lines)])
    got = Source(name=name, shape=(side, *source.shape), signal=kind)
    taken, next_kind = [w.pick((f"{side} + 1", f"{side} - 1", side, f"rank.{side} + ranks.{side}")), *coords], w.kind()
    result = w.tensor("local", source.shape)
    w.stage("compute", domain or ["d: 1"],
            [*w.wait(got, taken), f"{at(result, coords)} = {at(name, taken)}", w.notify(result, coords, next_kind)],
            )  # fmt: skip
    w.made(result, source.shape, next_kind, source.exact)


def in_group(w: Writer) -> None:
    """Around a group of ranks, which alone have the memory for it; others keep what they have."""
    source, (group, start, stop) = w.source(), w.group()
    domain, coords = _tiling(w, source)
    name, kind = w.tensor("symmetric", source.shape, on=group), w.kind()
    there = f"{group}[rank.{group} + {w.pick((0, 1, 1, 2))}]"
    lines = [*w.wait(source, coords), f"tile_push_data({at(name, coords, there)}, {at(source.name, coords)})"]
    w.stage("comm", domain or ["d: 1"], [*lines, w.notify(name, coords, kind, there)], on=group)
    result, next_kind = w.tensor("local", source.shape), w.kind()
    notify = w.notify(result, coords, next_kind)
    got = w.wait(Source(name=name, shape=source.shape, signal=kind), coords)
    w.stage("compute", domain or ["d: 1"], [*got, f"{at(result, coords)} = {at(name, coords)}", notify], on=group)
    others = [*w.wait(source, coords), f"{at(result, coords)} = {at(source.name, coords)}", notify]
    w.stage("compute", domain or ["d: 1"], [f"if rank < {start} or rank >= {stop}:", *(f"    {one}" for one in others)])
    w.made(result, source.shape, next_kind, source.exact)


MOVERS: tuple[Callable[[Writer], None], ...] = (
    copy_here, push, push, gather_push, gather_push, pull, gather_pull, exchange, ring, by_table, gather_by_table,
    from_listed, relay, stepped, along_grid, in_group,
)  # fmt: skip
