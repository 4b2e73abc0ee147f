"""The store of generated modules: files named by their content, written whole or not at all, loaded as real files."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import sys
from pathlib import Path
from types import ModuleType

from tilelink.errors import EmitError, SettingsError
from tilelink.settings import settings


def digest(text: str) -> str:
    """The name that a module's text has in the store."""
    return hashlib.sha256(text.encode()).hexdigest()


def _name(text: str) -> str:
    return f"tilelink_{digest(text)[:32]}"


def save(text: str) -> Path:
    """Write a module into the cache folder; many ranks and users may do so at once. Returns its file.

    Raises SettingsError for a folder that cannot be written.
    """
    folder = settings().cache / "sources"
    path = folder / f"{_name(text)}.py"
    if not _intact(path, text):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _replace(path, text)
        except OSError as error:
            hint = "set TILELINK_CACHE to a folder that can be written"
            raise SettingsError(f"the cache folder cannot be written: {error}", hint=hint) from error
    return path


def _replace(path: Path, text: str) -> None:
    # No mkstemp: others who share the folder are to read what they find there, as the umask lets them.
    temporary = path.with_name(f"{path.stem}_{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("x", encoding="utf-8") as file:
            file.write(text)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _intact(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="utf-8") == text
    except (OSError, UnicodeDecodeError):
        return False


def load(path: Path) -> ModuleType:
    """Import a stored module from its file. Raises EmitError for a file that is not what its name says."""
    name = path.stem
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EmitError(f"cannot read {path}: {error}", hint="compile again") from error
    if name != _name(text):
        raise EmitError(f"{path} was changed after it was generated", hint="remove it and compile again")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise EmitError(f"{path} is not a Python file", hint="remove the cache folder and compile again")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
