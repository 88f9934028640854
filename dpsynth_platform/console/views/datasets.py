"""The pages of datasets: the contract in words, its runs and its releases.

What belongs here: reading contracts, step records and releases for an actor. What does not: running anything, and the
cost of a run beyond what `reviewing.forecasts` computes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import Paged, page_of, require
from dpsynth_platform.console.views.dossiers import CountView, GuaranteeView, guarantee_view, may_see_counts
from dpsynth_platform.console.views.families import EntryRow, entry_row
from dpsynth_platform.console.views.listing import Listed, ReleaseRow, row_of
from dpsynth_platform.contracts.base import NOT_FILLED_IN
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.family import leaves_out_in_silence
from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import STEPS, Place, Storage
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.release.evidence import evidence_steps
from dpsynth_platform.release.reviewers import counts_of
from dpsynth_platform.reviewing import catalogue
from dpsynth_platform.reviewing.chronicle import Chronicle, chronicle
from dpsynth_platform.reviewing.contract_words import column_words, contract_words


@dataclass(frozen=True)
class DatasetRow:
    """A dataset in a list, with the guarantee of one release, or of each mechanism if the audit has its own model."""

    dataset: str
    description: str
    demonstration: bool
    family: str
    unit: str
    guarantee: GuaranteeView
    cadence: str | None
    releases: int
    last_release: str | None
    last_released_at: str | None


@dataclass(frozen=True)
class StepView:
    """The last output of a step.

    Attributes:
        there: the output exists; otherwise it has expired.
        current: it belongs to the same run as `raw`; otherwise to an earlier contract, source or plan.
        counts: exact numbers; for `READ_SPEND`, and see `dossiers.may_see_counts`.
    """

    step: str
    made_at: str
    runner: str
    there: bool
    current: bool
    counts: tuple[CountView, ...] | None
    lineage_run: str


@dataclass(frozen=True)
class PeriodView:
    """The last run of a dataset, or of one of its periods: its steps in the line's order, and its last release.

    `candidate` means that everything that a candidate needs exists; the candidate's page gives the details.
    """

    period: str | None
    place: str
    steps: tuple[StepView, ...]
    candidate: bool
    release: str | None


@dataclass(frozen=True)
class DatasetView:
    """One dataset: contract and columns in words, runs (the latest first), entries and releases (the newest first)."""

    row: DatasetRow
    contract: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    contacts: tuple[str, ...]
    file: str
    purpose: str | None
    recipients: tuple[str, ...]
    periods: tuple[PeriodView, ...]
    entries: tuple[EntryRow, ...]
    releases: tuple[ReleaseRow, ...]


@dataclass(frozen=True)
class DatasetsView:
    """One page of the datasets with a valid contract, by name.

    `faults` are the errors of invalid contracts, a line each, and `drafts` the datasets whose contract is not finished.
    """

    rows: tuple[DatasetRow, ...]
    paged: Paged
    text: str
    faults: tuple[str, ...]
    drafts: tuple[str, ...]


@dataclass(frozen=True)
class PlanView:
    """What a run of a dataset would do and cost, in words for readers who are no experts."""

    dataset: str
    period: str | None
    rows: tuple[tuple[str, str], ...]
    fits: bool


def datasets(settings: Settings, allowed: Collection[Action], text: str = "", page: int = 1) -> DatasetsView:
    """A page of all datasets, or of those whose name, family or description contains a text."""
    require(allowed, Action.READ)
    known, declared = chronicle(settings), catalogue.catalogue(settings)
    wanted = text.strip().casefold()
    rows = [_row(known, contract) for contract, _ in declared.datasets.values()]
    found = [
        row for row in rows if any(wanted in value.casefold() for value in (row.dataset, row.family, row.description))
    ]
    faults = (fault for name, fault in declared.faults.items() if name not in declared.drafts)
    return DatasetsView(*page_of(found, page), text, tuple(faults), tuple(sorted(declared.drafts)))


def dataset(settings: Settings, allowed: Collection[Action], name: str) -> DatasetView:
    """One dataset. Raises `NotFound` if no valid contract declares it."""
    require(allowed, Action.READ)
    known, declared = chronicle(settings), catalogue.catalogue(settings)
    if name not in declared.datasets:
        raise NotFound(declared.faults.get(name) or f"dataset {name!r}: no contract declares it")
    contract, family = declared.datasets[name]
    entries, releases = _made(settings, known, name)
    return DatasetView(
        row=_row(known, contract),
        contract=tuple((what, settings.shown(words)) for what, words in contract_words(contract)),
        columns=tuple((column, column_words(contract, column)) for column in contract.columns),
        contacts=tuple(contract.owners),
        file=settings.shown(str(settings.contracts / f"{name}.yaml")),
        purpose=contract.purpose,
        recipients=tuple(contract.recipients),
        periods=tuple(_periods(settings, allowed, known, name, silent=leaves_out_in_silence(contract, family))),
        entries=entries,
        releases=releases,
    )


@dataclass(frozen=True)
class FaultView:
    """A key of a contract's file with its problem and what is accepted; `key` is empty for the file as a whole."""

    key: str
    problem: str
    accepted: str


@dataclass(frozen=True)
class DraftView:
    """A contract file that declares no dataset yet: a `draft` has empty keys, another is invalid.

    `empty` are the keys that are not filled in, and `faults` everything else.
    """

    dataset: str
    draft: bool
    empty: tuple[str, ...]
    faults: tuple[FaultView, ...]


@dataclass(frozen=True)
class GoneView:
    """A dataset that no contract declares any more, with what was made of it: all of it stays."""

    dataset: str
    entries: tuple[EntryRow, ...]
    releases: tuple[ReleaseRow, ...]


def draft(settings: Settings, allowed: Collection[Action], name: str) -> DraftView | None:
    """What is missing in a contract's file; None where it is valid, or there is none."""
    require(allowed, Action.READ)
    declared = catalogue.catalogue(settings)
    if name not in declared.faults:
        return None
    found = [_fault(line) for line in declared.faults[name].splitlines()]
    empty = tuple(item.key for item in found if item.problem.startswith(NOT_FILLED_IN))
    return DraftView(name, name in declared.drafts, empty, tuple(item for item in found if item.key not in empty))


def gone(settings: Settings, allowed: Collection[Action], name: str) -> GoneView | None:
    """What is left of a dataset without a contract's file; None where there is one, or nothing was ever made."""
    require(allowed, Action.READ)
    known, declared = chronicle(settings), catalogue.catalogue(settings)
    if name in declared.datasets or name in declared.faults:
        return None
    entries, releases = _made(settings, known, name)
    return GoneView(name, entries, releases) if entries or releases else None


def _made(settings: Settings, known: Chronicle, name: str) -> tuple[tuple[EntryRow, ...], tuple[ReleaseRow, ...]]:
    """A dataset's ledger entries and releases, the newest first."""
    entries = [entry_row(item) for item in known.entries.values() if item.request.dataset == name]
    releases = [Listed(item.release, item) for item in reversed(known.published_of(name))]
    return tuple(reversed(entries)), tuple(row_of(settings, known, item) for item in releases)


def _fault(line: str) -> FaultView:
    """A line of an error: file, key, problem, and what is accepted."""
    problem, _, accepted = line.partition("; accepted: ")
    where, _, rest = problem.partition(": ")
    if not where.endswith((".yaml", ".yml")):
        return FaultView("", problem, accepted)
    key, divided, words = rest.partition(": ")
    return FaultView(key, words, accepted) if divided else FaultView("", rest, accepted)


def plan(settings: Settings, allowed: Collection[Action], name: str, period: str | None = None) -> PlanView:
    """What a run would do and cost. Calibrating the plan takes seconds for some methods.

    It shows what is left of the cap, and so needs `READ_SPEND`. Raises `NotFound` if no valid contract declares the
    dataset, `ConfigurationError` if it has no such period, and `DpsynthError` if the plan cannot be made.
    """
    from dpsynth_platform.reviewing.forecasts import forecast

    require(allowed, Action.READ_SPEND)
    if name not in catalogue.catalogue(settings).datasets:
        raise NotFound(f"dataset {name!r}: no valid contract declares it")
    found = forecast(settings, name, period)
    return PlanView(name, period, tuple(found.rows()), found.fits)


def _row(known: Chronicle, contract: DataContract) -> DatasetRow:
    published = known.published_of(contract.dataset)
    return DatasetRow(
        dataset=contract.dataset,
        description=contract.description,
        demonstration=contract.demo,
        family=contract.family,
        unit=contract.privacy.unit,
        guarantee=guarantee_view(Guarantee.target(contract), of_each=contract.separate_audit_model),
        cadence=contract.release.cadence,
        releases=len(published),
        last_release=published[-1].release if published else None,
        last_released_at=published[-1].at if published else None,
    )


def _periods(
    settings: Settings, allowed: Collection[Action], known: Chronicle, name: str, *, silent: bool
) -> Iterator[PeriodView]:
    released = {item.place.period: item.release for item in known.published_of(name)}
    for place in catalogue.places_of(settings, name):
        steps = tuple(_steps(settings, allowed, place, silent=silent))
        sealed = catalogue.sealed_contract(settings, place)
        yield PeriodView(
            period=place.period,
            place=place.label,
            steps=steps,
            candidate=sealed is not None and {*evidence_steps(sealed)} <= {step.step for step in steps if step.current},
            release=released.get(place.period),
        )


def _steps(settings: Settings, allowed: Collection[Action], place: Place, *, silent: bool) -> Iterator[StepView]:
    raw = catalogue.record_of(settings, place, "raw")
    for step in STEPS:
        record = catalogue.record_of(settings, place, step)
        if record is None:
            continue
        seen = may_see_counts(allowed, step, silent=silent)
        yield StepView(
            step=step,
            made_at=record.created_at,
            runner=record.runner,
            there=Storage(settings.restricted).exists(record),
            current=raw is not None and record.run_key == raw.run_key,
            counts=tuple(CountView(step, what, count) for what, count in counts_of(record)) if seen else None,
            lineage_run=record.lineage_run,
        )
