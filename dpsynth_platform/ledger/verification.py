"""Verifying a ledger: everything in it recomputed from its chain, and the cap recomputed from its entries.

What belongs here: checks that read all tables in one snapshot and name what does not fit. What does not: repairing.
Problems name events, accounts and entries; nothing about owners or their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from sqlalchemy import Connection, select

from dpsynth_platform.errors import AccountingError, LedgerError
from dpsynth_platform.ledger import chain, schema
from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.owners import affordable, commitment, from_blob
from dpsynth_platform.ledger.records import CostRequest, Head, VerificationReport

Rows = dict[str, dict[str, Any]]


def verify(connection: Connection, known_heads: Iterable[Head]) -> VerificationReport:
    """All checks; see `store.Ledger.verify`."""
    events, problems = chain.check_links(connection)
    hashes = {event.sequence: event.hash for event in events}
    problems += [
        f"event {head.sequence}: a published head names another chain"
        for head in known_heads
        if head.sequence > 0 and hashes.get(head.sequence) != head.hash
    ]
    accounts = _rows(connection, schema.account, "family")
    entries = _rows(connection, schema.entry, "entry_id")
    try:
        told_accounts, told_entries, impossible = chain.replay(events)
    except (KeyError, LedgerError):
        problems.append("the chain's events cannot be replayed")
    else:
        problems += impossible
        problems += chain.differences(iter(told_accounts.items()), accounts, "account")
        problems += chain.differences(iter(told_entries.items()), entries, "entry")
    participants = _rows(connection, schema.participants, "entry_id")
    problems += _check_entries(entries, participants)
    if not problems:
        problems += _check_caps(accounts, entries, participants)
    return VerificationReport(chain.head(connection), len(events), len(entries), tuple(problems))


def _check_entries(entries: Rows, participants: Rows) -> list[str]:
    from dpsynth_platform.privacy.accounting import renyi_curve
    from dpsynth_platform.privacy.events import event_from_json

    problems = [f"participants of {name}: of no entry" for name in participants.keys() - entries.keys()]
    for name, entry in entries.items():
        hidden = participants.get(name)
        try:
            found = None if hidden is None else commitment(hidden["nonce"], from_blob(hidden["fingerprints"]))
        except LedgerError:
            found = "damaged"
        if found != entry["commitment"]:
            problems.append(f"entry {name}: its participants do not match their commitment")
        try:
            request = _request(entry)
            if renyi_curve(event_from_json(request.event)) != request.curve:
                problems.append(f"entry {name}: its Renyi curve is not its event's")
        except (AccountingError, ValueError):
            problems.append(f"entry {name}: its request cannot be read")
    return problems


def _check_caps(accounts: Rows, entries: Rows, participants: Rows) -> list[str]:
    problems = []
    for family, account in accounts.items():
        terms = chain.parse(account["terms"])
        limits = RenyiFilter.from_json(terms["filter"], terms["cap"]["epsilon"], terms["cap"]["delta"])
        live = {
            name: _request(entry)
            for name, entry in entries.items()
            if entry["family"] == family and entry["state"] != chain.VOID
        }
        if terms["mode"] == "family":
            fits = limits.fits([(item.curve, item.delta_slack) for item in live.values()])
        else:
            fits = _every_owner_fits(limits, live, participants)
        if live and not fits:
            problems.append(f"account {family}: charged beyond its cap")
    return problems


def _every_owner_fits(limits: RenyiFilter, live: dict[str, CostRequest], participants: Rows) -> bool:
    history = [
        (from_blob(participants[name]["fingerprints"]), limits.cost(request.curve, request.delta_slack))
        for name, request in live.items()
        if name in participants
    ]
    if not history:
        return True
    everybody = np.unique(np.concatenate([members for members, _ in history]))
    nothing = (0.0,) * len(limits.limits)
    return bool(affordable(everybody, history, nothing, limits.limits).all())


def _request(entry: dict[str, Any]) -> CostRequest:
    return CostRequest.from_json(chain.parse(entry["request"]))


def _rows(connection: Connection, table: Any, key: str) -> Rows:
    found = (row._asdict() for row in connection.execute(select(table)))
    return {values[key]: values for values in found}
