"""Retention: sensitive intermediates are deleted when their time is up.

What belongs here: the clock. What does not: what is due (`dpsynth_platform.lifecycle.retention`) and how it is
recorded.
"""

from collections.abc import Sequence

import dagster as dg

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from sensors.safe import safe_tick


def retention_sensor(settings: Settings, contracts: Sequence[DataContract]) -> dg.SensorDefinition:
    """Looks every hour."""

    @dg.sensor(
        name="retention",
        description="Deletes step outputs that have outlived their contract's retention, and records it.",
        minimum_interval_seconds=3600,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def sensor() -> dg.SkipReason:
        from dpsynth_platform.lifecycle.purging import purge_due

        return dg.SkipReason(f"{len(purge_due(settings, contracts))} outputs and logs purged")

    return sensor
