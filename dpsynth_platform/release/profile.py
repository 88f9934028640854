"""Histograms of the published columns, of the synthetic data only.

What belongs here: counting while the rows are written. What does not: real data, and drawing. Bins and categories are
the contract's, equal bins over the declared range, or (for learned values) those of the synthetic rows; none depends on
real rows.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import whole_texts
from dpsynth_platform.contracts.columns import (
    EPOCH,
    Column,
    DateColumn,
    DatetimeColumn,
    FloatColumn,
    IntegerColumn,
    TimeColumn,
)
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.linked_contract import dotted
from dpsynth_platform.foundation.release_layout import SINGLE
from dpsynth_platform.release.fidelity import FidelityCounter
from dpsynth_platform.release.first_pictures import FirstPictures
from dpsynth_platform.release.sample import sample_of
from dpsynth_platform.synth.images.layout import ImageLayout
from dpsynth_platform.synth.tabular.domain import domain_of

BINS = 24
LONGEST = 1e15
"""Numbers of at least this size are labelled with six digits."""
_EPOCH = dt.date(1970, 1, 1)


def treatment(contract: DataContract, name: str) -> str:
    """How a column is published: `modelled`, `written`, `pictured`, `regenerated` (fresh ids), `absent` or `empty`.

    In a table of answers all columns are `answered`, and the source's others `absent`. Those of public tables are
    `public`.
    """
    column = contract.columns.get(name)
    if contract.tables and column is None:
        table, _, own = name.partition(".")
        if contract.linked.tables[table].public is not None:
            return "public"
        return "modelled" if own in contract.linked.tables[table].lookups else "empty"
    if contract.generate.answers:
        return "answered" if name in contract.answer_columns else "absent"
    if column is None:
        return "empty"
    if name == contract.text_column:
        return "written"
    if name == contract.image_column:
        return "pictured"
    if column.type in ("ignored", "image"):
        return "absent"
    if column.type == "text":
        return "absent" if column.pii == "drop" and not contract.tables else "empty"
    return "regenerated" if column.type == "identifier" else "modelled"


class Profiler:
    """Counts the values of each modelled column, batch by batch, and what the dossier shows of the rows besides.

    Attributes:
        fidelity: counts in the cells of the mechanism's noisy tables; None where there are none.
        samples: the first rows of each table that has any.
        pictures: the first pictures of each class; None where there is no column of pictures.
    """

    def __init__(self, contract: DataContract, measured: Mapping[str, Any] | None = None) -> None:
        self.fidelity = None if measured is None else FidelityCounter(measured)
        self.samples: dict[str, dict[str, Any]] = {}
        self.pictures = None if contract.image_column is None else FirstPictures(ImageLayout.of(contract))
        modelled = [] if contract.generate.answers else contract.modelled
        self._columns = {name: contract.columns[name] for name in modelled}
        self._domains = {column.name: column for column in domain_of(contract)}
        self._edges = {name: _edges(column) for name, column in self._columns.items()}
        self._bins = {
            name: np.zeros(len(edges) - 1, np.int64) for name, edges in self._edges.items() if edges is not None
        }
        self._categories: dict[str, Counter[str]] = {name: Counter() for name in self._columns}
        self._missing: Counter[str] = Counter()

    @property
    def sample(self) -> dict[str, Any] | None:
        """The content of the file of first rows; None without rows. Of linked tables, by `tables`."""
        return self.samples.get(SINGLE) or ({"tables": self.samples} if self.samples else None)

    def add(self, batch: pa.RecordBatch, table: str = SINGLE) -> pa.RecordBatch:
        """Counts a table's batch and returns it."""
        if table not in self.samples and batch.num_rows:
            self.samples[table] = sample_of(batch)
        self._count(batch.rename_columns([dotted(table, name) for name in batch.schema.names]) if table else batch)
        return batch

    def _count(self, batch: pa.RecordBatch) -> None:
        if self.fidelity is not None:
            self.fidelity.add(batch)
        if self.pictures is not None:
            self.pictures.add(batch)
        for name in set(self._columns) & set(batch.schema.names):
            values = batch.column(name)
            self._missing[name] += values.null_count
            present = values.drop_null()
            edges = self._edges[name]
            if edges is None:
                if pa.types.is_floating(present.type):  # listed whole numbers
                    present = whole_texts(present)
                for pair in pc.value_counts(present).to_pylist():
                    self._categories[name][_label(pair["values"])] += pair["counts"]
            else:
                known = present.filter(pc.is_finite(present)) if pa.types.is_floating(present.type) else present
                numbers = self._domains[name].numbers(known)
                numbers = numbers[~np.isnan(numbers)]
                self._missing[name] += len(present) - len(numbers)
                self._bins[name] += np.histogram(numbers, edges)[0]

    def histogram(self, name: str) -> dict[str, Any] | None:
        """A column's histogram as JSON, or None if it is not modelled.

        Bins: `{"kind": "bins", "edges": k+1 labels, "counts": k numbers, "missing": n}`; the last bin includes its
        upper edge. Categories: `{"kind": "categories", "labels": ..., "counts": ..., "missing": n}`.
        """
        column = self._columns.get(name)
        if column is None:
            return None
        edges, missing = self._edges[name], self._missing[name]
        if edges is not None:
            labels = [_edge_label(edge, column) for edge in edges]
            return {"kind": "bins", "edges": labels, "counts": self._bins[name].tolist(), "missing": missing}
        counts = self._categories[name]
        known = column.listed or sorted(counts) if column.type == "categorical" else ["false", "true"]
        return {"kind": "categories", "labels": known, "counts": [counts[label] for label in known], "missing": missing}


def _edges(column: Column) -> np.ndarray[Any, np.dtype[np.float64]] | None:
    """The contract's bins; else at most `BINS` equal ones over the declared range. None for categories."""
    if isinstance(column, DateColumn):
        return np.linspace((column.min - _EPOCH).days, (column.max - _EPOCH).days + 1, BINS + 1)
    if isinstance(column, DatetimeColumn | TimeColumn):
        first, last = column.steps
        return np.linspace(first, last + column.step, BINS + 1)
    if not isinstance(column, IntegerColumn | FloatColumn):
        return None
    if isinstance(column.bins, list):
        inner = [edge for edge in column.bins if edge < column.max]
        return np.array([column.min, *inner, column.max], np.float64)
    bins = column.bins if isinstance(column.bins, int) else BINS
    if isinstance(column, FloatColumn):
        return np.linspace(column.min, column.max, bins + 1)
    # Each whole number belongs to one bin, so the edges are whole numbers.
    bins = min(bins, column.max - column.min + 1)
    return np.floor(np.linspace(float(column.min), float(column.max + 1), bins + 1))


def _label(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _edge_label(edge: float, column: Column) -> str:
    """An edge as a reader would write it; the highest edge is the declared maximum."""
    if isinstance(column, DateColumn):
        return (_EPOCH + dt.timedelta(days=min(int(edge), (column.max - _EPOCH).days))).isoformat()
    if isinstance(column, DatetimeColumn | TimeColumn):
        moment = EPOCH + dt.timedelta(microseconds=int(min(edge, column.steps[1])))
        return moment.isoformat(" ", "minutes") if isinstance(column, DatetimeColumn) else f"{moment:%H:%M}"
    if isinstance(column, IntegerColumn | FloatColumn):
        edge = min(edge, column.max)
    if abs(edge) >= LONGEST:
        return f"{edge:.6g}"
    return f"{edge:,.3f}".rstrip("0").rstrip(".")
