"""Generated kernels under compute-sanitizer: memcheck, and racecheck, which sees shared memory only (`sanitizer.py`).

By hand, without pytest: `python -m tests.gpu.sanitizer --ranks 2 --out FOLDER`.
"""

from pathlib import Path

import pytest

from tests.gpu import sanitizer

pytestmark = [
    pytest.mark.skipif(sanitizer.found_sanitizer() is None, reason="there is no compute-sanitizer"),
    pytest.mark.timeout(4 * (sanitizer.LIMIT_S + 2 * sanitizer.GRACE_S)),
]


def good(tool: str | None, ranks: int, folder: Path) -> None:
    verdict = sanitizer.check(tool, ranks, folder)
    assert not verdict.problems, str(verdict)
    if verdict.doubts:
        pytest.skip(str(verdict))


@pytest.mark.gpu
@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_one_rank(tool: str, tmp_path: Path) -> None:
    good(None, 1, tmp_path)
    good(tool, 1, tmp_path)


@pytest.mark.gpus2
@pytest.mark.parametrize("tool", sanitizer.TOOLS)
def test_two_ranks(tool: str, tmp_path: Path) -> None:
    good(None, 2, tmp_path)
    good(tool, 2, tmp_path)
