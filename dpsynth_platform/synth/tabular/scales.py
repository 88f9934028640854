"""The values of ordered columns as numbers, and back in the source's type.

What belongs here: Arrow columns to steps inside a declared range, and steps to Arrow columns. What does not: cells.

| kind | a step | source types |
| --- | --- | --- |
| integer | 1 | integers, floating point (truncated), durations and decimals of scale 0 (`declared_types`) |
| float | real numbers; with declared decimals the last digit | floating point, decimals |
| date | a day | dates, timestamps (their local day, restored as its midnight) |
| datetime | the resolution, since 1970, in UTC where there is a time zone | timestamps |
| time | the resolution, since midnight | times, texts such as 07:30 or 07:30:00.5 |

Whole steps are counted from the range's least value in unsigned 64 bits: exact for every integer type and range, which
double precision is not beyond 2^53.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import TIME_OF_DAY
from dpsynth_platform.sources.declared_types import read_as, whole_as

SECOND = 1_000_000
_WORDS = 2**64
_LARGEST = 1e300


@dataclass(frozen=True)
class Steps:
    """Steps above a range's least value (uint64) or real numbers (float64); arbitrary where absent."""

    values: npt.NDArray[Any]
    absent: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Scale:
    """The steps of a kind of column; `ColumnDomain` documents the attributes."""

    kind: str
    decimals: int | None = None
    step: int = 1

    @property
    def whole(self) -> bool:
        return self.kind != "float" or self.decimals is not None

    def steps(self, column: pa.Array, low: float, high: float, points: npt.NDArray[np.float64] | None = None) -> Steps:
        """The values of a one-chunk Arrow column, clipped to [low, high] (in steps).

        `points` are real numbers, ascending, that must be recognized although a column of less than double precision
        rounds them.
        """
        if self.kind == "date":
            column = column.cast(pa.date32(), safe=False).cast(pa.int32())
        elif self.kind == "datetime":
            column = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64())
        elif self.kind == "time":
            column = _since_midnight(column)
        else:
            column = read_as(self.kind, column)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        absent = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        values = column.fill_null(0).to_numpy(zero_copy_only=False)
        if pa.types.is_integer(column.type) and self.whole:
            return Steps(_offsets(values // self.step if self.step > 1 else values, int(low), int(high)), absent)
        values = np.where(absent, 0.0, values.astype(np.float64))
        if self.kind == "integer":
            return Steps(_offsets_of_reals(np.floor(values), int(low), int(high)), absent)
        if self.decimals is not None:
            # Clipped far beyond any range, so that the product is finite: a warning would reveal an extreme value.
            values = np.clip(values, -_LARGEST / 10**self.decimals, _LARGEST / 10**self.decimals)
            return Steps(_offsets_of_reals(np.rint(values * 10**self.decimals), int(low), int(high)), absent)
        if points is not None and points.size and column.type.bit_width < 64:
            held = points.astype(column.type.to_pandas_dtype()).astype(np.float64)
            nearest = np.minimum(np.searchsorted(held, values), points.size - 1)
            values = np.where(held[nearest] == values, points[nearest], values)
        return Steps(np.clip(values, low, high), absent)

    def numbers(self, found: Steps, low: float) -> npt.NDArray[np.float64]:
        """Values in the column's own unit (days, microseconds), NaN where absent; `low` as in `steps`."""
        values = found.values.astype(np.float64)
        if self.whole:
            values = (values + float(low)) * self.step / 10 ** (self.decimals or 0)
        return np.where(found.absent, np.nan, values)

    def restored(
        self, values: npt.NDArray[Any], absent: npt.NDArray[np.bool_], type_: pa.DataType, low: int = 0
    ) -> pa.Array:
        """An Arrow column of the given type from real numbers, or from whole steps above `low` (uint64)."""
        if not self.whole:
            return pa.array(values, mask=absent).cast(type_)
        counted = values + np.uint64(low % _WORDS)
        if low < 0 or self.kind != "integer":
            counted = counted.view(np.int64)
        if self.kind == "integer":
            return whole_as(pa.array(counted, mask=absent), type_)
        if self.decimals is not None:
            reals = pa.array(counted / 10**self.decimals, mask=absent)
            if pa.types.is_decimal(type_) and type_.scale > self.decimals:
                # Further digits of the type would be those of double precision.
                reals = reals.cast(pa.decimal128(38, self.decimals))
            return reals.cast(type_)
        if self.kind == "date":
            return _days(pa.array(counted.astype(np.int32), mask=absent).cast(pa.date32()), type_)
        moments = pa.array(counted * self.step, mask=absent)
        if self.kind == "datetime":
            return moments.cast(pa.timestamp("us", type_.tz)).cast(type_, safe=False)
        times = moments.cast(pa.time64("us"))
        if pa.types.is_time(type_):
            return times.cast(type_, safe=False)
        length = 5 if self.step % (60 * SECOND) == 0 else 8 if self.step % SECOND == 0 else 12
        return pc.utf8_slice_codeunits(times.cast(pa.string()), 0, length).cast(type_)

    def shown(self, value: int) -> str:
        if self.kind == "date":
            return (dt.date(1970, 1, 1) + dt.timedelta(days=value)).isoformat()
        if self.kind in ("datetime", "time"):
            moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=value * self.step)
            return moment.isoformat(" ") if self.kind == "datetime" else moment.time().isoformat()
        return str(value) if self.decimals is None else f"{value / 10**self.decimals:.{self.decimals}f}"


def _offsets(values: npt.NDArray[Any], low: int, high: int) -> npt.NDArray[np.uint64]:
    """Integers clamped to the range, minus its least value; exact, since both are taken modulo 2^64."""
    wide = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64)
    limits = np.iinfo(wide.dtype)
    if high < limits.min or low > limits.max:  # no value of this type is inside
        return np.full(wide.size, high - low if high < limits.min else 0, dtype=np.uint64)
    clamped = np.clip(wide, max(low, limits.min), min(high, limits.max))
    return clamped.astype(np.uint64) - np.uint64(low % _WORDS)


def _offsets_of_reals(values: npt.NDArray[np.float64], low: int, high: int) -> npt.NDArray[np.uint64]:
    """The same for whole or infinite numbers in double precision."""
    inside = np.where((values > float(low)) & (values < float(high)), values, 0.0)
    negative = np.minimum(inside, 0).astype(np.int64).view(np.uint64)
    counted = negative + np.maximum(inside, 0).astype(np.uint64) - np.uint64(low % _WORDS)
    outside = np.where(values >= float(high), np.uint64(high - low), np.uint64(0))
    return np.where((values > float(low)) & (values < float(high)), counted, outside)


def _since_midnight(column: pa.Array) -> pa.Array:
    """Microseconds since midnight; null where a text is no time of day."""
    if pa.types.is_time(column.type):
        return column.cast(pa.time64("us"), safe=False).cast(pa.int64())
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    parts = pc.extract_regex(column.cast(pa.string()), TIME_OF_DAY)
    hours, minutes, seconds, fractions = (pc.struct_field(parts, name) for name in "hmsf")
    fractions = pc.utf8_slice_codeunits(pc.utf8_rpad(fractions, 7, "0"), 1)
    total = pc.multiply(pc.cast(hours, pa.int64()), 3600)
    total = pc.add(total, pc.multiply(pc.cast(minutes, pa.int64()), 60))
    seconds = pc.utf8_slice_codeunits(pc.utf8_rpad(seconds, 3, "0"), 1)
    total = pc.add(total, pc.cast(seconds, pa.int64()))
    return pc.add(pc.multiply(total, SECOND), pc.cast(fractions, pa.int64()))


def _days(days: pa.Array, type_: pa.DataType) -> pa.Array:
    """Days as dates, or as timestamps at midnight in the type's time zone."""
    if not pa.types.is_timestamp(type_) or type_.tz is None:
        return days.cast(type_)
    midnights = days.cast(pa.timestamp("us"))
    # Where clocks skip midnight, the day begins at the first moment after it.
    return pc.assume_timezone(midnights, type_.tz, ambiguous="earliest", nonexistent="latest").cast(type_)
