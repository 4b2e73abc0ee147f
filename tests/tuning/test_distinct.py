"""Which of a search's schedules are measured: no two with the same kernels, the best first, and not only its twins."""

from collections import Counter
from dataclasses import replace

from tilelink import compiler
from tilelink.search import Candidate, Found, Space, Tried
from tilelink.target import target
from tilelink.tuning import distinct, kernels_of, rank
from tilelink.tuning.distinct import ALIKE

DIMS = {"Ms": 512, "N": 1024, "K": 1024}
PROGRAMS = tuple(compiler.load("ag_gemm").program(name) for name in ("ag_gemm", "ag_gemm_in_place"))
H200 = compiler.load("ag_gemm").schedule("h200", PROGRAMS[0])
SPACE = Space.of(PROGRAMS, dims=DIMS, ranks=4, target=target("sm_90"), dtype="bf16", declared=[H200])


def tried(seconds: float, program: int = 0, **said: str) -> Tried:
    """A judged point: the one next to h200, but for some choices; the first ones in the other program."""
    start = SPACE.seeds[0].choices if program == 0 else (0,) * len(SPACE.knobs[program])
    asked = {name.replace("_", " "): label for name, label in said.items()}
    choices = [
        k.labels.index(asked[k.name]) if k.name in asked else at
        for k, at in zip(SPACE.knobs[program], start, strict=True)
    ]
    point = Candidate(program=program, choices=tuple(choices))
    return Tried(candidate=point, schedule=SPACE.schedule(point), seconds=seconds, trial=1, at=0.0)


def found(*points: Tried) -> Found:
    return Found(space=SPACE, tried=points, refused=Counter(), elapsed=0.0)


def test_equal_kernels_are_measured_once() -> None:
    twins = [tried(1.0, gather_tile=label) for label in ("512 rows", "all rows")]  # there are 512
    other = tried(1.5, gemm_bands="none")
    assert str(twins[0].schedule) != str(twins[1].schedule)
    assert distinct(found(*twins, other), 3) == [twins[0], other]


def test_of_equal_kernels_the_declared_schedule_is_taken() -> None:
    declared = replace(tried(1.0), schedule=H200, declared=True)
    assert distinct(found(tried(1.0), declared), 2) == [declared]


def test_what_cannot_be_planned_is_passed_over() -> None:
    point = tried(1.0)
    broken = replace(point, schedule=point.schedule.knobs("gemm", num_warps=3), seconds=0.5)
    assert distinct(found(broken, point), 2) == [point]


def test_the_best_is_taken_and_what_differs_before_its_twins() -> None:
    best, twin = tried(1.0), tried(1.0, gemm_bands="none")
    apart, far = tried(1.0 + ALIKE / 2, program=1), tried(1.0 + 2 * ALIKE, program=1, gather_tile="512 rows")
    assert distinct(found(best, twin, apart, far), 1) == [best]
    assert distinct(found(best, twin, apart, far), 2) == [best, apart]
    assert distinct(found(best, twin, far), 2) == [best, twin]
    assert distinct(found(far, apart, twin, best), 9) == [twin, best, apart, far]


def test_of_equal_predictions_those_that_differ_most_come_first() -> None:
    best, near = tried(1.0), tried(1.0, gemm_bands="none")
    far = tried(1.0, gemm_bands="of 16", gather_order="p = rank step +1", xs_buffers="1")
    assert distinct(found(best, near, far), 2) == [best, far]


def test_kernels_are_the_same_but_for_comments_and_what_is_not_launched() -> None:
    plans = [SPACE.plan_of(0, one) for one in (H200, replace(H200, name="other"), H200.buffers("xs", 1))]
    hashes = [kernels_of(plan) for plan in plans if plan]
    assert hashes[0] == hashes[1] != hashes[2]


def test_ranking_has_the_declared_schedules() -> None:
    made = rank(PROGRAMS, dims=DIMS, ranks=4, declared=[H200], by="evolution", budget_s=None, trials=12)
    best = distinct(made, 4)
    assert [one.schedule for one in made.tried if one.declared] == [H200] and len(made.tried) <= 12
    assert best[0].seconds == made.ranking[0].seconds and len({str(one.schedule) for one in best}) == 4


def test_groups_as_high_as_all_rows_are_one_kernel() -> None:
    """There are four rows of tiles."""
    hashes = [
        kernels_of(plan)
        for label in ("of 4", "of 8", "none")
        if (plan := SPACE.plan_of(0, tried(1.0, gemm_bands=label).schedule))
    ]
    assert hashes[0] == hashes[1] != hashes[2]
