"""The schedule of a dataset with a cadence: a candidate for each period, when the period has ended.

What belongs here: which periods are due. What does not: whether a period may be spent on or was paid for (`raw` and
`clearance`), and retries of interrupted or failed runs (`retries`).
"""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.line import partitions_of
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.periods import CADENCES
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Storage
from sensors.safe import safe_tick

REFUSALS = frozenset({"budget", "clearance", "contract", "spend-repeated"})
"""Codes of failures that persist until a person acts."""


def cadence_schedule(
    settings: Settings, contract: DataContract, job: UnresolvedAssetJobDefinition
) -> dg.ScheduleDefinition:
    """Requests runs when a period ends in the contract's time zone, or as the contract says. Off for demonstrations.

    Of missed ticks, Dagster evaluates only the last one. So a tick requests all periods after the last one that was
    run, and the one that has just ended; without an earlier run, earlier periods need a backfill. A period that failed
    for want of its source is requested again at the next tick. A refused one is not: the person who fixes it starts the
    run. A schedule of the contract's own may tick several times in a period, which is requested once all the same.
    """
    release = contract.release
    noun = CADENCES[str(release.cadence)].noun

    @dg.schedule(
        name=f"{contract.dataset}_{release.cadence}",
        description=f"A release candidate for each {noun}, when it has ended in {release.time_zone}.",
        job=job,
        cron_schedule=release.cron,
        execution_timezone=release.time_zone,
        default_status=dg.DefaultScheduleStatus.STOPPED if contract.demo else dg.DefaultScheduleStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def periods(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        partitions = partitions_of(contract)
        ended = partitions.get_partition_keys(current_time=context.scheduled_execution_time) if partitions else []
        if not ended:
            return dg.SkipReason(f"the first {noun}, {release.start}, has not ended")
        run = {place.period for place in Storage(settings.restricted).places(contract.dataset)}
        last = max((period for period in ended if period in run), default=ended[-1])
        due = [period for period in ended[:-1] if period > last and not _was_refused(context, job.name, period)]
        if release.schedule is None or not _is_settled(context, job.name, ended[-1]):
            due.append(ended[-1])
        if not due:
            return dg.SkipReason(f"the last {noun}, {ended[-1]}, was run")
        return [dg.RunRequest(run_key=period, partition_key=period) for period in due]

    return periods


def _is_settled(context: dg.ScheduleEvaluationContext, job: str, period: str) -> bool:
    """Whether the period was run, and not in vain for want of source, ledger or machine."""
    newest = _newest(context, job, period)
    return newest is not None and (newest.status != dg.DagsterRunStatus.FAILURE or _was_refused(context, job, period))


def _was_refused(context: dg.ScheduleEvaluationContext, job: str, period: str) -> bool:
    """Whether the period's last run was refused, rather than failed for want of source, ledger or machine."""
    from dpsynth_platform.operations.running import failure_codes

    newest = _newest(context, job, period)
    return newest is not None and bool(failure_codes(context.instance, newest.run_id) & REFUSALS)


def _newest(context: dg.ScheduleEvaluationContext, job: str, period: str) -> dg.DagsterRun | None:
    runs = context.instance.get_runs(dg.RunsFilter(job_name=job, tags={"dagster/partition": period}), limit=1)
    return runs[0] if runs else None
