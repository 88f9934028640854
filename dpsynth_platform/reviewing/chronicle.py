"""The ledger as people look at it again and again: read once, and then only what is new.

What belongs here: all public records of the ledger in memory, and what they say of candidates, decisions and releases.
What does not: deciding anything (whoever decides reads the database), verifying (`verification`, which reads all of it
anew), and participants.

A chain only grows, so that a link that is still its last means that nothing has happened. Where somebody rewrote rows
and left the last link alone, what was read before is shown until the process ends; the verification finds it.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.ledger import chain, rows
from dpsynth_platform.ledger.records import Account, ChainEvent, Decision, Entry, Head
from dpsynth_platform.ledger.store import Ledger
from dpsynth_platform.ledger.words import in_words
from dpsynth_platform.lineage.scenarios import Repetitions
from dpsynth_platform.privacy.accounting import EPSILON_STEP, epsilon
from dpsynth_platform.privacy.events import event_from_json, twice
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.release.evidence import APPROVE, REFUSE, standing_approvals
from dpsynth_platform.release.heads import KnownChain
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.synth.planning import audited_key

_BEGINNING = Head(0, chain.GENESIS)
_DEPLOYMENTS = 8
"""How many a process keeps; only tests look at more than one."""


@dataclass(frozen=True)
class Recorded:
    """A candidate that waited for nothing but a decision when it was made.

    Attributes:
        digest: what an approval of it names.
        at: when it was made, ISO 8601, UTC.
    """

    digest: str
    entry: Entry
    at: str

    @property
    def place(self) -> Place:
        """Whose candidate it is."""
        return Place(self.entry.request.dataset, self.entry.request.period)


@dataclass(frozen=True)
class Publication:
    """A release as the chain records it.

    Attributes:
        candidate: digest of what was published.
        at: when, ISO 8601, UTC.
        sequence: number of the event that records it.
        approvals: those that it was published by.
        withdrawn: the word that withdrew it, or None.
    """

    release: str
    candidate: str
    entry: Entry
    at: str
    sequence: int
    approvals: tuple[Decision, ...]
    withdrawn: Decision | None

    @property
    def place(self) -> Place:
        """Whose release it is."""
        return Place(self.entry.request.dataset, self.entry.request.period)


@dataclass(frozen=True)
class Chronicle:
    """The ledger at one moment.

    Attributes:
        readings: how often the chain was not what was known of it and was read from its beginning: 1 unless somebody
            put another ledger in its place.
    """

    head: Head = _BEGINNING
    events: tuple[ChainEvent, ...] = ()
    accounts: Mapping[str, Account] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    readings: int = 0

    @cached_property
    def known_chain(self) -> KnownChain:
        """Its links, for holding releases against them."""
        return KnownChain(
            "this deployment's ledger",
            {event.sequence: event.hash for event in self.events},
            frozenset(event.subject for event in self.events if event.kind == chain.WITHDRAWN),
        )

    @cached_property
    def words(self) -> tuple[tuple[str, str], ...]:
        """Of each event, who did it and what it says."""
        return tuple(in_words(self.events))

    @cached_property
    def decisions(self) -> tuple[Decision, ...]:
        """All approvals, refusals and withdrawals, in order."""
        kinds = (chain.APPROVED, chain.REFUSED, chain.WITHDRAWN)
        return tuple(rows.decision_of(event) for event in self.events if event.kind in kinds)

    def decisions_on(self, candidate: str, entry_id: str) -> list[Decision]:
        """As `Ledger.approvals`: approvals of a candidate, refusals and withdrawals of what its entry paid for."""
        return [
            item for item in self._decided.get(entry_id, ()) if item.decision != APPROVE or item.candidate == candidate
        ]

    @cached_property
    def publications(self) -> Mapping[str, Publication]:
        """All releases that the chain records, by id, in the order in which they were published."""
        withdrawn = {item.release: item for item in self.decisions if item.release is not None}
        found = {}
        for event in self.events:
            if event.kind == chain.RELEASED and event.payload["entry"] in self.entries:
                entry = self.entries[event.payload["entry"]]
                before = [
                    item
                    for item in self.decisions_on(event.payload["candidate"], entry.entry_id)
                    if item.sequence < event.sequence
                ]
                found[event.subject] = Publication(
                    release=event.subject,
                    candidate=event.payload["candidate"],
                    entry=entry,
                    at=event.at,
                    sequence=event.sequence,
                    approvals=standing_approvals(before),
                    withdrawn=withdrawn.get(event.subject),
                )
        return found

    @cached_property
    def candidates(self) -> Mapping[str, Recorded]:
        """The last recorded candidate of each dataset and period, by its label."""
        found: dict[str, Recorded] = {}
        for event in self.events:
            if event.kind == chain.CANDIDATE and event.payload["entry"] in self.entries:
                recorded = Recorded(event.subject, self.entries[event.payload["entry"]], event.at)
                found[recorded.place.label] = recorded
        return found

    def promised(self, entry: Entry) -> Guarantee:
        """What was reserved for a release that an entry pays for; where a second mechanism was, that of both."""
        one = entry.request.guarantee
        if audited_key(entry.key) not in self._keys:
            return one
        both = epsilon(twice(event_from_json(entry.request.event)), one.delta)
        return replace(one, epsilon=max(both.epsilon, EPSILON_STEP))

    def is_published(self, candidate: str) -> bool:
        """Whether a release of it stands, which was not withdrawn."""
        return candidate in self._standing

    def is_refused(self, recorded: Recorded) -> bool:
        """Whether the last word on a candidate was a refusal."""
        decided = self.decisions_on(recorded.digest, recorded.entry.entry_id)
        return bool(decided) and decided[-1].decision == REFUSE

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(item.key for item in self.entries.values())

    @cached_property
    def _standing(self) -> frozenset[str]:
        return frozenset(item.candidate for item in self.publications.values() if item.withdrawn is None)

    @cached_property
    def _decided(self) -> Mapping[str, list[Decision]]:
        found: dict[str, list[Decision]] = {}
        for item in self.decisions:
            found.setdefault(item.entry_id, []).append(item)
        return found

    @cached_property
    def repetitions(self) -> Repetitions:
        """What the charged entries may have in common."""
        return Repetitions(self.entries.values(), self.accounts, self.events)

    @cached_property
    def raises_asked(self) -> Mapping[str, tuple[ChainEvent, ...]]:
        """The events that ask for a larger cap, by family."""
        found: dict[str, tuple[ChainEvent, ...]] = {}
        for event in self.events:
            if event.kind == chain.RAISE_ASKED:
                found[event.subject] = (*found.get(event.subject, ()), event)
        return found

    def published_of(self, dataset: str) -> tuple[Publication, ...]:
        """The releases of one dataset, in the order in which they were published."""
        return self._by_dataset.get(dataset, ())

    @cached_property
    def _by_dataset(self) -> Mapping[str, tuple[Publication, ...]]:
        found: dict[str, tuple[Publication, ...]] = {}
        for item in self.publications.values():
            found[item.place.dataset] = (*found.get(item.place.dataset, ()), item)
        return found


def chronicle(settings: Settings) -> Chronicle:
    """The deployment's ledger as it is now; an empty one where there is none yet.

    Raises:
        LedgerError: it cannot be read.
    """
    return _reader(settings.ledger_url).read() if settings.has_ledger else Chronicle()


def opened(settings: Settings) -> Ledger:
    """The deployment's ledger, opened once a process. Raises `ConfigurationError` where there is none."""
    if not settings.has_ledger:
        return accounts.ledger(settings)
    return _reader(settings.ledger_url).ledger


class _Reader:
    """The chronicle of one ledger."""

    def __init__(self, url: str) -> None:
        self.ledger = Ledger(url)
        self._known = Chronicle()
        self._lock = threading.Lock()

    def read(self) -> Chronicle:
        with self._lock:
            news = self.ledger.news(self._known.head)
            if news is not None:
                before = self._known if news.after else Chronicle(readings=self._known.readings + 1)
                self._known = Chronicle(
                    head=news.head,
                    events=(*before.events, *news.events),
                    accounts={item.family: item for item in news.accounts},
                    entries={**before.entries, **{item.entry_id: item for item in news.entries}},
                    readings=before.readings,
                )
            return self._known


@lru_cache(maxsize=_DEPLOYMENTS)
def _reader(url: str) -> _Reader:
    return _Reader(url)
