"""Programs that fail beside neighbours that do not, one statement or buffer apart: no rule is wider, or narrower."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from tests.verifier.dynamic import check
from tilelink.errors import OrderingError, ReuseError, VerificationError
from tilelink.frontend.parser import parse_text
from tilelink.lowering.bind import bind
from tilelink.planning.plan import Plan, make_plan
from tilelink.target import CPU
from tilelink.verifier import refusals

HEAD = "program p(M, N):\n    x : in [M, N]\n    y : out [M, N]\n"
# A rank sends when its receiver has entered the launch, which may be known before each push, or only after the first.
ASKED = """    g : symmetric [M, N]
    h : symmetric [M, N]

    compute ask(i: M):
        producer_tile_notify(g[i, :] @ (rank + 1))

    compute send(i: M):
        {first}
        {second}
        producer_tile_notify(h[i, :] @ (rank - 1))

    compute use(i: M):
        consumer_tile_wait(h[i, :])
        y[i, :] = h[i, :]

schedule s for p:
    ask on sm(2), tile(i=1)
    send on sm(1), tile(i=1)
    use on sm(1), tile(i=1)
    g buffers 2
    h buffers 1
    reuse_wait off
"""
KNOWN, PUSH = "consumer_tile_wait(g[i, :])", "tile_push_data(h[i, :] @ (rank - 1), x[i, :])"
# A rank fills what its neighbour reads, when that neighbour has entered the launch, or before.
FILLED = """    g : symmetric [M, N]
    h : symmetric [M, N]

    compute ask(i: M):
        producer_tile_notify(g[i, :] @ (rank - 1))

    compute fill(i: M):
        {first}
        {second}
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute add(i: M):
        consumer_tile_wait(h[i, :])
        y[i, :] = h[i, :] @ (rank - 1)

schedule s for p:
    ask on sm(1), tile(i=1)
    fill on sm(1), tile(i=1)
    add on sm(1), tile(i=1)
    g buffers 2
    h buffers 1
    reuse_wait off
"""
FILL = "h[i, :] = x[i, :]"
# Outputs that a neighbour writes tell of its launch only what comes before the last of its notifies.
SENT = """    h : symmetric [M, N]
    z : out symmetric [M, N]

    compute send(i: M):
        tile_push_data(z[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(z[i, :] @ (rank + 1))
        {wait}
        y[i, :] = {read}

    compute back(i: M):
        tile_push_data(h[i, :] @ (rank {sign} 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank {sign} 1))
{use}
schedule s for p:
    send on sm(1), tile(i=1)
    back on sm(1), tile(i=1)
    h buffers 2
    z buffers 2
    reuse_wait off
"""
WAITS = SENT.format(wait="consumer_tile_wait(h[i, :])", read="h[i, :]", sign="+", use="")
PASSES = SENT.format(
    wait="",
    read="x[i, :]",
    sign="+",
    use="""
    compute use(i: M):
        consumer_tile_wait(h[i, :])
        d[i, :] = h[i, :]
""",
).replace("    z : out", "    d : local [M, N]\n    z : out")
BRANCH = """    c : local [M, N]
    d : local [M, N]

    compute first(i: M):
        c[i, :] = x[i, :]
        producer_tile_notify(c[i, :])

    compute second(i: M):
        {before}
        if rank == 3:
            d[i, :] = x[i, :]
        else:
            d[i, :] = x[i, :]
            d[i, :] = x[i, :] + 1.0
            y[i, :] = c[i, :] + d[i, :]
        {after}
        if rank == 3:
            y[i, :] = x[i, :]

schedule s for p:
    first on sm(1), tile(i=1)
    second on sm(1), tile(i=1)
"""
AWAIT = "consumer_tile_wait(c[i, :])"

# The second counter of rank 0 tells nothing of the first one of rank 1.
CROSSED = """    h : symmetric [M, 2, N]

    compute fill(i: M):
        h[i, 0, :] = x[i, :]
        producer_tile_notify(h[i, 0, :])
        h[i, 1, :] = x[i, :]
        producer_tile_notify(h[i, 1, :])

    compute take(i: M):
        if rank == 0:
            consumer_tile_wait(h[i, 1, :])
            y[i, :] = {read}
        else:
            y[i, :] = x[i, :]

schedule s for p:
    fill on sm(1), tile(i=1)
    take on sm(1), tile(i=1)
"""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A program that fails, what is said of it, and its neighbour, which does not fail."""

    kind: type[VerificationError]
    words: str
    bad: str
    good: str


PAIRS = {
    "a first push that asks nobody": Pair(
        kind=ReuseError,
        words="accesses a buffer of h that rank 2 may still use for the previous launch",
        bad=ASKED.format(first=PUSH, second=KNOWN),
        good=ASKED.format(first=KNOWN, second=PUSH),
    ),
    "memory filled again beside its reader": Pair(
        kind=ReuseError,
        words="accesses a buffer of h that rank 1 may still use for the previous launch",
        bad=FILLED.format(first=FILL, second=KNOWN),
        good=FILLED.format(first=KNOWN, second=FILL),
    ),
    "outputs that tell of nobody's launch": Pair(
        kind=ReuseError,
        words="may still use for the launch 2 before",
        bad=PASSES,
        good=WAITS,
    ),
    "a wait after a branch that reads": Pair(
        kind=OrderingError,
        words="reads c of rank 1, which rank 1, first tile (i=0) also writes, and nothing orders the two",
        bad=BRANCH.format(before="d[i, :] = x[i, :]", after=AWAIT),
        good=BRANCH.format(before=AWAIT, after="d[i, :] = x[i, :]"),
    ),
    "a wait for a counter of another rank": Pair(
        kind=OrderingError,
        words="reads h of rank 1, which rank 1, fill tile (i=0) also writes, and nothing orders the two",
        bad=CROSSED.format(read="h[i, 0, :] @ (rank + 1)"),
        good=CROSSED.format(read="h[i, 1, :]"),
    ),
}


def planned(text: str, size: int = 3, sms: int = 8) -> Plan:
    module = parse_text(text, "test.tl")
    schedule = module.schedules[0] if module.schedules else None
    return make_plan(bind(module.programs[0], schedule, {"M": size, "N": 3}, 3, replace(CPU, grows=False, sms=sms)))


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_what_fails_is_refused_and_its_neighbour_is_not(case: str) -> None:
    pair = PAIRS[case]
    bad, good = planned(HEAD + pair.bad), planned(HEAD + pair.good)
    assert check(bad, range(60))
    found = refusals(bad)
    assert [type(one) for one in found[:1]] == [pair.kind]
    assert pair.words in found[0].message
    assert refusals(good) == []
    assert check(good, range(30)) == []


STAGED = """program p(M, N):
    x : in symmetric [M, N]
    h : symmetric [M, N]
    y : out [M, N]

    compute s(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))
        consumer_tile_wait(h[i, :])
        y[i, :] = h[i, :]

schedule s for p:
    x buffers 3
"""
HALVES = """program p(M, N):
    x : in [M, N]
    y : out symmetric [2, M, N]

    comm send(i: M):
        tile_push_data(y[0, i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(y[0, i, :] @ (rank + 1))
        tile_push_data(y[1, i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(y[1, i, :] @ (rank + 1))
"""
COUNTED = (
    HEAD
    + """    c : local [M, N]

    compute a(i: M):
        c[i, :] = x[i, :]
        c[i, :] = c[i, :] + x[i, :]
        y[i, :] = c[i, :]
"""
)
SHIFTED = """program p(M, N):
    x : in [M, N]
    h : symmetric [2 * M, N]
    y : out [2 * M, N]

    comm send(s: 2, i: M):
        tile_push_data(h[s * M + i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[s * M + i, :] @ (rank + 1))

    compute take(k: 2 * M):
        consumer_tile_wait(h[k, :])
        y[k, :] = h[k, :]

schedule s for p:
    send on sm(1), tile(i=4)
    take on sm(1), tile(k=4)
    h channel(k=4)
"""


@pytest.mark.parametrize(
    "text",
    [STAGED, HALVES, COUNTED, SHIFTED],
    ids=[
        "the input of a later launch has buffers of its own",
        "an output in two parts, told of one by one",
        "a task that reads an element and writes it again",
        "shifted tiles that tell two channels each",
    ],
)
def test_what_never_fails_is_accepted(text: str) -> None:
    plan = planned(text, 7)
    assert refusals(plan) == []
    assert check(plan, range(30)) == []


def test_a_kernel_that_reads_peers_inputs_waits_for_their_entry() -> None:
    text = "program p(M, N):\n    x : in symmetric [M, N]\n    y : out [M, N]\n\n"
    plan = planned(text + "    compute a(i: M):\n        y[i, :] = x[i, :] @ (rank + 1)\n")
    assert refusals(plan) == []
    assert check(plan, range(30)) == []
    blind = tuple(replace(kernel, needs_entry=False) for kernel in plan.bound.kernels)
    blind_plan = replace(plan, bound=replace(plan.bound, kernels=blind))
    assert check(blind_plan, range(30))
    assert [f.message.partition(": ")[2] for f in refusals(blind_plan)] == [
        "reads a peer's input before that peer has entered"
    ]
