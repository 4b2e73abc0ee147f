"""Integers of a launch: counted ranges, gathers, told counts, and what outputs leave undefined."""

from __future__ import annotations

import pytest
import torch

import tilelink
from tests.reference import launch_texts, texts
from tests.reference.launch_texts import EXPERTS, MOE, ONES, ROWS, SIZES
from tests.tiers import one_in, thorough
from tilelink.errors import AccountingError, BindingError, CoverageError, ProgressError
from tilelink.reference import random_inputs, run

ROUTINGS = ("uniform", "zipf:1.2", "one", "empty", "full")


@thorough(unless=lambda routing, sizes: sizes is SIZES or one_in(3, routing))
@pytest.mark.parametrize("sizes", [SIZES, ONES], ids=["some", "one"])
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("name", SIZES)
def test_a_program_computes_what_loops_compute(name: str, routing: str, sizes: dict) -> None:  # type: ignore[type-arg]
    text, dims = sizes[name]
    program = texts.program(text)
    for ranks in (1, 3):
        for seed in range(3):
            given = random_inputs(program, dims, ranks, "f32", seed=seed, routing=routing)
            launch_texts.same(name, given, run(program, given, dims))


@pytest.mark.parametrize("name", ["rows", "moe"])
def test_a_launch_without_a_row_leaves_all_undefined(name: str) -> None:
    text, dims = SIZES[name]
    given = random_inputs(texts.program(text), dims, 2, "f32", routing="zeros")
    out = run(texts.program(text), given, dims)
    launch_texts.same(name, given, out)
    assert not any(own.defined["y"].any() for own in out)


# Promises of what stages compute -----------------------------------------------------------------------------

COMPUTED = """
program computed(M):
    n   : in    [] <= M
    v   : in    [M] i32
    own : local [M] {declared}
    y   : out   [M] i32

    compute put():
        own[:] = v[:]
        producer_tile_notify(own)
    compute get(i: M):
        consumer_tile_wait(own)
        y[i] = own[i]
"""


@pytest.mark.parametrize(
    ("declared", "values", "hint"),
    [
        ("< M distinct", [0, 1, 1, 2], r"own\[2\] of rank 0 is 1.*distinct, and own\[1\] is 1 too"),
        (
            "< M",
            [0, 1, 4, 2],
            r"own\[2\] of rank 0 is 4.*own\[:\] = v.*see .*own : local.*entries of own lie in \[0, 4\)",
        ),
        ("<= M", [0, 1, 4, 5], r"own\[3\] of rank 0 is 5.*own\[:\] = v.*entries of own lie in \[0, 5\)"),
        ("< M", [0, -1, 2, 3], r"own\[1\] of rank 0 is -1.*own\[:\] = v.*entries of own lie in \[0, 4\)"),
        ("<= M rising", [0, 2, 1, 3], r"own\[2\] of rank 0 is 1.*rising, and own\[1\] before it is 2"),
        ("<= M offsets", [1, 2, 3, 4], r"own\[0\] of rank 0 is 1.*offsets, the first of which is 0"),
        ("< n", [0, 1, 2, 0], r"own\[2\] of rank 0 is 2.*below n, which is 2 there"),
        ("< n", [0, 4, 1, 0], r"own\[1\] of rank 0 is 4.*own\[:\] = v.*lie in \[0, 4\) at most, below n"),
    ],
)
def test_what_stages_compute_keeps_its_promises(declared: str, values: list[int], hint: str) -> None:
    """The proof assumes them, so a program that breaks one is told so; what counts is what was stored."""
    program = texts.program(COMPUTED.format(declared=declared))
    given = {"n": torch.tensor(2, dtype=torch.int32), "v": torch.tensor(values, dtype=torch.int32)}
    with pytest.raises(CoverageError, match="(?s)" + hint):
        run(program, [given], {"M": 4})
    right = torch.tensor([0, 1, 1, 1] if declared == "< n" else [0, 1, 2, 3], dtype=torch.int32)
    assert run(program, [given | {"v": right}], {"M": 4})[0]["y"].tolist() == right.tolist()


APART = """
program apart(M = 4):
    v : in    [2] <= M
    c : local [3] <= M rising
    y : out   [2]

    compute first():
        c[0] = v[0]
        producer_tile_notify(c[0])
    compute last():
        c[2] = v[1]
        producer_tile_notify(c[2])
    compute get(t: 2 by 1):
        consumer_tile_wait(c[0])
        consumer_tile_wait(c[2])
        y[t] = c[2 * t]
"""


def test_entries_rise_over_those_that_no_stage_writes() -> None:
    program = texts.program(APART)
    given = torch.tensor([3, 1], dtype=torch.int32)
    with pytest.raises(CoverageError, match=r"(?s)c\[2\] of rank 0 is 1.*rising, and c\[0\] before it is 3"):
        run(program, [{"v": given}], {"M": 4})
    assert run(program, [{"v": given.flip(0)}], {"M": 4})[0]["y"].tolist() == [1.0, 3.0]


BEYOND = """
program beyond(T = 4, C = 3):
    x     : in        [C]
    count : local     [] <= C
    owner : local     [T] < ranks
    slot  : local     [T] < count
    got   : symmetric [C]
    y     : out       [T]

    compute place(t: T):
        slot[t] = minimum(pos(t), {most})
        producer_tile_notify(slot[t])
    compute size():
        count[] = {count}
        producer_tile_notify(count)
    comm send(c: C[: count]):
        consumer_tile_wait(count)
        tile_push_data(got[c] @ (rank + 1), x[0 + c])
        producer_tile_notify(got[c] @ (rank + 1))
    compute take(t: T by 1):
        consumer_tile_wait(slot[t])
        consumer_tile_wait(got[slot[t]])
        y[t] = got[slot[t]]
"""


@pytest.mark.parametrize(
    ("most", "count", "message"),
    [
        ("T", "C", r"slot\[3\] of rank 0 is 3\n.*slot\[t\] = min.*lie in \[0, 3\) at most, below count"),
        ("2", "C - 1", r"slot\[2\] of rank 0 is 2\n.*slot  : local.*lie below count, which is 2 there"),
    ],
)
def test_a_bound_is_blamed_and_not_the_read_that_it_misleads(most: str, count: str, message: str) -> None:
    """The largest value of the bound is no excuse either: kernels would read another row than the program says."""
    given = [{"x": torch.arange(3.0)} for _ in range(2)]
    with pytest.raises(CoverageError, match="(?s)" + message):
        run(texts.program(BEYOND.format(most=most, count=count)), given, {"T": 4, "C": 3})
    right = run(texts.program(BEYOND.format(most="2", count="C")), given, {"T": 4, "C": 3})
    assert right[0]["y"].tolist() == [0.0, 1.0, 2.0, 2.0]


def test_computed_places_beyond_what_a_launch_writes_are_found() -> None:
    module = tilelink.load("gated_expert_parallel")
    text = str(module.program()).replace("cumsum(chosen, axis=0) - 1", "cumsum(chosen, axis=0)")
    dims = {"M": 6, "H": 4, "k": 2}
    given = random_inputs(texts.program(text), dims, 3, "f32", seed=1)
    with pytest.raises(
        CoverageError, match=r"(?s)slot\[4, 1\] of rank 0 is 4\n.*lie below count\[owner\], which is 4 there"
    ):
        run(texts.program(text), given, dims)
    run(module.program(), given, dims)


def test_a_bound_that_was_not_written_bounds_nothing() -> None:
    """Of an index tensor that a launch fills up to a count, what is not there is not asked."""
    text = COMPUTED.replace("own[:] = v[:]", "for (i: M[: n]):\n            own[i] = v[i]")
    text = text.replace("get(i: M)", "get(i: M[: n])").replace("out   [M]", "out   [M[: n]]")
    given = {"n": torch.tensor(2, dtype=torch.int32), "v": torch.tensor([1, 0, 1, 1], dtype=torch.int32)}
    assert run(texts.program(text.format(declared="< M distinct")), [given], {"M": 4})[0]["y"][:2].tolist() == [1, 0]


# Data that decides -------------------------------------------------------------------------------------------

FLOW = """
program flow(M, N):
    n    : in        [M] <= N
    at   : in        [M] < M distinct
    near : in        [] < ranks
    x    : in        [M, N]
    told : symmetric [M] <= N
    c    : local     [1] < M
    v    : in symmetric [N]
    y    : out       [M, N]
    z    : out       [M]
    w    : out       [N]

    compute fetch(j: N):
        w[j] = v[j] @ (near + 1)
    comm tell(i: M):
        tile_push_data(told[i] @ (rank + 1), n[i])
        producer_tile_notify(told[i] @ (rank + 1))
    compute choose(i: 1):
        c[0] = at[0]
        producer_tile_notify(c[0])
    compute put(i: M by 1):
        consumer_tile_wait(told[i])
        consumer_tile_wait(c[0])
        total = zeros(f32)
        for (q: N[: told[i]] by 1):
            total += x[i, q]
        if c[0] > 0 and told[i] == n[i]:
            total += 1000.0
        z[at[i]] = total
        y[at[i], :] = x[i, :]
"""


@pytest.mark.parametrize("seed", range(4))
def test_loops_branches_and_places_depend_on_data(seed: int) -> None:
    """Of given, told and computed integers: a loop's end, a branch, and a permutation of rows."""
    program, dims = texts.program(FLOW), {"M": 5, "N": 4}
    given = random_inputs(program, dims, 3, "f32", seed=seed)
    out = run(program, given, dims)
    branches = set[bool]()
    assert len({int(own["near"]) for own in given}) > 1
    for rank, (own, found) in enumerate(zip(given, out, strict=True)):
        told, at = given[rank - 1]["n"].tolist(), own["at"].long()
        assert torch.equal(found["y"][at], own["x"])
        assert torch.equal(found["w"], given[(int(own["near"]) + 1) % 3]["v"])
        for i in range(5):
            high = int(at[0]) > 0 and told[i] == int(own["n"][i])
            branches.add(high)
            wanted = own["x"][i, : told[i]].sum() + (1000.0 if high else 0.0)
            torch.testing.assert_close(found["z"][at[i]], wanted)
    assert len(branches) == 2


ELEMENTS = """
program elements(T, E):
    starts : in  [E + 1] <= T offsets
    y      : out [T[: starts[E]]]
    s      : out [E]

    compute f(e: E, r: T[starts[e] : starts[e + 1]]):
        y[r] = f32(pos(r)) + 100.0 * e
    compute g(e: E by 1):
        total = zeros(f32)
        for (r: T[starts[e] : starts[e + 1]] by 1):
            total += 1.0 * r
        s[e] = total
"""


def test_an_index_of_a_segment_counts_from_its_start() -> None:
    """As a tile its positions, and as a number the number itself."""
    program, dims = texts.program(ELEMENTS), {"T": 9, "E": 3}
    starts = torch.tensor([0, 3, 3, 7], dtype=torch.int32)
    (out,) = run(program, [{"starts": starts}], dims)
    assert out["y"][:7].tolist() == [0, 1, 2, 203, 204, 205, 206] and out["y"][7:].isnan().all()
    assert out["s"].tolist() == [0 + 1 + 2, 0, 3 + 4 + 5 + 6]
    assert out.defined["y"].tolist() == [True] * 7 + [False] * 2


TOLD = """
program told(M):
    x : in        [M]
    m : in        [] <= M
    n : symmetric [1] <= M
    h : symmetric [M]
    y : out       [M[: n[0]]]

    comm tell(p: 1):
        tile_push_data(n[0] @ (rank + 1), 3 * m - 1)
        producer_tile_notify(n[0] @ (rank + 1))
    compute f(i: M[: n[0]]):
        consumer_tile_wait(n[0])
        y[i] = x[i]
"""


def test_an_entry_that_a_peer_is_told_is_the_end_of_a_range() -> None:
    given = [{"x": torch.arange(4.0), "m": torch.tensor(1, dtype=torch.int32)}] * 2
    for out in run(texts.program(TOLD), given, {"M": 4}):
        assert out["y"][:2].tolist() == [0.0, 1.0] and out["y"][2:].isnan().all()


@pytest.mark.parametrize(("m", "told"), [(0, -1), (2, 5), (4, 11)])
def test_an_entry_beyond_its_bound_that_a_peer_is_told_is_refused_as_that_of_the_peer(m: int, told: int) -> None:
    """Kernels clamp it: nothing is accessed that is not there, and what they return is not what the program says."""
    given = [{"x": torch.arange(4.0), "m": torch.tensor(m, dtype=torch.int32)}] * 2
    with pytest.raises(CoverageError, match=rf"(?s)n\[0\] of rank 1 is {told}\n.*lie in \[0, 5\)"):
        run(texts.program(TOLD), given, {"M": 4})


@pytest.mark.parametrize("wrong", [-3, 3, 2**31 - 1])
def test_an_entry_beyond_its_bound_that_is_a_place_is_refused(wrong: int) -> None:
    text = "program p(M, T):\n    c : local [T] < M\n    v : in [T] i32\n    x : in [M]\n    y : out [T]\n"
    text += "    compute g(i: T):\n        c[i] = v[i]\n"
    text += "    compute f(i: T):\n        y[i] = x[c[i]]\n"
    given = {"v": torch.tensor([0, 1, 2, 2], dtype=torch.int32), "x": torch.arange(3.0)}
    assert texts.one(text, {"M": 3, "T": 4}, **given)["y"].tolist() == [0.0, 1.0, 2.0, 2.0]
    given["v"][1] = wrong
    with pytest.raises(CoverageError, match=rf"c\[1\] of rank 0 is {wrong}\n"):
        texts.one(text, {"M": 3, "T": 4}, **given)


@pytest.mark.parametrize(("m", "first", "last"), [(0, 0, 0), (2, 0, 2), (3, 1, 3), (6, 4, 4), (9, 7, 4)])
def test_ends_beyond_the_dimension_are_its_ends(m: int, first: int, last: int) -> None:
    """The range M[m - 2 : m] of 4 elements, as a tile and as numbers."""
    text = "program p(M):\n    m : in [] <= 9\n    x : in [M]\n    y : out [1]\n    z : out [M[: min(m, M)]]\n"
    text += "    compute f(k: 1):\n        total = zeros(f32)\n"
    text += "        for (i: M[m - 2 : m] by 1):\n            total += x[i]\n        y[0] = total\n"
    text += "    compute g(i: M[: m]):\n        z[i] = x[i]\n"
    x = torch.tensor([1.0, 10.0, 100.0, 1000.0])
    out = texts.one(text, {"M": 4}, m=torch.tensor(m, dtype=torch.int32), x=x)
    assert float(out["y"]) == float(x[first:last].sum())
    assert torch.equal(out["z"][:m], x[:m])
    declared = text.replace("min(m, M)", "m")
    given = {"m": torch.tensor(m, dtype=torch.int32), "x": x}
    if m <= 4:
        assert torch.equal(texts.one(declared, {"M": 4}, **given)["z"][:m], x[:m])
        return
    with pytest.raises(BindingError, match=f"the end of dimension 0 of z of rank 0 is {m}"):
        texts.one(declared, {"M": 4}, **given)


def test_entries_beyond_the_end_of_a_range_are_not_read() -> None:
    """Nobody tells them, so a wait for the place that they name would never end."""
    text = "program p(T, M):\n    n : in [] <= T\n    rows : symmetric [T] < M\n    h : symmetric [M]\n    x : in [M]\n"
    text += "    y : out [1]\n    comm tell(i: T[: n]):\n        tile_push_data(rows[i] @ (rank + 1), pos(i) * 2)\n"
    text += "        producer_tile_notify(rows[i] @ (rank + 1))\n"
    text += "    comm send(i: M):\n        tile_push_data(h[i] @ (rank + 1), x[i])\n"
    text += "        producer_tile_notify(h[i] @ (rank + 1))\n"
    text += "    compute f(k: 1):\n        total = zeros(f32)\n        for (t: T[: n] by 1):\n"
    text += "            consumer_tile_wait(rows[t])\n            consumer_tile_wait(h[rows[t]])\n"
    text += "            total += h[rows[t]]\n        y[0] = total\n"
    given = [{"n": torch.tensor(2, dtype=torch.int32), "x": 10.0 ** torch.arange(5)}] * 2
    assert all(float(out["y"]) == 101.0 for out in run(texts.program(text), given, {"T": 4, "M": 5}))


def test_a_tile_that_is_not_there_waits_and_notifies() -> None:
    """Otherwise the reader of another rank, whose own range is longer, would wait for ever."""
    text = "program p(M):\n    m : in [] <= M\n    x : in [M]\n    h : symmetric [M]\n    y : out [M]\n"
    text += "    comm send(i: M[:m]):\n        tile_push_data(h[i] @ (rank + 1), x[i])\n"
    text += "        producer_tile_notify(h[i] @ (rank + 1))\n"
    text += "    compute f(i: M):\n        consumer_tile_wait(h[i])\n        y[i] = x[i]\n"
    for m in range(3):
        given = [{"x": torch.arange(2.0), "m": torch.tensor(m, dtype=torch.int32)}] * 2
        assert all(torch.equal(out["y"], torch.arange(2.0)) for out in run(texts.program(text), given, {"M": 2}))
        again = text.replace("compute f(i: M)", "compute f(i: M by 1)").replace("send(i: M[:m])", "send(i: M[:m] by 1)")
        assert all(torch.equal(out["y"], torch.arange(2.0)) for out in run(texts.program(again), given, {"M": 2}))


# Refusals ----------------------------------------------------------------------------------------------------


def refused(text: str, error: type[Exception], message: str, dims: dict[str, int], seed: int = 0) -> None:
    program = texts.program(text)
    given = random_inputs(program, dims, 3, "f32", seed=seed)
    with pytest.raises(error, match=message):
        run(program, given, dims)


def test_a_read_of_what_no_range_reached_is_an_error_and_no_hang() -> None:
    text = ROWS.replace("i: Ms[: ms[s]], j", "i: Ms, j").replace("Ms[:ms], N]", "Ms, N]")
    refused(text, CoverageError, r"gemm at s = \d reads xs\[s, i, :\], parts of which no stage writes in this launch",
            SIZES["rows"][1])  # fmt: skip
    text = EXPERTS.replace("< count[owner]", "< C")
    refused(text, CoverageError, r"combine at i = \d reads back.* in this launch", SIZES["experts"][1])


def test_an_output_is_written_as_far_as_it_is_defined() -> None:
    dims = {"Ms": 6, "K": 3, "N": 4, "E": 5, "T": 11}
    refused(
        MOE.replace("[T[: starts[E]], N]", "[T, N]"), CoverageError, r"y\[\d+, 0\] of rank 0 is never written", dims
    )
    refused(ROWS.replace("Ms[:ms], N]", "Ms, N]"), CoverageError, "of rank 0 is never written", SIZES["rows"][1])
    text = MOE.replace("y[r, j] =", "y[0 * e, j] =").replace("dot(xs[rows[r], :], w[e, j, :].T)", "w[e, j, 0]")
    refused(text, CoverageError, "is written [2345] times", dims)


def test_an_entry_that_no_stage_writes_is_an_error() -> None:
    unwritten = TOLD.replace("tile_push_data(n[0] @ (rank + 1), 3 * m - 1)", "tile_push_data(h[0] @ (rank + 1), x[0])")
    refused(unwritten, CoverageError, r"looks up n\[0\], parts of which no stage writes", {"M": 4})
    seldom = TOLD.replace("        tile_push", "        if m == 1:\n            tile_push")
    refused(seldom, CoverageError, r"f looks up n\[0\], parts of which no stage writes in this launch", {"M": 4})


def test_a_cycle_through_the_end_of_a_range_is_refused() -> None:
    text = "program p(M):\n    n : local [1] <= M\n    x : in [M]\n    y : out [M[: n[0]]]\n"
    text += "    compute f(i: M[: n[0]]):\n        y[i] = x[i]\n        n[0] = 1\n"
    refused(text, ProgressError, r"rank 0, f looks up n\[0\], before it is written", {"M": 3})


WAIT = "        consumer_tile_wait(xs[rows[r], :])\n"
TELL = "        peer_tile_notify({})\n"


@pytest.mark.parametrize(
    ("new", "message"),
    [
        (WAIT + TELL.format("xs[rows[r], :]"), "whose place only"),
        (WAIT + TELL.format("xs[0 + r, :]"), "whose place only"),
        (WAIT + TELL.format("xs[e, :] @ starts[e]"), "whose place only"),
        ("        if starts[e] > 1:\n    " + WAIT, "waits for .* in a branch that only a launch decides"),
        (WAIT + "        if starts[e] > 1:\n    " + TELL.format("xs[e, :]"), "notifies .* in a branch that only"),
    ],
)
def test_a_signal_about_which_a_launch_decides_is_refused(new: str, message: str) -> None:
    assert WAIT in MOE
    refused(MOE.replace(WAIT, new), AccountingError, message, SIZES["moe"][1])


def test_a_place_outside_of_a_tensor_is_refused() -> None:
    text = "program p(M, T):\n    at : in [T] < M\n    x : in [M]\n    y : out [T]\n"
    text += "    compute f(i: T):\n        y[i] = x[at[i]]\n"
    good, bad = text, text.replace("in [M]\n", "in [M - 1]\n")
    inputs = {"at": torch.tensor([2, 0], dtype=torch.int32), "x": torch.arange(3.0)}
    assert texts.one(good, {"M": 3, "T": 2}, **inputs)["y"].tolist() == [2.0, 0.0]
    with pytest.raises(CoverageError, match=r"reads x\[at\[i\]\] outside x"):
        texts.one(bad, {"M": 3, "T": 2}, at=inputs["at"], x=torch.arange(2.0))


# Signals of ranges that a launch cuts ------------------------------------------------------------------------

SIGNALS = """
program signals(M):
    n : in        [] <= {most} replicated
    a : in        [M] < M
    x : in        [M]
    r : local     [M] < M
    h : symmetric [M]
    z : local     [M]
    y : out       [M]

    comm send(i: {range}):
        {condition}:
            tile_push_data(h[i] @ (rank + 1), x[i])
            producer_tile_notify(h[i] @ (rank + 1))
    compute place(i: M[: n]):
        r[i] = a[i]
        producer_tile_notify(r[i])
    compute take(i: {taken}):
        consumer_tile_wait(r[{there}])
        consumer_tile_wait(h[{place}])
        z[i] = h[{place}]
    compute first(i: M):
        y[i] = x[i]
"""


@pytest.mark.parametrize(
    "words",
    [
        {"range": "M[1 : n]", "taken": "M[1 : n]"},
        {"range": "M[0 : n]", "taken": "M[0 : n]"},
        {"condition": "if n <= M", "taken": "M[: n // 2]"},
        {"condition": "if n // 2 + 1 <= M", "taken": "M[: n // 2]"},
        {"taken": "M[: n // 2]", "place": "i + 1"},
        {"place": "r[i]"},
        {"place": "r[t]", "by": "1"},
    ],
    ids=lambda words: ", ".join(words.values()),
)
def test_signals_are_there_wherever_a_range_begins_and_ends(words: dict[str, str]) -> None:
    """What the verifier accepts runs: signals are those of whole tiles, as far as the tensor has them."""
    said = {"most": "M", "range": "M", "condition": "if ranks > 0", "taken": "M[: n]", "place": "i", "there": "i"}
    said |= words
    text = SIGNALS.format(**said)
    if words.get("by"):
        text = text.replace("z[i] =", "z[t] =").replace("take(i: " + said["taken"], f"take(t: {said['taken']} by 1")
        text = text.replace("r[i])\n        consumer", "r[t])\n        consumer")
    program = texts.program(text)
    tilelink.compile(program, ranks=2, dims={"M": 8})
    for n in range(9):
        given = random_inputs(program, {"M": 8}, 2, "f32", seed=n)
        given = [one | {"n": torch.tensor(n, dtype=torch.int32)} for one in given]
        out = run(program, given, {"M": 8})
        assert all(torch.equal(own["y"], one["x"]) for own, one in zip(out, given, strict=True))


def test_what_a_launch_does_not_leave_out_is_still_asked_of_signals() -> None:
    said = {"most": "M", "condition": "if ranks > 0", "taken": "M[: n]", "place": "i", "there": "i"}
    text = SIGNALS.format(**said, range="M")
    given = random_inputs(texts.program(text), {"M": 8}, 1, "f32", seed=1)
    given = [one | {"n": torch.tensor(8, dtype=torch.int32)} for one in given]
    for old, new, error in (
        ("comm send(i: M)", "comm send(i: M[1 : n])", "waits for h.i., which no stage notifies"),
        ("if ranks > 0", "if n > 1", "in a branch that only a launch decides"),
        ("wait(h[i])", "wait(h[i + 1])", "outside h, of shape"),
    ):
        assert old in text
        program = texts.program(text.replace(old, new))
        with pytest.raises((AccountingError, CoverageError), match=error):
            run(program, given, {"M": 8})
