"""The emitter: one START and exactly one terminal event for every attempt at every step.

What belongs here: building run events, appending them to the platform's own record, and handing them to the transport
of the standard OpenLineage configuration where there is one. What does not: facets (see `facets`) and orchestration.

The own record decides what was emitted. A second START or a second terminal event of a run is not written, whoever
sends it, so that a failure hook, a sensor and the step itself may all report an end and only the first one counts.
Emission never raises: what cannot be delivered is kept in `undelivered.jsonl` beside the record, counted, and told to
the caller as a warning.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from openlineage.client.client import OpenLineageClient
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import DatasetFacet, InputDatasetFacet, OutputDatasetFacet, RunFacet
from openlineage.client.serde import Serde
from openlineage.client.transport.noop import NoopConfig, NoopTransport

from dpsynth_platform.lineage import facets, naming
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.record import JsonLines, run_event
from dpsynth_platform.lineage.redaction import safe_error

UNDELIVERED = "undelivered.jsonl"
INTERRUPTED = "interrupted"
_TERMINAL = {"COMPLETE": RunState.COMPLETE, "FAIL": RunState.FAIL, "ABORT": RunState.ABORT}
_KILLED = "The process ended without a word of its own; the run was closed afterwards."


@dataclass(frozen=True)
class DatasetRef:
    """A dataset as a step uses or makes it: its physical name and what public facts say of it.

    Attributes:
        facets: dataset facets (`facets.merge(facets.schema(...), facets.version(...), ...)`).
        input_facets, output_facets: facets of the dataset as this run's input or output.
    """

    name: DatasetName
    facets: Mapping[str, DatasetFacet] = field(default_factory=dict)
    input_facets: Mapping[str, InputDatasetFacet] = field(default_factory=dict)
    output_facets: Mapping[str, OutputDatasetFacet] = field(default_factory=dict)


@dataclass(frozen=True)
class StepRun:
    """One attempt at one step of a dataset's line, or at what a command does by itself.

    What is known only later (outputs, more facets) goes in with `dataclasses.replace`; the ids stay the same.

    Attributes:
        dagster_run_id: id of the Dagster run, the parent; of a command, an id of its own.
        dagster_job: name of the Dagster job that the run executes; of a command, its name.
        launcher: namespace of the parent: who runs it.
        period: month (`YYYY-MM`) of a dataset with a cadence.
        attempt: Dagster's retry number, from 0.
        description, owners: of the job, from the contract.
        run_facets: facets of the run beside parent, period and engine, which are always there.
    """

    dagster_run_id: str
    dataset: str
    step: str
    dagster_job: str = "__ASSET_JOB"
    period: str | None = None
    attempt: int = 0
    launcher: Literal["dagster", "dpsynth"] = naming.PARENT_NAMESPACE
    description: str = ""
    owners: tuple[str, ...] = ()
    inputs: tuple[DatasetRef, ...] = ()
    outputs: tuple[DatasetRef, ...] = ()
    run_facets: Mapping[str, RunFacet] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The OpenLineage run id."""
        return naming.run_id(self.dagster_run_id, f"{self.dataset}/{self.step}", self.attempt, self.period)

    @property
    def job_name(self) -> str:
        """The OpenLineage job name."""
        return naming.job_name(self.dataset, self.step)


@dataclass(frozen=True)
class Delivery:
    """What became of one emission.

    Attributes:
        recorded: the event was appended to the own record (False also where it stood there already).
        warnings: one safe sentence for each place that did not get the event.
    """

    recorded: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class OpenRun:
    """A run that started and has no terminal event.

    Attributes:
        parent_run_id: the Dagster run's id.
        launcher: see `StepRun`; only of `dagster` can Dagster say whether it goes on.
    """

    run_id: str
    parent_run_id: str
    launcher: str
    job: str
    started_at: str


class Client(Protocol):
    """The part of `OpenLineageClient` that the emitter uses."""

    def emit(self, event: RunEvent) -> None:
        """Sends one event, or raises."""


def standard_client() -> Client | None:
    """OpenLineage's own client, or None where the standard configuration names no transport.

    The client reads OPENLINEAGE_* and `openlineage.yml` itself. Left alone without configuration it would print events
    to the console, so a first client with a transport that does nothing is asked for the configuration.

    Raises:
        ValueError: the configuration is there but does not name a usable transport.
    """
    if not OpenLineageClient(transport=NoopTransport(NoopConfig())).config.transport:
        return None
    client = OpenLineageClient()
    wanted = (client.config.transport or {}).get("type")
    if client.transport.kind == "console" and wanted != "console":
        raise ValueError("the OpenLineage configuration has a transport without a type")
    return client


class LineageEmitter:
    """Emits the events of steps to the own record and, where configured, to OpenLineage's transport.

    Several emitters, in one process or in many, may share a record.
    """

    def __init__(self, lineage_file: Path, client: Callable[[], Client | None] = standard_client) -> None:
        """`lineage_file` is the own record; `client` is called at the first event to find the other receiver."""
        self._record = JsonLines(lineage_file)
        self._undelivered = JsonLines(lineage_file.with_name(UNDELIVERED))
        self._make_client = client
        self._client: Client | None = None
        self._client_known = False
        self._sent: set[tuple[str, str]] = set()
        self._states = _States()
        self._lock = threading.Lock()
        self.failures = 0
        """How many deliveries of this emitter failed."""

    def start(self, run: StepRun) -> Delivery:
        """Emits START with what is known of inputs and outputs beforehand."""
        return self._emit(_event(run, RunState.START))

    def complete(self, run: StepRun) -> Delivery:
        """Emits COMPLETE with the real inputs and outputs."""
        return self._end(run, "COMPLETE")

    def fail(self, run: StepRun, error: BaseException) -> Delivery:
        """Emits FAIL with what may safely be said of the error."""
        return self._end(run, "FAIL", facets.error_message(*safe_error(error)))

    def abort(self, run: StepRun, reason: str = "The run was cancelled.") -> Delivery:
        """Emits ABORT; `reason` is a sentence of our own, never a library's message."""
        return self._end(run, "ABORT", facets.error_message(INTERRUPTED, reason))

    def open_runs(self) -> list[OpenRun]:
        """Runs that started and have no terminal event, oldest first. Raises OSError if the record is unreadable."""
        return [_open_run(start) for start in self._current().unfinished()]

    def close_out(self, dagster_run_ids: Collection[str]) -> list[Delivery]:
        """Emits FAIL for the open runs of Dagster runs that have ended: their process was killed.

        Only the caller can know that a Dagster run has ended, so nothing else is closed. Raises OSError if the record
        is unreadable.
        """
        ended = {naming.parent_run_id(run_id) for run_id in dagster_run_ids}
        starts = [start for start in self._current().unfinished() if _open_run(start).parent_run_id in ended]
        return [self._emit(_closing_event(start)) for start in starts]

    def undelivered(self) -> list[dict[str, Any]]:
        """Everything that could not be delivered: time, target, type of the error, and the event."""
        return list(self._undelivered.read())

    def _end(self, run: StepRun, kind: Literal["COMPLETE", "FAIL", "ABORT"], extra: Any = None) -> Delivery:
        started = self._emit(_event(run, RunState.START))  # only written if START is not in the record yet
        ended = self._emit(_event(run, _TERMINAL[kind], extra or {}))
        return Delivery(ended.recorded, started.warnings + ended.warnings)

    def _emit(self, event: RunEvent) -> Delivery:
        entry = Serde.to_dict(event)
        warnings: list[str] = []
        try:
            recorded = self._append_once(entry)
            if not recorded:
                return Delivery(recorded=False)
        except Exception as error:  # a failed emission never fails a run, whatever the disk says
            recorded = False
            warnings.append(self._missed("own record", entry, error))
        identity = (entry["run"]["runId"], entry["eventType"])
        try:
            client = self._other_receiver()
            if client is not None and identity not in self._sent:  # where the own record fails, START is tried twice
                client.emit(event)
                self._sent.add(identity)
        except Exception as error:
            warnings.append(self._missed("OpenLineage transport", entry, error))
        return Delivery(recorded, tuple(warnings))

    def _append_once(self, entry: dict[str, Any]) -> bool:
        with self._lock, self._record.locked() as descriptor:
            self._states.catch_up(self._record, descriptor)
            if not self._states.accepts(entry):
                return False
            self._record.append(descriptor, entry)
            self._states.catch_up(self._record, descriptor)
            return True

    def _current(self) -> _States:
        with self._lock, self._record.locked() as descriptor:
            self._states.catch_up(self._record, descriptor)
        return self._states

    def _other_receiver(self) -> Client | None:
        if not self._client_known:
            self._client = self._make_client()
            self._client_known = True
        return self._client

    def _missed(self, target: str, entry: dict[str, Any], error: Exception) -> str:
        """Counts and keeps an event that could not be delivered. Returns the warning."""
        self.failures += 1
        kind = safe_error(error)[1]
        warning = f"Lineage event {entry['eventType']} of {entry['job']['name']} did not reach the {target} ({kind})"
        note = {"at": _now(), "target": target, "error": kind, "event": entry}
        try:
            with self._undelivered.locked() as descriptor:
                self._undelivered.append(descriptor, note)
        except Exception as second:
            return f"{warning}, nor could it be kept in {UNDELIVERED} ({safe_error(second)[1]})."
        return f"{warning}; it is kept in {UNDELIVERED}."


class _States:
    """Which runs have started and ended, by the record up to an offset."""

    def __init__(self) -> None:
        self._offset = 0
        self._starts: dict[str, dict[str, Any]] = {}
        self._ended: set[str] = set()

    def catch_up(self, record: JsonLines, descriptor: int) -> None:
        """Reads what was appended since; all of it again where the file was replaced by a shorter one."""
        if record.size(descriptor) < self._offset:
            self._offset = 0
            self._starts.clear()
            self._ended.clear()
        entries, self._offset = record.read_from(descriptor, self._offset)
        for entry in filter(run_event, entries):
            run_id, kind = entry["run"]["runId"], entry["eventType"]
            if kind == "START":
                self._starts.setdefault(run_id, entry)
            elif kind in _TERMINAL:
                self._ended.add(run_id)

    def accepts(self, entry: dict[str, Any]) -> bool:
        """Whether the event is the first of its kind for its run."""
        run_id = entry["run"]["runId"]
        if entry["eventType"] == "START":
            return run_id not in self._starts and run_id not in self._ended
        return run_id not in self._ended

    def unfinished(self) -> list[dict[str, Any]]:
        """START events of runs without a terminal one."""
        return [start for run_id, start in self._starts.items() if run_id not in self._ended]


def _event(run: StepRun, state: RunState, extra: Mapping[str, RunFacet] | None = None) -> RunEvent:
    run_facets = facets.parent(naming.parent_run_id(run.dagster_run_id), run.launcher, run.dagster_job)
    if run.launcher == naming.PARENT_NAMESPACE:
        run_facets |= facets.processing_engine()
    if run.period is not None:
        run_facets |= facets.nominal_time(run.period)
    return RunEvent(
        eventType=state,
        eventTime=_now(),
        run=Run(run.run_id, {**run_facets, **run.run_facets, **(extra or {})}),
        job=Job(naming.JOB_NAMESPACE, run.job_name, facets.job(run.description, run.owners)),
        inputs=[
            InputDataset(ref.name.namespace, ref.name.name, facets=dict(ref.facets), inputFacets=dict(ref.input_facets))
            for ref in run.inputs
        ],
        outputs=[
            OutputDataset(
                ref.name.namespace, ref.name.name, facets=dict(ref.facets), outputFacets=dict(ref.output_facets)
            )
            for ref in run.outputs
        ],
        producer=facets.PRODUCER,
    )


def _open_run(start: dict[str, Any]) -> OpenRun:
    parent = start["run"].get("facets", {}).get("parent", {})
    run_id, launcher = parent.get("run", {}).get("runId", ""), parent.get("job", {}).get("namespace", "")
    return OpenRun(start["run"]["runId"], run_id, launcher, start["job"]["name"], start["eventTime"])


def _closing_event(start: dict[str, Any]) -> RunEvent:
    """FAIL for a run of which only its START event is left; the outputs that it announced were never completed."""
    parent = start["run"]["facets"]["parent"]
    run_facets = facets.parent(parent["run"]["runId"], parent["job"]["namespace"], parent["job"]["name"])
    return RunEvent(
        eventType=RunState.FAIL,
        eventTime=_now(),
        run=Run(start["run"]["runId"], run_facets | facets.error_message(INTERRUPTED, _KILLED)),
        job=Job(start["job"]["namespace"], start["job"]["name"]),
        inputs=[InputDataset(item["namespace"], item["name"]) for item in start.get("inputs", [])],
        producer=facets.PRODUCER,
    )


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat()
