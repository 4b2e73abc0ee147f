"""Integers of a launch are proved for all values, or refused with the property that would help."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tilelink
from tests.launch_programs import SMALL, examples
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.errors import BindingError, CoverageError, ExclusiveWriteError, TileLinkError
from tilelink.ir.link import link, strip
from tilelink.ir.program import Literal, Local, Value
from tilelink.ir.scalar import Scalar
from tilelink.lowering.guards import Guards
from tilelink.lowering.stored_entries import SHORT
from tilelink.lowering.value_numbering import ValueKeys
from tilelink.planning.plan import make_plan
from tilelink.verifier import undefined_reads

EXAMPLES = examples()


def text_of(name: str) -> str:
    return str(EXAMPLES[name].program)


def plan(text: str, ranks: int = 3, name: str | None = None) -> None:
    program = tilelink.parse(text).program(name)
    dims = {one.name: one.example for one in program.params if one.example is not None}
    tilelink.plan(program, ranks=ranks, dims=dims)


@thorough(unless=lambda ranks: ranks == 3)
@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_examples_are_safe(name: str, ranks: int) -> None:
    for schedule in EXAMPLES[name].schedules:
        tilelink.plan(EXAMPLES[name].program, schedule, ranks=ranks, dims=EXAMPLES[name].sizes)


WAITS = [
    (name, number)
    for name in ("ag_gemm_rows", "grouped_gemm", "expert_parallel")
    for number in range(text_of(name).count("consumer_tile_wait"))
]


@pytest.mark.parametrize(("name", "number"), WAITS)
def test_a_program_is_refused_without_one_of_its_waits(name: str, number: int) -> None:
    lines = text_of(name).splitlines()
    at = [n for n, line in enumerate(lines) if "consumer_tile_wait" in line][number]
    with pytest.raises(TileLinkError, match="nothing orders the two"):
        plan("\n".join([*lines[:at], *lines[at + 1 :]]) + "\n")


NOTIFIES = [
    (name, number)
    for name in ("ag_gemm_rows", "grouped_gemm", "expert_parallel", "computed")
    for number in range(text_of(name).count("producer_tile_notify"))
]


@pytest.mark.parametrize(("name", "number"), NOTIFIES)
def test_a_program_is_refused_without_one_of_its_notifies(name: str, number: int) -> None:
    lines = text_of(name).splitlines()
    at = [n for n, line in enumerate(lines) if "producer_tile_notify" in line][number]
    with pytest.raises(TileLinkError, match="no producer_tile_notify of the program names"):
        plan("\n".join([*lines[:at], *lines[at + 1 :]]) + "\n")


CHANGES = [
    ("ag_gemm_rows", "i: Ms[:ms[s]]", "i: Ms", "CoverageError: .* writes up to m of rank 0"),
    (
        "ag_gemm_rows",
        "Ms[:ms], N]",
        "Ms, N]",
        "writes y up to m of rank 0 only, and all of dimension 1 is to be defined",
    ),
    ("ag_gemm_rows", "Ms[:ms], N]", "Ms[:m], N]", "writes y up to m of rank 1, and it is to be defined up to m"),
    ("ag_gemm_rows", "ms[rank] @ p, m)", "ms[rank] @ p, m * 2)", "reads xs .* writes up to m of rank 0"),
    ("ag_gemm_rows", "i: Ms[:ms[s]]", "i: Ms[:ms[0]]", "CoverageError"),
    ("ag_gemm_rows", "i: Ms[:m])", "i: Ms[m:])", "writes xs at a place that only a launch decides, and xs is read"),
    ("grouped_gemm", " offsets", "", "writes y from starts.0. of rank 0 on, where other segments may be too"),
    ("grouped_gemm", " offsets", " rising", "if the segments of starts follow one another from 0 on, say so"),
    ("grouped_gemm", "[T[:starts[E]], N]", "[T, N]", "up to the end of the last segment of starts only"),
    ("grouped_gemm", "[T[:starts[E]], N]", "[T[:starts[E - 1]], N]", ""),
    ("grouped_gemm", "e: E, r", "e: E - 1, r", "written 0 times"),
    ("grouped_gemm", "starts[e] : starts[e + 1]", "starts[e] : starts[e]", "where other segments may be too"),
    ("grouped_gemm", "wait(xs[rows[r], :])", "wait(xs[rows[0 + r], :])", ""),
    ("expert_parallel", "< count[owner]", "< C", r"hint: bound the place by that end, slot : \.\.\. < count\["),
    ("expert_parallel", "< count[owner]", "<= count[owner]", "CoverageError|reaches outside back"),
    (
        "expert_parallel",
        "wait(back[owner[i, q], slot[i, q], :])",
        "wait(back[owner[i, q], slot[i, 0], :])",
        "nothing orders",
    ),
    ("gated_expert_parallel", "< count[owner]", "< M", r"hint: bound the place by that end, slot : \.\.\. < count\["),
    ("gated_expert_parallel", "< count[owner]", "<= count[owner]", "CoverageError|reaches outside back"),
    ("gated_expert_parallel", "c: M[:n[s]]", "c: M", "reads got .* writes up to"),
    ("gated_expert_parallel", "n[rank] @ p, count[p])", "n[rank] @ p, count[rank])", "reads got"),
    ("expert_parallel", "c: C[:n[s]]", "c: C", r"reads got (.|\n)*; or a place whose bound is that end"),
    ("expert_parallel", "n[rank] @ p, count[p])", "n[rank] @ p, count[rank])", "reads got"),
    ("expert_parallel", "c: C[:count[p]]", "c: C[:count[rank]]", "reads got"),
    ("paged_decode", "< P", "<= P", "reaches outside keys"),
    ("paged_decode", " replicated", "", "reads part .* up to .* of rank 1, and reads up to .* of rank 0"),
    ("paged_decode", "// C)[:(count[rank, b]", "// C)[:(count[rank + 1, b]", "reads part"),
    ("paged_decode", "max(lse[p, b, h, l, :]", "max(lse[p + 1, b, h, l, :]", "reads lse"),
    ("decode_attention", "< P", "<= P", "reaches outside keys"),
    ("decode_attention", "own(b: B by 1, l: L[:((count[b]", "own(b: B by 1, l: L[:((count[0]", "reads part"),
    ("decode_attention", "None] * parts[:, b, h, g, :]", "None] * parts[:, b, 0, g, :]", "reads parts"),
    ("decode_attention", "parts[rank, b, h, g, :] @ p, acc", "parts[p, b, h, g, :] @ p, acc", "parts"),
    ("scatter", " distinct", "", "writes y through place, which may name an element twice"),
    ("scatter", "place : in [T] < T", "place : in [T] < T - 1", ""),
    ("scatter", "< T distinct", "<= T distinct", "reaches outside y"),
    ("scatter_rows", "place[r]", "place[0]", "every tile of r writes the same elements|written 20 times"),
    ("part", "y : out [M[:n], N]", "y : out [M, N]", "writes y up to n of rank 0 only"),
    (
        "part",
        "i: M[:n], j: N):\n        y[i, j]",
        "i: M[:n], j: N):\n        z[j] = 1.0\n        y[i, j]",
        "CoverageError",
    ),
    ("computed", "        k[t] = n\n", "        k[t] = n\n        k[t] = n\n", "writes an entry of k again"),
    ("ends", "y : out [M[:m], N]", "y : out [M[:m + 1], N]", "writes y up to m of rank 0, and it is to be .* m . 1"),
    ("ends", "C = 12", "C = 20", ""),
    ("ends", "y : out [M[:m], N]", "y : out [M, N]", "writes y up to m of rank 0 only"),
    ("ends", "f(i: M[:m]", "f(i: M[:min(m, 4)]", "writes y up to min.4, m. of rank 0, and it is .* up to m"),
    ("ends", "n + n], N]", "n * 2 - 1], N]", "writes z up to min.n . 2, 20. of rank 0, and .* up to n . 2 - 1"),
    ("ends", "h(i: M[:n // 2]", "h(i: M[:n + 1]", "writes u up to min.n . 1, 20. of rank 0"),
    ("ends", "t = (n + 3) // 2 - 1", "t = (n + 3) // 2", "writes w up to"),
    ("ends", "v : in [M[:2 * n], N]", "v : in [M[:2 * n - 1], N]", "reads v, of which a launch gives what is before"),
    ("ends", "v : in [M[:2 * n], N]", "v : in [M[:n + n + 1], N]", ""),
    (
        "told",
        "ns[rank] @ p, n // 2)",
        "ns[rank] @ p, min(n // 2 + 1, 10))",
        "reads xs .* writes up to n // 2 of rank 0",
    ),
    ("told", "ns[rank] @ p, n // 2)", "ns[rank] @ p, n // 3)", ""),
    ("told", "ks[rank] @ p, k)", "ks[rank] @ p, k + 1)", "reads vs .* writes up to min.*k"),
    ("told", "a = k\n", "a = k\n        k = k + 1\n", "reads vs"),
    ("told", "for (p: ranks):\n", "for (p: ranks):\n            k = k + p\n", "reads vs"),
    ("told", "a  : local [] <= M", "a  : local [] <= M - 1", "reads vs"),
    ("alike", "ids[:] == e", "ids[:] != e", "reads xs .* writes up to mine.0. of rank 0"),
    ("alike", "ids[:] == e", "e == ids[:]", ""),
    ("alike", "pos(E)[None, :], 1, 0)", "pos(E)[None, :], 1, 2)", "reads xs"),
    ("alike", "here = every[s, :]", "here = every[s, :] * 2 // 2", "reads xs"),
    ("alike", "@ p, ids[i])", "@ p, ids[i] + 1)", "reads xs"),
    ("alike", "local [E] <= M", "local [E] <= M - 1", "reads xs"),
    ("alike", "local [ranks, E] <= M", "local [ranks, E] <= M - 1", ""),
    ("alike", "i32 from 0 to 1", "i32", ""),
    ("alike", "sum(where(ids[:] == e, 1, 0), axis=0)", "i32(sum(where(ids[:] == e, 1.0, 0.0), axis=0))", "reads xs"),
    ("choose", "y[i, j] = v", "if f[i] == 0:\n            y[i, j] = v", "writes y in some launches only"),
]


HINTS = [
    ("scatter", " distinct", "", "if no two entries of place are alike, say so: place : in [...] < M distinct"),
    (
        "scatter",
        "place[r]",
        "place[r] // 2",
        "write through distinct entries: place : in [T] < T distinct, and y[place[i], :]",
    ),
    ("grouped_gemm", "[T[:starts[E]], N]", "[T, N]", "say which part is defined: y : out [M[: starts[E]], ...]"),
    (
        "grouped_gemm",
        " offsets",
        "",
        "if the segments of starts follow one another from 0 on, say so: starts : in [...] <= M offsets",
    ),
    (
        "grouped_gemm",
        "starts[e] : starts[e + 1]",
        "starts[e] : starts[e]",
        "cut it into segments: (e: E, i: M[starts[e] : starts[e + 1]]), with starts : in [E + 1] <= M offsets",
    ),
]


@pytest.mark.parametrize(("name", "old", "new", "hint"), HINTS)
def test_writes_that_may_meet_are_refused_with_what_to_say(name: str, old: str, new: str, hint: str) -> None:
    assert old in text_of(name)
    with pytest.raises(ExclusiveWriteError) as caught:
        plan(text_of(name).replace(old, new, 1))
    assert caught.value.hint == hint and "\n" not in caught.value.message


@pytest.mark.parametrize(("name", "old", "new", "said"), CHANGES)
def test_a_changed_program_is_refused_with_what_would_help(name: str, old: str, new: str, said: str) -> None:
    text = text_of(name)
    assert old in text
    if not said:  # a change that changes nothing
        plan(text.replace(old, new, 1))
        return
    with pytest.raises(TileLinkError, match=said):
        plan(text.replace(old, new, 1))


ONE_END = """
program p(M = 8, E = 3, C = 6):
    count : in    [E] <= C
    owner : in    [M] < E
    slot  : in    [M] < count[owner]
    x     : in    [E, C]
    h     : local [E, C]
    y     : out   [M]

    compute fill(e: E by 1, c: C[: count[0]]):
        h[e, c] = x[e, c]
        producer_tile_notify(h[e, c])

    compute take(i: M by 1):
        consumer_tile_wait(h[owner[i], slot[i]])
        y[i] = h[owner[i], slot[i]]
"""


@pytest.mark.parametrize("part", range(3))
def test_a_place_is_compared_with_the_end_of_each_part_that_it_may_be_in(part: int) -> None:
    """All parts end at one count here, so a place below the count of another part is beyond that end."""
    text = ONE_END.replace("count[0]", f"count[{part}]")
    with pytest.raises(TileLinkError, match="bound the place by that end, slot"):
        plan(text)
    plan(text.replace("< count[owner]", f"< count[{part}]"))
    plan(text.replace(f"C[: count[{part}]]", "C[: count[e]]"))


def test_smaller_tiles_of_the_writer_are_no_more_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read at a place is compared with each part that it may be in, and not with each tile of it."""
    asked = [0]
    left_out = undefined_reads._left_out

    def counted(*args: Any) -> Any:
        asked[0] += 1
        return left_out(*args)

    monkeypatch.setattr(undefined_reads, "_left_out", counted)
    program = tilelink.parse(text_of("gated_expert_parallel")).program()
    numbers: list[int] = []
    for tile in (32, 4):
        schedule = tilelink.schedule(program).tile("work", c=tile).tile("dispatch", c=tile)
        asked[0] = 0
        tilelink.plan(program, schedule, ranks=2, dims={"M": 32, "H": 16, "k": 2})
        numbers.append(asked[0])
    assert numbers[0] == numbers[1] > 0


OF_COUNTS = """
program p(M = 6, N = 4):
    let MM = 2 * M
    ids   : in        [M] i32 from 0 to 1
    own   : in        [M] i32 from 0 to 1
    every : symmetric [ranks, M] i32
    n     : local     [2] <= M                    # of each kind, of rank 0
    both  : local     [] <= MM
    again : local     [] <= MM
    xs    : symmetric [ranks, MM, N]
    z     : in        [MM, N]
    y     : out       [ranks, MM[: {end}], N]

    comm share(p: ranks):
        tile_push_data(every[rank, :] @ p, ids[:])
        producer_tile_notify(every[rank, :] @ p)
    compute count(e: 2 by 1):
        consumer_tile_wait(every[0, :])
        n[e] = sum(where({counted} == e, 1, 0), axis=0)
        producer_tile_notify(n[e])
    compute add():
        consumer_tile_wait(n[:])
        both[] = {both}
        producer_tile_notify(both)
    compute add_again():
        consumer_tile_wait(n[:])
        consumer_tile_wait(both)
        again[] = {again}
        producer_tile_notify(again)
    comm send(p: ranks, i: MM[: both]):
        consumer_tile_wait(both)
        tile_push_data(xs[rank, i, :] @ p, z[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)
    compute take(s: ranks, i: MM[: {end}], j: N):
        consumer_tile_wait({end})
        consumer_tile_wait(xs[s, i, j])
        y[s, i, j] = xs[s, i, j]
"""
SUMS = [
    "n[0]",
    "n[0] + n[1]",
    "n[0] + 1",
    "n[0] * 2",
    "minimum(n[0] + n[1], 4)",
    "sum(n[:], axis=0)",
    "max(n[:], axis=0)",
]


def of_counts(both: str, again: str = "0", end: str = "both", counted: str = "every[0, :]") -> str:
    return OF_COUNTS.format(both=both, again=again, end=end, counted=counted)


@pytest.mark.parametrize("count", SUMS)
def test_counts_of_counts_that_are_alike_are_alike(count: str) -> None:
    plan(of_counts(count))
    plan(of_counts(count, count, "again"))
    plan(of_counts("n[0] + n[1]", "both // 2", "again"))
    plan(of_counts(count, "both * 1", "again"))  # of an entry without dimensions that is alike on all ranks


@pytest.mark.parametrize("count", SUMS)
def test_counts_of_counts_that_are_not_are_not(count: str) -> None:
    end = r"(both|n\[0\]|min\(n\[0\], 12\))"
    refused = rf"reads xs of rank 0, which rank 1, send .* writes up to {end} of rank 1, and reads up to \1 of rank 0"
    with pytest.raises(TileLinkError, match=refused):
        plan(of_counts(count, counted="own[:]"))
    with pytest.raises(TileLinkError, match=refused):
        plan(of_counts(count, counted="every[rank, :]").replace("every[0, :])", "every[rank, :])"))
    with pytest.raises(
        TileLinkError, match=r"reads xs of rank 0, which rank 0, send .* writes up to (both|n.0.|min.*) of rank 0"
    ):
        plan(of_counts(count, f"1 + ({count})", "again"))
    with pytest.raises(
        TileLinkError, match=r"reads xs of rank 0, which rank 0, send .* writes up to (both|n.0.|min.*) of rank 0"
    ):
        plan(of_counts("n[0] + n[1]", "n[0] + n[0]", "again"))


def test_a_minimum_of_a_maximum_is_a_maximum_of_a_minimum() -> None:
    """What is above 0 of a part of n is the same, clamped first from above or first from below."""
    plan(CLAMPED_PARTS.format(count="maximum(minimum(n - s * Ms, Ms), 0)"))
    plan(CLAMPED_PARTS.format(count="minimum(maximum(n - s * Ms, 0), Ms)"))
    with pytest.raises(
        TileLinkError, match=r"writes up to min\(10, m\) of rank 0, and reads up to max\(min\(10, m\), 1\) of"
    ):
        plan(CLAMPED_PARTS.format(count="maximum(minimum(n - s * Ms, Ms), 1)"))


CLAMPED_PARTS = """
program clamped(Ms = 10, N = 12):
    let M = ranks * Ms
    m  : in        [] <= M
    x  : in        [Ms, N]
    n  : symmetric [] <= M
    ms : local     [ranks] <= Ms
    xs : symmetric [ranks, Ms, N]
    y  : out       [ranks, Ms[: ms], N]

    comm tell(p: ranks):
        if rank == 0:
            tile_push_data(n[] @ p, m)
            producer_tile_notify(n[] @ p)
    compute sizes(s: ranks):
        consumer_tile_wait(n)
        ms[s] = {count}
        producer_tile_notify(ms[s])
    comm gather(p: ranks, i: Ms[: n - rank * Ms]):
        consumer_tile_wait(n)
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)
    compute take(s: ranks, i: Ms[: ms[s]], j: N):
        consumer_tile_wait(ms[s])
        consumer_tile_wait(xs[s, i, j])
        y[s, i, j] = xs[s, i, j]
"""


ONES = [(name, dim.name) for name in EXAMPLES for dim in EXAMPLES[name].program.params if dim.kind == "dim"]


@thorough(unless=lambda name, dim: one_in(3, name, dim))
@pytest.mark.parametrize(("name", "dim"), ONES)
def test_examples_are_safe_where_a_dimension_has_one_element(name: str, dim: str) -> None:
    """An index, or an entry, that can only be 0 is still there or not, as a launch decides."""
    for ranks in (1, 2):
        try:
            tilelink.plan(EXAMPLES[name].program, ranks=ranks, dims={**EXAMPLES[name].sizes, dim: 1})
        except BindingError:  # a size that the program does not have
            continue


ONE_PLACE = """
program p(T = 4, C = 1, M = 1, N = 4):
    m     : in        [] <= M
    count : in        [ranks] <= C
    x     : in        [ranks, C, N]
    z     : in        [M, N]
    owner : in        [T] < ranks
    slot  : in        [T] < {bound}
    n     : symmetric [ranks] <= C
    got   : symmetric [ranks, C, N]
    y     : out       [T, N]
    w     : out       [M[: m], N]

    comm tell(p: ranks):
        tile_push_data(n[rank] @ p, count[p])
        producer_tile_notify(n[rank] @ p)
    compute back(s: ranks, c: C[: n[s]]):
        consumer_tile_wait(n[s])
        tile_push_data(got[rank, c, :] @ s, x[s, c, :])
        producer_tile_notify(got[rank, c, :] @ s)
    compute take(t: T by 1):
        consumer_tile_wait(got[owner[t], slot[t], :])
        y[t, :] = got[owner[t], slot[t], :]
    compute copy(i: M[: {end}] by 1, j: N):
        w[i, j] = z[i, j]
"""


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("size", [1, 2])
def test_one_place_is_a_place_with_a_bound(ranks: int, size: int) -> None:
    text = ONE_PLACE.replace("C = 1, M = 1", f"C = {size}, M = {size}")
    plan(text.format(bound="count[owner]", end="m"), ranks)
    with pytest.raises(TileLinkError, match=r"reads got of rank 0, which rank 0, back .* writes up to"):
        plan(text.format(bound="C", end="m"), ranks)
    with pytest.raises(TileLinkError, match="writes w"):
        plan(text.format(bound="count[owner]", end="m - 1"), ranks)


def test_counts_of_what_changes_between_them_are_not_alike() -> None:
    text = """
program twice(M = 8, N = 4):
    f : in    [M] i32
    h : local [M] i32
    a : local [] <= M
    b : local [] <= M
    x : in    [M, N]
    c : local [M, N]
    y : out   [M[: b], N]
    compute first(i: M):
        h[i] = f[i]
        producer_tile_notify(h[i])
    compute one():
        consumer_tile_wait(h[:])
        a[] = sum(where(h[:] > 0, 1, 0), axis=0)
        producer_tile_notify(a)
    compute second(i: M):
        consumer_tile_wait(a)
        h[i] = f[i] + 1
        rank_notify(h[i])
    compute two():
        rank_wait(h[:])
        b[] = sum(where(h[:] > 0, 1, 0), axis=0)
        producer_tile_notify(b)
    compute fill(i: M[: a], j: N):
        consumer_tile_wait(a)
        c[i, j] = x[i, j]
        producer_tile_notify(c[i, j])
    compute take(i: M[: b], j: N):
        consumer_tile_wait(b)
        consumer_tile_wait(c[i, j])
        y[i, j] = c[i, j]
"""
    once = text.replace("h[i] = f[i] + 1\n        rank_notify", "rank_notify")
    plan(once)
    with pytest.raises(TileLinkError, match=r"(?s)reads c of rank 0, which .* computed alike"):
        plan(text)


@pytest.mark.parametrize("put", ["h[place[i]] = f[i]", "h[i] = f[place[i]]"])
def test_counts_of_what_a_launch_moves_are_not_alike(put: str) -> None:
    text = f"""
program p(M = 8, N = 4):
    f     : in    [M] i32
    place : in    [M] < M distinct
    h     : local [M] i32
    a     : local [] <= M
    b     : local [] <= M
    x     : in    [M, N]
    c     : local [M, N]
    y     : out   [M[: b], N]
    compute move(i: M by 1):
        {put}
        producer_tile_notify(h[:])
    compute one():
        a[] = max(where(pos(M) == 0, f[:], 0), axis=0)
        producer_tile_notify(a)
    compute two():
        consumer_tile_wait(h[:])
        b[] = max(where(pos(M) == 0, h[:], 0), axis=0)
        producer_tile_notify(b)
    compute fill(i: M[: a], j: N):
        consumer_tile_wait(a)
        c[i, j] = x[i, j]
        producer_tile_notify(c[i, j])
    compute take(i: M[: b], j: N):
        consumer_tile_wait(b)
        consumer_tile_wait(c[i, j])
        y[i, j] = c[i, j]
"""
    with pytest.raises(TileLinkError, match=r"reads c of rank 0, which|a place that only a launch decides"):
        plan(text)


SIZED = """
program p(M = 8, N = 4):
    u : in    [M] i32
    v : in    [N] i32
    a : local [] <= M
    b : local [] <= M
    x : in    [M, N]
    h : local [M, N]
    p : out   [N] i32
    q : out   [M] i32
    y : out   [M[: b], N]
    compute first():
        t = full(1, i32)
        a[] = sum(t, axis=0)
        producer_tile_notify(a)
        t = t + v[:]
        p[:] = t
    compute second():
        t = full(1, i32)
        b[] = sum(t, axis=0)
        producer_tile_notify(b)
        t = t + u[:]
        q[:] = t
    compute fill(i: M[: a], j: N):
        consumer_tile_wait(a)
        h[i, j] = x[i, j]
        producer_tile_notify(h[i, j])
    compute take(i: M[: b], j: N):
        consumer_tile_wait(b)
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j]
"""


def test_sums_of_names_that_a_later_assignment_gives_their_size_are_not_alike() -> None:
    with pytest.raises(TileLinkError, match="reads h of rank 0, which rank 0, fill tile"):
        plan(SIZED)


@pytest.mark.parametrize("space", ["inout", "kept"])
def test_counts_of_what_was_there_and_of_what_a_launch_leaves_are_not_alike(space: str) -> None:
    text = f"""
program p(M = 8, N = 4):
    c : in      [M] i32
    s : {space} [M] i32
    a : local   [] <= M
    b : local   [] <= M
    x : in      [M, N]
    h : local   [M, N]
    y : out     [M[: b], N]
    compute first():
        a[] = sum(where(s[:] > 0, 1, 0), axis=0)
        producer_tile_notify(a)
        peer_tile_notify(s[:])
    compute change():
        peer_tile_wait(s[:])
        s[:] = c[:]
        producer_tile_notify(s[:])
    compute second():
        consumer_tile_wait(s[:])
        b[] = sum(where(s[:] > 0, 1, 0), axis=0)
        producer_tile_notify(b)
    compute fill(i: M[: a], j: N):
        consumer_tile_wait(a)
        h[i, j] = x[i, j]
        producer_tile_notify(h[i, j])
    compute take(i: M[: b], j: N):
        consumer_tile_wait(b)
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j]
"""
    with pytest.raises(TileLinkError, match="reads h of rank 0, which rank 0, fill tile"):
        plan(text)


def test_a_wait_for_another_place_is_refused_where_places_have_channels_of_their_own() -> None:
    program = tilelink.parse(
        text_of("expert_parallel").replace("wait(back[owner[i, q], slot[i, q], :])", "wait(back[owner[i, q], 0, :])")
    )
    sizes = EXAMPLES["expert_parallel"].sizes
    tilelink.plan(program.program(), None, ranks=3, dims=sizes)  # a counter for all rows of a rank
    with pytest.raises(TileLinkError, match="nothing orders the two"):
        tilelink.plan(program.program(), EXAMPLES["expert_parallel"].schedules[1], ranks=3, dims=sizes)


def test_small_programs_have_examples() -> None:
    assert {p.name for p in tilelink.parse(SMALL).programs} <= EXAMPLES.keys()


SIGNALS = [
    ("if f[i] == 1:\n            producer_tile_notify(h[i, :])", "notifies in a branch that only a launch decides"),
    ("producer_tile_notify(h[f[i], :])", "notifies h.f.i., :., whose place only a launch decides"),
    ("producer_tile_notify(h[i, :] @ f[i])", "whose place only a launch decides"),
    ("h[f[i], :] = x[i, :]", "writes h at a place that only a launch decides, and h is read by this launch too"),
    ("tile_push_data(h[i, :] @ f[i], x[i, :])", "writes on a rank that only a launch decides"),
    ("h[i // f[i], :] = x[i, :]", "may divide by zero"),
]


@pytest.mark.parametrize(("line", "said"), SIGNALS)
def test_what_a_launch_cannot_decide_is_refused(line: str, said: str) -> None:
    text = f"""
program p(M = 8, N = 4):
    f : in        [M] < ranks
    x : in        [M, N]
    h : symmetric [M, N]
    y : out       [M, N]
    compute send(i: M by 1):
        {line}
        h[i, :] = x[i, :]
        producer_tile_notify(h[i, :])
    compute take(i: M by 1):
        consumer_tile_wait(h[i, :])
        y[i, :] = h[i, :]
"""
    with pytest.raises(TileLinkError, match=said):
        plan(text)


CLAUSES = [
    ("dispatch on copy_engine", "a copy engine is told by the host"),
    ("work flatten", "flatten for stage work, whose tiles only a launch decides: a flat loop .* dynamic deals"),
    ("dispatch on sm(2), tma_copy 2", "tma_copy for stage dispatch, whose tiles .* whole boxes"),
    ("combine split_k_tail 2", "split_k_tail for stage combine, whose places .* smaller tiles"),
    ("work halve_tail", "halve_tail for stage work, whose tiles .* last wave"),
    ("work backfill 2", "backfill for stage work, .* no tile in the last wave"),
    ("work defer_notify", "defer_notify for stage work, .* of the next one"),
]


@pytest.mark.parametrize(("line", "said"), CLAUSES)
def test_clauses_that_count_tiles_are_refused(line: str, said: str) -> None:
    text = text_of("expert_parallel") + f"\nschedule s for expert_parallel:\n    {line}\n"
    module = tilelink.parse(text)
    with pytest.raises(TileLinkError, match=f"(?s){said}"):
        tilelink.plan(module.program(), module.schedules[0], ranks=3, dims=EXAMPLES["expert_parallel"].sizes)


def test_a_reduction_along_a_counted_index_of_the_domain_is_refused() -> None:
    text = """
program p(M = 8, N = 4):
    n : in  [] <= M
    x : in  [M, N]
    y : out [M[: n], N]
    compute f(i: M[: n], j: N):
        y[i, j] = x[i, j] + sum(x[i, j], axis=0)[None, :]
"""
    with pytest.raises(TileLinkError, match="takes the sum over the counted range of i"):
        plan(text)


def test_attention_along_a_counted_range_is_refused() -> None:
    text = """
program p(M = 8, S = 16, D = 16):
    n : in  [] <= S
    q : in  [M, D]
    k : in  [S, D]
    v : in  [S, D]
    y : out [M, D]
    compute f(i: M):
        state = online_softmax(f32)
        for (s: S[: n]):
            state = attend(state, q[i, :], k[s, :], v[s, :], 1.0, pos(s)[None, :] >= 0)
        y[i, :] = finish(state)
"""
    with pytest.raises(TileLinkError, match="takes attention over the counted range of s"):
        plan(text)


@pytest.mark.parametrize("value", ["argmax(x[i, j], axis=0)", "cumsum(x[i, j], axis=0)", "argsort(x[i, j], axis=0)"])
def test_what_depends_on_places_is_refused_along_a_counted_range(value: str) -> None:
    text = f"""
program p(M = 8, N = 4):
    n : in  [] <= M
    x : in  [M, N]
    y : out [M[: n], N]
    compute f(j: N):
        for (i: M[: n]):
            v = {value}
            y[i, j] = x[i, j]
"""
    with pytest.raises(TileLinkError, match="over the counted range of i"):
        plan(text)


GIVEN = """
program p(M = 20, N = 8, T = 12, E = 3):
    m      : in  [] <= M
    rows   : in  [T] < m
    others : in  [T] < M
    starts : in  [E + 1] <= M offsets
    x      : in  [M[: m], N]
    v      : in  [M[: starts[E]], N]
    y      : out [M[: m], N]
    z      : out [T, N]
    s      : out [M[: starts[E]], N]
    compute f(i: M[: m], j: N):
        y[i, j] = x[i, j]
    compute g(t: T, j: N):
        z[t, j] = x[rows[t], j]
    compute h(e: E, r: M[starts[e] : starts[e + 1]], j: N):
        s[r, j] = v[r, j]
"""
BEYOND = [
    ("f(i: M[: m], j: N)", "f(i: M, j: N)"),
    ("= x[rows[t], j]", "= x[others[t], j]"),
    ("= x[rows[t], j]", "= x[0 + t, j]"),
    ("= v[r, j]", "= x[r, j]"),
    ("v      : in  [M[: starts[E]], N]", "v      : in  [M[: starts[E - 1]], N]"),
]


def test_an_input_is_read_as_far_as_it_is_given() -> None:
    plan(GIVEN)


@pytest.mark.parametrize(("old", "new"), BEYOND)
def test_a_read_beyond_what_is_given_is_refused(old: str, new: str) -> None:
    assert old in GIVEN
    with pytest.raises(
        TileLinkError, match=r"reads [xv], of which a launch gives what is before (m|starts.*) of rank 0"
    ):
        plan(GIVEN.replace(old, new))


def test_what_no_launch_reaches_need_not_be_written_and_all_else_must_be() -> None:
    text = """
program p(M = 20, N = 8, C = 12):
    m : in  [] <= C
    x : in  [M, N]
    y : out [M[: m], N, 2]
    compute f(i: M[: m], j: N):
        y[i, j, 0] = x[i, j]
        y[i, j, 1] = x[i, j]
"""
    plan(text)
    with pytest.raises(TileLinkError, match=r"y\[0, 0, 1\] of rank 0 is never written"):
        plan(text.replace("        y[i, j, 1] = x[i, j]\n", ""))
    with pytest.raises(TileLinkError, match=r"y\[0, 0, 1\] of rank 1 is never written"):
        plan(text.replace("        y[i, j, 1]", "        if rank != 1:\n            y[i, j, 1]"))


TOLD = """
program p(M = 20, N = 8):
    f : in        [M] i32
    a : local     [] <= M
    b : symmetric [ranks] <= M
    c : symmetric [ranks, M, N]
    x : in        [M, N]
    y : out       [ranks, M[: b], N]
    comm tell():
        k = sum(where(f[:] > 0, 1, 0), axis=0)
        {first}
        producer_tile_notify(a)
        for (p: ranks):
            {second}
            producer_tile_notify(b[rank] @ p)
    comm send(p: ranks, i: M[: a]):
        consumer_tile_wait(a)
        tile_push_data(c[rank, i, :] @ p, x[i, :])
        producer_tile_notify(c[rank, i, :] @ p)
    compute take(s: ranks, i: M[: b[s]], j: N):
        consumer_tile_wait(b[s])
        consumer_tile_wait(c[s, i, j])
        y[s, i, j] = c[s, i, j]
"""
EQUAL = [
    ("a = k", "tile_push_data(b[rank] @ p, k)"),
    ("a = k", "tile_push_data(b[rank] @ p, a)"),
    ("a = maximum(k, 3)", "tile_push_data(b[rank] @ p, maximum(3, k))"),
    ("a = k", "v = k\n            tile_push_data(b[rank] @ p, k)"),
    ("a = k", "tile_push_data(b[rank] @ p, sum(where(f[:] > 0, 1, 0), axis=0))"),
    ("a = k", "tile_push_data(b[rank] @ p, minimum(k, 5))"),  # less than what is sent
]
UNEQUAL = [
    ("a = k", "tile_push_data(b[rank] @ p, k + 1)"),
    ("a = k", "tile_push_data(b[rank] @ p, maximum(k, 3))"),
    ("a = k", "tile_push_data(b[rank] @ p, sum(where(f[:] > 1, 1, 0), axis=0))"),
    ("a = k\n        k = k + 1", "tile_push_data(b[rank] @ p, k)"),
    ("a = k", "k = k + 1\n            tile_push_data(b[rank] @ p, k)"),
    ("a = k", "tile_push_data(b[rank] @ p, k)\n            k = k + 1"),
    ("a = k\n        if rank == 0:\n            k = 0", "tile_push_data(b[rank] @ p, k)"),
    ("a[] = k * 2 - k", "tile_push_data(b[rank] @ p, k)"),  # k * 2 may overflow
    ("v = k\n        a = v", "tile_push_data(b[rank] @ p, k * 2)"),
]


@pytest.mark.parametrize(("first", "second"), EQUAL)
def test_a_count_that_two_stores_write_is_one_count(first: str, second: str) -> None:
    plan(TOLD.format(first=first, second=second))


@pytest.mark.parametrize(("first", "second"), UNEQUAL)
def test_counts_of_two_values_are_two_counts(first: str, second: str) -> None:
    with pytest.raises(TileLinkError, match=r"reads c of rank [01], which rank [01], send .* writes up to"):
        plan(TOLD.format(first=first, second=second))


COPIED = """
program p(M = 8, N = 4, E = 4):
    n    : in symmetric [E] <= M
    r    : in           [E] < E
    src  : in           [] < ranks
    tab  : table        [E] < E
    a    : local        [E] <= M
    b    : symmetric    [E] <= M
    h    : local        [E, M, N]
    x    : in           [M, N]
    y    : out          [E, M[: b], N]
    compute counts(e: E):
        {copied}
        producer_tile_notify(a[e])
    comm told(p: ranks, e: E):
        if rank == 0:
            tile_push_data(b[e] @ p, n[e])
            producer_tile_notify(b[e] @ p)
    compute write(e: E, i: M[: a[e]], j: N):
        consumer_tile_wait(a[e])
        h[e, i, j] = x[i, j]
        producer_tile_notify(h[e, i, j])
    compute read(e: E, i: M[: b[e]], j: N):
        consumer_tile_wait(b[e])
        consumer_tile_wait(h[e, i, j])
        y[e, i, j] = h[e, i, j]
"""


@pytest.mark.parametrize(
    ("copied", "ranks"),
    [
        ("a[e] = n[r[e]]", 1),  # a gather of as many entries as there are
        ("a[:] = n[tab[:]]", 1),
        ("a[tab[:]] = n[:]", 1),
        ("tile_pull_data(a[e], n[e] @ src)", 2),
    ],
)
def test_entries_that_are_copied_from_other_places_are_not_those_of_the_same_place(copied: str, ranks: int) -> None:
    program = tilelink.parse(COPIED.format(copied=copied)).program()
    tables = {"tab": np.tile(np.array([2, 3, 1, 0], np.int32), (ranks, 1))}
    with pytest.raises(TileLinkError, match=r"reads h of rank \d, which rank \d, write .* writes up to"):
        tilelink.plan(program, ranks=ranks, dims={"M": 8, "N": 4, "E": 4}, tables=tables)


CLAMPED = """
program p(M = 8, N = 4):
    f : in    [M] i32
    a : local [] <= {bound}
    b : local [] <= M
    h : local [M, N]
    x : in    [M, N]
    y : out   [M[: b], N]
    compute count():
        a = {count}
        producer_tile_notify(a)
    compute copy():
        consumer_tile_wait(a)
        b = {copy}
        producer_tile_notify(b)
    compute write(i: M[: a], j: N):
        consumer_tile_wait(a)
        h[i, j] = x[i, j]
        producer_tile_notify(h[i, j])
    compute read(i: M[: b], j: N):
        consumer_tile_wait(b)
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j]
"""
COUNT = "sum(where(f[:] > 0, 1, 0), axis=0)"


@pytest.mark.parametrize("copy", ["a", "a + 0", "minimum(a, 3)", "maximum(minimum(a, 5), 0)"])
def test_a_count_and_its_copy_are_clamped_alike(copy: str) -> None:
    plan(CLAMPED.format(bound="M", count="minimum(maximum(f[0], 0), M)", copy=copy), ranks=1)


@pytest.mark.parametrize(("bound", "count", "copy"), [("3", "8", "a"), ("3", COUNT, "a"), ("3", COUNT, "a - 0 * a")])
def test_a_value_beyond_the_bound_of_its_entry_is_not_the_entry(bound: str, count: str, copy: str) -> None:
    with pytest.raises(TileLinkError, match=r"CoverageError|reads h"):
        plan(CLAMPED.format(bound=bound, count=count, copy=copy), ranks=1)


DIFFERENCE = """
program p(M = 8, N = 4):
    n : in    [] <= M
    m : in    [] <= M
    k : local [] <= M
    h : local [M, N]
    x : in    [M, N]
    y : out   [M[: k], N]
    compute count():
        k = n - m
        producer_tile_notify(k)
    compute write(i: M[: n - m], j: N):
        h[i, j] = x[i, j]
        producer_tile_notify(h[i, j])
    compute read(i: M[: k], j: N):
        consumer_tile_wait(k)
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j]
"""


def test_an_end_below_zero_is_the_entry_that_is_clamped_to_zero() -> None:
    plan(DIFFERENCE, ranks=1)
    with pytest.raises(TileLinkError, match=r"reads h.*parts of which no stage writes"):
        plan(DIFFERENCE.replace("write(i: M[: n - m]", "write(i: M[: n - m - 1]"), ranks=1)


def test_entries_of_two_ranks_are_no_permutation_together() -> None:
    text = """
program p(M = 8, N = 4):
    place : in        [M] < M distinct
    there : symmetric [M] < M
    x     : in        [M, N]
    y     : out       [M, N]
    comm tell(p: ranks, i: M by 1):
        if rank == {first}:
            tile_push_data(there[i] @ p, place[i])
            producer_tile_notify(there[i] @ p)
    compute write(i: M by 1, j: N):
        consumer_tile_wait(there[i])
        y[there[i], j] = x[i, j]
"""
    plan(text.format(first="0"), ranks=2)
    with pytest.raises(TileLinkError, match="writes y in several ways"):
        plan(text.format(first="i // 4"), ranks=2)


def test_an_output_is_read_as_far_as_it_is_written() -> None:
    text = """
program p(M = 8, N = 4):
    m : in  [] <= M
    x : in  [M, N]
    y : out [M[: m], N]
    z : out [M[: m], N]
    compute f(i: M[: m], j: N):
        y[i, j] = x[i, j]
        producer_tile_notify(y[i, j])
    compute g(i: M[: m], j: N):
        consumer_tile_wait(y[i, j])
        z[i, j] = y[i, j]
"""
    plan(text, ranks=1)
    with pytest.raises(TileLinkError, match=r"reads y of rank 0, which .* writes up to m of rank 0"):
        plan(text.replace("z : out [M[: m], N]", "z : out [M, N]").replace("g(i: M[: m]", "g(i: M"), ranks=1)


TOLD_TILES = """
program p(B = 5, M = 8, N = 4):
    f : in        [B, M] i32
    a : local     [B] <= M
    b : symmetric [ranks, B] <= M
    x : in        [B, M]
    c : symmetric [ranks, B, M]
    y : out       [ranks, B, M[: b]]
    compute count(t: B):
        k = sum(where(f[t, :] > 0, 1, 0), axis=1)
        {first}
        producer_tile_notify(a[t])
        for (p: ranks):
            {second}
            producer_tile_notify(b[rank, t] @ p)
    comm send(p: ranks, t: B by 1, i: M[: a[t]]):
        consumer_tile_wait(a[t])
        tile_push_data(c[rank, t, i] @ p, x[t, i])
        producer_tile_notify(c[rank, t, i] @ p)
    compute take(s: ranks, t: B by 1, i: M[: b[s, t]]):
        consumer_tile_wait(b[s, t])
        consumer_tile_wait(c[s, t, i])
        y[s, t, i] = c[s, t, i]
"""
TILES_UNEQUAL = [
    ("a[t] = k + 1", "tile_push_data(b[rank, t] @ p, k * 2)"),
    ("a[t] = k", "tile_push_data(b[rank, t] @ p, k + 1)"),
    ("a[t] = k\n        k = k + 1", "tile_push_data(b[rank, t] @ p, k)"),
    ("a[t] = sum(where(k[None, :] > k[:, None], 1, 0), axis=1)", "tile_push_data(b[rank, t] @ p, k)"),
    ("a[t] = max(k, axis=0)", "tile_push_data(b[rank, t] @ p, k)"),
]


@pytest.mark.parametrize("size", [2, 5])
def test_counts_of_a_tile_are_told_element_by_element(size: int) -> None:
    text = TOLD_TILES.format(first="a[t] = k", second="tile_push_data(b[rank, t] @ p, minimum(k, 6))")
    program = tilelink.parse(text).program()
    schedule = tilelink.schedule(program).tile("count", t=size)
    tilelink.plan(program, schedule, ranks=2, dims={"B": 5, "M": 8, "N": 4})


@pytest.mark.parametrize(("first", "second"), TILES_UNEQUAL)
def test_counts_of_a_tile_that_differ_are_told_apart(first: str, second: str) -> None:
    with pytest.raises(TileLinkError, match=r"reads c of rank [01], which rank [01], send .* writes up to"):
        plan(TOLD_TILES.format(first=first, second=second), ranks=2)


def test_counts_of_a_tile_are_not_those_of_its_other_elements() -> None:
    text = TOLD_TILES.format(first="a[t] = k", second="tile_push_data(b[rank, t] @ p, k)")
    with pytest.raises(TileLinkError, match=r"up to min.*k\[1\].* defined up to b, here min.*k\[0\]"):
        plan(
            text.replace("i: M[: b[s, t]]", "i: M[: b[s, (t + 1) % B]]").replace("wait(b[s, t])", "wait(b[s, :])"),
            ranks=2,
        )


@pytest.mark.parametrize("name", EXAMPLES)
def test_link_waits_for_the_entries_that_stages_read(name: str) -> None:
    program = EXAMPLES[name].program
    linked = link(strip(program))
    assert link(linked) == linked
    tilelink.plan(linked, ranks=3, dims=EXAMPLES[name].sizes)


def test_link_waits_for_ends_conditions_and_places_of_the_own_program() -> None:
    program = tilelink.parse("""
program p(M = 16, N = 8, T = 5):
    n : in    [] <= M
    k : local [T] <= M
    b : local [T] < 2
    x : in    [M, N]
    y : out   [T, N]
    compute make(t: T):
        k[t] = n
        b[t] = n > 3
    compute use(t: T by 1, j: N):
        acc = zeros(f32)
        if b[t] == 1:
            for (i: M[: k[t]] by 1):
                acc += x[i, j] * t
        y[t, j] = acc
""").program()
    text = str(link(program))
    assert text.count("producer_tile_notify(k[t])") == text.count("producer_tile_notify(b[t])") == 1
    assert "consumer_tile_wait(b[t])\n        consumer_tile_wait(k[t])\n        if b[t] == 1" in text
    tilelink.plan(link(program), ranks=2, dims={"M": 16, "N": 8, "T": 5})


def test_link_takes_signals_out_of_branches_that_a_launch_decides() -> None:
    text = """
program branch(M = 8, N = 4, K = 3):
    f : in        [M] < 3
    x : in        [K, M, N]
    h : symmetric [K, M, N]
    y : out       [M, N]
    comm send(k: K, i: M):
        tile_push_data(h[k, i, :] @ (rank + 1), x[k, i, :])
    compute take(i: M by 1):
        v = x[0, i, :]
        if f[i] == 1:
            v = h[1, i, :]
        elif f[i] == 2:
            for (k: K):
                v = v + h[k, i, :]
        y[i, :] = v
"""
    program = tilelink.parse(text).program()
    linked = link(program)
    assert link(linked) == linked
    body = [str(one) for one in str(linked).splitlines()]
    at = next(number for number, line in enumerate(body) if "if f[i] == 1" in line)
    waits = [line.strip() for line in body[:at] if "wait" in line]
    assert waits == ["consumer_tile_wait(h[1, i, :])", "consumer_tile_wait(h[:, i, :])"]
    plan(str(linked))


SHARES = """
program shares(Ms = 4):
    n : in  [] <= ranks * Ms
    x : in  [Ms[: n - rank * Ms]]                # the last ranks have fewer
    y : out [Ms[: n - rank * Ms]]

    compute take(i: Ms[: n - rank * Ms]):
        y[i] = x[i]
"""


def test_a_part_may_depend_on_the_rank() -> None:
    plan(SHARES)
    for line, said in (
        ("    y : out [Ms[: n - rank * Ms]]", r"it is to be defined up to n - \(rank \+ 1\) \* Ms, here "),
        ("    x : in  [Ms[: n - rank * Ms]]", "reads x"),
    ):
        with pytest.raises(TileLinkError, match=said):
            plan(SHARES.replace(line, line.replace("rank * Ms", "(rank + 1) * Ms")))


FROM_A_PLACE = """
program from_a_place(M = 16, H = 8):
    first : in  [] <= M
    order : in  [2 * M] < M
    x     : in  [M, H]
    y     : out [M, H]

    compute take(i: M):
        y[i, :] = x[order[first + i], :]
"""


def test_a_list_of_entries_may_begin_at_a_place_of_the_launch() -> None:
    plan(FROM_A_PLACE)
    with pytest.raises(TileLinkError, match=r"order\[0:32\] reaches outside order, whose shape is \[16\]"):
        plan(FROM_A_PLACE.replace("[2 * M]", "[M]"))
    scattered = FROM_A_PLACE.replace("y[i, :] = x[order[first + i], :]", "y[order[first + i], :] = x[i, :]")
    with pytest.raises(TileLinkError, match="writes y through order, which may name an element twice"):
        plan(scattered)
    with pytest.raises(TileLinkError, match="writes 32 of the 16 elements of y"):
        plan(scattered.replace("[2 * M] < M", "[2 * M] < M distinct"))


BOUNDS_OF_A_LIST = """
program bounds_of_a_list(M = 16, T = 8, H = 8):
    n    : in  [2] <= M
    kind : in  [T] < 2
    rows : in  [T] < n[kind]                     # another bound for each entry
    x    : in  [M[: n[kind[0]]], H]
    y    : out [T, H]

    compute take(i: T):
        y[i, :] = x[rows[i], :]
"""


def test_the_bound_of_an_entry_is_not_that_of_the_others() -> None:
    with pytest.raises(TileLinkError, match=r"reads x, of which a launch gives what is before n\[kind\[0\]\]"):
        plan(BOUNDS_OF_A_LIST)
    plan(BOUNDS_OF_A_LIST.replace("< n[kind] ", "< n[0] ").replace("n[kind[0]]", "n[0]"))


SEGMENTS = """
program p(C = 3, E = 2, M = 8, N = 4):
    starts : in [E + 1] <= M offsets
    x : in  [M, N]
    y : out [C, M[: {end}], N]
    compute f(c: C by 1, {segments}, j: N):
        y[c, i, j] = x[i, j]
"""


def test_segments_end_where_each_place_is_defined() -> None:
    """An end that depends on a coordinate is another one for each write, and not that of the first."""
    every, first = "e: E, i: M[starts[e] : starts[e + 1]]", "i: M[starts[0] : starts[1]]"
    plan(SEGMENTS.format(end="starts[E]", segments=every))
    with pytest.raises(TileLinkError, match="writes y in several ways"):
        plan(SEGMENTS.format(end="starts", segments=first))


COMPUTED_SEGMENTS = """
program p(M = 6, N = 4, E = 2):
    let T = ranks * M
    ids    : in        [M] i32 from 0 to 1
    w      : in        [E, N]
    every  : symmetric [ranks * M] i32
    starts : local     [E + 1] <= ranks * M offsets
    c      : inout     [ranks * M, N]
    y      : out       [T[: starts[E]], N]

    comm send(p: ranks, i: M):
        tile_push_data(every[rank * M + i] @ p, ids[i])
        producer_tile_notify(every[rank * M + i] @ p)

    compute count():
        consumer_tile_wait(every[:])
        starts[:] = sum(i32(every[:][:, None] < pos(E + 1)[None, :]), axis=0)
        producer_tile_notify(starts)

    compute take(e: E, r: T[starts[e] : starts[e + 1]], j: N):
        consumer_tile_wait(starts)
        y[r, j] = c[r, j] * w[e, j]
        c[r, j] = c[r, j] + 1.0
"""
ONE_BY_ONE = """        starts[0] = 0
        starts[1 : E + 1] = cumsum(sum(i32(every[:][:, None] == pos(E)[None, :]), axis=0), axis=0)
"""


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_segments_that_all_ranks_compute_alike_are_segments(ranks: int) -> None:
    """Their ends are equal on all ranks, or a number: what is known of an entry does not hide what it promises."""
    plan(COMPUTED_SEGMENTS, ranks)
    lines = COMPUTED_SEGMENTS.splitlines(keepends=True)
    at = next(n for n, line in enumerate(lines) if "starts[:] =" in line)
    plan("".join([*lines[:at], ONE_BY_ONE, *lines[at + 1 :]]), ranks)
    with pytest.raises(TileLinkError, match=r"writes y from starts\[0\] of rank 0 on, where other segments may be too"):
        plan(COMPUTED_SEGMENTS.replace(" offsets", ""), ranks)
    rising = COMPUTED_SEGMENTS.replace(" offsets", " rising").replace("y      : out       [T[: starts[E]], N]\n", "")
    plan(
        rising.replace("        y[r, j] = c[r, j] * w[e, j]\n", "").replace("    w      : in        [E, N]\n", ""),
        ranks,
    )


def test_places_that_all_ranks_compute_alike_are_distinct() -> None:
    text = """
program p(M = 6, N = 4):
    keys  : in        [M]
    every : symmetric [M]
    place : local     [M] < M distinct
    c     : inout     [M, N]
    y     : out       [M, N]

    comm send(p: ranks):
        if rank == 0:
            tile_push_data(every[:] @ p, keys[:])
            producer_tile_notify(every[:] @ p)

    compute rank_of():
        consumer_tile_wait(every[:])
        place[:] = sum(i32(every[:][:, None] > every[:][None, :]), axis=1)
        producer_tile_notify(place)

    compute put(i: M by 1, j: N):
        consumer_tile_wait(place[i])
        y[place[i], j] = c[place[i], j]
        c[place[i], j] = 1.0
"""
    for ranks in (1, 2, 3):
        plan(text, ranks)
    with pytest.raises(TileLinkError, match="which may name an element twice"):
        plan(text.replace(" distinct", ""))


ENDS = """
program p(M = 8, E = 3, N = 4):
    n : in    [] <= M
    m : in    [] <= M
    d : in    [M] <= M
    t : table [M] < M
    x : in    [M, N]
    y : out   [N]
    z : kept  [E, M] i32
    compute f(j: N):
        acc = zeros(f32)
        for (e: E by 1):
            for (q: M[{loop}] by 1):
                acc += x[q, j]
        y[j] = acc
    compute g(e: E by 1, i: M[{domain}]):
        z[e, i] = 1
"""


@pytest.mark.parametrize("place", ["loop", "domain"])
@pytest.mark.parametrize(
    ("end", "said"),
    [
        (": n // m", "n // m may divide by zero"),
        (": n % m", "n % m may divide by zero"),
        ("n // (m - 1) :", r"n // \(m - 1\) may divide by zero"),
        (": n // e", "n // e divides by zero"),
        ("d[n % m] :", "n % m may divide by zero"),
        (": n + t[E * 3]", r"looks up t\[9\], outside of a table"),
        (": n // max(m, 1)", ""),
        (": n % (m + 1)", ""),
        (": n + t[e]", ""),
    ],
)
def test_the_ends_of_ranges_have_values(place: str, end: str, said: str) -> None:
    program = tilelink.parse(ENDS.format(**{"loop": ": n", "domain": ": n", place: end})).program()
    sizes = {"M": 8, "E": 3, "N": 4}
    tables = {"t": np.zeros((2, 8), np.int64)}
    if not said:
        tilelink.plan(program, ranks=2, dims=sizes, tables=tables)
        return
    with pytest.raises(CoverageError, match=said):
        tilelink.plan(program, ranks=2, dims=sizes, tables=tables)


def test_the_ends_of_a_stage_that_only_waits_have_values() -> None:
    text = """
program p(M = 8):
    n : in        [] <= M
    m : in        [] <= M
    h : symmetric [M]
    y : out       [M]
    compute f(i: M):
        h[i] = 1.0
        y[i] = 1.0
        producer_tile_notify(h[i])
    compute g(i: M[: n // m]):
        consumer_tile_wait(h[0])
"""
    with pytest.raises(CoverageError, match="n // m may divide by zero"):
        plan(text)
    plan(text.replace("// m", "// max(m, 1)"))


@pytest.mark.parametrize(
    ("declared", "part"),
    [
        ("y : out [M[: n // m]]", "n // m"),
        ("y : out [M[: n % (m + rank)]]", r"n % \(m \+ rank\)"),
        ("y : out [M]\n    v : in [M[: n % m]]", "n % m"),
        ("y : out [M]\n    k : local [M] < d[n // m]", "n // m"),
    ],
)
def test_the_ends_of_what_is_declared_have_values(declared: str, part: str) -> None:
    text = f"""
program p(M = 8):
    n : in [] <= M
    m : in [] <= M
    d : in [M] <= M
    {declared}
    compute f(i: M):
        y[i] = 1.0
"""
    with pytest.raises(BindingError, match=f"{part} of . may divide by zero"):
        plan(text)


TILE_OF_PLACES = """
program p(M = 8, T = 6, N = 4):
    n : in    [] <= M replicated
    m : in    [] <= M
    c : in    [T] <= M
    r : in    [T] < {bound}
    x : in    [M, N]
    h : local [M, N]
    y : out   [T, N]

    compute write(i: M[: n], j: N):
        h[i, j] = x[i, j]
        producer_tile_notify(h[i, j])
    compute read(t: T{by}, j: N):
        consumer_tile_wait(h[:, :])
        y[t, j] = h[r[t], j]
"""


@pytest.mark.parametrize("by", ["", " by 1"])
@pytest.mark.parametrize(("bound", "safe"), [("n", True), ("n - 1", True), ("m", False), ("M", False), ("c", False)])
def test_a_tile_of_places_is_read_below_its_bound(bound: str, safe: bool, by: str) -> None:
    """As each of the places alone: an entry that bounds the entries keeps them before the end of what is written."""
    text = TILE_OF_PLACES.format(bound=bound, by=by)
    if safe:
        plan(text)
    else:
        with pytest.raises(CoverageError, match=r"reads h of rank . at r|reads h of rank 0, which"):
            plan(text)


def test_a_tile_of_places_with_a_bound_for_each_is_read_below_none_of_them() -> None:
    text = TILE_OF_PLACES.format(bound="c", by="").replace("i: M[: n]", "i: M[: c[0]]")
    with pytest.raises(CoverageError, match="reads h of rank 0, which"):
        plan(text)


UNWRITTEN_BOUND = """
program p(M = 8):
    b     : in    [M] < 2
    a     : in    [1] < M
    x     : in    [M]
    count : {space} [2] <= M {promise}
    slot  : {of} [1] < count
    h     : local [M]
    y     : out   [1]

    compute size():
        count[1] = sum(b[:], axis=0)
        producer_tile_notify(count[1])
    compute place(t: 1 by 1):
        slot[t] = a[t]
        producer_tile_notify(slot[t])
    compute fill(i: M[: count[1]]):
        consumer_tile_wait(count[1])
        h[i] = x[i]
        producer_tile_notify(h[i])
    compute take(t: 1 by 1):
        consumer_tile_wait(slot[t])
        consumer_tile_wait(h[:])
        y[t] = h[slot[t]]
"""


@pytest.mark.parametrize("promise", ["rising", "offsets"])
def test_an_entry_that_only_a_bound_names_may_not_be_there(promise: str) -> None:
    """`count[0]` bounds `slot[0]`, and no stage writes it: that it is no more than `count[1]` says nothing then."""
    text = UNWRITTEN_BOUND.format(space="local", of="local", promise=promise)
    with pytest.raises(CoverageError, match=r"writes up to count\[1\]"):
        plan(text)
    given = UNWRITTEN_BOUND.format(space="in", of="in", promise=promise)
    for stage in ("    compute size", "    compute place"):
        begin = given.index(stage)
        given = given[:begin] + given[given.index("    compute", begin + 1) :]
    for wait in ("count[1]", "slot[t]"):
        given = given.replace(f"        consumer_tile_wait({wait})\n", "")
    plan(given)


TURNED = """
program turned(A = 3, B = 8, m = 3):
    x : in    [A, B] i32
    s : in    [A, B] < A * B distinct
    y : out   [A * B] i32

    compute turn(a: A by 1, j: B):
        y[s[a, j]] = x[a, j]
"""


def test_rows_of_distinct_entries_write_all_together() -> None:
    plan(TURNED)
    plan(TURNED.replace("(a: A by 1, j: B)", "(a: A by 1, j: B by 1)"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a: A by 1", "a: A - 1 by 1", "written 0 times at"),
        ("s[a, j]] =", "s[0, j]] =", "every tile of a writes the same elements"),
        ("s[a, j]] =", "s[(a + 1) % 2, j]] =", "is written [02] times at"),
        (" distinct", "", "which may name an element twice"),
        ("y : out   [A * B]", "y : out   [A * B + 1]", "writes 24 of the 25 elements"),
        ("j: B)", "j: B[: 5])", "written 0 times at"),
    ],
)
def test_rows_of_distinct_entries_that_are_not_all_are_refused(old: str, new: str, said: str) -> None:
    assert old in TURNED
    with pytest.raises(TileLinkError, match=said):
        plan(TURNED.replace(old, new))


COUNTED_TWICE = """
program counted_twice(M = 8):
    n : in    [M] i32
    x : in    [M]
    a : local [] <= M
    c : local [] <= M
    h : local [M]
    y : out   [M[: c]]

    compute one():
        v0 = sum(n[:], axis=0)
{names}
        a[] = v{last}

    compute other():
        v0 = sum(n[:], axis=0)
{names}
        c[] = v{last}

    compute fill(i: M[: a]):
        h[i] = x[i]

    compute take(i: M[: c]):
        y[i] = h[i]
"""


def test_names_of_names_are_looked_at_once() -> None:
    """Each further name would double the time otherwise."""
    names = "\n".join(f"        v{k + 1} = minimum(v{k}, 5) + minimum(3, v{k})" for k in range(40))
    text = COUNTED_TWICE.format(names=names, last=40)
    plan(text)
    with pytest.raises(TileLinkError, match=r"reads h .* up to"):
        plan(text.replace("minimum(3, v39)", "minimum(2, v39)", 1))


def test_names_of_names_before_a_loop_are_looked_at_once() -> None:
    """Whether a loop assigns to one of them is asked of each name once, though each is in the next two."""
    names = "\n".join(f"        v{k + 1} = minimum(v{k}, v{max(k - 1, 0)} + {k})" for k in range(40))
    text = COUNTED_TWICE.format(names=names, last=40)
    inside = "        for (q: 1 by 1):\n            u = q + 1\n            {name}[] = minimum(u, v40)"
    for name in ("a", "c"):
        text = text.replace(f"        {name}[] = v40", inside.format(name=name))
    with pytest.raises(TileLinkError, match=r"reads h .* up to"):
        plan(text)


def test_names_that_are_asked_for_one_after_the_other_are_told_apart() -> None:
    """What asks for a name makes it for the question, so the next one may be where it was in memory."""
    text = COUNTED_TWICE.format(names="        v1 = v0 + 1", last=1)
    program = tilelink.parse(text).program()
    bound = compiler.bound(program, dims={"M": 8}, ranks=1)
    keys = ValueKeys(bound=bound, stage=bound.stages["one"], read=lambda _: None, settled=lambda one: one)
    numbers = {f"v{k}": SimpleNamespace(value=Literal(value=k), before={}) for k in range(2)}
    found = [keys.of(Local(name=name), numbers, ()) for name in ("v0", "v1", "v0", "v1")]
    assert found[0] != found[1] and found[:2] == found[2:]


SUMMED_TWICE = """
program summed_twice(NB, B):
    n : in    [NB, B] i32
    a : local [NB, B] < 9
    c : local [NB, B] < 9
    y : out   [NB, B] i32
    z : out   [NB, B] i32

    compute one(b: NB by 1):
        a[b, :] = cumsum(n[b, :], axis=0)

    compute other(b: NB by 1):
        sums = cumsum(n[b, :], axis=0)
        c[b, :] = sums
        y[b, :] = sums

    compute both(b: NB by 1):
        z[b, :] = a[b, :] - c[b, :]
"""


def test_all_elements_of_a_tile_have_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which values are equal is asked of tiles: larger ones are no more work, and as much of them is known."""
    asked: list[Value] = []
    of = ValueKeys._of
    monkeypatch.setattr(ValueKeys, "_of", lambda self, value, *more: asked.append(value) or of(self, value, *more))
    program = tilelink.parse(SUMMED_TWICE).program()

    def known(guards: Guards, name: str, at: tuple[int, ...]) -> Scalar:
        value = guards.copies[name, 0, at]
        assert value is not None
        return value

    def found(block: int) -> int:
        asked.clear()
        guards = make_plan(compiler.bound(program, dims={"NB": 2, "B": block}, ranks=1)).guards
        places = [(b, j) for b in range(2) for j in range(block)]
        a, c = ({at: guards.resolve(known(guards, name, at)) for at in places} for name in ("a#", "c#"))
        assert a == c and len(set(map(str, a.values()))) == len(places)
        return len(asked)

    assert found(8) == found(32) > 0


def test_entries_that_only_list_places_are_not_looked_at() -> None:
    """Nobody asks what one of them is equal to, so that a long list costs nothing."""
    block = SHORT  # of two blocks: longer than the lists that are compared in any case
    text = """
program scattered(NB, B):
    n    : in    [NB, B] i32
    spot : local [NB, B] < NB * B distinct
    y    : out   [NB * B] i32

    compute place(b: NB by 1):
        spot[b, :] = b * B + cumsum(n[b, :], axis=0)

    compute turn(b: NB by 1, j: B):
        y[spot[b, j]] = 1
"""
    asked = text + "    compute also(b: NB by 1):\n        z[b] = y[spot[b, 0]]\n"
    for program, known in (
        (text, set[str]()),
        (asked.replace("y    :", "z    : out   [NB] i32\n    y    :"), {"spot", "spot#"}),
    ):
        bound = compiler.bound(tilelink.parse(program).program(), dims={"NB": 2, "B": block}, ranks=1)
        assert {table for table, *_ in make_plan(bound).guards.copies} == known


ASSIGNED_AGAIN = """
program assigned_again(M = 8, K = 4):
    g : in    [2, K] < 3
    x : in    [M]
    n : local [1] <= M
    m : local [1] <= M
    h : local [M]
    y : out   [M[:m[0]]]

    compute count(e: 1 by 1):
        v = sum(g[0, :], axis=0)
        n[e] = {value}
        v = sum(g[{second}, :], axis=0)
        m[e] = {value}

    compute fill(i: M[:n[0]]):
        h[i] = x[i]

    compute use(i: M[:m[0]]):
        y[i] = h[i]
"""


@pytest.mark.parametrize("value", ["v", "maximum(v, 2)"])
def test_a_name_that_is_assigned_again_is_another_value(value: str) -> None:
    for second in (0, 1):
        program = link(tilelink.parse(ASSIGNED_AGAIN.format(value=value, second=second)).program())
        if second == 0:
            tilelink.plan(program, ranks=1, dims={"M": 8, "K": 4})
        else:
            with pytest.raises(CoverageError, match=r"reads h of rank 0, which rank 0, fill tile .* writes up to"):
                tilelink.plan(program, ranks=1, dims={"M": 8, "K": 4})
