# pyright: basic
"""Forms of loops that carry a state, whose warps have roles, and what must hold of each on one GPU.

    python -m tests.gpu.loop_forms [FORM ...]

Each kernel is that of rank 0 of two, with all its signals set. A kernel that hangs ends the process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.measure import ALLOWED, relative_error
from benchmarks.roles import ALWAYS_SET, Alone
from tests.gpu.checks import run_checks
from tilelink import compiler
from tilelink.compiler.cuda import gpu_artifact

TEXT = """program loops(H, D, N, B):
    q  : in        [H, N, B, D]
    k  : in        [H, N, B, D]
    ks : symmetric [ranks, H, N, B, D]
    vs : symmetric [ranks, H, N, B, D]
    o  : out       [H, N, B, D]{dtype}
{inputs}
    comm gather(p: ranks, h: H by 1, n: N by 1):
        tile_push_data(ks[rank, h, n, :, :] @ p, k[h, n, :, :])
        tile_push_data(vs[rank, h, n, :, :] @ p, k[h, n, :, :])
        producer_tile_notify(ks[rank, h, n, :, :] @ p)
        producer_tile_notify(vs[rank, h, n, :, :] @ p)

    compute gemm(h: H by 1, n: N by 1, i: B):
{body}

schedule one for loops:
    gather on copy_engine
    gemm on sm, tile(i={i}, j={j}), roles({roles})
"""
LOOP = """        for ({indices}):
{guard}{let}            {inside}consumer_tile_wait(ks[s, {head}, t, j, :])
            {inside}consumer_tile_wait(vs[s, {head}, t, j, :])
"""
SOFTMAX = """        state = online_softmax(f32)
{loop}            {inside}let keys = ks[s, {head}, t, j, :]
            {inside}let sums = vs[s, {head}, t, j, :]
            {inside}state = attend(state, q[h, n, i, :], keys, sums, 0.125{mask})
        o[h, n, i, :] = finish(state)
"""
LINEAR = """        state = zeros(f32)
{loop}            {inside}scores = dot(q[h, n, i, :], ks[s, {head}, t, j, :].T) * 0.125
            {inside}state += dot(scores * scores, vs[s, {head}, t, j, :])
        o[h, n, i, :] = state * 0.5
"""
WRITTEN = """        top = full(-1.0e30, f32)
        total = zeros(f32)
        acc = zeros(f32)
{loop}            {inside}scores = dot(q[h, n, i, :], ks[s, {head}, t, j, :].T) * 0.125
            {inside}new = maximum(top, max(scores, axis=1))
            {inside}weights = exp(scores - new[:, None])
            {inside}total = total * exp(top - new) + sum(weights, axis=1)
            {inside}acc = acc * exp(top - new)[:, None] + dot(weights, vs[s, {head}, t, j, :])
            {inside}top = new
        o[h, n, i, :] = acc / total[:, None]
"""
CAUSAL = ", (pos(i) + n * B)[:, None] >= (pos(j) + t * B)[None, :]"
SINCE = f"{CAUSAL} and (pos(j) + t * B)[None, :] >= begin[n, i][:, None]"
WEIGHED = """        state = zeros(f32)
{loop}            {inside}scores = dot(q[h, n, i, :], ks[s, {head}, t, j, :].T) * rows[h, n, i][:, None]
            {inside}state += dot(scores * columns[t, j][None, :], vs[s, {head}, t, j, :])
        o[h, n, i, :] = state * rows[h, n, i][:, None]
"""
WINDOW = f"{CAUSAL} and (pos(i) + n * B)[:, None] - 200 < (pos(j) + t * B)[None, :]"
CHANNELS = "    ks channel(n=4)\n    vs channel(n=3)\n"
Mask = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Form:
    """A form of a loop. seen: of rows and columns (positions of all ranks' keys), which pairs count; None for all.

    group: heads of queries for each head of keys. own: True for a loop over the own rank's keys alone. block: the
    number of the block of keys in iteration u, "" for t. part: which blocks there are, "" for all. inputs: name of a
    further input -> its shape and type, and its values. more: what the schedule says of ks and vs.
    """

    body: str = SOFTMAX
    i: int = 128
    j: int = 128
    roles: str = "consumers=2, buffers=4"
    D: int = 128
    N: int = 4
    B: int = 256
    guard: str = ""
    mask: str = ""
    seen: Mask | None = None
    group: int = 1
    own: bool = False
    dtype: str = ""
    block: str = ""
    part: str = ""
    inputs: Mapping[str, tuple[str, Callable[[], torch.Tensor]]] = field(default_factory=dict)
    more: str = ""
    weigh: Callable[[torch.Tensor], torch.Tensor] = field(default=lambda scores: scores.softmax(-1))

    @property
    def text(self) -> str:
        head = f"h // {self.group}" if self.group > 1 else "h"
        loop_index = "u" if self.block else "t"
        indices = f"s: {'1' if self.own else 'ranks'}, {loop_index}: N{self.part} by 1, j: B"
        parts = {"head": head, "inside": "    " if self.guard else "", "mask": self.mask}
        guard = f"            if {self.guard}:\n" if self.guard else ""
        let = f"            {parts['inside']}let t = {self.block}\n" if self.block else ""
        loop = LOOP.format(indices=indices, guard=guard, let=let, **parts)
        body = self.body.format(loop=loop, **parts)
        inputs = "".join(f"    {name} : in {shape}\n" for name, (shape, _) in self.inputs.items())
        text = TEXT.format(body=body, i=self.i, j=self.j, roles=self.roles, dtype=self.dtype, inputs=inputs)
        return text + self.more


def linear(scores: torch.Tensor) -> torch.Tensor:
    return scores * scores * 0.5


DOCUMENT = 300
"""Rows of each document but the last one."""


def begins() -> torch.Tensor:
    return (torch.arange(8 * 256, dtype=torch.int32) // DOCUMENT * DOCUMENT).view(8, 256)


def in_documents(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    return (rows[:, None] >= columns) & (rows[:, None] // DOCUMENT * DOCUMENT <= columns)


BEGIN = ("[N, B] i32 from 0 to 9", begins)
FIRST = ("[N] < N", lambda: begins().amin(1) // 256)
FORMS: dict[str, Form] = {
    "online softmax": Form(),
    "softmax in steps": Form(body=WRITTEN),
    "one product in flight": Form(roles="consumers=2, buffers=4, in_flight=1"),
    "two buffers": Form(roles="consumers=2, buffers=2"),
    "three buffers": Form(roles="consumers=2, buffers=3"),
    "three consumers": Form(i=192, B=384, roles="consumers=3, buffers=4, in_flight=1", D=64, N=3),
    "heads of 64": Form(D=64),
    "heads of 256": Form(D=256, j=64),
    "short iterations": Form(j=64, roles="consumers=2, buffers=6"),
    "one iteration": Form(N=1, B=128, own=True),
    "groups of heads": Form(group=4),
    "long results": Form(dtype=" f32"),
    "linear": Form(body=LINEAR, weigh=linear),
    "causal": Form(
        guard="t <= n", mask=CAUSAL, own=True, seen=lambda rows, columns: rows[:, None] >= columns[None, :]
    ),
    "causal, one product in flight": Form(
        guard="t <= n", mask=CAUSAL, own=True, seen=lambda rows, columns: rows[:, None] >= columns[None, :],
        roles="consumers=2, buffers=4, in_flight=1",
    ),
    "causal, from the diagonal down": Form(
        guard="u <= n", block="n - u", mask=CAUSAL, own=True, N=8, B=128, more=CHANNELS,
        seen=lambda rows, columns: rows[:, None] >= columns[None, :],
    ),
    "causal, from the diagonal and then up": Form(
        guard="u <= n", block="u - 1 + (n + 1) * (1 - min(u, 1))", mask=CAUSAL, own=True, N=8, B=128, more=CHANNELS,
        seen=lambda rows, columns: rows[:, None] >= columns[None, :],
    ),
    "documents": Form(
        guard="t <= n", mask=SINCE, own=True, N=8, seen=in_documents, inputs={"begin": BEGIN},
    ),
    "documents, of which a launch leaves blocks out": Form(
        part="[first[n] : n + 1]", mask=SINCE, own=True, N=8, seen=in_documents,
        inputs={"begin": BEGIN, "first": FIRST},
    ),
    "documents, one product in flight": Form(
        part="[first[n] : n + 1]", mask=SINCE, own=True, N=8, seen=in_documents, D=64,
        inputs={"begin": BEGIN, "first": FIRST}, roles="consumers=2, buffers=4, in_flight=1",
    ),
    "vectors of rows and columns": Form(
        body=WEIGHED, weigh=lambda scores: scores * 2 * (torch.arange(scores.shape[-1]).to(scores) % 1024 / 1024),
        inputs={
            "rows": ("[H, N, B] f32", lambda: torch.full((8, 4, 256), 0.5)),
            "columns": ("[N, B] f32", lambda: (torch.arange(1024) / 1024).view(4, 256)),
        },
    ),
    "a window": Form(
        guard="t <= n and t >= n - 1", mask=WINDOW, own=True, N=8,
        seen=lambda rows, columns: (rows[:, None] >= columns) & (rows[:, None] - 200 < columns),
    ),
}  # fmt: skip


class Case:
    """A form with its tensors and its kernel."""

    def __init__(self, form: Form, heads: int = 8) -> None:
        self.form = form
        module = compiler.parse(form.text, "loops.tl")
        sizes = {"H": heads, "D": form.D, "N": form.N, "B": form.B}
        plan = compiler.plan(module.program(), module.schedules[0], ranks=2, dims=sizes, dtype="bf16", target="sm_90")
        assert plan.bound.stages["gemm"].roles is not None
        self.artifact = gpu_artifact(plan)
        torch.manual_seed(1)
        shape = (heads, form.N, form.B, form.D)
        buffers = self.artifact.tensor("ks").buffers
        self.q = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        self.k = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        self.ks = torch.randn(buffers, 2, *shape, dtype=torch.bfloat16, device="cuda")
        self.vs = torch.randn(buffers, 2, *shape, dtype=torch.bfloat16, device="cuda")
        self.o = torch.empty(shape, dtype=torch.float32 if form.dtype else torch.bfloat16, device="cuda")
        self.pad = torch.full((self.artifact.pad_size,), ALWAYS_SET, dtype=torch.int32, device="cuda")
        given = {"q": self.q, "k": self.k, "ks": self.ks, "vs": self.vs, "o": self.o}
        given |= {name: values()[None].cuda() for name, (_, values) in form.inputs.items()}
        self.kernel = Alone(self.artifact, given, self.pad)

    def wanted(self) -> torch.Tensor:
        form = self.form
        heads, rows = self.q.shape[0], form.N * form.B
        every = [x[0][:1] if form.own else x[0] for x in (self.ks, self.vs)]
        of = torch.arange(heads, device="cuda") // form.group
        keys, values = (x[:, of].transpose(0, 1).reshape(heads, -1, form.D).float() for x in every)
        scores = self.q.view(heads, rows, form.D).float() @ keys.transpose(1, 2) * 0.125
        if form.seen is not None:
            seen = form.seen(torch.arange(rows, device="cuda"), torch.arange(keys.shape[1], device="cuda"))
            scores = scores.masked_fill(~seen, float("-inf"))
        return (form.weigh(scores) @ values).view(self.o.shape)


def check_form(name: str) -> None:
    """The form computes what is meant, in every launch the same."""
    case = Case(FORMS[name])
    wanted = case.wanted()
    for _ in range(3):
        case.o.fill_(float("nan"))
        case.kernel()
        torch.cuda.synchronize()
        error = float(relative_error(case.o.float(), wanted))
        assert error < ALLOWED, f"the result is off by {error:.1e}"
    first = case.o.clone()
    case.kernel()
    assert torch.equal(first, case.o), "two launches differ"


def check_late_keys(launches: int = 1000) -> None:
    """A kernel waits for keys and values that arrive, by the copy engine, while it runs."""
    case = Case(FORMS["online softmax"])
    wanted, aside = case.wanted(), torch.cuda.Stream()
    later = [x[0].cpu().pin_memory() for x in (case.ks, case.vs)]
    arrived = torch.full((1,), ALWAYS_SET, dtype=torch.int32).pin_memory()
    grids = [next(one for one in case.artifact.grids if one.tensor == name) for name in ("ks", "vs")]
    blocks = [(s, n) for s in range(2) for n in range(case.form.N)]
    worst = 0.0
    for launch in range(launches):
        for x in (case.ks, case.vs):
            x[0].zero_()
        case.o.fill_(float("nan"))
        for grid in grids:
            case.pad[grid.base : grid.base + grid.count] = 0
        torch.cuda.synchronize()
        case.kernel()
        with torch.cuda.stream(aside):  # nothing is allocated here: that would wait for the kernel
            for number in range(len(blocks)):
                s, n = blocks[(number * 3 + launch) % len(blocks)]
                for x, held, grid in zip((case.ks, case.vs), later, grids, strict=True):
                    x[0, s, :, n].copy_(held[s, :, n], non_blocking=True)
                    heads = case.q.shape[0]
                    view = case.pad[grid.base : grid.base + 2 * heads * case.form.N].view(2, heads, case.form.N)
                    for head in range(heads):
                        view[s, head, n : n + 1].copy_(arrived, non_blocking=True)
        torch.cuda.synchronize()
        worst = max(worst, float(relative_error(case.o.float(), wanted)))
        assert worst < ALLOWED, f"off by {worst:.1e} in launch {launch}"


def main() -> int:
    checks: list[tuple[str, Any]] = [(name, lambda name=name: check_form(name)) for name in FORMS]
    checks.append(("late keys", check_late_keys))
    return run_checks(checks)


if __name__ == "__main__":
    sys.exit(main())
