# pyright: basic
"""vLLM's custom all-reduce as it runs in CUDA graphs, built by nvcc from its header, without vLLM.

The header is no part of this project: `custom_all_reduce.cuh` and what it includes lie in a directory that is given,
`csrc` of vLLM's source (0.33 was tried).
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

SOURCE = r"""
#include <algorithm>
#include <array>
#include <cstring>
#include "custom_all_reduce.cuh"

using Reduce = vllm::CustomAllreduce;

extern "C" {
Reduce* make(void** signals, void* rank_data, size_t bytes, int rank, int ranks) {
  return new Reduce((vllm::Signal**)signals, rank_data, bytes, rank, ranks);
}
size_t signal_bytes() { return sizeof(vllm::Signal); }
void reduce(Reduce* one, void* stream, void* in, void* out, int size) {
  one->allreduce((cudaStream_t)stream, (nv_bfloat16*)in, (nv_bfloat16*)out, size);
}
size_t captured(Reduce* one) { return one->graph_unreg_buffers_.size(); }
void handles_of(Reduce* one, char* handles, int64_t* offsets) {
  auto [bytes, places] = one->get_graph_buffer_ipc_meta();
  std::memcpy(handles, bytes.data(), bytes.size());
  std::copy(places.begin(), places.end(), offsets);
}
void register_captured(Reduce* one, const char* handles, const int64_t* offsets, size_t count, int ranks) {
  std::vector<std::string> all;
  std::vector<std::vector<int64_t>> places;
  for (int i = 0; i < ranks; ++i) {
    all.emplace_back(handles + i * count * sizeof(cudaIpcMemHandle_t), count * sizeof(cudaIpcMemHandle_t));
    places.emplace_back(offsets + i * count, offsets + (i + 1) * count);
  }
  one->register_graph_buffers(all, places);
}
}
"""
HANDLE_BYTES = 64  # of cudaIpcMemHandle_t
SCRATCH_BYTES, TABLE_BYTES = 8 << 20, 8 << 20  # vLLM's own sizes
Pointer = ctypes.c_void_p


def built(csrc: Path) -> ctypes.CDLL:
    """Compile the header of the directory `csrc` for sm_90 (some ten seconds) and load it."""
    folder = Path(tempfile.mkdtemp())
    (folder / "shim.cu").write_text(SOURCE)
    flags = ("-shared", "-O3", "-std=c++17", "-Xcompiler", "-fPIC", "-arch=sm_90", f"-I{csrc.resolve()}")
    subprocess.run(["nvcc", *flags, "shim.cu", "-o", "shim.so", "-lcuda"], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / "shim.so"))
    for name in ("make", "signal_bytes", "captured"):
        getattr(library, name).restype = Pointer if name == "make" else ctypes.c_size_t
    return library


class VllmAllReduce:
    """All-reduces of bf16 tensors of any sizes up to 8 MB, over all ranks. Collective: all ranks make one at a time.

    `__call__(y)` returns a new tensor. Only for calls that are captured: `registered` is called after every capture, by
    all ranks, and tells the peers where the tensors lie that the graph reads.
    """

    def __init__(self, csrc: Path) -> None:
        self._library, self.rank, self.ranks = built(csrc), dist.get_rank(), dist.get_world_size()
        device = torch.device("cuda", torch.cuda.current_device())
        size = self._library.signal_bytes() + SCRATCH_BYTES
        self._memory = symmetric.empty(size, dtype=torch.uint8, device=device).zero_()
        shared = symmetric.rendezvous(self._memory, dist.group.WORLD.group_name)  # type: ignore[union-attr]
        self._table = torch.empty(TABLE_BYTES, dtype=torch.uint8, device=device)
        signals = (Pointer * self.ranks)(*shared.buffer_ptrs)
        torch.cuda.synchronize()
        dist.barrier()
        self._reduce = Pointer(
            self._library.make(
                signals, Pointer(self._table.data_ptr()), ctypes.c_size_t(TABLE_BYTES), self.rank, self.ranks
            )
        )

    def __call__(self, y: torch.Tensor) -> torch.Tensor:
        if not torch.cuda.is_current_stream_capturing():
            dist.all_reduce(y)  # its kernels take only registered tensors; those of a graph are, after its capture
            return y
        out = torch.empty_like(y)
        stream = Pointer(torch.cuda.current_stream().cuda_stream)
        self._library.reduce(self._reduce, stream, Pointer(y.data_ptr()), Pointer(out.data_ptr()), y.numel())
        return out

    def registered(self) -> None:
        """Exchange the addresses of the tensors that were captured since the last call."""
        count = self._library.captured(self._reduce)
        handles, offsets = ctypes.create_string_buffer(count * HANDLE_BYTES), (ctypes.c_int64 * count)()
        self._library.handles_of(self._reduce, handles, offsets)
        every: list[Any] = [None] * self.ranks
        dist.all_gather_object(every, (handles.raw, list(offsets)))
        places = [place for _, one in every for place in one]
        self._library.register_captured(
            self._reduce, b"".join(raw for raw, _ in every), (ctypes.c_int64 * len(places))(*places),
            ctypes.c_size_t(count), self.ranks,
        )  # fmt: skip
