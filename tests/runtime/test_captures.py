# pyright: basic
"""Launches that a caller captures, on several streams, and what a GPU that has stopped reported; without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.runtime.fake_gpu import CALLER, FakeGpu
from tests.runtime.process_helpers import ends_of
from tests.runtime.test_order import case_of
from tilelink import compiler, settings
from tilelink.artifact import LaunchProtocol
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import LaunchOrderError, OverlapError, RankError
from tilelink.runtime.cuda import functions
from tilelink.runtime.cuda.report import DIFFERENT, OVERLAPPED, Report, identity

OTHER = CALLER + 1000


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    return FakeGpu(monkeypatch)


def launched(kernel: Any, out: dict[str, torch.Tensor] | None = None) -> None:
    kernel(kernel._arguments.given.new(), out)


def checked(gpu: FakeGpu, case: str, rank: int = 0) -> Any:
    """A kernel of a process with TILELINK_CHECK=1."""
    with settings.override(check=True):
        return gpu.built(case_of(case), rank)


def ordered(gpu: FakeGpu, kernel: Any, *launches: tuple[int, int]) -> list[tuple[str, ...]]:
    """What captured launches, by (capture, stream), ask of the driver and issue, each until it has ended."""
    found: list[tuple[str, ...]] = []
    for gpu.capture, gpu.stream in launches:
        gpu.library.ordered.clear()
        gpu.issued.clear()
        launched(kernel)
        assert gpu.issued, "it was launched"
        found.append(tuple(gpu.library.ordered))
    return found


def test_launches_of_one_capture_follow_each_other(gpu: FakeGpu) -> None:
    kernel = gpu.built(case_of("ag_gemm-default"), 0)
    first, same, forked, back = ordered(gpu, kernel, (7, CALLER), (7, CALLER), (7, OTHER), (7, CALLER))
    (event,) = {one.split()[-1] for one in (*first, *same, *forked, *back)}
    assert first == same == (f"cuEventRecord {CALLER} {event}",), "a stream is in order by itself"
    assert forked == (f"cuStreamWaitEvent {OTHER} {event}", f"cuEventRecord {OTHER} {event}")
    assert back == (f"cuStreamWaitEvent {CALLER} {event}", f"cuEventRecord {CALLER} {event}")


def test_a_capture_does_not_wait_for_another_one(gpu: FakeGpu) -> None:
    """The driver would refuse that: an event of a capture is none of any other."""
    kernel = gpu.built(case_of("ag_gemm-default"), 0)
    *_, other = ordered(gpu, kernel, (7, CALLER), (8, OTHER))
    assert [one.split()[0] for one in other] == ["cuEventRecord"]


def test_two_captures_at_once_are_refused(gpu: FakeGpu) -> None:
    kernel = gpu.built(case_of("ag_gemm-default"), 0)
    ordered(gpu, kernel, (7, CALLER), (8, OTHER))
    gpu.issued.clear()
    with pytest.raises(RankError, match="captured into two graphs by turns"):
        ordered(gpu, kernel, (7, CALLER))
    assert not gpu.issued


def test_eager_launches_take_no_part_in_a_capture(gpu: FakeGpu) -> None:
    kernel = gpu.built(case_of("ag_gemm-default"), 0)
    *_, eager, captured = ordered(gpu, kernel, (7, CALLER), (0, CALLER), (7, CALLER))
    assert eager == () and [one.split()[0] for one in captured] == ["cuEventRecord"]


@pytest.mark.parametrize("case", ["ag_gemm-default", "ag_gemm-h200"])
def test_launches_are_checked_if_it_is_asked_for(case: str, gpu: FakeGpu) -> None:
    """Before anything else of a launch, for what is wrong must not happen, and after all of it."""
    kernel = gpu.built(case_of(case), 0)
    launched(kernel)
    usual = [*gpu.issued]
    kernel = checked(gpu, case)
    found: list[int] = []
    for gpu.capture in (0, 7, 7, 8, 0):
        gpu.issued.clear()
        launched(kernel)
        begin, compare, *launch, end = gpu.issued
        assert (begin, compare, end) == ("begin_checked", "compare_launches", "end_checked")
        assert launch == usual or (gpu.capture and launch)
        found.append(int(kernel._checks._identity))
    assert found == [0, identity(1, 1), identity(1, 2), identity(2, 1), 0]


ALONE = """
program alone(M, N):
    x : in    [M, N]
    y : out   [M, N]

    compute one(i: M, j: N):
        y[i, j] = x[i, j] * 2.0

schedule fixed for alone:
    one on sm, tile(i=32, j=32)

schedule taken for alone:
    one on sm, tile(i=32, j=32), dynamic
"""


@pytest.mark.parametrize(("schedule", "shared"), [("fixed", False), ("taken", True)])
def test_launches_of_independent_ranks_are_checked_if_they_share_memory(
    schedule: str, shared: bool, gpu: FakeGpu
) -> None:
    """A counter by which programs take tiles is the kernel's own. Ranks have nothing to compare."""
    module = compiler.parse(ALONE)
    program = module.programs[0]
    plan = compiler.plan(
        program, module.schedule(schedule, program), ranks=2, dims={"M": 512, "N": 512}, dtype="bf16", target="sm_90"
    )
    artifact = gpu_artifact(plan)
    assert artifact.protocol is LaunchProtocol.INDEPENDENT
    with settings.override(check=True):
        kernel = gpu.built(artifact, 0)
    for gpu.capture in (0, 7):
        gpu.issued.clear()
        launched(kernel)
        assert gpu.issued == (["begin_checked", "one", "end_checked"] if shared else ["one"])
    if shared:
        reported(kernel, OVERLAPPED, 3, 2)
        with pytest.raises(OverlapError, match="launch 4 of alone on rank 0 began before launch 3 had ended"):
            launched(kernel)
        reported(kernel, 0)


# Reports -----------------------------------------------------------------------------------------------------


def reported(kernel: Any, *words: int) -> None:
    """Writes what a GPU would."""
    for number, word in enumerate(words):
        kernel._checks.report.words[number] = word


def test_launches_that_overlapped_are_an_error_of_the_next_call(gpu: FakeGpu) -> None:
    kernel = checked(gpu, "ag_gemm-default", 1)
    launched(kernel)
    reported(kernel, OVERLAPPED, 12, 11)
    for call in (lambda: launched(kernel), lambda: kernel.buffer("x"), kernel.close):
        with pytest.raises(OverlapError) as error:
            call()
        assert "launch 13 of ag_gemm on rank 1 began before launch 12 had ended" in str(error.value)
    reported(kernel, 0)
    kernel.close()


@pytest.mark.parametrize(
    ("mine", "theirs", "said"),
    [
        (identity(2, 1), 0, "as launch 1 of capture 2, rank 3 outside of graphs"),
        (identity(1, 4), identity(2, 1), "as launch 4 of capture 1, rank 3 as launch 1 of capture 2"),
    ],
)
def test_another_order_than_a_peers_is_an_error_that_names_both(
    mine: int, theirs: int, said: str, gpu: FakeGpu
) -> None:
    kernel = checked(gpu, "ag_gemm-default")
    reported(kernel, DIFFERENT, mine, theirs, 3)
    with pytest.raises(LaunchOrderError) as error:
        launched(kernel)
    assert f"rank 0 launches ag_gemm {said}" in str(error.value)
    reported(kernel, 0)


def test_a_driver_that_fails_says_what_the_gpu_has_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launch is of another kernel: its GPU has stopped for all of them."""
    monkeypatch.setattr(functions, "library", lambda: None)
    report = Report("mine", 0, torch.device("cpu"))
    kernel: Any = lambda stream: 719  # noqa: E731
    with pytest.raises(RankError, match="did not launch other: error 719"):
        functions.launch_prepared(kernel, CALLER, "other")
    report.words[0] = OVERLAPPED
    with pytest.raises(OverlapError, match="of mine on rank 0"):
        functions.launch_prepared(kernel, CALLER, "other")
    report.words[0] = 0


def test_what_was_reported_is_printed_when_a_process_ends() -> None:
    """One that only replays graphs makes no other call of the package."""
    text = "import torch; from tilelink.runtime.cuda.report import Report\n"
    ways = (f"report = Report('mine', 0, torch.device('cpu')); report.words[0:4] = [{k}, 4, 3, 0]" for k in (1, 0))
    (_, reported), (_, silent) = ends_of(text, *ways)
    assert "launch 5 of mine on rank 0 began before launch 4 had ended" in reported and not silent
