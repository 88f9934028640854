"""Distrust: the record that an event of another producer is wrong, and the graph without that event.

What belongs here: what is distrusted (the ledger's chain records it), which events go with it, and removing what they
reported. What does not: what an event adds (`graph_rows`), and who may distrust (`store`).

A distrusted event stays stored, and so do releases and clearances that were made with it; nodes and edges become what
they would be without it. All events of a run together define what it read and wrote, so the run's other events up to
then go with it. What other events report, too, is added again. Only events of others can be distrusted, so no report of
our own is ever removed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from sqlalchemy import Connection, delete, or_, select

from dpsynth_platform.foundation.errors import LineageRefused
from dpsynth_platform.ledger import chain
from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.ledger.records import ChainEvent
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage import intake
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import StoredEvent

_PAGE = 500


@dataclass(frozen=True)
class Distrust:
    """A person's statement that an event is wrong.

    Attributes:
        event: its number; `through` is the last one of its run that goes with it.
        source: the producer that sent it.
        sequence: number of the ledger's event that records this, at `at` (UTC).
    """

    event: int
    through: int
    digest: str
    source: str
    by: str
    reason: str
    at: str
    sequence: int

    @classmethod
    def of(cls, event: ChainEvent) -> Distrust:
        return cls(**event.payload, at=event.at, sequence=event.sequence)


def distrusts(connection: Connection) -> list[Distrust]:
    """All of them, in order."""
    return [Distrust.of(event) for event in chain.events(connection, kinds=[chain.DISTRUSTED])]


def events_of(connection: Connection, distrust: Distrust) -> list[StoredEvent]:
    """The distrusted event and those of its run that go with it; none if its number now belongs to another event."""
    event = rows.event(connection, distrust.event)
    if event is None or event.digest != distrust.digest or event.origin == "own":
        return []
    return [item for item in _run_of(connection, event) if item.sequence <= distrust.through]


def distrusted(connection: Connection) -> set[int]:
    """Numbers of all events that do not count."""
    return {event.sequence for item in distrusts(connection) for event in events_of(connection, item)}


def distrustable(connection: Connection, number: int) -> list[StoredEvent]:
    """An event of another producer with those of its run, in order.

    Raises:
        LineageRefused: there is no such event, it is our own, or it is distrusted already.
    """
    event = rows.event(connection, number)
    if event is None:
        raise LineageRefused(f"there is no lineage event {number}; dpsynth lineage show lists those of each dataset")
    if event.origin == "own":
        raise LineageRefused(f"lineage event {number} is this platform's own; only events of others can be distrusted")
    if number in distrusted(connection):
        raise LineageRefused(f"lineage event {number} is distrusted already")
    return _run_of(connection, event)


def remove_reports(connection: Connection, events: Collection[StoredEvent], declared: Collection[DatasetName]) -> None:
    """Makes nodes and edges what they would be without some events, whose distrust is already recorded.

    Args:
        declared: names that were declared public: such a node may exist without an event.
    """
    without = distrusted(connection)
    names = {name for event in events for name in _names(event)}
    edge, access = tables.edge.c, tables.access.c
    runs = {event.run_id for event in events if event.run_id}
    connection.execute(delete(tables.edge).where(edge.event.in_([event.sequence for event in events])))
    connection.execute(delete(tables.access).where(access.origin == "ingested", access.run_id.in_(runs)))
    found = rows.find_nodes(connection, names)
    theirs = {name: node for name, node in found.items() if not node.own and node.kind != "mechanism"}
    for name, node in theirs.items():
        rows.forget(connection, node, without, keep_kind=name in declared)
    for event in _events(connection):
        if event.sequence not in without:
            with suppress(LineageRefused):  # an event that is no longer readable keeps what it added
                facts = intake.facts_of(event.payload)
                if not names.isdisjoint(facts.names):
                    rows.relate(connection, facts, event.origin, event.sequence, only=theirs)


def events_about(connection: Connection, name: DatasetName) -> list[StoredEvent]:
    """Events of others that reported an edge at a node, in order."""
    node = rows.find_nodes(connection, [name]).get(name)
    if node is None:
        return []
    edge, event = tables.edge.c, tables.event.c
    here = select(edge.event).where(or_(edge.child == node.id, edge.parent == node.id))
    query = select(tables.event).where(event.sequence.in_(here), event.origin == "ingested").order_by(event.sequence)
    return [rows.stored(row) for row in connection.execute(query)]


def distrusts_about(connection: Connection, name: DatasetName) -> list[Distrust]:
    """Those whose events reported a node."""
    return [
        item for item in distrusts(connection) if any(name in _names(event) for event in events_of(connection, item))
    ]


def _names(event: StoredEvent) -> Collection[DatasetName]:
    with suppress(LineageRefused):
        return intake.facts_of(event.payload).names
    return ()


def _run_of(connection: Connection, event: StoredEvent) -> list[StoredEvent]:
    """All events of others about an event's run, in order; an event without a run alone."""
    if not event.run_id:
        return [event]
    return [item for item in _events(connection, event.run_id) if item.origin == "ingested"]


def _events(connection: Connection, run_id: str | None = None) -> Iterator[StoredEvent]:
    return rows.all_pages(lambda after: rows.events(connection, after=after, run_id=run_id, most=_PAGE))
