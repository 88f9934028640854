"""What Dagster's records say of its daemon and of the last runs, for monitoring.

What belongs here: reading the instance. What does not: what a state means (`watching`). Nothing here needs a daemon, a
code location or a workspace; messages of failures are not read, since only operators may see them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass, field

import dagster as dg
from dagster._core.storage.dagster_run import FINISHED_STATUSES

from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place
from dpsynth_platform.operations.running import open_instance, recorded_failures
from dpsynth_platform.worker.codes import KILLED, code_of, status_of


@dataclass(frozen=True)
class LastRun:
    """A run's state: `under way`, `failed` (with step and code) or `ended`."""

    state: str
    step: str = ""
    code: str = ""


@dataclass(frozen=True)
class Observed:
    """Attributes:
    heartbeat: the last sign of Dagster's daemon; None without any.
    runs: the last run of each job and period that has one.
    """

    heartbeat: dt.datetime | None = None
    runs: dict[tuple[str, str | None], LastRun] = field(default_factory=dict)


def observe(settings: Settings, jobs: Iterable[tuple[str, Place]] = ()) -> Observed:
    """The daemon's last sign, and the last run of each job for a place. Raises what Dagster's storage raises."""
    with open_instance(settings) as instance:
        signs = [sign.timestamp for sign in instance.get_daemon_heartbeats().values()]
        found = {(job, place.period): _last_run(instance, job, place.period) for job, place in jobs}
    return Observed(
        dt.datetime.fromtimestamp(max(signs), dt.UTC) if signs else None,
        {key: run for key, run in found.items() if run is not None},
    )


def _last_run(instance: dg.DagsterInstance, job: str, period: str | None) -> LastRun | None:
    tags = {} if period is None else {"dagster/partition": period}
    runs = instance.get_runs(dg.RunsFilter(job_name=job, tags=tags), limit=1)
    if not runs:
        return None
    if runs[0].status not in FINISHED_STATUSES:
        return LastRun("under way")
    if runs[0].status == dg.DagsterRunStatus.SUCCESS:
        return LastRun("ended")
    for key, _, code in recorded_failures(instance, runs[0].run_id):
        return LastRun("failed", key.rpartition("__")[2], code if code == KILLED else code_of(status_of(code)))
    return LastRun("failed", "run", KILLED)
