"""The text of generated modules: the same every time, readable, and tied to signals where it must be."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.backend import samples
from tests.backend.samples import Sample, emitted, numbered, unbroken
from tests.conftest import Golden
from tilelink.artifact import ThresholdsPointer
from tilelink.backend.emit import emit
from tilelink.errors import EmitError
from tilelink.planning.plan import make_plan

GOLDEN = [
    ("ag_gemm", "copy_engine", {"Ms": 100, "N": 136, "K": 200}),
    ("ag_gemm", "slices", {"Ms": 128, "N": 128, "K": 128}),
    ("gemm_rs", "ring", {"Ms": 64, "N": 64, "K": 64}),
]


@pytest.mark.parametrize(("file", "schedule", "numbers"), GOLDEN, ids=lambda v: v if isinstance(v, str) else "")
def test_golden(golden: Golden, file: str, schedule: str, numbers: dict[str, int]) -> None:
    golden(f"{file}_{schedule}", emitted(samples.library_sample(file, schedule, **numbers)).text)


@pytest.mark.parametrize("name", samples.ALL)
def test_twice_the_same_bytes(name: str) -> None:
    first, second = (emitted(samples.ALL[name].bound(ranks=2, target="sm_90")).text for _ in range(2))
    assert first == second


def test_where_the_program_lies_is_not_in_the_text() -> None:
    assert "somewhere" not in numbered(emitted(samples.library_sample("ag_gemm", "copy_engine", Ms=8, N=8, K=8)).text)


def test_divisible_tiles_have_no_masks() -> None:
    even = samples.library_sample("ag_gemm", "slices", Ms=128, N=128, K=128)
    assert "mask=" not in numbered(emitted(even).text)
    uneven = samples.library_sample("ag_gemm", "slices", Ms=100, N=128, K=128)
    assert "offs_i < 100" in numbered(emitted(uneven).text)


@pytest.mark.parametrize(("name", "imported"), [("copy", False), ("softmax", True)])
def test_a_module_imports_the_arithmetic_of_tiles_where_it_has_some(name: str, imported: bool) -> None:
    text = numbered(emitted(samples.ALL[name].bound(ranks=1, target="cpu")).text)
    assert ("import tiles" in text) is imported
    assert (re.search(r"\btiles\.", text) is not None) is imported


def test_loads_behind_waits_consume_their_token() -> None:
    text = numbered(emitted(samples.ATTENTION.bound(ranks=2, target="sm_90")).text)
    assert re.search(r"token \+= dl\.wait\(", text)
    for tensor in ("ks", "vs"):
        assert f"{tensor}_tile = tl.load(dl.consume_token({tensor}_local, token)" in text
    assert "tl.load(q +" in text  # nobody writes an input


GATHERED = """
program gathered(M, N):
    x     : in        [ranks, M, N]
    parts : symmetric [ranks, M, N]
    y     : out       [M, N]
    comm send(q: ranks, i: M, j: N):
        tile_push_data(parts[rank, i, j] @ q, x[q, i, j])
        producer_tile_notify(parts[rank, i, j] @ q)
    compute sums(i: M, j: N):
        consumer_tile_wait(parts[WHAT])
        y[i, j] = sum(parts[:, i, j], axis=0)
schedule s for gathered:
    send on sm, tile(i=8, j=32)
    sums on sm, tile(i=16, j=32)
    parts channel(CHANNEL), buffers 1
"""


@pytest.mark.parametrize(
    ("what", "channel", "expected"),
    [
        (":, i, j", "i=16, j=32", "wait_all(signals, i * 2 + j, count=4, target=2 * epoch, SAID, step=4)"),
        (":, i, :", "i=32, j=64", "wait_all(signals, 0, count=4, target=8 * epoch, SAID, step=1)"),
        ("1, i, j", "i=16, j=32", "wait(signals, 4 + i * 2 + j, target=2 * epoch, SAID)"),
        (":, i, :", "i=16, j=32", "wait(signals, channel * 4 + i * 2 + channel_1, target=2 * epoch"),
        (":, i, j", "i=8, j=32", "wait(signals, channel * 8 + channel_1 * 2 + j, target=epoch"),
        ("1, i, j", "i=8, j=32", "wait(signals, 8 + channel * 2 + j, target=epoch"),
    ],
    ids=["every fourth", "every one", "one", "two dimensions", "two, one moves with the tile", "one that moves"],
)  # fmt: skip
def test_a_wait_for_evenly_spaced_counters_is_one(what: str, channel: str, expected: str) -> None:
    text = GATHERED.replace("WHAT", what).replace("CHANNEL", channel)
    result = numbered(emitted(Sample(text=text, numbers={"M": 32, "N": 64}).bound(ranks=4, target="sm_90")).text)
    (line,) = (line for line in result.splitlines() if "token += " in line)
    assert f"token += dl.{expected.replace('SAID', 'debug_block=debug_block, stage=1, tile=tile')}" in line


MOVED = """
program moved(M):
    x : in        [M]
    h : symmetric [M]
    y : out       [M]
    comm send(i: M):
        tile_push_data(h[i] @ (rank + 1), x[i])
        producer_tile_notify(h[i] @ (rank + 1))
    compute take(i: M // 2):
        consumer_tile_wait(h[8 + i])
        y[0 + i] = h[8 + i]
    compute rest(i: M // 2):
        y[M // 2 + i] = 0.0
schedule s for moved:
    send on sm, tile(i=16)
    take on sm, tile(i=16)
    h channel(i=64)
"""


def test_a_wait_whose_number_of_counters_moves_with_the_tile_is_a_loop() -> None:
    """Tiles of 16 rows from row 8 on: only the last one, from 56 on, has rows of the second counter."""
    text = numbered(emitted(Sample(text=MOVED, numbers={"M": 128}).bound(ranks=2, target="sm_90")).text)
    assert "for channel in range(0, (i + 1) // 4 + 1):\n            token += dl.wait(" in text


RELAY = Sample(
    text="""
program relay(M):
    x : in [M]
    c : local [M]
    y : out symmetric [ranks, M]
    compute make(i: M):
        c[i] = x[i]
        producer_tile_notify(c[i])
    comm send(p: ranks, i: M):
        consumer_tile_wait(c[i])
        tile_push_data(y[rank, i] @ p, c[i])
        producer_tile_notify(y[rank, i] @ p)
schedule s for relay:
    make on sm, tile(i=32)
    send on RESOURCE, tile(i=32)
""",
    numbers={"M": 64},
)


@pytest.mark.parametrize(("resource", "remote"), [("copy_engine", "True"), ("sm", "False")])
def test_signals_that_a_copy_engine_awaits_reach_it(resource: str, remote: str) -> None:
    sample = Sample(text=RELAY.text.replace("RESOURCE", resource), numbers=RELAY.numbers)
    make = numbered(emitted(sample.bound(ranks=2, target="sm_90")).text).split("def make(")[1].split("\ndef ")[0]
    assert re.findall(r"dl\.notify\(signals, .*, remote=(True|False), tma=False\)", make.split("@triton")[0]) == [
        remote
    ]


def test_loops_that_write_are_not_pipelined() -> None:
    text = numbered(emitted(samples.library_sample("ag_gemm", "slices", Ms=128, N=128, K=128)).text)
    assert text.count("num_stages=1") == 2  # the tiles of both stages; not the loop over k
    attention = numbered(emitted(samples.ATTENTION.bound(ranks=2, target="cpu")).text)
    assert "for j in tl.range(0, 3, num_stages=1):" in attention
    assert "for k_1 in range(0, 128, 64):" in text


TOGETHER = """
program together(M, K):
    x : in [M, K]
    w : in [K, M]
    c : symmetric [M, M]
    y : out symmetric [M, M]
    compute make(i: M, j: M):
        c[i, j] = dot(x[i, :], w[:, j])
        producer_tile_notify(c[i, j])
    compute take(i: M):
        consumer_tile_wait(c[i, :])
        y[i, :] = c[i, :]
        for (q: ranks):
            producer_tile_notify(y[i, :] @ q)
schedule s for together:
    make on sm(2), tile(i=16, j=16, k=16){words}
    take on sm(1), tile(i=16)
"""
MARKS = {"flat": "flatten=True", "deferred": "held = ", "notifies": ".notify_each(", "waits": "wait_all(signals, c"}


@pytest.mark.parametrize(
    ("dialect", "words", "found"),
    [
        ("triton", "", {"notifies", "waits"}),
        ("triton", ", flatten, defer_notify", {"flat", "deferred", "notifies", "waits"}),
        ("traced", ", flatten, defer_notify", set()),
        ("triton_dist", ", flatten, defer_notify", set()),
    ],
)
def test_what_is_measured_or_not_ours_is_done_one_by_one(dialect: str, words: str, found: set[str]) -> None:
    sample = Sample(text=TOGETHER.format(words=words), numbers={"M": 64, "K": 64})
    bound = sample.bound(ranks=2, target="sm_90", dtype="bf16")
    bound = samples.in_dialect(bound, dialect)
    text = emit(bound, make_plan(bound).thresholds).text
    assert {mark for mark, said in MARKS.items() if said in text} == found


FOLDED = """
program folded(M, N):
    x : in  [M, N]
    y : out [M, N]
    compute make(i: M):
        a = x[i, :]
        if CONDITION:
            a = a + 1.0
        else:
            b = a * 2.0
            a = b
        y[i, :] = a
"""


@pytest.mark.parametrize(
    ("condition", "ranks", "kept"),
    [
        ("rank != rank + 1", 2, "+ 1.0"), ("rank != rank + 1", 1, "* 2.0"), ("rank == rank", 3, "+ 1.0"),
        ("ranks > 4", 2, "* 2.0"), ("M > 16", 2, "+ 1.0"), ("rank != 1", 2, None), ("i == 0", 2, None),
    ],
)  # fmt: skip
def test_what_all_ranks_do_alike_is_no_branch(condition: str, ranks: int, kept: str | None) -> None:
    sample = Sample(text=FOLDED.replace("CONDITION", condition), numbers={"M": 32, "N": 32})
    text = numbered(emitted(sample.bound(ranks=ranks, target="sm_90")).text).split("def make")[1]
    body = [line.strip() for line in text.splitlines() if not line.strip().startswith("#")]
    assert any(line.startswith("if ") for line in body) == (kept is None)
    both = ["+ 1.0", "* 2.0"]
    assert [c for c in both if any(c in line for line in body)] == ([kept] if kept else both)


EMPTY = """
program empty(M):
    x : in  [M]
    y : out [M]
    compute make(i: M):
        a = x[i]
        WHERE
            if ranks > 2:
                a = a + 1.0
        y[i] = a
"""
OTHERWISE = "if rank == 1:\n            a = a * 3.0\n        else:"


@pytest.mark.parametrize("where", ["for (q: 3):", "if rank == 1:", OTHERWISE])
def test_what_no_rank_does_leaves_a_block_that_is_python(where: str) -> None:
    sample = Sample(text=EMPTY.replace("WHERE", where), numbers={"M": 32})
    text = numbered(emitted(sample.bound(ranks=2, target="cpu")).text)
    assert compile(text, "empty.py", "exec"), "else it raises SyntaxError"
    assert "+ 1.0" not in text.split("def make(")[1]


SHIFTED = """
program shifted(M):
    x : in symmetric [M]
    h : symmetric [M]
    y : out [M]
    comm send(i: M):
        tile_push_data(h[i] @ (rank + 1), x[i])
        producer_tile_notify(h[i] @ (rank + 1))
    compute take(i: M):
        consumer_tile_wait(h[i])
        y[i] = h[i] + x[i] @ (rank + 1)
"""


@pytest.mark.parametrize(("ranks", "waits"), [(1, []), (2, ["epoch - 2", "epoch - 2", "epoch"])])
def test_a_rank_alone_waits_for_no_peers(ranks: int, waits: list[str]) -> None:
    """Else for those that may still read what a kernel overwrites, and for those whose inputs it reads."""
    text = numbered(emitted(Sample(text=SHIFTED, numbers={"M": 64}).bound(ranks=ranks, target="sm_90")).text)
    assert re.findall(r"dl\.wait_all\(signals, \d+, count=\d+, target=(epoch[ \-\d]*), ", text) == waits


COPIED = """
program copied(M, N):
    x : in            [M, N]
    y : out symmetric [ranks, M, N]
    comm send(p: ranks, i: M):
        tile_push_data(y[rank, i, :] @ p, x[i, :])
        producer_tile_notify(y[rank, i, :] @ p)
schedule s for copied:
    send on sm(2), tile(i=128), num_warps WARPS
"""


@pytest.mark.parametrize(("warps", "rows"), [(4, 32), (8, 32), (16, 64), (32, 128)])
def test_a_copy_has_as_many_rows_under_way_as_its_warps_need(warps: int, rows: int) -> None:
    sample = Sample(text=COPIED.replace("WARPS", str(warps)), numbers={"M": 512, "N": 1024})
    text = numbered(emitted(sample.bound(ranks=2, target="sm_90")).text)
    assert re.findall(r"in range\(0, (\d+), (\d+)\)", text) == ([("128", str(rows))] if rows < 128 else []) + [
        ("1024", "256")
    ]


def test_integers_stay_integers() -> None:
    text = numbered(emitted(samples.INTEGERS.bound(ranks=1, target="cpu")).text)
    assert "float32" not in text
    assert "tl.full((32,), -2147483648, tl.int32)" in numbered(
        emitted(samples.INTEGERS.bound(ranks=1, target="cpu")).text
    )


def test_uneven_thresholds_become_a_table() -> None:
    bound = samples.ATTENTION.bound(ranks=2, target="cpu")
    counts = dict(make_plan(bound).thresholds)
    key = ("ks", "tile")
    counts[key] = counts[key].copy()
    counts[key].flat[0] = 7
    result = emit(bound, counts)
    attn = next(k for k in result.kernels if k.name == "attn")
    assert [a for a in attn.parameters if isinstance(a, ThresholdsPointer)] == [
        ThresholdsPointer(tensor="ks", kind="tile")
    ]
    assert re.search(
        r"dl\.wait\(signals, .*, target=tl\.load\(ks_tile_thresholds \+ .*\) \* ks_generation, debug_block",
        unbroken(result.text),
    )
    uniform = emit(bound, {**counts, key: np.full_like(counts[key], 3)})
    assert "target=3 * ks_generation, debug_block" in uniform.text


def test_thresholds_of_a_counter_alone_may_differ_between_ranks() -> None:
    bound = Sample(text=SHIFTED, numbers={"M": 64}).bound(ranks=2, target="sm_90")
    counts = dict(make_plan(bound).thresholds)
    counts["h", "tile"] = np.array([[1], [2]]).reshape(counts["h", "tile"].shape)
    assert "tl.load(h_tile_thresholds + 0) * h_generation" in emit(bound, counts).text


def test_offsets_beyond_32_bits() -> None:
    text = """
program huge(B, M, N):
    x : in [B, M, N]
    y : out [B, M, N]
    compute f(s: B, i: M, j: N):
        if s > 0:
            y[s, i, j] = x[s - 1, i, j]
"""
    bound = Sample(text=text, numbers={"B": 8, "M": 65536, "N": 16384}).bound(ranks=1, target="cpu")
    source = numbered(emit(bound, {}).text)
    assert "tl.cast(s, tl.int64) * 1073741824" in source
    assert "tl.cast(s - 1, tl.int64) * 1073741824" in source


def test_offsets_of_rows_that_a_table_names_have_64_bits() -> None:
    sample = Sample(text=samples.PICKED.text, numbers={"B": 20, "M": 65536, "K": 40000, "N": 8})
    source = numbered(emit(sample.bound(ranks=1, target="cpu"), {}).text)
    assert "x + rows_1.to(tl.int64)[:, None] * 40000" in source


@pytest.mark.parametrize(("rows", "wide"), [(2**15 - 1, False), (2**15, True)])
def test_offsets_have_64_bits_where_the_end_of_a_tensor_is_no_i32(rows: int, wide: bool) -> None:
    sample = Sample(text=samples.COPY.text.replace("[K, K]", "[K, 65536]"), numbers={"K": rows})
    assert (".to(tl.int64)" in numbered(emitted(sample.bound(ranks=1, target="cpu")).text)) is wide


@pytest.mark.parametrize("name", ["tile", "tl", "x_peers", "token"])
def test_names_of_the_frame_are_refused(name: str) -> None:
    text = SQUARE_NAMED.replace("NAME", name)
    with pytest.raises(EmitError, match=f"'{name}'"):
        emit(Sample(text=text, numbers={"M": 20}).bound(ranks=1, target="cpu"), {})


SQUARE_NAMED = """
program named(M):
    x : in [M]
    y : out [M]
    compute f(i: M):
        NAME = x[i] * x[i]
        y[i] = NAME
"""


def test_temporaries_avoid_the_users_names() -> None:
    text = SQUARE_NAMED.replace("NAME", "x_tile")
    source = emit(Sample(text=text, numbers={"M": 20}).bound(ranks=1, target="cpu"), {}).text
    assert "x_tile_1 = tl.load(" in source
    assert source.count("x_tile = ") == 3  # the statement, the comment above it, the program in the header


def test_unknown_dialects_are_refused() -> None:
    bound = samples.SQUARE.bound(ranks=1, target="cpu")
    with pytest.raises(EmitError, match="fortran"):
        samples.in_dialect(bound, "fortran")
