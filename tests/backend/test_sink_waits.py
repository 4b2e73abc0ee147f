# pyright: basic
"""Waits that move into the loop of a product, or cannot: every one is made, before what it guards is loaded."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.backend.samples import Sample, emitted, numbered
from tests.lowered import parse_lowered
from tests.tiers import thorough
from tests.traces import differences
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.errors import VerificationError
from tilelink.ir.printer import print_program
from tilelink.ir.program import For, If, Statement, Wait
from tilelink.ir.scalar import Compare, Index, add, const
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs, relative_error
from tilelink.simulator.cost import Roofline
from tilelink.simulator.machine import load_machine
from tilelink.simulator.script import AWAIT, COMPUTE, make_script
from tilelink.verifier import verify

SHIFTED = """
program shifted(M, N, K):
    x  : in        [M, K]
    w  : in        [N, K]
    ws : symmetric [N, K]
    zs : symmetric [N, K]                  # has no signals of its own
    y  : out       [M, N]
    comm send(i: N, k: K):
        tile_push_data(ws[i, k] @ (rank + 1), w[i, k])
        tile_push_data(zs[i, k] @ (rank + 1), w[i, k])
        producer_tile_notify(ws[i, k] @ (rank + 1))
        peer_tile_notify(ws[i, k] @ (rank + 1))
    compute gemm(i: M, j: N):
BODY
schedule s for shifted:
    send on sm(1), tile(i=16, k=16)
    gemm on sm, tile(i=16, j=16, k=16)
    ws channel(i=16, k=CHANNEL)
"""
WAIT = "consumer_tile_wait(ws[j, :])"
PRODUCT = "y[i, j] = dot(x[i, :], ws[j, :].T)"
BODIES = {
    "sliced": [WAIT, PRODUCT],
    "summed": ["acc = dot(x[i, :], w[j, :].T)", WAIT, "acc += dot(x[i, :], ws[j, :].T)", "y[i, j] = acc"],
    "on the left": [WAIT, "v = dot(ws[j, :], x[i, :].T)", "y[i, j] = v.T"],
    "two kinds": [WAIT, "peer_tile_wait(ws[j, :])", PRODUCT],
    "not in slices": ["v = x[i, :] * 2.0", WAIT, "y[i, j] = dot(v, ws[j, :].T)"],
    "read twice": [WAIT, "y[i, j] = dot(x[i, :], ws[j, :].T) + ws[j, 0]"],
    "a load before": [WAIT, "y[i, j] = sum(zs[j, :], axis=1) + dot(x[i, :], ws[j, :].T)"],
    "beside it": [WAIT, "y[i, j] = dot(x[i, :], (ws[j, :] + zs[j, :]).T)"],
    "something between": [WAIT, "v = x[i, :] * 2.0", "y[i, j] = dot(v, ws[j, :].T)"],
}  # fmt: skip
POLLED = re.compile(r"if k(_[0-9])? % ")
"""What stands before a wait in the loop over the contracted dimension."""
IN_LOOP = {"sliced", "summed", "on the left", "two kinds"}


def sample(body: str, channel: int = 16) -> Sample:
    lines = "\n".join("        " + line for line in BODIES[body])
    text = SHIFTED.replace("BODY", lines).replace("CHANNEL", str(channel))
    return Sample(text=text, numbers={"M": 32, "N": 32, "K": 64})


def with_body(bound: Bound, name: str, body: tuple[Statement, ...]) -> Bound:
    """A lowered program whose stage has another body."""
    stage = bound.stages[name]
    new = replace(stage, stage=replace(stage.stage, body=body))
    stages = tuple(new.stage if one.name == name else one for one in bound.program.stages)
    return replace(bound, program=replace(bound.program, stages=stages), stages={**bound.stages, name: new})


@thorough(unless=lambda body: body in ("sliced", "two kinds", "read twice"))
@pytest.mark.parametrize("body", BODIES)
def test_every_wait_is_made(body: str) -> None:
    module = sample(body).module()
    program, numbers = module.programs[0], sample(body).numbers
    kernel = compiler.compile(program, module.schedules[0], ranks=2, dims=numbers)
    inputs = random_inputs(program, ranks=2, dims=numbers, dtype="f32", launches=3, seed=1)
    result = kernel.run(inputs, seed=1, max_delay_s=0.001, trace=True, deadline_s=20)
    for given, outputs in zip(inputs, result.outputs, strict=True):
        expected = kernel.reference(given)
        assert relative_error([o["y"] for o in outputs], [e["y"] for e in expected]) < 1e-5
    workers = {(one.rank, one.stream, one.program): one.events for one in result.traces}
    assert differences(kernel.plan, workers, 3) == []


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("body", BODIES)
def test_a_wait_is_before_what_it_guards(body: str, target: str) -> None:
    gemm = numbered(emitted(sample(body).bound(ranks=2, target=target, dtype="bf16")).text).partition("\ndef gemm(")[2]
    loads = [at.start() for at in re.finditer(r"consume_token\([wz]s_\w+.*, token\)", gemm)]
    waits = [at.start() for at in re.finditer(r"token \+= dl\.wait", gemm)]
    assert len(waits) == (2 if body == "two kinds" else 1)
    assert loads and max(waits) < min(loads)
    assert (POLLED.search(gemm) is not None) == (body in IN_LOOP)


@pytest.mark.parametrize(("channel", "inside"), [(16, True), (32, True), (24, False), (64, False)])
def test_a_slice_is_a_number_of_steps(channel: int, inside: bool) -> None:
    gemm = numbered(emitted(sample("sliced", channel).bound(ranks=2, target="sm_90", dtype="bf16")).text)
    assert (f"if k % {channel} == 0:" in gemm) == inside


@thorough(unless=lambda channel, block: (channel, block) in ((16, 16), (48, 16), (64, 48)))
@pytest.mark.parametrize("block", [16, 48])
@pytest.mark.parametrize("channel", [16, 32, 48, 64])
@pytest.mark.parametrize("body", BODIES)
def test_the_simulator_waits_where_the_kernel_does(body: str, channel: int, block: int) -> None:
    """A block that is no power of two is padded: then slices of 48 elements are no whole steps."""
    old, new = "gemm on sm, tile(i=16, j=16, k=16)", f"gemm on sm, tile(i=16, j=16, k={block})"
    small = Sample(text=sample(body, channel).text.replace(old, new), numbers={"M": 32, "N": 32, "K": 192})
    bound = small.bound(ranks=2, target="sm_90", dtype="bf16")
    plan = make_plan(bound)
    script = make_script(plan, load_machine("8xH200"), Roofline())
    own = script.kind[script.task == plan.first_task["gemm"]]
    begun = int(((own[:-1] == AWAIT) & (own[1:] == COMPUTE)).sum())
    sliced = bool(bound.stages["gemm"].slices)
    assert (
        sliced
        == (POLLED.search(numbered(emit(bound, plan.thresholds).text)) is not None)
        == (body in IN_LOOP and channel % (16 if block == 16 else 64) == 0)
    )
    assert begun == (192 // channel if sliced else 1)


@pytest.mark.parametrize("body", BODIES)
def test_a_program_whose_waits_have_sunk_means_the_same(body: str) -> None:
    found: dict[str, Bound] = {}
    module, numbers = sample(body).module(), sample(body).numbers
    program = module.programs[0]
    compiler.bound(
        program, module.schedules[0], ranks=2, dims=numbers, on_step=lambda one, bound: found.update({one: bound})
    )
    sunk = parse_lowered(listing(found["sink_waits"])).program
    assert (print_program(sunk) == print_program(found["transport"].program)) == (body not in IN_LOOP)
    for given in random_inputs(program, ranks=2, dims=numbers, dtype="f32", launches=1, seed=1):
        for one, other in zip(reference(program, given, numbers), reference(sunk, given, numbers), strict=True):
            torch.testing.assert_close(one["y"], other["y"], rtol=1e-6, atol=1e-6)


def test_a_wait_that_has_sunk_too_far_is_refused() -> None:
    """Past the slice that it guards, past all of them, into a later round, or for a part of what is multiplied."""
    module, numbers = sample("sliced").module(), sample("sliced").numbers
    bound = compiler.bound(module.programs[0], module.schedules[0], ranks=2, dims=numbers)
    verify(make_plan(bound))
    zeros, loop, store = bound.stages["gemm"].stage.body
    assert isinstance(loop, For)
    wait, more = loop.body
    assert isinstance(wait, Wait)
    (index,) = loop.indices
    past = add(Index(name=index.name), const(1))
    next_one = replace(wait, region=replace(wait.region, coords=(*wait.region.coords[:1], past)))
    later = If(condition=Compare(op=">", left=Index(name=index.name), right=const(0)), then=(wait,))
    for body in (
        (zeros, replace(loop, body=(more, wait)), store),
        (zeros, replace(loop, body=(more,)), replace(loop, body=(wait,)), store),
        (zeros, replace(loop, body=(later, more)), store),
        (zeros, replace(loop, body=(next_one, more)), store),
    ):
        with pytest.raises(VerificationError):
            verify(make_plan(with_body(bound, "gemm", body)))


IN_BLOCKS = """
program down_in_blocks(B, R, F, N, E):
    expert : in        [B] < E               # of the rows of each block
    blocks : in        [] <= B replicated    # blocks that have rows
    x      : in        [B, R, F]
    down   : in        [E, N, F]
    h      : symmetric [B, R, F]
    y      : out       [B[: blocks], R, N]
    comm activate(b: B[: blocks], i: R, f: F):
        tile_push_data(h[b, i, f] @ (rank + 1), silu(x[b, i, f]))
        producer_tile_notify(h[b, i, f] @ (rank + 1))
    compute product(HEAD):
BODY
schedule s for down_in_blocks:
    activate on sm(1), tile(b=1, i=8, f=16)
    product on sm, tile(i=8, j=16, f=16)
"""
IN_COUNTED = {
    "a stage": ("b: B[: blocks] by 1, i: R, j: N", ""),
    "a loop": ("i: R, j: N", "        for (b: B[: blocks] by 1):\n    "),
}


@pytest.mark.parametrize("counted", IN_COUNTED)
def test_a_tile_that_a_launch_leaves_out_waits_for_each_slice(counted: str) -> None:
    """The loop over slices has no product then. Trace and plan agree on the waits, for any number of blocks."""
    head, loop = IN_COUNTED[counted]
    inner = "            " if loop else "        "
    body = f"consumer_tile_wait(h[b, i, :])\n{inner}y[b, i, j] = dot(h[b, i, :], down[expert[b], j, :].T)"
    text = IN_BLOCKS.replace("HEAD", head).replace("BODY", f"{loop}        {body}")
    numbers: dict[str, Any] = {"B": 3, "R": 8, "F": 32, "N": 32, "E": 2}
    module = Sample(text=text, numbers=numbers).module()
    program = module.programs[0]
    kernel = compiler.compile(program, module.schedules[0], ranks=2, dims=numbers)
    assert kernel.plan.bound.stages["product"].slices
    inputs = random_inputs(program, ranks=2, dims=numbers, dtype="f32", launches=3, seed=1)
    for given, blocks in zip(inputs, (0, 2, 3), strict=True):
        for one in given:
            one["blocks"] = torch.tensor(blocks, dtype=torch.int32)
    result = kernel.run(inputs, seed=1, max_delay_s=0.001, trace=True, deadline_s=20)
    for given, outputs, blocks in zip(inputs, result.outputs, (0, 2, 3), strict=True):
        expected = kernel.reference(given)
        for one, other in zip(outputs, expected, strict=True):
            torch.testing.assert_close(one["y"][:blocks], other["y"][:blocks], rtol=1e-5, atol=1e-5)
    workers = {(one.rank, one.stream, one.program): one.events for one in result.traces}
    assert differences(kernel.plan, workers, 3) == []
