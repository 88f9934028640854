"""The schedule of a dataset with a cadence: a candidate for each month, when the month has ended.

What belongs here: which months are due. What does not: whether a month may be spent on or was paid for (`raw` and
`clearance`), and retries of interrupted or failed runs (`retries`).
"""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.line import partitions_of
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Storage
from sensors.safe import safe_tick

REFUSALS = frozenset({"budget", "clearance", "contract", "spend-repeated"})
"""Codes of failures that persist until a person acts."""


def monthly_schedule(
    settings: Settings, contract: DataContract, job: UnresolvedAssetJobDefinition
) -> dg.ScheduleDefinition:
    """Requests runs at midnight of each month's first day in the contract's time zone. Off for demonstrations.

    Of missed ticks, Dagster evaluates only the last one. So a tick requests all months after the last one that was run,
    and always the one that has just ended; without an earlier run, earlier months need a backfill. A month that failed
    for want of its source is requested again next month. A refused one is not: the person who fixes it starts the run.
    """

    @dg.schedule(
        name=f"{contract.dataset}_monthly",
        description=f"A release candidate for each month, when it has ended in {contract.release.time_zone}.",
        job=job,
        cron_schedule="0 0 1 * *",
        execution_timezone=contract.release.time_zone,
        default_status=dg.DefaultScheduleStatus.STOPPED if contract.demo else dg.DefaultScheduleStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def monthly(context: dg.ScheduleEvaluationContext) -> list[dg.RunRequest] | dg.SkipReason:
        months = partitions_of(contract)
        ended = months.get_partition_keys(current_time=context.scheduled_execution_time) if months else []
        if not ended:
            return dg.SkipReason(f"the first month, {contract.release.start}, has not ended")
        run = {place.period for place in Storage(settings.restricted).places(contract.dataset)}
        last = max((month for month in ended if month in run), default=ended[-1])
        missed = [month for month in ended[:-1] if month > last and not _was_refused(context.instance, job.name, month)]
        return [dg.RunRequest(run_key=month, partition_key=month) for month in (*missed, ended[-1])]

    return monthly


def _was_refused(instance: dg.DagsterInstance, job: str, month: str) -> bool:
    """Whether the month's last run was refused, rather than failed for want of source, ledger or machine."""
    from dpsynth_platform.operations.running import failure_codes

    newest = instance.get_runs(dg.RunsFilter(job_name=job, tags={"dagster/partition": month}), limit=1)
    return bool(newest) and bool(failure_codes(instance, newest[0].run_id) & REFUSALS)
