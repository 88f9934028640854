"""A text column from the table to a verified release, with a real worker that trains a real, tiny language model."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from text_line_cases import declare_base_public, text_deployment

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.operations.rehearsal import rehearse
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.forecasts import forecast

pytestmark = pytest.mark.end_to_end


def test_a_release_with_texts(tmp_path: Path) -> None:
    deployment = text_deployment(tmp_path)
    refused = run_here(deployment)
    assert not refused.success
    (message,) = refused.failures.values()
    assert "a model of unknown origin upstream of a base" in message
    assert not ledger_of(deployment).entries()
    declare_base_public(deployment)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    counted = "examples were made; cut off: "
    (log,) = [
        path for path in (tmp_path / "home").rglob("*") if path.is_file() and counted.encode() in path.read_bytes()
    ]
    assert log.parent == deployment.settings.restricted / "logs" and log.name.startswith("worker-")
    assert not any(counted in words for sentences in ran.said.values() for words in sentences)
    assert any("training: 6 of 6; epsilon so far: at most 1." in words for words in ran.said["model"])
    folder = released(deployment)
    public = json.loads((folder / "dossier.json").read_text())
    assert public["mechanism"]["method"] == "dp_finetune"
    assert public["contract"]["generate"]["base_model"] == "base"
    assert "transformers" in public["software"]
    (letter,) = (column for column in public["synthetic"]["columns"] if column["name"] == "letter")
    assert letter["treatment"] == "written"
    assert "histogram" not in letter
    rows = pa.Table.from_batches(read_table(storage_of(deployment).require(PEOPLE, "synthetic").directory / "table"))
    assert rows.column("letter").null_count == 0
    assert verification.verify(deployment.settings, str(folder), None).ok


@pytest.mark.usefixtures("worker_here", "no_gate")
def test_a_plan_for_texts_says_who_writes_them_and_is_tried_in_few_steps(tmp_path: Path) -> None:
    """Also before anybody has declared the base model public."""
    deployment = text_deployment(tmp_path, training={"steps": 400, "batch_size": 300})
    rows = dict(forecast(deployment.settings, "people", None).rows())
    units = deployment.contract["privacy"]["expected_units"]
    assert f"of the {units:,} expected and show all of it would have" in rows["in other words"]
    writer = rows["who writes texts"]
    assert "is given region and writes letter" in writer
    assert "an adapter of rank 2 in 400 steps" in writer
    assert "about 300 of some 600 records" in writer
    said: list[str] = []
    assert rehearse(deployment.settings, build_definitions, "people", None, 300, said.append)["success"]
    assert not ledger_of(deployment).history()
