"""Must show: a table of any Arrow types and names is read as declared, or refused in a sentence. Nothing else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from column_names import any_name
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_source import contract

from dpsynth_platform.foundation.errors import DpsynthError
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.one_table import Options
from dpsynth_platform.one_table.task import task_of
from dpsynth_platform.scrub.scrub import check_source_schema
from dpsynth_platform.sources import source
from dpsynth_platform.sources.structs import flat_schema

_UNITS = ("s", "ms", "us", "ns")
PLAIN = [
    *(make() for make in (pa.null, pa.bool_, pa.int8, pa.int16, pa.int32, pa.int64)),
    *(make() for make in (pa.uint8, pa.uint16, pa.uint32, pa.uint64, pa.float16, pa.float32, pa.float64)),
    *(make() for make in (pa.string, pa.large_string, pa.string_view, pa.binary, pa.large_binary, pa.binary_view)),
    *(make() for make in (pa.date32, pa.date64, pa.month_day_nano_interval)),
    *(pa.timestamp(unit, zone) for unit in _UNITS for zone in (None, "UTC", "Europe/Berlin", "+01:30")),
    *(pa.duration(unit) for unit in _UNITS),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.binary(3)),
    *(pa.decimal32(5, 0), pa.decimal64(12, 2), pa.decimal128(38, 0), pa.decimal128(5, -2), pa.decimal256(76, 10)),
]
types = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(lambda type_: pa.list_(type_, 2)),
        inner.map(lambda type_: pa.map_(pa.string(), type_)),
        inner.map(lambda type_: pa.dictionary(pa.int8(), type_) if not pa.types.is_nested(type_) else type_),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda found: pa.struct([(f"f{place}", type_) for place, type_ in enumerate(found)])
        ),
    ),
    max_leaves=3,
)
declarations = st.sampled_from(
    [
        {"type": "identifier"},
        {"type": "integer", "min": 0, "max": 9},
        {"type": "float", "min": 0, "max": 9},
        {"type": "categorical", "values": ["a", "1"]},
        {"type": "boolean"},
        {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
        {"type": "datetime", "min": "2026-01-01T00:00:00", "max": "2026-12-31T00:00:00"},
        {"type": "time", "min": "00:00", "max": "23:59"},
        {"type": "text", "pii": "drop"},
        {"ignore": True},
    ]
)
kinds = st.lists(declarations, min_size=3, max_size=3)
columns = st.lists(st.tuples(any_name, types, kinds), min_size=1, max_size=4, unique_by=lambda each: each[0])
Columns = list[tuple[str, pa.DataType, list[dict[str, Any]]]]


def table_of(found: Columns) -> pa.Table | None:
    """Rows of nulls, which every type has; None for types that Arrow itself does not make."""
    try:
        columns = {name: pa.nulls(3, type_) for name, type_, _ in found}
        return pa.table(columns | {"person": ["a", "b", "c"], "sick": [True, False, None]})
    except (pa.ArrowException, NotImplementedError):
        return None


def declared_of(found: Columns) -> dict[str, Any]:
    """Declarations of the columns: of structs, each by its fields if they get different ones."""
    declared: dict[str, Any] = {}
    for name, type_, own in found:
        fields = [name] if own[0] == own[1] else [item.name for item in flat_schema(pa.schema([(name, type_)]), ())]
        declared |= dict(zip(fields, own, strict=False))
    return declared


def check_refusal(error: DpsynthError) -> None:
    assert all(line and len(line) < 2000 for line in str(error).split("\n"))


@given(columns)
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
def test_any_table_is_planned_or_refused(found: Columns) -> None:
    table = table_of(found)
    if table is None:
        return
    declared = declared_of(found) | {"person": {"type": "identifier"}, "sick": {"type": "boolean"}}
    try:
        task_of(table, Options(epsilon=1, delta=1e-6, method="independent", schema={"columns": declared}))
    except DpsynthError as error:
        check_refusal(error)


@given(columns)
@settings(max_examples=100, suppress_health_check=list(HealthCheck))
def test_any_file_is_read_or_refused(found: Columns) -> None:
    table = table_of(found)
    if table is None:
        return
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        try:
            pq.write_table(table, place / "rows.parquet")
        except (pa.ArrowException, NotImplementedError, OSError):  # Parquet has no such type
            return
        columns = declared_of(found)
        try:
            by = contract(
                Path("x"),
                source={"format": "parquet", "uri": str(place / "rows.parquet"), "key": ["person"]},
                columns=columns | {"person": {"type": "identifier"}, "sick": {"type": "boolean"}},
            )
            pinned = source.pin(by, place / "zone", register=True)
            check_source_schema(by, pinned.schema)
        except DpsynthError as error:
            check_refusal(error)
            return
        read = pa.schema([item for item in pinned.schema if item.name not in by.ignored])
        write_table(place / "out", read, source.batches(pinned, by, None))
        assert sum(batch.num_rows for batch in read_table(place / "out")) == 3
