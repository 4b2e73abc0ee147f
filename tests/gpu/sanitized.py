# pyright: basic
"""A rank of what is run under compute-sanitizer: `python -m tests.gpu.sanitized FOLDER SECONDS`, see `sanitizer.py`.

Small cases, chosen so that each way of generating code is reached. Writes to FOLDER/said.RANK.json what became of each
case ("good", "late": a wait outlived its deadline, or what was wrong) and where this process sees its peers' memory.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.gpu.cases import Case, built, dims_of, point, prepare, trial
from tests.gpu.lockstep import CaseError, Checks
from tests.gpu.ranks import join
from tests.runtime import device_expected
from tilelink import compiler
from tilelink.errors import DeadlineError
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.kernel import GpuKernel
from tilelink.tuning.prepare import Point

SIZES = (72, 136, 104, 80)  # no tile divides them; rows of bf16 are multiples of 16 bytes, as descriptors need
DEADLINE_S = 15.0
LAUNCHES = 3  # as many as the most buffers that a schedule has, so that each is used

CASES: dict[str, tuple[tuple[str, str], ...]] = {
    "copy engine that feeds a product": (("ag_gemm", "copy_engine"),),
    "product that feeds the copy engine": (("gemm_rs_slots", "copy_engine"), ("gemm_rs_scatter", "copy_engine")),
    "copy_sms on SMs, before and after a product": (("ag_gemm", "copy_sms"), ("gemm_rs_slots", "copy_sms")),
    "prologue, and waits inside the contraction": (("ag_gemm", "slices"),),
    "epilogue, and a reduction": (("gemm_rs_scatter", "epilogue"), ("gemm_ar", "after")),
    "reduction on SMs of its own, symmetric outputs": (("gemm_ar", "beside"),),
    "waits between tiles of one stage": (("gemm_rs_ring", "ring"),),
    "pull": (("all_gather", "pull"),),
    "arithmetic after a product": (("ag_gemm_bias_gelu", "small"), ("ag_gemm_gated", "small")),
    "f32 sums": (("gemm_rs_f32", "copy_sms"),),
    "large tiles, eight warps": (("ag_gemm", "h200_few"),),
    "no product": (("all_reduce_two_shot_pushed", "small"), ("reduce_scatter", "copy_sms")),
}
"""What is reached -> the programs and schedules of the library by which it is."""

TRACED = (("ag_gemm", "copy_engine"), ("gemm_ar", "beside"))
"""Those that run once more as kernels that measure themselves."""

DIVIDED = (("ag_gemm_in_place", "copy_engine"), ("gemm_rs_local_last", "copy_engine"))
LONGER = (72, 136, 264, 80)
"""Those that compute their last tiles in parts, and sizes with enough steps for that."""

BY_BULK = (
    ("all_gather", "h200_bulk"), ("all_gather", "h200_bulk_pull"), ("gemm_rs_local_last", "h200_copy_sms"),
    ("ag_gemm_ring", "copy_sms"),
)  # fmt: skip
WHOLE = (128, 136, 104, 80)
"""Those that copy boxes, and sizes whose rows are whole tiles; the last boxes of a row reach beyond it."""

LIBRARY = (
    "check_integers", "check_relu_keeps_nan", "check_convert", "check_low_level",
    "check_wait_all", "check_boundaries", "check_counted_launches", "check_begun_copies",
    "check_push", "check_wrapped_counters",
)  # fmt: skip
"""Functions of `device_expected` that run the device library alone."""


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A case to run. descriptors: operands are loaded through descriptors, where the GPU has them; else by pointers.

    trace: launches are measured from inside the kernels.
    """

    label: str
    case: Case
    descriptors: bool = True
    trace: bool = False
    sizes: tuple[int, ...] = SIZES

    @property
    def point(self) -> Point:
        target = current_target()
        return point(
            self.case, dims_of(self.case[0], self.sizes), deadlines=(True,), trace=self.trace,
            target=replace(target, tma=target.tma and self.descriptors),
        )  # fmt: skip


def chosen() -> Iterator[Chosen]:
    for cases in CASES.values():
        for program_name, schedule_name in cases:
            module = compiler.load(program_name)
            program = module.program(program_name)
            case = (program, module.schedule(schedule_name, program))
            for descriptors in (True, False) if "dot(" in str(program) else (True,):
                label = f"{program_name} {schedule_name} by {'descriptors' if descriptors else 'pointers'}"
                yield Chosen(label=label, case=case, descriptors=descriptors)
            if (program_name, schedule_name) in TRACED:
                yield Chosen(label=f"{program_name} {schedule_name} measured", case=case, trace=True)
    for found, how, sizes in ((DIVIDED, "in parts", LONGER), (BY_BULK, "by bulk", WHOLE)):
        for program_name, schedule_name in found:
            module = compiler.load(program_name)
            program = module.program(program_name)
            case = (program, module.schedule(schedule_name, program))
            yield Chosen(label=f"{program_name} {schedule_name} {how}", case=case, sizes=sizes)


def run(one: Chosen, peers: list[tuple[int, int]]) -> str:
    """What became of a case on this rank. peers: takes the addresses of the peers' memory, from and up to."""
    checks = Checks()
    try:
        kernel = built(one.point, DEADLINE_S)
        peers += seen(kernel)
        known = trial(one.case, one.point.dims, LAUNCHES)
        dist.barrier(device_ids=[torch.cuda.current_device()])
        for launch in range(LAUNCHES):
            known.verify(launch, kernel(known.given(launch)), checks, f"launch {launch}")
    except DeadlineError as error:
        return f"late: {error.message}"
    except CaseError as error:
        return str(error)
    return "; ".join(checks.failures) or "good"


def seen(kernel: GpuKernel) -> list[tuple[int, int]]:
    """The addresses of what peers have mapped here for a kernel, from and up to."""
    heap: Any = kernel._memory.heap
    mapped = [(heap._bases, heap.memory.numel())]
    if kernel._tracer is not None:
        clocks: Any = kernel._tracer._clocks
        mapped.append((list(clocks._handle.buffer_ptrs), clocks._mail.numel() * clocks._mail.itemsize))
    own = dist.get_rank()
    return [(base, base + size) for bases, size in mapped for rank, base in enumerate(bases) if rank != own]


def library() -> dict[str, str]:
    """What became of the checks of the device library."""
    found: dict[str, str] = {}
    kinds = (torch.float32, torch.bfloat16)
    calls: list[tuple[str, Any]] = [(name, ()) for name in LIBRARY]
    calls += [(name, (kind,)) for name in ("check_elementwise", "check_product", "check_attention") for kind in kinds]
    for name, kind in calls:
        try:
            getattr(device_expected, name)("cuda", *kind)
            text = "good"
        except AssertionError as error:
            text = f"wrong: {error}"
        found[f"{name} {kind}"] = text
    return found


def main(folder: Path, limit_s: int) -> None:
    rank = join(limit_s)
    peers: list[tuple[int, int]] = []
    cases = list(chosen())
    prepare([one.point for one in cases])
    became = library()
    for one in cases:
        became[one.label] = run(one, peers)
        torch.cuda.synchronize()
        dist.barrier(device_ids=[rank])
        if rank == 0:
            print(f"{one.label}: {became[one.label]}", flush=True)
        _write(folder / f"said.{rank}.json", {"became": became, "peers": peers, "ended": False})
    _write(folder / f"said.{rank}.json", {"became": became, "peers": peers, "ended": True})


def _write(path: Path, said: dict[str, object]) -> None:
    path.write_text(json.dumps(said, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
    gc.collect()
    with contextlib.suppress(Exception):
        dist.destroy_process_group()  # the process ends in order, for then the sanitizer writes its report
