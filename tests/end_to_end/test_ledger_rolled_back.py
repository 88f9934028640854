"""A ledger that is older than what it led to, as after a snapshot of the disk: no run spends on it."""

import shutil

import pytest
from line_cases import ledger_of, run_here, small_deployment

pytestmark = pytest.mark.end_to_end

BEFORE_CLEARANCE = ("raw", "scrubbed", "canaries")


def test_a_run_on_a_ledger_that_was_rolled_back_reserves_nothing(tmp_path):
    deployment = small_deployment(tmp_path)
    ledger = deployment.settings.ledger
    assert run_here(deployment, steps=BEFORE_CLEARANCE).success
    shutil.copytree(ledger, tmp_path / "snapshot")
    assert run_here(deployment, steps=("clearance",)).success
    assert len(ledger_of(deployment).entries()) == 1
    assert run_here(deployment, steps=("clearance",)).success  # with the ledger as it is, all is well
    shutil.rmtree(ledger)
    shutil.copytree(tmp_path / "snapshot", ledger)
    ran = run_here(deployment, steps=("clearance",))
    assert "the ledger is older than what it led to" in ran.failures["clearance"]
    assert ledger_of(deployment).entries() == []
