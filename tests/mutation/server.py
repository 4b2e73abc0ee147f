"""Judges mutants: a copy of the checkout for each worker, a forked process for each mutant."""

from __future__ import annotations

import compileall
import contextlib
import importlib
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutation.edits import Edit

# What tests import that is not ours: imported once, before the processes are forked.
PRELOADED = ("hypothesis", "jinja2", "lark", "networkx", "numpy", "rich", "torch", "triton", "typer", "pytest_timeout")
MEMORY = 12 << 30
"""Bytes of data that a mutant may take: some ask for tensors without end."""
PATIENCE = 20
"""A test may take this many times as long as it did, and SLACK seconds: the machine may be busy."""
SLACK = 10.0


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Tests for a mutant, in this order, with how long each took."""

    tests: tuple[str, ...]
    seconds: tuple[float, ...]

    def files(self) -> list[str]:
        return list(dict.fromkeys(test.partition("::")[0] for test in self.tests))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """killed, survived or timed out; by: the test that saw it; ran: how many tests did."""

    outcome: str
    by: str = ""
    ran: int = 0
    seconds: float = 0.0


class Chosen:
    """Runs the chosen tests alone, in their order, each within its limit; says which failed."""

    def __init__(self, choice: Choice, report: int) -> None:
        self.choice = choice
        self.report = report

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        place = {name: n for n, name in enumerate(self.choice.tests)}
        kept = sorted((i for i in items if i.nodeid in place), key=lambda i: place[i.nodeid])
        for item in kept:
            limit = SLACK + PATIENCE * self.choice.seconds[place[item.nodeid]]
            item.add_marker(pytest.mark.timeout(limit), append=False)
        self._tell(collected=len(kept))
        items[:] = kept

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._tell(failed=report.nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            slow = "Timeout (>" in str(report.longrepr)
            self._tell(failed=report.nodeid, slow=slow)
        elif report.when == "teardown":
            self._tell(passed=report.nodeid)

    def _tell(self, **what: object) -> None:
        os.write(self.report, (json.dumps(what) + "\n").encode())


def snapshot(root: Path, target: Path) -> None:
    """Copy what the tests need: a mutant is never written where others work."""
    leave = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "*.tmp", ".pytest_cache", ".hypothesis", "build")
    shutil.copytree(root, target, ignore=leave, symlinks=True)
    for name in ("tilelink", "tests"):
        compileall.compile_dir(target / name, quiet=2)


def preload() -> None:
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


class Server:
    """A copy of the checkout, in which one mutant after another is made, judged and unmade."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        self.output = tree.with_suffix(".txt")

    def judge(self, edit: Edit | None, choice: Choice) -> Verdict:
        """What the chosen tests say of a mutant; of the code as it is, for no edit."""
        if edit is None:
            return self._forked(choice)
        path = self.tree / edit.file
        source, times = path.read_bytes(), path.stat()
        changed = edit.apply(source)
        compile(changed, str(path), "exec")
        try:
            path.write_bytes(changed)
            return self._forked(choice)
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as its bytecode knows it

    def _forked(self, choice: Choice) -> Verdict:
        read, write = os.pipe()
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            os.close(read)
            self._child(choice, write)
        os.close(write)
        try:
            told, done = _listen(read, began + 3 * SLACK + 5 * sum(choice.seconds))
        finally:
            os.close(read)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
            status = os.waitpid(child, 0)[1]
        seconds = round(time.monotonic() - began, 2)
        failed = [one for one in told if "failed" in one]
        ran = sum("passed" in one for one in told)
        if failed:
            slow = bool(failed[0].get("slow"))
            return Verdict(
                outcome="timed out" if slow else "killed", by=str(failed[0]["failed"]), ran=ran, seconds=seconds
            )
        if not done:
            return Verdict(outcome="timed out", ran=ran, seconds=seconds)
        if os.waitstatus_to_exitcode(status) == 0 and ran == len(choice.tests):
            return Verdict(outcome="survived", ran=ran, seconds=seconds)
        # A test that is no longer there, a crash, an import that fails.
        return Verdict(outcome="killed", by="pytest", ran=ran, seconds=seconds)

    def _child(self, choice: Choice, report: int) -> None:
        code = 1
        try:
            os.setpgid(0, 0)
            os.chdir(self.tree)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(output, stream)
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            sys.dont_write_bytecode = True
            os.environ.update(PYTHONPATH=str(self.tree), PYTHONDONTWRITEBYTECODE="1")
            for name in [n for n in sys.modules if n.partition(".")[0] in ("tests", "tilelink")]:
                del sys.modules[name]
            sys.path[:] = [str(self.tree), *sys.path[1:]]
            arguments = [
                "-q",
                "-x",
                "--thorough",  # those that are chosen, of either tier
                "-p",
                "no:cacheprovider",
                "--no-header",
                "--tb=line",
                "--assert=plain",
                *choice.files(),
            ]
            code = int(pytest.main(arguments, plugins=[Chosen(choice, report)]))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _listen(read: int, until: float) -> tuple[list[dict[str, object]], bool]:
    """What a child tells until it ends, and whether it does in time."""
    text = b""
    while (left := until - time.monotonic()) > 0:
        if not select.select([read], [], [], left)[0]:
            break
        part = os.read(read, 65536)
        if not part:
            return _lines(text), True
        text += part
    return _lines(text), False


def _lines(text: bytes) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.decode().splitlines() if line.endswith("}")]
