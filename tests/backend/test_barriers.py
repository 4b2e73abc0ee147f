# pyright: basic
"""Barriers between what a program stores and what it loads, where neither a wait nor disjoint tiles keep them apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.backend.offline import compile_all
from tests.backend.samples import Numbers, Sample, emitted
from tests.runtime.ptx import depths, events, text
from tests.tiers import thorough
from tilelink import compiler
from tilelink.ir.program import Barrier, For, If, Statement
from tilelink.lowering.bound import with_bodies
from tilelink.planning.plan import make_plan
from tilelink.reference.trial import random_inputs, relative_error
from tilelink.target import CPU
from tilelink.verifier import refusals, verify

FRAME = """
program scratch(M, N, K):
    x : in        [M, K]
    w : in        [N, K]
    c : local     [M, K]
    h : symmetric [ranks, M, K]
    y : out       [M, N]
    compute f(i: M):
"""
END = """
schedule s for scratch:
    f on sm, tile(i=64, k=64), num_warps 4, num_stages 3
"""
PRODUCT = "y[i, :] = dot(c[i, :], w[:, :].T)"
BODIES = {
    # what runs, and the statements that a barrier stands before
    "stored, then loaded": (["c[i, :] = x[i, :] * 2.0", PRODUCT], [PRODUCT]),
    "overwritten": (
        ["c[i, :] = x[i, :]", "c[i, :] = x[i, :] * 3.0", PRODUCT], ["c[i, :] = x[i, :] * 3.0", PRODUCT],
    ),
    "overwritten after a load": (
        ["c[i, :] = x[i, :]", "v = dot(c[i, :], w[:, :].T)", "c[i, :] = x[i, :] * 3.0", "y[i, :] = v"],
        ["v = dot(c[i, :], w[:, :].T)", "c[i, :] = x[i, :] * 3.0"],
    ),
    "in a branch": (
        ["c[i, :] = x[i, :]", "if rank == 0:", "    v = dot(c[i, :], w[:, :].T)", "else:", "    v = zeros(f32)",
         "y[i, :] = v + dot(c[i, :], w[:, :].T)"],
        ["v = dot(c[i, :], w[:, :].T)", "y[i, :] = v + dot(c[i, :], w[:, :].T)"],
    ),
    "in one branch alone": (
        ["c[i, :] = x[i, :]", "v = dot(c[i, :], w[:, :].T)", "if rank == 0:", "    c[i, :] = x[i, :] * 3.0",
         "y[i, :] = v + dot(c[i, :], w[:, :].T)"],
        ["v = dot(c[i, :], w[:, :].T)", "c[i, :] = x[i, :] * 3.0", "y[i, :] = v + dot(c[i, :], w[:, :].T)"],
    ),
    "overwritten after a branch that loads": (
        ["c[i, :] = x[i, :]", "v = zeros(f32)", "if rank == 0:", "    v = dot(c[i, :], w[:, :].T)",
         "c[i, :] = x[i, :] * 3.0", "y[i, :] = v"],
        ["v = dot(c[i, :], w[:, :].T)", "c[i, :] = x[i, :] * 3.0"],
    ),
    "in the other branch alone": (
        ["v = zeros(f32)", "if rank == 0:", "    v = v + 1.0", "else:", "    c[i, :] = x[i, :]",
         "if rank == 1:", "    v = v + dot(c[i, :], w[:, :].T)", "y[i, :] = v"],
        ["v = v + dot(c[i, :], w[:, :].T)"],
    ),
    "a part of each iteration": (
        ["for (s: ranks):", "    h[s, i, :] = x[i, :]", "acc = zeros(f32)", "for (s: ranks):",
         "    acc += dot(h[s, i, :], w[:, :].T)", "y[i, :] = acc"],
        ["for (s: ranks):"],
    ),
    "a part of each iteration, from the own one on": (
        ["for (s: ranks):", "    h[s + rank, i, :] = x[i, :]", "acc = zeros(f32)", "for (s: ranks):",
         "    acc += dot(h[s + rank, i, :], w[:, :].T)", "y[i, :] = acc"],
        ["for (s: ranks):"],
    ),
    "the iteration before": (
        ["acc = zeros(f32)", "for (s: ranks):", "    c[i, :] = x[i, :] * (s + 1)", "    acc += dot(c[i, :], w[:, :].T)",
         "y[i, :] = acc"],
        ["c[i, :] = x[i, :] * (s + 1)", "acc = acc + dot(c[i, :], w[:, :].T)"],
    ),
    "at a peer": (
        ["tile_push_data(h[0, i, :] @ (rank + 1), x[i, :])", "tile_push_data(h[1, i, :] @ (rank + 1), x[i, :])",
         "y[i, :] = dot(h[0, i, :] @ (rank + 1), w[:, :].T)"],
        ["tile_push_data(h[0, i, :] @ ((rank + 1) % 2), x[i, :])",  # the tile before may still load
         "tile_push_data(h[1, i, :] @ ((rank + 1) % 2), x[i, :])",
         "y[i, :] = dot(h[0, i, :] @ ((rank + 1) % 2), w[:, :].T)"],
    ),
    "at a peer and here": (
        ["tile_push_data(h[0, i, :] @ (rank + 1), x[i, :])",
         "producer_tile_notify(h[0, i, :] @ (rank + 1))",  # with signals of its own, h gets no others
         "h[1, i, :] = x[i, :]", "v = dot(h[1, i, :], w[:, :].T)", "y[i, :] = v"],
        ["v = dot(h[1, i, :], w[:, :].T)"],
    ),
    "a wait in a loop without iterations": (
        ["c[i, :] = x[i, :]", "for (s: ranks - 2):", "    h[s, i, :] = x[i, :]", "    producer_tile_notify(h[s, i, :])",
         "    consumer_tile_wait(h[s, i, :])", PRODUCT],
        [PRODUCT],
    ),
    "inputs alone": (["y[i, :] = dot(x[i, :], w[:, :].T)"], []),
}  # fmt: skip


def sample(name: str) -> Sample:
    lines = "\n".join("        " + line for line in BODIES[name][0])
    return Sample(text=FRAME + lines + END, numbers={"M": 128, "N": 64, "K": 256})


@pytest.mark.parametrize("name", BODIES)
def test_a_barrier_stands_where_it_must(name: str) -> None:
    lines = emitted(sample(name).bound(ranks=2, target="sm_90", dtype="bf16")).text.splitlines()
    behind = [lines[at + 1] for at, line in enumerate(lines) if line.strip() == "dl.publish()"]
    assert [re.sub(r"^\s*# [\w.]+:\d+: ", "", line) for line in behind] == BODIES[name][1]


@thorough(
    unless=lambda name: (
        name in ("overwritten after a load", "in a branch", "a part of each iteration", "at a peer and here")
    )
)
@pytest.mark.parametrize("name", BODIES)
def test_the_numbers_are_right(name: str) -> None:
    module, numbers = sample(name).module(), {"M": 32, "N": 16, "K": 24}
    kernel = compiler.compile(module.programs[0], None, ranks=2, dims=numbers)
    (inputs,) = random_inputs(module.programs[0], ranks=2, dims=numbers, dtype="f32", launches=1, seed=1)
    outputs, expected = kernel(inputs), kernel.reference(inputs)
    assert relative_error([own["y"] for own in outputs], [own["y"] for own in expected]) < 1e-5


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_loads_follow_the_barrier_and_the_fence_for_descriptors(target: str) -> None:
    bound = sample("stored, then loaded").bound(ranks=2, target=target, dtype="bf16")
    found = events(text(*compile_all(bound, emitted(bound))), "store", "barrier", "proxy", "load")
    assert "dl.announce_finished(" in emitted(bound).text
    begin = found.index("store")  # of what peers were told of the launches before
    behind = found[found.index("store", begin + 1) :]
    behind = [kind for kind in behind[: behind.index("load")] if kind != "store"]
    assert behind[:1] == ["barrier"]
    assert behind.count("proxy") == (target == "sm_90")


FUSED = """
program fused(M, N):
    x : in [M, N]
    c : local [M, N]
    y : out [M, N]
    compute f(i: M, j: N):
        c[i, j] = x[i, j] * 2.0
    compute g(i: M, j: N):
        y[i, j] = c[i, j] + 1.0
        producer_tile_notify(c[i, j])    # with a signal of its own, c gets no others: not one between f and g
schedule s for fused:
    f on sm, tile(i=32, j=32)
    g in f epilogue
"""


def test_stages_of_one_tile_meet_too() -> None:
    bound = Sample(text=FUSED, numbers={"M": 64, "N": 64}).bound(ranks=1, target="sm_90")
    source = emitted(bound).text
    assert source.count("dl.publish()") == 1
    assert source.index("tl.store(c") < source.index("dl.publish()") < source.index("tl.load(c")


@pytest.mark.parametrize(
    ("value", "barriers"),
    [
        ("x[i, :] + c[:]", 2),  # the tile before may still load; this one's threads have yet to store
        ("x[i, :]", 0),  # the later of two tiles that write the same waits for the earlier one
    ],
)
def test_tiles_that_share_a_part_meet_where_one_loads_it(value: str, barriers: int) -> None:
    text = FRAME.replace("c : local     [M, K]", "c : local     [K]").replace("[M, N]", "[M, K]")
    body = f"        c[:] = w[0, :]\n        y[i, :] = {value}\n"
    one = Sample(text=text + body, numbers={"M": 128, "N": 64, "K": 256})
    source = emitted(one.bound(ranks=1, target="sm_90", dtype="bf16")).text
    assert source.count("dl.publish()") == barriers


NEEDED = {"at a peer": 0}
"""How many barriers of a body no other one stands in for, where not all: parts of a memory are not told apart."""


def without(body: tuple[Statement, ...]) -> Iterator[tuple[Statement, ...]]:
    """The body without one of its barriers, for each of them."""
    for at, statement in enumerate(body):
        match statement:
            case Barrier():
                yield (*body[:at], *body[at + 1 :])
                continue
            case If(then=then, orelse=orelse):
                changed = [replace(statement, then=one) for one in without(then)]
                changed += [replace(statement, orelse=one) for one in without(orelse)]
            case For(body=inner):
                changed = [replace(statement, body=one) for one in without(inner)]
            case _:
                continue
        yield from ((*body[:at], one, *body[at + 1 :]) for one in changed)


@pytest.mark.parametrize("name", [name for name, (_, barriers) in BODIES.items() if barriers])
def test_a_program_without_one_of_its_barriers_is_refused(name: str) -> None:
    module, one_program = sample(name).module(), replace(CPU, grows=False, sms=1, max_programs=1)
    bound = compiler.bound(
        module.programs[0], module.schedules[0], ranks=2, dims=sample(name).numbers, target=one_program
    )
    verify(make_plan(bound))
    body = bound.stages["f"].stage.body
    found = [*without(body)]
    assert len(found) == len(BODIES[name][1])
    refused = [refusals(make_plan(with_bodies(bound, {"f": one}))) for one in found]
    assert sum(bool(own) for own in refused) == NEEDED.get(name, len(found))
    assert all("and no barrier is in between" in str(own[0]) for own in refused if own)


COUNTED = """
program counted(M, N, K, S):
    n : in    [1] <= S
    x : in    [S, M, K]
    w : in    [N, K]
    c : local [M, K]
    y : out   [M, N]
    compute f(i: M):
        acc = zeros(f32)
        for (s: S{} by 1):
            c[i, :] = x[s, i, :] * 2.0
            acc += dot(c[i, :], w[:, :].T)
        y[i, :] = acc
schedule s for counted:
    f on sm, tile(i=64, k=64), num_warps 4, num_stages 3
"""
BLOCKS = """
program blocks(M, K, S):
    n : in    [1] <= S
    x : in    [S, K]
    a : in    [M, S]
    c : local [S, K]
    y : out   [M, K]
    compute f(i: M):
        acc = zeros(f32)
        for (s: S[: n[0]]):
            c[s, :] = x[s, :] * 2.0
            acc += dot(a[i, s], c[s, :])
        y[i, :] = acc
schedule s for blocks:
    f on sm, tile(i=64, s=64), num_warps 4, num_stages 3
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (COUNTED.format(""), {"M": 128, "N": 64, "K": 64, "S": 4}),
        (COUNTED.format("[: n[0]]"), {"M": 128, "N": 64, "K": 64, "S": 4}),
        (BLOCKS, {"M": 128, "K": 64, "S": 256}),
    ],
    ids=["all", "counted", "blocks"],
)
def test_no_load_of_a_loop_overtakes_its_stores(text: str, numbers: Numbers, target: str) -> None:
    """Triton would load for the next iterations before the loop: it does not ask whether the loop stores there.

    It leaves a loop alone that says so, also one that ends where a launch says.
    """
    bound = Sample(text=text, numbers=numbers).bound(ranks=1, target=target, dtype="bf16")
    (kernel,) = compile_all(bound, emitted(bound))
    loads = r"async_tma_copy_global_to_local|async_copy_global_to_local|tt\.load .*tensor<64x64x!tt\.ptr"
    found = [depth for depth in depths(kernel, loads) if depth]
    assert len(found) >= 3 and set(found) == {2}, "of tiles and of iterations"
