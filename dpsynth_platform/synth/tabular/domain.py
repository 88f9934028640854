"""The domain: for each modelled column the cells that are counted, and the code of each cell.

What belongs here: the cells of a column, and turning Arrow columns into codes and back. All of it follows from the
contract and the period, except for learned values, which the mechanism adds (`learning`). What does not: cutting a
declared range into cells (`binning`), values as numbers (`scales`), attributes of moments (`attributes`), and counting.

Every column has one more cell than its declared values: "missing or unlisted", always the last. It holds null, NaN,
unlisted categories and invalid times of day. Numbers, days, moments and times outside the declared range are clamped
into the first or last cell.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import laid_out, plain, plain_type, whole_texts
from dpsynth_platform.contracts.columns import (
    CategoricalColumn,
    Column,
    DateColumn,
    DatetimeColumn,
    FloatColumn,
    IntegerColumn,
    TimeColumn,
)
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.periods import period_bounds
from dpsynth_platform.foundation.errors import ContractError, MechanismFailed
from dpsynth_platform.sources.declared_types import read_as
from dpsynth_platform.synth.tabular import shapes
from dpsynth_platform.synth.tabular.binning import real_edges, whole_edges
from dpsynth_platform.synth.tabular.derivation import Derivation
from dpsynth_platform.synth.tabular.scales import Scale, Steps

if TYPE_CHECKING:
    from dpsynth_platform.privacy.partitions import Learning

Kind = Literal["integer", "float", "date", "datetime", "time", "categorical", "boolean", "hour", "weekday", "gap"]
Cutting = Literal["declared", "adaptive", "quantile", "privtree", "kmeans"]
Codes = npt.NDArray[np.int32]

ADAPTIVE_STATES = 16
"""The most states of a column on a fine grid.

More states keep more of single columns and less of their relations. By AIM on adult at epsilon 1 and 8, with ten,
sixteen and thirty-two: F1 65.9, 66.3, 65.4 and 66.9, 67.2, 67.0; AUC 89.8, 90.0, 89.6 and 90.4, 90.6, 90.3;
associations of the right strength 88, 88, 88% and 95, 94, 93% (four runs each).
"""
FEW_CELLS = 20
"""So many cells or fewer are not merged: single grades, counts and months are meaningful."""
MOST_NAMED = 3
"""The most columns that are listed by name instead of by their exceptions."""
QUANTILES = 16
"""States of a column that is cut by quantiles."""

_EPOCH = dt.date(1970, 1, 1)


@dataclass(frozen=True)
class ColumnDomain:
    """The cells of one column.

    Attributes:
        edges: of ordered columns, in steps of their scale (`scales`): cell i is [edges[i], edges[i+1]). With whole
            steps, the last edge is one above the largest value; else it is the declared maximum, in the last cell.
        values: of categorical columns, the listed or learned values.
        most: of a categorical column whose values are not yet learned, their largest number.
        learning: how they are learned, after calibration.
        nullable: whether the last cell may be released, as null.
        decimals: of a float column, the declared digits after the point; its steps are whole then.
        step: of moments and times of day, the resolution in microseconds.
        cutting: cells as declared, or a fine grid with its rule for merging (`compression`).
        derived: of an attribute of moments (kinds `hour`, `weekday`, `gap`), its derivation.
    """

    name: str
    kind: Kind
    nullable: bool
    edges: tuple[float, ...] = ()
    values: tuple[str, ...] = ()
    decimals: int | None = None
    step: int = 1
    cutting: Cutting = "declared"
    most: int | None = None
    learning: Learning | None = None
    derived: Derivation | None = None

    @property
    def size(self) -> int:
        """Number of cells, including the one for missing or unlisted values; the most while values are unknown."""
        return self.missing + 1

    @property
    def missing(self) -> int:
        """Code of the cell for missing or unlisted values, the last one."""
        if self.kind == "boolean":
            return 2
        if self.most is not None:
            return self.most
        return len(self.values) if self.kind == "categorical" else len(self.edges) - 1

    @property
    def part_of(self) -> str | None:
        """The column of an hour or a weekday; None for other attributes."""
        return self.derived.of.column if self.derived is not None and self.derived.what != "gap" else None

    @property
    def reads(self) -> tuple[str, ...]:
        return (self.name,) if self.derived is None else self.derived.columns

    @property
    def released(self) -> ColumnDomain:
        """The column in released rows: for a gap, the column of the later moments."""
        if self.derived is None or self.derived.what != "gap":
            return self
        of = self.derived.of
        return ColumnDomain(of.column, of.kind, self.nullable, edges=(of.low, of.high + 1), step=of.step)  # type: ignore[arg-type]

    @property
    def ordered(self) -> bool:
        """Whether neighbouring cells hold neighbouring values."""
        return self.kind not in ("categorical", "boolean")

    @property
    def most_states(self) -> int:
        """The most states of the column in joint counts (`compression`)."""
        if self.cutting == "declared" or self.missing <= FEW_CELLS:
            return self.size
        return min(self.missing, QUANTILES if self.cutting == "quantile" else ADAPTIVE_STATES) + 1

    @property
    def scale(self) -> Scale:
        return Scale(self.kind, self.decimals, self.step)

    @property
    def widths(self) -> npt.NDArray[np.float64]:
        """Widths in steps of an ordered column's cells without the last; 0 for a cell of one real number."""
        pairs = itertools.pairwise(self.edges)
        if self.scale.whole:
            return np.array([float(high - low) for low, high in pairs])
        return np.array([0.0 if high <= math.nextafter(low, math.inf) else high - low for low, high in pairs])

    @property
    def allowed(self) -> npt.NDArray[np.bool_]:
        """Which cells may be released, shape (size,); of unknown values, only the cell of missing ones."""
        allowed = np.full(self.size, self.most is None)
        allowed[self.missing] = self.nullable or self.most is not None
        return allowed

    def texts(self, column: pa.Array | pa.ChunkedArray) -> pa.Array:
        """Values of a categorical column as text, for comparison with listed values: 4.0 in floating point is `4`."""
        found = _one_plain_chunk(column)
        return whole_texts(found) if pa.types.is_floating(found.type) else found.cast(pa.string())

    def encode(self, column: pa.Array | pa.ChunkedArray) -> Codes:
        """Cell codes of an Arrow column of any accepted type, shape (len(column),)."""
        if self.kind == "categorical":
            listed = pa.array(self.values, pa.string())
            return _filled(pc.index_in(self.texts(column), value_set=listed), self.missing)
        column = _one_plain_chunk(column)
        if self.kind == "boolean":
            return _filled(read_as(self.kind, column, self.name).cast(pa.int32()), self.missing)
        low = self.edges[0]
        edges = np.asarray(self.edges[:-1])
        points = edges[:0] if self.scale.whole else edges[self.widths == 0]
        found = self.scale.steps(column, low, self.last, points)
        if self.scale.whole:
            edges = np.array([edge - low for edge in self.edges[:-1]], dtype=np.uint64)
        cells = np.searchsorted(edges, found.values, side="right") - 1
        return np.where(found.absent, self.missing, cells).astype(np.int32)

    def codes(self, table: pa.Table | pa.RecordBatch) -> Codes:
        """Cell codes of a table's rows, shape (rows,)."""
        if self.derived is None:
            return self.encode(table.column(self.name))
        values, absent = self.derived.values(table)
        cells = np.searchsorted(np.asarray(self.edges[:-1], dtype=np.int64), values, side="right") - 1
        return np.where(absent, self.missing, cells).astype(np.int32)

    def decode(self, codes: Codes, type_: pa.DataType, rng: np.random.Generator) -> pa.Array:
        """Values of the given Arrow type: null for the last cell, else a value in the cell by its shape (`shapes`)."""
        return self.restored(codes, self.places(codes, rng), type_)

    def places(
        self, codes: Codes, rng: np.random.Generator, counts: npt.NDArray[np.int64] | None = None
    ) -> npt.NDArray[Any]:
        """Random positions of an ordered column's values in their cells, arbitrary for the last cell; shape (rows,).

        They are whole steps above the range's least value (uint64), or real numbers; empty for other columns. The
        shapes of cells follow from `counts` of all cells, by default those of these codes.
        """
        if not self.ordered:
            return codes[:0]
        counts = np.bincount(codes, minlength=self.size) if counts is None else counts
        masses = counts[: self.missing].astype(np.float64)
        cells = np.where(codes == self.missing, 0, codes)
        if not self.scale.whole:
            bounds = np.asarray(self.edges)
            ways = shapes.draw(shapes.tilts(masses, self.widths)[cells], rng)
            low, high = bounds[cells], bounds[cells + 1]
            # Rounding must not leave the cell; only the last cell includes its upper end.
            return np.asarray(np.clip(low + (high - low) * ways, low, np.maximum(low, np.nextafter(high, -np.inf))))
        # Cells of one value have no shape and do not influence others, since they may be peaks.
        wide = np.where(self.widths > 1, self.widths, 0.0)
        ways = shapes.draw(shapes.tilts(masses, wide)[cells], rng)
        lowest = int(self.edges[0])
        starts = np.array([int(edge) - lowest for edge in self.edges[:-1]], dtype=np.uint64)
        inside = np.floor(np.minimum(ways * self.widths[cells], np.nextafter(self.widths[cells], 0)))
        return np.asarray(starts[cells] + inside.astype(np.uint64))

    def restored(self, codes: Codes, places: npt.NDArray[Any], type_: pa.DataType) -> pa.Array:
        """Values of the given Arrow type, null for the last cell."""
        absent, wanted = codes == self.missing, plain_type(type_)
        if self.kind == "categorical":
            found = pa.array(self.values, pa.string()).take(pa.array(codes, mask=absent)).cast(wanted)
        elif self.kind == "boolean":
            found = pa.array(codes == 1, mask=absent).cast(wanted)
        else:
            found = self.scale.restored(places, absent, wanted, int(self.edges[0]) if self.scale.whole else 0)
        return laid_out(found, type_)

    def amounts(self, codes: Codes, places: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """The values at these places, as by `numbers`."""
        return self.scale.numbers(Steps(places, codes == self.missing), self.edges[0])

    def known_places(self, column: pa.Array | pa.ChunkedArray) -> npt.NDArray[Any]:
        """Positions of an ordered column's values, as by `places`; arbitrary where missing."""
        return self.scale.steps(_one_plain_chunk(column), self.edges[0], self.last).values

    def numbers(self, column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.float64]:
        """An ordered column's values clipped to the declared range; NaN where missing.

        Units are days since 1970, microseconds since 1970 or midnight, or the number itself.
        """
        low = self.edges[0]
        return self.scale.numbers(self.scale.steps(_one_plain_chunk(column), low, self.last), low)

    @property
    def limits(self) -> tuple[float, float]:
        """The declared range of an ordered column, in the units of `numbers`."""
        low, high = float(self.edges[0]), float(self.last)
        unit = self.step / 10 ** (self.decimals or 0) if self.scale.whole else 1.0
        return low * unit, high * unit

    def label(self, code: int) -> str:
        """A cell as text, such as `[17, 20)`, `Private` or `missing`."""
        if code == self.missing:
            return "missing"
        if self.kind == "categorical":
            return self.values[code]
        if self.kind == "boolean":
            return "true" if code else "false"
        low, high = self.edges[code], self.edges[code + 1]
        if self.derived is not None:
            first, last = self.derived.label(int(low)), self.derived.label(int(high) - 1)
            return first if first == last else f"{first} to {last}"
        if not self.scale.whole:
            if not self.widths[code]:
                return f"{low:g}"
            return f"[{low:g}, {high:g}{']' if code + 1 == self.missing else ')'}"
        first, last = self.scale.shown(int(low)), self.scale.shown(int(high) - 1)
        return first if first == last else f"{first} to {last}"

    def to_json(self) -> dict[str, Any]:
        document = asdict(self) | {"edges": list(self.edges), "values": list(self.values)}
        if self.derived is None:
            del document["derived"]  # older plans have no such key, and keep their digests
        return document

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> ColumnDomain:
        from dpsynth_platform.privacy.partitions import Learning

        tuples = {"edges": tuple(document["edges"]), "values": tuple(document["values"])}
        learning = {"learning": Learning(**document["learning"])} if document.get("learning") else {}
        derived = {"derived": Derivation.from_json(document["derived"])} if document.get("derived") else {}
        return cls(**(document | tuples | learning | derived))

    @property
    def last(self) -> float:
        """The largest value of an ordered column, in steps."""
        return self.edges[-1] - 1 if self.scale.whole else self.edges[-1]


@dataclass(frozen=True)
class Domain:
    """The modelled columns in the contract's order; in a plan, the hours and weekdays of their moments come after."""

    columns: tuple[ColumnDomain, ...]

    def __iter__(self) -> Iterator[ColumnDomain]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def released(self) -> Domain:
        """The columns of rows, at the same indices: without hours and weekdays, and with moments in place of gaps."""
        return Domain(tuple(column.released for column in self if column.part_of is None))

    @property
    def reads(self) -> tuple[str, ...]:
        """Distinct names of all source columns."""
        return tuple(dict.fromkeys(name for column in self for name in column.reads))

    @property
    def parts(self) -> dict[int, int]:
        """The index of the column of each hour and weekday, by index."""
        places = {column.name: index for index, column in enumerate(self) if column.part_of is None}
        return {index: places[column.part_of] for index, column in enumerate(self) if column.part_of is not None}

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(column.size for column in self.columns)

    @property
    def most_states(self) -> tuple[int, ...]:
        return tuple(column.most_states for column in self.columns)

    @property
    def unknown(self) -> tuple[int, ...]:
        """Indices of the columns with values to be learned."""
        return tuple(index for index, column in enumerate(self.columns) if column.most is not None)

    def to_be_learned(self, learning: Learning) -> Domain:
        return Domain(tuple(column if column.most is None else replace(column, learning=learning) for column in self))

    def with_values(self, values: Mapping[int, Sequence[str]]) -> Domain:
        """The domain with learned values, by column index; a column without any becomes nullable.

        Raises `MechanismFailed` if some column's values are missing.
        """
        lacking = [self.names[index] for index in self.unknown if index not in values]
        if lacking:
            raise MechanismFailed(f"the stored measurements lack the values of {', '.join(lacking)}")
        known = list(self.columns)
        for index in self.unknown:
            learned, nullable = tuple(values[index]), known[index].nullable or not values[index]
            known[index] = replace(known[index], values=learned, nullable=nullable, most=None, learning=None)
        return Domain(tuple(known))

    @property
    def filled(self) -> tuple[str, ...]:
        """Names of the columns without missing values in a release; a column with no learned value is empty anyway."""
        return tuple(column.name for column in self if not column.nullable and column.part_of is None)

    @property
    def nullable(self) -> tuple[str, ...]:
        """Names of the columns whose missing values are released as such."""
        return tuple(column.name for column in self if column.nullable and column.part_of is None)

    @property
    def preparation(self) -> str:
        return "; ".join([*self._learned_in_words, *self.derived_in_words, self._counted_in_words])

    @property
    def derived_in_words(self) -> list[str]:
        attributes: dict[str, list[str]] = {}
        for column in self:
            if column.derived is not None and column.part_of is None:
                earlier = " or else ".join(each.column for each in column.derived.after)
                attributes[column.name] = [f"time since {earlier} (so that their order holds)"]
        for column in self:
            if column.part_of is not None:
                attributes.setdefault(column.part_of, ["day"]).append(column.kind)
        shown = {name: " and ".join([", ".join(each[:-1]), each[-1]]) for name, each in attributes.items() if each[1:]}
        return [f"{name} is counted by its {shown.get(name, each[0])}" for name, each in attributes.items()]

    @property
    def _learned_in_words(self) -> list[str]:
        found = []
        for index in self.unknown:
            column = self.columns[index]
            shown = f" that {column.learning.threshold} records or so have" if column.learning else ""
            found.append(f"the values of {column.name} are learned: those{shown}, at most {column.most}")
        return found

    @property
    def _counted_in_words(self) -> str:
        fine = [column for column in self.columns if column.most_states < column.size]
        if not self.columns:
            return "nothing: no column is modelled"
        if not fine:
            return "every column is counted by the values or bins that the contract declares"
        cells = ", ".join(f"{column.name} in {column.size}" for column in fine)
        return (
            f"fine public cells ({cells}) are put together by their noisy counts, at no further cost, to at most "
            f"{max(column.most_states for column in fine)} where columns are counted together; the other columns are "
            "counted by the values or bins that the contract declares"
        )

    def encode(self, table: pa.Table | pa.RecordBatch) -> Codes:
        """Cell codes of the modelled columns, shape (rows, columns); ignores other columns."""
        codes = np.empty((table.num_rows, len(self)), dtype=np.int32, order="F")
        for index, column in enumerate(self.columns):
            codes[:, index] = column.codes(table)
        return codes

    def to_json(self) -> list[dict[str, Any]]:
        return [column.to_json() for column in self.columns]

    @classmethod
    def from_json(cls, document: list[dict[str, Any]]) -> Domain:
        return cls(tuple(ColumnDomain.from_json(column) for column in document))


def domain_of(contract: DataContract, period: str | None = None, *, coarse: bool = False) -> Domain:
    """The cells that a contract declares; the period column is narrowed to the period, which is public.

    Owner columns are never modelled. `coarse` gives few equal bins for display, in place of a fine grid. Raises
    `ContractError` if the period has no day inside the period column's declared range.
    """
    columns = []
    for name in contract.modelled:
        declared = contract.columns[name]
        if period and name == contract.source.period_column and isinstance(declared, DateColumn):
            declared = _narrowed(contract, name, declared, period)
        columns.append(_column(name, declared, coarse))
    return Domain(tuple(columns))


def declared_domain(columns: Mapping[str, Column], modelled: Sequence[str], *, coarse: bool = True) -> Domain:
    """By default a coarse domain, for uses that depend on the declared values alone."""
    return Domain(tuple(_column(name, columns[name], coarse) for name in modelled))


def _column(name: str, declared: Column, coarse: bool) -> ColumnDomain:
    if isinstance(declared, CategoricalColumn):
        return ColumnDomain(
            name, "categorical", declared.nullable, values=tuple(declared.listed), most=declared.most_learned
        )
    if not isinstance(declared, IntegerColumn | FloatColumn | DateColumn | DatetimeColumn | TimeColumn):
        return ColumnDomain(name, "boolean", declared.nullable)
    rule: Cutting = "declared"
    if not isinstance(declared.bins, int | list) and not coarse:
        rule = declared.bins or "adaptive"
    bins: Any = declared.bins if isinstance(declared.bins, int | list) else None
    step, decimals = 1, None
    edges: tuple[float, ...]
    if isinstance(declared, FloatColumn) and declared.decimals is None:
        edges = real_edges(declared.min, declared.max, bins, declared.points, coarse=coarse)
    elif isinstance(declared, FloatColumn):
        decimals = declared.decimals
        low, high, *points = _counted([declared.min, declared.max, *declared.points], decimals)
        inner = _counted(bins, decimals) if isinstance(bins, list) else bins
        edges = whole_edges(low, high, inner, points, amounts=True, coarse=coarse)
    elif isinstance(declared, IntegerColumn):
        edges = whole_edges(declared.min, declared.max, bins, declared.points, amounts=True, coarse=coarse)
    elif isinstance(declared, DateColumn):
        edges = whole_edges((declared.min - _EPOCH).days, (declared.max - _EPOCH).days, bins, coarse=coarse)
    else:
        step = declared.step
        first, last = declared.steps
        edges = whole_edges(first // step, last // step, bins, coarse=coarse)
    return ColumnDomain(name, declared.type, declared.nullable, edges, decimals=decimals, step=step, cutting=rule)


def _counted(values: Sequence[float], decimals: int | None) -> list[int]:
    """Real numbers in steps of their last decimal."""
    return [round(value * 10 ** (decimals or 0)) for value in values]


def _narrowed(contract: DataContract, name: str, declared: DateColumn, period: str) -> DateColumn:
    bounds = period_bounds(period)
    first, last = max(declared.min, bounds[0]), min(declared.max, bounds[1])
    if first > last:
        raise ContractError(
            f"{contract.dataset}: columns.{name}: the period {period} lies outside the declared range; "
            f"accepted: {declared.min} to {declared.max}"
        )
    return declared.model_copy(update={"min": first, "max": last})


def filled_in_words(filled: Sequence[str], nullable: Sequence[str]) -> str:
    """The effect on columns that are `Domain.filled`, by declaration alone; it names the others if these are fewer."""
    names = ", ".join(filled)
    if len(filled) > max(MOST_NAMED, len(nullable)):
        names = f"all columns but {', '.join(nullable)}" if nullable else "all columns"
    return (
        f"Missing values of {names} are not kept as such: not declared as nullable. Rows are drawn like those that "
        "lack none and have listed or learned values. What goes along with a missing value becomes rare: where only "
        "retired people lack an income, few are retired. nullable: true keeps them."
    )


def _filled(codes: pa.Array, missing: int) -> Codes:
    return np.asarray(codes.fill_null(missing).to_numpy(zero_copy_only=False), dtype=np.int32)


def _one_plain_chunk(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    found = plain(column)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found
