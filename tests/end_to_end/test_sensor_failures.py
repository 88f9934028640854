"""When what a sensor needs is away: its tick fails in safe words, nothing is lost, and what is due happens once."""

from __future__ import annotations

import datetime as dt
import sqlite3
from dataclasses import replace

import dagster as dg
import pytest
from deployment import Deployment
from line_cases import SMALL

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.errors import DpsynthError, LedgerError
from dpsynth_platform.ledger import database, rows
from dpsynth_platform.ledger.records import CostRequest
from dpsynth_platform.ledger.store import RESERVATION_LIFETIME, Ledger
from dpsynth_platform.planning import load_all
from dpsynth_platform.privacy.events import DiscreteGaussianCountsEvent
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.settings import Settings

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
    request = CostRequest.of(
        DiscreteGaussianCountsEvent(20.0, "add-or-remove", 1),
        dataset="people",
        period=None,
        guarantee=Guarantee(1.0, 1e-6, "user", "add-or-remove", 1),
        plan_digest="9" * 64,
        runner="Ada",
    )
    store.reserve(family.family, "key", request, None, "compose")
    return store


def tick(settings: Settings, name: str):
    """One look of a sensor on an instance of its own."""
    repository = build_definitions(settings).get_repository_def()
    resources = {"ledger": repository.get_top_level_resources()["ledger"]} if name == "approvals" else {}
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, repository_def=repository, resources=resources)
        return repository.get_sensor_def(name).evaluate_tick(context)


@pytest.mark.parametrize(
    "name",
    ["approvals", "reservations", "notifications", "lineage_close_out", "lineage_outbox"],
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
