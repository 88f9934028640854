"""A run whose audit could only be inconclusive is refused before it spends, unless its contract accepts that."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deployment import Deployment
from line_cases import ledger_of, run_here, small_deployment

pytestmark = pytest.mark.end_to_end
WAY_OUT = "audit.accept_inconclusive why that is acceptable"


def without_power(deployment: Deployment) -> Deployment:
    """Its contract no longer says why too little power is acceptable."""
    deployment.contract["audit"].pop("accept_inconclusive", None)
    return deployment.write()


def test_a_run_without_power_is_refused_before_it_spends(tmp_path: Path) -> None:
    deployment = without_power(small_deployment(tmp_path))
    plan = deployment.here("plan", "people", "--rehearse", "--json")
    assert plan.returncode == 3, plan.stderr
    forecast = json.loads(plan.stdout)
    assert (forecast["fits"], forecast["rehearsal"]["success"]) == (False, True)
    assert "its audit could not conclude" in forecast["refusal"]
    done = deployment.here("run", "people")
    assert done.returncode == 1
    assert "raw failed: people: audit: 60 canaries can show at most epsilon" in done.stderr
    assert WAY_OUT in done.stderr
    assert ledger_of(deployment).entries() == []

    deployment.contract["audit"]["accept_inconclusive"] = "too few people for any power"
    deployment.write()
    ran = run_here(deployment, steps=["raw", "scrubbed", "clearance"])
    assert ran.success, ran.failures
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]

    ran = run_here(without_power(deployment), steps=["raw"])
    assert WAY_OUT in ran.failures["raw"], "a reservation is no spend"


def test_what_is_paid_for_goes_on(candidate: Deployment) -> None:
    ran = run_here(without_power(candidate))
    assert ran.success, ran.failures
    assert [entry.state for entry in ledger_of(candidate).entries()] == ["spent"]
