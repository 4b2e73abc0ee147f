"""Memory that forked processes share at the same addresses, and that cannot outlive them."""

import math
import mmap
from collections.abc import Iterable
from typing import Self

import torch

from tilelink.errors import DtypeError

ALIGNMENT = 128
DTYPES = frozenset(
    {
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.int8,
        torch.uint8,
        torch.int32,
        torch.int64,
        torch.bool,
    }
)


def size_for(tensors: Iterable[tuple[tuple[int, ...], torch.dtype]]) -> int:
    """Return the bytes that an arena needs to hold tensors of these shapes and dtypes, in any order."""
    return sum(_padded(_count(shape) * dtype.itemsize) for shape, dtype in tensors)


class Arena:
    """`size` bytes of zeros, allocated as tensors that processes forked later see at the same addresses.

    The mapping has no name, so nothing is left when the processes end, however they end. It lives as long as the arena
    is open or one of its tensors is alive. A tensor never outlives its memory. Raises MemoryError if the machine does
    not provide that much.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        try:
            # mmap.close would unmap the memory of live tensors, which hold no lock on it. So it is never called.
            self._memory: mmap.mmap | None = mmap.mmap(-1, max(size, 1), mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"cannot map {size} bytes of shared memory: {error.strerror}") from error

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return a contiguous tensor of zeros of this shape and dtype, aligned to 128 bytes.

        Raises DtypeError for a dtype that programs do not have, MemoryError if the arena is full, ValueError if it is
        closed.
        """
        if self._memory is None:
            raise ValueError("the arena is closed")
        if dtype not in DTYPES:
            raise DtypeError(f"no program has tensors of {dtype}", hint=f"one of {', '.join(sorted(map(str, DTYPES)))}")
        count = _count(shape)
        size = _padded(count * dtype.itemsize)
        if size > self._size - self._used:
            wanted = f"{list(shape)} {dtype} takes {size} bytes"
            raise MemoryError(f"{wanted}, and {self._size - self._used} of the arena's {self._size} are left")
        if not count:
            return torch.zeros(shape, dtype=dtype)
        tensor = torch.frombuffer(self._memory, dtype=dtype, count=count, offset=self._used)
        self._used += size
        return tensor.view(shape)

    def close(self) -> None:
        """Allocate no more. The memory is freed with the last tensor."""
        self._memory = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _count(shape: tuple[int, ...]) -> int:
    if any(size < 0 for size in shape):
        raise ValueError(f"a dimension of {list(shape)} is negative")
    return math.prod(shape)


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
