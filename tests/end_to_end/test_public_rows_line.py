"""A line that a public table helps: sealed, a base in lineage, said in the dossier; a changed one costs nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deployment import Deployment
from line_cases import SMALL, ledger_of, released, run_here, small_table

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
