"""Two-level programs compute the same as their one-level counterparts and are safe, for every group size."""

from functools import cache

import pytest

import tilelink
from tests.tiers import thorough
from tilelink.errors import BindingError
from tilelink.reference.run import run
from tilelink.reference.trial import random_inputs, relative_error

ONE_LEVEL = {
    "two_level_all_gather": "all_gather",
    "two_level_reduce_scatter": "reduce_scatter",
    "two_level_ag_gemm": "ag_gemm",
    "two_level_gemm_rs": "gemm_rs_scatter",
    "two_level_all_reduce": "all_reduce_two_shot_pushed",
}
SIZES = {"Ms": 10, "N": 6, "K": 7}
FACTORINGS = ((1, 1), (4, 2), (6, 2), (6, 3), (3, 1), (3, 3))


@cache
def module(name: str) -> tilelink.Module:
    return tilelink.load(name)


@thorough(unless=lambda ranks, group: (ranks, group) == (4, 2))
@pytest.mark.parametrize("name", ONE_LEVEL)
@pytest.mark.parametrize(("ranks", "group"), FACTORINGS)
def test_two_levels_compute_the_same_as_one(name: str, ranks: int, group: int) -> None:
    one, two = module(ONE_LEVEL[name]).program(), module(name).program()
    dims = {p.name: SIZES[p.name] for p in one.params}
    (inputs,) = random_inputs(one, ranks=ranks, dims=dims, dtype="f32", launches=1, seed=ranks)
    expected = run(one, inputs, dims)
    got = run(two, inputs, dims | {"g": group})
    assert relative_error([o["y"] for o in got], [o["y"] for o in expected]) < 1e-6


@pytest.mark.parametrize(("ranks", "group"), FACTORINGS)
def test_blocks_for_everybody_come_from_everybody(ranks: int, group: int) -> None:
    program = module("two_level_all_to_all").program()
    dims = {"Ms": 10, "N": 6, "g": group}
    (inputs,) = random_inputs(program, ranks=ranks, dims=dims, dtype="f32", launches=1, seed=ranks)
    got = run(program, inputs, dims)
    for rank, outputs in enumerate(got):
        for source in range(ranks):
            assert (outputs["y"].flatten(0, 1)[source] == inputs[source]["x"][rank]).all()


@thorough(unless=lambda ranks, group: (ranks, group) == (6, 3))
@pytest.mark.parametrize("name", [*ONE_LEVEL, "two_level_all_to_all"])
@pytest.mark.parametrize(("ranks", "group"), FACTORINGS)
def test_two_levels_are_safe(name: str, ranks: int, group: int) -> None:
    program = module(name).program()
    dims = {p.name: SIZES.get(p.name, group) for p in program.params}
    for schedule in (None, *module(name).schedules_of(program)):
        for nodes in {1, ranks // group}:
            assert tilelink.plan(program, schedule, ranks=ranks, nodes=nodes, dims=dims).tasks >= ranks


@pytest.mark.parametrize("name", ONE_LEVEL)
@pytest.mark.parametrize("group", [3, 8])
def test_groups_that_do_not_divide_the_ranks_are_refused(name: str, group: int) -> None:
    program = module(name).program()
    with pytest.raises(BindingError, match="4 ranks do not form a grid node x "):
        tilelink.plan(program, ranks=4, dims={p.name: SIZES.get(p.name, group) for p in program.params})
