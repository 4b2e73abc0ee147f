"""What may lie in the place of a file: nothing that can be read, or nobody's that can be trusted."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)


ODD: dict[str, Callable[[Path], None]] = {
    "a folder": lambda path: (path / "inner").mkdir(parents=True),
    "a FIFO": os.mkfifo,
    "a socket": _socket,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a loop of links": lambda path: path.symlink_to(path.name),
    "a link to a FIFO": lambda path: (os.mkfifo(path.with_name("fifo")), path.symlink_to("fifo"))[1],
}
"""Kind -> puts it there. None of them may be waited for."""


def _anybodys(path: Path) -> None:
    path.chmod(0o666)


def _in_anybodys_folder(path: Path) -> None:
    path.parent.chmod(0o777)


def _linked_to_from_anybodys_folder(path: Path) -> None:
    path.rename(path.with_name("real"))
    path.parent.chmod(0o777)
    path.symlink_to("real")


def _anothers(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, 12345, -1)


def _in_anothers_folder(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path.parent, 12345, -1)


FOREIGN: dict[str, tuple[Callable[[Path], None], str]] = {
    "anybody's": (_anybodys, "other users may write to"),
    "in anybody's folder": (_in_anybodys_folder, "other users may write to"),
    "linked to from anybody's folder": (_linked_to_from_anybodys_folder, "other users may write to"),
    "another's": (_anothers, "belongs to another user"),
    "in another's folder": (_in_anothers_folder, "belongs to another user"),
}
"""Kind -> (makes it of a file, what is said of it)."""


@contextmanager
def room_for(size: int) -> Generator[None]:
    """A disk that has no room for files of more bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
