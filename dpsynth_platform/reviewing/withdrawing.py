"""Withdrawing a published release, with its records: the ledger's chain, the tombstone, a lineage event.

What belongs here: the durable effects of a withdrawal, in order. What does not: who may publish the content again
(`ledger.decisions`, `release.evidence`), and each single effect.

The chain comes first, so that nothing publishes the content again. Then follow, in every directory of the release, the
tombstone, the deletion of the rows, and the lineage event. Each is idempotent: after a crash the same command finishes
the rest. It uses what was recorded at publication, since the dataset's contract may have changed or gone. Spent budget
stays spent, and the contract's retention applies to the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError, VerificationFailed
from dpsynth_platform.foundation.people import visible
from dpsynth_platform.foundation.release_layout import DATA
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.emitter import Delivery, LineageEmitter
from dpsynth_platform.lineage.runs import DatasetRef, StepRun
from dpsynth_platform.release.register import Register, Registered
from dpsynth_platform.release.tombstone import Tombstone
from dpsynth_platform.release.withdrawal import bury
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.synth.planning import load_dataset

JOB = "withdraw"


@dataclass(frozen=True)
class Withdrawn:
    """A withdrawn release; `by`, `at` and `reason` are those of the first withdrawal, if it is repeated.

    Attributes:
        paths: its directories, each with the tombstone.
        deleted: this call deleted rows; otherwise they were gone already.
        warnings: undelivered lineage events, missing directories of the release, and targets with copies of its rows.
    """

    release: str
    paths: tuple[str, ...]
    by: str
    at: str
    reason: str
    deleted: bool
    warnings: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def withdraw(settings: Settings, release_id: str, by: str, reason: str) -> Withdrawn:
    """Withdraws a release for ever, or finishes a withdrawal that was interrupted. Only `reason` is published.

    Raises:
        VerificationFailed: no such release was published, or its directory is missing.
        ContractError: no contact is known: it is not registered, and its dataset has no valid contract.
        LedgerError: `by` or `reason` is empty.
    """
    store = accounts.ledger(settings)
    place = _place_of(store, release_id)
    registered = Register(settings.restricted).find(release_id)
    known = _directories(settings, place, registered, release_id)
    there = [directory for directory in known if directory.is_dir()]
    if not there:
        raise VerificationFailed(
            f"{release_id}: its directory is not at {known[0] if known else 'any known place'}; accepted: the "
            "directory restored there, or an empty one if every copy is lost"
        )
    contacts = _contacts(settings, place, registered)
    decision = store.withdraw(release_id, by=by, reason=reason)
    tombstone = Tombstone(release_id, decision.at, decision.reason, tuple(map(visible, contacts)))
    key = Vault(settings.vault).signing_key()
    deleted = [bury(directory, tombstone, key) for directory in there]
    warnings = [warning for directory in there for warning in _emit(settings, place, release_id, directory).warnings]
    gone = [f"{item}: is missing; if it is restored, repeat" for item in known if item not in there]
    return Withdrawn(
        release_id,
        tuple(map(str, there)),
        decision.by,
        decision.at,
        decision.reason,
        any(deleted),
        (*warnings, *gone, *registered.targets),
    )


def _place_of(store: Ledger, release_id: str) -> Place:
    published = store.history(kinds=[chain.RELEASED], subject=release_id)
    if not published:
        known = ", ".join(event.subject for event in store.history(kinds=[chain.RELEASED])) or "none"
        raise VerificationFailed(f"{release_id}: the ledger records no publication of this release; accepted: {known}")
    request = store.entry(published[0].payload["entry"]).request
    return Place(request.dataset, request.period)


def _directories(settings: Settings, place: Place, registered: Registered, release_id: str) -> list[Path]:
    """Possible directories of the release: recorded ones, and the one where its dataset's contract publishes now."""
    known = list(registered.directories)
    last = Storage(settings.restricted).read(place, "released")
    if last is not None and last.facts["release_id"] == release_id:
        known.append(Path(last.facts["path"]).absolute())
    present = _present_contract(settings, place)
    if present is not None:
        moved = Path(present.release.uri).absolute() / release_id
        known += [moved] if not known or moved.is_dir() else []
    return list(dict.fromkeys(known))


def _contacts(settings: Settings, place: Place, registered: Registered) -> Sequence[str]:
    """The dataset's present owners, or else those at publication."""
    present = _present_contract(settings, place)
    if present is not None:
        return present.owners
    return registered.contacts or load_dataset(settings, place.dataset)[0].owners


def _present_contract(settings: Settings, place: Place) -> DataContract | None:
    try:
        return load_dataset(settings, place.dataset)[0]
    except ContractError:
        return None


def _emit(settings: Settings, place: Place, release_id: str, directory: Path) -> Delivery:
    """Emits a run of the job `<dataset>.withdraw` that ends the release's dataset; the same run each time.

    One for each directory, since lineage names a dataset by its place.
    """
    from dpsynth_platform.lineage import facets

    ended = DatasetRef(
        naming.dataset_name(directory / DATA),
        facets.merge(
            facets.symlink(naming.logical_name(place.dataset, "released", place.period)),
            facets.version(release_id),
            facets.dropped(),
        ),
    )
    run = StepRun(
        f"{JOB} {release_id} {directory}",
        place.dataset,
        JOB,
        dagster_job=JOB,
        period=place.period,
        launcher=naming.COMMAND_NAMESPACE,
        outputs=(ended,),
    )
    return LineageEmitter.of(settings).complete(run)
