"""Iceberg tables as a source: snapshots, deleted rows, renamed columns, catalogs and metadata files."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.utils.config import Config
from test_plain_files import COLUMNS, READ, declared, rows_of
from test_source import contract

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.sources import iceberg, source

SECRET = "zq-secret-Quillmarker-905"
CATALOG = {"format": "iceberg", "catalog": "made", "table": "clinic.visits"}


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    (tmp_path / "lake").mkdir()
    made = SqlCatalog("made", uri=f"sqlite:///{tmp_path / 'catalog.db'}", warehouse=str(tmp_path / "lake"))
    made.create_namespace("clinic")
    yield made
    made.close()


@pytest.fixture
def visits(catalog: SqlCatalog) -> Table:
    table = catalog.create_table("clinic.visits", READ.schema, properties={"format-version": "2"})
    table.append(READ.slice(0, 4))
    table.append(READ.slice(4))
    return table


def place(tmp_path: Path, **others: Any) -> dict[str, Any]:
    return CATALOG | {"uri": f"sqlite:///{tmp_path / 'catalog.db'}"} | others


def pinned(by: DataContract, tmp_path: Path, version: int | None = None) -> source.PinnedSource:
    return source.pin(by, tmp_path / "restricted", version=version, register=True)


def test_a_table_of_a_catalog_is_read_as_it_is(visits: Table, tmp_path: Path) -> None:
    by = declared(place(tmp_path))
    found = pinned(by, tmp_path)
    assert found.name == f"{visits.metadata.table_uuid}@2"
    assert rows_of(found, by).equals(READ)
    assert by.source.place == f"sqlite:///{tmp_path / 'catalog.db'}/made.clinic.visits"


class Catalog(BaseHTTPRequestHandler):
    """The two answers of Iceberg's REST protocol that reading a table needs, for who has the token."""

    metadata_location: str
    overrides: Mapping[str, Any] = {}
    config: Mapping[str, Any] = {}

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == f"Bearer {SECRET}"
        table = self.path == "/v1/namespaces/clinic/tables/visits"
        metadata = {
            "metadata-location": self.metadata_location,
            "metadata": json.loads(Path(self.metadata_location.removeprefix("file://")).read_text()),
        }
        found = metadata | {"config": self.config} if table else {"defaults": {}, "overrides": self.overrides}
        content = json.dumps(found if known else {"error": {"message": SECRET, "type": "no", "code": 401}}).encode()
        self.send_response(200 if known else 401)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


def test_a_rest_catalog_by_a_token_of_the_environment(
    visits: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answering = type("Answering", (Catalog,), {"metadata_location": visits.metadata_location})
    with ThreadingHTTPServer(("127.0.0.1", 0), answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        by = declared(CATALOG | {"uri": f"http://127.0.0.1:{server.server_port}"})
        with caplog.at_level(logging.DEBUG), pytest.raises(SourceError, match=r"cannot be opened \(") as refused:
            pinned(by, tmp_path)
        monkeypatch.setenv("PYICEBERG_CATALOG__MADE__TOKEN", SECRET)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # which it reads once a process
        for another in (None, "http://127.0.0.1:1"):
            with monkeypatch.context() as patched, pytest.raises(SourceError, match="PYICEBERG_CATALOG__MADE__URI"):
                if another:
                    patched.setenv("PYICEBERG_CATALOG__MADE__URI", another)
                pinned(by, tmp_path)
        monkeypatch.setenv("PYICEBERG_CATALOG__MADE__URI", by.source.uri)
        found = pinned(by, tmp_path)
        assert rows_of(found, by).equals(READ)
        server.shutdown()
    assert SECRET not in f"{refused.value}{found}{by.source.place}{by.snapshot()}{caplog.text}"
    assert not [path for path in (tmp_path / "restricted").rglob("*") if SECRET.encode() in path.read_bytes()]


HOOK = "subprocess.getoutput"


@pytest.mark.parametrize(
    ("place", "setting"),
    [
        ("overrides", {"auth": {"type": "custom", "impl": HOOK, "custom": {"cmd": "touch called"}}}),
        ("overrides", {"auth": {"type": "google"}}),
        ("overrides", {"py-io-impl": HOOK}),
        ("overrides", {"gcs.service.host": "https://elsewhere.example.org"}),
        ("config", {"py-io-impl": HOOK}),
        ("config", {"write.py-location-provider.impl": "builtins.exec"}),
        ("config", {"gcs.service.host": "https://elsewhere.example.org"}),
        ("config", {"adls.dfs-storage-authority": "elsewhere.example.org"}),
        ("config", {"adls.account-name": "elsewhere.example.org/"}),
    ],
)
def test_a_catalog_calls_no_program_and_names_no_host_for_credentials(
    place: str, setting: dict[str, Any], visits: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else whoever edits a contract could name a catalog that answers with a program."""
    monkeypatch.chdir(tmp_path)
    answering = type("Answering", (Catalog,), {"metadata_location": visits.metadata_location, place: setting})
    with ThreadingHTTPServer(("127.0.0.1", 0), answering) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        by = declared(CATALOG | {"uri": f"http://127.0.0.1:{server.server_port}"})
        monkeypatch.setenv("PYICEBERG_CATALOG__MADE__TOKEN", SECRET)
        monkeypatch.setenv("PYICEBERG_CATALOG__MADE__URI", by.source.uri)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        with pytest.raises(SourceError, match="names a program or a host for credentials"):
            pinned(by, tmp_path)
        server.shutdown()
    assert not (tmp_path / "called").exists()


def test_nor_does_a_table(catalog: SqlCatalog, tmp_path: Path) -> None:
    catalog.create_table("clinic.visits", READ.schema, properties={"format-version": "2", "py-io-impl": HOOK})
    with pytest.raises(SourceError, match="names a program or a host for credentials"):
        pinned(declared(place(tmp_path)), tmp_path)


@pytest.mark.parametrize("name", ["py-io-impl", "gcs.service.host"])
def test_nor_does_a_metadata_file(visits: Table, tmp_path: Path, name: str) -> None:
    file = Path(visits.metadata_location.removeprefix("file://"))
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"properties": document["properties"] | {name: HOOK}}))
    with pytest.raises(SourceError, match="names a program or a host for credentials"):
        pinned(declared({"format": "iceberg", "uri": visits.metadata_location}), tmp_path)


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_a_catalog_in_postgresql_gets_no_password_of_another_host(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    monkeypatch.setenv("PGHOST", "db.example.org")
    with pytest.raises(SourceError, match=r"PGPASSWORD would be sent to 127\.0\.0\.1"):
        pinned(declared(CATALOG | {"uri": f"{scheme}://reader@127.0.0.1:1/lake"}), tmp_path)


def test_a_table_of_a_metadata_file(visits: Table, tmp_path: Path) -> None:
    by = declared({"format": "iceberg", "uri": visits.metadata_location})
    assert rows_of(pinned(by, tmp_path), by).equals(READ)


def test_the_rows_of_a_period(visits: Table, catalog: SqlCatalog, tmp_path: Path) -> None:
    release = {"uri": "unused", "cadence": "monthly", "start": "2026-01"}
    by = declared(place(tmp_path, period_column="day"), release=release)
    assert rows_of(pinned(by, tmp_path), by, "2026-02").equals(READ.slice(2, 2))
    # In a file that pyiceberg did not write, a filter's dot names a field of a struct.
    dotted = READ.rename_columns([{"day": "the.day"}.get(name, name) for name in READ.column_names])
    pq.write_table(dotted, tmp_path / "dotted.parquet")
    catalog.create_table("clinic.dotted", dotted.schema).add_files([str(tmp_path / "dotted.parquet")])
    columns = {{"day": "the.day"}.get(name, name): column for name, column in COLUMNS.items()}
    where = place(tmp_path, table="clinic.dotted", period_column="the.day", key=["person"])
    other = contract(Path("x"), source=where, columns=columns, release=release)
    found = pa.Table.from_batches(source.batches(pinned(other, tmp_path), other, "2026-02"))
    assert found.select(dotted.column_names).sort_by("person").equals(dotted.slice(2, 2))


def test_versions_are_snapshots_and_earlier_ones_are_read(visits: Table, tmp_path: Path) -> None:
    by = declared(place(tmp_path))
    before = pinned(by, tmp_path)
    visits.delete("number > 3")
    after = pinned(by, tmp_path)
    assert after.version > before.version and rows_of(before, by).equals(READ)
    kept = [row for row in READ.to_pylist() if row["number"] is None or row["number"] <= 3]
    assert 0 < len(kept) < READ.num_rows
    assert rows_of(after, by).to_pylist() == kept
    declared_version = declared(place(tmp_path, version=before.version))
    assert pinned(declared_version, tmp_path).name == before.name
    with pytest.raises(SourceError, match="has no snapshot with the sequence number 77, which may have expired"):
        pinned(by, tmp_path, 77)


def test_a_table_that_was_rolled_back_has_its_earlier_version(visits: Table, tmp_path: Path) -> None:
    by = declared(place(tmp_path))
    before = pinned(by, tmp_path)
    visits.append(READ.slice(0, 1))
    assert pinned(by, tmp_path).name != before.name
    visits.manage_snapshots().rollback_to_snapshot(visits.metadata.snapshots[1].snapshot_id).commit()
    assert pinned(by, tmp_path).name == before.name
    assert rows_of(pinned(by, tmp_path), by).equals(READ)


def test_a_renamed_column_has_its_new_name_from_the_next_snapshot_on(visits: Table, tmp_path: Path) -> None:
    with visits.update_schema() as update:
        update.rename_column("note", "remark")
    by = declared(place(tmp_path))
    assert "note" in pinned(by, tmp_path).schema.names
    visits.append(READ.slice(0, 1).rename_columns([{"note": "remark"}.get(name, name) for name in READ.column_names]))
    found = pinned(by, tmp_path)
    assert "remark" in found.schema.names and "note" not in found.schema.names
    table = iceberg.open_iceberg(by.source).table
    values = pa.Table.from_batches(table.batches(["remark"]))["remark"].to_pylist()
    assert sorted(values) == sorted([*READ["note"].to_pylist(), READ["note"][0].as_py()])


@pytest.mark.parametrize(
    ("quiet", "version", "since", "until", "known"),
    [
        ({1: False, 2: False, 3: False}, 2, 2, 2, True),
        ({1: False, 2: True, 3: True}, 3, 1, 3, True),
        ({1: False, 2: True, 4: True, 5: False}, 1, 1, 4, True),
        ({3: True, 4: False}, 3, 3, 3, False),
        ({3: True, 4: True}, 4, 3, 4, False),
    ],
)
def test_snapshots_of_compaction_are_no_versions(
    quiet: dict[int, bool], version: int, since: int, until: int, known: bool
) -> None:
    found = iceberg.Snapshots(version, quiet)
    assert (found.same_since, found.same_until, found.known_since) == (since, until, known)


def test_a_replacement_of_files_is_no_version(visits: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a compaction by Spark or Trino commits; pyiceberg has none of its own, so an append is named like one."""
    by = declared(place(tmp_path))
    before = pinned(by, tmp_path)
    actual = iceberg._is_quiet

    def quiet(opened: Table, snapshot: Any) -> bool:
        if snapshot.sequence_number == 3:
            snapshot = snapshot.model_copy(
                update={"summary": snapshot.summary.model_copy(update={"operation": Operation.REPLACE})}
            )
        return actual(opened, snapshot)

    visits.append(READ.slice(0, 0))
    monkeypatch.setattr(iceberg, "_is_quiet", quiet)
    after = pinned(by, tmp_path)
    assert (after.version, after.read, after.name) == (before.version, 3, before.name)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"uri": "sqlite:///{0}/other.db"}, "there is no catalog at this place"),
        ({"uri": "sqlite+pysqlite:///{0}/other.db"}, "there is no catalog at this place"),
        ({"table": "clinic.nobody"}, r"cannot be opened \(NoSuchTableError\)"),
        (
            {"uri": "{0}/lake", "table": None, "catalog": None},
            r"cannot be opened \(\w+\); accepted: the URI of a catalog",
        ),
    ],
)
def test_what_is_not_there(visits: Table, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    changes = {key: value and value.format(tmp_path) for key, value in changes.items()}
    by = declared({key: value for key, value in place(tmp_path, **changes).items() if value is not None})
    with pytest.raises(SourceError, match=words):
        pinned(by, tmp_path)
    assert not (tmp_path / "other.db").exists()


def test_a_table_without_rows_or_numbers(catalog: SqlCatalog, tmp_path: Path) -> None:
    by = declared(place(tmp_path))
    table = catalog.create_table("clinic.visits", READ.schema, properties={"format-version": "1"})
    with pytest.raises(SourceError, match="has no snapshot, so no row"):
        pinned(by, tmp_path)
    table.append(READ)
    with pytest.raises(SourceError, match="is of format version 1"):
        pinned(by, tmp_path)


def test_a_table_of_format_version_1_has_versions_from_its_upgrade_on(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = catalog.create_table("clinic.visits", READ.schema, properties={"format-version": "1"})
    table.append(READ.slice(0, 4))
    with table.transaction() as change:
        change.upgrade_table_version(2)
    table.append(READ.slice(4))
    by = declared(place(tmp_path))
    found = pinned(by, tmp_path)
    assert (found.version, rows_of(found, by)) == (1, READ)


def test_a_file_that_is_gone(visits: Table, tmp_path: Path) -> None:
    by = declared(place(tmp_path))
    found = pinned(by, tmp_path)
    next((tmp_path / "lake").rglob("*.parquet")).unlink()
    with pytest.raises(SourceError, match="a data file is missing, damaged or cannot be read by pyiceberg"):
        list(source.batches(found, by, None))
