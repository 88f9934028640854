"""Moving accounts to a new fingerprint key, inside one transaction.

What belongs here: when the keys of a namespace may change, the new fingerprints and commitments of all stored sets of
owners, and the record of it. What does not: keys and hashing (`owner_keys`, `scrub`), and checking a recorded change
(`replay`). Restricted, like all about owners.

All accounts of a namespace change together, since its owners are compared across them. Each gets a `rekeyed` event with
the ids of its keys before and after, and each of its entries that names participants a `recommitted` event with the
commitment to the same people under their new fingerprints. The reserved commitment stays on record
(`Entry.commitment`); from then on participants are verified against the new one.

A set is moved only if it matches its present commitment: otherwise the new one would hide that it was changed.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select, update

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.foundation.people import person_key
from dpsynth_platform.ledger import chain, reservations, rows, schema
from dpsynth_platform.ledger.owners import Participants, commitment, from_blob, joined, place_of, to_blob
from dpsynth_platform.ledger.records import Account, ChainEvent
from dpsynth_platform.ledger.standing import Standing

Rekey = Callable[[Participants], Participants]
"""Old fingerprints to new ones, one by one and in the same order."""


def rotatable(connection: Connection, namespace: str) -> list[Account]:
    """The accounts of a namespace, by family, if its keys may change now.

    A reservation's rows have old fingerprints, and its worker would find none of the participants among them. The
    worker of a started entry holds its participants, and never reads the ledger again.

    Raises:
        LedgerError: there are none, or an entry is reserved.
    """
    accounts = rows.accounts_in(connection, namespace)
    if not accounts:
        known = ", ".join(sorted({account.namespace for account in rows.accounts(connection)})) or "none"
        raise LedgerError(
            f"namespace {namespace!r} has no account; accepted: {known}. The first run of a dataset opens its family's "
            "account, and makes the keys of a new namespace"
        )
    waiting = [entry for account in accounts for entry in rows.reserved(connection, account.family)]
    if waiting:
        named = ", ".join(
            f"{entry.request.place} (entry {entry.entry_id}, until {entry.deadline})" for entry in waiting
        )
        raise LedgerError(
            f"namespace {namespace}: the keys cannot change between a reservation and its mechanism: {named}. Run them "
            "to their end, withdraw them (dpsynth ledger void ENTRY), or wait until they expire. Nothing was changed"
        )
    return accounts


def rotate(
    connection: Connection, namespace: str, key_id: str, rekey: Rekey, by: str, reason: str
) -> tuple[ChainEvent, ...]:
    """See `store.Ledger.rotate_key`."""
    accounts = rotatable(connection, namespace)
    if not person_key(by) or not reason.strip():
        raise LedgerError("a rotation of keys needs a name and a reason; set DPSYNTH_USER and give a reason")
    if any(key_id in account.key_ids for account in accounts):
        raise LedgerError(f"namespace {namespace}: key {key_id} is in use already; a rotation needs a new one")
    reservations.void_expired(connection)
    return tuple(_rekey_account(connection, account, key_id, rekey, by, reason) for account in accounts)


def _rekey_account(
    connection: Connection, account: Account, key_id: str, rekey: Rekey, by: str, reason: str
) -> ChainEvent:
    now = rows.now_text(connection)
    ids = {"was": list(account.key_ids), "now": [*account.key_ids, key_id]}
    payload = {"namespace": account.namespace, "key_ids": ids, "by": by, "reason": reason}
    event = chain.append(connection, now, chain.REKEYED, account.family, payload)
    table = schema.account
    mine = table.c.family == account.family
    terms = connection.execute(select(table.c.terms).where(mine)).scalar_one()
    connection.execute(update(table).where(mine).values(terms=chain.rekeyed_terms(terms, event)))
    standing = rows.find_standing(connection, account.family, account.filter.nothing)
    renaming = _Renaming.of(_all_owners(connection, account.family, standing), rekey)
    if standing is not None:
        _rename_standing(connection, account.family, standing, renaming)
    _rename_participants(connection, account.family, renaming, now)
    return event


@dataclass(frozen=True)
class _Renaming:
    """Sorted old and new fingerprints of all owners in an account; `place` is the index in `new` of each of `old`."""

    old: Participants
    new: Participants
    place: NDArray[np.int64]

    @classmethod
    def of(cls, old: Participants, rekey: Rekey) -> _Renaming:
        """Raises `LedgerError` if two old fingerprints have the same new one."""
        renamed = rekey(old)
        order = np.argsort(renamed, kind="stable")
        new = renamed[order]
        if len(new) != len(old) or np.any(new[1:] == new[:-1]):
            raise LedgerError(
                "two owners would share a fingerprint under the new key. Nothing was changed; try another"
            )
        place = np.empty(len(order), dtype=np.int64)
        place[order] = np.arange(len(order))
        return cls(old, new, place)

    def places(self, participants: Participants) -> NDArray[np.int64]:
        """The indices in `new` of participants by their old fingerprints."""
        places, found = place_of(participants, self.old)
        if not found.all():
            raise LedgerError("the ledger's owners do not match its entries; nothing was changed. Verify the ledger")
        return self.place[places]


def _all_owners(connection: Connection, family: str, standing: Standing | None) -> Participants:
    """All owners that an account names: charged ones, and those of void entries only."""
    known = from_blob(b"") if standing is None else standing.owners
    for _, _, members in _stored(connection, family):
        known = joined(known, members)
    return known


def _rename_standing(connection: Connection, family: str, standing: Standing, renaming: _Renaming) -> None:
    places = renaming.places(standing.owners)
    order = np.argsort(places, kind="stable")
    renamed = Standing(renaming.new[places[order]], standing.class_of[order], standing.sums)
    table = schema.standing
    connection.execute(update(table).where(table.c.family == family).values(renamed.to_blobs()))


def _rename_participants(connection: Connection, family: str, renaming: _Renaming, now: str) -> None:
    committed = chain.commitments(chain.events(connection, kinds=[chain.RESERVED, chain.RECOMMITTED]))
    table = schema.participants
    for entry_id, nonce, members in _stored(connection, family):
        if commitment(nonce, members) != committed.get(entry_id):
            raise LedgerError(
                f"ledger entry {entry_id}: its participants do not match their commitment, and a new one would hide "
                "that. Nothing was changed; see `dpsynth ledger verify`"
            )
        renamed, fresh = renaming.new[np.sort(renaming.places(members))], secrets.token_bytes(reservations.NONCE_BYTES)
        payload = {"commitment": commitment(fresh, renamed)}
        chain.append(connection, now, chain.RECOMMITTED, entry_id, payload)
        values = {"nonce": fresh, "fingerprints": to_blob(renamed)}
        connection.execute(update(table).where(table.c.entry_id == entry_id).values(values))


def _stored(connection: Connection, family: str) -> Iterator[tuple[str, bytes, Participants]]:
    """Id, nonce and participants of each entry that names any; one set in memory at a time."""
    table, entry = schema.participants, schema.entry
    named = select(table.c.entry_id).join(entry).where(entry.c.family == family).order_by(table.c.entry_id)
    for entry_id in connection.execute(named).scalars().all():
        row = connection.execute(select(table).where(table.c.entry_id == entry_id)).one()
        yield entry_id, row.nonce, from_blob(row.fingerprints)
