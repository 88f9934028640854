"""Pictures by a public diffusion model, a part of which is trained, from the source to a verified release."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deployment import Deployment
from inside import inside
from line_cases import PEOPLE, ledger_of, released, run_here, storage_of
from picture_cases import KINDS, drawings, picture_deployment
from public_models import WHY, saved_model, trained_unet

from dpsynth_platform.foundation.storage import read_table
from dpsynth_platform.lineage.naming import DatasetName
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.quality.images import classifier, report
from dpsynth_platform.reviewing import verification
from dpsynth_platform.synth.images import diffusion_training

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests are about the line, and others about what is learned and what the gate finds."""
    monkeypatch.setattr(classifier, "STEPS", 4)
    monkeypatch.setattr(report, "SEEDS", 1)
    monkeypatch.setattr(diffusion_training, "refuse_unsound_grid", lambda *given: None)


@pytest.fixture(scope="module")
def public_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It has learned from strokes of all kinds, which people of no dataset drew."""
    random = np.random.default_rng(3)
    strokes = drawings(random.integers(0, len(KINDS), 500), random)
    return saved_model(tmp_path_factory.mktemp("public") / "model", trained_unet(strokes, steps=100))


def deployment_from(root: Path, public_model: Path) -> Deployment:
    model = shutil.copytree(public_model, root / "strokes-model")
    training = {"steps": 4, "batch_size": 64, "draws": 2, "rank": 2}
    finetune = {"checkpoint": str(model), "public": WHY} | training
    deployment = picture_deployment(root, method="image_finetune", image={"finetune": finetune})
    deployment.family["cap"] |= {"epsilon": 8.0}  # an account's orders suit counts better than a short training
    return deployment.write()


def declare_public(deployment: Deployment, model: Path) -> None:
    LineageStore(deployment.settings.ledger_url).declare_public(DatasetName("file", str(model)), by="Bo", reason=WHY)


def test_a_line_from_a_public_model(tmp_path: Path, public_model: Path) -> None:
    """Nobody's word that its origin is public: no clearance. With it, a release that says so and verifies."""
    deployment, model = deployment_from(tmp_path, public_model), tmp_path / "strokes-model"
    refused = run_here(deployment)
    assert not refused.success and str(model) in " ".join(refused.failures.values())
    assert not ledger_of(deployment).entries()
    declare_public(deployment, model)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["spent"]
    path = released(deployment)
    assert not verification.verify(deployment.settings, str(path), None).problems
    rows = pa.Table.from_batches(read_table(path / "data"))
    assert rows.num_rows == 120 and rows["drawing"].null_count == 0 and set(rows["kind"].to_pylist()) <= set(KINDS)
    dossier = json.loads((path / "dossier.json").read_text())
    said = " ".join(dossier["statement"]["not_covered"])
    assert "the diffusion model strokes-model was trained on before: declared public" in said and WHY in said
    assert [name for name in dossier["clearance"]["base_model"] if "strokes-model" in name]
    assert b"lora_" not in b"".join(file.read_bytes() for file in path.rglob("*") if file.is_file())


def test_a_checkpoint_that_is_gone_or_another_costs_nothing(tmp_path: Path, public_model: Path) -> None:
    deployment, model = deployment_from(tmp_path, public_model), tmp_path / "strokes-model"
    declare_public(deployment, model)
    before = ["raw", "scrubbed", "canaries", "clearance", "bounded"]
    assert run_here(deployment, steps=before).success
    planned = storage_of(deployment).require(PEOPLE, "raw").run_key
    aside = model.rename(tmp_path / "aside")
    for step in ("model", "raw"):
        refused = run_here(deployment, steps=[step], accelerator=inside(deployment)).failures[step]
        assert f"{str(model)!r}: there is no model_index.json" in refused
    saved_model(model, size=(12, 12))
    refused = run_here(deployment, steps=["model"], accelerator=inside(deployment)).failures["model"]
    assert "is not the one that the plan was made for; accepted: its earlier files, or a new run" in refused
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]
    shutil.rmtree(model)
    aside.rename(model)
    ran = run_here(deployment, steps=["raw", "clearance", "bounded", "model"], accelerator=inside(deployment))
    assert ran.success, ran.failures
    assert storage_of(deployment).require(PEOPLE, "raw").run_key == planned
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["spent"]
