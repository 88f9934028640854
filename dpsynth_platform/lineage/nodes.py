"""The stored graph's values: nodes, edges, walks and events. Frozen.

What belongs here: what `LineageStore` returns. What does not: SQL (`graph_rows`), reading events (`intake`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from dpsynth_platform.lineage.naming import DatasetName

Origin = Literal["own", "ingested"]
Kind = Literal["dataset", "model", "checkpoint", "release", "mechanism"]
Purpose = Literal["train", "evaluate", "other"]
Relation = Literal["derived", "base", "trained-on", "alias", "paid-by", "claims", "evaluated-on", "used-by"]
"""How a child depends on its parent.

`paid-by` leads to the ledger entry that the child's guarantee names. So does `claims`, if the ledger does not have the
entry as described: such a reference proves nothing. Along `evaluated-on` nothing of the parent reaches the child; walks
skip it.
"""

LEDGER_NAMESPACE = "dpsynth:ledger"
PRODUCT_NAMESPACE = "dpsynth:products"
MODELS: tuple[Kind, ...] = ("model", "checkpoint")


@dataclass(frozen=True)
class Node:
    """A dataset in OpenLineage's sense (a model is one), a release of ours, or a mechanism, which is a ledger entry.

    Attributes:
        kind: `model` is one that we trained, `checkpoint` any other.
        own: our platform wrote it.
    """

    id: int
    kind: Kind
    name: DatasetName
    own: bool
    stored_facets: str = field(default="{}", repr=False)

    @cached_property
    def facets(self) -> Mapping[str, Any]:
        """The latest accepted value of each facet; of our own nodes, only values that we reported."""
        return {name: kept["value"] for name, kept in self._kept.items()}

    @cached_property
    def facet_events(self) -> Mapping[str, int]:
        """The sequence number of each facet's event."""
        return {name: kept["event"] for name, kept in self._kept.items()}

    def origin_of(self, facet: str) -> Origin:
        origin: Origin = self._kept[facet]["origin"]
        return origin

    @cached_property
    def is_reported_by_us(self) -> bool:
        """Whether we reported one of its facets."""
        return any(kept["origin"] == "own" for kept in self._kept.values())

    @cached_property
    def zones(self) -> tuple[str, ...]:
        """The zones that its tags name; invalid tags are skipped."""
        tags = self.facets.get("tags", {}).get("tags")
        found = [tag for tag in tags if isinstance(tag, Mapping)] if isinstance(tags, list) else []
        return tuple(str(tag.get("value")) for tag in found if tag.get("key") == "zone")

    @cached_property
    def _kept(self) -> dict[str, Any]:
        kept: dict[str, Any] = json.loads(self.stored_facets)
        return kept


@dataclass(frozen=True)
class Edge:
    """One way in which a node depends on another.

    Attributes:
        run_id: the OpenLineage run; empty for aliases, and edges of job or dataset events.
        event: sequence number of the first event that reported it.
    """

    child: DatasetName
    parent: DatasetName
    relation: Relation
    run_id: str
    child_version: str
    parent_version: str
    event: int


@dataclass(frozen=True)
class Step:
    """One step of a path: the node that it leads to, by which relation and run."""

    node: DatasetName
    relation: Relation
    run_id: str


@dataclass(frozen=True)
class Relative:
    """A node on a walk.

    Attributes:
        distance: steps from the start that are no aliases.
        previous: the node before it on a shortest path, None for a start.
    """

    node: Node
    distance: int
    previous: Relative | None = field(default=None, repr=False)
    relation: Relation | None = None
    run_id: str = ""

    @property
    def path(self) -> tuple[Step, ...]:
        """A shortest path from a start to here; empty for a start."""
        steps = []
        here = self
        while here.previous is not None and here.relation is not None:
            steps.append(Step(here.node.name, here.relation, here.run_id))
            here = here.previous
        return tuple(reversed(steps))

    @property
    def start(self) -> DatasetName:
        """The start of the path."""
        here = self
        while here.previous is not None:
            here = here.previous
        return here.node.name


@dataclass(frozen=True)
class Ancestry:
    """Everything on a walk from some starts, and what is unknown about it.

    Attributes:
        relatives: the starts (distance 0) and all that was reached, nearest first.
        missing: starts that the graph lacks.
        unknown: models and checkpoints without a known origin (or only each other as origin), and not declared public.
        ways: every step between the relatives, on a shortest path or not: by the id of a node, the targets' ids with
            relation and run.
    """

    relatives: tuple[Relative, ...]
    missing: tuple[DatasetName, ...] = ()
    unknown: tuple[DatasetName, ...] = ()
    ways: Mapping[int, Sequence[tuple[int, Relation, str]]] = field(default_factory=dict, repr=False)

    def of_kind(self, *kinds: Kind) -> list[Relative]:
        """The relatives of some kinds, nearest first."""
        return [relative for relative in self.relatives if relative.node.kind in kinds]

    @cached_property
    def by_name(self) -> dict[DatasetName, Relative]:
        return {relative.node.name: relative for relative in self.relatives}


@dataclass(frozen=True)
class StoredEvent:
    """A recorded event.

    Attributes:
        kind: START, RUNNING, COMPLETE, ABORT, FAIL, OTHER; JOB or DATASET for events without a run. A second START of a
            run of others is recorded as RUNNING.
        source: the producer that sent it; empty for our own.
        run_id: empty for events without a run.
        payload: the event.
    """

    sequence: int
    digest: str
    received_at: str
    event_time: str
    origin: Origin
    source: str
    run_id: str
    kind: str
    job_namespace: str
    job_name: str
    payload: Mapping[str, Any]


@dataclass(frozen=True)
class Recorded:
    """The outcome of recording an event.

    Attributes:
        sequence: its number, also if it was recorded before; None for a repeated START or end of our own run.
        new: it was not recorded before.
    """

    sequence: int | None
    new: bool


@dataclass(frozen=True)
class OpenRun:
    """Our own run that started and has no terminal event.

    Attributes:
        parent_run_id: the Dagster run's id.
        launcher: as in `runs.StepRun`; Dagster only knows whether runs of `dagster` continue.
        start: its START event.
    """

    run_id: str
    parent_run_id: str
    launcher: str
    job: str
    started_at: str
    start: Mapping[str, Any] = field(repr=False, compare=False, default_factory=dict)

    @classmethod
    def of(cls, start: Mapping[str, Any]) -> OpenRun:
        parent = start["run"].get("facets", {}).get("parent", {})
        run_id, launcher = parent.get("run", {}).get("runId", ""), parent.get("job", {}).get("namespace", "")
        return cls(start["run"]["runId"], run_id, launcher, start["job"]["name"], start["eventTime"], start)


@dataclass(frozen=True)
class Declaration:
    """A person's declaration, in the ledger's chain, that something is public: it holds no guarded person's data."""

    name: DatasetName
    by: str
    reason: str
    at: str
    sequence: int


@dataclass(frozen=True)
class Use:
    """A registered use of a release, and the number of the event that records it."""

    release: DatasetName
    purpose: Purpose
    product: DatasetName | None
    event: int
