"""Shared memory as tensors."""

import gc
import os
from pathlib import Path

import pytest
import torch

from tilelink.errors import DtypeError
from tilelink.runtime.cpu.arena import ALIGNMENT, DTYPES, Arena, size_for


def mappings() -> int:
    """How many anonymous shared mappings this process has."""
    return Path("/proc/self/maps").read_text().count("/dev/zero")


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
def test_tensors_are_zero_aligned_and_apart(dtype: torch.dtype) -> None:
    shapes = [(3, 5), (1,), (), (2, 3, 4)]
    with Arena(size_for([(shape, dtype) for shape in shapes])) as arena:
        tensors = [arena.allocate(shape, dtype) for shape in shapes]
        assert [tuple(one.shape) for one in tensors] == shapes
        assert all(one.dtype == dtype and one.is_contiguous() and not one.float().any() for one in tensors)
        assert all(one.data_ptr() % ALIGNMENT == 0 for one in tensors)
        for one in tensors:
            one.fill_(1)
            assert sum(int(other.float().sum()) for other in tensors) == one.numel()
            one.fill_(0)


def test_forked_processes_see_the_same_bytes_at_the_same_address() -> None:
    with Arena(1024) as arena:
        numbers, address = arena.allocate((4,), torch.float32), arena.allocate((1,), torch.int64)
        pid = os.fork()
        if pid == 0:
            numbers[:] = torch.arange(4.0)
            address[0] = numbers.data_ptr()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert numbers.tolist() == [0, 1, 2, 3]
        assert address.item() == numbers.data_ptr()


def test_nothing_has_a_name_or_stays() -> None:
    gc.collect()
    before = mappings()
    with Arena(1 << 20) as arena:
        tensor = arena.allocate((1000,), torch.int32)
        assert mappings() == before + 1
        assert "/dev/shm" not in Path("/proc/self/maps").read_text()
    tensor.fill_(7)  # alive as long as somebody holds it
    assert int(tensor.sum()) == 7000
    del tensor
    gc.collect()
    assert mappings() == before


def test_a_full_arena_says_how_full() -> None:
    arena = Arena(256)
    arena.allocate((3,), torch.int8)
    with pytest.raises(MemoryError, match=r"\[40\] torch.float32 takes 256 bytes, and 128 of the arena's 256 are left"):
        arena.allocate((40,), torch.float32)
    arena.allocate((32,), torch.float32)


def test_an_arena_too_large_for_the_machine() -> None:
    with pytest.raises(MemoryError, match="cannot map 4611686018427387904 bytes"):
        Arena(1 << 62)


def test_empty_tensors_take_nothing() -> None:
    assert size_for([((0, 8), torch.float32)]) == 0
    assert Arena(0).allocate((0, 8), torch.float32).shape == (0, 8)


def test_refusals() -> None:
    arena = Arena(1024)
    with pytest.raises(DtypeError, match="complex64"):
        arena.allocate((1,), torch.complex64)
    with pytest.raises(ValueError, match="negative"):
        arena.allocate((-1, -1), torch.float32)
    arena.close()
    with pytest.raises(ValueError, match="closed"):
        arena.allocate((1,), torch.float32)


def test_sizes_are_padded_one_by_one() -> None:
    assert size_for([((1,), torch.int8), ((33,), torch.float32), ((), torch.bool)]) == 128 + 256 + 128
