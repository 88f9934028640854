"""Datasets, jobs and runs of recorded events, in memory, with walks along completed runs."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, select

from dpsynth_platform.ledger import lineage_tables as tables
from dpsynth_platform.lineage import distrust
from dpsynth_platform.lineage.naming import DatasetName, canonical
from dpsynth_platform.lineage.store import LineageStore

RUNNING = "RUNNING"
TERMINAL = ("COMPLETE", "FAIL", "ABORT")


@dataclass(frozen=True)
class RunNode:
    """One run of a step.

    Attributes:
        state: RUNNING (no terminal event yet), COMPLETE, FAIL or ABORT.
        parent_run_id: the Dagster run.
        facets: of the run's last event.
    """

    run_id: str
    job: str
    state: str = RUNNING
    started_at: str | None = None
    ended_at: str | None = None
    parent_run_id: str | None = None
    inputs: tuple[DatasetName, ...] = ()
    outputs: tuple[DatasetName, ...] = ()
    facets: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Related:
    """A dataset on a walk, and the number of completed runs from the start to it."""

    dataset: DatasetName
    distance: int


class LineageGraph:
    """Datasets, jobs and runs of some events.

    Args:
        events: run events, in order.
        facets: every dataset with its facets; None: those of the events.
    """

    def __init__(
        self, events: Iterable[Mapping[str, Any]], facets: Mapping[DatasetName, Mapping[str, Any]] | None = None
    ) -> None:
        self.runs: dict[str, RunNode] = {}
        """Runs by id, in the order of their first event."""
        self.facets: dict[DatasetName, dict[str, Any]] = {}
        """Every dataset with its facets; of each facet the latest."""
        for event in events:
            self._add(event)
        if facets is not None:
            self.facets = {name: dict(known) for name, known in facets.items()}
        self._parents: dict[DatasetName, set[DatasetName]] = {}
        self._children: dict[DatasetName, set[DatasetName]] = {}
        for run in self.runs.values():
            if run.state == "COMPLETE":
                for source in run.inputs:
                    for target in run.outputs:
                        self._parents.setdefault(target, set()).add(source)
                        self._children.setdefault(source, set()).add(target)

    @property
    def datasets(self) -> list[DatasetName]:
        return sorted(self.facets)

    @property
    def jobs(self) -> dict[str, list[RunNode]]:
        jobs: dict[str, list[RunNode]] = {}
        for run in self.runs.values():
            jobs.setdefault(run.job, []).append(run)
        return jobs

    def upstream(self, dataset: DatasetName) -> list[Related]:
        """The datasets that this one was made from, nearest first, without itself. Cycles are walked once."""
        return _walk(dataset, self._parents)

    def downstream(self, dataset: DatasetName) -> list[Related]:
        """The datasets that were made from this one, nearest first."""
        return _walk(dataset, self._children)

    def made_by(self, dataset: DatasetName) -> list[RunNode]:
        """The completed runs that wrote a dataset, in the order of their first event."""
        return [run for run in self.runs.values() if run.state == "COMPLETE" and dataset in run.outputs]

    def _add(self, event: Mapping[str, Any]) -> None:
        run_id, kind, when = event["run"]["runId"], event.get("eventType", "OTHER"), event.get("eventTime")
        run_facets = event["run"].get("facets") or {}
        parent = _object(_object(run_facets.get("parent")).get("run")).get("runId")
        known = self.runs.get(run_id) or RunNode(run_id, event["job"]["name"], parent_run_id=parent)
        if kind == "START":
            known = replace(known, started_at=known.started_at or when)
        elif kind in TERMINAL and known.state == RUNNING:
            known = replace(known, state=kind, ended_at=when)
        self.runs[run_id] = replace(
            known,
            inputs=_union(known.inputs, self._names(event.get("inputs") or [])),
            outputs=_union(known.outputs, self._names(event.get("outputs") or [])),
            facets=dict(run_facets),
        )

    def _names(self, items: Iterable[Mapping[str, Any]]) -> list[DatasetName]:
        names = []
        for item in items:
            name = canonical(DatasetName(item["namespace"], item["name"]))
            self.facets.setdefault(name, {}).update(item.get("facets") or {})
            names.append(name)
        return names


def _object(value: Any) -> Mapping[str, Any]:
    """A part of a facet; empty if it is no object."""
    return value if isinstance(value, Mapping) else {}


def _union(known: tuple[DatasetName, ...], more: Iterable[DatasetName]) -> tuple[DatasetName, ...]:
    return tuple(dict.fromkeys((*known, *more)))


def _walk(start: DatasetName, edges: Mapping[DatasetName, set[DatasetName]]) -> list[Related]:
    """Breadth first, so that each dataset gets its smallest distance."""
    distances = {start: 0}
    queue = deque([start])
    while queue:
        here = queue.popleft()
        for there in sorted(edges.get(here, ())):
            if there not in distances:
                distances[there] = distances[here] + 1
                queue.append(there)
    del distances[start]
    return [Related(dataset, distance) for dataset, distance in distances.items()]


def graph_of(store: LineageStore) -> LineageGraph:
    """The present graph. Of our own runs it has only our events: others may have used a run's id first."""

    def work(connection: Connection) -> tuple[dict[DatasetName, dict[str, Any]], set[str], set[int]]:
        node, event = tables.node.c, tables.event.c
        rows = connection.execute(select(node.namespace, node.name, node.facets).where(node.kind != "mechanism"))
        facets = {
            DatasetName(row.namespace, row.name): {name: kept["value"] for name, kept in json.loads(row.facets).items()}
            for row in rows
        }
        ours = set(connection.execute(select(event.run_id).where(event.origin == "own").distinct()).scalars())
        return facets, ours, distrust.distrusted(connection)

    facets, ours, without = store.database.read(work)
    counted = (
        event.payload
        for event in store.events()
        if event.run_id and (event.origin == "own" or (event.run_id not in ours and event.sequence not in without))
    )
    return LineageGraph(counted, facets)
