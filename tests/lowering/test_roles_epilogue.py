"""`roles`: waits after the product, tiles that are added to it, and results that are stored at several places."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from tests.lowered import parse_lowered
from tests.lowering.roles_interpreter import run_roles
from tests.tiers import thorough
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import OrderingError, RolesError, ScheduleError, TileLinkError, VerificationError
from tilelink.frontend.parser import parse_text
from tilelink.ir.program import Assign, Barrier, For, Full, If, Notify, Store, Transfer, Wait
from tilelink.ir.reach import elsewhere
from tilelink.ir.scalar import RANK, Index, Scalar, add, binary, const
from tilelink.ir.visitor import statements
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.lowering.rings import CONSUMER, LOADER, STORER
from tilelink.lowering.role_bodies import LoadTiles, consumer_waits, loaded_tiles, role_bodies
from tilelink.lowering.role_statements import late_waits, results_of
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs
from tilelink.target import target
from tilelink.verifier import refusals, verify

ROLES = ("loader", "consumer")
TEXT = """program summed(M, N, K):
    x     : in        [M, K]
    w     : in        [N, K]
    r     : in        [M, N]
    parts : symmetric [2, M, N]{dtype}
    c     : local     [M, N]
    g     : symmetric [ranks, M, N]
    f     : symmetric [M, N] f32
    y     : out       [M, N]
    t     : out       [ranks, M, N]
    u     : out       [M, N]

    comm give(q: 2 by 1, i: M, j: N):
        tile_push_data(parts[q, i, j] @ (rank + 1), r[i, j])
        producer_tile_notify(parts[q, i, j] @ (rank + 1))

    compute gemm(i: M, j: N):
{body}
    compute keep(i: M, j: N):
        consumer_tile_wait(c[i, j])
        y[i, j] = c[i, j]

    compute told(q: ranks, i: M, j: N):
        consumer_tile_wait(g[q, i, j])
        t[q, i, j] = g[q, i, j]

    comm wide(i: M, j: N):
        tile_push_data(f[i, j] @ (rank + 1), r[i, j])
        producer_tile_notify(f[i, j] @ (rank + 1))

    compute widened(i: M, j: N):
        consumer_tile_wait(f[i, j])
        u[i, j] = f[i, j]

schedule one for summed:
    give on sm(1), tile(i=64)
    gemm on sm, tile(i=128, j=128, k=64), order({order}), roles(consumers=2, buffers=4){more}
    keep on sm(1), tile(i=64, j=128)
    told on sm(1), tile(i=64, j=128)
    wide on sm(1), tile(i=64)
    widened on sm(1), tile(i=64, j=128)
"""
BODY = """acc = dot(x[i, :], w[j, :].T)
for (q: 2 by 1):
    consumer_tile_wait(parts[q, i, j])
    acc += parts[q, i, j] * 0.5
if ranks > 1:
    acc = acc + r[i, j]
c[i, j] = acc
for (p: ranks):
    tile_push_data(g[rank, i, j] @ p, acc)
producer_tile_notify(c[i, j])
for (p: ranks):
    producer_tile_notify(g[rank, i, j] @ p)
"""
WAIT = "    consumer_tile_wait(parts[q, i, j])\n"


def bound(
    body: str = BODY, *, order: str = "i, j", more: str = "", ranks: int = 2, on: Any = "sm_90", dtype: str = "",
    M: int = 256, N: int = 384, K: int = 128,
) -> Bound:  # fmt: skip
    """Return the lowered program. dtype: of the parts; the loader loads those of 16 bits, and consumers read others."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    module = compiler.parse(TEXT.format(body=lines, order=order, more=more, dtype=dtype), "summed.tl")
    sizes = {"M": M, "N": N, "K": K}
    return compiler.bound(module.program(), module.schedules[0], ranks=ranks, dims=sizes, dtype="bf16", target=on)


@pytest.mark.parametrize("dtype", ["", " f32"])
def test_the_epilogue_of_the_lowered_program_is_straight(dtype: str) -> None:
    made = bound(ranks=3, dtype=dtype)
    stage = made.stages["gemm"]
    body = stage.stage.body
    assert not any(isinstance(s, For | If | Barrier) for s in statements(body))
    assert [n for n, s in enumerate(body) if isinstance(s, Wait)] == [1, 3]
    assert late_waits(stage) == (body[1], body[3])
    assert consumer_waits(made, stage) == (late_waits(stage) if dtype else ())
    assert [region.tensor for region in loaded_tiles(made, stage)] == ([] if dtype else ["parts", "parts", "r"])
    assert [region.tensor for region in results_of(stage)] == ["c", "g", "g", "g"]
    bodies, stores = role_bodies(made, stage), [s for s in body if isinstance(s, Store | Transfer)]
    computed = [s for s in body[1:] if not isinstance(s, Wait | Notify | Store | Transfer)]
    loads = LoadTiles(regions=tuple(loaded_tiles(made, stage)))
    assert bodies[LOADER] == ((body[0],) if dtype else (body[0], body[1], body[3], loads))
    assert bodies[CONSUMER] == (body[0], *((body[1], body[3]) if dtype else ()), *computed, stores[0])
    assert bodies[STORER] == (*stores, *(s for s in body if isinstance(s, Notify)))
    assert set(stage.tiles) == {"i", "j"}  # the loops are gone
    assert stage.roles is not None
    assert [str(step) for step in stage.roles.results.reader.steps] == [
        "await staged 0", "store target0", "store target1", "store target2", "store target3", "retire 4",
        "arrive drained 1",
    ]  # fmt: skip
    verify(make_plan(made))
    text = listing(made)
    again = parse_lowered(text)
    assert again.stages["gemm"].roles == stage.roles and listing(again) == text


@pytest.mark.parametrize("on", ["cpu", "sm_80"])
def test_other_processors_keep_the_loops(on: str) -> None:
    body = bound(on=on).stages["gemm"].stage.body
    assert sum(isinstance(s, For) for s in body) == 3


@thorough(unless=lambda more, ranks: ranks == 2 and "halve_tail" in more)
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("order", "more"), [("i, j", ""), ("group(i, 2)", ", halve_tail"), ("i = 2 step -1, j", "")])
def test_roles_that_run_ahead_change_no_result(order: str, more: str, ranks: int) -> None:
    made = bound(order=order, more=more, ranks=ranks, on=replace(target("sm_90"), sms=12), M=384, N=640, K=64)
    assert made.stages["gemm"].roles is not None and ("gemm_rest" in made.stages) is bool(more)
    verify(make_plan(made))
    (inputs,) = random_inputs(made.source, ranks=ranks, dims=made.numbers, dtype="bf16", launches=1, seed=4)
    wanted = reference(made.source, inputs, made.numbers, dtype="bf16")
    found, ahead = run_roles(made, inputs)
    for rank in range(ranks):
        assert all(torch.equal(found[rank][name], wanted[rank][name]) for name in ("y", "t", "u"))
    assert ahead > 1


def test_a_part_of_a_dimension_keeps_its_place_when_a_loop_is_unrolled() -> None:
    """`q * M + i` of q = 0 is i, which runs over less than the dimension."""
    text = TEXT.replace("symmetric [2, M, N]{dtype}", "symmetric [2 * M, N]")
    lines = "".join(f"        {line}\n" for line in BODY.splitlines())
    text = text.format(body=lines, order="i, j", more="", dtype="").replace("parts[q, i, j]", "parts[q * M + i, j]")
    module = compiler.parse(text, "summed.tl")
    sizes, on = {"M": 256, "N": 256, "K": 64}, replace(target("sm_90"), sms=8)
    made = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target=on)
    assert "parts[i, j]" in listing(made) and "parts[i + 256, j]" in listing(made).replace("256 + i", "i + 256")
    assert_roles_change_nothing(made, ("y", "t"))


def test_tiles_of_a_part_of_a_dimension_have_roles_if_none_is_cut() -> None:
    module, on = compiler.load("gemm_ar"), replace(target("sm_90"), sms=12)
    program = module.program("gemm_ar_pulled")
    schedule = module.schedule("h200_roles", program)
    sizes = {"Ms": 512, "N": 256, "K": 64}
    made = compiler.bound(program, schedule, ranks=2, dims=sizes, dtype="bf16", target=on)
    assert [made.stages[name].roles is not None for name in ("gemm", "own", "last")] == [True] * 3
    assert_roles_change_nothing(made, ("y",))
    with pytest.raises(ScheduleError, match="own cannot have roles: the end of i cuts a tile of y"):
        compiler.bound(program, schedule, ranks=2, dims=sizes | {"Ms": 640}, dtype="bf16", target=on)


def assert_roles_change_nothing(made: Bound, outputs: Collection[str]) -> None:
    """Assert that a program is safe, and that roles that run ahead compute the same as the program."""
    verify(make_plan(made))
    (inputs,) = random_inputs(made.source, ranks=made.ranks, dims=made.numbers, dtype="bf16", launches=1, seed=5)
    wanted = reference(made.source, inputs, made.numbers, dtype="bf16")
    found, _ = run_roles(made, inputs)
    for rank, name in product(range(made.ranks), outputs):
        assert torch.equal(found[rank][name], wanted[rank][name]), (rank, name)


def test_a_wait_that_is_left_out_is_refused() -> None:
    assert BODY.count(WAIT) == 1
    with pytest.raises(VerificationError, match="parts"):
        verify(make_plan(bound(BODY.replace(WAIT, ""))))


EARLY = "acc += parts[1, i, j]\nfor (q: 2 by 1):"
"""A load before its wait, which consumers execute after all waits."""


@pytest.mark.parametrize("clause", [", roles(consumers=2, buffers=4)", ""])
def test_a_load_before_its_wait_is_refused_with_roles_too(clause: str) -> None:
    text = TEXT.replace(", roles(consumers=2, buffers=4)", clause)
    lines = "".join(f"        {line}\n" for line in BODY.replace("for (q: 2 by 1):", EARLY).splitlines())
    module = compiler.parse(text.format(body=lines, order="i, j", more="", dtype=""), "summed.tl")
    sizes = {"M": 256, "N": 384, "K": 128}
    with pytest.raises(OrderingError, match="reads parts"):
        compiler.plan(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")


REFUSED = {
    "several values": (BODY.replace("@ p, acc)", "@ p, acc * 2.0)"), "stores several values"),
    "a wait after what is computed": (
        BODY.replace("c[i, j] = acc", "c[i, j] = acc\nconsumer_tile_wait(parts[0, i, j])"),
        "in this order",
    ),
    "a store in between": (BODY.replace("if ranks", "c[i, j] = acc\nif ranks", 1), "end with their only stores"),
    "a product at two places": (
        BODY.replace("acc = acc + r", "acc = r").replace("c[i, j] = acc", "c[i, j] = dot(x[i, :], w[j, :].T)"),
        "multiply|end with|several values|it waits between its products",
    ),
    "a wait between products": (
        BODY.replace("acc = acc + r[i, j]", "acc = acc + dot(x[i, :], w[j, :].T)"),
        "it waits between its products",
    ),
    "a constant that a loop changes": (
        BODY.replace("for (q: 2 by 1):", "z = zeros(f32)\nfor (q: 2 by 1, s: 9 by 1):").replace(
            "    acc += parts", "    z = z + 1.0\n    acc += z * parts"
        ),
        "over more than 16",
    ),
    "many iterations of nested loops": (
        BODY.replace(
            "for (q: 2 by 1):\n    consumer_tile_wait(parts[q, i, j])\n    acc +=",
            "for (s: 9 by 1):\n    for (q: 2 by 1):\n        consumer_tile_wait(parts[q, i, j])\n        acc +=",
        ),
        "over more than 16|in this order",
    ),
    "a branch of some ranks": (BODY.replace("if ranks > 1", "if rank > 0"), "in this order"),
    "many iterations": (
        BODY.replace("for (q: 2 by 1):", "for (q: 2 by 1, s: 9 by 1):"),
        "a loop after its product is over tiles, or over more than 16",
    ),
    "results of two types": (
        BODY.replace("producer_tile_notify(c", "tile_push_data(f[i, j] @ (rank + 1), acc)\nproducer_tile_notify(c"),
        "f has other elements than c",
    ),
    "a name of a vector and of a tile": (
        BODY.replace("c[i, j] = acc", "half = 0.5\nacc = acc * half\nhalf = r[i, j]\nacc = acc + half\nc[i, j] = acc"),
        "half is a vector or a number at first and a tile later: use two names",
    ),
    "rows of a peer": (
        BODY.replace("r[i, j]", "g[0, i, j]"),
        "computes with g, which its own tiles write",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_epilogue_that_roles_cannot_divide_is_refused(case: str) -> None:
    body, reason = REFUSED[case]
    with pytest.raises(ScheduleError, match=f"gemm cannot have roles: .*({reason})") as refused:
        bound(body, M=384, N=384)
    assert refused.value.location is not None
    assert refused.value.related is not None and refused.value.related.line < refused.value.location.line


@pytest.mark.parametrize(("old", "new", "reason"), [
    ("store target1; ", "", "its storer stores target0, target2, of 3 places"),
    ("store target0; store target1", "store target1; store target0", "its storer stores target1, target0"),
    ("retire 3", "retire 4", "releases a buffer that it still reads"),
])  # fmt: skip
def test_stores_of_a_lowered_program_are_checked_as_they_are_printed(old: str, new: str, reason: str) -> None:
    made = bound()
    text = listing(made)
    assert text.count(old) == 1
    wrong = replace(made.stages["gemm"], roles=parse_lowered(text.replace(old, new)).stages["gemm"].roles)
    found = refusals(make_plan(replace(made, stages={**made.stages, "gemm": wrong})))
    assert any(isinstance(one, RolesError) and reason in one.message for one in found)


@pytest.mark.parametrize(("rank", "counts", "wanted"), [
    (add(RANK, const(1)), {}, True),
    (add(add(RANK, const(1)), Index(name="q")), {"q": 3}, True),
    (add(add(RANK, const(1)), Index(name="q")), {"q": 4}, False),  # round to the own rank
    (add(RANK, Index(name="q")), {"q": 3}, False),
    (add(add(RANK, const(1)), Index(name="q")), {}, False),  # nothing is known of it
    (binary("*", Index(name="q"), Index(name="p")), {"q": 5000, "p": 5000}, False),  # too many to try
])  # fmt: skip
def test_a_rank_that_is_certainly_another_one(rank: Scalar, counts: dict[str, int], wanted: bool) -> None:
    assert elsewhere(rank, 4, counts) is wanted


SLICED = """program sliced(Ms, N, K):
    x     : in        [Ms, K]
    w     : in        [N, K]
    r     : in        [Ms, N]
    xs    : symmetric [Ms, K]
    parts : symmetric [Ms, N]
    y     : out       [Ms, N]

    comm send(i: Ms):
        tile_push_data(xs[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(xs[i, :] @ (rank + 1))

    comm give(i: Ms, j: N):
        tile_push_data(parts[i, j] @ (rank + 1), r[i, j])
        producer_tile_notify(parts[i, j] @ (rank + 1))

    compute gemm(i: Ms, j: N):
        consumer_tile_wait(xs[i, :])
        acc = dot(xs[i, :], w[j, :].T)
        consumer_tile_wait(parts[i, j])
        y[i, j] = acc + parts[i, j]

schedule one for sliced:
    send on sm(4), tile(i=128, k=512)
    give on sm(4), tile(i=128, j=256)
    gemm on sm, tile(i=128, j=256, k=64), roles(consumers=2, buffers=4)
    xs channel(i=128, k=512)
"""


@pytest.mark.parametrize("dtype", ["", " f32"])
def test_waits_after_a_product_of_slices(dtype: str) -> None:
    """The loader waits for each slice, and who loads what is added waits for that."""
    module = compiler.parse(SLICED.replace("parts : symmetric [Ms, N]", f"parts : symmetric [Ms, N]{dtype}"))
    sizes = {"Ms": 256, "N": 512, "K": 2048}
    plan = compiler.plan(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    stage = plan.bound.stages["gemm"]
    assert stage.slices and [wait.region.tensor for wait in late_waits(stage)] == ["parts"]
    source = emit(plan.bound, plan.thresholds).text
    loader, consumer = (source.partition(f"def _gemm_{role}(")[2].partition("@gluon")[0] for role in ROLES)
    assert (loader.count("dl.wait("), consumer.count("dl.wait(")) == ((1, 1) if dtype else (2, 0))
    assert ("PARTS_SIGNALS" in consumer) == bool(dtype) == ("PARTS_SIGNALS" not in loader)


RING = """program ring(M, N, K):
    x  : in        [M, K]
    w  : in        [N, K]
    xs : symmetric [ranks, M, K]
    y  : out       [ranks, M, N]

    comm send(p: ranks, i: M):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)

    compute gemm(i: M, j: N, s: ranks):
        consumer_tile_wait(xs[{first}, i, :])
        acc = dot(xs[(rank + s) % ranks, i, :], w[j, :].T)
        consumer_tile_wait(xs[(rank + s + 1) % ranks, i, :])
        y[(rank + s) % ranks, i, j] = acc

schedule one for ring:
    send on copy_engine
    gemm on sm(1), tile(i=128, j=128, k=64), order(i, j, s){roles}
"""


@pytest.mark.parametrize(("first", "roles", "is_refused"), [
    ("rank", ", roles(consumers=2, buffers=4)", True),
    ("rank", "", False),  # a program executes the wait of a tile before the next tile
    ("(rank + s) % ranks", ", roles(consumers=2, buffers=4)", False),
])  # fmt: skip
def test_a_load_does_not_rely_on_a_wait_after_the_product_of_an_earlier_tile(
    first: str, roles: str, is_refused: bool
) -> None:
    """The loader is ahead of consumers, which execute that wait."""
    module = compiler.parse(RING.format(first=first, roles=roles), "ring.tl")
    sizes = {"M": 256, "N": 256, "K": 128}
    made = compiler.bound(module.program(), module.schedules[0], ranks=3, dims=sizes, dtype="bf16", target="sm_90")
    found = refusals(make_plan(made))
    assert bool(found) is is_refused
    if found:
        assert isinstance(found[0], RolesError) and "a wait after the product of an earlier tile" in found[0].message


LATE = """program late(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    r : in        [M, N]
    p : symmetric [M, N] f32
    z : symmetric [M, N]
    y : out       [M, N]
    u : out       [M, N]

    comm send(i: M):
        tile_push_data(z[i, :] @ (rank + 1), r[i, :])
        tile_push_data(p[i, :] @ (rank + 1), r[i, :])
        producer_tile_notify(p[i, :] @ (rank + 1))

    compute first(i: M, j: N):
        acc = dot(x[i, :], w[j, :].T)
        consumer_tile_wait(p[i, j])
        y[i, j] = acc + p[i, j]

    compute gemm(i: M, j: N):
        u[i, j] = dot(x[i, :], w[j, :].T) + z[i, j]

schedule one for late:
    send on sm(1), tile(i=128)
    first in gemm prologue, tile(i=128, j=128, k=64), order(i, j){roles}
    gemm on sm(1), tile(i=128, j=128, k=64), order(i, j){roles}
"""


@pytest.mark.parametrize("roles", [", roles(consumers=2, buffers=4)", ""])
def test_a_load_of_what_is_added_does_not_rely_on_such_a_wait_either(roles: str) -> None:
    """Consumers of `first` wait for p, in f32, and the loader of `gemm` loads z, which only that wait orders."""
    module = parse_text(LATE.format(roles=roles), "late.tl", lowered=True)  # z has no signals of its own
    sizes = {"M": 256, "N": 128, "K": 128}
    made = compiler.bound(module.programs[0], module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    found = refusals(make_plan(made))
    assert bool(found) is bool(roles)
    if found:
        assert isinstance(found[0], RolesError) and found[0].message.startswith("rank 0, gemm tile (i=0, j=0): loads z")


BESIDE = """program beside(M, N, K):
    x  : in        [M, K]{first}
    w  : in        [N, K]{first}
    x2 : in        [M, K]{second}
    w2 : in        [N, K]{second}
    r  : in        [M, N]
    q  : in        [M, N] f32
    p  : symmetric [M, N]
    y  : out       [M, N]{result}
    y2 : out       [M, N]

    comm give(i: M, j: N):
        tile_push_data(p[i, j] @ (rank + 1), r[i, j])
        producer_tile_notify(p[i, j] @ (rank + 1))

    compute first(i: M, j: N):
        acc = dot(x[i, :], w[j, :].T)
        consumer_tile_wait(p[i, j])
        y[i, j] = acc + p[i, j] + q[i, j]

    compute gemm(i: M, j: N):
        acc = dot(x2[i, :], w2[j, :].T)
        consumer_tile_wait(p[i, j])
        y2[i, j] = acc + p[i, j]

schedule one for beside:
    give on sm(1), tile(i=64)
    first in gemm prologue, tile(i=128, j=128, k=64), order(i, j), roles(consumers=2, buffers=3)
    gemm on sm, tile(i=128, j=128, k=64), order(j, i), roles(consumers=2, buffers=3)
"""


def beside(first: str = "", second: str = "", result: str = "") -> Bound:
    module = compiler.parse(BESIDE.format(first=first, second=second, result=result), "beside.tl")
    sizes = {"M": 256, "N": 256, "K": 64}
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")


def test_who_loads_a_tile_in_one_stage_says_nothing_of_another_stage() -> None:
    """Consumers of `first` wait for p and read it, as q has f32. The loader of `gemm` waits for it and loads it."""
    made = beside()
    assert [len(loaded_tiles(made, made.stages[name])) for name in ("first", "gemm")] == [0, 1]
    verify(make_plan(made))


@pytest.mark.parametrize("types", [{"first": " f16"}, {"second": " f16"}], ids=str)
def test_stages_of_a_kernel_with_other_types_do_not_fit_together(types: dict[str, str]) -> None:
    with pytest.raises(ScheduleError, match="in one kernel do not fit together") as caught:
        beside(**types)
    assert "type of operands" in str(caught.value.hint)


@pytest.mark.parametrize(("old", "new"), [
    ("await full 0; take; fence", "await full 0; ; fence"),
    ("consumer x2 6 further", "storer 6 further"), ("consumer x2 6 further", "consumer x9 6 further"),
    ("pieces=2", "pieces=0"),
])  # fmt: skip
def test_wrong_texts_of_rings_are_refused(old: str, new: str) -> None:
    made = bound()
    text = listing(made)
    assert old in text
    with pytest.raises(TileLinkError):
        verify(make_plan(replace(made, stages=parse_lowered(text.replace(old, new)).stages)))


VECTOR = """program scaled(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    r : in        [M, N]
    b : in        [M] f32
    p : symmetric [M, N]
    e : symmetric [M] f32
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(e[i] @ (rank + 1), b[i])
        tile_push_data(p[i, :] @ (rank + 1), r[i, :])
        producer_tile_notify(p[i, :] @ (rank + 1))

    compute gemm(i: M, j: N):
        acc = dot(x[i, :], w[j, :].T)
        consumer_tile_wait(p[i, j])
        y[i, j] = (acc + p[i, j]) * {vector}[i][:, None]

schedule one for scaled:
    send on sm(1), tile(i=128)
    gemm on sm, tile(i=128, j=128, k=64), order(i, j), roles(consumers=2, buffers=4)
"""


@pytest.mark.parametrize(("vector", "loads"), [("b", True), ("e", False)])
def test_consumers_wait_themselves_for_a_vector_that_a_peer_writes(vector: str, loads: bool) -> None:
    """The wait for p orders e, too. Consumers read vectors while they multiply, before the loader waits for p."""
    module = compiler.parse(VECTOR.format(vector=vector), "scaled.tl")
    sizes = {"M": 256, "N": 128, "K": 128}
    plan = compiler.plan(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    stage = plan.bound.stages["gemm"]
    assert len(late_waits(stage)) == 1 and bool(loaded_tiles(plan.bound, stage)) is loads
    source = emit(plan.bound, plan.thresholds).text
    consumer = source.partition("def _gemm_consumer(")[2].partition("@gluon")[0]
    assert (consumer.find("dl.wait(") < consumer.index("gl.load(")) and ("dl.wait(" in consumer) is not loads


@pytest.mark.parametrize("body", [
    "acc = dot(x[i, :], w[j, :].T)\nb = acc * 2.0\nacc = zeros(f32)\nacc = acc + b + full(1.5, f32)",
    "acc = zeros(f32)\nacc += dot(x[i, :], w[j, :].T)",
    "one = full(1.0, f32)\nacc = dot(x[i, :], w[j, :].T) + one\none = acc * 0.5\nacc = acc + one",
])  # fmt: skip
def test_constants_of_a_tile_are_part_of_what_is_computed(body: str) -> None:
    begin, end = BODY.index("acc ="), BODY.index("c[i, j] =")
    made = bound(BODY[:begin] + body + "\n" + BODY[end:], M=128, N=128, K=64)
    assert not any(isinstance(s.value, Full) for s in made.stages["gemm"].stage.body if isinstance(s, Assign))
    verify(make_plan(made))
    (inputs,) = random_inputs(made.source, ranks=2, dims=made.numbers, dtype="bf16", launches=1, seed=6)
    wanted = reference(made.source, inputs, made.numbers, dtype="bf16")
    found, _ = run_roles(made, inputs)
    assert all(torch.equal(found[rank]["y"], wanted[rank]["y"]) for rank in range(2))


def test_the_operands_of_two_products_of_slices_are_loaded_once() -> None:
    text = SLICED.replace("acc + parts", "acc * more + parts").replace("j=256", "j=128").replace(
        "w[j, :].T)\n", "w[j, :].T)\n        more = dot(xs[i, :], v[j, :].T)\n"
    ).replace("    r     : in", "    v     : in        [N, K]\n    r     : in")  # fmt: skip
    module = compiler.parse(text, "sliced.tl")
    sizes = {"Ms": 256, "N": 512, "K": 2048}
    plan = compiler.plan(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    assert plan.bound.stages["gemm"].slices
    source = emit(plan.bound, plan.thresholds).text
    loader = source[source.index("def _gemm_loader(") : source.index("def _gemm_consumer(")]
    assert loader.count("roles.load(v_boxes") == loader.count("roles.load(w_boxes") == 1
