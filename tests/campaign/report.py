"""What a campaign counted, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.campaign.judge import OUTCOMES, Verdict

ALIKE = 8
"""How many of the wrong ones that look alike are named."""


@dataclass(kw_only=True)
class Count:
    """Counts of verdicts. wrong: signature -> the first verdict of it, and after how many programs it came.

    numbers: signature -> the numbers of all its cases.
    """

    outcomes: Counter[str] = field(default_factory=Counter[str])
    refusals: Counter[str] = field(default_factory=Counter[str])
    clean: Counter[str] = field(default_factory=Counter[str])
    drawn: Counter[str] = field(default_factory=Counter[str])
    run: Counter[str] = field(default_factory=Counter[str])
    wrong: dict[str, tuple[Verdict, int]] = field(default_factory=dict[str, tuple[Verdict, int]])
    numbers: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    seconds: float = 0.0

    @property
    def programs(self) -> int:
        return sum(self.outcomes.values())

    @property
    def accepted(self) -> int:
        return self.programs - self.outcomes["refused"] - self.outcomes["wrong"] + self._wrong_when_run()

    def _wrong_when_run(self) -> int:
        return sum(len(found) for name, found in self.numbers.items() if not name.startswith(("read", "plan")))

    def add(self, verdict: Verdict) -> bool:
        """Count one; whether it is wrong in a way that few before were."""
        self.outcomes[verdict.outcome] += 1
        features = verdict.case.features
        self.drawn.update(features)
        if verdict.outcome == "refused":
            self.refusals[verdict.error] += 1
            if not {"with a mistake", "library"} & set(features) and not any(f.startswith("clause") for f in features):
                self.clean[verdict.error] += 1
            return False
        self.run.update(features)
        if verdict.outcome != "wrong":
            return False
        numbers = self.numbers.setdefault(verdict.signature, [])
        numbers.append(verdict.case.seed)
        self.wrong.setdefault(verdict.signature, (verdict, self.programs))
        return len(numbers) <= ALIKE

    def text(self) -> str:
        """A page of it."""
        lines = [f"{self.programs} programs in {self.seconds:.0f} s, {self.accepted} accepted and run", ""]
        lines += ["| outcome | programs |", "|---|---|", *(f"| {n} | {self.outcomes[n]} |" for n in OUTCOMES)]
        lines += ["", "| refused by | programs | with neither mistake nor schedule |", "|---|---|---|"]
        lines += [f"| {name} | {count} | {self.clean[name] or ''} |" for name, count in self.refusals.most_common()]
        lines += ["", "| feature | drawn | not refused | share of these |", "|---|---|---|---|"]
        whole = max(1, self.programs - self.outcomes["refused"])
        for name, count in sorted(self.drawn.items()):
            lines.append(f"| {name} | {count} | {self.run[name]} | {100 * self.run[name] / whole:.1f} % |")
        lines += ["", "| wrong | programs | first after | numbers |", "|---|---|---|---|"]
        for signature, (_, after) in self.wrong.items():
            numbers = self.numbers[signature]
            some = ", ".join(map(str, numbers[:ALIKE]))
            lines.append(f"| {signature} | {len(numbers)} | {after} | {some} |")
        return "\n".join(lines) + "\n"

    def json(self) -> dict[str, Any]:
        """The same as values."""
        wrong = [
            {"reason": str(v), "numbers": self.numbers[s], "after": after, "case": str(v.case)}
            for s, (v, after) in self.wrong.items()
        ]
        return {
            "programs": self.programs,
            "accepted": self.accepted,
            "seconds": self.seconds,
            "outcomes": dict(self.outcomes),
            "refusals": dict(self.refusals),
            "refused without mistake or schedule": dict(self.clean),
            "drawn": dict(self.drawn),
            "run": dict(self.run),
            "wrong": wrong,
        }
