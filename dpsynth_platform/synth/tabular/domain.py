"""The public domain of the modelled columns: values to cell codes and back.

What belongs here: which cells a column has, and coding Arrow columns into them. All of it follows from the contract
(and, for the period column, from the period), so it costs nothing. What does not: counting cells, or anything that a
look at the data could change.

Every column has one more cell than its declared values: "missing or unlisted", always the last. Null, NaN and unlisted
categories go there. Numbers and days outside the declared range are clamped into the first or last bin.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.contracts import (
    BooleanColumn,
    CategoricalColumn,
    DataContract,
    DateColumn,
    FloatColumn,
    IntegerColumn,
)
from dpsynth_platform.errors import ContractError
from dpsynth_platform.source import period_bounds

Kind = Literal["integer", "float", "date", "categorical", "boolean"]
Codes = npt.NDArray[np.int32]

MAX_SINGLE_VALUES = 100
"""A whole-number range up to this long gets one cell a value; a longer one without declared bins gets DEFAULT_BINS."""
DEFAULT_BINS = 32

_EPOCH = dt.date(1970, 1, 1)


@dataclass(frozen=True)
class ColumnDomain:
    """The cells of one column.

    Attributes:
        edges: of numbers and dates (days since 1970-01-01): bin i is [edges[i], edges[i+1]). A float column's last bin
            also holds its upper end, the declared maximum; for whole numbers the upper end is the maximum plus one.
        values: of categorical columns, the listed values.
        nullable: whether the last cell may stand in a release, as null.
    """

    name: str
    kind: Kind
    nullable: bool
    edges: tuple[float, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def size(self) -> int:
        """Number of cells, with the one for missing or unlisted values."""
        return self.missing + 1

    @property
    def missing(self) -> int:
        """Code of the cell for missing or unlisted values."""
        if self.kind == "boolean":
            return 2
        return len(self.values) if self.kind == "categorical" else len(self.edges) - 1

    @property
    def allowed(self) -> npt.NDArray[np.bool_]:
        """Which cells may stand in a release, shape (size,)."""
        allowed = np.ones(self.size, dtype=np.bool_)
        allowed[self.missing] = self.nullable
        return allowed

    def encode(self, column: pa.Array | pa.ChunkedArray) -> Codes:
        """Cell codes of an Arrow column of any fitting type, shape (len(column),)."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if self.kind == "categorical":
            listed = pa.array(self.values, pa.string())
            found = pc.index_in(column.cast(pa.string()), value_set=listed)
            return _filled(found, self.missing)
        if self.kind == "boolean":
            return _filled(column.cast(pa.int32()), self.missing)
        if self.kind == "date":
            column = column.cast(pa.date32(), safe=False).cast(pa.int32())
        return self._bin(column)

    def decode(self, codes: Codes, type_: pa.DataType, rng: np.random.Generator) -> pa.Array:
        """Values of the given Arrow type: uniform inside a bin, null for the last cell."""
        absent = codes == self.missing
        if self.kind == "categorical":
            texts = pa.array(self.values, pa.string()).take(pa.array(codes, mask=absent))
            return _cast_text(texts, type_)
        if self.kind == "boolean":
            return pa.array(codes == 1, mask=absent).cast(type_)
        bins = np.where(absent, 0, codes)
        if self.kind == "float":
            bounds = np.asarray(self.edges, dtype=np.float64)
            return pa.array(rng.uniform(bounds[bins], bounds[bins + 1]), mask=absent).cast(type_)
        edges = np.asarray(self.edges, dtype=np.int64)
        drawn = rng.integers(edges[bins], edges[bins + 1])
        if self.kind == "integer":
            return pa.array(drawn, mask=absent).cast(type_)
        return pa.array(drawn.astype(np.int32), mask=absent).cast(pa.date32()).cast(type_)

    def label(self, code: int) -> str:
        """A cell in words, such as `[17, 20)`, `Private` or `missing`."""
        if code == self.missing:
            return "missing"
        if self.kind == "categorical":
            return self.values[code]
        if self.kind == "boolean":
            return "true" if code else "false"
        low, high = self.edges[code], self.edges[code + 1]
        if self.kind == "float":
            return f"[{low:g}, {high:g}{']' if code + 1 == self.missing else ')'}"
        first, last = (self._shown(int(value)) for value in (low, high - 1))
        return first if first == last else f"{first} to {last}"

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as `from_json` reads them."""
        return asdict(self) | {"edges": list(self.edges), "values": list(self.values)}

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ColumnDomain:
        """Reads `to_json` back."""
        tuples = {"edges": tuple(document["edges"]), "values": tuple(document["values"])}
        return cls(**(document | tuples))

    def _bin(self, column: pa.Array) -> Codes:
        exact = self.kind != "float" and pa.types.is_signed_integer(column.type)
        numbers = column.cast(pa.int64() if exact else pa.float64(), safe=False)
        absent = numbers.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        values = numbers.fill_null(0).to_numpy(zero_copy_only=False)
        edges = np.asarray(self.edges[:-1], dtype=values.dtype)
        bins = np.searchsorted(edges, values, side="right") - 1
        return np.where(absent, self.missing, np.clip(bins, 0, self.missing - 1)).astype(np.int32)

    def _shown(self, value: int) -> str:
        return (_EPOCH + dt.timedelta(days=value)).isoformat() if self.kind == "date" else str(value)


@dataclass(frozen=True)
class Domain:
    """The modelled columns in the contract's order."""

    columns: tuple[ColumnDomain, ...]

    def __iter__(self) -> Iterator[ColumnDomain]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(column.name for column in self.columns)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of cells of each column."""
        return tuple(column.size for column in self.columns)

    def encode(self, table: pa.Table | pa.RecordBatch) -> Codes:
        """Cell codes of the modelled columns, shape (rows, columns); other columns are not looked at."""
        codes = np.empty((table.num_rows, len(self)), dtype=np.int32, order="F")
        for index, column in enumerate(self.columns):
            codes[:, index] = column.encode(table.column(column.name))
        return codes

    def to_json(self) -> list[dict[str, Any]]:
        """Plain JSON values, as `from_json` reads them."""
        return [column.to_json() for column in self.columns]

    @classmethod
    def from_json(cls, document: list[dict[str, Any]]) -> Domain:
        """Reads `to_json` back."""
        return cls(tuple(ColumnDomain.from_json(column) for column in document))


def domain_of(contract: DataContract, period: str | None = None) -> Domain:
    """The cells that a contract declares; the period column is narrowed to the period, which is public.

    Owner columns are never modelled, whatever their declared type.

    Raises:
        ContractError: the period has no day inside the period column's declared range.
    """
    columns = []
    for name in contract.modelled:
        declared = contract.columns[name]
        bounds = period_bounds(period) if period and name == contract.source.period_column else None
        if isinstance(declared, IntegerColumn):
            edges = _whole_edges(declared.min, declared.max, declared.bins)
            columns.append(ColumnDomain(name, "integer", declared.nullable, edges))
        elif isinstance(declared, FloatColumn):
            columns.append(ColumnDomain(name, "float", declared.nullable, _float_edges(declared)))
        elif isinstance(declared, DateColumn):
            first, last = _narrowed(contract, name, declared, bounds)
            edges = _whole_edges((first - _EPOCH).days, (last - _EPOCH).days, declared.bins)
            columns.append(ColumnDomain(name, "date", declared.nullable, edges))
        elif isinstance(declared, CategoricalColumn):
            columns.append(ColumnDomain(name, "categorical", declared.nullable, values=tuple(declared.values)))
        elif isinstance(declared, BooleanColumn):
            columns.append(ColumnDomain(name, "boolean", declared.nullable))
    return Domain(tuple(columns))


def _whole_edges(low: int, high: int, bins: int | list[int] | None) -> tuple[int, ...]:
    """Edges of whole-number bins that cover low..high; the last edge is high + 1."""
    if isinstance(bins, list):
        return (low, *bins, high + 1)
    values = high - low + 1
    if bins is None:
        bins = values if values <= MAX_SINGLE_VALUES else DEFAULT_BINS
    bins = min(bins, values)
    return tuple(low + values * index // bins for index in range(bins + 1))


def _float_edges(declared: FloatColumn) -> tuple[float, ...]:
    if isinstance(declared.bins, list):
        return (declared.min, *declared.bins, declared.max)
    edges = np.linspace(declared.min, declared.max, (declared.bins or DEFAULT_BINS) + 1)
    return tuple(float(edge) for edge in edges)


def _narrowed(
    contract: DataContract, name: str, declared: DateColumn, bounds: tuple[dt.date, dt.date] | None
) -> tuple[dt.date, dt.date]:
    if bounds is None:
        return declared.min, declared.max
    first, last = max(declared.min, bounds[0]), min(declared.max, bounds[1])
    if first > last:
        raise ContractError(
            f"{contract.dataset}: columns.{name}: the period {bounds[0]:%Y-%m} lies outside the declared range; "
            f"accepted: {declared.min} to {declared.max}"
        )
    return first, last


def _filled(codes: pa.Array, missing: int) -> Codes:
    return np.asarray(codes.fill_null(missing).to_numpy(zero_copy_only=False), dtype=np.int32)


def _cast_text(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(type_):
        # Cast the values first: Arrow encodes into a dictionary of the values' own type only.
        return texts.cast(type_.value_type).dictionary_encode().cast(type_)
    return texts.cast(type_)
