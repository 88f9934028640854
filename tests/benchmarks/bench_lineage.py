"""How long it takes to record lineage and to walk it. Not a test: run it, and it prints a table.

    python tests/benchmarks/bench_lineage.py                               # 10,000 nodes, about half a minute
    python tests/benchmarks/bench_lineage.py --nodes 100000
    python tests/benchmarks/bench_lineage.py --url postgresql+psycopg://...    # an empty database, which it fills

The graph is told by events, as any other: releases in families of a hundred, and models that are each trained on the
model before and on a release, so that the last one descends from everything, through a chain as long as there are
models.

What belongs here: timing `record`, `ancestry`, `descent`, `graph` and one emission with its delivery to a file. What
does not: asserting; `tests/lineage` holds what must hold at any speed. Clearance has a benchmark of its own.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.runs import StepRun
from dpsynth_platform.lineage.store import LineageStore


def dataset(name: str, *, model: bool = False) -> dict[str, Any]:
    """A dataset of an event, with the facets that ours have at least."""
    facets: dict[str, Any] = {"version": {"datasetVersion": "1"}, "ownership": {"owners": [{"name": "a@example.org"}]}}
    if model:
        facets["datasetType"] = {"datasetType": "MODEL"}
    return {"namespace": "s3://bench", "name": name, "facets": facets}


def event(inputs: list[dict[str, Any]], output: dict[str, Any]) -> dict[str, Any]:
    """A run of somebody else's that completed."""
    return {
        "eventType": "COMPLETE",
        "eventTime": "2026-01-01T00:00:00Z",
        "producer": "https://example.org",
        "run": {"runId": str(uuid.uuid4())},
        "job": {"namespace": "bench", "name": "job"},
        "inputs": inputs,
        "outputs": [output],
    }


def events(nodes: int) -> list[dict[str, Any]]:
    """Half of the nodes are releases, half models that descend from all before."""
    told = [event([dataset(f"family-{number % 100}")], dataset(f"release-{number}")) for number in range(nodes // 2)]
    for number in range(nodes // 2):
        base = [dataset(f"model-{number - 1}", model=True)] if number else []
        told.append(event([*base, dataset(f"release-{number}")], dataset(f"model-{number}", model=True)))
    return told


def seconds(work: Callable[[], object]) -> float:
    """How long something takes, the best of three."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def main(nodes: int, url: str | None) -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as name:
        home = Path(name) / "lineage"
        used = url or f"sqlite:///{home / 'ledger.db'}"
        store = LineageStore(used)
        told = events(nodes)
        began = time.perf_counter()
        for item in told[:200]:
            store.record(item, origin="ingested", source="bench")
        single = (time.perf_counter() - began) / 200
        began = time.perf_counter()
        store.import_record(told[200:])  # the same work in one transaction
        rest = (time.perf_counter() - began) / max(1, len(told) - 200)
        last = DatasetName("s3://bench", f"model-{nodes // 2 - 1}")
        first = DatasetName("s3://bench", "family-0")
        found = store.ancestry([last])
        print(f"{len(found.relatives):,} ancestors, the farthest {found.relatives[-1].distance:,} steps away")
        print(f"{'record, each durable':32} {single * 1000:9.1f} ms")
        print(f"{'record, many together':32} {rest * 1000:9.1f} ms")
        print(f"{'ancestry of the last model':32} {seconds(lambda: store.ancestry([last])) * 1000:9.0f} ms")
        print(f"{'descent of one family':32} {seconds(lambda: store.descent([first])) * 1000:9.0f} ms")
        print(f"{'one node and its edges':32} {seconds(lambda: store.edges(last)) * 1000:9.1f} ms")
        print(f"{'graph, from all events':32} {seconds(store.graph) * 1000:9.0f} ms")
        emitter = LineageEmitter(used, home, client=lambda: None)
        emitter.start(StepRun("first", "bench", "raw"))
        emission = seconds(lambda: emitter.start(StepRun(str(uuid.uuid4()), "bench", "raw")))
        print(f"{'emission with the record file':32} {emission * 1000:9.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--url", help="SQLAlchemy URL of an empty database; default: a temporary SQLite file")
    chosen = parser.parse_args()
    main(chosen.nodes, chosen.url)
