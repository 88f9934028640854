"""Sensors and schedules: what happens without a person.

What belongs here: when to look, and which runs to request. What does not: decisions (approvals are the ledger's,
retention and cadence the contracts').
"""

from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.settings import Settings
from sensors.approvals import approval_sensor
from sensors.new_versions import new_version_sensor
from sensors.notices import failure_sensor, notification_sensor
from sensors.retries import interrupted_sensor, transient_failure_sensor
from sensors.upkeep import faults_sensor, files_sensor, upkeep_sensors


def build_sensors(
    settings: Settings,
    contracts: Sequence[DataContract],
    candidate_jobs: Sequence[UnresolvedAssetJobDefinition],
    release_jobs: Sequence[UnresolvedAssetJobDefinition],
    faults: Sequence[str],
) -> list[dg.SensorDefinition]:
    """The deployment's sensors, on by default. The jobs are those of the contracts, in their order."""
    paced = [pair for pair in zip(contracts, candidate_jobs, strict=True) if pair[0].release.on_new_version]
    return [
        approval_sensor(settings, contracts, release_jobs),
        *([new_version_sensor(settings, *zip(*paced, strict=True))] if paced else []),
        interrupted_sensor(settings, [*candidate_jobs, *release_jobs]),
        transient_failure_sensor(settings, [*candidate_jobs, *release_jobs]),
        *upkeep_sensors(settings, contracts),
        files_sensor(settings),
        *([notification_sensor(settings), failure_sensor(settings)] if settings.has_receivers else []),
        *([faults_sensor(settings, faults)] if faults else []),
    ]
