"""Proofs that are kept: a program that prints as one that was proved safe is not planned and asked again.

A proof is of a lowered program, whatever source, schedule and sizes it comes from, so it is kept by the text of that
(lowering/listing.py), the values of tables, and the files of this package: another version has other rules. Kept is
what of a verified plan does not follow from its bound program at once: thresholds, the order of copy engines, and which
blocks stood for all; and what its schedule alone orders. Columns of the plan are made when somebody asks for them.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tilelink import files
from tilelink.data import checked, plain, read_json
from tilelink.errors import DataError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.planning.plan import Plan
from tilelink.settings import settings
from tilelink.verifier import BY_CUTOFF, RULES
from tilelink.verifier.by_schedule import Scheduled, by_schedule
from tilelink.verifier.cutoff import executions, proved_before, safe_plan

MANY = 1 << 13
"""Executions of statements from which on a proof takes longer than it does to find it."""
_log = logging.getLogger("tilelink.proofs")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The part of a verified plan that is kept.

    blocks: those that stand for all, in words. thresholds: grid by grid.
    """

    blocks: str
    own_copies_first: bool
    waits_aside: bool
    thresholds: tuple[np.ndarray[Any, np.dtype[np.int64]], ...]

    @classmethod
    def of(cls, plan: Plan) -> Proof:
        """Return what is kept of a verified plan."""
        return cls(
            blocks=plan.stands_for_all,
            own_copies_first=any(kernel.own_copies_first for kernel in plan.bound.kernels),
            waits_aside=any(kernel.waits_aside for kernel in plan.bound.kernels),
            thresholds=tuple(plan.thresholds[key] for key in plan.bound.channels),
        )


@dataclass(frozen=True, kw_only=True)
class _Order:
    """The reads after writes that a schedule alone orders."""

    found: tuple[Scheduled, ...]


def proved(
    bound: Bound, tables: Mapping[str, NDArray[Any]] | None = None, on_rule: Callable[[str], None] | None = None
) -> Plan:
    """Return the verified plan of a bound program (`safe_plan`), by a kept proof if there is one of it.

    on_rule: called with the name of each rule that is checked. Raises VerificationError.
    """
    file = _file("proof", bound, tables or {})
    known = None if file is None else _kept(Proof, file)
    shapes = [(bound.ranks, *grid.counts) for grid in bound.channels.values()]
    if known is not None and [one.shape for one in known.thresholds] == shapes:
        return proved_before(
            bound,
            tables,
            thresholds=dict(zip(bound.channels, known.thresholds, strict=True)),
            blocks=known.blocks,
            own_first=known.own_copies_first,
            waits_aside=known.waits_aside,
        )
    plan = safe_plan(bound, tables, on_rule)
    if file is not None:
        _keep(file, Proof.of(plan))
    return plan


def scheduled(plan: Plan, tables: Mapping[str, NDArray[Any]]) -> tuple[Scheduled, ...]:
    """Return what the schedule of a verified plan alone orders (`by_schedule`)."""
    file = _file(f"order of {plan.bound.source}", plan.bound, tables)
    known = None if file is None else _kept(_Order, file)
    if known is None:
        known = _Order(found=tuple(by_schedule(plan)))
        if file is not None:
            _keep(file, known)
    return known.found


def _file(what: str, bound: Bound, tables: Mapping[str, NDArray[Any]]) -> Path | None:
    """Return where something of a program is kept, None if nothing is: of few tiles, or if there are other rules."""
    if not settings().proofs or executions(bound) < MANY or dict(RULES) != dict(BY_CUTOFF):
        return None
    found = hashlib.sha256(f"{what}\n{package()}\n{listing(bound)}".encode())
    for name, values in sorted(tables.items()):
        array = np.ascontiguousarray(values)
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    return settings().cache / "proofs" / f"{found.hexdigest()}.json"


@cache
def package() -> str:
    """Return a hash of the package's files: another version proves, and generates, other programs."""
    root = Path(files.__file__).parent
    found = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".j2", ".lark")):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _kept(kind: type[T], file: Path) -> T | None:
    """Return what is in a file, or None. Whoever writes it decides what runs, so it must be this user or root."""
    try:
        if not file.exists():
            return None
        if why := files.distrusted(file):
            raise DataError(f"{file} is not used: {why}", hint=files.OWN)
        return checked(kind, read_json(file), str(file))
    except (DataError, OSError) as error:
        _log.warning("%s", error)
        return None


def _keep(file: Path, value: object) -> None:
    try:
        files.make_folder(file.parent)
        files.replace(file, json.dumps(plain(value)).encode(), mode=0o600)
    except OSError as error:
        _log.warning("%s cannot be written: %s", file, files.reason(error))
