"""Structs are columns of their fields, in every format that has structs, and structs again where they are written."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from test_source import contract

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.scrub import check_source_schema
from dpsynth_platform.sources import source
from dpsynth_platform.sources.structs import (
    FlatTable,
    flat_batch,
    flat_schema,
    flat_table,
    nested_batch,
    nested_schema,
    shape_of,
)
from dpsynth_platform.sources.tables import open_table

AT = pa.struct([("day", pa.date32()), ("hour", pa.int32())])
VISIT = pa.struct([("id", pa.string()), ("at", AT), ("sick", pa.bool_()), ("tags", pa.list_(pa.string()))])


def visit(number: int, month: int) -> dict[str, Any]:
    at = {"day": dt.date(2026, month, 1), "hour": number}
    return {"id": f"p{number}", "at": at, "sick": number % 2 == 0, "tags": ["x"]}


ROWS = pa.table(
    {
        "number": pa.array([0, 1, 2, 3], pa.int64()),
        "visit": pa.array([visit(0, 1), None, {"id": "p2", "at": None}, visit(3, 2)], VISIT),
        "seen": pa.array([dt.date(2026, month, 9) for month in (1, 1, 2, 2)]),
    }
)
COLUMNS: dict[str, Any] = {
    "number": {"type": "integer", "min": 0, "max": 99},
    "visit.id": {"type": "identifier"},
    "visit.at.day": {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
    "visit.at.hour": {"type": "integer", "min": 0, "max": 23},
    "visit.sick": {"type": "boolean"},
    "visit.tags": {"ignore": True},
    "seen": {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
}
FLAT: dict[str, Any] = {
    "number": [0, 1, 2, 3],
    "visit.id": ["p0", None, "p2", "p3"],
    "visit.at.day": [dt.date(2026, 1, 1), None, None, dt.date(2026, 2, 1)],
    "visit.at.hour": [0, None, None, 3],
    "visit.sick": [True, None, None, False],
    "seen": ROWS["seen"].to_pylist(),
}


def parquet(root: Path, rows: pa.Table) -> dict[str, Any]:
    pq.write_table(rows, root / "rows.parquet", row_group_size=2)
    return {"format": "parquet", "uri": str(root / "rows.parquet")}


def directory(root: Path, rows: pa.Table) -> dict[str, Any]:
    for part in range(2):
        (root / "rows" / f"part={part}").mkdir(parents=True)
        pq.write_table(rows.slice(2 * part, 2), root / "rows" / f"part={part}" / "x.parquet")
    return {"format": "parquet", "uri": str(root / "rows")}


def delta(root: Path, rows: pa.Table) -> dict[str, Any]:
    write_deltalake(root / "table", rows)
    return {"uri": str(root / "table")}


def iceberg(root: Path, rows: pa.Table) -> dict[str, Any]:
    (root / "lake").mkdir()
    uri = f"sqlite:///{root / 'catalog.db'}"
    catalog = SqlCatalog("made", uri=uri, warehouse=str(root / "lake"))
    catalog.create_namespace("clinic")
    catalog.create_table("clinic.visits", rows.schema, properties={"format-version": "2"}).append(rows)
    catalog.close()
    return {"format": "iceberg", "catalog": "made", "table": "clinic.visits", "uri": uri}


def by_format(root: Path, made: Any, **changes: Any) -> DataContract:
    place = {**made(root, ROWS), "key": ["visit.id"], **changes.pop("source", {})}
    privacy = {
        "unit": "user",
        "owner_columns": ["visit.id"],
        "namespace": "person",
        "max_contributions": 1,
        "guarantee": {"epsilon": 1.0},
        "expected_units": 1000,
    }
    others = {"part": {"ignore": True}} if made is directory else {}
    return contract(root, source=place, privacy=privacy, **{"columns": COLUMNS | others} | changes)


def read(by: DataContract, root: Path, period: str | None = None) -> pa.Table:
    pinned = source.pin(by, root / "zone", register=True)
    check_source_schema(by, pinned.schema)
    kept = pa.schema([item for item in pinned.schema if item.name not in by.ignored])
    return pa.Table.from_batches(source.batches(pinned, by, period), kept)


@pytest.mark.parametrize("made", [parquet, directory, delta, iceberg])
def test_fields_of_structs_are_columns_in_every_format(tmp_path: Path, made: Any) -> None:
    by = by_format(tmp_path, made)
    found = read(by, tmp_path)
    assert found.to_pydict() == FLAT
    assert found.schema.types == [pa.int64(), pa.string(), pa.date32(), pa.int32(), pa.bool_(), pa.date32()]


@pytest.mark.parametrize("made", [parquet, directory, delta, iceberg])
@pytest.mark.parametrize("column", ["visit.at.day", "seen"])
def test_a_period_may_be_a_field_or_beside_structs(tmp_path: Path, made: Any, column: str) -> None:
    release = {"uri": "unused", "cadence": "monthly", "start": "2026-01", "time_zone": "UTC"}
    by = by_format(tmp_path, made, source={"period_column": column}, release=release)
    assert read(by, tmp_path, "2026-02")["number"].to_pylist() == ([3] if column == "visit.at.day" else [2, 3])


@pytest.mark.parametrize("made", [parquet, delta, iceberg])
def test_a_struct_that_is_declared_itself_is_no_columns(tmp_path: Path, made: Any) -> None:
    kinds = {"visit": {"ignore": True}, "seen": COLUMNS["seen"]}
    by = by_format(tmp_path, made)
    by = contract(
        tmp_path,
        source=by.source.model_dump(exclude_none=True) | {"key": ["number"]},
        privacy=by.model_dump()["privacy"] | {"owner_columns": ["number"]},
        columns=kinds | {"number": {"type": "identifier"}},
    )
    pinned = source.pin(by, tmp_path / "zone", register=True)
    assert pinned.schema.names == ["number", "visit", "seen"]
    assert pa.types.is_struct(pinned.schema.field("visit").type)
    assert read(by, tmp_path).to_pydict() == {name: FLAT[name] for name in ("number", "seen")}


def test_fields_that_are_not_declared_are_not_shown(tmp_path: Path) -> None:
    left = {name: kind for name, kind in COLUMNS.items() if name not in ("visit.at.hour", "visit.tags")}
    with pytest.raises(SourceError) as caught:
        read(by_format(tmp_path, parquet, columns=left), tmp_path)
    assert "not declared in the contract: 'visit' has fields, which are not shown" in str(caught.value)
    assert "hour" not in str(caught.value) and "tags" not in str(caught.value)


COLLISIONS = [
    pa.schema([("a", pa.struct([("b", pa.int8())])), ("a.b", pa.int8())]),
    pa.schema([("a", pa.struct([("b", pa.struct([("c", pa.int8())])), ("b.c", pa.int8())]))]),
    pa.schema([("a", pa.struct([("x", pa.int8()), ("x", pa.int8())]))]),
]


@pytest.mark.parametrize("schema", COLLISIONS, ids=str)
def test_a_field_with_the_name_of_another_column_is_refused(schema: pa.Schema) -> None:
    with pytest.raises(
        SourceError, match=r"the struct 'a' has .* not shown; accepted: distinct names, or 'a' declared"
    ):
        flat_schema(schema, ())
    assert flat_schema(schema, {"a"}) == schema


def test_only_the_structs_that_are_wanted_are_read(tmp_path: Path) -> None:
    wide = ROWS.append_column("other", pa.array([{"x": 1}] * 4)).append_column("photo", pa.array([b"x"] * 4))
    pq.write_table(wide, tmp_path / "t.parquet")
    asked: list[Any] = []

    class Table:
        schema = wide.schema

        def batches(self, columns: Any, **others: Any) -> Iterator[pa.RecordBatch]:
            asked.append(columns)
            return open_table(tmp_path / "t.parquet").batches(columns, **others)

    flat = FlatTable(Table(), ())  # type: ignore[arg-type]  # a double
    (batch,) = flat.batches(["visit.sick", "number"])
    assert asked == [["number", "visit"]] and batch.schema.names == ["visit.sick", "number"]


def test_what_is_written_back_has_the_shape_of_the_table() -> None:
    shape = ROWS.schema.append(pa.field("gone", pa.struct([("x", pa.int8())])))
    (batch,) = flat_table(ROWS).to_batches()
    left = batch.select([name for name in batch.schema.names if name not in ("visit.tags", "visit.at.hour")])
    found = nested_batch(left, shape)
    assert found.equals(nested_batch(left, shape_of(shape)))
    day = pa.struct([("day", pa.date32())])
    expected = pa.struct([("id", pa.string()), ("at", day), ("sick", pa.bool_())])
    assert (
        found.schema
        == nested_schema(left.schema, shape)
        == pa.schema([("number", pa.int64()), ("visit", expected), ("seen", pa.date32())])
    )
    assert found["visit"].to_pylist()[1:3] == [None, {"id": "p2", "at": None, "sick": None}]


def test_a_shape_has_names_and_nothing_else_of_the_table() -> None:
    """The number of categories and users' metadata stay out of the record of a run."""
    coded = pa.field("x", pa.dictionary(pa.int8(), pa.string()), metadata={"by": "Zaphodina"})
    schema = pa.schema([pa.field("a", pa.struct([coded]), False, {"by": "Zaphodina"}), coded], {"by": "Zaphodina"})
    shape = shape_of(schema)
    bare = pa.field("x", pa.null())
    expected = pa.schema([pa.field("a", pa.struct([bare]), nullable=False), bare])
    assert shape.equals(expected, check_metadata=True) and b"Zaphodina" not in shape.serialize().to_pybytes()


def test_a_struct_that_is_never_null_stays_so() -> None:
    inner = pa.struct([pa.field("x", pa.int8(), nullable=False), pa.field("y", pa.int8())])
    shape = pa.schema([pa.field("a", inner, nullable=False), pa.field("b", inner)])
    row = {"a": {"x": 1, "y": None}, "b": None}
    flat = flat_batch(pa.RecordBatch.from_pylist([row], shape), ())
    assert [item.nullable for item in flat.schema] == [False, True, True, True]
    back = nested_batch(flat, shape)
    assert back.to_pylist() == [row] and back.schema.field("a") == shape.field("a")
    back.validate(full=True)


leaves = st.sampled_from([pa.int8(), pa.string(), pa.bool_(), pa.list_(pa.int8()), pa.struct([])])
structs = st.recursive(
    leaves,
    lambda inner: st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, min_size=1, max_size=3).map(
        lambda parts: pa.struct(list(parts.items()))
    ),
    max_leaves=6,
)


def values_of(type_: pa.DataType) -> st.SearchStrategy[Any]:
    if pa.types.is_struct(type_):
        return st.none() | st.fixed_dictionaries({part.name: values_of(part.type) for part in type_})
    some = {pa.int8(): st.integers(0, 9), pa.string(): st.text(max_size=2), pa.bool_(): st.booleans()}
    return st.none() | some.get(type_, st.lists(st.integers(0, 9), max_size=2))


tables = st.lists(structs, min_size=1, max_size=3).flatmap(
    lambda types: st.lists(st.tuples(*map(values_of, types)), max_size=4).map(
        lambda rows: pa.RecordBatch.from_arrays(
            [pa.array([row[place] for row in rows], type_) for place, type_ in enumerate(types)],
            names=[f"c{place}" for place in range(len(types))],
        )
    )
)


def normal(value: Any) -> Any:
    """A value in which structs of nothing are null."""
    if not isinstance(value, dict) or not value:
        return value
    found = {name: normal(part) for name, part in value.items()}
    return None if all(part is None for part in found.values()) else found


@given(tables, st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_any_table_comes_back_but_for_structs_of_nothing(batch: pa.RecordBatch, start: int) -> None:
    batch = batch.slice(start)
    flat = flat_batch(batch, ())
    flat.validate(full=True)
    assert not [item for item in flat.schema if pa.types.is_struct(item.type) and item.type.num_fields]
    back = nested_batch(flat, batch.schema)
    back.validate(full=True)
    assert back.schema == batch.schema
    assert back.to_pylist() == [{name: normal(value) for name, value in row.items()} for row in batch.to_pylist()]
