"""The search and the shrinking of a hunt, on subjects whose anomalies are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pytest

from tilelink.errors import BindingError, SearchError
from tilelink.hunt import hunt, markdown, text
from tilelink.hunt.anomaly import Anomaly, Feature, Rated
from tilelink.hunt.report import as_json, when
from tilelink.search import STRATEGIES, strategy
from tilelink.simulator.causes import Cause

US = 1e-6


@dataclass(frozen=True)
class Made:
    """Launches of 100 us, where `slow` says by how much one is too slow, and for what cause; None: there is none."""

    slow: Callable[[int, int, str], tuple[float, str] | None]
    name: str = "made"

    @property
    def features(self) -> Sequence[Feature]:
        return (
            Feature(name="rows", labels=tuple(str(2**n) for n in range(11)), ordered=True, plain=4),
            Feature(name="ranks", labels=("2", "4", "8"), ordered=True),
            Feature(name="schedule", labels=("good", "other", "bad"), each=True),
        )

    def said(self, choices: Sequence[int]) -> Mapping[str, str]:
        return {one.name: one.labels[n] for one, n in zip(self.features, choices, strict=True)}

    def command(self, choices: Sequence[int]) -> str:
        return f"rate {' '.join(self.said(choices).values())}"

    def rated(self, choices: Sequence[int], *, every: bool = False) -> Rated:
        del every
        said = self.said(choices)
        found = self.slow(int(said["rows"]), int(said["ranks"]), said["schedule"])
        if found is None:
            raise BindingError("there is no such launch", hint="take another")
        times, why = found
        cause = Cause(key=(why, ""), text=f"because of {why}")
        one = Anomaly(kind="unfused", seconds=times * 100 * US, against=100 * US, reference="nothing", cause=cause)
        return Rated(seconds=times * 100 * US, anomalies=(one,))


def wave(rows: int, ranks: int, schedule: str) -> tuple[float, str]:
    return (3.0 if schedule == "bad" and 64 <= rows <= 256 else 1.0), "waves"


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_a_case_is_shrunk_to_what_explains_it(name: str) -> None:
    found = hunt([Made(wave)], strategy(name), points=99)
    (case,) = found.cases
    assert when(case) == "rows 64 to 256, schedule bad; whatever ranks"
    assert dict(case.subject.said(case.choices)) == {"rows": "64", "ranks": "2", "schedule": "bad"}
    assert case.anomaly.ratio == pytest.approx(3.0) and case.worst == pytest.approx(3.0)


def test_causes_are_cases_of_their_own() -> None:
    def slow(rows: int, ranks: int, schedule: str) -> tuple[float, str]:
        return (2.0, "many ranks") if ranks == 8 else wave(rows, ranks, schedule)

    found = hunt([Made(slow)], strategy("exhaustive"), points=99)
    assert [(when(one), one.anomaly.cause.text) for one in found.cases] == [
        ("rows 64 to 256, ranks up to 4, schedule bad", "because of waves"),
        ("ranks 8; whatever rows, schedule", "because of many ranks"),
    ]


def test_what_cannot_be_launched_bounds_no_condition() -> None:
    """Fewer than 8 rows are refused: whether the anomaly would be there is not known, and no condition says so."""

    def slow(rows: int, ranks: int, schedule: str) -> tuple[float, str] | None:
        return None if rows < 8 else (2.0 if rows <= 128 else 1.0, "few rows")

    found = hunt([Made(slow)], strategy("exhaustive"), points=99)
    assert [when(one) for one in found.cases] == ["rows up to 128; whatever ranks, schedule"]
    assert found.refused["BindingError"] and "there is no such launch" in text(found)


def test_small_excess_is_none() -> None:
    assert not hunt([Made(lambda *_: (1.14, "noise"))], strategy("exhaustive"), points=99).cases
    assert hunt([Made(lambda *_: (1.14, "noise"))], strategy("exhaustive"), points=99, least=1.1).cases


def test_every_schedule_is_tried_first() -> None:
    tried: list[str] = []

    def slow(rows: int, ranks: int, schedule: str) -> tuple[float, str]:
        tried.append(schedule)
        return 1.0, ""

    hunt([Made(slow)], strategy("evolution"), points=3)
    assert tried == ["good", "other", "bad"]


def test_a_hunt_is_told_by_its_seed() -> None:
    def told(seed: int) -> list[object]:
        found = hunt([Made(wave), Made(wave, "again")], strategy("annealing"), points=30, seed=seed)
        return [found.rated, found.refused, *as_json(found)["cases"]]

    assert told(1) == told(1)


def test_what_was_done_is_said_before_each_point() -> None:
    said: list[str] = []
    found = hunt([Made(wave)], strategy("exhaustive"), points=99, progress=said.append)
    assert said[0] == "0 of 99 points rated, 0 refused, 0 anomalies met" and len(said) >= found.rated
    assert any(one.startswith(f"explaining case 1 of {len(found.cases)}: ") for one in said), said[-1]


def test_seconds_end_a_hunt() -> None:
    times = iter(range(1000))
    found = hunt([Made(wave)], strategy("random"), budget_s=20.0, clock=lambda: float(next(times)))
    assert found.ended == "seconds" and 0 < found.rated < 40


def test_reports_say_the_same() -> None:
    found = hunt([Made(wave)], strategy("exhaustive"), points=99)
    (case,) = as_json(found)["cases"]
    assert case["conditions"] == {"rows": "rows 64 to 256", "schedule": "schedule bad"}
    assert case["irrelevant"] == ["ranks"] and case["command"] == "rate 64 2 bad"
    told = markdown(found, "Cases")
    assert told.startswith("## Cases\n") and "| 1 | made | slower than its parts one after the other | 3.00 |" in told
    assert "rows 64 to 256, schedule bad; whatever ranks" in told and "rate 64 2 bad" in text(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "a hunt without an end"),
        ({"points": 1, "least": 1.0}, "an anomaly of 1 times"),
        ({"points": 1, "of": []}, "nothing to hunt in"),
    ],
)
def test_senseless_hunts_are_refused(options: dict[str, object], said: str) -> None:
    given = dict(options)
    subjects = given.pop("of", [Made(wave)])
    with pytest.raises(SearchError, match=said):
        hunt(subjects, strategy("random"), **given)  # type: ignore[arg-type]
