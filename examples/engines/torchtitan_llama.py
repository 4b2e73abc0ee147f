# pyright: basic, reportMissingImports=false
"""torchtitan trains a small LLaMA with tensor parallelism, by its own styles and by those of `tilelink.parallel`.

    pip install torchtitan==0.2.2 tilelink
    torchrun --nproc-per-node 2 examples/engines/torchtitan_llama.py --steps 40

torchtitan is taken as it is. Its `TrainSpec` names the function that makes a model parallel (`parallelize_fn`); this
one has the plan of `torchtitan.models.llama3` with styles imported from another package. All else, checkpoints,
activation checkpoints, torch.compile, clipping, the optimizer, is torchtitan's. For a run of one's own, a module that
calls `register` goes into `--experimental.custom_import`, and `--model.name llama3_tilelink` picks it.

The losses of both are compared with how far torchtitan's own are apart with and without torch.compile, which orders
sums in another way.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor import parallel as stock
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.config import JobConfig
from torchtitan.distributed.activation_checkpoint import apply_ac
from torchtitan.models import llama3
from torchtitan.models.llama3.infra.parallelize import apply_compile, apply_fsdp, parallelize_llama
from torchtitan.protocols.train_spec import register_train_spec
from torchtitan.train import Trainer

from tilelink import ops, parallel

VOCABULARY = 2048
SMALL = llama3.TransformerModelArgs(dim=1024, n_layers=4, n_heads=16, vocab_size=VOCABULARY, rope_theta=500000)
RUNS = (("llama3_stock", False), ("llama3_tilelink", False), ("llama3_stock", True), ("llama3_tilelink", True))
"""Registered names, and whether torch.compile compiles the layers."""


def plan(model: Any, mesh: Any, of: Any) -> None:
    """The plan of torchtitan.models.llama3, with the styles of a package: torch's or TileLink's."""
    stock.parallelize_module(model, mesh, {
        "tok_embeddings": of.RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": of.SequenceParallel(),
        "output": of.ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    })  # fmt: skip
    for block in model.layers.values():
        stock.parallelize_module(block, mesh, {
            "attention_norm": of.SequenceParallel(),
            "attention": of.PrepareModuleInput(
                input_layouts=(Shard(1), None, None, None), desired_input_layouts=(Replicate(), None, None, None)
            ),
            "attention.wq": of.ColwiseParallel(),
            "attention.wk": of.ColwiseParallel(),
            "attention.wv": of.ColwiseParallel(),
            "attention.wo": of.RowwiseParallel(output_layouts=Shard(1)),
            "ffn_norm": of.SequenceParallel(),
            "feed_forward": of.PrepareModuleInput(
                input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
            ),
            "feed_forward.w1": of.ColwiseParallel(),
            "feed_forward.w2": of.RowwiseParallel(output_layouts=Shard(1)),
            "feed_forward.w3": of.ColwiseParallel(),
        })  # fmt: skip


def parallelize(model: Any, parallel_dims: Any, job_config: JobConfig) -> Any:
    """As `parallelize_llama` of torchtitan, with other styles."""
    plan(model, parallel_dims.get_mesh("tp"), parallel)
    compiled = job_config.compile.enable and "model" in job_config.compile.components
    if job_config.activation_checkpoint.mode != "none":
        apply_ac(model, job_config.activation_checkpoint, model_compile_enabled=compiled)
    if compiled:
        apply_compile(model, job_config.compile)
    if parallel_dims.fsdp_enabled:
        names = ["dp_replicate", "fsdp"] if parallel_dims.dp_replicate_enabled else ["fsdp"]
        apply_fsdp(model, parallel_dims.get_mesh(names), torch.bfloat16, torch.float32, parallel_dims.pp_enabled)
    return model


class Sequences(BaseDataLoader):
    """Sequences that a model can learn: the next token is a function of this one, and now and then anything."""

    def __init__(self, job_config: JobConfig, dp_rank: int) -> None:
        self._shape = (job_config.training.local_batch_size, job_config.training.seq_len)
        self._chance = torch.Generator().manual_seed(dp_rank)

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        batch, length = self._shape
        while True:
            tokens = torch.empty(batch, length + 1, dtype=torch.int64)
            tokens[:, 0] = torch.randint(VOCABULARY, (batch,), generator=self._chance)
            other = torch.randint(VOCABULARY, (batch, length), generator=self._chance)
            jumps = torch.rand(batch, length, generator=self._chance) < 0.1
            for at in range(length):
                tokens[:, at + 1] = torch.where(jumps[:, at], other[:, at], (5 * tokens[:, at] + 7) % VOCABULARY)
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {"chance": self._chance.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._chance.set_state(state_dict["chance"])


class Losses(MetricsProcessor):
    """Keeps what is logged."""

    def log(self, step: int, global_avg_loss: float, *others: Any, **more: Any) -> None:
        self.losses = [*getattr(self, "losses", []), float(global_avg_loss)]


def register() -> None:
    """Make both models known to torchtitan."""
    spec = replace(
        llama3.get_train_spec(), model_args={"small": SMALL}, build_tokenizer_fn=None, state_dict_adapter=None,
        build_dataloader_fn=lambda job_config, dp_rank, **_: Sequences(job_config, dp_rank),
        build_metrics_processor_fn=lambda job_config, parallel_dims, _=None: Losses(job_config, parallel_dims),
    )  # fmt: skip
    register_train_spec("llama3_stock", replace(spec, parallelize_fn=parallelize_llama))
    register_train_spec("llama3_tilelink", replace(spec, parallelize_fn=parallelize))


def config(name: str, compiled: bool, steps: int) -> JobConfig:
    made = JobConfig()
    made.model.name, made.model.flavor = name, "small"
    made.training.steps, made.training.local_batch_size, made.training.seq_len = steps, 4, 2048
    made.parallelism.tensor_parallel_degree = dist.get_world_size() if dist.is_initialized() else 2
    made.lr_scheduler.warmup_steps, made.optimizer.lr, made.debug.seed = 5, 1e-3, 1
    made.metrics.log_freq, made.compile.enable = 1, compiled
    return made


def trained(name: str, compiled: bool, steps: int) -> tuple[list[float], list[str]]:
    """Return the losses of a run, and what `explain` says of a layer."""
    # torchtitan makes the process group. The next one must not read of the last one in the store of torchrun.
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
    trainer = Trainer(config(name, compiled, steps))
    try:
        trainer.train()
        processor: Any = trainer.metrics_processor
        said = parallel.explain(trainer.model_parts[0])
        return processor.losses, [line for line in said if "layers.0." in line or "layers" not in line]
    finally:
        trainer.close()
        ops.clear()
        dist.destroy_process_group()
        torch.compiler.reset()


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--runs", type=int, default=len(RUNS), help="so many of " + ", ".join(map(str, RUNS)))
    options.add_argument("--out", default="")
    given = options.parse_args()
    register()
    losses: dict[str, list[float]] = {}
    for name, compiled in RUNS[: max(3, given.runs)]:
        key = name + " compiled" * compiled
        losses[key], said = trained(name, compiled, given.steps)
        some = [round(loss, 4) for loss in losses[key][:: max(1, given.steps // 8)]]
        print(key, some, *said[:3], sep="\n  ", flush=True)

    def apart(one: str, other: str) -> float:
        return max(abs(a - b) for a, b in zip(losses[one], losses[other], strict=True))

    orders = apart("llama3_stock", "llama3_stock compiled")
    ours = {key: apart("llama3_stock", key) for key in losses if key.startswith("llama3_tilelink")}
    print(f"torchtitan's own two orders of sums: {orders:.2e}; TileLink's: {ours}", flush=True)
    if given.out:
        with open(given.out, "w") as file:
            json.dump({"losses": losses, "orders": orders, "apart": ours}, file, indent=1)
    learnt = losses["llama3_tilelink"][-1] < losses["llama3_tilelink"][0]
    return 0 if learnt and all(one <= 2 * orders for one in ours.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
