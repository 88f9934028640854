"""Metrics and health: what is told, what never is, and that they tell when something is wrong."""

import asyncio
import datetime as dt
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from deploy_cases import deployment, spend, spent
from event_cases import model, own
from ledger_cases import KEYS, people, request

from dpsynth_platform.foundation.errors import BudgetExceeded
from dpsynth_platform.foundation.storage import Place, Storage
from dpsynth_platform.ledger import Ledger, chain, rows
from dpsynth_platform.lineage.outbox import FILE
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.watching import health, metrics, server

NOW = dt.datetime.now(dt.UTC)
SAMPLE = re.compile(r"([a-z_]+)(?:\{([^{}]*)\})? (\S+)")


@pytest.fixture
def settings(tmp_path):
    return spent(deployment(tmp_path / "home"))


def told(settings, now=None):
    """The exposition, read as Prometheus does: values by name and labels."""
    found = {}
    for line in metrics.text_of(metrics.of_deployment(settings, now or dt.datetime.now(dt.UTC))).splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            found[name, labels or ""] = float(value)
    return found


def test_budgets_and_entries(settings):
    ledger = Ledger(settings.ledger_url)
    found = told(settings)
    for family, mode in (("everyone", "family"), ("each", "per-owner")):
        labels = f'family="{family}",mode="{mode}"'
        charged = [entry for entry in ledger.entries(family) if entry.live]
        last = {entry.request.dataset: entry.request for entry in charged}
        for dataset, asked in last.items():
            of_dataset = f'{labels},dataset="{dataset}"'
            assert found["dpsynth_budget_epsilon_left", of_dataset] == ledger.left_for(family, asked)
        assert found["dpsynth_budget_epsilon_cap", labels] == 4.0
    assert found["dpsynth_ledger_entries", 'family="everyone",state="spent"'] == 1
    assert found["dpsynth_ledger_entries", 'family="everyone",state="started"'] == 1
    assert found["dpsynth_ledger_entries", 'family="everyone",state="reserved"'] == 1
    assert found["dpsynth_ledger_entries", 'family="each",state="void"'] == 0
    assert found["dpsynth_ledger_events", ""] == ledger.head().sequence
    assert (
        abs(found["dpsynth_last_run_timestamp_seconds", 'dataset="census"'] - dt.datetime.now(dt.UTC).timestamp())
        < 3600
    )
    assert found["dpsynth_reservations_overdue", 'family="everyone"'] == 0
    assert told(settings, NOW + dt.timedelta(days=3))["dpsynth_reservations_overdue", 'family="everyone"'] == 1


def test_what_is_left_of_a_family_does_not_depend_on_who_took_part(settings, tmp_path):
    """One account charges the same people again and again, the other always somebody else."""
    other = spent(deployment(tmp_path / "other"))
    for number in range(3):
        spend(settings, "each", f"n{number}", people(0))
        spend(other, "each", f"n{number}", people(number))
    labels = next(labels for name, labels in told(settings) if name.endswith("epsilon_left") and '"each"' in labels)
    assert told(settings)["dpsynth_budget_epsilon_left", labels] == told(other)["dpsynth_budget_epsilon_left", labels]


def test_blocked_requests(settings):
    assert told(settings)["dpsynth_requests_blocked", 'family="everyone"'] == 0
    with pytest.raises(BudgetExceeded):
        Ledger(settings.ledger_url).reserve("everyone", "large", request(1.0), None, "compose")
    assert told(settings)["dpsynth_requests_blocked", 'family="everyone"'] == 1


def test_the_oldest_candidate_until_it_is_decided(settings):
    ledger = Ledger(settings.ledger_url)
    assert told(settings)["dpsynth_candidate_oldest_age_seconds", ""] == 0
    entry = spend(settings, "everyone", "candidate")
    ledger.record(chain.CANDIDATE, "ab" * 32, {"entry": entry})
    later = told(settings, NOW + dt.timedelta(days=2))
    assert later["dpsynth_candidates_waiting", ""] == 1
    assert abs(later["dpsynth_candidate_oldest_age_seconds", ""] - 2 * 86400) < 3600
    ledger.refuse("ab" * 32, by="Grace", entry_id=entry, reason="too little of it is left")
    assert told(settings)["dpsynth_candidates_waiting", ""] == 0


def test_undelivered_lineage(settings):
    assert told(settings)["dpsynth_lineage_undelivered_events", f'target="{FILE}"'] == 0
    LineageStore(settings.ledger_url).record(own("COMPLETE", ["raw"], [model("net")], run="r7"), targets=(FILE,))
    assert told(settings)["dpsynth_lineage_undelivered_events", f'target="{FILE}"'] == 1


@pytest.mark.parametrize(("hours", "late"), [(25, 0), (27, 1)])
def test_the_sweep_is_late_two_hours_after_an_output_was_due(settings, hours, late):
    """No record names it, so that it is due after a day."""
    storage, place = Storage(settings.restricted), Place("census")
    storage.record(place, "raw", run_key="r", facts={"contract": {"retention": {}}})
    output = storage.named_output(place, "bounded", "left")
    written = (dt.datetime.now(dt.UTC) - dt.timedelta(hours=hours)).timestamp()  # an hour from the limit, either way
    os.utime(output, (written, written))
    assert told(settings)["dpsynth_sweep_late_outputs", ""] == late


def test_nobody_is_named_and_nothing_of_single_owners_is_told(settings):
    ledger = Ledger(settings.ledger_url)
    ledger.refuse("ab" * 32, by="Grace", entry_id=spend(settings, "each", "k9", people(9)), reason="no")
    text = metrics.text_of(metrics.of_deployment(settings, NOW))
    labels = set(re.findall(r'([a-z_]+)="', text))
    assert labels == {"family", "mode", "state", "dataset", "target"}
    values = set(re.findall(r'="([^"]*)"', text))
    states = {"reserved", "started", "spent", "void"}
    assert values == {"everyone", "each", "family", "per-owner", "census", FILE, *states}
    assert not any(name in text for name in ("Grace", "Ada", "runner", *KEYS))


def test_a_deployment_without_a_ledger_is_well_and_told_of(tmp_path):
    empty = deployment(tmp_path)
    assert told(empty)["dpsynth_ledger_events", ""] == 0
    assert all(check.ok for check in health.checks(empty))
    assert not empty.ledger.exists()  # looking makes none


def test_text_is_escaped():
    metric = metrics.Metric("m", "h", ("name",), {('a"b\\c\nd',): 1.0})
    assert list(metric.lines())[2] == 'm{name="a\\"b\\\\c\\nd"} 1.0'


# Health


def unwell(settings):
    return {check.name: check.words for check in health.checks(settings) if not check.ok}


@pytest.mark.parametrize(("minutes", "names"), [(4, set()), (190, {"chain"})])
def test_a_ledger_whose_time_is_ahead_of_this_clock_is_said(settings, monkeypatch, minutes, names):
    with monkeypatch.context() as patch:
        patch.setattr(rows, "now", lambda: dt.datetime.now(dt.UTC) + dt.timedelta(minutes=minutes))
        Ledger(settings.ledger_url).record("noted", "somewhere", {})
    found = unwell(settings)
    assert found.keys() == names
    assert not found or "3.2 hours ahead of this machine's clock" in found["chain"]


def test_a_sound_deployment_is_well(settings):
    assert unwell(settings) == {}


def test_a_damaged_ledger_is_unwell(settings):
    (settings.ledger / "ledger.db").write_bytes(b"no ledger" * 1000)
    assert unwell(settings).keys() == {"ledger", "chain"}


def test_a_ledger_that_is_away_is_unwell(settings):
    away = replace(settings, ledger_url="postgresql+psycopg://ledger@/none?host=/nowhere")
    assert unwell(away).keys() == {"ledger", "chain"}
    assert "cannot be reached" in unwell(away)["ledger"]


def test_a_ledger_that_was_rolled_back_is_unwell(settings, tmp_path):
    shutil.copytree(settings.ledger, tmp_path / "snapshot")
    entry = spend(settings, "everyone", "later")
    Storage(settings.restricted).record(Place("census"), "model", run_key="r", facts={"entry_id": entry})
    assert unwell(settings) == {}
    shutil.rmtree(settings.ledger)
    shutil.copytree(tmp_path / "snapshot", settings.ledger)
    assert "stop all runs" in unwell(settings)["chain"]


def test_a_ledger_that_is_gone_is_unwell_where_a_run_rests_on_it(settings):
    shutil.rmtree(settings.ledger)
    assert unwell(settings) == {}, "nothing was run here"
    Storage(settings.restricted).record(Place("census"), "model", run_key="r", facts={"entry_id": "ab" * 16})
    assert "and there is no ledger; stop all runs" in unwell(settings)["ledger"]


def test_numbers_of_failed_runs_are_none_of_the_chain(settings):
    """They are Dagster's, and may be greater than the chain is long."""
    (settings.home / "notify").mkdir()
    for name, names in (("webhook.runs", set()), ("webhook", {"chain"})):
        (settings.home / "notify" / f"{name}.json").write_text(json.dumps({"receiver": "webhook", "after": 10_000}))
        assert unwell(settings).keys() == names


def test_places_that_cannot_be_written_to_and_full_disks_are_unwell(settings, tmp_path, monkeypatch):
    assert "is not a directory" in unwell(replace(settings, home=tmp_path / "none"))["storage"]
    assert "cannot be written to" in unwell(replace(settings, home=Path("/proc/self")))["storage"]
    monkeypatch.setattr(health, "LEAST_FREE_BYTES", 10**18)
    assert unwell(settings).keys() == {"disk"}


# Over HTTP


def get(app, *paths):
    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            return [await client.get(path) for path in paths]

    return asyncio.run(ask())


def test_the_server_tells_of_trouble_in_the_ledger(settings):
    well, counted, live = get(server.application(settings), "/health", "/metrics", "/live")
    assert (well.status_code, well.json()["ok"]) == (200, True)
    assert (counted.headers["content-type"], live.text) == (metrics.CONTENT_TYPE, "live")
    assert 'dpsynth_health{check="chain"} 1.0' in counted.text
    assert "dpsynth_budget_epsilon_left" in counted.text
    (settings.ledger / "ledger.db").write_bytes(b"no ledger" * 1000)
    unwell, counted = get(server.application(settings), "/health", "/metrics")
    passed = dict.fromkeys(("storage", "disk", "daemon", "releases", "watch"), True)
    checks = {"ledger": False, "chain": False} | passed
    assert (unwell.status_code, unwell.json()) == (503, {"ok": False, "checks": checks})
    assert (counted.status_code, "dpsynth_budget" in counted.text) == (200, False)
    assert 'dpsynth_health{check="chain"} 0.0' in counted.text


def test_many_who_ask_make_it_look_once(settings, monkeypatch):
    looks = []
    monkeypatch.setattr(health, "checks", lambda given: looks.append(given) or [])
    get(server.application(settings, again=3600), *["/health"] * 5)
    assert looks == [settings]
    get(server.application(settings, again=0), *["/health"] * 2)
    assert len(looks) == 3


def test_the_commands(settings):
    environment = os.environ | {"DPSYNTH_HOME": str(settings.home)}
    command = [sys.executable, "-m", "dpsynth_platform"]
    arguments = [*command, "metrics", "--port", "0", "--json"]
    with subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            url = json.loads("".join(process.stdout.readline() for _ in range(3)))["url"]
            with urllib.request.urlopen(f"{url}/health", timeout=300) as answer:
                assert json.load(answer)["ok"]
        finally:
            process.send_signal(signal.SIGTERM)
    (settings.ledger / "ledger.db").write_bytes(b"no ledger" * 1000)
    asked = subprocess.run([*command, "health"], env=environment, capture_output=True, text=True, timeout=300)
    assert (asked.returncode, "ledger: FAIL: the ledger's file is damaged" in asked.stdout) == (1, True)
