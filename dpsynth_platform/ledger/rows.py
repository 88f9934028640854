"""The ledger's rows as records: queries, the clock, and which entries are charged.

What belongs here: reading accounts, entries, participants and decisions on an open connection. What does not: writing,
deciding (`store`, `verdicts`).
"""

from __future__ import annotations

import datetime as dt
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

from sqlalchemy import ColumnElement, Connection, Row, select

from dpsynth_platform.contracts.periods import cadence_of, period_bounds
from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.ledger import chain, schema
from dpsynth_platform.ledger.filter import Cost, RenyiFilter
from dpsynth_platform.ledger.owners import Participants, from_blob
from dpsynth_platform.ledger.records import Account, ChainEvent, CostRequest, Decision, Entry
from dpsynth_platform.ledger.standing import Standing

_AT_ONCE = 10_000  # names in one query; SQLite takes no more than 32,766 parameters
_DECISIONS: dict[str, Literal["approve", "refuse", "withdraw"]] = {
    chain.APPROVED: "approve",
    chain.REFUSED: "refuse",
    chain.WITHDRAWN: "withdraw",
}


def find_account(connection: Connection, family: str) -> Account | None:
    """A family's account, or None."""
    row = connection.execute(select(schema.account).where(schema.account.c.family == family)).one_or_none()
    return account_of(row) if row else None


def accounts(connection: Connection) -> list[Account]:
    """All accounts, by name."""
    query = select(schema.account).order_by(schema.account.c.family)
    return [account_of(row) for row in connection.execute(query)]


def accounts_in(connection: Connection, namespace: str) -> list[Account]:
    """The accounts of an identity namespace, by name."""
    return [account for account in accounts(connection) if account.namespace == namespace]


def get_account(connection: Connection, family: str) -> Account:
    """A family's account. Raises `LedgerError` if it was never opened."""
    account = find_account(connection, family)
    if account is None:
        known = ", ".join(item.family for item in accounts(connection)) or "none"
        raise LedgerError(
            f"family {family!r} has no account; accepted: {known}. The first run of a dataset opens its family's "
            "account"
        )
    return account


def account_of(row: Row[Any]) -> Account:
    """The account that a row holds."""
    terms = chain.parse(row.terms)
    epsilon, delta = terms["cap"]["epsilon"], terms["cap"]["delta"]
    return Account(
        family=row.family,
        unit=terms["unit"],
        adjacency=terms["adjacency"],
        namespace=terms["namespace"],
        owner_normalization=tuple(terms["owner_normalization"]),
        mode=terms["mode"],
        epsilon=epsilon,
        delta=delta,
        filter=RenyiFilter.from_json(terms["filter"], epsilon, delta),
        key_ids=tuple(terms["key_ids"]),
        opened_at=row.opened_at,
    )


def get_entry(connection: Connection, entry_id: str) -> Entry:
    """One entry. Raises `LedgerError` if there is none."""
    row = connection.execute(select(schema.entry).where(schema.entry.c.entry_id == entry_id)).one_or_none()
    if row is None:
        raise LedgerError(f"there is no ledger entry {entry_id!r}")
    return entry_of(row)


def attempts(connection: Connection, key: str) -> list[Entry]:
    """All attempts at a run, first to last."""
    table = schema.entry
    query = select(table).where(table.c.run_key == key).order_by(table.c.attempt)
    return [entry_of(row) for row in connection.execute(query)]


def deciding_attempt(tried: Sequence[Entry]) -> Entry | None:
    """See `chain.deciding_attempt`."""
    place = chain.deciding_attempt([entry.state for entry in tried])
    return None if place is None else tried[place]


def entries(connection: Connection, family: str | None) -> list[Entry]:
    """Entries of one family or of all, in the order of their reservation."""
    table = schema.entry
    query = select(table).order_by(table.c.reserved_at, table.c.entry_id)
    if family is not None:
        query = query.where(table.c.family == family)
    return [entry_of(row) for row in connection.execute(query)]


def charged_for(connection: Connection, family: str, place: str) -> list[Entry]:
    """Charged entries that pay for a release of a dataset (`visits`, `visits/2026-01`), by their reservation."""
    return _charged(connection, family, place.partition("/")[0], lambda found: found.place == place)


def charged_for_days(connection: Connection, family: str, request: CostRequest) -> list[Entry]:
    """Charged entries that pay for a release of a request's dataset on any day of its period, by their reservation.

    After a change of cadence, periods of another name have the same days.
    """
    return _charged(connection, family, request.dataset, lambda found: _has_days_of(found, request))


def _charged(connection: Connection, family: str, dataset: str, wanted: Callable[[CostRequest], bool]) -> list[Entry]:
    table = schema.entry
    query = select(table).where(table.c.family == family, table.c.request.contains(dataset, autoescape=True))
    found = [entry_of(row) for row in connection.execute(query.order_by(table.c.reserved_at, table.c.entry_id))]
    mine = [entry for entry in found if wanted(entry.request) and entry.request.purpose == "release"]
    return [entry for entry in mine if is_charged(connection, entry)]


def _has_days_of(one: CostRequest, other: CostRequest) -> bool:
    if one.place == other.place:
        return True
    if one.dataset != other.dataset or not (one.period and other.period):
        return False
    if cadence_of(one.period) is None or cadence_of(other.period) is None:
        return False
    (first, last), (start, end) = period_bounds(one.period), period_bounds(other.period)
    return first <= end and start <= last


def entries_named(connection: Connection, events: Iterable[ChainEvent]) -> list[Entry]:
    """The entries that some events of the chain are about, in the order of their reservation."""
    names = sorted({event.subject for event in events})
    found = [entry_of(row) for row in entry_rows(connection, schema.entry.c.entry_id, names)]
    return sorted(found, key=lambda entry: (entry.reserved_at, entry.entry_id))


def entry_rows(
    connection: Connection, column: ColumnElement[str], values: Sequence[str], *conditions: ColumnElement[bool]
) -> Iterator[Row[Any]]:
    """Rows of the entries with one of the values in a column."""
    for start in range(0, len(values), _AT_ONCE):
        query = select(schema.entry).where(column.in_(values[start : start + _AT_ONCE]), *conditions)
        yield from connection.execute(query)


def entry_of(row: Row[Any]) -> Entry:
    """The entry that a row holds."""
    values = row._asdict()
    values["key"] = values.pop("run_key")
    del values["cost"]
    values["request"] = CostRequest.from_json(chain.parse(values["request"]))
    return Entry(**values)


def settled(connection: Connection, family: str) -> Cost:
    """What the account's started and spent entries cost together."""
    table = schema.account
    return cost_of(connection.execute(select(table.c.settled).where(table.c.family == family)).scalar_one())


def reserved_costs(connection: Connection, family: str) -> list[Cost]:
    """The cost of each reservation within its deadline."""
    query = select(schema.entry.c.cost).where(_is_reserved(connection, family))
    return [cost_of(text) for text in connection.execute(query).scalars()]


def reserved(connection: Connection, family: str) -> list[Entry]:
    """Reservations within their deadline."""
    query = select(schema.entry).where(_is_reserved(connection, family))
    return [entry_of(row) for row in connection.execute(query)]


def expired(connection: Connection) -> list[Entry]:
    """Reservations of all accounts whose deadline has passed."""
    table = schema.entry
    query = select(table).where(table.c.state == chain.RESERVED, table.c.deadline <= now_text(connection))
    return [entry_of(row) for row in connection.execute(query.order_by(table.c.family, table.c.reserved_at))]


def pending_participants(connection: Connection, family: str) -> list[tuple[Participants, Cost]]:
    """Participants and cost of each reservation within its deadline that names any. Restricted."""
    table, people = schema.entry, schema.participants
    query = select(people.c.fingerprints, table.c.cost).join(table).where(_is_reserved(connection, family))
    return [(from_blob(row.fingerprints), cost_of(row.cost)) for row in connection.execute(query)]


def find_standing(connection: Connection, family: str, nothing: Cost) -> Standing | None:
    """The standing of an account's owners, or None while no entry that names any has started. Restricted."""
    table = schema.standing
    row = connection.execute(select(table).where(table.c.family == family)).one_or_none()
    return Standing.from_blobs(row.owners, row.class_of, row.sums, nothing) if row else None


def cost_of(text: str) -> Cost:
    """Reads `cost_text`. Raises `LedgerError` for anything but finite numbers from 0."""
    try:
        cost = tuple(json.loads(text))
    except (ValueError, TypeError):
        cost = ()
    if not cost or not all(isinstance(part, float) and 0 <= part < math.inf for part in cost):
        raise LedgerError("a row of the ledger cannot be read; verify it with `dpsynth ledger verify`")
    return cost


def cost_text(cost: Cost) -> str:
    """A cost as the tables hold it: JSON, exact to the last bit."""
    return json.dumps(cost)


def _is_reserved(connection: Connection, family: str) -> ColumnElement[bool]:
    column = schema.entry.c
    in_time = column.deadline > now_text(connection)
    return (column.family == family) & (column.state == chain.RESERVED) & in_time


def participants_of(connection: Connection, entry_id: str) -> Participants | None:
    """The participants of an entry, or None where it names none. Restricted."""
    table = schema.participants
    blob = connection.execute(select(table.c.fingerprints).where(table.c.entry_id == entry_id)).scalar_one_or_none()
    return None if blob is None else from_blob(blob)


def decision_of(event: ChainEvent) -> Decision:
    """The decision that an `approved`, `refused` or `withdrawn` event records."""
    withdrawn = event.kind == chain.WITHDRAWN
    return Decision(
        candidate=event.payload["candidate"] if withdrawn else event.subject,
        decision=_DECISIONS[event.kind],
        by=event.payload["by"],
        at=event.at,
        entry_id=event.payload["entry"],
        reason=event.payload["reason"],
        sequence=event.sequence,
        release=event.subject if withdrawn else None,
    )


def is_charged(connection: Connection, entry: Entry) -> bool:
    """Live, and if only reserved then within its deadline."""
    return entry.live and not (entry.state == chain.RESERVED and has_expired(connection, entry))


def has_expired(connection: Connection, entry: Entry) -> bool:
    """Whether a reservation's deadline has passed."""
    return entry.deadline <= now_text(connection)


def now() -> dt.datetime:
    """The time, UTC; tests patch it."""
    return dt.datetime.now(dt.UTC)


def clock(connection: Connection) -> dt.datetime:
    """This machine's clock, read once in a transaction."""
    return _once(connection, "dpsynth_clock", now)


def moment(connection: Connection) -> dt.datetime:
    """The ledger's time: when this transaction takes place for all machines that share the ledger. It never falls.

    It is the later of this machine's clock and the time of the chain's last event, both read once: by a second reading
    a reservation could expire in between, and be neither void nor counted. By clocks alone, a machine whose clock is
    behind would start what another one has found expired.

    Raises:
        LedgerError: the last event has no time that can be read.
    """

    def read() -> dt.datetime:
        last = chain.last_time(connection)
        return clock(connection) if last is None else max(clock(connection), last)

    return _once(connection, "dpsynth_moment", read)


def _once(connection: Connection, name: str, read: Callable[[], dt.datetime]) -> dt.datetime:
    """The value of the first reading in this transaction."""
    transaction = connection.get_transaction()
    if connection.info.get(name, (None,))[0] is not transaction:
        connection.info[name] = (transaction, read())
    found: dt.datetime = connection.info[name][1]
    return found


def time_text(moment: dt.datetime) -> str:
    """A time as the ledger writes it: ISO 8601 with microseconds, so that texts sort like times."""
    return moment.isoformat(timespec="microseconds")


def now_text(connection: Connection) -> str:
    """The transaction's `moment` as text."""
    return time_text(moment(connection))


def clock_text(connection: Connection) -> str:
    """The transaction's `clock` as text."""
    return time_text(clock(connection))
