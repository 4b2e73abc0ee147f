"""What client.py asks of fork_server.py: a worker, and how it ended."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from tilelink import settings

NUMBER = struct.Struct("q")
"""Requests and replies. NEW, sent with descriptors (`Pipes`), asks for a worker, and the reply is its process. The
process of a worker asks for its status as `waitpid` gives it, when it ends; LOST if another fork server forked it."""
NEW, LOST = 0, -1


LENGTH = struct.Struct("Q")
"""The bytes of an answer, with which it begins: somebody else may hold its pipe open, so its end says nothing."""


class Pipes(NamedTuple):
    """Descriptors of a worker: where its job comes from, where its answer goes, its output, and its folder."""

    job: int
    answer: int
    stdout: int
    stderr: int
    folder: int


@dataclass(frozen=True, kw_only=True)
class ProcessEnvironment:
    """What a process takes over from one that starts it."""

    variables: dict[str, str]
    path: list[str]

    @classmethod
    def here(cls) -> Self:
        """Those of this process."""
        return cls(variables=settings.variables(), path=_absolute(sys.path))

    def enter(self) -> None:
        """Makes them those of this process, in which Triton goes on to interpret."""
        settings.adopt(self.variables | {"TRITON_INTERPRET": "1"})
        sys.path[:] = self.path


def _absolute(path: Iterable[object]) -> list[str]:
    """The folders of a path, for processes that are elsewhere. As Python does, it passes over what is no folder."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        here = ""
    entries = [entry for entry in path if isinstance(entry, str)]
    return [os.path.join(here, entry) if entry else here for entry in entries if here or os.path.isabs(entry)]
