"""New versions of sources become runs, where a contract asks for it (`release.on_new_version`).

What belongs here: the clock, looking only where something changed, and one request a version. What does not: which
version is due (`dpsynth_platform.reviewing.new_versions`). Datasets with a cadence have a schedule, and are not
looked at.
"""

import datetime as dt
import json
from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.restricted_log import logs_of
from dpsynth_platform.foundation.settings import Settings
from sensors.safe import safe_tick


def new_version_sensor(
    settings: Settings, contracts: Sequence[DataContract], candidate_jobs: Sequence[UnresolvedAssetJobDefinition]
) -> dg.SensorDefinition:
    """Looks every minute. Its cursor says how each source looked when nothing was left to do about it.

    The cursor saves work and decides nothing: a run is asked for by dataset and version, which Dagster runs once.

    Args:
        settings: the deployment.
        contracts: those that ask for runs of new versions.
        candidate_jobs: the job of each, in the same order.
    """

    @dg.sensor(
        name="new_versions",
        description="Runs a new version of a source up to a release candidate, where the contract asks for it.",
        jobs=list(candidate_jobs),
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.RUNNING,
    )
    @safe_tick(logs_of(settings.restricted))
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        from dpsynth_platform.reviewing.new_versions import glance, look

        settled = json.loads(context.cursor or "{}")
        kept, requests, waiting, problems = {}, [], [], []
        for contract, job in zip(contracts, candidate_jobs, strict=True):
            name, seen = contract.dataset, glance(contract)
            if seen is None or seen != settled.get(name):
                try:
                    found = look(settings, contract, dt.datetime.now(dt.UTC))
                except SourceError as error:
                    problems.append(str(error))
                    continue
                if found.name is not None:
                    requests.append(dg.RunRequest(run_key=f"{name}:{found.name}", job_name=job.name))
                elif found.why:
                    waiting.append(f"{name}: a new version waits: {found.why}")
                    continue
            if seen is not None:
                kept[name] = seen
        if problems and not requests:  # a look that fails asks for nothing: what is due goes first
            raise SourceError("\n".join(problems))
        words = None if requests else "\n".join(waiting) or "no new version"
        return dg.SensorResult(run_requests=requests, skip_reason=words, cursor=json.dumps(kept))

    return sensor
