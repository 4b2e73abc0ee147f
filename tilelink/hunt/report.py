"""What a hunt found: as text, as JSON values, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilelink.hunt.anomaly import KINDS, US
from tilelink.hunt.cases import Case, Hunted


def text(found: Hunted) -> str:
    """Return a report for a terminal."""
    lines = [line for number, case in enumerate(found.cases, 1) for line in _lines(number, case)]
    refused = [f"  {why}, the first: {error.message}" for why, error in sorted(found.reasons.items())]
    return "\n".join([headline(found), *refused, *lines])


def headline(found: Hunted) -> str:
    count = len(found.cases)
    refused = ", ".join(f"{n} {why}" for why, n in sorted(found.refused.items())) or "none"
    cases = f"{count} case{'s' if count != 1 else ''}" if count else "nothing"
    told = f"ended by {found.ended}; refused: {refused}"
    return f"{cases} found in {found.rated} launches, {found.elapsed:.0f} s ({told})"


def _lines(number: int, case: Case) -> Iterator[str]:
    anomaly = case.anomaly
    yield f"{number}. {case.subject.name}: {anomaly.ratio:.2f} x, {KINDS[anomaly.kind]}{_worst(case)}"
    yield f"   {anomaly.seconds * US:.1f} us against {anomaly.against * US:.1f} us of {anomaly.reference}"
    yield f"   cause: {anomaly.cause.text}"
    if case.conditions:
        yield f"   when: {when(case)}"
    yield f"   {case.subject.command(case.choices)}"


def _worst(case: Case) -> str:
    return f" (up to {case.worst:.2f} x)" if case.worst > 1.05 * case.anomaly.ratio else ""


def when(case: Case) -> str:
    """Return the conditions of a case in words: those that matter, and the features that do not."""
    matter = [one.text for one in case.conditions if not one.every]
    others = [one.feature for one in case.conditions if one.every and _varies(case, one.feature)]
    told = ", ".join(matter) or "always"
    return f"{told}; whatever {', '.join(others)}" if others else told


def _varies(case: Case, name: str) -> bool:
    return any(one.name == name and len(one.labels) > 1 for one in case.subject.features)


def as_json(found: Hunted) -> dict[str, Any]:
    """Return a report as JSON values; seconds."""
    return {
        "rated": found.rated, "refused": dict(found.refused), "ended": found.ended,
        "reasons": {why: error.message for why, error in found.reasons.items()},
        "cases": [
            {
                "name": case.subject.name, "kind": case.anomaly.kind, "what": KINDS[case.anomaly.kind],
                "ratio": round(case.anomaly.ratio, 4), "worst": round(case.worst, 4),
                "seconds": case.anomaly.seconds, "against": case.anomaly.against, "reference": case.anomaly.reference,
                "cause": case.anomaly.cause.text, "point": dict(case.subject.said(case.choices)),
                "conditions": {one.feature: one.text for one in case.conditions if not one.every},
                "irrelevant": [one.feature for one in case.conditions if one.every and _varies(case, one.feature)],
                "explained": bool(case.conditions), "found": case.found, "command": case.subject.command(case.choices),
            }
            for case in found.cases
        ],
    }  # fmt: skip


def markdown(found: Hunted, title: str) -> str:
    """Return a report as a section of a document, with a table and the commands under it."""
    rows = [
        f"| {number} | {case.subject.name} | {KINDS[case.anomaly.kind]} | {case.anomaly.ratio:.2f} | "
        f"{case.anomaly.seconds * US:.1f} | {case.anomaly.against * US:.1f} | {case.anomaly.cause.text} | "
        f"{when(case)} |"
        for number, case in enumerate(found.cases, 1)
    ]
    head = ["| | of | what | x | us | against us | cause | when |", "|---|---|---|---|---|---|---|---|"]
    commands = [f"{case.subject.command(case.choices)}" for case in found.cases]
    parts = [f"## {title}", "", f"{headline(found)}.", ""]
    return "\n".join([*parts, *([*head, *rows, "", "```", *commands, "```", ""] if rows else [])])
