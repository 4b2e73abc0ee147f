# pyright: basic
# ruff: noqa: E501 - texts of errors are compared as they are
"""The whole text of an error of every class: message, location with a caret, and hint."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.house import sources
from tests.lowered import parse_lowered
from tilelink import compiler, data, errors, reference, settings
from tilelink.errors import TileLinkError
from tilelink.ir.scalar import add, const
from tilelink.lowering.listing import listing
from tilelink.planning.plan import make_plan
from tilelink.runtime.cuda import report
from tilelink.search import Candidate, Space
from tilelink.simulator import machine
from tilelink.simulator.cost import TileTime
from tilelink.target import target
from tilelink.verifier import verify

NO_TEXT = {
    "TileLinkError": "the base of all",
    "VerificationError": "the base of the rules",
    "LaunchFailure": "the base of errors of a launch that hangs, or whose rank died",
    "ConsequenceError": "dropped by Mistakes: no user sees it",
}

HEAD = "program p(M, N):\n    x : in [M, N]\n    h : symmetric [M, N]\n    y : out [M, N]\n"
COPY = "    compute f(i: M, j: N):\n        y[i, j] = x[i, j]\n"
SEND = "    comm send(i: M):\n        tile_push_data(h[i, :] @ (rank + 1), x[i, :])\n"
TELL = "        producer_tile_notify(h[i, :] @ (rank + 1))\n"
WAIT = "        consumer_tile_wait(h[i, j])\n"
ADD = f"    compute add(i: M, j: N):\n{WAIT}        y[i, j] = x[i, j] + h[i, j]\n"
CIRCLE = (
    "    compute a(i: M):\n        peer_tile_wait(h[i, :])\n        y[i, :] = h[i, :]\n"
    "        tile_push_data(h[i, :] @ (rank + 1), x[i, :])\n        peer_tile_notify(h[i, :] @ (rank + 1))\n"
)
BOTH = "    comm a(p: ranks, i: M):\n        tile_push_data(h[i, :] @ p, x[i, :])\n        producer_tile_notify(h[i, :] @ p)\n"


def space_of_one() -> Space:
    return Space.of([compiler.parse(HEAD + COPY).programs[0]], dims={"M": 8, "N": 8}, ranks=2, target=target("cpu"))


def program(text: str, nodes: int = 1, **dims: int) -> Callable[[], object]:
    """Return a function that does everything that is done to a program before it runs, on three ranks."""

    def build() -> object:
        module = compiler.parse(text, "wrong.tl")
        schedule = module.schedules[0] if module.schedules else None
        return compiler.source(module.program(), schedule, ranks=3, nodes=nodes, dims=dims or {"M": 50, "N": 36})

    return build


def reported(*words: int) -> None:
    """Raise what a GPU reported with these words."""
    found = report.Report("p", 1, torch.device("cpu"))
    found.words[: len(words)] = words
    try:
        found.check()
    finally:
        found.words[0] = 0  # else it is told at the end of the process


def raised(error: TileLinkError) -> Callable[[], object]:
    """Return a function that raises an error of a run, constructed as the runtime does."""

    def throw() -> object:
        raise error

    return throw


def bad_deadline() -> object:
    with settings.environment(TILELINK_DEADLINE="soon"):
        return settings.settings()


def without_wait() -> object:
    """A lowered program whose loader does not wait until a buffer is free."""
    text = """program p(M, N, K):
    a : in [M, K]
    b : in [N, K]
    y : out [M, N]

    compute f(i: M, j: N):
        y[i, j] = dot(a[i, :], b[j, :].T)

schedule s for p:
    f on sm, tile(i=128, j=128, k=64), roles(consumers=2, buffers=4)
"""
    module = compiler.parse(text, "wrong.tl")
    sizes = {"M": 256, "N": 256, "K": 256}
    made = compiler.bound(module.program(), module.schedules[0], ranks=1, dims=sizes, dtype="bf16", target="sm_90")
    wrong = parse_lowered(listing(made).replace("loader: await empty 1; ", "loader: "))
    f = replace(made.stages["f"], roles=wrong.stages["f"].roles)
    verify(make_plan(replace(made, stages={"f": f})))
    return None


def fewer_slots() -> object:
    """A plan whose memory has one slot less than there are credits for."""
    text = """program p(M, N):
    x : in        [4, M, N]
    h : symmetric [4, M, N]
    y : out       [4, M, N]

    comm send(l: 4):
        tile_push_data(h[l, :, :] @ (rank + 1), x[l, :, :])
        producer_tile_notify(h[l, :, :] @ (rank + 1))

    compute keep(l: 4):
        consumer_tile_wait(h[l, :, :])
        y[l, :, :] = h[l, :, :]

schedule s for p:
    send on sm(1)
    h slots(l=2)
"""
    module = compiler.parse(text, "wrong.tl")
    plan = compiler.plan(module.program(), module.schedules[0], ranks=2, dims={"M": 8, "N": 8})
    tensors = {**plan.bound.tensors, "h": replace(plan.bound.tensors["h"], steps=(0, 1))}
    return verify(replace(plan, bound=replace(plan.bound, tensors=tensors)))


def beyond_its_bound() -> object:
    text = "program p(M):\n    n : local [] <= M\n    x : in [M]\n    y : out [M]\n    compute f():\n        n[] = 9\n"
    text += "        producer_tile_notify(n)\n    compute g(i: M):\n        y[i] = x[i]\n"
    return reference.run(compiler.parse(text, "wrong.tl").program(), [{"x": torch.zeros(8)}], {"M": 8})


def wrong_numbers() -> object:
    """A lowered program whose kernel walks fewer tiles than a launch has."""
    text = """program p(M, N, K):
    m : in [] <= M
    a : in [M, K]
    b : in [N, K]
    y : out [M[: m], N]

    compute f(i: M[: m], j: N):
        y[i, j] = dot(a[i, :], b[j, :].T)
"""
    sizes = {"M": 256, "N": 256, "K": 256}
    program = compiler.parse(text, "wrong.tl").program()
    made = compiler.bound(program, ranks=1, dims=sizes, dtype="bf16", target="sm_90")
    (kernel,) = made.kernels
    (loop,) = kernel.loops
    assert loop.compact is not None
    less = replace(loop.compact, there=add(loop.compact.there, const(-1)))
    verify(make_plan(replace(made, kernels=(replace(kernel, loops=(replace(loop, compact=less),)),))))
    return None


# name of the class -> what raises it, and its text
CASES: dict[str, tuple[Callable[[], object], str]] = {
    "SeveralErrors": (
        program(HEAD + "    compute f(i: M, j: N):\n        y[i, j] = z[i, j]\n        x[i, j] = w\n"),
        """\
UnknownNameError: unknown name 'z'
  at wrong.tl:6:19
            y[i, j] = z[i, j]
                      ^
  hint: known: M, N, x, h, y, i, j, rank, ranks

UnknownNameError: unknown name 'w'
  at wrong.tl:7:19
            x[i, j] = w
                      ^
  hint: known: M, N, x, h, y, i, j, rank, ranks

2 mistakes""",
    ),
    "SettingsError": (
        bad_deadline,
        """\
SettingsError: TILELINK_DEADLINE is 'soon', which is not a number of seconds
  hint: write a positive number, as in TILELINK_DEADLINE=30, or unset it for the runtime's own deadline""",
    ),
    "UnknownTargetError": (
        lambda: target("sm_1"),
        """\
UnknownTargetError: there is no target 'sm_1'
  hint: the targets are cpu, sm_80, sm_89, sm_90, gfx942""",
    ),
    "MachineError": (
        lambda: machine.machine_of({"name": "box"}),
        """\
MachineError: <json> does not describe a machine
  hint: {"name": ..., "target": ..., "sms": {"value": ...}}""",
    ),
    "DataError": (
        lambda: data.parse_json(b"[" * 100_000, "m.json"),
        """\
DataError: m.json cannot be read: its lists are too deep inside one another
  hint: it may have 64 levels of lists and objects""",
    ),
    "CostError": (
        lambda: TileTime(main=-1.0),
        """\
CostError: main of a TileTime is -1.0
  hint: a cost model returns a finite number of seconds, 0 or more""",
    ),
    "SearchError": (
        lambda: space_of_one().schedule(Candidate(program=1, choices=())),
        """\
SearchError: a strategy proposes program 1 of 1
  hint: make points with Space.random, neighbour and cross; Space.knobs lists the choices""",
    ),
    "OutputError": (
        raised(errors.OutputError("out.png cannot be drawn", hint="name a .png, .svg or .pdf file")),
        """\
OutputError: out.png cannot be drawn
  hint: name a .png, .svg or .pdf file""",
    ),
    "ParseError": (
        program(HEAD + COPY.replace("x[i, j]", "x[i, j")),
        """\
ParseError: '[' is never closed
  at wrong.tl:6:20
            y[i, j] = x[i, j
                       ^
  hint: close it on this line, or in the lines that continue it""",
    ),
    "UnknownNameError": (
        program(HEAD + COPY.replace("x[i", "exp(xx[i").replace("j]\n", "j])\n")),
        """\
UnknownNameError: unknown name 'xx'
  at wrong.tl:6:23
            y[i, j] = exp(xx[i, j])
                          ^^
  hint: did you mean x?""",
    ),
    "DuplicateNameError": (
        program(HEAD.replace("h :", "x :") + COPY),
        """\
DuplicateNameError: x is declared twice
  at wrong.tl:3:5
        x : symmetric [M, N]
        ^
  see wrong.tl:2:5
        x : in [M, N]
        ^
  hint: rename one of them""",
    ),
    "ShapeError": (
        program(HEAD + COPY.replace("x[i, j]", "x[j, i]")),
        """\
ShapeError: index j runs over N, but that dimension of x is M
  at wrong.tl:6:19
            y[i, j] = x[j, i]
                      ^^^^^^^
  hint: use an index over M, or 0 + j, which may be in a dimension of any size""",
    ),
    "DtypeError": (
        program(HEAD.replace("M, N):", "M, N, s: f32):", 1) + COPY.replace("x[i", "x[s")),
        """\
DtypeError: s is f32, no integer
  at wrong.tl:6:21
            y[i, j] = x[s, j]
                        ^
  hint: coordinates and ranks are integers: declare it as s: i32""",
    ),
    "RemoteAccessError": (
        program(HEAD + COPY.replace("x[i, j]", "x[i, j] @ 1")),
        """\
RemoteAccessError: peers cannot reach x, which is in and not symmetric
  at wrong.tl:6:19
            y[i, j] = x[i, j] @ 1
                      ^^^^^^^^^^^
  see wrong.tl:2:5
        x : in [M, N]
        ^
  hint: declare it as x : in symmetric [...]""",
    ),
    "WriteError": (
        program(HEAD + COPY + "        x[i, j] = 0.0\n"),
        """\
WriteError: x is an input
  at wrong.tl:7:9
            x[i, j] = 0.0
            ^^^^^^^
  see wrong.tl:2:5
        x : in [M, N]
        ^
  hint: write to an out, local or symmetric tensor instead of x; or declare x : inout [...], to change it in place""",
    ),
    "StageError": (
        program(HEAD + COPY + "        tile_pull_data(y[i, j], x[i, j] + 1)\n"),
        """\
StageError: tile_pull_data copies a region
  at wrong.tl:7:9
            tile_pull_data(y[i, j], x[i, j] + 1)
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: only tile_push_data takes a computed value""",
    ),
    "ScheduleError": (
        program(HEAD + COPY + "schedule s for p:\n    g on sm\n"),
        """\
ScheduleError: no stage 'g'
  at wrong.tl:8:5
        g on sm
        ^
  hint: stages: f""",
    ),
    "OrderError": (
        program(HEAD + COPY + "schedule s for p:\n    f on sm, order(k)\n"),
        """\
OrderError: order of unknown index 'k'
  at wrong.tl:8:20
        f on sm, order(k)
                       ^
  hint: indices: i, j""",
    ),
    "TileSizeError": (
        program(HEAD + COPY + "schedule s for p:\n    f on sm, tile(k=3)\n"),
        """\
TileSizeError: stage f has nothing named 'k' to tile
  at wrong.tl:8:19
        f on sm, tile(k=3)
                      ^^^
  hint: its indices are i, j""",
    ),
    "BindingError": (
        program(HEAD + COPY, M=50),
        """\
BindingError: parameter 'N' has no value
  at wrong.tl:1:14
    program p(M, N):
                 ^
  hint: give N a value (--set N=...)""",
    ),
    "CoverageError": (
        program(HEAD + COPY.replace("j: N", "j: N, s: ranks")),
        """\
CoverageError: every tile of s writes the same elements of y
  at wrong.tl:6:9
            y[i, j] = x[i, j]
            ^^^^^^^
  see wrong.tl:5:27
        compute f(i: M, j: N, s: ranks):
                              ^^^^^^^^
  hint: use s in y[i, j] or in a condition around it, or take the index out; a result of all of s is put together in a loop and stored after it""",
    ),
    "OrderingError": (
        program(HEAD + SEND + TELL + ADD.replace(WAIT, "")),
        """\
OrderingError: rank 0, add tile (i=0, j=0): reads h of rank 0, which rank 2, send tile (i=0) also writes, and nothing orders the two
  at wrong.tl:9:9
            y[i, j] = x[i, j] + h[i, j]
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  see wrong.tl:6:9
            tile_push_data(h[i, :] @ (rank + 1), x[i, :])
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: notify the region of h on rank 0 after the write and wait for it before the read""",
    ),
    "AccountingError": (
        program(HEAD + SEND + ADD),
        """\
AccountingError: consumer_tile_wait waits for h, which no producer_tile_notify of the program names
  at wrong.tl:8:9
            consumer_tile_wait(h[i, j])
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  see wrong.tl:3:5
        h : symmetric [M, N]
        ^
  hint: producer_tile_notify(h[...]) where the data is complete, or tilelink.link(program)""",
    ),
    "ProgressError": (
        program(HEAD + CIRCLE),
        """\
ProgressError: rank 0, a tile (i=0): waits for ever for h channel [0, 0] (peer signals), which rank 2, a tile (i=0) notifies later: rank 0, a tile (i=0) waits for h, and rank 2, a tile (i=0) waits for h, and rank 1, a tile (i=0) waits for h
  at wrong.tl:6:24
            peer_tile_wait(h[i, :])
                           ^^^^^^^
  hint: in any order of tiles each of these waits for the next one: let one of them notify before it waits, or wait only where it reads what the other writes""",
    ),
    "ExclusiveWriteError": (
        program(HEAD + BOTH + ADD),
        """\
ExclusiveWriteError: rank 1, a tile (p=0, i=0): writes h of rank 0, which rank 0, a tile (p=0, i=0) also writes, and nothing orders the two
  at wrong.tl:6:9
            tile_push_data(h[i, :] @ p, x[i, :])
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  see wrong.tl:6:9
            tile_push_data(h[i, :] @ p, x[i, :])
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: let one task write each element, or order the writes by a notify and a wait""",
    ),
    "ReuseError": (
        program(HEAD + SEND + TELL + ADD + "schedule s for p:\n    reuse_wait off\n"),
        """\
ReuseError: rank 0, send tile (i=0): accesses a buffer of h that rank 1 may still use for the launch 2 before
  at wrong.tl:6:9
            tile_push_data(h[i, :] @ (rank + 1), x[i, :])
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: drop `reuse_wait off`, or give h more buffers""",
    ),
    "NetworkError": (
        program(
            HEAD.replace("in [", "in symmetric [") + COPY.replace("= x[i, j]", "= x[i, j] @ (rank + 1) * 2.0"), nodes=3
        ),
        """\
NetworkError: rank 0, f tile (i=0, j=0): reads x of rank 1, on another node, by its address
  at wrong.tl:6:9
            y[i, j] = x[i, j] @ (rank + 1) * 2.0
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: fetch the region first: tile_pull_data(a local region, ... @ rank), then read that""",
    ),
    "PromiseError": (
        beyond_its_bound,
        """\
PromiseError: n of rank 0 is 9
  at wrong.tl:6:9
            n[] = 9
            ^^^
  see wrong.tl:2:5
        n : local [] <= M
        ^
  hint: it is stored here, and entries of n lie in [0, 9): mask it with where, or limit it with minimum""",
    ),
    "StepsError": (
        fewer_slots,
        """\
StepsError: rank 1, send tile (l=1): writes h[1:2, 0:8, 0:8] of rank 0, in whose slot, one of 1, is h[0:1, 0:8, 0:8], which rank 0, keep tile (l=0) may not have read yet
  at wrong.tl:7:9
            tile_push_data(h[l, :, :] @ (rank + 1), x[l, :, :])
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  see wrong.tl:12:9
            y[l, :, :] = h[l, :, :]
            ^^^^^^^^^^^^^^^^^^^^^^^
  hint: wait until that has been read, or give h more slots""",
    ),
    "WordsError": (
        program(HEAD + SEND + TELL + ADD.replace(WAIT, "") + "schedule s for p:\n    h low_latency\n"),
        """\
WordsError: rank 0, add tile (i=0, j=0): reads h[i, j], which has `low_latency`, and has not waited for all of it
  at wrong.tl:9:9
            y[i, j] = x[i, j] + h[i, j]
            ^^^^^^^^^^^^^^^^^^^^^^^^^^^
  hint: wait for what is read, before it and in the same tile: consumer_tile_wait(h[i, j])""",
    ),
    "RolesError": (
        without_wait,
        """\
RolesError: f: in the ring of operands, a loader writes a buffer that is still written
  at wrong.tl:6:13
        compute f(i: M, j: N):
                ^
  hint: the pass `roles` makes rings without this mistake: tilelink show FILE --after roles""",
    ),
    "TilesError": (
        wrong_numbers,
        """\
TilesError: f: `there` is not the number of tiles of i in segment 0 of rank 0
  at wrong.tl:7:13
        compute f(i: M[: m], j: N):
                ^
  hint: compact numbers as the pass `compact` makes them, or none""",
    ),
    "EmitError": (
        program(HEAD + COPY.replace("x[i, j]", "exp(x[i, j])") + "schedule s for p:\n    f on copy_engine\n"),
        """\
EmitError: the copy engine cannot compute
  at wrong.tl:6:9
            y[i, j] = exp(x[i, j])
            ^^^^^^^^^^^^^^^^^^^^^^
  hint: the copy engine copies regions, waits and notifies; run the stage on sm""",
    ),
    "RankError": (
        raised(errors.RankError("rank 1 ended with status 9", rank=1, details="ValueError: x", hint="run it alone")),
        """\
RankError: rank 1 ended with status 9
ValueError: x
  hint: run it alone""",
    ),
    "CapacityError": (
        raised(
            errors.CapacityError("a call before had 9 choices, and there is room for 8", hint="give a capacity of 9")
        ),
        """\
CapacityError: a call before had 9 choices, and there is room for 8
  hint: give a capacity of 9""",
    ),
    "CallError": (
        raised(
            errors.CallError(
                "rank 1 failed in mine.gate, called in `y[i, j] = call mine.gate(t)` (p.tl:6): ValueError: x",
                location=errors.Location(file="mine.py", line=3, column=12, length=6, text="    return gate.x"),
                rank=1,
                details="the whole traceback",
                hint="mend the function",
            )
        ),
        """\
CallError: rank 1 failed in mine.gate, called in `y[i, j] = call mine.gate(t)` (p.tl:6): ValueError: x
  at mine.py:3:12
        return gate.x
               ^^^^^^
  hint: mend the function""",
    ),
    "DeadlineError": (
        raised(
            errors.DeadlineError(
                "rank 0 waited 2 s for h[0]", seconds=2.0, waiting=("rank 1: add, tile 3",), hint="see the trace"
            )
        ),
        """\
DeadlineError: rank 0 waited 2 s for h[0]
  hint: see the trace
  then:
    rank 1: add, tile 3""",
    ),
    "OverlapError": (
        lambda: reported(report.OVERLAPPED, 12, 11),
        """\
OverlapError: launch 13 of p on rank 1 began before launch 12 had ended; this process can no longer use its GPU
  hint: order launches of one kernel that are on several streams, replays of graphs too, by an event (docs/decode.md)""",
    ),
    "LaunchOrderError": (
        lambda: reported(report.DIFFERENT, report.identity(2, 1), 0, 3),
        """\
LaunchOrderError: rank 1 launches p as launch 1 of capture 2, rank 3 outside of graphs; this process can no longer use its GPU
  hint: all ranks replay their graphs, and make other calls, in one order (docs/decode.md)""",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_whole_text(name: str) -> None:
    provoke, text = CASES[name]
    with pytest.raises(TileLinkError) as caught:
        provoke()
    assert type(caught.value).__name__ == name
    assert str(caught.value) == text
    assert str(pickle.loads(pickle.dumps(caught.value))) == text


def public_classes() -> list[str]:
    return [n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, TileLinkError)]


def used_in_the_package() -> set[str]:
    """Return the names that modules use other than to catch them; an import alone does not count."""
    used: set[str] = set()
    for path in sources.modules():
        tree = sources.tree(path)
        caught = {
            id(n) for h in ast.walk(tree) if isinstance(h, ast.ExceptHandler) and h.type for n in ast.walk(h.type)
        }
        used |= {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in caught}
    return used


def test_every_class_is_raised_and_has_its_text_here() -> None:
    assert [name for name in public_classes() if name not in CASES and name not in NO_TEXT] == []
    assert set(CASES) - set(public_classes()) == set()
    assert {n for n in public_classes() if n not in NO_TEXT} - used_in_the_package() == set()
