"""Deletes expired outputs and records it in the ledger's chain and as a lineage event.

What belongs here: for each due output, in this order: check holds, delete, record; a failure stops no other output.
What does not: which outputs are due (`retention`) or on hold (`holds`). After a crash in between, files are deleted
without a record, which the next purge cannot see; the opposite order would claim a deletion that did not happen, which
is worse.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import LedgerError, PurgeFailed, file_problem
from dpsynth_platform.foundation.redaction import safe_error
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lifecycle import retention
from dpsynth_platform.lifecycle.erasure import erasures
from dpsynth_platform.lifecycle.holds import Hold, covering, holds
from dpsynth_platform.lifecycle.retention import Expired, OnError
from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.runs import DatasetRef, StepRun

_NAMED = 20
"""The most failures that an error names."""


@dataclass(frozen=True)
class Purged:
    """The result of a purge.

    Attributes:
        deleted: outputs that were (or, in a dry run, would be) deleted.
        failed: by `dataset/step`, why it could not be read, deleted or recorded, in safe words.
    """

    deleted: tuple[Expired, ...]
    failed: Mapping[str, str]

    def require(self) -> None:
        """Raises `PurgeFailed` if anything failed, with all failures."""
        if self.failed:
            named = [f"{where} ({why})" for where, why in self.failed.items()]
            more = f"; and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
            raise PurgeFailed(
                f"in {len(named)} places, due outputs could not be deleted or recorded; in all others they were: "
                f"{'; '.join(named[:_NAMED])}{more}. Repair these, then repeat: dpsynth purge"
            )


def purge_due(settings: Settings, contracts: Iterable[DataContract], *, dry_run: bool = False) -> list[Expired]:
    """Deletes every output and log whose time is up and that is not on hold, and records it.

    Returns:
        What was (or, dry, would be) deleted.

    Raises:
        PurgeFailed: at the end, if something could not be looked at or deleted.
    """
    purged = purge_all(settings, contracts, dry_run=dry_run)
    purged.require()
    return list(purged.deleted)


def purge_all(settings: Settings, contracts: Iterable[DataContract], *, dry_run: bool = False) -> Purged:
    """The same for those who show what was deleted also where something failed."""
    failed: dict[str, str] = {}

    def note(where: str, error: Exception) -> None:
        failed[where] = file_problem(error) if isinstance(error, OSError) else safe_error(error)[1]

    free = [item for item, hold in due_and_held(settings, contracts, onerror=note) if hold is None]
    return Purged(tuple(free if dry_run or not free else _purged(settings, free, note)), failed)


def due_and_held(
    settings: Settings,
    contracts: Iterable[DataContract],
    now: dt.datetime | None = None,
    onerror: OnError = retention.raised,
) -> list[tuple[Expired, Hold | None]]:
    """Every output and log whose time is up, with the hold that keeps it, if one does.

    Args:
        now: not after the present time, which is the default.
        onerror: as of `retention.due`.
    """
    now = now or dt.datetime.now(dt.UTC)
    known = Ledger(settings.ledger_url) if settings.has_ledger else None
    asked = {} if known is None else {name: item for name, item in erasures(known).items() if item.at <= now}
    found = retention.due(Storage(settings.restricted), contracts, now, asked, onerror)
    standing = [] if known is None or not found else holds(known)
    return [(item, covering(standing, item.place)) for item in found]


def kept_until(settings: Settings, place: Place, step: str, declared: DataContract | None) -> dt.datetime | None:
    """The time when a step's current output will be deleted; None if there is none, or it is kept or on hold.

    Args:
        declared: the dataset's contract as it is now, if it has one.
    """
    if settings.has_ledger and covering(holds(Ledger(settings.ledger_url)), place) is not None:
        return None
    return retention.kept_until(Storage(settings.restricted), place, step, declared)


def _purged(settings: Settings, found: list[Expired], onerror: OnError) -> list[Expired]:
    ledger, emitter, deleted = Ledger(settings.ledger_url), LineageEmitter.of(settings), []

    def record(where: str, label: str, payload: dict[str, Any]) -> None:
        try:
            ledger.record(chain.PURGED, label, payload)
        except LedgerError as error:  # the files are deleted: lineage records it, and `onerror` gets this
            onerror(where, PurgeFailed(f"deleted, and not in the ledger's history: {error}"))

    for item in found:
        where = item.label if item.place is None else f"{item.label}/{item.step}"
        try:
            if covering(holds(ledger), item.place) is not None:  # placed since
                continue
            retention.purge(item)
        except (LedgerError, OSError) as error:  # without readable holds, nothing is deleted
            onerror(where, error)
            continue
        deleted.append(item)
        if item.place is not None:
            if item.whole:
                _emit(emitter, item.place, item)
            record(where, item.label, {"step": item.step, "output": item.path.name, "reason": item.reason})
    of_no_place = [item for item in deleted if item.place is None]
    for step, reason in sorted({(item.step, item.reason) for item in of_no_place}):
        removed = [item for item in of_no_place if (item.step, item.reason) == (step, reason)]
        label = removed[0].label
        record(label, label, {"step": step, "files": len(removed), "reason": reason})
    return deleted


def _emit(emitter: LineageEmitter, place: Place, item: Expired) -> None:
    """Emits a run of the job `<dataset>.purge` whose output is the dropped dataset."""
    from dpsynth_platform.lineage import facets

    name, version = naming.output_name(item.path)
    ended = DatasetRef(
        name,
        facets.merge(
            facets.symlink(naming.logical_name(place.dataset, item.step, place.period)),
            facets.version(version),
            facets.dropped(),
        ),
    )
    run = StepRun(str(uuid.uuid4()), place.dataset, "purge", dagster_job="purge", outputs=(ended,))
    emitter.start(run)
    emitter.complete(run)
