# pyright: basic
"""Expert-parallel layers of other libraries, called as their documents say; nothing of theirs is here.

A folder has their unpacked wheels: tt (torchtitan 0.3.0), lck, lk, tv15, nvshmem365 and cudart12 (liger-cute-kernels
and liger-kernel 0.8.5, apache-tvm-ffi 0.1.15, two shared libraries of nvidia-nvshmem-cu12 3.6.5 and
nvidia-cuda-runtime-cu12), dg015 and tv11 (sgl-deep-gemm 0.1.5, apache-tvm-ffi 0.1.11). They bring libraries of the same
names, so a process loads one of them, and before torch: `preload`.
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib
import logging
import site
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

Layer = Callable[[Any, Any, Any], Any]
"""Of x [M, H], ids [M, k] i32 and weights [M, k] f32: y [M, H]."""


def preload(name: str, folder: str) -> None:
    """What must be done before torch is imported."""
    if name == "liger_cute":
        sys.path[:0] = [f"{folder}/{one}" for one in ("lck", "lk", "tv15")]
        ctypes.CDLL(f"{folder}/nvshmem365/libnvshmem_host.so.3", mode=ctypes.RTLD_GLOBAL)  # not torch's own, older one
        ctypes.CDLL(f"{folder}/cudart12/libcudart.so.12")
    elif name == "deep_gemm_mega":
        sys.path[:0] = [f"{folder}/dg015", f"{folder}/tv11"]
    else:
        sys.path[:0] = [f"{folder}/tt"]


def in_blocks(w: Any) -> tuple[Any, Any]:
    """Return weights [E, N, K] in fp8, and their scales for 128 x 128 elements, [E, N / 128, K / 128] in f32."""
    import torch

    made, scales = torch.empty_like(w, dtype=torch.float8_e4m3fn), list[Any]()
    for one, out in zip(w, made, strict=True):  # one after the other, for f32 takes four times as much memory
        blocks = one.float().unflatten(1, (-1, 128)).unflatten(0, (-1, 128))
        scale = blocks.abs().amax((1, 3), keepdim=True).clamp(1e-4) / 448
        out.copy_((blocks / scale).to(out.dtype).flatten(2).flatten(0, 1))
        scales.append(scale[:, 0, :, 0])
    return made, torch.stack(scales)


def minimal_async_ep(folder: str, case: Any) -> Layer:
    """torchtitan's: kernels in stock Triton over symmetric memory, and torch's grouped products."""
    import torch

    def package(name: str, path: str = "") -> types.ModuleType:
        made = sys.modules[name] = types.ModuleType(name)
        made.__path__ = [path] if path else []
        return made

    if "torchtitan" not in sys.modules:  # their __init__ want the whole trainer
        package("torchtitan", f"{folder}/tt/torchtitan")
        package("torchtitan.distributed", f"{folder}/tt/torchtitan/distributed")
        package("torchtitan.tools")
        package("torchtitan.tools.logging").logger = logging.getLogger("torchtitan")  # type: ignore[attr-defined]
    import torchtitan.distributed.minimal_async_ep.api as api  # type: ignore[import-not-found]

    layer, ranks, most = case.layer, case.ranks, max(case.tokens)
    local = layer.experts // ranks
    api._buffer_key = api._buffer_state = None  # one buffer of the process, made anew for each case
    api.init_buffer(
        group=case.session.group, hidden_dim=layer.hidden, num_max_tokens_per_rank=most, num_local_experts=local,
        top_k=layer.chosen, dtype=torch.bfloat16, device=case.session.device,
    )  # fmt: skip
    room = ranks * most * min(layer.chosen, local)

    def run(x: Any, ids: Any, weights: Any) -> Any:
        counts = torch.zeros(layer.experts, dtype=torch.int64, device=x.device)
        counts.scatter_add_(0, ids.reshape(-1).long(), torch.ones_like(ids.reshape(-1), dtype=torch.int64))
        d = api.dispatch_op(x, ids.long(), counts, room, ranks)
        y = case.mlp(d[0], d[8].cumsum(0).to(torch.int32), d[5])
        return api.combine_op(y, d[1], d[2], d[3], d[4], d[5], d[7], d[6], weights.reshape(-1), len(x), layer.chosen)[0]

    return run


def liger_cute(folder: str, case: Any) -> Layer:
    """LigerCute: CUTLASS and NVSHMEM."""
    import liger_cute_kernels as kernels  # type: ignore[import-not-found]
    import torch
    from liger_cute_kernels import nvshmem, tvm_ffi  # type: ignore[import-not-found]

    layer = case.layer
    tvm_ffi._load_module()
    with contextlib.suppress(Exception):
        nvshmem.pool_clear_all()  # capacities of the case before
    kernels.configure(
        device=case.session.device,
        moe=kernels.MoEConfig(
            max_tokens=max(case.tokens), hidden_size=layer.hidden, num_experts=layer.experts, top_k=layer.chosen,
            num_hosts=1, gpus_per_host=case.ranks,
        ),
    )  # fmt: skip
    gate, up = (part.contiguous() for part in case.w13.chunk(2, 1))
    try:
        from liger_kernel.ops.cute.ops.moe import moe_fused  # type: ignore[import-not-found]
    except ImportError:  # it is Python around two calls

        def moe_fused(x: Any, ids: Any, w: Any, b: Any, c: Any, a: Any, experts: int, chosen: int, group: Any) -> Any:
            team = nvshmem.resolve_team(group, create=False)
            y = tvm_ffi.moe_fused_fwd_bf16(x, ids, w, b, c, a, experts, chosen, team)[0]
            tvm_ffi.moe_pop_fwd(team)
            return y

    def run(x: Any, ids: Any, weights: Any) -> Any:
        w = weights.to(torch.bfloat16)
        return moe_fused(x, ids, w, gate, up, case.w2, layer.experts, layer.chosen, case.session.group)

    return run


def deep_gemm(folder: str) -> Any:
    """Return the module, with the libraries that it is linked with."""
    import torch

    preload("deep_gemm_mega", folder)
    packages = (*site.getsitepackages(), str(Path(torch.__file__).parents[1]))
    roots = [*(f"{one}/nvidia/*/lib" for one in packages), "/usr/local/cuda*/lib64"]
    for name in ("libcudart.so.13", "libnvrtc.so.13", "libcublasLt.so.13", "libcublas.so.13"):
        for path in (name, *(file for root in roots for file in glob.glob(f"{root}/{name}"))):
            with contextlib.suppress(OSError):
                ctypes.CDLL(path)
                break
    return importlib.import_module("deep_gemm")


def deep_gemm_mega(folder: str, case: Any) -> Layer:
    """DeepGEMM's Mega MoE of SM90 in fp8, with the quantisation of its input. All ranks have as many tokens."""
    import torch

    library = deep_gemm(folder)
    layer, device, most = case.layer, case.session.device, max(case.tokens)
    w13, w2 = library.transform_weights_for_mega_moe_sm90(in_blocks(case.w13), in_blocks(case.w2))
    buffer = library.get_symm_buffer_for_sm90_mega_moe(
        case.session.group, layer.experts, most, layer.chosen, layer.hidden, layer.inner
    )
    y = torch.empty(most, layer.hidden, device=device, dtype=torch.bfloat16)

    def run(x: Any, ids: Any, weights: Any) -> Any:
        library.mega_moe_pre_dispatch_sm90(
            x, ids, weights, buffer.x, buffer.x_sf, buffer.topk_idx, buffer.topk_weights, len(x)
        )
        library.fp8_mega_moe(y, w13, w2, buffer)
        return y

    return run


LIBRARIES: dict[str, tuple[Callable[[str, Any], Layer], float]] = {
    "minimal_async_ep": (minimal_async_ep, 1e-2),
    "liger_cute": (liger_cute, 1e-2),
    "deep_gemm_mega": (deep_gemm_mega, 6e-2),
}
"""How a layer is made, and the largest error of a right result: one of them has products in fp8."""
