"""Copy-engine stages: their events are those of the plan."""

import pytest
import torch

from tests.traces import differences
from tilelink import compiler
from tilelink.errors import EmitError
from tilelink.reference.trial import random_inputs

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
    workers = {(one.rank, one.stream, one.program): one.events for one in result.traces}
    assert differences(kernel.plan, workers, 2) == []


LOOPED = """
program looped(M):
    x : in [M]
    h : symmetric [3, M]
    y : out [M]

    comm send(i: M):
        for (k: 3):
            tile_push_data(h[k, i] @ (rank + 1), x[i])
            producer_tile_notify(h[k, i] @ (rank + 1))

    compute take(i: M):
        for (k: 3):
            consumer_tile_wait(h[k, i])
        y[i] = h[0, i] + h[1, i] + h[2, i]

schedule engine for looped:
    send on copy_engine, tile(i=16, k=1)
"""


def test_a_copy_engine_copies_and_tells_in_every_round_of_a_loop() -> None:
    module = compiler.parse(LOOPED)
    text = compiler.source(module.program(), module.schedules[0], ranks=2, dims={"M": 40})
    rounds = text.split("for k in range(3):")[1].split("\n\n")[0]
    assert "queue.copy(" in rounds and "queue.notify(" in rounds


REPEATED = """
program repeated(M, N):
    x : in [M, N]
    h : symmetric [M, N]
    y : out [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[0, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute take(i: M, j: N):
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j]

schedule engine for repeated:
    send on copy_engine, tile(i={rows})
"""


def test_a_row_that_is_repeated_is_for_programs() -> None:
    dims = {"M": 6, "N": 8}
    module = compiler.parse(REPEATED.format(rows=4))
    program = module.program()
    with pytest.raises(EmitError, match="copies boxes of equal sizes") as caught:
        compiler.source(program, module.schedules[0], ranks=2, dims=dims)
    assert caught.value.location and caught.value.location.line == 8
    inputs = random_inputs(program, ranks=2, dims=dims, dtype="f32", launches=1, seed=0)
    row_by_row = compiler.parse(REPEATED.format(rows=1)).schedules[0]
    for schedule in (row_by_row, None):
        outputs = compiler.compile(program, schedule, ranks=2, dims=dims)(inputs[0])
        for rank in range(2):
            assert torch.equal(outputs[rank]["y"], inputs[0][1 - rank]["x"][:1].expand(6, 8))
