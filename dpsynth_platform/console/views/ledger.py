"""The pages of the ledger: its events, one entry, its verification, its export.

What belongs here: reading them for somebody with certain actions. What does not: deciding anything, and participants.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass
from typing import Any

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import Paged, View, require
from dpsynth_platform.console.views.dossiers import GuaranteeView, guarantee_view
from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger.records import ChainEvent, Entry
from dpsynth_platform.ledger.words import broken_words, whole_words
from dpsynth_platform.reviewing import accounts, verification
from dpsynth_platform.reviewing.chronicle import Chronicle, chronicle


@dataclass(frozen=True)
class EventView(View):
    """One event of the chain.

    Attributes:
        about: the family, dataset, entry, candidate or release that it is about.
        by: who did it; empty where nobody is named.
        words: what it says.
        entry: id of the ledger entry that it belongs to, or None.
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
class LedgerView(View):
    """One page of the chain, the newest event first.

    Attributes:
        kinds: all kinds of events that there are.
        text, kind: as they were asked for.
        head: number and hash of the last link.
    """

    rows: tuple[EventView, ...]
    paged: Paged
    kinds: tuple[str, ...]
    text: str
    kind: str | None
    head: tuple[int, str]


@dataclass(frozen=True)
class EntryView(View):
    """One ledger entry.

    Attributes:
        mechanism: kind of the privacy event that it pays for.
        plan: digest of the sealed plan (public).
        commitment: hiding commitment to who took part, or None where nobody was named.
        replaces: the failed entry after which this one was allowed by an explicit word.
        attempts: ids of all entries of the same run, first to last.
        events: all that happened to it and to what it paid for, in order.
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
class LedgerVerificationView(View):
    """What verifying the ledger found: everything recomputed, and held against all published dossiers.

    Attributes:
        dossiers: how many published ones lead into the chain.
        words: the result in a sentence.
    """

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
    """The chain's events, the newest first.

    Args:
        settings: the deployment.
        allowed: what the asker may do; `READ`.
        text: part of what an event is about, of its words, or of who did it; or its number.
        kind: only those of one kind.
        page: from 1 on.

    Raises:
        NotAllowed: the asker may not read.
    """
    require(allowed, Action.READ)
    known = chronicle(settings)
    wanted = text.strip().casefold()
    found = [
        row
        for row in (_event_view(known, place) for place in reversed(range(len(known.events))))
        if (kind is None or row.kind == kind) and _is_meant(row, wanted)
    ]
    paged = Paged.of(len(found), page)
    return LedgerView(
        rows=tuple(found[paged.slice()]),
        paged=paged,
        kinds=tuple(sorted({event.kind for event in known.events})),
        text=text,
        kind=kind,
        head=(known.head.sequence, known.head.hash),
    )


def entry(settings: Settings, allowed: Collection[Action], entry_id: str) -> EntryView:
    """One ledger entry.

    Raises:
        NotAllowed: the asker may not read.
        NotFound: there is none.
    """
    require(allowed, Action.READ)
    known = chronicle(settings)
    found = known.entries.get(entry_id)
    if found is None:
        raise NotFound(f"ledger entry {entry_id!r}: there is none; accepted: an id that the ledger lists")
    request = found.request
    return EntryView(
        entry=found.entry_id,
        family=found.family,
        dataset=request.dataset,
        period=request.period,
        place=request.place,
        purpose=request.purpose,
        state=found.state,
        guarantee=guarantee_view(request.guarantee),
        runner=request.runner,
        mechanism=str(request.event.get("kind", "")),
        plan=request.plan_digest,
        commitment=found.commitment,
        replaces=found.replaces,
        attempts=tuple(item.entry_id for item in _attempts(known, found)),
        reserved_at=found.reserved_at,
        deadline=found.deadline,
        started_at=found.started_at,
        finished_at=found.finished_at,
        void_reason=found.void_reason,
        events=tuple(
            _event_view(known, place)
            for place in range(len(known.events))
            if _entry_of(known.events[place], known) == entry_id
        ),
        releases=tuple(item.release for item in known.publications.values() if item.entry.entry_id == entry_id),
    )


def verify(settings: Settings, allowed: Collection[Action]) -> LedgerVerificationView:
    """Recomputes the whole ledger and holds it against the published dossiers; for `VERIFY`.

    Raises:
        NotAllowed: the asker may not verify.
        ConfigurationError: there is no ledger.
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
    """The ledger for an auditor, signed: chain, accounts and entries, and nothing of owners; for `EXPORT`.

    Raises:
        NotAllowed: the asker may not export.
        ConfigurationError: there is no ledger.
    """
    from dpsynth_platform.ledger.export import sign_export
    from dpsynth_platform.secrets.vault import Vault

    require(allowed, Action.EXPORT)
    return sign_export(accounts.ledger(settings).export(), Vault(settings.vault).signing_key())


def _event_view(known: Chronicle, place: int) -> EventView:
    event, (by, words) = known.events[place], known.words[place]
    return EventView(
        sequence=event.sequence,
        at=event.at,
        kind=event.kind,
        about=event.subject,
        by=by,
        words=words,
        hash=event.hash,
        entry=_entry_of(event, known),
    )


def _entry_of(event: ChainEvent, known: Chronicle) -> str | None:
    """The entry that an event is about, by its subject or by what it names."""
    named = event.subject if event.subject in known.entries else event.payload.get("entry")
    return named if isinstance(named, str) and named in known.entries else None


def _attempts(known: Chronicle, found: Entry) -> list[Entry]:
    return sorted((item for item in known.entries.values() if item.key == found.key), key=lambda item: item.attempt)


def _is_meant(row: EventView, wanted: str) -> bool:
    return (
        not wanted
        or wanted == str(row.sequence)
        or any(wanted in told.casefold() for told in (row.about, row.words, row.by))
    )
