"""The pages of releases: the list, and one release with its dossier.

What belongs here: reading them for somebody with certain actions. What does not: finding them (`listing`), and
candidates (`candidates`).

A dossier is shown only as far as it is what was signed. Where its own file, its attestation or its key is damaged, the
page shows what the ledger's chain says, and what is broken.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection
from dataclasses import dataclass, replace

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import Paged, View, require
from dpsynth_platform.console.views.comparison import ComparisonView, Side, beside, release_before
from dpsynth_platform.console.views.dossiers import (
    CountView,
    DecisionView,
    DossierView,
    QualityView,
    VerificationView,
    decision_view,
    dossier_view,
    restricted_parts,
    verification_view,
)
from dpsynth_platform.console.views.listing import (
    STATE_WORDS,
    Listed,
    ReleaseRow,
    ReleaseState,
    directory_of,
    find,
    newest_first,
    place_of,
    row_of,
    signed_dossier,
    verified,
)
from dpsynth_platform.foundation.errors import ConfigurationError, ContractError, NotFound, ReleaseRefused
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.reviewing import decisions
from dpsynth_platform.reviewing.chronicle import chronicle


@dataclass(frozen=True)
class ReleasesView(View):
    """One page of the list of releases.

    Attributes:
        text, state, since: as they were asked for.
    """

    rows: tuple[ReleaseRow, ...]
    paged: Paged
    text: str
    state: ReleaseState | None
    since: str | None


@dataclass(frozen=True)
class ReleaseView(View):
    """One release.

    Attributes:
        row: as in the list.
        verification: what holding all its files against their signature found; None where its directory is gone.
        dossier: None where it is not what was signed.
        counts: exact counts along the line; for `READ_SPEND`, and while this is the last run of its place.
        quality: for `READ_QUALITY`, and while this is the last run of its place.
        decisions: all on what was published.
        directory: where it lies on the server, below the deployment's own places if it does.
    """

    row: ReleaseRow
    verification: VerificationView | None
    dossier: DossierView | None
    counts: tuple[CountView, ...] | None
    quality: QualityView | None
    decisions: tuple[DecisionView, ...]
    comparison: ComparisonView | None
    directory: str | None


def releases(
    settings: Settings,
    allowed: Collection[Action],
    text: str = "",
    state: ReleaseState | None = None,
    since: str | None = None,
    page: int = 1,
) -> ReleasesView:
    """All releases, the newest first.

    Args:
        settings: the deployment.
        allowed: what the asker may do; `READ`.
        text: part of an id, dataset, period, family or name of an approver.
        state: only those in this state.
        since: only those published on or after this day, `YYYY-MM-DD`.
        page: from 1 on.

    Raises:
        NotAllowed: the asker may not read.
        ConfigurationError: `since` is no day.
    """
    require(allowed, Action.READ)
    if since is not None:
        _check_day(since)
    known = chronicle(settings)
    found = [item for item in newest_first(settings, known) if _is_meant(item, text, since)]
    if state is not None:  # only then every one of them has to be looked at
        rows = [row for row in (row_of(settings, known, item) for item in found) if row.state == state]
        paged = Paged.of(len(rows), page)
        return ReleasesView(tuple(rows[paged.slice()]), paged, text, state, since)
    paged = Paged.of(len(found), page)
    shown = tuple(row_of(settings, known, item) for item in found[paged.slice()])
    return ReleasesView(shown, paged, text, state, since)


def release(settings: Settings, allowed: Collection[Action], release_id: str) -> ReleaseView:
    """One release with its dossier.

    Raises:
        NotAllowed: the asker may not read.
        NotFound: there is no such release.
    """
    require(allowed, Action.READ)
    known = chronicle(settings)
    listed = find(settings, known, release_id)
    row, directory = row_of(settings, known, listed), directory_of(settings, listed)
    checked, dossier = verified(settings, known, directory), signed_dossier(settings, known, listed)
    if checked is not None and not checked.report.ok and row.state in ("published", "withdrawn"):
        row = replace(row, state="damaged", state_words=STATE_WORDS["damaged"])
    counts, quality = restricted_parts(settings, allowed, _of_last_run(settings, allowed, listed))
    publication = listed.publication
    decided = known.decisions_on(publication.candidate, publication.entry.entry_id) if publication else []
    previous = release_before(settings, known, row.dataset, publication)
    return ReleaseView(
        row=row,
        verification=None if checked is None else verification_view(settings, checked),
        dossier=None if dossier is None else dossier_view(dossier),
        counts=counts,
        quality=quality,
        decisions=tuple(map(decision_view, decided)),
        comparison=beside(settings, known, previous, Side.of_dossier(dossier)) if dossier and previous else None,
        directory=None if directory is None else settings.shown(str(directory)),
    )


def verify(settings: Settings, allowed: Collection[Action], release_id: str) -> VerificationView:
    """Verifies a release anew, whatever is known of it; for `VERIFY`. Raises like `release`."""
    require(allowed, Action.VERIFY)
    known = chronicle(settings)
    listed = find(settings, known, release_id)
    found = verified(settings, known, directory_of(settings, listed), anew=True)
    if found is None:
        raise NotFound(f"release {listed.id}: its directory is not there, so there is nothing to verify")
    return verification_view(settings, found)


def _check_day(since: str) -> None:
    try:
        dt.date.fromisoformat(since)
    except ValueError:
        raise ConfigurationError(f"since: {since!r}; accepted: a day, YYYY-MM-DD") from None


def _is_meant(listed: Listed, text: str, since: str | None) -> bool:
    publication = listed.publication
    if since is not None and (publication is None or publication.at[:10] < since):
        return False
    wanted = text.strip().casefold()
    family = publication.entry.family if publication else ""
    approvers = [item.by for item in publication.approvals] if publication else []
    return any(wanted in name.casefold() for name in (listed.id, place_of(listed).label, family, *approvers))


def _of_last_run(settings: Settings, allowed: Collection[Action], listed: Listed) -> decisions.Gathered | None:
    """The evidence in storage, while it is that of this release and somebody may see any of it."""
    if listed.publication is None or not {Action.READ_SPEND, Action.READ_QUALITY} & set(allowed):
        return None
    try:
        gathered = decisions.gather(settings, listed.publication.place)
    except (ReleaseRefused, ContractError):
        return None
    return gathered if gathered.candidate.digest == listed.publication.candidate else None
