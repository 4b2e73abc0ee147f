# pyright: basic
"""What tests of callers do with the operators on every GPU rank, as `callers.py` does with kernels."""

from __future__ import annotations

import random as chances
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

import tilelink
from tests.gpu.callers import PRIORITIES, in_thread, meet, reversed_group, shifted, strided, transposed
from tests.gpu.cases import prepare
from tests.gpu.lockstep import Checks, together
from tests.gpu.ops_scenarios import SIZES, Call, Tensor, every_call, near, random, wanted
from tests.own_programs import FORWARD, SEND_BACK, weight_gradient
from tilelink import ops
from tilelink.errors import RankError
from tilelink.ops.sms import sms_of_collectives
from tilelink.runtime.cuda.device import current_target

LAUNCHES = 10


def plain_calls() -> list[Call]:
    """Each operator without what may follow it."""
    every = every_call(torch.bfloat16, SIZES[0])
    return [one for one in every if all(value is None or value is False for value in one.options.values())]


def each(body: Callable[[Call, Checks], None]) -> None:
    calls = plain_calls()
    prepare(wanted([lambda call=call: call("h200") for call in calls]))
    together(calls, body, str)
    ops.clear()


def again(call: Call, operands: tuple[Tensor, ...], schedule: str = "h200", **more: Any) -> Tensor:
    """The call with other operands."""
    return call.function(*operands, **call.options, **more, schedule=schedule)


def memory() -> None:
    """Tensors that are written, or freed and their memory written, as soon as a call returns; ranks are apart."""
    chance = chances.Random(dist.get_rank())

    def body(call: Call, checks: Checks) -> None:
        expected, kept = call("unfused"), list[Tensor]()
        call("h200")
        meet()
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                for launch in range(LAUNCHES):
                    torch.cuda._sleep(chance.choice((0, 0, 300_000, 3_000_000)))
                    given = tuple(one.clone() for one in call.operands)
                    found = again(call, given)
                    kept.append(found.clone())
                    shapes = [one.shape for one in (*given, found)]
                    if launch % 2:
                        for one in (*given, found):
                            one.fill_(7)
                    del given, found
                    others = [torch.full(shape, 7, dtype=torch.bfloat16, device="cuda") for shape in shapes]
                    del others
            torch.cuda.synchronize()
        for launch, found in enumerate(kept):
            near(found, expected, checks, f"launch {launch}")

    each(body)


def operands() -> None:
    """Views of every kind, and one tensor for all operands of a shape; results share no memory with them."""

    def body(call: Call, checks: Checks) -> None:
        expected = call("unfused")
        kinds: dict[str, Callable[[Tensor], Tensor]] = {
            "strided": strided, "transposed": transposed, "8 elements off": lambda t: shifted(t, 8),
            "1 element off": lambda t: shifted(t, 1),
        }  # fmt: skip
        for label, view in kinds.items():
            for _ in range(3):
                near(again(call, tuple(map(view, call.operands))), expected, checks, label)
        first: dict[Any, Tensor] = {}
        same = tuple(first.setdefault(one.shape, one) for one in call.operands)
        found = again(call, same)
        near(found, again(call, same, "unfused"), checks, "the same operand twice")
        places = {one.untyped_storage().data_ptr() for one in same}
        checks.expect(found.untyped_storage().data_ptr() not in places, "the result is an operand's memory")

    each(body)

    def squared(_: str, checks: Checks) -> None:
        x = random(512, 640)
        near(ops.ag_gemm(x, x, schedule="h200"), ops.ag_gemm(x, x, schedule="unfused"), checks, "x x^T")

    together(("a tensor and itself",), squared, str)
    ops.clear()


def places() -> None:
    """First calls in inference mode, by threads, with another current GPU; then any of these, and busy streams."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    other = torch.device("cuda", (rank + 1) % ranks)
    number = 0

    def body(call: Call, checks: Checks) -> None:
        nonlocal number
        number += 1
        expected, kept = call("unfused"), list[Tensor]()

        def elsewhere() -> Tensor:
            with torch.cuda.device(other):
                return call("h200")

        def inferring() -> Tensor:
            with torch.inference_mode():
                return call("h200")

        ways = (elsewhere, inferring, lambda: in_thread(lambda: call("h200")))
        ways = (*ways[number % 3 :], *ways[: number % 3])  # each of them is the first for some
        for way in (*ways, *ways):
            kept += [way(), call("h200")]
        for stream in [torch.cuda.Stream(priority=one) for one in PRIORITIES]:
            meet()
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1_000_000 * (1 + 5 * rank))
                kept.append(call("h200"))
        torch.cuda.synchronize()
        for launch, found in enumerate(kept):
            near(found, expected, checks, f"launch {launch}")

    each(body)


def groups() -> None:
    """A second group with its ranks in another order, also by its name; ranks outside of a group are told so."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group, alone = reversed_group(), [dist.new_group([one]) for one in range(ranks)]

    def body(call: Call, checks: Checks) -> None:
        for launch in range(3):
            near(call("h200"), call("unfused"), checks, f"launch {launch} of all ranks")
            for members in (group, group.group_name):
                expected = again(call, call.operands, "unfused", group=members)
                near(again(call, call.operands, group=members), expected, checks, f"launch {launch} of {members}")
        outside = checks.raises(
            RankError, lambda: again(call, call.operands, group=alone[(rank + 1) % ranks]), "a group of others"
        )
        checks.expect("not in the group" in str(outside), f"it says {outside}")

    each(body)


LEFT_OUT = 0
"""SMs less than are left to collectives. With as many as there are, `beside` hangs."""


def beside() -> None:
    """Kernels that wait on all SMs that they take, and collectives of another group, which peers make first.

    Ranks are a grid. In a group of operators some rank issues the operator and then the collective, on two streams, and
    some rank issues the operator behind its collective; in the other groups as well, so that each waits for the others.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    width = max(2, ranks // 2)
    rows = [[*range(begin, begin + width)] for begin in range(0, ranks, width)]
    columns = [[*one] for one in zip(*rows, strict=True)] if len(rows) > 1 else rows
    made: list[list[Any]] = [[dist.new_group(one) for one in groups] for groups in (rows, columns)]
    own, other = made[0][rank // width], made[1][rank % width if len(rows) > 1 else 0]
    there = current_target()
    left = max(sms_of_collectives(there) - LEFT_OUT, 0)
    if len(rows) == 1 or LEFT_OUT:  # else the default
        ops.use_sms(there.sms - left, group=own)
    is_early = (rank % width + rank // width) % 2 == 0
    x, w, sent = random(4096 // width, 1024), random(4096, 1024, scale=0.05), random(16 << 20)
    into = torch.empty(other.size() * sent.numel(), device="cuda", dtype=sent.dtype)
    streams = torch.cuda.Stream(), torch.cuda.Stream()

    def product() -> Tensor:
        return ops.ag_gemm(x, w, schedule="h200", group=own)

    def collective() -> None:
        dist.all_gather_into_tensor(into, sent, group=other)

    def body(round: int, checks: Checks) -> None:
        expected = ops.ag_gemm(x, w, schedule="unfused", group=own)
        product()
        collective()
        torch.cuda.synchronize()
        dist.barrier(device_ids=[torch.cuda.current_device()])
        for _ in range(20):
            with torch.cuda.stream(streams[0]):
                if is_early:
                    y = product()
                    time.sleep(0.002)  # its programs are there
            with torch.cuda.stream(streams[1]):
                collective()
            if not is_early:
                streams[0].wait_stream(streams[1])
                with torch.cuda.stream(streams[0]):
                    y = product()
            torch.cuda.synchronize()
            near(y, expected, checks, f"round {round}")

    together(range(5), body, lambda round: f"round {round}, {left} SMs are left")
    ops.clear()


def own() -> None:
    """A program of one's own: results, outputs that are given, groups, graphs, torch.compile, gradients, a timing."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    product = tilelink.op(FORWARD, "gpu", scale=0.5, backward=(SEND_BACK, weight_gradient))
    reverse = reversed_group()

    def taken(x: Tensor, group: Any = None) -> Tensor:
        """The rows of the rank before this one."""
        members = group or dist.group.WORLD
        return ops.all_gather(x, group=members, schedule="unfused").chunk(ranks)[(dist.get_rank(members) - 1) % ranks]

    def body(sizes: tuple[int, int, int], checks: Checks) -> None:
        rows, N, K = sizes
        x, w, bias = random(rows, K), random(N, K, scale=0.05), random(N)
        numerics(x, w, bias, checks)
        for members in (reverse, reverse.group_name):
            found = product(x, w, group=members)
            near(found.y, taken(x, reverse) @ w.T * 0.5, checks, f"y of {members}")
        graphed(x, w, checks)
        traced(x, w, checks)
        differentiated(x, w, checks)
        time = product.bench(x, w, samples=5, warmups=2)
        checks.expect(0 < time.median_us < 1e5 and len(time.samples_us) == 5, f"{time}")
        ways = {"own": lambda: product(x, w), "plain": lambda: taken(x) @ w.T}
        times = tilelink.bench(ways, samples=3, warmups=1)
        checks.expect(all(0 < one.median_us < 1e5 for one in times.values()), f"{times}")
        if rank == 0:
            print(time, *times.values(), sep="\n", flush=True)

    def numerics(x: Tensor, w: Tensor, bias: Tensor, checks: Checks) -> None:
        """Launches back to back with changing inputs, with what may be chosen and left out, and into given tensors."""
        made: list[tuple[Any, Tensor]] = []
        y, xs = product(x, w)
        out = torch.empty_like(y), torch.empty_like(xs)
        for launch in range(6):
            given = x * (launch + 1)
            made.append((product(given, w), taken(given)))
            del given
        for launch, (found, expected) in enumerate(made):
            near(found.y, expected @ w.T * 0.5, checks, f"y of launch {launch}")
            checks.expect(bool(torch.equal(found.xs, expected)), f"xs of launch {launch} differs")
        expected = taken(x).float() @ w.float().T * 0.5
        near(product(x, w, bias, activation="relu").y, torch.relu(expected + bias), checks, "bias and relu")
        wide = product(x, w, sums="f32").y
        checks.expect(wide.dtype is torch.float32, "sums are not f32")
        near(wide, expected, checks, "sums in f32")
        near(product(x, w, scale=2.0, schedule="default").y, expected * 4, checks, "another scale and schedule")
        found = product(x, w, out=out)
        checks.expect(found.y is out[0] and found.xs is out[1], "other tensors than those given")
        near(out[0], expected, checks, "a given tensor")
        with torch.no_grad():
            near(product(strided(x), transposed(w)).y, expected, checks, "views")

    def graphed(x: Tensor, w: Tensor, checks: Checks) -> None:
        static = x.clone()
        product(static, w)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            found = product(static, w)
        for replay in range(30):
            static.copy_(x).mul_(replay + 1)
            graph.replay()
            near(found.y.clone(), taken(static) @ w.T * 0.5, checks, f"replay {replay}")
        fresh = random(x.shape[0] + 8, x.shape[1])
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            checks.raises(RankError, lambda: product(fresh, w), "a first call in a graph")

    def traced(x: Tensor, w: Tensor, checks: Checks) -> None:
        def layer(x: Tensor, w: Tensor) -> Tensor:
            return torch.nn.functional.silu(product(x, w).y) + 1

        near(torch.compile(layer, fullgraph=True)(x, w), layer(x, w), checks, "torch.compile")

    def differentiated(x: Tensor, w: Tensor, checks: Checks) -> None:
        own_x, own_w = (one.clone().requires_grad_() for one in (x, w))
        y = product(own_x, own_w).y
        seed = random(*y.shape)
        y.backward(seed)
        near(own_w.grad, seed.T @ taken(x) * 0.5, checks, "dw")  # type: ignore[arg-type]
        back = ops.all_gather(seed @ w * 0.5, schedule="unfused").chunk(ranks)[(rank + 1) % ranks]
        near(own_x.grad, back, checks, "dx")  # type: ignore[arg-type]

    together(SIZES, body, str)
    ops.clear()
