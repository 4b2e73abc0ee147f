"""A wait or a notify that is there, for another region than is read or written: the refusal names both regions."""

from __future__ import annotations

import pytest

from tilelink.errors import OrderingError
from tilelink.frontend.parser import parse_text
from tilelink.lowering.bind import bind
from tilelink.planning.plan import make_plan
from tilelink.target import CPU
from tilelink.verifier import refusals

TEXT = """\
program all_to_all(M, N):
    x   : in symmetric [ranks, M, N]
    got : symmetric [ranks, M, N]
    y   : out [ranks, M, N]

    comm send(p: ranks, i: M):
        tile_push_data(got[rank, i, :] @ p, x[p, i, :])
        producer_tile_notify(got[rank, i, :] @ p)

    compute add(s: ranks, i: M, j: N):
        consumer_tile_wait(got[s, i, j])
        y[s, i, j] = got[s, i, j]
"""
IN_A_LOOP = """\
    compute add(i: M, j: N):
        for (s: ranks):
            consumer_tile_wait(got[s, i, j])
            y[s, i, j] = got[s + 1, i, j]
"""
WRITE, NOTIFY, WAIT, READ = 7, 8, 11, 12
"""Their lines."""
ASK = "wait for the region that is read"
TELL = "notify the region that is written, on the rank where it is written"
MET = "also writes, and nothing orders the two"


def refused(text: str, which: int = 0) -> OrderingError:
    program = parse_text(text, "test.tl").programs[0]
    found = refusals(make_plan(bind(program, None, {"M": 8, "N": 4}, 4, CPU)))[which]
    assert type(found) is OrderingError
    return found


@pytest.mark.parametrize(
    ("before", "after", "message", "line", "hint"),
    [
        pytest.param(
            "= got[s,", "= got[s + 1,",
            f"(s=0, i=0, j=0): waits for got[0:1, 0:8, 0:4] of rank 0 and reads got[1:2, 0:8, 0:4], "
            f"which rank 1, send tile (p=0, i=0) {MET}",
            WAIT, ASK, id="read of another region",
        ),
        pytest.param(
            "wait(got[s,", "wait(got[s + 1,",
            f"(s=1, i=0, j=0): waits for got[2:3, 0:8, 0:4] of rank 0 and reads got[1:2, 0:8, 0:4], "
            f"which rank 1, send tile (p=0, i=0) {MET}",
            WAIT, ASK, id="wait for another region",
        ),
        pytest.param(
            "notify(got[rank,", "notify(got[rank + 1,",
            f"{MET}: the write is of got[1:2, 0:8, 0:4], the notify of got[2:3, 0:8, 0:4] of rank 0",
            NOTIFY, TELL, id="notify of another region",
        ),
        pytest.param(
            "data(got[rank,", "data(got[rank + 1,",
            f"{MET}: the write is of got[0:1, 0:8, 0:4], the notify of got[3:4, 0:8, 0:4] of rank 0",
            NOTIFY, TELL, id="write of another region",
        ),
        pytest.param(
            ":] @ p)\n\n", ":] @ (p + 1))\n\n",
            f"{MET}: the write is of got[1:2, 0:8, 0:4], the notify of got[1:2, 0:8, 0:4] of rank 1",
            NOTIFY, TELL, id="notify on another rank",
        ),
    ],
)  # fmt: skip
def test_the_refusal_names_both_regions(before: str, after: str, message: str, line: int, hint: str) -> None:
    assert TEXT.count(before) == 1
    error = refused(TEXT.replace(before, after))
    assert error.message.endswith(message)
    assert error.hint == hint
    assert error.location is not None
    assert error.related is not None
    assert (error.location.line, error.related.line) == (READ, line)


def test_both_may_be_mismatched() -> None:
    text = TEXT.replace("= got[s,", "= got[s + 2,").replace("notify(got[rank,", "notify(got[rank + 1,")
    assert refused(text).hint == "wait for the region that is read, and notify it after the write"


def test_of_several_waits_the_last_is_shown() -> None:
    error = refused(TEXT[: TEXT.index("    compute")] + IN_A_LOOP, 1)
    assert "waits for got[1:2, 0:8, 0:4] of rank 0 and reads got[2:3, 0:8, 0:4]" in error.message
    assert error.hint == ASK


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("        consumer_tile_wait(got[s, i, j])\n", "", id="no wait"),
        pytest.param("= got[s, i, j]\n", "= got[s, i, j] @ (rank + 1)\n", id="read of a peer's"),
    ],
)
def test_elsewhere_the_hint_asks_for_both_signals(before: str, after: str) -> None:
    assert TEXT.count(before) == 1
    error = refused(TEXT.replace(before, after))
    assert error.hint == "notify the region of got on rank 0 after the write and wait for it before the read"
    assert error.related is not None
    assert error.related.line == WRITE
