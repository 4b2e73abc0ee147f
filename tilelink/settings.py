"""What the environment says about how TileLink behaves: the one place where environment variables are read.

Settings change where files go, how long a wait may take and what runs the kernels; none changes a result.

=================  ========================================================  ====================
variable           meaning                                                   default
=================  ========================================================  ====================
TILELINK_CACHE     folder of generated sources and tuning results            XDG cache + tilelink
TILELINK_DEADLINE  seconds that a wait may take before the run is ended      the runtime's own
TRITON_INTERPRET   1: Triton interprets kernels on the CPU                   0
=================  ========================================================  ====================
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
    """How TileLink behaves on this machine.

    cache: folder of generated sources and tuning results; it is created when first written to.
    deadline: seconds that one wait may take before it ends the run; None leaves it to the runtime.
    interpret: Triton interprets kernels on the CPU instead of compiling them.
    """

    cache: Path
    deadline: float | None = None
    interpret: bool = False

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> "Settings":
        """Reads `variables` (default: the process environment).

        Raises SettingsError for a value that has no meaning.
        """
        variables = os.environ if variables is None else variables
        return cls(
            cache=_cache_folder(variables),
            deadline=_seconds(variables, "TILELINK_DEADLINE"),
            interpret=_flag(variables, "TRITON_INTERPRET"),
        )


_current: Settings | None = None


def settings() -> Settings:
    """The settings of this process, read from the environment at the first call.

    Raises SettingsError for a variable whose value has no meaning.
    """
    global _current
    if _current is None:
        _current = Settings.from_environment()
    return _current


@contextmanager
def override(**changes: object) -> Generator[Settings]:
    """Replaces fields of the settings inside the block, in this process alone: `with override(deadline=2.0): ...`.

    Raises SettingsError for a name that is not a field.
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
    """Sets environment variables (None: unsets) inside the block, for the processes that are started there.

    The settings of this process are read again at the block's start and at its end.
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
    """A variable that others have set for this process, such as the launcher of its rank."""
    return os.environ.get(name)


def variables() -> dict[str, str]:
    """All variables of this process, for one that is to go on like it."""
    return dict(os.environ)


def adopt(variables: Mapping[str, str]) -> None:
    """Makes these the variables of this process, and no others; the settings are read again."""
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
    # An XDG path that is not absolute is to be ignored, says the XDG base directory specification.
    base = Path(variables.get("XDG_CACHE_HOME", ""))
    try:
        return (base if base.is_absolute() else Path.home() / ".cache") / "tilelink"
    except RuntimeError as error:
        raise SettingsError("this user has no home folder, hence no cache", hint="set TILELINK_CACHE") from error


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


def _flag(variables: Mapping[str, str], name: str) -> bool:
    text = variables.get(name, "").strip().lower()
    if text in _TRUE | _FALSE:
        return text in _TRUE
    raise SettingsError(f"{name} is {text!r}, which is neither on nor off", hint=f"write {name}=1 or {name}=0")
