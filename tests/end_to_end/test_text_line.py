"""A text column from the table to a verified release, with a real worker that trains a real, tiny language model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from text_line_cases import declare_base_public, text_deployment

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
    print(ran.said, ran.materializations)
    folder = released(deployment)
    public = json.loads((folder / "dossier.json").read_text())
    assert public["mechanism"]["method"] == "dp_finetune"
    assert storage_of(deployment).require(PEOPLE, "released")
