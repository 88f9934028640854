"""Running asset lines from the command line: Dagster's instance, one run, and closing killed runs.

What belongs here: what `dpsynth run`, `plan`, `demo` and `up` need of Dagster. What does not: what a step does (the
asset line), and printing (the command line). Imported late, by the commands that run assets.

Each step of a run is a process, so that a killed step ends neither the run nor the command.
"""

from __future__ import annotations

import datetime as dt
import fcntl
import logging
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.events import DagsterEventType
from dagster._core.storage.dagster_run import FINISHED_STATUSES

from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.people import REQUESTED_BY_TAG
from dpsynth_platform.foundation.processes import is_child_at_work, is_gone, own_name
from dpsynth_platform.foundation.restricted_log import logs_of, output_to
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import STEPS
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.naming import PARENT_NAMESPACE
from dpsynth_platform.worker.codes import KILLED

PROCESS_TAG = "dpsynth/process"
INVOCATION_TAG = "dpsynth/invocation"
_PARTITION_TAG = "dagster/partition"
COUNTING = ("scrubbed", "bounded")
"""Steps that count omitted, replaced and kept values."""
_FACT_NAMES = {"dagster/row_count": "rows", "row count": "rows"}
_LONGEST_COMMAND = dt.timedelta(hours=1)

Progress = Callable[[str], None]
CodeLocation = Callable[[Settings], dg.Definitions]
"""Builds all definitions of a deployment."""


@dataclass(frozen=True)
class LineResult:
    """The outcome of one run of a line.

    Attributes:
        failures: name and safe message of each failed step.
        codes: their codes.
        facts: the counts on the asset pages of the steps of `COUNTING`; "restricted" instead of a hidden count.
    """

    run_id: str
    success: bool
    failures: tuple[tuple[str, str], ...]
    codes: tuple[str, ...]
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def prepare_home(settings: Settings) -> Path:
    """Makes the Dagster home with the deployment's `dagster.yaml`; returns its path."""
    if not (settings.deploy / "dagster.yaml").is_file():
        raise ConfigurationError(
            f"DPSYNTH_DEPLOY: {settings.deploy} contains no file dagster.yaml; accepted: a directory with "
            "contracts/, families/ and dagster.yaml (that of the platform's deploy/ is a start)"
        )
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home = settings.dagster_home
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    declared, used = settings.deploy / "dagster.yaml", home / "dagster.yaml"
    if not used.exists() or used.read_bytes() != declared.read_bytes():  # others may be reading it
        shutil.copyfile(declared, used)
    return home


@contextmanager
def open_instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    """The deployment's Dagster instance.

    One process at a time opens it: two that make its SQLite databases at once would corrupt them.
    """
    home = prepare_home(settings)
    with (home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        opened = dg.DagsterInstance.from_config(str(home))
    with opened as instance:
        yield instance


def run_line(
    settings: Settings,
    instance: dg.DagsterInstance,
    job: str,
    *,
    period: str | None = None,
    assets: Sequence[tuple[str, str]] = (),
    spend_again: tuple[str, str] | None = None,
    in_process: CodeLocation | None = None,
    progress: Progress = lambda _: None,
) -> LineResult:
    """Runs one job of the code location to its end.

    A process can run lines of one deployment only: the fork server keeps the environment of the first run.

    Args:
        job: name of the job, such as `census_candidate`.
        assets: dataset and step of the job's assets to run; empty: all of them.
        spend_again: dataset and id of the entry that is given up for a second spend.
        in_process: the code location, for steps in this process: they start sooner, and a kill ends this process, too.
        progress: called with public sentences.
    """
    settings.export()
    invocation = secrets.token_hex(8)
    tags = {REQUESTED_BY_TAG: settings.user, INVOCATION_TAG: invocation, PROCESS_TAG: own_name()}
    if period is not None:
        tags[_PARTITION_TAG] = period
    config: dict[str, object] = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    if spend_again is not None:
        dataset, entry = spend_again
        config["ops"] = {f"{dataset}__{step}": {"config": {"spend_again": entry}} for step in ("raw", "clearance")}
    selected = [dg.AssetKey(asset) for asset in assets] or None
    log = logs_of(settings.restricted) / f"run-{invocation}.log"
    with _following(instance, invocation, progress), output_to(log):
        if in_process is not None:
            target = in_process(settings).resolve_job_def(job)
            run_id = target.execute_in_process(
                run_config=config,
                instance=instance,
                partition_key=period,
                raise_on_error=False,
                tags=tags,
                asset_selection=selected,
            ).run_id
        else:
            named = dg.build_reconstructable_job("dpsynth_platform.definitions", "job_named", (job,))
            if selected:
                named = named.get_subset(asset_selection=frozenset(selected))
            run_id = dg.execute_job(named, instance, run_config=config, tags=tags, asset_selection=selected).run_id
    close_lineage(settings, instance)
    return _result_of(instance, run_id)


def reconcile(settings: Settings, instance: dg.DagsterInstance) -> list[str]:
    """Closes runs whose process is gone, in Dagster and in lineage; returns their ids.

    It checks only runs that this host's command line started; the code server checks its own (`close_gone`).
    """
    closed = [
        _close(instance, run)
        for run in instance.get_runs()
        if run.status not in FINISHED_STATUSES and is_gone(run.tags.get(PROCESS_TAG, ""))
    ]
    close_lineage(settings, instance)
    return closed


def close_gone(instance: dg.DagsterInstance, location: str) -> list[str]:
    """Closes, in Dagster, started runs of a code location whose process is gone; returns their ids.

    Call it on the code server's machine. Where runs are its processes, only the code server notices the end of one, and
    after a restart it knows none of them: such a run would stay started forever and occupy a slot. Launchers that
    monitor their runs themselves (Kubernetes) are skipped.
    """
    if instance.run_launcher.supports_check_run_worker_health:
        return []
    started = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED]))
    ours = (run for run in started if run.remote_job_origin and run.remote_job_origin.location_name == location)
    return [
        _close(instance, run)
        for run in ours
        if not (number := process_of(instance, run.run_id)) or not is_child_at_work(number)
    ]


def process_of(instance: dg.DagsterInstance, run_id: str) -> int | None:
    """Process id of a run, by its code server's event."""
    for record in instance.get_records_for_run(run_id, of_type=DagsterEventType.ENGINE_EVENT).records:
        event = record.event_log_entry.dagster_event
        if event is not None and (number := event.engine_event_data.metadata.get("pid")) is not None:
            return int(str(number.value))
    return None


def _close(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    instance.report_run_failed(run, "The process of this run is gone (killed or the machine restarted).")
    instance.event_log_storage.free_concurrency_slots_for_run(run.run_id)
    return run.run_id


def is_interrupted(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a failed run, or steps of it, were killed, and nothing failed otherwise."""
    return failure_codes(instance, run_id) <= {KILLED}


def failure_codes(instance: dg.DagsterInstance, run_id: str) -> frozenset[str]:
    """The codes of a run's failed steps; empty where the run failed outside of its steps."""
    return frozenset(code for _, _, code in recorded_failures(instance, run_id))


def recorded_failures(instance: dg.DagsterInstance, run_id: str) -> Iterator[tuple[str, str, str]]:
    """`step_failures` of a run, oldest first."""
    found = instance.get_records_for_run(run_id, of_type=DagsterEventType.STEP_FAILURE).records
    events = [record.event_log_entry.dagster_event for record in found]
    return step_failures(event for event in events if event is not None)


def close_lineage(settings: Settings, instance: dg.DagsterInstance) -> int:
    """Emits FAIL for every lineage run without a terminal event whose Dagster run has ended; returns their number.

    Dagster does not know commands that emit lineage themselves: one that started an hour ago counts as ended.
    """
    emitter = LineageEmitter.of(settings)
    finished = set()
    lately = (dt.datetime.now(dt.UTC) - _LONGEST_COMMAND).isoformat()
    open_runs = [run for run in emitter.open_runs() if run.launcher == PARENT_NAMESPACE or run.started_at < lately]
    for dagster_run_id in {run.parent_run_id for run in open_runs}:
        run = instance.get_run_by_id(dagster_run_id)
        if run is None or run.status in FINISHED_STATUSES:
            finished.add(dagster_run_id)
    return len(emitter.close_out(finished)) if finished else 0


@contextmanager
def _following(instance: dg.DagsterInstance, invocation: str, progress: Progress) -> Iterator[None]:
    """Relays messages and warnings of steps, but not Dagster's errors, from the event log during the run."""
    ended = threading.Event()

    def look(run_id: str | None, cursor: str | None) -> tuple[str | None, str | None]:
        if run_id is None:
            runs = instance.get_runs(dg.RunsFilter(tags={INVOCATION_TAG: invocation}), limit=1)
            if not runs:
                return None, None
            run_id = runs[0].run_id
        page = instance.get_records_for_run(run_id, cursor=cursor)
        for record in page.records:
            entry = record.event_log_entry
            if _step_name(entry.step_key) not in STEPS:
                continue  # asset checks and Dagster's own
            if entry.dagster_event is None:
                # Dagster's messages about the worker's start are not the step's.
                if int(entry.level) <= logging.WARNING and not entry.user_message.startswith("[pipes]"):
                    progress(f"{_step_name(entry.step_key)}: {entry.user_message}")
            elif entry.dagster_event.event_type == DagsterEventType.STEP_START:
                progress(f"{_step_name(entry.step_key)}: started")
        return run_id, page.cursor

    def follow() -> None:
        run_id, cursor, last_look = None, None, False
        while not last_look:
            last_look = ended.wait(0.5)
            with suppress(Exception):  # the databases may be on a full disk; the run continues without this
                run_id, cursor = look(run_id, cursor)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


_ENDED = (
    "its process was killed or ended without an error message; run again: what is complete is kept, and if a mechanism "
    "had started, the message names its ledger entry and what to do"
)


def failures_of(events: Iterable[dg.DagsterEvent]) -> tuple[tuple[str, str], ...]:
    """For each failed step its name and safe message."""
    return tuple((_step_name(step), message) for step, message, _ in step_failures(events))


def step_failures(events: Iterable[dg.DagsterEvent]) -> Iterator[tuple[str, str, str]]:
    """Key (`census__raw`), safe message and code of each step that failed."""
    for event in events:
        if event.event_type == DagsterEventType.STEP_FAILURE:
            failure = event.step_failure_data.user_failure_data
            if failure is None:
                yield event.step_key or "", _ENDED, KILLED
            else:
                code = failure.metadata.get("code")
                yield event.step_key or "", failure.description or "failed", str(code.value if code else "")


def _result_of(instance: dg.DagsterInstance, run_id: str) -> LineResult:
    events = [entry.dagster_event for entry in instance.all_logs(run_id) if entry.dagster_event is not None]
    failures = list(step_failures(events))
    run = instance.get_run_by_id(run_id)
    return LineResult(
        run_id=run_id,
        success=run is not None and run.status == dg.DagsterRunStatus.SUCCESS,
        failures=tuple((_step_name(step), message) for step, message, _ in failures),
        codes=tuple(code for _, _, code in failures),
        facts=_facts(events),
    )


def _facts(events: Iterable[dg.DagsterEvent]) -> dict[str, dict[str, Any]]:
    facts: dict[str, dict[str, Any]] = {}
    for event in events:
        step = _step_name(event.step_key)
        if event.event_type == DagsterEventType.ASSET_MATERIALIZATION and step in COUNTING:
            page = event.step_materialization_data.materialization.metadata
            shown = {_FACT_NAMES.get(name, name): value.value for name, value in page.items()}
            facts[step] = {name: value for name, value in shown.items() if not name.startswith("dagster/")}
    return facts


def _step_name(step_key: str | None) -> str:
    return (step_key or "run").rpartition("__")[2]
