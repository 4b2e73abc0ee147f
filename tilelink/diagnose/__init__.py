"""Post-mortem of a launch that hangs: what the ranks have seen, joined with the plan in a graph of waits with a root.

Notifies only ever add, and the order of a program is that of the plan. So each program has come, at most, to its first
wait that the counters do not satisfy: all notifies before it are *presumed*. A counter that has fewer notifies than are
presumed is short of those of a program that is *late*: it waits for nothing, so it computes, is dead, or is slow. A
program some later notify of which has come has sent the earlier ones, so one that is missing then is *lost*. What a
wait lacks otherwise is of programs that wait themselves, and so on to a root: a late program, a lost notify, a rank
that has not begun the launch, has died or has written no dump, a wait for more than there is, or a circle of waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tilelink.diagnose.progress import Progress
from tilelink.diagnose.report import Report, Root, report_of, said_ranks
from tilelink.diagnose.waits import Waits
from tilelink.dump import Dump, Seen
from tilelink.planning.plan import Plan

__all__ = ["Report", "Root", "diagnose", "of_dumps"]


def of_dumps(dumps: Sequence[Dump], plan: Plan) -> Report:
    """Return the diagnosis of a hang from the dumps of its ranks. plan: of the program that most of them run."""
    usual = Counter(dump.fingerprint for dump in dumps).most_common()
    if len(usual) > 1:
        odd = [dump for dump in dumps if dump.fingerprint != usual[0][0]]
        tie = usual[0][1] == usual[1][1]
        runs = "runs" if len(odd) == 1 else "run"
        text = f"{said_ranks([d.seen.rank for d in odd])} {runs} another program than the others: {odd[0].program} "
        text += f"{odd[0].fingerprint}, not {dumps[0].program if tie else _named(dumps, usual[0][0])} {usual[0][0]}"
        root = Root(kind="differs", rank=odd[0].seen.rank if len(odd) == 1 else None, text=text,
                    others=tuple(d.seen.rank for d in odd), explains=len(dumps))  # fmt: skip
        lines = [f"rank {d.seen.rank}: {d.program} {d.fingerprint}, launch {d.seen.launch}" for d in dumps]
        return Report(roots=(root,), chain=(), ranks=tuple(lines))
    return diagnose(plan, [dump.seen for dump in dumps])


def _named(dumps: Sequence[Dump], fingerprint: str) -> str:
    return next(dump.program for dump in dumps if dump.fingerprint == fingerprint)


def diagnose(plan: Plan, seen: Iterable[Seen], *, whole: bool = True) -> Report:
    """Return the diagnosis of a hang from what some of its ranks have seen, all of one plan.

    whole: False if other ranks may have seen more, so that none of them is taken for dead.
    """
    return report_of(Waits(Progress(plan, {one.rank: one for one in seen}), whole=whole))
