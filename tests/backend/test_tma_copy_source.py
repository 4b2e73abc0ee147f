# pyright: basic
"""Kernels that copy by TMA: their source, and the order of what Triton makes of it."""

from __future__ import annotations

import re
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.backend.samples import in_dialect, numbered
from tests.backend.test_roles_source import joined
from tests.runtime.ptx import text
from tilelink import compiler
from tilelink.artifact import Boxes, PeersPointer, TensorPointer
from tilelink.backend import store
from tilelink.backend.context import shared_layout, signature
from tilelink.backend.emit import emit
from tilelink.compiler.cuda import gpu_artifact
from tilelink.errors import EmitError
from tilelink.frontend.schedule_parser import parse_schedule
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import make_plan
from tilelink.runtime.cuda.compile_offline import compile_source
from tilelink.runtime.cuda.functions import Address, described

ROW = 4096
SIZES = {"Ms": 512, "K": ROW}


@cache
def bound(ranks: int = 4, *, pull: bool = False, more: str = "tma_copy 4", on: str = "sm_90", sms: int = 8) -> Bound:
    """Programs that wait for rows of their own rank and push them to all, or that pull them from all."""
    if pull:
        statements = "tile_pull_data(s[p, i, :], c[i, :] @ p)", "producer_tile_notify(s[p, i, :])"
    else:
        statements = "tile_push_data(s[rank, i, :] @ p, c[i, :])", "producer_tile_notify(s[rank, i, :] @ p)"
    module = compiler.parse(
        f"""program hand(Ms, K):
    x : in        [Ms, K]
    c : symmetric [Ms, K]
    s : symmetric [ranks, Ms, K]
    y : out       [ranks, Ms, K]

    compute make(i: Ms):
        c[i, :] = exp(x[i, :])
        for (p: ranks):
            producer_tile_notify(c[i, :] @ p)

    comm carry(p: ranks, i: Ms):
        consumer_tile_wait(c[i, :])
        {statements[0]}
        {statements[1]}

    compute take(p: ranks, i: Ms):
        consumer_tile_wait(s[p, i, :])
        y[p, i, :] = s[p, i, :]

schedule one for hand:
    make on sm, tile(i=1)
    carry on sm({sms}), tile(i=64), {more}
    take in make epilogue, tile(i=1)
""",
        "hand.tl",
    )
    return compiler.bound(module.program(), module.schedules[0], ranks=ranks, dims=SIZES, dtype="bf16", target=on)


def source(made: Bound) -> str:
    return "\n".join(joined(numbered(emit(made, make_plan(made).thresholds).text)))


def test_a_tile_is_waited_for_copied_in_boxes_and_notified() -> None:
    lines = [line.strip() for line in source(bound()).split("def _carry(")[1].split("\n@")[0].splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    assert lines[1] == "pid = gl.program_id(0) * 4 + WARP + first_program"
    loop = lines.index("for tile in range(pid, 32, num_programs):")
    kinds = [
        ("wait", "token += dl.wait("), ("load", "tma_copy.load_box("), ("loaded", "tma_copy.loaded("),
        ("store", "_carry_store_s("), ("notify", "dl.notify("),
    ]  # fmt: skip
    found = [kind for line in lines[loop:] for kind, mark in kinds if mark in line]
    assert found == ["wait", "load", "loaded", "store", "notify"]
    assert "for step in range(0, 67):" in lines  # 64 boxes, three of them ahead
    row = next(line for line in lines if line.startswith("row = "))
    assert row == "row = dl.consume_token(c_buffer * 512 + i * 64, token)"
    assert not any(re.match(r"tl\.(load|store)\(.*(c|s)_", line) for line in lines)


def test_every_ranks_copy_has_a_descriptor_and_the_own_ones_one() -> None:
    for pull, near, far in ((False, "c", "s"), (True, "s", "c")):
        emitted = emit(bound(pull=pull), make_plan(bound(pull=pull)).thresholds)
        kernel = next(k for k in emitted.kernels if k.name == "carry")
        boxes = {(a.tensor, a.owner) for a in kernel.parameters if isinstance(a, Boxes)}
        assert boxes == {(near, None), *((far, rank) for rank in range(4))}
        assert not any(isinstance(a, TensorPointer | PeersPointer) for a in kernel.parameters)
        assert (kernel.programs_per_cta, kernel.num_warps) == (4, 4)
        what = "load" if pull else "store"
        assert len(re.findall(rf"(?:if|elif) peer == \d:\n        tma_copy\.{what}_box\(", emitted.text)) == 4


def compiled(made: Bound, dialect: str = "triton", debug_block: bool = False, stage: str = "carry"):
    made = in_dialect(made, dialect)
    emitted = emit(made, make_plan(made).thresholds)
    kernel = next(k for k in emitted.kernels if k.name == stage)
    types = signature(kernel, made) | ({"debug_block": "*i64"} if debug_block else {})
    function = getattr(store.load(store.save(emitted.text)), stage)
    rest = {} if debug_block else {"debug_block": None}
    return compile_source(function, types, rest, "sm_90", num_warps=kernel.num_warps, num_stages=3)


EVENTS = {
    "poll": r"ld\.acquire\.sys\.global\.b32",
    "proxy": r"fence\.proxy\.async\.global",
    "load": r"cp\.async\.bulk\.tensor\.2d\.shared::\w+\.global",
    "arrived": r"mbarrier\.try_wait",
    "store": r"cp\.async\.bulk\.tensor\.2d\.global\.shared",
    "written": r"cp\.async\.bulk\.wait_group\s+0",
    "together": r"bar\.warp\.sync 0xffffffff",
    "release": r"red\.release\.(sys|gpu)\.global\.add",
}


@pytest.mark.parametrize("pull", [False, True])
def test_what_was_stored_is_written_before_it_is_told_of(pull: bool) -> None:
    kernel = compiled(bound(pull=pull))
    lines = text(kernel).splitlines()
    found = [kind for line in lines for kind, pattern in EVENTS.items() if re.search(pattern, line)]
    tells = [n for n, kind in enumerate(found) if kind == "release"]
    # And once more at the end of each program; compilers may make one of ends that are alike.
    assert found.count("written") in (5, 8)
    assert len(tells) == 4  # one of each program
    for at in tells:
        assert found[at - 3 : at] == ["written", "proxy", "together"]
    scope = "gpu" if pull else "sys"
    assert len(re.findall(rf"red\.release\.{scope}\.global\.add", text(kernel))) == 4
    polls = [n for n, kind in enumerate(found) if kind == "poll"]
    assert len(polls) >= 8 and polls[0] < found.index("load")
    for at in polls:
        assert found[at : at + 3] == ["poll", "together", "proxy"]
    assert kernel.metadata.num_warps == 8 and 192 * 1024 <= kernel.metadata.shared <= 227 * 1024
    # a barrier of all threads of the block would wait for programs that are elsewhere
    assert not re.search(r"bar\.sync\s+0;", text(kernel))


def test_a_program_ends_when_what_it_stored_is_written() -> None:
    """Also one that notifies nobody: the next block on its SM may own the memory of its boxes at once."""
    module = compiler.parse(
        """program move(Ms, K):
    x : in  [Ms, K]
    y : out [Ms, K]

    comm carry(i: Ms):
        y[i, :] = x[i, :]

schedule one for move:
    carry on sm(8), tile(i=64), tma_copy 4
""",
        "move.tl",
    )
    made = compiler.bound(module.program(), module.schedules[0], ranks=2, dims=SIZES, dtype="bf16", target="sm_90")
    lines = text(compiled(made)).splitlines()
    found = [kind for line in lines for kind, pattern in EVENTS.items() if re.search(pattern, line)]
    assert found.count("written") in (1, 4), "ends that are alike may be one"
    for at in (n for n, kind in enumerate(found) if kind == "written"):
        assert found[at : at + 3] == ["written", "proxy", "together"]


@pytest.mark.parametrize("dialect", ["triton", "traced"])
def test_deadlines_and_traces_are_those_of_a_warp(dialect: str) -> None:
    ptx = text(compiled(bound(), dialect, debug_block=True))
    assert len(re.findall(r"atom\.relaxed\.sys\.global\.cas\.b64", ptx)) >= 4
    assert not re.search(r"bar\.sync\s+0;", ptx)
    assert ("%tid.x" not in ptx.split("DONE:")[1].split("DONE:")[0]) and "%laneid" in ptx
    begin = "dl.tile_begin(debug_block=debug_block, stage=1, tile=tile, trace=trace_track, scope=dl.WARP)"
    assert begin in source(in_dialect(bound(), "traced")) and "trace" not in source(bound())


def test_the_device_library_knows_programs_of_a_warp() -> None:
    """All that programs of all threads of a block call has a form for one warp, with other names for its threads."""
    from tilelink.device import assembly

    warp = {name: getattr(value, "value", "") for name, value in vars(assembly).items() if name.startswith("WARP_")}
    del warp["WARP_THREADS"]
    assert len(warp) == 9
    for name, one in warp.items():
        assert "%tid" not in one and "%ntid" not in one and "bar.sync" not in one, name


def test_a_stage_with_the_name_of_a_function_is_told_so() -> None:
    program = str(bound().source).replace("take(", "_carry_store_s(")
    schedule = str(bound().schedule).replace("take in", "_carry_store_s in")
    module = compiler.parse(f"{program}\n{schedule}", "hand.tl")
    made = compiler.bound(module.program(), module.schedules[0], ranks=4, dims=SIZES, dtype="bf16", target="sm_90")
    with pytest.raises(EmitError, match="'_carry_store_s' would be that of functions"):
        source(made)


def test_functions_of_two_such_stages_are_told_apart() -> None:
    module = compiler.parse(
        """program hand(Ms, K):
    x : in        [Ms, K]
    s : symmetric [Ms, K]
    y : out       [2, Ms, K]

    comm carry(i: Ms):
        tile_push_data(s[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(s[i, :] @ (rank + 1))

    comm carry_store_s(i: Ms):
        y[0, i, :] = x[i, :]

    comm keep(i: Ms):
        consumer_tile_wait(s[i, :])
        y[1, i, :] = s[i, :]

schedule one for hand:
    carry on sm(8), tile(i=64), tma_copy 4
    carry_store_s on sm(8), tile(i=64), tma_copy 4
    keep on sm
""",
        "hand.tl",
    )
    made = compiler.bound(module.program(), module.schedules[0], ranks=4, dims=SIZES, dtype="bf16", target="sm_90")
    with pytest.raises(EmitError, match="'_carry_store_s' would be that of functions"):
        source(made)


def test_functions_of_two_such_stages_that_are_called_alike() -> None:
    module = compiler.parse(
        """program hand(Ms, K):
    b_store_c : in symmetric [Ms, K]
    x         : in           [Ms, K]
    c         : symmetric    [Ms, K]
    s         : local        [Ms, K]
    y         : out          [2, Ms, K]

    comm a(i: Ms):
        tile_pull_data(s[i, :], b_store_c[i, :] @ (rank + 1))
        producer_tile_notify(s[i, :])

    comm a_load_b(i: Ms):
        tile_push_data(c[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(c[i, :] @ (rank + 1))

    compute keep(i: Ms, j: K):
        consumer_tile_wait(s[i, :])
        consumer_tile_wait(c[i, :])
        y[0, i, j] = s[i, j]
        y[1, i, j] = c[i, j]

schedule one for hand:
    a on sm(8), tile(i=64), tma_copy 4
    a_load_b on sm(8), tile(i=64), tma_copy 4
    keep on sm, tile(i=64, j=64)
""",
        "hand.tl",
    )
    made = compiler.bound(module.program(), module.schedules[0], ranks=4, dims=SIZES, dtype="bf16", target="sm_90")
    with pytest.raises(EmitError, match="'_a_load_b_store_c' would be that of functions of a and of a_load_b"):
        source(made)


def test_another_dialect_and_another_processor_load_and_store() -> None:
    assert "gluon" not in source(in_dialect(bound(), "triton_dist"))
    for on in ("sm_80", "cpu"):
        plain = source(bound(on=on))
        assert "gluon" not in plain and "tl.store(s_remote" in plain


def test_a_single_program_of_an_sm() -> None:
    made = bound(more="tma_copy 1")
    emitted = emit(made, make_plan(made).thresholds)
    assert [k.programs_per_cta for k in emitted.kernels if k.name == "carry"] == [1]
    assert re.search(r"\(_carry,\s+\(", emitted.text) and compiled(made).metadata.num_warps == 8


def test_a_launch_has_a_block_for_the_programs_of_an_sm() -> None:
    made = bound(more="num_warps 16, tma_copy 4")  # those of programs that load and store
    verified = compiler.plan(made.source, made.schedule, ranks=4, dims=SIZES, dtype="bf16", target="sm_90")
    artifact = gpu_artifact(verified)
    found = {one.name: (one.programs, one.programs_per_cta, one.grid, one.num_warps) for one in artifact.kernels}
    assert found == {"make": (124, 1, 124, 4), "carry": (32, 4, 8, 4)}
    boxes = [one for one in artifact.kernels[1].parameters if isinstance(one, Boxes)]
    far = [(one.tensor, one.owner, one.box) for one in boxes if one.owner is not None]
    assert far == [("s", rank, (32, 128)) for rank in range(4)]


def test_a_descriptor_of_a_peers_copy_says_what_was_compiled() -> None:
    tensor = torch.empty(2, 4, 512, ROW, dtype=torch.bfloat16, device="meta")
    made = described(Address(tensor, 1 << 20), Boxes(tensor="s", box=(32, 128), owner=3))
    assert (made.base.data_ptr(), made.base.dtype) == (1 << 20, torch.bfloat16)
    assert (list(made.shape), list(made.strides), list(made.block_shape)) == ([4096, ROW], [ROW, 1], [32, 128])
    assert repr(made.layout) == shared_layout(16)


# What the programs of a rank do --------------------------------------------------------------------------------


class Number(int):
    """The number of the launch, which is converted and computed with."""

    def to(self, _: object) -> Number:
        return self

    def __add__(self, other: int) -> Number:
        return Number(int(self) + other)

    def __sub__(self, other: int) -> Number:
        return self + -other

    def __mod__(self, other: int) -> Number:
        return Number(int(self) % other)

    def __floordiv__(self, other: int) -> Number:
        return Number(int(self) // other)


class Copying:
    """Stands for the device library: boxes are numpy arrays, and each use of a buffer must be its turn.

    tensors: parameter -> rows of a tensor, as a descriptor sees them.
    """

    WARP = "warp"

    def __init__(self, tensors: dict[str, np.ndarray], box: tuple[int, int], warp: int, epoch: int) -> None:
        self.tensors, self.box, self.warp, self.epoch = tensors, box, warp, epoch
        self.held: dict[int, tuple[int, np.ndarray]] = {}
        self.told: list[int] = []
        self.moved = self.ordered = self.counted = 0

    def load_box(self, boxes, row, column, room, full, first, number, buffers, ahead) -> None:
        slot = first + number % buffers
        assert slot not in self.held and self.warp * buffers <= slot < (self.warp + 1) * buffers
        assert len(self.held) <= ahead < buffers and number == self.ordered
        self.ordered += 1
        self.held[slot] = number, self.tensors[boxes][row : row + self.box[0], column : column + self.box[1]].copy()

    def loaded(self, full, first, number, buffers) -> int:
        slot = first + number % buffers
        assert self.held[slot][0] == number
        return slot

    def store_box(self, boxes, place, slot) -> None:
        (row, column), (_, data) = place, self.held.pop(slot)
        there = self.tensors[boxes][row : row + self.box[0], column : column + self.box[1]]
        there[...] = data[: there.shape[0], : there.shape[1]]
        self.moved += 1

    def notify(self, pad, channel, *_: object, **__: object) -> None:
        assert not self.held  # everything is on its way when a tile is told of
        self.told.append(channel)

    def wait(self, *_: object, **__: object) -> int:
        return 0

    def publish(self, scope: str) -> None:
        assert scope == self.WARP and not self.held

    def count_program(self, handshake_block: object, epoch_pointer: object, scope: str) -> None:
        assert scope == self.WARP
        self.counted += 1

    def consume_token(self, value: int, token: int) -> int:
        return value + token

    def symm_at(self, *_: object) -> int:
        return 0

    def launch_number(self, *_: object) -> Number:
        return Number(self.epoch)

    wait_all = tile_begin = transfer = wait


def run(made: Bound, stage: str, copies: dict[str, list[np.ndarray]], rank: int, epoch: int) -> tuple[int, int]:
    """Runs all programs of a rank. Returns how many notifies they gave and how many boxes they moved.

    copies: tensor -> of every rank, its rows with all buffers, one behind the other.
    """
    emitted = emit(made, make_plan(made).thresholds)
    kernel = next(k for k in emitted.kernels if k.name == stage)
    boxes = made.stages[stage].tma_copy
    assert boxes
    described = [a for a in kernel.parameters if isinstance(a, Boxes)]
    tensors = {a.name: copies[a.tensor][rank if a.owner is None else a.owner] for a in described}
    functions = re.findall(rf"@gluon\.jit\n(def _{stage}\w*\(.*?)\n\n\n", emitted.text, re.DOTALL)
    told = moved = 0
    for block in range(kernel.grid):
        for warp in range(boxes.programs):
            bulk = Copying(tensors, boxes.box, warp, epoch)
            room = SimpleNamespace(index=lambda at: at)
            space = {
                "tma_copy": bulk, "gl": SimpleNamespace(program_id=lambda _, at=block: at, constexpr=int),
                "tl": SimpleNamespace(load=lambda _: Number(epoch), int32=0, int64=0, minimum=min),
                "dl": bulk,
                "tiles": SimpleNamespace(mod=lambda a, b: a % b, floordiv=lambda a, b: a // b),
            }  # fmt: skip
            for one in functions:
                exec(one, space)
            given = {a.name: a.name if a in described else 0 for a in kernel.parameters}
            given |= {"rank": rank, "num_programs": kernel.programs}
            space[f"_{stage}"](**given, tma_smem=room, tma_barriers=None, WARP=warp)
            assert bulk.counted == 1
            told, moved = told + len(bulk.told), moved + bulk.moved
    return told, moved


@pytest.mark.parametrize("pull", [False, True])
def test_the_programs_of_a_rank_move_what_the_stage_says(pull: bool) -> None:
    made = bound(pull=pull, sms=3)  # some programs have three tiles and some two
    rank, epoch, rows = 2, 4, 512
    random = np.random.default_rng(1)
    copies = {name: [np.zeros((2 * n * rows, ROW)) for _ in range(4)] for name, n in (("c", 1), ("s", 4))}
    for copy in copies["c"]:
        copy[:] = random.integers(0, 1 << 20, copy.shape)
    slot = (epoch - 1) % 2
    assert run(made, "carry", copies, rank, epoch) == (4 * 8, 4 * 8 * 64)
    for peer in range(4):
        if pull:
            source, target = copies["c"][peer], copies["s"][rank][slot * 4 * rows + peer * rows :]
        else:
            source, target = copies["c"][rank], copies["s"][peer][slot * 4 * rows + rank * rows :]
        assert np.array_equal(target[:rows], source[slot * rows : (slot + 1) * rows])
    written = sum(int(np.count_nonzero(copy.any(axis=1))) for copy in copies["s"])
    assert written <= 4 * rows


def test_rows_may_begin_anywhere() -> None:
    """Rows of all ranks one after the other, as gathers read them, here shifted by no multiple of a box."""
    module = compiler.parse("""program rows(Ms, K, T):
    x  : in        [Ms, K]
    at : in        [T] < ranks * Ms
    xs : symmetric [3 + ranks * Ms, K]
    y  : out       [T, K]

    comm carry(p: ranks, i: Ms):
        tile_push_data(xs[3 + rank * Ms + i, :] @ p, x[i, :])
        producer_tile_notify(xs[3 + rank * Ms + i, :] @ p)

    compute take(t: T):
        consumer_tile_wait(xs[3 + at[t], :])
        y[t, :] = xs[3 + at[t], :]

schedule one for rows:
    carry on sm(2), tile(i=48), tma_copy 4
    take on sm, tile(t=1)
    xs buffers 2
""")
    sizes = {"Ms": 192, "K": 256, "T": 8}
    made = compiler.bound(module.program(), module.schedules[0], ranks=3, dims=sizes, dtype="bf16", target="sm_90")
    boxes, random, rows = made.stages["carry"].tma_copy, np.random.default_rng(3), 3 + 3 * 192
    assert boxes and boxes.box == (16, 128)
    copies = {
        "x": [random.integers(1, 1 << 20, (192, 256)) for _ in range(3)],
        "xs": [np.zeros((2 * rows, 256), int) for _ in range(3)],
    }
    for rank in range(3):
        assert run(made, "carry", copies, rank, epoch=2)[1] == 3 * 4 * boxes.count
    for found in copies["xs"]:
        assert not found[: rows + 3].any()
        assert np.array_equal(found[rows + 3 :], np.concatenate(copies["x"]))


RANKS, WIDE = 3, 256
RING = """
schedule one for ag_gemm_ring:
    hand on sm(2), tile(i=64), order(q, i), tma_copy 4
    own in gemm prologue, tile(i=64, j=64, k=64)
    gemm on sm, tile(i=64, j=64, k=64)
    xs channel(i=64), buffers 2
"""


@cache
def ring() -> Bound:
    """What is copied depends on how far it has come."""
    program = compiler.load("ag_gemm").program("ag_gemm_ring")
    sizes = {"Ms": 192, "N": 64, "K": WIDE}
    schedule = parse_schedule(RING.strip())
    return compiler.bound(program, schedule, ranks=RANKS, dims=sizes, dtype="bf16", target="sm_90")


def test_a_copy_under_a_condition() -> None:
    """Hop by hop, all shards come everywhere: each pass over the ranks finds what the one before it has moved."""
    made, rows, epoch = ring(), 192, 3
    random = np.random.default_rng(2)
    copies = {
        "x": [random.integers(1, 1 << 20, (rows, WIDE)) for _ in range(RANKS)],
        "xs": [np.zeros((2 * RANKS * rows, WIDE), int) for _ in range(RANKS)],
    }
    boxes = made.stages["hand"].tma_copy
    assert boxes
    for _ in range(RANKS - 1):
        for rank in range(RANKS):
            assert run(made, "hand", copies, rank, epoch) == (2 * 3, 2 * 3 * boxes.count)
    for rank in range(RANKS):
        found = copies["xs"][rank].reshape(2, RANKS, rows, WIDE)
        assert not found[1].any() and not found[0][rank].any()
        for other in {*range(RANKS)} - {rank}:
            assert np.array_equal(found[0][other], copies["x"][other])


def test_functions_of_two_tensors_and_of_two_branches() -> None:
    text = source(ring())
    assert len(re.findall(r"def _hand_store_xs\(", text)) == 1 and "def _hand_load" not in text
    assert len(re.findall(r" _hand_store_xs\(", text.split("def _hand(")[1])) == 2
    assert compiled(ring(), stage="hand").metadata.num_warps == 8
