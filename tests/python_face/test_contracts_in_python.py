"""`dpsynth.Contract`: a file is checked with its family's budget, and its plan reads no data."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from python_examples import run_examples

import dpsynth

CONTRACT = {
    "dataset": "people",
    "description": "Fictional residents.",
    "owners": ["you@example.org"],
    "source": {"uri": "${DPSYNTH_HOME}/sources/people", "format": "delta", "key": ["person_id"]},
    "family": "residents",
    "privacy": {
        "unit": "user",
        "owner_columns": ["person_id"],
        "namespace": "person",
        "max_contributions": 3,
        "guarantee": {"epsilon": 1.0, "delta": "auto"},
        "expected_units": 50000,
    },
    "columns": {
        "person_id": {"type": "identifier"},
        "age": {"type": "integer", "min": 18, "max": 90},
        "income": {"type": "categorical", "values": ["low", "high"]},
    },
    "generate": {"method": "auto"},
    "release": {"uri": "${DPSYNTH_HOME}/public/people", "approvals": 1},
}
FAMILY = {
    "family": "residents",
    "unit": "user",
    "namespace": "person",
    "mode": "family",
    "cap": {"epsilon": 3.0, "delta": 1.0e-5},
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DPSYNTH_HOME", str(tmp_path / "home"))
    path = tmp_path / "deploy/contracts/people.yaml"
    for written, document in ((path, CONTRACT), (tmp_path / "deploy/families/residents.yaml", FAMILY)):
        written.parent.mkdir(parents=True)
        written.write_text(yaml.safe_dump(document))
    return path


def test_a_contract_has_a_plan_before_there_is_a_deployment(file: Path, tmp_path: Path) -> None:
    contract = dpsynth.Contract.load(file)
    assert contract.declared.modelled == ["age", "income"] and "2 modelled columns" in contract._repr_html_()
    plan = contract.plan()
    assert plan.fits and plan.target == dpsynth.Contract.load(str(file)).plan().target
    assert (plan.target.epsilon, plan.cap["epsilon"], plan.standing) == (1.0, 3.0, None)
    assert "a run now: would be admitted" in str(plan) and "<th>a run now</th>" in plan._repr_html_()
    assert not (tmp_path / "home").exists()
    with pytest.raises(dpsynth.ConfigurationError, match="people has no cadence"):
        contract.plan("2026-01")


def test_the_example(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_examples(["Contract"])


def test_every_fault_of_a_contract_is_named(file: Path) -> None:
    file.write_text(yaml.safe_dump(CONTRACT | {"family": "nobodies", "colour": "red"}))
    with pytest.raises(dpsynth.ContractError) as refusal:
        dpsynth.Contract.load(file)
    assert "colour" in str(refusal.value) and "'nobodies' has no file" in str(refusal.value)
    with pytest.raises(dpsynth.ContractError, match=r"nowhere\.yaml: no such file"):
        dpsynth.Contract.load(file.with_name("nowhere.yaml"))
