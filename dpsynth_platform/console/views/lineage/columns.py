"""Columns: where those of a table come from, and everything that is drawn from one of them.

What belongs here: reading column lineage for an actor, and joining the months of a dataset. What does not: following
columns (`lineage.column_walks`), the whole graph around a node (`around`), and drawing (`pages`).

Column lineage that the actor may not see counts as not reported: the dataset then depends as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views.base import require
from dpsynth_platform.console.views.lineage.facets import facets_seen
from dpsynth_platform.console.views.lineage.nodes import GraphNode, NodeReader, node_called, step_of, store_of
from dpsynth_platform.foundation.errors import NotFound
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage import column_walks
from dpsynth_platform.lineage.column_walks import ColumnWalk
from dpsynth_platform.lineage.columns import ColumnOrigin, descent_of
from dpsynth_platform.lineage.naming import canonical
from dpsynth_platform.lineage.nodes import Node
from dpsynth_platform.lineage.words import step_words
from dpsynth_platform.reviewing.chronicle import chronicle


@dataclass(frozen=True)
class OriginView:
    """One column that another one comes from: `key` is its node's, None for a node that the graph lacks.

    `direct`: values are made from its values, otherwise they only depend on it. `masked`: that hides them.
    """

    key: str | None
    label: str
    column: str
    direct: bool
    masked: bool
    words: str


@dataclass(frozen=True)
class ColumnView:
    """One column of a table; `tags` such as `pii: mask`, and `reason` says why it has no origins."""

    name: str
    type: str
    tags: tuple[str, ...]
    origins: tuple[OriginView, ...]
    reason: str


@dataclass(frozen=True)
class ColumnsView:
    """The columns of a node. `rows` are columns that decide which rows there are."""

    node: GraphNode
    columns: tuple[ColumnView, ...]
    rows: tuple[OriginView, ...]


@dataclass(frozen=True)
class TracePart:
    """A column, or the whole of a table (`column` None), above or below the start of a trace.

    Attributes:
        key: identifies it in the trace's steps.
        node: the key of its node; of joined months that of the newest.
        label: its table; `title` is the table's name.
        zone: of its table: `restricted`, `operator`, `public`, or empty.
        distance: the fewest steps from the start; negative above it.
        direct, masked: as in `column_walks.Reached`.
        words: what the last step does.
        periods: the joined months, the oldest first.
        releases: ids of the releases that it is.
    """

    key: str
    node: str
    label: str
    title: str
    kind: str
    zone: str
    column: str | None
    distance: int
    direct: bool
    masked: bool | None
    words: str
    periods: tuple[str, ...]
    releases: tuple[str, ...]


@dataclass(frozen=True)
class TraceStep:
    """One step between the keys of two parts, along the data; `masking` None: not recorded."""

    source: str
    target: str
    direct: bool
    masking: bool | None
    words: str


@dataclass(frozen=True)
class TraceView:
    """Everything that a column comes from, and everything that is drawn from it; nearest first.

    Attributes:
        column: None: the whole dataset, with what is drawn from it alone.
        rows: what decides which rows there are, in sentences.
        released: ids of all releases that anything is drawn into.
    """

    node: GraphNode
    column: str | None
    start: TracePart
    upstream: tuple[TracePart, ...]
    downstream: tuple[TracePart, ...]
    steps: tuple[TraceStep, ...]
    rows: tuple[str, ...]
    released: tuple[str, ...]


def columns(settings: Settings, allowed: Collection[Action], name: str) -> ColumnsView:
    """The columns of a node, by its key or name. Raises like `graph`."""
    require(allowed, Action.READ)
    store, found = store_of(settings), node_called(settings, name)
    reader, facets = NodeReader(settings, chronicle(settings)), facets_seen(found, allowed)
    descent = descent_of(facets.get("columnLineage"))
    listed = [item for items in descent.origins.values() for item in items] if descent else []
    names = {canonical(item.source) for item in (*listed, *(descent.rows if descent else ()))}
    known = {name: node for name in names if (node := store.node(name)) is not None}

    def view(item: ColumnOrigin) -> OriginView:
        node = known.get(canonical(item.source))
        shown = None if node is None else reader.node(node, 0)
        words = step_words(item.subtype, item.description)
        label = shown.label if shown else "a dataset that is not in the graph"
        return OriginView(shown.key if shown else None, label, item.column, item.direct, item.masking, words)

    return ColumnsView(
        node=reader.node(found, 0),
        columns=tuple(
            ColumnView(
                name=column.name,
                type=column.type,
                tags=tuple(tag_words(*tag) for tag in column.tags),
                origins=tuple(map(view, descent.origins.get(column.name, ()))) if descent else (),
                reason=descent.without.get(column.name, "") if descent else "",
            )
            for column in column_walks.columns_of(facets).values()
        ),
        rows=tuple(map(view, descent.rows)) if descent else (),
    )


def trace(
    settings: Settings, allowed: Collection[Action], node: str, column: str = "", collapse: bool = True
) -> TraceView:
    """Where a column comes from and what is drawn from it; without a column, what is drawn from the dataset.

    Args:
        collapse: months of a dataset in which the same happens are one part.

    Raises like `graph`, and `NotFound` if the dataset is known not to have the column.
    """
    require(allowed, Action.READ)
    store, found = store_of(settings), node_called(settings, node)
    known = column_walks.columns_of(facets_seen(found, allowed))
    if column and known and column not in known:
        raise NotFound("this dataset has no such column; accepted: a column of its schema, which its page lists")
    seen: dict[int, Mapping[str, object]] = {}

    def facets_of(item: Node) -> Mapping[str, object]:
        if item.id not in seen:
            seen[item.id] = facets_seen(item, allowed)
        return seen[item.id]

    below = column_walks.impact(store, found.name, column or None, facets_of)
    above = column_walks.origins(store, found.name, column, facets_of) if column else None
    if below is None:
        raise NotFound("the lineage graph no longer contains the node")
    return _Trace(NodeReader(settings, chronicle(settings)), found, column or None, collapse).view(below, above)


def tag_words(key: str, value: str) -> str:
    """A tag as it is shown and searched: `pii: mask`; `identifier` if it has no other value."""
    return key if value in ("true", "") else f"{key}: {value}"


class _Trace:
    def __init__(self, reader: NodeReader, start: Node, column: str | None, collapse: bool) -> None:
        self._reader, self._start, self._column, self._collapse = reader, start, column, collapse
        self._shown: dict[int, GraphNode] = {}

    def view(self, below: ColumnWalk, above: ColumnWalk | None) -> TraceView:
        shown, key = self._node(self._start), self._key(self._start, self._column, 0)
        start = TracePart(
            key,
            shown.key,
            shown.label,
            shown.title,
            shown.kind,
            _zone(self._start),
            self._column,
            0,
            True,
            False,
            "",
            (),
            (),
        )
        downstream = self._parts(below, 1)
        upstream = self._parts(above, -1) if above else ()
        walks = [(walk, way) for walk, way in ((below, 1), (above, -1)) if walk is not None]
        released = {release for part in downstream for release in part.releases}
        return TraceView(
            node=shown,
            column=self._column,
            start=start,
            upstream=upstream,
            downstream=downstream,
            steps=tuple(dict.fromkeys(step for walk, way in walks for step in self._steps(walk, way))),
            rows=tuple(self._row_words(above)) if above else (),
            released=tuple(sorted(released)),
        )

    def _parts(self, walk: ColumnWalk, way: int) -> tuple[TracePart, ...]:
        found: dict[str, TracePart] = {}
        for item in walk.reached:
            node = walk.nodes[item.part.node]
            if item.step is None or (node.id == self._start.id and item.part.column == self._column):
                continue
            shown, key = self._node(node), self._key(node, item.part.column, way)
            step = item.step
            part = TracePart(
                key=key,
                node=shown.key,
                label=self._label(node),
                title=shown.title,
                kind=node.kind,
                zone=_zone(node),
                column=item.part.column,
                distance=way * item.distance,
                direct=item.direct,
                masked=item.masked,
                words=step_words(step.subtype, step.description),
                periods=(shown.period,) if shown.period else (),
                releases=(shown.release,) if shown.release else (),
            )
            found[key] = _joined(found[key], part) if key in found else part
        return tuple(found.values())

    def _steps(self, walk: ColumnWalk, way: int) -> Iterable[TraceStep]:
        for step in walk.steps:
            source, target = (self._key(walk.nodes[part.node], part.column, way) for part in (step.source, step.target))
            if source != target:
                yield TraceStep(source, target, step.direct, step.masking, step_words(step.subtype, step.description))

    def _row_words(self, walk: ColumnWalk) -> Iterable[str]:
        """What decides about the rows of each table above, once for all columns that do it alike."""
        found: dict[tuple[str, str, str], list[str]] = {}
        for step in walk.rows:
            words = step_words(step.subtype, step.description)
            tables = (self._label(walk.nodes[part.node]) for part in (step.target, step.source))
            found.setdefault((*tables, words), []).append(step.source.column or "")  # type: ignore[arg-type]
        for (table, source, words), names in found.items():
            yield f"{table}: {words} ({', '.join(dict.fromkeys(names))} of {source})"

    def _node(self, node: Node) -> GraphNode:
        if node.id not in self._shown:
            self._shown[node.id] = self._reader.node(node, 0)
        return self._shown[node.id]

    def _label(self, node: Node) -> str:
        """The label of a node's table, without its month where months are joined."""
        shown, step = self._node(node), step_of(node)
        joined = self._collapse and shown.period and step is not None and node.id != self._start.id
        return f"{shown.dataset}: {step[1]}" if joined and step else shown.label

    def _key(self, node: Node, column: str | None, way: int) -> str:
        """Upward and downward parts of one table differ, as a walk could meet it on both ways."""
        here = node.id == self._start.id and column == self._column
        table = self._label(node) if self._label(node) != self._node(node).label else f"#{node.id}"
        return "start" if here else f"{way}/{table}/{'*' if column is None else f'.{column}'}"


def _joined(one: TracePart, other: TracePart) -> TracePart:
    """Two months' parts as one. What is possible in one of them is possible."""
    newest = max(one, other, key=lambda part: part.periods)
    return replace(
        newest,
        distance=min(one.distance, other.distance, key=abs),
        direct=one.direct or other.direct,
        masked=one.masked if one.masked == other.masked else False if False in (one.masked, other.masked) else None,
        words=newest.words,
        periods=tuple(sorted({*one.periods, *other.periods})),
        releases=tuple(sorted({*one.releases, *other.releases})),
    )


def _zone(node: Node) -> str:
    return next(iter(node.zones), "") if node.own or node.is_reported_by_us else ""
