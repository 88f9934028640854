"""Plain files as a source: the same rows from each format, and versions by their content."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import mmap
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from test_source import MARK, contract

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.scrub.scrub import check_source_schema
from dpsynth_platform.sources import file_versions, source
from dpsynth_platform.sources.file_versions import UNREGISTERED, Files, version_of
from dpsynth_platform.sources.table_files import open_source

COLUMNS: dict[str, Any] = {
    "person": {"type": "identifier"},
    "day": {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
    "number": {"type": "integer", "min": 0, "max": 99, "nullable": True},
    "share": {"type": "float", "min": 0, "max": 1},
    "kind": {"type": "categorical", "values": ["a", "b;c", 'd"e']},
    "sick": {"type": "boolean"},
    "note": {"type": "text", "pii": "drop"},
    "other": {"ignore": True},
}
ROWS = pa.table(
    {
        "person": [f"{MARK}-{row}" for row in range(6)],
        "day": pa.array([dt.date(2026, month, 1) for month in (1, 1, 2, 2, 3, 3)]),
        "number": pa.array([0, 1, None, 3, 4, 5], pa.int64()),
        "share": [0.0, 0.25, 0.5, 0.75, 1.0, 0.125],
        "kind": ["a", "b;c", 'd"e', "a", "a", "b;c"],
        "sick": [True, False, True, True, False, False],
        "note": ["line\nbreak", "größe", "x", "y", "z", "€"],
        "other": ["1", "2", "3", "4", "5", "6"],
    }
)
READ = ROWS.drop_columns(["other"])


def csv_text(rows: pa.Table, separator: str = ",", decimal: str = ".") -> str:
    def field(value: Any) -> str:
        text = "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        if isinstance(value, float):
            text = text.replace(".", decimal)
        return '"' + text.replace('"', '""') + '"' if set(text) & {separator, '"', "\n"} else text

    lines = [separator.join(rows.column_names)]
    lines += [separator.join(map(field, row.values())) for row in rows.to_pylist()]
    return "\r\n".join(lines) + "\r\n"


def json_text(rows: pa.Table) -> str:
    found = [{name: value for name, value in row.items() if value is not None} for row in rows.to_pylist()]
    return "".join(json.dumps(row, default=str, ensure_ascii=False) + "\n" for row in found)


def one_parquet(root: Path, rows: pa.Table) -> dict[str, Any]:
    coded = rows.set_column(4, "kind", rows["kind"].dictionary_encode())
    pq.write_table(coded, root / "rows.parquet")
    return {"uri": str(root / "rows.parquet"), "format": "parquet"}


def many_parquet(root: Path, rows: pa.Table) -> dict[str, Any]:
    for kind in range(2):
        part = root / "rows" / f"other={kind}"
        part.mkdir(parents=True, exist_ok=True)
        pq.write_table(rows.slice(3 * kind, 3).drop_columns(["other"]), part / "part.parquet")
    return {"uri": str(root / "rows"), "format": "parquet"}


def one_csv(root: Path, rows: pa.Table) -> dict[str, Any]:
    (root / "rows.csv").write_bytes(b"\xef\xbb\xbf" + csv_text(rows).encode())
    return {"uri": str(root / "rows.csv"), "format": "csv"}


def other_csv(root: Path, rows: pa.Table) -> dict[str, Any]:
    (root / "rows").mkdir(exist_ok=True)
    for part in range(2):
        text = csv_text(rows.slice(3 * part, 3), ";", ",")
        (root / "rows" / f"{part}.csv").write_bytes(text.encode("cp1252"))
    dialect = {"separator": ";", "decimal": ",", "encoding": "cp1252"}
    return {"uri": str(root / "rows"), "format": "csv", "csv": dialect}


def json_lines(root: Path, rows: pa.Table) -> dict[str, Any]:
    (root / "rows [1]*.jsonl").write_text(json_text(rows), encoding="utf-8")
    return {"uri": str(root / "rows [1]*.jsonl"), "format": "json"}


FORMATS: list[Callable[[Path, pa.Table], dict[str, Any]]] = [
    one_parquet,
    many_parquet,
    one_csv,
    other_csv,
    json_lines,
]


def declared(place: dict[str, Any], **changes: Any) -> DataContract:
    return contract(Path("x"), source={"key": ["person"]} | place, columns=COLUMNS, **changes)


def rows_of(pinned: source.PinnedSource, by: DataContract, period: str | None = None) -> pa.Table:
    return pa.Table.from_batches(source.batches(pinned, by, period)).select(READ.column_names).sort_by("person")


@pytest.fixture
def zone(tmp_path: Path) -> Path:
    return tmp_path / "restricted"


@pytest.mark.parametrize("place", ["rows.parquet", "rows/0.parquet"])
def test_a_name_that_occurs_twice_is_named(tmp_path: Path, zone: Path, place: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    pq.write_table(pa.table([pa.array(["a"]), pa.array([1]), pa.array([2])], names=["person", "kind", "kind"]), path)
    root = tmp_path / Path(place).parts[0]
    with pytest.raises(SourceError, match="column 'kind' is in the table more than once; accepted: distinct names"):
        open_source(root, {})
    by = declared({"uri": str(root), "format": "parquet"})
    with pytest.raises(SourceError, match="the source contains column 'kind' more than once"):
        check_source_schema(by, source.pin(by, zone).schema)


@pytest.mark.parametrize("format_", ["csv", "parquet"])
def test_a_column_without_a_name_is_left_out(tmp_path: Path, zone: Path, format_: str) -> None:
    """As pandas and R write an index."""
    place = tmp_path / f"rows.{format_}"
    table = pa.table({"": [1, 2], "person": ["a", "b"], "kind": ["x", "y"]})
    table.to_pandas().to_csv(place, index=False) if format_ == "csv" else pq.write_table(table, place)
    columns = {"": {"ignore": True}, "person": {"type": "identifier"}}
    by = contract(
        Path("x"),
        source={"key": ["person"], "uri": str(place), "format": format_},
        columns=columns | {"kind": {"type": "categorical", "values": ["x", "y"]}},
    )
    pinned = source.pin(by, zone, register=True)
    assert pa.Table.from_batches(source.batches(pinned, by, None)).equals(table.drop(""))


@pytest.mark.parametrize("write", FORMATS)
def test_the_same_rows_in_each_format(tmp_path: Path, zone: Path, write: Callable[..., dict[str, Any]]) -> None:
    by = declared(write(tmp_path, ROWS))
    pinned = source.pin(by, zone, register=True)
    assert set(pinned.schema.names) == set(ROWS.column_names)
    assert rows_of(pinned, by).equals(READ)
    assert rows_of(source.pin(by, zone, version=pinned.version), by).equals(READ)


@pytest.mark.parametrize("write", FORMATS)
def test_the_rows_of_a_period(tmp_path: Path, zone: Path, write: Callable[..., dict[str, Any]]) -> None:
    place = write(tmp_path, ROWS) | {"period_column": "day"}
    by = declared(place, release={"uri": "unused", "cadence": "monthly", "start": "2026-01"})
    assert rows_of(source.pin(by, zone), by, "2026-02").equals(READ.slice(2, 2))


@pytest.mark.parametrize("write", FORMATS)
def test_a_version_is_a_content(tmp_path: Path, zone: Path, write: Callable[..., dict[str, Any]]) -> None:
    by = declared(write(tmp_path, ROWS))
    before = source.pin(by, zone)
    assert before.table_id == UNREGISTERED
    assert not zone.exists()
    first = source.pin(by, zone, register=True)
    assert first.table_id != UNREGISTERED and first.name not in (first.content or "")
    assert source.pin(by, zone) == source.pin(by, zone, register=True) == first

    for path in Path(by.source.uri).rglob("*"):  # the same content, written again
        os.utime(path)
    write(tmp_path, ROWS)
    assert source.pin(by, zone, register=True).name == first.name

    changed = ROWS.set_column(2, "number", pa.array([9, 9, 9, 9, 9, 9], pa.int64()))
    write(tmp_path, changed)
    assert source.pin(by, zone).version > first.version, "not yet kept"
    second = source.pin(by, zone, register=True)
    assert second.table_id == first.table_id and second.version > first.version
    with pytest.raises(SourceError, match=r"version \d+: the files were changed since the version was pinned"):
        rows_of(first, by)
    with pytest.raises(SourceError, match=r"version \d+: the files were changed since"):
        rows_of(source.pin(by, zone, version=first.version), by)
    earlier = source.at_version(second, first.name, first.schema)
    assert earlier is not None
    with pytest.raises(SourceError, match=r"version \d+: the files were changed since"):
        rows_of(earlier, by)
    with pytest.raises(SourceError, match="no run has pinned version 2"):
        source.pin(by, zone, version=2)

    write(tmp_path, ROWS)
    assert source.pin(by, zone, register=True).name == first.name
    assert rows_of(first, by).equals(READ)


def test_a_moved_file_is_the_same_table(tmp_path: Path, zone: Path) -> None:
    by = declared(one_csv(tmp_path, ROWS))
    first = source.pin(by, zone, register=True)
    (tmp_path / "rows.csv").rename(tmp_path / "moved.csv")
    moved = declared({"uri": str(tmp_path / "moved.csv"), "format": "csv"})
    assert source.pin(moved, zone, register=True).name == first.name
    one_csv(tmp_path, ROWS.slice(1))
    (tmp_path / "rows.csv").rename(tmp_path / "moved.csv")
    later = source.pin(moved, zone, register=True)
    assert later.table_id == first.table_id and later.version > first.version


def test_the_registry_is_private_and_a_name_reveals_nothing(tmp_path: Path, zone: Path) -> None:
    by = declared(one_csv(tmp_path, ROWS))
    names = {source.pin(by, tmp_path / str(zone_), register=True).name for zone_ in range(2)}
    assert len(names) == 2, "the same content has another name in each deployment"
    pinned = source.pin(by, zone, register=True)
    assert pinned.content and pinned.content not in repr(pinned)
    assert zone.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in zone.iterdir())


def test_a_change_within_the_clocks_tick_is_a_new_version(tmp_path: Path, zone: Path) -> None:
    """Size and times may be the same; what was just written is hashed again."""
    path = tmp_path / "rows.csv"
    path.write_text("person\n1\n")
    files = Files(path, (path,))
    at = path.stat()
    first = version_of(zone, files, register=True)
    path.write_text("person\n2\n")
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert version_of(zone, files, register=True).version > first.version


def test_processes_that_register_at_once_agree(tmp_path: Path, zone: Path) -> None:
    by, found = declared(one_csv(tmp_path, ROWS)), list[str]()
    threads = [
        threading.Thread(target=lambda: found.append(source.pin(by, zone, register=True).name)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8 and len(set(found)) == 1


@pytest.mark.parametrize("write", [one_parquet, one_csv, json_lines])
def test_a_change_while_rows_are_read_is_refused(
    tmp_path: Path, zone: Path, write: Callable[..., dict[str, Any]]
) -> None:
    by = declared(write(tmp_path, ROWS))
    pinned = source.pin(by, zone, register=True)
    batches = source.batches(pinned, by, None)
    next(batches)
    with Path(by.source.uri).open("ab") as file:
        file.write(b" ")
    with pytest.raises(SourceError, match="changed while they were read"):
        list(batches)


def test_a_registry_that_was_put_back_gives_no_number_twice(tmp_path: Path, zone: Path, monkeypatch: Any) -> None:
    by, clock = declared(one_csv(tmp_path, ROWS)), [1_000.0]
    monkeypatch.setattr(file_versions.time, "time", lambda: clock[0])
    source.pin(by, zone, register=True)
    kept = (zone / "source-versions.json").read_bytes()
    clock[0] += 60
    one_csv(tmp_path, ROWS.slice(1))
    paid = source.pin(by, zone, register=True)
    (zone / "source-versions.json").write_bytes(kept)
    clock[0] += 60
    one_csv(tmp_path, ROWS.slice(2))
    assert source.pin(by, zone, register=True).name != paid.name


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff", b'{"tables": {"a": {}}, "seen": {}}', b'{"tables": {}}']
)
def test_a_damaged_registry_is_refused(tmp_path: Path, zone: Path, content: bytes) -> None:
    by = declared(one_csv(tmp_path, ROWS))
    zone.mkdir()
    (zone / "source-versions.json").write_bytes(content)
    with pytest.raises(SourceError, match=r"source-versions\.json of the restricted zone.* is damaged"):
        source.pin(by, zone, register=True)


def test_a_memory_mapped_change_is_noticed(tmp_path: Path, zone: Path) -> None:
    """It need not show in the file's times."""
    by = declared(one_csv(tmp_path, ROWS))
    pinned = source.pin(by, zone, register=True)
    batches = source.batches(pinned, by, None)
    next(batches)
    path = Path(by.source.uri)
    at = path.stat()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        content[-4:-2] = b"zz"
    os.utime(path, ns=(at.st_atime_ns, at.st_mtime_ns))
    with pytest.raises(SourceError, match="changed while they were read"):
        list(batches)


@pytest.mark.parametrize("person", [["a", "b"], {"a": 1}, 7.0, 7.5, True])
def test_json_ids_are_texts_or_whole_numbers(tmp_path: Path, zone: Path, person: Any) -> None:
    """A list of owners would be an owner of its own, and 7.0 another one than 7."""
    (tmp_path / "t.json").write_text("".join(json.dumps({"person": one}) + "\n" for one in ("x", 7, None, person)))
    by = declared({"uri": str(tmp_path / "t.json"), "format": "json"})
    with pytest.raises(SourceError, match="column 'person' is declared identifier, and has a value that is neither"):
        rows_of(source.pin(by, zone), by)


def test_directories_of_json_are_no_columns(tmp_path: Path, zone: Path) -> None:
    (tmp_path / "kind=z").mkdir()
    by = declared(json_lines(tmp_path / "kind=z", ROWS))
    assert rows_of(source.pin(by, zone), by).equals(READ)


@pytest.mark.parametrize("name", ["b.csv.gz", "b.dat", "b.parquet", "part-0002"])
def test_a_file_that_would_be_left_out_is_refused(tmp_path: Path, zone: Path, name: str) -> None:
    place = other_csv(tmp_path, ROWS)
    (tmp_path / "rows" / "README.md").write_text("# Rows")
    assert source.pin(declared(place), zone)
    (tmp_path / "rows" / name).write_bytes(b"x")
    with pytest.raises(SourceError, match=f"{name}: is in the directory of a table, and is no file of it"):
        source.pin(declared(place), zone)


def test_hive_directories_are_read_from_parquet_only(tmp_path: Path, zone: Path) -> None:
    (tmp_path / "rows" / "kind=Zaphodina").mkdir(parents=True)
    with pytest.raises(SourceError, match="has directories named column=") as caught:
        source.pin(declared({"uri": str(tmp_path / "rows"), "format": "csv"}), zone)
    assert "Zaphodina" not in str(caught.value)


JSON_FAULTS = [
    ('{"person": "Zaphodina"', "a line of it is no JSON"),
    ('["Zaphodina"]', "a line is no object, or has a key that no column declares"),
    ('"Zaphodina"', "a line is no object"),
    ('{"Zaphodina": 1}', "a key that no column declares"),
    ('{"person": "a", "person": "Zaphodina"}', "each key once"),
    ('{"number": "Zaphodina"}', "column 'number' is declared to hold int64"),
    ('{"number": 1.5}', "column 'number' is declared to hold int64"),
    ('{"day": "Zaphodina"}', "column 'day' is declared to hold date32"),
    ('{"sick": 2}', "column 'sick' is declared to hold bool"),
]


@pytest.mark.parametrize(("line", "why"), JSON_FAULTS)
def test_faults_of_json_show_no_value(tmp_path: Path, zone: Path, line: str, why: str) -> None:
    place = json_lines(tmp_path, ROWS)
    with Path(place["uri"]).open("a") as file:
        file.write(line + "\n")
    by = declared(place)
    with pytest.raises(SourceError) as caught:
        rows_of(source.pin(by, zone), by)
    assert why in str(caught.value) and "Zaphodina" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


LAYOUTS = [
    (
        "rows.csv",
        gzip.compress(b"person,kind\nZaphodina,b\n", mtime=0),
        "is compressed (gzip); accepted: the unpacked file",
    ),
    (
        "rows.jsonl",
        gzip.compress(b'{"person": "Zaphodina"}\n', mtime=0),
        "is compressed (gzip); accepted: the unpacked file",
    ),
    ("rows.csv", b"PK\x03\x04Zaphodina", "is an archive (zip) or a workbook"),
    ("rows.json", b'[{"person": "Zaphodina"}]\n', "holds a JSON array"),
    ("rows.json", b'{\n  "person": "Zaphodina"\n}\n', "holds objects that go over several lines"),
    ("rows.json", b'\xef\xbb\xbf{"person": "Zaphodina"}\n', "begins with a byte order mark"),
]


@pytest.mark.parametrize(("name", "content", "why"), LAYOUTS)
def test_files_of_another_layout_are_named_before_anything_is_read(
    tmp_path: Path, zone: Path, name: str, content: bytes, why: str
) -> None:
    (tmp_path / name).write_bytes(content)
    by = declared({"uri": str(tmp_path / name), "format": "csv" if name.endswith("csv") else "json"})
    with pytest.raises(SourceError) as caught:
        source.pin(by, zone)
    assert why in str(caught.value) and "accepted: " in str(caught.value) and "Zaphodina" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


@pytest.mark.parametrize("row", ["Zaphodina", "Zaphodina,1,2,3,4,5,6,7,8,9"])
def test_a_row_with_other_fields_is_named_without_it(tmp_path: Path, zone: Path, row: str) -> None:
    place = one_csv(tmp_path, ROWS)
    with Path(place["uri"]).open("a") as file:
        file.write(f"{row}\n")
    by = declared(place)
    with pytest.raises(SourceError, match="a row has fewer or more fields than there are columns") as caught:
        rows_of(source.pin(by, zone), by)
    assert "Zaphodina" not in str(caught.value)
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_a_file_in_place_of_a_delta_table_is_named_by_its_end(tmp_path: Path, zone: Path) -> None:
    (tmp_path / "rows.csv").write_text("person\na\n")
    with pytest.raises(SourceError, match=r"accepted: source\.format: csv, as the end of the name says"):
        source.pin(declared({"uri": str(tmp_path / "rows.csv")}), zone)


def test_json_values_are_read_by_their_texts(tmp_path: Path, zone: Path) -> None:
    lines = [
        {"person": 7, "number": "12", "share": 1, "sick": 1, "kind": "a", "day": "2026-01-31", "note": {"a": [1]}},
        {"person": "x", "number": 3.0, "share": 1e-3, "sick": "FALSE", "kind": None, "note": ""},
        {},
    ]
    (tmp_path / "t.json").write_text("\n\n".join(map(json.dumps, lines)))
    by = declared({"uri": str(tmp_path / "t.json"), "format": "json"})
    rows = pa.Table.from_batches(source.batches(source.pin(by, zone), by, None)).to_pylist()
    assert [row["person"] for row in rows] == ["7", "x", None]
    assert [row["number"] for row in rows] == [12, 3, None]
    assert [row["share"] for row in rows] == [1.0, 0.001, None]
    assert [row["sick"] for row in rows] == [True, False, None]
    assert [row["note"] for row in rows] == ['{"a":[1]}', None, None]


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ({"format": "csv"}, "there is no csv file, or directory of such files, at this place"),
        ({"format": "json"}, "there is no json file"),
        ({"format": "parquet"}, "there is no parquet file"),
        ({"format": "csv", "csv": {"separator": "ab"}}, "source.csv.separator 'ab'; accepted: one character"),
        ({"format": "csv", "csv": {"encoding": "x"}}, "source.csv.encoding 'x'; accepted: a text encoding"),
    ],
)
def test_a_place_without_such_a_table(tmp_path: Path, zone: Path, place: dict[str, Any], why: str) -> None:
    if "csv" in place:
        one_csv(tmp_path, ROWS)
    by = declared({"uri": str(tmp_path / ("rows.csv" if "csv" in place else "none"))} | place)
    with pytest.raises(SourceError) as caught:
        source.pin(by, zone)
    assert str(caught.value).startswith(f"letters: source.uri: {by.source.uri}: {why}")
    assert caught.value.__cause__ is None and caught.value.__context__ is None


def test_a_csv_file_without_a_declared_name_is_refused_by_what_a_contract_can_say(tmp_path: Path, zone: Path) -> None:
    (tmp_path / "t.csv").write_text("1,2\n3,4\n")
    by = declared({"uri": str(tmp_path / "t.csv"), "format": "csv"})
    accepted = r"may be no header.*; accepted: columns with at least one of its names, spelled as in the file"
    with pytest.raises(SourceError, match=accepted):
        source.pin(by, zone)


def test_faults_of_csv_name_keys_of_the_contract(tmp_path: Path, zone: Path) -> None:
    (tmp_path / "t.csv").write_bytes(csv_text(ROWS, ";").encode())
    by = declared({"uri": str(tmp_path / "t.csv"), "format": "csv"})
    with pytest.raises(SourceError, match=r"holds ';', but the separator is ','; accepted: source\.csv\.separator ';'"):
        source.pin(by, zone)
    other = declared({"uri": str(tmp_path / "t.csv"), "format": "csv", "csv": {"separator": ";", "decimal": ","}})
    with pytest.raises(SourceError, match=r"column 'share' .*by source\.csv\.decimal"):
        rows_of(source.pin(other, zone), other)


def test_a_first_line_is_not_shown_because_a_contract_guesses_a_word_of_it(tmp_path: Path, zone: Path) -> None:
    """Else whoever edits contracts could print lines of any file that this user can read."""
    mark = MARK.replace(" ", "")
    (tmp_path / "key").write_text(f"person-kind-{mark}\n")
    by = declared({"uri": str(tmp_path / "key"), "format": "csv", "csv": {"separator": "-"}})
    with pytest.raises(
        SourceError, match=r"not declared in the contract: the fields no\. 3 of its first line"
    ) as caught:
        check_source_schema(by, source.pin(by, zone).schema)
    assert mark not in str(caught.value)


def test_files_of_other_columns_are_refused(tmp_path: Path, zone: Path) -> None:
    place = other_csv(tmp_path, ROWS)
    (tmp_path / "rows" / "2.csv").write_text("person;Zaphodina\n1;2\n")
    with pytest.raises(SourceError, match=r"2\.csv: its first line differs from that of 0\.csv") as caught:
        source.pin(declared(place), zone)
    assert "Zaphodina" not in str(caught.value)


def test_a_delta_table_is_not_read_as_its_files(tmp_path: Path, zone: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "t", ROWS)
    with pytest.raises(SourceError, match="has a _delta_log"):
        source.pin(declared({"uri": str(tmp_path / "t"), "format": "parquet"}), zone)


def test_the_version_of_a_delta_table_can_be_declared(tmp_path: Path, zone: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "t", ROWS.slice(0, 2))
    write_deltalake(tmp_path / "t", ROWS.slice(2), mode="append")
    by = declared({"uri": str(tmp_path / "t"), "version": 0})
    assert rows_of(source.pin(by, zone), by).equals(READ.slice(0, 2))
    assert by.snapshot()["source"]["version"] == 0
    assert "version" not in declared({"uri": "t"}).snapshot()["source"]
    assert "csv" not in declared({"uri": "t"}).snapshot()["source"]


@pytest.mark.parametrize("other", [None, "2026-02-30", "1"])
def test_days_that_name_directories_are_dates_where_they_are_declared(
    tmp_path: Path, zone: Path, other: str | None
) -> None:
    known = READ.filter(pc.is_valid(READ["day"]))
    texts = [str(day) for day in known["day"].to_pylist()]
    for day in {*texts, *([other] if other else [])}:
        (tmp_path / "rows" / f"day={day}").mkdir(parents=True)
        kept = known.filter(pa.array([text == day for text in texts])) if day in texts else known.slice(0, 1)
        pq.write_table(kept.drop_columns(["day"]), tmp_path / "rows" / f"day={day}" / "part.parquet")
    by = declared({"uri": str(tmp_path / "rows"), "format": "parquet"})
    pinned = source.pin(by, zone, register=True)
    if other is None:
        assert known.num_rows > 1 and rows_of(pinned, by).equals(known)
    else:  # a day that is none makes the column text, which is refused as a date
        assert pinned.schema.field("day").type == pa.string()
