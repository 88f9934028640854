"""Files of the deployment that prove more spending or events than a ledger records.

What belongs here: comparing a ledger with them. A ledger that was rolled back, by a restored disk or an older backup,
would grant again what was spent since, the greatest danger to a budget. What does not: the checks inside the chain
(`ledger.verification`).

A step writes the ledger first and its files afterwards, so no file can be ahead of a complete ledger. A run that left
no file (its outputs were purged, or lost with the same disk) cannot be detected.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from dpsynth_platform.foundation.errors import LedgerError, LineageRefused
from dpsynth_platform.foundation.release_layout import DOSSIER
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import BOUND_FILE as RESULT
from dpsynth_platform.foundation.storage import MODELS, Place, Storage
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import Head
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage import intake
from dpsynth_platform.lineage.graph_rows import has_own, sequence_of
from dpsynth_platform.lineage.record import JsonLines
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.release.heads import KnownChain
from dpsynth_platform.release.register import Register
from dpsynth_platform.worker.inputs import CLAIM_FILE

_ENTRY_ID = re.compile(r"[0-9a-f]{32}")


def check_not_behind(storage: Storage, ledger: Ledger) -> None:
    """Raises `LedgerError` if a run's record or a published dossier names an entry or event that the ledger lacks.

    Without this check the run would spend again what is spent. Raises `StaleInput` if a step's record is damaged.
    """
    for found in (*_entries(storage, ledger), *published_ahead(storage, ledger)):
        raise LedgerError(
            f"{found}: the ledger is older than what it led to, and would grant again what was spent since; restore "
            "its latest state (docs/guides/deployment.md), or begin anew in another DPSYNTH_HOME. Nothing was reserved"
        )


def missing_from(settings: Settings, ledger: Ledger, lineage: LineageStore) -> list[str]:
    """What the deployment's files prove and this ledger lacks. Raises `StaleInput` for a damaged record."""
    storage = Storage(settings.restricted)
    return [*_entries(storage, ledger), *_notified(settings, ledger), *_emitted(settings, lineage)]


def lost_ledger(storage: Storage) -> str | None:
    """What proves, where there is no ledger, that there was one; or None."""
    named = (claimed for place in storage.places() for claimed in _claims(storage, place))
    return next((f"{where} rests on ledger entry {entry}, and there is no ledger" for where, entry, _ in named), None)


def published_ahead(storage: Storage, ledger: Ledger) -> list[str]:
    """Releases whose dossier names a head that is not in the chain. Other checks report unreadable dossiers."""
    heads = {path: head for path in Register(storage.root).directories() if (head := head_of(path)) is not None}
    if not heads:
        return []
    known = KnownChain("the ledger", {event.sequence: event.hash for event in ledger.history()})
    problems = {path: known.problem(asdict(head)) for path, head in heads.items() if head.sequence > 0}
    return [f"{path.name}: its dossier's head {problem}" for path, problem in problems.items() if problem is not None]


def head_of(release: Path) -> Head | None:
    """The ledger's head in a release's dossier, or None if that is missing or damaged."""
    try:
        return Head(**json.loads((release / DOSSIER).read_text(encoding="utf-8"))["ledger"]["head"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _entries(storage: Storage, ledger: Ledger) -> Iterator[str]:
    """Of runs: reserved entries, started mechanisms, complete models."""
    named = [claimed for place in storage.places() for claimed in _claims(storage, place)]
    states = {entry.entry_id: entry.state for entry in ledger.entries()}  # read last: it is written first
    for where, entry_id, accepted in named:
        if states.get(entry_id) not in accepted:
            yield f"{where} rests on ledger entry {entry_id}, which in the ledger is {states.get(entry_id, 'missing')}"


def _claims(storage: Storage, place: Place) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Where an entry is named, its id, and the states that it must have by now."""
    began, ended = (chain.STARTED, chain.SPENT), (chain.SPENT,)
    for step, states in (("clearance", (chain.RESERVED, chain.VOID, *began)), *((name, ended) for name in MODELS)):
        record = storage.read(place, step)
        facts = record.facts if record is not None else {}
        yield from ((f"{place.label}/{step}", str(facts[name]), states) for name in facts if name.endswith("entry_id"))
    for step, trace in (*((name, CLAIM_FILE) for name in MODELS), ("bound", RESULT)):
        for output in storage.outputs(place, step):
            if _ENTRY_ID.fullmatch(output.name) and (output / trace).exists():
                yield f"{place.label}/{step}/{output.name}", output.name, began


def _notified(settings: Settings, ledger: Ledger) -> Iterator[str]:
    """Of receivers of notices: the last event of the chain that each received.

    Cursors in other streams (`webhook.runs.json`: Dagster's numbers of failed runs) tell nothing of the chain.
    """
    cursors = (path for path in sorted((settings.home / "notify").glob("*.json")) if "." not in path.stem)
    after = {path.name: _notified_after(path) for path in cursors}
    last = ledger.head().sequence
    for name, notified in after.items():
        if notified > last:
            yield f"notify/{name} tells of event {notified}, and the chain ends at event {last}"


def _notified_after(path: Path) -> int:
    try:
        return int(json.loads(path.read_text(encoding="utf-8"))["after"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # sending notices reports that it cannot be read


def _emitted(settings: Settings, lineage: LineageStore) -> Iterator[str]:
    """Of lineage: whether the last event of our own record is in the graph, which gets events first."""
    record = JsonLines(settings.lineage_file)
    if not record.has_content() or not lineage.database.read(has_own):
        return
    with record.locked() as descriptor:
        last = record.last(descriptor)
    try:
        digest = intake.canonical(last)[1] if last is not None else None
    except LineageRefused:
        return
    if digest is not None and lineage.database.read(lambda connection: sequence_of(connection, digest)) is None:
        yield f"{settings.lineage_file.name} ends with an event that the lineage graph does not know"
