"""The stored graph's rows: queries, and the changes that one event makes.

What belongs here: reading and writing on an open connection; the rules by which an event changes nodes and edges. What
does not: whether an event may be recorded (`store`), and walks (`walks`).
"""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from itertools import islice
from typing import Any

from sqlalchemy import Column, Connection, Row, Select, Table, case, delete, exists, func, insert, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from dpsynth_platform.foundation.errors import LineageRefused
from dpsynth_platform.foundation.release_layout import DATA
from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.ledger import rows as ledger_rows
from dpsynth_platform.ledger import schema as ledger_schema
from dpsynth_platform.ledger.records import LIVE_STATES, CostRequest
from dpsynth_platform.lineage.intake import Facts, Mention
from dpsynth_platform.lineage.naming import JOB_NAMESPACE, DatasetName, canonical
from dpsynth_platform.lineage.nodes import (
    LEDGER_NAMESPACE,
    MODELS,
    Edge,
    Kind,
    Node,
    Origin,
    Relation,
    StoredEvent,
)

RELEASE_STEP = ".released"
MOST_EDGES = 100_000
PAGE_CHARACTERS = 16_000_000
"""Size of events that are read at once; a single one may be larger."""
_AT_ONCE = 400  # ids in one query; SQLite accepts 32766 parameters, plans are faster with few
_LIFECYCLE = "lifecycleStateChange"

_Ends = tuple[int, str]
"""A node's id and version."""


def key_of(name: DatasetName) -> str:
    """The key of a node: SHA-256 of its canonical namespace and name."""
    name = canonical(name)
    return hashlib.sha256(f"{name.namespace}\n{name.name}".encode()).hexdigest()


# Events


def sequence_of(connection: Connection, *digests: str) -> int | None:
    """The number of the event that is recorded with one of these digests, or None."""
    column = tables.event.c
    query = select(column.sequence).where(column.digest.in_(digests)).order_by(column.sequence).limit(1)
    return connection.execute(query).scalar_one_or_none()


def has_own(connection: Connection) -> bool:
    """Whether an event of ours is recorded."""
    query = select(tables.event.c.sequence).where(tables.event.c.origin == "own").limit(1)
    return connection.execute(query).one_or_none() is not None


def reports_of_run(connection: Connection, run_id: str) -> Sequence[Row[str, str, str]]:
    """Kind, origin and source of each event of a run."""
    column = tables.event.c
    return connection.execute(select(column.kind, column.origin, column.source).where(column.run_id == run_id)).all()


def is_repeated(connection: Connection, facts: Facts) -> bool:
    """Whether a run of ours has another START or end already, so that this one is not recorded."""
    if not facts.run_id or facts.kind not in (tables.START, *tables.TERMINAL):
        return False
    kinds = {item.kind for item in reports_of_run(connection, facts.run_id) if item.origin == "own"}
    ended = bool(kinds & set(tables.TERMINAL))
    return ended or (facts.kind == tables.START and tables.START in kinds)


def insert_event(
    connection: Connection, facts: Facts, kind: str, text: str, digest: str, origin: Origin, source: str
) -> int:
    """Appends an event, in a writing transaction; returns its number."""
    last = select(tables.event.c.sequence).order_by(tables.event.c.sequence.desc()).limit(1)
    sequence = (connection.execute(last).scalar_one_or_none() or 0) + 1
    connection.execute(
        insert(tables.event).values(
            sequence=sequence,
            digest=digest,
            received_at=ledger_rows.clock_text(connection),
            event_time=facts.event_time,
            origin=origin,
            source=source,
            run_id=facts.run_id,
            kind=kind,
            job_namespace=facts.job.namespace,
            job_name=facts.job.name,
            payload=text,
        )
    )
    return sequence


def events(connection: Connection, *, after: int, run_id: str | None, most: int) -> list[StoredEvent]:
    """The next events after a number, of all runs or of one: at most `most`, and at most `PAGE_CHARACTERS`."""
    column = tables.event.c
    wanted = [column.sequence > after] + ([] if run_id is None else [column.run_id == run_id])
    sizes = select(column.sequence, func.length(column.payload)).where(*wanted).order_by(column.sequence).limit(most)
    last, room = None, PAGE_CHARACTERS
    for sequence, size in connection.execute(sizes):
        if last is not None and size > room:
            break
        last, room = sequence, room - size
    if last is None:
        return []
    query = select(tables.event).where(*wanted, column.sequence <= last).order_by(column.sequence)
    return [stored(row) for row in connection.execute(query)]


def all_pages(page: Callable[[int], list[StoredEvent]], after: int = 0) -> Iterator[StoredEvent]:
    """All events after a number, from pages that `page` reads after a number."""
    while found := page(after):
        yield from found
        after = found[-1].sequence


def event(connection: Connection, number: int) -> StoredEvent | None:
    """One event by its number, or None."""
    row = connection.execute(select(tables.event).where(tables.event.c.sequence == number)).one_or_none()
    return stored(row) if row else None


def unfinished(connection: Connection) -> list[dict[str, Any]]:
    """START events of our own runs without a terminal event, in order."""
    event, end = tables.event.c, tables.event.alias("end").c
    ended = exists().where(end.run_id == event.run_id, end.origin == "own", end.kind.in_(tables.TERMINAL))
    query = select(event.payload).where(event.origin == "own", event.kind == tables.START, ~ended)
    return [json.loads(text) for text in connection.execute(query.order_by(event.sequence)).scalars()]


def events_reading(connection: Connection, nodes: Collection[int], facet: str) -> list[StoredEvent]:
    """Events with a run facet, of runs that read one of the nodes; in order."""
    event, access = tables.event.c, tables.access.c
    read = exists().where(
        access.origin == event.origin, access.run_id == event.run_id, access.role == "input", access.node.in_(nodes)
    )
    query = select(tables.event).where(event.run_id != "", read, event.payload.contains(json.dumps(facet)))
    found = [stored(row) for row in connection.execute(query.order_by(event.sequence))]
    return [item for item in found if facet in (item.payload["run"].get("facets") or {})]


# Nodes and edges


def find_nodes(connection: Connection, names: Iterable[DatasetName]) -> dict[DatasetName, Node]:
    """The nodes of those names that the graph has, in any spelling."""
    keys = {name: key_of(name) for name in names}
    rows = in_parts(connection, select(tables.node), tables.node.c.key, dict.fromkeys(keys.values()))
    found = {row.key: node_of(row) for row in rows}
    return {name: found[key] for name, key in keys.items() if key in found}


def nodes_at(connection: Connection, place: DatasetName) -> list[Node]:
    """The nodes at a path or URI, inside it and around it, however they are spelled.

    A release of ours takes up its whole directory, not its table alone. What we wrote around the place is described by
    its own node: no table further out says anything about it.
    """
    place, column = canonical(place), tables.node.c
    spelled = [
        namespace
        for namespace in connection.scalars(select(column.namespace).distinct())
        if canonical(DatasetName(namespace, "")).namespace == place.namespace
    ]
    query = select(column.id, column.kind, column.own, column.namespace, column.name)
    inside, around = [], []
    for row in in_parts(connection, query, column.namespace, spelled):
        other = canonical(DatasetName(row.namespace, row.name))
        released = row.own and row.kind == "release" and posixpath.basename(other.name) == DATA
        taken = posixpath.dirname(other.name) if released else other.name
        if _inside(place.name, taken):
            around.append((len(taken), row.own, row.id))
        elif _inside(taken, place.name):
            inside.append(row.id)
    nearest = max((length for length, own, _ in around if own), default=0)
    return list(nodes_by_id(connection, [*inside, *(node for length, _, node in around if length >= nearest)]).values())


def _inside(path: str, directory: str) -> bool:
    """Whether a path is a directory or in it; all keys of a bucket are in its root."""
    return directory in (path, "/") or path.startswith(f"{directory}/")


def readers_of(connection: Connection, nodes: Collection[int]) -> dict[int, list[str]]:
    """Our datasets whose steps read a node, completed or not; by node."""
    event, access = tables.event.c, tables.access.c
    query = (
        select(access.node, event.job_name)
        .distinct()
        .join(tables.event, (event.origin == access.origin) & (event.run_id == access.run_id))
        .where(access.origin == "own", access.role == "input", event.job_namespace == JOB_NAMESPACE)
        .order_by(access.node, event.job_name)
    )
    found: dict[int, list[str]] = {}
    for row in in_parts(connection, query, access.node, sorted(nodes)):
        found.setdefault(row.node, []).append(row.job_name.rpartition(".")[0])
    return found


def nodes_by_id(connection: Connection, ids: Collection[int]) -> dict[int, Node]:
    """The nodes with these ids."""
    return {row.id: node_of(row) for row in in_parts(connection, select(tables.node), tables.node.c.id, sorted(ids))}


def search(connection: Connection, text: str, names: Collection[DatasetName]) -> list[Node]:
    """Nodes by name, `namespace:name`, full names, or a release's id; see `LineageStore.find`."""
    column = tables.node.c
    named = or_(
        column.name == text,
        column.namespace + ":" + column.name == text,
        column.key.in_([key_of(name) for name in names]),
    )
    found = {row.id: node_of(row) for row in connection.execute(select(tables.node).where(named))}
    mentions = column.facets.contains(json.dumps(text), autoescape=True)
    releases = select(tables.node).where(column.kind == "release", mentions)
    for node in map(node_of, connection.execute(releases)):
        if node.facets.get("version", {}).get("datasetVersion") == text:
            found[node.id] = node
    targets = {there.id: there for node in found.values() for there in _behind(connection, node)}
    return sorted(targets.values(), key=lambda node: node.name)


def containing(
    connection: Connection, text: str, most: int, accepted: Callable[[Node], bool] = lambda _: True
) -> list[Node]:
    """Nodes with a text in their name; see `LineageStore.containing`."""
    column = tables.node.c
    named = or_(column.name.icontains(text, autoescape=True), column.namespace.icontains(text, autoescape=True))
    described = or_(column.facets != "{}", column.kind != "dataset")
    query = select(tables.node).where(named, described).order_by(column.id.desc())
    with connection.execute(query) as found:
        return list(islice(filter(accepted, map(node_of, found)), most))


def described_with(connection: Connection, text: str, most: int) -> list[Node]:
    """Nodes with a text somewhere in their facets; see `LineageStore.described_with`."""
    # JSON escapes what is not ASCII, and each case of a letter differently: then any escape may be it.
    stored = json.dumps(text)[1:-1] if text.isascii() else "\\u"
    column = tables.node.c
    query = select(tables.node).where(column.facets.icontains(stored, autoescape=True))
    return [node_of(row) for row in connection.execute(query.order_by(column.id.desc()).limit(most))]


def jobs(
    connection: Connection, text: str, most: int, accepted: Callable[[DatasetName], bool] = lambda _: True
) -> list[tuple[DatasetName, list[Node]]]:
    """Jobs with a text in their name; see `LineageStore.jobs`."""
    event, access = tables.event.c, tables.access.c
    query = (
        select(
            event.job_namespace,
            event.job_name,
            func.max(case((event.kind == "COMPLETE", event.sequence))).label("completed"),
        )
        .where(event.job_name.icontains(text, autoescape=True), event.run_id != "")
        .group_by(event.job_namespace, event.job_name)
        .order_by(func.max(event.sequence).desc())
    )
    with connection.execute(query) as named:
        seen = (row for row in named if accepted(DatasetName(row.job_namespace, row.job_name)))
        found = list(islice(seen, most))
    written = (
        select(event.sequence, access.node)
        .distinct()
        .join(tables.access, (event.origin == access.origin) & (event.run_id == access.run_id))
        .where(access.role == "output")
    )
    outputs: dict[int, list[int]] = {}
    for row in in_parts(connection, written, event.sequence, [row.completed for row in found if row.completed]):
        outputs.setdefault(row.sequence, []).append(row.node)
    nodes = nodes_by_id(connection, {node for listed in outputs.values() for node in listed})
    return [
        (DatasetName(row.job_namespace, row.job_name), [nodes[item] for item in sorted(outputs.get(row.completed, ()))])
        for row in found
    ]


def _behind(connection: Connection, node: Node) -> list[Node]:
    """The targets of a name that was only mentioned as a symlink; any other node itself."""
    if node.facets:
        return [node]
    query = select(tables.edge.c.parent).where(tables.edge.c.child == node.id, tables.edge.c.relation == "alias")
    return list(nodes_by_id(connection, set(connection.execute(query).scalars())).values()) or [node]


def edges_at(connection: Connection, name: DatasetName) -> list[Edge]:
    """All edges of a node, in the order in which they were recorded."""
    here = find_nodes(connection, [name]).get(name)
    if here is None:
        return []
    edge = tables.edge.c
    columns = (edge[field.name] for field in fields(Edge))
    query = select(*columns).where(or_(edge.child == here.id, edge.parent == here.id)).order_by(edge.id)
    rows = connection.execute(query).all()
    nodes = nodes_by_id(connection, {end for row in rows for end in (row.child, row.parent)})
    return [Edge(nodes[child].name, nodes[parent].name, *rest) for child, parent, *rest in rows]


def insert_nodes(connection: Connection, kinds: Mapping[DatasetName, Kind]) -> None:
    """Adds nodes of others; existing ones stay unchanged."""
    values = [
        {"key": key_of(name), "kind": kind, **asdict(name), "own": False, "facets": "{}"}
        for name, kind in kinds.items()
    ]
    _insert_new(connection, tables.node, values)


# Changes by an event


def forget(connection: Connection, node: Node, events: Collection[int], *, keep_kind: bool) -> None:
    """Removes facets that some events reported of a node of others. The caller relates the remaining events again."""
    kept = {name: facet for name, facet in json.loads(node.stored_facets).items() if facet["event"] not in events}
    values = {"facets": json.dumps(kept, sort_keys=True)} | ({} if keep_kind else {"kind": "dataset"})
    connection.execute(update(tables.node).where(tables.node.c.id == node.id).values(values))


def relate(
    connection: Connection,
    facts: Facts,
    origin: Origin,
    sequence: int,
    *,
    only: Collection[DatasetName] | None = None,
) -> None:
    """Adds an event's facts to nodes and edges.

    Our own runs relate what they read and wrote once they have completed. Runs of others relate all that was ever
    reported, since a checkpoint may be used before its training has ended.

    Args:
        only: the nodes that change; missing edges are added in any case.

    Raises:
        LineageRefused: the run relates more than `MOST_EDGES` pairs.
    """
    _Relating(connection, facts, origin, sequence).all(only)


class _Relating:
    """One event's additions, within one transaction."""

    def __init__(self, connection: Connection, facts: Facts, origin: Origin, sequence: int) -> None:
        self._connection = connection
        self._facts = facts
        self._own = origin == "own"
        self._origin = origin
        self._sequence = sequence
        insert_nodes(connection, dict.fromkeys(facts.names, "dataset"))
        self._nodes = find_nodes(connection, facts.names)

    def all(self, only: Collection[DatasetName] | None) -> None:
        for mention in self._facts.mentions:
            if only is None or mention.name in only:
                self._nodes[mention.name] = self._merged(mention)
        edges = [*self._aliases(), *self._mechanisms(), *self._training(), *self._derivations()]
        _insert_new(self._connection, tables.edge, edges)

    def _writes(self, mention: Mention) -> bool:
        """Whether this platform wrote the dataset; the product of a registered use is not ours."""
        return self._own and mention.role == "output" and not self._facts.purpose

    def _merged(self, mention: Mention) -> Node:
        """The node after this event; a changed row is written."""
        node = self._nodes[mention.name]
        if not self._own and (node.own or node.name.namespace == JOB_NAMESPACE):
            return node
        kept: dict[str, Any] = json.loads(node.stored_facets)
        own = node.own or self._writes(mention)
        if own and not node.own:  # reports of others from before we wrote it
            kept = {name: facet for name, facet in kept.items() if facet["origin"] == "own"}
            self._forget_entries(node)
        if self._writes(mention) and mention.version:
            kept.pop(_LIFECYCLE, None)  # a dropped dataset that is written again exists again
        for name, value in mention.facets.items():
            before = kept.get(name)
            if before is None or (before["value"] != value and (self._own or before["origin"] != "own")):
                kept[name] = {"event": self._sequence, "origin": self._origin, "value": value}
        merged = Node(node.id, self._kind(node, mention), node.name, own, json.dumps(kept, sort_keys=True))
        if merged != node or merged.stored_facets != node.stored_facets:
            self._write(merged)
        return merged

    def _forget_entries(self, node: Node) -> None:
        """Removes the ledger entries that others reported for a dataset before we wrote it."""
        edge = tables.edge.c
        self._connection.execute(
            delete(tables.edge).where(edge.child == node.id, edge.relation.in_(("paid-by", "claims")))
        )

    def _write(self, node: Node) -> None:
        values = {"kind": node.kind, "own": node.own, "facets": node.stored_facets}
        self._connection.execute(update(tables.node).where(tables.node.c.id == node.id).values(values))

    def _kind(self, node: Node, mention: Mention) -> Kind:
        if self._writes(mention):
            released = self._facts.job.namespace == JOB_NAMESPACE and self._facts.job.name.endswith(RELEASE_STEP)
            if mention.is_release or released:
                return "release"
            if mention.is_model:
                return "model"
            return node.kind if node.own else "dataset"
        if self._own and not node.own and "dpsynth_privacyUnit" in mention.facets:
            return "dataset"  # a table of people's records, whatever kind others gave it
        if not self._may_become_checkpoint(node):
            return node.kind
        product = self._facts.purpose in ("train", "evaluate") and mention.role == "output"
        return "checkpoint" if mention.is_model or product else node.kind

    def _may_become_checkpoint(self, node: Node) -> bool:
        """Whether this event may make it a checkpoint: our events if others made it, others' if we report no facet.

        A registered use counts like an event of others.
        """
        if node.kind != "dataset" or node.own:
            return False
        trusted = self._own and not self._facts.purpose
        return trusted or not (node.is_reported_by_us or node.name.namespace == JOB_NAMESPACE)

    def _aliases(self) -> Iterator[dict[str, Any]]:
        """In both directions, so that walks need no special case."""
        for mention in self._facts.mentions:
            here = self._nodes[mention.name].id
            for alias in mention.aliases:
                there = self._nodes[alias].id
                yield self._edge((here, ""), (there, ""), "alias", run_id="")
                yield self._edge((there, ""), (here, ""), "alias", run_id="")

    def _mechanisms(self) -> Iterator[dict[str, Any]]:
        """From a dataset with a guarantee to the ledger entry that it names."""
        found = [(mention, entry) for mention in self._facts.mentions for entry in self._entries_of(mention)]
        if not found:
            return
        names = {entry: DatasetName(LEDGER_NAMESPACE, entry) for _, (entry, _) in found}
        insert_nodes(self._connection, dict.fromkeys(names.values(), "mechanism"))
        nodes = find_nodes(self._connection, names.values())
        for mention, (entry, proven) in found:
            child = (self._nodes[mention.name].id, mention.version)
            yield self._edge(child, (nodes[names[entry]].id, ""), "paid-by" if proven else "claims")

    def _training(self) -> Iterator[dict[str, Any]]:
        """From a model to what its own facets name. What we report as no model stays one: a public table, say."""
        material = {item.name for item in self._facts.mentions if self._own and item.is_material}
        for mention in filter(self._is_accepted, self._facts.mentions):
            child = (self._nodes[mention.name].id, mention.version)
            relations: tuple[tuple[Relation, tuple[DatasetName, ...]], ...] = (
                ("base", mention.bases),
                ("trained-on", mention.trained_on),
            )
            for relation, names in relations:
                for name in names:
                    parent = self._nodes[name]
                    if relation == "base" and name not in material and self._may_become_checkpoint(parent):
                        self._write(replace(parent, kind="checkpoint"))
                    yield self._edge(child, (parent.id, ""), relation)

    def _is_accepted(self, mention: Mention) -> bool:
        """Whether custom facets of this dataset count: ours if the run completed, those of others if it is theirs."""
        if self._own:
            return self._facts.kind == "COMPLETE" and self._writes(mention)
        return not self._nodes[mention.name].own

    def _entries_of(self, mention: Mention) -> Iterator[tuple[str, bool]]:
        """The ledger entries that are named for a dataset, and whether the ledger confirms them."""
        if not self._is_accepted(mention):
            return
        if mention.guarantee is not None:
            entry = mention.guarantee["ledgerEntry"]
            request = self._request(entry)
            of_two = request is not None and not self._own and self._of_two(entry)
            yield entry, request is not None and (self._own or _agrees(request, mention.guarantee, of_two=of_two))
        if not self._own and mention.role == "output" and self._facts.participants is not None:
            entry = self._facts.participants["ledgerEntry"]
            commitment = self._of_entry(entry, ledger_schema.entry.c.commitment)
            yield entry, commitment == self._facts.participants.get("commitment", "")

    def _of_entry(self, entry: str, column: Column[Any]) -> Any:
        query = select(column).where(ledger_schema.entry.c.entry_id == entry)
        return self._connection.execute(query).scalar_one_or_none()

    def _request(self, entry: str) -> CostRequest | None:
        text = self._of_entry(entry, ledger_schema.entry.c.request)
        return None if text is None else CostRequest.from_json(json.loads(text))

    def _of_two(self, entry: str) -> bool:
        """Whether a second mechanism is charged with an entry's, whose model was audited instead of the entry's own."""
        from dpsynth_platform.synth.planning import audited_key

        table = ledger_schema.entry.c
        key = audited_key(self._of_entry(entry, table.run_key))
        other = select(table.entry_id).where(table.run_key == key, table.state.in_(LIVE_STATES))
        return self._connection.execute(select(other.exists())).scalar_one()

    def _derivations(self) -> Iterator[dict[str, Any]]:
        """From every output of the run to every input."""
        if self._facts.run_id:
            reads, writes = self._accesses()
            if self._own and self._facts.kind != "COMPLETE":
                return
        else:
            reads, writes = self._mentioned("input"), self._mentioned("output")
        if len(reads) * len(writes) > MOST_EDGES:
            raise LineageRefused(f"a run relates too much; accepted: inputs times outputs at most {MOST_EDGES}")
        nodes = nodes_by_id(self._connection, {end for end, _ in (*reads, *writes)})
        for child in writes:
            for parent in reads:
                if child[0] != parent[0]:
                    yield self._edge(child, parent, self._relation(nodes[child[0]], nodes[parent[0]]))

    def _mentioned(self, role: str) -> list[_Ends]:
        return [(self._nodes[item.name].id, item.version) for item in self._facts.mentions if item.role == role]

    def _accesses(self) -> tuple[list[_Ends], list[_Ends]]:
        """What the run read and wrote by all its events, since each may be incomplete."""
        run = {"origin": self._origin, "run_id": self._facts.run_id}
        values = [
            {**run, "node": self._nodes[item.name].id, "role": item.role, "version": item.version}
            for item in self._facts.mentions
        ]
        _insert_new(self._connection, tables.access, values)
        column = tables.access.c
        query = select(column.node, column.role, column.version).where(
            column.origin == self._origin, column.run_id == self._facts.run_id
        )
        found = self._connection.execute(query.order_by(column.node, column.version)).all()
        versioned = {(row.node, row.role) for row in found if row.version}
        exact = [row for row in found if row.version or (row.node, row.role) not in versioned]
        return tuple([(row.node, row.version) for row in exact if row.role == role] for role in ("input", "output"))  # type: ignore[return-value]

    def _relation(self, child: Node, parent: Node) -> Relation:
        if self._facts.purpose == "evaluate":
            return "evaluated-on"
        if self._facts.purpose == "other":
            return "used-by"
        if child.kind not in MODELS:
            return "derived"
        return "base" if parent.kind in MODELS else "trained-on"

    def _edge(self, child: _Ends, parent: _Ends, relation: Relation, run_id: str | None = None) -> dict[str, Any]:
        return {
            "child": child[0],
            "parent": parent[0],
            "relation": relation,
            "run_id": self._facts.run_id if run_id is None else run_id,
            "child_version": child[1],
            "parent_version": parent[1],
            "event": self._sequence,
        }


def _agrees(request: CostRequest, claim: Mapping[str, Any], *, of_two: bool) -> bool:
    """Whether the ledger's entry covers a guarantee that others claim.

    Args:
        of_two: whether a second, equal mechanism is charged with it: a release then claims the cost of both.
    """
    paid = request.guarantee
    epsilon, delta = claim.get("epsilon"), claim.get("delta")
    return (
        isinstance(epsilon, int | float)
        and isinstance(delta, int | float)
        and math.isclose(delta, paid.delta)
        and claim.get("unit") == paid.unit
        and claim.get("adjacency") == paid.adjacency
        and epsilon > 0
        # The composition is computed only for a claim above the cost of one.
        and (_within(epsilon, paid.epsilon) or (of_two and _within(epsilon, _epsilon_of_two(request))))
    )


def _within(claimed: float, paid: float) -> bool:
    return claimed <= paid * (1 + 1e-9)


def _epsilon_of_two(request: CostRequest) -> float:
    """Epsilon of two equal mechanisms together, at the delta of one."""
    from dpsynth_platform.privacy import accounting
    from dpsynth_platform.privacy.events import event_from_json, twice

    return accounting.epsilon(twice(event_from_json(request.event)), request.guarantee.delta).epsilon


def stored(row: Row[Any]) -> StoredEvent:
    """An event from its row."""
    return StoredEvent(**{**row._asdict(), "payload": json.loads(row.payload)})


def node_of(row: Row[Any]) -> Node:
    """A node from its row."""
    return Node(row.id, row.kind, DatasetName(row.namespace, row.name), row.own, row.facets)


def in_parts(connection: Connection, query: Select[Any], column: Any, values: Iterable[Any]) -> Iterator[Row[Any]]:
    """The rows of a query in which a column has one of the values, in queries of `_AT_ONCE` values each."""
    waiting = iter(values)
    while part := list(islice(waiting, _AT_ONCE)):
        yield from connection.execute(query.where(column.in_(part)))


def _insert_new(connection: Connection, table: Table, values: Sequence[Mapping[str, Any]]) -> None:
    if values:
        dialect = sqlite if connection.dialect.name == "sqlite" else postgresql
        connection.execute(dialect.insert(table).on_conflict_do_nothing(), list(values))
