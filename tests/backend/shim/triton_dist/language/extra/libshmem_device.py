# pyright: basic
"""What generated kernels use of OpenSHMEM."""

from typing import Any

from tilelink.runtime import monitor
from tilelink.runtime.device.interpreted import number
from triton_dist import language

NVSHMEM_CMP_EQ = 0
NVSHMEM_CMP_GE = 3


def signal_wait_until(ptr: Any, comparison: Any, value: Any) -> None:
    expected = number(value)
    compare = {NVSHMEM_CMP_EQ: int.__eq__, NVSHMEM_CMP_GE: int.__ge__}[number(comparison)]
    while not compare(seen := language.read(ptr), expected):
        monitor.poll(seen=seen, channel=language.place(ptr), expected=expected, stage=-1, tile=-1)
