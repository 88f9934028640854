"""Texts that a model writes while it reads records, from the table to a verified release."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from inference_cases import ABOUT, reader
from inside import worker_inside
from line_cases import PEOPLE, REGIONS, ledger_of, released, run_here, storage_of
from text_cases import save_model
from text_line_cases import declare_base_public, text_deployment

from dpsynth_platform.definitions import build_definitions
from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.operations.rehearsal import rehearse
from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.forecasts import forecast

pytestmark = pytest.mark.end_to_end
INFERENCE = {"about": ABOUT, "batch_size": 100, "document_tokens": 16, "clipping_norm": 2.0, "top_k": 40}
CHOSEN = {"clusters": 3, "noise": 8.0, "pool": 1.5}
KILLED_AT_THE_VOTE = """
import sys
if "dpsynth_platform.worker" in sys.orig_argv:
    import os, signal
    from dpsynth_platform.synth.text import resampling
    resampling.Resampling.measured = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_release_of_documents_that_were_paid_for_token_by_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is killed once all documents are written: the same attempt goes on with the vote for them."""
    base = save_model(tmp_path / "reader", reader("region", tuple(REGIONS), "letter"))
    generate = {
        "method": "dp_inference",
        "base_model": str(base),
        "rows": 12,
        "training": None,
        "text": {"given": ["region"], "max_tokens": 48, "inference": INFERENCE, "resample": CHOSEN},
    }
    deployment = text_deployment(tmp_path, generate=generate)
    declare_base_public(deployment)
    plan_rows = dict(forecast(deployment.settings, "people", None).rows())
    assert any("at least 18 documents of up to 16 tokens" in str(words) for words in plan_rows.values()), plan_rows
    with worker_inside():
        assert rehearse(deployment.settings, build_definitions, "people", None, 60, lambda _: None)["success"]
    (tmp_path / "sitecustomize.py").write_text(KILLED_AT_THE_VOTE)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        killed = run_here(deployment)
    assert "the worker was killed" in killed.failures["model"]
    assert any("contexts: 6 of 6" in words for words in killed.said["model"])
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "started"
    (written,) = storage_of(deployment).location(PEOPLE, "model").glob("*/texts.jsonl")
    before = written.read_bytes()
    with worker_inside():
        ran = run_here(deployment)
    assert ran.success, ran.failures
    assert any("which has paid" in words for words in ran.said["model"])
    assert not any("contexts" in words for words in ran.said["model"])
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    model = storage_of(deployment).require(PEOPLE, "model").directory
    assert (model / "texts.jsonl").read_bytes() == before
    assert (model / "resampling.json").is_file()
    folder = released(deployment)
    public = json.loads((folder / "dossier.json").read_text())
    assert public["mechanism"]["method"] == "dp_inference"
    statement = public["statement"]
    assert [part["kind"] for part in statement["event"]["events"]][-2:] == ["parallel", "gaussian-votes"]
    assert any("1 histogram of votes of records for clusters of the documents" in said for said in statement["covered"])
    assert any("choices" in access and "of next tokens" in access for access in statement["covered"])
    report = json.loads((storage_of(deployment).require(PEOPLE, "audit").directory / "report.json").read_text())
    assert [attack["name"] for attack in report["attacks"]] == [
        "measurements",
        "likelihood",
        "nearest rows",
        "text overlap",
    ]
    table = storage_of(deployment).require(PEOPLE, "synthetic").directory / "table"
    rows = [row for batch in read_table(table) for row in batch.to_pylist()]
    assert 4 <= len(rows) <= 12
    assert all(row["letter"] and row["region"] in REGIONS for row in rows)
    assert verification.verify(deployment.settings, str(folder), None).ok
    again = run_here(deployment)
    assert again.success, again.failures
    assert len(ledger_of(deployment).entries()) == 1
