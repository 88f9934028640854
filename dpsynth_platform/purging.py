"""Deleting what has expired, with its two records: the ledger's chain and a lineage event.

What belongs here: doing to each due output, in this order: see that nobody holds it, delete, record. What does not:
what is due (`retention`), and what is on hold (`holds`). A crash in between leaves files deleted without a record,
which the next purge cannot see; the opposite order would claim a deletion that did not happen, which is worse.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from typing import Any

from dpsynth_platform import retention
from dpsynth_platform.contracts import DataContract
from dpsynth_platform.erasure import erasures
from dpsynth_platform.holds import Hold, covering, holds
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage import facets, naming
from dpsynth_platform.lineage.emitter import DatasetRef, LineageEmitter, StepRun
from dpsynth_platform.retention import Expired
from dpsynth_platform.reviewing.accounts import has_ledger
from dpsynth_platform.settings import Settings
from dpsynth_platform.storage import Place, Storage


def purge_due(settings: Settings, contracts: Iterable[DataContract], *, dry_run: bool = False) -> list[Expired]:
    """Deletes every output and log whose time is up and that is not on hold, and records it.

    Returns:
        What was (or, dry, would be) deleted.
    """
    free = [item for item, hold in due_and_held(settings, contracts) if hold is None]
    return free if dry_run or not free else _purged(settings, free)


def due_and_held(
    settings: Settings, contracts: Iterable[DataContract], now: dt.datetime | None = None
) -> list[tuple[Expired, Hold | None]]:
    """Every output and log whose time is up, with the hold that keeps it, if one does.

    Args:
        now: the moment that is asked about, not after the present one, which is the default.
    """
    now = now or dt.datetime.now(dt.UTC)
    known = Ledger(settings.ledger_url) if has_ledger(settings) else None
    asked = {} if known is None else {name: item for name, item in erasures(known).items() if item.at <= now}
    found = retention.due(Storage(settings.restricted), contracts, now, asked)
    standing = [] if known is None or not found else holds(known)
    return [(item, covering(standing, item.place)) for item in found]


def _purged(settings: Settings, found: list[Expired]) -> list[Expired]:
    ledger, emitter, deleted = Ledger(settings.ledger_url), LineageEmitter.of(settings), []
    for item in found:
        if covering(holds(ledger), item.place) is not None:  # placed since
            continue
        retention.purge(item)
        deleted.append(item)
        if item.place is not None:
            ledger.record("purged", item.label, {"step": item.step, "output": item.path.name, "reason": item.reason})
            if item.whole:
                _emit(emitter, item.place, item)
    of_no_place = [item for item in deleted if item.place is None]
    for step, reason in sorted({(item.step, item.reason) for item in of_no_place}):
        removed = [item for item in of_no_place if (item.step, item.reason) == (step, reason)]
        payload: dict[str, Any] = {"step": step, "files": len(removed), "reason": reason}
        ledger.record("purged", removed[0].label, payload)
    return deleted


def _emit(emitter: LineageEmitter, place: Place, item: Expired) -> None:
    """A run of the job `<dataset>.purge` whose output is the dataset's end."""
    name, version = naming.output_name(item.path)
    ended = DatasetRef(
        name,
        facets.merge(
            facets.symlink(naming.logical_name(place.dataset, item.step, place.period)),
            facets.version(version),
            facets.purged(),
        ),
    )
    run = StepRun(str(uuid.uuid4()), place.dataset, "purge", dagster_job="purge", outputs=(ended,))
    emitter.start(run)
    emitter.complete(run)
