"""Deleting what has expired, with its two records: the ledger's chain and a lineage event.

What belongs here: doing to each due output, in this order: delete, then record. What does not: what is due
(`retention`). A crash in between leaves files deleted without a record, which the next purge cannot see; the opposite
order would claim a deletion that did not happen, which is worse.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable

from dpsynth_platform import retention
from dpsynth_platform.contracts import DataContract
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage import facets, naming
from dpsynth_platform.lineage.emitter import DatasetRef, LineageEmitter, StepRun
from dpsynth_platform.retention import Expired
from dpsynth_platform.settings import Settings
from dpsynth_platform.storage import Place, Storage


def purge_due(settings: Settings, contracts: Iterable[DataContract], *, dry_run: bool = False) -> list[Expired]:
    """Deletes every output and log whose time is up and records it; returns what was (or, dry, would be) deleted."""
    found = retention.due(Storage(settings.restricted), contracts, dt.datetime.now(dt.UTC))
    if not dry_run and found:
        ledger, emitter = Ledger(settings.ledger_url), LineageEmitter.of(settings)
        for item in found:
            retention.purge(item)
            if item.place is not None:
                payload = {"step": item.step, "output": item.path.name, "reason": item.reason}
                ledger.record("purged", item.label, payload)
                if item.whole:
                    _emit(emitter, item.place, item)
        for step in (retention.LOG, retention.SCRATCH):
            if removed := [item for item in found if item.step == step]:
                payload = {"step": step, "files": len(removed), "reason": removed[0].reason}
                ledger.record("purged", removed[0].label, payload)
    return found


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
