"""Requests of client.py to fork_server.py: a new worker, or the exit status of one."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from tilelink import settings

NUMBER = struct.Struct("q")
"""Requests and replies.

NEW, sent with descriptors (`Pipes`), asks for a worker, and the reply is its process. The process of a worker asks for
its status as `waitpid` gives it, after it has ended. The reply is LOST if another fork server forked it.
"""
NEW, LOST = 0, -1


LENGTH = struct.Struct("Q")
"""Number of bytes of an answer, sent before it. The end of the pipe says nothing: another process may hold it open."""


class Pipes(NamedTuple):
    """Descriptors of a worker: source of its job, target of its answer, its output, and its working directory."""

    job: int
    answer: int
    stdout: int
    stderr: int
    folder: int


@dataclass(frozen=True, kw_only=True)
class ProcessEnvironment:
    """The state that a process takes over from the one that starts it."""

    variables: dict[str, str]
    path: list[str]

    @classmethod
    def here(cls) -> Self:
        """Return the environment of this process."""
        return cls(variables=settings.variables(), path=_absolute(sys.path))

    def enter(self) -> None:
        """Apply the environment to this process, in which Triton continues to interpret."""
        settings.adopt(self.variables | {"TRITON_INTERPRET": "1"})
        sys.path[:] = self.path


def _absolute(path: Iterable[object]) -> list[str]:
    """Return the folders of a path as absolute ones, for processes with another working directory.

    As in Python, entries of other types are skipped.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    entries = [entry for entry in path if isinstance(entry, str)]
    return [os.path.join(here, entry) if entry else here for entry in entries if here or os.path.isabs(entry)]
