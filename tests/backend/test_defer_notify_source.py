# pyright: basic
"""Deferred notifies in generated source, and where Triton puts them."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import pytest

from tests.backend.offline import compile_all
from tests.backend.samples import in_dialect, numbered
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import make_plan

SIZES = {"Ms": 1024, "N": 4096, "K": 1376}
IN_PRODUCT = "if (k == 128) & (held_tile >= 0):"
GIVEN = "dl.notify(signals, held, rank, debug_block=debug_block, stage=0, tile=held_tile, remote=True, tma=False)"


def bound(*, on: bool = True, flat: bool = True, target: str = "sm_90", K: int = 1376) -> Bound:
    module = compiler.load("gemm_rs")
    program = module.program("gemm_rs_local_last")
    schedule = module.schedule("h200", program).defer_notify("gemm", on).flatten("gemm", flat)
    return compiler.bound(program, schedule, ranks=8, dims=SIZES | {"K": K}, dtype="bf16", target=target)


def source(made: Bound, dialect: str = "triton") -> list[str]:
    """The lines of the kernel, without comments and indentation."""
    made = in_dialect(made, dialect)
    text = numbered(emit(made, make_plan(made).thresholds).text)
    kernel = text.split("def gemm(")[1].split("\ndef ")[0]
    return [line.strip() for line in kernel.splitlines() if not line.strip().startswith("#")]


def test_a_tile_is_kept_and_notified_in_the_next_product_or_behind_the_loop() -> None:
    lines = source(bound())
    loop, later = (n for n, line in enumerate(lines) if line.startswith("for tile"))
    assert lines[loop - 2 : loop] == ["held_tile = tl.cast(-1, tl.int32)", "held = tl.cast(-1, tl.int32)"]
    product = next(n for n, line in enumerate(lines) if line.startswith("for k"))
    assert lines[product + 1 : product + 3] == [IN_PRODUCT, GIVEN]
    store = next(n for n, line in enumerate(lines) if line.startswith("tl.store(c"))
    assert lines[store + 1 : store + 3] == ["held = dl.opaque((rank + q + 1) % 8)", "held_tile = dl.opaque(tile)"]
    assert lines[store + 3 : store + 5] == ["if held_tile >= 0:", GIVEN] and later == store + 5
    assert sum("dl.notify(" in line for line in lines) == 2


@pytest.mark.parametrize("dialect", ["traced", "triton_dist"])
def test_dialects_that_cannot_give_it_there_give_it_at_the_end(dialect: str) -> None:
    assert source(bound(), dialect) == source(bound(on=False), dialect)


@pytest.mark.parametrize("K", [64, 128])
def test_a_product_of_few_steps_is_over_before(K: int) -> None:
    assert source(bound(K=K)) == source(bound(on=False, K=K))


NESTED = """program nested(M, N, K, L):
    x : in    [M, K]
    v : in    [L, K]
    w : in    [N, L]
    c : local [M, N]
    y : out   [M, N]

    compute make(i: M, j: N):
        c[i, j] = dot(dot(x[i, :], v[:, :].T), w[j, :].T)
        producer_tile_notify(c[i, j])

    compute take(i: M, j: N):
        consumer_tile_wait(c[i, j])
        y[i, j] = c[i, j]

schedule one for nested:
    make on sm, tile(i=16, j=16, k=32), defer_notify
    take on sm(1), tile(i=16, j=16)
"""


@pytest.mark.parametrize(("L", "times"), [(128, 1), (64, 0)])
def test_a_product_within_another_gives_nothing(L: int, times: int) -> None:
    """It is done again in every step of the outer one, also where that is too short to give anything."""
    module = compiler.parse(NESTED)
    sizes = {"M": 64, "N": 64, "K": 256, "L": L}
    made = compiler.bound(module.program(), module.schedules[0], ranks=1, dims=sizes)
    text = numbered(emit(made, make_plan(made).thresholds).text).split("def make(")[1].split("\ndef ")[0]
    assert text.count("& (held_tile >= 0):") == times
    assert text.count("dl.notify(") == 1 + times


OVER_RANKS = """program over_ranks(M, N, K):
    a : in    [M, ranks]
    b : in    [ranks, N]
    x : in    [M, K]
    w : in    [K, N]
    c : local [M, N]
    d : out   [M, N]
    y : out   [M, N]

    compute make(i: M, j: N):
        d[i, j] = dot(a[i, :], b[:, j])
        c[i, j] = dot(x[i, :], w[:, j])
        producer_tile_notify(c[i, j])

    compute take(i: M, j: N):
        consumer_tile_wait(c[i, j])
        y[i, j] = c[i, j]

schedule one for over_ranks:
    make on sm, tile(i=16, j=16, k=32), defer_notify
    take on sm(1), tile(i=16, j=16)
"""


def test_it_is_given_in_the_statement_that_the_pass_chose() -> None:
    """A product over the ranks has steps of one element, so an earlier one may have enough of them, too."""
    module = compiler.parse(OVER_RANKS)
    made = compiler.bound(module.program(), module.schedules[0], ranks=4, dims={"M": 64, "N": 64, "K": 256})
    assert made.stages["make"].notified_in == 1
    lines = numbered(emit(made, make_plan(made).thresholds).text).split("def make(")[1].splitlines()
    given = next(n for n, line in enumerate(lines) if "& (held_tile >= 0):" in line)
    assert lines[given - 1].strip() == "for k_1 in range(0, 256, 32):"


@pytest.mark.parametrize(("sizes", "product"), [({"K": 64, "L": 128}, 1), ({"K": 128, "L": 64}, 0)])
def test_the_product_of_a_statement_and_the_step_are_what_the_lowered_program_says(
    sizes: dict[str, int], product: int
) -> None:
    text = NESTED.replace(
        "dot(dot(x[i, :], v[:, :].T), w[j, :].T)", "dot(x[i, :], v[j, :].T) + dot(u[i, :], w[j, :].T)"
    )
    text = text.replace("v : in    [L, K]", "v : in    [N, K]\n    u : in    [M, L]")
    module = compiler.parse(text)
    made = compiler.bound(module.program(), module.schedules[0], ranks=1, dims={"M": 64, "N": 64} | sizes)
    stage = made.stages["make"]
    assert (stage.notified_in, stage.notified_product, stage.notified_step) == (0, product, 2)

    def where(bound: Bound) -> tuple[str, str]:
        lines = numbered(emit(bound, make_plan(bound).thresholds).text).split("def make(")[1].splitlines()
        (given,) = (n for n, line in enumerate(lines) if "& (held_tile >= 0):" in line)
        return lines[given - 1].strip(), lines[given].strip()

    loop = f"for k{'_1' * product} in range(0, 128, 32):"
    name = f"k{'_1' * product}"
    assert where(made) == (loop, f"if ({name} == 64) & (held_tile >= 0):")
    later = replace(made, stages={**made.stages, "make": replace(stage, notified_step=3)})
    assert where(later) == (loop, f"if ({name} == 96) & (held_tile >= 0):")


@cache
def compiled(flat: bool) -> str:
    made = bound(flat=flat)
    (one,) = compile_all(made, emit(made, make_plan(made).thresholds))
    return one.asm["ttgir"]


def blocks(text: str) -> list[tuple[int, str]]:
    """Every `scf.for` and `scf.if` with its lines, and where it begins."""
    found: list[tuple[int, str]] = []
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if re.search(r"scf\.(for|if) ", line):
            depth = len(line) - len(line.lstrip())
            closes = re.compile(" " * depth + r"\}(?! else)")
            end = next(n for n in range(at + 1, len(lines)) if closes.match(lines[n]))
            found.append((at, "\n".join(lines[at : end + 1])))
    return found


@pytest.mark.parametrize("flat", [True, False])
def test_what_is_kept_is_assigned_behind_the_stores_of_its_tile(flat: bool) -> None:
    """In a flat loop that is a branch of the last step, and a number that Triton could move would be lost from it."""
    text = compiled(flat)
    keeps = [(at, block) for at, block in blocks(text) if 'asm "mov.u32 $0, $1;"' in block]
    inner = min(keeps, key=lambda one: len(one[1]))[1]
    assert inner.count('asm "mov.u32 $0, $1;"') == 2
    assert inner.index("tt.store") < inner.index('asm "mov.u32 $0, $1;"')
    assert inner.lstrip().startswith("%") and ("scf.if" in inner.splitlines()[0]) == flat


@pytest.mark.parametrize("flat", [True, False])
def test_the_product_stays_pipelined_around_it(flat: bool) -> None:
    text = compiled(flat)
    told = [block for _, block in blocks(text) if "red.release" in block and "warp_group_dot " in block]
    loop = min(told, key=len)
    assert "async_tma_copy_global_to_local" in loop and "isAsync = true" in loop
    before = text[: text.index(loop)]
    assert before.count("async_tma_copy_global_to_local") == 6, "three steps ahead, of both operands"


def test_in_a_flat_loop_it_comes_with_the_step_that_is_multiplied() -> None:
    """Not with the one that is loaded, three steps ahead, when the tile in front may not be stored yet."""
    text = compiled(True)
    loop = min((b for _, b in blocks(text) if "red.release" in b and "warp_group_dot " in b), key=len)
    head, *body = loop.splitlines()
    names = re.findall(r"(%[\w#]+) = ", head.split("iter_args(")[1])
    given = dict(zip(names, re.findall(r"%[\w#]+", body[-2].split("scf.yield")[1].split(":")[0]), strict=False))
    (step,) = re.findall(r"arith\.cmpi eq, (%\w+), %c128_i32", loop)
    behind = 0
    while given.get(step) in given:
        step, behind = given[step], behind + 1
    assert behind == 2, "steps from the one that is loaded"
