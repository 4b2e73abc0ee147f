"""run_processes: checks its arguments, runs the processes, and reports the first failure and its reason."""

import os
import signal
import time
from collections.abc import Iterator, Sequence

from tilelink.device.monitor import Describe
from tilelink.dump import ProgramSeen, WaitSeen
from tilelink.errors import CallError, DeadlineError, RankError, TileLinkError
from tilelink.runtime.cpu.processes.parent import Child, Supervisor
from tilelink.runtime.cpu.processes.progress import AT_BEGIN, EPOCH, PLACE, SharedProgress
from tilelink.runtime.cpu.processes.values import Hook, Observe, Process, Run, RunReport

QUIET_S = 600.0  # one tile in the interpreter takes seconds, never minutes


def run_processes(
    processes: Sequence[Process],
    *,
    launches: int,
    begin: Hook | None = None,
    finish: Hook | None = None,
    deadline_s: float,
    first_epoch: int = 1,
    seed: int | None = None,
    max_delay_s: float = 0.0,
    trace: bool = False,
    describe: Describe | None = None,
    timeout_s: float | None = None,
    observe: Observe | None = None,
) -> RunReport:
    """Run all processes, each in a forked process, for the epochs first_epoch .. first_epoch + launches - 1.

    begin(rank, epoch) runs in the rank's first process before any process of the rank starts that launch.
    finish(rank, epoch) runs there after all processes of the rank are done with it, before the next begin.
        Either may be None.
    deadline_s: limit of each wait of a step. seed, max_delay_s, trace, describe: those of the Monitor.
    timeout_s: seconds that the whole run may take. None: no limit, but a run ends if for ten minutes (or ten
        deadlines, if those are longer) no process finishes a step or reports an event.

    observe: called if a wait is late or a process has died; what it returns are the error's `witnesses`.

    Processes share the memory that was shared before: an Arena's tensors. All other changes of a step are local to its
    process. On return or exception all processes have ended. Raises RankError for the first process that raised or was
    killed (CallError, if a function that the program calls raised), DeadlineError for the first wait that exceeded its
    deadline or for a run that takes too long, ValueError for processes that do not fit together.
    """
    run = Run(
        processes=tuple(processes),
        epochs=range(first_epoch, first_epoch + launches),
        begin=begin,
        finish=finish,
        deadline_s=deadline_s,
        seed=seed,
        max_delay_s=max_delay_s,
        trace=trace,
        describe=describe,
    )
    _check(run)
    start = time.monotonic()
    progress = SharedProgress(len(run.processes))
    try:
        with Supervisor(run, progress) as supervisor:
            supervisor.start()
            reason = supervisor.watch(timeout_s, max(QUIET_S, 10 * deadline_s))
        if error := _first_error(run, progress, supervisor.children, reason):
            hangs = isinstance(error, DeadlineError) or any(one.died for one in supervisor.children)
            if observe is not None and hangs:
                error.witnesses = observe(_programs(run, progress, supervisor.children), *_late(error))
            raise error
    finally:
        progress.close()
    traces = tuple(one.outcome.events if one.outcome else () for one in supervisor.children)
    spans = tuple(one.outcome.spans if one.outcome else () for one in supervisor.children)
    return RunReport(traces=traces, spans=spans, seconds=time.monotonic() - start)


def _check(run: Run) -> None:
    if run.epochs.start < 1:
        raise ValueError(f"the first epoch is {run.epochs.start}; epochs count from 1")
    programs = [(process.rank, process.stream, process.program) for process in run.processes]
    if len(set(programs)) < len(programs):
        raise ValueError("two processes have the same rank, stream and program")
    steps: dict[tuple[int, str], int] = {}
    for process in run.processes:
        if steps.setdefault((process.rank, process.stream), len(process.steps)) != len(process.steps):
            raise ValueError(
                f"programs of stream {process.stream} of rank {process.rank} differ in their number of steps"
            )


def _first_error(
    run: Run, progress: SharedProgress, children: list[Child], reason: str | None
) -> RankError | DeadlineError | None:
    """Return the error of the process that failed first. Failures that follow from it are not reported."""
    failed = sorted((one for one in children if one.failed), key=_moment)
    # A reason counts only if no process failed: the guard does not run after a failure, but may notice one late.
    if not failed:
        waiting = tuple(_waits(run, progress, children, None))
        hint = "take smaller sizes or fewer ranks, or give waits more time, by a longer deadline"
        return DeadlineError(reason, waiting=waiting, hint=hint) if reason else None
    first = failed[0]
    process, outcome = run.processes[first.index], first.outcome
    if outcome is None:
        return _death(process, progress.place(first.index), first.status)
    if outcome.error is not None:
        outcome.error.waiting = tuple(_waits(run, progress, children, first))
        return outcome.error
    if theirs := outcome.called:
        return CallError(
            f"{process} failed in {theirs.message}",
            location=theirs.location,
            hint=theirs.hint,
            rank=process.rank,
            stream=process.stream,
            program=process.program,
            details=outcome.details,
        )
    return RankError(
        f"{process} failed in {outcome.where}: {outcome.summary}",
        rank=process.rank,
        stream=process.stream,
        program=process.program,
        details=outcome.details,
        hint="the traceback ends at what failed; `tilelink show --stage source` prints the kernels",
    )


def _programs(run: Run, progress: SharedProgress, children: list[Child]) -> dict[int, list[ProgramSeen]]:
    """Return where the processes of each rank were when the run was ended."""
    result: dict[int, list[ProgramSeen]] = {}
    for process, one in zip(run.processes, children, strict=True):
        outcome, wait = one.outcome, None
        if outcome is not None and outcome.wait is not None:
            found = outcome.wait
            wait = WaitSeen(stage=found.stage, tile=found.tile, channel=found.channel, seen=found.seen,
                            expected=found.expected)  # fmt: skip
        elif outcome is not None and outcome.error is not None:
            wait = _late(outcome.error)[0]
        died = _status(one.status) if one.died else ""
        idle = outcome is not None and outcome.kind == "aborted" and bool(outcome.waiting) and wait is None
        launch, place = (progress.get(one.index, word) for word in (EPOCH, PLACE))
        seen = ProgramSeen(
            stream=process.stream, program=process.program, launch=max(launch, run.epochs.start),
            step=place if launch else AT_BEGIN, wait=wait, ended=idle, died=died,
        )  # fmt: skip
        result.setdefault(process.rank, []).append(seen)
    return result


def _late(error: TileLinkError) -> tuple[WaitSeen | None, int | None]:
    """Return the wait of an error, and its rank."""
    if not isinstance(error, DeadlineError):
        return None, None
    stage, tile, channel, seen, expected = error.stage, error.tile, error.channel, error.seen, error.expected
    if stage is None or tile is None or channel is None or seen is None or expected is None:
        return None, None
    return WaitSeen(stage=stage, tile=tile, channel=channel, seen=seen, expected=expected), error.rank


def _moment(one: Child) -> float:
    return one.outcome.moment if one.outcome else one.ended or 0.0


def _waits(run: Run, progress: SharedProgress, children: list[Child], blamed: Child | None) -> Iterator[str]:
    """Yield the waits of the other processes, and the processes that were too busy to stop when asked."""
    for one in children:
        if one is blamed:
            continue
        if one.outcome is None:
            yield f"{run.processes[one.index]} was busy in {progress.place(one.index)}"
        elif one.outcome.error is not None:
            yield one.outcome.error.message
        elif one.outcome.waiting:
            yield one.outcome.waiting


def _death(process: Process, where: str, status: int) -> RankError:
    hint = "stderr has what it wrote; a function that the program calls may have ended it"
    message = f"{process} {_status(status)} in {where}"
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        hint = "if no user killed it, the machine ran out of memory: use smaller shapes or fewer programs"
    return RankError(message, rank=process.rank, stream=process.stream, program=process.program, hint=hint)


def _status(status: int) -> str:
    """Return how a process ended, as a verb. status: as waitpid gives it."""
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ended with status {os.waitstatus_to_exitcode(status)}"
