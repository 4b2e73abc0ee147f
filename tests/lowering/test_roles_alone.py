"""`roles`: tiles without a product, next to those of one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.lowered import parse_lowered
from tests.lowering.test_roles_epilogue import assert_roles_change_nothing
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import RolesError, ScheduleError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.lowering.rings import of_tile, taken
from tilelink.lowering.role_bodies import consumer_waits, loaded_tiles
from tilelink.lowering.role_statements import multiplies
from tilelink.planning.plan import make_plan
from tilelink.target import target
from tilelink.verifier import refusals, verify
from tilelink.verifier.rings import wrong_between

TEXT = """program alone(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    v : in        [N, K]
    r : in        [M, N]
    e : in        [M] f32
    b : in        [N]
    o : in        [5, M, N]
    p : symmetric [M, N]
    s : symmetric [M] f32
    g : symmetric [2, M, N]
    y : out       [M, N]
    z : out       [2, M, N]
    t : out       [2, M, N]

    comm give(i: M):
        tile_push_data(s[i] @ (rank + 1), e[i])
        tile_push_data(p[i, :] @ (rank + 1), r[i, :])
        producer_tile_notify(p[i, :] @ (rank + 1))

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

    compute sums(q: 2 by 1, i: M, j: N):
        half = r[i, j] * 0.5
        consumer_tile_wait(p[i, j])
        total = s[i][:, None] * (half + b[j] + p[i, j])
        z[q, i, j] = total
        tile_push_data(g[q, i, j] @ (rank + 1), total)
        producer_tile_notify(g[q, i, j] @ (rank + 1))

    compute told(q: 2 by 1, i: M, j: N):
        consumer_tile_wait(g[q, i, j])
        t[q, i, j] = g[q, i, j]

schedule one for alone:
    give on sm(1), tile(i=64)
    gemm on sm, tile(i=128, j={j}, k=64), roles(consumers=2, buffers=4)
    sums in gemm epilogue, tile(i=128, j=128), roles(consumers=2, buffers=4)
    told on sm(1), tile(i=64, j=128)
"""


PRODUCT, OTHER = "dot(x[i, :], w[j, :].T)", "dot(x[i, :], v[j, :].T)"


def bound(
    *, j: int = 256, columns: int = 128, old: str = "", new: str = "", sms: int = 5, M: int = 256, N: int = 256
) -> Bound:
    """Return the lowered program, with `old` in its text replaced.

    j, columns: the columns of tiles with a product, and of tiles without.
    """
    text = TEXT.format(j=j)
    if columns != 128:
        text = text.replace("i=128, j=128), roles", f"i=128, j={columns}), roles")
    assert old in text
    module = compiler.parse(text.replace(old, new) if old else text, "alone.tl")
    on, sizes = replace(target("sm_90"), sms=sms), {"M": M, "N": N, "K": 128}
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target=on)


@pytest.mark.parametrize("j", [128, 256])
def test_they_have_the_rings_of_tiles_with_a_product(j: int) -> None:
    made = bound(j=j)
    product, sums = (made.stages[name] for name in ("gemm", "sums"))
    assert multiplies(product) and not multiplies(sums)
    assert product.roles is not None and sums.roles is not None
    assert (sums.roles.products, sums.roles.columns, sums.roles.pieces, sums.roles.addends) == (0, 128, 2, 2)
    assert [region.tensor for region in loaded_tiles(made, sums)] == ["r", "p"] and consumer_waits(made, sums) == ()
    operands = sums.roles.operands
    assert (operands.buffers, operands.barriers) == (product.roles.operands.buffers, product.roles.operands.barriers)
    assert taken(operands.writer, 0) == len({place for place, _ in of_tile(operands.writer, 0)}) == 4
    assert sums.roles.results.buffers == product.roles.results.buffers
    verify(make_plan(made))
    text = listing(made)
    again = parse_lowered(text)
    assert again.stages["sums"].roles == sums.roles and listing(again) == text


LOOP = """half = zeros(f32)
        for (a: 3 by 1):
            half += o[a, i, j]
        half = half + r[i, j] * 0.5"""


def looped() -> Bound:
    """Return tiles without a product that have a loop over numbers."""
    return bound(old="half = r[i, j] * 0.5", new=LOOP)


def test_loops_over_numbers_are_unrolled() -> None:
    made = looped()
    assert [region.tensor for region in loaded_tiles(made, made.stages["sums"])] == ["o", "o", "o", "r", "p"]
    assert_roles_change_nothing(made, ("y", "z", "t"))


def test_roles_that_run_ahead_change_no_result() -> None:
    assert_roles_change_nothing(bound(M=384, N=512, sms=4), ("y", "z", "t"))


COMPUTED = """        half = r[i, j] * 0.5
        consumer_tile_wait(p[i, j])
        total = s[i][:, None] * (half + b[j] + p[i, j])
"""
REFUSED = {
    "other rows": ("i=128, j=128), roles", "i=64, j=128), roles", "have 64 rows and 128 columns, next to tiles with"),
    "more columns": ("i=128, j=128), roles", "i=128, j=512), roles", "512 columns, next to .* up to 256 columns"),
    "other buffers": ("j=128), roles(consumers=2, buffers=4)", "j=128), roles(consumers=2, buffers=3)", "4 buffers"),
    "tiles of other elements": (
        "p : symmetric [M, N]",
        "p : symmetric [M, N] f32",
        "computes with p, which holds f32",
    ),
    "no tile": (COMPUTED, "        total = b[j][None, :] * s[i][:, None]\n", "computes with no tile"),
    "results of other elements at one place": (
        "g : symmetric [2, M, N]",
        "g : symmetric [2, M, N] f32",
        "g has other elements than z",
    ),
    "smaller buffers": ("j=256, k=64)", "j=256, k=32)", "results has 64 columns, .* operands 32: .* k=64"),
    "too many tiles": (
        "half = r[i, j] * 0.5",
        "half = r[i, j] * 0.5 + o[0, i, j] + o[1, i, j] + o[2, i, j] + o[3, i, j] + o[4, i, j]",
        "its consumers would wait for each other: it computes with 7 tiles, in 4 pieces each",
    ),
    "tiles for idle programs": (
        "buffers=4)\n    told",
        "buffers=4), backfill 2\n    told",
        "it has `backfill`, which is",
    ),
    "no roles of the product": (
        "k=64), roles(consumers=2, buffers=4)",
        "k=64)",
        "gemm runs in its kernel without roles",
    ),
    "a loop that is too long": (
        "half = r[i, j] * 0.5",
        "half = zeros(f32)\n        for (a: 17 by 1):\n            half += r[i, j]",
        "a loop without a product is over tiles, or over more than 16 numbers",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_roles_cannot_do_without_a_product_is_refused(case: str) -> None:
    old, new, reason = REFUSED[case]
    with pytest.raises(ScheduleError, match=reason):
        bound(old=old, new=new, N=512, columns=256 if case == "too many tiles" else 128)


def test_results_have_the_type_of_those_of_the_product() -> None:
    text = TEXT.format(j=256).replace("[2, M, N]\n", "[2, M, N] f32\n")
    module, sizes = compiler.parse(text, "alone.tl"), {"M": 256, "N": 256, "K": 128}
    with pytest.raises(
        ScheduleError, match="sums cannot have roles: it has no product, and stores f32 where its kernel"
    ):
        compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")


@pytest.mark.parametrize("ranks", [2, 8])
def test_a_loader_waits_ahead_of_consumers_that_wait(ranks: int) -> None:
    """With 8 ranks consumers wait for and read the sums of peers, and the loader is at the tiles that follow."""
    module = compiler.load("gemm_ar")
    program = module.program("gemm_ar_local_last")
    sizes, on = {"Ms": 128, "N": 256, "K": 64}, replace(target("sm_90"), sms=9)
    schedule = module.schedule("h200_roles_few", program)
    made = compiler.bound(program, schedule, ranks=ranks, dims=sizes, dtype="bf16", target=on)
    assert bool(consumer_waits(made, made.stages["own"])) is (ranks == 8)
    assert_roles_change_nothing(made, ("y",))


def test_results_without_a_product_have_rows_that_boxes_can_have() -> None:
    text = TEXT.format(j=256).replace("z : out       [2, M, N]", "z : out       [2, M, N + 4]")
    module = compiler.parse(text.replace("z[q, i, j]", "z[q, i, 0 + j]"), "alone.tl")
    sizes = {"M": 256, "N": 256, "K": 128}
    with pytest.raises(ScheduleError, match="rows of z are not multiples of 16 bytes"):
        compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")


def test_a_kernel_multiplies_if_it_has_roles() -> None:
    old = "sums in gemm epilogue, tile(i=128, j=128), roles"
    with pytest.raises(ScheduleError, match="sums cannot have roles: no stage of its kernel multiplies"):
        bound(old=old, new="sums on sm, tile(i=128, j=128), roles")


@pytest.mark.parametrize(("old", "new"), [
    ("loader 4 further: await empty 1; expect", "loader 4 further: await empty 0; expect"),
    ("expect full 16384; load addend 16384", "load addend 16384; expect full 16384"),
    ("expect full 16384; load", "expect full 8192; load"),
    ("await full 0; take; fence; arrive empty 0", "take; await full 0; fence; arrive empty 0"),
    ("await full 0; take; fence; arrive empty 0", "await full 0; take; arrive empty 0; fence"),
    ("await full 0; take; fence; arrive empty 0", "await full 0; take; fence"),
    ("await full 0; take; fence; arrive empty 0", "await full 1; take; fence; arrive empty 0"),
    ("products=0", "products=1"), ("addends=2", "addends=1"), ("4 further", "3 further"), ("4 further", "0 further"),
])  # fmt: skip
def test_wrong_rings_are_refused(old: str, new: str) -> None:
    made = bound()
    text = listing(made)
    assert old in text
    found = refusals(make_plan(replace(made, stages=parse_lowered(text.replace(old, new)).stages)))
    assert any(isinstance(error, RolesError) for error in found)


def test_rings_are_explored_next_to_tiles_with_a_product() -> None:
    """Tiles without a product that leave a buffer full stop those that follow."""
    stages = bound().stages
    product, sums = stages["gemm"].roles, stages["sums"].roles
    assert product is not None and sums is not None
    assert wrong_between(sums.operands, product.operands, 2) is None
    late = replace(sums.operands, reader=replace(sums.operands.reader, after=sums.operands.reader.after[:-1]))
    assert "wait for each other" in str(wrong_between(late, product.operands, 2))
    early = replace(sums.operands, writer=replace(sums.operands.writer, after=sums.operands.writer.after[1:]))
    assert "writes a buffer that is still" in str(wrong_between(early, product.operands, 2))
    assert wrong_between(replace(sums.operands, buffers=3), product.operands, 2) is not None


def test_vectors_are_read_when_the_tiles_of_a_piece_are_there() -> None:
    """The loader waits for s with the tile p. A consumer that has taken p reads s after that wait."""
    made = bound()
    text = emit(made, make_plan(made).thresholds).text
    consumer = text[text.index("def _gemm_consumer(") : text.index("def _gemm_storer(")]
    alone = consumer[consumer.rindex("for tile in ") :]
    assert alone.index("s_tile = gl.load(") > alone.index("p_tile = roles.take(") > 0
