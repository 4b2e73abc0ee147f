"""Descriptions of machines: complete, with units and sources, and refused where they are not."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.odd_files import ODD
from tests.simulator.cases import H200S
from tilelink import compiler
from tilelink.compiler.simulation import simulate
from tilelink.errors import MachineError, OutputError
from tilelink.simulator.machine import (
    KINDS,
    UNITS,
    Thresholds,
    description,
    load_machine,
    machine_of,
    save_machine,
    shipped_machines,
)
from tilelink.target import target


def test_the_shipped_machines() -> None:
    assert shipped_machines() == ("8xA100", "8xH100", "8xH200", "h100-cluster")


@pytest.mark.parametrize("name", shipped_machines())
def test_a_shipped_machine_fits_its_target_and_says_where_its_numbers_come_from(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    assert machine.sms == target(machine.target).sms
    assert machine.sources.keys() == UNITS.keys()
    assert all(text.startswith(KINDS) for text in machine.sources.values())
    assert machine.network_bandwidth < machine.link_bandwidth < machine.memory_bandwidth < machine.cache_bandwidth


def test_only_the_h200_claims_to_be_measured() -> None:
    measured = {
        n for n in shipped_machines() if any(s.startswith("measured") for s in load_machine(n).sources.values())
    }
    assert measured == {"8xH200"}


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    machine = replace(H200S, name="mine", tile_flops={"128x256": 7e14, "64x64": 0.5}, sources={"sms": "measured: here"})
    save_machine(machine, tmp_path / "mine.json")
    loaded = load_machine(tmp_path / "mine.json")
    assert loaded == machine
    assert loaded.sources["sms"] == "measured: here"
    assert loaded.sources["fence"] == "assumed"


def test_sizes_that_a_description_leaves_out_have_defaults() -> None:
    raw = description(replace(H200S, small_tiles=7))
    names = [one.name for one in fields(Thresholds)]
    left_out = machine_of({name: value for name, value in raw.items() if name not in names})
    assert all(getattr(left_out, name) == getattr(Thresholds(), name) for name in names)
    assert machine_of(raw).small_tiles == 7


def changed(**entries: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(description(H200S))), **entries}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], "does not describe a machine"),
        (changed(speed={"value": 1}), "a machine has no 'speed'"),
        (changed(link_bandwith={"value": 1}), "'link_bandwith'\n  hint: did you mean link_bandwidth"),
        ({"name": "x", "target": "sm_90"}, "node_ranks is missing"),
        (changed(sms=132), "sms has no value"),
        (changed(sms={"value": -1}), "sms is -1"),
        (changed(fence={"value": "1 us"}), "fence is '1 us'"),
        (changed(fence={"value": 1.0, "unit": "us"}), "fence is in us"),
        (changed(fence={"value": 1.0, "source": "heard of"}), "comes from 'heard of'"),
        (changed(target=90), "target is 90"),
        (changed(node_ranks={"value": 2.5}), "node_ranks is 2.5"),
        (changed(small_tiles={"value": 7.5}), "small_tiles is 7.5"),
        (changed(fused_rank_rows={"value": -1}), "fused_rank_rows is -1"),
        (changed(one_shot_bytes={"value": 8, "unit": "rows"}), "one_shot_bytes is in rows"),
        (changed(tile_flops={"value": [7e14]}), r"tile_flops is \[7"),
        (changed(tile_flops={"value": {"128": 7e14}}), "tile_flops has '128'"),
        (changed(tile_flops={"value": {"128x256": "fast"}}), "'128x256': 'fast'"),
        (changed(tile_flops={"value": {"128x256": 0}}), "'128x256': 0"),
    ],
)
def test_what_is_no_machine_is_refused(raw: Any, message: str) -> None:
    with pytest.raises(MachineError, match=message):
        machine_of(raw)


def test_unknown_names_are_answered_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="8xH200"):
        load_machine("nothing")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(MachineError, match="cannot be read"):
        load_machine(tmp_path / "broken.json")


@pytest.mark.parametrize("sms", [66, 114, 264])
def test_a_machine_has_as_many_sms_as_it_says(sms: int) -> None:
    """Programs are as many as it holds, so nothing beats the bound, and twice the GPU is faster."""
    module = compiler.load("ag_gemm")
    program = module.program("ag_gemm_in_place")
    schedule, dims = module.schedule("h200", program), {"Ms": 2048, "N": 4096, "K": 2048}
    rates = ("matmul_flops", "vector_flops", "special_rate", "cache_bandwidth", "memory_bandwidth")
    part = sms / H200S.sms
    tiles = {tile: rate * part for tile, rate in H200S.tile_flops.items()}
    of_a_kind = replace(H200S, sms=sms, tile_flops=tiles, **{name: getattr(H200S, name) * part for name in rates})
    usual, other, odd = (
        simulate(program, schedule, ranks=2, dims=dims, machine=one)
        for one in (H200S, of_a_kind, replace(H200S, sms=sms))
    )
    assert other.plan.bound.target == replace(target("sm_90"), sms=sms) == of_a_kind.processor
    assert other.seconds > other.bound.seconds and odd.seconds > odd.bound.seconds
    assert (other.seconds < usual.seconds) == (sms > H200S.sms), "of whole rounds of tiles, more SMs are faster"


@pytest.mark.parametrize(
    ("field", "value"), [("sm_push_efficiency", 1.5), ("sm_pull_efficiency", 2.0), ("copies_slow_compute", 0.5)]
)
def test_shares_and_factors_have_limits(field: str, value: float) -> None:
    with pytest.raises(MachineError, match=f"{field} is {value}"):
        replace(H200S, **{field: value})


def test_a_description_may_name_what_it_changes(tmp_path: Path) -> None:
    raw = {"base": "8xH200", "name": "slow links", "link_bandwidth": {"value": 1e11, "source": "assumed"}}
    (tmp_path / "slow.json").write_text(json.dumps(raw))
    found = load_machine(tmp_path / "slow.json")
    base = load_machine("8xH200")
    assert found == replace(base, name="slow links", link_bandwidth=1e11)
    assert found.sources["link_bandwidth"] == "assumed" and found.sources["fence"] == base.sources["fence"]
    with pytest.raises(
        MachineError, match=r"no machine '9xH200'\n  hint: did you mean 8xH200\? a JSON file, or one of"
    ):
        machine_of({"base": "9xH200"})


def test_a_machine_that_cannot_be_saved_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        save_machine(H200S, tmp_path / "nowhere" / "m.json")


def test_ranks_of_the_cpu_are_as_many_as_they_are() -> None:
    assert replace(H200S, target="cpu").processor == target("cpu")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[" * 100_000, "its lists are too deep inside one another"),
        (b"[" * 900 + b"]" * 900, "its lists are too deep inside one another"),
        (b'{"name": "\xff"}', "it is not UTF-8 text"),
        (b'{"name": "\\udcff"}', "it has half a character"),
        (b'{"base": "wrong.json"}', "is its own base"),
        (b'{"base": "other.json"}', "is its own base"),
        (b"9" * 5000, "cannot be read"),
        (b"", "cannot be read: Expecting value"),
    ],
)
def test_a_file_that_is_no_machine_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: bytes, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wrong.json").write_bytes(text)
    Path("other.json").write_text('{"base": "wrong.json"}')
    with pytest.raises(MachineError, match=said) as caught:
        load_machine("wrong.json")
    assert ".json" in caught.value.message and caught.value.hint


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", [*ODD, "a name that no file can have"])
def test_what_is_no_file_is_no_machine(tmp_path: Path, kind: str) -> None:
    path = tmp_path / ("m" * 300 if kind not in ODD else "m.json")
    ODD.get(kind, lambda path: None)(path)
    with pytest.raises(MachineError, match=r"not a file|no machine") as caught:
        load_machine(path)
    assert kind not in ("a folder", "a FIFO", "a socket") or f"{path} is {kind}" in caught.value.message
    assert caught.value.hint and "a JSON file, or one of" in caught.value.hint
