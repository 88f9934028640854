"""Withdrawing a published release, with its records: the ledger's chain, the tombstone, a lineage event.

What belongs here: the durable effects of a withdrawal, in order. What does not: who may publish the content again
(`ledger.decisions`, `release.evidence`), and each effect by itself.

The chain comes first, so that from then on nothing publishes the content again; then the tombstone, the deletion of the
rows, and the lineage event. Each is idempotent: whatever a crash left undone, the same command finishes. What was spent
stays spent, and the model stays as long as its contract keeps it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts import DataContract
from dpsynth_platform.errors import VerificationFailed
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage import facets, naming
from dpsynth_platform.lineage.emitter import DatasetRef, Delivery, LineageEmitter, StepRun
from dpsynth_platform.people import visible
from dpsynth_platform.planning import load_dataset
from dpsynth_platform.release.layout import DATA
from dpsynth_platform.release.tombstone import Tombstone
from dpsynth_platform.release.withdrawal import bury
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.settings import Settings
from dpsynth_platform.storage import Place, Storage
from dpsynth_platform.vault import Vault

JOB = "withdraw"


@dataclass(frozen=True)
class Withdrawn:
    """A release that is withdrawn now.

    Attributes:
        path: its directory, where the tombstone stands.
        by, at, reason: as the chain records them; of the first withdrawal, if it is repeated.
        deleted: whether this call deleted rows; otherwise they were gone already.
        warnings: places that did not get the lineage event.
    """

    release: str
    path: str
    by: str
    at: str
    reason: str
    deleted: bool
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def withdraw(settings: Settings, release_id: str, by: str, reason: str) -> Withdrawn:
    """Withdraws a release for ever, or finishes a withdrawal that was interrupted.

    Args:
        settings: the deployment.
        release_id: the release.
        by: who withdraws it; stays in the ledger, and is not published.
        reason: one sentence, which is published.

    Raises:
        VerificationFailed: no such release was published, or its directory is not where it was.
        ContractError: its dataset has no sound contract.
        LedgerError: nobody or no reason is named.
    """
    store = accounts.ledger(settings)
    place = _place_of(store, release_id)
    contract, _ = load_dataset(settings, place.dataset)
    directory = _directory(settings, place, contract, release_id)
    decision = store.withdraw(release_id, by=by, reason=reason)
    tombstone = Tombstone(release_id, decision.at, decision.reason, tuple(map(visible, contract.owners)))
    deleted = bury(directory, tombstone, Vault(settings.vault).signing_key())
    delivery = _emit(settings, place, release_id, directory)
    return Withdrawn(release_id, str(directory), decision.by, decision.at, decision.reason, deleted, delivery.warnings)


def _place_of(store: Ledger, release_id: str) -> Place:
    published = store.history(kinds=[chain.RELEASED], subject=release_id)
    if not published:
        known = ", ".join(event.subject for event in store.history(kinds=[chain.RELEASED])) or "none"
        raise VerificationFailed(f"{release_id}: the ledger records no publication of this release; accepted: {known}")
    request = store.entry(published[0].payload["entry"]).request
    return Place(request.dataset, request.period)


def _directory(settings: Settings, place: Place, contract: DataContract, release_id: str) -> Path:
    """Where the release is: below the contract's target, or where its own run published it."""
    last = Storage(settings.restricted).read(place, "released")
    known = [Path(contract.release.uri) / release_id]
    if last is not None and last.facts["release_id"] == release_id:
        known.append(Path(last.facts["path"]))
    for directory in known:
        if directory.is_dir():
            return directory
    raise VerificationFailed(
        f"{release_id}: its directory is not at {known[0]}; accepted: the directory back in its place, or, where "
        "every copy of it is gone, an empty one"
    )


def _emit(settings: Settings, place: Place, release_id: str, directory: Path) -> Delivery:
    """A run of the job `<dataset>.withdraw` whose output is the release's end; the same run each time it is told."""
    ended = DatasetRef(
        naming.dataset_name(directory / DATA),
        facets.merge(
            facets.symlink(naming.logical_name(place.dataset, "released", place.period)),
            facets.version(release_id),
            facets.withdrawn(),
        ),
    )
    run = StepRun(
        f"{JOB} {release_id}",
        place.dataset,
        JOB,
        dagster_job=JOB,
        period=place.period,
        launcher=naming.COMMAND_NAMESPACE,
        outputs=(ended,),
    )
    return LineageEmitter.of(settings).complete(run)
