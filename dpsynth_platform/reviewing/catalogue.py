"""The deployment's contracts, families and step records, read again only where their files have changed.

What belongs here: reading many of them for people who look around. What does not: acting on any; what runs, decides or
publishes reads the files themselves (`planning`, `storage`).
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
from dpsynth_platform.foundation.errors import ContractError, printable
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, StepRecord, Storage
from dpsynth_platform.release.register import Register
from dpsynth_platform.reviewing.kept import Kept, State, state_of
from dpsynth_platform.synth.planning import load_dataset


@dataclass(frozen=True)
class Catalogue:
    """What a deployment declares.

    Attributes:
        datasets: sound contracts by name, each with its family's budget.
        families: sound family files by name.
        faults, family_faults: what is wrong with the others, by the name of the file without its ending; without
            any path of this machine.
    """

    datasets: Mapping[str, tuple[DataContract, FamilyBudget]]
    families: Mapping[str, FamilyBudget]
    faults: Mapping[str, str]
    family_faults: Mapping[str, str]


@dataclass(frozen=True)
class _Read:
    found: tuple[DataContract, FamilyBudget] | None
    fault: str


_CONTRACTS: Kept[_Read] = Kept(5000)
_FAMILIES: Kept[FamilyBudget | str] = Kept(1000)
_RECORDS: Kept[StepRecord] = Kept(50_000)
_REGISTERED: Kept[tuple[Path, ...]] = Kept(20_000)
_SEALED: Kept[DataContract] = Kept(5000)


def catalogue(settings: Settings) -> Catalogue:
    """All contracts and family files as they are now."""
    families, family_faults = {}, {}
    files = sorted(settings.families.glob("*.yaml"))
    for path in files:
        family = _FAMILIES.get(path, state_of([path]), lambda path=path: _family(path))  # type: ignore[misc]
        if isinstance(family, str):
            family_faults[printable(path.stem)] = settings.shown(family)
        else:
            families[path.stem] = family
    budgets = state_of(files)
    datasets, faults = {}, {}
    for path in sorted(settings.contracts.glob("*.yaml")):
        read = _contract(settings, path, families, budgets)
        if read.found is None:
            faults[printable(path.stem)] = settings.shown(read.fault)
        else:
            datasets[path.stem] = read.found
    return Catalogue(datasets, families, faults, family_faults)


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
    """The contract of a place's last run, as `raw` sealed it; None where nothing was run yet."""
    raw = record_of(settings, place, "raw")
    if raw is None:
        return None
    return _SEALED.get(
        (settings.restricted, place), raw.content_hash, lambda: DataContract.model_validate(raw.facts["contract"])
    )


def directories(settings: Settings, release: str) -> tuple[Path, ...]:
    """Where a release was shown, as its register says, the latest last; none where it is not registered."""
    register = Register(settings.restricted)
    path = register.path(release)
    return _REGISTERED.get(path, state_of([path]), lambda: register.find(release).directories)


def published_beside(settings: Settings, known: Container[str]) -> dict[str, Path]:
    """Directories of published releases by id, as `releases.published` finds them, but for those that are known."""
    register = Register(settings.restricted)
    targets = {Path(contract.release.uri).absolute() for contract, _ in catalogue(settings).datasets.values()}
    targets |= {place.parent for release in register.releases() for place in directories(settings, release)}
    names = [(target, name) for target in sorted(targets) for name in _names_in(target) if name not in known]
    return {name: target / name for target, name in names if (target / name / layout.ATTESTATION).exists()}


def _names_in(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)  # noqa: PTH208 - many names of which hardly any is looked at
    except OSError:
        return []


def _family(path: Path) -> FamilyBudget | str:
    try:
        return read_family(path)
    except ContractError as error:
        return str(error)


def _contract(settings: Settings, path: Path, families: Mapping[str, FamilyBudget], budgets: State) -> _Read:
    def read() -> _Read:
        try:
            return _Read(load_dataset(settings, path.stem, families), "")
        except ContractError as error:
            return _Read(None, str(error))

    return _CONTRACTS.get((path, settings.home), (state_of([path]), budgets), read)
