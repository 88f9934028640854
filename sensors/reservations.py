"""Reservations past their deadline: recorded as void.

What belongs here: the clock. What does not: what has expired, which the ledger says (and counts for nothing from then
on, recorded or not).
"""

import dagster as dg

from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from sensors.safe import safe_tick


def reservation_sensor(settings: Settings) -> dg.SensorDefinition:
    """Looks every five minutes."""

    @dg.sensor(
        name="reservations",
        description="Records that reservations are void that were not used before their deadline.",
        minimum_interval_seconds=300,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def sensor() -> dg.SkipReason:
        from dpsynth_platform.reviewing import accounts

        if not settings.has_ledger:
            return dg.SkipReason("there is no ledger yet")
        void = accounts.ledger(settings).void_expired()
        return dg.SkipReason("; ".join(f"{entry.request.place}: {entry.entry_id} is void" for entry in void) or "none")

    return sensor
