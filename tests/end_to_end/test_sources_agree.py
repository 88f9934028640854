"""Must show: the same rows, wherever they lie, are the same content of `bounded`, byte for byte, on both engines."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from deployment import Deployment
from line_cases import PEOPLE, run_here, small_deployment, small_table, storage_of
from pyiceberg.catalog.sql import SqlCatalog

from dpsynth_platform.bounding import single_owner
from dpsynth_platform.bounding.order import RANDOM
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.scrub.fingerprints import fingerprints_from_hex

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]
Source = dict[str, Any]
Given = Callable[[str], Any]
COLUMNS = {
    "day of visit": {"type": "date", "min": "2026-01-01", "max": "2026-12-31"},
    "Höhe": {"type": "float", "min": 0.0, "max": 100.0, "decimals": 2, "nullable": True},
    "member": {"type": "boolean"},
    "seen": {"type": "datetime", "min": "2026-01-01T00:00:00", "max": "2026-12-31T23:59:59", "nullable": True},
}


def rows_of_all_types() -> pa.Table:
    """The small table with a date, a float, a boolean and a time of a day; some are missing. No order is sorted."""
    rows = small_table()
    numbers = range(len(rows))
    first = dt.datetime(2026, 1, 1)
    return (
        rows.append_column("day of visit", pa.array([first.date() + dt.timedelta(days=n % 365) for n in numbers]))
        .append_column("Höhe", pa.array([None if n % 11 == 0 else n % 9973 / 100 for n in numbers], pa.float64()))
        .append_column("member", pa.array([n % 3 == 0 for n in numbers]))
        .append_column(
            "seen",
            pa.array(
                [None if n % 7 == 0 else first + dt.timedelta(seconds=977 * n) for n in numbers], pa.timestamp("us")
            ),
        )
        .take(pa.array([(n * 701) % len(rows) for n in numbers]))
    )


def parquet(place: Path, rows: pa.Table, given: Given) -> Source:
    """In directories named by a column, the last rows first."""
    for region in sorted(set(rows["region"].to_pylist())):
        part = rows.filter(pa.compute.equal(rows["region"], region)).drop_columns("region")
        (place / f"region={region}").mkdir(parents=True)
        pq.write_table(part.slice(100), place / f"region={region}" / "0.parquet")
        pq.write_table(part.slice(0, 100), place / f"region={region}" / "1.parquet")
    return {"uri": str(place), "format": "parquet"}


def comma_separated(place: Path, rows: pa.Table, given: Given) -> Source:
    place.mkdir()
    csv.write_csv(rows, place / "rows.csv", csv.WriteOptions(delimiter=";"))
    return {"uri": str(place / "rows.csv"), "format": "csv", "csv": {"separator": ";"}}


def json_lines(place: Path, rows: pa.Table, given: Given) -> Source:
    place.mkdir()
    lines = [json.dumps(row, default=lambda value: value.isoformat()) + "\n" for row in rows.to_pylist()]
    (place / "0.jsonl").write_text("".join(lines[600:]))
    (place / "1.jsonl").write_text("".join(lines[:600]))
    return {"uri": str(place), "format": "json"}


def iceberg(place: Path, rows: pa.Table, given: Given) -> Source:
    place.mkdir()
    uri = f"sqlite:///{place / 'catalog.db'}"
    with SqlCatalog("default", uri=uri, warehouse=str(place)) as catalog:
        catalog.create_namespace("clinic")
        table = catalog.create_table("clinic.visits", rows.schema)
        table.append(rows.slice(700))
        table.append(rows.slice(0, 700))
    return {"uri": uri, "format": "iceberg", "table": "clinic.visits"}


def sqlite(place: Path, rows: pa.Table, given: Given) -> Source:
    """It has neither dates nor booleans: texts and numbers."""
    place.mkdir()
    with sqlite3.connect(place / "rows.db") as connection:
        names = ", ".join(f'"{name}"' for name in rows.column_names)
        connection.execute(f"CREATE TABLE visits ({names})")
        plain = [[_plain(value) for value in row.values()] for row in rows.to_pylist()]
        connection.executemany(f"INSERT INTO visits VALUES ({', '.join('?' * rows.num_columns)})", plain)
    connection.close()
    return {"uri": f"sqlite:///{place / 'rows.db'}", "format": "sql", "table": "visits"}


def _plain(value: Any) -> Any:
    return (
        value.isoformat(sep=" ")
        if isinstance(value, dt.datetime)
        else str(value)
        if isinstance(value, dt.date)
        else value
    )


def postgresql(place: Path, rows: pa.Table, given: Given) -> Source:
    url = given("postgresql_url")
    types = [sa.Text, sa.BigInteger, sa.Text, sa.SmallInteger, sa.Text, sa.Date, sa.Float, sa.Boolean, sa.DateTime]
    engine = sa.create_engine(url)
    columns = [sa.Column(name, type_) for name, type_ in zip(rows.column_names, types, strict=True)]
    table = sa.Table("All visits", sa.MetaData(), *columns)
    with engine.begin() as connection:
        table.drop(connection, checkfirst=True)
        table.create(connection)
        connection.execute(table.insert(), rows.to_pylist())
    engine.dispose()
    return {"uri": url, "format": "sql", "table": "public.All visits"}


def object_store(place: Path, rows: pa.Table, given: Given) -> Source:
    store, bucket = given("s3_store"), given("bucket")
    with store.open_output_stream(f"{bucket}/rows/0.parquet") as stream:
        pq.write_table(rows, stream)
    return {"uri": f"s3://{bucket}/rows", "format": "parquet"}


def delta(place: Path, rows: pa.Table, given: Given) -> Source:
    write_table(place, rows.schema, rows.to_batches())
    return {"uri": str(place), "format": "delta"}


WRITERS = [parquet, comma_separated, json_lines, iceberg, sqlite, postgresql, object_store]


def scrubbed(deployment: Deployment, source: Source) -> Path:
    """What the line's first two steps store of a source."""
    deployment.contract["source"] = {"key": ["person", "visit"]} | source
    ran = run_here(deployment.write(), steps=("raw", "scrubbed"))
    assert ran.success, ran.failures
    return storage_of(deployment).require(PEOPLE, "scrubbed").directory / "table"


def bounded(table: Path, target: Path, engine: Engine) -> bytes:
    """The bytes of what bounding keeps of a table, in the order of the records' fingerprints; Arrow's own format.

    A run's clearance draws by chance whom the audit holds out, so everybody takes part here, without canaries.
    """
    owners = sorted({owner for batch in read_table(table) for owner in batch["_owner"].to_pylist()})
    report = single_owner.write_bounded(
        table,
        target,
        engine=engine,
        columns=["region", "score", "outcome", *COLUMNS],
        participants=fingerprints_from_hex(owners),
        max_contributions=1,
        key=b"k" * 32,
        canaries=None,
        order=RANDOM,
    )
    assert report.rows == len(owners) == 1000
    rows = pa.Table.from_batches(read_table(target)).sort_by("_record").combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue().to_pybytes()


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    made = small_deployment(tmp_path)
    made.contract["columns"] |= COLUMNS
    return made


@pytest.mark.parametrize("writer", WRITERS)
def test_every_source_gives_the_same_bytes(
    deployment: Deployment, tmp_path: Path, request: pytest.FixtureRequest, writer: Callable[..., Source]
) -> None:
    rows, given = rows_of_all_types(), request.getfixturevalue
    tables = [scrubbed(deployment, made(tmp_path / made.__name__, rows, given)) for made in (delta, writer)]
    found = []
    for number, table in enumerate(tables):
        with DuckDBChoice(threads=2).open(tmp_path / f"spill-{number}") as engine:
            found.append(bounded(table, tmp_path / f"bounded-{number}", engine))
    assert found[0] == found[1] and len(found[0]) > 100_000


def test_both_engines_give_the_same_bytes(deployment: Deployment, tmp_path: Path, spark: Engine) -> None:
    table = scrubbed(deployment, delta(tmp_path / "lake", rows_of_all_types(), None))
    with DuckDBChoice(threads=2).open(tmp_path / "spill") as duckdb:
        found = bounded(table, tmp_path / "by-duckdb", duckdb)
    assert bounded(table, tmp_path / "by-spark", spark) == found
