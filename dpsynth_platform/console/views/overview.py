"""The overview: what waits for a person, the budgets, and recent releases.

What belongs here: a few lines on each. What does not: details, which have pages of their own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import require
from dpsynth_platform.console.views.candidates import missing_approvals
from dpsynth_platform.console.views.dossiers import GuaranteeView, guarantee_view
from dpsynth_platform.console.views.families import FamilyRow, budgets
from dpsynth_platform.console.views.listing import ReleaseRow, newest_first, row_of
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ReleaseRefused
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Storage
from dpsynth_platform.release import evidence
from dpsynth_platform.reviewing import catalogue, discussion
from dpsynth_platform.reviewing.chronicle import Chronicle, Recorded, cached_ledger, chronicle
from dpsynth_platform.reviewing.decisions import until_words

RECENT = 8
"""Releases that are listed."""


@dataclass(frozen=True)
class Waiting:
    """Something that waits for a person, and why.

    `kind` is `candidate` (for a decision), `publication` (approved, not published yet), or `raise` (a larger cap was
    requested in `event` and needs another person's approval). `title` is the dataset with its period, or the family;
    `assigned` is who looks at the candidate.
    """

    kind: Literal["candidate", "publication", "raise"]
    title: str
    dataset: str | None
    period: str | None
    family: str
    since: str
    why: str
    guarantee: GuaranteeView | None
    event: int | None
    assigned: str | None = None


@dataclass(frozen=True)
class Overview:
    """The first page: the longest wait and the newest release first.

    `faults` are errors of declarations, and `drafts` the datasets and families whose declaration is not finished.
    """

    waiting: tuple[Waiting, ...]
    budgets: tuple[FamilyRow, ...]
    recent: tuple[ReleaseRow, ...]
    faults: tuple[str, ...]
    drafts: tuple[str, ...]
    datasets: int
    releases: int


def overview(settings: Settings, allowed: Collection[Action]) -> Overview:
    """The overview of a deployment."""
    require(allowed, Action.READ)
    known, declared = chronicle(settings), catalogue.catalogue(settings)
    families, found = budgets(settings, allowed), newest_first(settings, known)
    waiting = [*_candidates(settings, known), *_raises(families)]
    return Overview(
        waiting=tuple(sorted(waiting, key=lambda item: item.since)),
        budgets=families,
        recent=tuple(row_of(settings, known, item) for item in found[:RECENT]),
        faults=declared.invalid,
        drafts=(*sorted(declared.drafts), *(f"{name} (a family)" for name in sorted(declared.family_drafts))),
        datasets=len(declared.datasets),
        releases=len(found),
    )


def _candidates(settings: Settings, known: Chronicle) -> Iterator[Waiting]:
    for recorded in known.candidates.values():
        if known.is_published(recorded.digest) or known.is_ended(recorded):
            continue
        contract = catalogue.sealed_contract(settings, recorded.place)
        if contract is not None and is_present(settings, recorded, contract):
            yield _waiting(settings, known, recorded, contract)


def is_present(settings: Settings, recorded: Recorded, contract: DataContract) -> bool:
    """Whether the candidate in storage is the one that the chain records."""
    try:
        storage, ledger = Storage(settings.restricted), cached_ledger(settings)
        found = evidence.candidate_of(storage, recorded.place, contract, ledger, read=False)
    except ReleaseRefused:
        return False
    return found.digest == recorded.digest


def _waiting(settings: Settings, known: Chronicle, recorded: Recorded, contract: DataContract) -> Waiting:
    place, request = recorded.place, recorded.entry.request
    decided = known.decisions_on(recorded.digest, recorded.entry.entry_id)
    runners = (*evidence.candidate_runners(Storage(settings.restricted), place), request.runner)
    try:
        evidence.check_approvals(place, contract, decided, runners)
        kind: Literal["candidate", "publication"] = "publication"
        why = "approved; the approvals sensor, or the next run, publishes it"
    except ReleaseRefused:
        declared = catalogue.catalogue(settings).datasets.get(place.dataset)
        until = until_words(settings, place, declared[0] if declared else None)
        kind, why = "candidate", missing_approvals(contract, decided, runners) + until
        if declared is None:
            why = "nobody can decide until its contract, which is missing or has faults, is restored"
    return Waiting(
        kind=kind,
        title=place.label,
        dataset=place.dataset,
        period=place.period,
        family=recorded.entry.family,
        since=recorded.at,
        why=why,
        guarantee=guarantee_view(known.promised(recorded.entry)),
        event=None,
        assigned=discussion.assigned(discussion.remarks(settings, recorded.digest)),
    )


def _raises(families: Collection[FamilyRow]) -> Iterator[Waiting]:
    for row in families:
        for asked in row.raises:
            yield Waiting(
                kind="raise",
                title=row.family,
                dataset=None,
                period=None,
                family=row.family,
                since=asked.at,
                why=f"{asked.by} asks for {asked.words}; another person must approve it",
                guarantee=None,
                event=asked.event,
            )
