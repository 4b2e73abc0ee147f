"""Fixtures and options that all tests share."""

import difflib
import gc
import importlib.util
import os
import sys
import time
from collections.abc import Generator
from pathlib import Path
from statistics import median
from typing import Any

import hypothesis
import pytest

from tests import cost, tiers
from tilelink import settings

# Workers share few cores: threads of a matrix product only wait for one another. Processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A proof that was kept would hide what a test breaks.
os.environ.setdefault("TILELINK_PROOFS", "0")

# Where no bytecode is kept beside the sources, workers and the processes that tests start keep it in a folder of the
# suite: compiling the package and rewriting the assertions of tests takes half of the time of their imports.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# How long an example takes, or its drawing, says how busy the machine is: no test of ours is about that.
hypothesis.settings.register_profile("tilelink", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("tilelink")

GPU_MARKERS = {"gpu": 1, "gpus2": 2, "gpus4": 4, "gpus8": 8}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite golden files that differ")
    parser.addoption("--thorough", action="store_true", help="run what repeats on more cases what others prove too")
    parser.addoption("--costs", type=int, default=0, metavar="COUNT", help="list so many tests that took most CPU")


LEFT_OUT = pytest.StashKey[int]()
"""How many thorough tests a run leaves out."""
COSTS = pytest.StashKey[dict[str, float]]()
"""The CPU seconds of tests of the default tier, by their ids."""
USED = pytest.StashKey[float]()
"""The CPU seconds that a process and what it started had used when a test ended."""
SLOWNESS = pytest.StashKey[list[float]]()
"""How slow the processor was between tests (tests/cost.py), or as each worker has found it."""
SAMPLED = pytest.StashKey[float]()
"""When that was last measured."""
TOTAL = pytest.StashKey[float]()
"""The CPU seconds of a run, with its workers, on the processor where the budgets were set."""
SECONDS_APART = 2.0
"""Between measurements of the processor."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out thorough tests, unless they are asked for, and skips what needs more CUDA devices than there are."""
    _leave_out(config, items)
    _skip(items)


def _leave_out(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--thorough"):
        return
    left_out = set(tiers.left_out(items, config.args))
    config.stash[LEFT_OUT] = len(left_out)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Measures what a test costs, with its fixtures and the processes that it starts."""
    stash = item.config.stash
    before = stash[USED] if USED in stash else cost.cpu_seconds()
    result = yield
    stash[USED] = cost.cpu_seconds()
    if not _devices_needed(item) and not tiers.is_asked_for(item, item.config.args):
        stash.setdefault(COSTS, {})[item.nodeid] = stash[USED] - before
    _measure_processor(stash)
    return result


def _measure_processor(stash: pytest.Stash) -> None:
    if time.monotonic() >= stash.get(SAMPLED, 0.0) + SECONDS_APART:
        stash.setdefault(SLOWNESS, []).append(cost.slowness())
        stash[SAMPLED] = time.monotonic()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker tells the process that reports; its own report is read by nobody."""
    stash = session.config.stash
    told: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
    slowness = median(stash.get(SLOWNESS, []) or [cost.slowness()])
    if told is not None:
        told["left_out"], told["slowness"] = stash.get(LEFT_OUT, 0), slowness
        told["costs"] = {name: seconds / slowness for name, seconds in stash.get(COSTS, {}).items()}
        told["total"] = cost.cpu_seconds() / slowness  # once it has ended, nobody knows of servers that it left alone
        return
    if getattr(session.config.option, "numprocesses", None):
        stash[TOTAL] = stash.get(TOTAL, 0.0) + time.process_time() / slowness
    else:
        stash[TOTAL] = cost.cpu_seconds() / slowness
        stash[COSTS] = {name: seconds / slowness for name, seconds in stash.get(COSTS, {}).items()}
    if os.environ.get("CI") == "true" and cost.fails(*_judged(session.config)) and not session.exitstatus:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _judged(config: pytest.Config) -> tuple[float, dict[str, float], bool]:
    """What tests/cost.py judges of a run; nothing of one with thorough tests, which may take long."""
    if config.getoption("--thorough"):
        return 0.0, {}, False
    chosen = config.getoption("keyword") or config.getoption("markexpr")
    some = config.args_source == pytest.Config.ArgsSource.ARGS or bool(chosen)
    return config.stash.get(TOTAL, 0.0), config.stash.get(COSTS, {}), not some and not cost.GPUS


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Every worker leaves out the same tests."""
    told = getattr(node, "workeroutput", {})  # a worker that crashed has none
    stash = node.config.stash
    stash[LEFT_OUT] = max(stash.get(LEFT_OUT, 0), told.get("left_out", 0))
    stash.setdefault(COSTS, {}).update(told.get("costs", {}))
    stash[TOTAL] = stash.get(TOTAL, 0.0) + told.get("total", 0.0)
    stash.setdefault(SLOWNESS, []).extend([told["slowness"]] if "slowness" in told else [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line about the tests that this run has left out, one about what it cost, and what of that is too much."""
    if number := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(f"{number} thorough tests were left out: --thorough runs them too")
    terminalreporter.write_line(f"{config.stash.get(TOTAL, 0.0):.0f} CPU s")
    for line in cost.exceeded(*_judged(config)):
        terminalreporter.write_line(line, red=True)
    if count := config.getoption("--costs"):
        dear = cost.listed(cost.dearest(config.stash.get(COSTS, {}), count))
        terminalreporter.write_line(f"the tests that took most CPU s:{dear}")


def _skip(items: list[pytest.Item]) -> None:
    """Torch is imported only if some test asks for devices."""
    needs = {item: _devices_needed(item) for item in items}
    if not any(needs.values()):
        return
    found = _cuda_devices()
    for item, needed in needs.items():
        if needed > found:
            item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA device(s), found {found}"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each worker neighbouring tests, which share what they compute, and one that has none left some of another.

    Otherwise tests are dealt out in turn, and a worker that gets the last slow file ends long after the others.
    """
    from xdist.scheduler import WorkStealingScheduling  # pyright: ignore[reportMissingTypeStubs]

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_collection_finish() -> None:
    """Leaves what is there before the first test, and stays until the last, out of the search for garbage."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _devices_needed(item: pytest.Item) -> int:
    return max((count for mark, count in GPU_MARKERS.items() if item.get_closest_marker(mark)), default=0)


def _cuda_devices() -> int:
    if importlib.util.find_spec("torch") is None:
        return 0
    import torch

    return torch.cuda.device_count()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Tests and the processes they start write to a cache of their own, and never find yesterday's."""
    folder = tmp_path_factory.mktemp("cache")
    with settings.environment(TILELINK_CACHE=str(folder), TILELINK_DEADLINE=None):
        yield


class Golden:
    """Compares text with `<name>.txt` of a folder, or with a file whose name has an ending of its own."""

    def __init__(self, folder: Path, update: bool) -> None:
        self.folder = folder
        self.update = update

    def __call__(self, name: str, text: str) -> None:
        """Fails with a diff if the file differs from `text`; with --update-golden writes the file instead."""
        path = self.folder / (name if "." in name else f"{name}.txt")
        text = text if text.endswith("\n") else text + "\n"
        expected = path.read_text() if path.exists() else None
        if text == expected:
            return
        if self.update:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            return
        if expected is None:
            pytest.fail(f"{path} does not exist; run with --update-golden and read what it writes", pytrace=False)
        diff = difflib.unified_diff(expected.splitlines(), text.splitlines(), str(path), "now", lineterm="")
        pytest.fail("\n".join([*diff, "", "if this is right, run with --update-golden"]), pytrace=False)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden("name", text)`: text must equal golden/name.txt beside the test's file."""
    return Golden(request.path.parent / "golden", bool(request.config.getoption("--update-golden")))
