# pyright: basic
"""Layers of experts, whose tokens are spread over ranks: each rank has some experts, or a slice of each."""

from __future__ import annotations

import atexit
import logging
from dataclasses import dataclass
from math import gcd, inf
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from tilelink.errors import BindingError, CapacityError, DtypeError, ShapeError, TileLinkError, UnknownNameError
from tilelink.ops import torch_attention, torch_experts
from tilelink.ops.calls import able, gpu_of, has_roles
from tilelink.ops.choice import DEFAULTS
from tilelink.ops.consensus import CallKind, agree, compares_each, consensus, refuse
from tilelink.ops.custom import Declaration, declare, is_dense, is_differentiated, is_direct, refuse_dtensors
from tilelink.ops.dtensors import spread
from tilelink.ops.groups import Group, OfGroups, group_named, is_capturing, members_of, name_of, refuse_capture, size_of
from tilelink.ops.operators import UNFUSED
from tilelink.ops.own import of_library
from tilelink.ops.predict import machine_of
from tilelink.ops.specialization import name_of_type
from tilelink.ops.torch_experts import ACTIVATIONS, Chosen, Layer, fits_roles
from tilelink.ops.validate import check_floating

_log = logging.getLogger("tilelink.ops")
Tensor = torch.Tensor
Operands = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None]
"""x, ids, weights, w13, w2, and the scales of w13 and w2, or None."""
Shared = tuple[Tensor, Tensor] | None
"""w13 [2 I, H] and w2 [H, I] of an expert for all tokens."""
EXPERTS, SLICES = "expert_parallel", "moe"
"""Operators: a rank has whole experts, or a slice of every expert."""
FEW, GPU = "moe_decode", "gpu"
"""The library's program for few tokens of whole experts, and its schedule for GPUs."""
MANY = "moe"
"""The library's file for many tokens: one program dispatches, and one computes."""
ROWS = "moe_rows"
"""The same, of which tokens travel only to the ranks that have an expert for them."""
BLOCK = 64
"""Elements of which sizes of their schedules for GPUs are multiples."""
BLOCK_OF_CHOICES = 256
"""Choices that one tile counts."""
FEW_SCALED = "moe_decode_f8"
"""The program for few tokens whose weights have scales. Those for many are `quantised_rows` and `moe_experts_f8`."""
QUANTISED, SCALED = torch_experts.QUANTISED, torch_experts.SCALED
SPARSE = 0.5
"""Tokens travel only where they are needed if that is at fewer than this part of the ranks, choices being even: so they
do faster on eight simulated H200s with two choices, and with more ranks than choices of a token in general."""
WIDE = 4096
"""Inner elements from which weights of an expert stay while its rows pass."""
FEW_SCHEDULES = {12.0: GPU, 45.0: f"{GPU}_64", inf: f"{GPU}_128"}
"""Schedules for few tokens by the tokens of an expert, less than so many on average: two H200s, in CUDA graphs."""


@spread(0, x=0, ids=0, weights=0, w13=0, w2=0)
def expert_parallel(
    x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, *, w13_scale: Tensor | None = None,
    w2_scale: Tensor | None = None, shared: tuple[Tensor, Tensor] | None = None, group: Group = None,
    tokens: int | None = None, capacity: int | None = None, blocks: int = 1, activation: str = "silu",
    recompute: bool = False, schedule: str | None = None,
) -> Tensor:  # fmt: skip
    """Experts of all ranks for the own tokens: x [M, H] -> [M, H], the weighted sum of the k experts of each token.

    An expert is w2 (activation(gate x) * up x). Each of the R ranks has E of them: w13 [E, 2 I, H], gate before up, and
    w2 [E, H, I]. ids [M, k], int32 or int64, are numbers from 0 to R E - 1, those of rank r from r E on; -1, and what
    else is no such number, is skipped. weights [M, k] are of any floating type, and taken in f32.

    w13_scale [E, 2 I / 128, H / 128], w2_scale [E, H / 128, I / 128], both in f32: w13 and w2 are float8_e4m3fn, with a
    scale for each 128 x 128 elements. Tokens, which travel so, and what is between the products are quantised to the
    same type, with a scale for each 128 elements of a row. x has another floating type, and so has the result; there
    are no gradients. H and I are multiples of 128.

    shared: w13 [2 I, H] and w2 [H, I] of an expert for all tokens, whole on each rank, both of the dtype of x, with any
    I of its own. Its result is one more addend of the sum. Gradients of both are those of the own tokens.

    tokens: ranks give different numbers of tokens, also none, up to this one, the same on all ranks; None: all give as
    many. capacity: how many choices the experts of a rank have memory for, None: all of all ranks, R M k. Choices
    beyond are left out, and a later call of the same kind raises CapacityError, the same one on all ranks. blocks:
    tokens of a rank are taken in so many parts, one after the other: memory of ranks is for one part of the tokens, and
    so is the capacity. Weights are read for each of them.
    activation: "silu" or "gelu". schedule: "unfused", a schedule of the library's programs for few tokens
    ("moe_decode:gpu") or many ("moe:gpu"; "moe_rows:gpu", by which a token travels only to ranks of its experts), or
    None.

    A sum is added up over the choices of each rank, in their order, and then over ranks, in theirs: results do not
    depend on the time of anything. The host never waits, so a CUDA graph holds a call, with another routing in each
    replay. f16, f32 and f64 run by products for which the host waits. Unfused, weights with scales take memory for all
    of them in the type of x.

    Gradients are those of the sum of all ranks' losses: of x, of the weights of choices, of w13 and w2; x needs one on
    all ranks or on none, and so do the weights of choices. recompute: backward takes the first product again, else
    [T, 2 I] of it is kept, T being the capacity.

    Raises ShapeError, DtypeError and BindingError for what does not fit, on all ranks RankError or ShapeError if their
    first calls differ, CapacityError after a call with more choices than there was room for.
    """
    operands = x, ids, weights, w13, w2, w13_scale, w2_scale
    return _in_blocks(EXPERTS, operands, shared, group, tokens, capacity, blocks, activation, recompute, schedule)


def moe(
    x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, *, w13_scale: Tensor | None = None,
    w2_scale: Tensor | None = None, shared: tuple[Tensor, Tensor] | None = None, group: Group = None,
    tokens: int | None = None, blocks: int = 1, activation: str = "silu", recompute: bool = False,
    schedule: str | None = None,
) -> Tensor:  # fmt: skip
    """As `expert_parallel`, but each rank has a slice of every expert, of I of the inner features: tensor parallelism.

    x [M, H], ids [M, k] from 0 to E - 1, weights [M, k], w13 [E, 2 I, H], gate before up, w2 [E, H, I] -> [M, H].
    shared: whole on each rank, which takes it for its own tokens. w13_scale, w2_scale, tokens, blocks, activation,
    recompute, schedule, and what is raised: as of `expert_parallel`.
    """
    operands = x, ids, weights, w13, w2, w13_scale, w2_scale
    return _in_blocks(SLICES, operands, shared, group, tokens, None, blocks, activation, recompute, schedule)


def _in_blocks(
    op: str, operands: Operands, shared: Shared, group: Group, tokens: int | None, capacity: int | None, blocks: int,
    activation: str, recompute: bool, schedule: str | None,
) -> Tensor:  # fmt: skip
    """Return y of a call, whose tokens are taken in blocks."""
    x, members = operands[0], members_of(group)
    if isinstance(blocks, bool) or not isinstance(blocks, int) or blocks < 1:
        refuse(op, members, x, BindingError(f"blocks of {op} is {blocks!r}", hint="a number from 1 on"))
    size = _block(operands, tokens, blocks)
    if size and is_direct(()):
        # blocks of ranks may look alike, though there are more of them on one: all of the call is compared
        said = f"{x.shape[0]} rows" if tokens is None else f"tokens={tokens}", f"blocks={blocks}"
        agree(CallKind(op, said), members, x.device)
    if size is None:  # also of operands that do not fit, which the call says
        return _call(op, operands, shared, group, tokens, capacity, activation, recompute, schedule)
    most = x.shape[0] if tokens is None else tokens
    in_block = None if tokens is None and most == blocks * size else size

    def block(first: int) -> Tensor:
        x, ids, weights = [one[first : first + size] for one in operands[:3]]
        of_block = x, ids, weights, *operands[3:]
        return _call(op, of_block, shared, group, in_block, capacity, activation, recompute, schedule)

    # the last ones may be empty: a compiled call compares only blocks, and ranks call as often as each other
    return torch.cat([block(number * size) for number in range(blocks)])


def _block(operands: Operands, tokens: Any, blocks: int) -> int | None:
    """Return how many tokens there are in each of several blocks, or None for one block."""
    given = operands[:3]
    if blocks == 1 or not all(isinstance(one, torch.Tensor) and one.dim() == 2 for one in given):
        return None
    M, *others = (one.shape[0] for one in given)
    most = M if tokens is None else tokens
    if isinstance(most, bool) or not isinstance(most, int) or any(one != M for one in others) or most < M or not most:
        return None
    return -(-most // blocks)


def _call(
    op: str, operands: Operands, shared: Shared, group: Group, tokens: int | None, capacity: int | None,
    activation: str, recompute: bool, schedule: str | None,
) -> Tensor:  # fmt: skip
    members, options, text = members_of(group), (op, tokens, capacity, activation), schedule or ""
    given = [*operands[:5], *(one for one in operands[5:] if one is not None)]
    if not all(isinstance(one, torch.Tensor) for one in given):
        return _run(*operands, None, *options, False, name_of(members), text)[0]  # refused there, on all ranks
    extra = None if shared is None else _of_shared(op, operands[0], shared, activation, members)
    if is_direct((*operands, extra)):
        return _run(*operands, extra, *options, False, name_of(members), text)[0]
    differentiated = is_differentiated((*operands, extra))
    if differentiated and len(given) > 5:
        error = BindingError(f"{op} with scales has no gradients", hint="call it in torch.no_grad()")
        refuse(op, members, operands[0], error)
    return _experts(*operands, extra, *options, differentiated and not recompute, name_of(members), text)[0]


def _of_shared(op: str, x: Tensor, shared: Any, activation: str, members: ProcessGroup | str) -> Tensor | None:
    """Return what the expert for all tokens makes of them, [M, H]; None where x is wrong, which the call says.

    Raises ShapeError or DtypeError for other weights than w13 [2 I, H] and w2 [H, I], after the other ranks are told.
    """
    if x.dim() != 2 or activation not in ACTIVATIONS:
        return None
    refusal, H, hint = None, x.shape[1], f"it is (w13, w2), two tensors of x's dtype, {x.dtype}, on {x.device}"
    pair = isinstance(shared, tuple | list) and len(shared) == 2
    if pair:
        refuse_dtensors(op, shared)
    if not pair or not all(isinstance(one, torch.Tensor) for one in shared):
        refusal = DtypeError(f"shared of {op} is a {type(shared).__name__}", hint=hint)
    elif any(one.dtype != x.dtype or one.device != x.device for one in shared):
        text = " and ".join(f"{one.dtype} on {one.device}" for one in shared)
        refusal = DtypeError(f"shared of {op} is {text}", hint=hint)
    elif [list(one.shape) for one in shared] != [[2 * (inner := shared[1].shape[-1:].numel()), H], [H, inner]]:
        text = " and ".join(str(list(one.shape)) for one in shared)
        refusal = ShapeError(f"shared of {op} is {text}", hint=f"it is [2 I, H] and [H, I], and x has rows of {H}")
    if refusal is not None:
        refuse(op, members, x, refusal)
    return torch_experts.shared_expert(x, shared[0], shared[1], activation)


# Checks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The sizes of a call, the same on all ranks but M, the number of tokens: `tokens` says how many at most."""

    op: str
    rows: int
    tokens: int | None
    capacity: int | None
    activation: str
    schedule: str
    H: int
    k: int
    E: int
    inner: int
    scaled: bool
    dtype: torch.dtype
    device: torch.device

    @property
    def padded(self) -> int:
        return self.rows if self.tokens is None else self.tokens

    def room(self, ranks: int) -> int:
        """Return T, how many choices have room on a rank."""
        every = ranks * self.padded * self.k
        return every if self.capacity is None else min(every, self.capacity)

    def words(self) -> tuple[str, ...]:
        return (
            f"{self.rows} rows" if self.tokens is None else f"tokens={self.tokens}", f"rows of {self.H}",
            f"{self.dtype} on {self.device.type}", f"{self.k} choices", f"{self.E} experts of {self.inner}",
            "scales" if self.scaled else "no scales",
            f"capacity={self.capacity}", self.activation, self.schedule or "no schedule",
        )  # fmt: skip


def _checked(
    x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, w13_scale: Tensor | None,
    w2_scale: Tensor | None, op: str, tokens: int | None, capacity: int | None, activation: str, schedule: str,
) -> _Sizes:  # fmt: skip
    """Return the sizes of a call. Raises ShapeError, DtypeError, BindingError or UnknownNameError for a wrong one."""
    dims = {"x": "M H", "ids": "M k", "weights": "M k", "w13": "E 2I H", "w2": "E H I"}
    given: dict[str, Any] = dict(zip(dims, (x, ids, weights, w13, w2), strict=True))
    if scaled := w13_scale is not None or w2_scale is not None:
        dims |= {"w13_scale": "E 2I/128 H/128", "w2_scale": "E H/128 I/128"}
        given |= {"w13_scale": w13_scale, "w2_scale": w2_scale}
    for name, names in dims.items():
        one = given[name]
        if not isinstance(one, torch.Tensor):
            raise DtypeError(f"{name} of {op} is a {type(one).__name__}", hint="operands are torch tensors")
        if one.dim() != len(names.split()):
            raise ShapeError(f"{name} of {op} is {list(one.shape)}", hint=f"it is [{names.replace(' ', ', ')}]")
        if one.device != x.device or not is_dense(one):
            where = f"{one.device}, {one.layout}"
            raise DtypeError(f"{name} of {op} is on {where}, x on {x.device}", hint="all are dense, and on one device")
    of_weights, hint = x.dtype, f"both weights have the dtype of x, or are {QUANTISED}, with w13_scale and w2_scale"
    if scaled:
        of_weights, hint = QUANTISED, f"weights with scales are {QUANTISED}, their scales torch.float32"
    types = {"w13": of_weights, "w2": of_weights, "w13_scale": torch.float32, "w2_scale": torch.float32}
    for name in (one for one in types if one in given):
        if given[name].dtype != types[name]:
            raise DtypeError(f"{name} of {op} is {given[name].dtype}, x {x.dtype}", hint=hint)
    check_floating(f"x of {op}", x.dtype)
    if not weights.dtype.is_floating_point:
        raise DtypeError(f"weights of {op} are {weights.dtype}", hint="they are of a floating type")
    if ids.dtype not in (torch.int32, torch.int64):
        raise DtypeError(f"ids of {op} are {ids.dtype}", hint="they are torch.int32 or torch.int64")
    (M, H), k, E, inner = x.shape, ids.shape[1], w13.shape[0], w2.shape[2]
    wanted = {"ids": [M, k], "weights": [M, k], "w13": [E, 2 * inner, H], "w2": [E, H, inner]}
    if scaled:
        if H % SCALED or inner % SCALED:
            text = f"{op} with scales has rows of {H}, and experts of {inner} inner features"
            raise ShapeError(text, hint=f"a scale is for {SCALED} x {SCALED} elements: both are multiples of {SCALED}")
        blocks = H // SCALED, inner // SCALED
        wanted |= {"w13_scale": [E, 2 * blocks[1], blocks[0]], "w2_scale": [E, *blocks]}
    for name, shape in wanted.items():
        if list(given[name].shape) != shape:
            hint = f"next to the others it is {shape}: x is [M, H], ids [M, k], w13 [E, 2 I, H], w2 [E, H, I]"
            raise ShapeError(f"{name} of {op} is {list(given[name].shape)}", hint=hint)
    if not (H and k and E and inner):
        hint = "one choice, expert and feature or more; tokens may be none, with tokens="
        raise ShapeError(f"w2 of {op} is {list(w2.shape)}, for {k} choices", hint=hint)
    for name, number in (("tokens", tokens), ("capacity", capacity)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int) or number < 1):
            raise BindingError(f"{name} of {op} is {number!r}", hint="a number from 1 on, or None")
    if tokens is None and not M:
        raise ShapeError(f"x of {op} has no rows", hint="with tokens= a rank may have none")
    if tokens is not None and tokens < M:
        raise ShapeError(f"x of {op} has {M} rows, and tokens={tokens}", hint="tokens is the most that a rank gives")
    if activation not in ACTIVATIONS:
        raise UnknownNameError(f"no activation {activation!r}", hint=f"there are {', '.join(ACTIVATIONS)}")
    if not isinstance(schedule, str):
        raise BindingError(f"schedule of {op} is a {type(schedule).__name__}", hint="give the name of one")
    program = schedule.partition(":")[0]
    of_tokens = (MANY,) if op == SLICES else (MANY, FEW) if scaled else (MANY, FEW, ROWS)
    if program and program not in (UNFUSED, *of_tokens):
        others = "".join(f", {one}:{GPU}" for one in of_tokens)
        raise UnknownNameError(f"{op} has no schedule {schedule!r}", hint=f"there is {UNFUSED!r}{others}")
    if program in of_tokens and activation != "silu":
        raise BindingError(f"{program} has no activation {activation!r}", hint=f"silu, or {UNFUSED!r}")
    return _Sizes(
        op=op, rows=M, tokens=tokens, capacity=capacity, activation=activation, schedule=schedule, H=H, k=k, E=E,
        inner=inner, scaled=scaled, dtype=x.dtype, device=x.device,
    )  # fmt: skip


LATER = 32
"""Calls after which the host looks on GPUs how many choices there were: all ranks in the same call, and it hardly ever
waits for one that has not ended. On CPUs it looks in the next one."""


class _Watch:
    """How many choices experts of one rank had, at most, in calls of a kind. The host reads it later."""

    every: ClassVar[list[_Watch]] = []
    """A graph that is replayed after `clear` writes into them."""

    def __init__(self, sizes: _Sizes, later: int | None = None) -> None:
        """later: after how many calls the host looks; None: LATER, or 1."""
        self._op, self._capacity, self.device = sizes.op, sizes.capacity, sizes.device
        self._cuda = sizes.device.type == "cuda"
        self._later, self._calls = later or (LATER if self._cuda else 1), 0
        self._most = torch.zeros((), dtype=torch.int64, device=sizes.device)
        self._seen = torch.zeros(self._later + 1, dtype=torch.int64, pin_memory=self._cuda)
        """After calls of the host by turns, and last after those of graphs."""
        self._ended = [torch.cuda.Event() for _ in range(self._later)] if self._cuda else []
        if sizes.capacity is not None:
            self.every.append(self)

    def check(self) -> None:
        """Raise CapacityError, once, if the call so many before had more choices than there was room for."""
        if self._capacity is None or is_capturing():
            return
        place = self._calls % self._later
        if self._cuda:
            self._ended[place].synchronize()
        if int(self._seen[place]) > self._capacity:
            self.require()

    def require(self) -> None:
        """Raise CapacityError, once, for calls with more choices than there was room for. Waits for the GPU."""
        if self._cuda:
            torch.cuda.synchronize(self.device)
        if (seen := int(self._seen.max())) > (self._capacity or seen):
            self._most.zero_()
            self._seen.zero_()
            raise self.overflow(seen)

    def overflow(self, seen: int) -> CapacityError:
        message = f"experts of one rank had {seen} choices in an earlier call of {self._op}, with"
        message += f" capacity={self._capacity}: those beyond were left out"
        return CapacityError(message, hint=f"give a capacity of {seen} or more, or None for any routing")

    def say(self) -> None:
        """Warn of what no later call has raised. For the end of the process: it asks nothing of the GPU."""
        if (seen := int(self._seen.max())) > (self._capacity or 0):
            _log.warning("%s", self.overflow(seen))

    def see(self, needed: Tensor) -> None:
        """needed: choices of each rank's experts [R], on the device; a CUDA graph may capture it."""
        torch.maximum(self._most, needed.max(), out=self._most)
        place = self._later if (captured := is_capturing()) else self._calls % self._later
        self._seen[place].copy_(self._most, non_blocking=True)
        if not captured:
            self._calls += 1
            if self._cuda:
                self._ended[place].record()


def check_capacity() -> None:
    """Raise CapacityError if a call of `expert_parallel` so far had more choices than its `capacity`. Waits for GPUs.

    Without it a later call of the same kind raises the error, and what none has raised is logged as the process ends
    (`tilelink.ops`, WARNING). Each overflow is raised once. All ranks see the same ones.
    """
    for watch in _Watch.every:
        watch.require()


@atexit.register
def _say_overflows() -> None:
    for watch in _Watch.every:
        watch.say()


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """Calls of a kind. way: their implementation. watch: what was seen of all that ranks found alike, `same`."""

    sizes: _Sizes
    layer: Layer
    way: str
    watch: _Watch
    same: CallKind


_kinds = OfGroups[dict[Any, _Kind]](lambda group: {})
"""By the shapes and options of a call."""
_watches = OfGroups[dict[CallKind, _Watch]](lambda group: {})
"""By what is compared between ranks, which may give other numbers of tokens."""


def _kind(operands: Any, options: Any, group: ProcessGroup, schedule: str, *said: str) -> _Kind:
    """Return the kind of a call. Raises what `expert_parallel` says. options: op, tokens, capacity, activation.

    said: what all ranks do alike beside it.
    """
    known = _kinds.of(group)
    kinds = [(t.shape, t.dtype, t.device) if isinstance(t, torch.Tensor) else type(t) for t in operands]
    key = (options, schedule, said, *kinds)
    if (found := known.get(key)) is not None:
        if compares_each(found.sizes.device):
            agree(found.same, group, found.sizes.device)
        return found
    sizes, refusal = None, None
    try:
        sizes = _checked(*operands, *options, schedule=schedule)
    except TileLinkError as error:
        refusal = error
    words, watches = () if sizes is None else sizes.words(), _watches.of(group)
    same = CallKind(options[0], (*words, *said))
    if same not in watches:
        refuse_capture(
            f"ranks compare their first calls of {same.op}, which a CUDA graph cannot hold",
            "call it once before the capture, on all ranks, with tensors of these sizes",
        )
    agree(same, group, getattr(operands[0], "device", torch.device("cpu")), refusal)
    assert sizes is not None
    if same not in watches:  # calls with gradients and without have one
        shared = CallKind(options[0], words)
        watches[same] = watches[shared] = watches.get(shared) or _Watch(sizes)
    with gpu_of(operands[0]):
        way = schedule or _chosen(sizes, operands[0], group)
    known[key] = _Kind(sizes=sizes, layer=_layer(sizes, group), way=way, watch=watches[same], same=same)
    return known[key]


# The operators -----------------------------------------------------------------------------------------------


def _run(
    x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, w13_scale: Tensor | None,
    w2_scale: Tensor | None, extra: Tensor | None, op: str, tokens: int | None, capacity: int | None,
    activation: str, keep: bool, group: str, schedule: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return y, and what backward needs of `Chosen` and of the first product; without elements unless `keep`.

    extra [M, H]: an addend of y.
    """
    members = group_named(group)
    operands = x, ids, weights, w13, w2, w13_scale, w2_scale
    said = f"{'no' if extra is None else 'an'} expert for all tokens", f"{'' if keep else 'nothing '}kept for gradients"
    kind = _kind(operands, (op, tokens, capacity, activation), members, schedule, *said)
    sizes, layer = kind.sizes, kind.layer
    padded = _padded(sizes, x, ids, weights)
    kind.watch.check()
    if kind.way != UNFUSED and not keep:
        y = _by_kernels(kind, *padded, *operands[3:], extra)
        return y[: sizes.rows].contiguous(), *_nothing(x)
    if w13_scale is not None and w2_scale is not None:
        padded = torch_experts.rounded(padded[0]), *padded[1:]
        w13, w2 = torch_experts.unscaled(w13, w13_scale, x.dtype), torch_experts.unscaled(w2, w2_scale, x.dtype)
    chosen, needed = torch_experts.choose(*padded, sizes.E, layer)
    if capacity is not None:
        kind.watch.see(needed)
    y, both = torch_experts.forward(w13, w2, layer, chosen)
    y = y[: sizes.rows].contiguous() if extra is None else y[: sizes.rows] + extra
    if not keep:
        return y, *_nothing(x)
    of_all = chosen.x if members.size() > 1 else chosen.x.clone()  # no result is an operand
    return y, of_all, *chosen[1:], both


def _nothing(x: Tensor) -> list[Tensor]:
    """Return what is kept of a call that needs no gradients."""
    return [x.new_empty(0, dtype=kind) for kind in _kept_types(x)]


def _kept_types(x: Tensor) -> tuple[torch.dtype, ...]:
    return x.dtype, torch_attention.wide(x.dtype), torch.int32, torch.int32, torch.int32, x.dtype


def _by_kernels(
    kind: _Kind, x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, w13_scale: Tensor | None,
    w2_scale: Tensor | None, extra: Tensor | None,
) -> Tensor:  # fmt: skip
    """Return y [M, H] of a call by programs of the library: x [M, H], ids and weights [M, k], others as of the call."""
    sizes, group = kind.sizes, kind.layer.group
    name, _, schedule = kind.way.partition(":")
    ids, weights = torch_experts.narrow(ids).contiguous(), weights.float().contiguous()
    of_experts, blocks = [w13.unflatten(1, (2, -1)), w2], dict[str, Any]()
    if w13_scale is not None and w2_scale is not None:
        blocks["B"] = SCALED
        of_experts = [of_experts[0], w13_scale.unflatten(1, (2, -1)), w2, w2_scale]
    added = () if extra is None else (_with_all_rows(sizes, extra),)
    if name == FEW:
        program, tokens = of_library(FEW_SCALED if blocks else FEW, schedule), (ids, weights)
        sent = x.unflatten(1, (-1, SCALED)) if blocks else x
        return program(sent, *tokens, *of_experts, *added, group=group, **blocks)
    sent, units = x, list[Tensor]()
    if blocks:  # bytes travel as larger elements
        quantised = of_library("quantised_rows", schedule and GPU)(x, group=group, **blocks)
        sent, units = quantised.q.flatten(1).view(torch.float32), [quantised.unit]
    ranks, (M, k), room = group.size(), ids.shape, sizes.room(group.size()) + 1
    to_experts = {"E": sizes.E, "k": k, "T": room, "group": group}
    if name == ROWS:
        most = 1 << (max(1, BLOCK_OF_CHOICES // k).bit_length() - 1)  # M is mostly a multiple of powers of two alone
        of_choices = (-1, gcd(M, most), k)
    else:
        of_choices, to_experts["first"] = (-1, gcd(M * k, BLOCK_OF_CHOICES)), sizes.E if sizes.op == EXPERTS else 0
    dispatch = of_library(f"{name}_dispatch", schedule and GPU)
    made = dispatch(sent, ids.view(of_choices), weights.view(of_choices), **to_experts)
    if sizes.capacity is not None:
        dist.all_reduce(made.found, dist.ReduceOp.MAX, group=group)
        kind.watch.see(made.found)
    place, scale = (one.view(ranks, M, k) for one in (made.place, made.scale))
    xs, chosen = made.xs.view(ranks * M, -1), (made.starts, made.rows.view(-1)[:room], place, scale)
    if name == ROWS:  # places that no token came to are of none
        origin, goes, slot = made.origin.clamp(0, M - 1), made.goes.view(ranks, M), made.slot.view(ranks, M)
        chosen = *chosen, origin, made.sent, goes, slot
    if not blocks:
        return of_library(f"{name}_experts", schedule)(xs, *chosen, *of_experts, *added, group=group)
    program, rows = of_library("moe_experts_f8", schedule, name_of_type(x.dtype)), (-1, SCALED)
    of_experts = [w13.unflatten(1, rows), w13_scale, w2.unflatten(1, rows), w2_scale]
    of_experts += [one.unflatten(1, rows) for one in added]
    return program(xs.view(QUANTISED), *units, *chosen, *of_experts, group=group, **blocks).flatten(1)


def _chosen(sizes: _Sizes, x: Tensor, group: ProcessGroup) -> str:
    """Return the implementation of a call that names none. The first call of a group is collective."""
    ranks = group.size()
    if not able(x) or ranks == 1 or sizes.activation != "silu" or sizes.H % BLOCK or sizes.inner % BLOCK:
        return UNFUSED
    known, rows = consensus(group), ranks * sizes.padded
    if not known.one_node or not has_roles(x.device):
        return UNFUSED
    machine = machine_of(known.gpu) or DEFAULTS
    if sizes.op == EXPERTS and rows <= machine.few_expert_rows:
        of_each = rows * sizes.k / (ranks * sizes.E)
        return f"{FEW}:{next(name for most, name in FEW_SCHEDULES.items() if of_each < most)}"
    if rows >= machine.many_expert_rows and sizes.padded * sizes.k % BLOCK_OF_CHOICES == 0:
        sparse = sizes.op == EXPERTS and not sizes.scaled and needs_few_ranks(ranks, sizes.k)
        wide = "_wide" if sizes.inner >= WIDE else ""
        roles = "_roles" if not sizes.scaled and fits_roles(sizes.room(ranks) + 1, sizes.H) else ""
        return f"{ROWS if sparse else MANY}:{GPU}{wide}{roles}"
    return UNFUSED


def needs_few_ranks(ranks: int, k: int) -> bool:
    """True if a token with k choices, all experts being alike, has experts on fewer than `SPARSE` of the ranks."""
    return 1 - (1 - 1 / ranks) ** k < SPARSE


def _layer(sizes: _Sizes, group: ProcessGroup) -> Layer:
    first = group.rank() * sizes.E if sizes.op == EXPERTS else 0
    return Layer(group=group, first=first, activation=sizes.activation, capacity=sizes.capacity, rounded=sizes.scaled)


def _padded(sizes: _Sizes, x: Tensor, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tensors of tokens with those that are not there: rows of zeros, which no expert is chosen for."""
    return _with_all_rows(sizes, x), _with_all_rows(sizes, ids, -1), _with_all_rows(sizes, weights)


def _with_all_rows(sizes: _Sizes, one: Tensor, value: int = 0) -> Tensor:
    """Return a tensor of tokens with rows of a value for those that are not there; without any itself, and no copy."""
    more = sizes.padded - sizes.rows
    return torch.nn.functional.pad(one, (0, 0, 0, more), value=value) if more else one


def _shapes(
    x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, w13_scale: Tensor | None,
    w2_scale: Tensor | None, extra: Tensor | None, op: str, tokens: int | None, capacity: int | None,
    activation: str, keep: bool, group: str, schedule: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    operands, ranks = (x, ids, weights, w13, w2, w13_scale, w2_scale), size_of(group)
    sizes = _checked(*operands, op, tokens, capacity, activation, schedule)
    every, room = ranks * sizes.padded, sizes.room(ranks)
    shapes = (
        (every, sizes.H), (every, sizes.k), (sizes.E + 1,), (room + 1,), (every, sizes.k), (room + 1, 2 * sizes.inner),
    )  # fmt: skip
    kept = [x.new_empty(one, dtype=kind) for one, kind in zip(shapes, _kept_types(x), strict=True)]
    return x.new_empty(x.shape), *(kept if keep else _nothing(x))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *operands, _, _, _, ctx.op, ctx.tokens, ctx.capacity, ctx.activation, ctx.keep, ctx.group, _ = inputs
    ctx.set_materialize_grads(False)  # none depends on what is kept, whose gradients would be zeros as large as that
    ctx.save_for_backward(*operands, *output[1:])


def _backward(ctx: Any, dy: Tensor, *_: Any) -> tuple[Any, ...]:
    needed = ctx.needs_input_grad
    wanted, made = [needed[0], *needed[2:5]], list[Tensor | None]([None] * 4)
    if any(wanted):
        found = _backwards(
            dy.contiguous(), *ctx.saved_tensors, ctx.op, ctx.tokens, ctx.capacity, ctx.activation, ctx.keep, wanted,
            ctx.group,
        )  # fmt: skip
        made = [one if want else None for one, want in zip(found, wanted, strict=True)]
    return made[0], None, *made[1:], None, None, dy if needed[7] else None, *[None] * 7


def _gradients(
    dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, of_all: Tensor,
    weights_of_all: Tensor, starts: Tensor, order: Tensor, place: Tensor, both: Tensor, op: str, tokens: int | None,
    capacity: int | None, activation: str, keep: bool, wanted: list[bool], group: str,
) -> tuple[Tensor, ...]:  # fmt: skip
    operands, exchanged = (x, ids, weights, w13, w2, None, None), zip(("x", "weights"), wanted[:2], strict=True)
    said = f"gradients of {' and '.join(name for name, one in exchanged if one) or 'experts alone'}"
    kind = _kind(operands, (op, tokens, capacity, activation), group_named(group), "", said)
    sizes, layer = kind.sizes, kind.layer
    chosen = Chosen(of_all, weights_of_all, starts, order, place)
    if not keep:
        chosen, _ = torch_experts.choose(*_padded(sizes, x, ids, weights), sizes.E, layer)
    given = _with_all_rows(sizes, dy)
    dx, dweights, dw13, dw2 = torch_experts.backward(given, w13, w2, both if keep else None, layer, chosen, wanted)
    rows = slice(sizes.rows)
    return dx[rows].contiguous(), dweights[rows].to(weights.dtype).contiguous(), dw13, dw2


def _gradient_shapes(
    dy: Tensor, x: Tensor, ids: Tensor, weights: Tensor, w13: Tensor, w2: Tensor, *others: Any
) -> tuple[Tensor, ...]:  # fmt: skip
    *_, wanted, _ = others
    return tuple(
        one.new_empty(one.shape if want else 0) for one, want in zip((x, weights, w13, w2), wanted, strict=True)
    )


_OPERANDS = "Tensor x, Tensor ids, Tensor weights, Tensor w13, Tensor w2"
_OPTIONS = "str op, int? tokens, int? capacity, str activation, bool keep"
_KEPT = ("of_all", "weights_of_all", "starts", "order", "place", "both")
_backwards = declare(
    Declaration(
        name="tilelink::experts_backward",
        schema=f"(Tensor dy, {_OPERANDS}, {', '.join(f'Tensor {name}' for name in _KEPT)}, {_OPTIONS},"
        " bool[] wanted, str group) -> (Tensor, Tensor, Tensor, Tensor)",
        run=_gradients,
        shapes=_gradient_shapes,
    )
)
_experts = declare(
    Declaration(
        name="tilelink::experts",
        schema=f"({_OPERANDS}, Tensor? w13_scale, Tensor? w2_scale, Tensor? extra, {_OPTIONS}, str group, str schedule)"
        f" -> ({', '.join(['Tensor'] * (1 + len(_KEPT)))})",
        run=_run,
        shapes=_shapes,
        keep=_keep,
        backward=_backward,
    )
)
