"""Copy-engine stages of GPU ranks, without GPUs: what is recorded, and that its moves are the copies that are meant."""

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import artifacts
from tilelink import compiler
from tilelink.compiler.cuda import gpu_artifact
from tilelink.generated import load_module
from tilelink.runtime.cuda import offline
from tilelink.runtime.cuda.queue import Move, _moves
from tilelink.runtime.cuda.record_copies import Copy, Recorder, StreamWait, StreamWrite, before_kernels, record
from tilelink.target import target

RANKS = 3
TEXT = """
program parts(M, N):
    x : in [ranks, M, N]
    c : local [ranks, M, N]
    y : symmetric [ranks, M, N]
    z : out [M, N]

    compute make(s: ranks, i: M, j: N):
        c[s, i, j] = x[s, i, j] + 1
        producer_tile_notify(c[s, i, j])
    comm send(s: ranks, i: M, j: N):
        consumer_tile_wait(c[s, i, j])
        tile_push_data(y[rank, i, j] @ s, c[s, i, j])
        producer_tile_notify(y[rank, i, j] @ s)
    compute total(i: M, j: N):
        consumer_tile_wait(y[:, i, j])
        z[i, j] = sum(y[:, i, j], axis=0)

schedule rows for parts:
    make on sm, tile(i=8, j=16)
    send on copy_engine, tile(i=8, j=16)
    total on sm, tile(i=8, j=16)
    c channel(i=8, j=16)
    y channel(i=8, j=16), buffers 2

schedule shared for parts:
    make on sm, tile(i=8, j=16)
    send on copy_engine, tile(i=8, j=16), order(s, group(i, 2))
    total on sm, tile(i=8, j=16)
    c channel(i=64, j=64)
    y channel(i=64, j=64), buffers 1
"""
GATHER = """
program gather(M, N):
    x : in [M, N]
    y : out symmetric [ranks, M, N]
    comm send(s: ranks, i: M):
        tile_push_data(y[rank, i, :] @ s, x[i, :])
        producer_tile_notify(y[rank, i, :] @ s)
schedule engine for gather:
    send on copy_engine, tile(i=8), order(s = rank + 1 step +1)
    y channel(i=64)
"""
DIMS = {"M": 20, "N": 40}


def recorded(text: str, schedule: str, rank: int, epoch: int = 1) -> tuple[Any, list[Any]]:
    module = compiler.parse(text)
    program = module.program()
    kernel = compiler.compile(program, module.schedule(schedule, program), ranks=RANKS, dims=DIMS)
    memory = kernel.artifact
    function = load_module(Path(kernel.path)).send
    return memory, record(function, memory, rank, epoch)


def test_waits_of_one_counter_become_one_gate_with_its_threshold() -> None:
    _, operations = recorded(TEXT, "rows", 1)
    gates = [o for o in operations if isinstance(o, StreamWait)]
    assert len(gates) == len({g.channel for g in gates}) == RANKS * 3 * 3
    assert {g.threshold for g in gates} == {1}
    _, operations = recorded(TEXT, "shared", 1)
    gates = [o for o in operations if isinstance(o, StreamWait)]
    assert len(gates) == RANKS and {g.threshold for g in gates} == {9}


def test_notifies_count_up_to_the_threshold() -> None:
    _, operations = recorded(TEXT, "shared", 1)
    flags = [o for o in operations if isinstance(o, StreamWrite)]
    assert [f.number for f in flags] == list(range(RANKS * 9))
    to_first = [f.count for f in flags if f.rank == 0]
    assert to_first == list(range(1, 10)) and {f.step for f in flags} == {9}


def test_the_second_launch_uses_the_second_buffer() -> None:
    memory, first = recorded(TEXT, "rows", 0, epoch=1)
    _, second = recorded(TEXT, "rows", 0, epoch=2)
    size = 4 * DIMS["M"] * DIMS["N"] * RANKS
    offsets = [[o.target.offsets[0] for o in one if isinstance(o, Copy)] for one in (first, second)]
    assert [b - a for a, b in zip(*offsets, strict=True)] == [size] * len(offsets[0])
    grid = next(g for g in memory.grids if g.tensor == "y")
    channels = [[o.channel for o in one if isinstance(o, StreamWrite)] for one in (first, second)]
    assert [b - a for a, b in zip(*channels, strict=True)] == [grid.count] * len(channels[0])


@pytest.mark.parametrize("rank", range(RANKS))
def test_moves_are_the_copies_that_are_meant(rank: int) -> None:
    memory, operations = recorded(TEXT, "rows", rank)
    sizes = {t.name: 4 * int(np.prod(t.shape)) * t.buffers for t in memory.tensors}
    bytes_of = {(name, r): np.zeros(size, np.uint8) for name, size in sizes.items() for r in range(RANKS)}
    source = np.random.default_rng(0).random((RANKS, DIMS["M"], DIMS["N"]), np.float32)
    bytes_of["c", rank][:] = source.view(np.uint8).reshape(-1)
    starts = {key: 10**6 * number for number, key in enumerate(bytes_of)}
    for operation in operations:
        if isinstance(operation, Copy):
            for move in _moves(operation.target, operation.source, lambda name, r: starts[name, r]):
                apply(move, bytes_of, starts)
    for peer in range(RANKS):
        got = bytes_of["y", peer][: sizes["c"]].view(np.float32).reshape(source.shape)
        assert np.array_equal(got[rank], source[peer])
        assert not got[[r for r in range(RANKS) if r != rank]].any()


def apply(move: Move, bytes_of: dict[Any, Any], starts: dict[Any, int]) -> None:
    def place(address: int) -> tuple[Any, int]:
        key = max((k for k in starts if starts[k] <= address), key=lambda k: starts[k])
        return bytes_of[key], address - starts[key]

    for row in range(move.rows):
        to, at = place(move.target.address + row * move.target_pitch)
        of, from_ = place(move.source.address + row * move.source_pitch)
        to[at : at + move.width] = of[from_ : from_ + move.width]


def test_rows_become_one_copy_and_whole_rows_one_run() -> None:
    _, operations = recorded(TEXT, "rows", 0)
    first = next(o for o in operations if isinstance(o, Copy))
    (move,) = _moves(first.target, first.source, lambda *_: 0)
    assert (move.rows, move.width, move.target_pitch, move.source_pitch) == (8, 64, 160, 160)
    _, operations = recorded(GATHER, "engine", 0)
    first = next(o for o in operations if isinstance(o, Copy))
    (move,) = _moves(first.target, first.source, lambda *_: 0)
    assert (move.rows, move.width) == (1, 20 * 40 * 4)


def test_own_copies_for_which_nothing_is_waited_come_first() -> None:
    _, operations = recorded(GATHER, "engine", 1)
    early, late = before_kernels(operations, 1, own_first=True)
    assert early and all(o.rank == 1 if isinstance(o, StreamWrite) else o.target.rank == 1 for o in early)  # type: ignore[union-attr]
    assert all(o.rank != 1 if isinstance(o, StreamWrite) else o.target.rank != 1 for o in late)  # type: ignore[union-attr]
    early, late = before_kernels(recorded(TEXT, "rows", 1)[1], 1, own_first=True)
    assert not early and late


RELAYS = """
program relays(M, N):
    x : in [M, N]
    h : symmetric [M, N]
    g : symmetric [2, M, N]
    y : out [M, N]
    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))
    comm once(i: M):
        consumer_tile_wait(h[i, :])
        tile_push_data(g[0, i, :] @ (rank + 1), h[i, :])
        producer_tile_notify(g[0, i, :] @ (rank + 1))
    comm again(i: M):
        consumer_tile_wait(h[i, :])
        tile_push_data(g[1, i, :] @ (rank + 1), h[i, :])
        producer_tile_notify(g[1, i, :] @ (rank + 1))
    compute add(i: M, j: N):
        consumer_tile_wait(g[:, i, j])
        y[i, j] = sum(g[:, i, j], axis=0)
schedule s for relays:
    send on sm(1), tile(i=8)
    once on copy_engine, tile(i=8)
    again on copy_engine, tile(i=8)
    g channel(i=8)
"""


def test_what_a_queue_has_awaited_is_not_awaited_by_the_next_one() -> None:
    """The first wait resets the counter: a second one would wait for ever."""
    module = compiler.parse(RELAYS)
    program = module.program()
    plan = compiler.plan(program, module.schedules[0], ranks=RANKS, dims=DIMS, target=target("sm_90"))
    found = offline.recorded(gpu_artifact(plan), 0)
    for launch in found.late:
        operations = [one for part in launch for one in part]
        awaited = [one.channel for one in operations if isinstance(one, StreamWait)]
        assert len(awaited) == len(set(awaited)) == 3
        assert len({one.number for one in operations if isinstance(one, StreamWrite)}) == 6
        assert sum(isinstance(one, Copy) for one in operations) == 6


def test_runs_of_a_box_begin_where_its_elements_lie() -> None:
    chance = np.random.default_rng(0)
    for _ in range(300):
        shape = [int(n) for n in chance.integers(1, 6, chance.integers(0, 5))]
        sizes = [int(n if chance.random() < 0.5 else chance.integers(1, n + 1)) for n in shape]
        low = [int(chance.integers(0, n - size + 1)) for n, size in zip(shape, sizes, strict=True)]
        elements = np.arange(prod(shape)).reshape(shape)[tuple(map(slice, low, np.add(low, sizes)))].reshape(-1)
        for width in {prod(sizes[at:]) for at in range(len(sizes) + 1)} | {2, 3}:
            starts = box_recorder(tuple(shape))._box("c", 0, low, sizes, width).offsets
            assert starts == tuple((4 * (elements[::width] + prod(shape))).tolist()), (shape, low, sizes, width)


def box_recorder(shape: tuple[int, ...]) -> Recorder:
    """In the second of two launches, whose buffers differ."""
    artifact = replace(artifacts.EMPTY, tensors=(artifacts.tensor("c", shape=shape, buffers=2),))
    return Recorder(artifact, 0, 2, "none", ())


def test_a_long_run_is_not_looked_at_element_by_element() -> None:
    shape = (1 << 20, 1 << 20)  # whose positions no host can hold
    assert box_recorder(shape)._box("c", 0, (0, 0), shape, 1 << 39).offsets == (1 << 42, (1 << 42) + (1 << 41))
