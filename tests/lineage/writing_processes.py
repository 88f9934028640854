"""What processes do that write to one graph or one record at once.

What belongs here: functions that a spawned process runs. What does not: what only tests need, as each such process
imports this module, and with it all that it imports.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from event_cases import own

from dpsynth_platform.lineage import naming
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.runs import DatasetRef, StepRun
from dpsynth_platform.lineage.store import LineageStore


def record_many(url: str, shared: list[str], mine: int) -> None:
    """Records start and end of shared runs, and of so many more, in the graph."""
    store = LineageStore(url)
    for run in [*shared, *(str(uuid.uuid4()) for _ in range(mine))]:
        store.record(own("START", ["a"], run=run))
        store.record(own("COMPLETE", ["a"], ["b"], run=run))


def emit_many(url: str, directory: str, shared: list[str], mine: int) -> None:
    """Emits start and end of shared runs of Dagster's, and of so many more, to no receiver."""
    emitter = LineageEmitter(url, Path(directory), client=lambda: None)
    for name in [*shared, *(str(uuid.uuid4()) for _ in range(mine))]:
        run = a_run(dagster_run_id=name)
        emitter.start(run)
        emitter.complete(run)


def send_many(url: str, directory: str, runs: int) -> None:
    """Emits the end of so many runs to the receivers that the environment names."""
    emit(LineageEmitter(url, Path(directory)), runs)


def emit(emitter: LineageEmitter, runs: int) -> None:
    """Emits the end of so many runs."""
    for _ in range(runs):
        emitter.complete(a_run())


def a_run(step: str = "raw", dagster_run_id: str | None = None, **more: Any) -> StepRun:
    """A run of a step that reads one dataset."""
    source = DatasetRef(naming.dataset_name("/data/census"))
    return StepRun(dagster_run_id or str(uuid.uuid4()), "census", step, **{"inputs": (source,)} | more)
