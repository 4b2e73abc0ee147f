"""What every runtime is held to (tilelink/runtime/protocol.py): checks of memory, arguments and measured launches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch

from tilelink.artifact import (
    Artifact,
    Boxes,
    DebugBlockPointer,
    Descriptor,
    EpochPointer,
    FirstProgram,
    HandshakePointer,
    KernelSpec,
    LaunchProtocol,
    NumPrograms,
    Parameter,
    PeersPointer,
    Rank,
    SignalsPointer,
    SignalTablePointer,
    TensorPointer,
    ThresholdsPointer,
    TileCounterPointer,
)
from tilelink.device.spans import Span
from tilelink.runtime.dtypes import dtype_of
from tilelink.runtime.protocol import Arguments, Memory

WORD = 4
"""Bytes of what may stand for a tensor on a rank that does not have it: one element."""


def check_memory(artifact: Artifact, rank: int, memory: Memory) -> None:
    """Every tensor and counter of the artifact is there, of its shape and dtype, where the addresses say."""
    assert memory.pad.dtype == torch.int32 and memory.pad.shape == (artifact.pad_size,)
    assert len(memory.pads) == artifact.ranks and memory.pads[rank] == memory.pad.data_ptr()
    if artifact.protocol is not LaunchProtocol.INDEPENDENT:  # else no kernel asks for the others' addresses
        check_reached(artifact, rank, memory.pads)
    taken: list[tuple[int, int]] = [(memory.pad.data_ptr(), memory.pad.nbytes)]
    for spec in artifact.tensors:
        value = memory.tensor(spec.name)
        if value is None:
            assert spec.is_passed, spec.name
            continue
        if not spec.on(rank) and not spec.symmetric:
            assert value.untyped_storage().nbytes() <= WORD, spec.name
            continue
        assert tuple(value.shape) == (spec.buffers, *spec.shape) and value.dtype == dtype_of(spec), spec.name
        assert value.is_contiguous() and value.data_ptr() % 16 == 0, spec.name
        taken.append((value.data_ptr(), value.nbytes))
        if spec.symmetric:
            every = memory.addresses(spec.name)
            assert len(every) == artifact.ranks and every[rank] == value.data_ptr(), spec.name
            check_reached(artifact, rank, every)
    for (first, size), (following, _) in pairwise(sorted(one for one in taken if one[1])):
        assert first + size <= following, "two of them overlap"


def check_reached(artifact: Artifact, rank: int, addresses: Sequence[int]) -> None:
    """Every rank of the node has an address of its own; one of another node may have none, which is 0."""
    size = artifact.ranks // artifact.nodes
    near = [addresses[one] for one in range(artifact.ranks) if one // size == rank // size]
    assert all(near) and len(set(near)) == size
    known = [one for one in addresses if one]
    assert len(set(known)) == len(known)


def check_arguments(artifact: Artifact, rank: int, memory: Memory, arguments: Arguments) -> set[type]:
    """Every parameter of every kernel is bound by its class. Returns the classes that there were."""
    seen: set[type] = set()
    for kernel in artifact.kernels:
        for parameter in kernel.parameters:
            value = arguments.argument(kernel, parameter)
            check_argument(artifact, rank, memory, kernel, parameter, value)
            seen.add(type(parameter))
    return seen


def check_argument(
    artifact: Artifact, rank: int, memory: Memory, kernel: KernelSpec, parameter: Parameter, value: Any
) -> None:
    match parameter:
        case Rank():
            assert value == rank
        case FirstProgram():
            assert 0 <= value < kernel.programs
        case NumPrograms():
            assert value == kernel.programs
        case SignalsPointer():
            words = torch.int32 if memory.pad.is_contiguous() else torch.int64  # with 32 of 64 bits that count
            assert value.data_ptr() == memory.pads[rank] and value.dtype == words
            assert value.shape == (artifact.pad_size,)
        case SignalTablePointer():
            assert value.dtype == torch.int64 and value.tolist() == list(memory.pads)
        case EpochPointer():
            assert value.dtype == torch.int64
        case TileCounterPointer():
            assert value.dtype == torch.int32 and value.tolist() == [0]
        case DebugBlockPointer() | HandshakePointer():
            assert value is None or value.dtype == torch.int64
        case PeersPointer(tensor=name):
            assert value.dtype == torch.int64 and value.tolist() == list(memory.addresses(name))
        case ThresholdsPointer(tensor=name, kind=kind):
            assert value.dtype == torch.int32
            assert value.tolist() == artifact.grid_of((name, kind)).thresholds[rank].tolist()
        case Boxes(tensor=name, owner=int(owner)):
            assert value.data_ptr() == memory.addresses(name)[owner]
        case TensorPointer(tensor=name) | Descriptor(tensor=name) | Boxes(tensor=name):
            held = memory.tensor(name)
            assert (value is None) == (held is None), name
            assert held is None or value.data_ptr() == held.data_ptr(), name


def check_launches(
    artifact: Artifact, spans: Iterable[Span], launches: int, ranks: Sequence[int], doubt_ns: int = 0
) -> None:
    """Each rank ran all that the artifact launches once an epoch; streams and epochs came one after the other.

    doubt_ns: by which times may be off.
    """
    times: dict[tuple[int, str, int], list[Span]] = defaultdict(list)
    names = {one.track + program: one.name for one in artifact.launched for program in range(one.programs)}
    for span in spans:
        times[span.rank, names[span.track], span.epoch].append(span)
    epochs = range(1, launches + 1)
    assert set(times) == {(rank, one.name, epoch) for rank in ranks for one in artifact.launched for epoch in epochs}
    for rank in ranks:
        for stream in {one.stream for one in artifact.launched}:
            parts = sorted((one for one in artifact.launched if one.stream == stream), key=lambda one: one.position)
            steps = [times[rank, one.name, epoch] for epoch in epochs for one in parts]
            for before, after in pairwise(steps):
                last, first = max(span.end for span in before), min(span.begin for span in after)
                assert last <= first + doubt_ns, f"rank {rank}, stream {stream}: {before[0]} and {after[0]} overlap"
