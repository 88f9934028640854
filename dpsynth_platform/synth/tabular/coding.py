"""The cells of records in SQL, with the same codes as `domain`, for engines that count where the rows are.

What belongs here: SQL from public domains that both engines evaluate equally (`compute.engine`). What does not: the
definition of codes (`domain`, `scales`; tests compare both), and counting (`sql_counting`).

Codes must agree for every record, or a count would depend on the engine. So nothing is rounded: the cell of a value is
the number of inner edges that it is not below. Both engines compare whole numbers, dates and doubles exactly. Decimals,
times as text and numbers as text have no such SQL.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dpsynth_platform.compute.engine import quoted
from dpsynth_platform.contracts.columns import WHOLE_NUMBER
from dpsynth_platform.synth.tabular.derivation import DAY, MONDAY, WEEK, Derivation, Span
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain

_CODED_SQL = "SELECT {cells} FROM (SELECT {values} FROM bounded {joins}) AS compared"
_WHOLE = 2**51
"""Up to here, halves are exact in double precision."""
_LARGEST = 2**63 - 1
_EXACT = 2**53


@dataclass(frozen=True)
class Coding:
    """Cell codes of a table's records by a query over the table `bounded` and further `tables`.

    Its columns are `_0`, `_1`, ... with each column's cell, and `extra` columns.
    """

    sql: str
    tables: dict[str, pa.Table]


def coding_of(domain: Domain, schema: pa.Schema, extra: Sequence[str] = ()) -> Coding | None:
    """The cells of a Delta table's records, with `extra` columns; None if SQL cannot express all cells exactly."""
    cells: list[str] = []
    values: list[str] = []
    joins: list[str] = []
    tables: dict[str, pa.Table] = {}
    for index, column in enumerate(domain):
        name = f"bounded.{quoted(column.name)}"
        if column.kind == "categorical":
            type_ = schema.field(column.name).type
            numbers = pa.types.is_floating(type_) and type_.bit_width >= 32
            listed = _listed(column, numbers=numbers)
            if listed is None or not (
                numbers or pa.types.is_string(type_) or pa.types.is_integer(type_) or pa.types.is_boolean(type_)
            ):
                return None
            tables[f"values_{index}"] = listed
            value = f"CAST({name} AS {'DOUBLE' if numbers else 'STRING'})"
            joins.append(f"LEFT JOIN values_{index} ON {value} = values_{index}.value")
            values.append(f"values_{index}.cell AS _{index}")
            cells.append(f"CASE WHEN _{index} IS NULL THEN {column.missing} ELSE _{index} END AS _{index}")
            continue
        derived = column.derived
        number = _derived(derived, schema) if derived else _number(column, name, schema.field(column.name).type)
        if number is None:
            return None
        values.append(f"{number.sql} AS _{index}")
        cells.append(f"{_cell(column, number, f'_{index}')} AS _{index}")
    kept = [quoted(name) for name in extra]
    values += [f"bounded.{name}" for name in kept]
    sql = _CODED_SQL.format(cells=", ".join([*cells, *kept]), values=", ".join(values), joins=" ".join(joins))
    return Coding(sql, tables)


@dataclass(frozen=True)
class _Number:
    """A column as SQL compares it.

    Attributes:
        sql: the value.
        below: SQL for "a value is below an inner edge", from the value's SQL and the edge.
        real: whether it may be NaN.
        exactly: values, with their cells, for which the comparison with edges would be wrong.
    """

    sql: str
    below: Callable[[str, float], str]
    real: bool = False
    exactly: tuple[tuple[float, int], ...] = ()


def _number(column: ColumnDomain, name: str, type_: pa.DataType) -> _Number | None:
    """How a column that is not categorical is compared; None if that is not exact."""
    largest = max(abs(edge) for edge in column.edges) if column.edges else 0
    if column.kind == "boolean":
        return _Number(name, lambda value, edge: f"NOT {value}") if pa.types.is_boolean(type_) else None
    if column.kind == "integer" and pa.types.is_signed_integer(type_):
        return _Number(f"CAST({name} AS BIGINT)", _below_whole)
    if column.kind in ("integer", "float") and pa.types.is_floating(type_) and type_.bit_width >= 32:
        double = f"CAST({name} AS DOUBLE)"
        if column.kind == "float" and column.decimals is None:
            return _Number(double, _below_real, real=True, exactly=_held(column, type_))
        if largest > _WHOLE:
            return None
        if column.decimals is None:
            return _Number(double, _below_real, real=True)
        return _Number(f"{double} * 1e{column.decimals}", _below_rounded, real=True)
    if column.kind == "date" and pa.types.is_date32(type_):
        return _Number(name, lambda value, edge: f"{value} < DATE '{_date(int(edge))}'")
    if column.kind in ("date", "datetime") and _is_moment(type_):
        step = DAY if column.kind == "date" else column.step
        moment = f"unix_micros(CAST({name} AS TIMESTAMP))"
        return _Number(moment, lambda value, edge: _below_whole(value, int(edge) * step))
    return None


def _is_moment(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) and type_.unit == "us" and type_.tz in (None, "UTC"))


def _derived(derived: Derivation, schema: pa.Schema) -> _Number | None:
    """An attribute of moments in microseconds: into a week or a day, or of a gap."""
    read = [_moment(span, schema.field(span.column).type) for span in (derived.of, *derived.after)]
    moments = [moment for moment in read if moment is not None]
    if len(moments) < len(read):
        return None
    moment = moments[0]
    missing = _missing(derived.of)
    if derived.what != "gap":
        length, unit = (DAY, derived.width) if derived.what == "hour" else (WEEK, DAY)
        value = f"CASE WHEN {missing} THEN NULL ELSE {_remainder(f'({moment} - ({MONDAY}))', length)} END"
        return _Number(value, lambda value, edge: _below_whole(value, int(edge) * unit))
    step = _micros(derived.of)
    since = "".join(
        f" WHEN NOT {_missing(span)} THEN {moment} - ({_least(earlier, step, strict=derived.strict)})"
        for span, earlier in zip(derived.after, moments[1:], strict=True)
    )
    alone = "NULL" if derived.alone is None else str(derived.alone * step)
    value = f"CASE WHEN {missing} THEN NULL{since} ELSE {alone} END"
    return _Number(value, lambda value, edge: _below_whole(value, int(edge) * step))


def _missing(span: Span) -> str:
    return f"bounded.{quoted(span.column)} IS NULL"


def _micros(span: Span) -> int:
    return DAY if span.kind == "date" else span.step


def _moment(span: Span, type_: pa.DataType) -> str | None:
    """A column in microseconds, inside of its range and in whole steps; None if SQL cannot express it exactly."""
    is_date = span.kind == "date" and pa.types.is_date32(type_)
    if not is_date and not (span.kind in ("date", "datetime") and _is_moment(type_)):
        return None
    step, name = _micros(span), f"bounded.{quoted(span.column)}"
    if is_date:  # before the cast: dates have a larger range than moments
        name = f"least(greatest({name}, DATE '{_date(span.low)}'), DATE '{_date(span.high)}')"
    inside = f"least(greatest(unix_micros(CAST({name} AS TIMESTAMP)), {span.low * step}), {(span.high + 1) * step - 1})"
    return inside if step == 1 else f"({inside} - {_remainder(inside, step)})"


def _least(earlier: str, step: int, *, strict: bool) -> str:
    if strict:
        return f"{earlier} - {_remainder(earlier, step)} + {step}"
    return f"{earlier} + {_remainder(f'(0 - {earlier})', step)}"


def _remainder(value: str, length: int) -> str:
    """Never negative; `%` alone has the sign of the dividend in both engines."""
    return f"(({value} % {length} + {length}) % {length})"


def _below_whole(value: str, edge: float) -> str:
    """An edge beyond 64 bits exceeds every value."""
    return f"{value} < {int(edge)}" if edge <= _LARGEST else "TRUE"


def _below_real(value: str, edge: float) -> str:
    return f"{value} < {_real(edge)}"


def _below_rounded(value: str, edge: float) -> str:
    """Whether the nearest whole number is below; halves round to even."""
    return f"{value} {'<=' if int(edge) % 2 else '<'} {_real(edge - 0.5)}"


def _real(value: float) -> str:
    """A literal that both engines read as double precision, not as a decimal."""
    text = repr(float(value))
    return text if "e" in text else f"{text}e0"


def _date(days: int) -> str:
    return (dt.date(1970, 1, 1) + dt.timedelta(days=days)).isoformat()


def _held(column: ColumnDomain, type_: pa.DataType) -> tuple[tuple[float, int], ...]:
    """Points as rounded by a column of less than double precision, with their cells; see `Scale.steps`."""
    if type_.bit_width == 64:
        return ()
    points = np.asarray(column.edges[:-1])[column.widths == 0]
    held: dict[float, int] = {}
    for point in points:
        held.setdefault(float(np.float32(point)), int(np.searchsorted(column.edges[:-1], point, side="right")) - 1)
    return tuple(held.items())


def _cell(column: ColumnDomain, number: _Number, value: str) -> str:
    missing = f"{value} IS NULL" + (f" OR isnan({value})" if number.real else "")
    inner = [1.0] if column.kind == "boolean" else list(column.edges[1:-1])
    exactly = "".join(f" WHEN {value} = {_real(held)} THEN {cell}" for held, cell in number.exactly)
    return f"CASE WHEN {missing} THEN {column.missing}{exactly} ELSE {_among(number, value, inner, 0)} END"


def _among(number: _Number, value: str, edges: Sequence[float], first: int) -> str:
    """The cell of a value among cells from `first` on, by binary search."""
    if not edges:
        return str(first)
    middle = len(edges) // 2
    below = _among(number, value, edges[:middle], first)
    above = _among(number, value, edges[middle + 1 :], first + middle + 1)
    return f"CASE WHEN {number.below(value, edges[middle])} THEN {below} ELSE {above} END"


def _listed(column: ColumnDomain, *, numbers: bool) -> pa.Table | None:
    """The listed values with their cells; as `numbers`, None unless each is a whole number in double precision."""
    cells = np.arange(len(column.values), dtype=np.int32)
    values = pa.array(column.values, pa.string())
    if numbers:
        whole = [int(value) for value in column.values if WHOLE_NUMBER.fullmatch(value)]
        if len(whole) < len(column.values) or max(map(abs, whole), default=0) > _EXACT:
            return None
        values = pa.array(whole, pa.int64()).cast(pa.float64())
    return pa.table({"value": values, "cell": cells})
