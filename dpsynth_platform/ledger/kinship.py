"""Kin: entries of all accounts that may be about the same people as a new one.

What belongs here: which entries those are, whether their participants can be compared with somebody's, and comparing
them. What does not: spending (each account keeps its own cap, `standing`), walking the lineage graph, and what follows
for a release (`lineage.clearance`).

Kin of a family are its own live entries, those of every other family of its identity namespace, and those that the
lineage graph relates to the dataset, wherever they are charged. All of that is public: which families there are, what
they paid for, what a base model was trained on. Who took part in several is not. A dataset that was moved to another
family has left its budget, and not its kin.

People can be compared where one person has one fingerprint: in families of the same namespace, unit and normalization
of ids (a namespace has one set of keys), and only with entries that name participants. With whatever cannot be
compared, everybody may be in common: `exclude` and `block` promise that nobody is, and are refused, for all to see.

An entry counts if it is charged: reserved within its deadline, started or spent, also if it failed (it may have shown
something before), whether it paid for a release or for a learned bound. What is void never ran. A decision voids
whatever it finds expired (`reservations.void_expired`), so that no machine with another clock starts it afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, Row, select

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.ledger import chain, rows, schema
from dpsynth_platform.ledger.owners import Participants, contained
from dpsynth_platform.ledger.records import LIVE_STATES, Account, Entry

Relation = Literal["family", "namespace", "ancestry"]

# Of one query; SQLite takes no more than 32,766 parameters.
_AT_ONCE = 10_000


class Terms(Protocol):
    """What an account and a family's budget both say of whom they are about."""

    @property
    def family(self) -> str:
        """The family's name."""

    @property
    def namespace(self) -> str:
        """Whose ids its owners have."""

    @property
    def unit(self) -> str:
        """Whom it protects."""

    @property
    def owner_normalization(self) -> Sequence[str]:
        """What is done to ids before they become fingerprints."""


@dataclass(frozen=True)
class KinEntry:
    """An entry that may be about the same people. Public.

    Attributes:
        relation: how it was found: `family` before `namespace` before `ancestry`.
        stranger: why its people cannot be compared with the family's, or None where they can.
    """

    entry: Entry
    relation: Relation
    stranger: str | None


def kin_entries(
    connection: Connection, family: Terms, related: Collection[str] = (), before: str | None = None
) -> list[KinEntry]:
    """All kin of a family, in the order in which they were reserved.

    Args:
        family: its account, or its budget where it has none yet.
        related: ids of entries that lineage relates to the dataset.
        before: only what was reserved before this entry; by its place in the chain, not by a clock.

    Raises:
        LedgerError: a related entry is not in the ledger.
    """
    space = {item.family: item for item in rows.accounts(connection)}
    order = _order(connection)
    end = order.get(before, 0) if before is not None else len(order) + max(order.values(), default=0)
    found = [row for row in _live(connection, family, space, related) if order.get(row.entry_id, 0) < end]
    found.sort(key=lambda row: order.get(row.entry_id, 0))
    return [
        KinEntry(rows.entry_of(row), _relation(family, space[row.family]), _why_stranger(family, row, space))
        for row in found
    ]


def strangers(connection: Connection, family: Terms, related: Collection[str]) -> list[str]:
    """Why some of a family's kin cannot be compared with its people, a line each; public. Empty where all can.

    Raises:
        LedgerError: a related entry is not in the ledger.
    """
    space = {item.family: item for item in rows.accounts(connection)}
    reasons = (_why_stranger(family, row, space) for row in _live(connection, family, space, related))
    return sorted({reason for reason in reasons if reason is not None})


def took_part_elsewhere(connection: Connection, family: Terms, participants: Participants) -> NDArray[np.bool_]:
    """For each participant, whether kin of other families that can be compared names it. Restricted.

    Reads what stands for all entries of a family together, so that it takes as long after a hundred as after one.
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
    return _ids(mine) == _ids(theirs)


def _ids(terms: Terms) -> tuple[str, str, tuple[str, ...]]:
    return terms.namespace, terms.unit, tuple(terms.owner_normalization)


def _why_stranger(family: Terms, entry: Row[Any], accounts: dict[str, Account]) -> str | None:
    """Why an entry's people cannot be compared with a family's, in public words; None where they can."""
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
    found = {row.entry_id: row for row in _among(connection, table.c.family, kin, charged)}
    found |= {row.entry_id: row for row in _known(connection, related, charged)}
    return list(found.values())


def _known(connection: Connection, related: Collection[str], charged: ColumnElement[bool]) -> Iterator[Row[Any]]:
    """The charged ones of the related entries. Raises `LedgerError` for an id that is no entry's."""
    name = schema.entry.c.entry_id
    wanted = sorted(set(related))
    unknown = set(wanted) - {row.entry_id for row in _among(connection, name, wanted)}
    if unknown:
        raise LedgerError(f"there is no ledger entry {min(unknown)!r}, which lineage relates to this run")
    yield from _among(connection, name, wanted, charged)


def _among(
    connection: Connection, column: ColumnElement[str], values: Sequence[str], *conditions: ColumnElement[bool]
) -> Iterator[Row[Any]]:
    for start in range(0, len(values), _AT_ONCE):
        query = select(schema.entry).where(column.in_(values[start : start + _AT_ONCE]), *conditions)
        yield from connection.execute(query)


def _order(connection: Connection) -> dict[str, int]:
    """Where in the chain each entry was reserved."""
    event = schema.event.c
    query = select(event.subject, event.sequence).where(event.kind == chain.RESERVED)
    return {row.subject: row.sequence for row in connection.execute(query)}
