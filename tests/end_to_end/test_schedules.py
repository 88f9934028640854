"""Schedules on a real instance: missed ticks, a tick that comes twice, daylight saving, a backfill."""

from __future__ import annotations

import datetime as dt
import itertools
import logging
from collections import Counter
from collections.abc import Iterator
from zoneinfo import ZoneInfo

import dagster as dg
import pytest
import yaml
from dagster._core.events import DagsterEvent, StepFailureData
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.execution.plan.objects import UserFailureData
from dagster._core.test_utils import create_test_daemon_workspace_context, freeze_time
from dagster._core.workspace.load_target import ModuleTarget
from dagster._daemon.backfill import execute_backfill_iteration
from dagster._scheduler.scheduler import launch_scheduled_runs
from dagster._utils.schedules import schedule_execution_time_iterator
from deployment import Deployment

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.settings import PACKAGE_ROOT
from dpsynth_platform.foundation.storage import Place, Storage

pytestmark = pytest.mark.end_to_end
NEW_YORK = ZoneInfo("America/New_York")


@pytest.fixture
def visits(tmp_path) -> Deployment:
    """The clinic's deployment, as if it were no demonstration, in New York."""
    documents = [
        yaml.safe_load((PACKAGE_ROOT / "deploy" / path).read_text())
        for path in ("contracts/visits.yaml", "families/clinic-patients.yaml")
    ]
    documents[0]["demo"] = False
    documents[0]["release"]["time_zone"] = "America/New_York"
    return Deployment(tmp_path, *documents).write()


def evaluated(
    deployment: Deployment, at: dt.datetime, name: str, instance: dg.DagsterInstance | None
) -> dg.ScheduleExecutionData:
    repository = build_definitions(deployment.settings).get_repository_def()
    context = dg.build_schedule_context(scheduled_execution_time=at, repository_def=repository, instance=instance)
    return repository.get_schedule_def(name).evaluate_tick(context)


def tick(
    deployment: Deployment, at: dt.datetime, name: str = "visits_monthly", instance: dg.DagsterInstance | None = None
) -> dg.RunRequest:
    (request,) = evaluated(deployment, at, name, instance).run_requests or ()
    return request


def test_each_month_ends_once_at_midnight_there_also_where_clocks_are_changed(visits):
    schedule = build_definitions(visits.settings).get_repository_def().get_schedule_def("visits_monthly")
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
    start = dt.datetime(2026, 2, 1, tzinfo=NEW_YORK)
    times = schedule_execution_time_iterator(
        start.timestamp(), schedule.cron_schedule, schedule.execution_timezone, ascending=True
    )
    ticks = list(itertools.islice(times, 12))
    assert [(at.astimezone(NEW_YORK).day, at.astimezone(NEW_YORK).hour) for at in ticks] == [(1, 0)] * 12
    assert Counter(at.astimezone(dt.UTC).hour for at in ticks) == {5: 4, 4: 8}
    # Where none was ever run, what ended before is a backfill's.
    requests = [tick(visits, at) for at in (ticks[0], ticks[2], ticks[-1])]
    assert [(item.partition_key, item.run_key) for item in requests] == [
        (month, month) for month in ("2026-01", "2026-03", "2026-12")
    ]


@pytest.mark.parametrize(
    ("release", "name", "ticks", "periods"),
    [
        (
            {"cadence": "weekly", "start": "2026-02-02-week"},
            "visits_weekly",
            ["2026-02-09T00:00", "2026-02-16T00:00", "2026-02-23T00:00", "2026-03-02T00:00", "2026-03-09T00:00"],
            ["2026-02-02-week", "2026-02-09-week", "2026-02-16-week", "2026-02-23-week", "2026-03-02-week"],
        ),
        (
            {"cadence": "quarterly", "start": "2026-01-quarter"},
            "visits_quarterly",
            ["2026-04-01T00:00", "2026-07-01T00:00", "2026-10-01T00:00", "2027-01-01T00:00"],
            ["2026-01-quarter", "2026-04-quarter", "2026-07-quarter", "2026-10-quarter"],
        ),
        (
            {"schedule": "30 6 3,17 * *"},
            "visits_monthly",
            ["2026-02-03T06:30", "2026-02-17T06:30", "2026-03-03T06:30", "2026-03-17T06:30"],
            ["2026-01", "2026-01", "2026-02", "2026-02"],
        ),
    ],
)
def test_other_cadences_and_other_times(visits, release, name, ticks, periods):
    visits.contract["release"] |= release
    visits.write()
    schedule = build_definitions(visits.settings).get_repository_def().get_schedule_def(name)
    start = dt.datetime(2026, 2, 2, 1, tzinfo=NEW_YORK)
    times = schedule_execution_time_iterator(
        start.timestamp(), schedule.cron_schedule, schedule.execution_timezone, ascending=True
    )
    found = list(itertools.islice(times, len(ticks)))
    assert [at.astimezone(NEW_YORK).strftime("%Y-%m-%dT%H:%M") for at in found] == ticks
    with dg.instance_for_test() as instance:
        assert [tick(visits, at, name, instance).partition_key for at in found] == periods


def test_a_time_that_comes_twice_in_a_month_asks_once(visits):
    """Unless the run failed for want of its source."""
    visits.contract["release"]["schedule"] = "0 6 3,17 * *"
    visits.write()
    with dg.instance_for_test() as instance:
        run = instance.create_run_for_job(
            build_definitions(visits.settings).resolve_job_def("visits_candidate"),
            tags={"dagster/partition": "2026-01"},
        )
        at = dt.datetime(2026, 2, 17, 6, tzinfo=NEW_YORK)
        for code, asks in ((None, 0), ("source", 1), ("budget", 0)):
            if code:
                report_failed(instance, run, code)
            requests = evaluated(visits, at, "visits_monthly", instance).run_requests or ()
            assert [item.partition_key for item in requests] == ["2026-01"] * asks, code


def test_a_demonstration_waits_for_somebody(visits):
    visits.contract["demo"] = True
    visits.write()
    schedule = build_definitions(visits.settings).get_repository_def().get_schedule_def("visits_monthly")
    assert schedule.default_status == dg.DefaultScheduleStatus.STOPPED


@pytest.fixture
def daemon(visits, monkeypatch) -> Iterator[tuple[dg.DagsterInstance, object]]:
    """A real instance and the scheduler's view of the code location, which a server of its own has loaded."""
    for name, value in visits.environment.items():
        if name.startswith("DPSYNTH_"):
            monkeypatch.setenv(name, value)
    place = visits.root / "dagster"
    place.mkdir()
    target = ModuleTarget("dpsynth_platform.definitions", attribute="defs", working_directory=None, location_name="d")
    with (
        dg.DagsterInstance.local_temp(str(place)) as instance,
        create_test_daemon_workspace_context(target, instance) as workspace,
    ):
        yield instance, workspace


def look(workspace: object, at: dt.datetime) -> None:
    """One look of the scheduler at a time, as after a restart: it remembers what the instance does."""
    with freeze_time(at):
        for error in launch_scheduled_runs(workspace, logging.getLogger("tests"), at, {}):
            assert error is None, error


def asked(instance: dg.DagsterInstance) -> list[str]:
    """The periods that runs were asked for, each as often as it was."""
    return sorted(run.tags["dagster/partition"] for run in instance.get_runs())


def report_failed(instance: dg.DagsterInstance, run: dg.DagsterRun, code: str) -> None:
    """A run as it is left by a step that failed with a code."""
    failure = UserFailureData("user", "safe words", {"code": dg.MetadataValue.text(code)})
    data = StepFailureData(error=None, user_failure_data=failure)
    event = DagsterEvent("STEP_FAILURE", run.job_name, step_key="visits__raw", event_specific_data=data)
    instance.report_dagster_event(event, run.run_id)
    instance.report_run_failed(run)


@pytest.mark.slow
def test_months_that_were_missed_are_asked_for_once_each(visits, daemon):
    """The daemon sees February, is away until June, looks twice, and once more with its clock an hour back."""
    instance, workspace = daemon
    Storage(visits.settings.restricted).record(Place("visits", "2026-01"), "raw", run_key="key", runner="runner")
    look(workspace, dt.datetime(2026, 2, 10, tzinfo=dt.UTC))
    assert asked(instance) == [], "what ended before the schedule was there is a backfill's"
    look(workspace, dt.datetime(2026, 3, 1, 4, 59, tzinfo=dt.UTC))
    assert asked(instance) == [], "in New York, February lasts"
    for at in (
        dt.datetime(2026, 6, 15, 12, tzinfo=dt.UTC),
        dt.datetime(2026, 6, 15, 12, 1, tzinfo=dt.UTC),
        dt.datetime(2026, 6, 15, 11, 1, tzinfo=dt.UTC),
    ):
        look(workspace, at)
        assert asked(instance) == ["2026-02", "2026-03", "2026-04", "2026-05"]

    # What the budget had no room for in April is left to whoever makes room; May, whose source was away, is not.
    for month, code in (("2026-04", "budget"), ("2026-05", "source")):
        (run,) = instance.get_runs(dg.RunsFilter(tags={"dagster/partition": month}))
        report_failed(instance, run, code)
    look(workspace, dt.datetime(2026, 7, 15, tzinfo=dt.UTC))
    assert asked(instance) == ["2026-02", "2026-02", "2026-03", "2026-03", "2026-04", "2026-05", "2026-05", "2026-06"]

    # Dagster's own backfill: a run for each of the chosen months, which `raw` judges (`test_periods`).
    location = workspace.create_request_context().get_code_location("d")
    months = location.get_repository("__repository__").get_partition_set("visits_candidate_partition_set")
    instance.add_backfill(
        PartitionBackfill(
            backfill_id="months",
            partition_set_origin=months.get_remote_origin(),
            status=BulkActionStatus.REQUESTED,
            partition_names=["2026-01", "2026-02"],
            from_failure=False,
            reexecution_steps=None,
            tags={},
            backfill_timestamp=dt.datetime(2026, 6, 15, tzinfo=dt.UTC).timestamp(),
        )
    )
    assert not [error for error in execute_backfill_iteration(workspace, logging.getLogger("tests")) if error]
    assert Counter(asked(instance))["2026-01"] == 1
    assert Counter(asked(instance))["2026-02"] == 3
