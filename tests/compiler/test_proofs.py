"""Proofs that are kept: of which programs, and that nothing else is taken for one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilelink
from tests.verifier.mutations import Case, mutants
from tilelink import compiler
from tilelink.compiler import proofs
from tilelink.errors import TileLinkError, VerificationError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.plan import Plan, make_plan
from tilelink.planning.queue_order import with_queue_order
from tilelink.settings import override, settings
from tilelink.target import CPU
from tilelink.target import target as named_target
from tilelink.verifier import RULES
from tilelink.verifier.by_schedule import by_schedule

TEXT = """
program shifted(M, N):
    to       : table     [4] < 4
    x        : in        [M, N]
    left     : symmetric [M, N]
    y        : out       [M, N]

    comm send(i: M):
        tile_push_data(left[i, :] @ (rank + 1), x[i, :])
        producer_tile_notify(left[i, :] @ (rank + 1))

    compute add(i: M, j: N):
        consumer_tile_wait(left[i, :])
        y[i, j] = x[i, j] + left[i, j]

schedule engine for shifted:
    send on copy_engine, tile(i=64)
    add tile(i=32, j=8)
"""
PROGRAM = tilelink.parse(TEXT.replace("    to : [4] < 4\n", "")).program()
ENGINE = tilelink.parse(TEXT.replace("    to : [4] < 4\n", "")).schedules[0]


@pytest.fixture(autouse=True)
def kept(tmp_path: Path) -> Iterator[Path]:
    with override(proofs=True, cache=tmp_path):
        yield tmp_path / "proofs"


def bound(M: int = 4096, N: int = 128, ranks: int = 3, schedule: Any = ENGINE, target: str = "cpu") -> Bound:
    return compiler.bound(PROGRAM, schedule, ranks=ranks, dims={"M": M, "N": N}, target=target)


def asked(one: Bound) -> tuple[Plan, list[str]]:
    """A verified plan, and the rules that were asked for it of the whole program."""
    names: list[str] = []
    return proofs.proved(one, on_rule=names.append), names


def same(one: Plan, other: Plan) -> bool:
    """True if two plans are one in all that kernels and runtimes are made of, and in their events."""
    alike = one.bound.channels == other.bound.channels
    alike &= all(np.array_equal(one.thresholds[key], other.thresholds[key]) for key in one.thresholds)
    columns = (one.accesses, other.accesses), (one.signals, other.signals)
    alike &= all(np.array_equal(vars(a)[name], vars(b)[name]) for a, b in columns for name in vars(a))
    alike &= np.array_equal(one.overtaking, other.overtaking) and np.array_equal(one.worker, other.worker)
    return alike and listing(one.bound) == listing(other.bound) and one.representatives == other.representatives


def of(kept: Path, kind: str = "proof") -> int:
    return len([*kept.glob(f"{kind}-*.json")])


@pytest.mark.parametrize("sizes", [{"M": 4096}, {"M": 192, "N": 2048}])
def test_a_program_is_proved_once(kept: Path, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = asked(bound(**sizes))
    assert of(kept) == 1
    monkeypatch.setattr(proofs, "safe_plan", None)  # nothing is proved any more
    again, rules = asked(bound(**sizes))
    assert not rules
    assert same(first, again)
    assert proofs.scheduled(first, {}) == proofs.scheduled(again, {})


def test_what_differs_is_proved_anew(kept: Path) -> None:
    asked(bound())
    tiled = bound(schedule=ENGINE.tile("add", j=4))
    others = (bound(M=4160), bound(N=136), bound(ranks=4), tiled, bound(target="sm_90"))
    for number, one in enumerate(others):
        asked(one)
        assert of(kept) == 2 + number


def test_tables_are_part_of_what_is_proved(kept: Path) -> None:
    program = tilelink.parse(TEXT.replace("left[i, :] @ (rank + 1)", "left[i, :] @ to[rank]")).program()
    schedule = tilelink.schedule(program).tile("send", i=64).tile("add", i=32, j=8)
    one = compiler.bound(program, schedule, ranks=4, dims={"M": 4096, "N": 128})
    proofs.proved(one, {"to": np.array([[1, 2, 3, 0]] * 4)})
    proofs.proved(one, {"to": np.array([[3, 0, 1, 2]] * 4)})
    assert of(kept) == 2
    with pytest.raises(VerificationError):
        proofs.proved(one, {"to": np.array([[1, 1, 3, 0]] * 4)})
    assert of(kept) == 2


def test_few_tiles_are_not_kept_and_nothing_is_where_the_settings_say_so(kept: Path) -> None:
    asked(bound(M=64, N=8))
    with override(proofs=False):
        asked(bound())
    assert not kept.exists()


def test_other_rules_have_no_kept_proofs(monkeypatch: pytest.MonkeyPatch) -> None:
    asked(bound())

    def never(plan: Plan, _: Any) -> Iterator[VerificationError]:
        yield VerificationError("never", hint="-")

    monkeypatch.setitem(RULES, "never", never)
    with pytest.raises(VerificationError, match="never"):
        asked(bound())


def test_another_version_has_no_kept_proofs(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked(bound())
    monkeypatch.setattr(proofs, "package", lambda: "another")
    asked(bound())
    assert of(kept) == 2


def written(file: Path, value: Any) -> None:
    """Write a file as one that is kept, whatever is in it."""
    text = json.dumps(value)
    file.write_text(json.dumps({"value": text, "hash": proofs._hash(file, text)}))


@pytest.mark.parametrize("kind", ["proof", "blocks"])
@pytest.mark.parametrize(
    "spoil", ["writable", "no JSON", "other grids", "no field", "edited", "cut", "of another program"]
)
def test_a_file_that_others_may_write_or_that_is_no_proof_is_not_used(kept: Path, spoil: str, kind: str) -> None:
    first, _ = asked(bound(**MANY))
    assert of(kept) == of(kept, "blocks") == 1
    (file,) = kept.glob(f"{kind}-*.json")
    (other,) = kept.glob("blocks-*.json" if kind == "proof" else "proof-*.json")
    own = json.loads(file.read_bytes())
    raw = json.loads(own["value"])
    counts = raw["thresholds" if kind == "proof" else "counts"]
    counts[0]["values"] = [9] * len(counts[0]["values"])
    if spoil == "writable":
        written(file, raw)
        file.chmod(0o666)
    elif spoil == "no JSON":
        file.write_text("{")
    elif spoil == "other grids":
        written(file, {**raw, "thresholds" if kind == "proof" else "counts": []})
    elif spoil == "no field":
        written(file, {"blocks": ""})
    elif spoil == "edited":
        file.write_text(json.dumps({**own, "value": json.dumps(raw)}))
    elif spoil == "cut":
        file.write_text(json.dumps({**own, "value": own["value"][:-1]}))
    else:
        with override(cache=kept.parent / "other"):
            asked(bound(**MANY, ranks=4))
            (found,) = (kept.parent / "other" / "proofs").glob(f"{kind}-*.json")
        file.write_bytes(found.read_bytes())
    if kind == "blocks":
        other.unlink()
    again, _ = asked(bound(**MANY))
    assert same(first, again)


MANY: dict[str, Any] = {"M": 8192}
SIZES: list[dict[str, Any]] = [{"M": 16384}, {"M": 8256}, {"M": 8192, "N": 256}, {"M": 16384, "N": 64}]


@pytest.mark.parametrize("sizes", SIZES)
def test_of_another_size_no_rule_is_asked(kept: Path, sizes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    asked(bound(**MANY))
    with override(proofs=False):
        anew, _ = asked(bound(**sizes))
    with monkeypatch.context() as patch:
        patch.setattr(proofs, "small_proof", None)
        found, rules = asked(bound(**sizes))
        proofs.scheduled(found, {})
    assert not rules and same(found, anew)
    assert of(kept, "blocks") == 1 and of(kept) == 2
    assert [*map(str, by_schedule(make_plan(bound(**sizes))))] == [*map(str, proofs.scheduled(found, {}))]


def told(M: int, ranks: int = 3, N: int = 2048) -> Bound:
    """A size says more than how many blocks there are: what entries are."""
    return compiler.bound(TOLD, TILED, ranks=ranks, dims={"M": M, "N": N, "K": 64})


TOLD = tilelink.parse("""
program told(M, N, K):
    to   : in        [4] < M
    x    : in        [M, N]
    c    : in        [K, N]
    y    : out       [M, N]

    compute add(i: M, j: N):
        y[i, j] = x[i, j] + c[to[0], j]
""").program()
TILED = tilelink.schedule(TOLD).tile("add", i=1, j=8)


def test_of_many_counters_that_few_ranks_prove_their_proof_alone_is_kept(
    kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tilelink.load("tilelink/programs/all_gather.tl")
    program, sizes = module.program("all_gather_kept"), {"Ms": 8, "K": 16}
    first, names = asked(compiler.bound(program, None, ranks=300, dims=sizes))
    assert str(first.representatives) == "5 of 300 ranks" and not names and (of(kept), of(kept, "blocks")) == (0, 1)
    monkeypatch.setattr("tilelink.verifier.cutoff._has_bases", lambda *_: pytest.fail("it was asked again"))
    again, _ = asked(compiler.bound(program, None, ranks=300, dims=sizes))
    more, _ = asked(compiler.bound(program, None, ranks=400, dims=sizes))
    assert all(np.array_equal(first.thresholds[key], again.thresholds[key]) for key in first.thresholds)
    assert str(more.representatives) == "5 of 400 ranks" and of(kept, "blocks") == 1


def test_a_size_that_an_entry_is_below_is_part_of_what_is_said() -> None:
    asked(told(64))
    with pytest.raises(VerificationError, match="outside c"):
        asked(told(128))


def test_whether_all_programs_are_resident_is_asked_of_each_size(kept: Path) -> None:
    schedule = tilelink.schedule(PROGRAM).tile("send", i=64).on("send", "sm").tile("add", i=32, j=8)
    few = replace(named_target("sm_90"), sms=4)

    def on_each(M: int, programs: int) -> Bound:
        made = compiler.bound(PROGRAM, schedule, ranks=3, dims={"M": M, "N": 128}, target="sm_90")
        kernels = tuple(replace(one, programs=programs) for one in made.kernels)
        return replace(made, kernels=kernels, target=few)

    asked(on_each(8192, 1))
    assert of(kept, "blocks") == 1
    found, _ = asked(on_each(16384, 1))
    assert found.representatives
    found, rules = asked(on_each(16384, 40))
    assert rules and not found.representatives


def test_a_folder_that_cannot_be_written_keeps_nothing_and_refuses_nothing() -> None:
    (settings().cache / "proofs").write_text("")
    assert asked(bound())[1] and asked(bound())[1]


def test_each_mutant_prints_as_another_program() -> None:
    """What is kept is found by the text: a mistake that is not in it would be proved by the program without it."""
    case = Case(program=PROGRAM, schedule=ENGINE, numbers={"M": 12, "N": 6}, ranks=3, target=CPU)
    right = case.plan()
    kinds: dict[str, int] = {"schedule": 0, "lowered": 0}
    for mutant in mutants(case):
        with suppress(TileLinkError):
            plan = mutant.make() if mutant.level in kinds else right
            if not same(with_queue_order(plan), with_queue_order(right)):
                kinds[mutant.level] += 1
                assert listing(plan.bound) != listing(right.bound), mutant
    assert all(kinds.values())
