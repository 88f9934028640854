"""A line that a public table helps: sealed, a base in lineage, said in the dossier; a changed one costs nothing."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deployment import Deployment
from line_cases import SMALL, add_dataset, ledger_of, released, run_here, small_table

from dpsynth_platform.foundation.errors import ClearanceRefused
from dpsynth_platform.reviewing.forecasts import check_public_table, clearance_forecast, forecast
from dpsynth_platform.synth.planning import load_dataset
from dpsynth_platform.synth.tabular.public_rows import SealedRows

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]
WHY = "made up for tests, and published by ourselves"


def test_a_line_with_a_public_table(tmp_path: Path) -> None:
    place = tmp_path / "earlier.parquet"
    rows = small_table(300, seed=8, first_person=9000)
    pq.write_table(rows, place)
    generate = {**SMALL["generate"], "method": "jam", "public": {"uri": str(place), "why": WHY}}
    deployment = Deployment(tmp_path, contract={**SMALL, "generate": generate})
    deployment.write().with_source(small_table())
    assert run_here(deployment, steps=["raw", "scrubbed", "canaries", "clearance", "bounded"]).success
    pq.write_table(rows.slice(1), place)
    refused = run_here(deployment, steps=["model"]).failures["model"]
    assert "its rows are not those of the plan" in refused
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]
    pq.write_table(rows, place)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["spent"]
    text = (released(deployment) / "dossier.json").read_text()
    dossier = json.loads(text)
    assert dossier["mechanism"]["method"] == "jam"
    assert [said for said in dossier["statement"]["not_covered"] if WHY in said and "earlier.parquet" in said]
    assert str(tmp_path) not in text


def test_a_guarded_table_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Number and digest of its rows would be in the plan, unpaid."""
    deployment = Deployment(tmp_path, contract=copy.deepcopy(SMALL))
    deployment.write().with_source(small_table())
    add_dataset(deployment, "others", small_table(400, seed=9, first_person=9000))
    assert run_here(deployment, "others_candidate", steps=["raw"]).success
    public = {"uri": str(deployment.settings.home / "sources/others"), "why": WHY}
    deployment.contract["generate"] |= {"method": "jam", "public": public}
    deployment.write()
    monkeypatch.setattr(SealedRows, "of", lambda *given: pytest.fail("it was read"))
    assert "not cleared" in run_here(deployment, steps=["raw"]).failures["raw"]
    settings = deployment.settings
    with pytest.raises(ClearanceRefused, match="not cleared"):
        forecast(settings, "people", None)
    with pytest.raises(ClearanceRefused, match="not cleared"):
        check_public_table(settings, *load_dataset(settings, "people"))
    cleared, entry = clearance_forecast(settings, "people", None, None)
    assert cleared.decision == "refuse" and entry is None
