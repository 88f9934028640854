"""Lineage of killed runs: whoever was killed could not emit its own end.

What belongs here: asking Dagster which runs have ended and giving their open lineage runs a FAIL. What does not:
failing runs; Dagster's run monitoring does that.
"""

import dagster as dg

from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from sensors.safe import safe_tick


def close_out_sensor(settings: Settings) -> dg.SensorDefinition:
    """Looks every half minute."""

    @dg.sensor(
        name="lineage_close_out",
        description="Gives lineage runs whose process was killed their terminal event.",
        minimum_interval_seconds=30,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def sensor(context: dg.SensorEvaluationContext) -> dg.SkipReason:
        from dpsynth_platform.operations.running import close_lineage

        return dg.SkipReason(f"{close_lineage(settings, context.instance)} lineage runs closed")

    return sensor
