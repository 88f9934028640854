"""Kin: entries of all accounts that may be about the same people as a new one.

What belongs here: which entries those are, whether their participants can be compared with others, and comparing them.
What does not: spending (each account keeps its own cap, `standing`), walking the lineage graph, and what follows for a
release (`lineage.clearance`).

Kin of a family are its own live entries, those of every other family of its identity namespace, and those that the
lineage graph relates to the dataset, in any account. All of that is public: which families there are, what they paid
for, what a base model was trained on. Who took part in several is not. A dataset that was moved to another family keeps
its kin, though not its budget.

People can be compared where one person has one fingerprint: in families of the same namespace, unit and normalization
of ids (a namespace has one set of keys), and only with entries that name participants. Entries that cannot be compared
may share everybody: `exclude` and `block` promise the opposite, and are visibly refused.

An entry counts if it is charged: reserved within its deadline, started or spent, also if it failed (it may have shown
something before), whether it paid for a release or for a learned bound. What is void never ran. A decision voids
expired reservations (`reservations.void_expired`), so that no machine with another clock starts them afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Row, select

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.ledger import chain, rows, schema
from dpsynth_platform.ledger.owners import Participants, contained
from dpsynth_platform.ledger.records import LIVE_STATES, Account, Entry

Relation = Literal["family", "namespace", "ancestry"]


class Terms(Protocol):
    """What both an account and a family's budget state about their people."""

    @property
    def family(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def owner_normalization(self) -> Sequence[str]: ...


@dataclass(frozen=True)
class KinEntry:
    """An entry that may be about the same people. Public.

    Attributes:
        relation: the first that applies of `family`, `namespace` and `ancestry`.
        incomparable: why its people cannot be compared with the family's, or None where they can.
    """

    entry: Entry
    relation: Relation
    incomparable: str | None


def kin_entries(
    connection: Connection, family: Terms, related: Collection[str] = (), before: str | None = None
) -> list[KinEntry]:
    """All kin of a family, in the order of their reservation in the chain; see `store.Ledger.kin`."""
    space = {item.family: item for item in rows.accounts(connection)}
    order = _order(connection)
    end = order.get(before, 0) if before is not None else len(order) + max(order.values(), default=0)
    found = [row for row in _live(connection, family, space, related) if order.get(row.entry_id, 0) < end]
    found.sort(key=lambda row: order.get(row.entry_id, 0))
    return [
        KinEntry(rows.entry_of(row), _relation(family, space[row.family]), _why_incomparable(family, row, space))
        for row in found
    ]


def incomparable_entries(connection: Connection, family: Terms, related: Collection[str]) -> list[str]:
    """Why some of a family's kin cannot be compared with its people, a line each; public. Empty where all can."""
    space = {item.family: item for item in rows.accounts(connection)}
    reasons = (_why_incomparable(family, row, space) for row in _live(connection, family, space, related))
    return sorted({reason for reason in reasons if reason is not None})


def took_part_elsewhere(connection: Connection, family: Terms, participants: Participants) -> NDArray[np.bool_]:
    """For each participant, whether kin of other families that can be compared names it. Restricted.

    Reads the one standing of each family, so that its time does not grow with the number of entries.
    """
    seen = np.zeros(len(participants), dtype=bool)
    for other in rows.accounts_in(connection, family.namespace):
        if other.family != family.family and comparable(family, other):
            standing = rows.find_standing(connection, other.family, other.filter.nothing)
            if standing is not None:
                seen |= contained(participants, standing.owners)
            for members, _ in rows.pending_participants(connection, other.family):
                seen |= contained(participants, members)
    return seen


def overlap(connection: Connection, participants: Participants, entry_id: str) -> int | None:
    """How many participants an entry names, or None where it names nobody. Restricted."""
    members = rows.participants_of(connection, entry_id)
    if members is None:
        return None
    few, many = sorted((participants, members), key=len)
    return int(contained(few, many).sum())


def comparable(mine: Terms, theirs: Terms) -> bool:
    """Whether one person has one fingerprint in both families."""
    return (mine.namespace, mine.unit, tuple(mine.owner_normalization)) == (
        theirs.namespace,
        theirs.unit,
        tuple(theirs.owner_normalization),
    )


def _why_incomparable(family: Terms, entry: Row[Any], accounts: dict[str, Account]) -> str | None:
    """Why an entry's people cannot be compared with a family's; None where they can. Clearances record these words."""
    theirs = accounts[entry.family]
    where = f"entry {entry.entry_id} of family {theirs.family}"
    if theirs.namespace != family.namespace:
        return f"{where} knows its people in another namespace ({theirs.namespace})"
    if theirs.unit != family.unit:
        return f"{where} has another privacy unit ({theirs.unit})"
    if not comparable(family, theirs):
        return f"{where} normalizes ids in another way"
    return None if entry.commitment is not None else f"{where} names nobody whom it charges"


def _relation(family: Terms, theirs: Account) -> Relation:
    if theirs.family == family.family:
        return "family"
    return "namespace" if theirs.namespace == family.namespace else "ancestry"


def _live(
    connection: Connection, family: Terms, accounts: dict[str, Account], related: Collection[str]
) -> list[Row[Any]]:
    """Rows of the charged entries of the namespace's families and of the related ones."""
    table = schema.entry
    charged = table.c.state.in_(LIVE_STATES) & (
        (table.c.state != chain.RESERVED) | (table.c.deadline > rows.now_text(connection))
    )
    kin = [name for name, item in accounts.items() if item.namespace == family.namespace]
    wanted = sorted(set(related))
    unknown = set(wanted) - {row.entry_id for row in rows.entry_rows(connection, table.c.entry_id, wanted)}
    if unknown:
        raise LedgerError(f"there is no ledger entry {min(unknown)!r}, which lineage relates to this run")
    found = {row.entry_id: row for row in rows.entry_rows(connection, table.c.family, kin, charged)}
    found |= {row.entry_id: row for row in rows.entry_rows(connection, table.c.entry_id, wanted, charged)}
    return list(found.values())


def _order(connection: Connection) -> dict[str, int]:
    """The sequence number of each entry's reservation."""
    event = schema.event.c
    query = select(event.subject, event.sequence).where(event.kind == chain.RESERVED)
    return {row.subject: row.sequence for row in connection.execute(query)}
