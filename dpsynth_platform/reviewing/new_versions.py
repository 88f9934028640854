"""New versions of sources: which of them is due for a run, and which must wait.

What belongs here: the decision, on public facts: the name of the newest version, the ledger's entries with their times,
and waiting candidates. What does not: when to check (the sensor `new_versions`), and running.

Each run of a new version is a new spend, so a contract must request it with a highest frequency
(`release.on_new_version`). A mechanism that did not complete stops it until a person decides.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.reviewing import accounts, releases
from dpsynth_platform.sources import source


@dataclass(frozen=True)
class NewVersion:
    """The newest version (`PinnedSource.name`) if a run of it is due, or `why` not; empty without a new version."""

    name: str | None = None
    why: str = ""


def version_stamp(contract: DataContract) -> str | None:
    """A value that changes with every new version of a source and costs next to nothing; None for sources without one.

    For a Delta table: when its log last changed and how many files that has. The log is not read, so compaction and
    vacuum change the value, too. For plain files: a digest of their names, sizes and times.
    """
    if contract.source.format == "iceberg":
        return None
    if contract.source.format != "delta":
        from dpsynth_platform.sources.plain_files import stamp_of

        return stamp_of(contract.source)
    if urlsplit(contract.source.uri).scheme not in ("", "file"):
        return None
    log = Path(urlsplit(contract.source.uri).path) / "_delta_log"
    try:
        return f"{log.stat().st_mtime_ns} {sum(1 for _ in log.iterdir())}"
    except OSError:
        return None


def due_version(settings: Settings, contract: DataContract, now: dt.datetime) -> NewVersion:
    """Whether a run is due for the newest version of a contract's source.

    Raises `SourceError` if there is no readable table, `LedgerError` if the ledger cannot be read.
    """
    pace, place = contract.release.pace, Place(contract.dataset)
    if pace is None:
        return NewVersion()
    raw = Storage(settings.restricted).read(place, "raw")
    newest = source.pin(contract, settings.restricted)
    if raw is not None and raw.facts["source"] == newest.named_as(raw.facts["source"]).name:
        return NewVersion()
    paid = accounts.ledger(settings).charged_for(contract.family, place.label) if settings.has_ledger else []
    if paid and paid[-1].state != "spent":
        return NewVersion(why=f"ledger entry {paid[-1].entry_id} is {paid[-1].state} and not completed")
    due = dt.datetime.fromisoformat(paid[-1].reserved_at) + pace if paid else now
    if now < due:
        return NewVersion(why=f"the next one is due at {due:%Y-%m-%d %H:%M} UTC ({contract.release.on_new_version})")
    if releases.has_candidate(settings, place):
        return NewVersion(why="a candidate of an earlier version waits to be released or refused")
    if raw is not None and newest.unsure_since(raw.facts["source"]):
        return NewVersion(
            why=f"the source's log does not say any more whether versions after {raw.facts['source_version']} changed "
            f"rows, and each run of one is a new spend: run it by hand, dpsynth run {contract.dataset}"
        )
    return NewVersion(newest.name)
