"""Bought measures from the contract to the public dossier, and what an interruption leaves of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deployment import Deployment
from line_cases import PEOPLE, SMALL, ledger_of, released, run_here, small_table, storage_of

from dpsynth_platform.console.roles import Action
from dpsynth_platform.console.views import candidates
from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.reviewing import decisions
from dpsynth_platform.synth.tabular import marginals, paid

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]


def paying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Deployment:
    monkeypatch.setattr(paid, "ROWS", 2000)
    quality = {"target": "outcome", "paid": {"measures": ["pairs", "accuracy"], "share": 0.1}}
    deployment = Deployment(tmp_path, contract={**SMALL, "quality": quality})
    return deployment.write().with_source(small_table())


def test_the_dossier_shows_what_was_bought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = paying(tmp_path, monkeypatch)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert entry.state == "spent"
    seen = decisions.review(deployment.settings, PEOPLE).paid
    view = candidates.candidate(deployment.settings, [Action.READ], "people")
    place = released(deployment)
    dossier = json.loads((place / "dossier.json").read_text())
    bought = dossier["quality"]["paid"]
    assert (bought["share"], bought["rows"], bought["unit"]) == (0.1, 2000, "records")
    assert [item["name"] for item in bought["measures"]] == ["accuracy", "pairs"]
    for item in bought["measures"]:
        # Noise may bring a share to its limit: of some 210 wrong ones, deviation 53, none in one of 25,000 runs.
        assert 0 <= item["low"] <= item["value"] <= item["high"] <= 1 and item["low"] < item["high"]
        assert item["in_words"] in (place / "dossier.html").read_text()
    assert seen == view.paid == (*(item["in_words"] for item in bought["measures"]), bought["note"])
    assert [said for said in dossier["statement"]["covered"] if said.startswith("Measures of quality (1 of them)")]
    model = storage_of(deployment).require(PEOPLE, "model").directory
    kept = json.loads((model / paid.FILE).read_text())["measures"]
    assert [item["noisy"] for item in bought["measures"]] == [item["noisy"] for item in kept]
    assert verify_release(place).ok
    # Rows that are drawn again come with the same figures: nothing is measured a second time.
    again = json.loads((storage_of(deployment).require(PEOPLE, "synthetic").directory / "paid.json").read_text())
    assert again["measures"] == kept


def test_an_interrupted_measure_is_not_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = paying(tmp_path, monkeypatch)

    def stopped(*given: object) -> None:
        raise MechanismFailed("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(marginals, "measure", stopped)
        assert "which has paid" in run_here(deployment).failures["model"]
    monkeypatch.setattr(marginals, "measure", lambda *given: pytest.fail("it was measured"))
    ran = run_here(deployment)
    assert ran.success, ran.failures
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["spent"]
    place = released(deployment)
    bought = json.loads((place / "dossier.json").read_text())["quality"]["paid"]
    assert bought["rows"] == 2000 and "interrupted" in bought["not_available"] and "measures" not in bought
    assert "interrupted" in (place / "dossier.html").read_text()
    assert verify_release(place).ok
