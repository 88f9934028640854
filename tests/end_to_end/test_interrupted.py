"""Runs that no person started: closed and asked for again where killed, and later where they were set back."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent, EngineEventData, StepFailureData
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from line_cases import small_deployment

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.processes import is_child_at_work
from dpsynth_platform.operations.running import close_gone
from dpsynth_platform.worker.codes import KILLED
from sensors import retries
from sensors.retries import AGAIN_AT_MOST, AGAIN_TAG, SET_BACK_TAG, WAITS

pytestmark = pytest.mark.end_to_end
HERE = RegisteredCodeLocationOrigin("here")
BY_SCHEDULE = {"dagster/schedule_name": "people_monthly"}


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return build_definitions(small_deployment(tmp_path_factory.mktemp("deployment")).settings).get_repository_def()


@pytest.fixture
def instance(tmp_path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        yield instance


def started(instance, repository, *, location="here", process=None, tags=BY_SCHEDULE, job="people_candidate"):
    """A run as a code server leaves it once its process has begun, or with no word of one."""
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin(location), "__repository__")
    run = instance.add_run(
        dg.DagsterRun(
            job_name=job,
            status=dg.DagsterRunStatus.STARTED,
            tags=tags,
            remote_job_origin=RemoteJobOrigin(origin, job),
        )
    )
    if process is not None:
        instance.report_engine_event(
            f"Started process for run (pid: {process}).", run, EngineEventData.in_process(process)
        )
    return run


def failed(instance, repository, *codes, **like):
    """A run that was closed after its steps had failed so."""
    run = started(instance, repository, **like)
    for number, code in enumerate(codes):
        told = None if code == KILLED else dg.Failure("safe words", metadata={"code": code})
        data = StepFailureData(error=None, user_failure_data=told and told_of(told))
        event = DagsterEvent("STEP_FAILURE", "people_candidate", step_key=f"people__{number}", event_specific_data=data)
        instance.report_dagster_event(event, run.run_id)
    instance.report_run_failed(run)
    return run


def told_of(failure):
    from dagster._core.execution.plan.objects import UserFailureData

    return UserFailureData("user", failure.description, failure.metadata)


def context_of(instance, repository, cursor=None):
    """Of a tick in the code location `here`."""
    context = dg.build_sensor_context(instance=instance, repository_def=repository, cursor=cursor)
    context._code_location_origin = HERE
    return context


def look(instance, repository, cursor="0"):
    """One tick of the sensor of killed runs: what it asks for, and its cursor."""
    context = context_of(instance, repository, cursor)
    tick = repository.get_sensor_def("interrupted_runs").evaluate_tick(context)
    return [(item.run_key, item.job_name, item.tags[AGAIN_TAG]) for item in tick.run_requests or []], tick.cursor


def test_a_run_whose_process_is_gone_is_closed_and_no_other(instance, repository):
    child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
    child.start()
    try:
        going = started(instance, repository, process=child.pid)
        reused = started(instance, repository, process=os.getpid())  # a number that something else has by now
        elsewhere = started(instance, repository, location="there")
        silent = started(instance, repository)
        assert sorted(close_gone(instance, "here")) == sorted([reused.run_id, silent.run_id])
    finally:
        child.kill()
        child.join()
    assert not is_child_at_work(child.pid)
    assert close_gone(instance, "here") == [going.run_id]
    assert instance.get_run_by_id(elsewhere.run_id).status == dg.DagsterRunStatus.STARTED
    assert instance.get_run_by_id(going.run_id).status == dg.DagsterRunStatus.FAILURE


@pytest.mark.parametrize("codes", [(), (KILLED,)], ids=["run", "step"])
def test_what_was_killed_is_asked_for_again_once(instance, repository, codes):
    run = failed(instance, repository, *codes)
    asked, cursor = look(instance, repository)
    assert asked == [(f"again-{run.run_id}", "people_candidate", "1")]
    assert look(instance, repository, cursor) == ([], cursor)


def test_a_look_without_a_cursor_begins_with_the_newest_failure(instance, repository):
    failed(instance, repository)
    asked, cursor = look(instance, repository, None)
    assert asked == []
    assert look(instance, repository, cursor) == ([], cursor)
    later = failed(instance, repository)
    assert look(instance, repository, cursor)[0][0][0] == f"again-{later.run_id}"


@pytest.mark.parametrize(
    ("codes", "tags"),
    [
        (("budget",), BY_SCHEDULE),
        (("source", KILLED), BY_SCHEDULE),
        ((KILLED,), {}),
        ((KILLED,), BY_SCHEDULE | {AGAIN_TAG: str(AGAIN_AT_MOST)}),
        ((KILLED,), BY_SCHEDULE | {AGAIN_TAG: "-9"}),
    ],
    ids=["failed", "failed and killed", "by hand", "too often", "strange"],
)
def test_what_failed_or_was_started_by_hand_or_is_always_killed_is_left_to_a_person(instance, repository, codes, tags):
    failed(instance, repository, *codes, tags=tags)
    assert look(instance, repository)[0] == []


@pytest.fixture
def later(monkeypatch):
    """Moves the clock of the sensor of set back runs."""

    def move(ahead):
        clock = SimpleNamespace(now=lambda zone: dt.datetime.now(zone) + ahead)
        monkeypatch.setattr(retries, "dt", SimpleNamespace(datetime=clock, timedelta=dt.timedelta, UTC=dt.UTC))

    return move


def look_back(instance, repository):
    """One tick of the sensor of set back runs: what it asks for."""
    context = context_of(instance, repository)
    tick = repository.get_sensor_def("set_back_runs").evaluate_tick(context)
    return [(item.run_key, item.job_name, item.tags[SET_BACK_TAG]) for item in tick.run_requests or []]


@pytest.mark.parametrize("codes", [("ledger",), ("source", "source"), ("machine", "ledger"), ("machine", KILLED)])
@pytest.mark.parametrize("times", range(len(WAITS)))
def test_what_was_set_back_is_asked_for_again_later(instance, repository, later, codes, times):
    run = failed(instance, repository, *codes, tags=BY_SCHEDULE | ({SET_BACK_TAG: str(times)} if times else {}))
    later(WAITS[times] - dt.timedelta(minutes=1))
    assert look_back(instance, repository) == []
    later(WAITS[times] + dt.timedelta(minutes=1))
    wanted = [(f"set-back-{run.run_id}", "people_candidate", str(times + 1))]
    assert look_back(instance, repository) == wanted
    assert look_back(instance, repository) == wanted  # with the same key, for which Dagster starts one run
    later(dt.timedelta(hours=13))
    assert look_back(instance, repository) == []


@pytest.mark.parametrize(
    ("codes", "tags"),
    [
        (("budget",), BY_SCHEDULE),
        (("ledger", "unexpected"), BY_SCHEDULE),
        ((KILLED,), BY_SCHEDULE),
        ((), BY_SCHEDULE),
        (("ledger",), {}),
        (("ledger",), BY_SCHEDULE | {SET_BACK_TAG: str(len(WAITS))}),
        (("ledger",), BY_SCHEDULE | {SET_BACK_TAG: "Zaphod"}),
    ],
    ids=["refused", "failed otherwise", "killed", "outside of steps", "by hand", "too often", "strange"],
)
def test_other_failures_are_left_to_a_person(instance, repository, later, codes, tags):
    failed(instance, repository, *codes, tags=tags)
    later(WAITS[-1] + dt.timedelta(minutes=1))
    assert look_back(instance, repository) == []


def test_what_was_run_since_is_left_alone(instance, repository, later):
    failed(instance, repository, "ledger")
    started(instance, repository, tags={})
    later(WAITS[0] + dt.timedelta(minutes=1))
    assert look_back(instance, repository) == []


def test_another_month_is_another_run(instance, repository):
    april, may = ({"dagster/partition": month} for month in ("2026-04", "2026-05"))
    old = failed(instance, repository, "ledger", tags=BY_SCHEDULE | april)
    new = failed(instance, repository, "ledger", tags=BY_SCHEDULE | may)
    assert retries._is_newest(instance, old)
    started(instance, repository, tags=april)
    assert not retries._is_newest(instance, old)
    assert retries._is_newest(instance, new)


def test_runs_of_jobs_that_are_not_here_stop_nobody(instance, repository, later):
    """Of a dataset whose contract cannot be used any more, and of another code location with the same names."""
    for codes in ((), ("ledger",)):
        gone = failed(instance, repository, *codes, job="others_candidate")
        elsewhere = failed(instance, repository, *codes, location="there")
    here = failed(instance, repository, "ledger")
    later(WAITS[0] + dt.timedelta(minutes=1))
    assert [key for key, _, _ in look_back(instance, repository)] == [f"set-back-{here.run_id}"]
    killed = failed(instance, repository)
    assert [key for key, _, _ in look(instance, repository)[0]] == [f"again-{killed.run_id}"]
    assert gone.run_id != elsewhere.run_id


def test_what_is_killed_and_set_back_in_turns_ends(instance, repository, later):
    tags, asked = BY_SCHEDULE, 0
    while asked < 20:
        codes = ("machine",) if asked % 2 else (KILLED,)
        run = failed(instance, repository, *codes, tags=tags)
        context = context_of(instance, repository, "0")
        later(WAITS[-1] + dt.timedelta(minutes=1))
        name = "set_back_runs" if asked % 2 else "interrupted_runs"
        found = repository.get_sensor_def(name).evaluate_tick(context).run_requests or ()
        ours = [item for item in found if item.run_key.endswith(run.run_id)]
        if not ours:
            break
        tags, asked = BY_SCHEDULE | ours[0].tags, asked + 1
    assert asked == AGAIN_AT_MOST + len(WAITS)
