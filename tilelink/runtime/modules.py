"""Loading generated modules."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load_module(source: Path) -> ModuleType:
    """The module in a file; Triton reads the text of its kernels from there. Raises ImportError for no Python file."""
    spec = importlib.util.spec_from_file_location(f"tilelink_generated_{source.stem}", source)
    if spec is None or spec.loader is None:
        raise ImportError(f"{source} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
