"""Contracts that cannot be used: their datasets are missing from the UI, which nobody would notice.

What belongs here: showing it where operators look. What does not: validating contracts.
"""

from collections.abc import Sequence

import dagster as dg

from dpsynth_platform.foundation.errors import ContractError


def faults_sensor(faults: Sequence[str]) -> dg.SensorDefinition:
    """Fails at every look, with what is wrong, for as long as a contract file is bad."""

    @dg.sensor(
        name="contract_faults",
        description="Some contract files are not acceptable; their datasets are left out until they are mended.",
        minimum_interval_seconds=300,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    def sensor() -> dg.SkipReason:
        raise ContractError("\n".join(faults))

    return sensor
