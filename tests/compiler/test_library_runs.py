"""Every program of the library, and whatever its schedules say of a stage: numbers and events."""

import pytest

from tests.compiler import library
from tests.tiers import one_in, thorough
from tests.traces import differences
from tilelink import compiler
from tilelink.errors import VerificationError
from tilelink.ir.link import implied, strip
from tilelink.ir.program import Program
from tilelink.reference.run import Outputs
from tilelink.reference.trial import compared, random_inputs, random_tables, relative_error
from tilelink.scheduling.schedule import Schedule

CASES = library.cases()
ALLOWED = {"f32": 1e-5, "bf16": 2e-2}


def run(program: Program, schedule: Schedule | None, ranks: int, launches: int, dtype: str = "f32") -> list[str]:
    """Runs random inputs under random delays, checks all outputs, and returns how the trace differs from the plan."""
    dims = library.dims(program, ranks)
    tables = {k: v.numpy() for k, v in random_tables(program, ranks=ranks, dims=dims).items()}
    kernel = compiler.compile(program, schedule, ranks=ranks, dims=dims, dtype=dtype, tables=tables)
    inputs = random_inputs(program, ranks=ranks, dims=dims, dtype=dtype, launches=launches, seed=ranks)
    result = kernel.run(inputs, seed=ranks, max_delay_s=0.001, trace=True)
    assert len(result.outputs) == launches
    expected: list[Outputs] | None = None
    for given, outputs in zip(inputs, result.outputs, strict=True):
        expected = kernel.reference(given, expected and [one.kept for one in expected])
        for tensor in outputs[0]:
            allowed = max(ALLOWED[dtype], program.tensor(tensor).within or 0.0)  # what is rounded to 8 bits says so
            assert relative_error(*compared(outputs, expected, tensor)) <= allowed, tensor
    workers = {(one.rank, one.stream, one.program): one.events for one in result.traces}
    return differences(kernel.plan, workers, launches)


RUNS = [
    (case, ranks)
    for case, ranks in library.spread(library.covering(CASES), 3, 4)
    if ranks == 4 or not library.groups(case[0], 1)
]
"""Groups of ranks are of two of four: of three ranks there would be one group alone."""


OTHERWISE = {program.name for program, _ in library.alike()}
"""Programs whose arithmetic alone is new: it is compiled, and other tests compute it."""


ELSEWHERE = {"zigzag_attention", "document_attention", "zigzag_attention_gradients"}
"""Programs of many small tiles, which take seconds, and which tests/unit/test_op.py runs beside torch."""


def often(case: library.Case) -> int:
    """How many launches of a case the default tier runs: of one case of each program that moves data in its own way."""
    if (
        not library.is_own(case)
        or case[0].name in ELSEWHERE
        or (case[0].name in OTHERWISE and not one_in(3, case[0].name))
    ):
        return 0
    return 3 if one_in(6, case[0].name) and not is_long(case) else 2


def is_long(case: library.Case) -> bool:
    """True for programs that take seconds on four ranks, and half as long on three."""
    return len(str(case[0])) > 1200


def usual(case: library.Case, ranks: int) -> tuple[int, int]:
    """The ranks and launches of a case in the default tier; short programs run on four ranks, and three times, too."""
    return (3 if is_long(case) and not library.groups(case[0], 1) else ranks), often(case)


USUAL = {library.name(case): usual(case, ranks) for case, ranks in RUNS}


@thorough(unless=lambda case, ranks, launches: (ranks, launches) == USUAL[library.name(case)])
@pytest.mark.parametrize(
    ("case", "ranks", "launches"),
    [
        (case, *one) for case, ranks in RUNS
        for one in sorted({(ranks, 3), USUAL[library.name(case)]} if often(case) else {(ranks, 3)})
    ],
    ids=library.name,
)  # fmt: skip
def test_runs_as_planned(case: library.Case, ranks: int, launches: int) -> None:
    """The third launch is the first that uses buffers again, if there are two."""
    assert run(*case, ranks, launches) == []


def test_every_program_that_moves_in_its_own_way_runs_in_the_default_tier() -> None:
    ran = {case[0].name for case, _ in RUNS if often(case)}
    assert ran >= {program.name for program, _ in library.unlike()} - ELSEWHERE and ran & OTHERWISE


@thorough(unless=lambda case: case is CASES[0])
@pytest.mark.parametrize("case", CASES[:1] + CASES[-1:], ids=library.name)
def test_runs_in_bf16(case: library.Case) -> None:
    assert run(*case, 2, launches=2, dtype="bf16") == []


def test_runs_on_one_rank() -> None:
    assert run(*CASES[0], 1, launches=2) == []


DERIVED = {program.name: implied(strip(program)) for program, _ in library.in_turn(CASES)}
"""The programs of the library with what is put in where a text leaves all signals out."""
REFUSED = {"gemm_ar_pulled", "gemm_ar_bias_pulled", "kv_append", "fsdp"}
"""Peers read what a stage has made, a tensor is changed in place, or tiles of one stage hand over to each other on
their rank: such signals are not derived."""


@thorough(unless=lambda name: one_in(16, name))
@pytest.mark.parametrize("name", DERIVED)
def test_derived_signals_are_enough_or_refused(name: str) -> None:
    try:
        assert run(DERIVED[name], None, 4, launches=3) == []
    except VerificationError:
        assert name in REFUSED
