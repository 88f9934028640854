"""The deployment's engine does the line's SQL: the same rows, whichever it is, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deployment import Deployment
from line_cases import PEOPLE, released, run_here, small_deployment, storage_of
from linked_line_cases import clinic_deployment

import resources as res
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.release.verify import verify_release

pytestmark = pytest.mark.end_to_end
STEPS = ("raw", "scrubbed", "canaries", "clearance", "bounded")


def compute(place: Path, text: str) -> res.ComputeResource:
    path = place / "compute.yaml"
    path.write_text(text, encoding="utf-8")
    return res.ComputeResource(configuration=str(path))


def bounded_rows(deployment: Deployment) -> list[dict[str, Any]]:
    table = storage_of(deployment).require(PEOPLE, "bounded").directory / "table"
    rows = pa.Table.from_batches(read_table(table)).to_pylist()
    return sorted(rows, key=lambda row: str(row["_record"]))


def bounded_views(deployment: Deployment) -> dict[str, list[str]]:
    """Rows of each table's view, as texts in order."""
    place = storage_of(deployment).require(PEOPLE, "bounded").directory / "table"
    return {
        each.name: sorted(map(repr, pa.Table.from_batches(read_table(each)).to_pylist())) for each in place.iterdir()
    }


def test_both_engines_keep_the_same_rows(tmp_path: Path, spark_is_there: None) -> None:
    deployment = small_deployment(tmp_path)
    first = run_here(deployment, steps=STEPS, sql=compute(tmp_path, "default: {engine: duckdb}"))
    assert first.success, first.failures
    assert "bounding with DuckDB, 2GB, 2 threads" in first.said["bounded"]
    expected = bounded_rows(deployment)
    assert len(expected) > 500

    (storage_of(deployment).location(PEOPLE, "bounded").parent / "bounded.json").unlink()
    chosen = "datasets: {people: {engine: spark, master: 'local[2]', memory: 520MB, partitions: 2}}"
    second = run_here(deployment, steps=["bounded"], sql=compute(tmp_path, chosen))
    assert second.success, second.failures
    assert "bounding with Spark, local[2], 520MB" in second.said["bounded"]
    assert second.materializations["bounded"]["reused"] is False
    assert bounded_rows(deployment) == expected
    assert not list(deployment.settings.restricted.rglob("spill-*"))


def test_both_engines_keep_the_same_families_and_a_run_goes_on_with_them(tmp_path: Path, spark_is_there: None) -> None:
    deployment = clinic_deployment(tmp_path)
    first = run_here(deployment, steps=STEPS)
    assert first.success, first.failures
    expected = bounded_views(deployment)
    assert {name: len(rows) > 400 for name, rows in expected.items()} == {
        "patients": True, "stays": True, "diagnoses": True
    }  # fmt: skip
    (storage_of(deployment).location(PEOPLE, "bounded").parent / "bounded.json").unlink()
    chosen = "datasets: {people: {engine: spark, master: 'local[2]', memory: 520MB, partitions: 2}}"
    second = run_here(deployment, sql=compute(tmp_path, chosen))
    assert second.success, second.failures
    assert second.materializations["bounded"]["reused"] is False
    assert bounded_views(deployment) == expected
    assert verify_release(released(deployment)).ok
    assert not list(deployment.settings.restricted.rglob("spill-*"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("datasets: {people: {engine: sparc}}", "datasets.people.engine: 'sparc'; accepted: duckdb, spark"),
        ("default: {engine: duckdb, memory: 2 GB}", "default: memory: '2 GB'; accepted: a size such as 512MB or 2GB"),
    ],
)
def test_a_choice_that_cannot_be_used_stops_the_first_step(tmp_path: Path, text: str, words: str) -> None:
    deployment = small_deployment(tmp_path)
    ran = run_here(deployment, steps=STEPS, sql=compute(tmp_path, text))
    assert not ran.success
    ((step, message),) = ran.failures.items()
    assert step.endswith("raw")
    assert words in message


def test_spark_without_java_is_refused_before_a_row_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dpsynth_platform.compute import spark_driver

    monkeypatch.setattr(spark_driver, "inherited_environment", lambda: {"PATH": "/nowhere"})
    deployment = small_deployment(tmp_path)
    ran = run_here(deployment, steps=STEPS, sql=compute(tmp_path, "default: {engine: spark}"))
    assert not ran.success
    (message,) = ran.failures.values()
    assert "no Java" in message or "PySpark is not installed" in message
    assert "or choose duckdb in the deployment's compute.yaml" in message
    assert storage_of(deployment).read(PEOPLE, "bounded") is None


def test_a_plan_says_the_engine_or_what_is_wrong_with_it(tmp_path: Path) -> None:
    deployment = small_deployment(tmp_path)
    chosen = deployment.settings.deploy / "compute.yaml"
    chosen.write_text("datasets: {people: {engine: duckdb, memory: 3GB}}")
    assert deployment.json("plan", "people")["engine"] == "DuckDB, 3GB, 2 threads"
    chosen.write_text("default: {engine: duckdb, memry: 3GB}")
    refused = deployment.here("plan", "people")
    assert refused.returncode == 1
    assert "default: memry: unknown key (did you mean 'memory'?); accepted: engine, memory, threads" in refused.stderr
