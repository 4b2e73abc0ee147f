"""The libraries that generated kernels may be written against, and how each says what the others say too.

`triton` is stock Triton with this package's device library, `traced` the same for a measured timeline. `triton_dist`
is Triton-distributed's compiler and its `triton_dist.language` (ByteDance-Seed/Triton-distributed): ranks and peers'
addresses come from the compiler instead of arguments, signals have 64 bits, and its wait is for equality. Equality is
enough for the counters of a program, since the next launch notifies them only after this one has finished; the
runtime's own counters may run ahead, so those are waited for with the comparison of OpenSHMEM, which is unsigned.
Tile mathematics is this package's in both.

What Triton-distributed asks of its users (its python/triton_dist/{jit,language} and lib/Conversion, commit 1512a811):
* `triton_dist.jit` links the device library of NVSHMEM; `triton.jit` does not.
* wait and notify are no barriers: each warp polls for itself, and thread 0 alone fences and signals.
* a wait only reads, so one whose token nothing consumes is removed; a token may go nowhere but to consume_token.
* its wait has no fence for the asynchronous proxy, so what other programs wrote is not loaded through descriptors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilelink.errors import EmitError
from tilelink.protocol import LaunchProtocol
from tilelink.schedule.bound import Bound


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """How device primitives are written on stock Triton. Texts in, texts out."""

    name: str = "triton"
    imports: tuple[str, ...] = ("from tilelink.runtime import device as dl",)
    decorator: str = "triton.jit"
    arguments: tuple[str, ...] = ("signals", "signal_table", "epoch", "watch", "rank", "first_program", "num_programs")
    """Kinds of the parameters that every kernel has."""
    peer_tables: bool = True
    """Kernels are passed the addresses of peers' tensors."""
    epoch_type: str = "tl.int32"
    """Of the number of the launch and of what is waited for: that of counters, or one that wraps as they do."""
    descriptors: bool = True
    """Loads may go through tensor descriptors."""
    flattens: bool = True
    """Loops over tiles may be flat (schedule/clauses/flat.py)."""
    defers: bool = True
    """Notifies may stand in the middle of a product (schedule/clauses/defer_notify.py)."""
    notifies_together: bool = True
    """A loop of notifies may be one of `notify_each`."""
    waits_together: bool = True
    """A wait for evenly spaced counters may be one `wait_all`."""
    handshakes: bool = True
    """Kernels may begin and end a launch together with those of peers (tilelink/protocol.py)."""
    copies_by_bulk: bool = True
    """Programs of one warp may copy by the tensor memory accelerator (schedule/clauses/bulk.py)."""
    device: str = "dl"
    """The library that waits, notifies and marks are called from."""
    tracer: str = "tracing"
    """The same of a dialect that is traced."""

    def of_warps(self) -> Dialect:
        """The dialect as programs speak it that are one warp each."""
        return replace(self, device="bulk", tracer="bulk_tracing")

    @property
    def libraries(self) -> tuple[str, ...]:
        """Imports of what waits, notifies and marks are called from."""
        return (f"from tilelink.runtime.device import {self.device}",)

    def check(self, bound: Bound) -> None:
        """Raises EmitError for a bound program that the dialect cannot express."""

    def protocol(self, bound: Bound) -> LaunchProtocol:
        """The launch protocol of a program's kernels in this dialect."""
        return bound.protocol if self.handshakes else LaunchProtocol.HELPER_KERNELS

    def setup(self, lane: int) -> tuple[str, ...]:
        """Lines at the begin of a kernel; lane: of its first program, counted over all kernels of a rank."""
        return ()

    def enter(self, entered: int, ranks: int, block: int) -> str:
        """Tells the peers that the rank is in the launch; entered: the runtime's counter of rank 0.

        block: the ranks, rounded up to a power of two.
        """
        return f"dl.enter(edge, signal_table, rank, {entered}, {ranks}, {block})"

    def leave(self, finished: int, ranks: int, block: int, stage: int) -> str:
        """Ends the launch with the last program that comes here; finished: the runtime's counter of rank 0."""
        numbers = f"{finished}, {ranks}, {block}, {stage}"
        return f"dl.leave(edge, signals, signal_table, epoch_at, watch, rank, num_programs, {numbers})"

    def launch(self, counted: int) -> str:
        """The number of the launch; counted: the programs of a kernel that are counted as they end, 0: they are not."""
        return f"dl.launch_number(epoch_at, edge, {counted})" if counted else "tl.load(epoch_at)"

    def tell_finished(self, finished: int, ranks: int, block: int) -> str:
        """Tells peers what launches are finished, of a kernel whose programs are counted; as `leave`."""
        return f"dl.tell_finished(edge, signal_table, epoch_at, launch, rank, {finished}, {ranks}, {block})"

    def begin_copies(self, finished: int, ranks: int, block: int, stage: int, *, first: bool) -> str:
        """The same, and lets the copy engine of the launch begin; first: the first program does, not the last one."""
        numbers = f"{finished}, {ranks}, {block}, {stage}, {first}"
        return f"dl.begin_copies(edge, signals, signal_table, epoch_at, watch, launch, rank, {numbers})"

    def count_program(self) -> str:
        """Counts a program that ends."""
        return f"{self.device}.count_program(edge, epoch_at)"

    def no_token(self) -> str:
        """The token of a tile that has waited for nothing yet."""
        return "ready = 0"

    def barrier(self) -> str | None:
        """A line before waits and notifies that makes them barriers of the program's threads."""
        return None

    def wait(self, channel: str, target: str, stage: int, *, consumed: bool) -> str:
        """A wait for a counter of the program, added to the token; `consumed`: a store or notify may come behind."""
        return f"ready += {self.device}.wait(signals, {channel}, {target}, watch, {stage}, tile)"

    def wait_all(self, first: str, count: int, step: int, target: str, stage: int) -> str:
        """A wait for `count` counters of the program, every `step`-th from the first one on."""
        return f"ready += {self.device}.wait_all(signals, {first}, {count}, {target}, watch, {stage}, tile, {step})"

    def wait_for_runtime(self, first: int, ranks: int, lag: int, stage: int) -> tuple[str, ...]:
        """Waits until the runtime's counters of all ranks are at launch epoch - lag, which may be below 1, or beyond.

        first: the counter of rank 0, behind which the others lie.
        """
        return (f"{self.device}.wait_all(signals, {first}, {ranks}, {_launch(lag)}, watch, {stage}, 0)",)

    def after_waits(self, place: str, *, load: bool) -> str:
        """An address or coordinate to load from or to store to, tied to the token."""
        return f"dl.consume_token({place}, ready)" if load else place

    def publish(self) -> str:
        """A barrier between what a program stored and what it loads, or the other way round."""
        return f"{self.device}.publish()"

    def peer(self, tensor: str, rank: str) -> str:
        """The address of a rank's copy of a tensor."""
        return f"dl.symm_at({tensor}_peers, {rank}, {tensor})"

    def notify(
        self, pad: str | None, channel: str, rank: str, stage: int, *, remote: bool, waited: bool, tile: str = "tile"
    ) -> str:
        """A notify; pad: the name of the peer's pad, None for the own one. waited: the tile has a token."""
        return f"{self.device}.notify({pad or 'signals'}, {channel}, {rank}, watch, {stage}, {tile}, {remote}, False)"

    def notify_each(self, ranks: str, channel: str, mask: str, stage: int) -> str:
        """A notify of counters in the pads of several ranks: `ranks`, `channel` and `mask` are vectors, or may be."""
        return f"dl.notify_each(signals, signal_table, {ranks}, {channel}, {mask}, watch, {stage}, tile)"

    def pad(self, rank: str) -> str | None:
        """The address of a rank's counters, where a notify needs it."""
        return f"dl.symm_at(signal_table, {rank}, signals)"

    def mark_tile(self, stage: int) -> str | None:
        """A line that marks the begin of a tile for traces."""
        return f"{self.device}.tile_begin(watch, {stage}, tile)"

    def mark_end(self, stage: int) -> str | None:
        """A line that marks the end of a tile."""
        return None

    def mark_transfer_begin(self) -> str | None:
        """A line before a transfer."""
        return None

    def setup_queue(self, lane: int) -> tuple[str, ...]:
        """Lines at the begin of a queue function."""
        return ()

    def mark_queue_end(self, stage: int) -> str | None:
        """A line that marks the end of a tile of a queue function."""
        return None

    def mark_transfer(self, stage: int, tensor: int, rank: str, offset: str) -> str | None:
        """A line that marks a transfer for traces."""
        return f"{self.device}.transfer(watch, {stage}, tile, {tensor}, {rank}, {offset})"


@dataclass(frozen=True, kw_only=True)
class Traced(Dialect):
    """Stock Triton whose programs write down when they began and ended what they did (runtime/device/tracing.py)."""

    name: str = "traced"
    imports: tuple[str, ...] = (
        "from tilelink.runtime import device as dl",
        "from tilelink.runtime.device import tracing",
    )
    flattens: bool = False  # a tile would begin before the one in front of it is written down
    defers: bool = False
    notifies_together: bool = False  # each is a record of its own
    waits_together: bool = False

    @property
    def libraries(self) -> tuple[str, ...]:
        return *super().libraries, f"from tilelink.runtime.device import {self.tracer}"

    def check(self, bound: Bound) -> None:
        if bound.target.kind == "hip":
            hint = "compile for a processor of NVIDIA, or run it on CPU ranks"
            raise EmitError(f"kernels for {bound.target} cannot be traced", hint=hint)

    def setup(self, lane: int) -> tuple[str, ...]:
        return (f"trace_lane = {self.tracer}.lane(watch, {lane} + pid)",)

    def wait(self, channel: str, target: str, stage: int, *, consumed: bool) -> str:
        return f"ready += {self.tracer}.wait(trace_lane, signals, {channel}, {target}, watch, {stage}, tile)"

    def wait_for_runtime(self, first: int, ranks: int, lag: int, stage: int) -> tuple[str, ...]:
        wait = f"{self.tracer}.wait(trace_lane, signals, {first} + peer, {_launch(lag)}, watch, {stage}, 0)"
        return _each_peer(ranks, wait)

    def notify(
        self, pad: str | None, channel: str, rank: str, stage: int, *, remote: bool, waited: bool, tile: str = "tile"
    ) -> str:
        place = f"{pad or 'signals'}, {channel}, {rank}"
        return f"{self.tracer}.notify(trace_lane, {place}, watch, {stage}, {tile}, {remote}, False)"

    def mark_tile(self, stage: int) -> str | None:
        return f"{self.tracer}.tile_begin(trace_lane, watch, {stage}, tile)"

    def mark_end(self, stage: int) -> str | None:
        return f"{self.tracer}.tile_end(trace_lane, {stage}, tile)"

    def mark_transfer_begin(self) -> str | None:
        return f"{self.tracer}.transfer_begin(trace_lane)"

    def mark_transfer(self, stage: int, tensor: int, rank: str, offset: str) -> str | None:
        return f"{self.tracer}.transfer(trace_lane, watch, {stage}, tile, {tensor}, {rank}, {offset})"

    def setup_queue(self, lane: int) -> tuple[str, ...]:
        return (f"queue.trace({lane})",)

    def mark_queue_end(self, stage: int) -> str | None:
        return f"queue.tile_end({stage}, tile)"


@dataclass(frozen=True, kw_only=True)
class TritonDistributed(Dialect):
    """How Triton-distributed says it."""

    name: str = "triton_dist"
    imports: tuple[str, ...] = (
        "import triton_dist",
        "import triton_dist.language as dl",
        "from triton_dist.language.extra import libshmem_device",
    )
    decorator: str = "triton_dist.jit"
    arguments: tuple[str, ...] = ("signals", "epoch", "first_program", "num_programs")
    peer_tables: bool = False
    epoch_type: str = "tl.int64"
    descriptors: bool = False
    flattens: bool = False
    defers: bool = False  # its barrier would end the pipeline
    notifies_together: bool = False
    waits_together: bool = False
    handshakes: bool = False
    copies_by_bulk: bool = False

    def check(self, bound: Bound) -> None:
        if not bound.schedule.reuse_wait:
            hint = "leave `reuse_wait off` out of the schedule, or emit dialect triton"
            raise EmitError("waits for equality need the reuse wait: counters could run ahead", hint=hint)
        if bound.target.kind == "hip":
            hint = "emit dialect triton, or choose a target of NVIDIA"
            raise EmitError(f"dialect triton_dist calls NVSHMEM, which {bound.target} has not", hint=hint)

    def setup(self, lane: int) -> tuple[str, ...]:
        return ("rank = dl.rank()",)

    def no_token(self) -> str:
        return "ready = tl.full((), 0, tl.int32)"

    def barrier(self) -> str | None:
        return "tl.debug_barrier()"

    def wait(self, channel: str, target: str, stage: int, *, consumed: bool) -> str:
        if not consumed:
            return _wait_until(channel, target)
        wait = f'dl.wait(signals + {_factor(channel)}, 1, "sys", "acquire", waitValue={target})'
        return f"ready = dl.consume_token(ready, {wait})"

    def wait_for_runtime(self, first: int, ranks: int, lag: int, stage: int) -> tuple[str, ...]:
        launch = f"tl.maximum({_launch(lag)}, 0)" if lag else _launch(lag)
        return _each_peer(ranks, _wait_until(f"{first} + peer", launch))

    def after_waits(self, place: str, *, load: bool) -> str:
        return f"dl.consume_token({place}, ready)"

    def publish(self) -> str:
        return "tl.debug_barrier()"

    def peer(self, tensor: str, rank: str) -> str:
        return f"dl.symm_at({tensor}, {rank})"

    def notify(
        self, pad: str | None, channel: str, rank: str, stage: int, *, remote: bool, waited: bool, tile: str = "tile"
    ) -> str:
        signals = self.after_waits("signals", load=False) if waited else "signals"
        place = f"{signals} + {_factor(channel)}"
        return f'dl.notify({place}, {rank}, signal=1, sig_op="add", comm_scope="intra_node")'

    def pad(self, rank: str) -> str | None:
        return None

    def mark_tile(self, stage: int) -> str | None:
        return None

    def mark_transfer(self, stage: int, tensor: int, rank: str, offset: str) -> str | None:
        return None


def _wait_until(channel: str, target: str) -> str:
    place = f"signals + {_factor(channel)}"
    return f"libshmem_device.signal_wait_until({place}, libshmem_device.NVSHMEM_CMP_GE, {target})"


def _each_peer(ranks: int, line: str) -> tuple[str, ...]:
    return f"for peer in range(0, {ranks}):", f"    {line}"


def _launch(lag: int) -> str:
    return f"epoch - {lag}" if lag else "epoch"


def _factor(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


DIALECTS: dict[str, Dialect] = {d.name: d for d in (Dialect(), TritonDistributed(), Traced())}


def dialect_named(name: str) -> Dialect:
    """The dialect of that name. Raises EmitError with the names that there are."""
    if name not in DIALECTS:
        raise EmitError(f"unknown dialect {name!r}", hint=f"one of {', '.join(DIALECTS)}")
    return DIALECTS[name]
