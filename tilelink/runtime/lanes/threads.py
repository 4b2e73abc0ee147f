"""One thread per process: lanes are the parallelism, and more threads than cores cost far more than they give."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

# NumPy's OpenBLAS (two spellings of its own, two of a system's), MKL and BLIS.
_SETTERS = (
    "scipy_openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "openblas_set_num_threads",
    "MKL_Set_Num_Threads",
    "bli_thread_set_num_threads",
)
_LIBRARIES = ("blas", "mkl_rt", "blis")


def single_threader() -> Callable[[], None]:
    """A function that limits its process to one thread in torch and in the BLAS that NumPy uses.

    The libraries are looked up when this is called, so that forked processes have nothing left to look up.
    """
    setters = list(_blas_setters())

    def limit() -> None:
        torch.set_num_threads(1)
        for setter in setters:
            setter(1)

    return limit


def _blas_setters() -> list[Any]:
    """The functions of the loaded BLAS libraries that set their number of threads."""
    libraries = [ctypes.CDLL(path) for path in _loaded_libraries()]
    found = [next((getattr(one, name) for name in _SETTERS if hasattr(one, name)), None) for one in libraries]
    return [setter for setter in found if setter is not None]


def _loaded_libraries() -> list[str]:
    """Paths of the shared libraries of this process that look like a BLAS."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    return sorted(path for path in paths if ".so" in path and any(name in Path(path).name for name in _LIBRARIES))
