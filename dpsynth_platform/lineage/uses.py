"""Uses of releases elsewhere: registered uses, and contaminated evaluations and training data.

What belongs here: reading the registered uses of a release, and finding contamination (Ponomareva et al. 2026, "How to
DP-fy Your Data", section 7.7.1). What does not: registering a use (`store`), and privacy (`clearance`): contamination
breaks no guarantee; it only makes a model worse than its figures.

- **Train-test contamination**: a product is evaluated on data of the same origin as its training data. Synthetic data
  depend on their source even if they repeat no row of it, so a search for duplicates does not find this.
- **Over-weighting**: a product's training data include a release and unprotected data of the release's own origin.

Data have the same origin if both come from one dataset in the graph, or belong to one family: then they are about the
same people. The graph does not show how strong the effect is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import Connection

from dpsynth_platform.foundation.errors import LineageRefused
from dpsynth_platform.lineage import graph_rows as rows
from dpsynth_platform.lineage import walks
from dpsynth_platform.lineage.distrust import distrusted
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.nodes import Ancestry, Kind, Node, Relative
from dpsynth_platform.lineage.store import LineageStore, ancestry_in
from dpsynth_platform.lineage.survey import Path, path_of, same_source

USE_FACET = "dpsynth_use"
_DATA: tuple[Kind, ...] = ("dataset", "release")

Problem = Literal["train-test", "over-weighting"]
_PROBLEMS: Mapping[Problem, str] = {
    "train-test": "train-test contamination: {product} is evaluated on {data}",
    "over-weighting": "over-weighting: {product} was trained on {data}",
}


@dataclass(frozen=True)
class RegisteredUse:
    """A registered use of a release, recorded at `at` (UTC) by event number `event`.

    Attributes:
        by, reason: a person's text; empty if a producer omitted it.
        source: the producer that reported it, or empty if it was registered here.
    """

    purpose: str
    product: str
    by: str
    reason: str
    source: str
    at: str
    event: int


@dataclass(frozen=True)
class Families:
    """The families of tables (by the deployment's contracts) and of ledger entries."""

    tables: Mapping[DatasetName, str]
    entries: Mapping[str, str]


@dataclass(frozen=True)
class Contamination:
    """A product whose training data and other data have the same origin.

    Attributes:
        product: the model, or another product.
        data: its evaluation data, or its training data besides the release.
        release: the release that it was trained on; None if it saw the data's origin itself.
        origin: the dataset that both come from, or `family NAME`.
        product_path, data_path: from the product, and from the data, to the origin (or to a member of the family).
    """

    problem: Problem
    product: DatasetName
    data: DatasetName
    release: DatasetName | None
    origin: str
    product_path: Path
    data_path: Path

    @property
    def words(self) -> str:
        """As a sentence with both paths."""
        problem = _PROBLEMS[self.problem].format(product=self.product, data=self.data)
        through = f" (by the release {self.release})" if self.release else ""
        paths = f"{' -> '.join(self.product_path)}; {' -> '.join(self.data_path)}"
        return f"{problem}, and trained{through} on data from {self.origin}, too: {paths}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {
            "product": str(self.product),
            "data": str(self.data),
            "release": None if self.release is None else str(self.release),
            "words": self.words,
        }


def registered(store: LineageStore, release: Node) -> list[RegisteredUse]:
    """The uses of a release, by all its names, in the order in which they were registered."""

    def work(connection: Connection) -> list[RegisteredUse]:
        nodes = [item.node.id for item in _same(ancestry_in(connection, [release.name]))]
        found, without = [], distrusted(connection)
        for event in rows.events_reading(connection, nodes, USE_FACET):
            if event.sequence in without:
                continue
            facet = event.payload["run"]["facets"][USE_FACET]
            texts = {key: str(facet.get(key, "")) for key in ("purpose", "product", "by", "reason")}
            found.append(RegisteredUse(**texts, source=event.source, at=event.received_at, event=event.sequence))
        return found

    return store.database.read(work)


def contaminations(
    store: LineageStore, product: DatasetName, families: Families, *, on: Collection[DatasetName] = ()
) -> list[Contamination]:
    """The contaminations of a product, by its evaluation data and by its training data alone.

    Args:
        on: planned evaluation data, besides the registered ones.

    Raises:
        LineageRefused: the graph lacks the product, or data of `on`.
    """

    def work(connection: Connection) -> list[Contamination]:
        found = _Product(connection, product, families)
        evaluated = dict.fromkeys([*on, *found.evaluated_on()])
        return [*(item for data in evaluated for item in found.tested_on(data)), *found.over_weighted()]

    return store.database.read(work)


@dataclass(frozen=True)
class _Meeting:
    """The common origin of data and a release, the release's path to it, and the data that lead to it."""

    origin: str
    release_path: Path
    data: Relative


class _Product:
    """One product on one snapshot of the graph."""

    def __init__(self, connection: Connection, name: DatasetName, families: Families) -> None:
        self._connection = connection
        self._name = name
        self._families = families
        self._above = self._known(name)
        self._releases = [(item, ancestry_in(connection, [item.node.name])) for item in self._above.of_kind("release")]
        # Unprotected data: no mechanism paid for them, and they are no release under another name.
        names = {item.node.name for _, origins in self._releases for item in _same(origins)}
        exposed, paid = walks.exposed(connection, [name], upward=True), walks.paid_for(connection)
        self._in_clear = [
            item
            for item in exposed
            if item.distance
            and item.node.kind == "dataset"
            and item.node.name not in names
            and not _is_protected(item, paid)
        ]

    def evaluated_on(self) -> Iterator[DatasetName]:
        """The registered evaluation data."""
        for here in _same(self._above):
            for edge in rows.edges_at(self._connection, here.node.name):
                if edge.relation == "evaluated-on" and edge.child == here.node.name:
                    yield edge.parent

    def tested_on(self, data: DatasetName) -> Iterator[Contamination]:
        """Contaminations by evaluation data: unprotected training data first, then releases."""
        above = self._known(data).relatives
        seen = {item.node.name: item for item in self._in_clear}
        itself = next((item for item in above if item.node.name in seen), None)
        if itself is not None:
            name = itself.node.name
            yield Contamination("train-test", self._name, data, None, str(name), path_of(seen[name]), path_of(itself))
        for release, origins in self._releases:
            met = self._meeting(above, release, origins)
            if met is not None:
                yield self._by_release("train-test", data, release, met)

    def over_weighted(self) -> Iterator[Contamination]:
        """For each release that it was trained on, the nearest unprotected training data of the same origin."""
        for release, origins in self._releases:
            met = self._meeting(self._in_clear, release, origins)
            if met is not None:
                yield self._by_release("over-weighting", met.data.node.name, release, met)

    def _meeting(self, data: Sequence[Relative], release: Relative, origins: Ancestry) -> _Meeting | None:
        """A dataset that both come from, or else a family."""
        for item in data:
            same = origins.by_name.get(item.node.name)
            if same is not None and item.node.kind in _DATA:
                return _Meeting(str(item.node.name), (*path_of(release), *path_of(same)[1:]), item)
        charged = self._families_of(origins)
        for item in data:
            for family in sorted(self._families_around(item.node) & charged):
                return _Meeting(f"family {family}", path_of(release), item)
        return None

    def _by_release(self, problem: Problem, data: DatasetName, release: Relative, met: _Meeting) -> Contamination:
        return Contamination(
            problem, self._name, data, release.node.name, met.origin, met.release_path, path_of(met.data)
        )

    def _families_of(self, origins: Ancestry) -> set[str]:
        """The families whose people a release is about."""
        named = {self._families.tables.get(item.node.name) for item in origins.relatives}
        paid = {self._families.entries.get(item.node.name.name) for item in origins.of_kind("mechanism")}
        return {family for family in named | paid if family is not None}

    def _families_around(self, node: Node) -> set[str]:
        """The families whose people data are about: by a contract, or by the entries that paid for the same table."""
        found = {self._families.tables.get(node.name)}
        if "dpsynth_privacyUnit" in node.facets:
            found |= {self._families.entries.get(entry) for entry in same_source(self._connection, node.name)}
        return {family for family in found if family is not None}

    def _known(self, name: DatasetName) -> Ancestry:
        above = ancestry_in(self._connection, [name])
        if above.missing:
            raise LineageRefused(f"the lineage graph does not have {name}; accepted: a name that an event has reported")
        return above


def _is_protected(item: Relative, paid: Collection[int]) -> bool:
    """Whether a mechanism paid for a node, by any of its names."""
    here: Relative | None = item
    while here is not None:
        if here.node.id in paid:
            return True
        here = here.previous if here.relation == "alias" else None
    return False


def _same(above: Ancestry) -> list[Relative]:
    """The start of a walk, by all its names."""
    return [item for item in above.relatives if item.distance == 0]
