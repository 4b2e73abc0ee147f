# pyright: basic
"""A program on one GPU rank: its memory, the arguments of its kernels, its launches, and their graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist

from tilelink.artifact import Artifact
from tilelink.runtime.cuda.arguments import Arguments
from tilelink.runtime.cuda.clock import PointerClocks
from tilelink.runtime.cuda.copies import Copies
from tilelink.runtime.cuda.deadline import DebugBlock
from tilelink.runtime.cuda.device import agree, gpu_of
from tilelink.runtime.cuda.direct import DirectLaunch
from tilelink.runtime.cuda.driver import library
from tilelink.runtime.cuda.graphs import GraphCache, Graphs, check_captured
from tilelink.runtime.cuda.handles import Handles
from tilelink.runtime.cuda.handshake import HandshakeArguments
from tilelink.runtime.cuda.launch_checks import LaunchChecks
from tilelink.runtime.cuda.launch_driver import LaunchDriver
from tilelink.runtime.cuda.measured_kernel import MeasuredKernel
from tilelink.runtime.cuda.memory import Memory
from tilelink.runtime.cuda.operands import Tensors
from tilelink.runtime.cuda.report import identity
from tilelink.runtime.cuda.timeline import Tracer
from tilelink.runtime.dtypes import dtype_of
from tilelink.runtime.promises import check_promises
from tilelink.runtime.witness import Explain, explained
from tilelink.settings import settings

SETS = 128
"""Number of tensor sets that are remembered, and for which a launch becomes one graph."""


class GpuKernel(MeasuredKernel):
    """A compiled program of a group of GPU ranks: `kernel({"x": x})` launches it on the current stream.

    Construction is collective. Launches are asynchronous and ordered: each begins after the previous one, also if they
    are made on different streams, or one after the other by different threads. Tensors may be written, or freed on that
    stream, as soon as a call returns. A launch may be captured into a CUDA graph after one eager launch.
    """

    def __init__(
        self, artifact: Artifact, group: dist.ProcessGroup, deadline_s: float | None = None,
        explain: Explain | None = None,
    ) -> None:  # fmt: skip
        """deadline_s: seconds that one wait may take; then every launch is waited for, and is slow. None: no limit.
        explain: called with the error of a wait that takes longer.

        Raises RankError if the ranks build different programs.
        """
        self.artifact = artifact
        self._rank, self._group, self._explain = dist.get_rank(group), group, explain
        self.device = gpu_of(group)
        with torch.cuda.device(self.device), torch.inference_mode(False):  # else its buffers are read-only later
            self._build(deadline_s)

    def _build(self, deadline_s: float | None) -> None:
        artifact, group, device = self.artifact, self._group, self.device
        agree(artifact.fingerprint * 2 + settings().check, group, device)  # ranks that check wait for each other
        handles = self._handles = Handles(library())
        memory = self._memory = Memory(artifact, self._rank, group, device)
        debug_block = self._debug_block = DebugBlock(artifact, memory, deadline_s) if deadline_s else None
        words = debug_block.words if debug_block else None
        self._tracer = None
        if artifact.spans and words is not None:
            self._tracer = Tracer(artifact, words, PointerClocks(group, device), group, device)
        copies = self._copies = Copies(
            artifact, memory, group, handles, timed=self._tracer is not None, replayed=debug_block is None
        )  # fmt: skip
        handshake = HandshakeArguments(artifact, copies, device)
        self._arguments = Arguments(artifact, memory, words, handshake.usual)
        self._driver = LaunchDriver(artifact, memory, self._arguments, copies, handshake, words, handles)
        checked = settings().check and artifact.shares_memory and not debug_block  # with a deadline none is captured
        self._checks = LaunchChecks(artifact, memory) if checked else None
        self._promises = artifact.promises if settings().check else ()
        self._graphs = GraphCache(Graphs(handles), self._driver.gains and debug_block is None, SETS)
        torch.cuda.synchronize(device)
        dist.barrier(group, device_ids=[device.index])

    # Launches ------------------------------------------------------------------------------------------------

    def __call__(self, inputs: Tensors, out: Tensors | None = None) -> dict[str, torch.Tensor]:
        """Launch once on the current stream. Every rank of the group makes the launch.

        inputs: tensors of this rank, of the shapes and dtypes of the program; those that it reads and writes in place
        are changed. out: tensors for outputs, which share no memory with inputs or each other. Return the outputs,
        which have no gradients, and the tensors in place. Raises BindingError for tensors that do not fit; with a
        deadline DeadlineError.
        """
        if self._elsewhere():
            with torch.cuda.device(self.device):
                return self(inputs, out)
        capturing = torch.cuda.is_current_stream_capturing()
        self.captured |= capturing
        if self._debug_block:
            check_captured(capturing, self._tracer is not None)
            with explained(self._explain, self.artifact, self._rank, {}):
                self._debug_block.check()
        arguments, driver = self._arguments, self._driver
        given = arguments.given.checked(inputs)
        if self._promises and not capturing:
            check_promises(self._promises, given, self._rank, self._group)
        results = arguments.taken.checked(out, complete=False) if out else {}
        if results or arguments.in_place:
            arguments.check_apart(given, results, self._memory.heap.memory)
        stream = driver.current()
        driver.order(stream, capturing)
        tensors = given | arguments.allocate(results)
        if self._tracer:
            self._tracer.begin(stream)
        self._launch(tensors, stream.cuda_stream, capturing, results)
        if capturing:
            driver.captures.done(stream.cuda_stream)
        else:
            self._end_eager(stream, given)
        return {t.name: results.get(t.name, tensors.get(t.name)) for t in arguments.outputs}  # type: ignore[misc]

    def direct(
        self, inputs: Mapping[str, int], outputs: Sequence[tuple[str, tuple[int, ...]]],
        counts: Mapping[str, torch.Tensor] | None = None, rows: Mapping[str, tuple[int, ...]] | None = None,
    ) -> DirectLaunch | None:  # fmt: skip
        """Return launches by the places of tensors, which take the host least time, or None if they need more.

        inputs: all inputs, with their places in calls. outputs: names of all outputs, and the shapes of the new
        tensors, of as many elements as the program has.
        counts, rows: inputs that are the same in all these launches, and the shapes of tensors that have only as many
        rows as these say: of a program in which they are declared to be defined up to there (`x : in [M[: m], K]`), of
        which it accesses no others.
        """
        arguments, kernels = self._arguments, self._driver.alone(rows)
        beside = arguments.staged or arguments.kept or arguments.in_place
        watched = self._promises or self._debug_block or self._tracer or self._checks or self._graphs.worth
        if kernels is None or beside or watched or {name for name, _ in outputs} != {t.name for t in arguments.outputs}:
            return None
        return DirectLaunch(self, self._driver, kernels, inputs, outputs, counts or {})

    def _launch(self, tensors: Tensors, stream: int, capturing: bool, results: dict[str, torch.Tensor]) -> None:
        """Issue a launch on a stream, by its handle. results: the symmetric outputs; missing ones are added."""
        arguments, driver = self._arguments, self._driver
        if arguments.kept:  # before anything is issued: if memory is exhausted, nothing has happened yet
            arguments.make_kept(results)
        if self._checks:
            self._checks.before(stream, identity(*driver.captures.next(stream)) if capturing else 0)
        if capturing and driver.skips:
            driver.skips[driver.slot](stream)
        if arguments.staged:
            arguments.stage(tensors, driver.slot)
        graph = self._whole(tensors) if self._graphs.worth and not capturing else None
        skips = capturing and not driver.in_turn
        if graph is None or not self._graphs.launch(graph, stream):
            driver.issue(tensors, stream, capturing, skips)
        if self.artifact.copies_outputs:  # peers may write there again once the end of the launch is announced
            arguments.keep(results, driver.slot)
            driver.end_launch(stream, skips)
        if self._checks:
            self._checks.after(stream)

    def _whole(self, tensors: Tensors) -> int | None:
        """Return the graph of the whole launch for these tensors and the current buffers, or None."""
        driver = self._driver
        key = (driver.slot, *[tensors[name].data_ptr() for name in self._arguments.keyed])
        stream = driver.capturing
        return self._graphs.find(key, lambda: driver.issue(tensors, stream, True, False), stream)

    def _end_eager(self, stream: torch.cuda.Stream, given: Tensors) -> None:
        driver = self._driver
        slot, driver.slot = driver.slot, (driver.slot + 1) % driver.cycle
        if self._debug_block:
            driver.end.record(stream)
            with explained(self._explain, self.artifact, self._rank, given):
                self._debug_block.settle(driver.end, self._copies.waits)
        if self._tracer:
            engine = self._copies.engine
            self._tracer.drain((engine.early[slot], *engine.late[slot]))

    def _elsewhere(self) -> bool:
        """True if the calling thread has another current GPU, whose streams and context are not this rank's.

        Raises BindingError if the kernel is closed, and what its GPU has reported before it stopped.
        """
        if self._handles.closed:
            self._check_open()
        if self._checks:
            self._checks.report.check()
        return torch._C._cuda_getDevice() != self.device.index

    def buffer(self, name: str) -> torch.Tensor:
        """Return a tensor for an input of the next launch on the current stream, so that it need not be copied.

        It is the symmetric buffer of the launch, or a new tensor if the buffer is not known yet or the input has none.
        """
        if self._elsewhere():
            with torch.cuda.device(self.device):
                return self.buffer(name)
        tensor, driver = self.artifact.tensor(name), self._driver
        capturing = torch.cuda.is_current_stream_capturing()
        if not tensor.symmetric or (capturing and driver.skips):
            return torch.empty(tensor.shape, dtype=dtype_of(tensor), device=self.device)
        driver.order(driver.current(), capturing)
        # Detached: otherwise a value with gradients would keep its autograd graph alive in the buffer, launch after
        # launch.
        return self._memory.own[name][driver.slot % tensor.buffers].detach()

    @property
    def symmetric_bytes(self) -> int:
        """Return the bytes of symmetric memory that this rank holds for the kernel, as each of its peers does."""
        self._check_open()
        return self._memory.heap.symmetric_bytes

    def close(self) -> None:
        """Free the kernel's memory, too, in which peers write.

        Raises what its GPU has reported before it stopped: OverlapError, LaunchOrderError.
        """
        if self._checks:
            self._checks.report.check()
        super().close()
        for name in ("_graphs", "_checks", "_driver", "_copies", "_arguments", "_tracer", "_debug_block", "_memory"):
            setattr(self, name, None)  # the memory last: graphs and kernels have its addresses

    # Measuring -----------------------------------------------------------------------------------------------

    def preset(self, inputs: Tensors) -> dict[str, torch.Tensor]:
        """Launch only the kernels of the main stream, with all signals set and no transfers: the time without waits.

        The values of the outputs are meaningless. No given tensor is changed, and none that launches keep. It needs no
        peer.
        """
        if self._elsewhere():
            with torch.cuda.device(self.device):
                return self.preset(inputs)
        arguments = self._arguments
        given = arguments.given.checked(inputs)
        tensors = given | arguments.in_copies(given) | arguments.allocate({})
        kept = {name: (tensor, tensor.clone()) for name, tensor in self._kept().items()}
        self._driver.preset(tensors, torch.cuda.current_stream(self.device).cuda_stream)
        for tensor, before in kept.values():
            tensor.copy_(before)
        return {t.name: tensors[t.name] for t in arguments.outputs if t.name in tensors}
