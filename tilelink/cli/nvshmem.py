"""Findings of `tilelink doctor` about NVSHMEM: its library, its bitcode, its transports, adapters and its heap.

Nothing is started here: that takes all ranks of a job.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tilelink.runtime.nvshmem.bitcode import ADVICE, find_bitcode, folders

ADAPTERS = Path("/sys/class/infiniband")
INSTALL = "only several nodes need it: pip install 'tilelink[nvshmem]'"
TRANSPORTS = {
    "ibrc": "InfiniBand and RoCE, by a thread of the host",
    "ibdevx": "InfiniBand and RoCE, by a thread of the host",
    "ibgda": "InfiniBand and RoCE, from the GPU",
    "gpunetio": "InfiniBand and RoCE, from the GPU",
    "libfabric": "Slingshot and EFA",
    "ucx": "what UCX has",
}
"""Transport of a wheel -> what it serves."""


@dataclass(frozen=True, kw_only=True)
class Component:
    """A component of NVSHMEM. good: True, False, or None if it is only missing. advice: the remedy."""

    name: str
    good: bool | None
    detail: str
    advice: str = ""


def parts(capability: int, variable: Callable[[str], str | None], adapters: Path = ADAPTERS) -> Iterator[Component]:
    """Yield what can be said without a job; if nothing is installed, only that.

    capability: of the GPU (90 for sm_90). variable: reads the environment.
    """
    package, places = _package(), list(folders())
    yield package
    if not package.good and not places:
        return
    yield _bitcode(capability, places)
    yield _transports(places, variable)
    yield _adapters(adapters, variable)
    yield _heap(variable)


def _package() -> Component:
    versions: list[str] = []
    for name in ("nvshmem4py-cu13", "nvidia-nvshmem-cu13", "nvshmem4py-cu12", "nvidia-nvshmem-cu12"):
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    there = _spec("nvshmem")
    if there and not _spec("cuda.core"):
        detail = f"{', '.join(versions) or 'nvshmem4py'} without cuda.core, by which kernels are loaded"
        return Component(name="NVSHMEM", good=False, detail=detail, advice=INSTALL)
    detail = ", ".join(versions) or ("nvshmem4py is there" if there else "nvshmem4py is not installed")
    return Component(name="NVSHMEM", good=True if there else None, detail=detail, advice="" if there else INSTALL)


def _spec(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _bitcode(capability: int, places: list[Path]) -> Component:
    found = find_bitcode(capability)
    if found is not None:
        detail = f"{found}, which kernels that reach other nodes are linked with (the first time takes up to a minute)"
        return Component(name="NVSHMEM bitcode", good=True, detail=detail)
    looked = ", ".join(map(str, places)) or "no folder: nvidia-nvshmem is not installed"
    return Component(name="NVSHMEM bitcode", good=None, detail=f"none for sm_{capability} in {looked}", advice=ADVICE)


def _transports(places: list[Path], variable: Callable[[str], str | None]) -> Component:
    pattern = re.compile(r"nvshmem_transport_(\w+)\.so")
    names = {m[1] for place in places for file in place.glob("nvshmem_transport_*") if (m := pattern.match(file.name))}
    chosen = variable("NVSHMEM_REMOTE_TRANSPORT")
    if not names:
        return Component(name="NVSHMEM transports", good=None, detail="none are installed", advice=INSTALL)
    detail = "; ".join(f"{name} ({TRANSPORTS.get(name, 'unknown')})" for name in sorted(names))
    if chosen == "none":
        advice = "unset NVSHMEM_REMOTE_TRANSPORT, or name one of them, to reach other nodes"
        return Component(name="NVSHMEM transports", good=None, detail=f"{detail}; switched off", advice=advice)
    if chosen is not None and chosen not in names:
        detail = f"NVSHMEM_REMOTE_TRANSPORT is {chosen}, and there are {', '.join(sorted(names))}"
        return Component(
            name="NVSHMEM transports", good=False, detail=detail, advice="name one that is there, or unset it"
        )
    detail += f"; {chosen} is chosen" if chosen else "; NVSHMEM takes the first that finds an adapter"
    return Component(name="NVSHMEM transports", good=True, detail=detail)


def _adapters(folder: Path, variable: Callable[[str], str | None]) -> Component:
    names = sorted(one.name for one in folder.iterdir()) if folder.is_dir() else []
    if names:
        return Component(name="network adapters", good=True, detail=", ".join(names))
    if variable("NVSHMEM_REMOTE_TRANSPORT") == "ucx":
        detail = "none with RDMA; UCX may use TCP, which shows that programs are right and nothing of their speed"
        return Component(name="network adapters", good=None, detail=detail)
    advice = "ranks of this machine alone need none; without one, NVSHMEM reaches no other machine but by UCX over TCP"
    return Component(name="network adapters", good=None, detail=f"none in {folder}", advice=advice)


def _heap(variable: Callable[[str], str | None]) -> Component:
    size, kind = variable("NVSHMEM_SYMMETRIC_SIZE"), variable("NVSHMEM_HEAP_KIND")
    detail = f"NVSHMEM_SYMMETRIC_SIZE is {size}" if size else "grows as programs need it"
    if kind:
        detail += f"; NVSHMEM_HEAP_KIND is {kind}" + (", memory of the host: slow" if kind == "SYSMEM" else "")
    advice = "the symmetric and local tensors of programs on several nodes are in it, with their buffers"
    return Component(name="NVSHMEM heap", good=None, detail=detail, advice=advice)
