"""Loading generated modules."""

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tilelink.errors import EmitError

GENERATED = "tilelink_generated_"
"""How the names of loaded modules begin."""
_STORED = "tilelink_"
_DIGITS = 32


def load_module(source: Path) -> ModuleType:
    """The module in a file; Triton reads the text of its kernels from there.

    Files of the store of generated modules are named by their content. Raises EmitError for a file that cannot be read
    or is not what its name says, ImportError for no Python file.
    """
    try:
        text = source.read_bytes()
    except OSError as error:
        raise EmitError(f"cannot read {source}: {error}", hint="compile again") from error
    if source.stem != _STORED + hashlib.sha256(text).hexdigest()[:_DIGITS]:
        raise EmitError(f"{source} was changed after it was generated", hint="remove it and compile again")
    spec = importlib.util.spec_from_file_location(f"{GENERATED}{source.stem}", source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{source} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
