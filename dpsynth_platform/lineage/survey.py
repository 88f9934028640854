"""Survey: what the stored graph says about a dataset and the checkpoint that its training would start from.

What belongs here: the walks before a mechanism (Ponomareva et al. 2026, section 7.7.2), on one snapshot of the graph,
and what each of them found with the path that led there. What does not: the ledger's entries themselves (`kinship`) and
the verdict (`clearance`). All of it is public: names, runs and ids, none of which depends on a record.

Three questions are asked.

- Of which ledger entries does the checkpoint know something? Every mechanism upstream of it, however deep, through
  checkpoints and releases.
- Does it know anything that no mechanism stands before? A checkpoint that was trained on a guarded table itself may
  repeat it, and no training with differential privacy afterwards takes that back. So such a checkpoint is refused,
  whoever's table it is; so is one of which nobody knows where it comes from and that nobody declared public, and so is
  everything made of it. A declaration holds for the checkpoint that it names: it takes nothing back of what is known.
  Where only another producer says what one was made from, it is settled by that word, and named with whose it is.
- Which other entries were paid for the same table? Those downstream of the dataset's own source, of what that was made
  from, and of any other name that it has had, up to the first mechanism.

What others tell can only add to what is found: a path through an entry of ours protects only where our own platform
wrote the node. An entry that is named and not borne out by the ledger may hide anybody.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import Connection

from dpsynth_platform.ledger import rows as ledger_rows
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage import walks
from dpsynth_platform.lineage.naming import DatasetName, dataset_name, is_place
from dpsynth_platform.lineage.nodes import PRODUCT_NAMESPACE, Ancestry, Declaration, Node, Relative
from dpsynth_platform.lineage.unverified_origin import hearsay

if TYPE_CHECKING:
    from dpsynth_platform.lineage.store import LineageStore

Path = tuple[str, ...]
"""Where a walk began, and then `relation name` for each step."""

LONGEST_PATH = 12
"""Steps of a path that are told; of a longer one its ends."""


@dataclass(frozen=True)
class Lead:
    """Something that no ledger entry stands for, where a walk met it.

    Attributes:
        met: the node.
        claim: the ledger entry that it is said to be paid by, or empty.
        producers, events: whose word it is, and which events tell it; empty unless it rests on a word alone.
    """

    met: Relative
    claim: str = ""
    producers: tuple[str, ...] = ()
    events: tuple[int, ...] = ()

    @property
    def path(self) -> Path:
        """What led there, in short."""
        return in_short((*path_of(self.met), *([f"claims {self.claim}"] if self.claim else [])))


@dataclass(frozen=True)
class Survey:
    """What the graph says before a mechanism.

    Attributes:
        source: the dataset's own table.
        base_model: names of the checkpoint; several where one word names several.
        trained_on: for each entry upstream of the checkpoint, a shortest path to it.
        same_source: for each entry that was paid for the same table, a shortest path to it.
        unknown: models of which nobody knows where they come from; nearest first, like the others.
        unprotected: guarded tables that the checkpoint has seen without a mechanism in between.
        unproven: what claims an entry that the ledger does not bear out.
        hearsay: models whose origin is the word of other producers alone.
        declared: of the checkpoint and what is upstream of it, what somebody's word says is public; nearest first.
    """

    source: DatasetName
    base_model: tuple[DatasetName, ...] = ()
    trained_on: Mapping[str, Path] = field(default_factory=dict)
    same_source: Mapping[str, Path] = field(default_factory=dict)
    unknown: tuple[Lead, ...] = ()
    unprotected: tuple[Lead, ...] = ()
    unproven: tuple[Lead, ...] = ()
    hearsay: tuple[Lead, ...] = ()
    declared: tuple[Declaration, ...] = ()

    @property
    def entries(self) -> set[str]:
        """All ledger entries that lineage relates to the dataset."""
        return {*self.trained_on, *self.same_source}


def survey(store: LineageStore, source: str, base_model: str | None) -> Survey:
    """Walks the graph as it is now.

    Args:
        source: path or URI of the dataset's table.
        base_model: the checkpoint, by anything that `LineageStore.find` finds it by; a path or name that the graph
            does not know is unknown.

    Raises:
        LedgerError: the database is away.
    """
    table = dataset_name(source)
    names = model_names(store, base_model) if base_model else ()

    def work(connection: Connection) -> Survey:
        same = same_source(connection, table)
        if not names:
            return Survey(table, same_source=same)
        return _with_model(connection, table, names, same)

    return store.database.read(work)


def model_names(store: LineageStore, text: str) -> tuple[DatasetName, ...]:
    """What the graph keeps under the word that a contract has for a checkpoint; its own name where that is nothing.

    A place is always among them: something of the same name elsewhere says nothing of what is there.
    """
    found = tuple(node.name for node in store.find(text))
    return tuple(dict.fromkeys((*found, model_name(text)))) if is_place(text) or not found else found


def model_name(text: str) -> DatasetName:
    """The name under which the graph keeps a checkpoint that people call `text`: its place, or a name of its own."""
    return dataset_name(text) if is_place(text) else DatasetName(PRODUCT_NAMESPACE, text)


def same_source(connection: Connection, table: DatasetName) -> dict[str, Path]:
    """Entries of mechanisms on the table, on what it was made from, and on whatever else was made from that.

    What was made leads to the entry that paid for it. A mechanism that failed, or still runs, has left nothing behind:
    its entry is the ledger's own word that it was about a dataset of ours, whose steps read the table.
    """
    paid = walks.paid_for(connection)
    above = {
        item.node.name: path_of(item)
        for item in walks.exposed(connection, [table], upward=True)
        if item.node.id not in paid  # rows of a release among the records are nobody's of whom it was made
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
    return {entry: in_short(path) for entry, path in (charged | found).items()}


def _live_entries(connection: Connection) -> dict[str, list[str]]:
    """Ids of the entries that are charged, by the dataset that they are about."""
    found: dict[str, list[str]] = {}
    for entry in ledger_rows.entries(connection, None):
        if entry.live:
            found.setdefault(entry.request.dataset, []).append(entry.entry_id)
    return found


def _with_model(
    connection: Connection, table: DatasetName, names: Sequence[DatasetName], same: Mapping[str, Path]
) -> Survey:
    from dpsynth_platform.lineage.store import declared_public  # late: it writes events, which a reader need not load

    public = declared_public(connection)
    known_names = rows.find_nodes(connection, names)
    unheard = [Relative(Node(0, "checkpoint", name, own=False), 0) for name in names if name not in known_names]
    claims, borne_out = walks.references(connection, "claims"), walks.references(connection, "paid-by")
    found = walks.walk(connection, list(names), upward=True, public=public)
    nameless = {*found.unknown, *_baseless(connection, names, found, public)}
    trained_on: dict[str, Path] = {}
    for item in found.of_kind("mechanism"):
        trained_on.setdefault(item.node.name.name, in_short(path_of(item)))
    paid = walks.paid_for(connection)
    known = {entry for entries in borne_out.values() for entry in entries}
    bare = walks.exposed(connection, list(names), upward=True)
    return Survey(
        source=table,
        base_model=tuple(names),
        trained_on={entry: path for entry, path in trained_on.items() if entry in known},
        same_source=same,
        unknown=_leads([*unheard, *(item for item in found.relatives if item.node.name in nameless)]),
        unprotected=_leads([item for item in bare if is_guarded(item.node, table) and item.node.id not in paid]),
        unproven=tuple(Lead(item, entry) for item in found.relatives for entry in claims.get(item.node.id, ())),
        hearsay=tuple(
            Lead(said.model, producers=said.producers, events=said.events)
            for said in hearsay(connection, found.relatives, {*nameless, *public})
        ),
        declared=tuple(public[item.node.name] for item in found.relatives if item.node.name in public),
    )


def _leads(met: Sequence[Relative]) -> tuple[Lead, ...]:
    """One for each, without other names of one that is there."""
    names = {item.node.name for item in met}
    return tuple(Lead(item) for item in met if not (item.relation == "alias" and _before(item) in names))


def _before(item: Relative) -> DatasetName | None:
    return None if item.previous is None else item.previous.node.name


def _baseless(
    connection: Connection, names: Sequence[DatasetName], found: Ancestry, public: Collection[DatasetName]
) -> Iterator[DatasetName]:
    """Starts of which nothing is known that they were made from, whatever kind of thing the graph takes them for."""
    for name in names:
        above = found if len(names) == 1 else walks.walk(connection, [name], upward=True)
        if name not in public and above.relatives and all(item.distance == 0 for item in above.relatives):
            yield name


def is_guarded(node: Node, table: DatasetName) -> bool:
    """Whether a node holds people's records: the dataset's own source, any other, or what a step keeps restricted.

    Mechanisms, releases and models of ours do not. What others take for a model may be a table all the same.
    """
    if node.kind in ("mechanism", "release") or (node.own and node.kind == "model"):
        return False
    return node.name == table or "dpsynth_privacyUnit" in node.facets or "restricted" in node.zones


def in_short(path: Path) -> Path:
    """A path with at most `LONGEST_PATH` of its steps: the first and the last ones, and how many lie between."""
    half = LONGEST_PATH // 2
    if len(path) <= LONGEST_PATH:
        return path
    return (*path[:half], f"... {len(path) - 2 * half} more steps ...", *path[-half:])


def path_of(item: Relative) -> Path:
    """A walk's shortest path, in words."""
    return (str(item.start), *(f"{step.relation} {step.node}" for step in item.path))
