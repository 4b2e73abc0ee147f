# pyright: basic
"""Scenarios of launch-time integers, run by every rank: one kernel, and other counts, lengths and places per launch."""

from __future__ import annotations

import torch.distributed as dist

from tests.gpu.lockstep import Checks, together
from tests.launch_programs import Example, Tensors, examples, replicated, wrong
from tilelink import compiler

ROUNDS = 3
TOLERANCE = 2e-2
"""Of numbers about 1: Triton computes products of f32 tiles in tf32."""


def launch_integers() -> None:
    """Every program, with two schedules, is right for every kind of routing, with one kernel."""
    cases = [(example, number) for example in examples().values() for number in (0, 1)]
    together(cases, _check, lambda case: f"{case[0].program.name}, schedule {case[1]}")


def _check(case: tuple[Example, int], checks: Checks) -> None:
    example, number = case
    ranks, rank = dist.get_world_size(), dist.get_rank()
    kernel = compiler.compile(example.program, example.schedules[number], dims=example.sizes, device="cuda")
    for kind in example.kinds * ROUNDS:
        inputs = example.inputs(kind, example.sizes, ranks)
        every: list[Tensors] = [{} for _ in range(ranks)]
        dist.all_gather_object(every, inputs)
        every = replicated(example.program, every)
        inputs = every[rank]
        outputs = kernel({name: tensor.cuda() for name, tensor in inputs.items()})
        found = {name: tensor.cpu() for name, tensor in outputs.items()}
        for output in wrong(found, example.expected(every, rank, example.sizes), atol=TOLERANCE):
            checks.expect(False, f"{kind}: {output} is wrong")
