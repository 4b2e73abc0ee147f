# pyright: basic
"""What tests of the operators do on every GPU rank. Kernels are compiled ahead where an operator is told which one."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from tests.gpu.cases import point, prepare
from tests.gpu.lockstep import Checks, together
from tilelink import compiler, ops
from tilelink.tuning.prepare import Point

ALLOWED = 1e-2
HOST_US = 40.0
CALLS = 20  # one after the other, as the layers of a model make them
SIZES = ((512, 768, 640), (136, 200, 264))  # rows of a rank, N, K; the second is divided by no tile

Tensor = torch.Tensor


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, device="cuda").mul_(scale).to(dtype)


def near(result: Tensor, expected: Tensor, checks: Checks, note: str, allowed: float = ALLOWED) -> None:
    if result.shape != expected.shape:
        checks.expect(False, f"{note}: {list(result.shape)}, not {list(expected.shape)}")
        return
    # a rank without any token has gradients of nought
    error = float((result.detach().float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-9))
    checks.expect(error < allowed, f"{note} is off by {error:.2e}")


@dataclass(frozen=True, kw_only=True)
class Call:
    """An operator with its operands, and what may follow its product."""

    function: Callable[..., Tensor]
    operands: tuple[Tensor, ...]
    options: dict[str, Any] = field(default_factory=dict)
    sizes: tuple[int, int, int]

    def __call__(self, schedule: str | None) -> Tensor:
        return self.function(*self.operands, **self.options, schedule=schedule)

    def __str__(self) -> str:
        given = [value if isinstance(value, str) else name for name, value in self.options.items() if value is not None]
        words = [self.function.__name__, *given, str(self.sizes), str(self.operands[0].dtype)]
        return " ".join(words)


def every_call(dtype: torch.dtype, sizes: tuple[int, int, int]) -> list[Call]:
    """Each operator with what may follow its product."""
    rows, N, K = sizes
    short, long = random(rows, K, dtype=dtype), random(dist.get_world_size() * rows, K, dtype=dtype)
    w, u = random(N, K, dtype=dtype, scale=0.05), random(N, K, dtype=dtype, scale=0.05)
    bias = torch.linspace(-1, 1, N, device="cuda").to(dtype)

    def call(function: Callable[..., Tensor], *operands: Tensor, **options: Any) -> Call:
        return Call(function=function, operands=operands, options=options, sizes=sizes)

    found = [
        call(ops.ag_gemm, short, w, bias=b, activation=activation)
        for b in (None, bias)
        for activation in (None, "silu", "gelu")
    ]
    found.append(call(ops.ag_gemm_gated, short, w, u))
    found += [call(f, long, w, bias=b) for f in (ops.gemm_rs, ops.gemm_ar) for b in (None, bias)]
    found += [call(f, long, w, f32_sums=True) for f in (ops.gemm_rs, ops.gemm_ar)]
    found += [call(ops.all_gather, short), call(ops.reduce_scatter, long), call(ops.all_reduce, long)]
    return found


class _Asked(Exception):
    """An operator wants a kernel."""


def wanted(calls: Iterable[Callable[[], object]]) -> list[Point]:
    """The kernels that calls would compile, which they do not. Those that need none run: collective."""
    points: list[Point] = []

    def note(program: Any, schedule: Any, *, dims: Any, dtype: str, **_: Any) -> None:
        points.append(point((program, schedule), dims, dtype=dtype, deadlines=(False,)))
        raise _Asked

    with mock.patch.object(compiler, "compile", note):
        for one in calls:
            with contextlib.suppress(_Asked):
                one()
    return points


# Scenarios ---------------------------------------------------------------------------------------------------


def numerics() -> None:
    """Generated kernels against the unfused way, launches back to back, both dtypes, sizes even and uneven."""
    kinds = ((torch.bfloat16, SIZES[0]), (torch.bfloat16, SIZES[1]), (torch.float16, SIZES[1]))
    calls = [call for dtype, sizes in kinds for call in every_call(dtype, sizes)]
    prepare(wanted([lambda call=call: call("h200") for call in calls]))

    def body(call: Call, checks: Checks) -> None:
        expected = call("unfused")
        for launch, result in enumerate([call("h200") for _ in range(4)]):
            near(result, expected, checks, f"launch {launch}")

    together(calls, body, str)
    ops.clear()


def any_size() -> None:
    """Whatever the sizes, an operator works without being told how."""
    sizes = ((1, 1, 1), (3, 5, 7), (2049, 33, 65), (1024, 1000, 999))
    calls = [call for one in sizes for call in every_call(torch.bfloat16, one)]
    prepare(wanted([lambda call=call: call(None) for call in calls]))
    together(calls, lambda call, checks: near(call(None), call("unfused"), checks, "the own way"), str)
    ops.clear()

    def changing(name: str, checks: Checks) -> None:
        """Rows that change from call to call: after calls with those that have kernels, nothing is compiled."""
        function, w = getattr(ops, name), random(768, 512, scale=0.05)
        step = dist.get_world_size() if name == "gemm_rs" else 1
        there = ops.kernel_rows(name, 24 * step)
        x = random(there[-1], 512)
        for rows in there:
            function(x[:rows], w)
        with mock.patch.object(compiler, "compile", side_effect=AssertionError("a call compiles")):
            for rows in range(1, 25):
                for given in (x[: rows * step], x[: rows * step].clone()):
                    near(function(given, w), function(given, w, schedule="unfused"), checks, f"{rows} rows")

    together(("ag_gemm", "gemm_rs", "gemm_ar"), changing, str)
    ops.clear()


def gradients() -> None:
    """Gradients by generated kernels against the unfused way; sizes for which the operator chooses a kernel."""
    ranks = dist.get_world_size()
    rows, N, K = 4096 // ranks, 512, 384

    def body(name: str, checks: Checks) -> None:
        x = random(rows if name.startswith("ag") else rows * ranks, K)
        weights = [random(N, K, scale=0.05) for _ in range(2 if name.endswith("gated") else 1)]
        made: dict[str | None, list[Tensor]] = {}
        seed = None
        for way in (None, "unfused"):
            own = [t.clone().requires_grad_(True) for t in (x, *weights)]
            y = getattr(ops, name)(*own, schedule=way)
            seed = random(*y.shape) if seed is None else seed
            y.backward(seed)
            made[way] = [y.detach(), *(t.grad for t in own if t.grad is not None)]
        for at, (mine, expected) in enumerate(zip(made[None], made["unfused"], strict=True)):
            near(mine, expected, checks, f"number {at}")

    together(("ag_gemm", "ag_gemm_gated", "gemm_rs", "gemm_ar"), body, str)
    ops.clear()


def graphs() -> None:
    """A captured operator, replayed with changing inputs."""

    def body(_: str, checks: Checks) -> None:
        x, w = random(1024, 512), random(768, 512, scale=0.05)
        for _warm in range(3):
            ops.ag_gemm(x, w, schedule="h200")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y = ops.ag_gemm(x, w, schedule="h200")
        for replay in range(50):
            x.normal_()
            graph.replay()
            near(y.clone(), ops.ag_gemm(x, w, schedule="unfused"), checks, f"replay {replay}")

    together(("ag_gemm",), body, str)
    ops.clear()


def decoding() -> None:
    """Sums of few rows into given tensors, eagerly and captured, with what follows them and 8-bit floats."""

    def body(rows: int, checks: Checks) -> None:
        N, K = 4096, 512
        x, w, residual = random(rows, K), random(N, K, scale=0.05), random(rows, N)
        wide, norm = random(rows, N), random(N)
        w8, scale_b = w.mul(64).to(torch.float8_e4m3fn), torch.full((1, N), 1 / 64, device="cuda")
        scale_a = torch.rand(rows, 1, device="cuda") + 0.5
        total = {"residual": residual, "norm": norm, "eps": 0.1}

        def calls(schedule: str | None, out: bool) -> list[Tensor]:
            def into(count: int) -> dict[str, Any]:
                made = tuple(torch.empty(rows, N, dtype=x.dtype, device="cuda") for _ in range(count))
                return {"schedule": schedule} | ({"out": made if count > 1 else made[0]} if out else {})

            x8 = x.to(torch.float8_e4m3fn)
            found = [
                ops.all_reduce(wide, **into(1)), ops.all_reduce(wide, residual=residual, **into(1)),
                ops.all_reduce(wide, **total, **into(2)), ops.gemm_ar(x, w, **into(1)),
                ops.gemm_ar(x, w, **total, **into(2)), ops.gemm_ar(x8, w8, scale_a=scale_a, scale_b=scale_b, **into(1)),
                ops.gemm_ar(x8, w8, scale_a=scale_a, scale_b=scale_b, **total, **into(2)),
            ]  # fmt: skip
            return [one for each in found for one in (each if isinstance(each, tuple) else (each,))]

        def compare(made: list[Tensor], note: str) -> None:
            for at, (mine, expected) in enumerate(zip(made, calls("unfused", out=False), strict=True)):
                near(mine, expected, checks, f"{note}, result {at}")

        for out in (False, True):
            compare(calls(None, out), f"eagerly, out {out}")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            made = calls(None, out=True)
        for replay in range(20):
            x.normal_()
            wide.normal_()
            graph.replay()
            compare([one.clone() for one in made], f"replay {replay}")

    together((1, 3, 8, 16, 64, 256), body, lambda rows: f"{rows} rows")
    ops.clear(captured=True)


def batches() -> None:
    """Any number of rows that all ranks have alike, eagerly and in one graph, by one kernel."""
    room, ranks = 1024, dist.get_world_size()

    def body(case: tuple[str, str | None], checks: Checks) -> None:
        name, way = case
        function, w = getattr(ops, name), random(768, 512, scale=0.05)
        x = random(room * (ranks if name == "gemm_rs" else 1), 512)
        told = torch.full((), room, dtype=torch.int32, device="cuda")

        def there(y: torch.Tensor, rows: int) -> torch.Tensor:
            return (y.view(ranks, -1, 768) if name == "ag_gemm" else y)[..., :rows, :]

        function(x, w, rows=told, schedule=way)
        with mock.patch.object(compiler, "compile", side_effect=AssertionError("a call compiles")):
            for rows in (1, 77, 128, 500, room):
                expected = there(function(x, w, schedule="unfused"), rows)
                for launch in range(3):
                    near(function(x, w, rows=rows, schedule=way), expected, checks, f"{rows} rows, launch {launch}")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            y = function(x, w, rows=told, schedule=way)
        for replay in range(40):
            rows = (replay * 77) % room + 1
            x.normal_()
            told.fill_(rows)
            graph.replay()
            expected = there(function(x, w, schedule="unfused"), rows)
            near(there(y.clone(), rows), expected, checks, f"replay {replay} with {rows} rows")

    ways = (("ag_gemm", None), ("ag_gemm", "h200"), ("ag_gemm", "h200_roles"), ("gemm_rs", None), ("gemm_rs", "h200"))
    together(ways, body, lambda case: f"{case[0]} by {case[1]}")
    ops.clear()


def compiled() -> None:
    """torch.compile with its own code generator, in whole graphs."""

    def body(_: str, checks: Checks) -> None:
        ranks = dist.get_world_size()
        x, w, down = random(2048 // ranks, 512), random(768, 512, scale=0.05), random(512, 768, scale=0.05)

        def mlp(x: Tensor, w: Tensor, down: Tensor) -> Tensor:
            return ops.gemm_rs(torch.nn.functional.silu(ops.ag_gemm(x, w)), down) + x

        near(torch.compile(mlp, fullgraph=True)(x, w, down), mlp(x, w, down), checks, "the result")

    together(("an MLP",), body, str)
    ops.clear()


def host_cost() -> None:
    """Microseconds of the host for a warm call: of the fastest of 15 rows of calls, since other processes only add."""

    def body(name: str, checks: Checks) -> None:
        ranks = dist.get_world_size()
        operand, w = random(2048 // ranks if name == "ag_gemm" else 2048, 1024), random(1024, 1024)
        function, spent = getattr(ops, name), list[float]()
        for _ in range(20):
            torch.cuda.synchronize()
            dist.barrier(device_ids=[torch.cuda.current_device()])
            begin = time.perf_counter()
            for _ in range(CALLS):
                function(operand, w, schedule="h200")
            spent.append((time.perf_counter() - begin) / CALLS * 1e6)
        fastest, median = min(spent[5:]), statistics.median(spent[5:])
        print(f"rank {dist.get_rank()}: {name} takes {fastest:.1f} us of the host ({median:.1f})", flush=True)
        checks.expect(fastest < HOST_US, f"{fastest:.1f} us")

    together(("ag_gemm", "gemm_rs"), body, str)
    ops.clear()
