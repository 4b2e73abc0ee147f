# pyright: reportPrivateUsage=false
"""The processes of runs on CPU ranks: what a worker takes over from its caller, and that none is left behind."""

import ctypes
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.compiler.test_cpu_ranks import SOURCE, make_job
from tests.runtime.process_helpers import alive, children, open_files
from tests.tiers import thorough
from tilelink import compiler
from tilelink.errors import RankError
from tilelink.runtime.cpu import client, fork_server
from tilelink.runtime.cpu.client import run_cpu
from tilelink.runtime.cpu.request import LOST, NUMBER

ENDLESS = SOURCE.replace("    e = tl.load", "    while True:\n        pass\n    e = tl.load")
LONG_S = 60.0
NOBODY = 1 << 30
"""The number of no process."""


def starters(parent: int | None = None) -> list[int]:
    """The starters of a process that run."""
    found = [pid for pid in children(parent) if alive(pid)]
    return [pid for pid in found if client.MODULE.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]


def until(happens: Callable[[], object]) -> None:
    end = time.monotonic() + LONG_S
    while not happens():
        assert time.monotonic() < end
        time.sleep(0.02)


def family(process: int) -> list[int]:
    """The processes that a process has started, and those that these have, and so on."""
    own = children(process)
    return [*own, *(other for one in own for other in family(one))]


def ranks_run(parent: int | None = None) -> list[int]:
    """The workers and ranks of a fork server, if there are some of both."""
    workers = [pid for one in starters(parent) for pid in children(one)]
    return [*workers, *(pid for one in workers for pid in children(one))] if any(map(children, workers)) else []


def meanwhile(action: Callable[[], object]) -> threading.Thread:
    """Does something in a thread as soon as ranks run."""

    def act() -> None:
        until(ranks_run)
        action()

    thread = threading.Thread(target=act)
    thread.start()
    return thread


def said(folder: Path, expression: str) -> str:
    """What an expression is in a worker."""
    with pytest.raises(RankError) as caught:
        run_cpu(make_job(folder, f"import os, sys\nraise ValueError({expression})"))
    return caught.value.message.partition("ValueError: ")[2].partition("\n")[0]


# What a worker takes over ------------------------------------------------------------------------------------


def test_runs_share_what_is_imported(tmp_path: Path) -> None:
    first = said(tmp_path, "os.getppid(), os.getpid()")
    files = open_files()
    second = said(tmp_path, "os.getppid(), os.getpid()")
    (parent, one), (same, other) = (text.strip("()").split(", ") for text in (first, second))
    assert parent == same == str(starters()[0]) and one != other
    assert open_files() == files


def test_private_memory_alone_is_moved_to_large_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole large pages of it; what processes share, or a file has, stays as it is."""
    size, asked = 4 * fork_server.LARGE_PAGE, list[tuple[int, int]]()
    own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    shared = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)

    def madvise(place: ctypes.c_void_p, length: ctypes.c_size_t, advice: int) -> None:
        assert place.value is not None and advice == fork_server.COLLAPSE
        asked.append((place.value, place.value + length.value))

    monkeypatch.setattr(fork_server.ctypes, "CDLL", lambda _: SimpleNamespace(madvise=madvise))
    fork_server.use_large_pages()
    mine, theirs = (ctypes.addressof(ctypes.c_char.from_buffer(one, size // 2)) for one in (own, shared))
    assert all(place % fork_server.LARGE_PAGE == 0 for pair in asked for place in pair)
    assert sum(begin <= mine < end for begin, end in asked) == 1
    assert not any(begin <= theirs < end for begin, end in asked)


def test_a_worker_is_where_its_caller_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "os.getcwd(), os.environ.get('MINE'), os.environ['TRITON_INTERPRET'], sys.path[0]"
    for mine, folder in ((None, "first"), ("2", "second"), (None, "third")):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        monkeypatch.syspath_prepend(f"/nowhere/{folder}")
        if mine:
            monkeypatch.setenv("MINE", mine)
        else:
            monkeypatch.delenv("MINE", raising=False)
        assert said(tmp_path, shown) == str((str(tmp_path / folder), mine, "1", f"/nowhere/{folder}"))


def test_settings_are_read_in_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "__import__('tilelink.settings').settings.settings().cache"
    for folder in ("one", "other"):
        monkeypatch.setenv("TILELINK_CACHE", str(tmp_path / folder))
        assert str(tmp_path / folder) in said(tmp_path, shown)


def test_what_a_run_prints_goes_where_its_caller_prints(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        run_cpu(make_job(tmp_path, f"import os\nprint('line', {number})\nos.write(2, b'error {number}')\n{SOURCE}"))
        assert capfd.readouterr() == (f"line {number}\n", f"error {number}")


@pytest.mark.parametrize(
    "value", ["1.0 / x[i]", "x[i] / x[i]", "exp(x[i] * 1e30)", "sqrt(x[i] - 5.0)", "log(x[i] - 1.0)"]
)
def test_arithmetic_warns_of_nothing(value: str, capfd: pytest.CaptureFixture[str]) -> None:
    text = f"program p(M):\n    x : in [M]\n    y : out [M]\n    compute f(i: M):\n        y[i] = {value}\n"
    compiler.compile(compiler.parse(text).program(), ranks=1, dims={"M": 5})([{"x": torch.ones(5)}])
    assert capfd.readouterr().err == ""


def test_a_caller_without_output(tmp_path: Path) -> None:
    kept = os.dup(1)
    try:
        os.close(1)
        assert len(run_cpu(make_job(tmp_path)).outputs) == 5
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def test_a_folder_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, gone = make_job(tmp_path), tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert len(run_cpu(job).outputs) == 5


def test_threads_share_a_starter(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    lengths = list[int]()
    threads = [threading.Thread(target=lambda: lengths.append(len(run_cpu(job).outputs))) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert lengths == [5, 5, 5] and len(starters()) == 1


# Ends --------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    thread = meanwhile(lambda: os.kill(children(starters()[0])[0], signal.SIGKILL))
    with pytest.raises(RankError, match=r"was killed by SIGKILL before it answered"):
        run_cpu(make_job(tmp_path, ENDLESS))
    thread.join()
    (one,) = starters()
    until(lambda: not family(one))


def test_a_starter_that_is_killed_is_replaced(tmp_path: Path) -> None:
    seen = list[int]()

    def kill() -> None:
        seen.extend([*starters(), *ranks_run()])
        os.kill(seen[0], signal.SIGKILL)

    thread = meanwhile(kill)
    with pytest.raises(RankError, match="before it answered"):
        run_cpu(make_job(tmp_path, ENDLESS))
    thread.join()
    until(lambda: not any(map(alive, seen)))
    assert len(run_cpu(make_job(tmp_path)).outputs) == 5
    os.kill(starters()[0], signal.SIGKILL)
    assert len(run_cpu(make_job(tmp_path)).outputs) == 5
    assert len(starters()) == 1


@pytest.mark.parametrize("stubborn", [False, True])
def test_an_interrupt_ends_the_worker(stubborn: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PATIENCE_S", 0.5)
    ignore = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" if stubborn else ""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    thread = meanwhile(lambda: os.kill(os.getpid(), signal.SIGINT))
    try:
        with pytest.raises(KeyboardInterrupt):
            run_cpu(make_job(tmp_path, ignore + ENDLESS))
    finally:
        signal.signal(signal.SIGINT, before)
        thread.join()
    (one,) = starters()
    until(lambda: not family(one))
    assert len(run_cpu(make_job(tmp_path)).outputs) == 5
    assert starters() == [one]


def test_a_starter_that_cannot_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(client, "FORK_SERVER", client.ForkServer())
    monkeypatch.setattr(client, "MODULE", "nothing.of_the_kind")
    with pytest.raises(RankError, match="starts CPU ranks does not run"):
        run_cpu(make_job(tmp_path))


SCRIPT = """
import sys
from pathlib import Path
from tests.compiler.test_cpu_ranks import SOURCE, make_job
from tests.compiler.test_fork_server import ENDLESS, starters
from tilelink.runtime.cpu.client import run_cpu
from tilelink.runtime.cpu.request import LOST, NUMBER

if __name__ == "__main__":
    run_cpu(make_job(Path(sys.argv[1])))
    print(*starters(), flush=True)
    if sys.argv[2] == "killed":
        run_cpu(make_job(Path(sys.argv[1]), ENDLESS))
"""


@thorough(unless=lambda how: how == "killed")
@pytest.mark.parametrize("how", ["ends", "killed"])
def test_nothing_outlives_the_caller(how: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), str(tmp_path), how]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": "."}) as caller:
        assert caller.stdout
        left = [int(caller.stdout.readline())]
        if how == "killed":
            until(lambda: ranks_run(caller.pid))
            left += ranks_run(caller.pid)
            caller.kill()
        caller.wait(LONG_S)
        until(lambda: not any(map(alive, left)))


def test_a_forked_process_has_a_starter_of_its_own(tmp_path: Path) -> None:
    run_cpu(make_job(tmp_path))
    before = starters()
    with client.FORK_SERVER._lock:  # as by a thread that asks for a worker, and that the new process lacks
        process = os.fork()
    if not process:
        signal.alarm(60)
        try:
            good = starters() == [] and len(run_cpu(make_job(tmp_path)).outputs) == 5 and len(starters()) == 1
            client.FORK_SERVER.end()
            os._exit(0 if good and not starters() else 3)
        except BaseException:
            os._exit(4)
    status = os.waitpid(process, 0)[1]
    assert status == 0 and len(run_cpu(make_job(tmp_path)).outputs) == 5 and starters() == before


@pytest.mark.parametrize("last", ["silence", "the end of its caller", "a request of a caller that has ended"])
def test_a_starter_ends_after(last: str) -> None:
    own, other = socket.socketpair()
    with own, other:
        own.settimeout(LONG_S)
        other.settimeout(0.1)
        served = fork_server.Server(other)
        served.workers.add(NOBODY)
        thread = threading.Thread(target=served.serve)
        thread.start()
        own.sendall(NUMBER.pack(os.getppid()))
        assert own.recv(NUMBER.size) == NUMBER.pack(LOST), "it was asked for a worker of another one"
        thread.join(0.4)
        assert thread.is_alive(), "it waits for its worker"
        if last == "silence":
            served.workers.clear()
        else:
            if "request" in last:
                own.sendall(NUMBER.pack(NOBODY + 1))
            own.close()
        thread.join(LONG_S)
        assert not thread.is_alive()
