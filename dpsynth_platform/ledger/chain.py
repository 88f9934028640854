"""The hash chain: every event of the ledger, each naming the hash of the one before.

What belongs here: appending, reading, and checking the chain itself, and the rows of accounts and entries that follow
from its events. What does not: deciding what may happen (`store`), and whether a chain's events were possible
(`replay`).

Payloads hold public facts only. A changed, removed or inserted event breaks the chain at its place; truncating or
rewriting the whole chain contradicts a head that was signed and published earlier.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, insert, select

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.ledger import schema
from dpsynth_platform.ledger.records import ChainEvent, Head

GENESIS = "0" * 64
MAX_PAYLOAD = 64 * 1024
LAST_YEAR = 2200
"""Of an event: after the year 9999 there would be no deadline."""
MOST_YEARS = 10
"""Between two events. A clock that is further ahead is wrong."""

OPENED = "opened"
RAISE_ASKED = "raise-asked"
RAISED = "raised"
REKEYED = "rekeyed"
RECOMMITTED = "recommitted"
BLOCKED = "blocked"
RELATED = "related"
RESERVED = "reserved"
STARTED = "started"
SPENT = "spent"
VOID = "void"
APPROVED = "approved"
REFUSED = "refused"
WITHDRAWN = "withdrawn"
BOUND = "bound"
RELEASED = "released"
CANDIDATE = "candidate"
AUDITED = "audited"
PURGED = "purged"
LINEAGE_ALERT = "lineage-alert"
DECLARED_PUBLIC = "declared-public"
DISTRUSTED = "lineage-distrusted"
OWN_KINDS = (
    OPENED,
    RAISE_ASKED,
    RAISED,
    REKEYED,
    RECOMMITTED,
    BOUND,
    BLOCKED,
    RELATED,
    RESERVED,
    STARTED,
    SPENT,
    VOID,
    APPROVED,
    REFUSED,
    RELEASED,
    WITHDRAWN,
    DECLARED_PUBLIC,
    DISTRUSTED,
)

# The state that a transition starts from. No other is possible; above all, `started` only becomes `spent`.
TRANSITIONS = {STARTED: RESERVED, SPENT: STARTED, VOID: RESERVED}

Values = dict[str, Any]


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces. Raises `LedgerError` if the value is too long or no JSON in UTF-8."""
    try:
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        text.encode()  # half a character has no UTF-8
    except (TypeError, ValueError, RecursionError):
        raise LedgerError("the ledger records JSON values only") from None
    if len(text) > MAX_PAYLOAD:
        raise LedgerError(f"the ledger records at most {MAX_PAYLOAD} characters an event")
    return text


def load(text: str) -> Any:
    """Reads unambiguous JSON. Raises `ValueError` where an object has a key twice."""
    return json.loads(text, object_pairs_hook=_distinct)


def parse(text: str) -> Values:
    """Reads a JSON object that `canonical` wrote. Raises `LedgerError` for anything else."""
    try:
        document = load(text)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise LedgerError("a row of the ledger cannot be read; verify it with `dpsynth ledger verify`")
    return document


def append(connection: Connection, at: str, kind: str, subject: str, payload: Values) -> ChainEvent:
    """Adds an event to the chain's end. Only inside a writing transaction.

    Raises:
        LedgerError: the payload is no JSON or too long, or the time is after `LAST_YEAR`, or `MOST_YEARS` after the
            last event's.
    """
    last, before = head(connection), last_time(connection)
    if _time(at).year > LAST_YEAR:
        raise LedgerError(f"the clock of this machine says {at[:10]}. Nothing was changed. Set the clock right")
    if before is not None and _time(at) - before > dt.timedelta(days=366 * MOST_YEARS):
        raise LedgerError(
            f"the clock of this machine says {at[:10]}, and the ledger's last event is of {before:%Y-%m-%d}; accepted: "
            f"at most {MOST_YEARS} years later. Nothing was changed. Set the clock right"
        )
    link: Values = {
        "sequence": last.sequence + 1,
        "at": at,
        "kind": kind,
        "subject": subject,
        "payload": canonical(payload),
        "previous": last.hash,
    }
    link["hash"] = _hash(link)
    connection.execute(insert(schema.event).values(link))
    return ChainEvent(**{**link, "payload": payload})


def head(connection: Connection) -> Head:
    """The last event's link, or sequence 0 and GENESIS where there is none."""
    columns = schema.event.c
    row = connection.execute(
        select(columns.sequence, columns.hash).order_by(columns.sequence.desc()).limit(1)
    ).one_or_none()
    return Head(row.sequence, row.hash) if row else Head(0, GENESIS)


def last_time(connection: Connection) -> dt.datetime | None:
    """The time of the last event, if any. Raises `LedgerError` if it cannot be read."""
    columns = schema.event.c
    text = connection.execute(select(columns.at).order_by(columns.sequence.desc()).limit(1)).scalar_one_or_none()
    return None if text is None else _time(text)


def contains(connection: Connection, link: Head) -> bool:
    """Whether a link is one of the chain; the beginning, sequence 0, always is."""
    column = schema.event.c
    found = connection.execute(select(column.hash).where(column.sequence == link.sequence)).scalar_one_or_none()
    return (found or GENESIS) == link.hash


def events(
    connection: Connection, *, after: int = 0, kinds: Iterable[str] | None = None, subject: str | None = None
) -> list[ChainEvent]:
    """Events in order, optionally of some kinds or about one subject."""
    query = select(schema.event).where(schema.event.c.sequence > after).order_by(schema.event.c.sequence)
    if kinds is not None:
        query = query.where(schema.event.c.kind.in_(list(kinds)))
    if subject is not None:
        query = query.where(schema.event.c.subject == subject)
    return [_event(row._asdict()) for row in connection.execute(query)]


def check_links(connection: Connection) -> tuple[list[ChainEvent], list[str]]:
    """All readable events, and what is wrong with the chain, by sequence number."""
    rows = connection.execute(select(schema.event).order_by(schema.event.c.sequence))
    return linked(row._asdict() for row in rows)


def linked(links: Iterable[Values]) -> tuple[list[ChainEvent], list[str]]:
    """`check_links` for events from anywhere, each with its payload as the text that was hashed."""
    found: list[ChainEvent] = []
    problems: list[str] = []
    previous, expected = GENESIS, 1
    for link in links:
        if link["sequence"] != expected:
            problems.append(f"event {expected}: missing")
        if link["previous"] != previous:
            problems.append(f"event {link['sequence']}: does not follow from the event before it")
        if not _matches(link):
            problems.append(f"event {link['sequence']}: its content does not match its hash")
        previous, expected = link["hash"], link["sequence"] + 1
        try:
            found.append(_event(link))
        except LedgerError:
            problems.append(f"event {link['sequence']}: its payload cannot be read")
    return found, problems


def raised_terms(terms: str, raised: ChainEvent) -> str:
    """An account's terms after its cap was raised. Orders and weights stay as they were sealed."""
    return canonical(parse(terms) | {"cap": raised.payload["cap"]})


def rekeyed_terms(terms: str, rekeyed: ChainEvent) -> str:
    """An account's terms after its keys were changed."""
    return canonical(parse(terms) | {"key_ids": rekeyed.payload["key_ids"]["now"]})


def commitments(chain: Iterable[ChainEvent]) -> dict[str, str | None]:
    """For each entry the commitment to its participants that holds now: the latest, under the latest keys."""
    return {event.subject: event.payload.get("commitment") for event in chain if event.kind in (RESERVED, RECOMMITTED)}


def deciding_attempt(states: Sequence[str]) -> int | None:
    """Of the states of all attempts at a run, first to last, the place of the one that decides what may follow.

    The completed one, else the latest that is not void, if any: a void attempt never ran.
    """
    if SPENT in states:
        return states.index(SPENT)
    return max((place for place, state in enumerate(states) if state != VOID), default=None)


def reserved_row(event: ChainEvent) -> Values:
    """The entry row that follows from a `reserved` event."""
    payload = event.payload
    return {
        "family": payload["family"],
        "run_key": payload["key"],
        "attempt": payload["attempt"],
        "state": RESERVED,
        "request": canonical(payload["request"]),
        "commitment": payload["commitment"],
        "replaces": payload["replaces"],
        "reserved_at": event.at,
        "deadline": payload["deadline"],
        "started_at": None,
        "finished_at": None,
        "model_digest": None,
        "void_reason": None,
    }


def transition_values(event: ChainEvent) -> Values:
    """What a `started`, `spent` or `void` event changes in its entry's row."""
    if event.kind == STARTED:
        return {"state": STARTED, "started_at": event.at}
    if event.kind == SPENT:
        return {"state": SPENT, "finished_at": event.at, "model_digest": event.payload["model_digest"]}
    return {"state": VOID, "finished_at": event.at, "void_reason": event.payload["reason"]}


def differences(expected: dict[str, Values], rows: dict[str, Values], noun: str) -> list[str]:
    """How rows differ from those that follow from the chain."""
    problems = []
    for name in sorted(expected.keys() | rows.keys()):
        if name not in rows:
            problems.append(f"{noun} {name}: recorded in the chain but missing from its table")
        elif name not in expected:
            problems.append(f"{noun} {name}: in its table but not recorded in the chain")
        else:
            changed = [key for key, value in expected[name].items() if rows[name][key] != value]
            problems += [f"{noun} {name}: {key} differs from what the chain records" for key in changed]
    return problems


def _time(text: str) -> dt.datetime:
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise LedgerError("the time of an event cannot be read; verify the ledger with `dpsynth ledger verify`")
    return found


def _distinct(pairs: list[tuple[str, Any]]) -> Values:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object has a key twice")
    return found


def _matches(link: Values) -> bool:
    try:
        return bool(link["hash"] == _hash(link))
    except LedgerError:  # never hashed
        return False


def _event(link: Values) -> ChainEvent:
    return ChainEvent(**{**link, "payload": parse(link["payload"])})


def _hash(link: Values) -> str:
    signed = {key: link[key] for key in ("sequence", "at", "kind", "subject", "payload", "previous")}
    return hashlib.sha256(canonical(signed).encode()).hexdigest()
