"""Asking again for a run that no person has started: what runs that were killed and runs that were set back have alike.

What belongs here: whose runs may be asked for again, how often that was done, and the request. What does not: after
which failure, and when (`interrupted`, `set_back`).
"""

import re
from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

AGAIN_TAG = "dpsynth/again"
"""How often a run was asked for again after it was killed."""
SET_BACK_TAG = "dpsynth/set-back"
"""How often a run was asked for again after it was set back."""
PARTITION_TAG = "dagster/partition"
_ASKED_BY = ("dagster/schedule_name", "dagster/sensor_name")
_COUNT = re.compile(r"[0-9]{1,2}")


def is_ours(
    context: dg.SensorEvaluationContext, run: dg.DagsterRun, jobs: Sequence[UnresolvedAssetJobDefinition]
) -> bool:
    """Whether a schedule or a sensor has asked for a run, and of a job that this code location has now."""
    here, there = context.code_location_origin, run.remote_job_origin
    elsewhere = here is not None and there is not None and there.location_name != here.location_name
    return run.job_name in {job.name for job in jobs} and not elsewhere and any(tag in run.tags for tag in _ASKED_BY)


def times(run: dg.DagsterRun, tag: str, most: int) -> int:
    """How often a run was asked for again for one reason; as often as may be, where the tag is nobody's of ours."""
    found = run.tags.get(tag, "0")
    return min(int(found), most) if _COUNT.fullmatch(found) else most


def again(run: dg.DagsterRun, tag: str, count: int) -> dg.RunRequest:
    """The same run once more. Its key is the old run's, so that Dagster runs it once.

    What it was asked for again for other reasons stays counted, or two reasons in turns would never end.
    """
    counted = {name: run.tags[name] for name in (AGAIN_TAG, SET_BACK_TAG) if name in run.tags}
    return dg.RunRequest(
        run_key=f"{tag.rpartition('/')[2]}-{run.run_id}",
        job_name=run.job_name,
        partition_key=run.tags.get(PARTITION_TAG),
        tags=counted | {tag: str(count)},
    )
