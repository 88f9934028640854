"""Runs that what is around them set back: asked for again, some time later.

What belongs here: which failures may pass by themselves, and when to ask once more for what a schedule or a sensor had
asked for. What does not: runs that were killed (`interrupted`), and whether a second run costs anything (`raw` and
`clearance` judge that as for any run).

Nothing is remembered here: a run that is due has failed lately, and no newer run of its job and month is there.
"""

import datetime as dt
from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dpsynth_platform.foundation.redaction import MACHINE
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.worker.codes import KILLED
from sensors.retries import PARTITION_TAG, SET_BACK_TAG, again, is_ours, times
from sensors.safe import safe_tick

WAITS = (dt.timedelta(minutes=10), dt.timedelta(hours=1), dt.timedelta(hours=6))
"""How long after each failure in turn a run is asked for again. After the last of them a person has to look."""
MAY_PASS = frozenset({"ledger", "source", MACHINE})
"""Codes of what is often otherwise later: a ledger or a source that is away, a disk that is full."""
_LATELY = 2 * WAITS[-1]


def set_back_sensor(settings: Settings, jobs: Sequence[UnresolvedAssetJobDefinition]) -> dg.SensorDefinition:
    """Looks every minute at the failures of the last twelve hours.

    Args:
        settings: the deployment.
        jobs: all that may be asked for again.
    """

    @dg.sensor(
        name="set_back_runs",
        description="Asks again, some time later, for runs that failed for want of the ledger, the source or the disk.",
        jobs=list(jobs),
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        now = dt.datetime.now(dt.UTC)
        failed = dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE], updated_after=now - _LATELY)
        records = context.instance.get_run_records(failed)
        requests = [
            again(record.dagster_run, SET_BACK_TAG, _times(record.dagster_run) + 1)
            for record in records
            if is_ours(context, record.dagster_run, jobs) and _is_due(context.instance, record, now)
        ]
        return dg.SensorResult(
            run_requests=requests, skip_reason=None if requests else f"{len(records)} runs failed lately, none is due"
        )

    return sensor


def _is_due(instance: dg.DagsterInstance, record: dg.RunRecord, now: dt.datetime) -> bool:
    from dpsynth_platform.operations.running import failure_codes

    run, waited = record.dagster_run, _times(record.dagster_run)
    if record.end_time is None or waited >= len(WAITS):
        return False
    if now.timestamp() < record.end_time + WAITS[waited].total_seconds():
        return False
    codes = failure_codes(instance, run.run_id)
    return bool(codes & MAY_PASS) and codes <= MAY_PASS | {KILLED} and _is_newest(instance, run)


def _is_newest(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether nobody has run the same job for the same month since."""
    month = {tag: value for tag, value in run.tags.items() if tag == PARTITION_TAG}
    return instance.get_runs(dg.RunsFilter(job_name=run.job_name, tags=month), limit=1)[0].run_id == run.run_id


def _times(run: dg.DagsterRun) -> int:
    return times(run, SET_BACK_TAG, len(WAITS))
