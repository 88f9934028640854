"""Runs that failed: people outside are told, with the job, the step and a code, and nothing else.

What belongs here: which of Dagster's runs failed, and what of it is public. What does not: delivering it
(`dpsynth_platform.notices.notifying`). The ledger is not asked: that it is away is among the things to be told.

The message of a failure may be read by operators only. A request that the budget has no room for is told of as such,
where the verdict depends on public facts; so a run that failed for that is not told of here.
"""

import datetime as dt
import re
from collections.abc import Iterator

import dagster as dg

from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import STEPS, Place
from dpsynth_platform.notices.notifying import Happening, Stream
from dpsynth_platform.notices.receivers import Notice
from dpsynth_platform.worker.codes import KILLED, code_of, status_of
from sensors.safe import safe_tick

EVENT = "run-failed"
_PERIOD = re.compile(r"[0-9]{4}-[0-9]{2}")
_PAGE = 100


def failure_sensor(settings: Settings) -> dg.SensorDefinition:
    """Looks every half minute. The cursors are the receivers' own files, so that a tick that fails forgets nothing."""

    @dg.sensor(
        name="run_failures",
        description="Tells the receivers that the deployment names which runs failed, where, and with which code.",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from dpsynth_platform.notices.notifying import tell

        look = tell(settings, failed_runs(context.instance), name="runs")
        look.raise_if_stuck()
        waiting = sum(len(notices) for notices in look.waiting.values())
        return dg.SkipReason(f"{sum(look.sent.values())} notices sent, {waiting} wait")

    return sensor


def failed_runs(instance: dg.DagsterInstance) -> Stream:
    """The runs that failed, in the order in which Dagster noted it."""

    def stream(after: int) -> Iterator[Happening]:
        while True:
            wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=after)
            page = instance.fetch_run_status_changes(wanted, limit=_PAGE, ascending=True)
            for record in page.records:
                after = record.storage_id
                at = dt.datetime.fromtimestamp(record.timestamp, dt.UTC).isoformat()
                yield Happening(after, at, _notice(instance, record.event_log_entry.run_id, at))
            if not page.has_more:
                return

    return stream


def _notice(instance: dg.DagsterInstance, run_id: str, at: str) -> Notice | None:
    """What is told of a run that failed; None where it was the budget, or the run is gone."""
    run = instance.get_run_by_id(run_id)
    if run is None:
        return None
    asset, code = _first_failure(instance, run_id)
    if code == "budget":
        return None
    period = run.tags.get("dagster/partition", "")
    dataset, _, step = asset.partition("__")
    place = Place(dataset, period if _PERIOD.fullmatch(period) else None) if step in STEPS else None
    where = f"{place.label}: " if place else ""
    failed = f"failed in step {step}" if place else "failed outside of a step"
    return Notice(
        id=f"run-{run_id}",
        event=EVENT,
        at=at,
        dataset=place.dataset if place else None,
        period=place.period if place else None,
        release=None,
        text=f"{where}a run of job {run.job_name} {failed} ({code}); its message stands with run {run_id} in Dagster",
    )


def _first_failure(instance: dg.DagsterInstance, run_id: str) -> tuple[str, str]:
    """Key of the step that failed first, and its code from the list of codes."""
    from dpsynth_platform.operations.running import step_failures

    found = instance.get_records_for_run(run_id, of_type=dg.DagsterEventType.STEP_FAILURE).records
    events = [record.event_log_entry.dagster_event for record in found]
    for asset, _, code in step_failures(event for event in events if event is not None):
        return asset, code if code == KILLED else code_of(status_of(code))
    return "", KILLED
