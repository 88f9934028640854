"""The whole line with the generators that `auto` stands for: from the table to a verified release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deployment import Deployment
from line_cases import PEOPLE, SMALL, ledger_of, released, run_here, small_table, storage_of

from dpsynth_platform.contracts.methods import NETWORK_METHODS
from dpsynth_platform.reviewing import verification
from dpsynth_platform.synth.tabular.measurements import FILE_NAME

pytestmark = [pytest.mark.end_to_end, pytest.mark.usefixtures("worker_here")]


def test_a_release_made_by_aim(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path, contract={**SMALL, "generate": {**SMALL["generate"], "method": "auto"}})
    deployment.write().with_source(small_table())
    assert run_here(deployment).success
    (entry,) = ledger_of(deployment).entries()
    assert entry.request.event["events"][0]["kind"] == "gaussian-counts"
    (measured,) = storage_of(deployment).require(PEOPLE, "model").directory.rglob(FILE_NAME)
    kinds = [json.loads(line)["kind"] for line in measured.read_text().splitlines()]
    assert kinds[0] == "header"
    assert kinds[-1] == "complete"
    assert kinds.count("chosen") >= 1
    folder = released(deployment)
    public = (folder / "dossier.json").read_text()
    assert "rounded to whole records" in public
    assert "set of tables of counts" in public
    mechanism = json.loads(public)["mechanism"]
    assert mechanism["method"] == "aim"
    assert mechanism["why"].startswith("it keeps most where counts of two columns are above the noise")
    assert f"aim: {mechanism['why'].partition(':')[0]}" in (folder / "dossier.html").read_text()


def test_a_release_of_one_column(tmp_path: Path) -> None:
    columns = {name: SMALL["columns"][name] for name in ("person", "visit", "region")}
    contract = {**SMALL, "columns": columns, "generate": {"rows": 200}}
    del contract["quality"]
    deployment = Deployment(tmp_path, contract=contract)
    deployment.write().with_source(small_table().select(list(columns)))
    assert run_here(deployment).success
    mechanism = json.loads((released(deployment) / "dossier.json").read_text())["mechanism"]
    assert (mechanism["method"], mechanism["why"]) == ("independent", "there is one column")


@pytest.mark.parametrize("method", NETWORK_METHODS)
def test_a_release_made_by_a_network(tmp_path: Path, method: str) -> None:
    generate = {"method": method, "rows": 200, "network": {"steps": 6, "replay_steps": 2}}
    deployment = Deployment(tmp_path, contract={**SMALL, "generate": generate})
    deployment.write().with_source(small_table())
    deployment.family["cap"]["epsilon"] = 8.0  # an account's orders suit counts better than a short training
    deployment.write()
    assert run_here(deployment).success
    (entry,) = ledger_of(deployment).entries()
    kinds = [part["kind"] for part in entry.request.event["events"]]
    assert kinds == ["composed", "repeated"]
    model = storage_of(deployment).require(PEOPLE, "model").directory
    assert {"measurements.jsonl", "model.json", "network"} <= {path.name for path in model.iterdir()}
    assert sorted(path.name for path in (model / "network").iterdir()) == ["trained.json", "weights.safetensors"]
    folder = released(deployment)
    assert verification.verify(deployment.settings, str(folder), None).ok
    mechanism = json.loads((folder / "dossier.json").read_text())["mechanism"]
    assert mechanism["method"] == method
    assert "the trained weights" in (folder / "dossier.json").read_text()
