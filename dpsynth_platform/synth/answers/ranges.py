"""What is measured for counts with ranges on one or two columns: Kronecker products (HDMM, McKenna et al. 2018).

What belongs here: the cells that ranges distinguish, the matrix of each column in whole numbers, and exact variances.
What does not: which queries are measured so (`products`), exact numbers (`measuring`) and noise.

A column's cells that the same ranges contain are one cell (workload reduction), and cells in no range are not counted.
With A the Kronecker product of the columns' matrices A_i, the numbers A x are measured. A query with the ranges w_i has
the answer (w_1 A_1+ x w_2 A_2+) A x, with the variance |w_1 A_1+|^2 |w_2 A_2+|^2 of one number's noise: norms of
Kronecker products multiply. So do the lengths of their columns. No entry is negative and no column of A_i is longer
than 1, so the same holds for A, and what is measured moves by no more than counts of cells do (`strategies`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.contracts.constraints import Values
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.answers.strategies import UNIT, Array, prefix_matrix
from dpsynth_platform.synth.tabular.constraints import Conditions
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain
from dpsynth_platform.synth.tabular.noise import Counts

Mask = npt.NDArray[np.bool_]

CELLS, PREFIXES, RANGES = "cells", "prefixes", "ranges"
WEIGHTED = {f"cells and ranges {weight:g}": weight for weight in (0.125, 0.25, 0.5, 1.0, 2.0)}
STRATEGIES = (CELLS, PREFIXES, RANGES, *WEIGHTED)
"""Of a column: each cell; the square root of prefixes; the ranges; cells beside ranges, with the latter's weight.

The last are HDMM's p-identity matrices, with ranges in place of what it optimizes: what floating-point optimization
ends with may differ between machines, and a plan must not.
"""
LARGEST = 2**62
"""Measured numbers are below it. Cells with more rows than that allows are clipped, by which none moves farther."""


@dataclass(frozen=True)
class Ranges:
    """Ranges of several queries on the same columns.

    Attributes:
        domain: the columns that the plan reads.
        columns: those with ranges.
        wanted: of every query, for each of the columns, its range in `where`; None: all rows.
        strategies: of the columns.
    """

    domain: Domain
    columns: tuple[str, ...]
    wanted: tuple[tuple[Values | None, ...], ...]
    strategies: tuple[str, ...]

    @cached_property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(
            Axis.of(self.domain, name, [query[place] for query in self.wanted])
            for place, name in enumerate(self.columns)
        )

    @cached_property
    def matrices(self) -> tuple[Counts, ...]:
        """What is measured, for each column, times `UNIT`."""
        return tuple(axis.matrix(name) for axis, name in zip(self.axes, self.strategies, strict=True))

    @property
    def cells(self) -> int:
        """Counts of a group."""
        return math.prod(matrix.shape[1] for matrix in self.matrices)

    @property
    def numbers(self) -> int:
        """Measured numbers of a group."""
        return math.prod(len(matrix) for matrix in self.matrices)

    @property
    def unit(self) -> int:
        return int(UNIT ** len(self.columns))

    @cached_property
    def answers(self) -> Array:
        """The matrix that turns what was measured (over `unit`) into the queries' counts; shape (queries, numbers)."""
        parts = [axis.answers(name) for axis, name in zip(self.axes, self.strategies, strict=True)]
        return reduce(lambda one, other: np.einsum("qi,qj->qij", one, other).reshape(len(one), -1), parts)

    def places(self, batch: pa.RecordBatch) -> Counts:
        """The cell of each row, -1 for rows that no query counts; shape (rows,)."""
        found = np.zeros(batch.num_rows, dtype=np.int64)
        for axis in self.axes:
            own = axis.cell_of[axis.column.encode(batch.column(axis.column.name))]
            found = np.where((found < 0) | (own < 0), -1, found * axis.ranges.shape[1] + own)
        return found

    def measured(self, counts: Counts) -> Counts:
        """What is measured of cells' counts, shape (groups, cells), exactly; shape (groups, numbers)."""
        most = math.prod(int(matrix.sum(axis=1).max()) for matrix in self.matrices)
        found = np.minimum(counts, LARGEST // most).reshape(len(counts), *(item.shape[1] for item in self.matrices))
        for place, matrix in enumerate(self.matrices, 1):
            found = np.moveaxis(np.tensordot(found, matrix, axes=(place, 1)), -1, place)
        return found.reshape(len(counts), -1)


@dataclass(frozen=True, eq=False)
class Axis:
    """The cells of one column that ranges distinguish.

    Attributes:
        column: cut at the ranges' ends.
        cell_of: of each of the column's cells, -1 for those in no range.
        ranges: whether each query contains each cell, shape (queries, cells).
    """

    column: ColumnDomain
    cell_of: Counts
    ranges: Mask

    @classmethod
    def of(cls, domain: Domain, name: str, wanted: Sequence[Values | None]) -> Axis:
        """Raises `ContractError` for a value that the column cannot have."""
        given = [Conditions() if part is None else Conditions.of(domain, given={name: part}) for part in wanted]
        place = domain.names.index(name)
        column = reduce(Conditions.joined, given).cut(domain).columns[place]
        inside = np.ones((len(given), column.size), dtype=np.bool_)
        for query, conditions in enumerate(given):
            for box in conditions.boxes:
                for values in box.sets(place):
                    inside[query] &= values.cells(column)
        # Cells in the order of the column, so that a range is a run of them.
        first = sorted({mask.tobytes(): cell for cell, mask in reversed(list(enumerate(inside.T)))}.values())
        kept = [cell for cell in first if inside[:, cell].any()]
        cells = {inside[:, cell].tobytes(): number for number, cell in enumerate(kept)}
        cell_of = np.array([cells.get(mask.tobytes(), -1) for mask in inside.T], dtype=np.int64)
        return cls(column, cell_of, inside[:, kept])

    def matrix(self, strategy: str) -> Counts:
        """What is measured, times `UNIT`, in whole numbers; each column at most `UNIT` long; shape (numbers, cells)."""
        cells = self.ranges.shape[1]
        if strategy == PREFIXES:
            return prefix_matrix(cells)
        ranges = np.unique(self.ranges, axis=0).astype(np.float64)
        rows = {CELLS: np.eye(cells), RANGES: ranges}.get(strategy)
        if rows is None:
            rows = np.vstack([np.eye(cells), WEIGHTED[strategy] * ranges])
        lengths = np.linalg.norm(rows, axis=0)
        if strategy == RANGES:  # equal ones: without cells, sums of differently scaled cells give no range
            lengths = np.full(cells, lengths.max())
        whole: Counts = np.floor(rows / lengths * UNIT).astype(np.int64)
        if (whole**2).sum(axis=0).max(initial=0) > UNIT**2:
            raise AccountingError(f"the matrix of {self.column.name!r} has a column of more than one record")
        return whole

    def answers(self, strategy: str) -> Array:
        """The matrix that turns what was measured (over `UNIT`) into each query's sums; shape (queries, numbers)."""
        return np.asarray(self.ranges @ np.linalg.pinv(self.matrix(strategy) / UNIT))
