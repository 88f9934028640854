"""Sensitive intermediates expire: finding what is due and deleting it for real.

What belongs here: which outputs have outlived their contract's retention, and removing whole directories (a Delta
table's log keeps column minima and maxima, names among them, after a delete and vacuum, so files go, not rows). What
does not: the ledger's record of a deletion and its lineage event; the caller writes both from what `purge` returns.

Records stay: they hold no rows, and they are what tells a later step that its input is gone.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.contracts import DataContract
from dpsynth_platform.storage import STEPS, Place, Storage

SUPERSEDED_AFTER = dt.timedelta(hours=1)
"""How long an output that no record names is kept: a step may still be writing or reading it."""


@dataclass(frozen=True)
class Expired:
    """One output directory that is due.

    Attributes:
        reason: `expired` (older than the contract allows) or `superseded` (no record names it).
        age: time since it was last written.
    """

    place: Place
    step: str
    directory: Path
    reason: str
    age: dt.timedelta


def due(storage: Storage, contracts: Iterable[DataContract], now: dt.datetime) -> list[Expired]:
    """Outputs whose time is up, in the order of the asset line."""
    found = []
    by_name = {contract.dataset: contract for contract in contracts}
    for place in storage.places():
        contract = by_name.get(place.dataset)
        if contract is None:
            continue
        for step in STEPS:
            record = storage.read(place, step)
            current = Path(record.path) if record and record.path else None
            limit = contract.retention.of(step)
            for directory in storage.outputs(place, step):
                age = now - dt.datetime.fromtimestamp(_last_written(directory), dt.UTC)
                if directory == current and limit is not None and age >= limit:
                    found.append(Expired(place, step, directory, "expired", age))
                elif directory != current and age >= _grace(step, limit):
                    found.append(Expired(place, step, directory, "superseded", age))
    return found


def purge(item: Expired) -> None:
    """Deletes one output with everything below it; what is already gone is fine."""
    if item.directory.exists():
        shutil.rmtree(item.directory)


def _grace(step: str, limit: dt.timedelta | None) -> dt.timedelta:
    # Measurements that a crashed mechanism left are paid for: they wait for their estimation as long as a model may.
    return limit if step == "model" and limit is not None else SUPERSEDED_AFTER


def _last_written(directory: Path) -> float:
    return max((path.stat().st_mtime for path in [directory, *directory.rglob("*")]), default=0.0)
