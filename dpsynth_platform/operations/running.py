"""Running asset lines from the command line: Dagster's instance, one run, and closing what a killed run left open.

What belongs here: what `dpsynth run`, `plan`, `demo` and `up` need of Dagster. What does not: what a step does (the
asset line), and printing (the command line). Imported late, by the commands that run assets.

A run takes place in a process a step, so that a step that is killed takes neither the run nor the command with it.
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
"""Steps that count what they left out, replaced and kept."""
_FACT_NAMES = {"dagster/row_count": "rows", "row count": "rows"}
_LONGEST_COMMAND = dt.timedelta(hours=1)

Progress = Callable[[str], None]
CodeLocation = Callable[[Settings], dg.Definitions]
"""What builds all definitions of a deployment."""


@dataclass(frozen=True)
class LineResult:
    """How one run of a line ended.

    Attributes:
        failures: for each failed step its name and safe message.
        codes: their codes.
        materialized: names of the steps that ended well, in order.
        facts: of the steps of `COUNTING`, what their asset pages show of this run, which is all that an operator may
            see: counts, and what is restricted only by that word.
    """

    run_id: str
    success: bool
    failures: tuple[tuple[str, str], ...]
    codes: tuple[str, ...]
    materialized: tuple[str, ...]
    facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def prepare_home(settings: Settings) -> Path:
    """Makes the Dagster home with the deployment's `dagster.yaml`; returns its path.

    Raises:
        ConfigurationError: the deployment has no such file.
    """
    if not (settings.deploy / "dagster.yaml").is_file():
        raise ConfigurationError(
            f"DPSYNTH_DEPLOY: {settings.deploy} holds no file dagster.yaml; accepted: a directory with it, with "
            "contracts/ and families/"
        )
    settings.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    home = settings.dagster_home
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.copyfile(settings.deploy / "dagster.yaml", home / "dagster.yaml")
    return home


@contextmanager
def open_instance(settings: Settings) -> Iterator[dg.DagsterInstance]:
    """The deployment's Dagster instance.

    One process at a time opens it: two that made its SQLite databases together would leave them unusable.
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

    With processes a step, a process runs lines of one deployment only: they fork from a server that keeps the
    environment, and with it the settings, of the first run.

    Args:
        job: name of the job, such as `census_candidate`.
        period: partition, for datasets with a cadence.
        assets: dataset and step of the job's assets to run; none: all of them.
        spend_again: dataset and id of the entry that is given up for a second spend.
        in_process: the code location, for steps in this process: they start sooner, and a kill ends this process, too.
        progress: called with one public sentence at a time.
    """
    settings.export()
    invocation = secrets.token_hex(8)
    tags = {
        REQUESTED_BY_TAG: settings.user,
        INVOCATION_TAG: invocation,
        PROCESS_TAG: own_name(),
    }
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
            run_id = _run_here(in_process(settings), instance, job, config, tags, selected)
        else:
            target = dg.build_reconstructable_job("dpsynth_platform.definitions", "job_named", (job,))
            if selected:
                target = target.get_subset(asset_selection=frozenset(selected))
            run_id = dg.execute_job(target, instance, run_config=config, tags=tags, asset_selection=selected).run_id
    close_lineage(settings, instance)
    return _result_of(instance, run_id)


def _run_here(
    definitions: dg.Definitions,
    instance: dg.DagsterInstance,
    job: str,
    config: dict[str, object],
    tags: dict[str, str],
    selected: list[dg.AssetKey] | None,
) -> str:
    """Runs a job's steps one after the other in this process; returns the run's id."""
    target = definitions.resolve_job_def(job)
    return target.execute_in_process(
        run_config=config,
        instance=instance,
        partition_key=tags.get(_PARTITION_TAG),
        raise_on_error=False,
        tags=tags,
        asset_selection=selected,
    ).run_id


def reconcile(settings: Settings, instance: dg.DagsterInstance) -> list[str]:
    """Closes runs whose process is gone, in Dagster and in lineage; returns their ids.

    Only runs that this host's command line started are judged: of others, their code server knows (`close_gone`).
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

    Where runs are processes of their code server, it alone notices that one is gone, and forgets all of them when it is
    started again: a run would stay started for ever, and hold its place among those that may run at once. Launchers
    that ask after their runs by themselves (Kubernetes) are left alone.

    Args:
        instance: of the code server, on whose machine this is called.
        location: its name for the code location.
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
    """Number of the process that a code server has made for a run."""
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
    """Whether a run that failed was killed, or one of its steps was, and nothing has failed by itself."""
    return failure_codes(instance, run_id) <= {KILLED}


def failure_codes(instance: dg.DagsterInstance, run_id: str) -> frozenset[str]:
    """The codes of a run's failed steps; none where the run failed outside of its steps."""
    found = instance.get_records_for_run(run_id, of_type=DagsterEventType.STEP_FAILURE).records
    events = [record.event_log_entry.dagster_event for record in found]
    return frozenset(code for _, _, code in step_failures(event for event in events if event is not None))


def close_lineage(settings: Settings, instance: dg.DagsterInstance) -> int:
    """Gives every lineage run whose Dagster run has ended without its terminal event a FAIL; returns how many.

    Commands that emit by themselves are unknown to Dagster: one that began an hour ago is taken to be gone.
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
    """Relays the steps' own sentences and warnings from the event log while the run goes on.

    Not what Dagster says at higher levels, that steps after a failed one cannot start: the failure is shown at the end.
    """
    ended = threading.Event()

    def relay(run_id: str, cursor: str | None) -> str | None:
        page = instance.get_records_for_run(run_id, cursor=cursor)
        for record in page.records:
            entry = record.event_log_entry
            if _step_name(entry.step_key) not in STEPS:
                continue  # asset checks and Dagster's own
            if entry.dagster_event is None:
                # Dagster's own words about the worker's start are no step's.
                if int(entry.level) <= logging.WARNING and not entry.user_message.startswith("[pipes]"):
                    progress(f"{_step_name(entry.step_key)}: {entry.user_message}")
            elif entry.dagster_event.event_type == DagsterEventType.STEP_START:
                progress(f"{_step_name(entry.step_key)}: started")
        return page.cursor

    def look(run_id: str | None, cursor: str | None) -> tuple[str | None, str | None]:
        if run_id is None:
            runs = instance.get_runs(dg.RunsFilter(tags={INVOCATION_TAG: invocation}), limit=1)
            run_id = runs[0].run_id if runs else None
        return run_id, None if run_id is None else relay(run_id, cursor)

    def follow() -> None:
        run_id, cursor, last_look = None, None, False
        while not last_look:
            last_look = ended.wait(0.5)
            with suppress(Exception):  # the databases may be on a full disk, and the run goes on without this
                run_id, cursor = look(run_id, cursor)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


def failures_of(events: Iterable[dg.DagsterEvent]) -> tuple[tuple[str, str], ...]:
    """For each failed step its name and safe message."""
    return tuple((_step_name(step), message) for step, message, _ in step_failures(events))


def step_failures(events: Iterable[dg.DagsterEvent]) -> Iterator[tuple[str, str, str]]:
    """Key (`census__raw`), safe message and code of each step that failed."""
    for event in events:
        if event.event_type == DagsterEventType.STEP_FAILURE:
            failure = event.step_failure_data.user_failure_data
            if failure is None:
                yield event.step_key or "", "its process ended without a word of its own (killed?)", KILLED
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
        materialized=tuple(
            _step_name(event.step_key) for event in events if event.event_type == DagsterEventType.STEP_SUCCESS
        ),
        facts=_facts(events),
    )


def _facts(events: Iterable[dg.DagsterEvent]) -> dict[str, dict[str, Any]]:
    """What the asset pages of the steps of `COUNTING` show, without what Dagster keeps for itself."""
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
