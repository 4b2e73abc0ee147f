"""Generated modules: named by their content, and run from the very text that was compared with that name.

Python's own import takes no part in it. It would read the file a second time, or run the bytecode beside it, which
whoever may write to the folder could have put there.
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
"""How the names of loaded modules begin."""
_DIGITS = 32


def stem(text: str) -> str:
    """The name of a module's file, less `.py`."""
    return _stem(text.encode())


def _stem(text: bytes) -> str:
    return f"tilelink_{hashlib.sha256(text).hexdigest()[:_DIGITS]}"


def file_of(stem: str) -> Path:
    """The file of the cache folder that keeps the module of that name."""
    return settings().cache / "sources" / f"{stem}.py"


def read_module(path: Path) -> str:
    """The text of a generated module. Raises EmitError for a file that cannot be read or is not what its name says."""
    try:
        text = files.read(path)
    except OSError as error:
        raise EmitError(f"cannot read {path}: {files.reason(error)}", hint="compile again") from error
    if path.stem != _stem(text):
        raise EmitError(f"{path} was changed after it was generated", hint="remove it and compile again")
    return text.decode("utf-8")


def load_module(path: Path) -> ModuleType:
    """The module in a file of the store. Raises EmitError as `read_module` does.

    Triton reads the text of functions from `linecache`, which gets it from here: what becomes of the file afterwards
    changes nothing.
    """
    text = read_module(path)
    module = ModuleType(f"{GENERATED}{path.stem}")
    module.__file__ = file = str(path)
    lines = list(io.StringIO(text, newline=None))
    linecache.cache[file] = (len(text), None, lines, file)  # without a time it is never compared with the file
    sys.modules[module.__name__] = module
    exec(_code(text, file), module.__dict__)
    return module


@lru_cache(maxsize=4)  # a rank loads its program several times
def _code(text: str, file: str) -> CodeType:
    return compile(text, file, "exec", dont_inherit=True)
