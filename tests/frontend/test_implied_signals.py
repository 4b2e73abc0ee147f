"""Signals that a program leaves out: which are put in, which are not, and that they are proved like written ones."""

from __future__ import annotations

import pytest

import tilelink
from tilelink.frontend.parser import parse_text
from tilelink.ir.program import Notify, Program, Wait
from tilelink.ir.visitor import statements
from tilelink.language import Dim, Index, rank, tile_push_data

SENT = """
program sent(M = 24, N = 8):
    x : in        [M, N]
    h : symmetric [M, N]
    c : local     [M, N]
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        notify(h[i, :] @ (rank + 1))

    compute make(i: M, j: N):
        wait(h[i, :])
        c[i, j] = h[i, j] + 1.0
        notify(c[i, j])

    compute use(i: M, j: N):
        wait(c[i, j])
        y[i, j] = c[i, j] * c[i, j]
"""


def without(text: str, *words: str) -> str:
    """The text without the lines that hold one of some texts."""
    return "".join(line for line in text.splitlines(keepends=True) if not any(word in line for word in words))


def parsed(text: str) -> Program:
    return tilelink.parse(text, "p.tl").program()


def signals(program: Program) -> list[str]:
    """The signals of a program, as `STAGE word(tensor)`."""
    return [
        f"{stage.name} {'notify' if isinstance(one, Notify) else 'wait'} {one.region.tensor}"
        for stage in program.stages
        for one in statements(stage.body)
        if isinstance(one, Notify | Wait)
    ]


def test_what_repeats_a_push_or_a_read_may_be_left_out() -> None:
    short = parsed(without(SENT, "notify", "wait").replace("c[i, j] = h[i, j]", "c[i, j] = h[i, :] * 0.0 + h[i, j]"))
    assert signals(short) == ["send notify h", "make wait h", "make wait h", "make notify c", "use wait c"]
    assert parsed(without(SENT, "(c[")) == parsed(SENT), "the signals of one tensor are left out"
    assert parsed(str(short)) == short, "what is printed has them, and is not added to"


def test_a_region_that_a_tile_reads_twice_is_awaited_once() -> None:
    text = without(SENT, "(c[").replace("y[i, j] = c[i, j]", "t = c[i, j]\n        y[i, j] = t + c[i, j]")
    assert signals(parsed(text)).count("use wait c") == 1
    branch = text.replace("t = c[i, j]", "t = 0.0\n        if rank == 0:\n            t = t + c[i, j]")
    assert signals(parsed(branch)).count("use wait c") == 2, "a wait in a branch is none for what follows"


def test_what_is_written_means_what_it_means() -> None:
    """A tensor that one signal names gets no other: a wait that is forgotten is refused, as it always was."""
    forgotten = without(SENT, "wait(c[")
    assert signals(parsed(forgotten)) == signals(parsed(SENT))[:-1]
    with pytest.raises(tilelink.TileLinkError, match="nothing orders the two"):
        chosen = tilelink.schedule("sent").on("use", "sm(1)").on("make", "sm(1)")
        tilelink.plan(parsed(forgotten), chosen, ranks=2, dims={"M": 24, "N": 8})


def test_in_python() -> None:
    @tilelink.program
    def sent(M: Dim = 24, N: Dim = 8) -> None:  # type: ignore[assignment]
        x = tilelink.input(M, N)
        h = tilelink.symmetric(M, N)
        y = tilelink.output(M, N)

        @tilelink.comm
        def send(i: Index = M) -> None:
            tile_push_data(h[i, :] @ (rank + 1), x[i, :])

        @tilelink.compute
        def use(i: Index = M, j: Index = N) -> None:
            y[i, j] = h[i, j] + 1.0

    assert signals(sent) == ["send notify h", "use wait h"]
    assert tilelink.plan(sent, ranks=2, dims={"M": 24, "N": 8})


SCALES = """
program scales(M = 16, N = 8):
    x : in        [M, N]
    q : symmetric [M, N]
    u : symmetric [M] f32
    y : out       [M, N]

    comm send(i: M):
        tile_push_data(q[i, :] @ (rank + 1), x[i, :])
        tile_push_data(u[i] @ (rank + 1), max(x[i, :], axis=1))
        notify(q[i, :] @ (rank + 1))

    compute take(i: M, j: N):
        wait(q[i, :])
        y[i, j] = q[i, j] * u[i][:, None]
"""


def test_data_that_comes_with_other_data_has_no_signals_of_its_own() -> None:
    assert signals(parsed(SCALES)) == ["send notify q", "take wait q"]
    early = SCALES.replace("        notify(q[i, :] @ (rank + 1))\n", "").replace(
        "x[i, :])\n        tile_push_data(u", "x[i, :])\n        notify(q[i, :] @ (rank + 1))\n        tile_push_data(u"
    )
    assert signals(parsed(early)) == ["send notify q", "send notify u", "take wait q", "take wait u"]


def test_what_a_tile_reads_of_its_own_has_no_signals() -> None:
    """Nor has what tiles of one stage hand on at one rank. What they send to peers has."""
    text = "program p(M):\n    x : in [M]\n    c : local [M + 1]\n    y : out [M]\n    compute a(i: M by 1):\n"
    text += "        c[i + 1] = x[i]\n        y[i] = c[i + 1]\n"
    assert signals(parsed(text)) == []
    assert signals(parsed(text.replace("y[i] = c[i + 1]", "y[i] = c[i]"))) == []
    text = "program p(M):\n    x : in [M]\n    h : symmetric [M]\n    y : out [M]\n    comm a(i: M):\n"
    text += "        tile_push_data(h[i] @ (rank + 1), x[i])\n        y[i] = h[i]\n"
    assert signals(parsed(text)) == ["a notify h", "a wait h"]


REFUSED = {
    "a tensor in place, whose order is the program's": (
        "cache : inout [M, N]",
        "a(i: M):\n        cache[i, :] = x[i, :]",
        "b(i: M):\n        y[i, :] = cache[i, :]",
        "order",
    ),
    "a tensor that peers read": (
        "h : symmetric [M, N]",
        "a(i: M):\n        h[i, :] = x[i, :]",
        "b(i: M):\n        y[i, :] = h[i, :] @ (rank + 1)",
        "nothing orders the two",
    ),
    "two stages that write the same": (
        "h : local [M, N]",
        "a(i: M):\n        h[i, :] = x[i, :]",
        "b(i: M):\n        h[i, :] = x[i, :] + 1.0\n        y[i, :] = h[i, :]",
        "also writes",
    ),
    "each stage needs the other": (
        "h : local [M, N]\n    g : local [M, N]",
        "a(i: M):\n        h[i, :] = g[i, :]",
        "b(i: M):\n        g[i, :] = h[i, :]\n        y[i, :] = x[i, :]",
        "waits for ever",
    ),
    "a tile that reads beyond its own": (
        "h : local [M, N]",
        "a(i: M):\n        h[i, :] = x[i, :] + h[M - 1, :]",
        "b(i: M):\n        y[i, :] = h[i, :]",
        "waits for ever",
    ),
    "half is written": (
        "h : local [M, N]",
        "a(i: M[: M // 2]):\n        h[i, :] = x[i, :]",
        "b(i: M):\n        y[i, :] = h[i, :]",
        "h",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_signals_that_cannot_suffice_are_refused_where_data_is_used(case: str) -> None:
    """No signal makes these programs right: they are refused at the line that uses the data, in every schedule."""
    tensors, first, second, message = REFUSED[case]
    text = f"\nprogram p(M = 16, N = 8):\n    x : in [M, N]\n    {tensors}\n    y : out [M, N]\n\n"
    text += f"    compute {first}\n\n    compute {second}\n"
    program = parsed(text)
    chosen = tilelink.schedule(program).tile("a", i=4).tile("b", i=4).on("a", "sm(2)").on("b", "sm(2)")
    with pytest.raises(tilelink.TileLinkError, match=message) as caught:
        tilelink.plan(program, chosen, ranks=2, dims={"M": 16, "N": 8})
    where = caught.value.location
    assert where is not None and where.text is not None
    assert "h[" in where.text or "cache[" in where.text


def test_programs_that_passes_have_made_keep_the_signals_that_they_have() -> None:
    """A pass takes signals out, as those of words: a lowered text that is read back gets none."""
    (program,) = parse_text(without(SENT, "notify", "wait"), "p.tl", lowered=True).programs
    assert signals(program) == []


def test_plain_words_are_those_of_tiles() -> None:
    paper = SENT.replace(" notify(", " producer_tile_notify(").replace(" wait(", " consumer_tile_wait(")
    assert parsed(SENT) == parsed(paper) == parsed(str(parsed(SENT)))


def test_a_tile_may_be_called_as_a_plain_word() -> None:
    named = SENT.replace("y[i, j] = c[i, j] * c[i, j]", "wait = c[i, j]\n        y[i, j] = wait * wait")
    assert signals(parsed(named)) == signals(parsed(SENT))
