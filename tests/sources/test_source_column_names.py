"""Columns have the names that they have in every kind of source."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from column_names import NAMES
from test_plain_files import json_text
from test_source import contract

from dpsynth_platform.sources import source
from dpsynth_platform.sources.database import extract

FITTING = [name for name in NAMES if len(name.encode()) < 64]
"""In PostgreSQL a name has at most 63 bytes."""
ROWS = pa.table({"person": ["p1", "p2"]} | {name: [place, place + 1] for place, name in enumerate(FITTING)})
DECLARED = {"person": {"type": "identifier"}} | {name: {"type": "integer", "min": 0, "max": 99} for name in FITTING}


def parquet(place: Path) -> dict[str, Any]:
    pq.write_table(ROWS, place / "rows.parquet")
    return {"format": "parquet", "uri": str(place / "rows.parquet")}


def fields(place: Path) -> dict[str, Any]:
    with (place / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([ROWS.column_names, *(row.values() for row in ROWS.to_pylist())])
    return {"format": "csv", "uri": str(place / "rows.csv"), "csv": {"skip_blanks": False}}


def lines(place: Path) -> dict[str, Any]:
    (place / "rows.jsonl").write_text(json_text(ROWS), encoding="utf-8")
    return {"format": "json", "uri": str(place / "rows.jsonl")}


def database(url: str) -> dict[str, Any]:
    """A table whose own name has signs, too; filled by the driver, by position."""

    def quoted(name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    engine = sa.create_engine(url)
    table = quoted("a table: 100%")
    with engine.begin() as connection:
        kinds = ", ".join(f"{quoted(name)} {'text' if name == 'person' else 'bigint'}" for name in ROWS.column_names)
        cursor: Any = connection.connection.cursor()
        cursor.execute(f"CREATE TABLE {table} ({kinds})")
        for row in ROWS.to_pylist():
            values = ", ".join(f"'{value}'" for value in row.values())
            cursor.execute(f"INSERT INTO {table} VALUES ({values})")
    engine.dispose()
    return {"format": "sql", "uri": url, "table": "a table: 100%"}


@pytest.mark.parametrize("write", [parquet, fields, lines, "sqlite", "postgresql"])
def test_any_name_is_read_as_it_is(
    tmp_path: Path, request: pytest.FixtureRequest, write: Callable[[Path], dict[str, Any]] | str
) -> None:
    copy = None
    if isinstance(write, str):
        url = f"sqlite:///{tmp_path / 'rows.db'}" if write == "sqlite" else request.getfixturevalue("postgresql_url")
        by = contract(Path("x"), source={"key": ["person"]} | database(url), columns=DECLARED)
        copy = source.Copy(tmp_path, extract(by.source, {"person"}, tmp_path))
    else:
        by = contract(Path("x"), source={"key": ["person"]} | write(tmp_path), columns=DECLARED)
    pinned = source.pin(by, tmp_path / "zone", register=True, copy=copy)
    found = pa.Table.from_batches(source.batches(pinned, by, None))
    assert sorted(found.column_names) == sorted(ROWS.column_names)
    assert found.select(ROWS.column_names).sort_by("person").to_pylist() == ROWS.to_pylist()


def test_json_names_are_in_checks_of_ids_too(tmp_path: Path) -> None:
    for place, name in enumerate(FITTING):
        root = tmp_path / str(place)
        root.mkdir()
        row = {"person": ["p1"], name: [["a", "b"]]}
        (root / "rows.jsonl").write_text(json_text(pa.table(row)), encoding="utf-8")
        by = contract(
            Path("x"),
            source={"key": ["person"], "format": "json", "uri": str(root / "rows.jsonl")},
            columns={"person": {"type": "identifier"}, name: {"type": "identifier"}, "sick": {"type": "boolean"}},
        )
        pinned = source.pin(by, tmp_path / "zone", register=True)
        with pytest.raises(source.SourceError, match="neither text nor a whole number"):
            list(source.batches(pinned, by, None))
