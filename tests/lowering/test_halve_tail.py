"""`halve_tail`: the last wave's tiles in halves; every element once, whatever the sizes, and no other result."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tilelink
from tests.lowered import parse_lowered
from tests.tiers import thorough
from tilelink import compiler
from tilelink.errors import ScheduleError
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.ir.scalar import Env, evaluate
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses.halve_tail import HALVE_TAIL
from tilelink.lowering.listing import listing
from tilelink.lowering.orders import TILE
from tilelink.planning.plan import make_plan
from tilelink.scheduling.schedule import Schedule
from tilelink.target import CPU, target
from tilelink.verifier import verify

TEXT = """program product(M, N, K):
    a : in        [M, K]
    b : in        [N, K]
    h : symmetric [M, N]
    y : out       [M, N]

    compute gemm(i: M, j: N):
        h[i, j] @ (rank + 1) = silu(dot(a[i, :], b[j, :].T))
        producer_tile_notify(h[i, j] @ (rank + 1))

    compute take(i: M, j: N):
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j] * 2.0

schedule one for product:
    gemm on sm{own}, tile(i=16, j={j}, k=16), order({order}), {clauses}
    take {take}, tile(i=16, j=32)
    h channel(i=16, j=64)
"""


def text(
    order: str = "group(i, 2)", clauses: str = "halve_tail", j: int = 32, own: str = "", take: str = "on sm"
) -> str:
    body = TEXT.replace("h[i, j] @ (rank + 1) = silu", "tile_push_data(h[i, j] @ (rank + 1), silu")
    body = body.replace("b[j, :].T))\n", "b[j, :].T)))\n")
    return body.format(order=order, clauses=clauses, j=j, own=own, take=take)


def bound(M: int = 80, N: int = 96, sms: int = 8, **options: object) -> Bound:
    module = compiler.parse(text(**options), "product.tl")  # type: ignore[arg-type]
    machine = replace(CPU, grows=False, sms=sms, max_programs=sms)
    sizes = {"M": M, "N": N, "K": 32}
    return compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes, target=machine)


def test_the_last_tiles_become_halves_and_go_to_programs_that_were_idle() -> None:
    assert list(bound().stages) == ["gemm", "take"]  # 15 tiles by 8 programs: 8, and 7, which would be 14
    assert list(bound(M=96, sms=7).stages) == ["gemm", "take"]  # 18 tiles: 14, and 4, which would be 8
    made = bound(M=96, sms=8)  # 18 tiles: 16, and 2
    gemm, rest = made.stages["gemm"], made.stages["gemm_rest"]
    assert (gemm.total, rest.total) == (16, 4) and (gemm.tiles["j"], rest.tiles["j"]) == (32, 16)
    (kernel,) = (one for one in made.kernels if one.name == "gemm")
    assert [(loop.stages, loop.first) for loop in kernel.loops] == [(("gemm",), 0), (("gemm_rest",), 16)]
    assert kernel.loops[1].first % kernel.programs == 0
    found = listing(made)
    assert listing(parse_lowered(found)) == found


def test_a_tile_that_is_cut_to_less_than_half_has_no_right_half() -> None:
    made = bound(M=96, N=72, sms=8, order="i, j")  # 18 tiles, of which each third has 8 columns
    assert (made.stages["gemm"].total, made.stages["gemm_rest"].total) == (16, 3)
    verify(make_plan(made))
    # with the cut tiles first no half is left out
    made = bound(M=96, N=72, sms=15, order="i, j = 2 step -1")
    assert "gemm_rest" not in made.stages


@settings(deadline=None, max_examples=40)
@given(M=st.integers(1, 12).map(lambda n: 8 * n), N=st.integers(1, 20).map(lambda n: 8 * n), sms=st.integers(1, 9),
       order=st.sampled_from(["i, j", "j, i", "group(i, 2)", "i = 0 step -1, j"]))  # fmt: skip
def test_every_element_is_computed_once(M: int, N: int, sms: int, order: str) -> None:
    made = bound(M=M, N=N, sms=sms, order=order)
    verify(make_plan(made))
    seen = np.zeros((M, N), int)
    for name in ("gemm", "gemm_rest"):
        if name not in made.stages:
            continue
        stage = made.stages[name]
        env = Env(rank=0, ranks=2, params={}, indices={TILE.name: np.arange(stage.total)})
        rows, columns = (np.broadcast_to(evaluate(stage.order[n], env), stage.total) for n in "ij")
        for i, j in zip(rows.tolist(), columns.tolist(), strict=True):
            seen[i * 16 : (i + 1) * 16, j * stage.tiles["j"] : (j + 1) * stage.tiles["j"]] += 1
    assert (seen == 1).all()


@thorough(unless=lambda M: M == 80)
@pytest.mark.parametrize(("M", "N"), [(80, 96), (48, 72), (16, 96)])
def test_results_are_those_of_whole_tiles(M: int, N: int) -> None:
    """On CPU ranks, where two programs have odd numbers of tiles."""
    results = []
    for clauses in ("halve_tail", "num_warps 4"):
        module = compiler.parse(text(clauses=clauses), "product.tl")
        sizes = {"M": M, "N": N, "K": 32}
        made = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=sizes)
        assert ("gemm_rest" in made.stages) is (clauses == "halve_tail")
        kernel = tilelink.compile(module.program(), module.schedules[0], ranks=2, dims=sizes)
        torch.manual_seed(1)
        given_ = [{"a": torch.randn(M, 32), "b": torch.randn(N, 32)} for _ in range(2)]
        results.append(kernel(given_))
        wanted = [torch.nn.functional.silu(x["a"] @ x["b"].T) * 2.0 for x in given_]
        for rank in range(2):
            torch.testing.assert_close(results[-1][rank]["y"], wanted[1 - rank], rtol=1e-4, atol=1e-4)
    for a, b in zip(*results, strict=True):  # NumPy's products of fewer rows may add up in another order
        torch.testing.assert_close(a["y"], b["y"], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(("options", "reason"), [
    ({"clauses": "halve_tail, split_k_tail 2"}, "it has `split_k_tail`"),
    ({"j": 16}, "16 elements along j, not an even number of at least 32"),
    ({"take": "in gemm epilogue"}, "another stage shares its tiles"),
])  # fmt: skip
def test_a_tail_that_cannot_be_halved_is_refused(options: dict[str, object], reason: str) -> None:
    with pytest.raises(ScheduleError, match=f"the tail of gemm cannot be halved: .*{reason}") as caught:
        bound(**options)  # type: ignore[arg-type]
    place = caught.value.location
    assert place is not None and place.text is not None and "halve_tail" in place.text


def test_a_wave_that_other_tiles_fill_is_no_tail() -> None:
    """Of the stages of a kernel only the last one has a tail."""
    module = compiler.load("ag_gemm")
    program = module.program("ag_gemm_in_place")
    clauses = "tile(i=128, j=256, k=64), halve_tail"
    lines = f"    own in gemm prologue, {clauses}\n    gemm on sm, {clauses}\n    gather on sm(4), tile(i=64)\n"
    schedule = compiler.parse(f"{program}\nschedule s for ag_gemm_in_place:\n{lines}").schedules[0]
    sizes = {"Ms": 1024, "N": 1792, "K": 512}  # own: 56 tiles; gemm: 392, which end 64 tiles after a wave of 128
    made = compiler.bound(program, schedule, ranks=8, dims=sizes, dtype="bf16", target=target("sm_90"))
    assert list(made.stages) == ["gather", "own", "gemm", "gemm_rest"]
    assert [made.stages[name].total for name in ("own", "gemm", "gemm_rest")] == [56, 328, 128]
    verify(make_plan(made))


def test_halved_tiles_have_the_roles_of_whole_ones() -> None:
    module = compiler.load("ag_gemm")
    program = module.program("ag_gemm")
    more = "schedule roles for ag_gemm like h200:\n"
    more += "    gemm flatten off, split_k_tail off, halve_tail, roles(consumers=2, buffers=4)\n"
    schedule = compiler.parse(f"{program}\n{module.schedule('h200', program)}\n{more}").schedules[1]
    made = compiler.bound(
        program, schedule, ranks=8, dims={"Ms": 1024, "N": 3696, "K": 512}, dtype="bf16", target=target("sm_90")
    )
    gemm, rest = made.stages["gemm"].roles, made.stages["gemm_rest"].roles
    assert gemm is not None and rest is not None
    assert (gemm.columns, rest.columns, rest.pieces) == (256, 128, 2) and gemm.results == rest.results
    assert made.stages["gemm"].total + -(-made.stages["gemm_rest"].total // 2) <= 960
    verify(make_plan(made))


def test_the_text_and_the_method_say_the_same() -> None:
    made = Schedule(name="s", program="p").halve_tail("a")
    assert str(made) == "schedule s for p:\n    a halve_tail\n" and parse_schedule(str(made)) == made
    assert not made.halve_tail("a", False).stage("a")[HALVE_TAIL]
