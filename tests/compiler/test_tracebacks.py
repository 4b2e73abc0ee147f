"""Where the traceback of a refusal ends: with the user's call."""

from __future__ import annotations

import subprocess
import sys
import traceback
from collections.abc import Callable

import pytest

import tilelink
from tilelink.errors import TileLinkError

TEXT = """program p(M):
    x : in [M]
    y : out [M]
    z : local [M]
    compute a(i: M):
        y[i] = x[i]
    compute b(i: M):
        z[i] = x[i]
        producer_tile_notify(z[i])
schedule s for p:
    a on copy_engine
"""
PROGRAM = tilelink.parse(TEXT).program()
HALF = tilelink.parse(TEXT.replace("y[i] = x[i]", "if i == 0:\n            y[i] = x[i]")).program()
SIZES = {"M": 8}
KERNEL = tilelink.compile(PROGRAM, ranks=1, dims=SIZES)
REFUSED: dict[str, Callable[[], object]] = {
    "parse": lambda: tilelink.parse(TEXT.replace("x[i]", "xx[i]", 1)),
    "two mistakes": lambda: tilelink.parse(TEXT.replace("x[i]", "xx[i]")),
    "load": lambda: tilelink.load("no_such_program"),
    "program": lambda: tilelink.parse(TEXT).program("q"),
    "a clause": lambda: tilelink.schedule(PROGRAM).tile("c", i=4),
    "a clause that is no text of one": lambda: tilelink.schedule(PROGRAM).on("a", "gpu"),
    "a call of a kernel": lambda: KERNEL([{}]),
    "a run of a kernel": lambda: KERNEL.run([[{}]]),
    "the reference of a kernel": lambda: KERNEL.reference([{}]),
    "schedule of a file": lambda: tilelink.parse(TEXT).schedule("q", PROGRAM),
    "plan": lambda: tilelink.plan(HALF, ranks=2, dims=SIZES),
    "compile": lambda: tilelink.compile(HALF, ranks=2, dims=SIZES),
    "compile, before anything is planned": lambda: tilelink.compile(PROGRAM, ranks=0, dims=SIZES),
    "source": lambda: tilelink.source(HALF, ranks=2, dims=SIZES),
    "simulate": lambda: tilelink.simulate(HALF, ranks=2, dims=SIZES, machine="8xH200"),
    "schedule": lambda: tilelink.schedule(PROGRAM, like=tilelink.schedule("p").on("c", "sm")),
    "variant": lambda: tilelink.variant(PROGRAM, "other", no="choice"),
    "link": lambda: tilelink.link("text"),  # type: ignore[arg-type]
    "function": lambda: tilelink.program(len),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_ends_with_the_users_call(name: str) -> None:
    with pytest.raises(TileLinkError) as caught:
        REFUSED[name]()
    frames = [(frame.filename, frame.name) for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert [file for file, _ in frames] == [__file__, __file__], frames  # this function, and the lambda
    assert frames[-1][1] == "<lambda>"


def test_the_development_mode_of_python_keeps_all_frames() -> None:
    code = "import tilelink; tilelink.parse('program p(M):\\n    x : out [N]\\n')"
    for options, all_of_them in (([], False), (["-X", "dev"], True)):
        done = subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "unknown name 'N'" in done.stderr
        assert (done.stderr.count('  File "') > 5) is all_of_them
