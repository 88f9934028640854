"""Releases in an Iceberg table: one snapshot each, once, whoever else adds; signed files; odd names; all types."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from object_store import SECRET, Store
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import EqualTo
from pyiceberg.table import CommitTableRequest, Table
from pyiceberg.utils.config import Config

from dpsynth_platform.contracts.release import Target
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.foundation import signature
from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.release import iceberg_target
from dpsynth_platform.release.target_files import SignedRelease
from dpsynth_platform.release.targets import put
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.sources.iceberg import open_iceberg

Months = Callable[..., SignedRelease]
DAY = dt.datetime(2026, 3, 29, 1, 30, 0, 7)
TYPES = pa.table(
    {
        "a b": pa.array([1, None, 3], pa.int64()),
        "x.y": pa.array(["p", None, "ünï"]),
        "größe/cm": pa.array([1.5, None, float("nan")], pa.float64()),
        "select": pa.array([DAY.date(), None, DAY.date()], pa.date32()),
        "2nd": pa.array([DAY, None, DAY], pa.timestamp("us")),
        "date time": pa.array([DAY, None, DAY], pa.timestamp("us", "UTC")),
        "small": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(7, 2)),
        "wide": pa.array([Decimal("1.50"), None, Decimal(10) ** 30], pa.decimal128(38, 2)),
        "byte": pa.array([-128, None, 127], pa.int8()),
        "short": pa.array([1, None, 3], pa.int16()),
        "int": pa.array([1, None, 3], pa.int32()),
        "real": pa.array([0.5, None, 3.0], pa.float32()),
        "日本": pa.array([True, None, False]),
        "bytes": pa.array([b"\x00\xff", None, b""], pa.binary()),
    }
)


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlCatalog]:
    """A catalog in SQLite, whose warehouse the environment names."""
    made = SqlCatalog("open", uri=uri_in(tmp_path))
    made.create_namespace("clinic")
    monkeypatch.setenv("PYICEBERG_CATALOG__OPEN__WAREHOUSE", str(tmp_path / "lake"))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which it reads once a process
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # another planner is a package of its own
    yield made
    made.close()


def uri_in(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'catalog.db'}"


def target_in(tmp_path: Path, **others: Any) -> Target:
    given = {"format": "iceberg", "uri": uri_in(tmp_path), "catalog": "open", "table": "clinic.visits"} | others
    return Target.model_validate({key: value for key, value in given.items() if value is not None})


def add(target: Target, release: SignedRelease) -> bool:
    return put(target, release, note=lambda _: None)


def rows_of(table: Table, release: SignedRelease, **others: Any) -> pa.Table:
    return table.scan(row_filter=EqualTo("release", release.release_id), **others).to_arrow()


def test_a_table_grows_by_one_snapshot_a_release(
    catalog: SqlCatalog, of_month: Months, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey
) -> None:
    target, known = target_in(tmp_path), pa.Table.from_batches(rows)
    first, second = of_month("2026-01"), of_month(None)
    assert [add(target, release) for release in (first, second, first, second)] == [True, True, False, False]
    table = catalog.load_table("clinic.visits")
    snapshots = table.snapshots()
    assert [snapshot.summary["dpsynth.release"] for snapshot in snapshots if snapshot.summary] == [
        first.release_id,
        second.release_id,
    ]
    assert table.scan(snapshot_id=snapshots[0].snapshot_id).to_arrow().num_rows == 400
    for release in (first, second):
        found = rows_of(table, release)
        assert set(found["period"].to_pylist()) == {release.period}
        assert found.select(known.column_names).cast(known.schema).sort_by("patient_id").equals(known)
    assert table.scan(row_filter=EqualTo("period", "2026-01")).to_arrow().num_rows == 400
    # Another implementation's reader of Parquet, by the same plan.
    frame = pl.scan_iceberg(table, reader_override="native").filter(pl.col("release") == second.release_id).collect()
    assert frame["period"].null_count() == len(frame) == 400
    assert frame.select(known.column_names).sort("patient_id").to_dicts() == known.to_pylist()

    # As the source of another contract.
    as_source = Source(format="iceberg", uri=target.uri, catalog="open", table="clinic.visits", key=["patient_id"])
    read = pa.Table.from_batches(open_iceberg(as_source, 1).table.batches())
    assert read.select(known.column_names).cast(known.schema).sort_by("patient_id").equals(known)

    root = tmp_path / "lake" / "clinic" / "visits"
    summary: Any = snapshots[1].summary
    assert summary["dpsynth.sha256.dossier.json"] == second.digests["dossier.json"]
    assert (root / summary["dpsynth.dossier"]).read_bytes() == (second.directory / "dossier.json").read_bytes()
    for release in (first, second):
        received = tmp_path / "received" / release.release_id
        shutil.copytree(root / "_dossier" / release.release_id, received)
        for part in (root / "data" / release.release_id).iterdir():
            shutil.copy(part, received / "data")
        report = verify_release(received, signature.public_pem(signing_key.public_key()))
        assert (report.problems, report.rows) == ((), 400)


def test_a_crash_before_and_after_the_commit_adds_nothing_twice(
    catalog: SqlCatalog, of_month: Months, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, release = target_in(tmp_path), of_month("2026-01")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for name, snapshots in (("_commit", 0), ("_check", 1)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(iceberg_target, name, die)
            add(target, release)
        assert len(catalog.load_table("clinic.visits").snapshots()) == snapshots
    assert not add(target, release)
    table = catalog.load_table("clinic.visits")
    assert (len(table.snapshots()), table.scan().to_arrow().num_rows) == (1, 400)
    # Also when the snapshot, and its properties, are gone.
    table.append(table.scan().to_arrow().slice(0, 0))
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    assert len(catalog.load_table("clinic.visits").snapshots()) == 1
    assert not add(target, release)
    assert catalog.load_table("clinic.visits").scan().to_arrow().num_rows == 400


ANOTHER = """
import json, sys
from pathlib import Path
from dpsynth_platform.contracts.release import Target
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.release.target_files import SignedRelease
from dpsynth_platform.release.targets import put
target, release = map(json.loads, sys.argv[1:])
release["directory"] = Path(release["directory"])
print(put(Target.model_validate(target), SignedRelease(**release), note=lambda _: None))
"""


@pytest.mark.parametrize("same", [True, False])
def test_another_process_that_adds_meanwhile(
    same: bool, catalog: SqlCatalog, of_month: Months, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits between this one's look at the table and its commit, from a public zone of its own."""
    target, first, second = target_in(tmp_path), of_month("2026-01"), of_month("2026-02")
    shutil.copytree(tmp_path / "public", tmp_path / "copied")
    other = asdict(first if same else second)
    other["directory"] = str(tmp_path / "copied" / other["release_id"])
    commit, said = iceberg_target._commit, []

    def commit_late(table: Table, release: SignedRelease) -> None:
        if not said:
            given = [target.model_dump_json(exclude_none=True), json.dumps(other)]
            made = subprocess.run([sys.executable, "-c", ANOTHER, *given], check=True, capture_output=True, text=True)
            said.append(made.stdout.strip())
        commit(table, release)

    monkeypatch.setattr(iceberg_target, "_commit", commit_late)
    assert (add(target, first), said) == (not same, ["True"])
    table = catalog.load_table("clinic.visits")
    assert rows_of(table, first).num_rows == 400
    assert (len(table.snapshots()), table.scan().to_arrow().num_rows) == ((1, 400) if same else (2, 800))


class Catalog(BaseHTTPRequestHandler):
    """The answers of Iceberg's REST protocol that adding to a table needs, for who has the token, by a catalog."""

    behind: SqlCatalog
    failures: list[int]
    """Statuses that the next commits are answered with although they were made."""

    def do_GET(self) -> None:
        self.answer(lambda: self.behind.load_table("clinic.visits"))

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.endswith("/tables"):
            asked = CreateTableRequest.model_validate(dict.fromkeys(("location", "write-order")) | json.loads(content))
            spec: Any = asked.partition_spec
            name = f"clinic.{asked.name}"
            create = self.behind.create_table
            self.answer(lambda: create(name, asked.table_schema, partition_spec=spec, properties=asked.properties))
            return
        change = CommitTableRequest.model_validate_json(content)
        table = self.behind.load_table("clinic.visits")
        self.answer(lambda: self.behind.commit_table(table, change.requirements, change.updates), *self.failures[:1])
        del self.failures[:1]

    def answer(self, made: Callable[[], Any], status: int = 200) -> None:
        found: dict[str, Any] = {"defaults": {}, "overrides": {}}
        if self.headers.get("Authorization") != f"Bearer {SECRET}":
            status = 401
        elif "/tables" in self.path:
            try:
                table = made()
                found = {
                    "metadata-location": table.metadata_location,
                    "metadata": json.loads(table.metadata.model_dump_json()),
                }
            except (NoSuchTableError, CommitFailedException) as error:
                status = 404 if isinstance(error, NoSuchTableError) else 409
        if status != 200:
            found = {"error": {"message": SECRET, "type": "no", "code": status}}
        content = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_a_catalog_over_rest(
    catalog: SqlCatalog, of_month: Months, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another process that is first, and an answer that is lost."""
    first, second = of_month("2026-01"), of_month("2026-02")
    catalog.properties["warehouse"] = str(tmp_path / "lake")
    answering = type("Answering", (Catalog,), {"behind": catalog, "failures": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = target_in(tmp_path, uri=f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(PublicationFailed, match=r"cannot be written or read \(") as refused:
            add(target, first)
        assert SECRET not in str(refused.value)
        monkeypatch.setenv("PYICEBERG_CATALOG__OPEN__TOKEN", SECRET)
        with pytest.raises(PublicationFailed, match="does not say that it is for this URI"):  # nor is it sent there
            add(target, first)
        monkeypatch.setenv("PYICEBERG_CATALOG__OPEN__URI", target.uri)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        assert [add(target, first) for _ in range(2)] == [True, False]
        commit, made = iceberg_target._commit, []

        def commit_late(table: Table, release: SignedRelease) -> None:
            if not made:
                made.append(table)
                assert iceberg_target.put(target, release)  # under the lock of the outer one
            commit(table, release)

        with monkeypatch.context() as patch:
            patch.setattr(iceberg_target, "_commit", commit_late)
            assert not add(target, second)
        third = of_month("2026-03")
        answering.failures.append(504)
        with pytest.raises(PublicationFailed, match=r"CommitStateUnknownException\); accepted"):
            add(target, third)
        assert not add(target, third)
        server.shutdown()
    table = catalog.load_table("clinic.visits")
    assert (len(table.snapshots()), table.scan().to_arrow().num_rows) == (3, 1200)
    assert rows_of(table, second).num_rows == 400


def test_a_table_in_a_store(
    catalog: SqlCatalog, of_month: Months, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__OPEN__WAREHOUSE", f"{store.uri}/open data")
    if store.scheme == "s3":  # pyiceberg asks Amazon for an endpoint and a region that it is not told
        monkeypatch.setenv("PYICEBERG_CATALOG__OPEN__S3__ENDPOINT", os.environ["AWS_ENDPOINT_URL"])
        monkeypatch.setenv("PYICEBERG_CATALOG__OPEN__S3__REGION", "us-east-1")
        monkeypatch.setenv("PYICEBERG_CATALOG__OPEN__URI", uri_in(tmp_path))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    target, releases = target_in(tmp_path), [of_month("2026-01"), of_month("2026-02")]
    assert [add(target, release) for release in (*releases, releases[0])] == [True, True, False]
    table = load_catalog("open", uri=uri_in(tmp_path)).load_table("clinic.visits")
    assert table.location().startswith(f"{store.uri}/open data/")
    assert table.scan().to_arrow().num_rows == 800
    for release in releases:
        path = f"{store.bucket}/open data/clinic/visits/_dossier/{release.release_id}/dossier.json"
        with store.files.open_input_stream(path) as file:
            assert file.read() == (release.directory / "dossier.json").read_bytes()


def test_a_catalog_in_postgresql(
    of_month: Months, tmp_path: Path, postgresql_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = postgresql_url.replace("+psycopg", "")
    made = SqlCatalog(
        "open", uri=plain.replace("postgresql", "postgresql+psycopg", 1), warehouse=str(tmp_path / "lake")
    )
    made.create_namespace("clinic")
    monkeypatch.setenv("PYICEBERG_CATALOG__OPEN__WAREHOUSE", str(tmp_path / "lake"))
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    release = of_month("2026-01")
    assert [add(target_in(tmp_path, uri=plain), release) for _ in range(2)] == [True, False]
    assert made.load_table("clinic.visits").scan().to_arrow().num_rows == 400
    made.close()


def test_odd_names_and_all_types(catalog: SqlCatalog, of_month: Months, tmp_path: Path) -> None:
    release = of_month("2026-01", TYPES.to_batches())
    assert [add(target_in(tmp_path), release) for _ in range(2)] == [True, False]
    table = catalog.load_table("clinic.visits")
    kinds = "long string double date timestamp timestamptz decimal(7,2) decimal(38,2) int int int float boolean binary"
    fields = [(field.name, str(field.field_type).replace(", ", ",")) for field in table.schema().fields]
    assert fields[:-2] == list(zip(TYPES.column_names, kinds.split(), strict=True))
    found = rows_of(table, release).select(TYPES.column_names).cast(TYPES.schema)
    assert repr(found.to_pylist()) == repr(TYPES.to_pylist())  # a NaN does not equal itself
    assert repr(pl.scan_iceberg(table, reader_override="native").collect()["größe/cm"].to_list()) == "[1.5, None, nan]"
    for name, value in (
        ("a b", 3),
        ("größe/cm", 1.5),
        ("date time", "2026-03-29T01:30:00.000007+00:00"),
        ("wide", "1.50"),
    ):
        kept = table.scan(row_filter=EqualTo(name, value)).to_arrow()  # by the bounds of the file, too
        assert 0 < kept.num_rows < 3


def test_tables_whose_files_the_owner_put_together_or_changed(
    catalog: SqlCatalog, of_month: Months, tmp_path: Path
) -> None:
    target, release = target_in(tmp_path), of_month("2026-01", TYPES.to_batches())
    assert add(target, release)
    table = catalog.load_table("clinic.visits")
    table.overwrite(table.scan().to_arrow().take([2, 0, 1]))
    assert not add(target, release)
    table.refresh().delete("int = 1")
    with pytest.raises(PublicationFailed, match="does not hold exactly the rows of this release; accepted"):
        add(target, release)
    whole = of_month("2026-02")
    with pytest.raises(PublicationFailed, match="has other columns or types than this release"):
        add(target, whole)
    other = target_in(tmp_path, table="clinic.others")
    assert add(other, whole)
    next((tmp_path / "lake").rglob(f"{whole.release_id}/*.parquet")).write_bytes(b"not what was signed")
    with pytest.raises(PublicationFailed, match="does not hold exactly the rows"):
        add(other, whole)


def test_other_tables_are_refused(
    catalog: SqlCatalog, of_month: Months, rows: list[pa.RecordBatch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release, target = of_month("2026-01"), target_in(tmp_path)
    root = str(tmp_path / "lake")
    made = catalog.create_table("clinic.visits", rows[0].schema, location=f"{root}/x")
    for properties in ({}, {"dpsynth.holds": "releases of visits"}):  # one without the partition columns
        with made.transaction() as change:
            change.set_properties(properties)
        with pytest.raises(PublicationFailed, match=r"does not hold releases of visits .* then run it again"):
            add(target, release)
    assert catalog.load_table("clinic.visits").current_snapshot() is None
    theirs = target_in(tmp_path, table="clinic.theirs")
    assert add(theirs, release)
    with pytest.raises(PublicationFailed, match="does not hold releases of people"):
        add(theirs, replace(release, dataset="people"))
    with pytest.raises(PublicationFailed, match="has no such namespace; accepted"):
        add(target_in(tmp_path, table="nowhere.visits"), release)
    with pytest.raises(PublicationFailed, match="there is no catalog at this place; accepted"):
        add(target_in(tmp_path, uri=f"sqlite:///{tmp_path / 'none.db'}"), release)
    monkeypatch.delenv("PYICEBERG_CATALOG__OPEN__WAREHOUSE")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    with pytest.raises(PublicationFailed, match=r"accepted: .* PYICEBERG_CATALOG__OPEN__WAREHOUSE, a directory"):
        add(target_in(tmp_path, table="clinic.more"), release)
    (release.directory / "dossier.json").write_text("{}")
    monkeypatch.setenv("PYICEBERG_CATALOG__OPEN__WAREHOUSE", root)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    with pytest.raises(PublicationFailed, match="is not what was signed"):
        add(target_in(tmp_path, table="clinic.more"), release)
