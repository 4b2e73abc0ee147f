# pyright: basic
"""What the CUDA driver is passed, against a library that only notes it."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from tilelink.runtime.cuda.driver import Driver


class Library:
    """Any function of it notes its arguments, and succeeds."""

    def __init__(self) -> None:
        self.called: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.called.append((name, arguments))
            return 0

        return function


def test_a_wait_and_what_follows_it_are_one_call() -> None:
    """Two CUstreamBatchMemOpParams of 48 bytes: WAIT_VALUE_32 with GEQ, then WRITE_VALUE_32 of zero."""
    library = Library()
    stream = ctypes.c_void_p(7)
    function, arguments = Driver(library).wait_and_zero(stream, 2**40 + 12, 5)
    stream.value = 9  # put in later, before each launch
    assert function(*arguments) == 0
    ((name, (handle, count, operations, flags)),) = library.called
    assert (name, handle.value, count.value, flags.value) == ("cuStreamBatchMemOp_v2", 9, 2, 0)
    found = [struct.unpack("<I4xQQI4xQQ", bytes(one)) for one in operations]
    assert found == [(1, 2**40 + 12, 5, 0, 0, 0), (2, 2**40 + 12, 0, 0, 0, 0)]
