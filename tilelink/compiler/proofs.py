"""Proofs that are kept: a program that prints as one that was proved safe is not planned and asked again.

A proof is of a lowered program, whatever source, schedule and sizes it comes from, so it is kept by the text of that
(lowering/listing.py), the values of tables, and the files of this package: another version has other rules. Kept is
what of a verified plan does not follow from its bound program at once: thresholds, the order of copy engines, and which
blocks stood for all; and what its schedule alone orders. Columns of the plan are made when somebody asks for them.

A proof by a few blocks is kept by what it says, too (planning/statement.py): a program of other sizes that says the
same is asked for its own numbers alone. In a file is a hash of what it is kept by and of all that it has.
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
from tilelink.data import checked, parse_json, plain, read_json
from tilelink.errors import DataError
from tilelink.lowering.bound import Bound
from tilelink.lowering.listing import listing
from tilelink.lowering.walk import executions
from tilelink.planning.cutoff import Cutoff, cutoff
from tilelink.planning.plan import Plan, Representatives
from tilelink.planning.statement import statement
from tilelink.settings import settings
from tilelink.verifier import BY_CUTOFF, RULES
from tilelink.verifier.by_schedule import Scheduled, by_schedule
from tilelink.verifier.cutoff import SmallProof, proved_before, safe_plan, small_proof

MANY = 1 << 13
"""Executions of statements from which on a proof takes longer than it does to find it."""
COUNTERS = 1 << 16
"""Thresholds up to which it is faster to read them than to make them of a small program's."""
_log = logging.getLogger("tilelink.proofs")
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The part of a verified plan that is kept.

    representatives: what was asked of it. thresholds: grid by grid.
    """

    representatives: Representatives
    own_copies_first: bool
    waits_aside: bool
    thresholds: tuple[np.ndarray[Any, np.dtype[np.int64]], ...]

    @classmethod
    def of(cls, plan: Plan) -> Proof:
        """Return what is kept of a verified plan."""
        return cls(
            representatives=plan.representatives,
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
    file = _file("proof", bound, listing(bound), tables or {})
    known = None if file is None else _kept(Proof, file)
    shapes = [(bound.ranks, *grid.counts) for grid in bound.channels.values()]
    if known is not None and [one.shape for one in known.thresholds] == shapes:
        return proved_before(
            bound,
            tables,
            thresholds=dict(zip(bound.channels, known.thresholds, strict=True)),
            representatives=known.representatives,
            own_first=known.own_copies_first,
            waits_aside=known.waits_aside,
        )
    plan = safe_plan(bound, tables, on_rule, _small_proof)
    counters = sum(one.size for one in plan.thresholds.values())
    if file is not None and not (plan.representatives and counters > COUNTERS):
        _keep(file, Proof.of(plan))
    return plan


def _small_proof(
    part: Cutoff, tables: Mapping[str, NDArray[Any]] | None = None
) -> tuple[SmallProof, Plan | None] | None:
    """Return what is proved of a small program, as it is kept of another size, or else by asking the rules."""
    file = _file("blocks", part.whole, statement(part), tables or {})
    known = None if file is None else _kept(SmallProof, file)
    if known is not None and part.thresholds(known.counts) is not None:
        return known, None
    found = small_proof(part, tables)
    if found is not None and file is not None:
        _keep(file, found[0])
    return found


def scheduled(plan: Plan, tables: Mapping[str, NDArray[Any]]) -> tuple[Scheduled, ...]:
    """Return what the schedule of a verified plan alone orders (`by_schedule`)."""
    part = cutoff(plan.bound) if plan.representatives else None
    said = listing(plan.bound) if part is None else statement(part)
    file = _file("order", plan.bound, f"{plan.bound.source}\n{said}", tables)
    known = None if file is None else _kept(_Order, file)
    if known is None:
        known = _Order(found=tuple(by_schedule(plan)))
        if file is not None:
            _keep(file, known)
    return known.found


def _file(kind: str, bound: Bound, said: str, tables: Mapping[str, NDArray[Any]]) -> Path | None:
    """Return where something of a program is kept, None if nothing is: of few tiles, or if there are other rules.

    said: the text of the program, or of what a part of it proves.
    """
    if not settings().proofs or executions(bound) < MANY or dict(RULES) != dict(BY_CUTOFF):
        return None
    found = hashlib.sha256(f"{package()}\n{said}".encode())
    for name, values in sorted(tables.items()):
        array = np.ascontiguousarray(values)
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    return settings().cache / "proofs" / f"{kind}-{found.hexdigest()}.json"


@cache
def package() -> str:
    """Return a hash of the package's files: another version proves, and generates, other programs."""
    root = Path(files.__file__).parent
    found = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in (".py", ".j2", ".lark")):
        found.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _kept(kind: type[T], file: Path) -> T | None:
    """Return what is in a file, or None. Whoever writes it decides what runs, so it must be this user or root.

    A file that was cut, edited or renamed has another hash, and does not count.
    """
    try:
        if not file.exists():
            return None
        if why := files.distrusted(file):
            raise DataError(f"{file} is not used: {why}", hint=files.OWN)
        found = checked(_Sealed, read_json(file), str(file))
        if found.hash != _hash(file, found.value):
            raise DataError(f"{file} is not used: it is not what was written", hint="remove it")
        return checked(kind, parse_json(found.value.encode(), str(file)), str(file))
    except (DataError, OSError) as error:
        _log.warning("%s", error)
        return None


@dataclass(frozen=True, kw_only=True)
class _Sealed:
    """A value that is kept, as JSON text, and its hash."""

    value: str
    hash: str


def _hash(file: Path, value: str) -> str:
    """Return the hash of a file's content and of what it is kept by, which is in its name."""
    return hashlib.sha256(f"{file.name}\n{value}".encode()).hexdigest()


def _keep(file: Path, value: object) -> None:
    text = json.dumps(plain(value))
    try:
        files.make_folder(file.parent)
        files.replace(file, json.dumps(plain(_Sealed(value=text, hash=_hash(file, text)))).encode(), mode=0o600)
    except OSError as error:
        _log.warning("%s cannot be written: %s", file, files.reason(error))
