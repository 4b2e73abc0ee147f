"""Where accesses and signals are: inside of their tensors and tables, and the rows that a table chooses."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

import tilelink
from tilelink.errors import BindingError, CoverageError, ScheduleError, TileLinkError, TileSizeError
from tilelink.lowering.bind import bind
from tilelink.lowering.bound import Bound
from tilelink.lowering.events import WRITE
from tilelink.planning.plan import make_plan
from tilelink.target import CPU
from tilelink.verifier import refusals

HEAD = """program p(M, N, K, S, G):
    x : in [M, N]
    y : out [M, N]
    c : local [K, N]
    h : symmetric [S, M, N]
    rows : table [S] < M
"""
DIMS = {"M": 40, "N": 8, "K": 41, "S": 2, "G": 1}
ROWS = np.array([[0, 5], [7, 3]])


def bound(body: str, schedule: str = "", ranks: int = 2, dims: Mapping[str, int] = DIMS, head: str = HEAD) -> Bound:
    schedule = f"schedule s for p:\n    a {schedule}\n" if schedule else ""
    module = tilelink.parse(f"{head}{body}{schedule}")
    return bind(module.programs[0], next(iter(module.schedules), None), dims, ranks, CPU)


def refused(body: str, schedule: str = "", rows: np.ndarray = ROWS) -> list[str]:
    """The texts of coverage's and ordering's refusals of stages."""
    plan = make_plan(bound(body, schedule), {"rows": rows})
    return [f"{type(error).__name__}: {error.message}" for error in refusals(plan)]


def stage(*lines: str, domain: str = "i: M") -> str:
    return f"    compute a({domain}):\n" + "".join(f"        {line}\n" for line in lines)


@pytest.mark.parametrize(
    ("line", "reached"),
    [
        ("y[i, :] = x[1 + i, :]", "x[1:41, 0:8] reaches outside x"),
        ("y[1 + i, :] = x[i, :]", "y[1:41, 0:8] reaches outside y"),
        ("y[i, :] = x[i + (0 - 1), :]", "x[-1:39, 0:8] reaches outside x"),
        ("y[i, :] = x[i + M * rank, :]", "x[40:80, 0:8] reaches outside x"),
        ("c[2 + i, :] = x[i, :]", "c[2:42, 0:8] reaches outside c"),
        ("y[i, :] = c[i + 8 * rank, :]", "c[8:48, 0:8] reaches outside c"),
        ("y[i, :] = h[S, i, :]", "h[2:3, 0:40, 0:8] reaches outside h"),
        ("tile_pull_data(c[0 + i, :], x[1 + i, :])", "x[1:41, 0:8] reaches outside x"),
        ("producer_tile_notify(h[S + rank, i, :])", "h[2:3, 0:40, 0:8] reaches outside h"),
        ("producer_tile_notify(h[0 - 1, i, :])", "h[-1:0, 0:40, 0:8] reaches outside h"),
        ("consumer_tile_wait(h[100000000, i, :])", "h[100000000:100000001, 0:40, 0:8] reaches outside h"),
        ("consumer_tile_wait(h[0, 1 + i, :])", "h[0:1, 1:41, 0:8] reaches outside h"),
        ("rank_notify(h[0, i + 8, :] @ (rank + 1))", "h[0:1, 8:48, 0:8] reaches outside h"),
    ],
)
@pytest.mark.parametrize("tile", [64, 16, 8])
def test_nothing_is_outside_of_its_tensor(line: str, reached: str, tile: int) -> None:
    """Whatever the tile is: of tiles the last one, or the first, may leave."""
    notify = (
        ""
        if "notify" in line or "wait" not in line
        else "    compute b(i: M):\n        producer_tile_notify(h[0, i, :])\n"
    )
    found = refused(stage(line) + notify, f"tile(i={tile})")
    assert found and all("reaches outside" in text for text in found)
    if tile == 64:
        assert reached in found[0]


def test_a_condition_keeps_an_access_inside() -> None:
    body = stage("if i > 0:", "    y[i, :] = x[i - 1, :]", "else:", "    y[i, :] = x[i, :]")
    assert refused(body) == []


def test_a_shifted_tile_may_end_with_its_tensor() -> None:
    assert refused(stage("c[(K - M) + i, :] = x[i, :]", "y[i, :] = x[i, :]"), "tile(i=16)") == []


@pytest.mark.parametrize(("entry", "reached"), [("i - 1", "rows[-1]"), ("i + 1", "rows[2]"), ("rows[i]", "rows[5]")])
def test_no_entry_is_outside_of_its_table(entry: str, reached: str) -> None:
    body = stage("if i < S:", f"    y[i, :] = x[rows[{entry}], :]", "else:", "    y[i, :] = x[i, :]")
    assert f"looks up {reached}, outside of a table of shape [2]" in refused(body)[0]


def test_what_no_rank_comes_to_is_looked_up_nowhere() -> None:
    body = stage("if rank > 9:", "    y[i, :] = x[rows[9], :]", "else:", "    y[i, :] = x[i, :]")
    assert refused(body) == []


@pytest.mark.parametrize("entry", ["rows[2] == 1", "7 // (rows[2] + 1) == 1"])
def test_a_look_up_that_no_rank_has_is_refused_with_what_stands_on_it(entry: str) -> None:
    body = stage(f"if {entry}:", "    y[i, :] = x[i, :]", "else:", "    y[i, :] = x[i, :]")
    assert "looks up rows[2], outside of a table of shape [2]" in refused(body)[0]


def test_no_condition_is_of_an_entry_outside_of_its_table() -> None:
    body = stage("if rows[i] == 1:", "    y[i, :] = x[i, :]", "else:", "    y[i, :] = x[i, :]")
    assert "looks up rows[2], outside of a table of shape [2]" in refused(body)[0]


GATHER = "program p(M, N, S):\n    x : in [S, N]\n    y : out [M, N]\n    rows : table [S] < M\n"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([0, 3, 2, 1], None),
        ([0, 3, 2, 2], "writes a row of y twice, for rows names it twice"),
        ([0, 3, 2], "y[1, 0] of rank 0 is never written"),
    ],
)
def test_writes_through_a_table_are_of_the_rows_that_it_names(rows: list[int], said: str | None) -> None:
    dims = {"M": 4, "N": 8, "S": len(rows)}
    made = bound(stage("y[rows[:], j] = x[:, j]", domain="j: N"), ranks=1, dims=dims, head=GATHER)
    found = refusals(make_plan(made, {"rows": np.array([rows])}))
    assert [error.message for error in found[:1]] == ([] if said is None else found[:1] and [found[0].message])
    assert said is None or said in found[0].message
    assert bool(found) == (said is not None)


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_has_rows_of_its_own(rank: int) -> None:
    made = bound(stage("y[rows[:], j] = x[:, j]", domain="j: N"), dims={"M": 4, "N": 8, "S": 4}, head=GATHER)
    rows = np.array([[0, 3, 2, 1], [3, 2, 1, 0]])
    assert refusals(make_plan(made, {"rows": rows})) == []
    rows[rank, 1] = rows[rank, 0]
    (found, *_) = refusals(make_plan(made, {"rows": rows}))
    assert f"rank {rank}, a tile" in found.message and "rows names it twice" in found.message


def test_reads_through_a_table_need_only_the_rows_that_it_names() -> None:
    head = (
        "program p(M, N, S):\n    x : in [M, N]\n    c : local [M, N]\n    y : out [S, N]\n    rows : table [S] < M\n"
    )
    lines = ("if i < 2:", "    c[i, :] = x[i, :]", "    producer_tile_notify(c[i, :])")
    fill = "    compute b(i: M):\n" + "".join(f"        {line}\n" for line in lines)
    body = fill + stage(
        "consumer_tile_wait(c[0, j])", "consumer_tile_wait(c[1, j])", "y[:, j] = c[rows[:], j]", domain="j: N"
    )
    made = bound(body, ranks=1, dims={"M": 4, "N": 8, "S": 3}, head=head)
    assert refusals(make_plan(made, {"rows": np.array([[1, 0, 1]])})) == []
    (found, *_) = refusals(make_plan(made, {"rows": np.array([[1, 0, 2]])}))
    assert (
        isinstance(found, CoverageError)
        and "reads c[0:3, 0:8] on rank 0, parts of which no stage writes" in found.message
    )


def test_a_gather_in_a_branch_that_no_tile_takes_is_of_no_rows() -> None:
    lines = ("if rank < ranks:", "    y[:, j] = x[rows[:], j]", "else:", "    y[:, j] = x[rows[:], j]")
    made = bound(stage(*lines, domain="j: N"), dims={"M": 2, "N": 8, "S": 4}, head=GATHER.replace("[S] < M", "[M] < S"))
    assert refusals(make_plan(made, {"rows": np.array([[0, 3], [3, 1]])})) == []


# In place ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "safe"),
    [
        ("c[:, j] = c[rows[:], j]", False),
        ("c[rows[:], j] = c[:, j] * 2.0", False),
        ("c[rows[:], j] = c[others[:], j]", False),
        ("c[rows[:], j] = c[rows[:], j] * 2.0", True),
    ],
)
def test_what_a_statement_reads_of_its_target_is_in_the_order_of_what_it_writes(line: str, safe: bool) -> None:
    head = """program p(M, N):
    x : in [M, N]
    c : local [M, N]
    y : out [M, N]
    rows : table [M] < M
    others : table [M] < M
"""
    body = stage("c[:, j] = x[:, j]", line, "y[:, j] = c[:, j]", domain="j: N")
    order = {"rows": np.array([[0, 3, 2, 1]]), "others": np.array([[0, 1, 2, 3]])}
    found = refusals(make_plan(bound(body, ranks=1, dims={"M": 4, "N": 8}, head=head), order))
    said = "rank 0, a tile (j=0): reads c[0:4, 0:8] while it writes c[0:4, 0:8] of the same rank, in another order"
    assert [error.message for error in found] == ([] if safe else [said])


@pytest.mark.parametrize(
    ("line", "safe"),
    [
        ("c[1 + i, :] = c[0 + i, :]", False),
        ("c[1 + i, :] = c[0 + i, :] + 0.0", False),
        ("c[0 + i, :] = c[0 + i, :] * 2.0", True),
        ("c[0 + i, :] = c[0 + i, :]", True),
        ("c[1 + i, :] = t", True),
    ],
)
def test_a_statement_reads_just_what_it_writes_or_nothing_of_it(line: str, safe: bool) -> None:
    body = stage("c[0 + i, :] = x[i, :]", "t = c[0 + i, :]", line, "y[i, :] = c[0 + i, :]")
    found = refused(body, "tile(i=64)")
    assert found == ([] if safe else [found[0]])
    assert safe or "OrderingError: rank 0, a tile (i=0): reads c[0:40, 0:8] while it writes c[1:41, 0:8]" in found[0]


# Directions --------------------------------------------------------------------------------------------------

EXCHANGE = """program p(M, N):
    x : in symmetric [M, N]
    src : table [M] < M
    h : symmetric [ranks, M, N]
    y : out [ranks, M, N]

    comm a(p: ranks, i: M):
        {}

    compute get(s: ranks, i: M):
        consumer_tile_wait(h[s, i, :])
        y[s, i, :] = h[s, i, :]
"""


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (("tile_push_data(h[rank, i, :] @ p, x[src[i], :])",), "a rank looks up its own src alone"),
        (("if src[i] == 0:", "    tile_push_data(h[rank, i, :] @ p, x[i, :])"), "a rank looks up its own src alone"),
        (("t = x[i, :]", "tile_push_data(h[rank, i, :] @ p, x[i, :])"), "it also computes"),
    ],
)
def test_only_what_a_peer_can_do_instead_changes_its_direction(lines: tuple[str, ...], reason: str) -> None:
    body = "\n        ".join((*lines, "producer_tile_notify(h[rank, i, :] @ p)"))
    with pytest.raises(ScheduleError) as caught:
        bound("", "pull", dims={"M": 8, "N": 8}, head=EXCHANGE.format(body))
    assert caught.value.message == f"stage a cannot change to pull: {reason}"


def test_a_push_into_what_peers_cannot_reach_says_so() -> None:
    head = """program p(M, N):
    x : in symmetric [M, N]
    c : local [ranks, M, N]
    y : out [M, N]
    comm a(p: ranks, i: M):
        tile_pull_data(c[p, i, :], x[i, :] @ p)
        producer_tile_notify(c[p, i, :])
"""
    with pytest.raises(ScheduleError) as caught:
        bound("", "push", dims={"M": 8, "N": 8}, head=head)
    assert caught.value.message == "stage a cannot push c"
    assert caught.value.hint == "declare c symmetric so that peers can reach it"


def test_a_push_to_what_is_no_rank_stays_one() -> None:
    body = "tile_push_data(h[rank, i, :] @ i, x[i, :])\n        producer_tile_notify(h[rank, i, :] @ i)"
    with pytest.raises(ScheduleError, match="stage a cannot pull") as caught:
        bound("", "pull, tile(i=1)", dims={"M": 8, "N": 8}, head=EXCHANGE.format(body))
    assert caught.value.hint == "every transfer must be between the own rank and one index over the ranks"


@pytest.mark.parametrize(
    ("line", "far"),
    [
        ("tile_push_data(h[0, i, :] @ (rank + 1), v[i, :])", "h"),
        ("tile_pull_data(c[0 + i, :], v[i, :] @ (rank + 1))", "v"),
        ("rank_copy_data(h[0, i, :] @ (rank + 1), v[i, :])", "h"),
        ("rank_copy_data(h[0, i, :], v[i, :] @ (rank + 1))", "v"),
    ],
)
def test_what_a_transfer_moves_lies_at_the_peer_and_is_there_after_its_write(line: str, far: str) -> None:
    head = HEAD + "    v : in symmetric [M, N]\n"
    plan = make_plan(bound(stage(line).replace("compute", "comm"), head=head))
    moves, a = plan.transfers, plan.accesses
    assert {plan.bound.tensor_numbered(int(number)).name for number in moves.tensor} == {far}
    assert moves.peer.tolist() == [1 - plan.task_name(int(task))[1] for task in moves.task]
    assert moves.position.tolist() == (a.position[a.kind == WRITE] + 1).tolist()


# Tiles of what is contracted ---------------------------------------------------------------------------------

LOOP = """program p(M, N):
    x : in [M, N]
    w : in [N, N]
    z : local [M, N]
    c : local [M]
    y : out [M{}]
    compute a(i: M{}):
        {}
"""


def looped(*lines: str) -> str:
    inside = (f"    {line}" for line in lines)
    return LOOP.format("", "", "\n        ".join(("m = zeros(f32)", "t = m", "for (n: N):", *inside, "y[i] = m")))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (("m += sum(x[i, n], axis=1)",), None),
        (("m = m + 0.5 * sum(x[i, n] * 2.0, axis=1)",), None),
        (("m = maximum(m, max(x[i, n], axis=1))",), None),
        (("m = maximum(m, maximum(max(x[i, n], axis=1), 0.0))",), None),
        (("t = max(x[i, n], axis=1)", "m = maximum(t, m)"), None),
        (
            (
                "u = maximum(t, max(x[i, n], axis=1))",
                "m = m * exp(t - u) + sum(exp(x[i, n] - u[:, None]), axis=1)",
                "t = u",
            ),
            None,
        ),
        (("m = m + sum(x[i, n], axis=1) - sum(x[i, n] * x[i, n], axis=1)",), None),
        (("t = zeros(f32)", "t = t + sum(x[i, n], axis=1)", "m += t"), None),
        (("u = sum(x[i, n], axis=1) - t", "v = m + u", "t = v - m - u", "m = v"), None),
        (("t += sum(x[i, n], axis=1)", "m += t"), "combines them in m in a way that depends on it"),
        (("t += sum(x[i, n], axis=1)", "m = maximum(t, m)"), "combines them in m in a way that depends on it"),
        (("m = sum(x[i, n], axis=1) - m",), "combines them in m in a way that depends on it"),
        (("m = m * 2.0 + sum(x[i, n], axis=1)",), "combines them in m in a way that depends on it"),
        (("t = m * 2.0", "m = t + sum(x[i, n], axis=1)"), "combines them in m in a way that depends on it"),
        (("m = maximum(m, 0.0) + sum(x[i, n], axis=1)",), "combines them in m in a way that depends on it"),
        (
            ("m = m + exp(sum(x[i, n], axis=1)) + sum(x[i, n], axis=1)",),
            "combines them in m in a way that depends on it",
        ),
        (
            ("t = zeros(f32)", "t = t + sum(x[i, n], axis=1)", "m += exp(t)"),
            "combines them in m in a way that depends on it",
        ),
        (
            ("m += t", "t = zeros(f32)", "t = t + sum(x[i, n], axis=1)"),
            "combines them in m in a way that depends on it",
        ),
        (
            ("t = zeros(f32)", "for (s: ranks):", "    t = maximum(t, max(x[i, n], axis=1))", "m += t"),
            "combines them in m in a way that depends on it",
        ),
        (("c[i] = m", "m += sum(x[i, n], axis=1)"), "stores what it made of some of them"),
        (("m += sum(x[i, n], axis=1)", "z[i, n] = x[i, n] + m[:, None]"), "stores what it made of some of them"),
        (("m += sum(x[i, n], axis=1)", "c[i] = c[i] * 2.0"), "stores what it made of one of them"),
        (("m = sum(x[i, n], axis=1)",), "keeps in m what it made of the last one"),
        (("m += sum(x[i, n], axis=1) + 1.0",), "combines them in m in a way that depends on it"),
        (("m += exp(sum(x[i, n], axis=1))",), "combines them in m in a way that depends on it"),
        (
            ("m = maximum(m, maximum(max(x[i, n], axis=1), sum(x[i, n], axis=1)))",),
            "combines them in m in a way that depends on it",
        ),
        (("m = maximum(m, sum(x[i, n], axis=1))",), "combines them in m in a way that depends on it"),
        (("m += max(x[i, n], axis=1)",), "combines them in m in a way that depends on it"),
        (("m += 1.0", "t += sum(x[i, n], axis=1)"), "combines them in m in a way that depends on it"),
        (("m += t", "t = sum(x[i, n], axis=1)"), "combines them in m in a way that depends on it"),
    ],
)
def test_a_loop_puts_tiles_together_as_their_reduction_does(lines: tuple[str, ...], said: str | None) -> None:
    head = looped(*lines)
    assert bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=32)").stages["a"].count("n") == 1
    if said is None:
        assert bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=8)").stages["a"].count("n") == 3
        return
    with pytest.raises(TileSizeError) as caught:
        bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=8)")
    assert caught.value.message == f"stage a loops over tiles of n, of 8 elements each, and {said}"
    assert "tile(n=32) holds all of it" in str(caught.value.hint)


def test_a_name_keeps_nothing_of_the_round_before_the_last() -> None:
    head = looped("t = m", "m += sum(x[i, n], axis=1)").replace("y[i] = m", "y[i] = t")
    with pytest.raises(TileSizeError, match="keeps in t what it made of the last one"):
        bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=8)")
    also = looped("t = sum(x[i, n], axis=1)", "u = t", "m += t").replace("y[i] = m", "y[i] = m + t")
    with pytest.raises(TileSizeError, match="keeps in t what it made of the last one"):
        bound("", dims={"M": 8, "N": 24}, head=also, schedule="tile(n=8)")
    kept = looped("t = m + sum(x[i, n], axis=1)", "m = t").replace("y[i] = m", "y[i] = t")
    assert bound("", dims={"M": 8, "N": 24}, head=kept, schedule="tile(n=8)").stages["a"].count("n") == 3


@pytest.mark.parametrize(
    ("lines", "safe"),
    [
        (("t = m * 2.0", "y[i] = t"), True),
        (("if rank == 0:", "    t = m * 2.0", "y[i] = t"), False),
        (("for (s: ranks):", "    t = m * 2.0", "y[i] = t"), False),
        (("y[i] = t", "t = m * 2.0"), False),
    ],
)
def test_what_is_surely_assigned_after_a_loop_may_be_read(lines: tuple[str, ...], safe: bool) -> None:
    head = looped("t = sum(x[i, n], axis=1)", "m += t").replace("y[i] = m", "\n        ".join(lines))
    assert bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=32)").stages["a"].count("n") == 1
    if safe:
        assert bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=8)").stages["a"].count("n") == 3
        return
    with pytest.raises(TileSizeError, match="keeps in t what it made of the last one"):
        bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=8)")


@pytest.mark.parametrize("product", ["dot(a, w[:, :])", "dot(w[:, :], a)"])
def test_rounds_multiply_nothing_by_what_they_have_so_far(product: str) -> None:
    """Smaller tiles are more rounds, and so more factors."""
    head = looped("m += sum(x[i, n], axis=1)", f"a = {product}").replace("t = m", "a = w[:, :] * 1.0")
    head = head.replace("y[i] = m", "y[i] = m + sum(sum(a, axis=1), axis=0)")
    assert bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=32)").stages["a"].count("n") == 1
    with pytest.raises(TileSizeError, match="combines them in a in a way that depends on it"):
        bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=8)")


@pytest.mark.parametrize(("around", "safe"), [("if ranks == 2:", True), ("for (s: ranks):", False)])
def test_what_stands_before_a_loop_comes_after_it_in_another_loop(around: str, safe: bool) -> None:
    loop = ("for (n: N):", "    t = sum(x[i, n], axis=1)", "    m += t")
    before = ("m = zeros(f32)", "t = m", "u = m")
    top = LOOP.format("", "", "\n        ".join((*before, "for (s: ranks):", "    u += t", *loop, "y[i] = m + u")))
    assert bound("", dims={"M": 8, "N": 24}, head=top, schedule="tile(n=8)").stages["a"].count("n") == 3
    inside = (f"    {line}" for line in ("u += t", *loop))
    head = LOOP.format("", "", "\n        ".join((*before, around, *inside, "y[i] = m + u")))
    if safe:
        assert bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=8)").stages["a"].count("n") == 3
        return
    with pytest.raises(TileSizeError, match="keeps in t what it made of the last one"):
        bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=8)")


ATTENTION = """program p(M, N, D):
    q : in [M, D]
    k : in [N, D]
    y : out [M, D]
    compute a(i: M):
        state = online_softmax(f32)
        m = zeros(f32)
        {}
"""
FOLD = "state = attend(state, q[i, :], k[n, :], k[n, :], 1.0)"
FOLD_FEATURES = "state = attend(state, q[i, d], k[:, d], k[:, :], 1.0)"


@pytest.mark.parametrize(
    ("index", "lines", "said"),
    [
        ("n", (FOLD,), None),
        ("d", (FOLD_FEATURES,), "combines them in state in a way that depends on it"),
        ("n", ("state = online_softmax(f32)", FOLD), "keeps in state what it made of the last one"),
        (
            "n",
            ("state = online_softmax(f32)", FOLD, "m = maximum(m, finish(state))"),
            "combines them in m in a way that depends on it",
        ),
        ("n", (FOLD, "m += finish(state)"), "combines them in m in a way that depends on it"),
    ],
)
def test_a_loop_puts_all_keys_to_one_softmax(index: str, lines: tuple[str, ...], said: str | None) -> None:
    inside = (f"for ({index}: {index.upper()}):", *(f"    {line}" for line in lines), "y[i, :] = m + finish(state)")
    head = ATTENTION.format("\n        ".join(inside))
    dims = {"M": 8, "N": 24, "D": 24}
    if said is None:
        assert bound("", f"tile({index}=8)", dims=dims, head=head).stages["a"].count(index) == 3
        return
    with pytest.raises(TileSizeError) as caught:
        bound("", f"tile({index}=8)", dims=dims, head=head)
    assert caught.value.message == f"stage a loops over tiles of {index}, of 8 elements each, and {said}"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("y[i, n] = dot(x[i, n], w[n, n].T)", "a product"),
        ("y[i, n] = dot(x[i, n] * 2.0, w[n, n])", "a product"),
        ("y[i, n] = exp(dot(x[i, :], w[:, n])) + sum(x[i, n], axis=1)[:, None]", "the sum"),
    ],
)
def test_a_product_takes_all_of_what_it_contracts(line: str, what: str) -> None:
    head = LOOP.format(", N", ", n: N", line)
    bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=32)")
    with pytest.raises(TileSizeError, match=f"takes {what} over tiles of n, of 16 elements each"):
        bound("", dims={"M": 8, "N": 24}, head=head, schedule="tile(n=16)")


@pytest.mark.parametrize("keys", ["n", "d"])
def test_attention_takes_all_keys_of_its_domain(keys: str) -> None:
    shape = {"n": ("[n, :]", "n: M"), "d": ("[:, d]", "d: D")}[keys]
    head = f"""program p(M, D):
    q : in [M, D]
    y : out [M, D]
    compute a({shape[1]}):
        state = online_softmax(f32)
        state = attend(state, q{shape[0]}, q{shape[0]}, q{shape[0]}, 1.0)
        y{shape[0]} = finish(state)
"""
    with pytest.raises(TileSizeError, match=f"takes attention over tiles of {keys}, of 16 elements each"):
        bound("", f"tile({keys}=16)", dims={"M": 64, "D": 32}, head=head)


def test_a_slice_of_a_square_is_not_its_diagonal() -> None:
    head = """program p(N):
    w : in [N, N]
    h : symmetric [N, N]
    y : out [N, N]
    comm a(p: ranks):
        tile_push_data(h[:, :] @ p, w[:, :])
"""
    with pytest.raises(TileSizeError, match="moves two dimensions of w that are called 'n'"):
        bound("", "tile(n=4)", dims={"N": 16}, head=head)


# Integers ----------------------------------------------------------------------------------------------------

DIVISION = "program p(M, N, n: i32):\n    x : in [M, N]\n    y : out [M, N]\n"


@pytest.mark.parametrize(
    ("coordinate", "n", "said"),
    [
        ("i // n", 1, None),
        ("i // n", 0, "i // 0 in stage a divides by zero"),
        ("i % n", 0, "i % 0 in stage a divides by zero"),
        ("i * 0 + M // n - M", 1, None),
        ("i // (i - n)", 3, "i // (i - 3) divides by zero"),
        ("i * n // n", 2000, None),
        ("i * n // n", 2**30, "i * 1073741824 in stage a may be 7516192768"),
        ("i - n + n", -(2**31), "i - -2147483648 in stage a may be 2147483655"),
    ],
)
def test_integers_have_32_bits_and_divisors(coordinate: str, n: int, said: str | None) -> None:
    body = stage(f"if {coordinate} >= 0:", "    y[i, :] = x[i, :]", "else:", "    y[i, :] = x[i, :]")
    try:
        made = bound(body, dims={"M": 8, "N": 8, "n": n}, head=DIVISION)
        found = [error.message for error in refusals(make_plan(made))]
    except BindingError as error:
        found = [error.message]
        assert error.location is not None and error.location.line == 5
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_a_size_does_not_divide_by_zero() -> None:
    head = DIVISION.replace("x : in [M, N]", "x : in [M // n, N]")
    with pytest.raises(BindingError, match="a size divides by zero"):
        bound(stage("y[i, :] = x[0, :]"), dims={"M": 8, "N": 8, "n": 0}, head=head)


def test_a_dimension_may_have_no_elements_and_not_fewer() -> None:
    head = DIVISION.replace("y : out", "t : symmetric [M // n, N]\n    y : out")
    body = "\n    comm c(i: M // n, j: N):\n        tile_push_data(t[i, j] @ (rank + 1), x[0 + i, j])\n"
    body += "        producer_tile_notify(t[i, j] @ (rank + 1))\n" + stage("y[i, :] = x[i, :]")
    made = bound(body, "on sm\n    t channel(i=4)", dims={"M": 8, "N": 8, "n": 9}, head=head)
    assert made.tensors["t"].shape == (0, 8) and refusals(make_plan(made)) == []
    with pytest.raises(BindingError, match=r"t has -1 elements along M // n") as found:
        bound(body, dims={"M": 8, "N": 8, "n": -9}, head=head)
    assert found.value.location is not None and found.value.location.line == 3


def test_the_ends_of_loops_are_of_the_numbers_of_the_program() -> None:
    body = stage("t = zeros(f32)", "for (z: M // G, q: ranks // 2):", "    t += x[i, :]", "y[i, :] = t")
    assert refused(body) == []


# Names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "safe"),
    [
        (("for (u: ranks):", "    if u > 0:", "        t = x[i, :]", "y[i, :] = t"), True),
        (("for (u: ranks):", "    if u > 1:", "        t = x[i, :]", "y[i, :] = t"), False),
        (
            (
                "for (u: ranks):",
                "    if u == rank:",
                "        t = x[i, :]",
                "    else:",
                "        t = t * 2.0",
                "y[i, :] = t",
            ),
            False,
        ),
        (
            (
                "for (u: ranks):",
                "    if u == 0:",
                "        t = x[i, :]",
                "    else:",
                "        t += x[i, :]",
                "y[i, :] = t",
            ),
            True,
        ),
    ],
)
def test_a_name_is_read_after_it_was_assigned(lines: tuple[str, ...], safe: bool) -> None:
    found = refused(stage(*lines))
    assert found == [] if safe else "reads t, to which nothing has been assigned" in found[0]


@pytest.mark.parametrize("line", ["if rows[:] == 1:\n            y[i, :] = x[i, :]", "y[i, :] = x[1 + rows[:], :]"])
def test_a_row_of_a_table_is_no_integer(line: str) -> None:
    with pytest.raises(TileLinkError, match=r"rows\[:\] is a row of rows, and an integer is needed here"):
        tilelink.check(tilelink.parse(HEAD + stage(line)).programs[0])


def test_of_many_tiles_that_nothing_orders_three_of_each_rank_are_named() -> None:
    body = "    compute a(i: M):\n        c[0 + i, :] = x[i, :]\n        notify(c[0 + i, :])\n"
    body += "    compute b(i: M):\n        y[i, :] = c[0 + i, :]\n"
    found = refused(body, "on sm(5), tile(i=8)\n    b on sm(5), tile(i=8)")
    for rank in range(2):
        own = [text for text in found if f"OrderingError: rank {rank}, b tile" in text]
        assert len(own) == 3 and all("nothing orders the two" in text for text in own)


def test_entries_of_a_table_are_known_to_be_below_its_bound() -> None:
    assert bound(stage("y[i, :] = x[i, :]")).bounds("a").tables == {"rows": (0, DIMS["M"] - 1)}


DECLARED = """program p(M, H, L, A) over first = ranks[0 : A]:
    count : in [M] <= H
    each  : in [ranks] <= H
    steps : in [L, M] <= H
    owner : in [H] < M
    OTHER
    x     : in [H, H]
    y     : out [H, H]
    compute a(i: H, j: H):
        y[i, j] = x[i, j]
"""
DECLARED_DIMS = {"M": 4, "H": 8, "L": 3, "A": 2}


def check_declared(declaration: str) -> Bound:
    return bound("", ranks=3, dims=DECLARED_DIMS, head=DECLARED.replace("OTHER", declaration))


@pytest.mark.parametrize(
    ("declaration", "said"),
    [
        ("slot : in [H] < count[M]", "the bound of slot looks up count[M], where M is 4"),
        ("slot : in [H] <= count[M + 1]", "the bound of slot looks up count[M + 1], where M + 1 is 5"),
        ("slot : in [H] < count[owner - 1]", "where owner - 1 may be -1"),
        ("slot : in [H] < count[owner + 1]", "where owner + 1 may be 4"),
        ("slot : in [H] < count", "where coordinate 0 may be 7"),
        ("slot : in [H] < count[rank + 2]", "where rank + 2 is 4"),
        ("slot : in [H] < count[owner[H]]", "looks up owner[H], where H is 8"),
        ("slot : in [H] < steps[L, owner]", "the bound of slot looks up steps[L, owner], where L is 3"),
        ("slot : local [H] < steps[L - 1, M]", "where M is 4"),
        ("z : in [H[: count[M]]]", "the end of what is given of z looks up count[M], where M is 4"),
        ("z : inout [H] sum\n    v : in [H, H[: count]]", "where coordinate 0 may be 7"),
    ],
)
def test_no_declaration_looks_up_an_entry_outside_of_its_tensor(declaration: str, said: str) -> None:
    with pytest.raises(CoverageError) as caught:
        check_declared(declaration)
    assert said in caught.value.message
    location = caught.value.location
    assert location is not None and location.line >= 6 and "entries along dimension" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "declaration",
    [
        "slot : in [H] < count[owner]",
        "slot : in [H] < count[M - 1] - 1",
        "slot : in [H] < each[rank + 1]",  # ranks count modulo their number
        "slot : in [H] < each[owner + 1]",
        "slot : in [M, 2] < count",
        "slot : in [H] < count[rank - rank % 2]",
        "slot : in [H] < count[rank + 2] on first",  # its ranks are 0 and 1
        "slot : in [H] < steps[owner % L, owner]",
        "z : in [M, H[: count]]",
    ],
)
def test_a_declaration_may_look_up_what_is_there_on_each_rank(declaration: str) -> None:
    check_declared(declaration)


def test_the_end_of_a_range_is_refused_where_it_stands() -> None:
    body = stage("for (k: S[: n[M - 39]] by 1):", "    y[i, :] = x[i, :]")
    (fault,) = make_plan(bound(body, head=HEAD + "    n : in [1] <= S\n")).faults
    assert "n[1:2] reaches outside n" in fault.message
    assert fault.location is not None and fault.location.column == 21
