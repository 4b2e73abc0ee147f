"""Which test executes which lines, and how long each takes; measured again where code or tests have changed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

LIMIT = 900
"""Seconds for one file of tests."""


@dataclass(frozen=True, kw_only=True)
class Executed:
    """What the tests of one file executed.

    seconds: of each test that passed. collecting: seconds until the first test of the file begins.
    lines: file -> line -> numbers of tests, in the order of `seconds`.
    """

    tests: str
    seconds: dict[str, float]
    collecting: float
    lines: dict[str, dict[int, list[int]]]


class Recorder:
    """Gives each test a context of its own in coverage's data."""

    def __init__(self, coverage: object) -> None:
        self.coverage = coverage
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.began = time.monotonic()
        self.collecting = 0.0

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        self.collecting = time.monotonic() - self.began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.coverage.switch_context(item.nodeid)  # type: ignore[attr-defined]
        began = sum(os.times()[:4])
        result = yield
        self.seconds[item.nodeid] = sum(os.times()[:4]) - began  # of processors: the machine may be busy
        self.coverage.switch_context("")  # type: ignore[attr-defined]
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)


def record(tests: str, files: Sequence[str], out: Path) -> None:
    """Run one file of tests in this process and write what it executed of `files`."""
    import coverage

    measured = coverage.Coverage(data_file=None, include=list(files), messages=False)
    measured.start()
    recorder = Recorder(measured)
    pytest.main(["-q", "--thorough", "-p", "no:cacheprovider", "-W", "default", tests], plugins=[recorder])
    measured.stop()
    data = measured.get_data()
    passed = {name: n for name, n in recorder.seconds.items() if name not in recorder.failed}
    number = {name: n for n, name in enumerate(passed)}
    lines: dict[str, dict[int, list[int]]] = {}
    for file in data.measured_files():
        by_line = data.contexts_by_lineno(file)
        kept = {line: sorted(number[t] for t in names if t in number) for line, names in by_line.items()}
        lines[str(Path(file).relative_to(Path.cwd()))] = {line: tests for line, tests in kept.items() if tests}
    seconds = {name: round(value, 4) for name, value in passed.items()}
    out.write_text(json.dumps({"seconds": seconds, "collecting": recorder.collecting, "lines": lines}))


def digest(root: Path, paths: Iterable[Path]) -> str:
    """The same for the same files, wherever the checkout is."""
    whole = hashlib.sha256()
    for path in sorted(paths):
        whole.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return whole.hexdigest()[:16]


@dataclass(kw_only=True)
class Measured:
    """What all files of tests executed, with who executes a line."""

    executed: list[Executed] = field(default_factory=list)

    def seconds(self) -> dict[str, float]:
        return {name: s for one in self.executed for name, s in one.seconds.items()}

    def who(self, file: str, first: int, last: int) -> set[str]:
        """The tests that execute any of these lines."""
        found: set[str] = set()
        for one in self.executed:
            names = list(one.seconds)
            for line, tests in one.lines.get(file, {}).items():
                if first <= line <= last:
                    found.update(names[n] for n in tests)
        return found


def measure(root: Path, tests: Sequence[str], files: Sequence[str], cache: Path, jobs: int) -> Measured:
    """What each file of tests executes; files whose code and tests are as they were are not run again."""
    cache.mkdir(parents=True, exist_ok=True)
    code = (p for p in (root / "tilelink").rglob("*") if p.is_file() and "__pycache__" not in p.parts)
    package = digest(root, code)
    ours = Path(__file__).parent
    others = (p for p in (root / "tests").rglob("*.py") if not p.name.startswith(("test_", "__init__")))
    helpers = digest(root, (p for p in others if p.parent != ours))

    def one(name: str) -> Executed | None:
        path = cache / f"{digest(root, [root / name])}-{package}-{helpers}.json"
        if not path.exists():
            _run(root, name, files, path)
        if not path.exists():
            print(f"  {name}: no measurement", flush=True)
            return None
        read = json.loads(path.read_text())
        lines = {f: {int(n): t for n, t in by_line.items()} for f, by_line in read["lines"].items()}
        return Executed(tests=name, seconds=read["seconds"], collecting=read["collecting"], lines=lines)

    with ThreadPoolExecutor(jobs) as pool:
        return Measured(executed=[found for found in pool.map(one, tests) if found is not None])


def _run(root: Path, name: str, files: Sequence[str], path: Path) -> None:
    part = path.with_suffix(".tmp")
    command = [sys.executable, "-m", "tests.mutation.lines", str(part), name, *files]
    began = time.monotonic()
    try:
        run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        print(f"  {name}: not done after {LIMIT} s", flush=True)
        return
    if part.exists():
        part.rename(path)
        print(f"  {name}: {time.monotonic() - began:.0f} s", flush=True)
    else:
        print(run.stdout[-2000:], run.stderr[-2000:], flush=True)


if __name__ == "__main__":
    record(sys.argv[2], [str(Path(name).resolve()) for name in sys.argv[3:]], Path(sys.argv[1]))
