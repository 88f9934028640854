"""A reservation of an earlier content of the source counts, and plan and run say so: also of linked tables."""

from __future__ import annotations

import copy
from pathlib import Path

import deltalake
import pytest
from clinic import clinic, written
from deployment import Deployment
from line_cases import SMALL, ledger_of, run_here, small_table
from linked_line_cases import clinic_deployment

from dpsynth_platform.reviewing.forecasts import forecast

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]
TO_CLEARANCE = ["raw", "scrubbed", "canaries", "clearance"]


@pytest.mark.parametrize("linked", [True, False])
def test_an_earlier_reservation_counts_and_is_said(tmp_path: Path, linked: bool) -> None:
    if linked:
        deployment = clinic_deployment(tmp_path)
    else:
        deployment = Deployment(tmp_path, contract=copy.deepcopy(SMALL))
        deployment.write().with_source(small_table())
    ran = run_here(deployment, steps=TO_CLEARANCE)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert not forecast(deployment.settings, "people", None).reserved, "its own reservation is used"
    assert not [line for line in run_here(deployment, steps=["raw"]).said["raw"] if "counts until" in line]
    if linked:
        written(deployment.settings.home / "sources" / "people", clinic(500))
    else:
        place = str(deployment.settings.home / "sources" / "people")
        deltalake.write_deltalake(place, small_table(seed=8), mode="overwrite")
    (words,) = forecast(deployment.settings, "people", None).reserved
    assert entry.entry_id in words and "another content of the source" in words
    assert f"to withdraw it: dpsynth ledger void {entry.entry_id}" in words
    assert words in str(forecast(deployment.settings, "people", None))
    assert words in run_here(deployment, steps=["raw"]).said["raw"]
    ledger_of(deployment).void(entry.entry_id, by="tests")
    assert not forecast(deployment.settings, "people", None).reserved
