"""Settings from environment variables. No other module reads environment variables.

Settings select where files are stored, how long a wait may take and what runs the kernels. None changes a result.

===================  ========================================================  ====================
variable             meaning                                                   default
===================  ========================================================  ====================
TILELINK_CACHE       folder of generated sources and tuning results            XDG cache + tilelink
TILELINK_DEADLINE    seconds that a wait may take before the run is ended      the runtime's own
TILELINK_DUMP        folder for dumps of ranks whose launch hangs; 0: none       dumps in the cache
TILELINK_PROOFS      0: each program is proved anew                            1
TILELINK_CHECK       1: launches on GPUs check index tensors, and their order    0
TILELINK_NVSHMEM     folder of NVSHMEM's device library, for several nodes     that of its wheel
TILELINK_NODE_RANKS  ranks of a node, for operators                            those of a host
TRITON_INTERPRET     1: Triton interprets kernels on the CPU                   0
===================  ========================================================  ====================
"""

import math
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tilelink.errors import SettingsError

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a process.

    cache: folder of generated sources and tuning results; it is created at the first write.
    deadline: seconds that a wait may take before the run is ended; None for the default of the runtime.
    dumps: folder for what ranks know of a launch that hangs; None to write nothing.
    nvshmem: folder that has NVSHMEM's device library, or its `lib`; None for that of the wheel.
    node_ranks: ranks of a node in groups of operators; None: those of a host.
    proofs: a program that was proved safe before is not proved again.
    interpret: Triton interprets kernels on the CPU instead of compiling them.
    check: each launch on GPUs checks what its index tensors promise, for which the host waits; CPU ranks always do.
        Ranks compare what they launch, for which their GPUs wait.
    """

    cache: Path
    deadline: float | None = None
    interpret: bool = False
    check: bool = False
    nvshmem: Path | None = None
    dumps: Path | None = None
    node_ranks: int | None = None
    proofs: bool = True

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> "Settings":
        """Return the settings in `variables`, by default the process environment.

        Raises SettingsError if a variable has an invalid value.
        """
        variables = os.environ if variables is None else variables
        cache = _cache_folder(variables)
        return cls(
            cache=cache,
            deadline=_seconds(variables, "TILELINK_DEADLINE"),
            nvshmem=Path(chosen) if (chosen := variables.get("TILELINK_NVSHMEM")) else None,
            dumps=_dump_folder(variables, cache),
            node_ranks=_count(variables, "TILELINK_NODE_RANKS"),
            interpret=_flag(variables, "TRITON_INTERPRET"),
            check=_flag(variables, "TILELINK_CHECK"),
            proofs=_flag(variables, "TILELINK_PROOFS", "1"),
        )


_current: Settings | None = None


def settings() -> Settings:
    """Return the settings of this process, read from the environment at the first call.

    Raises SettingsError if a variable has an invalid value.
    """
    global _current
    if _current is None:
        _current = Settings.from_environment()
    return _current


@contextmanager
def override(**changes: object) -> Generator[Settings]:
    """Replace fields of the settings inside the block, only in this process: `with override(deadline=2.0): ...`.

    Raises SettingsError if a name is not a field.
    """
    global _current
    before = settings()
    unknown = sorted(changes.keys() - before.__dataclass_fields__.keys())
    if unknown:
        known = ", ".join(before.__dataclass_fields__)
        raise SettingsError(f"no such setting: {', '.join(unknown)}", hint=f"the settings are {known}")
    _current = replace(before, **changes)
    try:
        yield _current
    finally:
        _current = before


@contextmanager
def environment(**variables: str | None) -> Generator[None]:
    """Set environment variables (None unsets one) inside the block, for the processes started there.

    Inside the block, the settings of this process are read anew; after it, the previous ones are restored.
    """
    global _current
    before = {name: os.environ.get(name) for name in variables}
    saved = _current
    _apply(variables)
    _current = None
    try:
        yield
    finally:
        _apply(before)
        _current = saved


def variable(name: str) -> str | None:
    """Return a variable that is set from outside, for example by the launcher of a rank, or None."""
    return os.environ.get(name)


def variables() -> dict[str, str]:
    """Return all environment variables of this process, to pass to another process."""
    return dict(os.environ)


def adopt(variables: Mapping[str, str]) -> None:
    """Replace all environment variables of this process; the settings are read again."""
    global _current
    os.environ.clear()
    os.environ.update(variables)
    _current = None


def _apply(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _cache_folder(variables: Mapping[str, str]) -> Path:
    if chosen := variables.get("TILELINK_CACHE"):
        try:
            return Path(chosen).expanduser().absolute()
        except RuntimeError as error:
            hint = "write the folder in full"
            raise SettingsError(f"TILELINK_CACHE is {chosen!r}, and there is no such user", hint=hint) from error
    # The XDG base directory specification says that a relative path is to be ignored.
    base = Path(variables.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "tilelink"
    except RuntimeError as error:
        raise SettingsError("this user has no home folder, hence no cache", hint="set TILELINK_CACHE") from error


def _dump_folder(variables: Mapping[str, str], cache: Path) -> Path | None:
    chosen = variables.get("TILELINK_DUMP", "").strip()
    if not chosen:
        return cache / "dumps"
    return None if chosen.lower() in _FALSE else Path(chosen).absolute()


def _seconds(variables: Mapping[str, str], name: str) -> float | None:
    text = variables.get(name, "").strip()
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        hint = f"write a positive number, as in {name}=30, or unset it for the runtime's own deadline"
        raise SettingsError(f"{name} is {text!r}, which is not a number of seconds", hint=hint)
    return seconds


def _count(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "").strip()
    if not text:
        return None
    if not (text.isdecimal() and int(text)):
        raise SettingsError(f"{name} is {text!r}, which is not a number of ranks", hint=f"write {name}=8, or unset it")
    return int(text)


def _flag(variables: Mapping[str, str], name: str, default: str = "") -> bool:
    text = variables.get(name, default).strip().lower()
    if text in _TRUE | _FALSE:
        return text in _TRUE
    raise SettingsError(f"{name} is {text!r}, which is neither on nor off", hint=f"write {name}=1 or {name}=0")
