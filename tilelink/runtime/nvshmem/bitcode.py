"""The bitcode of NVSHMEM's device library, by the names that its wheels have given it.

Up to 3.6 a wheel has one file, `libnvshmem_device.bc`. From 3.7 on it has one for each kind of processor,
`libnvshmem_device_sm_90.bc`: that of the processor itself is taken, else the next lower one.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path

from tilelink.errors import BindingError
from tilelink.settings import settings

NAME = "libnvshmem_device"
ADVICE = (
    "pip install 'tilelink[nvshmem]', or let TILELINK_NVSHMEM name the folder that has libnvshmem_device.bc or "
    "libnvshmem_device_sm_NN.bc"
)


def folders() -> Iterator[Path]:
    """Yield the folders in which the library may be: that of the setting, else those of the wheel."""
    if (chosen := settings().nvshmem) is not None:
        yield from (chosen, chosen / "lib")
        return
    try:
        found = importlib.util.find_spec("nvidia.nvshmem")
    except ModuleNotFoundError:
        return
    for place in (found.submodule_search_locations or ()) if found else ():
        yield Path(place) / "lib"


def find_bitcode(capability: int) -> Path | None:
    """Return the file for a processor, by its compute capability (90 for sm_90), or None if there is none."""
    for place in folders():
        of_kinds = {
            int(m[1]): file for file in place.glob(f"{NAME}_sm_*.bc") if (m := re.search(r"_sm_(\d+)", file.name))
        }
        fitting = [kind for kind in of_kinds if kind <= capability]
        if fitting:
            return of_kinds[max(fitting)]
        if (one := place / f"{NAME}.bc").is_file():
            return one
    return None


def libraries(capability: int) -> dict[str, str]:
    """Return what kernels with network statements are linked with, as Triton takes it: name -> file.

    Raises BindingError if the library is not there.
    """
    found = find_bitcode(capability)
    if found is None:
        looked = ", ".join(map(str, folders())) or "no folder: the package nvidia-nvshmem-cu13 is not installed"
        raise BindingError(f"NVSHMEM's device library for sm_{capability} is not in {looked}", hint=ADVICE)
    return {NAME: str(found)}
