"""The ledger's public records in memory, for repeated reading: read once, then only new events.

What belongs here: what the records say of candidates, decisions and releases. What does not: deciding (which reads the
database), verifying (`verification`, which reads everything again), and participants.

A chain only grows, so an unchanged last link means that nothing happened. If a person rewrites rows but not the last
link, the old records are shown until the process ends; verification finds the change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TypeVar

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
from dpsynth_platform.release.evidence import APPROVE, REFUSE, WITHDRAW, standing_approvals
from dpsynth_platform.release.heads import KnownChain
from dpsynth_platform.reviewing import accounts
from dpsynth_platform.synth.planning import audited_key

_Item = TypeVar("_Item")
_BEGINNING = Head(0, chain.GENESIS)
_DEPLOYMENTS = 8
"""How many ledgers a process keeps; only tests read more than one."""


@dataclass(frozen=True)
class Recorded:
    """A candidate that lacked only a decision when it was made, at time `at`; an approval names its `digest`."""

    digest: str
    entry: Entry
    at: str

    @property
    def place(self) -> Place:
        return Place(self.entry.request.dataset, self.entry.request.period)


@dataclass(frozen=True)
class Publication:
    """A release as the chain records it: the digest of its content, its event, and the approvals that published it."""

    release: str
    candidate: str
    entry: Entry
    at: str
    sequence: int
    approvals: tuple[Decision, ...]
    withdrawn: Decision | None

    @property
    def place(self) -> Place:
        return Place(self.entry.request.dataset, self.entry.request.period)


@dataclass(frozen=True)
class Chronicle:
    """The ledger at one moment.

    `readings` is how often the chain was read from its beginning: 1 unless another ledger replaced it.
    """

    head: Head = _BEGINNING
    events: tuple[ChainEvent, ...] = ()
    accounts: Mapping[str, Account] = field(default_factory=dict)
    entries: Mapping[str, Entry] = field(default_factory=dict)
    readings: int = 0

    @cached_property
    def known_chain(self) -> KnownChain:
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
        kinds = (chain.APPROVED, chain.REFUSED, chain.WITHDRAWN)
        return tuple(rows.decision_of(event) for event in self.events if event.kind in kinds)

    def decisions_on(self, candidate: str, entry_id: str) -> list[Decision]:
        """As `Ledger.approvals`: approvals of a candidate, refusals and withdrawals of what its entry paid for."""
        return [
            item for item in self._decided.get(entry_id, ()) if item.decision != APPROVE or item.candidate == candidate
        ]

    @cached_property
    def publications(self) -> Mapping[str, Publication]:
        """All releases that the chain records, by id, in order of publication."""
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
        """The guarantee of a release that an entry pays for; if a second mechanism was reserved, that of both."""
        one = entry.request.guarantee
        if audited_key(entry.key) not in self._keys:
            return one
        both = epsilon(twice(event_from_json(entry.request.event)), one.delta)
        return replace(one, epsilon=max(both.epsilon, EPSILON_STEP))

    def is_published(self, candidate: str) -> bool:
        """Whether a release of the candidate exists that was not withdrawn."""
        return candidate in self._standing

    def is_ended(self, recorded: Recorded) -> bool:
        """Whether the last decision on a candidate was a refusal, or the withdrawal of its release."""
        decided = self.decisions_on(recorded.digest, recorded.entry.entry_id)
        return bool(decided) and decided[-1].decision in (REFUSE, WITHDRAW)

    @cached_property
    def _keys(self) -> frozenset[str]:
        return frozenset(item.key for item in self.entries.values())

    @cached_property
    def _standing(self) -> frozenset[str]:
        return frozenset(item.candidate for item in self.publications.values() if item.withdrawn is None)

    @cached_property
    def _decided(self) -> Mapping[str, tuple[Decision, ...]]:
        return _grouped(self.decisions, lambda item: item.entry_id)

    @cached_property
    def repetitions(self) -> Repetitions:
        """The scenarios that charged entries may have in common."""
        return Repetitions(self.entries.values(), self.accounts, self.events)

    @cached_property
    def raises_asked(self) -> Mapping[str, tuple[ChainEvent, ...]]:
        asked = (event for event in self.events if event.kind == chain.RAISE_ASKED)
        return _grouped(asked, lambda event: event.subject)

    def published_of(self, dataset: str) -> tuple[Publication, ...]:
        """The releases of one dataset, in order of publication."""
        return self._by_dataset.get(dataset, ())

    @cached_property
    def _by_dataset(self) -> Mapping[str, tuple[Publication, ...]]:
        return _grouped(self.publications.values(), lambda item: item.place.dataset)


def _grouped(items: Iterable[_Item], key: Callable[[_Item], str]) -> Mapping[str, tuple[_Item, ...]]:
    found: dict[str, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return {name: tuple(group) for name, group in found.items()}


def chronicle(settings: Settings) -> Chronicle:
    """The deployment's ledger as it is now, empty if there is none yet. Raises `LedgerError` if it cannot be read."""
    return _reader(settings.ledger_url).read() if settings.has_ledger else Chronicle()


def cached_ledger(settings: Settings) -> Ledger:
    """The deployment's ledger, opened once a process. Raises `ConfigurationError` if there is none."""
    if not settings.has_ledger:
        return accounts.ledger(settings)
    return _reader(settings.ledger_url).ledger


class _Reader:
    def __init__(self, url: str) -> None:
        self.ledger = Ledger(url)
        self._known = Chronicle()
        self._lock = threading.Lock()

    def read(self) -> Chronicle:
        with self._lock:
            changes = self.ledger.changes_since(self._known.head)
            if changes is not None:
                before = self._known if changes.after else Chronicle(readings=self._known.readings + 1)
                self._known = Chronicle(
                    head=changes.head,
                    events=(*before.events, *changes.events),
                    accounts={item.family: item for item in changes.accounts},
                    entries={**before.entries, **{item.entry_id: item for item in changes.entries}},
                    readings=before.readings,
                )
            return self._known


@lru_cache(maxsize=_DEPLOYMENTS)
def _reader(url: str) -> _Reader:
    return _Reader(url)
