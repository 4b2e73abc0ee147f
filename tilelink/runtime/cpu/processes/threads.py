"""One thread per process: the processes are the parallelism. More threads than cores cost far more than they gain."""

import ctypes
import os
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

# (get, set) of the number of threads: NumPy's own OpenBLAS, a system's OpenBLAS, MKL, BLIS.
_FUNCTIONS = (
    ("scipy_openblas_get_num_threads64_", "scipy_openblas_set_num_threads64_"),
    ("scipy_openblas_get_num_threads", "scipy_openblas_set_num_threads"),
    ("openblas_get_num_threads64_", "openblas_set_num_threads64_"),
    ("openblas_get_num_threads", "openblas_set_num_threads"),
    ("MKL_Get_Max_Threads", "MKL_Set_Num_Threads"),
    ("bli_thread_get_num_threads", "bli_thread_set_num_threads"),
)
_LIBRARIES = ("blas", "mkl_rt", "blis")


@contextmanager
def single_thread() -> Generator[None]:
    """Limit torch and NumPy's BLAS to one thread in this context, also in processes that are forked in it.

    The parent sets the limit, because a forked process that asks OpenBLAS for one thread first starts all, and they
    spin.
    """
    libraries = list(_thread_counts())
    before = [getter() for getter, _ in libraries]
    torch_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        for _, setter in libraries:
            setter(1)
        yield
    finally:
        torch.set_num_threads(torch_threads)
        for (_, setter), count in zip(libraries, before, strict=True):
            setter(count)


def fork() -> int:
    """Call `os.fork` without the warning of newer Pythons about several threads.

    The threads of torch and the BLAS are idle, and the child does not use them: each process computes on one thread.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _thread_counts() -> list[tuple[Any, Any]]:
    """Return the functions of each loaded BLAS that get and set its number of threads."""
    found: list[tuple[Any, Any]] = []
    for path in _loaded_libraries():
        library = ctypes.CDLL(path)
        names = next((pair for pair in _FUNCTIONS if all(hasattr(library, name) for name in pair)), None)
        if names is not None:
            found.append((getattr(library, names[0]), getattr(library, names[1])))
    return found


def _loaded_libraries() -> list[str]:
    """Return the paths of the shared libraries of this process that look like a BLAS."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return []
    paths = {line.split(maxsplit=5)[5] for line in lines if line.count("/")}
    return sorted(path for path in paths if ".so" in path and any(name in Path(path).name for name in _LIBRARIES))
