"""Loops over ranks: what only reads or sends a little is written out, and notifies are given together, so that no peer
is waited for before the next is asked."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.backend.offline import compile_all
from tests.backend.samples import numbered
from tilelink import compiler
from tilelink.backend.emit import emit
from tilelink.planning.plan import make_plan

PULL = """program pull(M, N):
    x : in symmetric [M, N]
    w : in [N, N]
    y : out [M, N]
    c : local [ranks, M, N]

    compute add(i: M, j: N):
        acc = zeros(f32)
        for (p: ranks):
            {body}
        y[i, j] = acc

schedule small for pull:
    add on sm, tile(i=8, j=256), num_warps 4

schedule large for pull:
    add on sm, tile(i=128, j=128), num_warps 4

schedule huge for pull:
    add on sm, tile(i=128, j=256), num_warps 8
"""
READS = "acc += x[i, j] @ p"
THREE = "acc += (x[i, j] @ p) * (x[i, j] @ rank) * x[i, j]"

SAID = "debug_block=debug_block, stage=0, tile=tile"
"""Arguments of calls for messages and traces."""


def loop(body: str, schedule: str, ranks: int) -> str:
    """The head of the loop over ranks in the generated source."""
    module = compiler.parse(PULL.format(body=body))
    program = module.program()
    text = compiler.source(
        program, module.schedule(schedule, program), ranks=ranks, dims={"M": 512, "N": 1024}, dtype="bf16",
        target="sm_90",
    )  # fmt: skip
    (found,) = re.findall(r"for p in (\w[\w.]*)\(0, \d+(, num_stages=\d+)?", numbered(text))
    return "".join(found)


@pytest.mark.parametrize(
    ("body", "schedule", "ranks", "head"),
    [
        (READS, "small", 4, "tl.static_range"),
        (READS, "small", 8, "tl.static_range"),
        (READS, "small", 9, "tl.range, num_stages=8"),
        ("acc += 1.0", "small", 9, "range"),
        (READS, "large", 4, "tl.range, num_stages=3"),
        (READS, "large", 2, "tl.range, num_stages=2"),
        (READS, "huge", 1, "range"),
        (THREE, "large", 4, "tl.range, num_stages=2"),
        (THREE, "huge", 4, "range"),
        ("c[p, i, j] = x[i, j] @ p", "small", 4, "tl.range, num_stages=1"),
        ("acc += sum(x[i, :] @ p, axis=1)[:, None]", "small", 4, "range"),
        ("acc += dot(x[i, :] @ p, w[j, :].T)", "large", 4, "range"),
    ],
    ids=[
        "small", "most ranks", "too many ranks", "nothing", "large tiles", "as many as there are", "one",
        "as many as fit", "more than fit", "stores", "reductions", "products",
    ],
)  # fmt: skip
def test_loops_that_read_are_written_out_or_under_way_together(body: str, schedule: str, ranks: int, head: str) -> None:
    assert loop(body, schedule, ranks) == head


def test_all_peers_are_read_before_the_first_addition() -> None:
    module = compiler.parse(PULL.format(body=READS))
    ptx = compiler.assembly(module.program(), module.schedules[0], ranks=4, dims={"M": 512, "N": 1024})
    body = re.findall(r"ld\.global\.v4\.b32|add\.f32", ptx)
    first = body.index("add.f32")
    assert body[:first].count("ld.global.v4.b32") == 8


NESTED = """program nested(M, N):
    x : in        [ranks, M, N]
    y : out       [M, N]

    compute add(i: M, j: N):
        acc = zeros(f32)
        {outer}
            acc += x[q, i, j]
        y[i, j] = acc

schedule large for nested:
    add on sm, tile(i=128, j=128), num_warps 4
"""
ALONE, INNER = "for (q: ranks):", "for (p: ranks):\n          for (q: ranks):"


@pytest.mark.parametrize(
    ("outer", "target", "head"),
    [(ALONE, "sm_90", "tl.range(0, 4, num_stages=3)"), (ALONE, "sm_80", "tl.range(0, 4, num_stages=3)"),
     (ALONE, "sm_89", "tl.range(0, 4, num_stages=3)"), (ALONE, "cpu", "range(0, 4)"), (ALONE, "gfx942", "range(0, 4)"),
     (INNER, "sm_90", "range(0, 4)")],
)  # fmt: skip
def test_loads_ahead_are_for_loops_of_their_own_on_gpus_that_copy_asynchronously(
    outer: str, target: str, head: str
) -> None:
    module = compiler.parse(NESTED.format(outer=outer))
    text = compiler.source(
        module.program(), module.schedules[0], ranks=4, dims={"M": 512, "N": 1024}, dtype="bf16", target=target
    )
    assert f"for q in {head}:" in numbered(text)


def test_sums_behind_a_product_are_loaded_ahead_in_its_buffers() -> None:
    """Of 128x256 tiles in four stages, whose own buffers fill shared memory."""
    module = compiler.load("gemm_rs")
    program = module.program("gemm_rs_local_last")
    sizes = {"Ms": 1024, "N": 4096, "K": 1376}
    bound = compiler.bound(program, module.schedule("h200", program), ranks=8, dims=sizes, dtype="bf16", target="sm_90")
    (compiled,) = compile_all(bound, emit(bound, make_plan(bound).thresholds))
    assert compiled.asm["ptx"].count("cp.async.cg.shared.global") >= 2
    assert compiled.metadata.shared <= bound.target.shared_memory


PUSH = """program push(M, N):
    x : in                [M, N]
    y : out symmetric     [ranks, M, N]

    compute add(i: M, j: N):
        acc = x[i, j] * 2.0
        for (q: ranks):
            {send}
        for ({indices}):
            {tell}

schedule small for push:
    add on sm, tile(i=8, j=256), num_warps 4
    y channel(i={channel}, j={channel})

schedule large for push:
    add on sm, tile(i=128, j=128), num_warps 4
    y channel(i={channel}, j={channel})
"""
SEND = "tile_push_data(y[rank, i, j] @ q, acc)"
TELL = "producer_tile_notify(y[rank, i, j] @ q)"
UNLESS = "\n                "


def pushed(
    send: str = SEND, tell: str = TELL, *, schedule: str = "small", ranks: int = 4, dialect: str = "triton",
    channel: int = 4096, indices: str = "q: ranks",
) -> list[str]:  # fmt: skip
    """The generated lines of the tile program, without comments."""
    module = compiler.parse(PUSH.format(send=send, tell=tell, channel=channel, indices=indices))
    bound = compiler.bound(
        module.program(), module.schedules[schedule == "large"], ranks=ranks, dims={"M": 64, "N": 512}, dtype="bf16",
        target="sm_90", dialect=dialect,
    )  # fmt: skip
    text = numbered(emit(bound, make_plan(bound).thresholds).text)  # whether it is safe is not asked
    return [line.strip() for line in text.split("\ndef ")[1].splitlines() if not line.strip().startswith("#")]


def among(lines: list[str], *starts: str) -> list[str]:
    return [line for line in lines if line.startswith(starts)]


@pytest.mark.parametrize(
    ("send", "schedule", "ranks", "head"),
    [
        (SEND, "small", 4, "tl.static_range(0, 4)"),
        (SEND, "small", 8, "tl.static_range(0, 8)"),
        (SEND, "small", 9, "tl.range(0, 9, num_stages=1)"),
        (SEND, "large", 4, "tl.range(0, 4, num_stages=1)"),
        ("tile_push_data(y[rank, i, j] @ q, x[i, j])", "small", 4, "tl.range(0, 4, num_stages=1)"),
        (f"{SEND}\n            {TELL}", "small", 4, "tl.range(0, 4, num_stages=1)"),
    ],
    ids=["small", "most ranks", "too many ranks", "large tiles", "copies", "a signal behind"],
)
def test_loops_that_only_send_small_tiles_are_written_out(send: str, schedule: str, ranks: int, head: str) -> None:
    assert among(pushed(send, schedule=schedule, ranks=ranks), "for q")[0] == f"for q in {head}:"


@pytest.mark.parametrize(
    ("tell", "ranks", "vector", "mask"),
    [
        (TELL, 4, 4, "q_1 < 4"),
        (TELL, 3, 4, "q_1 < 3"),
        (TELL, 32, 32, "q_1 < 32"),
        (f"if rank != q:{UNLESS}{TELL}", 4, 4, "(q_1 < 4) & (rank != q_1)"),
        (f"if q > rank:{UNLESS}{TELL}", 5, 8, "(q_1 < 5) & (q_1 > rank)"),
    ],
    ids=["all", "no power of two", "a warp", "others", "later ones"],
)
def test_a_loop_of_notifies_is_one_notify(tell: str, ranks: int, vector: int, mask: str) -> None:
    lines = pushed(tell=tell, ranks=ranks)
    slots = "y_buffer * "
    assert among(lines, "q_1 =", "dl.notify", "pad") == [
        f"q_1 = tl.arange(0, {vector})",
        f"dl.notify_each(signals, signal_table, q_1, {slots}{ranks} + rank, mask={mask}, {SAID})",
    ]
    assert len(among(lines, "for q")) == 1, "the loop that sends"


def test_each_peer_may_have_another_counter() -> None:
    (line,) = among(pushed(tell="producer_tile_notify(y[q, i, j] @ (rank + q))"), "dl.notify")
    assert line == (
        f"dl.notify_each(signals, signal_table, (rank + q_1) % 4, y_buffer * 4 + q_1, mask=q_1 < 4, {SAID})"
    )


@pytest.mark.parametrize(
    ("tell", "other"),
    [
        (TELL, {"ranks": 33}),
        (TELL, {"ranks": 1}),
        (TELL, {"channel": 4}),
        (TELL, {"indices": "q: ranks, r: 2"}),
        (TELL, {"dialect": "traced"}),
        (TELL, {"dialect": "triton_dist"}),
        ("producer_tile_notify(y[q, i, j])", {}),
        (f"if rank != q:{UNLESS}producer_tile_notify(y[q, i, j])", {}),
        (f"{TELL}\n            {TELL}", {}),
        (f"acc += 1.0\n            {TELL}", {}),
        (f"if rank != q:{UNLESS}{TELL}\n            else:{UNLESS}acc += 1.0", {}),
        (f"if rank != q:{UNLESS}{TELL}{UNLESS}{TELL}", {}),
        (f"if rank != q and q > 0:{UNLESS}{TELL}", {}),
    ],
    ids=[
        "more than a warp", "one rank", "many channels", "two indices", "traced", "triton_dist", "the own pad",
        "the own pad for others", "two notifies", "something else", "else", "two in a branch", "two conditions",
    ],
)  # fmt: skip
def test_other_loops_of_notifies_stay_loops(tell: str, other: dict[str, Any]) -> None:
    lines = pushed(tell=tell, **other)
    assert not any("notify_each" in line for line in lines)
    assert len(among(lines, "for q")) == 2
    assert any(re.match(r"(dl|tracing)\.notify\(", line) for line in lines)


BRANCH = """if rank != 0:
            for (q: ranks):
                {body}"""


@pytest.mark.parametrize("send", [SEND, "tile_push_data(y[rank, i, j] @ q, x[i, j])"], ids=["written out", "a loop"])
@pytest.mark.parametrize(
    "body", [TELL, f"{TELL}{UNLESS}{TELL}", f"if q > 0:{UNLESS}    acc = acc * 2.0", SEND],
    ids=["together", "one by one", "arithmetic", "written out"],
)  # fmt: skip
def test_an_index_may_run_in_several_ways_in_one_tile(send: str, body: str) -> None:
    """Triton gives a name one type, whatever loops it was the index of."""
    text = PUSH.format(send=send, tell="TELL", channel=4096, indices="q: ranks")
    text = text.replace("for (q: ranks):\n            TELL", BRANCH.format(body=body))
    module = compiler.parse(text)
    bound = compiler.bound(
        module.program(), module.schedules[0], ranks=4, dims={"M": 64, "N": 512}, dtype="bf16", target="sm_90"
    )
    assert len(compile_all(bound, emit(bound, make_plan(bound).thresholds))) == 1
