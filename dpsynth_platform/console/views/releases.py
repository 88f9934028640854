"""The pages of releases: the list, and one release with its dossier.

What belongs here: reading them for an actor. What does not: finding them (`listing`), and candidates (`candidates`).

A dossier is shown only if it is what was signed. If its file, its attestation or its key is damaged, the page shows
what the ledger's chain records, and what is broken.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import dossiers, listing
from dpsynth_platform.console.views.base import Paged, page_of, require
from dpsynth_platform.console.views.comparison import ComparisonView, Facts, compare, release_before
from dpsynth_platform.foundation.contact_sheet import as_svg
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, NotFound, ReleaseRefused
from dpsynth_platform.foundation.people import recorded, recorded_name
from dpsynth_platform.foundation.release_layout import SHEET
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.reviewing import decisions
from dpsynth_platform.reviewing.chronicle import chronicle


@dataclass(frozen=True)
class ReleasesView:
    """One page of the list of releases, with the filter of the request."""

    rows: tuple[listing.ReleaseRow, ...]
    paged: Paged
    text: str
    state: listing.ReleaseState | None
    since: str | None


@dataclass(frozen=True)
class ReleaseView:
    """One release. Parts are None if its directory is missing or its dossier is not what was signed.

    `counts` (for `READ_SPEND`) and `quality` (for `READ_QUALITY`) exist only while this is the last run of its place.
    `pictures` are the first published ones of each class, as SVG, of a release that verifies.
    """

    row: listing.ReleaseRow
    verification: dossiers.VerificationView | None
    dossier: dossiers.DossierView | None
    counts: tuple[dossiers.CountView, ...] | None
    quality: dossiers.QualityView | None
    decisions: tuple[dossiers.DecisionView, ...]
    comparison: ComparisonView | None
    directory: str | None
    pictures: str | None = None


def releases(
    settings: Settings,
    allowed: Collection[Action],
    text: str = "",
    state: listing.ReleaseState | None = None,
    since: str | None = None,
    page: int = 1,
) -> ReleasesView:
    """All releases, the newest first. Raises `ConfigurationError` if `since` is no day.

    `text` is a part of an id, dataset, period, family or name of an approver; `since` is the first day of publication.
    """
    require(allowed, Action.READ)
    if since is not None:
        _check_day(since)
    known = chronicle(settings)
    found = [item for item in listing.newest_first(settings, known) if _matches(item, text, since)]
    if state is not None:  # only this filter needs the state of every release
        rows = [row for row in (listing.row_of(settings, known, item) for item in found) if row.state == state]
        return ReleasesView(*page_of(rows, page), text, state, since)
    shown, paged = page_of(found, page)
    return ReleasesView(tuple(listing.row_of(settings, known, item) for item in shown), paged, text, state, since)


def release(settings: Settings, allowed: Collection[Action], release_id: str) -> ReleaseView:
    """One release with its dossier. Raises `NotFound`."""
    require(allowed, Action.READ)
    known = chronicle(settings)
    listed = listing.find(settings, known, release_id)
    row, directory = listing.row_of(settings, known, listed), listing.directory_of(settings, listed)
    checked, dossier = listing.verified(settings, known, directory), listing.signed_dossier(settings, known, listed)
    if checked is not None and not checked.report.ok and row.state in ("published", "withdrawn"):
        row = replace(row, state="damaged", state_words=listing.STATE_WORDS["damaged"])
    counts, quality = dossiers.restricted_parts(settings, allowed, _of_last_run(settings, allowed, listed))
    publication = listed.publication
    decided = known.decisions_on(publication.candidate, publication.entry.entry_id) if publication else []
    previous = release_before(settings, known, row.dataset, publication)
    return ReleaseView(
        row=row,
        verification=None if checked is None else dossiers.verification_view(settings, checked),
        dossier=None if dossier is None else dossiers.dossier_view(dossier),
        counts=counts,
        quality=quality,
        decisions=tuple(map(dossiers.decision_view, decided)),
        comparison=compare(settings, known, previous, Facts.of_dossier(dossier)) if dossier and previous else None,
        directory=None if directory is None else settings.shown(str(directory)),
        pictures=_pictures(directory) if checked is not None and checked.report.ok else None,
    )


def _pictures(directory: Path | None) -> str | None:
    """The contact sheet of a verified release, if it has one."""
    sheet = None if directory is None else directory / SHEET
    if sheet is None or not sheet.is_file():
        return None
    return as_svg(sheet.read_bytes(), "The first synthetic pictures of each class, one class a row")


@dataclass(frozen=True)
class WithdrawnView:
    """A withdrawn release; `left` is how many of its copies and directories an operator still has to look at."""

    release: str
    by: str
    at: str
    reason: str
    left: int


def withdraw(
    settings: Settings, allowed: Collection[Action], by: str, release_id: str, *, reason: str
) -> WithdrawnView:
    """Withdraws a release for ever (`DECIDE`), or finishes that. The reason is published.

    Raises `NotFound`, `ConfigurationError` for what cannot be recorded, and like `withdrawing.withdraw`.
    """
    from dpsynth_platform.reviewing.withdrawing import withdraw as withdraw_release

    require(allowed, Action.DECIDE)
    who, words = recorded_name(by, "who withdraws"), recorded(reason, "the reason")
    listed = listing.find(settings, chronicle(settings), release_id)
    done = withdraw_release(settings, listed.id, by=who, reason=words)
    return WithdrawnView(done.release, done.by, done.at, done.reason, len(done.warnings))


def verify(settings: Settings, allowed: Collection[Action], release_id: str) -> dossiers.VerificationView:
    """Verifies a release without cached results (`VERIFY`). Raises like `release`."""
    require(allowed, Action.VERIFY)
    known = chronicle(settings)
    listed = listing.find(settings, known, release_id)
    found = listing.verified(settings, known, listing.directory_of(settings, listed), anew=True)
    if found is None:
        raise NotFound(f"release {listed.id}: its directory is missing, so there is nothing to verify")
    return dossiers.verification_view(settings, found)


def _check_day(since: str) -> None:
    try:
        dt.date.fromisoformat(since)
    except ValueError:
        raise ConfigurationError(f"since: {since!r}; accepted: a day, YYYY-MM-DD") from None


def _matches(listed: listing.Listed, text: str, since: str | None) -> bool:
    publication = listed.publication
    if since is not None and (publication is None or publication.at[:10] < since):
        return False
    wanted = text.strip().casefold()
    family = publication.entry.family if publication else ""
    approvers = [item.by for item in publication.approvals] if publication else []
    return any(wanted in name.casefold() for name in (listed.id, listing.place_of(listed).label, family, *approvers))


def _of_last_run(
    settings: Settings, allowed: Collection[Action], listed: listing.Listed
) -> decisions.CandidateEvidence | None:
    """The evidence in storage, if it is that of this release and the actor may see any of it."""
    if listed.publication is None or not {Action.READ_SPEND, Action.READ_QUALITY} & set(allowed):
        return None
    try:
        gathered = decisions.gather(settings, listed.publication.place)
    except (ReleaseRefused, ContractError):
        return None
    return gathered if gathered.candidate.digest == listed.publication.candidate else None
