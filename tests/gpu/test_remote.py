"""The driver of the tests of several nodes on GPUs, tested without any."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path

import pytest

from tests.gpu import campaign, remote
from tests.tiers import one_in, thorough
from tilelink import compiler


def test_every_scenario_is_there_and_has_its_limit() -> None:
    from tests.gpu.worker import functions

    assert all(callable(functions()[name]) for name in remote.LIMITS_S)
    assert campaign.limit_of("remote_programs") == remote.LIMITS_S["remote_programs"]
    assert campaign.chosen([], remote.LIMITS_S) == list(remote.LIMITS_S)


@thorough(unless=lambda case, of_a_node: of_a_node == 1 + one_in(2, remote.called(case)))
@pytest.mark.parametrize("of_a_node", [1, 2])
@pytest.mark.parametrize("case", remote.library(), ids=remote.called)
def test_every_program_is_proved_on_two_nodes(case: remote.Case, of_a_node: int) -> None:
    dims = {p.name: p.example or (of_a_node if p.kind == "i32" else 64) for p in case[0].params}
    plan = compiler.plan(*case, ranks=2 * of_a_node, nodes=2, dims=dims, dtype="bf16", target="sm_90")
    assert "dl.put" in compiler.source_of(plan) or "dl.get" in compiler.source_of(plan)


def test_without_what_a_way_needs_nothing_is_started(tmp_path: Path) -> None:
    assert "NVSHMEM_DISABLE_P2P" not in remote.environment("p2p", None, tmp_path)
    with pytest.raises(FileNotFoundError, match="libucx-cu13"):
        remote.environment("tcp", None, tmp_path)
    with pytest.raises(SystemExit):
        campaign.main(["--remote", "--ways", "tcp"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--ranks", "4", "--nodes", "3", "--remote", "--ways", "p2p"], "divides --ranks, 4"),
        (["--ranks", "4", "--nodes", "2"], "is for --remote"),
        (["--ranks", "4", "--nodes", "2", "--remote", "--ucx", "."], "need pointers"),
    ],
)
def test_nodes_that_cannot_be_are_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def environment(*_: object) -> dict[str, str]:
        return {}

    monkeypatch.setattr(remote, "environment", environment)
    with pytest.raises(SystemExit):
        campaign.main(given)
    assert said in capsys.readouterr().err


@pytest.mark.skipif(shutil.which("gcc") is None and shutil.which("cc") is None, reason="no C compiler")
def test_the_stand_in_maps_a_buffer_to_itself(tmp_path: Path) -> None:
    (tmp_path / "ucx" / "lib").mkdir(parents=True)
    (tmp_path / "ucx" / "lib" / "libucp.so.0").touch()
    variables = remote.environment("tcp", str(tmp_path / "ucx"), tmp_path)
    assert variables["NVSHMEM_DISABLE_P2P"] == "1" and variables["UCX_TLS"].startswith("tcp")
    library = ctypes.CDLL(str(tmp_path / "libgdrapi.so.2"))
    memory = ctypes.create_string_buffer(64)
    handle, mapping = ctypes.c_ulong(), ctypes.c_void_p()
    pin = library.gdr_pin_buffer
    pin.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p]
    assert pin(None, ctypes.addressof(memory), 64, 0, 0, ctypes.addressof(handle)) == 0
    library.gdr_map.argtypes = [ctypes.c_void_p, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_size_t]
    assert library.gdr_map(None, handle, ctypes.addressof(mapping), 64) == 0
    assert mapping.value == ctypes.addressof(memory)


def test_all_scenarios_of_a_way_run_in_the_same_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[tuple[str, tuple[str, ...], bool]] = []

    def launched(
        name: str, ranks: int, logs: Path, variables: dict[str, str], scenarios: list[str]
    ) -> campaign.Outcome:
        ran.append((name, tuple(scenarios), "NVSHMEM_DISABLE_P2P" in variables))
        return campaign.outcome(name, 1, 0, 1.0, "")

    def variables(way: str, *_: object) -> dict[str, str]:
        return {"NVSHMEM_DISABLE_P2P": "1"} if way == "tcp" else {}

    monkeypatch.setattr(campaign, "launched", launched)
    monkeypatch.setattr(remote, "environment", variables)
    assert campaign.main(["--remote", "--logs", str(tmp_path), "--only", "remote_ops", "remote_graphs"]) == 0
    assert ran == [(way, ("remote_graphs", "remote_ops"), way == "tcp") for way in remote.WAYS]
