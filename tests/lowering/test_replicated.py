"""Index tensors of which all ranks have the same entries: what follows from it, who checks it, and who draws it."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
import torch

import tilelink
from tests.tiers import thorough
from tilelink import compiler
from tilelink.compiler.cpu import Kernel
from tilelink.compiler.promises import promises_of
from tilelink.errors import BindingError, CoverageError, OrderingError, ParseError
from tilelink.planning.plan import Plan
from tilelink.reference.trial import random_inputs
from tilelink.runtime import promises as runtime

BATCH = """
program batch(Ms = 12, N = 8, K = 4):
    m  : in        [] <= Ms replicated
    x  : in        [Ms[: m], K]
    w  : in        [N, K]
    xs : symmetric [ranks, Ms, K]
    y  : out       [ranks, Ms[: m], N]

    comm gather(p: ranks, i: Ms[: m]):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)

    compute gemm(s: ranks, i: Ms[: m], j: N):
        consumer_tile_wait(xs[s, i, :])
        y[s, i, j] = dot(xs[s, i, :], w[j, :].T)
"""
PLACES = """
program places(T = 8, N = 4):
    slot : in        [T] < T distinct replicated
    x    : in        [T, N]
    h    : symmetric [ranks, T, N]
    y    : out       [T, N]

    comm send(t: T by 1):
        tile_push_data(h[rank, t, :] @ (rank + 1), x[slot[t], :])
        producer_tile_notify(h[rank, t, :] @ (rank + 1))

    compute take(t: T by 1, j: N):
        consumer_tile_wait(h[rank - 1, t, :])
        y[slot[t], j] = h[rank - 1, t, j]
"""
DIMS = {"Ms": 12, "N": 8, "K": 4}
SLOTS = {"T": 8, "N": 4}
RANKS = 3


def plan_of(text: str = BATCH) -> Plan:
    return tilelink.plan(tilelink.parse(text).program(), ranks=RANKS, dims=DIMS)


def inputs_of(rows: list[int]) -> list[dict[str, torch.Tensor]]:
    return [{"m": torch.tensor(n).int(), "x": torch.rand(12, 4), "w": torch.rand(8, 4)} for n in rows]


def test_what_a_peer_sends_of_a_replicated_count_is_what_is_read() -> None:
    assert plan_of().bound.ranks == RANKS
    with pytest.raises(CoverageError, match="up to m of rank") as caught:
        plan_of(BATCH.replace(" replicated", ""))
    assert "m : in [] <= M replicated" in (caught.value.hint or "")
    with pytest.raises(OrderingError, match="nothing orders the two"):
        plan_of(BATCH.replace("        consumer_tile_wait(xs[s, i, :])\n", ""))
    with pytest.raises(CoverageError, match="parts of which no stage writes"):
        plan_of(BATCH.replace("gather(p: ranks, i: Ms[: m])", "gather(p: ranks, i: Ms[: m - 1])"))


INNER = """
program inner(Ms = 16, K = 8):
    m  : in        [] <= Ms replicated
    x  : in        [Ms[: m], K]
    xs : symmetric [ranks, Ms, K]
    y  : out       [ranks - 1, Ms[: m], K]

    comm gather(q: ranks - 1, i: Ms[: m]):
        tile_push_data(xs[rank, i, :] @ (rank + 1 + q), x[i, :])
        producer_tile_notify(xs[rank, i, :] @ (rank + 1 + q))

    compute take(q: ranks - 1, i: Ms[: m]):
        consumer_tile_wait(xs[rank + 1 + q, i, :])
        y[q, i, :] = xs[rank + 1 + q, i, :]

schedule inner for inner:
    gather tile(i=4)
    take tile(i=4), order(i, q)
"""


@pytest.mark.parametrize("ranks", [3, 4])
def test_tiles_of_peers_within_a_tile_of_rows_are_counted_together(ranks: int) -> None:
    """How many there are is a difference, `ranks - 1`, by which the number of tiles of rows is multiplied."""
    module = tilelink.parse(INNER)
    program, dims = module.program(), {"Ms": 16, "K": 8}
    kernel = compiler.compile(program, module.schedules[0], ranks=ranks, dims=dims)
    for given in random_inputs(program, ranks=ranks, dims=dims, dtype="f32", launches=3, routing="full"):
        rows = int(given[0]["m"])
        for rank, own in enumerate(kernel(given)):
            for q in range(ranks - 1):
                assert torch.equal(own["y"][q, :rows], given[(rank + 1 + q) % ranks]["x"][:rows])


def test_elements_at_distinct_places_of_two_ranks_are_apart() -> None:
    """The places are those of one list, whichever ranks name them."""
    program = tilelink.parse(PLACES).program()
    tilelink.plan(program, ranks=2, dims=SLOTS)
    with pytest.raises(tilelink.TileLinkError, match="slot"):
        tilelink.plan(tilelink.parse(PLACES.replace(" distinct", "")).program(), ranks=2, dims=SLOTS)
    given = random_inputs(program, ranks=2, dims=SLOTS, dtype="f32", launches=1)[0]
    made = compiler.compile(program, ranks=2, dims=SLOTS)(given)
    assert all(torch.equal(made[rank]["y"], given[1 - rank]["x"]) for rank in range(2))


@thorough(unless=lambda routing: routing in ("uniform", "empty"))
@pytest.mark.parametrize("routing", ["uniform", "zipf:2", "one", "empty", "full", "zeros"])
def test_random_inputs_are_alike_and_right(routing: str) -> None:
    program = tilelink.parse(BATCH).program()
    launches = random_inputs(program, ranks=RANKS, dims=DIMS, dtype="f32", launches=3, seed=5, routing=routing)
    kernel = compiler.compile(program, ranks=RANKS, dims=DIMS)
    for given in launches:
        assert len({int(one["m"]) for one in given}) == 1
        rows = int(given[0]["m"])
        for rank, own in enumerate(kernel(given)):
            for s, one in enumerate(given):
                torch.testing.assert_close(own["y"][s, :rows], one["x"][:rows] @ given[rank]["w"].T)


def test_a_rank_with_other_entries_is_refused() -> None:
    program, given = tilelink.parse(BATCH).program(), inputs_of([5, 5, 7])
    kernel = Kernel(plan=plan_of(), emitted=cast("Any", None), tables={})
    for launch in (lambda: kernel.run([given]), lambda: compiler.reference(program, given, dims=DIMS)):
        with pytest.raises(BindingError, match="m of rank 2 is 7") as caught:
            launch()
        assert "it is replicated, and that of rank 0 is 5" in (caught.value.hint or "")
        assert caught.value.location is not None


def test_a_recorded_routing_with_other_entries_is_refused() -> None:
    routing = {"m": torch.tensor([[5, 5, 7]])}
    with pytest.raises(BindingError, match="m of rank 2 is 7"):
        tilelink.simulate(tilelink.parse(BATCH).program(), ranks=RANKS, dims=DIMS, machine="8xH200", routing=routing)


def test_all_ranks_of_a_group_raise_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    own = promises_of(plan_of().bound)
    for rows, message in (([5, 5, 5], None), ([5, 6, 5], "m of rank 1 is 6"), ([5, 6, 13], "m of rank 2 is 13")):
        given = inputs_of(rows)
        for rank in range(RANKS):
            broken = [runtime.broken_promise(own, one, number) for number, one in enumerate(given)]
            answers = iter([broken, [{"m": one["m"]} for one in given]])

            def gather(every: list[Any], _: object, group: object, answers: Any = answers) -> None:
                every[:] = next(answers)

            monkeypatch.setattr(runtime.dist, "all_gather_object", gather)
            monkeypatch.setattr(runtime.dist, "get_world_size", lambda group: RANKS)
            if message is None:
                runtime.check_promises(own, given[rank], rank, cast("Any", None))
                continue
            with pytest.raises(BindingError, match=re.escape(message)):
                runtime.check_promises(own, given[rank], rank, cast("Any", None))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("m  : in        []", "m  : local     []", "m cannot be replicated"),
        ("m  : in        [] <= Ms replicated", "m  : table     [] <= Ms replicated", "m cannot be replicated"),
        ("w  : in        [N, K]", "w  : in        [N, K] replicated", "w cannot be replicated"),
        ("<= Ms replicated", "<= Ms replicated = 0", "m has a bound and a default"),
    ],
)
def test_what_no_launch_gives_as_integers_is_not_replicated(old: str, new: str, message: str) -> None:
    with pytest.raises(ParseError, match=message):
        tilelink.parse(BATCH.replace(old, new))
