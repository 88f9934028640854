"""Running every attack on the models of linked tables and the rows drawn from them.

What belongs here: inputs of the attacks from models, views of the families, and released tables; the order of owners is
that of `FamilySet.owners`. What does not: the attacks' arithmetic (`attacks`, `tables.decoding`), coins, real records.

A family is one target with rows in every view. Attacks treat its evidence together:

- *measurements*: the counts of all views are decoded at once, with one belief for each family. A family adds to a cell
  the share of its rows that are there, which is what the mechanism counts of it;
- *likelihood*: the mean log-likelihood of its rows in a view, summed over the views;
- *nearest rows*: in each table, the distance of its values to the nearest released rows, summed over the tables;
- *link measurements*: as measurements, by those counts alone that say which parents have which children: of the sets of
  columns that have both values of a row and values of a row above it, or the number of siblings or children. Of a
  network, whose tables of counts have one column each, there is no such attack: its weights are attacked by the
  likelihood of a row's own values given those above and before it;
- *linked rows*: the distance of a parent and child together to the nearest released parent with its child.

An attacker who knows a parent and a child, and asks whether they belong together, has the last two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.audit.attacks import (
    LIKELIHOOD,
    LINK_MEASUREMENTS,
    LINKED_ROWS,
    MEASUREMENTS,
    NEAREST,
    Floats,
    Scored,
    equal_cells,
    equal_items,
    nearest_scores,
)
from dpsynth_platform.audit.bounds import Duplicates
from dpsynth_platform.audit.canaries import OWNER
from dpsynth_platform.audit.canary_cost import CanaryCost, owners_cost
from dpsynth_platform.audit.linked_canaries import FamilySet, own_domain
from dpsynth_platform.audit.tables.decoding import Entries, decoded_entries, exponential_people, shown_noise
from dpsynth_platform.audit.tables.evidence import MOST_ROWS
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.tables import LinkedTables, children_name, context_name
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.relational.generator import planned
from dpsynth_platform.synth.relational.sealing import SealedTables
from dpsynth_platform.synth.tabular.domain import Codes
from dpsynth_platform.synth.tabular.model import (
    Model,
    clique_scores,
    load_model,
    log_likelihood,
    measured_cells,
)


@dataclass(frozen=True)
class FamiliesInView:
    """The rows of all families in one view, and the model of the view.

    Attributes:
        rows: of the view.
        families: of each row its family, by its place in `FamilySet.owners`.
        links: of each measured set of columns, whether it links rows of two tables.
    """

    model: Model
    rows: pa.Table
    families: npt.NDArray[np.int64]
    links: npt.NDArray[np.bool_]

    @classmethod
    def of(
        cls, tables: LinkedTables, name: str, model: Model, rows: pa.Table, owners: pa.ChunkedArray
    ) -> FamiliesInView:
        families = pc.index_in(rows[OWNER], value_set=owners.combine_chunks())
        of_others = {
            *(context_name(*each) for each in tables.context(name)),
            *(children_name(each) for each in (*tables.siblings(name), *tables.children(name))),
        }
        own = [bool(set(column.reads) & set(tables.own_columns(name))) for column in model.domain]
        other = [bool(set(column.reads) & of_others) for column in model.domain]
        cliques = [measured.clique for measured in (*model.measurements.one_way, *model.measurements.joint)]
        links = [any(own[each] for each in clique) and any(other[each] for each in clique) for clique in cliques]
        return cls(model, rows, families.to_numpy().astype(np.int64), np.array(links, dtype=np.bool_))

    @cached_property
    def shares(self) -> Floats:
        """What each row weighs of its family's one, shape (rows,)."""
        return np.asarray(1 / np.bincount(self.families)[self.families], dtype=np.float64)

    def entries(self, first_cell: int, *, links: bool) -> tuple[Entries, Floats]:
        """What families add to the noisy counts, and what other people are expected to; cells from a number on.

        Args:
            links: only for the sets of columns that link rows of two tables.
        """
        measurements = (*self.model.measurements.one_way, *self.model.measurements.joint)
        seen, cells = (
            clique_scores(self.model, self.rows),
            measured_cells(self.model, self.model.domain.encode(self.rows)),
        )
        noise = shown_noise(measurements)
        parts, others = list[Entries](), [np.zeros(0)]
        for place in np.flatnonzero(self.links) if links else range(len(measurements)):
            size = int(measurements[place].counts.size)
            # Rows of a family in the same cell are one entry.
            pairs, first, of = np.unique(self.families * size + cells[:, place], return_index=True, return_inverse=True)
            parts.append(
                Entries(
                    targets=pairs // size,
                    cells=pairs % size + first_cell,
                    weights=np.asarray(np.bincount(of.ravel(), self.shares), dtype=np.float64),
                    counts=seen.counts[first, place],
                    noise=np.full(pairs.size, noise[place]),
                )
            )
            others.append(np.maximum(seen.expected[first, place], 0) + 1)
            first_cell += size
        return _joined(parts), np.concatenate(others)

    @property
    def cells(self) -> int:
        """Of all measured sets of columns together."""
        return sum(int(each.counts.size) for each in (*self.model.measurements.one_way, *self.model.measurements.joint))


def score_families(
    families: FamilySet, views: Mapping[str, pa.Table], model: Path, synthetic: Mapping[str, pa.Table]
) -> list[Scored]:
    """Scores of every attack of `policy.attacks_on`, in the order of `FamilySet.owners`.

    Args:
        views: `FamilySet.views`.
        model: directory of the models of all views.
        synthetic: the released private tables, by plain names of columns.

    Raises:
        MechanismFailed: the directory holds no complete model.
        AccountingError: there are no released rows of the root, or they lack a column.
    """
    sealed = SealedTables.of(planned(model))
    tables, owners = families.declared, families.owners[OWNER]
    seen = [FamiliesInView.of(tables, name, load_model(model / name), views[name], owners) for name in tables.private]
    values = _Values.of(families, views, synthetic, sealed.lookups)
    in_views, in_tables = _equal_in_views(seen), equal_cells(np.hstack(list(values.families.values())))
    scored = [
        Scored(MEASUREMENTS, _decoded(seen, len(owners), links=False), in_views),
        Scored(LIKELIHOOD, _likelihoods(seen, len(owners)), in_views),
        Scored(NEAREST, values.nearest(), in_tables),
    ]
    if len(tables.private) > 1 and all(view.model.joint is None for view in seen):
        scored.append(Scored(LINK_MEASUREMENTS, _decoded(seen, len(owners), links=True), in_views))
    if len(tables.private) > 1:
        scored.append(Scored(LINKED_ROWS, values.nearest_pairs(), in_tables))
    return scored


def families_cost(contract: DataContract, families: FamilySet, model: Path) -> CanaryCost:
    """What the included families cost: an owner weighs one in every view, so their share is that of the root."""
    return owners_cost(contract, int(families.included.sum()), load_model(model / families.declared.root).total)


def _decoded(seen: Sequence[FamiliesInView], families: int, *, links: bool) -> Floats:
    """Log-odds that each family was in, by the counts of all views together; 0 where nothing is measured."""
    first, parts, expected = 0, list[Entries](), list[Floats]()
    for view in seen:
        entries, others = view.entries(first, links=links)
        parts.append(entries)
        expected.append(others)
        first += view.cells
    whole = _joined(parts)
    if not whole.targets.size:
        return np.zeros(families)
    compact = np.unique(whole.cells, return_inverse=True)[1].ravel()
    return decoded_entries(replace(whole, cells=compact), families, exponential_people(np.concatenate(expected)))


def _likelihoods(seen: Sequence[FamiliesInView], families: int) -> Floats:
    total = np.zeros(families)
    for view in seen:
        total += np.bincount(view.families, view.shares * log_likelihood(view.model, view.rows), families)
    return total


def _equal_in_views(seen: Sequence[FamiliesInView]) -> Duplicates:
    """Which families have equal cells in all rows of all views."""
    found: dict[int, list[bytes]] = {}
    for view in seen:
        codes = view.model.domain.encode(view.rows)
        order = np.lexsort([*codes.T, view.families])
        starts = np.flatnonzero(np.diff(view.families[order])) + 1
        for family, rows in zip(np.unique(view.families), np.split(codes[order], starts), strict=True):
            found.setdefault(int(family), []).append(rows.tobytes())
    return equal_items(tuple(found[family]) for family in sorted(found))


@dataclass(frozen=True)
class _Values:
    """The cells of each table's own columns.

    Attributes:
        families: of the rows of each family, which are all alike; shape (families, columns).
        released: of released rows, shape (rows, columns).
        parents: of each released row of a table below another, the place of its parent; -1 without one.
    """

    tables: LinkedTables
    families: Mapping[str, Codes]
    released: Mapping[str, Codes]
    parents: Mapping[str, npt.NDArray[np.int64]]

    @classmethod
    def of(
        cls,
        families: FamilySet,
        views: Mapping[str, pa.Table],
        synthetic: Mapping[str, pa.Table],
        lookups: Mapping[str, list[str]],
    ) -> _Values:
        tables = families.declared
        mine, released, parents = dict[str, Codes](), dict[str, Codes](), dict[str, npt.NDArray[np.int64]]()
        for name in tables.private:
            domain, known = own_domain(tables, name, lookups), tables.tables[name]
            needed = [*domain.reads, *known.keys]
            if lacking := [column for column in needed if column not in synthetic[name].column_names]:
                raise AccountingError(
                    f"audit: the released table {name} lacks the columns {', '.join(lacking)}; accepted: rows with "
                    "every modelled column and key"
                )
            rows = views[name]
            first = np.unique(rows[OWNER].to_numpy(zero_copy_only=False), return_index=True)[1]
            mine[name] = domain.encode(rows).take(first, axis=0) if domain.names else _nothing(first.size)
            made = synthetic[name]
            released[name] = domain.encode(made) if domain.names else _nothing(made.num_rows)
            if known.parent is not None:
                above = synthetic[known.parent.table].select(tables.tables[known.parent.table].key)
                parents[name] = _places(made.select(known.parent.columns), above)
        return cls(tables, mine, released, parents)

    def nearest(self) -> Floats:
        """Nearest released rows, summed over all tables that have columns and rows."""
        scores = [
            nearest_scores(self.families[name], self.released[name][:MOST_ROWS])
            for name in self.tables.private
            if self.released[name].size or name == self.tables.root
        ]
        return np.asarray(np.sum(scores, axis=0), dtype=np.float64)

    def nearest_pairs(self) -> Floats:
        """The one nearest released pair of a parent and a child, summed over all tables with a parent."""
        total = np.zeros(len(self.families[self.tables.root]))
        for name, places in self.parents.items():
            above = self.tables.ancestors(name)[0]
            rows = np.flatnonzero(places >= 0)[:MOST_ROWS]
            if rows.size:
                pairs = np.hstack([self.released[above][places[rows]], self.released[name][rows]])
                total += nearest_scores(np.hstack([self.families[above], self.families[name]]), pairs, 1)
        return total


def _places(rows: pa.Table, keys: pa.Table) -> npt.NDArray[np.int64]:
    """Of each row the place of its key; -1 where there is none."""
    columns = [str(place) for place in range(keys.num_columns)]
    texts = [
        pa.table([column.cast(pa.string()) for column in table.columns], names=columns).append_column(
            place, pa.array(np.arange(table.num_rows))
        )
        for table, place in ((rows, "row"), (keys, "key"))
    ]
    joined = texts[0].join(texts[1], columns, join_type="inner")
    found = np.full(rows.num_rows, -1, dtype=np.int64)
    found[joined["row"].to_numpy()] = joined["key"].to_numpy()
    return found


def _joined(parts: Sequence[Entries]) -> Entries:
    none = np.zeros(0, dtype=np.int64)
    every = [Entries(none, none, np.zeros(0), np.zeros(0), np.zeros(0)), *parts]
    return Entries(
        **{item.name: np.concatenate([getattr(part, item.name) for part in every]) for item in fields(Entries)}
    )


def _nothing(rows: int) -> Codes:
    return np.zeros((rows, 0), dtype=np.int32)
