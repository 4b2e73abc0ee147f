"""Files that may be anything, and whom they belong to."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.odd_files import FOREIGN, ODD
from tilelink import files
from tilelink.errors import Location


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ODD)
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "it"
    ODD[kind](path)
    with pytest.raises(OSError):
        files.read(path)
    assert not files.is_file(path)
    assert Location(file=str(path), line=1).render() == f"{path}:1:1"


@pytest.mark.parametrize("path", ["no\0file", "x" * 300, "nowhere/at/all", "/proc/self/mem"])
def test_what_cannot_be_read_is_an_oserror_with_a_reason(path: str) -> None:
    with pytest.raises(OSError) as caught:
        files.read(path)
    assert files.reason(caught.value) and "Errno" not in files.reason(caught.value)


def test_a_file_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_BYTES", 2**20)
    (tmp_path / "long").touch()
    os.truncate(tmp_path / "long", 2**42)
    with pytest.raises(OSError, match="it has more than"):
        files.read(tmp_path / "long")


@pytest.mark.parametrize("kind", FOREIGN)
def test_who_else_could_have_put_a_file_there_is_named(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "folder" / "it"
    path.parent.mkdir()
    path.touch()
    assert files.distrusted(path) == ""
    make, said = FOREIGN[kind]
    make(path)
    assert said in files.distrusted(path) and said in files.distrusted(path.parent / ".." / "folder" / "." / "it")


def _to_another(path: Path) -> None:
    path.rename(path.with_name("mine"))
    path.with_name("open").mkdir()
    path.with_name("open").chmod(0o777)
    (path.with_name("open") / "it").touch()
    path.symlink_to("open/it")


def _sticky(path: Path) -> None:
    path.parent.chmod(0o1777)


@pytest.mark.parametrize(("make", "trusted"), [(_to_another, False), (_sticky, True), (Path.unlink, True)])
def test_each_folder_and_link_on_the_way_counts(tmp_path: Path, make: Callable[[Path], None], trusted: bool) -> None:
    path = tmp_path / "folder" / "it"
    path.parent.mkdir()
    path.touch()
    make(path)
    assert (files.distrusted(path) == "") == trusted


def test_files_of_another_are_not_opened_where_one_would_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody may be faster than whoever found no file there."""
    (tmp_path / "it").touch()
    monkeypatch.setattr(files, "_is_own", lambda found: False)
    with pytest.raises(PermissionError, match="another user"):
        files.open_regular(tmp_path / "it", os.O_RDWR | os.O_CREAT)


def test_folders_that_are_made_are_nobody_elses(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        files.make_folder(tmp_path / "a" / "b")
        files.make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o755, 0o755]


def test_what_somebody_names_is_written_and_no_fifo_is_waited_for(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError, match="no process reads this FIFO"):
        files.write(fifo, b"text")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    files.write(fifo, b"text")
    assert os.read(reader, 100) == b"text"
    os.close(reader)
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "file").write_bytes(b"what was longer")
    files.write(tmp_path / "link", b"text")
    assert (tmp_path / "file").read_bytes() == b"text"
    with pytest.raises(OSError, match="embedded null"):
        files.write("a\0b", b"text")
