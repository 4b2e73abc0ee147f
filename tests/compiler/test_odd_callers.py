"""CPU ranks for callers that are unusual: interrupted, without streams, in odd folders, with processes of their own."""

import os
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.compiler.test_cpu_ranks import SOURCE, make_job
from tests.compiler.test_fork_server import ENDLESS, NOBODY, meanwhile, starters
from tests.runtime.process_helpers import children, open_files
from tilelink.errors import RankError
from tilelink.runtime.cpu import client
from tilelink.runtime.cpu.client import run_cpu
from tilelink.runtime.cpu.request import LENGTH, Pipes, ProcessEnvironment

pytestmark = pytest.mark.thorough  # test_fork_server.py runs the same server for ordinary callers


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> Generator[client.ForkServer]:
    """A fork server that no other test has used."""
    fork_server = client.ForkServer()
    monkeypatch.setattr(client, "FORK_SERVER", fork_server)
    yield fork_server
    fork_server.end()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Generator[list[int]]:
    """Copies of the pipes in which workers answer: what a process keeps that is forked while a run begins."""
    copies = list[int]()
    worker = client.ForkServer.worker

    def noted(self: client.ForkServer, pipes: Pipes) -> int:
        copies.append(os.dup(pipes.answer))
        return worker(self, pipes)

    monkeypatch.setattr(client.ForkServer, "worker", noted)
    yield copies
    for one in copies:
        os.close(one)


# Answers -----------------------------------------------------------------------------------------------------


def test_a_run_ends_though_somebody_holds_its_pipe(tmp_path: Path, held: list[int]) -> None:
    assert len(run_cpu(make_job(tmp_path)).outputs) == 5 and len(held) == 1


def test_a_killed_worker_is_seen_though_somebody_holds_its_pipe(tmp_path: Path, held: list[int]) -> None:
    thread = meanwhile(lambda: os.kill(children(starters()[0])[0], 9))
    with pytest.raises(RankError, match=r"was killed by SIGKILL before it answered"):
        run_cpu(make_job(tmp_path, ENDLESS))
    thread.join()
    assert len(held) == 1


@pytest.mark.parametrize("said", [b"", b"123", LENGTH.pack(100) + 10 * b"x"])
def test_an_answer_that_is_cut_short_is_none(said: bytes) -> None:
    given, job = os.pipe()
    answer, sink = os.pipe()
    os.write(sink, said)
    os.close(sink)
    with open(given, "rb"), open(answer, "rb") as source, open(job, "wb") as target:
        worker = client._Worker(process=NOBODY, job=target, answer=source)  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(RankError, match="before it answered"):
            worker.do([b"a job"])


def test_a_long_answer_comes_whole(tmp_path: Path) -> None:
    source = "import sys\nsys.stdout.write('')\nraise ValueError(5_000_000 * 'x')"
    with pytest.raises(RankError) as caught:
        run_cpu(make_job(tmp_path, source))
    assert caught.value.message.endswith(f"ValueError: {5_000_000 * 'x'}")


# Interrupts --------------------------------------------------------------------------------------------------


def test_an_interrupt_while_the_starter_starts(
    own: client.ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start: Any = vars(client)["_start"]
    left = list[subprocess.Popen[bytes]]()

    def interrupted(number: int) -> None:
        left.append(start(number))
        raise KeyboardInterrupt

    files = open_files()
    with monkeypatch.context() as patched:
        patched.setattr(client, "_start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run_cpu(make_job(tmp_path))
    assert left[0].wait(60) is not None and open_files() == files
    assert len(run_cpu(make_job(tmp_path)).outputs) == 5


def test_an_interrupt_while_the_starter_ends(
    own: client.ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cpu(make_job(tmp_path))
    wait, times = subprocess.Popen[bytes].wait, list[object]()

    def interrupted(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        times.append(timeout)
        if len(times) == 1:
            raise KeyboardInterrupt
        return wait(self, timeout)

    with monkeypatch.context() as patched:
        patched.setattr(subprocess.Popen, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            own.end()
    assert len(times) == 2 and len(run_cpu(make_job(tmp_path)).outputs) == 5


# Process environments ----------------------------------------------------------------------------------------

SCRIPT = """
import os, signal, sys
from pathlib import Path
from tests.compiler.test_cpu_ranks import make_job
from tilelink.runtime.cpu.client import run_cpu

signal.signal(signal.SIGCHLD, signal.SIG_IGN)
sys.path.append(Path("/nowhere"))
for number in sys.argv[2]:
    os.close(int(number))
lengths = [len(run_cpu(make_job(Path(sys.argv[1]))).outputs) for _ in range(2)]
Path(sys.argv[1], "answer").write_text(str(lengths))
"""


@pytest.mark.parametrize("closed", ["", "012"])
def test_a_caller_without_streams_that_ignores_its_children(closed: str, tmp_path: Path) -> None:
    """From a folder with a module named as one that Python needs; of ignored children nobody hears how they ended."""
    (tmp_path / "selectors.py").write_text("raise ImportError('this is not selectors')\n")
    (tmp_path / "script").mkdir()
    script = tmp_path / "script" / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(tmp_path), closed]
    variables = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=200)
    assert (tmp_path / "answer").read_text() == "[5, 5]", done.stderr
    assert done.stderr == ""


def test_the_first_run_in_a_folder_that_is_gone(
    own: client.ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, gone = make_job(tmp_path), tmp_path / "gone"
    monkeypatch.setattr(sys, "path", ["", os.getcwd(), *sys.path])
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert len(run_cpu(job).outputs) == 5


def test_a_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path: list[Any] = ["", "beside", "/else/where", tmp_path, b"bytes"]
    monkeypatch.setattr(sys, "path", path)
    monkeypatch.chdir(tmp_path)
    assert ProcessEnvironment.here().path == [str(tmp_path), str(tmp_path / "beside"), "/else/where"]


def test_the_callers_variables_are_left_alone(
    own: client.ForkServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may import Triton, or start a process, while the fork server is started."""
    seen, popen = list[dict[str, str]](), subprocess.Popen

    def noted(*args: Any, **named: Any) -> Any:
        seen.append(dict(os.environ))
        return popen(*args, **named)

    monkeypatch.setattr(client.subprocess, "Popen", noted)
    before = dict(os.environ)
    run_cpu(make_job(tmp_path, SOURCE))
    assert seen == [before]
