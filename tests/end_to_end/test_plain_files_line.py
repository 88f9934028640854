"""Must show: a table in files of each format becomes a verified release."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from deployment import Deployment
from line_cases import PEOPLE, ledger_of, released, run_here, small_deployment, small_table, storage_of
from pyiceberg.catalog.sql import SqlCatalog

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]


def written(place: Path, format_: str, rows: pa.Table) -> dict[str, Any]:
    """The rows in files of a format, which need no order; returns the contract's source."""
    place.mkdir(parents=True)
    half = len(rows) // 2
    if format_ == "parquet":
        for number, part in enumerate((rows.slice(half), rows.slice(0, half))):
            pq.write_table(part, place / f"{number}.parquet")
    elif format_ == "csv":
        csv.write_csv(rows, place / "rows.csv", csv.WriteOptions(delimiter=";"))
        return {"uri": str(place / "rows.csv"), "format": "csv", "csv": {"separator": ";"}}
    elif format_ == "iceberg":
        with SqlCatalog("default", uri=f"sqlite:///{place / 'catalog.db'}", warehouse=str(place)) as catalog:
            catalog.create_namespace("clinic")
            table = catalog.create_table("clinic.visits", rows.schema)
            table.append(rows.slice(half))
            table.append(rows.slice(0, half))
        return {"uri": f"sqlite:///{place / 'catalog.db'}", "format": "iceberg", "table": "clinic.visits"}
    else:
        lines = [json.dumps(row) + "\n" for row in rows.to_pylist()]
        (place / "0.jsonl").write_text("".join(lines[half:]))
        (place / "1.jsonl").write_text("".join(lines[:half]))
    return {"uri": str(place), "format": format_}


def with_source(deployment: Deployment, source: dict[str, Any]) -> Deployment:
    deployment.contract["source"] = {"key": ["person", "visit"]} | source
    return deployment.write()


def test_a_snapshot_of_an_iceberg_table_becomes_a_verified_release(tmp_path: Path) -> None:
    deployment = with_source(small_deployment(tmp_path), written(tmp_path / "lake", "iceberg", small_table()))
    ran = run_here(deployment)
    assert ran.success, ran.failures
    verified = deployment.here("release", "verify", str(released(deployment)))
    assert verified.returncode == 0, verified.stdout + verified.stderr
    again = run_here(deployment)
    assert again.success and again.materializations["raw"]["reused"], again.failures
    assert len(ledger_of(deployment).entries()) == 1


@pytest.mark.parametrize("format_", ["parquet", "csv", "json"])
def test_files_become_a_verified_release(tmp_path: Path, format_: str) -> None:
    deployment = small_deployment(tmp_path)
    place = tmp_path / "sources"
    with_source(deployment, written(place, format_, small_table()))
    ran = run_here(deployment)
    assert ran.success, ran.failures
    first = storage_of(deployment).require(PEOPLE, "raw").facts["source_version"]
    release = released(deployment)
    verified = deployment.here("release", "verify", str(release))
    assert verified.returncode == 0, verified.stdout + verified.stderr

    # The same content, written again, is the same run; another one is a new version, which is a new spend.
    for path in place.rglob("*.*"):
        path.write_bytes(path.read_bytes())
    again = run_here(deployment)
    assert again.success and again.materializations["raw"]["reused"], again.failures
    assert len(ledger_of(deployment).entries()) == 1
    shutil.rmtree(place)
    with_source(deployment, written(place, format_, small_table(seed=4)))
    other = run_here(deployment, steps=["raw"])
    assert other.success and not other.materializations["raw"]["reused"], other.failures
    raw = storage_of(deployment).require(PEOPLE, "raw")
    assert raw.facts["source_version"] > first

    # The content is named by nothing outside of the restricted zone.
    registry = json.loads((deployment.settings.restricted / "source-versions.json").read_text())
    (table,) = registry["tables"].values()
    assert len(table["contents"]) == 2
    ledger = json.dumps([entry.request.event for entry in ledger_of(deployment).entries()], default=str)
    public = [path for path in deployment.settings.home.rglob("*") if path.is_file()]
    public = [path for path in public if not path.is_relative_to(deployment.settings.restricted)]
    assert public
    for content in table["contents"]:
        assert content not in ledger
        assert not [path for path in public if content.encode() in path.read_bytes()]


def test_a_month_that_files_no_longer_hold_is_not_run_again(tmp_path: Path) -> None:
    """A paid month keeps its version; what would be read instead of that is refused, at no cost."""
    deployment = small_deployment(tmp_path)
    days = pa.array([dt.date(2026, 1 + number % 2, 1) for number in range(1500)])
    rows = small_table().append_column("day", days)
    deployment.contract["columns"]["day"] = {"type": "date", "min": "2026-01-01", "max": "2026-12-31"}
    deployment.contract["release"] |= {"cadence": "monthly", "start": "2026-01"}
    place = tmp_path / "sources"
    source = written(place, "parquet", rows) | {"period_column": "day"}
    with_source(deployment, source)
    ran = run_here(deployment, period="2026-01")
    assert ran.success, ran.failures
    pq.write_table(rows.slice(0, 10), place / "later.parquet")
    again = run_here(deployment, period="2026-01")
    assert again.success, again.failures
    assert again.materializations["scrubbed"]["reused"]
    assert "of the source, whose newest version is" in " ".join(again.said["raw"])
    storage = storage_of(deployment)
    (storage.location(storage.places("people")[0], "scrubbed").parent / "scrubbed.json").unlink()
    refused = run_here(deployment, period="2026-01")
    assert "the files were changed since the version was pinned" in refused.failures["scrubbed"]
    assert len(ledger_of(deployment).entries()) == 1
