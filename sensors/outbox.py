"""Lineage events on their way: tried again until they arrive, and seen where they do not.

What belongs here: the clock, and failing where an operator looks. What does not: order and retries
(`dpsynth_platform.lineage.outbox`).
"""

import dagster as dg

from dpsynth_platform.foundation.errors import LineageStuck
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from sensors.safe import safe_tick

_SECONDS = 40.0


def outbox_sensor(settings: Settings) -> dg.SensorDefinition:
    """Looks every minute; fails while something is stuck, with what and how to mend it."""

    @dg.sensor(
        name="lineage_outbox",
        description="Delivers lineage events that did not reach a receiver; fails while some are stuck.",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def sensor() -> dg.SkipReason:
        from dpsynth_platform.lineage.emitter import LineageEmitter

        emitter = LineageEmitter.of(settings)
        report = emitter.flush(now=False, seconds=_SECONDS)
        alerts = emitter.status().alerts()
        if alerts:
            raise LineageStuck("\n".join(alerts))
        delivered = sum(report.delivered.values())
        return dg.SkipReason(f"{delivered} deliveries; {len(report.warnings)} failed and will be tried again")

    return sensor
