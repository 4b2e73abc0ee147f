"""The store of generated modules."""

from __future__ import annotations

import importlib.util
import inspect
import linecache
import marshal
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.odd_files import ODD, room_for
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
        pytest.raises(SettingsError, match=r"the cache folder cannot be written: /.*/sources: ") as caught,
    ):
        store.save("ANSWER = 5\n")
    assert caught.value.hint is not None and "TILELINK_CACHE" in caught.value.hint


def test_what_could_not_be_put_in_its_place_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr("os.replace", refuse)
    with pytest.raises(SettingsError, match="not yours"):
        store.save("ANSWER = 6\n")
    assert list((tmp_path / "sources").iterdir()) == []


# What others may have put there --------------------------------------------------------------------------------


def bytecode(path: Path, text: str) -> bytes:
    """Bytecode that Python takes for a file's, whatever that holds and however old it is."""
    code = marshal.dumps(compile(text, str(path), "exec"))
    return importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + code


@pytest.mark.parametrize("kept", [None, 17])
def test_bytecode_beside_a_source_is_neither_run_nor_written(kept: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    path = store.save("ANSWER = 7\n")
    cached = Path(importlib.util.cache_from_source(str(path)))
    cached.parent.mkdir()
    cached.write_bytes(bytecode(path, "ANSWER = 'of somebody else'")[:kept])
    assert store.load(path).ANSWER == 7
    cached.unlink()
    assert store.load(path).ANSWER == 7 and not cached.exists()


def test_a_disk_that_fills_while_a_source_is_loaded_breaks_no_later_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    for size in range(0, 400, 7):
        path = store.save(f"def answer():\n    return {size}\n")
        with room_for(size):
            assert store.load(path).answer() == size
        assert store.load(path).answer() == size


def test_a_disk_that_fills_at_any_byte_of_a_source_leaves_nothing() -> None:
    text = f"ANSWER = {'9' * 100}\n"
    for size in range(len(text)):
        with room_for(size), pytest.raises(SettingsError, match="the cache folder cannot be written"):
            store.save(text)
        assert list((settings.settings().cache / "sources").iterdir()) == []
    assert store.load(store.save(text)).ANSWER > 0


SWAPPED = """\
import pathlib
import triton
import triton.language as tl
pathlib.Path(__file__).write_text("# swapped\\n" * 20)

@triton.jit
def kernel(x):
    tl.store(x, 1)
"""


def test_triton_compiles_the_text_that_was_checked_whatever_becomes_of_the_file() -> None:
    path = store.save(SWAPPED)
    kernel = store.load(path).kernel
    assert kernel.src == "def kernel(x):\n    tl.store(x, 1)\n"
    linecache.checkcache()  # as whoever shows a traceback does
    assert inspect.getsource(kernel.fn) == "@triton.jit\n" + kernel.src
    path.unlink()
    assert inspect.getsource(kernel.fn) == "@triton.jit\n" + kernel.src


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ODD)
def test_what_lies_in_the_place_of_a_source_is_replaced_or_named(kind: str) -> None:
    text = f"ANSWER = {kind!r}\n"
    path = store.save(text)
    path.unlink()
    ODD[kind](path)
    with pytest.raises(EmitError, match="cannot read"):
        store.load(path)
    if kind == "a folder":
        with pytest.raises(SettingsError, match="cannot be written") as caught:
            store.save(text)
        assert caught.value.hint == f"remove {path}: it is a folder in the place of a generated source"
    else:
        assert kind == store.load(store.save(text)).ANSWER
