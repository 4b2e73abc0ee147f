"""What a campaign counted, as text and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.campaign.judge import OUTCOMES, Verdict


@dataclass(kw_only=True)
class Count:
    """Counts of verdicts. wrong: signature -> the first verdict of it, and how many programs had been drawn before."""

    outcomes: Counter[str] = field(default_factory=Counter[str])
    refusals: Counter[str] = field(default_factory=Counter[str])
    clean: Counter[str] = field(default_factory=Counter[str])
    drawn: Counter[str] = field(default_factory=Counter[str])
    run: Counter[str] = field(default_factory=Counter[str])
    wrong: dict[str, tuple[Verdict, int]] = field(default_factory=dict[str, tuple[Verdict, int]])
    times: Counter[str] = field(default_factory=Counter[str])
    seconds: float = 0.0

    @property
    def programs(self) -> int:
        return sum(self.outcomes.values())

    @property
    def accepted(self) -> int:
        return self.programs - self.outcomes["refused"] - self.outcomes["wrong"] + self._wrong_when_run()

    def _wrong_when_run(self) -> int:
        return sum(n for name, n in self.times.items() if not name.startswith(("read", "plan")))

    def add(self, verdict: Verdict) -> bool:
        """Count one; whether it is wrong in a way that none before was."""
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
        self.times[verdict.signature] += 1
        if verdict.signature in self.wrong:
            return False
        self.wrong[verdict.signature] = (verdict, self.programs)
        return True

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
        lines += ["", "| wrong | programs | first after | seed |", "|---|---|---|---|"]
        for signature, (verdict, after) in self.wrong.items():
            lines.append(f"| {signature} | {self.times[signature]} | {after} | {verdict.case.seed} |")
        return "\n".join(lines) + "\n"

    def json(self) -> dict[str, Any]:
        """The same as values."""
        wrong = [
            {"reason": str(v), "seed": v.case.seed, "after": after, "times": self.times[s], "case": str(v.case)}
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


def counted(verdicts: Sequence[Verdict]) -> Count:
    count = Count()
    for verdict in verdicts:
        count.add(verdict)
    return count
