"""What tiles cost, what they are counted to do, and that another model can take the place of the one here."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.simulator.cases import H200S, SCALE, planned
from tilelink import compiler
from tilelink.compiler import simulation
from tilelink.errors import CostError
from tilelink.ir.program import For, If, Store
from tilelink.lowering.bound import KernelKind
from tilelink.planning.plan import Plan
from tilelink.scheduling.schedule import Sm
from tilelink.simulator import CostModel, Roofline, simulate
from tilelink.simulator.cost import Move, MoveTime, TileTime
from tilelink.simulator.machine import Machine
from tilelink.simulator.work import Product, TileWork, WorkOf, executions

PRODUCT = """\
program product(M, N, K):
    x : in  [ranks, M, K]
    w : in  [N, K]
    y : out [ranks, M, N]

    compute product(p: ranks, i: M, j: N):
        acc = dot(x[p, i, :], w[j, :].T)
        if rank != p:
            y[p, i, j] = exp(acc) + 1.0
        else:
            y[p, i, j] = acc

schedule tiles for product:
    product on sm, tile(i=8, j=256, k=64), num_warps 8
"""
ESTIMATED = replace(H200S, tile_flops={})
"""An H200 whose tiles were not measured."""
BIG = Product(rows=128, columns=256, inner=4096)
WORK = TileWork(stage="s", products=(BIG,), num_warps=8, num_stages=4, programs=132)


def works(plan: Plan) -> list[tuple[str, int, TileWork]]:
    of = WorkOf(plan)
    found = ((one, *same) for one in executions(plan) for same in of.works(one))
    return [(type(one.statement).__name__, len(alike.task), work) for one, alike, work in found]


def test_operations_are_counted_where_they_run() -> None:
    plan = planned(PRODUCT, ranks=2, dtype="bf16", M=8, N=512, K=1024)
    (first, runs, product), (_, few, special), (_, many, plain) = works(plan)
    assert (first, runs, few, many) == ("Assign", 8, 4, 4)
    assert product.products == (Product(rows=8, columns=256, inner=1024),)
    assert (special.elementwise, special.special) == (2 * 8 * 256, 8 * 256)
    assert (plain.elementwise, plain.special, plain.products) == (0, 0, ())


BULK = Move(engine="bulk", reach="node", programs=32, workers=4, size=131072, busy=4)


def bulk(**changes: object) -> MoveTime:
    return Roofline().move(replace(BULK, **changes), H200S)  # type: ignore[arg-type]


def test_programs_that_copy_by_bulk_share_what_their_sm_has_under_way() -> None:
    latency, most = H200S.bulk_latency, H200S.sm_bulk_rate
    assert bulk(size=1e9).rate == most / 4
    assert bulk(size=1e9, workers=1, busy=1).rate == most
    alone = 131072 / (1.5 * latency + 131072 * 4 * latency / 196608)  # its part of the SM's memory, all of the rate
    assert bulk(busy=1).rate == pytest.approx(alone) and most / 4 < alone < most
    small = 65536 / (1.5 * latency + 65536 * 4 * latency / 196608)
    assert bulk(size=65536).rate == pytest.approx(small) and small < most / 4
    assert bulk(size=65536, workers=8).rate < small
    assert bulk().latency == 0 and bulk().efficiency == H200S.sm_push_efficiency
    assert bulk(reach="network").latency == H200S.network_latency
    local = bulk(reach="local", size=1e9, programs=10000)
    assert (local.rate, local.efficiency) == (H200S.memory_bandwidth / 20000, 1.0)


def test_the_simulator_asks_for_the_way_in_which_a_stage_copies() -> None:
    asked: list[Move] = []

    class Asking(Roofline):
        def move(self, move: Move, machine: Machine) -> MoveTime:
            asked.append(move)
            return super().move(move, machine)

    program = "all_gather"
    module = compiler.load(program)
    for name in ("h200_bulk", "h200_bulk_pull", "pull", "h200"):
        schedule = module.schedule(name, module.program(program))
        found = compiler.plan(
            module.program(program), schedule, ranks=2, dims={"Ms": 512, "K": 4096}, dtype="bf16", target="sm_90"
        )
        simulate(found, H200S, cost=Asking())
        asked, last = [], asked
        kinds = {(one.engine, one.workers, one.size) for one in last if one.size}
        expected = {"h200_bulk": "bulk", "h200_bulk_pull": "bulk", "pull": "pull", "h200": "copy"}[name]
        size = 512 * 8192 if name == "h200" else 64 * 8192
        assert kinds == {(expected, 4 if expected == "bulk" else 1, size)}


def test_programs_that_share_an_sm_run_together() -> None:
    module = compiler.load("all_gather")
    program = module.program("all_gather")
    schedule = module.schedule("h200_bulk", program).on("gather", Sm(programs=132)).tma_copy("gather", 16)
    found = compiler.plan(program, schedule, ranks=2, dims={"Ms": 132 * 64 * 8, "K": 128}, dtype="bf16", target="sm_90")
    assert len(found.workers) == 2 * 132 * 16
    begins = simulate(found, H200S).timeline.worker_begin
    assert len(set(begins.tolist())) == 1


def test_traffic_counts_every_byte_once() -> None:
    plan = planned(PRODUCT, ranks=2, dtype="bf16", M=8, N=512, K=1024)
    (_, _, product), _, (_, _, plain) = works(plan)
    assert product.traffic * 4 == pytest.approx(2 * (2 * 8 * 1024 + 512 * 1024))
    assert plain.traffic * 2 == pytest.approx(2 * 8 * 512)


def test_the_executions_are_those_of_the_plans_statements() -> None:
    plan = planned(PRODUCT, ranks=2, dtype="bf16", M=8, N=512, K=1024)
    assert all(plan.statements[one.number] == (one.stage.name, one.statement) for one in executions(plan))
    plain = [number for number, (_, one) in enumerate(plan.statements) if not isinstance(one, For | If)]
    assert [one.number for one in executions(plan)] == plain
    stores = [one for one in executions(plan) if isinstance(one.statement, Store)]
    for one in stores:
        rows = plan.accesses.statement == one.number
        assert sorted(plan.accesses.task[rows].tolist()) == sorted(one.task.tolist())


def test_the_slowest_resource_decides() -> None:
    model = Roofline()
    cores = BIG.flops * 132 / ESTIMATED.matmul_flops
    assert model.tile(WORK, ESTIMATED).main == pytest.approx(cores)
    cached = replace(ESTIMATED, cache_bandwidth=1e12)
    assert model.tile(WORK, cached).main == pytest.approx(384 * 4096 * 2 * 132 / 1e12)
    assert model.tile(replace(WORK, traffic=1e9), ESTIMATED).main == pytest.approx(
        1e9 * 132 / ESTIMATED.memory_bandwidth
    )
    loaded = 1e-5 + (128 + 256) * 64 * 2 / ESTIMATED.sm_bandwidth
    for stages in (1, 3):
        steps = model.tile(replace(WORK, num_stages=stages), replace(ESTIMATED, load_latency=1e-5))
        assert steps.main == pytest.approx(64 * loaded / max(1, stages - 1))
    assert model.tile(replace(WORK, item=4), ESTIMATED).main == pytest.approx(2 * cores)
    assert model.tile(replace(WORK, num_warps=4), ESTIMATED).main > 2 * cores
    assert model.tile(WORK, replace(ESTIMATED, tile_flops={"128x256": 1e14})).main == pytest.approx(
        BIG.flops * 1.32e-12
    )


def test_measured_tiles_correct_the_estimate_of_their_neighbours() -> None:
    """128x256 as estimated, 64x128 twice as slow: between them in between, and nearer to the nearer one."""
    bare = replace(ESTIMATED, load_latency=0.0)

    def slower(rows: int, columns: int, machine: Machine) -> float:
        work = replace(WORK, products=(Product(rows=rows, columns=columns, inner=4096),))
        return Roofline().tile(work, machine).main / Roofline().tile(work, bare).main

    small = Product(rows=64, columns=128, inner=4096)
    half = small.flops * 132 / Roofline().tile(replace(WORK, products=(small,)), bare).main / 2
    measured = replace(bare, tile_flops={"128x256": bare.matmul_flops, "64x128": half})
    assert slower(128, 256, measured) == pytest.approx(1.0)
    assert slower(64, 128, measured) == pytest.approx(2.0)
    assert slower(64, 256, measured) == pytest.approx(2**0.5)
    assert 1.0 < slower(256, 256, measured) < 2**0.5
    assert 2**0.5 < slower(32, 64, measured) < 2.0
    assert slower(16, 16, replace(bare, tile_flops={"64x128": half})) == pytest.approx(2.0)


def test_few_warps_spill_whatever_was_measured() -> None:
    measured = replace(H200S, tile_flops={"128x256": 7e14})
    times = [Roofline().tile(replace(WORK, num_warps=warps), measured).main for warps in (8, 4)]
    assert times[1] > 2 * times[0]


def test_elementwise_work_comes_on_top() -> None:
    work = TileWork(stage="s", elementwise=1e6, special=1e5)
    expected = 132 * (1e6 / H200S.vector_flops + 1e5 / H200S.special_rate)
    found = Roofline().tile(work, H200S)
    assert (found.main, found.overhead) == (pytest.approx(expected), 0.0)


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (Move(engine="copy", reach="node"), MoveTime()),
        (Move(engine="copy", reach="local"), MoveTime(rate=H200S.memory_bandwidth / 2)),
        (Move(engine="push", reach="local", programs=2), MoveTime(rate=H200S.sm_push_rate)),
        (
            Move(engine="push", reach="node"),
            MoveTime(rate=H200S.sm_push_rate, efficiency=H200S.sm_push_efficiency),
        ),
        (
            Move(engine="pull", reach="node"),
            MoveTime(
                rate=H200S.sm_pull_rate,
                efficiency=H200S.sm_pull_efficiency,
                latency=2 * H200S.link_latency,
            ),
        ),
        (Move(engine="copy", reach="network"), MoveTime(latency=H200S.network_latency)),
    ],
)
def test_transfers(move: Move, expected: MoveTime) -> None:
    assert vars(Roofline().move(move, H200S)) == pytest.approx(vars(expected))


class Counting:
    """Another cost model, whole: a tile takes a nanosecond for each element it reads or writes."""

    def tile(self, work: TileWork, machine: Machine) -> TileTime:
        return TileTime(main=work.traffic / work.item * 1e-9)

    def move(self, move: Move, machine: Machine) -> MoveTime:
        return MoveTime()


def test_another_model_can_take_its_place() -> None:
    model: CostModel = Counting()
    plan = planned(SCALE, ranks=1, sms=1, M=32, N=16, dtype="bf16")
    result = simulate(plan, replace(H200S, kernel_start=0.0), cost=model)
    assert result.seconds == pytest.approx(2 * 32 * 16 * 1e-9)


class Saying:
    """A cost model that answers what it is told to."""

    def __init__(self, tile: Any = None, move: Any = None) -> None:
        self._tile, self._move = tile, move

    def tile(self, work: TileWork, machine: Machine) -> TileTime:
        return self._tile() if self._tile else Roofline().tile(work, machine)

    def move(self, move: Move, machine: Machine) -> MoveTime:
        return self._move() if self._move else Roofline().move(move, machine)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Saying(tile=lambda: TileTime(main=float("nan"))), "main of a TileTime is nan"),
        (Saying(tile=lambda: TileTime(main=float("inf"))), "main of a TileTime is inf"),
        (Saying(tile=lambda: TileTime(main=1.0, overhead=-1.0)), "overhead of a TileTime is -1.0"),
        (Saying(tile=lambda: 3.0), "Saying returns 3.0"),
        (Saying(move=lambda: None), "Saying returns None"),
        (Saying(move=lambda: MoveTime(latency=-1e-6)), "latency of a MoveTime is -1e-06"),
        (Saying(move=lambda: MoveTime(setup=float("inf"))), "setup of a MoveTime is inf"),
        (Saying(move=lambda: MoveTime(rate=0.0)), "rate of a MoveTime is 0.0"),
        (Saying(move=lambda: MoveTime(efficiency=float("nan"))), "efficiency of a MoveTime is nan"),
        (Saying(move=lambda: MoveTime(efficiency=2.0)), "efficiency of a MoveTime is 2.0"),
        (Saying(tile=lambda: {}["rate"]), "tile of the cost model Saying failed: KeyError: 'rate'"),
        (Saying(move=lambda: 1 / 0), "move of the cost model Saying failed: ZeroDivisionError: division by zero"),
        (3.14, "move of the cost model float failed: AttributeError: 'float' object has no attribute 'move'"),
        (Roofline, "the cost model is the class Roofline"),
    ],
)
def test_a_model_that_answers_no_time_is_told_so(model: Any, says: str) -> None:
    module = compiler.load("ag_gemm")
    program = module.program("ag_gemm")
    with pytest.raises(CostError, match=re.escape(says)):
        simulation.simulate(program, module.schedule("h200", program), ranks=2, dims=SIZES, cost=model)


SIZES = {"Ms": 512, "N": 512, "K": 512}


ROLES = """program relay(M, N, K):
    x : in    [M, K]
    w : in    [N, K]
    c : local [M, N]
    y : out   [M, N]

    compute gemm(i: M, j: N):
        c[i, j] = dot(x[i, :], w[j, :].T)
        producer_tile_notify(c[i, j])

    compute keep(i: M, j: N):
        consumer_tile_wait(c[i, j])
        y[i, j] = c[i, j]

schedule one for relay:
    gemm on sm, tile(i=128, j=256, k=64), num_warps 8, num_stages 3{more}
    keep on sm(32), tile(i=128, j=256)
"""


def test_warps_with_roles_store_and_notify_while_others_multiply() -> None:
    plain, roles = (
        planned(ROLES.format(more=more), ranks=1, dtype="bf16", M=4096, N=4096, K=1024)
        for more in ("", ", roles(consumers=2, buffers=4)")
    )
    assert roles.bound.stages["gemm"].roles is not None
    (_, _, work), *_ = works(roles)
    assert work.kind is KernelKind.ROLES and work.num_stages == 4
    before, after = (Roofline().tile(replace(WORK, kind=kind), H200S) for kind in (KernelKind.TILES, KernelKind.ROLES))
    assert (before.main, after.overhead) == (after.main, H200S.roles_overhead)
    assert before.overhead > after.overhead
    times = [simulate(one, H200S).seconds for one in (plain, roles)]
    waves = 4096 * 4096 / (128 * 256) / (H200S.sms - 32)
    gain = H200S.tile_overhead + H200S.fence - H200S.roles_overhead
    assert times[0] - times[1] == pytest.approx(waves * gain, rel=0.5)


LOOP = """program attention(H, S, D):
    q : in  [H, S, D]
    k : in  [H, S, D]
    v : in  [H, S, D]
    o : out [H, S, D]

    compute attn(h: H, i: S):
        state = online_softmax(f32)
        for (j: S):
            state = attend(state, q[h, i, :], k[h, j, :], v[h, j, :], 0.125)
        o[h, i, :] = finish(state)

schedule s for attention:
    attn on sm, tile(i=128, j=128), {more}
"""


def test_an_iteration_of_a_loop_with_roles_takes_as_long_as_its_longest_part() -> None:
    sizes: dict[str, Any] = {"H": 4, "S": 4096, "D": 128}
    plain, roles = (
        planned(LOOP.format(more=more), ranks=1, dtype="bf16", **sizes)
        for more in ("num_warps 8", "num_warps 8, roles(consumers=2, buffers=4)")
    )
    iteration = next(work for _, _, work in works(roles) if work.overlapped)
    assert sum(product.flops for product in iteration.products) == 4 * 128 * 128 * 128
    assert iteration.special >= 128 * 128
    found = Roofline().tile(iteration, H200S)
    parts = [iteration.elementwise * H200S.sms / H200S.vector_flops, iteration.special * H200S.sms / H200S.special_rate]
    assert found.overhead == 0 and found.main >= max(parts) and found.main < sum(parts) + found.main
    times = [simulate(one, H200S).seconds for one in (plain, roles)]
    assert times[1] < 0.8 * times[0]
    assert times[1] >= 4 * 4096 * 4096 * 128 * 4 / H200S.matmul_flops


GATED = """program gated(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    v : in  [N, K]
    y : out [M, N]

    compute gemm(i: M, j: N):
{body}

schedule s for gated:
    gemm on sm, tile(i=128, j=128, k=64), num_warps 8, roles(consumers=2, buffers=4)
"""
ONE_STATEMENT = "        y[i, j] = silu(dot(x[i, :], w[j, :].T)) * dot(x[i, :], v[j, :].T)"
TWO_STATEMENTS = """        a = dot(x[i, :], w[j, :].T)
        b = dot(x[i, :], v[j, :].T)
        y[i, j] = silu(a) * b"""


@pytest.mark.parametrize("body", [ONE_STATEMENT, TWO_STATEMENTS])
def test_products_of_one_left_operand_are_one_product_of_warps_with_roles(body: str) -> None:
    plan = planned(GATED.format(body=body), ranks=1, dtype="bf16", M=1024, N=1024, K=512)
    products = [product for _, _, work in works(plan) for product in work.products]
    assert [(one.rows, one.columns, one.inner, one.count) for one in products] == [(128, 256, 512, 1)]


def test_the_block_of_contracted_elements_is_that_of_the_rings() -> None:
    """A tile of 48 contracted elements is loaded in blocks of 64."""
    texts = (GATED.format(body=ONE_STATEMENT).replace("k=64", f"k={k}") for k in (48, 64))
    first, second = (planned(text, ranks=1, dtype="bf16", M=1024, N=1024, K=576) for text in texts)
    assert first.bound.stages["gemm"].block == 48
    assert [work.block for _, _, work in works(first)] == [work.block for _, _, work in works(second)] == [64]
    assert simulate(first, H200S).seconds == simulate(second, H200S).seconds


SORTED = """\
program p(M, N):
    x : in  [M, N]
    y : out [M, N] {}
    compute f(i: M, j: N):
        y[i, j] = {}(x[i, j], axis=1)
schedule s for p:
    f tile(i=8, j=32)
"""


@pytest.mark.parametrize(("dtype", "operation"), [("f32", "sort"), ("i32", "argsort")])
def test_a_sort_along_the_elements_of_a_tile_costs_what_it_has(dtype: str, operation: str) -> None:
    plans = [planned(SORTED.format(dtype, operation), M=24, N=n) for n in (8, 32)]
    few, many = (WorkOf(plan).least(next(executions(plan)))[:, 1] for plan in plans)
    assert few.shape == many.shape == (6,)
    assert (many == 10 * few).all()  # four times the elements, and 15 stages of a sorting network instead of 6
