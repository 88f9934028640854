"""New versions of sources start runs, where a contract asks for it (`release.on_new_version`).

What belongs here: the interval, skipping unchanged sources, and one request for each version. What does not: which
version is due (`dpsynth_platform.reviewing.new_versions`). Datasets with a cadence have a schedule instead.
"""

import datetime as dt
import json
from collections.abc import Sequence

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.settings import Settings
from sensors.safe import safe_sensor


def new_version_sensor(
    settings: Settings, contracts: Sequence[DataContract], candidate_jobs: Sequence[UnresolvedAssetJobDefinition]
) -> dg.SensorDefinition:
    """Requests runs of new versions. The jobs belong to the contracts, in their order.

    The cursor holds the state of each source for which nothing is due. It only saves work: the run key names dataset
    and version, so Dagster runs each once.
    """

    @safe_sensor(
        settings,
        "new_versions",
        "Runs a new version of a source up to a release candidate, where the contract asks for it.",
        seconds=60,
        jobs=candidate_jobs,
    )
    def sensor(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        from dpsynth_platform.reviewing.new_versions import due_version, version_stamp

        settled = json.loads(context.cursor or "{}")
        kept, requests, waiting, problems = {}, [], [], []
        for contract, job in zip(contracts, candidate_jobs, strict=True):
            name, seen = contract.dataset, version_stamp(contract)
            if seen is None or seen != settled.get(name):
                try:
                    found = due_version(settings, contract, dt.datetime.now(dt.UTC))
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
        if problems and not requests:  # a failed tick requests nothing, so requests have priority
            raise SourceError("\n".join(problems))
        words = None if requests else "\n".join(waiting) or "no new version"
        return dg.SensorResult(run_requests=requests, skip_reason=words, cursor=json.dumps(kept))

    return sensor
