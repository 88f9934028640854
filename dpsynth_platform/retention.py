"""Sensitive intermediates expire: finding what is due and deleting it for real.

What belongs here: which outputs have outlived their contract's retention, which logs are old, and removing whole
directories (a Delta table's log keeps column minima and maxima, names among them, after a delete and vacuum, so files
go, not rows). What does not: the ledger's record of a deletion and its lineage event (`purging`).

Records stay: they hold no rows, and they are what tells a later step that its input is gone.
"""

from __future__ import annotations

import datetime as dt
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.contracts import DataContract, Retention
from dpsynth_platform.restricted_log import logs_of
from dpsynth_platform.storage import MODELS, SCORES, STEPS, Place, Storage

HANDED = "-job"
"""At the end of the name of a directory of what a worker is handed (`assets.model`)."""
SUPERSEDED_AFTER = dt.timedelta(days=1)
"""How long an output that no record names is kept: a step may still be writing or reading it."""
LOGS_KEPT = dt.timedelta(days=7)
"""How long restricted logs are kept: libraries' words in them may quote data."""
LOG = "log"


@dataclass(frozen=True)
class Expired:
    """One output directory, or one log, that is due.

    Attributes:
        place: whose output it is, or None for a log.
        step: the step, or `log`.
        reason: `expired` (older than the contract allows) or `superseded` (no record names it).
        age: time since it was last written.
    """

    place: Place | None
    step: str
    path: Path
    reason: str
    age: dt.timedelta

    @property
    def label(self) -> str:
        """`census`, `visits/2026-01`, or `logs`."""
        return "logs" if self.place is None else self.place.label


def due(storage: Storage, contracts: Iterable[DataContract], now: dt.datetime) -> list[Expired]:
    """Outputs whose time is up, in the order of the asset line, then logs."""
    found = []
    declared = {contract.dataset: contract.retention for contract in contracts}
    for place in storage.places():
        retention = declared.get(place.dataset) or _sealed(storage, place)
        for step in (*STEPS, SCORES):
            record = storage.read(place, step)
            current = Path(record.path) if record and record.path else None
            limit = retention.of(step)
            for directory in storage.outputs(place, step):
                age = _age(directory, now)
                if step == "canaries":  # however old, they go with the model and not before it
                    models = (model for name in MODELS for model in storage.outputs(place, name))
                    age = min([age, *(_age(model, now) for model in models)])
                if directory == current and limit is not None and age >= limit:
                    found.append(Expired(place, step, directory, "expired", age))
                elif directory != current and age >= _grace(step, limit, directory):
                    found.append(Expired(place, step, directory, "superseded", age))
    for log in sorted(logs_of(storage.root).glob("*.log")):
        age = _age(log, now)
        if age >= LOGS_KEPT:
            found.append(Expired(None, LOG, log, "expired", age))
    return found


def purge(item: Expired) -> None:
    """Deletes one output with everything below it, or one log; what is already gone is fine."""
    if item.path.is_dir():
        shutil.rmtree(item.path)
    else:
        item.path.unlink(missing_ok=True)


def _sealed(storage: Storage, place: Place) -> Retention:
    """What the contract of a dataset without one (its file was removed) last said: its outputs expire all the same."""
    raw = storage.read(place, "raw")
    return Retention() if raw is None else Retention.model_validate(raw.facts["contract"]["retention"])


def _grace(step: str, limit: dt.timedelta | None, output: Path) -> dt.timedelta:
    # What a crashed mechanism left is paid for: it waits for its estimation, or for training to go on, as long as a
    # model may. What its worker was handed (the participants, the key of its checkpoints) is handed anew.
    waits = step in MODELS and not output.name.endswith(HANDED)
    return limit if waits and limit is not None else SUPERSEDED_AFTER


def _age(output: Path, now: dt.datetime) -> dt.timedelta:
    """Time since anything in it was written. A file that a step removes in this moment counts as written now."""
    try:
        written = max(path.stat().st_mtime for path in (output, *output.rglob("*")))
    except FileNotFoundError:
        return dt.timedelta()
    return now - dt.datetime.fromtimestamp(written, dt.UTC)
