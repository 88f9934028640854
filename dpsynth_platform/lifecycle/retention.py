"""Retention of sensitive intermediates: finding due outputs and deleting their files.

What belongs here: finding outputs beyond their contract's retention, old logs and files of killed processes, and
removing whole directories (after a delete and vacuum, a Delta table's log still has column minima and maxima, such as
names). What does not: the ledger's record of a deletion and its lineage event (`purging`).

Records of steps stay: they contain no rows, and a later step needs them to notice that its input is deleted.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.release import Retention
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.scratch import abandoned, last_written
from dpsynth_platform.foundation.storage import (
    EXAMPLES,
    EXTRACT,
    HANDED,
    MODELS,
    NEAREST,
    PICTURES,
    SCORES,
    STEPS,
    HeldByAnother,
    Place,
    StepRecord,
    Storage,
    held,
)
from dpsynth_platform.lifecycle.erasure import Erasure, honoured

SUPERSEDED_AFTER = dt.timedelta(days=1)
"""Retention of an output that no record names: a step may still write or read it."""
LOGS_KEPT = dt.timedelta(days=7)
"""Retention of restricted logs: libraries' messages in them may quote data."""
EXPIRED = "expired"
"""The reason of a deletion by the contract's retention; the others are in `Expired`."""
LOG = "log"
SCRATCH = "scratch"
LABELS = {LOG: "logs", SCRATCH: "temporary directories"}
"""Names of what belongs to no place."""
_OF_ROWS = (EXTRACT, "scrubbed", "bounded", NEAREST)
_READ_BY_WORKER = ("bounded", *MODELS)


@dataclass(frozen=True)
class Expired:
    """One due output directory (or part of one), log, or temporary directory of a killed command.

    Attributes:
        place: None for a log or a temporary directory.
        step: the step, or `log`, or `scratch`.
        reason: `expired` (older than the contract allows), `superseded` (no record names it), or `erasure` (it may
            contain records of an owner who requested their deletion since).
        age: time since it was last written.
        whole: whether it is a whole output, which then is dropped.
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
        return LABELS[self.step] if self.place is None else self.place.label


OnError = Callable[[str, Exception], None]
"""Receives what cannot be read (`letters`, `visits/2026-01/bounded`, `logs`), and the error."""


def raised(_: str, error: Exception) -> None:
    """Raises the error."""
    raise error


def due(
    storage: Storage,
    contracts: Iterable[DataContract],
    now: dt.datetime,
    erasures: Mapping[str, Erasure] | None = None,
    onerror: OnError = raised,
) -> list[Expired]:
    """Due outputs in the order of the asset line, then logs and temporary directories.

    The inputs of a running mechanism are not due: its cost is spent.

    Args:
        erasures: the last request for erasure of each identity namespace.
        onerror: receives each failure, and the search continues; the default raises the first one.
    """
    found, erasures = [], erasures or {}
    declared = {contract.dataset: contract for contract in contracts}
    for place in storage.places():
        try:
            found += _of_place(storage, place, declared.get(place.dataset), now, erasures, onerror)
        except Exception as error:
            onerror(place.label, error)
    for step, items in ((LOG, _logs(storage, now, erasures.values())), (SCRATCH, _scratch(now))):
        try:
            found += items
        except Exception as error:
            onerror(LABELS[step], error)
    return found


def _of_place(
    storage: Storage,
    place: Place,
    declared: DataContract | None,
    now: dt.datetime,
    erasures: Mapping[str, Erasure],
    onerror: OnError,
) -> list[Expired]:
    retention, namespaces = _terms(storage, place, declared)
    concerned = [asked for namespace, asked in erasures.items() if namespace in namespaces or not namespaces]
    erasure = max(concerned, key=lambda asked: asked.event, default=None)
    looked, found = _Outputs(storage, place, retention, erasure, now), []
    for step in (EXTRACT, *STEPS, SCORES, NEAREST):
        try:
            found += looked.due(step)
        except Exception as error:
            onerror(f"{place.label}/{step}", error)
    if any(item.step in _READ_BY_WORKER for item in found) and _mechanism_runs(storage, place):
        return [item for item in found if item.step not in _READ_BY_WORKER]
    return found


def _logs(storage: Storage, now: dt.datetime, erasures: Iterable[Erasure]) -> Iterator[Expired]:
    # It is unknown whose data a log quotes.
    erased = now - max((erasure.at for erasure in erasures), default=dt.datetime.min.replace(tzinfo=dt.UTC))
    for log in sorted(logs_of(storage.root).glob("*.log")):
        age = last_written(log, now)
        if age >= LOGS_KEPT:
            yield Expired(None, LOG, log, EXPIRED, age)
        elif age > erased:
            yield Expired(None, LOG, log, "erasure", age)


def _scratch(now: dt.datetime) -> Iterator[Expired]:
    return (Expired(None, SCRATCH, path, "superseded", last_written(path, now)) for path in abandoned(now))


def kept_until(storage: Storage, place: Place, step: str, declared: DataContract | None) -> dt.datetime | None:
    """The end of retention of a step's current output; None if there is none, or it is kept. Ignores holds.

    Args:
        declared: the dataset's contract as it is now, if it has one.
    """
    record, now = storage.read(place, step), dt.datetime.now(dt.UTC)
    limit = _terms(storage, place, declared)[0].of(step)
    if record is None or record.path is None or limit is None or not storage.exists(record):
        return None
    return now - last_written(record.directory, now) + limit


def purge(item: Expired) -> None:
    """Deletes one output directory, or one log; it may be deleted already.

    Raises:
        OSError: a part could not be deleted. The rest is deleted, and that part is due as before.
    """
    if not item.path.is_dir():
        item.path.unlink(missing_ok=True)
        return
    failed: list[OSError] = []
    shutil.rmtree(item.path, onerror=lambda _, __, found: failed.append(found[1]))  # type: ignore[arg-type]
    if item.path.exists():
        # Deleting changes the time of the last write, from which the retention would start again.
        written = dt.datetime.now(dt.UTC).timestamp() - item.age.total_seconds()
        for path in (item.path, *item.path.rglob("*")):
            with suppress(OSError):
                os.utime(path, (written, written))
        raise failed[0]


@dataclass(frozen=True)
class _Outputs:
    """The outputs of one place.

    Attributes:
        erasure: the last request of the place's namespace, or None.
    """

    storage: Storage
    place: Place
    retention: Retention
    erasure: Erasure | None
    now: dt.datetime

    def due(self, step: str) -> list[Expired]:
        """The due outputs of a step."""
        found = []
        record = self.storage.read(self.place, step)
        limit = self.retention.of(step)
        for directory in self.storage.outputs(self.place, step):
            age = last_written(directory, self.now)
            if step == "canaries":  # they are kept as long as the model
                models = (model for name in MODELS for model in self.storage.outputs(self.place, name))
                age = min([age, *(last_written(model, self.now) for model in models)])
            rows = next((at for at in (directory / EXAMPLES, directory / PICTURES / EXAMPLES) if at.is_dir()), None)
            if record is not None and record.path == str(directory):
                if self._is_erased(record):
                    found.append(Expired(self.place, step, directory, "erasure", age))
                elif limit is not None and age >= limit:
                    found.append(Expired(self.place, step, directory, EXPIRED, age))
            elif age >= _grace(step, limit, directory):
                found.append(Expired(self.place, step, directory, "superseded", age))
            elif self._precedes(age) and (step in _OF_ROWS or directory.name.endswith(HANDED)):
                found.append(Expired(self.place, step, directory, "erasure", age))
            elif rows is not None:  # made again when training continues
                age = last_written(rows, self.now)
                if age >= SUPERSEDED_AFTER or self._precedes(age):
                    reason = "superseded" if age >= SUPERSEDED_AFTER else "erasure"
                    found.append(Expired(self.place, step, rows, reason, age, whole=False))
        return found

    def _is_erased(self, record: StepRecord) -> bool:
        """Whether a current output may contain records of an owner who was erased since."""
        if self.erasure is None or record.step not in _OF_ROWS:
            return False
        if record.step == EXTRACT:  # it is a copy of all rows, whatever was scrubbed since
            return self._precedes(last_written(record.directory, self.now))
        scrubbed = self.storage.read(self.place, "scrubbed")
        if scrubbed is None or not honoured(scrubbed, self.erasure):
            return True
        return record.step in ("bounded", NEAREST) and record.inputs.get("scrubbed") != scrubbed.content_hash

    def _precedes(self, age: dt.timedelta) -> bool:
        """Whether a file of this age was written before the last request."""
        return self.erasure is not None and age > self.now - self.erasure.at


def _terms(storage: Storage, place: Place, declared: DataContract | None) -> tuple[Retention, set[str]]:
    """The retention of a place's outputs, and the identity namespaces of their owners; empty: unknown.

    A dataset without a contract (its file was removed) has the retention of the contract that `raw` sealed, of which
    only the needed keys are read: it may have an earlier form.
    """
    raw = storage.read(place, "raw")
    sealed = {} if raw is None else raw.facts["contract"]
    namespaces = {sealed["privacy"]["namespace"]} if "privacy" in sealed else set()
    if declared is not None:
        return declared.retention, namespaces | {declared.privacy.namespace}
    return Retention.model_validate(sealed.get("retention", {})), namespaces


def _mechanism_runs(storage: Storage, place: Place) -> bool:
    """Whether a step of this machine has locked one of the place's models, as it does while its worker runs."""
    for directory in (model for name in MODELS for model in storage.outputs(place, name)):
        try:
            with held(directory):
                pass
        except (HeldByAnother, FileNotFoundError):
            return True
    return False


def _grace(step: str, limit: dt.timedelta | None, output: Path) -> dt.timedelta:
    # Outputs of a crashed mechanism are paid for: they are kept as long as a model, for its estimation or for resuming
    # the training. The worker's inputs (participants, the key of its checkpoints) are made again.
    waits = step in MODELS and not output.name.endswith(HANDED)
    return limit if waits and limit is not None else SUPERSEDED_AFTER
