"""Sensitive intermediates expire: finding what is due and deleting it for real.

What belongs here: which outputs have outlived their contract's retention, which logs are old, what killed processes
left behind, and removing whole directories (a Delta table's log keeps column minima and maxima, names among them, after
a delete and vacuum, so files go, not rows). What does not: the ledger's record of a deletion and its lineage event
(`purging`).

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
from dpsynth_platform.scratch import abandoned, last_written
from dpsynth_platform.storage import MODELS, SCORES, STEPS, HeldByAnother, Place, Storage, held

HANDED = "-job"
"""At the end of the name of a directory of what a worker is handed (`assets.model`)."""
SUPERSEDED_AFTER = dt.timedelta(days=1)
"""How long an output that no record names is kept: a step may still be writing or reading it."""
LOGS_KEPT = dt.timedelta(days=7)
"""How long restricted logs are kept: libraries' words in them may quote data."""
LOG = "log"
SCRATCH = "scratch"
_LABELS = {LOG: "logs", SCRATCH: "temporary directories"}
EXAMPLES = "training/examples"
"""In a model's directory, while it is trained: real texts, made anew when an interrupted training goes on. So they do
not wait as long as it does."""
_READ_BY_WORKER = ("bounded", *MODELS)


@dataclass(frozen=True)
class Expired:
    """One output directory (or a part of one), log, or temporary directory of a killed command that is due.

    Attributes:
        place: whose output it is, or None for a log or a temporary directory.
        step: the step, or `log`, or `scratch`.
        reason: `expired` (older than the contract allows) or `superseded` (no record names it).
        age: time since it was last written.
        whole: whether it is all of an output, which then has ended.
    """

    place: Place | None
    step: str
    path: Path
    reason: str
    age: dt.timedelta
    whole: bool = True

    @property
    def label(self) -> str:
        """`census`, `visits/2026-01`, `logs`, or `temporary directories`."""
        return _LABELS[self.step] if self.place is None else self.place.label


def due(storage: Storage, contracts: Iterable[DataContract], now: dt.datetime) -> list[Expired]:
    """Outputs whose time is up, in the order of the asset line, then logs and temporary directories.

    What a mechanism reads is not due while one runs at that place: it has been paid for.
    """
    found = []
    declared = {contract.dataset: contract.retention for contract in contracts}
    for place in storage.places():
        retention = declared.get(place.dataset) or _sealed(storage, place)
        of_place = [item for step in (*STEPS, SCORES) for item in _of_step(storage, place, step, retention, now)]
        if any(item.step in _READ_BY_WORKER for item in of_place) and _mechanism_runs(storage, place):
            of_place = [item for item in of_place if item.step not in _READ_BY_WORKER]
        found += of_place
    for log in sorted(logs_of(storage.root).glob("*.log")):
        age = last_written(log, now)
        if age >= LOGS_KEPT:
            found.append(Expired(None, LOG, log, "expired", age))
    return found + [Expired(None, SCRATCH, path, "superseded", last_written(path, now)) for path in abandoned(now)]


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


def _of_step(storage: Storage, place: Place, step: str, retention: Retention, now: dt.datetime) -> list[Expired]:
    found = []
    record = storage.read(place, step)
    current = Path(record.path) if record and record.path else None
    limit = retention.of(step)
    for directory in storage.outputs(place, step):
        age = last_written(directory, now)
        if step == "canaries":  # however old, they go with the model and not before it
            models = (model for name in MODELS for model in storage.outputs(place, name))
            age = min([age, *(last_written(model, now) for model in models)])
        if directory == current and limit is not None and age >= limit:
            found.append(Expired(place, step, directory, "expired", age))
        elif directory != current and age >= _grace(step, limit, directory):
            found.append(Expired(place, step, directory, "superseded", age))
        elif (rows := directory / EXAMPLES).is_dir() and last_written(rows, now) >= SUPERSEDED_AFTER:
            found.append(Expired(place, step, rows, "superseded", last_written(rows, now), whole=False))
    return found


def _mechanism_runs(storage: Storage, place: Place) -> bool:
    """Whether a step of this machine holds one of the place's models, which it does as long as its worker runs."""
    for directory in (model for name in MODELS for model in storage.outputs(place, name)):
        try:
            with held(directory):
                pass
        except (HeldByAnother, FileNotFoundError):
            return True
    return False


def _grace(step: str, limit: dt.timedelta | None, output: Path) -> dt.timedelta:
    # What a crashed mechanism left is paid for: it waits for its estimation, or for training to go on, as long as a
    # model may. What its worker was handed (the participants, the key of its checkpoints) is handed anew.
    waits = step in MODELS and not output.name.endswith(HANDED)
    return limit if waits and limit is not None else SUPERSEDED_AFTER
