"""Reservations: whom an entry charges, and how entries are made and changed, inside one transaction.

What belongs here: the steps of `Ledger.reserve` that know participants, and the only writes to entries. What does not:
visible verdicts (`verdicts`), transactions (`store`).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select, update

from dpsynth_platform.foundation.errors import LedgerError, SpendRepeated
from dpsynth_platform.ledger import chain, kinship, rows, schema
from dpsynth_platform.ledger.filter import add_up
from dpsynth_platform.ledger.owners import Participants, commitment, contained, to_blob
from dpsynth_platform.ledger.records import Account, CostRequest, Entry, OverlapPolicy
from dpsynth_platform.ledger.standing import Standing

NONCE_BYTES = 32
EXPIRED = "deadline passed"
"""The reason of a void reservation that nobody withdrew."""
MOST_RELATED = 500
"""Ids of related entries in one event, which must leave room for a long event tree (`chain.MAX_PAYLOAD`)."""


def already_reserved(tried: Sequence[Entry], family: str, request: CostRequest, replaces: str | None) -> Entry | None:
    """The attempt that already is what is requested; None if a new one may be made.

    Args:
        tried: all attempts at the run, first to last.
        replaces: must name the deciding attempt (`chain.deciding_attempt`), which must have started.

    Raises:
        SpendRepeated: the deciding attempt started and did not complete, and `replaces` does not name it.
        LedgerError: the run's key is held for another plan or family, or `replaces` names no attempt that failed.
    """
    for entry in tried[-1:]:
        if entry.family != family or entry.request.plan_digest != request.plan_digest:
            raise LedgerError(
                f"{request.place}: ledger entry {entry.entry_id} holds this run's key for another plan or family"
            )
    deciding = rows.deciding_attempt(tried)
    if deciding is None:
        if replaces is not None:
            raise LedgerError(f"{request.place}: there is no entry {replaces} of this run to replace")
        return None
    where = f"{request.place}: ledger entry {deciding.entry_id}"
    if replaces is None:
        if deciding.state == chain.STARTED:
            raise SpendRepeated(
                f"{where} was started at {deciding.started_at} and never completed; its cost stays spent. Another "
                "attempt is another spend and must be asked for by naming that entry"
            )
        return deciding
    if deciding.replaces == replaces:
        return deciding
    if deciding.entry_id != replaces or deciding.state != chain.STARTED:
        raise LedgerError(f"{where} is {deciding.state}; only this run's latest entry, if it failed, can be replaced")
    return None


def replaced_by_key(tried: Mapping[str, Sequence[Entry]], replaces: str | None) -> dict[str, str | None]:
    """`replaces` for the key that it is an attempt at, else for the last key; None for the others."""
    matching = (key for key, attempts in tried.items() if any(entry.entry_id == replaces for entry in attempts))
    named = next(matching, list(tried)[-1])
    return {key: replaces if key == named else None for key in tried}


def standing_in_order(connection: Connection, found: Mapping[str, Entry | None]) -> dict[str, Entry]:
    """The entries to keep, by key. After a key without entry, reserved ones are voided, to be made again."""
    standing: dict[str, Entry] = {}
    for key, entry in found.items():
        if entry is None:
            continue
        if entry.state == chain.RESERVED and len(standing) < list(found).index(key):
            transition(connection, entry, chain.VOID, {"reason": "reserved anew with the one before it"})
        else:
            standing[key] = entry
    return standing


def check_period(paid: Sequence[Entry], keys: Collection[str], request: CostRequest, replaces: str | None) -> None:
    """Refuses a second payment for a period that another run has paid for, unless `replaces` names that entry.

    A run is another one if the source has another version or the contract changed. Neither may spend by itself:
    otherwise late rows would be paid for each time that they arrive.

    Args:
        paid: the charged entries of the period's days (`rows.charged_for_days`). Those of other periods, of another
            cadence, are not in the way of a run that is paid.
        keys: those of the requesting run, one for each mechanism.

    Raises:
        SpendRepeated: the last of these entries is another run's, and `replaces` names neither it nor another one that
            was reserved together with it.
    """
    if any(entry.key in keys for entry in paid):
        paid = [entry for entry in paid if entry.request.place == request.place]
    last = paid[-1] if paid else None
    if last is None or last.key in keys:
        return
    if replaces not in [entry.entry_id for entry in paid if entry.reserved_at == last.reserved_at]:
        overlapping = "" if last.request.place == request.place else f" (days of {last.request.period})"
        raise SpendRepeated(
            f"{request.place}: ledger entry {last.entry_id} ({last.state}) is about this period{overlapping} already, "
            "for another contract or another version of the source. A period is paid for once; "
            + (
                f"to withdraw the reservation: dpsynth ledger void {last.entry_id}"
                if last.state == chain.RESERVED
                else f"to pay for it a second time: --spend-again {last.entry_id}"
            )
        )


def charge(
    connection: Connection,
    account: Account,
    request: CostRequest,
    participants: Participants | None,
    policy: OverlapPolicy,
    times: int = 1,
) -> tuple[Participants | None, bool]:
    """Whom `times` equal entries charge, and whether `block` met an overlap.

    `exclude` and `block` look at all kin whose people can be compared (`kinship`), in this family and in others;
    `kinship.incomparable_entries` must be empty.

    Raises:
        LedgerError: participants are needed and none are named.
    """
    if participants is None:
        if account.mode == "per-owner" or policy != "compose":
            raise LedgerError(f"{request.place}: participants are needed in per-owner mode and for {policy!r}")
        return None, False
    nothing = account.filter.nothing
    standing = rows.find_standing(connection, account.family, nothing) or Standing.empty(nothing)
    pending = rows.pending_participants(connection, account.family)
    if policy != "compose":
        seen = contained(participants, standing.owners)
        for members, _ in pending:
            seen |= contained(participants, members)
        seen |= kinship.took_part_elsewhere(connection, account, participants)
        if policy == "block":
            return participants, bool(seen.any())
        participants = participants[~seen]
    if account.mode == "per-owner":
        cost = account.filter.cost(request.curve, request.delta_slack)
        # Summed in the order of the charges, to the last digit.
        pending = [*pending, *[(participants, cost)] * (times - 1)]
        participants = participants[standing.affordable(participants, pending, cost, account.filter.limits)]
    return participants, False


def new_ids(number: int) -> list[str]:
    """Ids of entries that are reserved in one transaction, ascending: they are listed by time, then by id."""
    return sorted(secrets.token_hex(16) for _ in range(number))


def insert_entry(
    connection: Connection,
    account: Account,
    *,
    entry_id: str,
    key: str,
    attempt: int,
    request: CostRequest,
    charged: Participants | None,
    policy: OverlapPolicy,
    related: Collection[str],
    replaces: str | None,
    deadline: str,
) -> Entry:
    """A new reserved entry, with its event and its participants behind a commitment.

    The event records the policy and the related entries that were known at the time. Where these are more than
    `MOST_RELATED`, `related` events just before name the first of them.
    """
    nonce = secrets.token_bytes(NONCE_BYTES)
    ids = sorted(set(related))
    parts = [ids[start : start + MOST_RELATED] for start in range(0, len(ids), MOST_RELATED)] or [[]]
    for part in parts[:-1]:
        chain.append(connection, rows.now_text(connection), chain.RELATED, entry_id, {"related": part})
    payload: dict[str, Any] = {
        "family": account.family,
        "key": key,
        "attempt": attempt,
        "request": request.to_json(),
        "commitment": None if charged is None else commitment(nonce, charged),
        "policy": policy,
        "related": parts[-1],
        "replaces": replaces,
        "deadline": deadline,
    }
    if len(parts) > 1:
        payload["related_before"] = len(ids) - len(parts[-1])
    event = chain.append(connection, rows.now_text(connection), chain.RESERVED, entry_id, payload)
    cost = rows.cost_text(account.filter.cost(request.curve, request.delta_slack))
    connection.execute(insert(schema.entry).values(entry_id=entry_id, cost=cost, **chain.reserved_row(event)))
    if charged is not None:
        connection.execute(
            insert(schema.participants).values(entry_id=entry_id, nonce=nonce, fingerprints=to_blob(charged))
        )
    return rows.get_entry(connection, entry_id)


def void_expired(connection: Connection) -> list[Entry]:
    """Voids and returns the reservations of all accounts whose deadline has passed.

    A decision that counts them as ended is in the same transaction: then no machine can start them, however far its
    clock is behind. Of all accounts, since kin may be in any.
    """
    return [transition(connection, entry, chain.VOID, {"reason": EXPIRED}) for entry in rows.expired(connection)]


def transition(connection: Connection, entry: Entry, kind: str, payload: dict[str, Any]) -> Entry:
    """Changes an entry's state. Raises `LedgerError` if its present state does not allow it."""
    needed = chain.TRANSITIONS[kind]
    if entry.state != needed:
        raise LedgerError(
            f"{entry.request.place}: ledger entry {entry.entry_id} is {entry.state}; only a {needed} entry can "
            f"become {kind}"
        )
    event = chain.append(connection, rows.now_text(connection), kind, entry.entry_id, payload)
    table = schema.entry
    connection.execute(update(table).where(table.c.entry_id == entry.entry_id).values(chain.transition_values(event)))
    if kind == chain.STARTED:
        _settle(connection, entry)
    return rows.get_entry(connection, entry.entry_id)


def _settle(connection: Connection, entry: Entry) -> None:
    """Adds a started entry to the sums of its account and of its owners."""
    mine, account, standing = schema.entry, schema.account, schema.standing
    cost = rows.cost_of(connection.execute(select(mine.c.cost).where(mine.c.entry_id == entry.entry_id)).scalar_one())
    total = rows.cost_text(add_up(rows.settled(connection, entry.family), cost))
    connection.execute(update(account).where(account.c.family == entry.family).values(settled=total))
    members = rows.participants_of(connection, entry.entry_id)
    if members is None:
        return
    nothing = (0.0,) * len(cost)
    before = rows.find_standing(connection, entry.family, nothing)
    after = (before or Standing.empty(nothing)).charged(members, cost).to_blobs()
    if before is None:
        connection.execute(insert(standing).values(family=entry.family, **after))
    else:
        connection.execute(update(standing).where(standing.c.family == entry.family).values(after))
