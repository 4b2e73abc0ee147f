# pyright: basic
"""Launches that hang on two GPUs, and their diagnosis: `torchrun --nproc-per-node 2 -m tests.gpu.hang FOLDER`.

Rank 0 does not make a launch, and a copy engine of rank 1 loses its flags. What ranks are told and what comes of their
dumps is printed; the exit status is 1 if the wrong root is named.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from tilelink import compiler, errors
from tilelink.backend import store
from tilelink.backend.emit import emit
from tilelink.compiler.artifact import artifact_of
from tilelink.compiler.postmortem import explain, report_of
from tilelink.runtime.cuda.device import current_target
from tilelink.runtime.cuda.kernel import GpuKernel
from tilelink.settings import override, variable

SECONDS = 1.0
DIMS = {"Ms": 1024, "N": 1024, "K": 1024}
CASES = {
    "a rank makes no launch": ("all_gather", "direct", {}, {"late", "not begun"}, 0),
    "a copy engine loses its flags": (
        "ag_gemm", "copy_engine", {"queue.notify(": "(max if rank == 1 else queue.notify)("}, {"lost", "late"}, 1,
    ),
}  # fmt: skip


def main(folder: Path) -> int:
    rank, wrong = dist.get_rank(), 0
    group = dist.group.WORLD
    assert group is not None
    for case, (name, schedule, edits, kinds, culprit) in CASES.items():
        program = compiler.load(name).program(name)
        dims = {p.name: DIMS[p.name] for p in program.params}
        target = current_target(group)
        plan = compiler.plan(program, schedule, ranks=2, dims=dims, dtype="bf16", target=target)
        emitted = emit(plan.bound, plan.thresholds)
        text = emitted.text
        for old, new in edits.items():
            text = text.replace(old, new)
        store.save(text)
        artifact = artifact_of(plan, replace(emitted, text=text), {})
        kernel = GpuKernel(artifact, group, SECONDS, partial(explain, plan=plan, tables={}, deadline_s=SECONDS))
        given = {
            t.name: torch.randn(t.shape, device="cuda").to(torch.bfloat16) for t in artifact.tensors if t.space == "in"
        }
        with override(dumps=folder / case.replace(" ", "_")):
            try:
                for launch in range(5):
                    if edits or rank or launch < 2:
                        kernel(given)
                print(f"rank {rank}: {case}: no error", flush=True)
            except errors.DeadlineError as error:
                print(f"rank {rank}: {case}: {error}", flush=True)
            dist.barrier(device_ids=[rank])
            try:
                kernel(given)
            except errors.DeadlineError as error:
                print(f"rank {rank}: {case}, then: {error}", flush=True)
            dist.barrier(device_ids=[rank])
            if rank == 0:
                report, _ = report_of([folder / case.replace(" ", "_")])
                root = report.root
                good = root is not None and root.kind in kinds and root.rank == culprit
                wrong += not good
                print(f"{'ok' if good else 'WRONG'}: {case}\n{report}", flush=True)
        dist.barrier(device_ids=[rank])
    return 1 if wrong else 0


if __name__ == "__main__":
    torch.cuda.set_device(int(variable("LOCAL_RANK") or 0))
    dist.init_process_group("nccl")
    status = main(Path(sys.argv[1]))
    dist.destroy_process_group()
    sys.exit(status)
