# pyright: basic
"""GPU ranks of several nodes, with a stand-in for NVSHMEM's host library: what can be seen of them without a GPU."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.runtime.contract import check_arguments, check_memory
from tests.runtime.fake_gpu import FakeDriver
from tilelink import compiler, load
from tilelink.artifact import Artifact, SignalsPointer
from tilelink.compiler.cuda import gpu_artifact
from tilelink.dump import Pad, Seen
from tilelink.errors import BindingError, DeadlineError, RankError
from tilelink.runtime.cuda.handles import Handles
from tilelink.runtime.dtypes import dtype_of
from tilelink.runtime.nvshmem import bitcode, deadline, kernel, library, prepared
from tilelink.runtime.nvshmem.deadline import Watch
from tilelink.runtime.nvshmem.kernel import Linked, NvshmemKernel
from tilelink.runtime.nvshmem.library import Nvshmem, on_every_rank
from tilelink.settings import override

CALLER = 1


class StandIn:
    """The host library: memory of this process, and addresses of the ranks of one node alone."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.registered: list[int] = []

    def allocate(self, size: int) -> torch.Tensor:
        memory = torch.zeros(size + 1024, dtype=torch.uint8)
        return memory[-memory.data_ptr() % 1024 :][:size]

    def address(self, memory: torch.Tensor, rank: int) -> int:
        near = rank // self.size == self.rank // self.size
        return memory.data_ptr() + (rank - self.rank) * 2**40 if near else 0

    def register(self, module: int) -> None:
        self.registered.append(module)


def shapes(arguments: Any) -> tuple[Any, ...]:
    """The members that Triton asks of arguments: the type, and the alignment of the address."""
    return tuple(
        (one.dtype, one.data_ptr() % 16 == 0) if isinstance(one, torch.Tensor) else type(one) for one in arguments
    )


class Machine:
    """Builds kernels of any rank. issued: names of what was launched. linked: names of what got the bitcode."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.issued: list[str] = []
        self.linked: list[str] = []
        self.programs: dict[str, int] = {}
        self.helpers: set[Any] = set()
        self.rank = 0
        patch.setattr(torch.cuda, "synchronize", lambda *_: None)
        patch.setattr(torch.cuda, "device", lambda _: nullcontext())
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)
        patch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=CALLER))
        patch.setattr(torch.cuda, "Event", lambda: SimpleNamespace(record=lambda _: None))
        patch.setattr(kernel.dist, "get_rank", lambda _: self.rank)
        patch.setattr(kernel.dist, "barrier", lambda *_, **__: None)
        patch.setattr(kernel, "gpu_of", lambda _: torch.device("cpu"))
        patch.setattr(kernel, "agree", lambda *_: None)
        patch.setattr(kernel, "cuda_driver", FakeDriver)
        patch.setattr(deadline.torch.cuda, "ExternalStream", lambda *_: None)
        patch.setattr(kernel, "Sides", lambda *_: SimpleNamespace(fork=lambda _: None, join=lambda _: None))
        patch.setattr(kernel, "Function", self._function)
        patch.setattr(kernel, "HelperKernel", self._helper)
        self.capturing = False

    def built(self, artifact: Artifact, rank: int) -> Any:
        self.rank = rank
        group: Any = None
        return NvshmemKernel(artifact, group, library=StandIn(rank, artifact.ranks // artifact.nodes))

    def _function(self, spec: Any, function: Any, argument: Any, artifact: Artifact, link: Any) -> Any:
        for parameter in spec.parameters:
            argument(spec, parameter)
        self.linked += [spec.name] if link else []
        return lambda stream, tensors: self.issued.append(spec.name)

    def _helper(self, function: Any, arguments: Any, options: Any, link: Any = None, programs: int = 1) -> Any:
        name = function.__name__
        needed = set(function.arg_names) - set(function.arg_names[: len(arguments)])
        assert needed == set(options), name
        self.linked += [name] if link else []
        self.programs[name] = programs
        self.helpers.add((name, shapes(arguments), frozenset(options.items()), bool(link)))
        return lambda stream, *_: self.issued.append(name)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@cache
def artifact_of(name: str, schedule: str | None, ranks: int = 4, nodes: int = 2) -> Artifact:
    module = load(name)
    program = module.program(name)
    dims = {p.name: p.example or 64 if p.kind == "dim" else ranks // nodes for p in program.params}
    chosen = module.schedule(schedule, program) if schedule else None
    return gpu_artifact(
        compiler.plan(program, chosen, ranks=ranks, nodes=nodes, dims=dims, dtype="bf16", target="sm_90")
    )


CASES = [
    ("two_level_all_gather", "copy_sms"), ("two_level_gemm_rs", "copy_sms"), ("two_level_ag_gemm", "copy_sms"),
    ("all_gather", "pull"), ("all_reduce_two_shot_pushed", "large"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "schedule"), CASES)
def test_it_keeps_to_the_contract_of_runtimes(name: str, schedule: str, machine: Machine) -> None:
    artifact = artifact_of(name, schedule)
    for rank in range(artifact.ranks):
        built = machine.built(artifact, rank)
        check_memory(artifact, rank, built._memory)
        seen = check_arguments(artifact, rank, built._memory, built._arguments)
        assert SignalsPointer in seen
        assert [bool(one) for one in built._memory.pads] == [one // 2 == rank // 2 for one in range(4)]
        assert built._memory.words.dtype == torch.int64
        local = [t.name for t in artifact.tensors if t.space == "local"]
        inside = range(built._memory.heap.data_ptr(), built._memory.heap.data_ptr() + built._memory.heap.nbytes)
        assert all(built._memory.own[one].data_ptr() in inside for one in local)


@pytest.mark.parametrize(("name", "schedule"), CASES)
@pytest.mark.parametrize("deadline_s", [None, 1.0])
def test_what_is_compiled_ahead_is_what_is_launched(
    name: str, schedule: str, deadline_s: float | None, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact, group = artifact_of(name, schedule), None
    for rank in range(artifact.ranks):
        machine.rank = rank
        NvshmemKernel(artifact, group, deadline_s, library=StandIn(rank, 2))  # type: ignore[arg-type]
    made = prepared.helpers(artifact, torch.zeros(2, dtype=torch.int64) if deadline_s else None)
    ahead = {(one.__name__, shapes(given), frozenset(options.items()), linked) for one, given, options, linked in made}
    assert machine.helpers <= ahead
    assert "close_launch" in {name for name, *_ in machine.helpers}


def test_a_launch_is_announced_around_its_kernels(machine: Machine) -> None:
    artifact = artifact_of("all_gather", "pull")
    built = machine.built(artifact, 1)
    outputs = built({"x": torch.zeros(64, 64, dtype=torch.bfloat16)})
    launch = ["fill_buffer", "open_launch", "gather", "await_outputs", "empty_buffer", "close_launch"]
    assert machine.issued == launch
    assert machine.programs["empty_buffer"] == 4 * 64 * 64 // 4096
    assert outputs["y"].shape == (4, 64, 64)
    machine.capturing = True  # the same operations: whatever changes between launches is in device memory
    built({"x": torch.zeros(64, 64, dtype=torch.bfloat16)})
    assert machine.issued == launch * 2


def test_only_what_uses_the_network_is_linked_and_registered(machine: Machine) -> None:
    artifact = artifact_of("two_level_all_gather", "copy_sms")
    used = {one.name: one.uses_network for one in artifact.kernels}
    assert used == {"across": True, "inside": False}
    machine.built(artifact, 0)
    assert machine.linked == ["across", "close_launch"]
    library = StandIn(0, 2)
    link = Linked(library, lambda: {"libnvshmem_device": "a.bc"})
    assert link.options == {"extern_libs": {"libnvshmem_device": "a.bc"}}
    link.loaded(SimpleNamespace(module=77))
    assert library.registered == [77]


def test_no_kernel_of_one_node_uses_the_network() -> None:
    artifact = artifact_of("two_level_all_gather", "copy_sms", nodes=1, ranks=4)
    assert not any(one.uses_network for one in artifact.kernels)


def test_a_node_with_fewer_ranks_than_the_program_says_is_refused(machine: Machine) -> None:
    artifact = artifact_of("two_level_all_gather", "copy_sms")
    machine.rank = 1
    group: Any = None
    with pytest.raises(RankError, match="rank 1 reaches rank 0 by the network alone"):
        NvshmemKernel(artifact, group, library=StandIn(1, 1))


# Promises ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [True, False])
def test_index_tensors_are_checked_before_anything_is_issued_if_that_is_wanted(check: bool, machine: Machine) -> None:
    artifact = artifact_of("expert_parallel", "fine")
    assert artifact.promises
    with override(check=check):
        built = machine.built(artifact, 2)
    wrong = {t.name: torch.full(t.shape, 99, dtype=dtype_of(t)) for t in artifact.tensors if t.is_given}
    if check:
        with pytest.raises(BindingError, match="of rank 2 is 99"):
            built(wrong)
        assert not machine.issued
        machine.capturing = True  # the host must not wait there
    built(wrong)
    assert machine.issued


# Groups ------------------------------------------------------------------------------------------------------


class Core:
    """nvshmem4py of one process, which starts once."""

    def __init__(self, rank: int = 0, size: int = 0) -> None:
        self.rank, self.size = rank, size
        self.asked: list[dict[str, Any]] = []

    def init_status(self) -> int:
        return 2 if self.size else 0

    def get_unique_id(self, empty: bool) -> str:
        return "" if empty else "id"

    def init(self, **how: Any) -> None:
        self.asked.append(how)
        self.rank, self.size = how["rank"], how["nranks"]

    def my_pe(self) -> int:
        return self.rank

    def n_pes(self) -> int:
        return self.size


def started(patch: pytest.MonkeyPatch, core: Core, members: list[int], rank: int) -> Nvshmem:
    """The library for a group of these ranks of all, of which this process is number `rank`."""
    bindings = SimpleNamespace()
    patch.setitem(sys.modules, "nvshmem", SimpleNamespace(core=core, bindings=bindings))
    patch.setitem(sys.modules, "nvshmem.core", core)
    patch.setitem(sys.modules, "nvshmem.bindings", bindings)
    patch.setitem(sys.modules, "cuda.core", SimpleNamespace(Device=lambda _: SimpleNamespace(set_current=lambda: None)))
    patch.setattr(library.dist, "get_rank", lambda _: rank)
    patch.setattr(library.dist, "get_process_group_ranks", lambda _: members)
    patch.setattr(library.dist, "broadcast_object_list", lambda ids, **_: ids.__setitem__(0, "id of rank 0"))
    group: Any = SimpleNamespace(size=lambda: len(members))
    return Nvshmem(group, torch.device("cuda", 0))


@pytest.fixture
def unstarted(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setattr(library, "_started_for", [])
    return monkeypatch


def test_what_one_rank_lacks_is_an_error_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = [None] * 3
    group: Any = SimpleNamespace(size=lambda: 3)

    def gathered(rank: int) -> None:
        def all_gather_object(every: list[Any], own: Any, group: Any) -> None:
            told[rank] = own
            every[:] = told

        monkeypatch.setattr(library.dist, "all_gather_object", all_gather_object)

    def lacking() -> None:
        raise BindingError("no bitcode", hint="install it")

    gathered(0)
    on_every_rank(lambda: None, group)
    gathered(1)
    with pytest.raises(BindingError, match="no bitcode"):
        on_every_rank(lacking, group)
    gathered(2)
    with pytest.raises(RankError, match="rank 1 cannot build the kernel: no bitcode") as caught:
        on_every_rank(lambda: None, group)
    assert caught.value.hint == "install it"


def test_the_library_is_started_once_for_the_ranks_of_a_group(unstarted: pytest.MonkeyPatch) -> None:
    core = Core()
    for _ in range(2):
        started(unstarted, core, [4, 5, 8, 9], 2)
    (how,) = core.asked
    assert (how["rank"], how["nranks"], how["uid"]) == (2, 4, "id of rank 0")


@pytest.mark.parametrize("members", [[4, 5], [4, 5, 8, 10], [5, 4, 8, 9]])
def test_another_group_is_told_for_which_ranks_it_runs(members: list[int], unstarted: pytest.MonkeyPatch) -> None:
    core = Core()
    started(unstarted, core, [4, 5, 8, 9], 1)
    with pytest.raises(RankError, match="runs here for ranks 4, 5, 8, 9, not for ranks") as caught:
        started(unstarted, core, members, 1)
    assert "give all such kernels that group" in str(caught.value.hint)


def test_a_library_that_the_caller_has_started_is_taken_for_as_many_ranks(unstarted: pytest.MonkeyPatch) -> None:
    core = Core(rank=1, size=4)
    started(unstarted, core, [0, 1, 2, 3], 1)
    assert not core.asked
    with pytest.raises(RankError, match="runs here for 4 PEs"):
        started(unstarted, core, [0, 1], 1)


def test_a_heap_without_room_is_named(unstarted: pytest.MonkeyPatch) -> None:
    class Full(Core):
        def tensor(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
            raise ValueError(f"Failed to allocate memory of bytes {shape[0]}")  # its errors are classes of its own

    library = started(unstarted, Full(), [0, 1], 0)
    with pytest.raises(RankError, match="NVSHMEM's heap has no 4096 bytes for a kernel: Failed to allocate") as caught:
        library.allocate(4096)
    assert "NVSHMEM_SYMMETRIC_SIZE" in str(caught.value.hint)


# Deadlines ---------------------------------------------------------------------------------------------------


def watch(patch: pytest.MonkeyPatch, artifact: Artifact, seconds: float) -> Watch:
    for name in ("stream", "device", "ExternalStream"):
        patch.setattr(torch.cuda, name, lambda *_: nullcontext())
    epoch, pad = torch.tensor([3, 0, 0, 0]), torch.arange(artifact.pad_size, dtype=torch.int32)
    memory = SimpleNamespace(rank=1, device=torch.device("cpu"), epoch=epoch, pad=pad)
    return Watch(artifact, memory, Handles(FakeDriver()), seconds)  # type: ignore[arg-type]


def test_a_late_wait_is_named_in_its_launch_and_in_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    artifact = artifact_of("two_level_all_gather", "copy_sms")
    block = watch(monkeypatch, artifact, 0.5)
    over = SimpleNamespace(query=lambda: True)
    block.settle(over)
    block.words[1:7] = torch.tensor([1, 0, 3, 0, 0, 2])
    for again in (lambda: block.settle(over), block.check):
        with pytest.raises(DeadlineError, match=r"rank 1: tile 3 of .* waited .*: it was 0, and 2 is needed") as late:
            again()
        (seen,) = late.value.witnesses
        assert isinstance(seen, Seen) and (seen.rank, seen.issued, seen.launch) == (1, block._issued, block._issued)
        assert seen.pads == (Pad(rank=1, counters=tuple(range(artifact.pad_size))),)


def test_a_launch_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "MIN_SECONDS", 0.05)
    block = watch(monkeypatch, artifact_of("two_level_all_gather", "copy_sms"), 0.001)
    with pytest.raises(RankError, match="rank 1: a launch waits for its puts") as caught:
        block.settle(SimpleNamespace(query=lambda: False))
    assert "NVSHMEM_DEBUG" in str(caught.value.hint)


def test_a_launch_with_a_deadline_is_not_captured(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, group = artifact_of("all_gather", "pull"), None
    built = NvshmemKernel(artifact, group, 1.0, library=StandIn(0, 2))  # type: ignore[arg-type]
    machine.capturing = True
    with pytest.raises(BindingError, match="with a deadline cannot be captured"):
        built({"x": torch.zeros(64, 64, dtype=torch.bfloat16)})


# Bitcode -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["libnvshmem_device.bc"], "libnvshmem_device.bc"),
        (["libnvshmem_device_sm_80.bc", "libnvshmem_device_sm_90.bc"], "libnvshmem_device_sm_90.bc"),
        (["libnvshmem_device_sm_80.bc", "libnvshmem_device_sm_100.bc"], "libnvshmem_device_sm_80.bc"),
        (["libnvshmem_device_sm_100.bc", "libnvshmem_device.bc"], "libnvshmem_device.bc"),
        (["libnvshmem_device_sm_100.bc"], None),
        ([], None),
    ],
)
def test_the_bitcode_is_found_by_every_name(files: list[str], found: str | None, tmp_path: Path) -> None:
    lib = tmp_path / "lib"
    lib.mkdir()
    for file in files:
        (lib / file).touch()
    with override(nvshmem=tmp_path):
        assert bitcode.find_bitcode(90) == (lib / found if found else None)
        if found is None:
            with pytest.raises(BindingError, match="is not in") as caught:
                bitcode.libraries(90)
            assert "TILELINK_NVSHMEM" in str(caught.value.hint)
