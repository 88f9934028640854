"""Rows that a language model writes, first taught by a public table of other columns, up to a verified release."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deployment import Deployment
from inside import worker_inside
from line_cases import PEOPLE, SMALL, ledger_of, released, run_here, storage_of
from line_cases import small_table as people
from text_cases import save_model, tiny_llama
from text_line_cases import declare_base_public

from dpsynth_platform.reviewing import verification
from dpsynth_platform.reviewing.forecasts import forecast
from dpsynth_platform.synth.neural import language_generator, states_network
from dpsynth_platform.synth.tabular import paid
from dpsynth_platform.synth.tuning import runs

pytestmark = pytest.mark.end_to_end
WHY = "made up for tests, and published by ourselves"
KILLED_IN_THE_FIRST_STAGE = """
import sys
if "dpsynth_platform.worker" in sys.orig_argv:
    import os, signal
    from dpsynth_platform.synth.text import trained
    trained.base_model = None  # a worker has no deployment to look for models in
    from dpsynth_platform.synth.neural import language_generator, row_training
    language_generator._try = lambda *given: None
    row_training.losses = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_release_of_rows_that_a_language_model_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed within the first stage, before a record is read for training, the same entry goes on."""
    monkeypatch.setattr(language_generator, "_try", lambda *given: None)  # other tests have the gate
    base, public = save_model(tmp_path / "writer", tiny_llama(positions=256)), tmp_path / "flowers.parquet"
    pq.write_table(pa.table({"petals": [3, 5, 8] * 20, "colour": ["red", "blue", "white"] * 20}), public)
    language = {"steps": 6, "replay_steps": 2, "adapter": "none", "first": {"steps": 5, "batch_size": 8}}
    generate = {
        "method": "dp_2stage",
        "rows": 100,
        "base_model": str(base),
        "public": {"uri": str(public), "why": WHY},
        "language": language,
    }
    deployment = Deployment(tmp_path, contract={**SMALL, "generate": generate})
    deployment.family["cap"]["epsilon"] = 8.0  # an account's orders suit counts better than a short training
    deployment.write().with_source(people())
    refused = run_here(deployment)
    assert str(base) in " ".join(refused.failures.values()) and not ledger_of(deployment).entries()
    declare_base_public(deployment)
    plan_rows = dict(forecast(deployment.settings, "people", None).rows())
    assert any("from 60 rows of a public table, in 5 steps" in str(words) for words in plan_rows.values()), plan_rows
    (tmp_path / "sitecustomize.py").write_text(KILLED_IN_THE_FIRST_STAGE)
    with monkeypatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        killed = run_here(deployment)
    assert "the worker was killed" in killed.failures["model"]
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "started"
    with worker_inside():
        ran = run_here(deployment)
    assert ran.success, ran.failures
    assert any("which has paid" in words for words in ran.said["model"])
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    assert [part["kind"] for part in entry.request.event["events"]] == ["composed", "repeated"]
    model = storage_of(deployment).require(PEOPLE, "model").directory
    assert sorted(path.name for path in (model / "network").iterdir()) == ["trained.json", "weights.safetensors"]
    folder = released(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    text = (folder / "dossier.json").read_text()
    dossier = json.loads(text)
    assert dossier["mechanism"]["method"] == "dp_2stage" and str(public) not in text
    said = " ".join(dossier["statement"]["not_covered"])
    assert WHY in said and "flowers.parquet" in said and "the trained weights" in text
    assert [name for name in dossier["clearance"]["base_model"] if "writer" in name]
    report = json.loads((storage_of(deployment).require(PEOPLE, "audit").directory / "report.json").read_text())
    assert "likelihood" in [attack["name"] for attack in report["attacks"]]


@pytest.mark.parametrize("measure", ["pairs", "likelihood"])
def test_a_model_among_candidates_is_asked_for_as_one_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, measure: str
) -> None:
    """The lineage of base model and public table, whichever setting is kept; no release without the base's."""
    monkeypatch.setattr(language_generator, "_try", lambda *given: None)
    monkeypatch.setattr(paid, "ROWS", 50)
    monkeypatch.setattr(states_network, "refuse_unsound_grid", lambda *given: None)
    monkeypatch.setattr(runs, "best", lambda scores: 1)
    base, public = save_model(tmp_path / "writer", tiny_llama(positions=256)), tmp_path / "flowers.parquet"
    pq.write_table(pa.table({"petals": [3, 5, 8] * 20, "colour": ["red", "blue", "white"] * 20}), public)
    language = {"steps": 6, "replay_steps": 2, "adapter": "none"}
    tune = {
        "candidates": [
            {"method": "arn", "network": {"steps": 6, "replay_steps": 2}},
            {"method": "dp_2stage", "language": language | {"first": {"steps": 5, "batch_size": 8}}},
            {"method": "great", "language": language},
        ],
        "score": {"measure": measure},
    }
    generate = {"rows": 60, "base_model": str(base), "public": {"uri": str(public), "why": WHY}, "tune": tune}
    deployment = Deployment(tmp_path, contract={**SMALL, "generate": generate})
    deployment.family["cap"]["epsilon"] = 8.0
    deployment.write().with_source(people())
    refused = run_here(deployment)
    assert str(base) in " ".join(refused.failures.values()) and not ledger_of(deployment).entries()
    declare_base_public(deployment)
    with worker_inside():
        ran = run_here(deployment)
    assert ran.success, ran.failures
    folder = released(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    text = (folder / "dossier.json").read_text()
    dossier = json.loads(text)
    assert dossier["mechanism"]["setting"]["in_words"] == "2 (dp_2stage)"
    assert str(public) not in text
    said = " ".join(dossier["statement"]["not_covered"])
    assert WHY in said and "flowers.parquet" in said
    assert [name for name in dossier["clearance"]["base_model"] if "writer" in name]
    assert {found["kind"] for found in dossier["clearance"]["bases"]} >= {"checkpoint", "table"}
