"""Tables of ids and a text alone, from the table to a verified release: nothing is counted, all is for the text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from text_line_cases import declare_base_public, notes_deployment

from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import SampledGaussianEvent, event_from_json, leaves
from dpsynth_platform.rehearsal import rehearse
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.storage import read_table

pytestmark = pytest.mark.end_to_end
WRITTEN = {"max_tokens": 48, "keep": {"duplicates": "kept"}}  # so small a model knows three sentences


def report(deployment: Any, step: str) -> dict[str, Any]:
    return json.loads((storage_of(deployment).require(PEOPLE, step).directory / "report.json").read_text())


def rows_of(directory: Path) -> pa.Table:
    return pa.Table.from_batches(read_table(directory))


def test_a_release_by_fine_tuning(tmp_path: Path) -> None:
    deployment = notes_deployment(tmp_path, generate={"rows": 60, "text": WRITTEN})
    declare_base_public(deployment)
    told = dict(forecast(deployment.settings, "people", None).rows())
    assert told["what is counted"] == "nothing: no column is modelled"
    assert "is told nothing and writes letter" in told["who writes texts"]
    assert told["for experts"].startswith("10 steps of DP-SGD over records")
    assert rehearse(deployment.settings, "people", None, 300, lambda _: None)["success"]
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    event = event_from_json(entry.request.event)
    assert [type(leaf) for leaf, _ in leaves(event)] == [SampledGaussianEvent]
    assert 1.9 < epsilon(event, 1e-6).epsilon <= 2.0

    model = storage_of(deployment).require(PEOPLE, "model").directory
    assert not (model / "columns").exists()
    audit = report(deployment, "audit")
    assert [attack["name"] for attack in audit["attacks"]] == ["text likelihood", "text overlap"]
    assert audit["cost"]["share"] is None and not audit["cost"]["columns"]
    measured = report(deployment, "quality")
    assert measured["fidelity"]["not_available"] == "no column is modelled" and measured["texts"]

    folder = released(deployment)
    public = json.loads((folder / "dossier.json").read_text())
    assert {column["name"]: column["treatment"] for column in public["synthetic"]["columns"]} == {
        "person": "regenerated",
        "visit": "regenerated",
        "letter": "written",
    }
    assert "Attacks on columns do not apply" in public["audit"]["report"]["summary"]
    said = json.dumps(public["statement"])
    assert "counts of the columns" not in said and "noisy measurements" not in said
    published = rows_of(folder / "data")
    assert 50 <= published.num_rows <= 60 and published["letter"].null_count == 0
    assert not set(published["person"].to_pylist()) & {f"P{number:05d}" for number in range(900)}
    assert verification.verify(deployment.settings, str(folder), None).ok
