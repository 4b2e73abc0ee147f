"""The pipeline's own errors, and what it refuses to run."""

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from tilelink import compiler
from tilelink.compiler import modules
from tilelink.errors import (
    BindingError,
    DeadlineError,
    DtypeError,
    ParseError,
    RankError,
    ScheduleError,
    ShapeError,
    TileLinkError,
    UnknownNameError,
    UnknownTargetError,
    VerificationError,
)
from tilelink.frontend.variants import variant
from tilelink.ir.link import link
from tilelink.ir.program import Program
from tilelink.runtime.cpu import client
from tilelink.runtime.job import Job, RunResult
from tilelink.scheduling.schedule import Schedule
from tilelink.settings import environment

TEXT = """
program shift(M, N):
    x    : in        [M, N]
    left : symmetric [M, N]
    y    : out       [M, N]

    comm send(i: M):
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(left[i, :] @ (rank + 1))

    compute add(i: M, j: N):
        consumer_tile_wait(left[i, :])
        y[i, j] = x[i, j] + left[i, j]

schedule fine for shift:
    send on sm(1), tile(i=8)
    add on sm, tile(i=16, j=16)
"""
DIMS = {"M": 40, "N": 24}


@pytest.fixture
def shift() -> Program:
    return compiler.parse(TEXT).program()


def inputs(ranks: int) -> list[dict[str, torch.Tensor]]:
    return [{"x": torch.randn(40, 24)} for _ in range(ranks)]


def test_a_kernel_is_a_function(shift: Program) -> None:
    kernel = compiler.compile(shift, ranks=3, dims=DIMS)
    given = inputs(3)
    outputs = kernel(given)
    for rank in range(3):
        torch.testing.assert_close(outputs[rank]["y"], given[rank]["x"] + given[rank - 1]["x"])
    assert kernel.path.read_text() == kernel.source


def test_launches_and_schedule_by_name(shift: Program) -> None:
    schedule = compiler.parse(TEXT).schedule("fine", shift)
    kernel = compiler.compile(shift, schedule, ranks=2, dims=DIMS)
    launches = [inputs(2) for _ in range(5)]
    result = kernel.run(launches, seed=1, max_delay_s=0.002)
    for given, outputs in zip(launches, result.outputs, strict=True):
        torch.testing.assert_close(outputs[0]["y"], given[0]["x"] + given[1]["x"])
    assert result.traces == ()


def test_nothing_unsafe_is_compiled() -> None:
    unsafe = compiler.parse(TEXT.replace("        consumer_tile_wait(left[i, :])\n", "")).program()
    with pytest.raises(VerificationError):
        compiler.compile(unsafe, ranks=2, dims=DIMS)
    with pytest.raises(VerificationError):
        compiler.source(unsafe, ranks=2, dims=DIMS)


def test_a_source_that_crashes_names_the_rank(shift: Program) -> None:
    kernel = compiler.compile(shift, ranks=2, dims=DIMS)
    text = kernel.source.replace("dl.notify(", "dl.no_such_function(", 1)
    with pytest.raises(RankError, match=r"rank \d.*no_such_function"):
        replace(kernel, emitted=replace(kernel.emitted, text=text)).run([inputs(2)])


def test_a_source_that_hangs_meets_the_deadline(shift: Program) -> None:
    kernel = compiler.compile(shift, ranks=2, dims=DIMS)
    text = kernel.source.replace("dl.notify(", "(lambda *_, **__: None)(")
    assert text != kernel.source
    with pytest.raises(DeadlineError, match="waits for left tile channel"):
        replace(kernel, emitted=replace(kernel.emitted, text=text)).run([inputs(2)], deadline_s=2.0)


def test_inputs_that_do_not_fit(shift: Program) -> None:
    kernel = compiler.compile(shift, ranks=2, dims=DIMS)
    with pytest.raises(BindingError, match="no input 'x'"):
        kernel([{}, {}])
    with pytest.raises(BindingError, match="no input 'z'"):
        kernel([{**own, "z": torch.zeros(1)} for own in inputs(2)])
    with pytest.raises(BindingError, match="inputs of 1 ranks for a kernel of 2"):
        kernel(inputs(1))
    with pytest.raises(ShapeError, match=r"\[24, 40\] float32"):
        kernel([{"x": torch.zeros(24, 40)}] * 2)
    with pytest.raises(DtypeError, match="float64"):
        kernel([{"x": torch.zeros(40, 24).double()}] * 2)


def test_names_that_nothing_declares(shift: Program, tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="ag_gemm"):
        compiler.load("no_such_operator")
    with pytest.raises(UnknownNameError, match="no file 'aaa"):
        compiler.load("a" * 300)
    module = compiler.parse(TEXT)
    with pytest.raises(UnknownNameError, match="fine"):
        module.schedule("fast", shift)
    built_in = module.schedule("default", shift)
    assert module.schedule("default", "shift") == module.schedule("default") == built_in
    assert module.schedule("fine") == module.schedule("fine", shift)
    assert compiler.bound(shift, built_in, ranks=2, dims={"M": 8, "N": 8}) == compiler.bound(
        shift, None, ranks=2, dims={"M": 8, "N": 8}
    )
    with pytest.raises(UnknownNameError, match="shift"):
        module.program("shaft")
    path = tmp_path / "two.tl"
    path.write_text(TEXT + TEXT.replace("shift", "other"))
    with pytest.raises(UnknownNameError, match="several programs") as caught:
        compiler.load(path).program()
    assert caught.value.hint == "choose one, with --program or module.program(...): shift, other"
    assert compiler.load(path).program("other").name == "other"
    assert compiler.load(path.rename(tmp_path / "other.tl")).program().name == "other"


def test_a_file_is_parsed_again_only_if_its_text_has_changed(tmp_path: Path) -> None:
    path = tmp_path / "shift.tl"
    path.write_text(TEXT)
    first = compiler.load(path)
    assert compiler.load(path) is first
    path.write_text(TEXT.replace("sm(1)", "sm(2)"))
    assert compiler.load(path).schedules != first.schedules
    copy = tmp_path / "copy.tl"
    copy.write_text(TEXT)
    assert compiler.load(copy).file == str(copy)


def test_a_file_of_the_library_is_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    parse = compiler.parse
    monkeypatch.setattr(modules, "parse", lambda text, file: (read.append(Path(file).stem), parse(text, file))[1])
    assert compiler.load("ag_gemm").program().name == "ag_gemm"
    assert read == ["ag_gemm"]
    assert [p.name for p in compiler.load("ag_gemm_ring").programs] == ["ag_gemm_ring"]


def test_what_is_no_program_is_said_to_be_none() -> None:
    module: Any = compiler.parse(TEXT)
    for function in (compiler.plan, compiler.source, compiler.compile, compiler.assembly):
        with pytest.raises(BindingError, match="a Module is not a program") as caught:
            function(module, ranks=2, dims=DIMS)
        assert caught.value.hint == "take one: module.program('shift')"
    with pytest.raises(BindingError, match="a Module is not a program"):
        compiler.reference(module, [], dims=DIMS)
    text: Any = TEXT
    with pytest.raises(BindingError, match="a str is not a program"):
        compiler.plan(text, ranks=2, dims=DIMS)
    with pytest.raises(BindingError, match="a str is not a program"):
        link(text)
    for other in (None, b"program p(M):", Path("p.tl")):
        with pytest.raises(ParseError, match=f"a {type(other).__name__} is not a text of programs") as refused:
            compiler.parse(cast(Any, other))
        assert "tilelink.load(FILE)" in str(refused.value)
    for other in (None, 5, b"ag_gemm", ["ag_gemm"]):
        with pytest.raises(UnknownNameError, match=f"the name of a file is of type {type(other).__name__}") as refused:
            compiler.load(cast(Any, other))
        assert "load takes the path of a file" in str(refused.value)
    number: Any = "3"
    with pytest.raises(BindingError, match="'3' ranks"):
        compiler.plan(module.program(), ranks=number, dims=DIMS)


def test_a_store_that_was_cleared_is_filled_again(shift: Program, tmp_path: Path) -> None:
    with environment(TILELINK_CACHE=str(tmp_path)):
        kernel = compiler.compile(shift, ranks=2, dims=DIMS)
        kernel.path.unlink()
        assert len(kernel(inputs(2))) == 2


def test_of_a_view_only_its_own_elements_are_sent(shift: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    def weigh(job: Job) -> RunResult:
        sent.append(len(pickle.dumps(job.inputs)))
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "run_cpu", weigh)
    kernel = compiler.compile(shift, ranks=2, dims=DIMS)
    whole = torch.randn(1000, *inputs(2)[0]["x"].shape)
    with pytest.raises(KeyboardInterrupt):
        kernel([{"x": whole[0]}, {"x": whole[-1]}])
    assert sent[0] < 4 * whole[0].nbytes


def test_a_mark_before_the_text_is_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "shift.tl"
    path.write_text(TEXT, encoding="utf-8-sig")
    assert compiler.load(path).program() == compiler.parse(TEXT).program()


def test_devices_and_targets_that_there_are_not(shift: Program) -> None:
    with pytest.raises(RankError, match=r"no rank of torch\.distributed"):
        compiler.compile(shift, ranks=2, dims=DIMS, device="cuda")
    with pytest.raises(UnknownTargetError):
        compiler.plan(shift, ranks=2, dims=DIMS, target="sm_1")
    with pytest.raises(UnknownTargetError, match="interpreted"):
        compiler.assembly(shift, ranks=2, dims=DIMS, target="cpu")


@pytest.mark.parametrize("dtype", ["fp16", torch.float16])
def test_an_element_type_that_there_is_not(shift: Program, dtype: str) -> None:
    with pytest.raises(DtypeError, match="unknown dtype") as caught:
        compiler.plan(shift, ranks=2, dims=DIMS, dtype=dtype)
    assert caught.value.hint == "one of f16, bf16, f32"


def test_what_is_no_schedule_is_refused(shift: Program) -> None:
    with pytest.raises(ScheduleError, match="7 is not a schedule"):
        compiler.plan(shift, 7, ranks=2, dims=DIMS)  # pyright: ignore[reportArgumentType]


def test_a_schedule_is_found_by_its_name(shift: Program) -> None:
    """In the program's own file; for a variant of the program too."""
    assert compiler.plan(shift, "fine", ranks=2, dims=DIMS).bound.stages["send"].tiles["i"] == 8
    assert compiler.schedule_of(shift, "default") is None
    made = variant(shift, "mine")
    assert compiler.plan(made, "fine", ranks=2, dims=DIMS).bound.schedule.program == "mine"
    assert compiler.plan(link(shift), "fine", ranks=2, dims=DIMS).bound.schedule.name == "fine"
    with pytest.raises(UnknownNameError, match="no schedule 'fin' for shift") as caught:
        compiler.plan(shift, "fin", ranks=2, dims=DIMS)
    assert caught.value.hint == "did you mean fine? shift has fine"
    alone = compiler.parse(f"{TEXT}\nprogram other = shift()\n").program("other")
    with pytest.raises(UnknownNameError) as caught:
        compiler.plan(alone, "fine", ranks=2, dims=DIMS)
    told = "it has none of its own: give a Schedule, a 'PROGRAM:NAME' of the library, or no schedule"
    assert caught.value.hint == told


def test_a_schedule_of_the_library_is_found_by_its_program_and_name() -> None:
    gather = compiler.load("all_gather").program("all_gather")
    copy = replace(gather, name="mine", schedules=())
    options: dict[str, Any] = {"ranks": 2, "dims": {"Ms": 32, "K": 32}}
    assert compiler.bound(copy, "all_gather:pull", **options).schedule.program == "mine"
    with pytest.raises(UnknownNameError, match="no schedule 'pul' for all_gather") as caught:
        compiler.plan(copy, "all_gather:pul", **options)
    assert str(caught.value.hint).startswith("did you mean pull?")
    with pytest.raises(UnknownNameError, match="no schedule 'pull' for nothing") as caught:
        compiler.plan(copy, "nothing:pull", **options)
    assert caught.value.hint == "the library has no schedule for a program 'nothing'"


@pytest.mark.parametrize(("kind", "value"), [("f32", "a"), ("i32", 1.5), ("bool", 2)])
def test_a_parameter_takes_a_value_of_its_kind(kind: str, value: float) -> None:
    text = f"program f(M, a: {kind}):\n    x : in [M]\n    y : out [M]\n    compute g(i: M):\n        y[i] = x[i]\n"
    with pytest.raises(BindingError, match=f"a = {value!r}"):
        compiler.plan(compiler.parse(text).program(), ranks=2, dims={"M": 5, "a": value})


def test_a_dimension_that_is_no_number(shift: Program) -> None:
    with pytest.raises(BindingError, match="M = 'many'"):
        compiler.plan(shift, ranks=2, dims={"M": "many", "N": 3})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("option", ["deadline_s", "max_delay_s"])
@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0, "5", 10**400])
def test_a_time_that_nobody_can_wait_for(shift: Program, option: str, seconds: Any) -> None:
    kernel = compiler.compile(shift, ranks=2, dims=DIMS)
    with pytest.raises(BindingError, match=f"{option} is {seconds!r}"):
        kernel.run([inputs(2)], seed=1, **{option: seconds})


def test_a_run_that_no_memory_holds_is_refused_before_it_begins(shift: Program) -> None:
    many = Schedule(name="s", program="shift").buffers("left", 2**31 - 1)
    kernel = compiler.compile(shift, many, ranks=2, dims=DIMS)
    with pytest.raises(BindingError, match=r"1 launches on 2 CPU ranks take [\d,]{18,} bytes of memory") as caught:
        kernel.run([inputs(2)])
    assert caught.value.hint == "take smaller sizes, or fewer ranks, launches or buffers"
    with pytest.raises(BindingError, match=r"1,000,000,000,000 launches on 2 CPU ranks take"):
        compiler.compile(shift, ranks=2, dims=DIMS).require_memory(10**12)


def test_ranks_may_be_a_number_of_numpy_s(shift: Program) -> None:
    assert compiler.compile(shift, ranks=cast(Any, np.int64(2)), dims=DIMS)(inputs(2))


@pytest.mark.parametrize("odd", [torch.zeros(40, 24).to_sparse(), torch.zeros(40, 24, device="meta")])
def test_an_input_without_plain_data(shift: Program, odd: torch.Tensor) -> None:
    kernel = compiler.compile(shift, ranks=2, dims=DIMS)
    with pytest.raises(BindingError, match="input 'x' of rank 0 is sparse, nested or without data"):
        kernel([{"x": odd}] * 2)


def test_mappings_that_are_none(shift: Program) -> None:
    with pytest.raises(BindingError, match="parameters are a NoneType"):
        compiler.plan(shift, ranks=2, dims=cast(Any, None))
    with pytest.raises(BindingError, match="tables are a list"):
        compiler.plan(shift, ranks=2, dims=DIMS, tables=cast(Any, [1]))
    with pytest.raises(BindingError, match="inputs of a launch are a NoneType"):
        compiler.compile(shift, ranks=2, dims=DIMS)(cast(Any, None))


@pytest.mark.parametrize("inputs", [{"x": torch.zeros(40, 24)}, [torch.zeros(40, 24)] * 2])
def test_inputs_are_a_list_of_mappings(shift: Program, inputs: list[dict[str, torch.Tensor]]) -> None:
    kernel = compiler.compile(shift, ranks=2, dims=DIMS)
    with pytest.raises(BindingError, match="inputs of a rank are") as caught:
        kernel(inputs)
    assert caught.value.hint == "one mapping of names to tensors for each rank: inputs[rank][name]"


def test_an_input_that_is_no_tensor(shift: Program) -> None:
    kernel = compiler.compile(shift, ranks=2, dims=DIMS)
    with pytest.raises(BindingError, match="input 'x' of rank 0 is a list"):
        kernel([{"x": [1.0]}] * 2)  # pyright: ignore[reportArgumentType]


PICK = """
program pick(B, M, N):
    x   : in symmetric [M, N]
    src : table [B] < ranks
    row : table [B] < M
    y   : out [B, N]
    comm fetch(b: B):
        tile_pull_data(y[b, :], x[row[b], :] @ src[b])
"""
GOOD = torch.zeros(2, 4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("tables", "says"),
    [
        ({"src": GOOD}, "table 'row' has no value"),
        ({"src": GOOD, "row": GOOD, "x": GOOD}, "there is no table 'x'"),
        ({"src": GOOD, "row": GOOD[:, :3]}, r"table 'row' is \[2, 3\]"),
        ({"src": GOOD, "row": GOOD.float()}, "table 'row' is float32"),
        ({"src": GOOD, "row": GOOD + 5}, "table 'row' has 5"),
        ({"src": GOOD, "row": [[0], [0, 1]]}, "table 'row' is no array"),
        ({"src": GOOD - 1, "row": GOOD}, "table 'src' has -1"),
    ],
)
def test_tables_that_do_not_fit(tables: dict[str, Any], says: str) -> None:
    program = compiler.parse(PICK).program()
    with pytest.raises(TileLinkError, match=says) as caught:
        compiler.plan(program, ranks=2, dims={"B": 4, "M": 5, "N": 6}, tables=tables)
    assert caught.value.hint
    assert compiler.plan(program, ranks=2, dims={"B": 4, "M": 5, "N": 6}, tables={"src": GOOD, "row": GOOD}).tasks


def test_inputs_of_more_ranks_than_a_table_has() -> None:
    tables = {"src": GOOD, "row": GOOD}
    kernel = compiler.compile(compiler.parse(PICK).program(), ranks=2, dims={"B": 4, "M": 5, "N": 6}, tables=tables)
    with pytest.raises(BindingError, match="inputs of 3 ranks for a kernel of 2"):
        kernel([{"x": torch.zeros(5, 6)}] * 3)


def test_an_index_over_less_than_nothing_has_no_tiles() -> None:
    """As `range` has it: a program may speak of all ranks but two on one rank."""
    module = compiler.parse("""program others(M):
    x : in  [M]
    y : out [M]
    compute make(i: M):
        a = x[i]
        for (q: ranks - 2):
            a += x[i]
        y[i] = a
""")
    for ranks, times in ((1, 0), (2, 0), (4, 2)):
        plan = compiler.plan(module.program(), ranks=ranks, dims={"M": 8})
        assert plan.bound.stages["make"].extents["q"] == times
        kernel = compiler.compile(module.program(), ranks=ranks, dims={"M": 8})
        x = torch.arange(8.0)
        made = kernel([{"x": x}] * ranks)
        assert all(torch.equal(one["y"], (1 + times) * x) for one in made)


@pytest.mark.parametrize("K", [1, 2, 5])
def test_a_loop_over_tiles_of_nothing_does_nothing(K: int) -> None:
    module = compiler.parse("""program others(M, K):
    x : in  [M, K]
    y : out [M]
    compute make(i: M):
        a = zeros(f32)
        for (k: K - 1):
            a += sum(x[i, k + 1], axis=1)
        y[i] = a
""")
    x = torch.randn(6, K)
    (made,) = compiler.compile(module.program(), ranks=1, dims={"M": 6, "K": K})([{"x": x}])
    torch.testing.assert_close(made["y"], x[:, 1:].sum(1), atol=1e-5, rtol=1e-5)
