# pyright: basic
"""Kernels of a product with an all-reduce for the many batch sizes of a server: what getting them ready costs.

    python benchmarks/many_sizes.py                                            # without a GPU: each kernel's cost
    torchrun --nproc-per-node 2 benchmarks/many_sizes.py --out many_sizes.json # beside kernels of exact sizes

Without a GPU it prints, for each kernel that calls with 1 to 256 rows take, seconds of planning and of compiling for
sm_90, and the symmetric memory that a rank holds for it. On GPUs it compares kernels that have room for several numbers
of rows with kernels of just as many: chains in CUDA graphs, with weights of their own (400 MB in all).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from benchmarks import cases
from benchmarks.decode import FILE, WEIGHT_BYTES, graphed, nccl
from benchmarks.measure import Session, Variant
from tilelink import compiler
from tilelink.compiler import library_module

SHAPES = ((4096, 2048), (4096, 7168))
"""Columns and contracted elements of a product."""
SIZES = (1, 2, 4, *range(8, 257, 8))
"""Batch sizes that a server captures."""
COMPARED = (
    (8, "h200_words_32x32", 32), (32, "h200_words_32x32", 32), (40, "h200_64x32", 64), (64, "h200_64x32", 64),
    (144, "h200_128x64", 256), (200, "h200_128x64", 256), (256, "h200_128x64", 256),
)  # fmt: skip
"""Rows, the schedule that they take, and the room of the kernel that serves others too."""


def kernels() -> Iterator[cases.Kernel]:
    """Yield the kernels that are compared, to be compiled beforehand."""
    for N, K in SHAPES:
        for M, schedule, room in COMPARED:
            yield "gemm_ar_one_shot", schedule, {"M": M, "N": N, "K": K}
            yield "gemm_ar_batch", schedule, {"M": room, "N": N, "K": K}


def kernel_of(program: str, schedule: str, dims: dict[str, int]) -> Any:
    module = library_module(program)
    found = module.program(program)
    return compiler.compile(found, module.schedule(schedule, found), dims=dims, dtype="bf16", device="cuda")


def steps(
    M: int, N: int, K: int, schedule: str, room: int, device: torch.device
) -> dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]:
    """Return the ways of a step: a kernel of as many rows, and one with room for more."""
    exact = kernel_of("gemm_ar_one_shot", schedule, {"M": M, "N": N, "K": K})
    roomy = kernel_of("gemm_ar_batch", schedule, {"M": room, "N": N, "K": K})
    count = torch.tensor([M, 0, 0, 0], dtype=torch.int32, device=device)[0]

    def counted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return roomy({"m": count, "x": x.as_strided((room, K), (K, 1)), "w": w})["y"][:M]

    return {"exact": lambda x, w: exact({"x": x, "w": w})["y"], f"room for {room}": counted, "NCCL": nccl}


def variants(
    session: Session, M: int, N: int, K: int, schedule: str, room: int
) -> Iterator[tuple[str, Callable[[], Variant]]]:
    like: dict[str, Any] = {"device": session.device, "dtype": torch.bfloat16}
    weights = [torch.randn(N, K, **like) * (2 * K) ** -0.5 for _ in range(max(8, -(-WEIGHT_BYTES // (2 * N * K))))]
    x = torch.randn(room, K, **like)[:M]

    def built(name: str, step: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Variant:
        replay, made = graphed(session, lambda: [step(x, w) for w in weights][-1])
        return Variant(
            name=name, kind="pair" if name == "NCCL" else "ours", outputs=(made,),
            run=lambda: (replay(), made, step)[1],  # the step owns memory that the graph writes to
            notes={"steps": len(weights)}, expected=lambda: nccl(x, weights[-1]),
        )  # fmt: skip

    for name, step in steps(M, N, K, schedule, room, session.device).items():
        yield name, lambda name=name, step=step: built(name, step)


def compared(args: Any) -> None:
    run = cases.Run("many_sizes", FILE, args, lambda _: list(kernels()))
    for N, K in SHAPES:
        for M, schedule, room in COMPARED:
            name = f"{M} x {N} x {K}"
            run.session.watchdog.context(name)
            begin = time.perf_counter()
            session, ways = run.session, variants(run.session, M, N, K, schedule, room)
            built = [session.build(label, "ours", builder) for label, builder in ways]
            timed = [one for one in built if isinstance(one, Variant)]
            rows = session.time(timed, lambda: None, samples=args.samples, warmups=args.warmups)
            for row in rows:
                row["step_us"] = None if row["us"] is None else row["us"] / row["steps"]
            rows += [one for one in built if not isinstance(one, Variant)]
            said = ", ".join(
                f"{row['name']} {row['step_us']:.2f}" if row.get("step_us") else f"{row['name']}: {row['failure']}"
                for row in rows
            )
            run.add({"name": name, "rows": rows}, [f"{name} ({schedule}, {time.perf_counter() - begin:.1f} s): {said}"])
    run.end()


def main() -> int:
    parser = cases.parser(__doc__, samples=20)
    args = parser.parse_args()
    if args.dry:
        return 0
    compared(args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
