"""Features of the Delta protocol: each is honoured, with the right rows, or refused by its name."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from delta_cases import (
    add,
    commit,
    deleted,
    deleted_in_file,
    field,
    mapped,
    metadata,
    numbered,
    protocol,
    remove,
)
from deltalake import DeltaTable, write_deltalake

import dpsynth_platform
from dpsynth_platform.bounding.ownership import write_ownership
from dpsynth_platform.drafting.draft import drafted
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.quality.files import read_file
from dpsynth_platform.sources.delta import DeltaProblem, open_delta
from dpsynth_platform.sources.periods import period_span
from dpsynth_platform.sources.table_files import open_source
from dpsynth_platform.sources.tables import open_table

TEN = pa.table({"n": pa.array(range(10))})
NAME = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
ID = NAME | {"delta.columnMapping.mode": "id"}
RENAMED = [mapped("person", "string", 1, "name"), mapped("n", "long", 2, "col-2")]


def rows(root: Path, version: int | None = None) -> dict[str, list[Any]]:
    return dict(open_delta(str(root), version).table.to_table().to_pydict())


def refusal(root: Path) -> str:
    with pytest.raises(SourceError) as caught:
        open_table(root)
    assert caught.value.__context__ is None
    return str(caught.value)


@pytest.mark.parametrize("said", [protocol(minReaderVersion=2, minWriterVersion=5), protocol(["columnMapping"])])
def test_renamed_columns_have_their_values(tmp_path: Path, said: dict[str, Any]) -> None:
    stored = pa.table({"name": ["a", "b"], "col-2": [1, 2], "left over": ["x", "y"]})
    root = commit(tmp_path / "t", 0, said, metadata(RENAMED, **NAME), add(tmp_path / "t", "a.parquet", stored))
    assert open_delta(str(root)).table.schema.names == ["person", "n"]
    assert rows(root) == {"person": ["a", "b"], "n": [1, 2]}


def test_columns_by_number_are_found_whatever_files_call_them(tmp_path: Path) -> None:
    fields, arrays = zip(numbered("zzz", 2, pa.array([1, 2])), numbered("yyy", 1, pa.array(["a", "b"])), strict=True)
    stored = pa.Table.from_arrays(list(arrays), schema=pa.schema(fields))
    root = tmp_path / "t"
    said = protocol(["columnMapping"])
    commit(root, 0, said, metadata(RENAMED, **ID), add(root, "a.parquet", stored))
    assert rows(root) == {"person": ["a", "b"], "n": [1, 2]}


def test_columns_by_number_of_a_file_without_numbers_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "t"
    stored = add(root, "a.parquet", pa.table({"name": ["a"], "col-2": [1]}))
    commit(root, 0, protocol(["columnMapping"]), metadata(RENAMED, **ID), stored)
    with pytest.raises(pa.ArrowInvalid, match="no column numbers"):
        rows(root)


def test_a_nested_column_with_mapped_names_is_refused_alone(tmp_path: Path) -> None:
    inner = {"type": "struct", "fields": [mapped("street", "string", 4, "s")]}
    fields = [*RENAMED, mapped("home", inner, 3, "h")]
    root = tmp_path / "t"
    stored = pa.table({"name": ["a"], "col-2": [1], "h": [{"s": "MARK"}]})
    commit(root, 0, protocol(["columnMapping"]), metadata(fields, **NAME), add(root, "a.parquet", stored))
    table = open_delta(str(root)).table
    assert [batch.to_pydict() for batch in table.batches(["n", "person"])] == [{"n": [1], "person": ["a"]}]
    with pytest.raises(SourceError, match="column 'home': is nested, in a Delta table with columnMapping"):
        table.to_table()


def test_mapping_that_the_protocol_does_not_have(tmp_path: Path) -> None:
    said = protocol(minReaderVersion=1, minWriterVersion=2)
    stored = add(tmp_path / "t", "a.parquet", pa.table({"name": ["a"], "col-2": [1]}))
    root = commit(tmp_path / "t", 0, said, metadata(RENAMED, **NAME), stored)
    assert "has delta.columnMapping.mode 'name', and its protocol does not have columnMapping" in refusal(root)


def test_mapping_without_names_is_refused(tmp_path: Path) -> None:
    stored = add(tmp_path / "t", "a.parquet", pa.table({"name": ["a"]}))
    root = commit(tmp_path / "t", 0, protocol(["columnMapping"]), metadata([field("person", "string")], **NAME), stored)
    assert "the Delta table cannot be read" in refusal(root)


def test_partition_columns_of_a_mapped_table(tmp_path: Path) -> None:
    root = tmp_path / "t"
    fields = [mapped("person", "string", 1, "name"), mapped("day", "date", 2, "d"), mapped("at", "timestamp", 3, "t")]
    there = {"partitionValues": {"d": "2026-01-31", "t": "2026-01-31 10:00:00"}}
    absent = {"partitionValues": {"d": None, "t": None}}
    commit(
        root,
        0,
        protocol(["columnMapping"]),
        metadata(fields, ["day", "at"], **NAME),
        add(root, "a b%.parquet", pa.table({"name": ["a", "b"]}), path="a%20b%25.parquet", **there),
        add(root, "b.parquet", pa.table({"name": ["c"]}), **absent),
    )
    moment = dt.datetime(2026, 1, 31, 10, tzinfo=dt.UTC)
    found = sorted(open_delta(str(root)).table.to_table().to_pylist(), key=lambda row: str(row["person"]))
    assert [(row["person"], row["day"], row["at"]) for row in found] == [
        ("a", dt.date(2026, 1, 31), moment),
        ("b", dt.date(2026, 1, 31), moment),
        ("c", None, None),
    ]


def test_a_period_by_a_partition_column_of_a_mapped_table(tmp_path: Path) -> None:
    root = tmp_path / "t"
    fields = [mapped("n", "long", 1, "number"), mapped("day", "date", 2, "d")]
    days = ["2026-01-31", "2026-02-01", None]
    files = [
        add(root, f"{number}.parquet", pa.table({"number": [number]}), partitionValues={"d": day})
        for number, day in enumerate(days)
    ]
    commit(root, 0, protocol(["columnMapping"]), metadata(fields, ["day"], **NAME), *files)
    table = open_delta(str(root)).table
    batches = table.batches(span=period_span("day", pa.date32(), "2026-02", "UTC"))
    assert [n for batch in batches for n in batch["n"].to_pylist()] == [1]


def test_deleted_rows_are_gone(tmp_path: Path) -> None:
    root = tmp_path / "t"
    said = protocol(["deletionVectors"])
    big = pa.table({"n": pa.array(range(100, 110))})
    commit(root, 0, said, metadata([field("n", "long")]), add(root, "a b.parquet", TEN, path="a%20b.parquet"))
    commit(root, 1, add(root, "b.parquet", big), add(root, "c.parquet", TEN, **deleted(0, 9)))
    place = add(root, "a b.parquet", TEN, path="a%20b.parquet")["add"]
    place |= deleted_in_file(root, 1, 3)
    commit(root, 2, remove("a%20b.parquet"), {"add": place})
    assert sorted(rows(root)["n"]) == sorted([0, 2, *range(4, 10), *range(100, 110), *range(1, 9)])
    assert sorted(rows(root, 0)["n"]) == list(range(10))
    # The library's own engine agrees.
    own = pa.RecordBatchReader.from_stream(DeltaTable(str(root)).scan()).read_all()["n"].to_pylist()
    assert sorted(own) == sorted(rows(root)["n"])


def test_deleted_rows_of_many_row_groups_and_batches(tmp_path: Path) -> None:
    root = tmp_path / "t"
    table = pa.table({"n": pa.array(range(1000))})
    gone = [0, 99, 100, 101, 550, 999]
    place = add(root, "a.parquet", table, **deleted(*gone))
    pq.write_table(table, root / "a.parquet", row_group_size=100)
    place["add"]["size"] = (root / "a.parquet").stat().st_size
    commit(root, 0, protocol(["deletionVectors"]), metadata([field("n", "long")]), place)
    batches = list(open_delta(str(root)).table.batches(most_rows=7))
    assert max(batch.num_rows for batch in batches) == 7
    assert [n for batch in batches for n in batch["n"].to_pylist()] == [n for n in range(1000) if n not in gone]


def test_deletions_of_renamed_columns(tmp_path: Path) -> None:
    root = tmp_path / "t"
    stored = pa.table({"name": ["a", "b", "c"], "col-2": [1, 2, 3]})
    said = protocol(["columnMapping", "deletionVectors"])
    commit(root, 0, said, metadata(RENAMED, **NAME), add(root, "a.parquet", stored, **deleted(1)))
    assert rows(root) == {"person": ["a", "c"], "n": [1, 3]}


def test_a_damaged_deletion_vector_brings_no_row_back(tmp_path: Path) -> None:
    root = tmp_path / "t"
    vector = deleted(1)
    vector["deletionVector"]["pathOrInlineDv"] = vector["deletionVector"]["pathOrInlineDv"][::-1]
    stored = add(root, "a.parquet", TEN, **vector)
    commit(root, 0, protocol(["deletionVectors"]), metadata([field("n", "long")]), stored)
    assert "the Delta table cannot be read (DeltaError)" in refusal(root)


@pytest.mark.parametrize("other", ["typeWidening", "vacuumProtocolCheck"])
def test_deletions_with_what_the_library_does_not_read(tmp_path: Path, other: str) -> None:
    root = tmp_path / "t"
    said = protocol(["deletionVectors", other])
    commit(root, 0, said, metadata([field("n", "long")]), add(root, "a.parquet", TEN, **deleted(1)))
    assert f"has deletionVectors together with {other}, which is not supported; accepted: either" in refusal(root)


@pytest.mark.parametrize("feature", ["typeWidening", "typeWidening-preview"])
def test_types_that_were_widened(tmp_path: Path, feature: str) -> None:
    root = tmp_path / "t"
    changes = {"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}
    days = {"delta.typeChanges": [{"fromType": "date", "toType": "timestamp_ntz"}]}
    fields = [field("n", "long", **changes), field("x", "double"), field("day", "timestamp_ntz", **days)]
    old = pa.table({"n": pa.array([7], pa.int32()), "x": pa.array([0.5], pa.float32()), "day": [dt.date(2026, 1, 31)]})
    new = pa.table({"n": [2**40], "x": [0.1], "day": pa.array([dt.datetime(2026, 2, 1, 12)], pa.timestamp("us"))})
    files = add(root, "a.parquet", old), add(root, "b.parquet", new)
    commit(root, 0, protocol([feature, "timestampNtz"]), metadata(fields), *files)
    found = sorted(open_delta(str(root)).table.to_table().to_pylist(), key=lambda row: int(row["n"]))
    assert found == [
        {"n": 7, "x": 0.5, "day": dt.datetime(2026, 1, 31)},
        {"n": 2**40, "x": 0.1, "day": dt.datetime(2026, 2, 1, 12)},
    ]


def test_a_version_two_checkpoint(tmp_path: Path) -> None:
    """Commits before the checkpoint are gone, and its file actions stand in a sidecar."""
    root = tmp_path / "t"
    said, about = protocol(["v2Checkpoint"]), metadata([field("n", "long")])
    first, second = add(root, "a.parquet", TEN), add(root, "b.parquet", pa.table({"n": [77]}))
    log = root / "_delta_log"
    (log / "_sidecars").mkdir(parents=True)
    kinds = pa.struct(
        [
            ("path", pa.string()),
            ("partitionValues", pa.map_(pa.string(), pa.string())),
            ("size", pa.int64()),
            ("modificationTime", pa.int64()),
            ("dataChange", pa.bool_()),
            ("stats", pa.string()),
        ]
    )
    actions = pa.array([first["add"] | {"partitionValues": [], "dataChange": False}], kinds)
    side = log / "_sidecars" / "3a0d65cd-4056-49b8-937b-95f9e3ee90e5.parquet"
    pq.write_table(pa.table({"add": actions}), side)
    sidecar = {"path": side.name, "sizeInBytes": side.stat().st_size, "modificationTime": 0, "tags": {}}
    checkpoint = [{"checkpointMetadata": {"version": 1}}, said, about, {"sidecar": sidecar}]
    name = f"{1:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (log / name).write_text("".join(f"{json.dumps(action)}\n" for action in checkpoint))
    commit(root, 2, second)
    assert sorted(rows(root)["n"]) == [*range(10), 77]
    assert sorted(rows(root, 1)["n"]) == list(range(10))


def test_moments_without_a_time_zone(tmp_path: Path) -> None:
    root = tmp_path / "t"
    moments = [dt.datetime(2026, 1, 31, 23, 59, 59, 999999), None]
    stored = pa.table({"at": pa.array(moments, pa.timestamp("us"))})
    said = protocol(["timestampNtz"])
    commit(root, 0, said, metadata([field("at", "timestamp_ntz")]), add(root, "a.parquet", stored))
    assert open_delta(str(root)).table.schema.field("at").type == pa.timestamp("us")
    assert rows(root) == {"at": moments}


WRITERS_ALONE = (
    "appendOnly",
    "invariants",
    "checkConstraints",
    "changeDataFeed",
    "generatedColumns",
    "allowColumnDefaults",
    "identityColumns",
    "inCommitTimestamp",
    "rowTracking",
    "domainMetadata",
    "clustering",
    "icebergCompatV1",
    "icebergCompatV2",
    "somethingThatWritersMustKnow",
)


@pytest.mark.parametrize("feature", WRITERS_ALONE)
def test_what_only_writers_must_know_leaves_rows_as_they_are(tmp_path: Path, feature: str) -> None:
    root = tmp_path / "t"
    about = {
        "delta.identity.start": 1,
        "delta.identity.step": 1,
        "delta.generationExpression": "1",
        "delta.invariants": json.dumps({"expression": {"expression": "n >= 0"}}),
    }
    configuration = {"delta.constraints.positive": "n >= 0", "delta.enableChangeDataFeed": "true"}
    changes = root / "_change_data"
    changes.mkdir(parents=True)
    pq.write_table(pa.table({"n": [99], "_change_type": ["insert"]}), changes / "cdc-0.parquet")
    size = (changes / "cdc-0.parquet").stat().st_size
    commit(
        root,
        0,
        {"commitInfo": {"inCommitTimestamp": 1, "timestamp": 1, "operation": "WRITE"}},
        protocol((), [feature]),
        metadata([field("n", "long", **about)], **configuration),
        add(root, "a.parquet", TEN, baseRowId=0, defaultRowCommitVersion=0),
        {"domainMetadata": {"domain": "delta.rowTracking", "configuration": "{}", "removed": False}},
        {"cdc": {"path": "_change_data/cdc-0.parquet", "partitionValues": {}, "size": size, "dataChange": False}},
    )
    assert rows(root) == {"n": list(range(10))}


@pytest.mark.parametrize("feature", ["variantType", "variantType-preview"])
def test_variants_are_refused_where_a_column_is_one(tmp_path: Path, feature: str) -> None:
    """delta-rs names the feature in the protocol of every table that may have deletion vectors."""
    for name, type_ in (("plain", "long"), ("other", "variant")):
        root = tmp_path / name
        said = protocol([feature, "deletionVectors"])
        fields = [field("n", "long"), field("v", type_)]
        stored = pa.table({"n": [1, 2, 3], "v": pa.array([4, None, 6], pa.int64())})
        commit(root, 0, said, metadata(fields), add(root, "a.parquet", stored, **deleted(1)))
    assert rows(tmp_path / "plain") == {"n": [1, 3], "v": [4, 6]}
    assert f"needs the reader feature {feature}, which is not supported; accepted: " in refusal(tmp_path / "other")


def test_a_table_of_delta_rs_with_deletion_vectors_is_read(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", TEN, configuration={"delta.enableDeletionVectors": "true"})
    assert rows(tmp_path / "t") == {"n": list(range(10))}


@pytest.mark.parametrize("feature", ["somethingNew", "catalogManaged"])
def test_any_other_reader_feature_is_refused_by_name(tmp_path: Path, feature: str) -> None:
    root = tmp_path / "t"
    said = protocol([feature], ["inCommitTimestamp"] if feature == "catalogManaged" else [])
    commit(root, 0, said, metadata([field("n", "long")]), add(root, "a.parquet", TEN))
    text = refusal(root)
    assert f"{root}: the Delta table needs the reader feature {feature}, which is not supported; accepted: " in text
    assert "DROP FEATURE" in text


def test_protocols_to_come_are_refused(tmp_path: Path) -> None:
    root = tmp_path / "t"
    said = {"protocol": {"minReaderVersion": 4, "minWriterVersion": 8, "readerFeatures": [], "writerFeatures": []}}
    commit(root, 0, said, metadata([field("n", "long")]), add(root, "a.parquet", TEN))
    assert "accepted: " in refusal(root)


def test_every_way_of_opening_a_table_reads_the_same_rows(tmp_path: Path) -> None:
    root = tmp_path / "t"
    stored = pa.table({"name": ["a", "b", "c"], "col-2": [1, 2, 3]})
    said = protocol(["columnMapping", "deletionVectors"])
    commit(root, 0, said, metadata(RENAMED, **NAME), add(root, "a.parquet", stored, **deleted(1)))
    expected = {"person": ["a", "c"], "n": [1, 3]}
    assert read_file(root).to_pydict() == expected
    source = open_source(root, {})
    assert pa.Table.from_batches(source.batches()).to_pydict() == expected
    listed = write_ownership(open_table(root), ["person"], "n", tmp_path / "pairs.parquet")
    assert (listed.records, listed.pairs) == (2, 2)
    settings = Settings(tmp_path / "home", tmp_path / "deploy", "sqlite://", "tester")
    assert list(drafted(settings, root, "people", None).contract["columns"]) == ["person", "n"]


@pytest.mark.parametrize("name", ["a[1]", "a^b", "a%20b"])
def test_a_place_that_the_library_cannot_open_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name / "_delta_log").mkdir(parents=True)
    with pytest.raises(DeltaProblem, match=r"the path contains .*; accepted: one without \["):
        open_delta(str(tmp_path / name))


OWN_TABLES = {
    "compute/spark_engine.py",
    "demo/tables.py",
    "foundation/storage.py",
    "release/delta_target.py",
    "sources/delta.py",
    "sources/versions.py",
}
"""Modules that open Delta tables by the library: of the platform's own tables, and the two that know the protocol."""


def test_no_other_module_opens_delta_tables() -> None:
    package = Path(dpsynth_platform.__file__).parent
    assert {
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if "DeltaTable(" in path.read_text()
    } == OWN_TABLES
