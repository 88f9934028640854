"""Models whose origin only other producers report.

What belongs here: finding such models on a walk, with the producers. What does not: models of unknown origin (`walks`),
and the consequences (`clearance`).

A producer's report is accepted as the origin of its checkpoint, since only the producer can know it. But an incomplete
report cannot be detected. So each such model is listed with its producers, for people to judge. A model is verified if
we made it, if a user of this deployment registered its origin (`dpsynth lineage use`), or declared it public. For this,
an alias counts as the same model only if we reported the alias ourselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import MODELS, Relative
from dpsynth_platform.lineage.walks import MAKING

_Reported = Row[Any]
"""Child, parent and relation of an edge, and origin, source and number of the event that reported it."""


def unverified_origins(
    connection: Connection, relatives: Sequence[Relative], excluded: Collection[DatasetName]
) -> Iterator[tuple[Relative, tuple[str, ...], tuple[int, ...]]]:
    """The models of a walk whose origin only other producers report, with those and the numbers of their events.

    In the order of the walk; one for all aliases of a model.

    Args:
        relatives: a complete walk upward, so that it holds every alias of its nodes.
        excluded: models that are unknown, or declared public.
    """
    reported = _reported(connection, [item.node.id for item in relatives])
    ours = {item.node.id for item in relatives if item.node.own}
    seen: set[int] = set()
    for item in relatives:
        here = item.node.id
        if not _may_be_foreign(item) or item.node.name in excluded or here in seen or _verified(here, reported, ours):
            continue
        aliases = _aliases(here, reported, ("own", "ingested"))
        seen |= aliases
        found = [row for alias in aliases for row in reported.get(alias, ()) if row.origin == "ingested"]
        sources, events = {row.source for row in found}, {row.event for row in found}
        yield item, tuple(sorted(sources)), tuple(sorted(events))


def _may_be_foreign(item: Relative) -> bool:
    """Whether it is a model of others; the contract's checkpoint is a model, whatever kind events give it."""
    return not item.node.own and (item.node.kind in MODELS or (item.distance == 0 and item.node.kind == "dataset"))


def _reported(connection: Connection, ids: Sequence[int]) -> Mapping[int, Sequence[_Reported]]:
    """Reports about the origin and the aliases of some nodes, by node."""
    edge, event = tables.edge.c, tables.event.c
    query = (
        select(edge.child, edge.parent, edge.relation, event.origin, event.source, edge.event)
        .join(tables.event, event.sequence == edge.event)
        .where(edge.relation.in_((*MAKING, "alias")))
    )
    found: dict[int, list[_Reported]] = {}
    for row in rows.in_parts(connection, query, edge.child, ids):
        found.setdefault(row.child, []).append(row)
    return found


def _verified(start: int, reported: Mapping[int, Sequence[_Reported]], ours: Collection[int]) -> bool:
    aliases = _aliases(start, reported, ("own",))
    made_here = (row.origin == "own" and row.relation != "alias" for here in aliases for row in reported.get(here, ()))
    return bool(aliases & set(ours)) or any(made_here)


def _aliases(start: int, reported: Mapping[int, Sequence[_Reported]], origins: Collection[str]) -> set[int]:
    """A node and its aliases, as far as events of some origins report them."""
    found, waiting = {start}, [start]
    while waiting:
        for row in reported.get(waiting.pop(), ()):
            if row.relation == "alias" and row.origin in origins and row.parent not in found:
                found.add(row.parent)
                waiting.append(row.parent)
    return found
