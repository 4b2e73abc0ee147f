"""Stages that compute outputs from what others made: each writes an output once."""

from __future__ import annotations

from collections.abc import Callable

from tests.campaign.counted import COUNTED
from tests.campaign.tiled import TILED
from tests.campaign.typed import TYPED
from tests.campaign.writer import INDEX, PAIRS, Source, Writer, at

FUNCTIONS = ("exp(minimum({}, 3.0))", "silu({})", "relu({})", "tanh({})", "abs({})", "sigmoid({})", "gelu({})")


def _plane(w: Writer, source: Source) -> tuple[list[str], list[str], tuple[str, ...]]:
    """The domain, the coordinates and the shape of an output like the source."""
    shape = source.shape
    planar = [d for d in shape if d != "ranks"]
    whole = [d for d in planar if planar.count(d) > 1 or w.chance(0.25)]
    if len(whole) == len(planar):
        whole = [d for d in planar if planar.count(d) > 1]
    domain = [d for d in dict.fromkeys(shape) if d not in whole]
    return domain or ["d: 1"], w.coords(shape, whole), shape


def copy_out(w: Writer) -> None:
    """As it is: bit by bit."""
    source = w.source(w.pick((2, 3)))
    domain, coords, shape = _plane(w, source)
    y = w.tensor("out", shape, word="e" if source.exact else "y")
    w.stage("compute", domain, [*w.wait(source, coords), *w.nest([f"{at(y, coords)} = {at(source.name, coords)}"])])


def elementwise(w: Writer) -> None:
    source = w.source(w.pick((2, 3)))
    domain, coords, shape = _plane(w, source)
    y, other = w.tensor("out", shape), w.input(*shape)
    x, z = at(source.name, coords), at(other.name, coords)
    value = w.pick((f"{x} + {z}", f"{x} * {z} - 1.0", f"maximum({x}, {z})", f"{x} / (abs({z}) + 1.0)",
                    w.pick(FUNCTIONS).format(x), f"0.5 * {x} - {z}"))  # fmt: skip
    w.stage("compute", domain, [*w.wait(source, coords), *w.nest([f"{at(y, coords)} = {value}"])])


def over_ranks(w: Writer) -> None:
    """Sums or maxima over the ranks: a reduction, or a loop."""
    source = w.source(3)
    if source.shape[0] != "ranks" or source.shape[1] == source.shape[2]:
        return copy_out(w)
    a, b = source.shape[1:]
    y, own = w.tensor("out", (a, b)), [INDEX[a], INDEX[b]]
    if w.chance(0.5):
        box = [":", *own]
        op = w.pick(("sum", "max", "min"))
        w.features.add("reduction")
        lines = [*w.wait(source, box), f"{at(y, own)} = {op}({at(source.name, box)}, axis=0)"]
    else:
        slot = [w.number("s"), *own]
        w.features.add("loop over ranks")
        inside = [*w.wait(source, slot), f"acc += {at(source.name, slot)}"]
        if w.chance(0.3):
            inside = ["if s != rank:", *("    " + x for x in inside)]
        lines = ["acc = zeros(f32)", "for (s: ranks):", *("    " + x for x in inside), f"{at(y, own)} = acc"]
    w.stage("compute", [a, b], lines)
    return None


def along(w: Writer) -> None:
    """A reduction along rows, whole or tile by tile."""
    source = w.source()
    a, b = source.shape
    if a == b:
        return copy_out(w)
    y, op = w.tensor("out", (a,)), w.pick(("sum", "max", "min"))
    i, j = INDEX[a], INDEX[b]
    w.features.add("reduction")
    if op == "sum" and w.chance(0.4):
        lines = ["acc = zeros(f32)", f"for ({j}: {b}):", *("    " + x for x in w.wait(source, [i, j])),
                 f"    acc += sum({at(source.name, [i, j])}, axis=1)", f"{at(y, [i])} = acc"]  # fmt: skip
        w.stage("compute", [a], lines)
    elif w.chance(0.1):
        domain = [a, b]  # an index of the domain is no dimension to reduce
        w.stage("compute", domain, [*w.wait(source, [i, j]), f"{at(y, [i])} = {op}({at(source.name, [i, j])}, axis=1)"])
    else:
        lines = [*w.wait(source, [i, ":"]), f"{at(y, [i])} = {op}({at(source.name, [i, ':'])}, axis=1)"]
        w.stage("compute", [a], lines)
    return None


def product(w: Writer) -> None:
    """A matrix product over a whole dimension, a loop, or an index of the domain."""
    source = w.source(w.pick((2, 2, 3)))
    *lead, a, b = source.shape
    if a == b or (lead and lead[0] != "ranks"):
        return copy_out(w)
    first = ["s"] if lead else []
    i, k = INDEX[a], INDEX[b]
    w.features.add("product")
    if w.chance(0.2):
        weights = w.input(b, b)
        y, box = w.tensor("out", source.shape), [*first, i, k]
        square = f"{at(weights.name, [k, k])}" + w.pick((".T", ""))
        w.features.add("product over an index of the domain")
        w.stage("compute", [*lead, a, b],
                [*w.wait(source, box), f"{at(y, box)} = dot({at(source.name, box)}, {square})"])  # fmt: skip
        return None
    n = w.dim("E")
    turned = w.chance(0.5)
    weights = w.input(n, b) if turned else w.input(b, n)
    y, e = w.tensor("out", (*lead, a, n)), INDEX["E"]
    tail = ".T" if turned else ""
    if w.chance(0.6):
        box = [*first, i, ":"]
        wx = at(weights.name, [e, ":"] if turned else [":", e]) + tail
        lines = [*w.wait(source, box), *w.nest([f"{at(y, [*first, i, e])} = dot({at(source.name, box)}, {wx})"])]
    else:
        box = [*first, i, k]
        wx = at(weights.name, [e, k] if turned else [k, e]) + tail
        w.features.add("product in a loop")
        lines = ["acc = zeros(f32)", f"for ({k}: {b}):", *("    " + x for x in w.wait(source, box)),
                 f"    acc += dot({at(source.name, box)}, {wx})", f"{at(y, [*first, i, e])} = acc"]  # fmt: skip
    w.stage("compute", [*lead, a, n], lines)
    return None


def attention(w: Writer) -> None:
    """Streaming attention over keys tile by tile, over all of them, or over an index of the domain."""
    source = w.source()
    s, d = source.shape
    if s == d or "M" in (s, d):
        return copy_out(w)
    w.features.add("attention")
    queries, y, i, k = w.input("M", d), w.tensor("out", ("M", d)), INDEX["M"], INDEX[s]
    keys = at(source.name, [k, ":"])
    if w.chance(0.2):
        w.features.add("attention over an index of the domain")
        q, o = w.input(s, d), w.tensor("out", (s, d))
        w.declared = [line for line in w.declared if not line.startswith(f"{y} ")]
        body = ["state = online_softmax(f32)",
                f"state = attend(state, {at(q.name, [k, ':'])}, {keys}, {keys}, 0.5)",
                f"{at(o, [k, ':'])} = finish(state)"]  # fmt: skip
        w.stage("compute", [s], [*w.wait(source, [k, ":"]), *body])
        return None
    mask = w.pick(("", "", f", pos({i})[:, None] >= pos({k})[None, :]"))
    if w.chance(0.5) or mask:
        body = [f"for ({k}: {s}):", *("    " + x for x in w.wait(source, [k, ":"])),
                f"    state = attend(state, {at(queries.name, [i, ':'])}, {keys}, {keys}, 0.5{mask})"]  # fmt: skip
    else:
        keys = at(source.name, [":", ":"])
        body = [*w.wait(source, [":", ":"]),
                f"state = attend(state, {at(queries.name, [i, ':'])}, {keys}, {keys}, 0.5)"]  # fmt: skip
    w.stage("compute", ["M"], ["state = online_softmax(f32)", *body, f"{at(y, [i, ':'])} = finish(state)"])
    return None


def positions(w: Writer) -> None:
    """`where` and `pos`."""
    source = w.source()
    a, b = source.shape
    if a == b:
        return copy_out(w)
    y, i, j = w.tensor("out", (a, b)), INDEX[a], INDEX[b]
    x = at(source.name, [i, j])
    rows, columns, n = f"pos({i})[:, None]", f"pos({j})", w.rng.randrange(9)
    value = w.pick((f"where({rows} >= {n}, {x}, 0.0)", f"where({columns} < {rows}, {x}, 1.0)", f"{x} * {rows}",
                    f"where({rows} == {columns}, 2.0 * {x}, {x})", f"{x} + ({rows} * {n} - {columns})"))  # fmt: skip
    w.features.add("pos")
    w.stage("compute", [a, b], [*w.wait(source, [i, j]), f"{at(y, [i, j])} = {value}"])
    return None


def casts(w: Writer) -> None:
    source = w.source()
    domain, coords, shape = _plane(w, source)
    kind = w.pick(("f16", "bf16", "f32", None))
    y, inner = w.tensor("out", shape, kind), w.pick(("f16", "bf16", "f32"))
    w.features.add("casts")
    w.stage("compute", domain, [*w.wait(source, coords), f"{at(y, coords)} = f32({inner}({at(source.name, coords)}))"])


def integers(w: Writer) -> None:
    """Arithmetic of integers, and integers from comparisons."""
    a, b = w.plane()
    x, i, j = w.input(a, b, dtype="i32"), INDEX[a], INDEX[b]
    y = w.tensor("out", (a, b), "i32", word="e")
    n = w.param("i32", w.pick((-3, 0, 1, 5, 2**31 - 1, -(2**31))))
    box = at(x.name, [i, j])
    value = w.pick((f"{box} + {n}", f"{box} * 3 - {n}", f"where({box} > 0, {box}, {n})", f"maximum({box}, {n})",
                    f"{box} + (rank + {n} % 7)", f"abs({box}) + pos({j})"))  # fmt: skip
    w.features.add("integers")
    w.stage("compute", [a, b], [f"{at(y, [i, j])} = {value}"])


def numbers(w: Writer) -> None:
    """A parameter that may be no ordinary number."""
    a, b = w.plane()
    x, y = w.input(a, b), w.tensor("out", (a, b))
    f = w.param("f32", w.pick((0.5, 0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e30, -1e-30)))
    box, out = at(x.name, [INDEX[a], INDEX[b]]), at(y, [INDEX[a], INDEX[b]])
    value = w.pick((f"{box} * {f}", f"{box} + {f}", f"maximum({box}, {f})", f"{f} - {box}",
                    f"where({box} > 0.0, {box}, {f})", f"{box} / {f}"))  # fmt: skip
    w.stage("compute", [a, b], [f"{out} = {value}"])


def folded(w: Writer) -> None:
    """Rows that arithmetic names, some of which is only a number of the index."""
    w.dim("H", w.pick((1, 2, 4, 6)))
    columns = w.pick(("N", "K"))
    x, y = w.input("H", columns), w.tensor("out", ("H", columns), word="e")
    n = w.param("i32", w.pick((1, 1, 2, 0)))
    j = INDEX[columns]
    row = w.pick((f"h // {n}", f"h * {n}", "h * 1", "h - 0", "h // 1", "h // ranks", "(h * ranks) // ranks",
                  f"(h + {n}) - {n}", f"h % {max(1, w.size('H'))}", "0 + h", "h + 0"))  # fmt: skip
    w.features.add("arithmetic that folds")
    lines = [f"{at(y, ['h', j])} = {at(x.name, [row, j])}"]
    if w.chance(0.4):
        other = w.tensor("out", ("H", columns), word="e")
        lines.append(f"{at(other, [row, j])} = {at(x.name, ['h', j])}")
    w.stage("compute", w.pick((["H", columns], [columns, "H"])), w.nest(lines))


def shifted(w: Writer) -> None:
    """A tile moved by an offset, at the edge of a larger tensor or beyond it."""
    rows, columns = w.dim("M"), w.pick(("N", "K"))
    more = w.rng.randrange(5)
    longer = w.fresh("L")
    w.dim(longer, w.size(rows) + more)
    offset = w.pick((more, more, max(0, more - 1), 1, more + 1)) if w.chance(0.5) else w.rng.randrange(more + 1)
    x, j = w.input(longer, w.dim(columns)), INDEX[columns]
    w.sources.remove(x)
    w.features.add("shifted tile")
    shift = f"{offset} + i" if w.chance(0.6) else f"{w.param('i32', offset)} + i"
    if w.chance(0.5):
        y = w.tensor("out", (rows, columns), word="e")
        w.stage("compute", [rows, columns], w.nest([f"{at(y, ['i', j])} = {at(x.name, [shift, j])}"]))
        return
    y, word = w.tensor("out", (longer, columns), word="e"), w.pick(("compute", "comm"))
    z = w.input(rows, columns)
    w.stage(word, [rows, columns], [f"{at(y, [shift, j])} = {at(z.name, ['i', j])}"])
    rest = f"if b < {offset} or b >= {offset} + {rows}:"
    w.stage("compute", [f"b: {longer}", columns], [rest, f"    {at(y, ['b', j])} = {at(x.name, ['b', j])}"])


def onto_itself(w: Writer) -> None:
    """A copy of rows of a tensor onto rows of it that overlap."""
    rows, columns = w.dim("M"), w.dim(w.pick(("N", "K")))
    longer = w.fresh("L")
    w.dim(longer, w.size(rows) + 2)
    x, c = w.input(rows, columns), w.tensor("local", (longer, columns))
    y = w.tensor("out", (rows, columns), word="e")
    w.features |= {"overlapping copy", "with a mistake"}
    first, second = w.pick((("1 + i", "2 + i"), ("2 + i", "1 + i")))
    how = w.pick(("", "", " + 0.0"))
    lines = [f"{c}[{first}, :] = {x.name}[i, :]", f"{c}[{second}, :] = {c}[{first}, :]{how}",
             f"{y}[i, :] = {c}[{second}, :]"]  # fmt: skip
    w.stage("compute", [rows], lines)


def gathered(w: Writer) -> None:
    """Rows that a table names: points, or all of them at once, read or written."""
    source = w.source()
    rows, columns = source.shape
    if rows == columns:
        return copy_out(w)
    y, j = w.tensor("out", (rows, columns), word="e" if source.exact else "y"), INDEX[columns]
    table = w.table(rows, rows, w.pick(("any", "permutation")))
    match w.pick(("point", "read", "write", "row", "near")):
        case "point":
            row = [f"{table}[b]", j]
            w.stage("compute", [f"b: {rows}", columns],
                    [*w.wait(source, row), f"{at(y, ['b', j])} = {at(source.name, row)}"])  # fmt: skip
        case "row":
            w.written_by(table)
            w.stage("compute", [f"b: {rows}", columns],
                    [*w.wait(source, ["b", j]), f"{y}[{table}[b], {j}] = {at(source.name, ['b', j])}"])  # fmt: skip
        case "near":
            shift, guard = w.pick((("b + 1", f"b + 1 < {rows}"), ("b - 1", "b > 0"), ("b - 1", "b >= 0")))
            row, own = [f"{table}[{shift}]", j], ["b", j]
            w.features.add("table near its bounds")
            then = [*w.wait(source, row), f"{at(y, own)} = {at(source.name, row)}"]
            other = [*w.wait(source, own), f"{at(y, own)} = {at(source.name, own)}"]
            lines = [f"if {guard}:", *("    " + x for x in then), "else:", *("    " + x for x in other)]
            w.stage("compute", [f"b: {rows}", columns], lines)
        case kind:
            box, whole = [f"{table}[:]", j], [":", j]
            w.features.add("rows of a table")
            to, of = (whole, box) if kind == "read" else (box, whole)
            if kind != "read":
                w.written_by(table)
            lines = [*w.wait(source, whole), f"{at(y, to)} = {at(source.name, of)}"]
            w.stage("compute", [columns], lines)
    return None


def by_ranks(w: Writer) -> None:
    """Entries of a table over the ranks: as rows, as numbers to compare, one or both."""
    source = w.source()
    rows, columns = source.shape
    if rows == columns:
        return copy_out(w)
    y, j = w.tensor("out", (rows, columns), word="e" if source.exact else "y"), INDEX[columns]
    table = w.table_of_ranks(rows, rows)
    place = w.pick(("rank + 1", "rank - 1", "rank", "rank + 2", "ranks - 1", "2 * rank + 1", "rank - ranks"))
    entry = f"{table}[{place}, {w.pick(('b', 'b', '0'))}]"
    row, own = [entry, j], ["b", j]
    then = [*w.wait(source, row), f"{at(y, own)} = {at(source.name, row)}"]
    other = [*w.wait(source, own), f"{at(y, own)} = {at(source.name, own)}"]
    if w.chance(0.3):
        w.features.add("row of a table of ranks")
        w.stage("compute", [f"b: {rows}", columns], then)
        return None
    w.features.add("comparison with an entry")
    with_what = w.pick((str(w.rng.randrange(min(6, w.size(rows)))), "rank", "b", f"{table}[rank, b]", "ranks"))
    condition = f"{entry} {w.pick(('==', '==', '!=', '<', '>='))} {with_what}"
    w.stage("compute", [f"b: {rows}", columns],
            [f"if {condition}:", *("    " + x for x in then), "else:", *("    " + x for x in other)])  # fmt: skip
    return None


def own_rank(w: Writer) -> None:
    """A tensor that is not symmetric, on the own rank by name."""
    a, b = w.plane()
    x, box = w.input(a, b), [INDEX[a], INDEX[b]]
    y = w.tensor("out", (a, b), word="e")
    w.features.add("own rank by name")
    w.stage(
        "compute", [a, b], [f"{at(y, box)} = {at(x.name, box, w.pick(('rank', 'rank', 'rank', '(rank + ranks)')))}"]
    )


def iterations(w: Writer) -> None:
    """Loops that may have no iterations, and names that only they assign."""
    source = w.source()
    domain, coords, shape = _plane(w, source)
    y, less = w.tensor("out", shape), w.pick(("ranks - 1", "ranks - 2", "ranks"))
    x = at(source.name, coords)
    w.features.add("loop that may have no iterations")
    first = [] if w.chance(0.35) else [f"acc = {x}"]
    step = w.pick(("acc = {x} * 2.0", "acc = {x} + u")) if not first else w.pick(("acc += {x}", "acc = {x} - u"))
    inner = [f"    {step.format(x=x)}"]
    if w.chance(0.3):
        inner = ["    if u > 0:", *("    " + line for line in inner)]
    w.stage("compute", domain, [*w.wait(source, coords), *first, f"for (u: {less}):", *inner, f"{at(y, coords)} = acc"])


def deep(w: Writer) -> None:
    """Many conditions inside one another."""
    source = w.source()
    domain, coords, shape = _plane(w, source)
    y, depth = w.tensor("out", shape), w.pick((5, 20, 32, 40))
    w.features.add("many conditions")
    lines = [f"{'    ' * n}if rank < ranks + {n}:" for n in range(depth)]
    lines.append(f"{'    ' * depth}{at(y, coords)} = {at(source.name, coords)}")
    w.stage("compute", domain, [*w.wait(source, coords), *lines])


def _in_place(w: Writer) -> str:
    """A space of tensors that launches change in place."""
    space = w.pick(("inout", "kept"))
    w.features.add(space)
    return space


def of_the_launch_before(w: Writer) -> None:
    """What a peer has pushed in the launch before, and then pushes again."""
    source = w.source()
    domain, coords, shape = _plane(w, source)
    name, y = w.tensor("kept symmetric", shape, word="s"), w.tensor("out", shape, word="e" if source.exact else "y")
    free, kind = w.rng.sample(sorted(PAIRS), 2)
    step = w.pick((1, 1, 2))
    w.features.add("kept symmetric")
    w.stage(
        "compute", domain, [f"{at(y, coords)} = {at(name, coords)}", w.notify(name, coords, free, f"(rank - {step})")]
    )
    there = f"(rank + {step})"
    lines = w.nest([f"tile_push_data({at(name, coords, there)}, {at(source.name, coords)})"])
    awaited = [*w.wait(source, coords), f"{PAIRS[free][1]}({at(name, w.wider(coords))})"]
    w.stage("comm", domain, [*awaited, *lines, w.notify(name, coords, kind, there)])
    w.made(name, shape, kind, exact=source.exact)


def in_place(w: Writer) -> None:
    """A tensor that a stage changes, all of it or a part; another one may read before what was there."""
    source = w.source()
    domain, coords, shape = _plane(w, source)
    name, kind = w.tensor(_in_place(w), shape, word="s"), w.kind()
    w.features.add("written in place")
    state, value, before = at(name, coords), at(source.name, coords), list[str]()
    if w.chance(0.4):
        w.features.add("read before it is written in place")
        y, other = w.tensor("out", shape, word="e"), w.pick([one for one in PAIRS if one != kind])
        w.stage("compute", domain, [f"{at(y, coords)} = {state}", w.notify(name, coords, other)])
        before = [f"{PAIRS[other][1]}({at(name, w.wider(coords))})"]
    change = w.pick((f"{state} * 0.5 + {value}", value, f"{state} + {value}"))
    lines = [f"{state} = {change}"]
    if w.chance(0.3):
        w.features.add("loop that writes in place")
        lines = [f"for ({w.fresh('u')}: 3):", *("    " + line for line in lines)]
    elif w.chance(0.4):
        w.features.add("part that is written in place")
        lines = [f"if {w.pick(('rank == 0', 'rank != ranks - 1', 'rank > 1'))}:", *("    " + line for line in lines)]
    w.stage("compute", domain, [*w.wait(source, coords), *before, *w.nest(lines), w.notify(name, coords, kind)])
    w.made(name, shape, kind, exact=False)


def added(w: Writer) -> None:
    """Additions of several tiles, and of several stages, to one tensor."""
    a, b = w.plane()
    name, kind = w.tensor(_in_place(w), (a, b), word="s"), w.kind()
    dtype = w.pick(("f32", "f32", "bf16", "f16", ""))
    w.declared[-1] += f" {dtype} sum" if dtype else " sum"
    w.features.add("added to in any order")
    box = [INDEX[a], INDEX[b]]
    for _ in range(w.rng.randint(1, 2)):
        x = w.input("K" if "K" not in (a, b) else "H", a, b)
        e, factor = INDEX[x.shape[0]], w.pick(("1.0", "0.5"))
        lines = w.nest([f"{at(name, box)} += {at(x.name, [e, *box])} * {factor}"])
        w.stage("compute", [f"{e}: {x.shape[0]} by 1", a, b], [*lines, w.notify(name, box, kind)])
    w.made(name, (a, b), kind, exact=False)


MAKERS: tuple[Callable[[Writer], None], ...] = (
    copy_out, copy_out, elementwise, elementwise, over_ranks, over_ranks, along, product, product, attention, positions,
    casts, integers, numbers, folded, shifted, onto_itself, gathered, gathered, by_ranks, own_rank, iterations,
    in_place, in_place, added, of_the_launch_before,
    *TYPED, *TILED, *COUNTED,
)  # fmt: skip
RARE: tuple[Callable[[Writer], None], ...] = (deep,)
