"""The emitter: one START and exactly one terminal event for every attempt at every step.

What belongs here: what happened to a run, having it recorded, and what becomes of it while the database is away. What
does not: the shape of events (`events`, `facets`), the rules of recording (`store`), deliveries (`outbox`,
`receivers`), orchestration.

The stored graph decides what was emitted. A second START or a second terminal event of a run is not recorded, whoever
sends it, so that a failure hook, a sensor and the step itself may all report an end and only the first one counts.
Emission never raises: while the database is away events wait in `spool.jsonl` beside the record and are taken in, in
their order, before the next one; what becomes of each is told to the caller as a warning.

A deployment from before the stored graph has its events in the record only; the first emission takes them over.
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
from dpsynth_platform.lineage.outbox import Receiver, Report, TargetStatus, told_of
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
"""After that a step leaves further deliveries to the sensor."""
_KILLED = "The process ended without a word of its own; the run was closed afterwards."


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
class Status:
    """How deliveries stand.

    Attributes:
        targets: each receiver.
        spooled: events that wait for the database.
        unrecorded: events that no database will take, kept in `unrecorded.jsonl`.
    """

    targets: tuple[TargetStatus, ...]
    spooled: int
    unrecorded: int

    def alerts(self) -> tuple[str, ...]:
        """What somebody must look at, in safe sentences."""
        told = [alert for target in self.targets for alert in target.alerts(dt.datetime.now(dt.UTC))]
        if self.unrecorded:
            told.append(
                f"{self.unrecorded} lineage events could not be recorded and are kept in lineage/{UNRECORDED}; look at "
                "them, then remove the file"
            )
        return tuple(told)


class LineageEmitter:
    """Emits the events of steps into the stored graph, and from there to whoever shall have them.

    Several emitters, in one process or in many, may share a deployment.
    """

    def __init__(self, url: str, directory: Path, client: Callable[[], Client | None] = standard_client) -> None:
        """Opens nothing yet.

        Args:
            url: the database of the stored graph, the ledger's.
            directory: where the operator's record is, and what could not be recorded yet.
            client: called to find the other receiver.
        """
        self._url = url
        self._record_file = directory / RECORD
        self._spool = JsonLines(directory / SPOOL)
        self._unrecorded = JsonLines(directory / UNRECORDED)
        self._find_client = client
        self._store: LineageStore | None = None
        self._receivers: list[Receiver] | None = None

    @classmethod
    def of(cls, settings: Settings) -> LineageEmitter:
        """The deployment's emitter."""
        return cls(settings.ledger_url, settings.lineage_file.parent)

    def start(self, run: StepRun) -> Delivery:
        """Emits START with what is known of inputs and outputs beforehand."""
        return self._emit_step(run, "START")

    def complete(self, run: StepRun) -> Delivery:
        """Emits COMPLETE with the real inputs and outputs."""
        return self._end(run, "COMPLETE")

    def fail(self, run: StepRun, error: BaseException) -> Delivery:
        """Emits FAIL with what may safely be said of the error."""
        return self._end(run, "FAIL", safe_error(error))

    def abort(self, run: StepRun, reason: str = "The run was cancelled.") -> Delivery:
        """Emits ABORT; `reason` is a sentence of our own, never a library's message."""
        return self._end(run, "ABORT", (INTERRUPTED, reason))

    def open_runs(self) -> list[OpenRun]:
        """Runs that started and have no terminal event, oldest first. Raises LedgerError if the database is away."""
        return self._opened().open_runs()

    def close_out(self, dagster_run_ids: Collection[str]) -> list[Delivery]:
        """Emits FAIL for the open runs of Dagster runs that have ended: their process was killed.

        Only the caller can know that a Dagster run has ended, so nothing else is closed. Raises LedgerError if the
        database is away.
        """
        from dpsynth_platform.lineage.events import closing_event

        ended = {naming.parent_run_id(run_id) for run_id in dagster_run_ids}
        closing = [
            closing_event(run.start, (INTERRUPTED, _KILLED)) for run in self.open_runs() if run.parent_run_id in ended
        ]
        return [self._emit(event) for event in closing]

    def flush(self, *, now: bool = True, seconds: float | None = None) -> Report:
        """Takes in what was spooled and delivers what waits; see `outbox.flush`.

        Raises:
            LedgerError: the database is away.
        """
        return outbox.flush(self._opened(), self._to(), now=now, seconds=seconds)

    def status(self) -> Status:
        """How the deliveries stand. Raises LedgerError if the database is away."""
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
        except Exception as failure:  # even to make it takes files of libraries
            warning = f"{kind} of {run.job_name} is not recorded: it could not be made ({reason_of(failure)})."
            return Delivery(recorded=False, warnings=(warning,))
        return self._emit(entry)

    def _emit(self, entry: Event) -> Delivery:
        """A failed emission never fails a run, whatever the database, the disk or a receiver says."""
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
            return Delivery(True, (f"{told_of(entry)} is recorded and not delivered yet ({reason_of(error)}).",))

    def _opened(self) -> LineageStore:
        """The store, after everything earlier was taken in."""
        if self._store is None:
            store = LineageStore(self._url)
            if not store.has_own() and self._record_file.exists():
                store.take_over(entry for entry in JsonLines(self._record_file).read() if run_event(entry))
            self._store = store
        if self._spool.has_content():
            self._take_in_spooled(self._store)
        return self._store

    def _take_in_spooled(self, store: LineageStore) -> None:
        """Records what was kept while the database was away, in order; again what was recorded before is no harm."""
        with self._spool.locked() as descriptor:
            for entry in self._spool.read():
                try:
                    store.record(entry, targets=[receiver.target for receiver in self._to()])
                except LineageRefused as error:
                    self._unrecordable(entry, error)
            self._spool.empty(descriptor)

    def _to(self) -> list[Receiver]:
        """The receivers. A transport whose configuration cannot be used is one: events wait until it is mended."""
        if self._receivers is None:
            self._receivers = [RecordFile(self._record_file)]
            client, there = None, True
            with suppress(Exception):
                client = self._find_client()
                there = client is not None
            if there:
                self._receivers.append(StandardTransport(self._find_client, client))
        return self._receivers

    def _unrecordable(self, entry: Mapping[str, Any], error: Exception) -> str:
        note = {"at": dt.datetime.now(dt.UTC).isoformat(), "error": reason_of(error), "event": entry}
        return self._kept(self._unrecorded, note, error, "it cannot be", told_of(entry))

    def _kept(
        self, place: JsonLines, note: Mapping[str, Any], error: Exception, hope: str, what: str | None = None
    ) -> str:
        """Keeps beside the record what could not be recorded. Returns the warning."""
        warning = f"{what or told_of(note)} is not recorded ({safe_error(error)[0]})"
        try:
            with place.locked() as descriptor:
                place.append(descriptor, dict(note))
        except Exception as second:
            return f"{warning}, nor could it be kept in {place.path.name} ({reason_of(second)})."
        return f"{warning}; {hope}; it is kept in {place.path.name}."
