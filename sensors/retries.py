"""Retries: runs of schedules and sensors that were interrupted, or failed for a transient reason, run again.

What belongs here: which runs may be retried, when and how often; closing runs whose process is gone. What does not:
whether a retry costs anything. `raw` and `clearance` decide that as for any run: a paid model is used, a reservation
is kept, and a started mechanism that cannot resume stays lost until a person decides.

Dagster's own retries stay off: they would also repeat other failures, and runs that a person started.
"""

import datetime as dt
import re
from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dpsynth_platform.foundation.redaction import MACHINE
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.worker.codes import KILLED
from sensors.safe import safe_sensor

Jobs = Sequence[UnresolvedAssetJobDefinition]
AGAIN_TAG = "dpsynth/again"
"""Number of retries after interruptions."""
AGAIN_AT_MOST = 3
"""Most retries after interruptions: a run that is killed each time, such as for lack of memory, needs a person."""
SET_BACK_TAG = "dpsynth/set-back"
"""Number of retries after transient failures."""
WAITS = (dt.timedelta(minutes=10), dt.timedelta(hours=1), dt.timedelta(hours=6))
"""Time from each transient failure to the retry. After the last one a person has to act."""
TRANSIENT = frozenset({"ledger", "source", MACHINE})
"""Codes of failures that often pass: the ledger or a source is not reachable, the disk is full."""
PARTITION_TAG = "dagster/partition"
_RECENT = 2 * WAITS[-1]
_PAGE = 100
_ASKED_BY = ("dagster/schedule_name", "dagster/sensor_name")
_COUNT = re.compile(r"[0-9]{1,2}")


def interrupted_sensor(settings: Settings, jobs: Jobs) -> dg.SensorDefinition:
    """Closes and retries killed runs. The cursor is Dagster's number of the last failure; it starts at the newest."""

    @safe_sensor(
        settings,
        "interrupted_runs",
        "Closes runs whose process is gone, and retries those that no person started.",
        seconds=30,
        jobs=jobs,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        from dpsynth_platform.operations.running import close_gone, is_interrupted

        instance, origin = context.instance, context.code_location_origin
        closed = close_gone(instance, origin.location_name) if origin else []
        message = f"{len(closed)} runs closed"
        if context.cursor is None:
            newest = instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records
            return dg.SensorResult(skip_reason=message, cursor=str(newest[0].storage_id if newest else 0))
        wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=int(context.cursor))
        failed = instance.fetch_run_status_changes(wanted, limit=_PAGE, ascending=True).records
        requests = [
            _retry(run, AGAIN_TAG, AGAIN_AT_MOST)
            for record in failed
            if (run := instance.get_run_by_id(record.event_log_entry.run_id)) is not None
            and _is_ours(context, run, jobs)
            and _retries(run, AGAIN_TAG, AGAIN_AT_MOST) < AGAIN_AT_MOST
            and is_interrupted(instance, run.run_id)
        ]
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else message,
            cursor=str(failed[-1].storage_id) if failed else context.cursor,
        )

    return sensor


def transient_failure_sensor(settings: Settings, jobs: Jobs) -> dg.SensorDefinition:
    """Retries transient failures of the last twelve hours, where no newer run of the job and month exists."""

    @safe_sensor(
        settings,
        "set_back_runs",
        "Retries, after some time, runs that failed for want of the ledger, the source or the disk.",
        seconds=60,
        jobs=jobs,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        now = dt.datetime.now(dt.UTC)
        failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=now - _RECENT)
        records = context.instance.get_run_records(failed)
        requests = [
            _retry(record.dagster_run, SET_BACK_TAG, len(WAITS))
            for record in records
            if _is_ours(context, record.dagster_run, jobs) and _is_due(context.instance, record, now)
        ]
        return dg.SensorResult(
            run_requests=requests, skip_reason=None if requests else f"{len(records)} recent failures, none is due"
        )

    return sensor


def _is_due(instance: dg.DagsterInstance, record: dg.RunRecord, now: dt.datetime) -> bool:
    from dpsynth_platform.operations.running import failure_codes

    run, retries = record.dagster_run, _retries(record.dagster_run, SET_BACK_TAG, len(WAITS))
    if record.end_time is None or retries >= len(WAITS):
        return False
    if now.timestamp() < record.end_time + WAITS[retries].total_seconds():
        return False
    codes = failure_codes(instance, run.run_id)
    return bool(codes & TRANSIENT) and codes <= TRANSIENT | {KILLED} and _is_newest(instance, run)


def _is_newest(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    month = {tag: value for tag, value in run.tags.items() if tag == PARTITION_TAG}
    return instance.get_runs(dg.RunsFilter(job_name=run.job_name, tags=month), limit=1)[0].run_id == run.run_id


def _is_ours(context: dg.SensorEvaluationContext, run: dg.DagsterRun, jobs: Jobs) -> bool:
    """Whether a schedule or sensor requested the run, of a job that this code location has now."""
    here, there = context.code_location_origin, run.remote_job_origin
    elsewhere = here is not None and there is not None and there.location_name != here.location_name
    return run.job_name in {job.name for job in jobs} and not elsewhere and any(tag in run.tags for tag in _ASKED_BY)


def _retries(run: dg.DagsterRun, tag: str, most: int) -> int:
    """The number of retries by a tag; `most` if the tag has another form."""
    found = run.tags.get(tag, "0")
    return min(int(found), most) if _COUNT.fullmatch(found) else most


def _retry(run: dg.DagsterRun, tag: str, most: int) -> dg.RunRequest:
    """A request for the same run. Its key names the old run, so that Dagster runs it once.

    Retries for the other reason stay counted: alternating reasons would never end.
    """
    counted = {name: run.tags[name] for name in (AGAIN_TAG, SET_BACK_TAG) if name in run.tags}
    return dg.RunRequest(
        run_key=f"{tag.rpartition('/')[2]}-{run.run_id}",
        job_name=run.job_name,
        partition_key=run.tags.get(PARTITION_TAG),
        tags=counted | {tag: str(_retries(run, tag, most) + 1)},
    )
