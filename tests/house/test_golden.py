"""The golden fixture itself: it passes, fails with a diff, and updates."""

from pathlib import Path

import pytest

from tests.conftest import Golden


def test_equal_text_passes_and_a_changed_one_fails_with_a_diff(tmp_path: Path) -> None:
    Golden(tmp_path, update=True)("a", "one\ntwo")
    Golden(tmp_path, update=False)("a", "one\ntwo")
    with pytest.raises(pytest.fail.Exception, match=r"-two\n\+three"):
        Golden(tmp_path, update=False)("a", "one\nthree")
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"


def test_a_missing_file_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="--update-golden"):
        Golden(tmp_path, update=False)("a", "one")
    assert not (tmp_path / "a.txt").exists()
