"""The base model's files between plan and model: what is wrong with them is said before anything is spent."""

from __future__ import annotations

from pathlib import Path

import pytest
from inside import inside
from line_cases import PEOPLE, ledger_of, run_here, storage_of
from text_cases import save_model, tiny_llama
from text_line_cases import declare_base_public, text_deployment

from dpsynth_platform.reviewing.forecasts import forecast

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("no_gate")]


def test_a_plan_tells_that_a_run_would_not_be_cleared(tmp_path: Path) -> None:
    """As `clearance` would; before there is a ledger, too, and looking makes none."""
    deployment = text_deployment(tmp_path)
    deployment.family["cap"] = {"epsilon": 8.0, "delta": 1e-5}
    deployment.write()
    for known in (False, True):
        told = forecast(deployment.settings, "people", None)
        assert not told.fits
        assert told.refusal is not None
        assert str(tmp_path / "base") in told.refusal
        assert deployment.settings.ledger.exists() == known
        if not known:
            ledger_of(deployment)
    declare_base_public(deployment)
    told = forecast(deployment.settings, "people", None)
    assert (told.fits, told.refusal) == (True, None)


def test_a_base_model_that_is_gone_or_another_costs_nothing(tmp_path: Path) -> None:
    deployment = text_deployment(tmp_path)
    deployment.family["cap"] = {"epsilon": 8.0, "delta": 1e-5}
    deployment.write()
    declare_base_public(deployment)
    assert run_here(deployment, steps=["raw", "scrubbed", "canaries", "clearance", "bounded"]).success
    planned = storage_of(deployment).require(PEOPLE, "raw")
    base, aside = tmp_path / "base", tmp_path / "aside"

    base.rename(aside)
    for step in ("model", "raw"):
        refused = run_here(deployment, steps=[step], accelerator=inside(deployment)).failures[step]
        assert str(base) in refused
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]

    save_model(base, tiny_llama(seed=5))
    refused = run_here(deployment, steps=["model"], accelerator=inside(deployment)).failures["model"]
    assert "is not the one that the plan was made for; accepted: its earlier files, or a new run" in refused
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["reserved"]
    # A run from raw is another one: its plan names the files that are there now.
    assert run_here(deployment, steps=["raw"]).success
    assert storage_of(deployment).require(PEOPLE, "raw").run_key != planned.run_key

    # The files as they were: the run that was planned for them, at no further cost.
    base.rename(tmp_path / "another")
    aside.rename(base)
    ran = run_here(deployment, steps=["raw", "clearance", "bounded", "model"], accelerator=inside(deployment))
    assert ran.success, ran.failures
    assert storage_of(deployment).require(PEOPLE, "raw").run_key == planned.run_key
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["spent"]
