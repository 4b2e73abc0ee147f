"""What knobs a program has: what products share, where small stages run, counters of transfers; points to begin at."""

from math import prod
from pathlib import Path
from random import Random

import pytest

from tests.tiers import thorough
from tilelink import compiler
from tilelink.errors import ScheduleError
from tilelink.lowering.clauses.backfill import BACKFILL
from tilelink.lowering.clauses.channel import CHANNEL
from tilelink.lowering.clauses.flatten import FLATTEN
from tilelink.lowering.clauses.order import ORDER
from tilelink.lowering.clauses.pipeline import NUM_STAGES, NUM_WARPS
from tilelink.lowering.clauses.resource import RESOURCE
from tilelink.lowering.clauses.slots import SLOTS
from tilelink.lowering.clauses.tile import TILE
from tilelink.scheduling.schedule import CopyEngine, Fused, Schedule, Sm
from tilelink.search import Candidate, Space, search, strategy
from tilelink.search.seeds import distance
from tilelink.target import target

DIMS = {"Ms": 512, "N": 1024, "K": 1024}


def space_of(*names: str, declared: bool = False, ranks: int = 4) -> Space:
    modules = {name: compiler.load(name) for name in names}
    programs = [module.program(name) for name, module in modules.items()]
    known = [s for p in programs for s in modules[p.name].schedules_of(p)] if declared else []
    return Space.of(programs, dims=DIMS, ranks=ranks, target=target("sm_90"), dtype="bf16", declared=known)


def labels(space: Space) -> dict[str, tuple[str, ...]]:
    return {knob.name: knob.labels for knob in space.knobs[0]}


def chosen(space: Space, **asked: str) -> Schedule:
    """The schedule of the first choices, but for those that are asked for, `gemm_on` for `gemm on`."""
    said = {name.replace("_", " "): label for name, label in asked.items()}
    choices = [k.labels.index(said[k.name]) if k.name in said else 0 for k in space.knobs[0]]
    return space.schedule(Candidate(program=0, choices=tuple(choices)))


# Products ----------------------------------------------------------------------------------------------------


def test_products_of_a_program_share_tiles_bands_and_pipelines() -> None:
    space = space_of("ag_gemm_in_place")
    assert not {"own tile", "gemm tile", "own bands", "gemm bands", "own pipeline", "gemm pipeline"} & set(
        labels(space)
    )
    chance = Random(0)
    seen = [space.schedule(space.random(chance)) for _ in range(60)]
    for schedule in seen:
        own, gemm = schedule.stage("own"), schedule.stage("gemm")
        assert (own[TILE], own[NUM_WARPS], own[NUM_STAGES], own[FLATTEN]) == (
            gemm[TILE], gemm[NUM_WARPS], gemm[NUM_STAGES], gemm[FLATTEN]
        )  # fmt: skip
        mine, theirs = own[ORDER], gemm[ORDER]
        assert (mine and mine.group) == (theirs and theirs.group)
    assert len({s.stage("own")[TILE] for s in seen}) > 5 and len({s.stage("own")[FLATTEN] for s in seen}) == 2
    assert any(o.group and o.nest for s in seen if (o := s.stage("gemm")[ORDER]))  # bands leave the order as it is
    assert labels(space_of("ag_gemm"))["gemm bands"] == ("none", "of 4", "of 8", "of 16")


def test_spaces_are_small_enough_to_be_searched() -> None:
    assert max(space_of(name).size for name in ("ag_gemm", "ag_gemm_in_place", "gemm_rs_local_last")) < 4.5e5


# Places ------------------------------------------------------------------------------------------------------


def test_a_small_product_may_run_in_the_kernel_of_the_largest() -> None:
    begins, ends = space_of("ag_gemm_in_place"), space_of("gemm_rs_local_last")
    assert labels(begins)["own on"] == ("kernel of its own", "prologue of gemm")  # waits for nothing
    assert labels(ends)["own on"] == ("kernel of its own", "epilogue of gemm")
    assert "gemm on" not in labels(begins) | labels(ends)  # the other way round is the same
    assert chosen(ends, own_on="epilogue of gemm").stage("own")[RESOURCE] == Fused(stage="gemm", place="epilogue")
    for asked, kernels in (("kernel of its own", 3), ("epilogue of gemm", 2)):
        plan = ends.plan_of(0, chosen(ends, own_on=asked))
        assert plan is not None and len(plan.bound.kernels) == kernels


def test_a_stage_that_others_wait_for_does_not_come_after_them() -> None:
    offered = labels(space_of("gemm_rs_scatter"))
    assert "epilogue of gemm" in offered["scatter on"] and "epilogue of reduce" not in offered["scatter on"]
    assert offered["reduce on"] == ("kernel of its own", "epilogue of gemm")


def test_a_stage_that_computes_and_sends_may_have_sms_of_its_own() -> None:
    space = space_of("gemm_ar")
    assert labels(space)["reduce on"] == (
        "kernel of its own", "4 programs", "8 programs", "16 programs", "epilogue of gemm"
    )  # fmt: skip
    assert chosen(space, reduce_on="8 programs").stage("reduce")[RESOURCE] == Sm(programs=8)


def test_there_is_no_kernel_in_a_kernel() -> None:
    module = compiler.load("ag_gemm_in_place")
    program = module.program("ag_gemm_in_place")
    text = f"{program}\nschedule s for ag_gemm_in_place:\n    own in gemm prologue\n    gather in own prologue\n"
    with pytest.raises(ScheduleError, match="gather is to run in own, which has no kernel of its own") as caught:
        compiler.bound(program, compiler.parse(text).schedules[0], ranks=4, dims=DIMS, dtype="bf16", target="sm_90")
    assert caught.value.location is not None and "name the stage" in (caught.value.hint or "")


# Counters ----------------------------------------------------------------------------------------------------


def test_a_transfer_waits_for_one_counter() -> None:
    space = space_of("gemm_rs_local_last")
    schedule = chosen(space, scatter_on="copy engine", scatter_tile="256 rows")
    assert dict(schedule.tensor("c")[CHANNEL]) == {"i": 256, "j": 1024}
    plan = space.plan_of(0, schedule)
    assert plan is not None and plan.bound.channels["c", "tile"].counts == (4, 2, 1)
    inside = chosen(space, scatter_on="epilogue of gemm", scatter_tile="256 rows")
    assert not inside.tensor("c")[CHANNEL] and space.plan_of(0, inside) is not None
    # a choice of one of the two knobs alone, in a schedule that has made both
    moved = {knob.name: dict(zip(knob.labels, knob.changes, strict=True)) for knob in space.knobs[0]}
    assert moved["scatter on"]["epilogue of gemm"](schedule).tensor("c")[CHANNEL] == ()
    assert dict(moved["scatter on"]["copy engine"](inside).tensor("c")[CHANNEL]) == {"i": 256, "j": 1024}


def test_what_others_wait_for_too_keeps_counters_of_tiles() -> None:
    text = """\
program both(M, N):
    x : in        [M, N]
    c : local     [M, N]
    h : symmetric [M, N]
    y : out       [M, N]
    z : out       [M, N]

    compute double(i: M, j: N):
        c[i, j] = x[i, j] + x[i, j]
        producer_tile_notify(c[i, j])

    comm send(i: M, j: N):
        consumer_tile_wait(c[i, j])
        tile_push_data(h[i, j] @ (rank + 1), c[i, j])
        producer_tile_notify(h[i, j] @ (rank + 1))

    compute use(i: M, j: N):
        READS
        consumer_tile_wait(h[i, j])
        y[i, j] = h[i, j]
        z[i, j] = x[i, j]
"""
    for reads, channel in (("consumer_tile_wait(c[i, j])", False), ("two = x[i, j]", True)):
        program = compiler.parse(text.replace("READS", reads)).programs[0]
        space = Space.of([program], dims={"M": 512, "N": 512}, ranks=2, target=target("sm_90"))
        assert bool(chosen(space, send_on="copy engine").tensor("c")[CHANNEL]) == channel


# Seeds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("ag_gemm", {"gather on": "copy engine", "gemm bands": "of 8", "gemm pipeline": "through all tiles",
                     "gather order": "p = rank step -1", "gemm order": "s = rank step +1",
                     "gemm tail": "of parts"}),
        ("ag_gemm_in_place", {"own on": "prologue of gemm", "gather order": "q backwards", "products bands": "of 8"}),
        ("gemm_rs_local_last", {"own on": "epilogue of gemm", "scatter on": "copy engine", "scatter tile": "512 rows",
                              "products tail": "of parts"}),
        ("gemm_rs_scatter", {"reduce on": "kernel of its own", "reduce tile": "32x256", "scatter on": "copy engine",
                             "gemm tail": "of whole tiles"}),
    ],
)  # fmt: skip
def test_the_nearest_point_is_what_was_declared(name: str, parts: dict[str, str]) -> None:
    space = space_of(name, declared=True)
    number = next(n for n, s in enumerate(space.declared) if s.name == "h200")
    seed, declared = space.seeds[number], space.declared[number]
    said = space.describe(seed)
    tile = next(label for knob, label in said.items() if knob in ("gemm tile", "products tile"))
    assert tile.startswith("128x256x64, 8 warps") and {k: v for k, v in said.items() if k in parts} == parts
    others = [distance(declared, space.schedule(other), DIMS, 4) for other in space.neighbours(seed)]
    assert distance(declared, space.schedule(seed), DIMS, 4) <= min(others)


def test_what_is_not_in_the_space_has_a_nearest_point() -> None:
    space = space_of("gemm_rs_slots", declared=True)
    number = next(n for n, s in enumerate(space.declared) if s.name == "copy_sms")
    said = space.describe(space.seeds[number])
    assert said["scatter on"] == "4 programs"  # of 4, 8 and 16, for 2
    assert said["scatter tile"] == "64 rows" and said["gemm order"] == "s = rank + 1 step +1"


def test_declared_schedules_are_of_programs_that_are_searched() -> None:
    module = compiler.load("gemm_rs")
    other = module.schedule("ring", module.program("gemm_rs_ring"))
    with pytest.raises(ScheduleError, match="ring is for gemm_rs_ring"):
        Space.of([module.program("gemm_rs_slots")], dims=DIMS, ranks=4, target=target("sm_90"), declared=[other])


@thorough(unless=lambda name: name == "evolution")
@pytest.mark.parametrize("name", ["evolution", "annealing"])
def test_searches_begin_with_what_was_declared(name: str) -> None:
    space = space_of("gemm_rs_local_last", declared=True)

    def cost(plan: object) -> float:
        return 1.0

    found = search(space, cost, strategy(name), trials=2 * len(space.declared), seed=1)
    own = [one for one in found.tried if one.declared]
    fewest_first = sorted(space.declared, key=lambda one: space.tiles(0, one))
    assert fewest_first != list(space.declared)
    assert [one.schedule for one in own] == fewest_first == [one.schedule for one in found.tried[: len(own)]]
    rest = [one.candidate for one in found.tried if not one.declared]
    assert rest[: len(set(space.seeds))] == list(dict.fromkeys(space.seeds))
    assert [one.trial for one in found.tried] == list(range(1, len(found.tried) + 1))


def test_declared_schedules_that_do_not_fit_are_refused() -> None:
    program = compiler.load("ag_gemm").program()
    known = compiler.load("ag_gemm").schedule("h200", program)
    space = Space.of(
        [program], dims=DIMS, ranks=4, target=target("sm_90"), declared=[known.knobs("gemm", num_stages=9)]
    )
    found = search(space, lambda _: 1.0, strategy("random"), trials=1)
    assert not found.tried and found.refused == {"shared memory": 1}
    assert CopyEngine() == space.schedule(space.seeds[0]).stage("gather")[RESOURCE]


def test_sums_behind_products_may_backfill_their_last_wave() -> None:
    """In bands as the products are; not where they have a kernel of their own."""
    space = space_of("gemm_rs_reduce_last", declared=True)
    number = next(n for n, s in enumerate(space.declared) if s.name == "h200")
    said = space.describe(space.seeds[number])
    assert said["sums on"] == "epilogue of gemm" and said["sums tile"] == "64x512" and said["sums bands"] == "of 16"
    assert said["sums begins"] == "with those free a wave earlier"
    assert space.schedule(space.seeds[number]).stage("sums")[BACKFILL] == 2
    earlier = {"sums_begins": "with those free a wave earlier"}
    for place, fill in (("epilogue of gemm", 2), ("kernel of its own", None)):
        assert chosen(space, sums_on=place, **earlier).stage("sums")[BACKFILL] == fill


@pytest.mark.parametrize(
    "name",
    ["ag_gemm", "ag_gemm_in_place", "gemm_rs_slots", "gemm_rs_local_last", "gemm_rs_scatter", "gemm_rs_ring"],
)  # fmt: skip
def test_the_document_says_how_many_points_there_are(name: str) -> None:
    told = " ".join((Path(__file__).parents[2] / "docs" / "search.md").read_text(encoding="utf-8").split())
    file = "ag_gemm" if name.startswith("ag_gemm") else "gemm_rs"
    program = compiler.load(file).program(name)
    dims = {"Ms": 2048, "N": 8192, "K": 7168} if file == "gemm_rs" else {"Ms": 2048, "N": 7168, "K": 8192}
    space = Space.of([program], dims=dims, ranks=4, target=target("sm_90"), dtype="bf16")
    points = f"{prod(len(knob.labels) for knob in space.knobs[0]):,}"
    assert any(f"{points} {words}`{name}`" in told for words in ("points for ", "for ", "("))


def test_tiles_of_a_row_are_as_long_as_the_row_allows() -> None:
    """A stage of which each tile is a part of one row has sizes to choose from too."""
    text = """
program rows(M, N):
    x : in  [M, N]
    y : out [M, N]

    compute scale(i: M by 1, j: N):
        y[i, j] = 2.0 * x[i, j]
"""
    import tilelink
    from tilelink.search.knobs import knobs

    found = knobs(tilelink.parse(text).program(), {"M": 64, "N": 900}, 2, target("sm_90"))
    assert {knob.name: knob.labels for knob in found}["scale tile"] == ("256", "512", "1024")


def test_stages_of_which_a_launch_decides_have_no_choices_that_are_refused() -> None:
    text = """
program rows(M = 1024, N = 1024, K = 1024):
    m  : in [] <= M
    x  : in [M, K]
    w  : in [N, K]
    xs : symmetric [ranks, M, K]
    y  : out [M[: m], N]
    comm gather(p: ranks, i: M[: m]):
        tile_push_data(xs[rank, i, :] @ p, x[i, :])
        producer_tile_notify(xs[rank, i, :] @ p)
    compute gemm(i: M[: m], j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)
"""
    import tilelink
    from tilelink.search.knobs import knobs
    from tilelink.simulator.machine import load_machine

    program, target = tilelink.parse(text).program(), load_machine("8xH200").processor
    found = knobs(program, {"M": 1024, "N": 1024, "K": 1024}, 2, target)
    labels = {knob.name: knob.labels for knob in found}
    assert labels["gather on"] and not any("copy engine" in one or "TMA" in one for one in labels["gather on"])
    assert len(labels["gather tile"]) > 1 and len(labels["gemm tile"]) > 1
    assert not any(word in name for name in labels for word in ("flatten", "tail", "backfill", "defer"))


# Slots -------------------------------------------------------------------------------------------------------


def test_a_tensor_with_a_dimension_of_steps_may_have_few_slots() -> None:
    module = compiler.load("fsdp")
    program, schedule = module.program("fsdp"), module.schedule("two_slots", module.program("fsdp"))
    space = Space.of([program], dims={"L": 6, "M": 64, "Ds": 32}, ranks=2, target=target("sm_90"), declared=[schedule])
    assert labels(space)["weights slots"] == ("all", "2", "3")
    assert chosen(space, weights_slots="3").tensor("weights")[SLOTS] == (("l", 3),)
    assert chosen(space, weights_slots="all").tensor("weights")[SLOTS] == ()
    (near,) = space.seeds
    assert space.schedule(near).tensor("weights")[SLOTS] == (("l", 2),)
    few = Space.of([program], dims={"L": 2, "M": 64, "Ds": 32}, ranks=2, target=target("sm_90"))
    assert "weights slots" not in labels(few)  # memory for all steps is no more
    assert not [name for name in labels(space_of("ag_gemm")) if name.endswith(" slots")]


def test_words_are_tried_for_small_tensors_that_they_can_carry() -> None:
    module = compiler.load("all_reduce")

    def knobs(name: str, M: int) -> dict[str, tuple[str, ...]]:
        dims = {"M": M, "N": 256}
        return labels(Space.of([module.program(name)], dims=dims, ranks=2, target=target("sm_90"), dtype="bf16"))

    assert knobs("all_reduce_one_shot_pushed", 16)["parts low_latency"] == ("signals", "words")
    assert "parts low_latency" not in knobs("all_reduce_one_shot_pushed", 64)  # large
    assert not any("low_latency" in name for name in knobs("all_reduce_one_shot", 16))  # peers read it


def test_choices_that_let_data_travel_while_stages_multiply_fit_each_other() -> None:
    space = space_of("ag_gemm")
    schedule = Schedule(name="overlapping", program="ag_gemm")
    for knob in space.knobs[0]:
        schedule = knob.changes[knob.labels.index(knob.overlaps or knob.labels[0])](schedule)
    gather, gemm = schedule.stage("gather"), schedule.stage("gemm")
    assert isinstance(gather[RESOURCE], CopyEngine) and dict(gather[TILE])["i"] >= DIMS["Ms"]
    orders = [str(order.nest[0]) for part in (gather, gemm) if (order := part[ORDER])]
    assert orders == ["p = rank step -1", "s = rank step +1"]  # what comes first is multiplied first
