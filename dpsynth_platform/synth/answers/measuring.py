"""The exact tables of numbers that queries need. Sensitive: only a mechanism may call this, and must add noise.

What belongs here: one pass over the bounded rows. What does not: noise (`tabular.noise`), and which tables (`layout`).

Every number is a sum over rows of a whole number that depends on the row alone and, where owners are counted, on its
owner's number of rows. So the sums are exact, and move by what `layout.Table` says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.answers.layout import AMOUNT_UNIT, Groups, Table, measured_of, middle_of
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import ColumnDomain
from dpsynth_platform.synth.tabular.noise import Counts


def exact_tables(records: Records, tables: Sequence[Table]) -> list[Counts]:
    """The exact numbers of all tables, in whole parts of `Table.scale`.

    Each of shape (groups, `Table.width`); of residuals, (contrasts, 1).
    """
    sums = [np.zeros((table.groups.number, table.cells), dtype=np.int64) for table in tables]
    for batch, weights in records.rows(records.domain.names):
        kept: dict[str, tuple[npt.NDArray[np.bool_], Counts]] = {}
        for table, total in zip(tables, sums, strict=True):
            name = table.groups.name
            if name not in kept:
                kept[name] = groups_of(table.groups, batch)
            inside, groups = kept[name]
            np.add.at(total.reshape(-1), *_of_table(table, batch, inside, groups, weights))
    return [measured_of(table, total) for table, total in zip(tables, sums, strict=True)]


def groups_of(groups: Groups, batch: pa.RecordBatch) -> tuple[npt.NDArray[np.bool_], Counts]:
    """Which rows count, and each row's group."""
    rows = batch.num_rows
    inside = np.ones(rows, dtype=np.bool_)
    if groups.judge is not None:
        names = groups.judge.domain.names
        wanted = {names[index] for index in groups.judge.conditions.columns}
        inside = groups.judge.keeps({name: batch.column(name) for name in wanted})
    found = np.zeros(rows, dtype=np.int64)
    for column in groups.columns:
        found = found * column.size + column.encode(batch.column(column.name))
    return inside, found


def _of_table(
    table: Table, batch: pa.RecordBatch, inside: npt.NDArray[np.bool_], groups: Counts, weights: Counts | None
) -> tuple[Counts, Counts]:
    """The number's place for each row that adds to it, and what the row adds."""
    whole = np.ones(len(groups), dtype=np.int64) if weights is None else weights
    if table.ranges is not None:
        cells = table.ranges.places(batch)
        inside = inside & (cells >= 0)
        return (groups * table.cells + cells)[inside], whole[inside]
    if table.column is None:
        return groups[inside], whole[inside]
    column = table.groups.column(table.column)
    if table.what == "prefixes":
        cells = column.encode(batch.column(column.name)).astype(np.int64)
        inside = inside & (cells < column.missing)
        return (groups * table.width + cells)[inside], whole[inside]
    numbers = column.numbers(batch.column(column.name))
    inside = inside & ~np.isnan(numbers)
    if table.what == "present":
        return groups[inside], whole[inside]
    return groups[inside], amounts(column, numbers[inside], None if weights is None else weights[inside])


def amounts(column: ColumnDomain, numbers: npt.NDArray[np.float64], weights: Counts | None) -> Counts:
    """What rows add to a sum of amounts, in 1/`AMOUNT_UNIT` of half the declared range, shape (rows,).

    Weighted ones are rounded towards zero: an owner's rows weigh one record together at most, so they add up to at most
    `AMOUNT_UNIT` in absolute value.
    """
    middle, half = middle_of(column)
    ways = np.clip((numbers - middle) / half, -1.0, 1.0) if half else np.zeros(numbers.size)
    whole = np.rint(ways * AMOUNT_UNIT).astype(np.int64)
    if weights is None:
        return whole
    return np.asarray(np.sign(whole) * (np.abs(whole) * weights // RECORD_PARTS))
