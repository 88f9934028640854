"""The whole line with settings among which the mechanism chooses: from the table to a verified release."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from deployment import Deployment
from line_cases import PEOPLE, SMALL, ledger_of, released, run_here, small_table, storage_of

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.lineage.store import LineageStore
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import BestRunEvent, event_from_json
from dpsynth_platform.release.verify import verify_release
from dpsynth_platform.synth.tabular import paid
from dpsynth_platform.synth.tabular.marginals import MarginalGenerator
from dpsynth_platform.synth.tuning import runs

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]

CANDIDATES = [
    {"method": "mst"},
    {"method": "independent"},
    {"method": "arn", "network": {"steps": 6, "replay_steps": 2}},
]


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paid, "ROWS", 1000)


def tuning(tmp_path: Path, **tune: Any) -> Deployment:
    generate = {"rows": 200, "tune": {"candidates": CANDIDATES, **tune}}
    deployment = Deployment(tmp_path, contract={**SMALL, "generate": generate})
    deployment.family["cap"]["epsilon"] = 8.0  # an account's orders suit counts better than a short training
    return deployment.write().with_source(small_table())


def draw_runs(monkeypatch: pytest.MonkeyPatch, *settings: int) -> None:
    """Makes the runs of these settings, as if they had been drawn."""
    monkeypatch.setattr(runs.Runs, "draw", lambda plan, methods, number: runs.Runs(plan, tuple(methods), settings))


def test_a_release_of_the_best_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw_runs(monkeypatch, 2, 0, 1, 2, 2)
    deployment = tuning(tmp_path, runs=4)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    event = event_from_json(entry.request.event)
    assert isinstance(event, BestRunEvent) and len(event.events) == 3 and event.mean == pytest.approx(4)
    assert 0.97 < epsilon(event, 1e-6).epsilon <= 1.0
    model = storage_of(deployment).require(PEOPLE, "model").directory
    kept = json.loads((model / runs.TUNED_FILE).read_text())
    names = {path.name for path in model.iterdir()} - {"network"}
    assert names == {"claim.json", "measurements.jsonl", "model.json", "model.npz", paid.FILE, runs.TUNED_FILE}
    assert (model / "network").exists() == (kept["method"] == "arn")
    assert [said for said in ran.said["model"] if "setting" in said] == ["choosing a setting: 1 of 1"]
    shown = ran.materializations["model"]["setting"]
    assert shown == f"{kept['candidate'] + 1} ({kept['method']})"
    folder = released(deployment)
    assert verify_release(folder).ok
    dossier = json.loads((folder / "dossier.json").read_text())
    assert dossier["mechanism"]["method"] == "tuned"
    setting = {"number": kept["candidate"] + 1, "method": kept["method"], "keys": {}, "in_words": shown}
    assert dossier["mechanism"]["setting"] == setting
    assert f"kept number {shown}" in (folder / "README.md").read_text()
    assert f"it kept setting {shown}" in (folder / "croissant.json").read_text()
    assert f"<dd>{shown}: the mechanism chose it" in (folder / "dossier.html").read_text()
    statement = dossier["statement"]
    assert (statement["tuning"]["runs"], statement["tuning"]["covered"]) == (0, True)
    assert statement["tuning"]["words"].startswith("The mechanism chose its setting itself")
    assert any("the best of a random number of runs: 4 in" in said for said in statement["covered"])
    assert [said for said in statement["not_covered"] if said.startswith("How long the mechanism takes")]
    # The noise of a run that is kept for its score has no known intervals.
    assert (dossier["fidelity"], dossier["quality"].get("paid")) == (None, None)
    events = json.dumps([item.payload for item in LineageStore(deployment.settings.ledger_url).events()])
    assert runs.TUNING + "/" not in events and runs.RUNS not in events


def test_a_release_says_of_the_losers_only_what_is_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys in which the kept setting differs; the release is the same whatever else ran, and how often."""
    steps = [{"method": "arn", "network": {"steps": steps, "replay_steps": 2}} for steps in (6, 7)]
    said = []
    for number, settings in enumerate([(1,), (0, 2, 1, 0)]):
        draw_runs(monkeypatch, *settings)
        monkeypatch.setattr(runs, "best", lambda scores, settings=settings: settings.index(1))
        deployment = tuning(tmp_path / str(number), runs=4, candidates=[*steps, {"method": "independent"}])
        assert run_here(deployment).success
        folder = released(deployment)
        assert verify_release(folder).ok
        dossier = json.loads((folder / "dossier.json").read_text())
        said.append((dossier["mechanism"]["setting"], dossier["statement"]["tuning"], dossier["statement"]["covered"]))
    assert said[0] == said[1]
    words = "2 (arn; network.steps: 7)"
    assert said[0][0] == {"number": 2, "method": "arn", "keys": {"network.steps": 7}, "in_words": words}


def test_an_interrupted_line_continues_with_what_was_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the same entry; what has its score is not made again."""
    deployment = tuning(tmp_path, runs=4)
    made: list[str] = []
    run = MarginalGenerator.run

    def stopped(self: MarginalGenerator, given: Any) -> None:
        made.append(given.directory.name)
        if len(made) == 2:
            raise MechanismFailed("in the second run")
        run(self, given)

    with monkeypatch.context() as patch:
        draw_runs(patch, 0, 1, 0)
        patch.setattr(MarginalGenerator, "run", stopped)
        failure = run_here(deployment).failures["model"]
    assert "which has paid: run again" in failure and "second" not in failure
    monkeypatch.setattr(runs.Runs, "draw", lambda *given: pytest.fail("drawn a second time"))
    monkeypatch.setattr(MarginalGenerator, "run", stopped)
    ran = run_here(deployment)
    assert ran.success, ran.failures
    assert made == ["0", "1", "1", "2"]
    assert [entry.state for entry in ledger_of(deployment).entries()] == ["spent"]
    assert verify_release(released(deployment)).ok


def test_a_release_of_the_run_that_held_out_owners_fit_best(tmp_path: Path) -> None:
    networks = [{"method": method, "network": {"steps": 6, "replay_steps": 2}} for method in ("arn", "tbart")]
    deployment = tuning(tmp_path, candidates=networks, score={"measure": "likelihood", "held_out": 0.25})
    ran = run_here(deployment)
    assert ran.success, ran.failures
    folder = released(deployment)
    assert verify_release(folder).ok
    statement = json.loads((folder / "dossier.json").read_text())["statement"]
    assert sum("how the records compare with the fitted model" in said for said in statement["covered"]) == 1


def test_a_release_of_settings_that_all_run(tmp_path: Path) -> None:
    deployment = tuning(tmp_path, runs="each")
    ran = run_here(deployment)
    assert ran.success, ran.failures
    (entry,) = ledger_of(deployment).entries()
    assert [part["kind"] for part in entry.request.event["events"]] == ["composed"] * 3
    folder = released(deployment)
    assert verify_release(folder).ok
    assert json.loads((folder / "dossier.json").read_text())["statement"]["tuning"]["covered"] is True
