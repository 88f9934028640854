from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from graph_cases import graph_of

from dpsynth_platform.lineage import facets, naming
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.runs import DatasetRef, StepRun
from dpsynth_platform.lineage.store import LineageStore


def name(text: str) -> DatasetName:
    return naming.dataset_name(f"/d/{text}")


def step(emitter: LineageEmitter, job: str, reads: str, writes: str, end: str = "complete") -> StepRun:
    run = StepRun(
        str(uuid.uuid4()), "census", job,
        inputs=tuple(DatasetRef(name(item)) for item in reads.split()),
        outputs=tuple(DatasetRef(name(item), facets.version(job)) for item in writes.split()),
    )  # fmt: skip
    emitter.start(run)
    if end == "complete":
        emitter.complete(run)
    elif end == "fail":
        emitter.fail(run, ValueError())
    return run


def found(items: list) -> list[tuple[str, int]]:
    return [(item.dataset.name.removeprefix("/d/"), item.distance) for item in items]


def test_walks_follow_completed_runs(emitter: LineageEmitter, url: str) -> None:
    step(emitter, "raw", "source", "raw")
    step(emitter, "bounded", "raw canaries", "bounded")
    step(emitter, "model", "bounded", "model")
    made = step(emitter, "synthetic", "model", "synthetic")
    step(emitter, "quality", "raw synthetic", "report")
    step(emitter, "model", "other", "model", end="fail")
    going = step(emitter, "model", "another", "model", end="never")
    graph = graph_of(LineageStore(url))
    assert found(graph.upstream(name("synthetic"))) == [
        ("model", 1), ("bounded", 2), ("canaries", 3), ("raw", 3), ("source", 4),
    ]  # fmt: skip
    assert found(graph.downstream(name("raw"))) == [("bounded", 1), ("report", 1), ("model", 2), ("synthetic", 3)]
    assert graph.upstream(name("source")) == []
    assert graph.upstream(name("unheard-of")) == []
    assert [run.state for run in graph.jobs["census.model"]] == ["COMPLETE", "FAIL", "RUNNING"]
    assert graph.runs[going.run_id].ended_at is None
    assert [run.run_id for run in graph.made_by(name("synthetic"))] == [made.run_id]
    assert graph.runs[made.run_id].parent_run_id == made.dagster_run_id
    assert name("other") in graph.datasets
    assert graph.facets[name("model")]["version"]["datasetVersion"] == "model"


def test_a_dataset_that_is_read_and_written_in_place_ends_the_walk(emitter: LineageEmitter, url: str) -> None:
    step(emitter, "a", "x", "y")
    step(emitter, "b", "y", "x")
    graph = graph_of(LineageStore(url))
    assert found(graph.upstream(name("x"))) == [("y", 1)]


def test_a_record_from_before_the_stored_graph_is_taken_over_once(
    emitting: Any, url: str, record: Path, tmp_path: Path
) -> None:
    """Damaged lines are passed over."""
    before = LineageEmitter(f"sqlite:///{tmp_path}/other/ledger.db", record.parent, client=lambda: None)
    going = step(before, "bounded", "raw", "bounded", end="never")
    step(before, "raw", "source", "raw")
    lines = record.read_bytes()
    record.write_bytes(b'{"torn\n[1]\n{"eventType": "START"}\n' + lines + b'{"run')
    assert graph_of(LineageStore(url)).datasets == []
    for _ in range(2):
        after = emitting()
        assert [run.run_id for run in after.open_runs()] == [going.run_id]
    assert found(graph_of(LineageStore(url)).upstream(name("raw"))) == [("source", 1)]
    assert after.complete(going).recorded
    assert record.read_bytes().count(b"COMPLETE") == 2, "what stood there before is not written again"
