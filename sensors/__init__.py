"""Sensors: what happens without anybody watching.

What belongs here: turning a recorded approval into the `released` run and a new version of a source into a candidate's,
deleting what has expired, recording reservations that have, closing killed runs and their lineage, asking again for
runs that were killed or set back and that nobody started by hand, delivering lineage events that did not arrive, and
telling people outside. What does not: deciding any of it (approvals are the ledger's, retention and pace the
contracts').
"""

from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.settings import Settings
from sensors.approvals import approval_sensor
from sensors.close_out import close_out_sensor
from sensors.failures import failure_sensor
from sensors.faults import faults_sensor
from sensors.interrupted import interrupted_sensor
from sensors.new_versions import new_version_sensor
from sensors.notifications import notification_sensor
from sensors.outbox import outbox_sensor
from sensors.reservations import reservation_sensor
from sensors.retention import retention_sensor
from sensors.transient_failures import set_back_sensor


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
        retention_sensor(settings, contracts),
        reservation_sensor(settings),
        interrupted_sensor(settings, [*candidate_jobs, *release_jobs]),
        set_back_sensor(settings, [*candidate_jobs, *release_jobs]),
        close_out_sensor(settings),
        *([notification_sensor(settings), failure_sensor(settings)] if settings.has_receivers else []),
        outbox_sensor(settings),
        *([faults_sensor(faults)] if faults else []),
    ]
