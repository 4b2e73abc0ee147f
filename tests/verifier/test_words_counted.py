"""Words in ranges and at places that a launch decides: each word that is awaited is sent in the same launch."""

from __future__ import annotations

import pytest

import tilelink
from tests.lowered import parse_lowered
from tilelink.errors import CoverageError, ReuseError, ScheduleError, TileLinkError, VerificationError, WordsError
from tilelink.ir.program import Notify, Wait
from tilelink.ir.visitor import statements
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.events import NOTIFY, WAIT
from tilelink.lowering.listing import listing
from tilelink.planning.plan import Plan, make_plan
from tilelink.target import CPU
from tilelink.verifier import refusals, verify

EXPERTS = """program p(M, H, C, k):
    x     : in        [M, H]
    w     : in        [H, H]
    count : in        [ranks] <= C
    other : in        [ranks] <= C
    rows  : in        [ranks, C] < M
    owner : in        [M, k] < ranks
    slot  : in        [M, k] < count[owner]
    n     : symmetric [ranks] <= C
    old   : kept      [ranks] i32
    got   : symmetric [ranks, C, H]
    back  : symmetric [ranks, C, H]
    y     : out       [M, H]

    comm tell(p: ranks):
        tile_push_data(n[rank] @ p, count[p])
        producer_tile_notify(n[rank] @ p)

    comm dispatch(p: ranks, c: C[: count[p]]):
        tile_push_data(got[rank, c, :] @ p, x[rows[p, c], :])
        producer_tile_notify(got[rank, c, :] @ p)

    compute work(s: ranks, c: C[: n[s]], j: H):
        consumer_tile_wait(n[s])
        consumer_tile_wait(got[s, c, :])
        tile_push_data(back[rank, c, j] @ s, dot(got[s, c, :], w[j, :].T))
        producer_tile_notify(back[rank, c, j] @ s)

    compute combine(i: M by 1):
        total = zeros(f32)
        for (q: k):
            consumer_tile_wait(back[owner[i, q], slot[i, q], :])
            total += back[owner[i, q], slot[i, q], :]
        y[i, :] = total

schedule s for p:
    dispatch tile(c=4)
    work tile(c=8, j=8, h=16)
    got low_latency
    back low_latency
    CLAUSES
"""


def bound(text: str, ranks: int = 3, dtype: str = "bf16", clauses: str = "") -> Bound:
    module = tilelink.parse(text.replace("    CLAUSES\n", f"    {clauses}\n" if clauses else ""))
    program = module.program()
    dims = {param.name: {"M": 12, "H": 32, "C": 12, "k": 2, "N": 8}[param.name] for param in program.params}
    return bind(program, module.schedules_of(program)[0], dims, ranks, CPU, dtype)


def plan(text: str, clauses: str = "") -> Plan:
    return make_plan(bound(text, clauses=clauses))


@pytest.mark.parametrize("ranks", [2, 3])
def test_counted_ranges_places_and_products_have_words(ranks: int) -> None:
    lowered = bound(EXPERTS, ranks)
    every = [s for stage in lowered.program.stages for s in statements(stage.body)]
    assert {s.region.tensor for s in every if isinstance(s, Notify | Wait)} == {"n"}
    assert [(lowered.tensors[name].packed, lowered.tensors[name].swept_by) for name in ("got", "back")] == [
        (2, "work"),
        (2, "combine"),
    ]
    verify(make_plan(lowered))
    again = parse_lowered(listing(lowered))
    assert again.tensors == lowered.tensors and again.program == lowered.program


def test_a_tile_that_is_not_there_sends_nothing() -> None:
    """Neither a word nor a signal in its place; so the tiles of a sender are numbered without gaps."""
    kernels = {kernel.name: kernel for kernel in bound(EXPERTS).kernels}
    assert kernels["dispatch"].loops[0].compact is not None
    assert bound(EXPERTS.replace("    got low_latency\n", "")).kernel_of["dispatch"].loops[0].compact is None


REFUSED = {
    "a range that is longer than the writer's": ("c: C[: n[s]], j", "c: C, j", CoverageError, "reads all of that"),
    "one element more": (
        "c: C[: n[s]], j",
        "c: C[: n[s] + 1], j",
        CoverageError,
        "and reads up to min(count[0] + 1, 12)",
    ),
    "a count of another rank": ("c: C[: n[s]], j", "c: C[: n[(s + 1) % ranks]], j", VerificationError, "reads"),
    "a count that is told otherwise": ("n[rank] @ p, count[p]", "n[rank] @ p, other[p]", CoverageError, "reads got"),
    "a count of another receiver": (
        "n[rank] @ p, count[p]",
        "n[rank] @ p, count[(p + 1) % ranks]",
        CoverageError,
        "reads got",
    ),
    "an own count": ("c: C[: n[s]], j", "c: C[: other[s]], j", CoverageError, "reads got"),
    "a count of an earlier launch": ("c: C[: n[s]], j", "c: C[: min(old[s], C)], j", TileLinkError, "old"),
    "a count that is not awaited": ("        consumer_tile_wait(n[s])\n", "", VerificationError, "reads n"),
    "a count that is awaited too late": (
        "        consumer_tile_wait(n[s])\n        consumer_tile_wait(got[s, c, :])\n",
        "        consumer_tile_wait(got[s, c, :])\n        if rank >= 0:\n            consumer_tile_wait(n[s])\n",
        VerificationError,
        "",
    ),
    "a place without a bound": ("[M, k] < count[owner]", "[M, k] < C", CoverageError, "reads back"),
    "a place below another bound": ("[M, k] < count[owner]", "[M, k] < other[owner]", CoverageError, "reads back"),
    "a wait for another place": (
        "consumer_tile_wait(back[owner[i, q], slot[i, q], :])",
        "consumer_tile_wait(back[owner[i, 0], slot[i, 0], :])",
        WordsError,
        "has not waited for all of it",
    ),
    "no wait for a place": (
        "            consumer_tile_wait(back[owner[i, q], slot[i, q], :])\n",
        "",
        WordsError,
        "has not waited for all of it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_wait_for_words_that_are_not_sent_is_refused(name: str) -> None:
    old, new, kind, message = REFUSED[name]
    assert EXPERTS.count(old) == 1, old
    with pytest.raises(kind) as found:
        verify(plan(EXPERTS.replace(old, new)))
    assert message in str(found.value), str(found.value)


@pytest.mark.parametrize("cover", ["c: C[: n[s] // 2], j", "c: C[: n[s] - 1], j", "c: C[: min(n[s], 5)], j"])
def test_a_shorter_range_than_the_writers_is_safe(cover: str) -> None:
    """What is sent and not read stays, until it is sent again. Only its own range is what `work` sends back."""
    text = EXPERTS.replace("c: C[: n[s]], j", cover)
    text = text.replace("total += back[owner[i, q], slot[i, q], :]", "total += 1.0")
    text = text.replace("            consumer_tile_wait(back[owner[i, q], slot[i, q], :])\n", "")
    text = text.replace("tile_push_data(back[rank, c, j] @ s, ", "y2[s, c, j] = ").replace("w[j, :].T))", "w[j, :].T)")
    text = text.replace("        producer_tile_notify(back[rank, c, j] @ s)\n", "").replace(
        "    back low_latency\n", ""
    )
    end = cover.removeprefix("c: C[: ").removesuffix("], j").replace("n[s]", "n")
    text = text.replace("    back  : symmetric [ranks, C, H]\n", f"    y2    : out [ranks, C[: {end}], H]\n")
    verify(plan(text))


# Launches ------------------------------------------------------------------------------------------------------------

ALONE = """program p(M, N):
    m     : in        [] <= M replicated
    x     : in        [M, N]
    parts : symmetric [ranks, M, N]
    y     : out       [ranks, M[: m], N]

    comm send(q: ranks, i: M[: m]):
        tile_push_data(parts[rank, i, :] @ q, x[i, :])
        producer_tile_notify(parts[rank, i, :] @ q)

    compute take(s: ranks, i: M[: m], j: N):
        consumer_tile_wait(parts[s, i, j])
        y[s, i, j] = parts[s, i, j]

schedule s for p:
    send in take prologue, tile(i=4)
    take tile(i=4, j=8)
    parts low_latency, buffers 2
    CLAUSES
"""
READ = """total = zeros(f32)
        for (j: RANGE):
            total += sum(parts[s, i, j], axis=1)
        y[s, i] = total"""


def test_words_that_need_not_be_there_keep_no_launches_apart() -> None:
    """With m = 0 nobody waits for anybody, so a rank may be any number of launches ahead of a peer."""
    verify(plan(ALONE))
    with pytest.raises(ReuseError, match="may still use"):
        verify(plan(ALONE, clauses="reuse_wait off"))
    verify(plan(ALONE.replace("[: m]", ""), clauses="reuse_wait off"))


def test_the_plan_says_which_words_a_launch_decides_about() -> None:
    s = plan(EXPERTS)
    rows = s.by_words
    assert rows.any() and {*s.signals.kind[rows].tolist()} == {WAIT, NOTIFY}
    assert (s.signals.guard[rows] > 0).all()


def test_flags_that_may_stay_in_memory_are_replaced() -> None:
    """2**32 launches later the number of the launch that has left them is there again."""
    text = listing(bound(EXPERTS))
    assert text.count(", swept_by work") == 1
    for other in ("", ", swept_by dispatch"):
        (found, *_) = refusals(make_plan(parse_lowered(text.replace(", swept_by work", other))))
        assert isinstance(found, WordsError) and "nothing replaces their old flags" in found.message
        assert found.hint == "swept_by work"
    with pytest.raises(TileLinkError, match="which is no stage"):
        parse_lowered(text.replace("swept_by work", "swept_by nobody"))


def test_a_cycle_of_buffers_is_not_longer_than_what_is_swept_in_a_row() -> None:
    text = EXPERTS.replace("got low_latency", "got low_latency, buffers 61").replace("    CLAUSES", "    n buffers 71")
    (found, *_) = refusals(plan(text))
    assert isinstance(found, WordsError) and "may skip up to 8661 numbers" in found.message


def test_words_have_one_element_where_a_launch_decides_where_they_begin() -> None:
    """A word of two elements is sent by its first one."""
    whole = ALONE.replace("[: m]", "").replace("take(s: ranks, i: M, j: N)", "take(s: ranks, i: M)")
    whole = whole.replace("parts[s, i, j])", "parts[s, i, :])").replace("y[s, i, j] = parts[s, i, j]", READ)
    whole = whole.replace("[ranks, M, N]\n\n", "[ranks, M]\n\n").replace("tile(i=4, j=8)", "tile(i=4, j=4)")
    ended = bound(whole.replace("RANGE", "N[: m]"))
    assert ended.tensors["parts"].packed == 2 and ended.tensors["parts"].swept_by is None
    verify(make_plan(ended))
    begun = bound(whole.replace("RANGE", "N[m :]"))
    assert begun.tensors["parts"].packed == 1
    verify(make_plan(begun))
    spoiled = make_plan(parse_lowered(listing(begun).replace("packed 1", "packed 2")))
    assert "from a column that a launch decides on, and words have 2 elements" in str(refusals(spoiled)[0])


def test_words_at_places_of_a_peer_are_refused_by_name() -> None:
    text = EXPERTS.replace(
        "total += back[owner[i, q], slot[i, q], :]", "total += back[rank, slot[i, q], :] @ owner[i, q]"
    )
    with pytest.raises(ScheduleError, match="reads that of a peer"):
        plan(text)


# Entries -------------------------------------------------------------------------------------------------------------

ENTRIES = """program p(M, N):
    m    : in        [] <= M
    a    : in        [ranks, M] < M
    n    : symmetric [ranks] <= M
    at   : symmetric [ranks, M] < M
    x    : in        [M, N]
    y    : out       [ranks, M[: n], N]

    comm tell(q: ranks):
        tile_push_data(n[rank] @ q, m)
        producer_tile_notify(n[rank] @ q)

    comm places(q: ranks, i: M[: m]):
        tile_push_data(at[rank, i] @ q, a[q, i])
        producer_tile_notify(at[rank, i] @ q)

    compute take(s: ranks, i: M[: n[s]] by 1, j: N):
        consumer_tile_wait(n[s])
        consumer_tile_wait(at[s, i])
        y[s, i, j] = x[at[s, i], j]

schedule s for p:
    n low_latency, buffers 2
    at low_latency, buffers 2
    CLAUSES
"""


def test_entries_that_travel_as_words_are_counts_and_places() -> None:
    lowered = bound(ENTRIES)
    every = [s for stage in lowered.program.stages for s in statements(stage.body)]
    assert not any(isinstance(s, Notify | Wait) for s in every)
    assert (lowered.tensors["n"].swept_by, lowered.tensors["at"].swept_by) == (None, "take")
    verify(make_plan(lowered))
    assert parse_lowered(listing(lowered)).tensors == lowered.tensors


def test_a_count_that_every_tile_waits_for_keeps_launches_apart_and_a_place_does_not() -> None:
    """A kernel may leave out an entry, of which its expression turns out to need no more."""
    verify(plan(ENTRIES, clauses="reuse_wait off"))
    place = ENTRIES.replace("i: M[: n[s]] by 1", "i: M by 1").replace("i: M[: m]", "i: M").replace("M[: n], N", "M, N")
    place = place.replace("        consumer_tile_wait(n[s])\n", "").replace("    n low_latency, buffers 2\n", "")
    place = place[: place.index("    comm tell")] + place[place.index("    comm places") :]
    place = place.replace("    n    : symmetric [ranks] <= M\n", "")
    verify(plan(place))
    with pytest.raises(ReuseError):
        verify(plan(place, clauses="reuse_wait off"))


ENTRIES_REFUSED = {
    "a tile of them": ("M[: n[s]] by 1", "M[: n[s]]", "takes a tile of its entries as places, x[at[s, i], j]"),
    "no wait for a count": (
        "        consumer_tile_wait(n[s])\n",
        "",
        "looks up entries of it and has not waited for them",
    ),
    "no wait for a place": ("        consumer_tile_wait(at[s, i])\n", "", "looks up entries of it and has not waited"),
}


@pytest.mark.parametrize("name", ENTRIES_REFUSED)
def test_entries_that_words_cannot_carry_are_refused_by_name(name: str) -> None:
    old, new, message = ENTRIES_REFUSED[name]
    assert ENTRIES.count(old) == 1
    with pytest.raises(ScheduleError) as found:
        plan(ENTRIES.replace(old, new))
    assert message in found.value.message and found.value.hint


def test_more_places_than_were_told_are_refused() -> None:
    with pytest.raises(CoverageError, match="reads at of rank"):
        verify(plan(ENTRIES.replace("M[: n[s]] by 1", "M by 1").replace("M[: n], N", "M, N")))
