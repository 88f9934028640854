"""The emitter: one START and exactly one terminal event for every attempt at every step.

What belongs here: emitting the events of a run, recording them, and keeping them while the database is out of reach.
What does not: the shape of events (`events`, `facets`), the rules of recording (`store`), deliveries (`outbox`,
`receivers`), orchestration.

The stored graph decides what was emitted. It records no second START or terminal event of a run. So a failure hook, a
sensor and the step itself may all report an end, and only the first one counts. Emission never raises: while the
database is out of reach, events wait in `spool.jsonl` beside the record and are recorded, in their order, before the
next one. The caller gets a warning for each failure.

A deployment from before the stored graph has its events in the record only; the first emission imports them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dpsynth_platform.foundation.errors import LineageRefused
from dpsynth_platform.foundation.redaction import reason_of, safe_error
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.lineage import naming, outbox
from dpsynth_platform.lineage.nodes import OpenRun
from dpsynth_platform.lineage.outbox import Receiver, Report, TargetStatus, label_of
from dpsynth_platform.lineage.receivers import Client, RecordFile, StandardTransport, standard_client
from dpsynth_platform.lineage.record import JsonLines, run_event
from dpsynth_platform.lineage.runs import INTERRUPTED, StepRun
from dpsynth_platform.lineage.store import LineageStore

if TYPE_CHECKING:
    from dpsynth_platform.lineage.events import Event, Kind

RECORD = "events.jsonl"
SPOOL = "spool.jsonl"
UNRECORDED = "unrecorded.jsonl"
_SECONDS_IN_A_STEP = 10.0
"""After that, the sensor makes a step's further deliveries."""
_KILLED = "The process ended without reporting an end; the run was closed afterwards."


@dataclass(frozen=True)
class Delivery:
    """The outcome of one emission.

    Attributes:
        recorded: the event was recorded (False if it was recorded before).
        warnings: one safe sentence for each place that did not get the event.
    """

    recorded: bool
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Status:
    """The state of deliveries, with the numbers of events that wait for the database or cannot be recorded."""

    targets: tuple[TargetStatus, ...]
    spooled: int
    unrecorded: int

    def alerts(self) -> tuple[str, ...]:
        """Problems that need a person, in safe sentences."""
        found = [alert for target in self.targets for alert in target.alerts(dt.datetime.now(dt.UTC))]
        if self.unrecorded:
            found.append(
                f"{self.unrecorded} lineage events could not be recorded and are kept in lineage/{UNRECORDED}; look at "
                "them, then remove the file"
            )
        return tuple(found)


class LineageEmitter:
    """Emits the events of steps into the stored graph, and from there to the receivers.

    Several emitters, in one process or in many, may share a deployment. A new emitter opens nothing yet.

    Args:
        url: the database of the stored graph, the ledger's.
        directory: of the operator's record, and of events that could not be recorded yet.
        client: returns the client of the standard OpenLineage configuration.
    """

    def __init__(self, url: str, directory: Path, client: Callable[[], Client | None] = standard_client) -> None:
        self._url = url
        self._record_file = directory / RECORD
        self._spool = JsonLines(directory / SPOOL)
        self._unrecorded = JsonLines(directory / UNRECORDED)
        self._find_client = client
        self._store: LineageStore | None = None
        self._receivers: list[Receiver] | None = None

    @classmethod
    def of(cls, settings: Settings) -> LineageEmitter:
        return cls(settings.ledger_url, settings.lineage_file.parent)

    def start(self, run: StepRun) -> Delivery:
        """Emits START with the inputs and outputs that are known so far."""
        return self._emit_step(run, "START")

    def complete(self, run: StepRun) -> Delivery:
        """Emits COMPLETE with the real inputs and outputs."""
        return self._end(run, "COMPLETE")

    def fail(self, run: StepRun, error: BaseException) -> Delivery:
        """Emits FAIL with the safe form of the error."""
        return self._end(run, "FAIL", safe_error(error))

    def abort(self, run: StepRun, reason: str = "The run was cancelled.") -> Delivery:
        """Emits ABORT; `reason` is a sentence of our own, never a library's message."""
        return self._end(run, "ABORT", (INTERRUPTED, reason))

    def open_runs(self) -> list[OpenRun]:
        """Runs that started and have no terminal event, oldest first. LedgerError: the database is out of reach."""
        return self._opened().open_runs()

    def close_out(self, dagster_run_ids: Collection[str]) -> list[Delivery]:
        """Emits FAIL for the open runs of Dagster runs that have ended: their process was killed.

        Only the caller can know that a Dagster run has ended, so nothing else is closed. Raises `LedgerError`.
        """
        from dpsynth_platform.lineage.events import closing_event

        ended = {naming.parent_run_id(run_id) for run_id in dagster_run_ids}
        closing = [
            closing_event(run.start, (INTERRUPTED, _KILLED)) for run in self.open_runs() if run.parent_run_id in ended
        ]
        return [self._emit(event) for event in closing]

    def flush(self, *, now: bool = True, seconds: float | None = None) -> Report:
        """Records what was spooled and delivers what waits; see `outbox.flush`."""
        return outbox.flush(self._opened(), self._to(), now=now, seconds=seconds)

    def status(self) -> Status:
        """The state of deliveries. LedgerError: the database is out of reach."""
        targets = outbox.status(self._opened())
        return Status(tuple(targets), sum(1 for _ in self._spool.read()), sum(1 for _ in self._unrecorded.read()))

    def _end(
        self, run: StepRun, kind: Literal["COMPLETE", "FAIL", "ABORT"], error: tuple[str, str] | None = None
    ) -> Delivery:
        started = self._emit_step(run, "START")  # only recorded if there is no START yet
        ended = self._emit_step(run, kind, error)
        return Delivery(ended.recorded, started.warnings + ended.warnings)

    def _emit_step(self, run: StepRun, kind: Kind, error: tuple[str, str] | None = None) -> Delivery:
        try:
            from dpsynth_platform.lineage.events import step_event

            entry = step_event(run, kind, error)
        except Exception as failure:  # making an event reads files of libraries
            warning = f"{kind} of {run.job_name} is not recorded: it could not be made ({reason_of(failure)})."
            return Delivery(recorded=False, warnings=(warning,))
        return self._emit(entry)

    def _emit(self, entry: Event) -> Delivery:
        """Emits an event. A failure of the database, the disk or a receiver never fails the run."""
        try:
            store = self._opened()
            if not store.record(entry, targets=[receiver.target for receiver in self._to()]).new:
                return Delivery(recorded=False)
        except LineageRefused as error:
            return Delivery(recorded=False, warnings=(self._unrecordable(entry, error),))
        except Exception as error:
            return Delivery(recorded=False, warnings=(self._kept(self._spool, entry, error, "it is recorded later"),))
        try:
            return Delivery(True, outbox.flush(store, self._to(), seconds=_SECONDS_IN_A_STEP).warnings)
        except Exception as error:
            return Delivery(True, (f"{label_of(entry)} is recorded and not delivered yet ({reason_of(error)}).",))

    def _opened(self) -> LineageStore:
        """The store, after all earlier events were recorded."""
        if self._store is None:
            store = LineageStore(self._url)
            if not store.has_own() and self._record_file.exists():
                store.import_record(entry for entry in JsonLines(self._record_file).read() if run_event(entry))
            self._store = store
        if self._spool.has_content():
            self._record_spooled(self._store)
        return self._store

    def _record_spooled(self, store: LineageStore) -> None:
        """Records the spooled events in order; one that was recorded before changes nothing."""
        with self._spool.locked() as descriptor:
            for entry in self._spool.read():
                try:
                    store.record(entry, targets=[receiver.target for receiver in self._to()])
                except LineageRefused as error:
                    self._unrecordable(entry, error)
            self._spool.empty(descriptor)

    def _to(self) -> list[Receiver]:
        """The receivers. A transport with an invalid configuration is one: events wait until it is corrected."""
        if self._receivers is None:
            self._receivers = [RecordFile(self._record_file)]
            client, configured = None, True
            with suppress(Exception):
                client = self._find_client()
                configured = client is not None
            if configured:
                self._receivers.append(StandardTransport(self._find_client, client))
        return self._receivers

    def _unrecordable(self, entry: Mapping[str, Any], error: Exception) -> str:
        note = {"at": dt.datetime.now(dt.UTC).isoformat(), "error": reason_of(error), "event": entry}
        return self._kept(self._unrecorded, note, error, "it cannot be", label_of(entry))

    def _kept(
        self, place: JsonLines, note: Mapping[str, Any], error: Exception, outlook: str, label: str | None = None
    ) -> str:
        """Keeps an event that could not be recorded in a file beside the record. Returns the warning."""
        warning = f"{label or label_of(note)} is not recorded ({safe_error(error)[0]})"
        try:
            with place.locked() as descriptor:
                place.append(descriptor, dict(note))
        except Exception as second:
            return f"{warning}, nor could it be kept in {place.path.name} ({reason_of(second)})."
        return f"{warning}; {outlook}; it is kept in {place.path.name}."
