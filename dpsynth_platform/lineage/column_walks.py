"""Walks over columns in the stored graph: where a column comes from, and everything that is drawn from it.

What belongs here: following column lineage facets from table to table, with what each step does to the values. What
does not: writing these facets (`facets`), walks over whole datasets (`walks`), and who may see a facet (the caller
says, by `facets_of`).

A step leads from a part of one dataset to a part of the next. A part is a column, or the whole: which rows there are,
or a dataset without column lineage, such as a model or a product. What only decides about rows reaches no column, so a
walk from an owner column ends at the rows of a release, and names a column only where its values go.

Facets are the latest ones of each dataset. Reports of other producers may be incomplete: a table of theirs whose column
lineage does not mention one of its inputs depends on that input as a whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from dpsynth_platform.lineage.columns import ColumnDescent, ColumnOrigin, descent_of
from dpsynth_platform.lineage.naming import DatasetName, canonical
from dpsynth_platform.lineage.nodes import MODELS, Ancestry, Node, Relation
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.lineage.walks import MAKING

Facets = Callable[[Node], Mapping[str, Any]]


@dataclass(frozen=True)
class ColumnFacts:
    """What is recorded of one column: its type (or empty), and its tags, such as `pii` with the value `mask`."""

    name: str
    type: str
    tags: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Part:
    """A column of a node, or the whole of it (`column` is None).

    `inherited` marks the whole of a model that another model was the start of: what the model makes then depends on
    more than its own training data.
    """

    node: int
    column: str | None
    inherited: bool = False


@dataclass(frozen=True)
class PartStep:
    """One step, along the data.

    Attributes:
        direct: values are made from values; otherwise they only depend on them.
        masking: the original values are hidden; None: not recorded.
        subtype: OpenLineage's subtype, or the graph's relation for a dataset without column lineage.
        description: what happens, in a sentence, or empty.
    """

    source: Part
    target: Part
    direct: bool
    masking: bool | None
    subtype: str
    description: str


@dataclass(frozen=True)
class Reached:
    """A part on a walk.

    Attributes:
        distance: the fewest steps from the start.
        direct: there is a path of direct steps only.
        masked: the original values are hidden on every path; None: nobody reported what the last step does to them.
        step: the last step on a shortest path; None for the start.
    """

    part: Part
    distance: int
    direct: bool
    masked: bool | None
    step: PartStep | None


@dataclass(frozen=True)
class ColumnWalk:
    """Everything that a walk reached, nearest first, the start included; and all steps between.

    `nodes` are by id. `rows` are, of an upward walk, the steps that decide about all rows of a table on it.
    """

    start: Part
    nodes: Mapping[int, Node]
    reached: tuple[Reached, ...]
    steps: tuple[PartStep, ...]
    rows: tuple[PartStep, ...] = ()


def columns_of(facets: Mapping[str, Any]) -> dict[str, ColumnFacts]:
    """The columns that a dataset's facets name, in the order of its schema; what has another form is skipped.

    The owner columns of a source are tagged as `owner`.
    """
    types = {str(item.get("name")): str(item.get("type") or "") for item in _listed(facets, "schema", "fields")}
    descent = descent_of(facets.get("columnLineage"))
    if descent is not None:
        types |= {name: "" for name in (*descent.origins, *descent.without) if name not in types}
    tags: dict[str, list[tuple[str, str]]] = {}
    if descent is None:  # a source: further tables repeat its privacy unit, and hold other ids under these names
        unit = facets.get("dpsynth_privacyUnit")
        owners = unit.get("ownerColumns") if isinstance(unit, Mapping) else None
        tags = {name: [("owner", "true")] for name in (owners if isinstance(owners, list) else ()) if name in types}
    for item in _listed(facets, "tags", "tags"):
        if item.get("field") in types:
            tags.setdefault(str(item["field"]), []).append((str(item.get("key")), str(item.get("value"))))
    return {name: ColumnFacts(name, kind, tuple(tags.get(name, ()))) for name, kind in types.items()}


def _listed(facets: Mapping[str, Any], facet: str, name: str) -> list[Mapping[str, Any]]:
    value = facets.get(facet)
    listed = value.get(name) if isinstance(value, Mapping) else None
    return [item for item in listed if isinstance(item, Mapping)] if isinstance(listed, list) else []


def _is_record(node: Node) -> bool:
    """A record of ours about tables, such as a pinned version or an audit's report, which carries no column on."""
    return node.own and node.kind == "dataset" and "schema" not in node.facets


def impact(store: LineageStore, name: DatasetName, column: str | None, facets_of: Facets) -> ColumnWalk | None:
    """Everything that is drawn from a column, or from the whole of a dataset; None if the graph lacks the dataset.

    Raises `LedgerError` if the database is out of reach.
    """
    return _walk(store.descent([name]), name, column, facets_of, upward=False)


def origins(store: LineageStore, name: DatasetName, column: str, facets_of: Facets) -> ColumnWalk | None:
    """Everything that a column comes from. Returns and raises like `impact`."""
    return _walk(store.ancestry([name]), name, column, facets_of, upward=True)


def _walk(
    found: Ancestry, name: DatasetName, column: str | None, facets_of: Facets, *, upward: bool
) -> ColumnWalk | None:
    if name in found.missing or not found.relatives:
        return None
    graph = _Graph(found, facets_of, upward=upward)
    start = Part(graph.place[found.relatives[0].node.id], column)
    leading = graph.above if upward else graph.below
    all_ways, steps = _reach(start, leading, lambda _: True)
    direct, _ = _reach(start, leading, lambda step: step.direct)
    clear, _ = _reach(start, leading, lambda step: not step.masking)
    reached = tuple(
        Reached(part, distance, part in direct, _is_masked(part not in clear, step), step)
        for part, (distance, step) in all_ways.items()
    )
    rows: list[PartStep] = []
    if upward:
        tables = dict.fromkeys(part.node for part in all_ways if part.column is not None)
        rows = [step for table in tables for step in graph.deciding.get(table, ())]
    return ColumnWalk(start, graph.nodes, reached, tuple(steps), tuple(rows))


def _is_masked(on_every_path: bool, step: PartStep | None) -> bool | None:
    return on_every_path or (None if step is not None and step.masking is None else False)


def _reach(
    start: Part, leading: Callable[[Part], Iterable[tuple[Part, PartStep]]], counts: Callable[[PartStep], bool]
) -> tuple[dict[Part, tuple[int, PartStep | None]], list[PartStep]]:
    """Breadth first along the steps that count: each part with its distance and last step, and the steps."""
    found: dict[Part, tuple[int, PartStep | None]] = {start: (0, None)}
    steps, waiting = [], deque([start])
    while waiting:
        here = waiting.popleft()
        for there, step in leading(here):
            if not counts(step):
                continue
            steps.append(step)
            if there not in found:
                found[there] = (found[here][0] + 1, step)
                waiting.append(there)
    return found, steps


@dataclass
class _Graph:
    """The steps between the parts of all nodes of a walk. Names of one place are one node."""

    found: Ancestry
    facets_of: Facets
    upward: bool
    nodes: dict[int, Node] = field(init=False)
    place: dict[int, int] = field(init=False)
    deciding: dict[int, list[PartStep]] = field(init=False, default_factory=dict)
    """By table, the steps from columns that decide about its rows."""

    def __post_init__(self) -> None:
        self.nodes = {item.node.id: item.node for item in self.found.relatives}
        links = [(here, there, how) for here, leading in self.found.ways.items() for there, how, _ in leading]
        self.place = self._places([(here, there) for here, there, how in links if how == "alias"])
        self._names = {canonical(node.name): self.place[here] for here, node in self.nodes.items()}
        self._from: dict[Part, list[PartStep]] = {}
        self._to: dict[Part, list[PartStep]] = {}
        self._whole: dict[int, list[tuple[int, Relation]]] = {}
        self._parents: dict[int, list[tuple[int, Relation]]] = {}
        self._inputs = {here: self._describe(here, descent) for here, descent in self._descents.items()}
        for here, there, how in links:
            child, parent = (here, there) if self.upward else (there, here)
            if how in MAKING and self._is_whole(self.place[child], self.place[parent]):
                self._whole.setdefault(self.place[parent], []).append((self.place[child], how))
                self._parents.setdefault(self.place[child], []).append((self.place[parent], how))

    def below(self, part: Part) -> Iterable[tuple[Part, PartStep]]:
        """The parts that are made from a part."""
        for step in self._from.get(Part(part.node, part.column), ()):
            yield step.target, step
        if _is_record(self.nodes[part.node]):
            return
        for child, how in self._whole.get(part.node, ()):
            model = self.nodes[part.node].kind in MODELS
            inherited = how == "base" or (part.inherited and model and self.nodes[child].kind in MODELS)
            if child in self._inputs and self.nodes[child].own and not part.inherited:
                continue  # its column lineage says what it takes from the model's own training data
            target = Part(child, None, inherited)
            yield target, PartStep(part, target, False, None, how, "")

    def above(self, part: Part) -> Iterable[tuple[Part, PartStep]]:
        """The parts that a part is made from."""
        for step in self._to.get(part, ()):
            yield step.source, step
        if part.column is None:
            for parent, how in self._parents.get(part.node, ()):
                source = Part(parent, None)
                yield source, PartStep(source, part, False, None, how, "")

    @cached_property
    def _descents(self) -> dict[int, list[ColumnDescent]]:
        found: dict[int, list[ColumnDescent]] = {}
        for here, node in self.nodes.items():
            descent = descent_of(self.facets_of(node).get("columnLineage"))
            if descent is not None:
                found.setdefault(self.place[here], []).append(descent)
        return found

    def _describe(self, here: int, descents: Sequence[ColumnDescent]) -> set[int]:
        """Adds the steps to a described table; returns the nodes that its column lineage mentions."""
        carried: dict[int, list[ColumnOrigin]] = {}
        for descent in descents:
            for column, listed in descent.origins.items():
                for origin in listed:
                    source = self._names.get(canonical(origin.source))
                    if source is not None and source != here:
                        self._add(Part(source, origin.column), Part(here, column), origin)
                        carried.setdefault(source, []).append(origin)
            for origin in descent.rows:
                source = self._names.get(canonical(origin.source))
                if source is not None and source != here:
                    step = self._add(Part(source, origin.column), Part(here, None), origin)
                    self.deciding.setdefault(here, []).append(step)
                    carried.setdefault(source, []).append(origin)
        for source, read in carried.items():
            masking = all(item.masking for item in read if item.direct)
            self._add_step(PartStep(Part(source, None), Part(here, None), False, masking, "ROWS", ""))
        return set(carried)

    def _add(self, source: Part, target: Part, origin: ColumnOrigin) -> PartStep:
        step = PartStep(source, target, origin.direct, origin.masking, origin.subtype, origin.description)
        return self._add_step(step)

    def _add_step(self, step: PartStep) -> PartStep:
        self._from.setdefault(step.source, []).append(step)
        self._to.setdefault(step.target, []).append(step)
        return step

    def _is_whole(self, child: int, parent: int) -> bool:
        """Whether the child depends on its parent in a way that no column lineage describes."""
        if child == parent:
            return False
        if child not in self._inputs:
            return True
        if self.nodes[child].own:
            return self.nodes[parent].kind in MODELS  # only what the model inherited; see `below`
        return parent not in self._inputs[child]

    def _places(self, aliases: Iterable[tuple[int, int]]) -> dict[int, int]:
        """Each node with the one that stands for all names of its place: one with column lineage, else with facets."""
        group = {here: {here} for here in self.nodes}
        for one, other in aliases:
            if group[one] is not group[other]:
                joined = group[one] | group[other]
                group.update(dict.fromkeys(joined, joined))

        def rank(here: int) -> tuple[bool, bool, bool, int]:
            node = self.nodes[here]
            return "columnLineage" in node.facets, bool(node.facets), node.own, here

        best = {id(members): max(members, key=rank) for members in group.values()}
        return {here: best[id(members)] for here, members in group.items()}
