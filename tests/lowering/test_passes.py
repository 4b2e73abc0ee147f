"""Passes: every program on the way to the one that runs is safe, can be printed, and parsed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.compiler.library import Case, cases, has_roles, in_turn, name
from tests.lowered import parse_lowered
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.cli import app
from tilelink.errors import TileLinkError
from tilelink.frontend.parser import parse_text
from tilelink.ir.printer import print_program
from tilelink.lowering.bound import Bound
from tilelink.lowering.clauses import Phase, forget, register, switch
from tilelink.lowering.launch_protocol import handshake_of
from tilelink.lowering.listing import listing
from tilelink.lowering.passes import passes
from tilelink.planning.plan import make_plan
from tilelink.target import CPU, Target
from tilelink.verifier import verify

NAMES = ["bind", *(one.name for one in passes())]
SMALL = replace(CPU, grows=False, sms=6, max_programs=6)
PARTS = """program product(M, N, K):
    a : in  [M, K]
    b : in  [N, K]
    y : out [M, N]
    z : out [M, N]

    compute gemm(i: M, j: N):
        y[i, j] = dot(a[i, :], b[j, :].T)
        producer_tile_notify(y[i, j])

    compute sums(i: M):
        consumer_tile_wait(y[i, :])
        z[i, :] = y[i, :] + 1.0

schedule parts for product:
    gemm on sm, tile(i=16, j=16, k=16), split_k_tail 4

schedule filled for product:
    gemm on sm, tile(i=16, j=16, k=16)
    sums in gemm epilogue, tile(i=4), backfill 2
"""


def on_the_way(case: Case, ranks: int, dims: dict[str, Any], target: Target = CPU) -> dict[str, Bound]:
    found: dict[str, Bound] = {}
    options: dict[str, Any] = {"dtype": "bf16"} if has_roles(case) and target.kind == "cuda" else {}
    compiler.bound(
        *case, ranks=ranks, dims=dims, target=target, on_step=lambda one, bound: found.update({one: bound}), **options
    )
    return found


MANY = 5
"""Dimensions from which a program has smaller ones: its tiles are products of them."""


def sizes(case: Case) -> dict[str, Any]:
    own = [param for param in case[0].params if param.kind == "dim"]
    numbers = {param.name: 1 for param in case[0].params if param.kind != "dim"}
    some = (24, 20, 16) if len(own) < MANY else (6, 5, 4)
    return {param.name: some[n % 3] for n, param in enumerate(own)} | numbers


def test_passes_of_clauses_stand_where_the_clauses_say() -> None:
    """The whole order, which each pass relies on as its clause or its line in `passes` says."""
    assert NAMES == [
        "bind", "merge_copies", "tma_copy", "kernel_order", "kernels", "lockstep", "serpentine", "flatten",
        "split_k_tail", "halve_tail", "backfill", "program_per_tile", "loops", "low_latency", "transport",
        "sink_waits", "roles", "barriers", "defer_notify", "dynamic", "boxes", "loop_forms", "compact",
        "issue_order", "protocol",
    ]  # fmt: skip
    own = [switch(phase.name.lower(), manual="", apply=lambda bound: bound, phase=phase) for phase in Phase]
    idle = switch("idle", manual="")
    for clause in (*own, idle):
        register(clause)
    try:
        made = [one.name for one in passes()]
    finally:
        for clause in (*own, idle):
            forget(clause)
    assert {name: made[made.index(name) + 1] for name in made if name not in NAMES} == {
        "before_kernels": "kernels",
        "tiles": "loops",
        "before_transport": "transport",
        "before_barriers": "barriers",
        "after_barriers": "boxes",
    }


@pytest.mark.parametrize("schedule", ["parts", "filled"])
def test_the_counters_of_a_pad_lie_side_by_side_after_every_pass(schedule: str) -> None:
    """Those of signals for each buffer, then one for the entry of each rank and one for its end."""
    module = parse_text(PARTS, "parts.tl")
    case = module.programs[0], next(one for one in module.schedules if one.name == schedule)
    for bound in on_the_way(case, 3, {"M": 64, "N": 64, "K": 2048}, SMALL).values():
        own = [(grid.base, grid.count * grid.buffers) for grid in bound.channels.values()]
        end = 0
        for first, count in sorted([*own, (bound.entered_base, bound.ranks), (bound.finished_base, bound.ranks)]):
            assert first == end
            end += count
        assert end == bound.pad_size


@thorough(unless=lambda case: one_in(6, case[0].name))
@pytest.mark.parametrize("case", in_turn(cases()), ids=name)
def test_every_program_of_the_library_is_safe_after_every_pass(case: Case) -> None:
    if any(tensor.space == "table" for tensor in case[0].tensors):
        pytest.skip("a table has entries that fit together, which tests of its programs give it")
    found = on_the_way(case, 2, sizes(case))
    assert list(found) == NAMES
    before = found["tma_copy"]
    for after in NAMES[NAMES.index("kernels") :]:
        if (bound := found[after]) != before:
            verify(make_plan(bound))
        before = bound


@pytest.mark.parametrize(("schedule", "does", "stages"), [
    ("parts", "split_k_tail", ["gemm", "sums", "gemm_parts", "gemm_sums"]),
    ("filled", "backfill", ["gemm", "sums", "sums_rest"]),
])  # fmt: skip
def test_a_pass_shows_in_the_listing_what_it_made(schedule: str, does: str, stages: list[str]) -> None:
    module = compiler.parse(PARTS)
    program = module.program()
    found = on_the_way((program, module.schedule(schedule, program)), 1, {"M": 64, "N": 64, "K": 2048}, SMALL)
    before = NAMES[NAMES.index(does) - 1]
    assert list(found[before].stages) == ["gemm", "sums"] and list(found[does].stages) == stages
    for bound in found.values():
        text = listing(bound)
        assert text.endswith("\n\n" + print_program(bound.program))
        assert all(f"    stage {one}: " in text for one in bound.stages)
        assert all(f"    kernel {one.name}: " in text for one in bound.kernels)
        verify(make_plan(bound)) if bound.kernels else None


def show(*args: str) -> str:
    done = CliRunner().invoke(app, ["show", *args])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_shows_a_program_after_a_pass_or_after_all() -> None:
    heads = [line for line in show("ag_gemm", "--after", "all").splitlines() if line.startswith("# after ")]
    names = [line.removeprefix("# after ").removesuffix(": unchanged") for line in heads]
    assert names == [*NAMES, "queue_order", "all"]
    last = show("ag_gemm", "--after", "protocol")
    assert last.startswith("lowered for 4 ranks:\n    target cpu: ") and "\n\nprogram ag_gemm(" in last
    assert parse_lowered(last).ranks == 4
    wrong = CliRunner().invoke(app, ["show", "ag_gemm", "--after", "kernel"])
    assert wrong.exit_code == 1 and "did you mean kernels? one of bind, merge_copies, tma_copy" in wrong.stderr


def test_what_a_pass_makes_is_shown_without_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that cannot be planned is looked at too, and large ones take long to plan."""

    def none(*_: object) -> None:
        raise TileLinkError("it was planned", hint="do not")

    monkeypatch.setattr("tilelink.cli.show.make_plan", none)
    assert "program ag_gemm(" in show("ag_gemm", "--after", "bind")
    assert CliRunner().invoke(app, ["show", "ag_gemm", "--after", "queue_order"]).exit_code == 1


def test_all_passes_are_shown_by_what_they_change(tmp_path: Path) -> None:
    file = tmp_path / "parts.tl"
    file.write_text(PARTS)
    args = ("--schedule", "filled", "--ranks", "1", "--set", "M=64", "--set", "N=64", "--set", "K=2048")
    text = show(str(file), "--after", "all", *args)
    steps = dict(part.split("\n", 1) for part in text.split("# after ")[1:])
    assert steps["bind"].rstrip() == show(str(file), "--after", "bind", *args).rstrip()
    assert steps["all"].rstrip() == show(str(file), "--after", "protocol", *args).rstrip()
    header, kernel, first, second = steps["kernels"].splitlines()[:4]
    assert header == "  lowered for 1 ranks:" and kernel.startswith("+     kernel gemm: stream main, ")
    assert (first, second) == (
        "+         for tile in range(16): gemm",
        "+         for tile in range(16): sums; first 16",
    )
    changed = [line for line in steps["protocol"].splitlines() if line]
    assert changed == [
        "  lowered for 1 ranks:",
        "-     launch: protocol HELPER_KERNELS, many_threads",
        "+     launch: protocol COUNTED, many_threads",
    ]


TOLD = """program told(M, N):
    x : in symmetric [M, N]
    h : symmetric [M, N]
    y : out [M, N]

    comm send(p: ranks, i: M):
        if p == rank + 1:
            tile_push_data(h[i, :] @ p, x[i, :])
            producer_tile_notify(h[i, :] @ p)

    compute add(i: M):
        consumer_tile_wait(h[i, :])
        y[i, :] = h[i, :] + x[i, :] @ (rank + 1)

schedule boxes for told:
    send on sm(2), tma_copy 2, tile(i=64)
    add on sm, tile(i=32)
"""


def test_a_listing_says_how_tiles_are_cut_and_copied_and_what_kernels_wait_for() -> None:
    module = compiler.parse(TOLD)
    bound = compiler.bound(
        module.program(), module.schedules[0], ranks=2, dims={"M": 128, "N": 128}, dtype="bf16", target="sm_90"
    )
    boxes = bound.stages["send"].tma_copy
    assert boxes is not None
    lines = [line.strip() for line in listing(bound).splitlines()]
    rows, columns = boxes.box
    (send,) = (line for line in lines if line.startswith("stage send: "))
    assert f"box_rows={rows}, box_columns={columns}, buffers={boxes.buffers})" in send and "tile(p=1, i=64)" in send
    (add,) = (line for line in lines if line.startswith("stage add: "))
    assert "tile(i=32)" in add
    (kernel,) = (line for line in lines if line.startswith("kernel add: stream main, "))
    assert ", needs_entry" in kernel


@pytest.mark.parametrize(("ranks", "announces"), [(1, False), (2, True), (4, True)])
def test_a_rank_with_peers_tells_them_that_it_has_entered(ranks: int, announces: bool) -> None:
    program = compiler.load("all_reduce").program("all_reduce_two_shot")
    bound = compiler.bound(program, ranks=ranks, dims={"Ms": 64, "N": 64}, target="sm_90")
    (kernel,) = bound.kernels
    assert kernel.needs_entry
    assert handshake_of(bound, kernel, copies_wait=False).announces_entry == announces


def test_a_stage_that_an_earlier_one_waits_for_has_one_program_of_its_own() -> None:
    first, second = TOLD.partition("\nschedule")[0].split("    comm send")
    sends, adds = second.split("\n    compute add")
    text = f"{first}    compute add{adds}\n    comm send{sends}"
    bound = compiler.bound(compiler.parse(text).program(), ranks=2, dims={"M": 128, "N": 128})
    assert bound.kernel_of["send"].programs == 1 and bound.kernel_of["send"].on_side_stream
