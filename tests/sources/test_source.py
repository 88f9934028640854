"""The source: one pinned version, streamed; everything wrong with it is a clear error that names no value."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_cases import add, commit, field, mapped, metadata, protocol
from deltalake import DeltaTable, write_deltalake

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.sources import source

MARK = "Zaphodina Quillmarker"
ZONE = Path("unused")
"""Delta tables have versions of their own."""


def contract(uri: Path, **changes: Any) -> DataContract:
    document: dict[str, Any] = {
        "dataset": "letters",
        "description": "Letters.",
        "owners": ["tests@example.org"],
        "source": {"uri": str(uri), "key": ["person"]},
        "family": "letters",
        "privacy": {
            "unit": "user",
            "owner_columns": ["person"],
            "namespace": "person",
            "max_contributions": 1,
            "guarantee": {"epsilon": 1.0},
            "expected_units": 1000,
        },
        "columns": {
            "person": {"type": "identifier"},
            "day": {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
            "number": {"type": "integer", "min": 0, "max": 99},
        },
        "generate": {"rows": 10},
        "release": {"uri": "unused"},
    }
    return parse_contract(document | changes, where="letters.yaml", variables={})


def monthly(uri: Path, zone: str = "UTC") -> DataContract:
    return contract(
        uri,
        source={"uri": str(uri), "key": ["person"], "period_column": "day"},
        release={"uri": "unused", "cadence": "monthly", "start": "2026-01", "time_zone": zone},
    )


def table(*days: dt.date | dt.datetime, type_: pa.DataType | None = None) -> pa.Table:
    rows = len(days)
    return pa.table(
        {
            "person": [f"{MARK}-{row}" for row in range(rows)],
            "day": pa.array(days, type_ or pa.date32()),
            "number": list(range(rows)),
        }
    )


@pytest.fixture
def uri(tmp_path: Path) -> Path:
    rows = table(dt.date(2026, 1, 31), dt.date(2026, 2, 1), dt.date(2026, 2, 28), dt.date(2026, 3, 1))
    write_table(tmp_path / "letters", rows.schema, rows.to_batches())
    return tmp_path / "letters"


def numbers(pinned: source.PinnedSource, declared: DataContract, period: str | None = None) -> list[int]:
    return [number for batch in source.batches(pinned, declared, period) for number in batch["number"].to_pylist()]


def test_a_pinned_version_stays_while_the_source_evolves(uri: Path) -> None:
    declared = contract(uri)
    pinned = source.pin(declared, ZONE)
    write_deltalake(str(uri), table(dt.date(2026, 5, 5)), mode="append")
    assert (pinned.version, source.pin(declared, ZONE).version) == (0, 1)
    assert numbers(pinned, declared) == [0, 1, 2, 3]
    assert sorted(numbers(source.pin(declared, ZONE), declared)) == [0, 0, 1, 2, 3]
    assert source.pin(declared, ZONE, version=0) == pinned


def test_the_name_tells_versions_and_tables_apart(uri: Path) -> None:
    declared = contract(uri)
    first = source.pin(declared, ZONE)
    write_deltalake(str(uri), table(dt.date(2026, 5, 5)), mode="append")
    second = source.pin(declared, ZONE)
    shutil.rmtree(uri)
    rows = table(dt.date(2026, 1, 31))
    write_table(uri, rows.schema, rows.to_batches())
    other = source.pin(declared, ZONE)
    assert len({first.name, second.name, other.name}) == 3
    assert other.version == first.version


def test_another_table_in_its_place_is_not_read_as_the_pinned_version(uri: Path) -> None:
    declared = contract(uri)
    pinned = source.pin(declared, ZONE)
    shutil.rmtree(uri)
    others = table(dt.date(2026, 1, 1))
    write_table(uri, others.schema, others.to_batches())
    assert source.pin(declared, ZONE).version == pinned.version
    with pytest.raises(SourceError, match=r"version 0: another table is at this place than the one that was pinned"):
        numbers(pinned, declared)


def test_pinning_reads_no_data_file(uri: Path) -> None:
    for path in uri.glob("*.parquet"):
        path.write_bytes(b"not a table")
    assert source.pin(contract(uri), ZONE).schema.names == ["person", "day", "number"]


@pytest.mark.parametrize("period, expected", [("2026-01", [0]), ("2026-02", [1, 2]), ("2026-03", [3])])
def test_a_period_is_a_calendar_month(uri: Path, period: str, expected: list[int]) -> None:
    declared = monthly(uri)
    assert numbers(source.pin(declared, ZONE), declared, period) == expected


def test_timestamps_of_the_last_day_belong_to_the_month(tmp_path: Path) -> None:
    moments = (dt.datetime(2026, 1, 31, 23, 59, 59), dt.datetime(2026, 2, 1), dt.datetime(2026, 2, 28, 23, 59, 59))
    rows = table(*moments, type_=pa.timestamp("us"))
    write_table(tmp_path / "t", rows.schema, rows.to_batches())
    declared = monthly(tmp_path / "t")
    assert numbers(source.pin(declared, ZONE), declared, "2026-02") == [1, 2]


@pytest.mark.parametrize(
    ("zone", "expected"),
    [("UTC", [[0, 1, 2], [3, 4]]), ("Asia/Kolkata", [[0], [1, 2, 3, 4]]), ("America/New_York", [[0, 1, 2, 3], [4]])],
)
def test_moments_are_of_the_month_that_the_zones_clocks_show(
    tmp_path: Path, zone: str, expected: list[list[int]]
) -> None:
    moments = ("2026-01-31T18:29:59", "2026-01-31T18:30", "2026-01-31T23:59:59", "2026-02-01T00:00", "2026-02-01T05:00")
    instants = [dt.datetime.fromisoformat(moment).replace(tzinfo=dt.UTC) for moment in moments]
    rows = table(*instants, type_=pa.timestamp("us", "UTC"))
    write_table(tmp_path / "t", rows.schema, rows.to_batches())
    declared = monthly(tmp_path / "t", zone)
    found = [numbers(source.pin(declared, ZONE), declared, period) for period in ("2026-01", "2026-02")]
    assert found == expected


def test_days_are_those_of_the_zone(uri: Path) -> None:
    declared = monthly(uri, "Asia/Kolkata")
    assert numbers(source.pin(declared, ZONE), declared, "2026-02") == [1, 2]


def test_a_period_by_a_partition_column(tmp_path: Path) -> None:
    rows = table(dt.date(2026, 1, 31), dt.date(2026, 2, 1), dt.date(2026, 2, 28), dt.date(2026, 3, 1))
    write_deltalake(str(tmp_path / "t"), rows, partition_by=["day"])
    declared = monthly(tmp_path / "t")
    assert sorted(numbers(source.pin(declared, ZONE), declared, "2026-02")) == [1, 2]


def test_compaction_and_cleaning_are_no_new_version(uri: Path) -> None:
    declared = contract(uri)
    write_deltalake(str(uri), table(dt.date(2026, 5, 5)), mode="append")
    pinned = source.pin(declared, ZONE)
    DeltaTable(str(uri)).optimize.compact()
    compacted = source.pin(declared, ZONE)
    DeltaTable(str(uri)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    cleaned = source.pin(declared, ZONE)
    assert DeltaTable(str(uri)).version() > 2
    assert pinned.name == compacted.name == cleaned.name
    assert (pinned.version, pinned.read, compacted.read) == (1, 1, 2)
    # The files of the pinned version are gone; its rows are read where they are now.
    for again in (cleaned, source.pin(declared, ZONE, version=1)):
        assert sorted(numbers(again, declared)) == [0, 0, 1, 2, 3]
    with pytest.raises(SourceError, match="a data file is missing"):
        numbers(pinned, declared)
    write_deltalake(str(uri), table(dt.date(2026, 5, 6)), mode="append")
    assert source.pin(declared, ZONE).name != pinned.name


def test_a_run_keeps_the_name_that_it_had_of_the_same_rows(uri: Path) -> None:
    declared = contract(uri)
    write_deltalake(str(uri), table(dt.date(2026, 5, 5)), mode="append")
    DeltaTable(str(uri)).optimize.compact()
    newest = source.pin(declared, ZONE)
    assert newest.version == 1
    for version, kept in [(0, 1), (1, 1), (2, 2), (3, 1)]:
        assert newest.named_as(f"{newest.table_id}@{version}").version == kept
    assert newest.named_as("another@2").version == 1
    later = newest.named_as(f"{newest.table_id}@2")
    assert sorted(numbers(later, declared)) == [0, 0, 1, 2, 3]
    assert not newest.unsure_since(f"{newest.table_id}@0")


def test_what_a_cleaned_log_does_not_say_is_not_sure(uri: Path) -> None:
    declared = contract(uri)
    first = source.pin(declared, ZONE)
    write_deltalake(str(uri), table(dt.date(2026, 5, 5)), mode="append")
    DeltaTable(str(uri)).create_checkpoint()
    for version in range(2):
        (uri / "_delta_log" / f"{version:020}.json").unlink()
    newest = source.pin(declared, ZONE)
    assert newest.name != first.name
    assert newest.unsure_since(first.name)
    assert not newest.unsure_since(newest.name)
    assert not newest.unsure_since("another@0")


def test_renamed_columns_are_pinned_and_read_by_their_names(tmp_path: Path) -> None:
    stored = table(dt.date(2026, 1, 31), dt.date(2026, 2, 1)).rename_columns(["who", "col-2", "col-3"])
    columns = [("person", "string", "who"), ("day", "date", "col-2"), ("number", "long", "col-3")]
    fields = [mapped(name, type_, number, physical) for number, (name, type_, physical) in enumerate(columns, start=1)]
    commit(
        tmp_path / "t",
        0,
        protocol(minReaderVersion=2, minWriterVersion=5),
        metadata(fields, **{"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}),
        add(tmp_path / "t", "a.parquet", stored),
    )
    declared = monthly(tmp_path / "t")
    pinned = source.pin(declared, ZONE)
    assert pinned.schema.names == ["person", "day", "number"]
    assert numbers(pinned, declared, "2026-02") == [1]


def test_a_feature_that_is_not_understood_is_named(tmp_path: Path) -> None:
    said = protocol(["somethingNew"])
    commit(
        tmp_path / "t",
        0,
        said,
        metadata([field("person", "string")]),
        add(tmp_path / "t", "a.parquet", table(dt.date(2026, 1, 31))),
    )
    with pytest.raises(SourceError, match=r"letters: source\.uri: .*needs the reader feature somethingNew") as caught:
        source.pin(contract(tmp_path / "t"), ZONE)
    assert caught.value.__context__ is None


def test_a_dataset_with_a_cadence_needs_a_period(uri: Path) -> None:
    declared = monthly(uri)
    with pytest.raises(SourceError, match="releases come by period; name one, such as 2026-01"):
        numbers(source.pin(declared, ZONE), declared)


def test_a_place_without_a_table(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(SourceError) as caught:
            source.pin(contract(place), ZONE)
        assert str(caught.value) == (
            f"letters: source.uri: {place}: there is no Delta table at this place; accepted: a readable Delta table, "
            "or source.format: parquet, csv or json for plain files"
        )
        assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_a_version_that_is_not_there(uri: Path) -> None:
    with pytest.raises(SourceError, match=r"letters: source\.uri: .*; accepted: a readable Delta table"):
        source.pin(contract(uri), ZONE, version=7)


def test_a_demonstration_without_its_table_says_what_makes_it(tmp_path: Path) -> None:
    missing = tmp_path / "sources" / "visits"
    demo = contract(missing).model_copy(update={"dataset": "visits"})
    with pytest.raises(
        SourceError, match=r"no Delta table at this place; to make .* table: dpsynth demo --source visits;"
    ):
        source.pin(demo, ZONE)
    with pytest.raises(SourceError, match=r"no Delta table at this place; to make .* table: dpsynth demo --source"):
        source.schema_of(demo)
    own = contract(tmp_path / "ours" / "visits").model_copy(update={"dataset": "visits"})
    with pytest.raises(SourceError, match=r"no Delta table at this place; accepted"):
        source.pin(own, ZONE)


@pytest.mark.parametrize("content", [b"", b"{", MARK.encode(), b'{"add": {"path": 1}}'])
def test_a_damaged_log(uri: Path, content: bytes) -> None:
    (log,) = (uri / "_delta_log").glob("*.json")
    log.write_bytes(content)
    with pytest.raises(SourceError, match=r"the Delta table cannot be read|there is no Delta table") as caught:
        source.pin(contract(uri), ZONE)
    assert MARK not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("damage", ["lost", "overwritten", "cut"])
def test_a_damaged_data_file(uri: Path, damage: str) -> None:
    declared = contract(uri)
    pinned = source.pin(declared, ZONE)
    (path,) = uri.glob("*.parquet")
    content = path.read_bytes()
    if damage == "lost":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else MARK.encode() * 99)
    with pytest.raises(
        SourceError, match=r"version 0: a data file is missing, damaged or of another type \(\w+\)"
    ) as caught:
        numbers(pinned, declared)
    assert MARK not in str(caught.value)
    assert caught.value.__context__ is None


def test_no_row(tmp_path: Path) -> None:
    rows = table()
    write_table(tmp_path / "t", rows.schema, rows.to_batches())
    declared = contract(tmp_path / "t")
    with pytest.raises(SourceError, match=r"letters: source\.uri: .*/t: version 0 has no row$"):
        numbers(source.pin(declared, ZONE), declared)


def test_no_row_of_a_period(uri: Path) -> None:
    declared = monthly(uri)
    with pytest.raises(SourceError, match="version 0 has no row of period 2026-07"):
        numbers(source.pin(declared, ZONE), declared, "2026-07")
