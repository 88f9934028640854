"""The outbox: recorded events and their delivery to receivers, in order and without loss.

What belongs here: which process delivers (one at a time, by a lease that ends with the process or expires), the order,
retries, and what is stuck. What does not: the receivers (`receivers`) and recording (`store`).

The transaction that records an event also puts it here, so no recorded event is forgotten. A failed delivery blocks its
receiver: later events wait, so that the order of a run's events never changes. Later emissions, a sensor or a person
try it again, after growing pauses. An event that a receiver will never accept (`Refusal`) is marked, reported and
skipped.

A process that is killed between delivery and its record here leaves one event to be delivered a second time. Our own
file detects that. Other receivers get each event *at least* once, and a second time only in this way, with the same
content.
"""

from __future__ import annotations

import datetime as dt
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from sqlalchemy import Connection, delete, func, insert, select, update

from dpsynth_platform.foundation.processes import is_gone, own_name
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.ledger import rows
from dpsynth_platform.lineage.store import LineageStore

FILE, TRANSPORT = "file", "transport"
LEASE = dt.timedelta(minutes=5)
STUCK_AFTER = dt.timedelta(minutes=15)
RECENT = dt.timedelta(days=1)
_FIRST_PAUSE = dt.timedelta(seconds=5)
_LONGEST_PAUSE = dt.timedelta(minutes=5)
_NAMES = {FILE: "the record lineage/events.jsonl", TRANSPORT: "the OpenLineage transport"}


class Refusal(Exception):
    """A receiver will never accept this event. Its text is ours and safe."""


class Receiver(Protocol):
    """A destination of events."""

    @property
    def target(self) -> str:
        """Its name in the outbox."""

    def send(self, event: Mapping[str, Any]) -> None:
        """Delivers one event; when it returns, the receiver has it.

        Raises:
            Refusal: the receiver will never accept it.
            Exception: a later attempt may succeed.
        """


@dataclass(frozen=True)
class Report:
    """The number of delivered events by target, and a safe sentence for each one that failed or was refused."""

    delivered: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetStatus:
    """The state of one receiver.

    Attributes:
        waiting: events that are recorded and not delivered.
        waiting_since: when the first of them was recorded.
        attempts: how often that one was tried.
        next_at: when it is tried again.
        news: how many were refused within `RECENT`.
    """

    target: str
    waiting: int
    waiting_since: str | None
    attempts: int
    next_at: str | None
    delivered: int
    refused: int
    news: int

    def alerts(self, now: dt.datetime) -> list[str]:
        """Problems that need a person, in safe sentences."""
        found, name = [], _NAMES.get(self.target, self.target)
        if self.waiting_since is not None and self.waiting_since < rows.time_text(now - STUCK_AFTER):
            found.append(
                f"{self.waiting} lineage events wait for {name} since {self.waiting_since}, tried {self.attempts} "
                "times; repair it, then: dpsynth lineage flush"
            )
        if self.news:
            found.append(
                f"{self.news} lineage events were refused by {name} within a day and skipped; see: dpsynth lineage "
                "status"
            )
        return found


@dataclass(frozen=True)
class RefusedEvent:
    """An event that a receiver refused."""

    target: str
    sequence: int
    kind: str
    job: str
    reason: str
    at: str


def flush(
    store: LineageStore, receivers: Iterable[Receiver], *, now: bool = False, seconds: float | None = None
) -> Report:
    """Delivers what is due, to each receiver until it has everything, fails, or another process serves it.

    Args:
        now: also deliver events that pause after a failure.
        seconds: begin no further delivery after that time.

    Raises:
        LedgerError: the database is out of reach. What was delivered may be delivered again.
    """
    end = None if seconds is None else time.monotonic() + seconds
    delivered: dict[str, int] = {}
    warnings: list[str] = []
    for receiver in receivers:
        served = _Served(store, receiver, now)
        delivered[receiver.target] = served.until(lambda: end is not None and time.monotonic() > end)
        warnings += served.warnings
    return Report(delivered, tuple(warnings))


def status(store: LineageStore) -> list[TargetStatus]:
    """The state of each receiver that was ever a target."""
    return store.database.read(_status)


def refusals(store: LineageStore, *, most: int = 20) -> list[RefusedEvent]:
    """The latest refused events, the last first."""
    box, event = tables.outbox.c, tables.event.c
    query = (
        select(box.target, box.sequence, event.kind, event.job_name, box.refused, box.delivered_at)
        .join(tables.event, event.sequence == box.sequence)
        .where(box.refused.is_not(None))
        .order_by(box.delivered_at.desc(), box.sequence.desc())
        .limit(most)
    )
    return store.database.read(lambda connection: [RefusedEvent(*row) for row in connection.execute(query)])


def give_up(store: LineageStore, target: str) -> int:
    """Marks all events that wait for a removed receiver as refused; returns how many."""
    box = tables.outbox.c

    def work(connection: Connection) -> int:
        at = rows.clock_text(connection)
        waiting = (box.target == target) & box.delivered_at.is_(None)
        return connection.execute(
            update(tables.outbox).where(waiting).values(delivered_at=at, refused="given up by hand")
        ).rowcount

    return store.database.write(work, guards=("lineage_event",))


def label_of(event: Mapping[str, Any]) -> str:
    """The label of our own run event in warnings."""
    return f"Lineage event {event['eventType']} of {event['job']['name']}"


@dataclass(frozen=True)
class _Due:
    sequence: int
    attempts: int
    event: Mapping[str, Any]


class _Served:
    """One receiver, served by this process until nothing is due."""

    def __init__(self, store: LineageStore, receiver: Receiver, now: bool) -> None:
        self._database = store.database
        self._receiver = receiver
        self._now = now
        self._holder = f"{secrets.token_hex(8)}@{own_name()}"
        self.warnings: list[str] = []

    def until(self, over: Callable[[], bool]) -> int:
        """Delivers events in order; returns how many."""
        count = 0
        due = self._write(self._begin)
        while due is not None:
            refused = None
            try:
                self._receiver.send(due.event)
                count += 1
            except Refusal as refusal:
                refused = str(refusal)
                self._warn(due, f"was refused by {self._name} ({refused}) and skipped.")
            except Exception as error:  # any error of a transport; its text is not shown
                self._warn(due, f"did not reach {self._name} ({reason_of(error)}); it is kept and tried again.")
                self._write(partial(self._failed, due=due))
                return count
            due = self._write(partial(self._done, due=due, refused=refused, last=over()))
        return count

    def _write(self, work: Callable[[Connection], _Due | None]) -> _Due | None:
        return self._database.write(work, guards=("lineage_event",))

    @property
    def _name(self) -> str:
        return _NAMES.get(self._receiver.target, self._receiver.target)

    def _warn(self, due: _Due, what: str) -> None:
        self.warnings.append(f"{label_of(due.event)} {what}")

    def _begin(self, connection: Connection) -> _Due | None:
        """Takes the lease, unless another process has it or nothing is due."""
        held = connection.execute(select(tables.lease).where(self._mine)).one_or_none()
        if held is not None and held.until > rows.clock_text(connection) and not is_gone(held.holder.partition("@")[2]):
            return None
        connection.execute(delete(tables.lease).where(self._mine))
        due = self._next(connection)
        if due is not None:
            lease = {"target": self._receiver.target, "holder": self._holder, "until": self._lease_end(connection)}
            connection.execute(insert(tables.lease).values(lease))
        return due

    def _done(self, connection: Connection, due: _Due, refused: str | None, last: bool) -> _Due | None:
        """Records a delivery or refusal. Releases the lease in the transaction that finds nothing more due.

        So an event that is recorded before that is delivered by this process, and a later one finds no lease.
        """
        box = tables.outbox.c
        this = (box.target == self._receiver.target) & (box.sequence == due.sequence) & box.delivered_at.is_(None)
        connection.execute(
            update(tables.outbox).where(this).values(delivered_at=rows.clock_text(connection), refused=refused)
        )
        holder = connection.execute(select(tables.lease.c.holder).where(self._mine)).scalar_one_or_none()
        following = None if last or holder != self._holder else self._next(connection)
        if following is None:
            self._release(connection)
        else:
            until = self._lease_end(connection)
            connection.execute(update(tables.lease).where(self._mine).values(until=until))
        return following

    def _failed(self, connection: Connection, due: _Due) -> None:
        """Records a failure and the time of the next attempt."""
        box = tables.outbox.c
        this = (box.target == self._receiver.target) & (box.sequence == due.sequence)
        pause = min(_FIRST_PAUSE * 2 ** min(due.attempts, 20), _LONGEST_PAUSE)
        values = {"attempts": due.attempts + 1, "next_at": rows.time_text(rows.clock(connection) + pause)}
        connection.execute(update(tables.outbox).where(this).values(values))
        self._release(connection)

    def _next(self, connection: Connection) -> _Due | None:
        """The first event that is not delivered, unless it pauses."""
        box = tables.outbox.c
        query = (
            select(box.sequence, box.attempts, box.next_at, tables.event.c.payload)
            .join(tables.event, tables.event.c.sequence == box.sequence)
            .where(box.target == self._receiver.target, box.delivered_at.is_(None))
            .order_by(box.sequence)
            .limit(1)
        )
        row = connection.execute(query).one_or_none()
        if row is None or (not self._now and row.next_at is not None and row.next_at > rows.clock_text(connection)):
            return None
        return _Due(row.sequence, row.attempts, json.loads(row.payload))

    def _release(self, connection: Connection) -> None:
        connection.execute(delete(tables.lease).where(self._mine, tables.lease.c.holder == self._holder))

    @property
    def _mine(self) -> Any:
        return tables.lease.c.target == self._receiver.target

    @staticmethod
    def _lease_end(connection: Connection) -> str:
        return rows.time_text(rows.clock(connection) + LEASE)


def _status(connection: Connection) -> list[TargetStatus]:
    box = tables.outbox.c
    lately = rows.time_text(rows.clock(connection) - RECENT)
    waiting, refused = box.delivered_at.is_(None), box.refused.is_not(None)
    counts: dict[str, list[Any]] = {
        "waiting": [waiting],
        "delivered": [~waiting, ~refused],
        "refused": [refused],
        "news": [refused, box.delivered_at > lately],
    }
    columns: list[Any] = [func.count().filter(*conditions).label(name) for name, conditions in counts.items()]
    found = []
    for row in connection.execute(select(box.target, *columns).group_by(box.target).order_by(box.target)).all():
        first = connection.execute(
            select(box.attempts, box.next_at, tables.event.c.received_at.label("waiting_since"))
            .join(tables.event, tables.event.c.sequence == box.sequence)
            .where(box.target == row.target, waiting)
            .order_by(box.sequence)
            .limit(1)
        ).one_or_none()
        state = first._asdict() if first else {"attempts": 0, "next_at": None, "waiting_since": None}
        found.append(TargetStatus(**row._asdict(), **state))
    return found
