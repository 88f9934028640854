"""Directories of Parquet files: each row once, each column with its values, or a refusal that names files."""

from __future__ import annotations

import datetime as dt
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pydantic import TypeAdapter

from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.files import read_file
from dpsynth_platform.sources import directories
from dpsynth_platform.sources.directories import data_files
from dpsynth_platform.sources.table_files import open_source
from dpsynth_platform.sources.tables import open_table

ROWS = pa.table({"person": [f"p{row}" for row in range(1000)], "n": pa.array(range(1000))})


def write(path: Path, table: pa.Table | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"n": [1]}) if table is None else table, path)
    return path


def column(type_: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"n": pa.array(values, type_)})


def read(directory: Path) -> dict[str, list[Any]]:
    """The rows, by each of the ways in which tables are opened."""
    found = open_table(directory).to_table()
    assert read_file(directory) == found
    source = open_source(directory, {})
    assert pa.Table.from_batches(source.batches()).to_pydict() == found.to_pydict()
    return dict(found.to_pydict())


def refusal(directory: Path) -> str:
    with pytest.raises(SourceError) as caught:
        open_table(directory)
    assert caught.value.__context__ is None
    return str(caught.value)


def test_leftovers_are_no_rows(tmp_path: Path) -> None:
    table = tmp_path / "table"
    write(table / "part-0.parquet", ROWS.slice(0, 600))
    write(table / "deeper" / "part-1.snappy.PARQUET", ROWS.slice(600))
    for name in (
        "_temporary/0/part-2.parquet",
        "_temporary/0/_attempt/part-3.parquet",
        ".hidden.parquet",
        "_part-4.parquet",
        ".ipynb_checkpoints/part-0.parquet",
        "part-5.parquet.part",
        "part-6.parquet.tmp",
        "part-0.parquet.crc",
        "part-0.parquet~",
    ):
        write(table / name, ROWS)
    (table / "_SUCCESS").touch()
    (table / ".part-0.parquet.crc").write_bytes(b"crc")
    (table / "notes.txt").write_text("what this is")
    (table / "empty").touch()
    found = read(table)
    assert (len(found["n"]), sorted(found["n"])) == (1000, list(range(1000)))
    assert [path.name for path in data_files(table)] == ["part-1.snappy.PARQUET", "part-0.parquet"]


def test_a_directory_whose_own_name_is_hidden_is_read(tmp_path: Path) -> None:
    write(tmp_path / "_a" / ".b" / "c=1" / "part.parquet")
    assert read(tmp_path / "_a" / ".b") == {"n": [1], "c": [1]}


def test_what_is_parquet_by_content_alone_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet")
    write(tmp_path / "000000_0")
    assert f"{tmp_path}/000000_0: has Parquet content under another name; accepted: " in refusal(tmp_path)


def test_what_has_a_name_of_data_and_is_none_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet")
    os.mkfifo(tmp_path / "2.parquet")
    assert "2.parquet: has the name of a data file and is none" in refusal(tmp_path)


def test_links_to_directories_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "table" / "1.parquet")
    write(tmp_path / "elsewhere" / "2.parquet")
    (tmp_path / "table" / "more").symlink_to(tmp_path / "elsewhere")
    assert "has links to directories, which are not followed" in refusal(tmp_path / "table")


@pytest.mark.parametrize("log", ["_delta_log", ".hoodie", "metadata/*.metadata.json"])
def test_tables_of_other_layouts_below_are_refused(tmp_path: Path, log: str) -> None:
    write(tmp_path / "one" / "data" / "1.parquet")
    (tmp_path / "one" / log.replace("*", "00000-a")).mkdir(parents=True)
    assert f"{tmp_path}/one: has a {log}, so it is a table of another layout" in refusal(tmp_path)


def test_names_of_directories_are_columns(tmp_path: Path) -> None:
    for year, kind, number in [(2023, "a%2Fb", 1), (2024, "c", 2), (2024, "__HIVE_DEFAULT_PARTITION__", 3)]:
        write(tmp_path / f"year={year}" / f"kind={kind}" / "part.parquet", column(pa.int64(), number))
    assert open_table(tmp_path).schema == pa.schema([("n", pa.int64()), ("year", pa.int64()), ("kind", pa.string())])
    found = read(tmp_path)
    assert sorted(zip(found["n"], found["year"], found["kind"], strict=True)) == [
        (1, 2023, "a/b"),
        (2, 2024, "c"),
        (3, 2024, None),
    ]


def test_what_other_writers_make_is_read_back(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2, 3], "year": [2023, 2024, None], "kind": ["a b", "c/d=e", None]})
    ds.write_dataset(table, tmp_path / "t", format="parquet", partitioning=["year", "kind"], partitioning_flavor="hive")
    found = sorted(open_table(tmp_path / "t").to_table().to_pylist(), key=lambda row: int(row["n"]))
    assert found == table.to_pylist()


def test_codes_with_leading_zeros_stay_texts(tmp_path: Path) -> None:
    for month in ("01", "02", "12"):
        write(tmp_path / f"month={month}" / "part.parquet")
    assert sorted(read(tmp_path)["month"]) == ["01", "02", "12"]


@pytest.mark.parametrize(
    ("document", "type_"),
    [
        ({"type": "categorical", "values": ["1", "2", "x"]}, pa.string()),
        ({"type": "categorical", "values": "learned"}, pa.string()),
        ({"type": "identifier"}, pa.string()),
        ({"type": "categorical", "values": [1, 2]}, None),
    ],
    ids=str,
)
def test_one_directory_does_not_change_the_declared_type(tmp_path: Path, document: Any, type_: Any) -> None:
    """The type is that of the release: an owner's directory would show in it. None: such a directory is refused."""
    declared = {"code": TypeAdapter(Column).validate_python(document)}
    for code in ("1", "2", "x"):
        write(tmp_path / f"code={code}" / "part.parquet")
        if code == "x" and type_ is None:
            with pytest.raises(SourceError, match="directories of column 'code' are no whole numbers") as caught:
                open_source(tmp_path, declared)
            assert "x" not in re.findall(r"\w+", str(caught.value).removeprefix(str(tmp_path)))
        else:
            source = open_source(tmp_path, declared)
            assert source.schema.field("code").type == (type_ or pa.int64())
            assert pa.Table.from_batches(source.batches()).num_rows == int(code if code != "x" else 3)


def test_files_below_directories_of_other_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "year=2023" / "a.parquet")
    write(tmp_path / "b.parquet")
    text = refusal(tmp_path)
    assert "b.parquet and year=.../a.parquet lie below directories of different columns" in text


def test_a_column_in_files_and_in_names_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "n=7" / "a.parquet")
    assert "column 'n' is in the files and in the names of directories" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        (pa.int32(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.int16(), pa.int64()),
        (pa.int64(), pa.null(), pa.int64()),
        (pa.null(), pa.float32(), pa.float32()),
        (pa.float32(), pa.float64(), pa.float64()),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.string(), pa.null(), pa.string()),
    ],
)
def test_types_of_which_one_holds_all_are_one(
    tmp_path: Path, one: pa.DataType, other: pa.DataType, both: pa.DataType
) -> None:
    values = ["a", "b"] if "string" in f"{one}{other}" else [1, 2]
    write(tmp_path / "1.parquet", column(one, *(values if one != pa.null() else [None])))
    write(tmp_path / "2.parquet", column(other, *(values if other != pa.null() else [None])))
    assert open_table(tmp_path).schema.field("n").type == both
    expected = [*(values if one != pa.null() else [None]), *(values if other != pa.null() else [None])]
    assert read(tmp_path)["n"] == expected


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize(
    ("units", "both"), [(("s", "ms"), "ms"), (("us", "ms"), "us"), (("ns", "us"), "us"), (("s", "ns", "ms"), "us")]
)
def test_moments_of_several_units_are_one(tmp_path: Path, units: tuple[str, ...], both: str, zone: str | None) -> None:
    """As where pandas 2 wrote one month's file and pandas 3 the next."""
    moment = dt.datetime(1969, 12, 31, 23, tzinfo=None if zone is None else dt.UTC)
    for number, unit in enumerate(units):
        write(tmp_path / f"{number}.parquet", column(pa.timestamp(unit, zone), moment, None))
    assert open_table(tmp_path).schema.field("n").type == pa.timestamp(both, zone)
    assert read(tmp_path)["n"] == [moment, None] * len(units)


def test_nanoseconds_beside_microseconds_are_cut_off(tmp_path: Path) -> None:
    for number, unit in enumerate(("ns", "us")):
        values = pa.array([-1, 1_999], pa.int64()).cast(pa.timestamp(unit))
        write(tmp_path / f"{number}.parquet", pa.table({"n": values}))
    assert open_table(tmp_path).to_table()["n"].cast(pa.int64()).to_pylist() == [-1, 1, -1, 1_999]


def test_decimals_of_several_widths_are_one(tmp_path: Path) -> None:
    amounts = (Decimal("999.99"), Decimal("-12345678.9"), Decimal("0.0001"))
    for number, (type_, amount) in enumerate(
        zip((pa.decimal128(5, 2), pa.decimal128(9, 1), pa.decimal32(4, 4)), amounts, strict=True)
    ):
        write(tmp_path / f"{number}.parquet", column(type_, amount, None))
    assert open_table(tmp_path).schema.field("n").type == pa.decimal128(12, 4)
    assert [value for value in read(tmp_path)["n"] if value is not None] == list(amounts)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.decimal128(38, 0), pa.decimal128(38, 2)),
        (pa.int64(), pa.string()),
        (pa.int64(), pa.float64()),
        (pa.int64(), pa.uint64()),
        (pa.date32(), pa.timestamp("us")),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.bool_(), pa.int64()),
        (pa.binary(), pa.string()),
        (pa.list_(pa.int64()), pa.int64()),
    ],
)
def test_types_that_no_one_holds_are_refused(tmp_path: Path, one: pa.DataType, other: pa.DataType) -> None:
    for name, type_ in (("1.parquet", one), ("2.parquet", one), ("3.parquet", other)):
        write(tmp_path / name, column(type_, None))
    text = refusal(tmp_path).replace("element", "item")  # which name a list's element has
    assert f"{tmp_path}: 1.parquet and 3.parquet have column 'n' as {one} and {other}; accepted: one type" in text


def test_files_of_other_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", pa.table({"Age": [1], "job": ["x"]}))
    write(tmp_path / "2.parquet", pa.table({"age": [1], "job": ["x"]}))
    text = refusal(tmp_path)
    assert "1.parquet and 2.parquet do not have the same columns: 'Age', 'age' in one of them only; accepted: " in text


def test_columns_in_another_order_are_the_same(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", pa.table({"a": [1], "b": ["x"]}))
    write(tmp_path / "2.parquet", pa.table({"b": ["y"], "a": [2]}))
    assert read(tmp_path) == {"a": [1, 2], "b": ["x", "y"]}


def test_a_damaged_file_is_named_and_not_quoted(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet")
    (tmp_path / "2.parquet").write_bytes(b"PAR1 Zaphodina Quillmarker")
    text = refusal(tmp_path)
    assert f"{tmp_path}/2.parquet: a data file is missing or damaged" in text
    assert "Zaphodina" not in text


def test_leftovers_do_not_change_what_a_run_is_named_by(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet")
    clean = open_source(tmp_path, {})
    assert clean.versions == (clean.version, clean.version)
    write(tmp_path / "_temporary" / "2.parquet")
    left = open_source(tmp_path, {})
    assert left.versions == (clean.version,), "no run counts that read leftovers as rows"
    write(tmp_path / "2.parquet")
    assert open_source(tmp_path, {}).version != clean.version


def test_a_whole_file_system_is_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directories, "MOST_ENTRIES", 5)
    for name in "abcdef":
        (tmp_path / name).mkdir()
    with pytest.raises(SourceError, match=r"has more than 5 files and directories; accepted: the directory of one"):
        data_files(tmp_path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "notes")
    assert data_files(tmp_path) == []
    os.mkfifo(tmp_path / "rows.parquet")
    with pytest.raises(SourceError, match="has the name of a data file and is none"):
        data_files(tmp_path)


def test_values_in_names_of_directories_are_not_shown(tmp_path: Path) -> None:
    for name, table in (("one", pa.table({"a": [1]})), ("Zaphodina", pa.table({"b": [1]}))):
        write(tmp_path / f"illness={name}" / "1.parquet", table)
    text = refusal(tmp_path)
    assert "illness=.../1.parquet and illness=.../1.parquet do not have the same columns" in text
    assert "Zaphodina" not in text
    (tmp_path / "illness=Zaphodina" / "1.parquet").write_bytes(b"PAR1")
    assert "Zaphodina" not in refusal(tmp_path)


def test_parts_of_a_table_with_a_log_are_refused(tmp_path: Path) -> None:
    """Its files hold rows that were deleted, and rows that stand in another file, too."""
    root = tmp_path / "delta"
    for _ in range(2):
        deltalake.write_deltalake(str(root), pa.table({"year": [2023], "a": [1]}), mode="append", partition_by=["year"])
    deltalake.DeltaTable(str(root)).optimize.compact()
    assert "is part of the table" in refusal(root / "year=2023")
    (file, *_) = (root / "year=2023").glob("*.parquet")
    assert "accepted: that table's own path" in refusal(file)
    assert open_table(root).to_table().num_rows == 2
