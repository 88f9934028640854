"""The deployment's contracts, families and step records, read again only if their files have changed.

What belongs here: reading many of them for browsing. What does not: acting on any; what runs, decides or publishes
reads the files itself (`planning`, `storage`).
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import FamilyBudget
from dpsynth_platform.contracts.loading import read_family
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import ContractDraft, ContractError, printable
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, StepRecord, Storage
from dpsynth_platform.release.register import Register
from dpsynth_platform.reviewing.file_cache import FileCache, State, state_of
from dpsynth_platform.synth.planning import load_dataset


@dataclass(frozen=True)
class Catalogue:
    """The valid contracts with their families' budgets, the valid family files, and the errors of the others.

    Errors are keyed by the file's stem and contain no path of this machine. Contracts and families that are drafts have
    errors, too.
    """

    datasets: Mapping[str, tuple[DataContract, FamilyBudget]]
    families: Mapping[str, FamilyBudget]
    faults: Mapping[str, str]
    family_faults: Mapping[str, str]
    drafts: frozenset[str]
    family_drafts: frozenset[str]

    @property
    def invalid(self) -> tuple[str, ...]:
        """The errors of what is no draft."""
        families = (fault for name, fault in self.family_faults.items() if name not in self.family_drafts)
        return (*families, *(fault for name, fault in self.faults.items() if name not in self.drafts))


_CONTRACTS: FileCache[tuple[DataContract, FamilyBudget] | ContractError] = FileCache(5000)
_FAMILIES: FileCache[FamilyBudget | ContractError] = FileCache(1000)
_RECORDS: FileCache[StepRecord] = FileCache(50_000)
_REGISTERED: FileCache[tuple[Path, ...]] = FileCache(20_000)
_SEALED: FileCache[DataContract] = FileCache(5000)


def catalogue(settings: Settings) -> Catalogue:
    """All contracts and family files as they are now."""
    families, refused_families = {}, {}
    files = sorted(settings.families.glob("*.yaml"))
    for path in files:
        family = _FAMILIES.get(path, state_of([path]), lambda path=path: _family(path))  # type: ignore[misc]
        if isinstance(family, ContractError):
            refused_families[printable(path.stem)] = family
        else:
            families[path.stem] = family
    budgets = state_of(files)
    datasets, refused = {}, {}
    for path in sorted(settings.contracts.glob("*.yaml")):
        dataset = _contract(settings, path, families, budgets)
        if isinstance(dataset, ContractError):
            refused[printable(path.stem)] = dataset
        else:
            datasets[path.stem] = dataset

    def shown(errors: Mapping[str, ContractError]) -> dict[str, str]:
        return {name: settings.shown(str(error)) for name, error in errors.items()}

    def drafts(errors: Mapping[str, ContractError]) -> frozenset[str]:
        return frozenset(name for name, error in errors.items() if isinstance(error, ContractDraft))

    return Catalogue(
        datasets, families, shown(refused), shown(refused_families), drafts(refused), drafts(refused_families)
    )


def record_of(settings: Settings, place: Place, step: str) -> StepRecord | None:
    """A step's record, as `Storage.read`."""
    storage = Storage(settings.restricted)
    state = state_of([storage.record_path(place, step)])
    if state[0][1] is None:
        return None
    return _RECORDS.get(state[0][0], state, lambda: storage.require(place, step))


def places_of(settings: Settings, dataset: str) -> list[Place]:
    """A dataset's periods that have a record, the latest first, or the dataset itself."""
    found = Storage(settings.restricted).places(dataset)
    return sorted(found, key=lambda place: place.period or "", reverse=True)


def sealed_contract(settings: Settings, place: Place) -> DataContract | None:
    """The contract that `raw` of the last run sealed; None before the first run."""
    raw = record_of(settings, place, "raw")
    if raw is None:
        return None
    # An edited contract has the same plan, and so the same content, where only what follows the mechanism changes.
    state = (raw.content_hash, canonical_digest(raw.facts["contract"]))
    return _SEALED.get((settings.restricted, place), state, lambda: DataContract.model_validate(raw.facts["contract"]))


def directories(settings: Settings, release: str) -> tuple[Path, ...]:
    """The directories where a release was shown by its register, the latest last; empty if it is not registered."""
    register = Register(settings.restricted)
    path = register.path(release)
    return _REGISTERED.get(path, state_of([path]), lambda: register.find(release).directories)


def published_beside(settings: Settings, known: Container[str]) -> dict[str, Path]:
    """Directories of published releases by id, as `releases.published` finds them, without the known ones."""
    register = Register(settings.restricted)
    targets = {Path(contract.release.uri).absolute() for contract, _ in catalogue(settings).datasets.values()}
    targets |= {place.parent for release in register.releases() for place in directories(settings, release)}
    names = [(target, name) for target in sorted(targets) for name in _names_in(target) if name not in known]
    return {name: target / name for target, name in names if (target / name / layout.ATTESTATION).exists()}


def _names_in(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - there are many names, of which few are used
    except OSError:
        return []


def _kept(error: ContractError) -> ContractError:
    """An error for the cache: its own one holds frames, with what their callers work at."""
    return (ContractDraft if isinstance(error, ContractDraft) else ContractError)(str(error))


def _family(path: Path) -> FamilyBudget | ContractError:
    try:
        return read_family(path)
    except ContractError as error:
        return _kept(error)


def _contract(
    settings: Settings, path: Path, families: Mapping[str, FamilyBudget], budgets: State
) -> tuple[DataContract, FamilyBudget] | ContractError:
    def read() -> tuple[DataContract, FamilyBudget] | ContractError:
        try:
            return load_dataset(settings, path.stem, families)
        except ContractError as error:
            return _kept(error)

    return _CONTRACTS.get((path, settings.home), (state_of([path]), budgets), read)
