"""Copy-engine stages: their events are those of the plan."""

import torch

from tilelink import compiler
from tilelink.reference.trial import random_inputs
from tilelink.schedule.traces import differences

STORES = """
program stores(M):
    x : in [M]
    c : local [M]
    h : symmetric [M]
    y : out [M]

    comm move(i: M):
        c[i] = x[i]
        producer_tile_notify(c[i])
        tile_push_data(h[i] @ (rank + 1), x[i])
        producer_tile_notify(h[i] @ (rank + 1))

    compute total(i: M):
        consumer_tile_wait(c[i])
        consumer_tile_wait(h[i])
        y[i] = c[i] + h[i]

schedule engine for stores:
    move on copy_engine, tile(i=16)
"""


def test_plain_stores_are_no_transfers() -> None:
    module = compiler.parse(STORES)
    program = module.program()
    kernel = compiler.compile(program, module.schedules[0], ranks=2, dims={"M": 40})
    inputs = random_inputs(program, ranks=2, dims={"M": 40}, dtype="f32", launches=2, seed=0)
    result = kernel.run(inputs, trace=True, deadline_s=20)
    for given, outputs in zip(inputs, result.outputs, strict=True):
        assert torch.equal(outputs[0]["y"], given[0]["x"] + given[1]["x"])
    lanes = {(lane.rank, lane.stream, lane.program): lane.events for lane in result.traces}
    assert differences(kernel.plan, lanes, 2) == []
