"""Generated modules: named by a hash of their content, and executed from the same bytes that the hash was checked on.

Python's import is not used. It would read the file a second time, or execute the bytecode next to it, which any user
with write access to the folder could have put there.
"""

from __future__ import annotations

import hashlib
import io
import linecache
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType

from tilelink import files
from tilelink.errors import EmitError
from tilelink.settings import settings

GENERATED = "tilelink_generated_"
"""Prefix of the names of loaded modules."""
_DIGITS = 32


def stem(text: str) -> str:
    """Return the file name of a module with this text, without `.py`."""
    return _stem(text.encode())


def _stem(text: bytes) -> str:
    return f"tilelink_{hashlib.sha256(text).hexdigest()[:_DIGITS]}"


def file_of(stem: str) -> Path:
    """The file of the cache folder that keeps the module of that name."""
    return settings().cache / "sources" / f"{stem}.py"


def read_module(path: Path) -> str:
    """Return the text of a generated module. Raises EmitError if it cannot be read or does not match its name."""
    try:
        text = files.read(path)
    except OSError as error:
        raise EmitError(f"cannot read {path}: {files.reason(error)}", hint="compile again") from error
    if path.stem != _stem(text):
        raise EmitError(f"{path} was changed after it was generated", hint="remove it and compile again")
    return text.decode("utf-8")


def load_module(path: Path) -> ModuleType:
    """Execute a generated module and return it. Raises EmitError as `read_module` does.

    Triton reads the source of functions from `linecache`, which is filled here, so later changes of the file have no
    effect.
    """
    text = read_module(path)
    module = ModuleType(f"{GENERATED}{path.stem}")
    module.__file__ = file = str(path)
    lines = list(io.StringIO(text, newline=None))
    linecache.cache[file] = (len(text), None, lines, file)  # mtime None: linecache never compares it with the file
    sys.modules[module.__name__] = module
    exec(_code(text, file), module.__dict__)
    return module


@lru_cache(maxsize=4)  # a rank loads its program several times
def _code(text: str, file: str) -> CodeType:
    return compile(text, file, "exec", dont_inherit=True)
