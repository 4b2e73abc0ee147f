"""`tilelink doctor`: report the parts of this machine that TileLink can use, with advice on the rest."""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import permutations

import typer

from tilelink import compiler
from tilelink.cli import gpus, nvshmem
from tilelink.cli.options import AsJson, write
from tilelink.cli.probe import PROBE
from tilelink.errors import TileLinkError
from tilelink.settings import variable

PACKAGES = ("torch", "triton", "numpy", "lark", "jinja2")
PROBE_DEADLINE_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The result of one check. good: True, False, or None if the thing is only missing. advice: the remedy."""

    name: str
    good: bool | None
    detail: str
    advice: str = ""


def doctor(as_json: AsJson = False) -> None:
    """Check which parts of this machine can be used, and give advice on the rest."""
    if not report(write, as_json=as_json):
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """Yield the results of all checks, in the order of dependence.

    If a package is missing, only the packages are checked, since nothing runs without them. Checks that need GPUs are
    left out if there are none.
    """
    packages = list(_packages())
    yield from packages
    if not all(one.good for one in packages):
        return
    yield from _interpreter()
    yield _cpu_ranks()
    gpus = list(_gpus())
    yield from gpus
    count = sum(1 for one in gpus if one.good)
    if count:
        yield from _links(count)
        yield _multicast()
    yield from _nvshmem()
    if count > 1:
        yield from _pairs(count)


def report(write: Callable[[str], None], *, as_json: bool) -> bool:
    """Write each finding as soon as it is known, or all as JSON at the end. Return True if no check failed."""
    findings: list[Finding] = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            mark = {True: "works", False: "FAILS", None: "-"}[finding.good]
            lines = [f"{mark:5}  {finding.name}: {finding.detail}", *([finding.advice] if finding.advice else [])]
            write("\n         ".join(lines))
    if as_json:
        write(json.dumps([asdict(finding) for finding in findings], indent=2))
    return not any(finding.good is False for finding in findings)


def _packages() -> Iterator[Finding]:
    yield Finding(name="Python", good=True, detail=platform.python_version())
    for name in PACKAGES:
        try:
            yield Finding(name=name, good=True, detail=importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            yield Finding(name=name, good=False, detail="is not installed", advice=f"pip install {name}")


def _interpreter() -> Iterator[Finding]:
    numpy = importlib.metadata.version("numpy").split(".")
    if (int(numpy[0]), int(numpy[1])) >= (2, 4):
        advice = 'pip install "numpy<2.4" to run CPU ranks; GPUs do not need it'
        detail = "Triton's interpreter does not work with NumPy 2.4 and later"
        yield Finding(name="numpy for the interpreter", good=None, detail=detail, advice=advice)


def _cpu_ranks() -> Finding:
    """Run a small program on two CPU ranks."""
    from tilelink.reference import trial

    module = compiler.parse(PROBE, "<probe>")
    program = module.program()
    dims = {"M": 1000, "d": 1}
    try:
        kernel = compiler.compile(program, module.schedules[0], ranks=2, dims=dims)
        inputs = trial.random_inputs(program, ranks=2, dims=dims, dtype="f32", launches=1)[0]
        outputs = kernel.run([inputs], deadline_s=PROBE_DEADLINE_S).outputs[0]
    except TileLinkError as error:
        return Finding(name="CPU ranks", good=False, detail=str(error).splitlines()[0], advice=error.hint or "")
    right = all(bool((outputs[r]["y"] == inputs[1 - r]["x"]).all()) for r in range(2))
    return Finding(name="CPU ranks", good=right, detail="two ranks exchanged data" if right else "gave wrong data")


def _gpus() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        advice = "programs run on CPU ranks; for GPUs install a driver and a CUDA build of torch"
        yield Finding(name="GPUs", good=None, detail="there is none", advice=advice)
        return
    for number in range(torch.cuda.device_count()):
        found = torch.cuda.get_device_properties(number)
        capability = f"sm_{found.major}{found.minor}"
        detail = f"{found.name}, {capability}, {found.multi_processor_count} SMs, {found.total_memory / 2**30:.0f} GiB"
        known = found.major >= 8
        advice = "" if known else "generated kernels need sm_80 or later"
        yield Finding(name=f"GPU {number}", good=known, detail=detail, advice=advice)


def _links(count: int) -> Iterator[Finding]:
    import torch

    apart = [(a, b) for a, b in permutations(range(count), 2) if not torch.cuda.can_device_access_peer(a, b)]
    if apart:
        detail = ", ".join(f"{a} cannot reach {b}" for a, b in apart)
        advice = "ranks on these GPUs cannot share memory: look at ACS and IOMMU settings, or use fewer GPUs"
        yield Finding(name="peer access", good=False, detail=detail, advice=advice)
    elif count > 1:
        yield Finding(name="peer access", good=True, detail=f"each of {count} GPUs reaches every other")
    if (tool := shutil.which("nvidia-smi")) and count > 1:
        try:
            text = subprocess.run([tool, "topo", "-m"], capture_output=True, text=True, check=False, timeout=30).stdout
        except subprocess.TimeoutExpired:
            advice = "see whether `nvidia-smi` alone answers; if not, the driver or a GPU needs a restart"
            yield Finding(name="links", good=None, detail="nvidia-smi topo -m did not answer in 30 s", advice=advice)
            return
        kinds = sorted({w for line in text.splitlines() if line.lstrip().startswith("GPU") for w in line.split()
                        if w.startswith(("NV", "PIX", "PXB", "PHB", "NODE", "SYS")) and w[2:3] != "I"})  # fmt: skip
        yield Finding(name="links", good=True, detail=", ".join(kinds) or "unknown")


def _multicast() -> Finding:
    off = variable("TORCH_SYMM_MEM_DISABLE_MULTICAST") == "1"
    return Finding(name="NVLink multicast", good=None, detail="switched off" if off else "not used")


def _nvshmem() -> Iterator[Finding]:
    """Yield what there is of NVSHMEM, which several nodes need. Without a GPU, for the processor of an H100."""
    import torch

    capability = 90
    if torch.cuda.is_available():
        found = torch.cuda.get_device_properties(0)
        capability = 10 * found.major + found.minor
    for part in nvshmem.parts(capability, variable):
        yield Finding(name=part.name, good=part.good, detail=part.detail, advice=part.advice)


def _pairs(count: int) -> Iterator[Finding]:
    """Check symmetric memory, and a signal with 1 MiB between every pair of GPUs."""
    try:
        answer = gpus.on_gpus({"what": "probe", "deadline": PROBE_DEADLINE_S}, count, PROBE_DEADLINE_S)
    except TileLinkError as error:
        advice = "is another program using these GPUs? Try CUDA_VISIBLE_DEVICES with fewer of them"
        yield Finding(name="symmetric memory", good=False, detail=str(error), advice=advice)
        return
    yield Finding(name="symmetric memory", good=True, detail=f"{count} ranks met")
    for by in sorted({str(pair["by"]) for pair in answer["pairs"]}):
        pairs = [pair for pair in answer["pairs"] if pair["by"] == by]
        wrong = [f"{pair['from']} -> {pair['to']}" for pair in pairs if not pair["right"]]
        times = sorted(pair["us"] for pair in pairs)
        detail = f"{len(pairs)} pairs, 1 MiB each, {times[0]:.0f} to {times[-1]:.0f} us with launch and check"
        name = {"copy_engine": "copies by copy engine", "sm": "copies by programs"}[by]
        if wrong:
            yield Finding(name=name, good=False, detail=f"wrong data: {', '.join(wrong)}", advice="report this")
        else:
            yield Finding(name=name, good=True, detail=detail)
