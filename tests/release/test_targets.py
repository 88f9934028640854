"""Copies of a release in the targets of its contract: the very files that were signed, each release once."""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.fs as fs
import pytest
import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from deltalake import DeltaTable, write_deltalake
from object_store import SECRET, made

from dpsynth_platform.contracts.release import Target
from dpsynth_platform.foundation import signature
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import PublicationFailed
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.release import delta_target, postgresql_target
from dpsynth_platform.release.publish import Published
from dpsynth_platform.release.target_files import SignedRelease
from dpsynth_platform.release.targets import put, removal
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.sources.remote_files import opened

Months = Callable[[str], SignedRelease]


def add(uri: str, release: SignedRelease, format_: Any = "delta") -> bool:
    return put(Target(uri=uri, format=format_), release, note=lambda _: None)


def fetch(store: fs.FileSystem, path: str, directory: Path) -> None:
    """Copies all objects below a path."""
    for item in store.get_file_info(fs.FileSelector(path, recursive=True)):
        if item.type == fs.FileType.File:
            there = directory / Path(item.path).relative_to(path)
            there.parent.mkdir(parents=True, exist_ok=True)
            fs.copy_files(item.path, str(there), source_filesystem=store, destination_filesystem=fs.LocalFileSystem())


def rebuilt(table: Path, release_id: str, target: Path) -> Path:
    """A release as its recipient puts it together from a table's directory."""
    shutil.copytree(table / "_dossier" / release_id, target)
    for part in (table / release_id).iterdir():
        shutil.copy(part, target / "data")
    return target


@pytest.mark.parametrize("format_", ["delta", "iceberg"])
def test_who_withdraws_is_told_of_every_place_with_rows(released: Published, format_: str) -> None:
    told = removal(Mock(format=format_, place="there"), released.release_id)
    assert f"column release is {released.release_id}" in told
    assert f"_dossier/{released.release_id}/sample.json" in told
    assert "hold them, too" in told


def test_a_delta_table_grows_by_one_version_a_release(
    of_month: Months, rows: list[pa.RecordBatch], tmp_path: Path, signing_key: Ed25519PrivateKey
) -> None:
    place = tmp_path / "shared" / "visits"
    first, second = of_month("2026-01"), of_month("2026-02")
    assert [add(str(place), release) for release in (first, second, first, second)] == [True, True, False, False]
    table = DeltaTable(place)
    assert table.version() == 2  # version 0 is empty
    known = pa.Table.from_batches(rows)
    for version, months in ((1, ["2026-01"]), (2, ["2026-01", "2026-02"])):
        found = DeltaTable(place, version=version).to_pyarrow_table()
        assert sorted(set(found["period"].to_pylist())) == months
        for release in (first, second)[:version]:
            part = found.filter(pa.compute.field("release") == release.release_id)
            assert part.select(known.column_names).sort_by("patient_id").equals(known)
    commit = table.history(1)[0]
    assert commit["dpsynth.release"] == second.release_id
    assert commit["dpsynth.sha256.dossier.json"] == second.digests["dossier.json"]
    for path in place.rglob("*"):
        if "_delta_log" not in path.parts:
            assert stat.S_IMODE(path.stat().st_mode) == (0o755 if path.is_dir() else 0o644)
    for release in (first, second):
        copy = rebuilt(place, release.release_id, tmp_path / "received" / release.release_id)
        report = verify_release(copy, signature.public_pem(signing_key.public_key()))
        assert (report.problems, report.rows) == ((), 400)
    # The owner of the table may tidy it.
    DeltaTable(place).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert not add(str(place), first)
    assert (place / "_dossier" / first.release_id / "dossier.json").is_file()


def test_a_directory_that_was_closed_stays_so(of_month: Months, tmp_path: Path) -> None:
    for format_ in ("delta", "files"):
        (tmp_path / format_).mkdir(mode=0o700)
        assert add(str(tmp_path / format_), of_month("2026-01"), format_)
        assert stat.S_IMODE((tmp_path / format_).stat().st_mode) == 0o700


def test_a_crash_before_and_after_the_commit_adds_nothing_twice(
    of_month: Months, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, release = tmp_path / "visits", of_month("2026-01")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for name, new in (("_commit", True), ("_check", False)):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(delta_target, name, die)
            add(str(place), release)
        assert (DeltaTable(place).transaction_version(release.release_id) is None) == new
    assert not add(str(place), release)
    assert DeltaTable(place).version() == 1
    assert DeltaTable(place).to_pyarrow_table().num_rows == 400


def test_other_tables_and_changed_ones_are_refused(
    of_month: Months, rows: list[pa.RecordBatch], tmp_path: Path
) -> None:
    release = of_month("2026-01")
    other = tmp_path / "other"
    write_deltalake(other, pa.Table.from_batches(rows))
    with pytest.raises(PublicationFailed, match=r"does not hold releases of visits .* then run it again"):
        add(str(other), release)
    assert DeltaTable(other).version() == 0
    with pytest.raises(PublicationFailed, match="does not hold releases of people"):
        assert add(str(tmp_path / "visits"), release)
        add(str(tmp_path / "visits"), replace(release, dataset="people"))
    DeltaTable(tmp_path / "visits").delete("minutes < 60")
    with pytest.raises(PublicationFailed, match="rows of this release, which has 400; accepted"):
        add(str(tmp_path / "visits"), release)
    (release.directory / "dossier.json").write_text("{}")
    with pytest.raises(PublicationFailed, match="is not what was signed"):
        add(str(tmp_path / "new"), release)


@pytest.mark.parametrize("where", ["local", "s3", "gs"])
def test_files_are_a_release_that_verifies(
    where: str, of_month: Months, tmp_path: Path, signing_key: Ed25519PrivateKey, request: pytest.FixtureRequest
) -> None:
    first, received = of_month("2026-01"), tmp_path / "received"
    key = signature.public_pem(signing_key.public_key())
    if where == "local":
        assert [add(str(received), first, "files") for _ in range(2)] == [True, False]
    else:
        files = request.getfixturevalue(f"{where}_store")
        uri = f"{where}://{made(files, tmp_path)}/open data/visits".replace(" ", "%20")
        assert [add(uri, first, "files") for _ in range(2)] == [True, False]
        store, path = opened(uri)
        fetch(store, path, received)
    assert verify_release(received / first.release_id, key).problems == ()
    if where == "local":
        (received / first.release_id / "dossier.json").write_text("{}")
        assert add(str(received), first, "files")  # what an interrupted copy left is made good
        assert verify_release(received / first.release_id, key).problems == ()


def test_a_delta_table_in_a_store(
    of_month: Months, bucket: str, tmp_path: Path, signing_key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"s3://{bucket}/shared/visits"
    first, second = of_month("2026-01"), of_month("2026-02")
    assert [add(uri, release) for release in (first, second, first)] == [True, True, False]
    assert DeltaTable(uri).version() == 2
    assert DeltaTable(uri).to_pyarrow_table(partitions=[("period", "=", "2026-01")]).num_rows == 400
    store, path = opened(uri)
    local = tmp_path / "all"
    fetch(store, path, local)
    report = verify_release(
        rebuilt(local, second.release_id, tmp_path / "received"), signature.public_pem(signing_key.public_key())
    )
    assert report.problems == ()
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    with pytest.raises(PublicationFailed) as refused:
        add(f"s3://{bucket}/files", first, "files")
    assert SECRET not in str(refused.value)
    assert "accepted: a place that this environment may write" in str(refused.value)


def test_a_table_in_postgresql(
    of_month: Months,
    rows: list[pa.RecordBatch],
    postgresql_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Target(uri=postgresql_url, format="postgresql", table="visits")
    first, second = of_month("2026-01"), of_month("2026-02")

    def give(release: SignedRelease) -> bool:
        return put(target, release, note=lambda _: None)

    def query(text: str) -> list[tuple[Any, ...]]:
        with engine.begin() as connection:
            found = connection.exec_driver_sql(text)
            return [tuple(row) for row in found] if found.returns_rows else []

    engine = sa.create_engine(postgresql_url)
    # An attempt that ends before its transaction does leaves nothing.
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(postgresql_target, "_check", Mock(side_effect=KeyboardInterrupt))
        give(first)
    assert query("SELECT to_regclass('visits'), to_regclass('visits_releases')") == [(None, None)]

    assert [give(release) for release in (first, second, first)] == [True, True, False]
    names = ", ".join(rows[0].schema.names)
    known = [tuple(row.values()) for batch in rows for row in batch.to_pylist()]
    for release, month in ((first, "2026-01"), (second, "2026-02")):
        where = f"WHERE period = '{month}' AND release = '{release.release_id}' ORDER BY patient_id"
        assert query(f"SELECT {names} FROM visits {where}") == known
        ((dataset, count, digests, dossier),) = query(
            f"SELECT dataset, rows, digests, dossier::text FROM visits_releases WHERE release = '{release.release_id}'"
        )
        assert (dataset, count, digests) == ("visits", 400, release.digests)
        assert dossier == (release.directory / "dossier.json").read_text()

    # Names of columns may hold what a driver's statement gives a meaning to.
    odd = {"patient_id": '100% of "them"', "minutes": "%s {0} :x"}
    named = tmp_path / "odd"
    shutil.copytree(first.directory, named, ignore=shutil.ignore_patterns("data"))
    renamed = pa.Table.from_batches(rows).rename_columns([odd.get(name, name) for name in rows[0].schema.names])
    write_table(named / "data", renamed.schema, renamed.to_batches())
    files = {name for name in first.digests if not name.startswith("data/")}
    files |= {str(path.relative_to(named)) for path in (named / "data").rglob("*") if path.is_file()}
    other = replace(first, directory=named, digests={name: digest_file(named / name) for name in files})
    assert [
        put(Target(uri=postgresql_url, format="postgresql", table="odd"), other, note=lambda _: None) for _ in range(2)
    ] == [True, False]
    assert query('SELECT count("100% of ""them""") FROM odd'.replace("%", "%%")) == [(400,)]

    for other in (replace(first, dataset="people"), replace(first, release_id="visits-1", dataset="people")):
        with pytest.raises(PublicationFailed, match="releases of another dataset"):
            give(other)
    query("UPDATE visits SET minutes = minutes + 1 WHERE patient_id = 'S0000007'")
    with pytest.raises(PublicationFailed, match="does not hold exactly the rows of this release; accepted"):
        give(first)
    query("ALTER TABLE visits ADD COLUMN more text")
    with pytest.raises(PublicationFailed, match="has other columns or types"):
        give(first)
    with pytest.raises(PublicationFailed, match=r"OperationalError.*accepted: a place that this environment may write"):
        put(Target(uri="postgresql://nobody@127.0.0.1:1/x", format="postgresql", table="t"), first, note=lambda _: None)
    engine.dispose()
