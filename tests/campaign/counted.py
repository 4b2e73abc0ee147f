"""Stages over counted ranges: ends beyond a dimension, and ends of outputs that depend on a coordinate.

Where ends are spelled in two ways, some pairs are equal for all entries and some are not: each program is refused, or
right for the entries of every launch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tests.campaign.writer import INDEX, PAIRS, Writer, at

KINDS = ("uniform", "uniform", "uniform", "one", "empty", "full", "zeros")
"""Routings of cases with integers of a launch."""
LAUNCH = "integers of a launch"


def _integers(w: Writer, shape: str, below: str) -> str:
    """An index tensor that each launch brings, of integers up to a size."""
    name = w.fresh("n")
    w.declared.append(f"{name} : in [{shape}] <= {below}")
    w.features.add(LAUNCH)
    return name


def _bound(w: Writer, rows: str) -> str:
    """A dimension that bounds counts of rows: as large, or smaller or larger."""
    if w.chance(0.3):
        return rows
    size = w.size(rows)
    other = w.pick((max(1, size // 2), max(1, size - 1), size + 1, size + 4, 2 * size + 3))
    w.features.add("count beyond its dimension" if other > size else "count below its dimension")
    return w.dim(w.fresh("L"), other)


def _end(w: Writer, count: str, rows: str, below: str) -> str:
    """An end of a range, which may be beyond the dimension or below zero."""
    options = (
        count, count, f"{count} * 2", f"{count} + {w.rng.randrange(1, 9)}", f"{count} - 2", f"{count} // 2",
        f"{below} - {count}", f"min({count} * 2, {rows})", f"max({count}, 2)", f"{rows} + {count}", f"{count} * rank",
        f"{count} - rank * 3",
    )  # fmt: skip
    end = w.pick(options)
    if end != count:
        w.features.add("end that is computed")
    return end


def _spelled(w: Writer, end: str, rows: str) -> str:
    """The same end, mostly as it is, or in another form, or clamped to the dimension, or another end."""
    if w.chance(0.6):
        return end
    options = (
        f"{end} + 0", f"({end}) * 1", f"({end}) + 1 - 1", f"2 * ({end}) - ({end})", f"min({end}, {rows})",
        f"max({end}, 0)", f"min({rows}, max(0, {end}))", f"({end}) + 1", f"({end}) - 1", f"min({end}, {rows} - 1)",
        f"({end}) * 2 // 2",
    )  # fmt: skip
    w.features.add("end in another form")
    return w.pick(options)


def _rows(w: Writer) -> tuple[str, str]:
    return w.dim("M"), w.dim(w.pick(("N", "K")))


def _wait(w: Writer, name: str, coords: Sequence[str], kind: str) -> str:
    return f"{PAIRS[kind][1]}({at(name, w.wider(coords))})"


def counted_rows(w: Writer) -> None:
    """Rows up to an end that each launch brings: written, maybe passed on by a tensor, and defined that far."""
    rows, columns = _rows(w)
    below = _bound(w, rows)
    end = _end(w, _integers(w, "", below), rows, below)
    i, j = INDEX[rows], INDEX[columns]
    x, y, lines = w.input(rows, columns), w.fresh("e"), list[str]()
    w.declared.append(f"{y} : out [{rows}[: {_spelled(w, end, rows)}], {columns}]")
    value = at(x.name, [i, j])
    if w.chance(0.6):
        c, kind = w.tensor("local", (rows, columns)), w.kind()
        domain = [f"{i}: {rows}[: {_spelled(w, end, rows)}]", columns]
        w.stage("compute", domain, [f"{at(c, [i, j])} = {value}", w.notify(c, [i, j], kind)])
        value, lines = at(c, [i, j]), [_wait(w, c, [i, j], kind)]
    domain = [f"{i}: {rows}[: {_spelled(w, end, rows)}]", columns]
    w.stage("compute", domain, [*lines, f"{at(y, [i, j])} = {value}"])


def counted_of_others(w: Writer) -> None:
    """A tensor whose readers have a longer dimension than its writer, which stops where its own one ends."""
    rows, columns = _rows(w)
    longer = w.dim(w.fresh("L"), w.size(rows) + w.rng.randrange(6))
    below = w.pick((rows, longer, _bound(w, rows)))
    end = _end(w, _integers(w, "", below), rows, below)
    i, j, c, kind = INDEX[rows], INDEX[columns], w.tensor("local", (rows, columns)), w.kind()
    x = w.input(longer, columns)
    w.sources.remove(x)
    w.features.add("end beyond the writer's dimension")
    writes = [f"{at(c, [i, j])} = {at(x.name, [f'0 + {i}', j])}", w.notify(c, [i, j], kind)]
    w.stage("compute", [f"{i}: {rows}[: {end}]", columns], writes)
    y, over = w.tensor("out", (columns,)), w.pick((rows, longer))
    inner = [_wait(w, c, ["b", j], kind), f"acc += {at(c, ['b', j])}"]
    if over == longer and w.chance(0.8):
        inner = [f"if b < {rows}:", *("    " + line for line in inner)]
    loop = f"for (b: {over}[: {_spelled(w, end, rows)}] by 1):"
    lines = ["acc = zeros(f32)", loop, *("    " + line for line in inner), f"{at(y, [j])} = acc"]
    w.stage("compute", [columns], lines)


def counted_by_coordinate(w: Writer) -> None:
    """Rows of each part up to an end of its own."""
    rows, columns = _rows(w)
    parts = w.dim("H", w.pick((1, 2, 3, 4)))
    below = _bound(w, rows)
    count = _integers(w, parts, below)
    end = _end(w, count, rows, below)
    i, j = INDEX[rows], INDEX[columns]
    x, y, box, lines = w.input(parts, rows, columns), w.fresh("e"), ["h", i, j], list[str]()
    w.sources.remove(x)
    w.features.add("end by a coordinate")
    w.declared.append(f"{y} : out [{parts}, {rows}[: {_spelled(w, end, rows)}], {columns}]")

    def domain(entry: str) -> list[str]:
        own = _spelled(w, end, rows).replace(count, f"{count}[{entry}]")
        return [f"h: {parts} by 1", f"{i}: {rows}[: {own}]", columns]

    value = at(x.name, box)
    if w.chance(0.5):
        c, kind = w.tensor("local", (parts, rows, columns)), w.kind()
        w.stage("compute", domain("h"), [f"{at(c, box)} = {value}", w.notify(c, box, kind)])
        lines, value = [_wait(w, c, box, kind)], at(c, box)
    w.stage("compute", domain(w.pick(("h", "h", "h", "h", "0"))), [*lines, f"{at(y, box)} = {value}"])


def counted_of_ranks(w: Writer) -> None:
    """Rows of every rank, up to what it tells: an end of the output for each rank."""
    rows, columns = _rows(w)
    below = w.pick((rows, rows, _bound(w, rows)))
    each = w.chance(0.4)
    count, told = _integers(w, "ranks" if each else "", below), w.fresh("n")
    i, j, kind = INDEX[rows], INDEX[columns], w.kind()
    x, h, y = w.input(rows, columns), w.tensor("symmetric", ("ranks", rows, columns)), w.fresh("e")
    w.features |= {"count that is told", "end by a coordinate"}
    w.declared.append(f"{told} : symmetric [ranks] <= {below}")
    sent = w.pick(("{}", "{}", "{} // 2", "min({}, 3)")).format(f"{count}[p]" if each else count)
    clamped = f"min({told}, {rows})" if below != rows else told  # a count that is computed may be no more
    w.declared.append(f"{y} : out [ranks, {rows}[: {clamped}], {columns}]")
    tells = [f"tile_push_data({told}[rank] @ p, {sent})", f"producer_tile_notify({told}[rank] @ p)"]
    w.stage("comm", ["p: ranks"], tells)
    box, there = ["rank", i, j], ["s", i, j]
    sends = [f"tile_push_data({at(h, box, 'p')}, {at(x.name, [i, j])})", w.notify(h, box, kind, "p")]
    w.stage("comm", ["p: ranks", f"{i}: {rows}[: {_spelled(w, sent, rows)}]", columns], sends)
    waits = [f"consumer_tile_wait({told}[s])", _wait(w, h, there, kind)]
    domain = ["s: ranks", f"{i}: {rows}[: {_spelled(w, f'{told}[s]', rows)}]", columns]
    w.stage("compute", domain, [*waits, f"{at(y, there)} = {at(h, there)}"])


COUNTED: tuple[Callable[[Writer], None], ...] = (
    counted_rows, counted_rows, counted_of_others, counted_by_coordinate, counted_by_coordinate, counted_of_ranks,
)  # fmt: skip
