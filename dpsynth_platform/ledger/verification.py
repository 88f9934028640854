"""Verifying a ledger: everything in it recomputed from its chain, and the cap recomputed from its entries.

What belongs here: checks that read all tables in one snapshot. What does not: repairing. Problems name events, accounts
and entries; nothing about owners or their number.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from sqlalchemy import Connection, select

from dpsynth_platform.foundation.errors import AccountingError, LedgerError
from dpsynth_platform.ledger import chain, rows, schema
from dpsynth_platform.ledger.filter import Cost, RenyiFilter, add_up, within
from dpsynth_platform.ledger.owners import Participants, commitment, contained, from_blob, joined
from dpsynth_platform.ledger.records import ChainEvent, CostRequest, Head, VerificationReport
from dpsynth_platform.ledger.replay import is_charged, replay, same_ids
from dpsynth_platform.ledger.standing import Standing
from dpsynth_platform.privacy.renyi import stores_number

Rows = dict[str, dict[str, Any]]

CLAIM_TOLERANCE = 1.001
"""How far a version's epsilon may exceed what an earlier version found for the same event."""


def verify(connection: Connection, known_heads: Iterable[Head]) -> VerificationReport:
    """All checks; see `store.Ledger.verify`."""
    events, problems = chain.check_links(connection)
    accounts = _rows(connection, schema.account, "family")
    entries = _rows(connection, schema.entry, "entry_id")
    participants = _rows(connection, schema.participants, "entry_id")
    problems += check_chain(events, accounts, entries, known_heads)
    problems += _check_participants(events, entries, participants)
    problems += check_curves(entries)
    if not problems:
        problems += check_sums(events, accounts, entries)
        problems += check_family_caps(accounts, entries)
        problems += _check_owners(connection, events, accounts, entries, participants)
        problems += _check_overlaps(events, accounts, entries, participants)
    return VerificationReport(chain.head(connection), len(events), len(entries), tuple(problems))


def check_chain(events: list[ChainEvent], accounts: Rows, entries: Rows, known_heads: Iterable[Head]) -> list[str]:
    """Whether the chain has the published heads, and accounts and entries follow from it."""
    problems = _check_heads(events, known_heads)
    try:
        replayed_accounts, replayed_entries, impossible = replay(events)
    except (KeyError, TypeError, ValueError, AttributeError, LedgerError):
        return [*problems, "the chain's events cannot be replayed"]
    problems += impossible
    problems += chain.differences(replayed_accounts, accounts, "account")
    problems += chain.differences(replayed_entries, entries, "entry")
    return problems


def _check_heads(events: list[ChainEvent], known_heads: Iterable[Head]) -> list[str]:
    hashes = {event.sequence: event.hash for event in events}
    last = max(hashes, default=0)
    return [
        f"event {head.sequence}: a dossier was published at this event, the chain ends at event {last}: it is older, "
        "or its end was cut off"
        if head.sequence > last
        else f"event {head.sequence}: a published head names another chain"
        for head in known_heads
        if head.sequence > 0 and hashes.get(head.sequence) != head.hash
    ]


def check_curves(entries: Rows) -> list[str]:
    """Whether each entry's Renyi curve and slack are its event's, and its guarantee no more than the event gives.

    Stored costs are rounded up by more than machines differ: one that is below what is computed here is a problem
    whatever the difference, and so is one far above it. The claim is a target; the event may cost less.
    """
    from dpsynth_platform.privacy.accounting import cost
    from dpsynth_platform.privacy.events import event_from_json, matches_claim

    problems = []
    least = cache(_epsilon)
    for name, entry in entries.items():
        try:
            request = _request(entry)
            event, claimed = event_from_json(request.event), request.guarantee
            computed = cost(event)
            if not request.curve.stores(computed.curve):
                problems.append(f"entry {name}: its Renyi curve is not its event's")
            if not stores_number(request.delta_slack, computed.delta_slack):
                problems.append(f"entry {name}: its slack on delta is not its event's")
            if not matches_claim(event, claimed):
                problems.append(f"entry {name}: its guarantee is of another adjacency, contribution bound or weighting")
            most = claimed.epsilon * CLAIM_TOLERANCE
            by_renyi = computed.curve.epsilon(claimed.delta - computed.delta_slack)
            # The looser of two bounds is known; the other takes seconds.
            if by_renyi > most and least(chain.canonical(request.event), claimed.delta) > most:
                problems.append(f"entry {name}: it claims a smaller epsilon than its event gives")
        except (AccountingError, LedgerError, TypeError, ValueError):
            problems.append(f"entry {name}: its request cannot be read")
    return problems


def _epsilon(event: str, delta: float) -> float:
    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.events import event_from_json

    return epsilon(event_from_json(chain.parse(event)), delta).epsilon


def check_sums(events: list[ChainEvent], accounts: Rows, entries: Rows) -> list[str]:
    """Whether the costs that decisions add up are the entries', and the running sums those of started entries."""
    filters = {family: _filter(account) for family, account in accounts.items()}
    sums = {family: limits.nothing for family, limits in filters.items()}
    costs, problems = {}, []
    for name, entry in entries.items():
        request = _request(entry)
        costs[name] = filters[entry["family"]].cost(request.curve, request.delta_slack)
        if entry["cost"] != rows.cost_text(costs[name]):
            problems.append(f"entry {name}: its cost is not its curve's")
    for event in events:
        if event.kind == chain.STARTED:
            family = entries[event.subject]["family"]
            sums[family] = add_up(sums[family], costs[event.subject])
    problems += [
        f"account {family}: its running sum is not that of its started entries"
        for family, account in accounts.items()
        if account["settled"] != rows.cost_text(sums[family])
    ]
    return problems


def check_family_caps(accounts: Rows, entries: Rows) -> list[str]:
    """Whether what is charged to each account of `family` mode stays under its cap."""
    problems = []
    for family, account in accounts.items():
        live = _live(entries, family)
        if chain.parse(account["terms"])["mode"] != "family" or not live:
            continue
        if not _filter(account).fits([(item.curve, item.delta_slack) for item in live.values()]):
            problems.append(f"account {family}: charged beyond its cap")
    return problems


def _check_participants(events: list[ChainEvent], entries: Rows, participants: Rows) -> list[str]:
    """Whether each entry's participants are those that the chain committed to last."""
    committed = chain.commitments(events)
    problems = [f"participants of {name}: there is no such entry" for name in participants.keys() - entries.keys()]
    for name in entries:
        hidden = participants.get(name)
        try:
            found = None if hidden is None else commitment(hidden["nonce"], from_blob(hidden["fingerprints"]))
        except LedgerError:
            found = "damaged"
        if found != committed.get(name):
            problems.append(f"entry {name}: its participants do not match their commitment")
    return problems


def _check_owners(
    connection: Connection, events: list[ChainEvent], accounts: Rows, entries: Rows, participants: Rows
) -> list[str]:
    """Whether the owners' standing follows from their entries, and none is beyond the cap."""
    problems = []
    for family, account in accounts.items():
        limits = _filter(account)
        replayed, pending = _replayed_standing(limits, family, events, entries, participants)
        try:
            stored = rows.find_standing(connection, family, limits.nothing)
        except LedgerError:
            stored = None
        if (stored and stored.to_blobs()) != (replayed and replayed.to_blobs()):
            problems.append(f"account {family}: the standing of its owners does not follow from its started entries")
        if chain.parse(account["terms"])["mode"] == "per-owner":
            standing = replayed or Standing.empty(limits.nothing)
            for members, cost in pending:
                standing = standing.charged(members, cost)
            if not within(standing.sums, limits.limits).all():
                problems.append(f"account {family}: charged beyond its cap")
    return problems


def _check_overlaps(events: list[ChainEvent], accounts: Rows, entries: Rows, participants: Rows) -> list[str]:
    """Whether entries under `exclude` and `block` charge nobody who took part before, in any family.

    Fingerprints are the present ones: keys are changed for all families of a namespace at once.
    """
    ids = {family: same_ids(chain.parse(account["terms"])) for family, account in accounts.items()}
    strict = [event.subject for event in events if event.payload.get("policy") in ("exclude", "block")]
    watched = {ids[entries[name]["family"]] for name in strict}
    states: dict[str, dict[str, Any]] = {}
    seen: dict[tuple[str, ...], Participants] = {}
    problems = []
    for event in events:
        if event.kind == chain.RESERVED:
            states[event.subject] = chain.reserved_row(event)
        elif event.kind in chain.TRANSITIONS:
            states[event.subject].update(chain.transition_values(event))
        group = ids[entries[event.subject]["family"]] if event.subject in entries else None
        if group not in watched or event.subject not in participants:
            continue
        members = from_blob(participants[event.subject]["fingerprints"])
        if event.kind == chain.STARTED:
            seen[group] = joined(seen.get(group, from_blob(b"")), members)
        elif event.kind == chain.RESERVED and event.subject in strict:
            waiting = [
                from_blob(participants[name]["fingerprints"])
                for name, row in states.items()
                if row["state"] == chain.RESERVED and is_charged(row, event.at) and name != event.subject
                if name in participants and ids[row["family"]] == group
            ]
            if any(contained(members, others).any() for others in (seen.get(group, from_blob(b"")), *waiting)):
                problems.append(f"entry {event.subject}: it charges people whom its overlap policy keeps out")
    return problems


def _replayed_standing(
    limits: RenyiFilter, family: str, events: list[ChainEvent], entries: Rows, participants: Rows
) -> tuple[Standing | None, list[tuple[Participants, Cost]]]:
    """The standing that follows from the started entries in their order, and the reservations beside it."""
    costs = {
        name: limits.cost(request.curve, request.delta_slack)
        for name, request in _live(entries, family).items()
        if name in participants
    }
    standing = None
    for event in events:
        if event.kind == chain.STARTED and event.subject in costs:
            members = from_blob(participants[event.subject]["fingerprints"])
            standing = (standing or Standing.empty(limits.nothing)).charged(members, costs.pop(event.subject))
    return standing, [(from_blob(participants[name]["fingerprints"]), cost) for name, cost in costs.items()]


def _live(entries: Rows, family: str) -> dict[str, CostRequest]:
    return {
        name: _request(entry)
        for name, entry in entries.items()
        if entry["family"] == family and entry["state"] != chain.VOID
    }


def _filter(account: dict[str, Any]) -> RenyiFilter:
    terms = chain.parse(account["terms"])
    return RenyiFilter.from_json(terms["filter"], terms["cap"]["epsilon"], terms["cap"]["delta"])


def _request(entry: dict[str, Any]) -> CostRequest:
    return CostRequest.from_json(chain.parse(entry["request"]))


def _rows(connection: Connection, table: Any, key: str) -> Rows:
    found = (row._asdict() for row in connection.execute(select(table)))
    return {values[key]: values for values in found}
