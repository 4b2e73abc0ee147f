"""The store of generated modules."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tilelink import settings
from tilelink.backend import store
from tilelink.errors import EmitError, SettingsError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Generator[None]:
    with settings.environment(TILELINK_CACHE=str(tmp_path)):
        yield


def test_saved_once_and_loaded_from_its_file() -> None:
    path = store.save("ANSWER = 42\n")
    assert store.save("ANSWER = 42\n") == path != store.save("ANSWER = 43\n")
    module = store.load(path)
    assert (module.ANSWER, module.__file__) == (42, str(path))


def test_a_changed_file_is_not_loaded_and_saved_anew() -> None:
    path = store.save("ANSWER = 1\n")
    path.write_text("ANSWER = 2\n")
    with pytest.raises(EmitError, match="changed"):
        store.load(path)
    store.save("ANSWER = 1\n")
    assert store.load(path).ANSWER == 1


def test_a_missing_file() -> None:
    path = store.save("ANSWER = 3\n")
    path.unlink()
    with pytest.raises(EmitError, match="cannot read"):
        store.load(path)


def test_many_writers_leave_one_whole_file() -> None:
    text = "ROWS = [\n" + "    1,\n" * 20000 + "]\n"
    with ThreadPoolExecutor(8) as pool:
        paths = set(pool.map(store.save, [text] * 32))
    (path,) = paths
    assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_others_may_read_what_one_has_saved(tmp_path: Path) -> None:
    """As the umask says: two users can share a folder, and neither replaces what the other runs."""
    path = store.save("ANSWER = 4\n")
    beside = tmp_path / "beside"
    beside.touch()
    assert path.stat().st_mode == beside.stat().st_mode


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        settings.environment(TILELINK_CACHE=str(tmp_path / "file")),
        pytest.raises(SettingsError, match="the cache folder cannot be written") as caught,
    ):
        store.save("ANSWER = 5\n")
    assert caught.value.hint is not None and "TILELINK_CACHE" in caught.value.hint


def test_what_could_not_be_put_in_its_place_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(store.os, "replace", refuse)
    with pytest.raises(SettingsError, match="not yours"):
        store.save("ANSWER = 6\n")
    assert list((tmp_path / "sources").iterdir()) == []
