"""The store of generated modules: files named by their content, written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from tilelink import files, generated
from tilelink.errors import EmitError, SettingsError


def save(text: str) -> Path:
    """Write a module into the cache folder; many ranks and users may do so at once. Returns its file.

    Raises SettingsError for a folder that cannot be written.
    """
    path = generated.file_of(generated.stem(text))
    if not intact(path):
        try:
            files.make_folder(path.parent)
            files.replace(path, text.encode())  # others who share the folder may read it, as the umask lets them
        except OSError as error:
            hint = "set TILELINK_CACHE to a folder that can be written"
            if what := files.kind(path):
                hint = f"remove {path}: it is {what} in the place of a generated source"
            message = f"the cache folder cannot be written: {path.parent}: {files.reason(error)}"
            raise SettingsError(message, hint=hint) from error
    return path


def intact(path: Path) -> bool:
    """True if a file of the store is there and is what its name says, whoever wrote it."""
    try:
        generated.read_module(path)
        return True
    except EmitError:
        return False


def load(path: Path) -> ModuleType:
    """A stored module. Raises EmitError for a file that is not what its name says."""
    return generated.load_module(path)
