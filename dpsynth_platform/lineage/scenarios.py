"""Scenarios of repeated release over the same people: E0 to E3.

What belongs here: which scenarios a mechanism is part of, by public facts. What does not: the verdict and the composed
guarantee (`clearance`), which do not depend on scenarios. After Ponomareva et al. 2026, "How to DP-fy Your Data",
section 7.7.1:

- E0: several mechanisms over one dataset (and period).
- E1: datasets that share records, or a model of them, where the unit is one record.
- E2: other datasets about the same people, where people are protected.
- E3: the same dataset released repeatedly, over periods.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger.records import Account, ChainEvent, Entry

Scenario = Literal["E0", "E1", "E2", "E3"]

MEANING: Mapping[Scenario, str] = {
    "E0": "several mechanisms over one dataset",
    "E1": "several mechanisms over records in common",
    "E2": "several datasets about the same people",
    "E3": "the same dataset released over periods",
}


@dataclass(frozen=True)
class Repeated:
    """The other ledger entries of one scenario, in the order in which they were reserved. Public."""

    scenario: Scenario
    entries: tuple[Entry, ...]


class Repetitions:
    """All charged entries of a ledger, by namespace and lineage; from the entries in order, accounts and chain."""

    def __init__(self, entries: Iterable[Entry], accounts: Mapping[str, Account], events: Iterable[ChainEvent]) -> None:
        self._accounts = accounts
        self._entries = {entry.entry_id: entry for entry in entries if entry.live}
        self._in_namespace: dict[str, list[Entry]] = {}
        for entry in self._entries.values():
            self._in_namespace.setdefault(accounts[entry.family].namespace, []).append(entry)
        self._related: dict[str, set[str]] = {}
        for event in events:
            if event.kind in (chain.RELATED, chain.RESERVED):
                for other in event.payload.get("related", ()):
                    self._related.setdefault(event.subject, set()).add(other)
                    self._related.setdefault(other, set()).add(event.subject)

    def of(self, entry_id: str) -> tuple[Repeated, ...]:
        """The scenarios that an entry is part of; none if it is not charged."""
        entry = self._entries.get(entry_id)
        if entry is None:
            return ()
        found: dict[Scenario, list[Entry]] = {}
        for other in self._kin(entry):
            found.setdefault(self._scenario(entry, other), []).append(other)
        return tuple(Repeated(name, tuple(found[name])) for name in sorted(found))

    def _kin(self, entry: Entry) -> Sequence[Entry]:
        near = self._in_namespace[self._accounts[entry.family].namespace]
        known = {item.entry_id for item in near}
        related = sorted(self._related.get(entry.entry_id, set()) - known)
        far = [self._entries[name] for name in related if name in self._entries]
        return [item for item in (*near, *far) if item.entry_id != entry.entry_id]

    def _scenario(self, entry: Entry, other: Entry) -> Scenario:
        mine, theirs = entry.request, other.request
        if mine.dataset == theirs.dataset:
            return "E0" if mine.period == theirs.period else "E3"
        return "E1" if mine.guarantee.unit == "example" else "E2"
