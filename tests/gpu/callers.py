# pyright: basic
"""What tests of callers do on every rank: how kernels are treated by those who launch them, not what they compute.

One program and schedule of each manner of launch: with or without a copy engine, side streams, inputs that are copied
for peers, and outputs that peers write. The first three are a program of a user's own.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import cycle
from threading import Thread
from typing import Any

import torch
import torch.distributed as dist

from tests.compiler.library import cases, name
from tests.gpu.cases import EVEN, Case, Trial, built, dims_of, point, prepare, trial, trial_for
from tests.gpu.lockstep import Checks, on_all, together
from tilelink import compiler
from tilelink.errors import BindingError, DeadlineError, RankError
from tilelink.lowering.bound import Bound

Tensor = torch.Tensor
LAUNCHES = 12
DEADLINE_S = 1.0
PRIORITIES = (0, -1, -5)

SUMS = """program sums(M, N):
    a    : in            [M, N]
    b    : in            [M, N]
    c    : in symmetric  [M, N]
    left : symmetric     [M, N]
    y    : out           [M, N]
    z    : out symmetric [M, N]

    comm send(i: M):
        tile_push_data(left[i, :] @ (rank + 1), b[i, :])
        producer_tile_notify(left[i, :] @ (rank + 1))

    comm hand(i: M):
        tile_push_data(z[i, :] @ (rank + 1), a[i, :])
        producer_tile_notify(z[i, :] @ (rank + 1))

    compute add(i: M, j: N):
        consumer_tile_wait(left[i, :])
        y[i, j] = a[i, j] + left[i, j] + c[i, j] @ (rank + 1)

schedule plain for sums:
    send on sm, tile(i=32)
    hand on sm, tile(i=32)
    add on sm, tile(i=32, j=64)
    left buffers 2

schedule engine for sums:
    send on copy_engine, tile(i=64)
    hand on copy_engine, tile(i=128)
    add on sm, tile(i=32, j=64)
    left channel(i=64), buffers 2

schedule copy_sms for sums:
    send on sm(2), tile(i=32)
    hand on sm(2), tile(i=32)
    add on sm, tile(i=32, j=64)
    left buffers 1
"""

CALLED = (
    "ag_gemm-h200_few", "ag_gemm_in_place-h200", "ag_gemm_in_place-h200_copy_sms", "gemm_ar-after", "gemm_ar-h200",
    "ag_gemm_gathered-h200", "all_gather-default", "all_gather-h200", "all_gather-h200_bulk",
    "all_reduce_two_shot-h200", "all_reduce_one_shot-h200", "all_reduce_two_shot_kept-large", "gemm_rs_scatter-h200",
)  # fmt: skip


@cache
def own_cases() -> tuple[Case, ...]:
    module = compiler.parse(SUMS)
    program = module.program("sums")
    return tuple((program, module.schedule(one, program)) for one in ("plain", "engine", "copy_sms"))


@cache
def called() -> tuple[Case, ...]:
    by_name = {str(name(case)): case for case in cases()}
    return (*own_cases(), *(by_name[one] for one in CALLED))


def manner(bound: Bound) -> tuple[bool, ...]:
    """What a launch of a program has, besides kernels on the caller's stream."""
    kernels = bound.kernels
    declared = [tensor.decl for tensor in bound.tensors.values()]
    return (
        any(kernel.on_copy_engine for kernel in kernels),
        any(kernel.stream != "main" and not kernel.on_copy_engine for kernel in kernels),
        any(one.space == "in" and one.symmetric for one in declared),
        any(one.space == "in" and not one.symmetric for one in declared),
        any(one.space == "out" and one.symmetric for one in declared),
    )


def each(body: Callable[[Case, Checks], None], which: tuple[Case, ...] | None = None) -> None:
    chosen = which or called()
    prepare([point(case, dims_of(case[0], EVEN)) for case in chosen])
    together(chosen, body, lambda case: str(name(case)))


def kernel_of(case: Case, deadline_s: float | None = None) -> Any:
    return built(point(case, dims_of(case[0], EVEN)), deadline_s)


def compiled(case: Case, group: Any = None) -> Any:
    """The same by the public way. Collective, but a rank that fails leaves the others alone."""
    return compiler.compile(*case, dims=dims_of(case[0], EVEN), dtype="bf16", device="cuda", group=group)


def trial_of(case: Case) -> Trial:
    return trial(case, dims_of(case[0], EVEN), 3)


def clones(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in tensors.items()}


def meet() -> None:
    torch.cuda.synchronize()
    dist.barrier(device_ids=[torch.cuda.current_device()])


# Memory ------------------------------------------------------------------------------------------------------


def memory() -> None:
    """Tensors that are written, or freed and their memory written, as soon as a call returns; ranks are apart."""
    chance = random.Random(dist.get_rank())

    def body(case: Case, checks: Checks) -> None:
        kernel, known = kernel_of(case), trial_of(case)
        ready = [known.given(launch) for launch in range(3)]
        reused, kept = 0, list[Any]()
        meet()
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                for launch in range(LAUNCHES):
                    torch.cuda._sleep(chance.choice((0, 0, 300_000, 3_000_000)))
                    given = clones(ready[launch % 3])
                    found = kernel(given)
                    kept.append((launch % 3, clones(found)))
                    if launch % 2:
                        for value in (*given.values(), *found.values()):
                            value.fill_(7)
                        continue
                    places = {value.data_ptr() for value in (*given.values(), *found.values())}
                    shapes = [value.shape for value in (*given.values(), *found.values())]
                    del given, found
                    others = [torch.full(shape, 7, dtype=torch.bfloat16, device="cuda") for shape in shapes]
                    reused += len(places & {other.data_ptr() for other in others})
                    del others
            torch.cuda.synchronize()
        checks.expect(reused > LAUNCHES // 2, f"memory was reused {reused} times only")
        for number, (launch, found) in enumerate(kept):
            known.verify(launch, found, checks, f"launch {number}")

    each(body)


# Operands ----------------------------------------------------------------------------------------------------


def same_inputs() -> None:
    """One tensor for all inputs of a shape."""

    def alike(inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        first: dict[Any, Tensor] = {}
        return {key: first.setdefault((value.shape, value.dtype), value) for key, value in inputs.items()}

    def body(case: Case, checks: Checks) -> None:
        kernel = kernel_of(case)
        known = trial_for(case, dims_of(case[0], EVEN), dist.get_rank(), dist.get_world_size(), alike)
        for launch in range(3):
            given = alike(known.given(0))
            known.verify(0, kernel(given), checks, f"launch {launch} of {len({id(t) for t in given.values()})} tensors")

    each(body, own_cases())


def strided(value: Tensor) -> Tensor:
    """The same elements, every other one in memory."""
    wide = torch.full((*value.shape, 2), float("nan"), dtype=value.dtype, device=value.device)
    wide[..., 0] = value
    return wide[..., 0]


def transposed(value: Tensor) -> Tensor:
    return value.transpose(-1, -2).contiguous().transpose(-1, -2)


def shifted(value: Tensor, elements: int) -> Tensor:
    """The same elements, behind some others in their storage."""
    flat = torch.full((value.numel() + elements,), float("nan"), dtype=value.dtype, device=value.device)
    flat[elements:] = value.flatten()
    return flat[elements:].view(value.shape)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "strided": strided, "transposed": transposed, "8 elements off": lambda t: shifted(t, 8),
    "1 element off": lambda t: shifted(t, 1), "a parameter": torch.nn.Parameter,
    "a parameter's rows": lambda t: torch.nn.Parameter(t) * 1,
}  # fmt: skip


def views() -> None:
    """Inputs that are not contiguous, not aligned, or have gradients; outputs that are, or are refused."""

    def body(case: Case, checks: Checks) -> None:
        kernel, known = kernel_of(case), trial_of(case)
        ready = known.given(0)
        for label, view in VIEWS.items():
            for _ in range(3):
                found = kernel({key: view(value) for key, value in ready.items()})
                known.verify(0, found, checks, label)
                checks.expect(not any(t.requires_grad for t in found.values()), f"{label}: a result has a gradient")
        graphs = [key for key, buffer in kernel._memory.own.items() if buffer.requires_grad]
        checks.expect(not graphs, f"the buffers of {graphs} keep the graphs of what was copied there")
        out = {key: shifted(value, 8) for key, value in kernel.empty_outputs().items()}
        found = kernel(ready, out=out)
        checks.expect(all(found[key] is out[key] for key in out), "other outputs than those given")
        known.verify(0, out, checks, "outputs at an offset")
        for label in ("strided", "1 element off"):
            wrong = {key: VIEWS[label](value) for key, value in out.items()}
            error = checks.raises(BindingError, lambda wrong=wrong: kernel(ready, out=wrong), f"{label} outputs")
            checks.expect("is not contiguous and aligned" in str(error), f"{label} outputs: {error}")
        known.verify(0, kernel(ready), checks, "after refusals")

    each(body)


def overlaps() -> None:
    """Outputs that share memory with an input, another output or the kernel's buffers are refused, on every rank."""

    def refused(kernel: Any, given: dict[str, Tensor], out: dict[str, Tensor], checks: Checks, text: str) -> None:
        error = checks.raises(BindingError, lambda: kernel(given, out=out), text)
        checks.expect(text in str(error), f"{text}: {error}")

    def body(case: Case, checks: Checks) -> None:
        kernel, known = kernel_of(case), trial_of(case)
        ready, outputs = known.given(0), kernel.empty_outputs()
        for key, y in outputs.items():
            for other, x in ready.items():
                room = torch.zeros(y.numel() + x.numel() - 8, dtype=y.dtype, device="cuda")
                near = room[y.numel() - 8 :].view(x.shape)
                near.copy_(x)
                out = {key: room[: y.numel()].view(y.shape)}
                refused(
                    kernel, {**ready, other: near}, out, checks, f"output '{key}' shares memory with input '{other}'"
                )
        for key, other in zip(outputs, list(outputs)[1:], strict=False):
            room = torch.zeros(outputs[key].numel() + outputs[other].numel(), dtype=torch.bfloat16, device="cuda")
            out = {one: room[: outputs[one].numel()].view(outputs[one].shape) for one in (key, other)}
            refused(kernel, ready, out, checks, f"output '{other}' shares memory with output '{key}'")
        known.verify(0, kernel(ready, out=outputs), checks, "after refusals")

    each(body)


# Places ------------------------------------------------------------------------------------------------------


def devices() -> None:
    """Another current GPU than the rank's, when a kernel is built and when it is launched."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    other, own = torch.device("cuda", (rank + 1) % ranks), torch.device("cuda", torch.cuda.current_device())

    def body(case: Case, checks: Checks) -> None:
        known = trial_of(case)
        ready = known.given(0)
        kernel_of(case)  # how ranks agree on one that cannot be made needs their own GPUs
        with torch.cuda.device(other), torch.inference_mode():
            kernel = compiled(case)
            kept = [kernel(ready) for _ in range(2)]
        checks.expect(kernel.device == own, f"it was built on {kernel.device}")
        for launch in range(6):
            with torch.cuda.device(other if launch % 3 else own):
                kept.append(kernel(ready))
                here = torch.cuda.current_device()
                checks.expect(here == (other if launch % 3 else own).index, f"the current device became {here}")
        torch.cuda.synchronize()
        for launch, found in enumerate(kept):
            checks.expect(all(value.device == own for value in found.values()), "outputs are elsewhere")
            known.verify(0, found, checks, f"launch {launch}")

    each(body)


def priorities() -> None:
    """Busy streams of every priority by turns, on ranks that are apart."""
    chance = random.Random(dist.get_rank())

    def body(case: Case, checks: Checks) -> None:
        kernel, known = kernel_of(case), trial_of(case)
        ready = known.given(0)
        streams = [torch.cuda.Stream(priority=one) for one in PRIORITIES for _ in range(2)]
        meet()
        kept: list[Any] = []
        for stream in (*streams, *reversed(streams), torch.cuda.default_stream()):
            with torch.cuda.stream(stream):
                torch.cuda._sleep(chance.choice((0, 1_000_000, 10_000_000)))
                kept.append(kernel(ready))
        torch.cuda.synchronize()
        for launch, found in enumerate(kept):
            known.verify(0, found, checks, f"launch {launch}")

    each(body)


def in_thread(action: Callable[[], Any]) -> Any:
    """What an action returns, or raises, in a thread of its own, which has said nothing of a GPU."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append((action(), None))
        except Exception as error:
            found.append((None, error))

    thread = Thread(target=run)
    thread.start()
    thread.join()
    value, error = found[0]
    if error is not None:
        raise error
    return value


def threads() -> None:
    """Launches by threads, one after the other, of a kernel that one of them built.

    This process uses the first GPU too: a thread that says nothing of a GPU gets that one's context.
    """
    torch.zeros(1, device="cuda:0")

    def body(case: Case, checks: Checks) -> None:
        known = trial_of(case)
        ready = known.given(0)
        kernel_of(case)  # as above
        kernel = in_thread(lambda: compiled(case))
        kept: list[Any] = []
        for turn in range(4):
            kept += [in_thread(lambda: kernel(ready)), in_thread(lambda: kernel(ready))]
            if turn % 2:
                kept.append(kernel(ready))
        torch.cuda.synchronize()
        for launch, found in enumerate(kept):
            known.verify(0, found, checks, f"launch {launch}")

    each(body)


# Groups ------------------------------------------------------------------------------------------------------


def reversed_group() -> Any:
    """All ranks, the last one first, where torch keeps such an order. Collective."""
    order = list(reversed(range(dist.get_world_size())))
    if "sort_ranks" in inspect.signature(dist.new_group).parameters:
        return dist.new_group(order, sort_ranks=False)
    print("torch sorts the ranks of a group", flush=True)
    return dist.new_group(order)


def groups() -> None:
    """A second group with its ranks in another order, by turns with the first; one rank alone; ranks outside."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    group, alone = reversed_group(), [dist.new_group([one]) for one in range(ranks)]

    def body(case: Case, checks: Checks) -> None:
        dims = dims_of(case[0], EVEN)
        second = on_all(lambda: compiled(case, group))
        first, known = kernel_of(case), trial_of(case)
        other = trial_for(case, dims, dist.get_rank(group), ranks)
        mine, theirs = known.given(0), other.given(0)
        for launch in range(4):
            known.verify(0, first(mine), checks, f"launch {launch} of all ranks")
            other.verify(0, second(theirs), checks, f"launch {launch} of the group")

    each(body)

    def outside(case: Case, checks: Checks) -> None:
        error = checks.raises(RankError, lambda: compiled(case, alone[(rank + 1) % ranks]), "a group of others")
        checks.expect("not in the group" in str(error), f"it says {error}")
        kernel, known = on_all(lambda: compiled(case, alone[rank])), trial_for(case, dims_of(case[0], EVEN), 0, 1)
        for launch in range(3):
            known.verify(0, kernel(known.given(0)), checks, f"launch {launch} alone")

    together(own_cases(), outside, lambda case: str(name(case)))


# Ranks that do not come --------------------------------------------------------------------------------------


class _OwnMistake(Exception):
    """Of a caller."""


def absent() -> None:
    """One rank raises before its launch: the others end by their deadline, and it is told so when it launches late.

    None gets results that were made of what never came, and all can compile again and go on. A launch that is refused
    for its tensors on one rank can be made again.
    """
    rank = dist.get_rank()
    turns: Iterator[int] = cycle(range(dist.get_world_size()))

    def body(case: Case, checks: Checks) -> None:
        kernel, known, late = kernel_of(case, DEADLINE_S), trial_of(case), next(turns)
        ready = known.given(0)
        meet()
        known.verify(0, kernel(ready), checks, "the first launch")
        if rank == late:
            wrong = {key: value[:1] for key, value in ready.items()}
            checks.raises(BindingError, lambda: kernel(wrong), "tensors of other shapes")
        known.verify(0, kernel(ready), checks, "a launch that one rank had to make twice")
        meet()
        begin = time.monotonic()
        try:
            if rank == late:
                raise _OwnMistake
            checks.raises(DeadlineError, lambda: [kernel(ready) for _ in range(3)], "launches without one rank")
            checks.expect(time.monotonic() - begin < 10 * DEADLINE_S, f"it took {time.monotonic() - begin:.1f} s")
        except _OwnMistake:
            pass
        meet()
        error = checks.raises(DeadlineError, lambda: kernel(ready), "a launch after all were late")
        if rank == late:
            checks.expect("is worthless" in str(error) and getattr(error, "rank", rank) != rank, f"it says {error}")
        meet()
        known.verify(0, kernel_of(case, DEADLINE_S)(ready), checks, "a kernel that was compiled again")

    each(body)
