"""Which kernels begin and end a launch by themselves, and where in them they do so."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.backend.samples import in_dialect, numbered
from tilelink import compiler
from tilelink.artifact import HandshakePointer, LaunchProtocol
from tilelink.backend.context import Emitted
from tilelink.backend.emit import emit
from tilelink.errors import VerificationError
from tilelink.lowering.bound import Bound
from tilelink.planning.plan import make_plan
from tilelink.verifier import verify

TEXT = """
program chain(M):
    x : in{shared}    [M]
    c : local     [M]
    h : symmetric [M]
    y : out       [M]

    compute one(i: M):
        c[i] = x[i] * 2.0
        producer_tile_notify(c[i])

    comm two(i: M):
        consumer_tile_wait(c[i])
        tile_push_data(h[i] @ (rank + 1), c[i])
        producer_tile_notify(h[i] @ (rank + 1))

    compute three(i: M):
        consumer_tile_wait(h[i])
        y[i] = h[i]{more}

schedule s for chain:
    one on sm, tile(i=32)
    two {place}, tile(i=32)
    three on sm, tile(i=32)
"""
PEERS: dict[str, Any] = {"shared": " symmetric", "more": " + x[i] @ (rank + 1)"}
Edges = dict[str, tuple[bool, bool]]


def bound(place: str = "on sm", ranks: int = 4, target: str = "sm_90", shared: str = "", more: str = "") -> Bound:
    module = compiler.parse(TEXT.format(place=place, shared=shared, more=more))
    return compiler.bound(module.programs[0], module.schedules[0], ranks=ranks, dims={"M": 256}, target=target)


def emitted(one: Bound, dialect: str = "triton") -> Emitted:
    one = in_dialect(one, dialect)
    return emit(one, make_plan(one).thresholds)


def bodies(result: Emitted) -> dict[str, str]:
    """kernel -> its lines behind the head."""
    return dict(re.findall(r"(?m)^def (\w+)\(.*\):\n((?:    .*\n|\n)*)", numbered(result.text)))


def edges(result: Emitted) -> Edges:
    """kernel -> whether it begins the launch and whether it ends it; those that do neither are not there."""
    found = {name: ("dl.announce_entry(" in body, bool(re.search(r"dl\.(finish_launch|count_program)\(", body)))
             for name, body in bodies(result).items()}  # fmt: skip
    given = {kernel.name for kernel in result.kernels if HandshakePointer() in kernel.parameters}
    assert given == {name for name, both in found.items() if any(both)}, "the block is passed to those that need it"
    return {name: both for name, both in found.items() if any(both)}


def test_the_last_kernel_ends_a_launch() -> None:
    assert edges(emitted(bound())) == {"three": (False, True)}


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "gfx942", "cpu"])
def test_the_first_kernel_begins_a_launch_whose_inputs_peers_read(target: str) -> None:
    assert edges(emitted(bound(target=target, **PEERS))) == {"one": (True, False), "three": (False, True)}


def test_one_kernel_may_do_both() -> None:
    program = compiler.load("all_reduce").program("all_reduce_two_shot")
    result = emitted(compiler.bound(program, ranks=4, dims={"Ms": 64, "N": 64}, target="sm_90"))
    assert edges(result) == {"reduce": (True, True)}


def test_one_rank_has_nobody_to_tell_that_it_has_entered() -> None:
    assert edges(emitted(bound(ranks=1, **PEERS))) == {"three": (False, True)}


@pytest.mark.parametrize("place", ["on copy_engine", "on sm(2)"])
def test_launches_of_several_streams_are_begun_and_ended_for_them(place: str) -> None:
    assert edges(emitted(bound(place, **PEERS))) == {}


@pytest.mark.parametrize(("dialect", "own"), [("traced", True), ("triton_dist", False)])
def test_dialects(dialect: str, own: bool) -> None:
    expected = {"one": (True, False), "three": (False, True)} if own else {}
    assert edges(emitted(bound(**PEERS), dialect)) == expected


ALONE = """
program alone(M):
    x : in{shared}    [M]
    h : symmetric [M]
    y : out       [M]

    comm send(i: M):
        tile_push_data(h[i] @ (rank + 1), x[i] * 2.0)
        producer_tile_notify(h[i] @ (rank + 1))

    compute keep(i: M):
        consumer_tile_wait(h[i])
        y[i] = h[i]{more}

schedule s for alone:
    send {place}, tile(i=32)
    keep {keep}, tile(i=32)
    {last}
"""
OFF = {"last": "reuse_wait off"}
COUNTED: dict[str, tuple[dict[str, Any], LaunchProtocol]] = {
    "only signals": (OFF, LaunchProtocol.COUNTED),
    "inputs of peers with two buffers": ({**PEERS, **OFF}, LaunchProtocol.COUNTED),
    "inputs of peers with one buffer": (
        {**PEERS, "last": "x buffers 1\n    reuse_wait off"},
        LaunchProtocol.IN_KERNEL,
    ),
    "waits for reuse": ({}, LaunchProtocol.IN_KERNEL),
    "a stream of its own": ({"place": "on sm(2)", **OFF}, LaunchProtocol.HELPER_KERNELS),
    "two kernels": ({"keep": "on sm", **OFF}, LaunchProtocol.IN_KERNEL),
}


@pytest.mark.parametrize("name", COUNTED)
def test_programs_are_counted_where_nobody_waits_for_the_end_of_a_launch(name: str) -> None:
    given, expected = COUNTED[name]
    usual = {"shared": "", "more": "", "place": "on sm", "keep": "in send epilogue", "last": ""}
    module = compiler.parse(ALONE.format(**{**usual, **given}))
    one = compiler.bound(module.programs[0], module.schedules[0], ranks=3, dims={"M": 256}, target="sm_90")
    result = emitted(one)
    assert one.protocol is expected
    names = re.findall(r"dl\.(launch_number|announce_finished|count_program|finish_launch)\(", bodies(result)["send"])
    other = [] if given.keys() & {"place", "keep"} else ["finish_launch"]
    assert names == (["launch_number", "announce_finished", "count_program"] if expected.counted else other)


def test_kernels_beside_each_other_are_counted_together_and_one_tells() -> None:
    result = emitted(one := bound("on sm(2)"))
    programs = sum(kernel.programs for kernel in result.kernels)
    assert len(result.kernels) == 3 and one.protocol is LaunchProtocol.COUNTED_ANNOUNCED
    for name, body in bodies(result).items():
        lines = [line.strip() for line in body.splitlines() if line.strip()]
        assert f"launch = dl.launch_number(epoch_pointer, handshake_block, {programs})" in lines
        tells = [line for line in lines if "announce_finished" in line]
        numbers = f"FINISHED={one.finished_base}, RANKS=4, BLOCK=4"
        tell = f"dl.announce_finished(handshake_block, signal_table, epoch_pointer, launch, rank, {numbers})"
        assert tells == [tell] * (name == "one"), "the first of the caller's stream, before it waits for anything"
        assert lines[-1] == "dl.count_program(handshake_block, epoch_pointer)"
    for other in (bound("on sm(2)", **PEERS), bound("on sm(2)", ranks=1), bound("on copy_engine")):
        assert other.protocol is LaunchProtocol.HELPER_KERNELS


def of_library(file: str, name: str, schedule: str) -> Emitted:
    """A schedule of the library, with sizes that its tiles divide, on four ranks."""
    module = compiler.load(file)
    program = module.program(name)
    dims = {"Ms": 256, "N": 1024, "K": 256}
    chosen = module.schedule(schedule, program)
    return emitted(compiler.bound(program, chosen, ranks=4, dims=dims, dtype="bf16", target="sm_90"))


def test_programs_of_a_warp_are_counted_too() -> None:
    result = of_library("gemm_rs", "gemm_rs_local_last", "h200_copy_sms")
    assert "gl.warp_specialize" in result.text
    programs = sum(kernel.programs for kernel in result.kernels)
    assert result.text.count(f"launch = dl.launch_number(epoch_pointer, handshake_block, {programs})") == 2
    assert (
        "    dl.publish(scope=dl.WARP)\n    dl.count_program(handshake_block, epoch_pointer, scope=dl.WARP)\n"
        in result.text
    )


COPIED = """
program copied(M):
    x : in{shared}    [M]
    h : symmetric [M]
    y : out       [M]

    comm send(i: M):
        tile_push_data(h[i] @ (rank + 1), x[i])
        producer_tile_notify(h[i] @ (rank + 1))

    compute keep(i: M):
        consumer_tile_wait(h[i])
        y[i] = h[i] * 2.0{more}

schedule s for copied:
    send on copy_engine, tile(i=256)
    keep on sm, tile(i=32)
"""


@pytest.mark.parametrize(
    ("given", "ranks", "begins"), [({}, 3, True), ({}, 1, False), (PEERS, 3, False)], ids=["alone", "one rank", "peers"]
)  # fmt: skip
def test_the_only_kernel_beside_a_copy_engine_lets_it_begin(given: dict[str, str], ranks: int, begins: bool) -> None:
    module = compiler.parse(COPIED.format(**{"shared": "", "more": "", **given}))
    one = compiler.bound(module.programs[0], module.schedules[0], ranks=ranks, dims={"M": 256}, target="sm_90")
    result = emitted(one)
    expected = LaunchProtocol.COUNTED_WITH_COPIES if begins else LaunchProtocol.HELPER_KERNELS
    assert one.protocol is expected
    body = bodies(result)["keep"]
    names = re.findall(r"dl\.(launch_number|\w*finished|begin_copies|wait|count_program|finish_launch)\(", body)
    assert names == (["launch_number", "begin_copies", "wait", "count_program"] if begins else ["wait"])
    if begins:
        numbers = f"FINISHED={one.finished_base}, RANKS=3, BLOCK=4, STAGE=2, FIRST=True"
        first = "handshake_block, signals, signal_table, epoch_pointer, debug_block, launch, rank"
        call = f"dl.begin_copies({first}, {numbers})"
        assert [line.strip() for line in body.splitlines() if "begin_copies" in line] == [call]


@pytest.mark.parametrize(
    ("file", "name", "first"), [("ag_gemm", "ag_gemm_in_place", True), ("gemm_rs", "gemm_rs_reduce_last", False)]
)
def test_which_program_lets_copies_begin(file: str, name: str, first: bool) -> None:
    """The first one, whichever others run, unless the copies wait for products of them all anyway."""
    text = numbered(of_library(file, name, "h200").text)
    assert re.findall(r"dl\.begin_copies\(.* FIRST=(\w+)\)", text) == [str(first)]


def test_outputs_that_peers_write_end_a_launch() -> None:
    program = compiler.load("all_reduce").program("all_reduce_two_shot")
    schedule = compiler.load("all_reduce").schedule("few", program)
    one = compiler.bound(program, schedule, ranks=4, dims={"Ms": 64, "N": 64}, target="sm_90")
    assert one.protocol is LaunchProtocol.IN_KERNEL


def test_peers_are_told_before_they_are_waited_for_and_at_the_very_end() -> None:
    one = bound(ranks=3, **PEERS)
    found = bodies(emitted(one))
    entered, finished = one.entered_base, one.finished_base
    lines = [line.strip() for line in found["one"].splitlines()]
    enter = lines.index(f"dl.announce_entry(handshake_block, signal_table, rank, ENTERED={entered}, RANKS=3, BLOCK=4)")
    assert all(not re.match(r"for tile|dl\.wait|token", line) for line in lines[:enter])
    last = [line for line in found["three"].splitlines() if line.strip()]
    numbers = f"FINISHED={finished}, RANKS=3, BLOCK=4, STAGE=3"
    given = "handshake_block, signals, signal_table, epoch_pointer, debug_block, rank, num_programs"
    assert last[-1] == f"    dl.finish_launch({given}, {numbers})"
    program = compiler.load("all_reduce").program("all_reduce_two_shot")
    both = bodies(emitted(compiler.bound(program, ranks=4, dims={"Ms": 64, "N": 64}, target="sm_90")))["reduce"]
    order = re.findall(r"dl\.announce_entry|dl\.wait_all|for tile|dl\.finish_launch", both)
    assert order == ["dl.announce_entry", "dl.wait_all", "dl.wait_all", "for tile", "dl.finish_launch"]


INDEPENDENT = """
program independent(M, N):
    x : in       [M, N]
    c : out      [M, N]
    y : out      [M, N]

    compute one(i: M, j: N):
        c[i, j] = x[i, j] * 2.0

    compute two(i: M, j: N):
        y[i, j] = x[i, j] + 1.0

schedule s for independent:
    one on sm, tile(i=32, j=32)
    two on sm, tile(i=32, j=32)
"""


def independent(*changes: tuple[str, str]) -> Bound:
    text = INDEPENDENT
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    module = compiler.parse(text)
    return compiler.bound(module.programs[0], module.schedules[0], ranks=3, dims={"M": 64, "N": 64}, target="sm_90")


@pytest.mark.parametrize(
    ("changes", "is_independent"),
    [
        ((), True),
        ((("in       ", "in symmetric "),), False),
        ((("c : out  ", "c : local"), ("x[i, j] + 1.0", "c[i, j] + 1.0")), False),
    ],
    ids=["nothing shared", "symmetric memory", "signals within a rank"],
)
def test_ranks_that_share_nothing_have_no_handshake(changes: tuple[tuple[str, str], ...], is_independent: bool) -> None:
    result = emitted(one := independent(*changes))
    assert (one.protocol is LaunchProtocol.INDEPENDENT) == is_independent
    calls = set(re.findall(r"epoch_pointer|handshake_block|\blaunch\b", "".join(bodies(result).values())))
    assert bool(calls) != is_independent
    assert any(HandshakePointer() in kernel.parameters for kernel in result.kernels) != is_independent


PLAIN = """
program plain(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    y : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(x[i, :], w[j, :].T)

schedule r for plain:
    gemm on sm, tile(i=128, j=128, k=64), num_warps 8, roles(consumers=2, buffers=4)
"""


def test_roles_of_independent_ranks_take_no_number_of_the_launch() -> None:
    module = compiler.parse(PLAIN)
    sizes = {"M": 256, "N": 256, "K": 256}
    one = compiler.bound(module.programs[0], module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")
    text = emitted(one).text
    assert one.protocol is LaunchProtocol.INDEPENDENT and "warp_specialize" in text
    assert not re.search(r"\blaunch\b|handshake|\bepoch\b", text[text.index("@gluon.jit") :])


def test_ranks_that_share_memory_are_not_taken_for_independent() -> None:
    """What kernels leave out is part of the lowered program that the rules see."""
    one = replace(bound(), protocol=LaunchProtocol.INDEPENDENT)
    with pytest.raises(VerificationError, match="the handshake INDEPENDENT, which is not that of such kernels"):
        verify(make_plan(one))


class Number(int):
    """A number in generated source, as Triton computes it."""

    def to(self, dtype: str) -> Number:
        return Number((self + 2**31) % 2**32 - 2**31 if dtype == "i32" else self)

    def __add__(self, other: int) -> Number:
        return Number(int(self) + other)

    def __sub__(self, other: int) -> Number:
        return Number(int(self) - other)

    def __mod__(self, other: int) -> Number:
        return Number(int(self) % other)

    def __floordiv__(self, other: int) -> Number:
        return Number(int(self) // other)

    def __mul__(self, other: int) -> Number:
        return Number(int(self) * other)


@pytest.mark.parametrize("launch", [1, 2, 7, 2**31 - 1, 2**31, 2**31 + 1, 2**31 + 2, 2**32 + 5])
@pytest.mark.parametrize("buffers", [2, 3])
def test_buffers_follow_the_launch_also_where_counters_wrap(buffers: int, launch: int) -> None:
    last = f"h buffers {buffers}"  # with a wait for a launch, by its number
    text = ALONE.format(shared="", more="", place="on sm", keep="in send epilogue", last=last)
    module = compiler.parse(text)
    one = compiler.bound(module.programs[0], module.schedules[0], ranks=3, dims={"M": 256}, target="sm_90")
    lines = [line.strip() for line in bodies(emitted(one))["send"].splitlines()]
    setup = [line for line in lines if re.match(r"epoch = |h_(offset|buffer|generation) = ", line)]
    assert len(setup) == 4
    found: dict[str, Any] = {"launch": Number(launch), "tl": SimpleNamespace(int32="i32", int64="i64")}
    exec("\n".join(setup), found)
    assert found["h_buffer"] == (launch - 1) % buffers and found["h_offset"] == (launch - 1) % buffers * 256
    assert found["h_generation"] == Number((launch - 1) // buffers + 1).to("i32")
    assert found["epoch"] == Number(launch).to("i32")
