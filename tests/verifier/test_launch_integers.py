"""Integers of a launch are proved for all values, or refused with the property that would help."""

from __future__ import annotations

import pytest

import tilelink
from tests.launch_programs import SMALL, examples
from tilelink.errors import TileLinkError
from tilelink.ir.link import link, strip

EXAMPLES = examples()


def text_of(name: str) -> str:
    return str(EXAMPLES[name].program)


def plan(text: str, ranks: int = 3, name: str | None = None) -> None:
    program = tilelink.parse(text).program(name)
    dims = {one.name: one.example for one in program.params if one.example is not None}
    tilelink.plan(program, ranks=ranks, dims=dims)


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_examples_are_safe(name: str, ranks: int) -> None:
    for schedule in EXAMPLES[name].schedules:
        tilelink.plan(EXAMPLES[name].program, schedule, ranks=ranks, dims=EXAMPLES[name].sizes)


# A wait of `paged_decode` for the one tensor orders the other too: a task notifies each after it has sent both.
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


def test_decoding_is_refused_without_both_of_its_waits() -> None:
    lines = [line for line in text_of("paged_decode").splitlines() if "consumer_tile_wait" not in line]
    with pytest.raises(TileLinkError, match=r"nothing orders the two|only the schedule orders the two"):
        plan("\n".join(lines) + "\n")


NOTIFIES = [
    (name, number)
    for name in ("ag_gemm_rows", "grouped_gemm", "expert_parallel", "paged_decode", "computed")
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
    ("expert_parallel", "< count[owner]", "< C", "or a place whose bound is that end"),
    ("expert_parallel", "< count[owner]", "<= count[owner]", "CoverageError|reaches outside back"),
    (
        "expert_parallel",
        "wait(back[owner[i, q], slot[i, q], :])",
        "wait(back[owner[i, q], slot[i, 0], :])",
        "nothing orders",
    ),
    ("expert_parallel", "c: C[:n[s]]", "c: C", "reads got .* writes up to count.0. of rank 0"),
    ("expert_parallel", "n[rank] @ p, count[p])", "n[rank] @ p, count[rank])", "reads got"),
    ("expert_parallel", "c: C[:count[p]]", "c: C[:count[rank]]", "reads got"),
    ("paged_decode", "< P", "<= P", "reaches outside keys"),
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
    ("choose", "y[i, j] = v", "if f[i] == 0:\n            y[i, j] = v", "writes y in some launches only"),
]


@pytest.mark.parametrize(("name", "old", "new", "said"), CHANGES)
def test_a_changed_program_is_refused_with_what_would_help(name: str, old: str, new: str, said: str) -> None:
    text = text_of(name)
    assert old in text
    if not said:  # a change that changes nothing
        plan(text.replace(old, new, 1))
        return
    with pytest.raises(TileLinkError, match=said):
        plan(text.replace(old, new, 1))


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
    ("work flatten", "flatten for stage work, whose tiles or places only a launch decides"),
    ("dispatch on sm(2), tma_copy 2", "tma_copy for stage dispatch"),
]


@pytest.mark.parametrize(("line", "said"), CLAUSES)
def test_clauses_that_count_tiles_are_refused(line: str, said: str) -> None:
    text = text_of("expert_parallel") + f"\nschedule s for expert_parallel:\n    {line}\n"
    module = tilelink.parse(text)
    with pytest.raises(TileLinkError, match=said):
        tilelink.plan(module.program(), module.schedules[0], ranks=3, dims=EXAMPLES["expert_parallel"].sizes)


def test_a_reduction_along_a_counted_range_is_refused() -> None:
    text = """
program p(M = 8, N = 4):
    n : in  [] <= M
    x : in  [M, N]
    y : out [N]
    compute f(j: N):
        s = zeros(f32)
        for (i: M[: n]):
            s += sum(x[i, j], axis=0)
        y[j] = s
"""
    with pytest.raises(TileLinkError, match="takes the sum over the counted range of i"):
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
    assert "consumer_tile_wait(b[t])\n        if b[t] == 1" in text and "consumer_tile_wait(k[t])\n" in text
    with pytest.raises(TileLinkError, match="waits in a branch that only a launch decides"):
        tilelink.plan(link(program), ranks=2, dims={"M": 16, "N": 8, "T": 5})
