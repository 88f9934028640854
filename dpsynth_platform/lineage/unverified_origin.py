"""Hearsay: models whose origin is the word of other producers alone, and whose word it is.

What belongs here: telling such models apart among those that a walk met. What does not: models of unknown origin
(`walks`), and what follows (`clearance`).

A producer's word settles where a checkpoint of theirs comes from, since nobody else can know. It stays a word: whoever
leaves half of it out is not found out. So each such model is named with its producers, for people to judge. A model is
vouched for here if we made it, if somebody here registered what it was made from (`dpsynth lineage use`) or declared it
public. Another name counts as the same model's, for this, only if we ourselves told of that name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, select

from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import MODELS, Relative
from dpsynth_platform.lineage.walks import MAKING

_Told = Row[Any]
"""Child, parent, relation, and origin, source and number of the event that told it."""


@dataclass(frozen=True)
class Hearsay:
    """A model that nobody here vouches for.

    Attributes:
        model: where the walk met it.
        producers: whose word its origin is, by name.
        events: numbers of the events that tell of it, in order.
    """

    model: Relative
    producers: tuple[str, ...]
    events: tuple[int, ...]


def hearsay(
    connection: Connection, relatives: Sequence[Relative], settled_otherwise: Collection[DatasetName]
) -> Iterator[Hearsay]:
    """The models of a walk whose origin only other producers tell, in its order; one for all names of a model.

    Args:
        relatives: a walk upward, whole, so that it holds every other name of what it met.
        settled_otherwise: models that are unknown, or that somebody declared public.
    """
    told = _told(connection, [item.node.id for item in relatives])
    ours = {item.node.id for item in relatives if item.node.own}
    seen: set[int] = set()
    for item in relatives:
        if not _may_be_theirs(item) or item.node.name in settled_otherwise or item.node.id in seen:
            continue
        if _vouched_for(item.node.id, told, ours):
            continue
        group = _names(item.node.id, told, ("own", "ingested"))
        words = [row for here in group for row in told.get(here, ()) if row.origin == "ingested"]
        seen |= group
        yield Hearsay(item, tuple(sorted({row.source for row in words})), tuple(sorted({row.event for row in words})))


def _may_be_theirs(item: Relative) -> bool:
    """A model of others; what a contract names as one is one, whatever events take it for."""
    return not item.node.own and (item.node.kind in MODELS or (item.distance == 0 and item.node.kind == "dataset"))


def _told(connection: Connection, ids: Sequence[int]) -> Mapping[int, Sequence[_Told]]:
    """What was told of the making and the names of some nodes, by node."""
    edge, event = tables.edge.c, tables.event.c
    query = (
        select(edge.child, edge.parent, edge.relation, event.origin, event.source, edge.event)
        .join(tables.event, event.sequence == edge.event)
        .where(edge.relation.in_((*MAKING, "alias")))
    )
    found: dict[int, list[_Told]] = {}
    for row in rows.in_parts(connection, query, edge.child, ids):
        found.setdefault(row.child, []).append(row)
    return found


def _vouched_for(start: int, told: Mapping[int, Sequence[_Told]], ours: Collection[int]) -> bool:
    names = _names(start, told, ("own",))
    made_here = (row.origin == "own" and row.relation != "alias" for here in names for row in told.get(here, ()))
    return bool(names & set(ours)) or any(made_here)


def _names(start: int, told: Mapping[int, Sequence[_Told]], origins: Collection[str]) -> set[int]:
    """A node under all its names, as far as events of some origins told of them."""
    found, waiting = {start}, [start]
    while waiting:
        for row in told.get(waiting.pop(), ()):
            if row.relation == "alias" and row.origin in origins and row.parent not in found:
                found.add(row.parent)
                waiting.append(row.parent)
    return found
