"""Plain files and Delta tables of object stores, on local servers that answer as S3 and Google's storage do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs
import pytest
from object_store import SECRET, Store
from test_plain_files import FORMATS, READ, ROWS, declared

from dpsynth_platform.contracts.release import Target
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.sources import remote_files, source
from dpsynth_platform.sources.plain_files import make_copy


def upload(store: fs.FileSystem, local: Path, place: str) -> None:
    fs.copy_files(str(local), place, source_filesystem=fs.LocalFileSystem(), destination_filesystem=store)


def copied(place: dict[str, Any], directory: Path) -> source.Copy:
    directory.mkdir()
    return source.Copy(directory, make_copy(declared(place).source, declared(place).columns, directory))


@pytest.mark.parametrize("write", FORMATS)
def test_objects_are_read_as_files_are(tmp_path: Path, store: Store, write: Callable[..., dict[str, Any]]) -> None:
    (tmp_path / "local").mkdir()
    place = write(tmp_path / "local", ROWS)
    local = Path(place["uri"])
    name = "in put.jsonl" if place["format"] == "json" else local.name  # Arrow takes no brackets in a URI
    upload(store.files, local, f"{store.bucket}/tables/{name}")
    place["uri"] = f"{store.uri}/tables/{name}".replace(" ", "%20")
    by, zone = declared(place), tmp_path / "zone"
    assert by.source.is_copied
    with pytest.raises(SourceError, match="has no version until a run copies it"):
        source.pin(by, zone)
    first = source.pin(by, zone, register=True, copy=copied(place, tmp_path / "a"))
    rows = pa.Table.from_batches(source.batches(first, by, None)).select(READ.column_names).sort_by("person")
    assert rows.equals(READ)
    assert source.pin(by, zone, register=True, copy=copied(place, tmp_path / "b")).name == first.name


def test_the_version_of_a_delta_table_in_a_store(tmp_path: Path, s3_store: fs.FileSystem, bucket: str) -> None:
    from deltalake import write_deltalake

    write_deltalake(tmp_path / "t", ROWS)
    upload(s3_store, tmp_path / "t", f"{bucket}/t")
    by = declared({"uri": f"s3://{bucket}/t"})
    assert not by.source.is_copied
    pinned = source.pin(by, tmp_path / "zone")
    rows = pa.Table.from_batches(source.batches(pinned, by, None)).select(READ.column_names).sort_by("person")
    assert rows.equals(READ)
    for number, place in enumerate((f"s3://{bucket}/t", f"s3://{bucket}")):
        with pytest.raises(SourceError, match="a table with a log"):
            copied({"uri": place, "format": "parquet"}, tmp_path / str(number))
    part = next(name.name for name in (tmp_path / "t").glob("*.parquet"))
    with pytest.raises(SourceError, match="is part of, a table with a log"):
        copied({"uri": f"s3://{bucket}/t/{part}", "format": "parquet"}, tmp_path / "part")


def test_objects_that_are_not_there_or_change(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, place in enumerate(
        (f"{store.uri}/none.csv", f"{store.uri}/none", f"{store.scheme}://no-such-bucket/x")
    ):
        with pytest.raises(SourceError) as caught:
            copied({"uri": place, "format": "csv"}, tmp_path / str(number))
        assert "there is no such object" in str(caught.value) or "cannot be read" in str(caught.value)
        assert caught.value.__cause__ is None and caught.value.__context__ is None

    (tmp_path / "rows.csv").write_text("person\n1\n")
    upload(store.files, tmp_path / "rows.csv", f"{store.bucket}/rows.csv")
    copy_files = fs.copy_files

    def changed_meanwhile(*arguments: Any, **options: Any) -> None:
        copy_files(*arguments, **options)
        (tmp_path / "rows.csv").write_text("person\n1\n2\n")
        copy_files(str(tmp_path / "rows.csv"), f"{store.bucket}/rows.csv", destination_filesystem=store.files)

    monkeypatch.setattr(remote_files.fs, "copy_files", changed_meanwhile)
    with pytest.raises(SourceError, match="the objects were changed while they were read"):
        copied({"uri": f"{store.uri}/rows.csv", "format": "csv"}, tmp_path / "changed")


@pytest.mark.parametrize(
    "uri",
    [
        f"s3://AKIA:{SECRET}@bucket/x",
        f"s3://bucket/x?secret_key={SECRET}",
        f"https://{SECRET}@catalog.example/x",
        # Whoever is named here would get Google's token.
        f"gs://bucket/x?endpoint_override={SECRET}",
        f"gs://bucket/x?scheme={SECRET}",
    ],
)
@pytest.mark.parametrize("format_", ["csv", "delta", "iceberg", "parquet"])
def test_credentials_are_in_no_contract(uri: str, format_: str) -> None:
    with pytest.raises(ContractError, match="uri: has credentials") as caught:
        declared({"uri": uri, "format": format_})
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("format_", ["csv", "delta"])
@pytest.mark.parametrize(
    "rest",
    [
        "box@elsewhere.example.org/rows",
        "box@account.dfs.core.windows.net.example.org/rows",
        "elsewhere.example.org%2F@box/rows",
        "box@elsewhere.example.org%2F.dfs.core.windows.net/rows",
        "box@account.dfs.core.windows.net:8080/rows",
    ],
)
def test_no_host_but_azures_gets_its_token(rest: str, format_: str) -> None:
    with pytest.raises(ContractError, match="uri: its host is no account of Azure's"):
        declared({"uri": f"abfss://{rest}", "format": format_})
    with pytest.raises(ValueError, match="uri: its host is no account of Azure's"):
        Target(uri=f"abfss://{rest}")


@pytest.mark.parametrize("rest", ["box@account.dfs.core.windows.net/a", "team@onelake.dfs.fabric.microsoft.com/a"])
def test_azures_hosts(rest: str) -> None:
    assert declared({"uri": f"abfss://{rest}", "format": "csv"}).source.uri.endswith(rest)


def test_a_store_that_does_not_answer(
    tmp_path: Path, service_account: Path, no_clouds: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(service_account))
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setattr(remote_files, "_PATIENCE", 1)
    with pytest.raises(SourceError, match="the object store cannot be read") as caught:
        copied({"uri": "gs://box/rows.csv", "format": "csv"}, tmp_path / "copied")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("scheme", "words"),
    [("ftp", "a URI of s3, gs, abfss$"), ("az", "Azure's: abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH")],
)
def test_other_stores_are_named_in_time(scheme: str, words: str) -> None:
    with pytest.raises(ContractError, match=f"uri: no URI of the format csv; accepted: a path, or .*{words}"):
        declared({"uri": f"{scheme}://box/rows.csv", "format": "csv"})


def test_a_path_may_look_like_a_query() -> None:
    assert declared({"uri": "/data/a?key=b.csv", "format": "csv"}).source.uri == "/data/a?key=b.csv"
