"""The findings of `tilelink doctor` about NVSHMEM, for each state of the installation and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilelink.cli.nvshmem import Component, parts
from tilelink.settings import override


def found(folder: Path, capability: int = 90, adapters: tuple[str, ...] = (), **variables: str) -> dict[str, Component]:
    devices = folder / "infiniband"
    devices.mkdir(exist_ok=True)
    for one in adapters:
        (devices / one).mkdir()
    with override(nvshmem=folder):
        return {one.name: one for one in parts(capability, variables.get, devices)}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    lib = tmp_path / "lib"
    lib.mkdir()
    for name in ("libnvshmem_device_sm_90.bc", "nvshmem_transport_ibrc.so.7", "nvshmem_transport_ucx.so.7"):
        (lib / name).touch()
    return tmp_path


def test_without_the_package_only_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilelink.cli.nvshmem.folders", lambda: iter(()))
    monkeypatch.setattr("tilelink.cli.nvshmem._spec", lambda _: False)
    (only,) = parts(90, {}.get)
    assert only.good is None and "pip install 'tilelink[nvshmem]'" in only.advice


def test_half_of_the_package_is_not_enough(monkeypatch: pytest.MonkeyPatch, installed: Path) -> None:
    monkeypatch.setattr("tilelink.cli.nvshmem._spec", lambda name: name == "nvshmem")
    said = found(installed)["NVSHMEM"]
    assert said.good is False and "without cuda.core" in said.detail and "pip install" in said.advice


def test_an_empty_folder_says_what_to_install(tmp_path: Path) -> None:
    said = found(tmp_path)
    assert said["NVSHMEM bitcode"].good is None
    assert "none for sm_90" in said["NVSHMEM bitcode"].detail
    assert "pip install 'tilelink[nvshmem]'" in said["NVSHMEM bitcode"].advice
    assert said["NVSHMEM transports"] == Component(
        name="NVSHMEM transports", good=None, detail="none are installed", advice=said["NVSHMEM transports"].advice
    )
    assert "by UCX over TCP" in said["network adapters"].advice


def test_what_is_there_is_named(installed: Path) -> None:
    said = found(installed, adapters=("mlx5_0", "mlx5_1"))
    assert said["NVSHMEM bitcode"].good and "libnvshmem_device_sm_90.bc" in said["NVSHMEM bitcode"].detail
    assert said["NVSHMEM transports"].detail.startswith("ibrc (InfiniBand and RoCE, by a thread of the host); ucx (")
    assert said["network adapters"] == Component(name="network adapters", good=True, detail="mlx5_0, mlx5_1")
    assert found(installed, capability=80)["NVSHMEM bitcode"].good is None


@pytest.mark.parametrize(("chosen", "good"), [("ibrc", True), ("none", None), ("verbs", False)])
def test_a_transport_that_is_chosen_must_be_there(installed: Path, chosen: str, good: bool | None) -> None:
    part = found(installed, NVSHMEM_REMOTE_TRANSPORT=chosen)["NVSHMEM transports"]
    assert part.good is good and (good or part.advice)


def test_the_heap_is_described(installed: Path) -> None:
    said = found(installed, NVSHMEM_SYMMETRIC_SIZE="4G", NVSHMEM_HEAP_KIND="SYSMEM")["NVSHMEM heap"]
    assert said.detail == "NVSHMEM_SYMMETRIC_SIZE is 4G; NVSHMEM_HEAP_KIND is SYSMEM, memory of the host: slow"
