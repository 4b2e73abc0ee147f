"""Results that consumers store themselves, parts of products that they add up, and the order of both in memory."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.lowered import parse_lowered
from tilelink import compiler
from tilelink.errors import ParseError, ScheduleError, VerificationError
from tilelink.lowering.bound import Bound
from tilelink.lowering.fragments import fragments_reason
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.target import target
from tilelink.verifier import refusals, verify
from tilelink.verifier.roles import roles

HALVES = """program halves(M, N, K):
    x    : in    [2, M, K]
    w    : in    [2, N, K]
    part : local [M, N] f32
    y    : out   [M, N]

    compute first(i: M, j: N):
        part[i, j] = dot(x[0, i, :], w[0, j, :].T)
        producer_tile_notify(part[i, j])

    compute gemm(i: M, j: N):
        acc = dot(x[1, i, :], w[1, j, :].T)
        consumer_tile_wait(part[i, j])
        y[i, j] = acc + part[i, j]

schedule one for halves:
    first in gemm prologue, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)
    gemm on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)
"""
"""A product in two parts by hand: f32 next to bf16, in memory as rows and columns."""
PRODUCT = """program product(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

schedule one for product:
    gemm on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3), split_k_tail 4
"""


def lowered(text: str, *, on: str = "sm_90", sms: int = 5, ranks: int = 1, **sizes: int) -> Bound:
    module = compiler.parse(text, "direct.tl")
    machine = replace(target(on), sms=sms)
    return compiler.bound(module.program(), module.schedules[0], ranks=ranks, dims=sizes, dtype="bf16", target=machine)


def halves(*changes: tuple[str, str], sms: int = 3, ranks: int = 1, M: int = 256, N: int = 256) -> Bound:
    text = HALVES
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return lowered(text, sms=sms, ranks=ranks, M=M, N=N, K=64)


def split(text: str = PRODUCT, on: str = "sm_90", sms: int = 5, **sizes: int) -> Bound:
    return lowered(text, on=on, sms=sms, **({"M": 256, "N": 384, "K": 4096} | sizes))


def changed(made: Bound, old: str, new: str) -> list[VerificationError]:
    """Return what is refused of a lowered program in which one text stands for another."""
    text = listing(made)
    assert len(re.findall(old, text)) == 1, old
    return list(refusals(make_plan(parse_lowered(re.sub(old, new, text)))))


# Parts of a product -------------------------------------------------------------------------------------------


def test_the_last_part_stays_in_registers() -> None:
    """Six tiles on five programs: the last one becomes four parts, of which three are stored."""
    made = split()
    assert {name: stage.total for name, stage in made.stages.items()} == {"gemm": 5, "gemm_parts": 3, "gemm_sums": 1}
    parts, sums = made.stages["gemm_parts"], made.stages["gemm_sums"]
    assert parts.roles is not None and sums.roles is not None
    assert (parts.roles.direct, sums.roles.direct) == (True, False)
    assert parts.tiles["inner"] == sums.tiles["inner"] == 1024
    assert made.tensors["gemm_split"].fragments and made.tensors["gemm_split"].shape == (1, 3, 1, 128, 128)
    verify(make_plan(made))
    assert listing(parse_lowered(listing(made))) == listing(made)


@pytest.mark.parametrize(("k", "parts"), [(2304, 0), (2432, 2), (2560, 3), (8192, 3)])
def test_parts_are_worth_what_they_cost(k: int, parts: int) -> None:
    """A part takes 16 steps besides its own and each stored part 4: 36 steps in three parts take 12 + 16 + 2 * 4."""
    memory = split(K=k).tensors.get("gemm_split")
    assert (memory.shape[1] if memory else 0) == parts


def test_other_processors_have_the_same_parts_without_roles() -> None:
    made = split(on="sm_80")
    assert not any(stage.roles for stage in made.stages.values())
    assert made.tensors["gemm_split"] == replace(split().tensors["gemm_split"], fragments=False)
    verify(make_plan(made))


def test_sums_wait_for_the_parts() -> None:
    wait = r"        consumer_tile_wait\(gemm_split\[tail, :, :, i_in, j_in\]\).*\n"
    assert {one.rule for one in changed(split(), wait, "")} == {"ordering"}
    (found,) = roles(parse_lowered(re.sub(wait, "", listing(split()))))
    assert "it computes with gemm_split, which gemm_parts writes in the same kernel" in found.message


@pytest.mark.parametrize(("old", "new", "why"), [
    (r", direct=1", "", "does not|do not store them themselves"),
    (r"(stage gemm: .*pieces=2)", r"\1, direct=1", "`direct` is said of it"),
    (r"(tensor y: .*buffers 1)", r"\1, fragments", "it is not a local tensor"),
    (r"(stage gemm_sums: .*)pieces=2", r"\1pieces=0", "no roles that fit together"),
    (r"(stage gemm_sums: .*inner=)1024", r"\g<1>1056", "not rows of whole dimensions, or of slices of them"),
])  # fmt: skip
def test_wrong_texts_are_refused(old: str, new: str, why: str) -> None:
    found = changed(split(), old, new)
    assert any(re.search(why, str(one)) for one in found), found


def test_a_lowered_program_says_of_fragments_that_there_are_some() -> None:
    text = listing(split()).replace(", fragments", ", fragments 2")
    with pytest.raises(ParseError, match="fragments has a value"):
        parse_lowered(text)


def test_parts_of_several_products_are_not_stored() -> None:
    text = PRODUCT.replace("dot(x[i, :], w[j, :].T)", "dot(x[i, :], w[j, :].T) * dot(x[i, :], w[j, :].T)")
    with pytest.raises(ScheduleError, match="the tail of gemm cannot be split: it has `roles` and several products"):
        split(text)


SECOND = """program second(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]
    z : out [M, N] f32

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

    compute second(q: 1 by 1, i: M, j: N):
        z[i, j] = dot(x[i, :], w[j, :].T)

schedule one for second:
    gemm on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)
    second in gemm epilogue, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3), split_k_tail 4
"""


def test_results_of_another_type_are_split_too() -> None:
    """The whole tiles and the sums of parts are all stored by consumers, in the same tensor."""
    made = split(SECOND, sms=11)
    direct = {name: bool(stage.roles and stage.roles.direct) for name, stage in made.stages.items()}
    assert direct == {"gemm": False, "second": True, "second_parts": True, "second_sums": True}
    verify(make_plan(made))


def test_cut_rows_are_split_where_the_tensor_ends() -> None:
    made = split(M=200)
    assert made.tensors["gemm_split"].shape[1] == 3
    verify(make_plan(made))


def test_rows_that_others_follow_in_memory_are_not_split() -> None:
    """A box of the last rows would reach into those that follow, and nothing cuts it at the tensor's end."""
    text = PRODUCT.replace("x : in  [M, K]", "x : in  [2, M, K]").replace("y : out [M, N]", "y : out [2, M, N]")
    text = text.replace("gemm(i: M", "gemm(b: 2 by 1, i: M").replace(
        "y[i, j] = dot(x[i, :]", "y[b, i, j] = dot(x[b, i, :]"
    )
    with pytest.raises(ScheduleError, match="cuts a tile of y, and other rows follow it in memory"):
        split(text, M=200)
    split(text)


# Results of another type --------------------------------------------------------------------------------------


def test_consumers_store_results_of_another_type() -> None:
    made = halves()
    assert made.stages["first"].roles is not None and made.stages["first"].roles.direct
    assert not made.tensors["part"].fragments, "its tiles are not all of its rows and columns"
    verify(make_plan(made))


def test_one_tile_that_only_consumers_see_is_in_fragment_order() -> None:
    made = halves(M=128, N=128)
    assert made.tensors["part"].fragments
    seen = replace(made, tensors={**made.tensors, "part": replace(made.tensors["part"], buffers=2)})
    assert fragments_reason(seen, "part") == "it is not a local tensor of one buffer"
    others = {**made.stages, "gemm": replace(made.stages["gemm"], roles=None)}
    assert fragments_reason(replace(made, stages=others), "part") == "others than consumers access it in gemm"


def test_tiles_of_results_of_another_type_are_not_the_widest() -> None:
    with pytest.raises(ScheduleError, match="first has the widest tiles of its kernel, and its results") as caught:
        halves(("first in gemm prologue, tile(i=128, j=128", "first in gemm prologue, tile(i=128, j=256"))
    assert "give gemm tiles of as many columns or more" in str(caught.value.hint)


def test_a_kernel_named_after_a_stage_that_stores_nothing_has_no_roles() -> None:
    """It waits for what another stage of its kernel stores, and no more."""
    text = (
        HALVES[: HALVES.index("        acc = dot")]
        + "        consumer_tile_wait(part[i, j])\n\nschedule one for halves:\n"
    )
    text += "    first in gemm prologue, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)\n"
    text += "    gemm on sm, tile(i=128, j=128), roles(consumers=2, buffers=3)\n"
    text = text.replace("    y    : out   [M, N]\n", "").replace("part : local", "part : out")
    with pytest.raises(ScheduleError, match="cannot have roles"):
        lowered(text, M=256, N=256, K=64)


def test_what_nobody_tells_of_orders_nothing() -> None:
    """A wait for a tensor that two stages write, of which one notifies: consumers may read the other one's."""
    other = """
    compute other(b: 1 by 1, i: M, j: N):
        part[i, j] = dot(x[0, i, :], w[1, j, :].T)

    compute gemm"""
    sizes = "tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)"
    changes = [
        ("part : local [M, N] f32", "part : local [M, N]"), ("\n    compute gemm", other),
        ("first in gemm prologue", f"other in gemm prologue, {sizes}\n    first in gemm prologue"),
    ]  # fmt: skip
    assert list(refusals(make_plan(halves(*changes))))


def test_a_tile_of_a_larger_tensor_is_not_in_fragment_order() -> None:
    made = halves(("[M, N] f32", "[2 * M, N] f32"), ("part[i, j]", "part[0 + i, j]"), M=128, N=128)
    assert made.stages["first"].roles is not None and made.stages["first"].roles.direct
    assert not made.tensors["part"].fragments


def test_consumers_read_what_their_kernel_writes_themselves() -> None:
    """A loader that is ahead would load it before: the wait after the product is that of the consumers."""
    made = halves(("part : local [M, N] f32", "part : local [M, N]"))
    assert made.stages["gemm"].roles is not None and made.stages["gemm"].roles.addends == 0
    verify(make_plan(made))


def test_a_stage_does_not_compute_with_what_its_own_tiles_write() -> None:
    changes = [("        y[i, j] = acc + part[i, j]\n", "        part[i, j] = acc + part[i, j]\n")]
    changes += [("    y    : out   [M, N]\n", ""), ("part : local [M, N] f32", "part : out [M, N]")]
    with pytest.raises(ScheduleError, match="it computes with part, which its own tiles write"):
        halves(*changes)


def test_a_wait_for_another_region_is_none() -> None:
    text = EARLIER.format(type="").replace("consumer_tile_wait(part[:, i, j])", "consumer_tile_wait(part[0, i, j])")
    with pytest.raises(ScheduleError, match="it computes with part, which other writes in the same kernel"):
        lowered(text, M=128, N=128, K=64)


EARLIER = """program earlier(M, N, K):
    x    : in    [2, M, K]
    w    : in    [2, N, K]
    part : local [2, M, N]{type}
    y    : out   [M, N]

    compute first(i: M, j: N):
        part[0, i, j] = dot(x[0, i, :], w[0, j, :].T)
        producer_tile_notify(part[:, i, j])

    compute other(q: 1 by 1, i: M, j: N):
        part[1, i, j] = dot(x[0, i, :], w[1, j, :].T)

    compute gemm(i: M, j: N):
        acc = dot(x[1, i, :], w[1, j, :].T)
        consumer_tile_wait(part[:, i, j])
        y[i, j] = acc + part[0, i, j] + part[1, i, j]

schedule one for earlier:
    first in gemm prologue, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)
    other in gemm prologue, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)
    gemm on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)
"""
"""Consumers read what an earlier tile of their program writes. No signal tells of it, and they wait for another's."""
POKED = """
    comm poke(i: M, j: N):
        producer_tile_notify(part[i, j])

schedule one"""
"""Signals of a stage that writes nothing."""


@pytest.mark.parametrize("type", ["", " f32"])
@pytest.mark.parametrize(("sms", "M", "N"), [(1, 128, 128), (2, 256, 128), (2, 256, 256)])
def test_a_wait_for_something_else_is_no_order(type: str, sms: int, M: int, N: int) -> None:
    made = lowered(EARLIER.format(type=type), sms=sms, M=M, N=N, K=64)
    found = [one for one in refusals(make_plan(made)) if one.rule == "roles"]
    assert found and "computes with part, which its kernel writes, and only the order of tiles" in str(found[0])


def test_a_signal_of_who_does_not_write_is_no_order() -> None:
    changes = [
        ("        producer_tile_notify(part[i, j])\n", ""), ("\nschedule one", POKED),
        ("    first in gemm", "    poke on sm(1), tile(i=128, j=128)\n    first in gemm"),
    ]  # fmt: skip
    found = list(refusals(make_plan(halves(*changes, sms=2, M=128, N=128))))
    assert any("computes with part, which its kernel writes" in str(one) for one in found)


LOOPS = """program loops(N, B, D):
    q : in  [N, B, D]
    k : in  [N, B, D]
    v : in  [N, B, D]
    u : out [N, B, D]
    y : out [N, B, D] f16

    compute attn(n: N by 1, i: B):
        state = online_softmax(f32)
        for (t: N by 1, j: B):
            state = attend(state, q[n, i, :], k[t, j, :], v[t, j, :], 0.1)
        u[n, i, :] = finish(state)

    compute other(b: 1 by 1, n: N by 1, i: B):
        state = online_softmax(f32)
        for (t: N by 1, j: B):
            state = attend(state, k[n, i, :], q[t, j, :], v[t, j, :], 0.1)
        y[n, i, :] = finish(state)

schedule one for loops:
    attn on sm, tile(i=128, j=128), roles(consumers=2, buffers=4)
    other in attn epilogue, tile(i=128, j=128), roles(consumers=2, buffers=4)
"""


def test_loops_store_results_of_the_type_of_their_kernel() -> None:
    with pytest.raises(ScheduleError, match="the roles of attn, other in one kernel do not fit together"):
        lowered(LOOPS, N=2, B=128, D=64)


WAIT = "        consumer_tile_wait(part[i, j])\n"
NOTIFY = "        producer_tile_notify(part[i, j])\n"
FIRST = "        part[i, j] = dot(x[0, i, :], w[0, j, :].T)\n"
PUSHED = """\
        acc = dot(x[0, i, :], w[0, j, :].T)
        tile_push_data(part[i, j] @ (rank + 1), acc)
"""


@pytest.mark.parametrize(("changes", "why"), [
    ([(WAIT, "")], "which first writes in the same kernel, on its own rank too: let it wait for that after"),
    ([(NOTIFY, "        part[i, j] = 0.0\n" + NOTIFY)], "stores several values"),
    ([("part : local [M, N] f32", "part : symmetric [M, N] f32"), (FIRST, PUSHED),
      (NOTIFY, NOTIFY.replace("])", "] @ (rank + 1))"))], "in a peer's memory"),
])  # fmt: skip
def test_what_consumers_cannot_store_is_refused(changes: list[tuple[str, str]], why: str) -> None:
    with pytest.raises(ScheduleError, match=re.escape(why)):
        halves(*changes, ranks=2)


def test_the_order_of_a_program_alone_is_not_enough() -> None:
    """A later stage writes what consumers have read, tile after tile in each program: other consumers may be behind."""
    again = """
    compute again(b: 1 by 1, i: M, j: N):
        part[i, j] = dot(x[0, i, :], w[1, j, :].T)

schedule one"""
    epilogue = "again in gemm epilogue, tile(i=128, j=128, k=64), roles(consumers=2, buffers=3)\n    "
    changes = [
        ("part : local [M, N] f32", "part : local [M, N]"), ("\nschedule one", again),
        ("first in gemm prologue", f"{epilogue}first in gemm prologue"),
    ]  # fmt: skip
    found = list(refusals(make_plan(halves(*changes, sms=2, N=128))))
    assert found and "only the schedule orders the two" in str(found[0])
