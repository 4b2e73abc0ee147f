# pyright: basic
"""Waits that move into the loop of a product, or cannot: every one is made, before what it guards is loaded."""

from __future__ import annotations

import re

import pytest

from tests.backend.samples import Sample, emitted
from tilelink import compiler
from tilelink.ir.program import Assign, Store
from tilelink.reference.trial import random_inputs, relative_error
from tilelink.schedule.machine import load_machine
from tilelink.schedule.plan import make_plan
from tilelink.schedule.simulate.cost import Roofline
from tilelink.schedule.simulate.script import COMPUTE, make_script
from tilelink.schedule.traces import differences

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
IN_LOOP = {"sliced", "summed", "on the left", "two kinds"}


def sample(body: str, channel: int = 16) -> Sample:
    lines = "\n".join("        " + line for line in BODIES[body])
    text = SHIFTED.replace("BODY", lines).replace("CHANNEL", str(channel))
    return Sample(text=text, numbers={"M": 32, "N": 32, "K": 64})


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
    lanes = {(lane.rank, lane.stream, lane.program): lane.events for lane in result.traces}
    assert differences(kernel.plan, lanes, 3) == []


@pytest.mark.parametrize("target", ["cpu", "sm_90"])
@pytest.mark.parametrize("body", BODIES)
def test_a_wait_is_before_what_it_guards(body: str, target: str) -> None:
    gemm = emitted(sample(body).bound(ranks=2, target=target, dtype="bf16")).text.partition("\ndef gemm(")[2]
    loads = [at.start() for at in re.finditer(r"consume_token\([wz]s_\w+.*, ready\)", gemm)]
    waits = [at.start() for at in re.finditer(r"ready \+= dl\.wait", gemm)]
    assert len(waits) == (2 if body == "two kinds" else 1)
    assert loads and max(waits) < min(loads)
    assert ("if k_" in gemm) == (body in IN_LOOP)


@pytest.mark.parametrize(("channel", "inside"), [(16, True), (32, True), (24, False), (64, False)])
def test_a_slice_is_a_number_of_steps(channel: int, inside: bool) -> None:
    gemm = emitted(sample("sliced", channel).bound(ranks=2, target="sm_90", dtype="bf16")).text
    assert (f"if k_0 % {channel} == 0:" in gemm) == inside


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
    computed = int(((script.task == plan.first_task["gemm"]) & (script.kind == COMPUTE)).sum())
    statements = sum(isinstance(s, Assign | Store) for s in bound.stages["gemm"].stage.body)
    assert ("if k_" in emitted(bound).text) == (computed > statements)
