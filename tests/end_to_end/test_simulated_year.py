"""Months that pass under a real daemon whose processes are killed: they end as if nobody had been killed.

`check` is what must hold of any number of months; `tests/benchmarks/bench_year.py` lives through a whole year.
"""

from __future__ import annotations

import datetime as dt
import json
import secrets
from collections import Counter

import dagster as dg
import independent_costs as costs
import pytest
from dagster._core.storage.dagster_run import FINISHED_STATUSES
from line_cases import ledger_of, storage_of
from year_cases import KILLS, MODELLED, Simulation, months, simulated

from dpsynth_platform.reviewing import releases, verification

pytestmark = [pytest.mark.end_to_end, pytest.mark.slow]
OF_ROWS = ("scrubbed", "canaries", "bounded", "model")
"""Steps whose outputs hold people's rows, or what was learnt from them: a week is their longest retention."""

LOOK = {
    "approvals",
    "interrupted_runs",
    "lineage_close_out",
    "lineage_outbox",
    "notifications",
    "reservations",
    "retention",
    "run_failures",
    "set_back_runs",
}
"""All sensors: the daemon is to look at each, also at the end."""


def rounds_that_fit(simulation: Simulation) -> int:
    """How many of these releases the family's cap has room for, by arithmetic of the tests' own."""
    account = ledger_of(simulation.deployment).account(simulation.deployment.family["family"])
    page = simulation.instance.get_latest_materialization_event(dg.AssetKey(["people", "raw"]))
    plan = page.asset_materialization.metadata["plan in numbers"].value
    return costs.rounds_under_cap(
        costs.squared_distance(plan, MODELLED, records=1),
        epsilon=account.epsilon,
        delta=account.delta,
        orders=dict(zip(account.filter.orders, account.filter.weights, strict=True)),
    )


def check(simulation: Simulation, lived: list[str]) -> None:
    """The state in which so many months end, whoever was killed: only attempts cut short in the mechanism show."""
    settings, ledger = simulation.deployment.settings, ledger_of(simulation.deployment)
    fit, entries = rounds_that_fit(simulation), ledger.entries()
    assert 0 < fit < len(lived), "the budget runs out"
    assert [entry.request.period for entry in entries] == lived[:fit], "one attempt a month, while the budget lasts"
    assert {entry.state for entry in entries} <= {"spent", "started"}
    # A mechanism that was cut short stays lost, and is nobody's to repeat; every other month is released.
    paid = {entry.request.period for entry in entries if entry.state == "spent"}
    for month in lived:
        lost = ("mechanism", "spend-repeated") if month in lived[:fit] else ("budget",)
        assert simulation.became[month] in (("released",) if month in paid else lost), month
    listed = releases.listing(settings)
    assert sorted(item["place"] for item in listed) == [f"people/{month}" for month in sorted(paid)]
    assert all(verification.verify(settings, item["id"]).ok for item in listed)
    blocked = {event.payload["period"] for event in ledger.history(kinds=["blocked"])}
    assert blocked == set(lived[fit:])
    assert ledger.verify().ok

    since = (simulation.now() - dt.timedelta(days=1)).timestamp()  # the clock was moved by days just before
    simulation.move_to(simulation.now() + dt.timedelta(hours=1))  # every sensor is due
    simulation.wait_for(lambda: simulation.have_looked(since) >= LOOK, "a look of every sensor")
    notices = [json.loads(line) for line in simulation.notices.read_text(encoding="utf-8").splitlines()]
    assert {item["period"] for item in notices if item["event"] == "released"} == paid
    assert {item["period"] for item in notices if item["event"] == "blocked"} == blocked

    told: dict[str, Counter[str]] = {}
    for line in settings.lineage_file.read_text(encoding="utf-8").splitlines():
        event = json.loads(line)
        if "run" in event:
            told.setdefault(event["run"]["runId"], Counter())[event["eventType"]] += 1
    assert all(types.pop("START") == 1 and types.total() == 1 for types in told.values()), "one end for each start"
    assert all(run.status in FINISHED_STATUSES for run in simulation.instance.get_runs())
    storage = storage_of(simulation.deployment)
    left = [path for place in storage.places() for step in OF_ROWS for path in storage.outputs(place, step)]
    assert left == [], "all that holds rows has expired"


def test_months_end_the_same_whoever_is_killed(tmp_path):
    """One month fits and another does not. In the first, somebody is killed at a random moment."""
    seed = secrets.randbits(32)
    with simulated(tmp_path, cap=1.2, seed=seed) as simulation:
        simulation.kills = simulation.chance.sample(KILLS, 1)
        simulation.say(f"seed {seed}")
        for month in months(2):
            simulation.lives_through(month)
        check(simulation, months(2))
