"""Notifications: people outside are told what happened to candidates and releases.

What belongs here: the clock, and failing visibly where a receiver has been away for long. What does not: what is told,
to whom and in which order (`dpsynth_platform.notices.notifying`).
"""

import dagster as dg

from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from sensors.safe import safe_tick


def notification_sensor(settings: Settings) -> dg.SensorDefinition:
    """Looks every half minute. The cursors are the receivers' own files, so that a tick that fails forgets nothing."""

    @dg.sensor(
        name="notifications",
        description="Tells the receivers that the deployment names what happened to candidates and releases.",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def sensor() -> dg.SkipReason:
        from dpsynth_platform.notices.notifying import notify

        look = notify(settings)
        look.raise_if_stuck()
        waiting = sum(len(notices) for notices in look.waiting.values())
        return dg.SkipReason(f"{sum(look.sent.values())} notices sent, {waiting} wait")

    return sensor
