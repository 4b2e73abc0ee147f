"""Words of data and flag: what the pass makes of pushes and reads, and the mistakes that are refused or never fail."""

from __future__ import annotations

import pytest

import tilelink
from tests.lowered import parse_lowered
from tests.verifier.dynamic import check
from tilelink.errors import OrderingError, ReuseError, ScheduleError, StageError, TileLinkError, WordsError
from tilelink.frontend.checker import check as check_program
from tilelink.ir.program import Notify, Statement, Transfer, Wait
from tilelink.ir.visitor import received, statements, value_of
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.enumerate import Enumerator
from tilelink.lowering.listing import listing
from tilelink.lowering.walk import Rows
from tilelink.planning.plan import Plan, make_plan
from tilelink.target import CPU
from tilelink.verifier import refusals, verify

SEND = """
        tile_push_data(parts[rank, i, j] @ q, x[i, j])
        producer_tile_notify(parts[rank, i, j] @ q)"""
WAIT = """
        consumer_tile_wait(parts[:, i, j])"""
SUM = """
        acc = zeros(f32)
        for (s: ranks):
            acc += parts[s, i, j]
        y[i, j] = acc"""
TENSORS = """
    x     : in        [M, N]
    parts : symmetric [ranks, M, N]
    other : symmetric [ranks, M, N]
    y     : out       [M, N]
"""
SCHEDULE = """
schedule s for p:
    send in add prologue, tile(i=4, j=8)
    add on sm, tile(i=2, j=8)
    parts {clauses}
    reuse_wait off
"""


def text(send: str = SEND, add: str = WAIT + SUM, clauses: str = "low_latency, buffers 2") -> str:
    stages = f"    comm send(q: ranks, i: M, j: N):{send}\n\n    compute add(i: M, j: N):{add}\n"
    return f"program p(M, N):{TENSORS}\n{stages}{SCHEDULE.format(clauses=clauses)}"


def bound(source: str, ranks: int = 3, dtype: str = "bf16", columns: int = 11) -> Bound:
    module = tilelink.parse(source)
    program = module.program()
    return bind(program, module.schedules_of(program)[0], {"M": 6, "N": columns}, ranks, CPU, dtype)


def plan(source: str) -> Plan:
    return make_plan(bound(source))


# What the pass makes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_pushes_carry_their_signals_and_reads_wait_for_words(ranks: int) -> None:
    lowered = bound(text(), ranks)
    every = [s for stage in lowered.program.stages for s in statements(stage.body)]
    assert not any(isinstance(s, Notify | Wait) for s in every)
    assert [(s.mode, s.signal) for s in every if isinstance(s, Transfer)] == [("send", "tile")]
    assert sum(len(received(value)) for s in every if (value := value_of(s)) is not None) == 1
    done = make_plan(lowered)
    verify(done)
    assert not check(done, range(8))


def test_the_pass_walks_what_has_to_do_with_words_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the loops of a kernel that sends words at its end, and not once more for each tensor that is sent."""
    seen: list[str] = []
    visit = Enumerator.visit

    def watched(self: Enumerator, stage: BoundStage, number: int, statement: Statement, rows: Rows) -> None:
        seen.append(type(statement).__name__)
        visit(self, stage, number, statement, rows)

    monkeypatch.setattr(Enumerator, "visit", watched)
    send = """
        acc = zeros(f32)
        for (k: N by 1):
            acc += x[i, k][:, None] * x[i, j]
        tile_push_data(parts[rank, i, j] @ q, acc)
        producer_tile_notify(parts[rank, i, j] @ q)
        tile_push_data(other[rank, i, j] @ q, acc)
        producer_tile_notify(other[rank, i, j] @ q)"""
    add = WAIT + WAIT.replace("parts", "other") + SUM.replace("parts[s, i, j]", "parts[s, i, j] + other[s, i, j]")
    lowered = bound(text(send, add, "low_latency, buffers 2\n    other low_latency, buffers 2"))
    assert sorted(seen) == ["Assign"] + 2 * ["Notify"] + 2 * ["Transfer"] + 2 * ["Wait"]
    assert [name for name, tensor in lowered.tensors.items() if tensor.packed] == ["parts", "other"]
    verify(make_plan(lowered))


def test_the_listing_is_read_back() -> None:
    lowered = bound(text())
    again = parse_lowered(listing(lowered))
    assert listing(again) == listing(lowered)
    assert again.tensors == lowered.tensors
    assert again.program == lowered.program


@pytest.mark.parametrize(
    ("dtype", "columns", "tile", "packed", "memory"),
    [
        ("f32", 11, 8, 1, 11),
        ("bf16", 11, 8, 2, 12),
        ("bf16", 11, 5, 1, 11),
        ("bf16", 1, 8, 1, 1),
        ("bf16", 2, 8, 2, 2),
    ],
)
def test_words_have_as_many_elements_as_all_tiles_allow(
    dtype: str, columns: int, tile: int, packed: int, memory: int
) -> None:
    tensor = bound(text().replace("j=8", f"j={tile}"), dtype=dtype, columns=columns).tensors["parts"]
    assert (tensor.packed, tensor.memory[-1]) == (packed, memory)


def test_channels_are_inside_of_all_regions_whatever_the_schedule_says() -> None:
    lowered = bound(text(clauses="low_latency, buffers 2, channel(i=6, j=11)"))
    assert lowered.channels["parts", "tile"].sizes == (1, 2, 8)
    verify(make_plan(lowered))


def test_other_dialects_and_processors_use_counters() -> None:
    module = tilelink.parse(text().replace("    reuse_wait off\n", ""))
    program = module.program()
    schedule = module.schedules_of(program)[0]
    lowered = bind(program, schedule, {"M": 6, "N": 11}, 3, CPU, "f32", dialect="triton_dist")
    assert lowered.tensors["parts"].packed == 0
    verify(make_plan(lowered))


# Programs that are refused -------------------------------------------------------------------------------------------

PUSH_OTHER = "\n        tile_push_data(other[rank, i, j] @ q, x[i, j])" + SEND
REFUSED = {
    "no wait": (text(add=SUM), "has not waited for all of it"),
    "a wait for less": (text(add="\n        consumer_tile_wait(parts[rank, i, j])" + SUM), "has not waited for all"),
    "a wait after the read": (text(add=SUM + WAIT), "has not waited for all of it"),
    "no notify": (text(send=SEND.split("\n        producer")[0]), "does not notify all of it"),
    "a notify before the push": (
        text(send="\n        producer_tile_notify(parts[rank, i, j] @ q)" + SEND.split("\n        producer")[0]),
        "has pushed nothing of it",
    ),
    "a notify of another rank": (text(send=SEND.replace("j] @ q)", "j] @ (q + 1))")), "does not notify all of it"),
    "a wait beyond the tensor": (  # whose channels cover what is read, as far as they are there
        text(add=WAIT.replace("i,", "i + 2,") + SUM, clauses="low_latency, channel(m=6)"),
        "reaches outside parts",
    ),
    "an element twice": (text(send=SEND + SEND), "are sent twice"),
    "other data": (
        text(send=PUSH_OTHER, add=WAIT + SUM.replace("= acc", "= acc + other[0, i, j]")),
        "also writes, and nothing orders the two",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_words_cannot_prove_is_refused(name: str) -> None:
    source, message = REFUSED[name]
    refused = refusals(plan(source))
    assert refused, name
    assert message in str(refused[0]), refused[0]
    assert refused[0].location is not None and refused[0].hint


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            text(send=SEND.replace("tile_push_data(parts[rank, i, j] @ q, x[i, j])", "parts[rank, i, j] = x[i, j]")),
            "out",
        ),
        (text(add=WAIT + SUM.replace("parts[s, i, j]", "parts[s, i, j] @ s")), "reads that of a peer"),
        (text(clauses="low_latency, slots(i=1)").replace("i=4, ", "").replace("i=2, ", ""), "several steps"),
        (text(add=WAIT + "\n        peer_tile_wait(parts[:, i, j])" + SUM), "peer"),
        (text().replace("parts low_latency, buffers 2", "x low_latency"), "x, which is in"),
        (text().replace("    parts ", "    rows  : table [M] < M\n    parts ", 1), "entries of the table rows"),
    ],
)
def test_what_words_cannot_carry_is_refused_by_name(source: str, message: str) -> None:
    with pytest.raises(ScheduleError) as found:
        verify(plan(source))
    assert message in str(found.value)


PRODUCT = """program p(M, N, K):
    h     : in        [M, K]
    w     : in        [N, K]
    x     : in        [M, N]
    parts : symmetric [ranks, M, N]
    y     : out       [M, N]

    comm send(q: ranks, i: M, j: N):
        tile_push_data(parts[rank, i, j] @ q, x[i, j])
        producer_tile_notify(parts[rank, i, j] @ q)

    compute multiply(i: M, j: N):
        consumer_tile_wait(parts[:, i, j])
        total = dot(h[i, :], w[j, :].T)
        for (q: ranks):
            total += parts[q, i, j]
        y[i, j] = total

schedule s for p:
    send on sm(2)
    multiply on sm, tile(i=16, j=16, k=16), {clause}
    parts low_latency, buffers 2
"""
WAIT_OF_PRODUCT = "        consumer_tile_wait(parts[:, i, j])\n"
LATER = PRODUCT.replace(WAIT_OF_PRODUCT, "").replace("        for (q", WAIT_OF_PRODUCT + "        for (q")


def divided(source: str, clause: str) -> Bound:
    module = tilelink.parse(source.format(clause=clause))
    program = module.program()
    return bind(program, module.schedules_of(program)[0], {"M": 80, "N": 80, "K": 512}, 2, CPU, "f32")


@pytest.mark.parametrize("source", [PRODUCT, LATER])
def test_programs_that_compute_a_part_of_a_product_leave_out_a_wait_for_what_they_do_not_read(
    source: str,
) -> None:
    lowered = divided(source, "split_k_tail 4")
    assert len(lowered.stages) > 2, "tiles are divided"
    every = [s for stage in lowered.program.stages for s in statements(stage.body)]
    assert not any(isinstance(s, Wait) and s.region.tensor == "parts" for s in every)
    verify(make_plan(lowered))


def test_a_wait_for_what_nobody_reads_is_refused_as_before() -> None:
    """It is no matter of the clause: the whole tiles do not read it either."""
    with pytest.raises(WordsError, match="reads nothing of it afterwards"):
        verify(make_plan(divided(PRODUCT.replace("total += parts[q, i, j]", "total += 1.0"), "split_k_tail 4")))


def test_notifies_that_words_carry_cannot_be_deferred() -> None:
    source = PRODUCT.replace(WAIT_OF_PRODUCT, "").replace("parts low_latency", "back low_latency")
    source = source.replace("    y ", "    back  : symmetric [M, N]\n    y ").replace("        y[i, j] = total\n", "")
    source = source.replace("        for (q: ranks):\n            total += parts[q, i, j]\n", """\
        tile_push_data(back[i, j] @ rank, total)
        producer_tile_notify(back[i, j])

    compute keep(i: M, j: N):
        consumer_tile_wait(back[i, j])
        consumer_tile_wait(parts[:, i, j])
        y[i, j] = back[i, j] + parts[0, i, j]
""")  # fmt: skip
    with pytest.raises(ScheduleError, match="words carry its notifies of back, which has `low_latency`"):
        divided(source, "defer_notify")
    divided(source.replace("back low_latency, buffers 2", "back buffers 2"), "defer_notify")


# Mistakes of lowered programs ----------------------------------------------------------------------------------------

SENT = "tile_send_data(parts[rank, i, j] @ q, x[i, j], producer_tile_notify)"
READ = "received(parts[s, i, j], consumer_tile_wait)"
MISTAKES = {
    "a push of words": (SENT, "tile_push_data(parts[rank, i, j] @ q, x[i, j])", "words"),
    "a send without a signal": (SENT, SENT.replace(", producer_tile_notify", ""), "words"),
    "a send of another kind": (SENT, SENT.replace("producer_tile", "peer_tile"), None),
    "a send to one rank": (SENT, SENT.replace("@ q", "@ 0"), "coverage"),
    "a send of one rank alone": (SENT, f"if rank != 0:\n            {SENT}", "coverage"),
    "a read that does not wait": (READ, "parts[s, i, j]", "words"),
    "a read on a peer": (READ, READ.replace("]", "] @ s"), None),
    "one buffer": (
        "dtype bf16, shape[3, 6, 11], buffers 2, packed 2",
        "dtype bf16, shape[3, 6, 11], buffers 1, packed 2",
        "reuse",
    ),
    "more elements of a word": ("packed 2", "packed 4", None),
    "no words": (", packed 2", "", "words"),
    "words of other tiles": ("tile(i=2, j=8, s=1)", "tile(i=2, j=5, s=1)", None),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_of_a_lowered_program_is_refused(name: str) -> None:
    old, new, rule = MISTAKES[name]
    lowered = listing(bound(text()))
    assert lowered.count(old) >= 1, lowered
    spoiled = lowered.replace(old, new)
    if name == "one buffer":
        spoiled = spoiled.replace("sizes[1, 2, 8], buffers 2", "sizes[1, 2, 8], buffers 1")
        spoiled = spoiled.replace("entered 36, finished 39, size 42", "entered 18, finished 21, size 24")
    try:
        done = make_plan(parse_lowered(spoiled))
    except TileLinkError as error:  # refused when it is read
        assert rule is None, error
        return
    refused = refusals(done)
    assert refused
    assert rule is None or refused[0].rule == rule, refused


def test_an_odd_tile_of_a_lowered_program_is_refused_with_what_to_do() -> None:
    lowered = listing(bound(text().replace("j=8", "j=5"), dtype="bf16"))
    assert ", packed 1" in lowered
    spoiled = lowered.replace(", packed 1", ", packed 2")
    refused = refusals(make_plan(parse_lowered(spoiled)))
    assert "from column 5 on, and words have 2 elements" in str(refused[0])
    assert "begin at multiples of 2, as tiles of an even size do" in (refused[0].hint or "")


def test_the_checker_refuses_words_that_people_write() -> None:
    push = "tile_push_data(parts[rank, i, j] @ q, x[i, j])"
    for old, new in ((push, SENT), ("acc += parts[s, i, j]", f"acc += {READ}")):
        with pytest.raises(StageError, match="is of lowered programs") as found:
            check_program(tilelink.parse(text().replace(old, new)).program())
        assert "low_latency" in str(found.value.hint)


def test_a_word_does_not_order_what_was_sent_before_it() -> None:
    """A notify after both pushes would: the same program with a counter is safe."""
    source, message = REFUSED["other data"]
    found = refusals(plan(source))
    assert isinstance(found[0], OrderingError) and message in str(found[0])
    verify(plan(source.replace("parts low_latency, buffers 2", "parts buffers 2").replace("    reuse_wait off\n", "")))


def test_words_alone_keep_launches_apart_if_there_are_two_buffers() -> None:
    """A rank has received words of all peers, which have then ended the launch before; one of them may lag by one."""
    verify(plan(text()))
    (found,) = refusals(plan(text(clauses="low_latency, buffers 1")), limit=1)
    assert isinstance(found, ReuseError)
    assert check(plan(text(clauses="low_latency, buffers 1")), range(40))
