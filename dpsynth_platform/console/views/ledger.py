"""The pages of the ledger: its events, one entry, its verification, its export.

What belongs here: reading them for an actor. What does not: deciding anything, and participants.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import Paged, page_of, require, view_of
from dpsynth_platform.console.views.dossiers import GuaranteeView, guarantee_view
from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger.records import ChainEvent
from dpsynth_platform.ledger.words import broken_words, whole_words
from dpsynth_platform.reviewing import accounts, verification
from dpsynth_platform.reviewing.chronicle import Chronicle, chronicle


@dataclass(frozen=True)
class EventView:
    """One event of the chain about a family, dataset, entry, candidate or release.

    `by` is empty if no person is recorded; `entry` is the ledger entry that the event belongs to.
    """

    sequence: int
    at: str
    kind: str
    about: str
    by: str
    words: str
    hash: str
    entry: str | None


@dataclass(frozen=True)
class LedgerView:
    """One page of the chain, the newest event first; `head` is number and hash of the last link."""

    rows: tuple[EventView, ...]
    paged: Paged
    kinds: tuple[str, ...]
    text: str
    kind: str | None
    head: tuple[int, str]


@dataclass(frozen=True)
class EntryView:
    """One ledger entry, with the events of it and of what it paid for, in order.

    Attributes:
        mechanism: kind of the privacy event that it pays for.
        plan: digest of the sealed plan (public).
        commitment: hiding commitment to the participants, or None if none were recorded.
        replaces: the failed entry after which an explicit order allowed this one.
        attempts: ids of all entries of the same run, first to last.
        releases: ids of the releases that it paid for.
    """

    entry: str
    family: str
    dataset: str
    period: str | None
    place: str
    purpose: str
    state: str
    guarantee: GuaranteeView
    runner: str
    mechanism: str
    plan: str
    commitment: str | None
    replaces: str | None
    attempts: tuple[str, ...]
    reserved_at: str
    deadline: str
    started_at: str | None
    finished_at: str | None
    void_reason: str | None
    events: tuple[EventView, ...]
    releases: tuple[str, ...]


@dataclass(frozen=True)
class LedgerVerificationView:
    """The result of `verification.verify_ledger`: the recomputed chain compared with the published dossiers."""

    ok: bool
    words: str
    problems: tuple[str, ...]
    events: int
    entries: int
    dossiers: int
    last_at: str | None


def entries(
    settings: Settings, allowed: Collection[Action], text: str = "", kind: str | None = None, page: int = 1
) -> LedgerView:
    """The chain's events of a kind, the newest first.

    `text` is a part of an event's subject, words or person; or its number.
    """
    require(allowed, Action.READ)
    known = chronicle(settings)
    wanted = text.strip().casefold()
    found = [
        row
        for row in (_event_view(known, place) for place in reversed(range(len(known.events))))
        if (kind is None or row.kind == kind) and _matches(row, wanted)
    ]
    rows, paged = page_of(found, page)
    return LedgerView(
        rows=rows,
        paged=paged,
        kinds=tuple(sorted({event.kind for event in known.events})),
        text=text,
        kind=kind,
        head=(known.head.sequence, known.head.hash),
    )


def entry(settings: Settings, allowed: Collection[Action], entry_id: str) -> EntryView:
    """One ledger entry. Raises `NotFound`."""
    require(allowed, Action.READ)
    known = chronicle(settings)
    found = known.entries.get(entry_id)
    if found is None:
        raise NotFound(f"ledger entry {entry_id!r}: there is none; accepted: an id that the ledger lists")
    request = found.request
    attempts = sorted((item.attempt, item.entry_id) for item in known.entries.values() if item.key == found.key)
    return view_of(
        EntryView,
        found,
        request,
        entry=entry_id,
        guarantee=guarantee_view(request.guarantee),
        mechanism=str(request.event.get("kind", "")),
        plan=request.plan_digest,
        attempts=tuple(attempt for _, attempt in attempts),
        events=tuple(
            _event_view(known, place)
            for place in range(len(known.events))
            if _entry_of(known.events[place], known) == entry_id
        ),
        releases=tuple(item.release for item in known.publications.values() if item.entry.entry_id == entry_id),
    )


def verify(settings: Settings, allowed: Collection[Action]) -> LedgerVerificationView:
    """Recomputes the whole ledger and compares it with the published dossiers (`VERIFY`).

    Raises `ConfigurationError` if there is no ledger.
    """
    require(allowed, Action.VERIFY)
    report = verification.verify_ledger(settings)
    words = (
        whole_words(report.events, report.entries, report.last_at, report.dossiers)
        if report.ok
        else broken_words(report.events, report.entries)
    )
    return LedgerVerificationView(ok=report.ok, words=words, **asdict(report))


def export(settings: Settings, allowed: Collection[Action]) -> dict[str, Any]:
    """The signed ledger for an auditor: chain, accounts and entries, without owners (`EXPORT`).

    Raises `ConfigurationError` if there is no ledger.
    """
    from dpsynth_platform.ledger.export import sign_export
    from dpsynth_platform.secrets.vault import Vault

    require(allowed, Action.EXPORT)
    return sign_export(accounts.ledger(settings).export(), Vault(settings.vault).signing_key())


def _event_view(known: Chronicle, place: int) -> EventView:
    event, (by, words) = known.events[place], known.words[place]
    return view_of(EventView, event, about=event.subject, by=by, words=words, entry=_entry_of(event, known))


def _entry_of(event: ChainEvent, known: Chronicle) -> str | None:
    """The entry that an event's subject or payload names."""
    named = event.subject if event.subject in known.entries else event.payload.get("entry")
    return named if isinstance(named, str) and named in known.entries else None


def _matches(row: EventView, wanted: str) -> bool:
    return (
        not wanted
        or wanted == str(row.sequence)
        or any(wanted in value.casefold() for value in (row.about, row.words, row.by))
    )
