"""The steps of the last tiles in even shares: what each program has, what it becomes, and what is refused."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import tilelink
from tests.lowering.interpreter import run_lowered
from tests.lowering.test_split_k_tail import PRODUCT, holding, totals
from tests.verifier import dynamic as checker
from tilelink import compiler
from tilelink.errors import (
    AccountingError,
    BindingError,
    CoverageError,
    OrderingError,
    ProgressError,
    ScheduleError,
    StageError,
    TileLinkError,
)
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.stream_k import STREAM_K
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs
from tilelink.scheduling.schedule import Schedule
from tilelink.search import Space
from tilelink.simulator import simulate
from tilelink.simulator.machine import load_machine
from tilelink.target import Target, target
from tilelink.verifier import refusals, verify

EVEN = "\nschedule one for product:\n    make on sm, tile(i=16, j=16, k=8), stream_k{}\n"


def product(tiles: int, programs: int, k: int = 256, text: str = PRODUCT, more: str = "", ranks: int = 1) -> Bound:
    """One product of so many tiles, of 16 columns each but for the last."""
    module = tilelink.parse(text + EVEN.format(more))
    dims = {"M": 16, "N": 16 * tiles - 5, "K": k}
    return bind(module.programs[0], module.schedules[0], dims, ranks, holding(programs))


# What each program has ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tiles", "programs", "k", "made"),
    [
        (13, 4, 256, {"make": 8, "make_streamed": 8}),  # the last tile and a wave: five tiles, of two each at most
        (14, 4, 256, {"make": 8, "make_streamed": 8}),
        (15, 4, 256, {"make": 15}),  # the share would be as long as two whole tiles
        (15, 4, 1024, {"make": 8, "make_streamed": 12}),  # but of long ones it is not; a program has some of three
        (16, 4, 256, {"make": 16}),  # the last wave is full
        (3, 8, 256, {"make": 0, "make_streamed": 16}),  # no wave is whole
        (5, 4, 100, {"make": 0, "make_streamed": 8}),  # steps of 8 of 100 elements: the last one is cut
        (1, 4, 8, {"make": 1}),
    ],
)
def test_the_last_tiles_are_shared(tiles: int, programs: int, k: int, made: dict[str, int]) -> None:
    bound = product(tiles, programs, k)
    assert totals(bound) == made
    plan = make_plan(bound)
    verify(plan)
    if len(made) == 1:
        return
    loops = plan.summed.begin >= 0
    steps = (plan.summed.end - plan.summed.begin)[loops]
    shared = tiles - made["make"]
    worker = plan.worker[plan.summed.task[loops]]
    own = np.bincount(worker, weights=steps, minlength=programs)
    assert own.sum() == shared * -(-k // 8) and own.max() - own.min() <= 1
    assert plan.bound.tensors["make_split"].shape == (programs, 1, 16, 16)


def test_short_products_have_fewer_shares() -> None:
    """Four steps of a share at least: two tiles of ten steps are five shares, whatever there are programs."""
    plan = make_plan(product(2, 16, 240))
    verify(plan)
    loops = plan.summed.begin >= 0
    steps = (plan.summed.end - plan.summed.begin)[loops]
    assert steps.sum() == 2 * 30 and len(np.unique(plan.worker[plan.summed.task[loops]])) == 15


def test_programs_with_a_tile_of_another_loop_do_that_one() -> None:
    """Six tiles of another loop before: two programs have one in the wave in which the shares begin."""
    text = PRODUCT.replace("w : in  [N, K]\n", "w : in  [N, K]\n    z : out [M, N]\n")
    text += "\n    compute first(i: M, j: N):\n        z[i, j] = 2.0 * x[i, j]\n"
    text = text.replace("x : in  [M, K]", "x : in  [M, N]").replace("w : in  [N, K]", "w : in  [N, N]")
    text = text.replace("(M, N, K)", "(M, N)")
    module = tilelink.parse(text + EVEN.format("\n    first in make prologue, tile(i=16, j=48)").replace("k=8", "n=4"))
    bound = bind(module.programs[0], module.schedules[0], {"M": 16, "N": 272}, 1, holding(4))
    plan = make_plan(bound)
    verify(plan)  # 6 + 17 tiles on 4 programs: 3 and a wave are left, after 16 of both loops
    assert totals(bound) == {"make": 10, "first": 6, "make_streamed": 12}
    loop = bound.kernels[0].loops[-1]
    assert loop.stages == ("make_streamed",) and loop.first == 16


# What it becomes ---------------------------------------------------------------------------------------------

CASES = [(13, 4, 256), (3, 8, 256), (5, 4, 100), (11, 5, 93)]
AFTER = """\
program product(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    v : in  [N, K]
    b : in  [N]
    y : out [M, N]

    compute make(i: M, j: N):
        a = dot(x[i, :], w[j, :].T)
        c = dot(x[i, :], v[j, :].T) + pos(i)[:, None]
        if rank == 1:
            a = a + b[j]
        for (p: ranks):
            c = c + 1.0
        y[i, j] = silu(a) * c - max(a, axis=0)[None, :]
"""


@pytest.mark.parametrize("case", CASES)
def test_every_interleaving_of_programs_is_right(case: tuple[int, int, int]) -> None:
    """An explorer that shares nothing with the verifier finds no failure."""
    assert checker.check(make_plan(product(*case)), seeds=range(3)) == []


@pytest.mark.parametrize("text", [PRODUCT, AFTER], ids=["a product", "two, and what follows"])
@pytest.mark.parametrize("case", [(9, 4, 104), (5, 4, 100)])
def test_it_means_the_same(case: tuple[int, int, int], text: str) -> None:
    tiles, programs, k = case
    module = tilelink.parse(text + EVEN.format(""))
    numbers = {"M": 16, "N": 16 * tiles, "K": k}
    bound = bind(module.programs[0], module.schedules[0], numbers, 2, holding(programs))
    assert "make_streamed" in bound.stages
    verify(make_plan(bound))
    (given,) = random_inputs(bound.source, ranks=2, dims=numbers, dtype="f32", launches=1, seed=3)
    expected = reference(bound.source, given, numbers)
    for one, other in zip(run_lowered(bound, given), expected, strict=True):
        torch.testing.assert_close(one["y"], other["y"], rtol=1e-4, atol=1e-4)


def test_the_lowered_text_says_it() -> None:
    text = listing(product(13, 4))
    again = compiler.parse_lowered(text)
    assert listing(again) == text
    verify(make_plan(again))
    assert "for (inner: tiles(K, max(share * 160 // 4 - tail * 32, 0), " in text


MUTANTS: dict[str, tuple[str, str, type[TileLinkError], str]] = {
    "a share ends later": ("min((share + 1) *", "min((share + 2) *", CoverageError, "takes step 8 twice"),
    "a share begins later": (" * 32, 0), min", " * 32, 1), min", CoverageError, "leaves out steps 0 to 0"),
    "one step is left out": ("tail * 32, 32))):", "tail * 32, 31))):", CoverageError, "leaves out steps 31 to 31"),
    "another part is added": ("+ helper + 1, 0", "+ helper, 0", CoverageError, "adds what no task has handed on"),
    "a part is twice as much": ("i_in, j_in] = acc", "i_in, j_in] = acc * 2.0", CoverageError, "no task has handed on"),
    "a sum begins with 1": ("acc = zeros(f32)", "acc = full(1.0, f32)", CoverageError, "acc is not 0 before it"),
    "no part is added": ("helper + 1) * 160 // 4 <", "helper + 9) * 160 // 4 <", CoverageError, "that no task adds"),
    "all parts are added": ("tail * 32 + 32", "tail * 32 + 64", CoverageError, "of another tile|leaves out|outside"),
    "two tiles are one": ("tail = tile % 4 * 5 // 4 + tile // 4", "tail = tile % 4", CoverageError, "hands on|steps"),
    "a part is taken off": ("acc = acc + make_split", "acc = acc - make_split", CoverageError, "no sum of its steps"),
    "no wait": (
        "consumer_tile_wait(make_split[share + helper + 1, :, :, :])", "program_barrier()", OrderingError, "make_split",
    ),
    "a wait for the part before": (
        "consumer_tile_wait(make_split[share + helper + 1,", "consumer_tile_wait(make_split[share + helper,",
        AccountingError, "make_split",
    ),
    "no notify": (
        "producer_tile_notify(make_split[share, :, :, :])", "program_barrier()", AccountingError, "no stage notifies",
    ),
    "a notify before the part": (
        "make_split[share, 0, i_in, j_in] = acc\n                producer_tile_notify(make_split[share, :, :, :])",
        "producer_tile_notify(make_split[share, :, :, :])\n                make_split[share, 0, i_in, j_in] = acc",
        OrderingError, "make_split",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_share_is_refused(mutant: str) -> None:
    old, new, kind, why = MUTANTS[mutant]
    text = listing(product(13, 4))
    assert old in text
    found = refusals(make_plan(compiler.parse_lowered(text.replace(old, new))))
    assert found and isinstance(found[0], kind)
    assert re.search(why, found[0].message)


def test_programs_that_wait_for_one_another_are_resident() -> None:
    """Where shares are shorter than a tile, one program alone would wait for the share that it has next."""
    text = listing(product(3, 8))
    alone = text.replace("programs 8, num_warps", "programs 1, num_warps")
    assert alone != text and not refusals(make_plan(compiler.parse_lowered(text)))
    assert isinstance(refusals(make_plan(compiler.parse_lowered(alone)))[0], ProgressError)


# What cannot be ----------------------------------------------------------------------------------------------

REFUSED = {
    "two ways": (PRODUCT, ", split_k_tail 2", "it has `split_k_tail`"),
    "halves": (PRODUCT, ", halve_tail", "it has `halve_tail`"),
    "a loop": (
        PRODUCT.replace("y[i, j] = dot(x[i, :], w[j, :].T)", """t = zeros(f32)
        for (k: K):
            t += dot(x[i, k], w[j, k].T)
        y[i, j] = t"""), "", "no product outside of loops|are in a loop",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_shared_is_refused(case: str) -> None:
    text, more, why = REFUSED[case]
    with pytest.raises(ScheduleError, match=f"the steps of make cannot be divided evenly: .*({why})") as caught:
        product(13, 4, text=text, more=more)
    assert caught.value.location is not None and "take `stream_k` away" in str(caught.value.hint)


def test_a_count_that_only_a_launch_knows_is_refused() -> None:
    text = PRODUCT.replace("x : in  [M, K]", "m : in  [] <= M\n    x : in  [M, K]").replace("i: M", "i: M[: m]")
    text = text.replace("out [M, N]", "out [M[: m], N]")
    with pytest.raises((ScheduleError, BindingError), match=r"stream_k for stage make, whose tiles .* only a launch"):
        product(13, 4, text=text)


def test_the_word_of_lowered_programs_is_refused_elsewhere() -> None:
    text = PRODUCT.replace("y[i, j] = dot(x[i, :], w[j, :].T)", """t = zeros(f32)
        for (k: tiles(K, 0, 2)):
            t += dot(x[i, k], w[j, k].T)
        y[i, j] = t""")  # fmt: skip
    with pytest.raises(StageError, match=r"tiles\(\.\.\.\) of k as it stands here is of lowered programs"):
        compiler.bound(tilelink.parse(text).program(), None, ranks=1, dims={"M": 8, "N": 8, "K": 8})


# Text, search, simulation ------------------------------------------------------------------------------------


def test_it_is_written_and_read() -> None:
    text = "schedule a for b:\n    gemm on sm, flatten, stream_k\n"
    assert str(parse_schedule(text)) == text
    assert parse_schedule(text) == Schedule(name="a", program="b").on("gemm", "sm").flatten("gemm").stream_k("gemm")
    assert not parse_schedule(text).stream_k("gemm", False).stage("gemm")[STREAM_K]


def test_the_search_tries_it_where_it_tries_parts() -> None:
    program = tilelink.load("gemm_rs").program("gemm_rs_slots")
    space = Space.of([program], dims={"Ms": 2048, "N": 4096, "K": 2752}, ranks=4, target=target("sm_90"))
    knob = next(knob for knob in space.knobs[0] if knob.name == "gemm tail")
    assert knob.labels == ("of whole tiles", "of parts", "of even shares")
    start = Schedule(name="a", program="gemm_rs_slots")
    chosen = knob.changes[2](start.split_k_tail("gemm", 4)).stage("gemm")
    assert chosen[STREAM_K] and not knob.changes[1](start.stream_k("gemm")).stage("gemm")[STREAM_K]


@pytest.mark.parametrize(("tiles", "faster"), [(180, True), (264, False)])
def test_the_model_says_what_it_gains(tiles: int, faster: bool) -> None:
    """180 tiles on 132 SMs are two waves; even shares take 1.36 of one, and the hand-over."""
    machine = load_machine("8xH200")
    module = tilelink.parse(PRODUCT + EVEN.format("").replace("i=16, j=16, k=8", "i=128, j=128, k=64"))
    program, even = module.programs[0], module.schedules[0]
    dims = {"M": 128, "N": 128 * tiles, "K": 4096}
    whole, shared = (
        simulate(compiler.plan(program, one, ranks=1, dims=dims, dtype="bf16", target=machine.processor), machine)
        for one in (even.stream_k("make", False), even)
    )
    gain = whole.seconds / shared.seconds
    assert 1.15 < gain < 1.5 if faster else gain == 1.0


def test_it_is_compiled_with_tensor_cores() -> None:
    module = tilelink.parse(PRODUCT + EVEN.format("").replace("i=16, j=16, k=8", "i=64, j=64, k=32"))
    small: Target = replace(target("sm_90"), sms=3)
    dims = {"M": 64, "N": 64 * 2, "K": 1024}  # no whole tile: one loop
    text = compiler.assembly(module.programs[0], module.schedules[0], ranks=1, dims=dims, dtype="bf16", target=small)
    assert "wgmma.mma_async" in text and "cp.async.bulk.tensor" in text
