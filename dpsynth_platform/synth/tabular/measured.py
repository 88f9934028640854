"""The mechanism's noisy counts as tables for publication, beside which synthetic rows can be counted.

What belongs here: which noisy counts are shown and how finely, in terms of published values, and their file beside
drawn rows. What does not: counting rows (`release.fidelity`), and any access to data: this is post-processing of a
model. No torch is imported at load.

Cells of single columns are added up in blocks of neighbours that depend on public facts only. Blocks that follow from
the noisy counts themselves would select the noise that the bars are about. Cells of several columns follow from earlier
counts, so that their own noise is fresh.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.foundation.storage import read_beside_rows, write_durably

if TYPE_CHECKING:
    from dpsynth_platform.synth.tabular.domain import ColumnDomain
    from dpsynth_platform.synth.tabular.measurements import NoisyCounts
    from dpsynth_platform.synth.tabular.model import Model

FILE = "measured.json"
"""Beside the rows of `synthetic`, whose content hash covers it."""
MOST_BLOCKS = 24
"""Blocks of an ordered column's cells, in tables of one column."""
MOST_CELLS = 30_000
"""Figures of all tables together; tables beyond are left out, the last measured first."""
_EXACT = 2**53


def measured_tables(model: Model) -> dict[str, Any]:
    """The noisy counts of a model as JSON: `unit`, `axes`, `tables` and how many tables are `left_out`.

    An axis has a column's groups by value: `cuts` (k inner edges of k+1 groups) or `groups` (lists of values), with a
    `label` each and the group in which values are `missing` or unlisted. A table names its `axes` by place, its
    `order` (0: planned for every column; k: the k-th chosen one), the deviation `sigma` of each count's Gaussian noise
    before rounding, `parts` (how many noisy counts each figure adds) and the figures, in the order of the cells.

    Left out: columns of which a row has no value that can be counted again (attributes of moments, times of day,
    numbers beyond double precision), and more than `MOST_CELLS` figures.
    """
    found = _Tables(model)
    for index, noisy in enumerate(model.measurements.one_way):
        found.add(0, [(index, _blocks(model.domain.columns[index]))], noisy)
    for order, noisy in enumerate(model.measurements.joint, 1):
        levels = noisy.levels or (0,) * len(noisy.clique)
        found.add(
            order,
            [
                (index, model.groups[index][level][model.states[index].state_of])
                for index, level in zip(noisy.clique, levels, strict=True)
            ],
            noisy,
        )
    unit = "owners" if model.plan.guarantee.get("weighting") == "owners" else "records"
    return {"unit": unit, "axes": found.axes, "tables": found.tables, "left_out": found.left_out}


def of_columns(tables: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The tables whose columns are all among `names`, with the axes that these need; others are `left_out`.

    A model can count columns that no published row has, such as the keywords behind a text.
    """
    lacking = {place for place, axis in enumerate(tables["axes"]) if axis["column"] not in names}
    kept = [table for table in tables["tables"] if lacking.isdisjoint(table["axes"])]
    places = sorted({place for table in kept for place in table["axes"]})
    return {
        **tables,
        "axes": [tables["axes"][place] for place in places],
        "tables": [table | {"axes": [places.index(place) for place in table["axes"]]} for table in kept],
        "left_out": tables["left_out"] + len(tables["tables"]) - len(kept),
    }


def write_measured(directory: Path, tables: Mapping[str, Any]) -> None:
    """Writes the tables to a directory."""
    write_durably(directory / FILE, json.dumps(tables, separators=(",", ":")))


def read_measured(directory: Path) -> dict[str, Any] | None:
    """The tables in a directory; None if it has none (of no counted column, or an earlier version of the platform).

    Raises `ReleaseRefused` if the file cannot be read.
    """
    return read_beside_rows(directory / FILE, dict)


class _Tables:
    """Axes and tables as they are added."""

    def __init__(self, model: Model) -> None:
        self._columns = model.domain.columns
        self._types = {field.name: field.type for field in model.release.schema}
        self._left = MOST_CELLS
        self._places: dict[str, int] = {}
        self.axes: list[dict[str, Any]] = []
        self.tables: list[dict[str, Any]] = []
        self.left_out = 0

    def add(self, order: int, grouped: Sequence[tuple[int, npt.NDArray[Any]]], noisy: NoisyCounts) -> None:
        axes = [_axis(self._columns[index], self._types, groups) for index, groups in grouped]
        known = [axis for axis in axes if axis is not None]
        counts, parts = noisy.counts, {}
        if not order:
            ((_, blocks),) = grouped
            counts = np.bincount(blocks, weights=counts).astype(np.int64)
            parts = {"parts": np.bincount(blocks).tolist()}
        if len(known) < len(axes) or counts.size > self._left:
            self.left_out += 1
            return
        self._left -= counts.size
        self.tables.append(
            {"axes": [self._place(axis) for axis in known], "order": order, "sigma": noisy.sigma}
            | parts
            | {"measured": counts.ravel().tolist()}
        )

    def _place(self, axis: dict[str, Any]) -> int:
        """The place of an axis among all; equal ones are listed once."""
        key = json.dumps(axis)
        if key not in self._places:
            self._places[key] = len(self.axes)
            self.axes.append(axis)
        return self._places[key]


def _blocks(column: ColumnDomain) -> npt.NDArray[np.int64]:
    """The block of each cell, by public facts alone; missing values are a block."""
    cells = np.arange(column.size)
    if column.ordered:
        blocks = cells // math.ceil(column.missing / MOST_BLOCKS)
        blocks[column.missing] = blocks[column.missing - 1] + 1
        return blocks
    return cells


def _axis(column: ColumnDomain, types: dict[str, pa.DataType], groups: npt.NDArray[Any]) -> dict[str, Any] | None:
    """A column's groups by published values; None if rows cannot be counted by them."""
    type_ = types.get(column.name)
    if column.derived is not None or type_ is None:
        return None
    if column.ordered:
        return _ordered_axis(column, type_, groups)
    size, missing = int(groups.max()) + 1, int(groups[column.missing])
    values: list[list[str]] = [[] for _ in range(size)]
    for cell, group in enumerate(groups[:-1]):
        values[int(group)].append(column.label(cell))
    labels = [", ".join([*group, *(["missing"] if index == missing else [])]) for index, group in enumerate(values)]
    return {"column": column.name, "nullable": column.nullable, "missing": missing, "labels": labels, "groups": values}


def _ordered_axis(column: ColumnDomain, type_: pa.DataType, groups: npt.NDArray[Any]) -> dict[str, Any] | None:
    # Single numbers have cells of their own, which less than double precision rounds away.
    plain = pa.types.is_integer(type_) or (
        pa.types.is_floating(type_) and (type_.bit_width == 64 or column.widths.all())
    )
    if column.kind in ("integer", "float"):
        accepted = plain or (pa.types.is_decimal(type_) and column.scale.whole)
    else:
        accepted = column.kind in ("date", "datetime") and (pa.types.is_date(type_) or pa.types.is_timestamp(type_))
    cells = groups[: column.missing]
    starts = [0, *(np.flatnonzero(np.diff(cells)) + 1).tolist(), column.missing]
    if not accepted or max(abs(column.edges[0]), abs(column.edges[-1])) >= _EXACT / max(column.step, 1):
        return None
    return {
        "column": column.name,
        "nullable": column.nullable,
        "missing": int(groups[column.missing]),
        "labels": [*_range_labels(column, starts), "missing"],
        "kind": column.kind,
        "cuts": [_cut(column, column.edges[start]) for start in starts[1:-1]],
    }


def _cut(column: ColumnDomain, edge: float) -> float:
    """An edge in the unit in which values are counted: numbers, days, or microseconds since 1970."""
    if column.decimals is not None:
        return float((edge - 0.5) / 10**column.decimals)  # between two values, so that no rounding matters
    return edge * column.step


def _range_labels(column: ColumnDomain, starts: Sequence[int]) -> Iterator[str]:
    outer = {float(column.edges[0]), float(column.edges[-1])}
    for first, after in itertools.pairwise(starts):
        low, high = column.edges[first], column.edges[after]
        if not column.scale.whole:
            # Ends of the range are exact: nothing else says which values a question about them has.
            short = [(end, f"{end:g}") for end in (low, high)]
            ends = [repr(float(end)) if end in outer and float(text) != end else text for end, text in short]
            yield " to ".join(ends if column.widths[first:after].sum() else ends[:1])
        else:
            least, most = column.scale.shown(int(low)), column.scale.shown(int(high) - 1)
            yield least if least == most else f"{least} to {most}"
