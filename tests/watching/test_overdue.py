"""Releases that are overdue: which ones, from when on, and the reason that is told."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent, StepFailureData
from dagster._core.execution.plan.objects import UserFailureData
from watching_cases import NOW, REASON, asked, beat, candidate, deployment, digest_of, ledger_of, released

from dpsynth_platform.foundation.errors import BudgetExceeded
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.ledger import chain
from dpsynth_platform.operations.running import open_instance
from dpsynth_platform.watching import health, metrics
from dpsynth_platform.watching.overdue import overdue

DAY = dt.timedelta(days=1)


def found(settings: Settings, now: dt.datetime = NOW) -> list[tuple[str | None, str]]:
    return [(item.place.period, item.reason) for item in overdue(settings, now)]


@pytest.mark.parametrize(
    ("release", "day", "period"),
    [
        ({}, dt.datetime(2026, 3, 4), "2026-02"),
        ({"overdue_after": "12h"}, dt.datetime(2026, 3, 1, 12), "2026-02"),
        ({"time_zone": "America/New_York"}, dt.datetime(2026, 3, 4, 5), "2026-02"),
        ({"schedule": "0 6 20 * *"}, dt.datetime(2026, 3, 23, 6), "2026-02"),
        ({"schedule": "30 6 2 * *", "time_zone": "Asia/Kolkata"}, dt.datetime(2026, 3, 5, 1), "2026-02"),
        ({"cadence": "weekly", "start": "2026-02-02-week"}, dt.datetime(2026, 3, 5), "2026-02-23-week"),
        ({"cadence": "quarterly", "start": "2026-01-quarter"}, dt.datetime(2026, 4, 4), "2026-01-quarter"),
    ],
)
def test_a_period_is_overdue_once_its_grace_has_ended(
    tmp_path: Path, release: dict[str, Any], day: dt.datetime, period: str
) -> None:
    settings, end = deployment(tmp_path, **release), day.replace(tzinfo=dt.UTC)
    assert period not in dict(found(settings, end))
    (item,) = overdue(settings, end + dt.timedelta(seconds=1))
    assert (item.place.label, item.since) == (f"visits/{period}", end)


def test_nothing_is_expected_of_demonstrations_or_before_the_first_period(tmp_path: Path) -> None:
    assert found(deployment(tmp_path / "demo", demo=True)) == []
    assert found(deployment(tmp_path / "later", start="2026-03")) == []


def test_what_settles_a_period(tmp_path: Path) -> None:
    settings = deployment(tmp_path)
    beat(settings, NOW)
    assert found(settings) == [("2026-02", "not-started")], "earlier ones are a backfill's"
    january = candidate(settings, "2026-01")
    assert found(settings) == [("2026-01", "approvals"), ("2026-02", "not-started")]
    february = candidate(settings, "2026-02")
    released(settings, "2026-02", february)
    assert found(settings) == [("2026-01", "approvals")], "its candidate still waits"
    ledger_of(settings).refuse(digest_of("2026-01"), by="Grace", entry_id=january, reason=REASON)
    assert found(settings) == []
    ledger_of(settings).withdraw("visits-2026-02-0123456789abcdef", by="Cy", reason=REASON)
    assert found(settings) == []
    beat(settings, NOW + 60 * DAY)
    assert found(settings, NOW + 60 * DAY) == [("2026-03", "not-started"), ("2026-04", "not-started")]


def test_the_reason_is_told_as_far_as_it_is_known(tmp_path: Path) -> None:
    settings = deployment(tmp_path)
    assert found(settings) == [("2026-02", "no-daemon")]
    beat(settings, NOW - dt.timedelta(minutes=11))
    (item,) = overdue(settings, NOW)
    assert item.words == (
        "no release, expected from 2026-03-01 00:00:00 UTC on: Dagster's daemon, which starts runs, has given no sign "
        "since 2026-03-10 11:49:00 UTC; start it again"
    )
    beat(settings, NOW)
    with pytest.raises(BudgetExceeded):
        ledger_of(settings).admit("clinic-patients", asked("2026-02", scale=0.05))
    assert found(settings) == [("2026-02", "blocked")]
    with open_instance(settings) as instance:
        run = _run(instance)
    assert found(settings) == [("2026-02", "blocked")]
    with open_instance(settings) as instance:
        _fail(instance, run, "source")
    (item,) = overdue(settings, NOW)
    assert item.why == "its last run failed in step raw (source); the message is in Dagster"
    entry = candidate(settings, "2026-02")
    assert found(settings) == [("2026-02", "approvals")]
    ledger_of(settings).approve(digest_of("2026-02"), by="Grace", entry_id=entry, reason=REASON)
    assert found(settings) == [("2026-02", "approved")]
    (settings.deploy / "dagster.yaml").unlink()
    assert found(settings) == [("2026-02", "unknown")]


def test_a_refusal_that_depends_on_the_data_is_not_told(tmp_path: Path) -> None:
    settings = deployment(tmp_path)
    beat(settings, NOW)
    payload = {"dataset": "visits", "period": "2026-02", "reason": "overlap", "runner": "Ada"}
    ledger = ledger_of(settings)
    ledger._database.write(
        lambda connection: chain.append(connection, NOW.isoformat(), chain.BLOCKED, "clinic-patients", payload)
    )
    with open_instance(settings) as instance:
        _fail(instance, _run(instance), "budget")
    (item,) = overdue(settings, NOW)
    assert item.why == "its last run ended without a candidate; its checks are in Dagster"


def _run(instance: dg.DagsterInstance) -> dg.DagsterRun:
    @dg.op
    def nothing() -> None: ...

    @dg.job(name="visits_candidate")
    def job() -> None:
        nothing()

    return instance.create_run_for_job(job, tags={"dagster/partition": "2026-02"})


def _fail(instance: dg.DagsterInstance, run: dg.DagsterRun, code: str) -> None:
    failure = UserFailureData("user", "rows of Ann Lee", {"code": dg.MetadataValue.text(code)})
    data = StepFailureData(error=None, user_failure_data=failure)
    event = DagsterEvent("STEP_FAILURE", run.job_name, step_key="visits__raw", event_specific_data=data)
    instance.report_dagster_event(event, run.run_id)
    instance.report_run_failed(run)


def test_health_and_metrics_show_it_and_hold_no_value(tmp_path: Path) -> None:
    settings = deployment(tmp_path)
    candidate(settings, "2026-02")
    checks = {check.name: check for check in health.checks(settings, NOW)}
    assert not checks["releases"].ok
    assert checks["releases"].words.startswith("visits/2026-02: no release, expected from 2026-03-01 00:00:00 UTC on: ")
    assert (checks["daemon"].ok, checks["watch"].words) == (False, "no watch runs here")
    text = metrics.text_of(metrics.of_deployment(settings, NOW))
    late = (NOW - dt.datetime(2026, 3, 4, tzinfo=dt.UTC)).total_seconds()
    assert f'dpsynth_release_overdue_seconds{{dataset="visits"}} {late!r}' in text
    beat(settings, NOW)
    early = {check.name: check.ok for check in health.checks(settings, NOW - 7 * DAY)}
    assert early["releases"]
    assert early["daemon"]
    assert "Ann Lee" not in json.dumps([vars(check) for check in checks.values()]) + text
