# pyright: basic
"""The Gluon source of kernels whose warps have roles, executed: what it computes, and which steps each role makes.

tests/backend/gluon_executor.py says what an execution models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any

import pytest
import torch

from tests.backend.gluon_executor import Event, Fault, Kernel, Run, Stuck, differences, in_memory
from tests.backend.test_roles_source import DIRECT
from tests.lowering import test_loop_products as products
from tests.lowering import test_loop_roles as loops
from tests.lowering import test_roles_alone as alone
from tests.lowering import test_roles_counted as counted
from tests.lowering import test_roles_direct as hand
from tests.lowering import test_roles_epilogue as epilogue
from tests.lowering import test_roles_f8 as narrow
from tests.lowering import test_roles_received as received_ranges
from tests.lowering import test_roles_summed as summed
from tests.lowering.roles_interpreter import RolesMachine, machine_after
from tests.tiers import one_in, thorough
from tilelink import compiler
from tilelink.backend.context import Emitted
from tilelink.backend.emit import emit
from tilelink.ir.products import operand_region
from tilelink.ir.program import Region
from tilelink.lowering.bound import Bound, BoundStage
from tilelink.lowering.carried import stored_at
from tilelink.lowering.iterations import loop_of
from tilelink.lowering.rings import (
    ADDEND,
    ARRIVE,
    AWAIT,
    CARRY,
    COMPUTE,
    EXPECT,
    FENCE,
    FILL,
    KEPT,
    LEADING,
    LOAD,
    MULTIPLY,
    RETIRE,
    STORE,
    SUM,
    TAKE,
    TRAILING,
    Ring,
    Role,
    Roles,
    Step,
    of_tile,
    operand_ring,
    parts_of,
    taken,
)
from tilelink.lowering.role_statements import entries_of, results_of
from tilelink.lowering.summed import summed_of
from tilelink.planning.plan import Plan, make_plan
from tilelink.reference.run import run as reference
from tilelink.reference.trial import random_inputs
from tilelink.target import target
from tilelink.verifier import refusals, verify

Inputs = Sequence[Mapping[str, torch.Tensor]]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Tensors here are small: more threads take longer."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Stages with roles -------------------------------------------------------------------------------------------

FORMS = """program forms(M, N, K):
    x    : in        [M, K]
    w    : in        [N, K]
    v    : in        [N, K]
    u    : in        [K, N]
    bias : in        [N]
    r    : in        [M, N]
    e    : in        [M] f32
    h    : symmetric [M, K]
    y    : out       [M, N]{dtype}

    comm send(i: M):
        tile_push_data(h[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(h[i, :] @ (rank + 1))

    compute gemm(i: M, j: N):
        consumer_tile_wait(h[i, :])
        y[i, j] = {value}

schedule one for forms:
    send on sm(1), tile(i=64){channel}
    gemm on sm, tile(i={i}, j={j}, k=64), roles({roles}){more}
"""
MANY = """program many(M, N, K):
    x : in  [M, K]
    w : in  [N, K]
    r : in  [{addends}, M, N]
    y : out [M, N]

    compute gemm(i: M, j: N):
        acc = dot(x[i, :], w[j, :].T)
        for (q: {addends} by 1):
            acc += r[q, i, j]
        y[i, j] = acc

schedule one for many:
    gemm on sm, tile(i=128, j=256, k=64), roles(consumers=2, buffers=4)
"""
DOT, OTHER = "dot(h[i, :], w[j, :].T)", "dot(h[i, :], v[j, :].T)"
N_MAJOR = "dot(h[i, :], u[:, j])"
BRANCHES = """acc = dot(x[i, :], w[j, :].T)
if ranks > 2:
    acc = acc + 1.0
else:
    acc = acc * 2.0 + r[i, j]
for (q: 2 by 1):
    consumer_tile_wait(parts[q, i, j])
    acc += parts[q, i, j] * 0.5
half = acc * 0.5
consumer_tile_wait(f[i, j])
half = maximum(half, 0.0) + f[i, j]
c[i, j] = half
for (p: ranks):
    tile_push_data(g[rank, i, j] @ p, half)
producer_tile_notify(c[i, j])
for (p: ranks):
    producer_tile_notify(g[rank, i, j] @ p)
"""


def form(
    value: str = DOT, *, i: int = 128, j: int = 128, roles: str = "consumers=2, buffers=3", more: str = "",
    dtype: str = "", channel: str = "", sms: int = 5, ranks: int = 2, M: int = 256, N: int = 256, K: int = 192,
) -> Bound:  # fmt: skip
    text = FORMS.format(value=value, i=i, j=j, roles=roles, more=more, dtype=dtype, channel=channel)
    module = compiler.parse(text, "forms.tl")
    on = replace(target("sm_90"), sms=sms)
    sizes = {"M": M, "N": N, "K": K}
    return compiler.bound(module.program(), module.schedules[0], ranks=ranks, dims=sizes, dtype="bf16", target=on)


def added(addends: int) -> Bound:
    """Return a product to which so many tiles are added."""
    text = MANY.format(addends=addends)
    module = compiler.parse(text, "many.tl")
    sizes = {"M": 128, "N": 512, "K": 64}
    on = replace(target("sm_90"), sms=1)
    return compiler.bound(module.program(), module.schedules[0], ranks=1, dims=sizes, dtype="bf16", target=on)


def direct() -> Bound:
    module = compiler.parse(DIRECT.replace("j=256", "j=128"), "direct.tl")
    sizes = {"Ms": 256, "N": 256, "K": 64}
    on = replace(target("sm_90"), sms=3)
    return compiler.bound(module.program(), module.schedules[0], ranks=3, dims=sizes, dtype="bf16", target=on)


def cut(starts: list[int], order: str = "e, group(r, 2), j", text: str = counted.TEXT) -> tuple[Bound, Inputs]:
    inputs = counted.inputs(starts)
    if text == counted.N_MAJOR:
        inputs = [{**one, "w": one["w"].transpose(1, 2).contiguous()} for one in inputs]
    return counted.bound(text, order=order, on=replace(target("sm_90"), sms=4)), inputs


@dataclass(frozen=True, kw_only=True)
class Case:
    """A stage with roles. made: the lowered program, and its inputs if they are not any. near: how near results are."""

    made: Callable[[], Bound | tuple[Bound, Inputs]]
    stage: str = "gemm"
    near: float = 0.0


SMALL: dict[str, Any] = {"M": 256, "N": 256, "K": 128, "on": replace(target("sm_90"), sms=6)}
CASES = {
    "a product": Case(made=form),
    "one turn": Case(made=lambda: form(K=64)),
    "one product in flight": Case(made=lambda: form(roles="consumers=2, buffers=2, in_flight=1")),
    "three consumers": Case(made=lambda: form(i=192, M=384, roles="consumers=3, buffers=4")),
    "two products": Case(made=lambda: form(f"maximum({DOT}, 0.0) * 0.5 + {OTHER}")),
    "an N-major operand": Case(made=lambda: form(N_MAJOR)),
    "an N-major operand, ragged tiles": Case(made=lambda: form(f"{N_MAJOR} + r[i, j]", j=64, M=200, N=200, K=64)),
    "f32 results": Case(made=lambda: form(f"{DOT} + r[i, j]", dtype=" f32")),
    "a bias, and vectors of rows": Case(made=lambda: form(f"({DOT} + bias[j]) * e[i][:, None] + r[i, j]")),
    "ragged tiles": Case(made=lambda: form(f"{DOT} + bias[j] + r[i, j]", M=200, N=200, K=72)),
    "halved tiles": Case(made=lambda: form(f"{DOT} + r[i, j]", more=", halve_tail", sms=6, M=384, N=256, K=128)),
    "halved tiles of two products": Case(
        made=lambda: form(f"maximum({DOT}, 0.0) + {OTHER}", more=", halve_tail", sms=6, M=384, N=256, K=64)
    ),
    "slices that arrive": Case(made=lambda: form(channel="\n    h channel(k=64)")),
    "waits after the product, and stores at peers": Case(made=lambda: epilogue.bound(**SMALL)),
    "consumers wait after the product": Case(made=lambda: epilogue.bound(dtype=" f32", **SMALL)),
    "branches and late waits": Case(made=lambda: epilogue.bound(BRANCHES, **SMALL)),
    "parts along the contracted dimension": Case(
        made=lambda: form(more=", split_k_tail 2", sms=5, M=256, N=384, K=3072)
    ),
    "several parts": Case(
        made=lambda: form(f"{DOT} + r[i, j]", more=", split_k_tail 8", sms=6, M=128, N=128, K=4096)
    ),
    "parts of a product of 8-bit floats": Case(
        made=lambda: narrow.bound(more=", split_k_tail 4", buffers=2, block=64, M=128, N=128, K=2560)
    ),
    "results of another type": Case(made=hand.halves),
    "a tile of the same kernel": Case(made=lambda: hand.halves(("part : local [M, N] f32", "part : local [M, N]"))),
    "one tile of another type": Case(made=lambda: hand.halves(M=128, N=128)),
    "one tile of 16 bits next to f32": Case(
        made=lambda: hand.halves(
            ("[M, N] f32", "[M, N] bf16"), ("y    : out   [M, N]", "y : out [M, N] f32"), M=128, N=128
        )
    ),
    "several stages": Case(made=direct),
    "tiles without a product": Case(made=lambda: alone.bound(j=128)),
    "narrower tiles without a product": Case(made=lambda: alone.bound(j=256)),
    "an unrolled loop without a product": Case(made=alone.looped),
    "tiles without a product next to those of two": Case(
        made=lambda: alone.bound(j=128, old=alone.PRODUCT, new=f"maximum({alone.PRODUCT}, 0.0) + {alone.OTHER}")
    ),
    "as many addends as the loader may load": Case(made=lambda: added(4)),
    "more addends": Case(made=lambda: added(5)),
    "8-bit floats": Case(made=lambda: narrow.bound(value=f"{narrow.SCALED} + z[i, j, 1]", buffers=2)),
    "tiles that a launch cuts": Case(made=lambda: cut([0, 100, 101, 301]), stage="product", near=2e-2),
    "tiles that a launch cuts, of an N-major operand": Case(
        made=lambda: cut([0, 100, 101, 301], text=counted.N_MAJOR), stage="product", near=2e-2
    ),
    "tiles of which a launch has some": Case(made=lambda: cut([0, 0, 256, 256], "j, e, r"), stage="product", near=2e-2),
    "scaled products of rows that a launch cuts": Case(
        made=lambda: counted.scaled([0, 100, 101, 301]), stage="product", near=2e-2
    ),
    "counts that peers tell": Case(
        made=lambda: (received_ranges.bound(), received_ranges.inputs()), stage="up"
    ),
    "no rows at all": Case(
        made=lambda: (received_ranges.bound(), received_ranges.inputs([[[0, 0], [0, 0]], [[0, 1], [0, 0]]])), stage="up"
    ),
    "cut tiles at peers": Case(
        made=lambda: (received_ranges.pushed(), received_ranges.inputs()), stage="up"
    ),
    "numbers that come with cut rows": Case(made=lambda: received_ranges.late("a tile that is not there"), stage="up"),
    "segments that a stage computes": Case(made=received_ranges.segments, stage="product"),
    "tiles that wait and notify, there or not": Case(made=received_ranges.relay),
    "online softmax": Case(made=lambda: loops.bound(N=2, sms=3), stage="attn", near=2e-2),
    "a causal loop, one product in flight": Case(
        made=lambda: loops.bound(loops.GUARDED, N=3, sms=3, roles="consumers=2, buffers=2, in_flight=1"),
        stage="attn", near=2e-2,
    ),
    "a causal loop from the diagonal": Case(
        made=lambda: loops.bound(loops.DIAGONAL, N=4, sms=6, more=loops.CHANNELS), stage="attn", near=2e-2
    ),
    "documents": Case(made=lambda: loops.bound(loops.DOCUMENTS, N=4, sms=3), stage="attn", near=2e-2),
    "documents, one product in flight": Case(
        made=lambda: loops.bound(loops.DOCUMENTS, N=4, sms=3, roles="consumers=2, buffers=2, in_flight=1"),
        stage="attn", near=2e-2,
    ),
    "rows that find their documents": Case(made=lambda: loops.bound(loops.ENDS, N=3, sms=3), stage="attn", near=2e-2),
    "vectors in a loop": Case(made=lambda: loops.bound(loops.VECTORS, N=2, sms=3), stage="attn", near=2e-2),
    "vectors that arrive": Case(made=lambda: loops.bound(loops.SENT, N=2, sms=3), stage="attn", near=2e-2),
    "a loop of no iteration": Case(made=lambda: loops.bound(loops.LESS, N=3, sms=3), stage="attn", near=2e-2),
    "a loop that an entry cuts": Case(made=lambda: loops.bound(loops.ENTRY, N=3, sms=3), stage="attn", near=2e-2),
    **{
        f"a sum of products, {name}": Case(made=lambda options=options: summed.bound(**options), near=2e-2)
        for name, options in summed.CASES.items()
    },
    "a loop of three products": Case(made=lambda: products.bound("rows"), stage="rows", near=2e-2),
    "a loop of four products and two results": Case(made=lambda: products.bound("columns"), stage="columns", near=2e-2),
    "one of them in flight": Case(
        made=lambda: products.bound("columns", roles="consumers=2, buffers=3, in_flight=1"), stage="columns", near=2e-2
    ),
    "a sum that is multiplied before one that is written first": Case(
        made=lambda: products.bound("late"), stage="columns", near=2e-2
    ),
    "two results of a causal loop": Case(made=lambda: products.bound("causal_columns"), stage="columns", near=2e-2),
    "results of a loop at a peer": Case(made=lambda: products.bound("sent_columns"), stage="columns", near=2e-2),
    "a linear loop": Case(made=lambda: loops.bound(loops.LINEAR, N=2, sms=3), stage="attn", near=2e-2),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A case whose lowered program has run. machine: its memory at the end."""

    plan: Plan
    emitted: Emitted
    machine: RolesMachine


def whole_numbers(made: Bound) -> Inputs:
    """Return inputs of small whole numbers, whose sums are the same in each order."""
    (given,) = random_inputs(made.source, ranks=made.ranks, dims=made.numbers, dtype=made.dtype, launches=1, seed=1)
    by = torch.Generator().manual_seed(1)

    def number(x: torch.Tensor) -> torch.Tensor:
        return torch.randint(-2, 3, x.shape, generator=by).to(x.dtype) if x.is_floating_point() else x

    return [{name: number(x) for name, x in one.items()} for one in given]


@cache
def prepared(name: str) -> Prepared:
    """Return a case whose lowered program is proven, and computes what the reference does."""
    made = CASES[name].made()
    bound, inputs = made if isinstance(made, tuple) else (made, whole_numbers(made))
    plan = make_plan(bound)
    verify(plan)
    machine = machine_after(bound, inputs)
    wanted = reference(bound.source, inputs, bound.numbers, dtype=bound.dtype)
    for rank, outputs in enumerate(wanted):
        for result, tensor in outputs.items():
            found = machine.tensors[rank][result].float()
            assert torch.allclose(found, tensor.float(), rtol=2e-2, atol=2e-2, equal_nan=True), result
    return Prepared(plan=plan, emitted=emit(bound, plan.thresholds), machine=machine)


def run(name: str, launch: int, seed: int, source: str = "") -> tuple[Kernel, Run]:
    """Run the kernel of a case, and compare what it stores with what the lowered program does."""
    case, ready = CASES[name], prepared(name)
    kernel = Kernel(plan=ready.plan, emitted=ready.emitted, stage=case.stage, source=source)
    final = in_memory(ready.plan.bound, ready.machine.tensors)
    found = kernel.run(final, launch, seed)
    wrong = list(differences(kernel, found, final, launch, case.near))
    assert not wrong, wrong
    return kernel, found


CUT = f"({DOT} + bias[j]) * e[i][:, None] + r[i, j]"


@pytest.mark.parametrize(("M", "N"), [(128, 200), (200, 128)])
def test_parts_of_tiles_that_end_with_the_tensor(M: int, N: int) -> None:
    """A lowered program names elements beyond the tensor there, which no interpreter has: parts are computed here."""
    sizes: dict[str, Any] = {"M": M, "N": N, "K": 4800}
    whole, split = form(CUT, **sizes), form(CUT, more=", split_k_tail 3", **sizes)
    final = machine_after(whole, whole_numbers(whole)).tensors
    inner, (tiles, parts) = split.stages["gemm_parts"].tiles["inner"], split.tensors["gemm_split"].shape[:2]
    assert (tiles, parts) == (2, 1) and sizes["K"] % inner
    for one in final:
        h, w = (torch.zeros(-(-size // 128) * 128, inner) for size in (M, N))
        h[:M], w[:N] = one["h"][:, :inner], one["w"][:, :inner]
        first = (h @ w.T).reshape(len(h) // 128, 128, len(w) // 128, 128).transpose(1, 2)
        one["gemm_split"] = first.reshape(2, 1, 1, 128, 128).contiguous()
    plan = make_plan(split)
    verify(plan)
    kernel = Kernel(plan=plan, emitted=emit(split, plan.thresholds), stage="gemm")
    final = in_memory(split, final)
    # In launch 2 h is in its last buffer: zeros follow it, where other numbers would be parts that nobody adds.
    assert not list(differences(kernel, kernel.run(final, 2, 0), final, 2))


# Steps -------------------------------------------------------------------------------------------------------

RINGS = {"left_ring": "left", "right_ring": "right", "kept_ring": KEPT, "streamed_ring": "streamed"}
LOADED = {LEADING: "streamed", TRAILING: "streamed", ADDEND: "left"}
MULTIPLIED = {"left_ring": "", "kept_ring": LEADING, "registers": TRAILING}
UNSEEN = (COMPUTE, CARRY, SUM)
"""Steps that only a role itself sees."""
Told = tuple[str, str, int, int]
"""A step as it was executed: its word, what it is for, its place in the ring, and its number."""


def merged(several: Iterable[Told]) -> list[Told]:
    """Return steps with the loads of a buffer as one: that of a left operand has a part for each consumer."""
    found: list[Told] = []
    for (word, what, slot), some in groupby(several, lambda one: one[:3]):
        if word == LOAD:
            found.append((word, what, slot, sum(one[3] for one in some)))
        else:
            found += [*some]
    return found


def seen(event: Event, consumers: int) -> Told:
    """Return what an event tells of a step."""
    what, slot = event.what.removesuffix("_barriers"), event.slot
    if event.word == TAKE:
        return TAKE, "", slot // consumers, 0
    if event.word == LOAD:
        what = RINGS[what]
        slot = 0 if what == KEPT else slot // consumers if what == "left" else slot  # there is one place to keep
    elif event.word == MULTIPLY:
        what = MULTIPLIED[what]
    return event.word, what, slot, event.number


def told(ring: Ring, place: int, step: Step) -> Told:
    """Return what an execution of a step at a place of a ring tells. Places are counted from the first tile on."""
    if step.word in (FENCE, RETIRE):
        return step.word, "", 0, step.number
    place -= step.number if step.word == ARRIVE else 0
    turn, slot = divmod(place, ring.buffers)
    plain = step.what.rstrip("0123456789")
    what = LOADED.get(plain, plain) if step.word == LOAD else plain if step.word == MULTIPLY else step.what
    number = (turn + step.number) % 2 if step.word == AWAIT else step.number if step.word in (EXPECT, LOAD) else 0
    return step.word, what, slot, number


def of_role(ring: Ring, role: Role, turns: Sequence[int]) -> list[list[Told]]:
    """Return the steps of a role at a ring in each tile, of so many turns each."""
    found: list[list[Told]] = []
    first = 0
    for number in turns:
        found.append([told(ring, first + at, step) for at, step in of_tile(role, number) if step.word not in UNSEEN])
        first += taken(role, number)
    return found


def of_operands(tiles: Sequence[tuple[Roles, int]], *, loads: bool) -> list[Told]:
    """Return the steps at the rings of operands and of what is kept, of the loader or of a consumer."""
    found: list[Told] = []
    first = 0
    for tile, (roles, turns) in enumerate(tiles):
        ring, kept = roles.operands, roles.kept
        role = ring.writer if loads else ring.reader
        own = [(first + at, step) for at, step in of_tile(role, turns) if step.word not in UNSEEN]
        own_told = [told(ring, at, step) for at, step in own]
        first += taken(role, turns)
        if kept is None:
            found += own_told
            continue
        steps = kept.writer.steps if loads else kept.reader.steps
        around = [told(kept, tile, step) for step in steps]
        released = [one for one in around if one[0] == ARRIVE]
        end = len(own_told) - (0 if loads else len(parts_of(role).last))
        found += [*(one for one in around if one not in released), *own_told[:end], *released, *own_told[end:]]
    return merged(found)


def stored_by(stage: BoundStage) -> list[list[Region]]:
    """Return the places of each result of a tile."""
    return [[stored_at(one)] for one in loop_of(stage).results] if stage.has_loop else [results_of(stage)]


def of_results(tiles: Sequence[tuple[BoundStage, Roles]], *, stores: bool) -> list[list[Told]]:
    """Return the steps at the ring of one consumer's results in each tile, of that consumer or of the storer.

    A tile of a loop may have several results, one after the other.
    """
    every: list[list[Told]] = []
    first = 0
    for roles, several in ((roles, one) for stage, roles in tiles for one in stored_by(stage)):
        found: list[Told] = []
        ring = roles.results
        targets = [region.tensor for region in several]
        role = ring.reader if stores else ring.writer
        for at, step in of_tile(role, roles.pieces):
            one = told(ring, first + at, step)
            if step.word == STORE:
                one = (STORE, targets[int(step.what.removeprefix("target") or 0)], *one[2:])
            if step.word not in (FILL, STORE) or not (roles.cut or roles.direct):
                found.append((FILL, "result_ring", *one[2:]) if step.word == FILL else one)
        every.append(found)
        first += taken(role, roles.pieces)
    return every


def of_storer(tiles: Sequence[tuple[BoundStage, Roles]], roles: Roles) -> list[Told]:
    """Return the steps of the storer: those of a tile at the ring of each consumer, one ring after the other."""
    return [
        (word, what, slot if word == RETIRE else slot + consumer * roles.results.buffers, number)
        for steps in of_results(tiles, stores=True)
        for consumer in range(roles.consumers)
        for word, what, slot, number in steps
    ]


def fenced(events: Sequence[Event], role: str, roles: Roles, *, taken: bool) -> list[Told]:
    """Return the steps of a role. taken: the fences to keep, those after a piece was taken or the others."""
    every = [seen(event, roles.consumers) for event in events if event.role == role]
    before = [("", "", 0, 0), *every[:-1]]
    return [one for one, last in zip(every, before, strict=True) if one[0] != FENCE or (last[0] == TAKE) is taken]


def at_operands(events: Sequence[Event], role: str, roles: Roles) -> list[Told]:
    """Return the steps of a role at the rings of operands and of what is kept."""
    every = fenced(events, role, roles, taken=True)
    words, barriers = (LOAD, MULTIPLY, RETIRE, TAKE, FENCE), ("full", "empty", "ready", "vacant")
    return merged(one for one in every if one[0] in words or one[1] in barriers)


def at_results(events: Sequence[Event], role: str, roles: Roles) -> list[Told]:
    """Return the steps of a role at the rings of results."""
    found: list[Told] = []
    for one in fenced(events, role, roles, taken=False):
        word, what, _, _ = one
        retired = word == RETIRE and role == "storer"
        if retired or word == FENCE or (word in (FILL, STORE) and not roles.cut) or what in ("staged", "drained"):
            found.append(one)
    return found


def moved(steps: Sequence[Told], buffers: int) -> list[Told]:
    """Return the steps at a ring that begins so many buffers later."""
    return [(word, what, slot + (word != FENCE) * buffers, number) for word, what, slot, number in steps]


def tiles_of(kernel: Kernel, events: Sequence[Event]) -> list[tuple[BoundStage, int]]:
    """Return the stage of each tile that a loader loads, and how many turns it takes."""
    stages = {stage.number: stage for stage in kernel.bound.stages.values()}
    found: list[tuple[BoundStage, int]] = []
    for event in (one for one in events if one.role == "loader"):
        if event.word == "tile":
            found.append((stages[event.slot], 0))
        elif (event.word, event.what) == (EXPECT, "full_barriers"):
            found[-1] = (found[-1][0], found[-1][1] + 1)
    there = ((stage, places) for stage, places in found if places or (stage.roles is not None and stage.roles.kept))
    return [(stage, turns_of(stage, places, kernel.bound)) for stage, places in there]


def turns_of(stage: BoundStage, places: int, bound: Bound) -> int:
    """Return how many turns of a tile take so many places: all of its product, or as a condition has them."""
    roles = stage.roles
    assert roles is not None
    turns = next(n for n in range(places + 1) if taken(roles.operands.writer, n) == places)
    inner, product, times = stage.tiles.get("inner", int(bound.numbers.get("K", 0))), summed_of(stage), 1
    if product is not None:
        inner, times = bound.tile_map(stage.name, operand_region(product.dot.left)).spans[-1].size, product.count(stage)
    assert roles.kept is not None or turns == (-(-inner // roles.block) * times if roles.products else 0)
    return turns


def at_numbers(events: Sequence[Event], role: str) -> tuple[list[Told], list[Event]]:
    """Return the steps of a role at the ring of the integers of tiles, and the other events of all roles."""
    found: list[Told] = []
    others: list[Event] = []
    for event in events:
        own = event.what in ("number_ring", "known_barriers", "taken_barriers")
        fence = event.word == FENCE and event.role == "loader"
        if event.role == role and (own or (fence and found and found[-1][0] == FILL)):
            found.append((event.word, event.what.removesuffix("_barriers"), event.slot, event.number))
        elif not own and not (fence and event.role != role):
            others.append(event)
    return found, others


def of_numbers(tiles: Sequence[BoundStage], role: str, most: int) -> list[Told]:
    """Return the steps of a role at that ring in each tile, there or not. most: integers of a position."""
    found: list[Told] = []
    place = 0
    for stage in tiles:
        ring = stage.roles.numbers if stage.roles else None
        if ring is None:
            continue
        for step in (ring.writer if role == "loader" else ring.reader).steps:
            one = told(ring, place, step)
            several = range(len(entries_of(stage))) if step.word in (FILL, TAKE) else ()
            found += [(step.word, "number_ring", one[2] * most + n, 0) for n in several] or [one]
        place += 1
    return found


def check_numbers(kernel: Kernel, events: Sequence[Event]) -> list[Event]:
    """Check the steps of all roles at the ring of the integers of tiles. Return the other events."""
    stages = {stage.number: stage for stage in kernel.bound.stages.values()}
    tiles = [stages[one.slot] for one in events if (one.role, one.word) == ("loader", "tile")]
    handing = [one for one in tiles if one.roles is not None and one.roles.numbers is not None]
    if not handing:
        return list(events)
    most = max(len(entries_of(one)) for one in handing)
    for role in sorted({one.role for one in events}):
        steps = at_numbers(events, role)[0]
        read = {slot % most for word, _, slot, _ in steps if word == TAKE}  # a role leaves out what it does not need
        needed = [one for one in of_numbers(tiles, role, most) if one[0] != TAKE or one[2] % most in read]
        assert steps == needed, role
    return at_numbers(events, "loader")[1]


def check_steps(kernel: Kernel, events: Sequence[Event]) -> int:
    """Check that each role of a program has made the steps of the lowered program. Return how many tiles it had."""
    events = check_numbers(kernel, events)
    tiles = [(stage, stage.roles, turns) for stage, turns in tiles_of(kernel, events) if stage.roles is not None]
    if not tiles:
        return 0
    turns = [(own, number) for _, own, number in tiles]
    results = [(stage, own) for stage, own, _ in tiles]
    one = tiles[0][1]
    assert at_operands(events, "loader", one) == of_operands(turns, loads=True)
    for consumer in range(one.consumers):
        name = f"consumer{consumer}"
        assert at_operands(events, name, one) == of_operands(turns, loads=False)
        filled = [step for steps in of_results(results, stores=False) for step in steps]
        assert at_results(events, name, one) == moved(filled, consumer * one.results.buffers)
    assert at_results(events, "storer", one) == of_storer(results, one)
    return len(tiles)


def check_order(ready: Prepared, kernel: Kernel, rank: int, program: int, events: Sequence[Event]) -> None:
    """Check that all roles of a program take the tiles that it has, in their order."""
    lowered = kernel.bound.kernel_of[kernel.stage]
    own = [(stage.number, tile) for stage, tile in ready.machine.own(lowered, rank, program)]
    for role in ("loader", "storer"):
        assert [(one.slot, one.number) for one in events if (one.role, one.word) == (role, "tile")] == own


@thorough(unless=lambda name, seed: seed == 0 and one_in(2, name))
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", CASES)
def test_source_does_what_was_verified(name: str, seed: int) -> None:
    ready = prepared(name)
    kernel, found = run(name, launch=1 + 2 * seed, seed=seed)
    tiles = 0
    for rank, program, events in found.events:
        check_order(ready, kernel, rank, program, events)
        tiles += check_steps(kernel, events)
    assert tiles > 0


@pytest.mark.parametrize(("addends", "loaded"), [(1, 1), (4, 4), (5, 0), (9, 0)])
def test_consumers_do_not_wait_for_each_other(addends: int, loaded: int) -> None:
    """The storer takes the results of the first consumer first, and the others hold back what it needs."""
    made = added(addends)
    roles = made.stages["gemm"].roles
    assert roles is not None and roles.addends == loaded
    ring = operand_ring(buffers=4, consumers=2, ahead=1, left=16384, right=32768, further=4 * addends, piece=16384)
    every = replace(made.stages["gemm"], roles=replace(roles, addends=addends, operands=ring))
    found = refusals(make_plan(replace(made, stages={**made.stages, "gemm": every})))
    assert any("wait for each other" in one.message for one in found) is not bool(loaded)


NOTIFY = (
    "dl.notify(signals, C_SIGNALS + i * 2 + j, rank, debug_block=debug_block, stage=1, tile=tile, remote=False, "
    "tma=False, scope=dl.WARP)"
)
FULL = "            roles.wait(full_barriers, buffer, phase)\n"
TAKE_PIECE = "parts_tile = roles.take(left_ring.index(buffer * CONSUMERS + PART), part)\n"
FENCED = "            roles.fence()\n"
RELEASE = "            roles.arrive(empty_barriers, buffer)\n"
MUTANTS = {
    "a loader does not wait for room": ("roles.wait(empty_barriers, buffer, phase ^ 1)", "pass"),
    "a loader waits for another phase": (
        "roles.wait(empty_barriers, buffer, phase ^ 1)",
        "roles.wait(empty_barriers, buffer, phase)",
    ),
    "a consumer does not wait for operands": ("roles.wait(full_barriers, buffer, phase)", "pass"),
    "a load of another buffer": ("right_ring.index(buffer))\n", "right_ring.index(buffer ^ 1))\n"),
    "a load of other columns": (", row_1, k, ", ", row_1, 0, "),
    "fewer bytes": ("BYTES=32768", "BYTES=16384"),
    "a consumer does not release": ("roles.arrive(empty_barriers, previous)", "pass"),
    "a consumer releases another buffer": (
        "roles.arrive(empty_barriers, previous)",
        "roles.arrive(empty_barriers, buffer)",
    ),
    "a product is used in flight": ("acc_1 = roles.retire(acc_1, FLYING=0)", "pass"),
    "a consumer does not wait for a result's room": (
        "roles.wait(drained_barriers, PART * RESULTS + result_buffer, result_phase ^ 1)",
        "pass",
    ),
    "no fence": ("            roles.fence()", "            pass"),
    "barriers without a fence": ("\n    roles.fence()", ""),
    "the storer is not told": ("roles.arrive(staged_barriers, PART * RESULTS + result_buffer)", "pass"),
    "the storer does not wait": ("roles.wait(staged_barriers, part * RESULTS + result_buffer, result_phase)", "pass"),
    "a store at another rank": ("peer_2 = 1", "peer_2 = 0"),
    "a store that is left out": (
        "roles.store_part(c_boxes_64x64_swizzled, row + part * CONSUMER_ROWS",
        "(lambda *_: 0)(c_boxes_64x64_swizzled, row",
    ),
    "room before a store has read": ("roles.stored(FLYING=0)", "pass"),
    "no wait for signals": (
        "token += dl.wait(signals, parts_buffer * PARTS_CHANNELS + channel",
        "(lambda *_, **__: 0)(signals, parts_buffer + channel",
    ),
    "a wait for another counter": (
        "parts_buffer * PARTS_CHANNELS + 8 + channel_1",
        "parts_buffer * PARTS_CHANNELS + channel_1",
    ),
    "a notify before its data": ("        peer_2 = 1\n", f"        peer_2 = 1\n        {NOTIFY}\n"),
    "one product less in flight": ("acc_1 = roles.retire(acc_1, FLYING=1)", "acc_1 = roles.retire(acc_1, FLYING=0)"),
    "no store in flight": ("roles.stored(FLYING=3)", "roles.stored(FLYING=0)"),
    "a part begins where the one before has ended": ("result_buffer, result_phase = tile_buffer, tile_phase", "pass"),
    "a piece is taken before it is loaded": (f"{FULL}            {TAKE_PIECE}", f"            {TAKE_PIECE}"),
    "a piece is released before it is taken": (
        f"{TAKE_PIECE}{FENCED}{RELEASE}",
        f"{RELEASE.strip()}\n            {TAKE_PIECE}",
    ),
    "a piece is not released": (f"{TAKE_PIECE}{FENCED}{RELEASE}", TAKE_PIECE),
    "a piece is released without a fence": (f"{TAKE_PIECE}{FENCED}", TAKE_PIECE),
    "a piece of other columns": ("column_1 + piece * PIECE_COLUMNS", "column_1 + (PIECES - 1 - piece) * PIECE_COLUMNS"),
    "a notify that is left out": (NOTIFY, "pass"),
    "a notify of another rank": (NOTIFY, NOTIFY.replace("signals", "signal_table[1 - rank]")),
    "a wait for an earlier launch": ("target=parts_generation", "target=parts_generation - 1"),
}
OF_TILES_ALONE = {
    "a tile without a product does not wait": ("token += dl.wait(signals, ", "(lambda *_, **__: 0)(signals, "),
    "another tile is loaded": ("p_boxes_64x64_swizzled, row_3", "r_boxes_64x64_swizzled, row_3"),
    "a piece of another place is stored": ("column_1 + piece_1 * PIECE_COLUMNS", "column_1 + PIECE_COLUMNS - piece_1"),
    "a tile is taken early": (
        "            p_tile = roles.take",
        "            p_tile = lambda *_: r_tile; p_tile = p_tile",
    ),
}
OF_LOOPS = {
    "a wait that no iteration has executed is left out": (
        "channel != ks_awaited",
        "(channel != ks_awaited) & (ks_awaited < 0)",
    ),
    "another channel is awaited": ("vs_awaited = channel_1", "vs_awaited = channel_1 - 1"),
    "no iteration has a mask": ("masked = tl.where(", "masked = (lambda c, x, y: x)("),
}


OF_PARTS = {
    "a part of other elements": ("slice_1 = inner * TILE_INNER", "slice_1 = inner * TILE_INNER + BLOCK_K"),
    "the last part begins elsewhere": ("slice_2 = inner * TILE_INNER", "slice_2 = 0"),
    "a piece is stored in another place": ("(PART * PIECES + piece_1)", "(PART * PIECES + 1 - piece_1)"),
    "a piece is added from another place": ("(PART * PIECES + piece_2)", "(PART * PIECES + 1 - piece_2)"),
    "a consumer has the rows of another": ("(PART * PIECES + piece_2)", "((1 - PART) * PIECES + piece_2)"),
    "parts are added before they are there": (
        "token += dl.wait(signals, GEMM_SPLIT_SIGNALS",
        "(lambda *_, **__: 0)(0, 0",
    ),
    "a piece is told of before it is stored": (
        "            roles.store_by_thread(",
        "            roles.arrive(staged_barriers, PART * RESULTS + result_buffer)\n            roles.store_by_thread(",
    ),
    "parts are not told of": ("        dl.notify(signals, GEMM_SPLIT_SIGNALS", "        (lambda *_, **__: 0)(0, 0"),
}


@thorough(unless=lambda mutant: one_in(3, mutant))
@pytest.mark.parametrize("mutant", [*MUTANTS, *OF_TILES_ALONE, *OF_LOOPS, *OF_PARTS])
def test_wrong_source_is_found(mutant: str) -> None:
    """What is computed, the steps, or the notifies are other ones."""
    name = "waits after the product, and stores at peers" if mutant in MUTANTS else "a causal loop from the diagonal"
    name = "narrower tiles without a product" if mutant in OF_TILES_ALONE else name
    name = "parts along the contracted dimension" if mutant in OF_PARTS else name
    old, new = (MUTANTS | OF_TILES_ALONE | OF_LOOPS | OF_PARTS)[mutant]
    text = prepared(name).emitted.text
    assert old in text
    with pytest.raises((AssertionError, Fault, Stuck)):
        kernel, found = run(name, 1, 0, text.replace(old, new))
        for _, _, events in found.events:
            check_steps(kernel, events)
