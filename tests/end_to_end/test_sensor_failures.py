"""When what a sensor needs is away: its tick fails in safe words, nothing is lost, and what is due happens once."""

from __future__ import annotations

import datetime as dt
import json
import os
import resource
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent, StepFailureData
from dagster._core.execution.plan.objects import UserFailureData
from deployment import FAMILY, Deployment
from line_cases import SMALL

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.errors import BudgetExceeded, DpsynthError, LedgerError
from dpsynth_platform.foundation.settings import Settings
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger import database, rows
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.ledger.store import RESERVATION_LIFETIME, Ledger
from dpsynth_platform.lineage.emitter import LineageEmitter
from dpsynth_platform.lineage.runs import StepRun
from dpsynth_platform.notices import notifying
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.planning import load_all

pytestmark = pytest.mark.end_to_end
SECRET = "pa55word"
NOBODY_THERE = f"postgresql+psycopg://somebody:{SECRET}@127.0.0.1:9/ledger?connect_timeout=2"


@pytest.fixture
def settings(tmp_path) -> Settings:
    deployment = Deployment(tmp_path, contract=SMALL | {"release": SMALL["release"] | {"on_new_version": "1d"}})
    deployment.write().with_source()
    return replace(deployment.settings, notify=("false",))


@pytest.fixture
def reserved(settings) -> Ledger:
    """A ledger with one reservation."""
    store = Ledger(settings.ledger_url)
    ((_, family),), _ = load_all(settings)
    store.open_account(family, ("k1", "k2"))
    store.reserve(family.family, "key", request_of(20.0, 1.0), None, "compose")
    return store


def request_of(sigma: float, epsilon: float) -> CostRequest:
    return CostRequest.of(
        DiscreteGaussianCountsEvent(sigma, "add-or-remove", 1),
        dataset="people",
        period=None,
        guarantee=Guarantee(epsilon, 1e-6, "user", "add-or-remove", 1),
        plan_digest="9" * 64,
        runner="Ada",
    )


def tick(settings: Settings, name: str):
    """One look of a sensor on an instance of its own."""
    repository = build_definitions(settings).get_repository_def()
    resources = {"ledger": repository.get_top_level_resources()["ledger"]} if name == "approvals" else {}
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, repository_def=repository, resources=resources)
        return repository.get_sensor_def(name).evaluate_tick(context)


@pytest.mark.parametrize(
    "name",
    ["approvals", "new_versions", "retention", "reservations", "notifications", "lineage_close_out", "lineage_outbox"],
)
def test_a_database_that_is_away_fails_the_tick_in_safe_words(settings, name):
    away = replace(settings, ledger_url=NOBODY_THERE)
    with pytest.raises(DpsynthError) as told:
        tick(away, name)
    assert "cannot be reached" in str(told.value)
    assert SECRET not in str(told.value)
    assert told.value.__suppress_context__ or told.value.__context__ is None


def test_failed_runs_are_told_and_what_needs_no_ledger_goes_on_while_it_is_away(settings):
    away = replace(settings, ledger_url=NOBODY_THERE)
    assert tick(away, "run_failures").skip_message == "0 notices sent, 0 wait"


def test_a_reservation_past_its_deadline_is_recorded_as_void_once(settings, reserved, monkeypatch):
    assert tick(settings, "reservations").skip_message == "none"
    now = rows.now()
    monkeypatch.setattr(rows, "now", lambda: now + RESERVATION_LIFETIME + dt.timedelta(minutes=1))
    (entry,) = reserved.entries()
    assert tick(settings, "reservations").skip_message == f"people: {entry.entry_id} is void"
    head = reserved.head()
    monkeypatch.setattr(rows, "now", lambda: now + RESERVATION_LIFETIME - dt.timedelta(minutes=59))
    assert tick(settings, "reservations").skip_message == "none", "an hour back, what is void stays void"
    assert reserved.head() == head
    assert [(item.state, item.void_reason) for item in reserved.entries()] == [("void", "deadline passed")]
    assert reserved.verify().ok


def test_a_ledger_that_is_locked_loses_nothing(settings, reserved, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.05)
    database._engine_of.cache_clear()  # one that is there waits as long as ever
    now = rows.now()
    monkeypatch.setattr(rows, "now", lambda: now + dt.timedelta(days=2))
    holder = sqlite3.connect(settings.home / "ledger" / "ledger.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(LedgerError, match="the ledger is locked by another process"):
        tick(settings, "reservations")
    holder.execute("ROLLBACK")
    holder.close()
    assert tick(settings, "reservations").skip_message.endswith("is void")


def test_without_a_ledger_nothing_is_made(settings):
    assert tick(settings, "reservations").skip_message == "there is no ledger yet"
    assert not (settings.home / "ledger").exists()


ALL = (
    "approvals",
    "new_versions",
    "retention",
    "reservations",
    "interrupted_runs",
    "set_back_runs",
    "lineage_close_out",
    "lineage_outbox",
    "notifications",
    "run_failures",
)
SCHEDULED = {"dagster/schedule_name": "people_monthly"}


@contextmanager
def no_room() -> Iterator[None]:
    """The system refuses each write to a file, by this process and by those that it starts."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.fixture
def receivers(tmp_path, monkeypatch) -> SimpleNamespace:
    """Files of what was told to people and sent to a lineage receiver."""
    found = SimpleNamespace(told=tmp_path / "told.jsonl", sent=tmp_path / "sent.jsonl")
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(found.sent), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    found.command = ("sh", "-c", f"cat >> {found.told}")
    return found


def failed_run(instance, repository, *codes):
    """A run of the schedule that ended so; without codes it was killed."""
    job = repository.get_job("people_candidate")
    run = instance.create_run_for_job(job, status=dg.DagsterRunStatus.STARTED, tags=SCHEDULED)
    for code in codes:
        failure = UserFailureData("user", "safe words", {"code": dg.MetadataValue.text(code)})
        data = StepFailureData(error=None, user_failure_data=failure)
        event = DagsterEvent("STEP_FAILURE", run.job_name, step_key="people__raw", event_specific_data=data)
        instance.report_dagster_event(event, run.run_id)
    instance.report_run_failed(run)
    return run


class Clock:
    """The module `datetime`, with a clock that a test sets, and how far the ledger's is ahead."""

    UTC, timedelta, ahead, ledger_ahead = dt.UTC, dt.timedelta, dt.timedelta(), dt.timedelta()

    class datetime(dt.datetime):
        @classmethod
        def now(cls, zone):
            return dt.datetime.now(zone) + Clock.ahead


@pytest.fixture
def clock(monkeypatch) -> type[Clock]:
    """Moves every clock that a sensor looks at."""
    monkeypatch.setattr(rows, "now", lambda: dt.datetime.now(dt.UTC) + Clock.ledger_ahead)
    monkeypatch.setattr(notifying, "_now", lambda: Clock.datetime.now(dt.UTC))
    for module in ("sensors.new_versions", "sensors.retries", "dpsynth_platform.lifecycle.purging"):
        monkeypatch.setattr(f"{module}.dt", Clock)
    for name in ("ahead", "ledger_ahead"):
        monkeypatch.setattr(Clock, name, dt.timedelta())
    return Clock


def look_at_all(settings, instance, cursors, names=ALL):
    """One look of each sensor: what it asks for or says, or the safe error that its tick fails with."""
    repository = build_definitions(settings).get_repository_def()
    found = {}
    for name in names:
        resources = {"ledger": repository.get_top_level_resources()["ledger"]} if name == "approvals" else {}
        context = dg.build_sensor_context(
            instance=instance, repository_def=repository, resources=resources, cursor=cursors.get(name)
        )
        try:
            tick = repository.get_sensor_def(name).evaluate_tick(context)
        except DpsynthError as error:
            found[name] = str(error)
        else:
            cursors[name] = tick.cursor
            found[name] = [item.run_key for item in tick.run_requests or ()] or tick.skip_message
    return found


def fill(settings, ledger, instance):
    """Something to do for every sensor but that of approvals; returns the runs that were killed and set back."""
    storage, place = Storage(settings.restricted), Place("people")
    with storage.new_output(place, "scrubbed") as output:
        (output / "rows").write_text(SECRET)
    storage.record(place, "scrubbed", run_key="key", directory=output)
    for path in (output, output / "rows"):
        os.utime(path, (1e9, 1e9))
    with pytest.raises(BudgetExceeded):
        ledger.reserve(FAMILY["family"], "another", request_of(0.1, 500.0), None, "compose")
    repository = build_definitions(settings).get_repository_def()
    killed, set_back = failed_run(instance, repository), failed_run(instance, repository, "ledger")
    LineageEmitter.of(settings).start(StepRun(killed.run_id, "people", "raw"))
    return killed, set_back


def test_after_trouble_each_sensor_does_what_is_due_once(settings, reserved, receivers, clock):
    """First no file can be written, then the database is away, then all is well; and then clocks go back an hour."""
    settings = replace(settings, notify=receivers.command)
    with dg.DagsterInstance.ephemeral() as instance:
        cursors: dict[str, str | None] = {"interrupted_runs": "0"}
        look_at_all(settings, instance, cursors, ["notifications", "run_failures"])  # told is what comes from now on
        killed, set_back = fill(settings, reserved, instance)
        (entry,), before = reserved.entries(), reserved.head()
        clock.ahead, clock.ledger_ahead = dt.timedelta(minutes=11), RESERVATION_LIFETIME + dt.timedelta(minutes=1)
        with no_room():
            full = look_at_all(settings, instance, cursors)
        assert reserved.head() == before
        away = look_at_all(replace(settings, ledger_url=NOBODY_THERE), instance, cursors)
        well = look_at_all(settings, instance, cursors)
        state = [reserved.head(), receivers.told.read_text(), receivers.sent.read_text()]
        clock.ahead, clock.ledger_ahead = (moved - dt.timedelta(hours=1) for moved in (clock.ahead, clock.ledger_ahead))
        back = look_at_all(settings, instance, cursors)
        assert [reserved.head(), receivers.told.read_text(), receivers.sent.read_text()] == state

    again, later = [f"again-{killed.run_id}"], [f"set-back-{set_back.run_id}"]
    # Dagster's own database is there throughout, so what is asked for is: once by the cursor, or under the same key.
    assert full.pop("interrupted_runs") == again
    assert [look.pop("set_back_runs") for look in (full, away, well)] == [later] * 3
    assert "command.runs.json cannot be written (file too large)" in full.pop("run_failures")
    assert all("the ledger's disk could not be written or read" in said for said in full.values())
    assert away.pop("run_failures") == "2 notices sent, 0 wait"
    assert away.pop("interrupted_runs") == "0 runs closed"
    assert all("the ledger's database cannot be reached" in said for said in away.values())
    assert SECRET not in str(away)
    assert well.pop("new_versions")[0].startswith("people:")
    assert well.pop("reservations") == f"people: {entry.entry_id} is void"
    assert well.pop("retention") == "1 outputs and logs purged"
    assert well.pop("lineage_close_out") == "1 lineage runs closed"
    assert well.pop("notifications") == "1 notices sent, 0 wait"
    assert [event.kind for event in reserved.history(after=before.sequence)] == ["purged", "void"]
    assert back["set_back_runs"] == "2 recent failures, none is due"
    assert not [name for name, said in back.items() if isinstance(said, list)], "nothing is asked for twice"
    assert len(state[1].splitlines()) == 3
    sent = [json.loads(line) for line in state[2].splitlines()]
    assert [(item["job"]["name"], item["eventType"]) for item in sent] == [
        ("people.raw", "START"),
        ("people.purge", "START"),
        ("people.purge", "COMPLETE"),
        ("people.raw", "FAIL"),
    ]
