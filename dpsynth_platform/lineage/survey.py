"""Survey: what the stored graph says about a dataset and the public bases that its plan starts from.

What belongs here: the walks before a mechanism (Ponomareva et al. 2026, section 7.7.2) on one snapshot of the graph,
and what each of them found, with paths. What does not: the ledger's entries themselves (`kinship`) and the verdict
(`clearance`). Names, runs and ids are public; none of them depends on a record.

A survey answers three questions.

- Which ledger entries are upstream of a base, at any depth, through checkpoints and releases?
- Has a base seen anything without a mechanism in between? A checkpoint that was trained on a guarded table may
  repeat it, and later training with differential privacy does not undo that. So such a base is refused. Also
  refused are a checkpoint of unknown origin that nobody declared public, and all that was made from it. A declaration
  is valid for the base that it names and overrides nothing that is known. An origin that only another producer
  reports is accepted and listed with that producer.
- Which other entries paid for the same table? Those downstream of the dataset's own source, of what that was made from,
  and of any former name of it, up to the first mechanism.

A base that writes or draws (`PublicBase.is_writer`) needs a known origin or a declaration in the ledger. Of any other
base (pictures, a table, fonts) the contract's own word is enough where the graph knows nothing else. It is looked for
by its place: a directory in a release of ours is that release, and one that holds a guarded table is that table.
A lookup lies in its contract's own source, which is guarded as a whole: there the source counts for what it was made
from alone, and all of it but the lookups is guarded (`guarded_places`).

Reports of other producers can only add findings: a path through an entry protects only where this platform wrote the
node. A claimed entry that the ledger does not confirm may concern anyone.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Connection

from dpsynth_platform.contracts.bases import BaseKind, PublicBase
from dpsynth_platform.ledger import rows as ledger_rows
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage import walks
from dpsynth_platform.lineage.guarded_places import WHOLE, SourceTables, inside_guarded, lookup_name, nodes_named
from dpsynth_platform.lineage.naming import DatasetName, canonical, dataset_name, is_place
from dpsynth_platform.lineage.nodes import PRODUCT_NAMESPACE, Declaration, Node, Relative
from dpsynth_platform.lineage.unverified_origin import unverified_origins

if TYPE_CHECKING:
    from dpsynth_platform.lineage.store import LineageStore

Path = tuple[str, ...]
"""The start of a walk, then `relation name` for each step."""

LONGEST_PATH = 12
"""Steps of a path that are listed; a longer path is cut in the middle."""


@dataclass(frozen=True)
class Lead:
    """A node that no ledger entry covers, as a walk met it.

    Attributes:
        met: the node.
        claim: the ledger entry that is said to have paid for it, or empty.
        producers, events: the producers that report it, and their events; empty unless only they report it.
    """

    met: Relative
    claim: str = ""
    producers: tuple[str, ...] = ()
    events: tuple[int, ...] = ()

    @property
    def path(self) -> Path:
        return shortened_path((*path_of(self.met), *([f"claims {self.claim}"] if self.claim else [])))


@dataclass(frozen=True)
class KnownBase:
    """A public base under one of its names in the graph. Public.

    Attributes:
        kind, why, step: as in `PublicBase`.
        name: its name in lineage events.
        known_by: `lineage`: events report its origin. `declaration`: a person declared it public in the ledger.
            `contract`: the contract's word alone. None: nobody.
    """

    kind: BaseKind
    name: DatasetName
    why: str | None
    step: str
    known_by: Literal["lineage", "declaration", "contract"] | None = None


@dataclass(frozen=True)
class Survey:
    """What the graph says before a mechanism. Leads are in order of distance, nearest first.

    Attributes:
        bases: the public bases; a model several times if the contract's text matches several names.
        starts: where the walks start, with the step that reads it; of data only what the graph has.
        trained_on: a shortest path to each entry upstream of a base.
        same_source: a shortest path to each entry that paid for the same table.
        unprotected: guarded tables that a base has seen or holds without a mechanism in between.
        unproven: nodes that claim an entry that the ledger does not confirm.
        unverified: models whose origin only other producers report.
        declared: people's declarations about the bases and what is upstream of them, nearest first.
    """

    source: DatasetName
    bases: tuple[KnownBase, ...] = ()
    starts: Mapping[DatasetName, str] = field(default_factory=dict)
    trained_on: Mapping[str, Path] = field(default_factory=dict)
    same_source: Mapping[str, Path] = field(default_factory=dict)
    unknown: tuple[Lead, ...] = ()
    unprotected: tuple[Lead, ...] = ()
    unproven: tuple[Lead, ...] = ()
    unverified: tuple[Lead, ...] = ()
    declared: tuple[Declaration, ...] = ()

    @property
    def entries(self) -> set[str]:
        """All ledger entries that lineage relates to the dataset."""
        return {*self.trained_on, *self.same_source}


def survey(store: LineageStore, source: str, bases: Sequence[PublicBase] = ()) -> Survey:
    """Walks the present graph. Raises `LedgerError` if the database is out of reach.

    Args:
        source: path or URI of the dataset's table.
        bases: a checkpoint by anything that `LineageStore.find` accepts; one that the graph lacks is unknown.
    """
    table = dataset_name(source)
    named = {base: model_names(store, base.name) if base.is_writer else (base_name(base),) for base in bases}

    def work(connection: Connection) -> Survey:
        same = same_source(connection, table)
        return _with_bases(connection, table, named, same) if named else Survey(table, same_source=same)

    return store.database.read(work)


def model_names(store: LineageStore, text: str) -> tuple[DatasetName, ...]:
    """The nodes that a contract's text for a checkpoint means; `model_name` if there are none.

    A place is always among them: a node of the same name elsewhere says nothing about what is at that place.
    """
    found = tuple(node.name for node in store.find(text))
    return tuple(dict.fromkeys((*found, model_name(text)))) if is_place(text) or not found else found


def model_name(text: str) -> DatasetName:
    """The node name of a checkpoint that people call `text`: its place, or a product's name."""
    return dataset_name(text) if is_place(text) else DatasetName(PRODUCT_NAMESPACE, text)


def base_name(base: PublicBase) -> DatasetName:
    """The node name of a base: its place, or of models and packages the product's name."""
    return model_name(base.name) if base.is_writer or base.kind == "package" else dataset_name(base.name)


def same_source(connection: Connection, table: DatasetName) -> dict[str, Path]:
    """Entries of mechanisms on the table, on what it was made from, and on anything else made from that.

    An output leads to the entry that paid for it. A mechanism that failed or still runs has no output: its entry is
    found by the dataset of ours whose steps read the table.
    """
    paid = walks.paid_for(connection)
    above = {
        item.node.name: path_of(item)
        for item in walks.exposed(connection, [table], upward=True)
        if item.node.id not in paid  # rows of a release are not records of the people that it was made from
    }
    found: dict[str, Path] = {}
    charged: dict[str, Path] = {}
    made = walks.exposed(connection, list(above), upward=False)
    readers = rows.readers_of(connection, {item.node.id for item in made} - paid.keys())
    entries = _live_entries(connection) if readers else {}
    for item in made:
        path = (*above[item.start], *path_of(item)[1:])
        for entry in paid.get(item.node.id, ()):
            found.setdefault(entry, (*path, f"paid-by {entry}"))
        for dataset in readers.get(item.node.id, ()):
            for entry in entries.get(dataset, ()):
                charged.setdefault(entry, (*path, f"read-by {dataset}", f"entry {entry}"))
    return {entry: shortened_path(path) for entry, path in (charged | found).items()}


def _live_entries(connection: Connection) -> dict[str, list[str]]:
    """Ids of the charged entries, by dataset."""
    found: dict[str, list[str]] = {}
    for entry in ledger_rows.entries(connection, None):
        if entry.live:
            found.setdefault(entry.request.dataset, []).append(entry.entry_id)
    return found


def _with_bases(
    connection: Connection,
    table: DatasetName,
    named: Mapping[PublicBase, Sequence[DatasetName]],
    same: Mapping[str, Path],
) -> Survey:
    from dpsynth_platform.lineage.store import declared_public  # late: it loads what writes events

    public = declared_public(connection)
    writers = [name for base, names in named.items() if base.is_writer for name in names]
    inner = SourceTables.of(table, named)
    wholes = []
    if inner.public:
        wholes = [node.name for node in nodes_named(connection, lambda name: inner.table_of(name) == WHOLE)]
    held = {base: _held(connection, base, names, table, inner) for base, names in named.items()}
    starts = {name: base.step for base, names in held.items() for name in names}
    starts |= {name: base.step for base, names in named.items() if base.is_writer for name in names}
    by_contract = {*wholes, *(name for base, names in held.items() if not base.is_writer for name in names)}
    in_graph = rows.find_nodes(connection, writers)
    not_in_graph = [Relative(Node(0, "checkpoint", name, own=False), 0) for name in writers if name not in in_graph]
    claims = walks.references(connection, "claims")
    confirmed = {entry for entries in walks.references(connection, "paid-by").values() for entry in entries}
    found = walks.walk(connection, [*starts, *wholes], upward=True, public={*public, *by_contract})
    # Above a model a contract's word counts for nothing, even about a place that is also named as data.
    of_writers = walks.walk(connection, writers, upward=True, public=public)
    unknown = {*found.unknown, *of_writers.unknown, *_without_origin(connection, writers, public)}
    trained_on: dict[str, Path] = {}
    for item in found.of_kind("mechanism"):
        if (entry := item.node.name.name) in confirmed:
            trained_on.setdefault(entry, shortened_path(path_of(item)))
    paid = walks.paid_for(connection)
    exposed = walks.exposed(connection, list(starts), upward=True)
    exposed += [item for item in walks.exposed(connection, wholes, upward=True) if item.distance]
    guarded = _guarded(connection, exposed, table, inner) - paid.keys()
    settled = {*unknown, *public, *by_contract}
    reported = {item.start for item in found.relatives if item.distance > 0 or item.node.own}

    def known_base(base: PublicBase, name: DatasetName) -> KnownBase:
        known = KnownBase(base.kind, name, base.why, base.step)
        if canonical(name) in public:
            return replace(known, known_by="declaration")
        if base.is_writer:
            return known if name in unknown or name not in in_graph else replace(known, known_by="lineage")
        return replace(known, known_by="lineage" if reported & {*held[base]} else "contract")

    return Survey(
        source=table,
        bases=tuple(known_base(base, name) for base, names in named.items() for name in names),
        starts=starts,
        trained_on=trained_on,
        same_source=same,
        unknown=_leads([*not_in_graph, *(item for item in found.relatives if item.node.name in unknown)]),
        unprotected=_leads([item for item in exposed if item.node.id in guarded]),
        unproven=tuple(Lead(item, entry) for item in found.relatives for entry in claims.get(item.node.id, ())),
        unverified=tuple(
            Lead(model, producers=producers, events=events)
            for model, producers, events in unverified_origins(connection, found.relatives, settled)
        ),
        declared=tuple(public[item.node.name] for item in found.relatives if item.node.name in public),
    )


def _guarded(connection: Connection, met: Sequence[Relative], table: DatasetName, inner: SourceTables) -> set[int]:
    """Ids of the nodes that hold people's records, or lie in what does."""
    own = {item.node.id for item in met if inner.is_private(item.node.name)}
    beyond = [item for item in met if inner.table_of(item.node.name) is None]
    inside = inside_guarded(connection, beyond, lambda node: is_guarded(node, table))
    return own | inside | {item.node.id for item in met if is_guarded(item.node, table)}


def _held(
    connection: Connection,
    base: PublicBase,
    names: Sequence[DatasetName],
    table: DatasetName,
    inner: SourceTables,
) -> tuple[DatasetName, ...]:
    """The nodes that are where a base is, by name or place, also behind a symbolic link.

    The place is also read as a path, whatever it looks like: that is what a step opens. Of what is around a model, only
    our own nodes and guarded tables count: a declaration of a part of them overrides nothing.
    """
    places = [name for name in names if name.namespace == "file" or "://" in name.namespace]
    local = [name.name for name in places if name.namespace == "file"]
    if base.kind != "package" and (not base.is_writer or is_place(base.name) or base.name.startswith((".", "~"))):
        local += [base.name, os.path.expanduser(base.name)]  # noqa: PTH111 - a user that does not exist is no fault
    places += [dataset_name(FilePath(path)) for path in (*local, *map(os.path.realpath, local))]
    if base.kind == "lookup":
        places += inner.files_of(lookup_name(base))
    found = [node for place in dict.fromkeys(places) for node in rows.nodes_at(connection, place)]
    if base.kind == "lookup":
        found += nodes_named(connection, lambda name: inner.table_of(name) == lookup_name(base))
        found = [node for node in found if inner.table_of(node.name) != WHOLE]
    elif base.is_writer:
        found = [node for node in found if node.own or is_guarded(node, table)]
    elif not places:
        found = list(rows.find_nodes(connection, names).values())
    return tuple(dict.fromkeys(node.name for node in found))


def _leads(met: Sequence[Relative]) -> tuple[Lead, ...]:
    """A lead for each, except for other names of one that is listed."""
    names = {item.node.name for item in met}
    return tuple(
        Lead(item)
        for item in met
        if not (item.relation == "alias" and item.previous is not None and item.previous.node.name in names)
    )


def _without_origin(
    connection: Connection, names: Sequence[DatasetName], public: Collection[DatasetName]
) -> Iterator[DatasetName]:
    """Models to start from without a known origin, whatever kind the graph gives them."""
    for name in names:
        above = walks.walk(connection, [name], upward=True)
        if name not in public and above.relatives and all(item.distance == 0 for item in above.relatives):
            yield name


def is_guarded(node: Node, table: DatasetName) -> bool:
    """Whether a node holds people's records: the dataset's own source, any other, or a restricted output of a step.

    Mechanisms, releases and our own models do not. A model of other producers may really be a table.
    """
    if node.kind in ("mechanism", "release") or (node.own and node.kind == "model"):
        return False
    return node.name == table or "dpsynth_privacyUnit" in node.facets or "restricted" in node.zones


def shortened_path(path: Path) -> Path:
    """A path with its first and last steps, `LONGEST_PATH` in all, and the number of steps between them."""
    half = LONGEST_PATH // 2
    if len(path) <= LONGEST_PATH:
        return path
    return (*path[:half], f"... {len(path) - 2 * half} more steps ...", *path[-half:])


def path_of(item: Relative) -> Path:
    """A shortest path of a walk, as text."""
    return (str(item.start), *(f"{step.relation} {step.node}" for step in item.path))
