"""Versions of a Delta table that hold the same rows, by its log alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from delta_cases import add, commit, field, metadata, protocol, remove
from deltalake import DeltaTable, write_deltalake

from dpsynth_platform.sources.delta import open_delta
from dpsynth_platform.sources.versions import Log

ONE = pa.table({"n": [1]})


def written(root: Path, *, appends: int = 3) -> DeltaTable:
    for number in range(appends):
        write_deltalake(str(root), pa.table({"n": [number]}), mode="append")
    return DeltaTable(str(root))


def log(root: Path, version: int | None = None) -> Log:
    return open_delta(str(root), version).log


def test_each_write_is_news(tmp_path: Path) -> None:
    written(tmp_path / "t")
    for version in range(3):
        found = log(tmp_path / "t", version)
        assert (found.same_since, found.same_until, found.known_since) == (version, version, True)


def test_what_keeps_rows_is_no_news(tmp_path: Path) -> None:
    root = tmp_path / "t"
    written(root).optimize.compact()
    DeltaTable(str(root)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    DeltaTable(str(root)).create_checkpoint()
    DeltaTable(str(root)).alter.set_table_properties({"delta.logRetentionDuration": "interval 1 days"})
    DeltaTable(str(root)).alter.set_table_description("what a row is")
    DeltaTable(str(root)).optimize.z_order(["n"])
    newest = DeltaTable(str(root)).version()
    assert newest >= 7
    found = log(root)
    assert (found.same_since, found.same_until, found.known_since) == (2, newest, True)
    assert (log(root, 2).same_until, log(root, 1).same_until) == (newest, 1)
    write_deltalake(str(root), ONE, mode="append")
    assert log(root).same_since == newest + 1
    assert log(root, 2).same_until == newest


@pytest.mark.parametrize("change", ["delete", "overwrite", "column", "restore", "merge"])
def test_what_changes_rows_or_columns_is_news(tmp_path: Path, change: str) -> None:
    root = tmp_path / "t"
    table = written(root)
    if change == "delete":
        table.delete("n = 1")
    elif change == "overwrite":
        write_deltalake(str(root), ONE, mode="overwrite")
    elif change == "column":
        from deltalake import Field
        from deltalake.schema import PrimitiveType

        table.alter.add_columns([Field("more", PrimitiveType("string"))])
    elif change == "restore":
        table.restore(0)
    else:
        source = pa.table({"n": [1]})
        table.merge(source, "s.n = t.n", source_alias="s", target_alias="t").when_matched_delete().execute()
    assert log(root).same_since == 3


COMPACTED = [remove("a.parquet", dataChange=False)]


@pytest.mark.parametrize(
    ("actions", "quiet"),
    [
        ([{"commitInfo": {"operation": "VACUUM END"}}], True),
        ([{"txn": {"appId": "stream", "version": 3}}], True),
        ([protocol(["v2Checkpoint"])], True),
        ([{"domainMetadata": {"domain": "clustering", "configuration": "{}", "removed": False}}], True),
        ([metadata([field("n", "long", comment="a number")], **{"delta.appendOnly": "true"})], True),
        ([metadata([field("n", "integer")])], False),
        ([metadata([field("m", "long")])], False),
        ([metadata([field("n", "long")], ["n"])], False),
        ([{"metaData": metadata([field("n", "long")])["metaData"] | {"id": "another"}}], False),
        ([{"metaData": {}}], False),
        ([{"add": {"path": "b.parquet", "dataChange": True}}], False),
        ([{"add": {"path": "b.parquet"}}], False),
        ([{"add": {"path": "b.parquet", "dataChange": "false"}}], False),
        ([*COMPACTED, {"add": {"path": "b.parquet", "dataChange": False}}], True),
        ([{"add": {"path": "b.parquet", "dataChange": False}}], False),  # whose rows were in no file before
        (COMPACTED, False),
        ([{"cdc": {"path": "c.parquet", "dataChange": False}}], False),
        ([{"somethingNew": {}}], False),
    ],
)
def test_news_by_action(tmp_path: Path, actions: list[dict[str, Any]], quiet: bool) -> None:
    root = tmp_path / "t"
    commit(root, 0, protocol(), metadata([field("n", "long")]), add(root, "a.parquet", ONE))
    commit(root, 1, *actions)
    assert Log(str(root), 1).same_since == (0 if quiet else 1)
    assert Log(str(root), 0).same_until == (1 if quiet else 0)


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"add": 1}', '"text"', "null"])
def test_what_cannot_be_read_is_news_and_not_known_to_be(tmp_path: Path, content: str) -> None:
    root = tmp_path / "t"
    commit(root, 0, protocol(), metadata([field("n", "long")]), add(root, "a.parquet", ONE))
    commit(root, 1, {"commitInfo": {}})
    (root / "_delta_log" / f"{1:020}.json").write_text(content)
    found = Log(str(root), 1)
    assert (found.same_since, found.known_since) == ((0, True) if not content else (1, False))


def test_commits_that_were_cleaned_up(tmp_path: Path) -> None:
    """Of what is before them nothing is known, so the oldest version that can be told from no other counts as news."""
    root = tmp_path / "t"
    written(root).optimize.compact()
    DeltaTable(str(root)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    newest = DeltaTable(str(root)).version()
    DeltaTable(str(root)).create_checkpoint()
    for version in range(newest):
        (root / "_delta_log" / f"{version:020}.json").unlink()
    found = log(root)
    assert (found.same_since, found.known_since) == (newest - 1, False)
    write_deltalake(str(root), ONE, mode="append")
    assert (log(root).same_since, log(root).known_since) == (newest + 1, True)
    assert json.loads((root / "_delta_log" / "_last_checkpoint").read_text())["version"] == newest
