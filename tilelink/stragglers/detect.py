"""The detector: which part is slower than its likes, in which launches, and who only waits for it.

Three comparisons, as monitors of training clusters make them. *Between ranks*: a column is compared with those of other
ranks that do the same, after both are divided by the predicted launch, if there is one; what most ranks have in common
is taken away. *Over time*: medians of windows of launches, so that single late launches do not count, and a cause must
last for several windows; then the launches in which a part is far slower than around them, if its likes never are.
*With the plan*: what a rank does itself (computing, transfers, launching) is recorded apart from its waits for others,
so victims, which only wait, are never slow themselves.

A *suspect* is a set of columns that one cause would slow down together: the tiles of a rank or of some SMs, the
transfers of a link, of a rank's port or of its copy engine, the gaps of a host. The one that explains most is a cause;
what it explains is taken away, and the rest is searched again. Waits name a rank only if nothing else is found.
"""

from __future__ import annotations

import numpy as np

from tilelink.stragglers.evidence import Evidence
from tilelink.stragglers.intermittent import intermittent
from tilelink.stragglers.steady import causes_of, late
from tilelink.stragglers.suspects import Found, suspects

LESSER = 0.05
"""Part of what the first cause takes that another one must take to be said."""
SHARED = 0.4
"""The same for links."""
FAST = 0.97
"""Part of its calibrated rate from which no part is slow."""
ROUGHLY = 0.88
"""The same for links, if nothing changes."""
UNEQUAL = 0.05
"""Part of the gap between launches of all ranks by which that of one must be longer: no two hosts take equally long."""
EVENTS_S = 5e-6
"""Seconds by which a traced operation of a copy engine must be slower: events around it differ by that between GPUs."""


def find(evidence: Evidence) -> list[Found]:
    """Return the causes, the one that costs most first; none if no part is slower than its likes for long enough.

    What a rank does itself comes first. Waits tell who is late only where nothing else is found.
    """
    every = list(suspects(evidence))
    hosts = [one for one in every if one.kind in ("host", "start")]  # their seconds are compared with those of a launch
    others = [one for one in every if one.kind not in ("host", "start")]
    causes = causes_of(evidence, hosts, sms=False) + causes_of(evidence, others, sms=True)
    causes = [one for one in causes if one.seconds > evidence.least * evidence.took and not _fast(evidence, one)]
    known = {(one.suspect.kind, one.suspect.rank) for one in causes}
    rare = intermittent(evidence, hosts, others)
    if rare is not None and (rare.suspect.kind, rare.suspect.rank) not in known:  # what lasts is seldom worse by chance
        causes.append(rare)
    causes = [one for one in causes if _exceeds(evidence, one)]
    waited = late(evidence)
    told = waited is not None and any(one.suspect.rank == waited.suspect.rank for one in causes)
    if waited is not None and not told and all(_shares(one) and _minor(one, waited) for one in causes):
        causes.append(waited)
    direct = not all(_shares(one) for one in causes)
    causes.sort(key=lambda one: -one.seconds * (SHARED if _shares(one) and direct else 1.0))
    return [one for n, one in enumerate(causes) if not (n and _minor(one, causes[0]))]


def speed(evidence: Evidence, cause: Found) -> float:
    """Return how fast a part is, in the speed of the norm; of gaps and waits, what a launch takes of its time then."""
    own = cause.suspect.columns
    if bool(evidence.additive[own].all()):
        return 1.0 / (1.0 + cause.slower)
    usual = np.nan_to_num(evidence.offset[own]) if evidence.traces.norm is not None else np.zeros(1)
    return float(np.exp(-cause.slower - usual.mean()))


def _fast(evidence: Evidence, cause: Found) -> bool:
    """True if a part is as fast as it is calibrated to be: then its likes are faster, by chance or by their work.

    Transfers that meet fewer others than those of the norm are faster; one that always takes what it should is well.
    """
    always = _shares(cause) and cause.since == evidence.traces.table.first
    return evidence.traces.norm is not None and speed(evidence, cause) > (ROUGHLY if always else FAST)


def _exceeds(evidence: Evidence, cause: Found) -> bool:
    """True unless a cause is within what hosts, or events around copies, take more or less on other ranks."""
    own = cause.suspect.columns
    if cause.suspect.kind in ("host", "start"):
        return cause.slower * evidence.took > UNEQUAL * evidence.gap
    events = evidence.traces.programs & evidence.of("engine_out", "engine_in", "call")[own]
    return not events.any() or cause.seconds > EVENTS_S * float(evidence.counts[own][events].sum())


def _minor(cause: Found, first: Found) -> bool:
    """True if a cause need not be said after the first one: it takes little, or may come from it.

    Transfers share links, so a rank that comes at another time than usual changes how long those of others take.
    """
    return cause.seconds < (SHARED if _shares(cause) else LESSER) * first.seconds


def _shares(cause: Found) -> bool:
    return cause.suspect.kind in ("link", "port")
