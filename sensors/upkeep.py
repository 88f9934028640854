"""Upkeep: ending the lineage of killed runs, expired reservations, retention, lineage delivery, bad contracts.

What belongs here: the intervals, and failing where an operator sees it. What does not: what is due and how it is done;
that is the library's.
"""

from collections.abc import Sequence

import dagster as dg
from dagster._core.storage.dagster_run import IN_PROGRESS_RUN_STATUSES

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import ContractError, LineageStuck
from dpsynth_platform.foundation.settings import Settings
from sensors.safe import safe_sensor

_FLUSH_SECONDS = 40.0


def upkeep_sensors(settings: Settings, contracts: Sequence[DataContract]) -> list[dg.SensorDefinition]:
    """The sensors that every deployment has."""

    @safe_sensor(settings, "retention", "Deletes step outputs whose retention has ended, and records it.", seconds=3600)
    def retention() -> dg.SkipReason:
        from dpsynth_platform.lifecycle.purging import purge_due

        return dg.SkipReason(f"{len(purge_due(settings, contracts))} outputs and logs purged")

    @safe_sensor(settings, "reservations", "Records expired reservations as void.", seconds=300)
    def reservations() -> dg.SkipReason:
        from dpsynth_platform.reviewing import accounts

        if not settings.has_ledger:
            return dg.SkipReason("there is no ledger yet")
        void = accounts.ledger(settings).void_expired()
        return dg.SkipReason("; ".join(f"{entry.request.place}: {entry.entry_id} is void" for entry in void) or "none")

    @safe_sensor(
        settings, "lineage_close_out", "Emits the terminal event of lineage runs whose process was killed.", seconds=30
    )
    def close_out(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from dpsynth_platform.operations.running import close_lineage

        return dg.SkipReason(f"{close_lineage(settings, context.instance)} lineage runs closed")

    @safe_sensor(
        settings,
        "lineage_outbox",
        "Delivers lineage events that did not reach a receiver; fails while some are stuck.",
        seconds=60,
    )
    def outbox() -> dg.SkipReason:
        from dpsynth_platform.lineage.emitter import LineageEmitter

        emitter = LineageEmitter.of(settings)
        report = emitter.flush(now=False, seconds=_FLUSH_SECONDS)
        alerts = emitter.status().alerts()
        if alerts:
            raise LineageStuck("\n".join(alerts))
        delivered = sum(report.delivered.values())
        return dg.SkipReason(f"{delivered} deliveries; {len(report.warnings)} failed and will be tried again")

    return [retention, reservations, close_out, outbox]


def files_sensor(settings: Settings) -> dg.SensorDefinition:
    """Notices contract files that changed since the code location was loaded, and has it loaded again.

    It waits for runs in progress. The cursor holds the files for which a reload was requested, so that it is requested
    once.
    """
    from dpsynth_platform.operations.reloading import files_digest

    loaded = files_digest(settings)

    @safe_sensor(
        settings,
        "contract_files",
        "Loads the code location again after contract files were added, changed or removed.",
        seconds=30,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        from dpsynth_platform.operations.reloading import reload_location

        found, requested = files_digest(settings), context.cursor
        origin = context.code_location_origin
        name = origin.location_name if origin else "dpsynth_platform.definitions"
        if found == loaded:
            return dg.SensorResult(skip_reason="the contract files are as they were loaded", cursor=requested)
        by_hand = f"contract files changed since they were loaded; in Dagster: Deployment, {name}, Reload"
        if found == requested:
            return dg.SensorResult(
                skip_reason=f"{by_hand} (requested already; a code server that cannot reload must be restarted)",
                cursor=requested,
            )
        if not settings.dagster_url:
            return dg.SensorResult(skip_reason=f"{by_hand}, or name its address in DPSYNTH_DAGSTER_URL")
        if context.instance.get_runs(dg.RunsFilter(statuses=IN_PROGRESS_RUN_STATUSES), limit=1):
            return dg.SensorResult(skip_reason="contract files changed; they are loaded when no run is in progress")
        if not reload_location(settings.dagster_url, name):
            return dg.SensorResult(skip_reason=f"{by_hand}: DPSYNTH_DAGSTER_URL did not do it")
        return dg.SensorResult(skip_reason="contract files changed; they were loaded again", cursor=found)

    return sensor


def faults_sensor(settings: Settings, faults: Sequence[str]) -> dg.SensorDefinition:
    """Fails at every tick while a contract file is invalid: the UI does not show its dataset."""

    @safe_sensor(
        settings,
        "contract_faults",
        "Some contract files are invalid; their datasets are left out until they are corrected.",
        seconds=300,
    )
    def sensor() -> dg.SkipReason:
        raise ContractError("\n".join(faults))

    return sensor
