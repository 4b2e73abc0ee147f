"""Store of generated modules: files named by their content, written atomically."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from tilelink import files, generated
from tilelink.errors import EmitError, SettingsError


def save(text: str) -> Path:
    """Write a module into the cache folder and return its file. Concurrent writers, also of other users, are safe.

    Raises SettingsError for a folder that cannot be written.
    """
    path = generated.file_of(generated.stem(text))
    if not intact(path):
        try:
            files.make_folder(path.parent)
            files.replace(path, text.encode())  # other users of the folder may read it, as the umask permits
        except OSError as error:
            hint = "set TILELINK_CACHE to a folder that can be written"
            if what := files.kind(path):
                hint = f"remove {path}: it is {what} in the place of a generated source"
            message = f"the cache folder cannot be written: {path.parent}: {files.reason(error)}"
            raise SettingsError(message, hint=hint) from error
    return path


def intact(path: Path) -> bool:
    """True if a file of the store exists and its content matches its name, whichever user wrote it."""
    try:
        generated.read_module(path)
        return True
    except EmitError:
        return False


def load(path: Path) -> ModuleType:
    """Load a stored module. Raises EmitError for a file whose content does not match its name."""
    return generated.load_module(path)
