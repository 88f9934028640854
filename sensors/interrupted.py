"""Runs that were killed: closed, and asked for again where nobody was there to see it.

What belongs here: noticing runs whose process is gone, and asking once more for what a schedule or a sensor had asked
for. What does not: whether a second run costs anything. `raw` and `clearance` judge that as for any run: what is paid
for is used, a reservation is kept, and a mechanism that had started and cannot go on stays lost until a person says so.

Dagster's own retries stay off: they would repeat what failed by itself, and whatever a person has started.
"""

from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from sensors.retries import AGAIN_TAG, again, is_ours, times
from sensors.safe import safe_tick

AGAIN_AT_MOST = 3
"""How often a run is asked for again: what is killed each time, say for want of memory, needs a person."""
_PAGE = 100


def interrupted_sensor(settings: Settings, jobs: Sequence[UnresolvedAssetJobDefinition]) -> dg.SensorDefinition:
    """Looks every half minute. Its cursor is Dagster's number of the last failure; it begins with the newest one.

    Args:
        settings: the deployment.
        jobs: all that may be asked for again.
    """

    @dg.sensor(
        name="interrupted_runs",
        description="Closes runs whose process is gone, and asks again for those that nobody has started by hand.",
        jobs=list(jobs),
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        from dpsynth_platform.operations.running import close_gone

        instance, origin = context.instance, context.code_location_origin
        closed = close_gone(instance, origin.location_name) if origin else []
        words = f"{len(closed)} runs closed"
        if context.cursor is None:
            newest = instance.fetch_run_status_changes(dg.DagsterEventType.RUN_FAILURE, limit=1).records
            return dg.SensorResult(skip_reason=words, cursor=str(newest[0].storage_id if newest else 0))
        wanted = dg.RunStatusChangeRecordsFilter(dg.DagsterEventType.RUN_FAILURE, after_storage_id=int(context.cursor))
        failed = instance.fetch_run_status_changes(wanted, limit=_PAGE, ascending=True).records
        requests = [
            again(run, AGAIN_TAG, times(run, AGAIN_TAG, AGAIN_AT_MOST) + 1)
            for record in failed
            if (run := instance.get_run_by_id(record.event_log_entry.run_id)) is not None
            and is_ours(context, run, jobs)
            and _may_be_asked(instance, run)
        ]
        return dg.SensorResult(
            run_requests=requests,
            skip_reason=None if requests else words,
            cursor=str(failed[-1].storage_id) if failed else context.cursor,
        )

    return sensor


def _may_be_asked(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether a run was killed, and not too often before."""
    from dpsynth_platform.operations.running import is_interrupted

    return times(run, AGAIN_TAG, AGAIN_AT_MOST) < AGAIN_AT_MOST and is_interrupted(instance, run.run_id)
