"""Must show: a table with 60 odd names and 43 types gives a synthetic table with the same names and types."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from column_names import NAMES

import dpsynth
from dpsynth_platform.one_table import Options, synthesize

ROWS = 60
INTEGER = {"type": "integer", "min": 0, "max": 9}
FLOAT = {"type": "float", "min": 0, "max": 9, "decimals": 1}
WORDS = {"type": "categorical", "values": ["a", "b"]}
CODES = {"type": "categorical", "values": ["1", "2"]}
DATE = {"type": "date", "min": "2026-01-01", "max": "2026-12-31"}
MOMENT = {"type": "datetime", "min": "2026-01-01T00:00:00", "max": "2026-12-31T00:00:00"}
TIME = {"type": "time", "min": "00:00", "max": "23:59"}
DAY, AT = dt.date(2026, 2, 3), dt.datetime(2026, 2, 3, 4, 5)
PLACE = pa.struct(
    [("no. 1", pa.int16()), ("at", pa.struct([("größe", pa.string_view()), ("photo", pa.list_(pa.int8()))]))]
)
FIELDS = {"no. 1": INTEGER, "at.größe": WORDS, "at.photo": {"type": "text"}}
"""Declarations of the fields of a struct."""
TYPES: list[tuple[pa.DataType, dict[str, Any], Any]] = [
    *[(type_, INTEGER, 3) for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())],
    *[(type_, INTEGER, 3) for type_ in (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())],
    *[(type_, FLOAT, 2.5) for type_ in (pa.float16(), pa.float32(), pa.float64())],
    *[(type_, FLOAT, Decimal("2.5")) for type_ in (pa.decimal32(5, 1), pa.decimal64(12, 1))],
    *[(type_, FLOAT, Decimal("2.5")) for type_ in (pa.decimal128(30, 1), pa.decimal256(60, 1))],
    *[(type_, WORDS, "a") for type_ in (pa.string(), pa.large_string(), pa.string_view())],
    (pa.dictionary(pa.int32(), pa.string()), WORDS, "a"),
    (pa.int16(), CODES, 1),
    (pa.bool_(), {"type": "boolean"}, True),
    (pa.date32(), DATE, DAY),
    (pa.timestamp("ms"), MOMENT, AT),
    (pa.timestamp("us", "Europe/Berlin"), MOMENT, AT),
    (pa.timestamp("ns", "UTC"), MOMENT, AT),
    *[(type_, TIME, AT.time()) for type_ in (pa.time32("ms"), pa.time64("us"), pa.time64("ns"))],
    (pa.timestamp("us"), DATE, AT),
    (pa.time32("s"), TIME, AT.time()),
    *[(type_, INTEGER, dt.timedelta(0)) for type_ in map(pa.duration, ("s", "ms", "us", "ns"))],
    *[(type_, INTEGER, Decimal(3)) for type_ in (pa.decimal128(18, 0), pa.decimal256(60, 0))],
    *[(type_, {"type": "boolean"}, "TRUE") for type_ in (pa.string(), pa.dictionary(pa.int32(), pa.string()))],
    *[(type_, {"type": "identifier"}, b"0123456789abcdef") for type_ in (pa.binary(16), pa.uuid(), pa.binary())],
    (pa.decimal128(18, 0), {"type": "identifier"}, Decimal(3)),
    (PLACE, FIELDS, {"no. 1": 3, "at": {"größe": "a", "photo": None}}),
]
"""A type of the table, its declaration, and a value. Parquet has no seconds: they come back as milliseconds."""
COLUMNS = [*NAMES, *(f"column no. {number}" for number in range(60 - len(NAMES)))]


def table() -> tuple[pa.Table, dict[str, Any]]:
    arrays: dict[str, pa.Array] = {}
    declared: dict[str, Any] = {}
    for place, name in enumerate(COLUMNS):
        type_, kind, value = TYPES[place % len(TYPES)]
        fields = {f"{name}.{field}": each for field, each in kind.items()} if kind is FIELDS else {name: kind}
        declared |= fields
        arrays[name] = pa.array([value] * ROWS, type_)
    return pa.table(arrays), declared


def wanted(type_: pa.DataType) -> pa.DataType:
    return pa.time32("ms") if type_ == pa.time32("s") else type_


def test_names_and_types_are_those_of_the_table(tmp_path: Path) -> None:
    assert (len(COLUMNS), len(TYPES)) == (60, 43)
    given, declared = table()
    expected = [(item.name, wanted(item.type)) for item in given.schema]

    pq.write_table(given, tmp_path / "table.parquet")
    options = Options(epsilon=9.0, delta=1e-6, method="independent", rows=20, schema={"columns": declared})
    made = synthesize(tmp_path / "table.parquet", tmp_path / "out", options)
    assert [(item.name, item.type) for item in pq.read_schema(made.synthetic)] == expected

    result = dpsynth.synthesize(
        given, tmp_path / "other", epsilon=9.0, delta=1e-6, method="independent", rows=20, columns=declared
    )
    assert [(item.name, item.type) for item in result.data.schema] == [(item.name, item.type) for item in given.schema]
