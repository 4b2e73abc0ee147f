"""Memory that forked processes share at the same addresses, and that no process can leave behind."""

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
        torch.int8,
        torch.int32,
        torch.int64,
        torch.bool,
    }
)


def size_for(tensors: Iterable[tuple[tuple[int, ...], torch.dtype]]) -> int:
    """Bytes that an arena needs to hold tensors of these shapes and dtypes, whatever their order."""
    return sum(_padded(_count(shape) * dtype.itemsize) for shape, dtype in tensors)


class Arena:
    """`size` bytes of zeros, handed out as tensors that processes forked afterwards see at the same addresses.

    The mapping has no name, so nothing stays when the processes die, however they die. It lives as long as the
    arena is open or one of its tensors is alive; a tensor never outlives its memory.
    Raises MemoryError if the machine does not give that much.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._used = 0
        try:
            # mmap.close would pull the memory from under the tensors, which hold no lock on it: it is never called.
            self._memory: mmap.mmap | None = mmap.mmap(-1, max(size, 1), mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"cannot map {size} bytes of shared memory: {error.strerror}") from error

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """A contiguous tensor of zeros of this shape and dtype, at an address that is a multiple of 128 bytes.

        Raises DtypeError for a dtype that programs do not have, MemoryError if the arena is full, ValueError if closed.
        """
        if self._memory is None:
            raise ValueError("the arena is closed")
        if dtype not in DTYPES:
            raise DtypeError(f"no program has tensors of {dtype}")
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
        """Hands out no more; the memory goes with the last tensor."""
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
