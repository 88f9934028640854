"""A text column from the table to a verified release, with a real worker that trains a real, tiny language model."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from text_line_cases import declare_base_public, text_deployment

from dpsynth_platform.reviewing import verification
from dpsynth_platform.storage import read_table

pytestmark = pytest.mark.end_to_end


def test_a_release_with_texts(tmp_path: Path) -> None:
    deployment = text_deployment(tmp_path)
    refused = run_here(deployment)
    assert not refused.success
    (message,) = refused.failures.values()
    assert "a model of unknown origin upstream of the base model" in message
    assert not ledger_of(deployment).entries()
    declare_base_public(deployment)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    assert "training: 6 of 6" in ran.said["model"]
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
