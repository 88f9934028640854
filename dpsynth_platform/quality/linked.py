"""Quality of linked tables: tables alone, numbers of children, what parents say of children, and order. For reviewers.

Every measure reads real rows: none is published, and no gate reads it (`report.NOTICE`).

What belongs here: combining measures over the views of all tables. What does not: making views (`linked_views`), SQL
(`linked_queries`), and the measures of one table, which are those of `fidelity`, `utility` and `regression`.

Rows of both sides are cut to the declared bounds, as before the mechanism: those that bounding leaves out are no error.
Three measures take all rows: SQL queries, so that their error is what an analyst sees; keys and references; and rows
out of order. Where an owner has several rows of the root, each of them has the features of all that the owner has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.contracts.tables import (
    POSITION,
    LinkedTables,
    children_name,
    context_name,
    gap_name,
    is_learned,
    previous_name,
)
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.quality.columns import Column, declared
from dpsynth_platform.quality.fidelity import k_way_distance, marginal_distances, total_variation
from dpsynth_platform.quality.linked_queries import QueryError, query_errors
from dpsynth_platform.quality.linked_views import LinkedViews, key_rows, unordered
from dpsynth_platform.quality.regression import Regression, measure_regression
from dpsynth_platform.quality.report import NOTICE
from dpsynth_platform.quality.utility import Utility, measure_utility
from dpsynth_platform.synth.tabular.domain import Domain, declared_domain

Tables = Mapping[str, pa.Table]
Codes = npt.NDArray[Any]


@dataclass(frozen=True)
class TableQuality:
    """One table alone: distances in [0, 1], 0 the same; None: the table has no such columns, or no rows.

    Attributes:
        columns: total variation of each column; empty without rows.
        one_way, two_way: mean total variation of single columns, and of pairs.
        keys_distinct: of the synthetic rows, the share with a key of their own; 1 is right. None without a key.
        lookups: of the synthetic values of each column that refers to a public table, the share that it has.
    """

    columns: dict[str, float]
    one_way: float | None
    two_way: float | None
    keys_distinct: float | None = None
    lookups: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class EdgeQuality:
    """A table and its parent: distances in [0, 1], 0 the same; None: there are no such columns, or no rows.

    Attributes:
        parent: the table above.
        children: total variation of the number of children of a row.
        children_by_parent: mean over the parent's columns of the total variation of (number of children, column).
        across: by ancestor, the parent first: mean over pairs (its column, this table's column) on the join.
        in_sequence: mean over columns of the total variation of (value in the row before, value).
        gaps: total variation of the steps from row to row of the first order column, in the mechanism's cells.
        references: of the synthetic rows, the share that refers to a row of the parent; 1 is right.
        out_of_order: share of synthetic rows that come before the row above them, of the same parent; 0 is right.
        next_row: classifiers of a column of the next row, given the row before and all ancestors.
    """

    parent: str
    children: float | None
    children_by_parent: float | None
    across: dict[str, float]
    in_sequence: float | None
    gaps: float | None
    references: float | None = None
    out_of_order: float | None = None
    next_row: Utility | None = None


@dataclass(frozen=True)
class LinkedQuality:
    """All measures of synthetic linked tables. Restricted.

    Attributes:
        edges: by child.
        queries: the error of each SQL query, over all rows of both sides.
        root: models of a column of the root, from the root's other columns and features of all that belongs to it.
        resampled_tables, resampled_edges: the distances of a bootstrap of the real owners, about as many as synthetic
            ones, which cannot be much improved on. Shares of keys and orders are not among them.
    """

    tables: dict[str, TableQuality]
    edges: dict[str, EdgeQuality]
    queries: tuple[QueryError, ...] = ()
    root: Utility | Regression | None = None
    resampled_tables: dict[str, TableQuality] = field(default_factory=dict)
    resampled_edges: dict[str, EdgeQuality] = field(default_factory=dict)
    notice: str = field(default=NOTICE, init=False)

    @property
    def query_error(self) -> float | None:
        """The mean over queries of their mean relative errors."""
        return _mean([each.mean for each in self.queries])

    def to_json(self) -> dict[str, Any]:
        """Plain values; None for what is not available."""
        return as_json(asdict(self) | {"query_error": self.query_error})  # type: ignore[no-any-return]


def measure_linked(
    tables: LinkedTables,
    real: Tables,
    synthetic: Tables,
    work: Path,
    *,
    holdout: Tables | None = None,
    next_row: Mapping[str, str] | None = None,
    root_target: str | None = None,
    queries: Sequence[str] = (),
) -> LinkedQuality:
    """Compares synthetic tables with the real ones that a mechanism read.

    Args:
        real: all tables of the declaration, public ones included. Columns have the names of the declaration.
        synthetic: the private tables; rows of one parent in their order.
        work: a restricted directory: bounded rows are in files below it meanwhile.
        holdout: tables of other owners, which test models. Without them nothing is predicted.
        next_row: by table with `order_by`, the column of categories whose next value is predicted.
        root_target: the root's column that is predicted: one of categories is classified.
        queries: SELECT statements; see `linked_queries`.

    Raises:
        ContractError: a target is no column that can be predicted, or a query cannot be run.
        BoundingError: a table or column is missing, or the key of a table with children stands in several rows.
        EngineError: the SQL engine stopped.
    """
    _check_targets(tables, next_row or {}, root_target)
    tables = _known(tables, synthetic)
    views = [LinkedViews.of(tables, side, real, work) for side in (real, synthetic)]
    found_tables, edges = _distances(views, real, synthetic)
    resampled = _distances([views[0], views[0].resampled(views[1].rows[tables.root].num_rows)])
    root = None
    if holdout is not None:
        tested = LinkedViews.of(tables, holdout, real, work)
        for name, target in (next_row or {}).items():
            edges[name] = replace(edges[name], next_row=_next_row(views, tested, name, target))
        root = None if root_target is None else _root_model(views, tested, root_target)
    answered = query_errors(queries, real, {**real, **synthetic})
    return LinkedQuality(found_tables, edges, answered, root, *resampled)


def _distances(
    views: Sequence[LinkedViews], real: Tables | None = None, synthetic: Tables | None = None
) -> tuple[dict[str, TableQuality], dict[str, EdgeQuality]]:
    """Of all tables; shares of keys and orders are measured of the synthetic tables, where these are given."""
    tables = views[0].tables
    found, edges = {}, {}
    for name in tables.private:
        pairs = _Pairs.of(views[0].domain(name), [view.rows[name] for view in views])
        found[name] = _table(tables, name, pairs)
        if tables.tables[name].parent is not None:
            edges[name] = _edge(tables, name, views, pairs)
        if synthetic is not None and real is not None:
            found[name] = replace(found[name], **_keys(tables, name, synthetic, real))
            if name in edges:
                edges[name] = replace(edges[name], **_joins(tables, name, synthetic))
    return found, edges


def _known(tables: LinkedTables, synthetic: Tables) -> LinkedTables:
    """The tables with the synthetic rows' values in columns whose values were learned."""
    parts = dict(tables.tables)
    for name in tables.private:
        columns = dict(parts[name].columns)
        there = synthetic[name].column_names if name in synthetic else ()
        learned = [column for column in there if is_learned(columns.get(column))]
        for item in declared_domain(columns, learned):
            texts = pc.unique(item.texts(synthetic[name].column(item.name)).drop_null())
            changed = {"values": sorted(texts.to_pylist()), "most": None}
            columns[item.name] = columns[item.name].model_copy(update=changed)
        parts[name] = parts[name].model_copy(update={"columns": columns})
    return tables.model_copy(update={"tables": parts})


@dataclass(frozen=True)
class _Pairs:
    """A view's cells on both sides."""

    domain: Domain
    codes: tuple[Codes, Codes]

    @classmethod
    def of(cls, domain: Domain, sides: Sequence[pa.Table]) -> _Pairs:
        real, made = sides
        return cls(domain, (domain.encode(real), domain.encode(made)))

    def place(self, column: str) -> int:
        return self.domain.names.index(column)

    def alone(self, columns: Sequence[str], ways: int) -> float | None:
        if len(columns) < ways or not all(map(len, self.codes)):
            return None
        at = [self.place(each) for each in columns]
        real, made = (codes[:, at] for codes in self.codes)
        return k_way_distance(real, made, [self.domain.sizes[place] for place in at], ways, names=columns).mean

    def mean(self, marginals: Sequence[tuple[str, ...]]) -> float | None:
        """The mean distance of these marginals."""
        if not marginals or not all(map(len, self.codes)):
            return None
        places = [tuple(map(self.place, each)) for each in marginals]
        return _mean(marginal_distances(*self.codes, self.domain.sizes, places))


def _table(tables: LinkedTables, name: str, pairs: _Pairs) -> TableQuality:
    own = tables.own_columns(name)
    return TableQuality(
        columns={column: distance for column in own if (distance := pairs.mean([(column,)])) is not None},
        one_way=pairs.alone(own, 1),
        two_way=pairs.alone(own, 2),
    )


def _keys(tables: LinkedTables, name: str, synthetic: Tables, real: Tables) -> dict[str, Any]:
    """Shares of a table's keys and lookups that are right."""
    table, rows = tables.tables[name], synthetic[name]
    keys = key_rows(rows, table.key) if table.key else None
    return {
        "keys_distinct": None if keys is None or not rows.num_rows else len(set(keys)) / rows.num_rows,
        "lookups": {
            column: _referring(key_rows(rows, [column]), key_rows(real[other], tables.tables[other].key))
            for column, other in table.lookups.items()
        },
    }


def _joins(tables: LinkedTables, name: str, synthetic: Tables) -> dict[str, Any]:
    """The shares of a table's rows that have a parent, and that are out of order."""
    table = tables.tables[name]
    assert table.parent is not None  # noqa: S101  (the caller asks)
    parent = table.parent.table
    return {
        "references": _referring(
            key_rows(synthetic[name], table.parent.columns), key_rows(synthetic[parent], tables.tables[parent].key)
        ),
        "out_of_order": unordered(synthetic[name], table.parent.columns, table.order_by) if table.order_by else None,
    }


def _edge(tables: LinkedTables, name: str, views: Sequence[LinkedViews], pairs: _Pairs) -> EdgeQuality:
    table = tables.tables[name]
    assert table.parent is not None  # noqa: S101  (the caller asks)
    parent, own = table.parent.table, tables.own_columns(name)
    above = _Pairs.of(views[0].domain(parent), [view.rows[parent] for view in views])
    number = children_name(name)
    ordered = bool(table.order_by) and POSITION in pairs.domain.names
    later = _Pairs.of(pairs.domain, [_later(view.rows[name]) for view in views]) if ordered else None
    gap = None if later is None or gap_name(table.order_by[0]) not in pairs.domain.names else table.order_by[0]
    across = {
        other: pairs.mean([(context_name(other, column), each) for column in tables.own_columns(other) for each in own])
        for other in tables.ancestors(name)
    }
    return EdgeQuality(
        parent=parent,
        children=_counts_distance(*(view.rows[parent].column(number).to_numpy() for view in views)),
        children_by_parent=above.mean([(number, each) for each in tables.own_columns(parent)]),
        across={other: found for other, found in across.items() if found is not None},
        in_sequence=None if later is None else later.mean([(previous_name(each, 1), each) for each in own]),
        gaps=None if later is None or gap is None else later.mean([(gap_name(gap),)]),
    )


def _next_row(views: Sequence[LinkedViews], tested: LinkedViews, name: str, target: str) -> Utility:
    """Classifiers that know the row before, the position, and all ancestors."""
    tables = views[0].tables
    context = [context_name(*each) for each in tables.context(name)]
    features = [*context, POSITION, *(previous_name(each, 1) for each in tables.own_columns(name))]
    domain = views[0].domain(name)
    kept = Domain(tuple(column for column in domain if column.name in (*features, target)))
    later = [_later(view.rows[name]) for view in (tested, views[1], views[0])]
    return measure_utility(declared(kept, later, target), target)[0]


def _root_model(views: Sequence[LinkedViews], tested: LinkedViews, target: str) -> Utility | Regression:
    """Models that know the root's other columns, and features of each table below."""
    sides = [tested, views[1], views[0]]
    tables, root = views[0].tables, views[0].tables.root
    domain = views[0].domain(root)
    goal = next(column for column in domain if column.name == target)
    counts = [children_name(each) for each in tables.children(root)]
    kept = Domain(tuple(each for each in domain if each.name in (*tables.own_columns(root), *counts)))
    columns = list(declared(kept, [side.rows[root] for side in sides], None if goal.ordered else target))
    for name in tables.private[1:]:
        parts = [side.features(name) for side in sides]
        for feature in parts[0]:
            found = tuple(part[feature] for part in parts)
            size = found[0].size
            columns.append(Column(f"{name}.{feature}", size, tuple(each.values for each in found)))
    return measure_regression(columns, target) if goal.ordered else measure_utility(columns, target)[0]


def _check_targets(tables: LinkedTables, next_row: Mapping[str, str], root_target: str | None) -> None:
    for name, target in next_row.items():
        ordered = [each for each in tables.private if tables.tables[each].order_by]
        if name not in ordered:
            raise ContractError(f"next_row: {name!r} has no order_by; accepted: {', '.join(ordered) or 'none'}")
        own = tables.own_columns(name)
        columns = tables.tables[name].columns
        fits = [each for each in own if each not in columns or columns[each].type in ("categorical", "boolean")]
        if target not in fits:
            raise ContractError(f"next_row.{name}: {target!r} has no categories; accepted: {', '.join(fits) or 'none'}")
    own = tables.own_columns(tables.root)
    if root_target is not None and root_target not in own:
        raise ContractError(
            f"root_target: {root_target!r} is no modelled column of the root; accepted: {', '.join(own)}"
        )


def _later(rows: pa.Table) -> pa.Table:
    """The rows that have a row before them."""
    return rows.filter(pc.greater(rows.column(POSITION), 1))


def _counts_distance(real: Codes, made: Codes) -> float | None:
    """Total variation of whole numbers from zero."""
    if not real.size or not made.size:
        return None
    most = int(max(real.max(), made.max())) + 1
    counts = (np.bincount(side, minlength=most).astype(np.float64) for side in (real, made))
    return total_variation(*counts)


def _referring(found: Sequence[Any], known: Sequence[Any]) -> float:
    """The share of keys that are known; those with nulls refer to nothing and do not count. 1 without keys."""
    keys = set(known)
    given = [each for each in found if None not in each]
    return sum(each in keys for each in given) / len(given) if given else 1.0


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if len(values) else None


def as_json(value: Any) -> Any:
    """A value of JSON: lists for tuples, and None for NaN."""
    if isinstance(value, dict):
        return {key: as_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(each) for each in value]
    return None if isinstance(value, float) and math.isnan(value) else value
