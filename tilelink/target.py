"""Targets: the processors, one per rank, that kernels are planned and compiled for."""

from dataclasses import dataclass
from typing import Literal

from tilelink.errors import UnknownTargetError

KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Target:
    """The properties of a rank's processor that planning and code generation use.

    name: the name of the architecture in Triton and its compilers ("sm_90"), or "cpu".
    sms: number of streaming multiprocessors (compute units).
    programs_per_sm: number of programs guaranteed to be resident on an SM at the same time.
    shared_memory: bytes of shared memory available to a program.
    tma: the processor has a tensor memory accelerator (bulk copies through descriptors).
    warp_size: threads per warp.
    max_programs: maximum number of programs of a kernel without SMs of its own, or None.
    grows: each program is a process, so a rank has room for as many as a schedule takes.
    """

    name: str
    kind: Literal["cpu", "cuda", "hip"]
    sms: int
    programs_per_sm: int = 1
    shared_memory: int
    tma: bool = False
    warp_size: int = 32
    max_programs: int | None = None
    grows: bool = False

    @property
    def resident_programs(self) -> int:
        """The number of programs of a rank that are resident at the same time, over all of its kernels."""
        return self.sms * self.programs_per_sm

    @property
    def architecture(self) -> int | str:
        """The `arch` of Triton's GPUTarget: 90 for sm_90, "gfx942" for gfx942, 0 for the CPU."""
        match self.kind:
            case "cpu":
                return 0
            case "cuda":
                return int(self.name.removeprefix("sm_"))
            case "hip":
                return self.name

    def __str__(self) -> str:
        return self.name


# On the CPU each resident program is an operating system process, so kernels stay small unless a schedule asks for
# more. The interpreter keeps tiles in ordinary memory, so its shared memory is a bound that no sensible tile exceeds.
CPU = Target(name="cpu", kind="cpu", sms=4, shared_memory=1024 * KIB, warp_size=1, max_programs=2, grows=True)
A100 = Target(name="sm_80", kind="cuda", sms=108, shared_memory=163 * KIB)
L40 = Target(name="sm_89", kind="cuda", sms=142, shared_memory=99 * KIB)
H200 = Target(name="sm_90", kind="cuda", sms=132, shared_memory=227 * KIB, tma=True)
MI300X = Target(name="gfx942", kind="hip", sms=304, shared_memory=64 * KIB, warp_size=64)

TARGETS: tuple[Target, ...] = (CPU, A100, L40, H200, MI300X)


def target(name: str) -> Target:
    """Return the target of a name. Raises UnknownTargetError, which lists the targets, if there is none."""
    for candidate in TARGETS:
        if candidate.name == name:
            return candidate
    known = ", ".join(candidate.name for candidate in TARGETS)
    raise UnknownTargetError(f"there is no target {name!r}", hint=f"the targets are {known}")
