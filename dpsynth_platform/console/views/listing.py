"""Finding releases in the ledger's chain, with their directories and whether they are what was signed.

What belongs here: rows of lists, and reading a dossier that is as it was signed. What does not: pages.

A list checks every release on it: documents against their signature, and the table's files for existence. A release's
own page reads the table, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dpsynth_platform.console.views.dossiers import DecisionView, GuaranteeView, decision_view, guarantee_view
from dpsynth_platform.foundation import release_layout as layout
from dpsynth_platform.foundation.errors import NotFound, VerificationFailed
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.release.tombstone import is_withdrawn
from dpsynth_platform.release.verify import VerificationReport
from dpsynth_platform.reviewing import catalogue, verification
from dpsynth_platform.reviewing.chronicle import Chronicle, Publication

ReleaseState = Literal["published", "withdrawn", "withdrawal-unfinished", "damaged", "missing", "unrecorded"]


STATE_WORDS: dict[ReleaseState, str] = {
    "published": "published",
    "withdrawn": "withdrawn",
    "withdrawal-unfinished": "withdrawal not finished; withdraw it again to finish it",
    "damaged": "broken: it is not what was signed",
    "missing": "broken: its directory is missing",
    "unrecorded": "broken: the ledger records no such release",
}


@dataclass(frozen=True)
class ReleaseRow:
    """One release in a list.

    Attributes:
        state: see `STATE_WORDS`; `state_words` is its sentence.
        at: time of publication; empty if the ledger does not record the release.
        guarantee: the reserved one, of two mechanisms that of both together; None if the ledger does not record it.
        approved_by: the names whose approvals counted.
    """

    id: str
    dataset: str
    period: str | None
    place: str
    state: ReleaseState
    state_words: str
    at: str
    entry: str | None
    family: str | None
    guarantee: GuaranteeView | None
    approved_by: tuple[str, ...]
    withdrawn: DecisionView | None


@dataclass(frozen=True)
class Listed:
    """A release: its `publication` in the chain, or else the `unrecorded` directory that was found."""

    id: str
    publication: Publication | None
    unrecorded: Path | None = None


def newest_first(settings: Settings, known: Chronicle) -> list[Listed]:
    """All releases that the chain records, the newest first, and then directories that it does not record."""
    recorded = [Listed(item.release, item) for item in known.publications.values()]
    beside = catalogue.published_beside(settings, known.publications)
    return [*reversed(recorded), *(Listed(name, None, path) for name, path in sorted(beside.items()))]


def find(settings: Settings, known: Chronicle, release_id: str) -> Listed:
    """A release by its id. Raises `NotFound`."""
    if release_id in known.publications:
        return Listed(release_id, known.publications[release_id])
    unrecorded = catalogue.published_beside(settings, known.publications).get(release_id)
    if unrecorded is None:
        raise NotFound(f"release {release_id!r}: there is none; accepted: an id that the list of releases shows")
    return Listed(release_id, None, unrecorded)


def directory_of(settings: Settings, listed: Listed) -> Path | None:
    """The directory of a release: the last recorded place where it exists, or else the one that its contract names."""
    if listed.publication is None:
        return listed.unrecorded
    shown = [path for path in catalogue.directories(settings, listed.id) if _is_there(path)]
    if shown:
        return shown[-1]
    declared = catalogue.catalogue(settings).datasets.get(listed.publication.place.dataset)
    path = Path(declared[0].release.uri) / listed.id if declared else None
    return path if path is not None and _is_there(path) else None


def _is_there(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def verified(
    settings: Settings, known: Chronicle, directory: Path | None, *, rows: bool = True, anew: bool = False
) -> verification.Checked | None:
    """The verification of a release (`verification.checked`), or None if it is missing."""
    if directory is None:
        return None
    try:
        return verification.checked(settings, known, directory, rows=rows, anew=anew)
    except VerificationFailed:  # deleted in the meantime
        return None


def row_of(settings: Settings, known: Chronicle, listed: Listed) -> ReleaseRow:
    """A release as lists show it. Its documents are checked against their signature; its table is not read."""
    publication, state = listed.publication, _state(settings, known, listed, directory_of(settings, listed))
    place = place_of(listed)
    return ReleaseRow(
        id=listed.id,
        dataset=place.dataset,
        period=place.period,
        place=place.label,
        state=state,
        state_words=STATE_WORDS[state],
        at=publication.at if publication else "",
        entry=publication.entry.entry_id if publication else None,
        family=publication.entry.family if publication else None,
        guarantee=guarantee_view(known.promised(publication.entry)) if publication else None,
        approved_by=tuple(item.by for item in publication.approvals) if publication else (),
        withdrawn=decision_view(publication.withdrawn) if publication and publication.withdrawn else None,
    )


def place_of(listed: Listed) -> Place:
    """The dataset and period; of an unrecorded release, the name of the directory above."""
    if listed.publication is not None:
        return listed.publication.place
    return Place(listed.unrecorded.parent.name if listed.unrecorded else listed.id)


def signed_dossier(settings: Settings, known: Chronicle, listed: Listed) -> dict[str, Any] | None:
    """A release's dossier, or None if it is not what was signed."""
    directory = directory_of(settings, listed)
    if directory is None:
        return None
    before = verified(settings, known, directory, rows=False)
    document = _read_dossier(directory)
    after = verified(settings, known, directory, rows=False)
    # The same verification before and after: no file changed while the dossier was read.
    return document if after is not None and before is after and is_as_signed(after.report) else None


def is_as_signed(report: VerificationReport) -> bool:
    """Whether the dossier itself is what was signed, whatever happened to the files beside it."""
    return not any(item.kind in _TRUST or item.file == layout.DOSSIER for item in report.problems)


_TRUST = ("signature", "identity", "schema", "chain-head")
"""Kinds of failure that make the whole dossier untrustworthy."""


def _state(settings: Settings, known: Chronicle, listed: Listed, directory: Path | None) -> ReleaseState:
    if listed.publication is None:
        return "unrecorded"
    if directory is None:
        return "missing"
    gone = listed.publication.withdrawn is not None or is_withdrawn(directory)
    if gone and (not is_withdrawn(directory) or layout.has_rows(directory)):
        return "withdrawal-unfinished"
    checked = verified(settings, known, directory, rows=False)
    if checked is None or not checked.report.ok:
        return "missing" if checked is None else "damaged"
    return "withdrawn" if gone else "published"


def _read_dossier(directory: Path) -> dict[str, Any] | None:
    """A dossier that was just verified; None if it has changed since."""
    try:
        document = json.loads((directory / layout.DOSSIER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
