"""The outbox: recorded events on their way to who shall have them, each receiver's in order and none lost.

What belongs here: who delivers (one process at a time, by a lease that ends with it or by itself), in what order, when
again, and what is stuck. What does not: what the receivers are (`receivers`) and recording (`store`).

An event is put here in the transaction that records it, so nothing that is recorded can be forgotten. A delivery that
fails holds up its receiver: later events wait, so that no run's events change their order, and it is tried again by
later emissions, by a sensor and by hand, after growing pauses. An event that a receiver will never take (`Refusal`)
is marked, told, and passed.

A process that is killed after it has delivered and before that is written here leaves one event to be delivered a
second time. The file of our own finds that out by itself; for other receivers events are delivered *at least* once,
and a second time only in this way, with the very same content.
"""

from __future__ import annotations

import datetime as dt
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
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
REFUSALS_ARE_NEWS = dt.timedelta(days=1)
_FIRST_PAUSE = dt.timedelta(seconds=5)
_LONGEST_PAUSE = dt.timedelta(minutes=5)
_NAMES = {FILE: "the record lineage/events.jsonl", TRANSPORT: "the OpenLineage transport"}


class Refusal(Exception):
    """A receiver will never take this event. Its text is ours and safe."""


class Receiver(Protocol):
    """Where events go."""

    @property
    def target(self) -> str:
        """Its name in the outbox."""

    def send(self, event: Mapping[str, Any]) -> None:
        """Delivers one event; when it returns, the receiver has it.

        Raises:
            Refusal: it never will.
            Exception: it may, later.
        """


@dataclass(frozen=True)
class Report:
    """What one flush did.

    Attributes:
        delivered: events by target.
        warnings: one safe sentence for each delivery that failed or was refused.
    """

    delivered: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class TargetStatus:
    """How one receiver stands.

    Attributes:
        waiting: events that are recorded and not delivered.
        waiting_since: when the first of them was recorded.
        attempts: how often that one was tried.
        next_at: when it is tried again.
        delivered, refused: events that are done with.
        news: how many of the refused were refused within `REFUSALS_ARE_NEWS`.
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
        """What somebody must look at, in safe sentences."""
        told = []
        if self.waiting_since is not None and self.waiting_since < rows.time_text(now - STUCK_AFTER):
            told.append(
                f"{self.waiting} lineage events wait for {_NAMES.get(self.target, self.target)} since "
                f"{self.waiting_since}, tried {self.attempts} times; mend it, then: dpsynth lineage flush"
            )
        if self.news:
            told.append(
                f"{self.news} lineage events were refused by {_NAMES.get(self.target, self.target)} within a day and "
                "passed over; see: dpsynth lineage status"
            )
        return told


@dataclass(frozen=True)
class RefusedEvent:
    """An event that a receiver will never take, and why."""

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
        now: also what pauses after a failure.
        seconds: begins no further delivery after that time; what is left is for the next flush.

    Raises:
        LedgerError: the database is away. What was delivered may be delivered again.
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
    """How each receiver stands that ever was to have an event."""
    return store.database.read(_status)


def refusals(store: LineageStore, *, most: int = 20) -> list[RefusedEvent]:
    """The latest events that were refused, the last first."""
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
    """Marks all that waits for a receiver as refused, for one that is gone for good; returns how many."""
    box = tables.outbox.c

    def work(connection: Connection) -> int:
        at = rows.clock_text(connection)
        waiting = (box.target == target) & box.delivered_at.is_(None)
        return connection.execute(
            update(tables.outbox).where(waiting).values(delivered_at=at, refused="given up by hand")
        ).rowcount

    return store.database.write(work, guards=("lineage_event",))


def told_of(event: Mapping[str, Any]) -> str:
    """A run event of ours as warnings name it."""
    return f"Lineage event {event['eventType']} of {event['job']['name']}"


@dataclass(frozen=True)
class _Due:
    sequence: int
    attempts: int
    event: Mapping[str, Any]


class _Served:
    """One receiver, served by this process until there is nothing left to do."""

    def __init__(self, store: LineageStore, receiver: Receiver, now: bool) -> None:
        self._write: Callable[[Callable[[Connection], _Due | None]], _Due | None] = lambda work: store.database.write(
            work, guards=("lineage_event",)
        )
        self._receiver = receiver
        self._now = now
        self._holder = f"{secrets.token_hex(8)}@{own_name()}"
        self.warnings: list[str] = []

    def until(self, over: Callable[[], bool]) -> int:
        """Delivers in order; returns how many were delivered."""
        count = 0
        due = self._write(self._begin)
        while due is not None:
            refused = None
            try:
                self._receiver.send(due.event)
                count += 1
            except Refusal as refusal:
                refused = str(refusal)
                self._warn(due, f"was refused by {self._name} ({refused}) and passed over.")
            except Exception as error:  # whatever a transport raises; of its text nothing is told
                self._warn(due, f"did not reach {self._name} ({reason_of(error)}); it is kept and tried again.")
                self._write(lambda connection, due=due: self._failed(connection, due))  # type: ignore[misc]
                return count
            last = over()
            due = self._write(
                lambda connection, due=due, refused=refused, last=last: self._done(connection, due, refused, last)  # type: ignore[misc]
            )
        return count

    @property
    def _name(self) -> str:
        return _NAMES.get(self._receiver.target, self._receiver.target)

    def _warn(self, due: _Due, what: str) -> None:
        self.warnings.append(f"{told_of(due.event)} {what}")

    def _begin(self, connection: Connection) -> _Due | None:
        """Takes the lease, unless another process has it or nothing is due."""
        held = connection.execute(select(tables.lease).where(self._mine)).one_or_none()
        if held is not None and held.until > rows.clock_text(connection) and not is_gone(held.holder.partition("@")[2]):
            return None
        connection.execute(delete(tables.lease).where(self._mine))
        due = self._next(connection)
        if due is not None:
            connection.execute(
                insert(tables.lease).values(
                    target=self._receiver.target, holder=self._holder, until=self._lease_end(connection)
                )
            )
        return due

    def _done(self, connection: Connection, due: _Due, refused: str | None, last: bool) -> _Due | None:
        """Notes a delivery or refusal. Gives the lease back in the same transaction in which nothing more is due.

        So an event that is recorded before sees this process take it, and one that is recorded later finds no lease.
        """
        box = tables.outbox.c
        this = (box.target == self._receiver.target) & (box.sequence == due.sequence) & box.delivered_at.is_(None)
        connection.execute(
            update(tables.outbox).where(this).values(delivered_at=rows.clock_text(connection), refused=refused)
        )
        following = None if last or not self._holds(connection) else self._next(connection)
        if following is None:
            self._release(connection)
        else:
            until = self._lease_end(connection)
            connection.execute(update(tables.lease).where(self._mine).values(until=until))
        return following

    def _failed(self, connection: Connection, due: _Due) -> None:
        """Notes a failure and when to try again."""
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

    def _holds(self, connection: Connection) -> bool:
        holder = select(tables.lease.c.holder).where(self._mine)
        return connection.execute(holder).scalar_one_or_none() == self._holder

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
    lately = rows.time_text(rows.clock(connection) - REFUSALS_ARE_NEWS)
    found = []
    for target in connection.execute(select(box.target).distinct().order_by(box.target)).scalars().all():
        of_target = box.target == target

        def count(*conditions: Any, of_target: Any = of_target) -> int:
            query = select(func.count()).select_from(tables.outbox).where(of_target, *conditions)
            return connection.execute(query).scalar_one()

        first = connection.execute(
            select(box.attempts, box.next_at, tables.event.c.received_at)
            .join(tables.event, tables.event.c.sequence == box.sequence)
            .where(of_target, box.delivered_at.is_(None))
            .order_by(box.sequence)
            .limit(1)
        ).one_or_none()
        found.append(
            TargetStatus(
                target=target,
                waiting=count(box.delivered_at.is_(None)),
                waiting_since=first.received_at if first else None,
                attempts=first.attempts if first else 0,
                next_at=first.next_at if first else None,
                delivered=count(box.delivered_at.is_not(None), box.refused.is_(None)),
                refused=count(box.refused.is_not(None)),
                news=count(box.refused.is_not(None), box.delivered_at > lately),
            )
        )
    return found
