"""Parts that are made slow in simulated launches are named, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from time import process_time
from typing import Any

import numpy as np
import pytest

from tests.stragglers import campaign
from tests.stragglers.cases import LAUNCHES, POOL, deviation, judged, place, pool, traces
from tests.tiers import thorough
from tilelink.simulator.machine import Deviation
from tilelink.stragglers import Table, Traces
from tilelink.stragglers.metrics import NUMBER, keys_of, split
from tilelink.stragglers.report import verdict

ENGINE = ("copy_start", "copy_call", "copy_signal", "copy_wait")
CASES: dict[str, tuple[list[Deviation], list[tuple[int, float]], tuple[object, ...]]] = {
    "rank": ([deviation("clock", 0.8, 2)], [], ("rank", 2, None, None, None)),
    "memory": ([deviation("memory_bandwidth", 0.4, 1)], [], ("rank", 1, None, None, None)),
    "sms": ([deviation("clock", 0.7, 1, sms=(10, 25))], [], ("sms", 1, None, (10, 25), None)),
    "link": ([deviation("link_bandwidth", 0.5, 0, peer=3)], [], ("link", 0, 3, None, None)),
    "port": ([deviation("link_bandwidth", 0.5, 1)], [], ("port", 1, None, None, "both")),
    "copy engine": ([deviation(name, 2.5, 3) for name in ENGINE], [], ("copy engine", 3, None, None, None)),
    "copy starts": ([deviation("copy_start", 3.0, 0)], [], ("copy engine", 0, None, None, None)),
    "host": ([], [(2, 2e-5)], ("host", 2, None, None, None)),
    "signals": ([deviation("signal_latency", 8.0, 3)], [], ("signals", 3, None, None, None)),
}


@pytest.mark.parametrize("case", CASES)
def test_a_slow_part_is_named_since_it_is_slow(case: str) -> None:
    changes, late, expected = CASES[case]
    found = judged(changes, late)
    assert found.causes and place(found.causes[0]) == expected
    assert abs(found.causes[0].since - 240) <= LAUNCHES // 50 and found.causes[0].until is None
    assert found.causes[0].confidence > 0.8


@pytest.mark.parametrize("case", ["rank", "link", "host", "copy engine"])
def test_a_part_that_was_always_slow_is_named(case: str) -> None:
    changes, late, expected = CASES[case]
    found = judged(changes, late, since=0)
    assert found.causes and place(found.causes[0]) == expected and found.causes[0].since == 0


def test_how_fast_a_link_is_is_said_in_its_calibrated_rate() -> None:
    text = str(judged([deviation("link_bandwidth", 0.5, 0, peer=3)]))
    rate = int(text.removeprefix("link 0 -> 3 at ").partition("%")[0])
    assert abs(rate - 50) <= 4
    assert "% of its calibrated rate, since launch 2" in text


@pytest.mark.parametrize("noise", [0.05, 0.5])
def test_a_clean_run_raises_no_alarm(noise: float) -> None:
    found = verdict(traces(4, [(pool(4), LAUNCHES)], noise=noise, spikes=0.05))
    assert not found.causes and not found.victims
    assert str(found).startswith("no straggler in 600 launches of ag_gemm on 4 ranks")


def test_what_slows_down_everybody_is_no_straggler() -> None:
    everybody = pool(4, tuple(deviation("clock", 0.6, rank) for rank in range(4)))
    assert not verdict(traces(4, [(pool(4), 300), (everybody, 300)])).causes


def test_single_late_launches_are_no_straggler() -> None:
    """Every rank has some: another one each time."""
    late = [pool(4, (), ((rank, 5e-5),)) for rank in range(4)]
    parts = [part for n in range(23) for part in ((pool(4), 25), (late[n % 4], 1))]
    assert not verdict(traces(4, parts)).causes


SELDOM: dict[str, tuple[list[Deviation], list[tuple[int, float]], tuple[object, ...]]] = {
    "rank": ([deviation("clock", 0.25, 2)], [], ("rank", 2, None, None, None)),
    "sms": ([deviation("clock", 0.2, 1, sms=(10, 25))], [], ("sms", 1, None, (10, 25), None)),
    "link": ([deviation("link_bandwidth", 0.02, 0, peer=3)], [], ("link", 0, 3, None, None)),
    "host": ([], [(2, 2e-5)], ("host", 2, None, None, None)),
}


@pytest.mark.parametrize("every", [5, 12])
@pytest.mark.parametrize("case", SELDOM)
def test_a_part_that_is_slow_in_some_launches_alone_is_named(case: str, every: int) -> None:
    changes, late, expected = SELDOM[case]
    bad = pool(4, tuple(changes), tuple(late))
    found = verdict(traces(4, [(pool(4), 200), *[(bad, 1), (pool(4), every - 1)] * (400 // every)]))
    assert found.causes and place(found.causes[0]) == expected
    assert abs(found.causes[0].share - 1 / every) < 0.05 and abs(found.causes[0].since - 200) <= 20
    assert "% of the launches, since launch " in str(found)


def test_a_part_that_is_slow_in_bursts_is_named() -> None:
    """A burst fills a window, and is not usual there."""
    bad = pool(4, (deviation("clock", 0.4, 2),))
    found = verdict(traces(4, [(pool(4), 200), *[(bad, 13), (pool(4), 67)] * 5]))
    assert found.causes and place(found.causes[0])[:2] == ("rank", 2)
    assert found.causes[0].share < 0.5 and abs(found.causes[0].since - 200) <= 20


@pytest.mark.parametrize("late", [0.0, 5e-5, 2e-4])
def test_hosts_that_begin_together_are_compared_in_each_launch(late: float) -> None:
    """They wait for each launch: what is before the next one is long, takes other times, and is the same for all.

    Hosts that do the same differ by some percent of it.
    """
    well = traces(2, [(pool(2), LAUNCHES)])
    metric, rank, _, peer, _ = split(well.table.keys)
    rng, values = np.random.default_rng(5), well.table.values.astype(np.float64)
    own = np.where(rng.random(LAUNCHES) < 0.9, late, 0.0)
    for column in np.flatnonzero(metric == NUMBER["gap"]):
        values[:, column] = 2e-3 * np.exp(0.2 * np.random.default_rng(6).standard_normal(LAUNCHES))
        values[:, column] += own * (rank[column] == 1) + 2e-7 * rng.standard_normal(LAUNCHES)
    for column in np.flatnonzero((metric == NUMBER["wait"]) & (peer == 1)):
        values[:, column] += own
    found = verdict(replace(well, table=replace(well.table, values=values.astype(np.float32))))
    assert [place(one)[:2] for one in found.causes] == ([("host", 1)] if late > 1e-4 else [])


def start_columns(well: Traces, seconds: float) -> Table:
    """Launches with how long their last program takes to begin: on rank 1 so many seconds more in the later half."""
    table, later = well.table, np.arange(LAUNCHES) >= LAUNCHES // 2
    noise = np.random.default_rng(7).uniform(2e-6, 3e-6, (LAUNCHES, 2))
    starts = noise + np.stack([np.zeros(LAUNCHES), seconds * later], axis=1)
    keys = np.concatenate([table.keys, keys_of(NUMBER["start"], np.arange(2))])
    order = np.argsort(keys)
    values = np.concatenate([table.values, starts], axis=1)[:, order].astype(np.float32)
    return replace(table, keys=keys[order], values=values, counts=np.append(table.counts, [1, 1])[order])


@pytest.mark.parametrize("seconds", [0.0, 1e-4])
def test_kernels_that_find_no_free_sms_are_named(seconds: float) -> None:
    """Their programs begin late, and compute as fast as ever."""
    well = traces(2, [(pool(2), LAUNCHES)])
    found = verdict(replace(well, table=start_columns(well, seconds)))
    assert [place(one)[:2] for one in found.causes] == ([("start", 1)] if seconds else [])
    if seconds:
        assert found.causes[0].seconds == pytest.approx(seconds, rel=0.1)
        assert abs(found.causes[0].since - LAUNCHES // 2) <= 10
        assert "rank 1 starts its kernels 1" in str(found) and "us late: its SMs have other work" in str(found)


def test_events_around_copies_take_other_times_on_other_gpus() -> None:
    """Of traced launches: some microseconds for each operation are no slow copy engine, and more are one."""
    well = traces(2, [(pool(2), LAUNCHES)])
    metric, rank = split(well.table.keys)[:2]
    engine = np.isin(metric, [NUMBER["engine_out"], NUMBER["call"]]) & (rank == 1)

    def causes(seconds: float) -> list[tuple[object, ...]]:
        values = well.table.values + np.where(engine, seconds, 0.0).astype(np.float32)
        traced = replace(well, programs=True, table=replace(well.table, values=values))
        return [place(one)[:2] for one in verdict(traced).causes]

    assert causes(4e-6) == []
    assert causes(3e-5)[:1] == [("copy engine", 1)]


def test_transfers_that_cost_nothing_do_not_speak_for_a_link() -> None:
    """A rank also tells each peer a number, which a slow link does not delay."""
    found = traces(4, [(pool(4), 240), (pool(4, (deviation("link_bandwidth", 0.25, 0, peer=3),)), 360)])
    metric, rank, stage, peer, sm = split(found.table.keys)
    moves = np.flatnonzero((metric == NUMBER["engine_out"]) & (rank != peer))
    keys = keys_of(metric[moves], rank[moves], stage[moves] + 1, peer[moves], sm[moves])
    small = 2e-9 * np.exp(0.05 * np.random.default_rng(1).standard_normal((LAUNCHES, len(keys))))
    every = np.concatenate([found.table.keys, keys])
    order = np.argsort(every)
    values = np.concatenate([found.table.values, small], axis=1)[:, order].astype(np.float32)
    table = replace(
        found.table, keys=every[order], values=values,
        counts=np.concatenate([found.table.counts, np.ones(len(keys), np.float32)])[order],
    )  # fmt: skip
    causes = verdict(replace(found, table=table, norm=None)).causes
    assert causes and place(causes[0]) == ("link", 0, 3, None, None)


@pytest.mark.parametrize("number", range(8))
def test_clean_series_of_any_program_raise_no_alarm(number: int) -> None:
    """Ranks may be unlike by their plan, and the work of all may change."""
    case = campaign.clean(np.random.default_rng(number), number)
    found = verdict(case.traces)
    assert not found.causes, f"{case.what}: {found}"


def test_two_victims_of_one_culprit_are_named_as_victims() -> None:
    found = judged([], [(0, 3e-5)], ranks=3)
    assert [place(one)[:2] for one in found.causes] == [("host", 0)]
    assert {victim.rank: victim.of for victim in found.victims} == {1: 0, 2: 0}
    assert all(1e-5 < victim.seconds < 4e-5 for victim in found.victims)


def test_a_cause_that_ends_is_said_to_end() -> None:
    bad = pool(4, (deviation("clock", 0.7, 1),))
    found = verdict(traces(4, [(pool(4), 200), (bad, 200), (pool(4), 200)])).causes[0]
    assert place(found)[:2] == ("rank", 1)
    assert abs(found.since - 200) <= 12 and found.until is not None and abs(found.until - 400) <= 12


@pytest.mark.parametrize("larger", ["host", "rank"])
def test_of_two_causes_the_one_that_costs_more_is_first(larger: str) -> None:
    slow, late = (0.6, 2.5e-5) if larger == "host" else (0.4, 4e-6)
    found = judged([deviation("clock", slow, 1)], [(2, late)])
    assert [place(one)[:2] for one in found.causes[:2]] == sorted([("host", 2), ("rank", 1)], reverse=larger == "rank")


def test_without_a_norm_ranks_are_compared_with_each_other() -> None:
    bad = pool(4, (deviation("clock", 0.7, 1),))
    found = verdict(replace(traces(4, [(bad, LAUNCHES)]), norm=None))
    assert place(found.causes[0])[:2] == ("rank", 1) and "of its usual rate" in str(found)


def test_few_launches_say_nothing() -> None:
    bad = pool(4, (deviation("clock", 0.5, 1),))
    assert not verdict(traces(4, [(bad, 20)])).causes


def test_a_rank_for_which_others_wait_is_late_if_nothing_else_is_known() -> None:
    """The traces lack what the rank itself does, as those of another program would."""
    bad = pool(4, (), ((2, 3e-5),))
    full = traces(4, [(pool(4), 240), (bad, 360)])
    metric, rank, *_ = split(full.table.keys)
    kept = ~((metric == NUMBER["gap"]) & (rank == 2))
    table = replace(full.table, keys=full.table.keys[kept], values=full.table.values[:, kept],
                    counts=full.table.counts[kept])  # fmt: skip
    found = verdict(replace(full, table=table)).causes
    assert found and found[0].suspect.rank == 2 and found[0].suspect.kind in ("late", "signals")


def test_json_has_place_and_time_of_each_cause() -> None:
    said: dict[str, Any] = judged([deviation("clock", 0.7, 1, sms=(10, 25))]).as_json()
    assert said["verdict"] == "straggler" and said["launches"] == LAUNCHES
    cause = said["causes"][0]
    assert (cause["kind"], cause["rank"], cause["sms"], cause["until"]) == ("sms", 1, [10, 25], None)
    assert abs(cause["speed"] - 0.7) < 0.03


def test_a_thousand_launches_of_eight_ranks_take_a_second() -> None:
    found = traces(8, [(pool(8)[: POOL // 2], 400), (pool(8, (deviation("clock", 0.7, 5),)), 600)])
    begin = process_time()
    causes = verdict(found).causes
    assert process_time() - begin < 2.0, "1 s, and as much again for a machine that is busy"
    assert place(causes[0])[:2] == ("rank", 5)


@thorough(unless=lambda ranks: ranks == 2)
@pytest.mark.parametrize("ranks", [2, 16])
def test_any_number_of_ranks(ranks: int) -> None:
    culprit = ranks - 1
    found = judged([deviation("clock", 0.7, culprit)], ranks=ranks)
    assert place(found.causes[0])[:2] == ("rank", culprit)


def test_launches_without_a_number_are_left_out() -> None:
    full = traces(4, [(pool(4), 240), (pool(4, (deviation("clock", 0.8, 2),)), 360)])
    values = full.table.values.copy()
    values[np.random.default_rng(1).random(values.shape) < 0.2] = np.nan
    assert place(verdict(replace(full, table=replace(full.table, values=values))).causes[0])[:2] == ("rank", 2)


@pytest.mark.parametrize("pair", [(2, 0), (0, 2)])
def test_which_way_notifies_have_always_been_late_is_known_by_who_waits(pair: tuple[int, int]) -> None:
    """Only the round trip is known. There is no launch before in which the other rank waited less."""
    late = Deviation(field="signal_latency", factor=20, rank=pair[0], peer=pair[1])
    found = verdict(traces(4, [(pool(4, (late,)), LAUNCHES)]))
    assert found.causes and (found.causes[0].suspect.kind, found.causes[0].suspect.rank) == ("signals", pair[0])
    assert found.causes[0].suspect.peer == pair[1]


def test_a_host_that_pauses_in_a_few_launches_is_named() -> None:
    """As one that collects garbage: six pauses of several launches each are no chance."""
    bad = pool(4, late=((2, 4e-4),))
    found = verdict(traces(4, [(pool(4), LAUNCHES // 2), *[(bad, 1), (pool(4), LAUNCHES // 12 - 1)] * 6]))
    assert [place(one)[:2] for one in found.causes] == [("host", 2)]
    assert 0.01 < found.causes[0].share < 0.04, "of the launches from the first pause to the last one"


def test_notifies_of_a_norm_that_is_not_exact_are_not_late() -> None:
    """Of four ranks one pair alone is three ranks apart: it is compared with the other pairs, not with the norm."""
    well = traces(4, [(pool(4), LAUNCHES)])
    assert well.norm is not None
    signals = split(well.norm.keys)[0] == NUMBER["signal"]
    norm = replace(well.norm, values=np.where(signals, well.norm.values * 0.85, well.norm.values))
    assert verdict(replace(well, norm=norm)).causes == ()
