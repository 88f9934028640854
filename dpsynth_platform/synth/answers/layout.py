"""Which tables of numbers are measured for queries, over which groups of rows, with which part of the budget.

What belongs here: what follows from queries and public domains alone. What does not: exact or noisy numbers.

| a query asks for | measured, for every group |
| --- | --- |
| its count | `rows`: the number of rows |
| a sum, a mean | `present`: the number of rows with a value; `amount`: the sum of (value - middle) / half the range |
| quantiles | `prefixes`: sums of the numbers of rows in the column's cells (`strategies`) |
| counts, beside other queries of the same rows | `residual`: contrasts of the numbers of rows (`sharing`) |
| counts, beside others of other ranges | `ranges`: sums of the numbers of rows in cells of columns (`products`) |

An amount lies in [-1, 1], so that a row moves its sum by at most 1, wherever the declared range lies.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpsynth_platform.contracts.answers import Query
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.privacy.units import RECORD_PARTS, replaces
from dpsynth_platform.synth.answers.ranges import Ranges
from dpsynth_platform.synth.answers.strategies import UNIT, prefix_matrix
from dpsynth_platform.synth.tabular.constraints import Conditions, Judge
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain
from dpsynth_platform.synth.tabular.residuals import contrasts, squared_lengths

What = Literal["rows", "present", "amount", "prefixes", "residual", "ranges"]
MOST_GROUPS = 1_000_000
"""Of one query."""
MOST_CELLS = 20_000_000
"""Numbers that are measured for all queries together."""
MOST_STEPS = 1024
"""Cells of a column whose quantiles are asked for."""
AMOUNT_UNIT = 2**24
"""An amount is a whole multiple of 1 / AMOUNT_UNIT: of ten million equal rows, rounding moves a sum by 0.3 at most."""
SIGNED = 1.4142136
"""Above sqrt(2): where records are replaced, numbers of both signs move by up to 2 b, and counts by sqrt(2) b."""
UNUSED = 2.0**-40
"""Of the budget, so that rounded shares add up to no more than all of it."""


@dataclass(frozen=True)
class Groups:
    """The groups of a query's rows: one for every combination of its columns' cells.

    Attributes:
        name: of the query.
        columns: the columns of `by`, with a last cell for missing values each.
        judge: which rows count; None: all.
        domain: the columns that the plan reads.
        place: of the query among all queries.
    """

    name: str
    query: Query
    domain: Domain
    place: int = 0

    @cached_property
    def columns(self) -> tuple[ColumnDomain, ...]:
        return tuple(self.column(name) for name in self.query.by)

    def column(self, name: str) -> ColumnDomain:
        return self.domain.columns[self.domain.names.index(name)]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(column.size for column in self.columns)

    @property
    def number(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def judge(self) -> Judge | None:
        """Raises `ContractError` for a value that its column cannot have."""
        if not self.query.where:
            return None
        conditions = Conditions.of(self.domain, given=self.query.where)
        return Judge(conditions.cut(self.domain), conditions)

    def labels(self) -> Iterator[tuple[str, npt.NDArray[np.int64]]]:
        """For each column of `by`, its name and the cell of every group; shape (groups,)."""
        cells = np.unravel_index(np.arange(self.number), self.shape) if self.shape else ()
        for column, codes in zip(self.columns, cells, strict=True):
            yield column.name, codes


@dataclass(frozen=True)
class Table:
    """One table of noisy numbers.

    Attributes:
        column: of the values; None for the number of rows.
        share: of the whole precision.
        stretch: how much farther than counts one unit may move it; of residuals, their orthonormal coordinates.
        serves: the queries for which it is measured together with other residuals, or by itself.
        ranges: of the queries that it serves by itself.
    """

    groups: Groups
    what: What
    column: str | None
    share: float
    stretch: float = 1.0
    serves: tuple[Groups, ...] = ()
    ranges: Ranges | None = None

    @property
    def cells(self) -> int:
        """Counts of each group, of which `width` numbers are measured."""
        return self.width if self.ranges is None else self.ranges.cells

    @property
    def width(self) -> int:
        """Numbers for each group."""
        if self.ranges is not None:
            return self.ranges.numbers
        return self.groups.column(self.column).missing if self.what == "prefixes" and self.column else 1

    @property
    def size(self) -> int:
        if self.what == "residual":
            return math.prod(size - 1 for size in self.groups.shape)
        return self.groups.number * self.width

    def noise(self, sigma: float, weighting: str) -> float | npt.NDArray[np.float64]:
        """The deviation of whole numbers' noise, if that of counts is sigma records: of all, or of shape (size, 1)."""
        noise = sigma * self.stretch * self.scale(weighting)
        if self.what != "residual":
            return noise
        return np.asarray(noise * np.sqrt(squared_lengths(self.groups.shape)).reshape(-1, 1))

    @property
    def unit(self) -> int:
        """A record is so many of the table's whole numbers, where rows are counted."""
        if self.ranges is not None:
            return self.ranges.unit
        return {"amount": AMOUNT_UNIT, "prefixes": UNIT}.get(self.what, 1)

    def scale(self, weighting: str) -> int:
        """A record is so many of the table's whole numbers; weights are in parts of a record."""
        if weighting != "owners" or self.what == "amount":
            return self.unit
        return self.unit * RECORD_PARTS


def tables_of(queries: Mapping[str, Query], domain: Domain, adjacency: str) -> tuple[Table, ...]:
    """All tables, in the order in which they are measured: that of the queries."""
    whole = sum(query.weight for query in queries.values())
    found = []
    for place, (name, query) in enumerate(queries.items()):
        groups = Groups(name, query, domain, place)
        parts = query.count + len(query.amounts) + len(query.quantiles)
        share = query.weight / whole / parts * (1 - UNUSED)
        if query.count:
            found.append(Table(groups, "rows", None, share))
        for column in query.amounts:
            stretch = SIGNED if replaces(adjacency) else 1.0
            part = _part_of_present(query, groups.column(column), stretch)
            found.append(Table(groups, "present", column, share * part))
            found.append(Table(groups, "amount", column, share * (1 - part), stretch))
        # Sorted, since JSON does not keep the order of keys.
        found += [Table(groups, "prefixes", column, share) for column in sorted(query.quantiles)]
    return tuple(found)


def _part_of_present(query: Query, column: ColumnDomain, stretch: float) -> float:
    """The part of a column's share with which its number of values is counted; the rest is for their amounts.

    A sum is the middle times the number and half the range times the amount: shares in this ratio give it the least
    variance. Of a mean, the number matters less than the amount, since its part in it is the mean itself, in [-1, 1].
    """
    middle, half = middle_of(column)
    of_number = max(abs(middle) if column.name in query.sum else 0.0, half / 2 if column.name in query.mean else 0.0)
    return float(min(max(of_number / (of_number + half * stretch), 0.1), 0.9)) if half else 0.9


def check_tables(tables: tuple[Table, ...], dataset: str) -> None:
    """Raises `ContractError` for more groups or numbers than can be measured, or impossible values of `where`."""
    for table in tables:
        groups, where = table.groups, f"{dataset}: queries.{table.groups.name}"
        if groups.number > MOST_GROUPS:
            raise ContractError(f"{where}.by: {groups.number:,} groups; accepted: up to {MOST_GROUPS:,}")
        if table.what == "prefixes" and table.width > MOST_STEPS:
            raise ContractError(
                f"{where}.quantiles: {table.column!r} has {table.width:,} cells; accepted: up to {MOST_STEPS:,}, so "
                f"declare bins for columns.{table.column}"
            )
        try:
            _ = groups.judge
        except ContractError as error:
            problem = str(error)
        else:
            continue
        raise ContractError("\n".join(f"{where}.where: {line.removeprefix('given.')}" for line in problem.split("\n")))
    cells = sum(table.size for table in tables)
    if cells > MOST_CELLS:
        raise ContractError(
            f"{dataset}: queries: {cells:,} numbers to measure; accepted: up to {MOST_CELLS:,}, so fewer groups, or "
            "fewer quantiles by group"
        )


def middle_of(column: ColumnDomain) -> tuple[float, float]:
    """The middle of a column's declared range and half of its width, in the column's unit."""
    low, high = (_amount(column, step) for step in (column.edges[0], column.last))
    return (low + high) / 2, (high - low) / 2


def _amount(column: ColumnDomain, steps: float) -> float:
    return float(steps * column.step / 10 ** (column.decimals or 0))


def measured_of(table: Table, sums: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What is measured of a table's sums by group, exactly."""
    if table.ranges is not None:
        return table.ranges.measured(sums)
    if table.what == "residual":
        return contrasts(sums.reshape(table.groups.shape)).reshape(-1, 1)
    return prefixes(sums) if table.what == "prefixes" else sums


def prefixes(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """What is measured of cells' counts, shape (groups, cells), exactly."""
    return counts @ prefix_matrix(counts.shape[1]).T


def queries_of(parameters: Mapping[str, Any]) -> dict[str, Query]:
    """The queries of a sealed plan's parameters."""
    return {name: Query(**document) for name, document in parameters["queries"]}
