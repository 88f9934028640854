"""Types as they come: every Arrow type that a file may have is read as one that the next step can store."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from test_source import contract

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.scrub.scrub import check_source_schema
from dpsynth_platform.sources import source
from dpsynth_platform.sources.csv_texts import values_of
from dpsynth_platform.sources.delta_types import kept
from dpsynth_platform.sources.tables import open_table

INTEGER = {"type": "integer", "min": 0, "max": 9}
FLOAT = {"type": "float", "min": 0, "max": 9}
WORDS = {"type": "categorical", "values": ["a", "b"]}
CODES = {"type": "categorical", "values": [1, 2]}
TRUTH = {"type": "boolean"}
ID = {"type": "identifier"}
DATE = {"type": "date", "min": "2026-01-01", "max": "2026-12-31"}
MOMENT = {"type": "datetime", "min": "2026-01-01T00:00:00", "max": "2026-12-31T00:00:00"}
TIME = {"type": "time", "min": "00:00", "max": "23:59"}
LARGE = 2**64 - 1
UUID = uuid.UUID("123e4567-e89b-12d3-a456-426614174000")
DAY, AT = dt.date(2026, 2, 3), dt.datetime(2026, 2, 3, 4, 5, 6)
UTC = AT.replace(tzinfo=dt.UTC)
WALL = dt.time(4, 5, 6)

CASES: list[tuple[dict[str, Any], pa.DataType, Any, pa.DataType, Any]] = [
    (INTEGER, pa.int8(), -128, pa.int8(), -128),
    (INTEGER, pa.uint8(), 255, pa.int16(), 255),
    (INTEGER, pa.uint16(), 65535, pa.int32(), 65535),
    (INTEGER, pa.uint32(), 2**32 - 1, pa.int64(), 2**32 - 1),
    (INTEGER, pa.uint64(), 2**53, pa.float64(), 2.0**53),
    (WORDS, pa.uint64(), LARGE, pa.string(), str(LARGE)),
    (ID, pa.uint64(), LARGE, pa.string(), str(LARGE)),
    (ID, pa.int64(), 2**63 - 1, pa.int64(), 2**63 - 1),
    (FLOAT, pa.float16(), 0.5, pa.float32(), 0.5),
    (FLOAT, pa.decimal32(5, 1), Decimal("1.5"), pa.decimal128(5, 1), Decimal("1.5")),
    (FLOAT, pa.decimal64(12, 2), Decimal("1.25"), pa.decimal128(12, 2), Decimal("1.25")),
    (FLOAT, pa.decimal128(38, 3), Decimal("1.125"), pa.decimal128(38, 3), Decimal("1.125")),
    (FLOAT, pa.decimal256(60, 3), Decimal("1.125"), pa.float64(), 1.125),
    (FLOAT, pa.decimal128(18, 0), Decimal(3), pa.decimal128(18, 0), Decimal(3)),
    *[
        (INTEGER, type_, Decimal(-3), pa.int64(), -3)
        for type_ in (pa.decimal32(5, 0), pa.decimal64(18, 0), pa.decimal128(18, 0), pa.decimal256(60, 0))
    ],
    (INTEGER, pa.decimal128(18, 0), Decimal(10**18 - 1), pa.int64(), 10**18 - 1),
    (INTEGER, pa.decimal128(38, 0), Decimal(10**38 - 1), pa.int64(), 2**63 - 1),
    (INTEGER, pa.decimal256(40, 0), Decimal(-(10**40) + 1), pa.int64(), -(2**63)),
    (CODES, pa.decimal128(18, 0), Decimal(2), pa.int64(), 2),
    (ID, pa.decimal128(18, 0), Decimal(10**18 - 1), pa.int64(), 10**18 - 1),
    (ID, pa.decimal128(38, 0), Decimal(10**38 - 1), pa.string(), str(10**38 - 1)),
    *[(INTEGER, pa.duration(unit), -7, pa.int64(), -7) for unit in ("s", "ms", "us", "ns")],
    *[(ID, type_, b"\x00\xff\x10", pa.string(), "00ff10") for type_ in (pa.binary(), pa.large_binary(), pa.binary(3))],
    (ID, pa.binary_view(), b"\x00\xff\x10", pa.string(), "00ff10"),
    (ID, pa.uuid(), UUID.bytes, pa.string(), str(UUID)),
    *[(TRUTH, pa.string(), word, pa.bool_(), True) for word in ("true", "TRUE", " True ", "1", "1.0")],
    *[(TRUTH, pa.large_string(), word, pa.bool_(), False) for word in ("false", "False", "0")],
    *[(TRUTH, pa.string_view(), word, pa.bool_(), None) for word in ("", "NA", "null")],
    (TRUTH, pa.dictionary(pa.int8(), pa.string()), "true", pa.bool_(), True),
    (WORDS, pa.large_string(), "a", pa.large_string(), "a"),
    (WORDS, pa.string_view(), "a", pa.string(), "a"),
    (WORDS, pa.dictionary(pa.int8(), pa.string()), "a", pa.string(), "a"),
    (INTEGER, pa.dictionary(pa.int32(), pa.int64()), 3, pa.int64(), 3),
    ({"type": "boolean"}, pa.bool_(), True, pa.bool_(), True),
    ({"type": "boolean"}, pa.null(), None, pa.bool_(), None),
    (INTEGER, pa.null(), None, pa.int64(), None),
    (DATE, pa.date64(), DAY, pa.date32(), DAY),
    *[(MOMENT, pa.timestamp(unit), AT, pa.timestamp("us"), AT) for unit in ("s", "ms", "us", "ns")],
    *[(MOMENT, pa.timestamp(unit, "UTC"), UTC, pa.timestamp("us", "UTC"), UTC) for unit in ("s", "ms", "us", "ns")],
    *[(TIME, type_, WALL, pa.string(), None) for type_ in (pa.time32("s"), pa.time32("ms"), pa.time64("us"))],
    (TIME, pa.time64("ns"), WALL, pa.string(), None),
]


@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kolkata"])
def test_nanoseconds_are_cut_off_on_both_sides_of_1970(zone: str | None) -> None:
    """As the digits of a text are; a cast alone rounds towards 1970."""
    numbers = [-(2**63), -1, -1_000, -1_001, 1_999, 2**63 - 1]
    nanoseconds = pa.array([*numbers, None], pa.int64()).cast(pa.timestamp("ns", zone))
    assert kept(nanoseconds).cast(pa.int64()).to_pylist() == [*(number // 1000 for number in numbers), None]
    texts = values_of(pa.array(["1969-12-31 23:59:59.999999999"]), pa.timestamp("us"))
    assert texts.cast(pa.int64()).to_pylist() == [-1]


@pytest.mark.parametrize("place", ["rows.parquet", "rows/0.parquet"])
def test_moments_of_96_bits_reach_as_far_as_those_of_64(tmp_path: Path, place: str) -> None:
    """As Hive, Impala and Spark wrote them, where the last day of 9999 is an open end."""
    moments = [dt.datetime(1, 1, 1), dt.datetime(1969, 12, 31, 23, 59, 59, 999999), None, dt.datetime(9999, 12, 31, 23)]
    table = pa.table({"person": list("abcd"), "until": pa.array(moments, pa.timestamp("us"))})
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    root = tmp_path / Path(place).parts[0]
    assert open_table(root).to_table().equals(table)
    source_ = {"format": "parquet", "uri": str(root), "key": ["person"]}
    by = contract(Path("x"), source=source_, columns={"person": ID, "until": MOMENT})
    pinned = source.pin(by, tmp_path / "zone", register=True)
    assert pa.Table.from_batches(source.batches(pinned, by, None)).equals(table)


def of_rows(tmp_path: Path, table: pa.Table, declared: dict[str, Any]) -> DataContract:
    pq.write_table(table, tmp_path / "rows.parquet")
    place = {"format": "parquet", "uri": str(tmp_path / "rows.parquet"), "key": ["person"]}
    return contract(Path("x"), source=place, columns={"person": ID, "a.b": declared, "c": {"type": "boolean"}})


@pytest.mark.parametrize(("declared", "type_", "value", "stored", "read"), CASES, ids=lambda each: str(each)[:40])
def test_a_type_is_read_as_one_that_can_be_stored(
    tmp_path: Path, declared: dict[str, Any], type_: pa.DataType, value: Any, stored: pa.DataType, read: Any
) -> None:
    table = pa.table({"person": ["p1", "p2"], "a.b": pa.array([value, None], type_), "c": [True, False]})
    by = of_rows(tmp_path, table, declared)
    pinned = source.pin(by, tmp_path / "zone", register=True)
    check_source_schema(by, pinned.schema)
    write_table(tmp_path / "out", pinned.schema, source.batches(pinned, by, None))
    found = pa.Table.from_batches(read_table(tmp_path / "out")).sort_by("person")
    assert pinned.schema.field("a.b").type == stored
    written = found.schema.field("a.b").type
    assert written == (pa.string() if stored == pa.large_string() else stored)
    first, second = found["a.b"].to_pylist()
    assert second is None
    if declared is TIME:
        assert first.removesuffix("000").startswith("04:05:06")
    else:
        assert first == read


REFUSED: list[tuple[dict[str, Any], pa.Array, str]] = [
    (TRUTH, pa.array(["true", "Zaphodina"]), "declared boolean, and some of its texts are neither true nor false; acc"),
    (TRUTH, pa.array(["yes", "no"]), "accepted: true, false, 1 or 0 (in any case), or type categorical with values"),
    (FLOAT, pa.array([1, 2], pa.duration("s")), "accepted: type integer, which is the number of its unit"),
    (WORDS, pa.array([b"a", b"b"]), "accepted: type identifier, for ids; or ignore: true, which leaves the column out"),
    (WORDS, pa.array([["a"], ["b"]]), "accepted: ignore: true, which leaves the column out"),
    (ID, pa.array([{"x": 1}, None]), "accepted: declarations of its fields instead, by names with dots such as"),
    (INTEGER, pa.array([Decimal("1.5"), None]), "duration or decimal of scale 0 (of others: type float)"),
]


@pytest.mark.parametrize(("declared", "values", "said"), REFUSED, ids=lambda each: str(each)[:40])
def test_other_values_are_refused_in_a_sentence_without_them(
    tmp_path: Path, declared: dict[str, Any], values: pa.Array, said: str
) -> None:
    by = of_rows(tmp_path, pa.table({"person": ["p1", "p2"], "a.b": values, "c": [True, False]}), declared)
    pinned = source.pin(by, tmp_path / "zone", register=True)
    with pytest.raises(SourceError) as caught:
        check_source_schema(by, pinned.schema)
        list(source.batches(pinned, by, None))
    assert "columns.a.b: declared" in str(caught.value) and said in str(caught.value)
    assert "Zaphodina" not in str(caught.value) and caught.value.__context__ is None


def test_a_delta_tables_columns_are_read_as_declared_and_no_other_way(tmp_path: Path) -> None:
    ids, day = pa.array([b"\x01", b"\x02"]), pa.array([dt.date(2026, 1, 1), None])
    rows = {"person": ids, "flag": ["true", "0"], "count": pa.array([Decimal(3), None], pa.decimal128(18, 0))}
    write_deltalake(tmp_path / "t", pa.table(rows | {"day": day, "small": pa.array([1, 2], pa.int8())}))
    kinds = {"person": ID, "flag": TRUTH, "count": INTEGER, "day": DATE, "small": INTEGER}
    by = contract(tmp_path / "t", columns=kinds)
    pinned = source.pin(by, tmp_path / "zone")
    check_source_schema(by, pinned.schema)
    assert pinned.schema.types == [pa.string(), pa.bool_(), pa.int64(), pa.date32(), pa.int8()]
    (batch,) = source.batches(pinned, by, None)
    assert batch.schema.equals(pinned.schema)
    assert batch.to_pydict() == {
        "person": ["01", "02"],
        "flag": [True, False],
        "count": [3, None],
        "day": day.to_pylist(),
        "small": [1, 2],
    }
