"""What is published, and what waits for a decision.

What belongs here: finding releases and candidates. What does not: judging them (`decisions`) and verifying them
(`verification`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.release import evidence
from dpsynth_platform.release.register import Register
from dpsynth_platform.release.tombstone import is_withdrawn
from dpsynth_platform.reviewing import accounts, decisions
from dpsynth_platform.synth.planning import load_all

CANDIDATE = "candidate"
WITHDRAWN = "withdrawn"
UNFINISHED = "withdrawn, but not to its end: repeat dpsynth release withdraw"


def listing(settings: Settings) -> list[dict[str, str]]:
    """Published and withdrawn releases, and candidates that are not published (or were refused)."""
    storage, store = Storage(settings.restricted), accounts.ledger(settings) if settings.has_ledger else None
    gone, declared = withdrawn(settings), {contract.dataset: contract for contract, _ in load_all(settings)[0]}
    found = [_listed(path, withdrawn=path.name in gone) for path in published(settings)]
    for place in storage.places():
        candidate = _candidate(storage, store, place, gone)
        if candidate is not None:
            state, digest = candidate
            until = decisions.until_words(settings, place, declared.get(place.dataset))
            found.append({"place": place.label, "state": state, "id": digest[:16], "where": f"not published{until}"})
    return sorted(found, key=lambda item: (item["place"], item["state"], item["id"]))


def has_candidate(settings: Settings, place: Place) -> bool:
    """Whether there is a candidate that is neither published nor refused."""
    storage, store = Storage(settings.restricted), accounts.ledger(settings) if settings.has_ledger else None
    candidate = _candidate(storage, store, place, withdrawn(settings))
    return candidate is not None and candidate[0] == CANDIDATE


def _candidate(storage: Storage, store: Ledger | None, place: Place, gone: set[str]) -> tuple[str, str] | None:
    """State and digest of the last candidate, or None if there is none or it is published."""
    if store is None:
        return None
    try:
        candidate = evidence.candidate_of(storage, place, decisions.sealed_contract(storage, place), store)
    except ReleaseRefused:
        return None
    digest = candidate.digest
    decided = store.approvals(digest, candidate.entry_id)
    release = decisions.published_as(storage, place, digest)
    if release is not None and not (release in gone and evidence.standing_approvals(decided)):
        return None
    return "refused" if decided and decided[-1].decision == evidence.REFUSE else CANDIDATE, digest


def withdrawn(settings: Settings) -> set[str]:
    """Ids of the releases whose withdrawal is recorded."""
    if not settings.has_ledger:
        return set()
    return {item.release for item in accounts.ledger(settings).withdrawals() if item.release is not None}


def published(settings: Settings, beside: Iterable[Path] = ()) -> list[Path]:
    """Directories of all published releases: where they were shown, where contracts publish now, and in `beside`.

    Includes those of datasets without a valid contract: the ledger is compared with their dossiers, too.
    """
    targets = {Path(contract.release.uri).absolute() for contract, _ in load_all(settings)[0]}
    targets |= {directory.parent for directory in (*Register(settings.restricted).directories(), *beside)}
    return sorted(path.parent for target in targets for path in _attested(target))


def _attested(target: Path) -> list[Path]:
    try:
        return list(target.glob(f"*/{layout.ATTESTATION}"))
    except OSError:
        return []


def _listed(path: Path, *, withdrawn: bool) -> dict[str, str]:
    state = "published"
    if withdrawn or is_withdrawn(path):
        state = WITHDRAWN if is_withdrawn(path) and not layout.has_rows(path) else UNFINISHED
    try:
        release = json.loads(read_regular(path / "dossier.json"))["release"]
        place = Place(release["dataset"], release["period"]).label
    except (OSError, ValueError, KeyError, TypeError):
        place, state = path.parent.name, f"{state}, damaged since"
    return {"place": place, "state": state, "id": path.name, "where": str(path)}
