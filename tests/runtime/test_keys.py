# pyright: basic
"""Keys of compiled kernels do not say what else a process has compiled, or in which order."""

from __future__ import annotations

import importlib
import inspect
import itertools
import pkgutil
import sys
from collections import defaultdict
from pathlib import Path
from types import ModuleType

import pytest
import triton
import triton.language as tl

from tilelink import device
from tilelink.runtime.cuda.keys import settled

LIBRARY = """
import triton
import triton.language as tl

STEP = tl.constexpr(3)
FIRST = tl.constexpr(7)


@triton.jit
def middle(x):
    return inner(x) + FIRST


@triton.jit
def inner(x):
    return x + STEP
"""

KERNELS = """
import triton
import triton.language as tl

import {library} as library
from {library} import inner


@triton.jit
def outer(at):
    _helper(at)


@triton.jit
def _helper(at):
    tl.store(at, library.middle(tl.load(at)))


@triton.jit
def other(at):
    tl.store(at, inner(tl.load(at)))


@triton.jit
def again(at):
    if tl.load(at):
        again(at)
    _helper(at)
"""
NAMES = ("outer", "other", "again", "library.middle", "inner")


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The kernels with their library, as a process has them that has hashed nothing yet."""
    library = f"library_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{library}.py").write_text(LIBRARY)
    (tmp_path / f"kernels_{library}.py").write_text(KERNELS.format(library=library))
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module(f"kernels_{library}")


def unhashed(module: ModuleType) -> ModuleType:
    importlib.reload(sys.modules[module.library.__name__])
    return importlib.reload(module)


def found(module: ModuleType, name: str) -> triton.JITFunction:
    value: object = module
    for part in name.split("."):
        value = getattr(value, part)
    assert isinstance(value, triton.JITFunction)
    return value


def test_keys_are_the_same_in_every_order(fresh: ModuleType) -> None:
    keys = defaultdict[str, set[str]](set)
    for order in itertools.permutations(NAMES):
        module = unhashed(fresh)
        for name in order:
            keys[name].add(settled(found(module, name)).cache_key)
    assert {name: len(different) for name, different in keys.items()} == dict.fromkeys(NAMES, 1)


def test_a_key_changes_with_a_constant_of_what_is_called(fresh: ModuleType) -> None:
    before = settled(fresh.outer).cache_key
    path = Path(inspect.getfile(fresh.library))
    path.write_text(path.read_text().replace("constexpr(3)", "constexpr(44)"))
    assert settled(unhashed(fresh).outer).cache_key != before


def test_constants_of_the_device_library_have_one_value() -> None:
    """Triton hashes those of one name in the order of their modules' addresses, which every process has others of."""
    values = defaultdict[str, set[str]](set)
    for info in pkgutil.iter_modules(device.__path__, f"{device.__name__}."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, tl.constexpr):
                values[name].add(repr(value))
    assert len(values) > 10
    assert {name: found for name, found in values.items() if len(found) > 1} == {}
