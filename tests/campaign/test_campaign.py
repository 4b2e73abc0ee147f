"""A sample of the campaign, and what it would say of kernels that are wrong."""

import contextlib
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.campaign import drawing
from tests.campaign import judge as judging
from tests.campaign.case import Case, read
from tests.campaign.drawing import case
from tests.campaign.judge import Verdict, compared, judge
from tests.campaign.makers import MAKERS, RARE
from tests.campaign.minimal import smaller
from tests.campaign.mistakes import CHANGES, spoiled
from tests.campaign.movers import MOVERS
from tests.campaign.pairs import STAGE_CLAUSES, TENSOR_CLAUSES, WHOLE, pair_case, pairs
from tests.campaign.report import ALIKE, Count
from tests.campaign.writer import Writer
from tests.compiler.library import by_name
from tilelink import compiler
from tilelink.errors import DeadlineError, TileLinkError

FIRST = 5072


@pytest.mark.parametrize("programs", [8, pytest.param(40, marks=pytest.mark.thorough)])
def test_a_sample_is_refused_or_right(programs: int) -> None:
    count = Count()
    for seed in range(FIRST, FIRST + programs):
        count.add(judge(case(seed)))
    assert not count.wrong, "\n".join(f"{v}\n{v.case}" for v, _ in count.wrong.values())
    assert count.accepted >= programs // 4


SENDING = """
program p(M):
    x : in [M]
    h : symmetric [M]
    y : out [M]
    comm send(i: M):
        tile_push_data(h[i] @ (rank + 1), x[i])
        producer_tile_notify(h[i] @ (rank + 1))
    compute add(i: M):
        consumer_tile_wait(h[i])
        y[i] = h[i] + 1.0
"""
SENT = Case(text=SENDING, dims={"M": 5}, ranks=2)


@pytest.mark.parametrize(
    ("old", "new", "step", "words"),
    [
        ("+ 1.0", "+ 2.0", "compare", "launch 0: 5 of 5 elements of y of rank 0 differ"),
        ("rank + 1", "rank + 0", "compare", "elements of y of rank"),
        ("dl.notify(", "(lambda *_, **__: None)(", "run", "DeadlineError"),
        ("+ 1.0", "+ nothing", "run", "NameError"),
    ],
)
def test_a_kernel_that_does_something_else_is_wrong(
    old: str, new: str, step: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its source is what is run: the plan, which is right, does not help it."""
    right = judging.compiled

    def broken(*args: Any) -> compiler.Kernel:
        kernel = right(*args)
        assert old in kernel.source
        return replace(kernel, emitted=replace(kernel.emitted, text=kernel.source.replace(old, new)))

    assert judge(SENT).outcome == "right"
    monkeypatch.setattr(judging, "compiled", broken)
    monkeypatch.setattr(judging, "DEADLINE_S", 1.0)
    monkeypatch.setattr(judging, "LONG_DEADLINE_S", 1.0)
    verdict = judge(SENT)
    assert (verdict.outcome, verdict.step) == ("wrong", step)
    assert words in str(verdict)


def test_a_wait_that_only_takes_long_is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that are interpreted on a machine with other work may wait for longer than most programs take."""
    run, needed = compiler.Kernel.run, judging.DEADLINE_S + 1

    def slow(kernel: compiler.Kernel, *args: Any, deadline_s: float, **others: Any) -> Any:
        if deadline_s < needed:
            raise DeadlineError("a wait took too long")
        return run(kernel, *args, deadline_s=deadline_s, **others)

    monkeypatch.setattr(compiler.Kernel, "run", slow)
    assert judge(SENT).outcome == "right"
    needed = judging.LONG_DEADLINE_S + 1
    assert (judge(SENT).outcome, judge(SENT).error) == ("wrong", "DeadlineError")


def test_what_is_refused_by_design_is_no_mistake_and_what_is_not_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(SENT.but(SENDING.replace("consumer_tile_wait(h[i])", "v = 1.0"))).error == "OrderingError"
    assert judge(SENT.but("programme p")).error == "ParseError"

    def broken(*_: Any) -> compiler.Kernel:
        raise KeyError("x")

    monkeypatch.setattr(judging, "compiled", broken)
    verdict = judge(SENT)
    assert (verdict.outcome, verdict.step, verdict.error) == ("wrong", "plan", "KeyError")


@pytest.mark.parametrize(
    ("name", "found", "meant", "words"),
    [
        ("y1", [1.0, torch.nan], [1.0, torch.nan], ""),
        ("y1", [1.0, torch.nan], [1.0, 2.0], r"1 of 2 elements of y1 of rank 0 differ, y1[1] is nan, not 2.0"),
        ("y1", [1.0, 2.0], [1.0, torch.nan], "y1[1] is 2.0, not nan"),
        ("y1", [1.0, torch.inf], [1.0, 2.0], "y1[1] is inf, not 2.0"),
        ("y1", [torch.inf, -torch.inf], [torch.inf, torch.inf], "y1[1] is -inf, not inf"),
        ("y1", [1.0, 2.00001], [1.0, 2.0], ""),
        ("y1", [1.0, 2.01], [1.0, 2.0], "y1[1] is 2.0"),
        ("e1", [1.0, 2.00001], [1.0, 2.0], "e1[1]"),
        ("e1", [0.0, -0.0], [0.0, 0.0], "e1[1] is -0.0, not 0.0"),
        ("y1", [0.0, -0.0], [0.0, 0.0], ""),
        ("e1", [1.0, torch.nan], [1.0, torch.nan], ""),
    ],
)
def test_numbers_are_compared_strictly(name: str, found: list[float], meant: list[float], words: str) -> None:
    difference = compared([{name: torch.tensor(found)}], [{name: torch.tensor(meant)}])
    assert words in difference
    assert bool(words) == bool(difference)


def test_integers_are_compared_exactly() -> None:
    one, other = torch.tensor([2**31 - 1], dtype=torch.int32), torch.tensor([2**31 - 2], dtype=torch.int32)
    assert compared([{"y": one}], [{"y": one}]) == ""
    assert compared([{"y": one}], [{"y": other}]) != ""


def test_a_case_is_its_text() -> None:
    one = replace(case(7), dims={"M": 3, "f": float("nan")})
    assert str(read("# a remark\n" + str(one))) == str(one)


def test_a_new_program_of_the_library_changes_its_own_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    library = drawing._library()
    new = replace(library["all_gather"][0], name="new_gather", schedules=())
    more = {"new_gather": (new, ()), **library}
    mine = [number for number in range(400) if by_name(more, number) == "new_gather"]
    others = [number for number in range(8) if number not in mine]

    def drawn(numbers: list[int]) -> list[Case]:
        return [drawing._of_library(random.Random(number), number) for number in numbers]

    before = drawn(others)
    monkeypatch.setattr(drawing, "_library", lambda: more)
    assert drawn(others) == before
    assert 0 < len(mine) < 20 and all("new_gather" in one.features for one in drawn(mine[:2]))


def test_each_program_of_the_library_is_drawn() -> None:
    names = [*drawing._library()]
    count = Counter(by_name(names, number) for number in range(4000))
    assert {*count} == {*names} and max(count.values()) < 3 * min(count.values())


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_number_draws_one_case(seed: int) -> None:
    assert str(case(seed)) == str(case(seed))
    assert str(case(seed)) != str(case(seed + 1))


@pytest.mark.parametrize("kind", sorted({*MOVERS, *MAKERS, *RARE}, key=str), ids=lambda kind: kind.__name__)
def test_every_kind_of_stage_is_in_the_language(kind: Any) -> None:
    """Of a few draws at least one passes the checker: a kind that never does tests nothing."""
    for seed in range(20):
        w = Writer(rng=random.Random(seed), ranks=2)
        kind(w)
        with contextlib.suppress(TileLinkError):
            bound = compiler.bound(compiler.parse(w.text()).program(), ranks=2, dims=w.dims)
            assert any(stage.stage.body for stage in bound.stages.values()), "it draws no stage"
            return
    pytest.fail("the checker refuses all of it")


def test_every_kind_of_mistake_is_made() -> None:
    text = "program p(M):\n    n : in [M] <= M\n    x : in [M]\n    y : out [M]\n    comm f(b: M):\n"
    text += (
        "        if rank != 1:\n            producer_tile_notify(h[t1[b], :] @ (rank + 1))\n        y[rank, b] = x[b]\n"
        "        for (q: M[: n[b]] by 1):\n            y[q, b] = x[b]\n"
    )
    rng = random.Random(0)
    kinds = {kind for _ in range(4000) for kind in spoiled(rng, text, 1)[1]}
    assert len(kinds) == len({change.__name__ for change in CHANGES})


def test_a_wrong_case_is_made_smaller() -> None:
    text = SENDING + "\nschedule s for p:\n    send tile(i=4), num_warps 4\n    add num_stages 2\n"

    def wrong(one: Case) -> bool:
        return "y[i] =" in one.text and "num_warps 4" in one.text

    least = smaller(SENT.but(text), wrong).text
    assert "num_warps 4" in least
    assert "y[i] = h[i] + 1.0" in least
    assert not any(word in least for word in ("consumer_tile_wait", "tile_push_data", "num_stages 2", "tile(", "x :"))


def test_a_few_of_each_kind_of_wrong_are_kept() -> None:
    count = Count()
    wrong = Verdict(case=SENT, outcome="wrong", step="compare", reason="launch 0: 5 of 5 elements of y3 differ")
    assert count.add(wrong)
    again = [count.add(replace(wrong, reason="launch 1: 4 of 7 elements of y9 differ")) for _ in range(ALIKE)]
    assert not again[-1]
    assert count.add(replace(wrong, step="run", error="RankError", reason="it broke"))
    assert not count.add(Verdict(case=SENT, outcome="refused", step="plan", error="ShapeError"))
    assert (count.programs, count.accepted) == (ALIKE + 3, ALIKE + 2)
    assert "| refused | 1 |" in count.text()
    assert [(len(one["numbers"]), one["after"]) for one in count.json()["wrong"]] == [(ALIKE + 1, 1), (1, ALIKE + 2)]


def test_every_buffer_is_used_again() -> None:
    for buffers in (1, 3):
        text = SENDING + f"\nschedule s for p:\n    h buffers {buffers}\n"
        module = compiler.parse(text)
        kernel = judging.compiled(SENT.but(text), module.program(), module.schedules[0])
        assert judging.launches_of(kernel) == buffers + 1


def test_every_two_clauses_that_do_not_replace_each_other_come_together() -> None:
    found = [both for program, both in pairs() if program.name == "all_gather"]
    every = [one for both in found for one in both]
    assert {one.kind for one in every} == {*STAGE_CLAUSES, *TENSOR_CLAUSES, *WHOLE}
    assert len(set(found)) == len(found) and not any(one.group == other.group for one, other in found)
    assert len(found) > 250 and pair_case(7) == pair_case(7)


@pytest.mark.parametrize("pairs", [range(14, 28), pytest.param(range(60), marks=pytest.mark.thorough)], ids=len)
def test_a_sample_of_pairs_is_refused_or_right(pairs: range) -> None:
    verdicts = [judge(pair_case(number)) for number in pairs]
    assert not [f"{v}\n{v.case}" for v in verdicts if v.outcome == "wrong"]
    assert sum(v.outcome == "right" for v in verdicts) >= max(1, len(pairs) // 24)  # most do not fit together
