"""Settings among which the mechanism chooses: what a contract may declare, what it seals, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.loading import parse_contract
from dpsynth_platform.contracts.network_training import NETWORK_DEFAULTS, TableNetwork
from dpsynth_platform.contracts.tuning import TUNED_METHODS
from dpsynth_platform.contracts.workload import Workload
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.yaml_files import read_yaml
from dpsynth_platform.reviewing.contract_words import contract_words
from dpsynth_platform.synth.planning import changes

DEPLOY = Path(__file__).parents[2] / "deploy"
TWO = [{"method": "aim"}, {"method": "mst"}]


def contract(tune: dict[str, Any] | None, quality: dict[str, Any] | None = None, **generate: Any) -> DataContract:
    document: dict[str, Any] = dict(read_yaml(DEPLOY / "contracts" / "census.yaml"))
    document["generate"] = {"rows": 100, **generate, **({} if tune is None else {"tune": tune})}
    document["quality"] = document["quality"] | (quality or {})
    return parse_contract(document, where="census.yaml", variables={"DPSYNTH_HOME": "/home"})


def test_a_sealed_contract_has_all_settings() -> None:
    """So that other defaults of later versions do not change what was paid for."""
    candidates = [{}, {"network": {"steps": 7}}, {"method": "tbart", "network": {"width": 8}}, {"method": "aim"}]
    found = contract({"candidates": candidates}, method="arn", network={"width": 5})
    sealed = found.snapshot()["generate"]["tune"]["candidates"]
    arn = TableNetwork(width=5)
    assert sealed[0] == {"method": "arn", "network": arn.model_dump()}
    assert sealed[1] == {"method": "arn", "network": arn.model_dump() | {"steps": 7}}
    tbart = TableNetwork(**NETWORK_DEFAULTS["tbart"] | {"width": 8})
    assert sealed[2] == {"method": "tbart", "network": tbart.model_dump()}
    assert sealed[3] == {"method": "aim", "workload": Workload().model_dump()}
    again = DataContract.model_validate(found.snapshot())
    assert again.snapshot() == found.snapshot()


def test_a_candidate_has_the_workload_of_the_contract_unless_it_names_one() -> None:
    workload = {"target": "education"}
    found = contract(
        {"candidates": [{}, {"workload": {"ways": 3}}, {"method": "mst"}]}, method="aim", workload=workload
    )
    settings = [setting for _, setting in found.generate.settings]
    assert [setting.workload.target for setting in settings] == ["education", None, None]
    assert [setting.workload.ways for setting in settings] == [2, 3, 2]
    assert [setting.method for setting in settings] == ["aim", "aim", "mst"]
    assert all(setting.tune is None for setting in settings)


def test_contracts_without_it_are_as_they_were() -> None:
    found = contract(None, method="aim")
    assert "tune" not in found.snapshot()["generate"] and "tune" not in found.mechanism_snapshot()
    assert found.generate.settings == (("", found.generate),)


def test_what_decides_the_choice_makes_another_run() -> None:
    first = contract({"candidates": TWO, "runs": 3})
    assert changes(first, contract({"candidates": TWO, "runs": 4})) == ["generate.tune.runs"]
    assert changes(first, contract({"candidates": TWO, "runs": 3, "score": {"share": 0.1}})) == [
        "generate.tune.score.share"
    ]
    rule = [{"column": "education", "determines": "sex"}]
    assert changes(first, contract({"candidates": TWO, "runs": 3}, constraints=rule)) == ["generate.constraints"]


def test_it_is_said_in_words() -> None:
    assert dict(contract_words(contract({"candidates": TWO, "runs": 3})))["method"] == (
        "the best of 2 settings (aim, mst) by a noisy score (pairs), which the mechanism chooses: 3 runs in "
        "expectation, each of a random one"
    )


@pytest.mark.parametrize("method", TUNED_METHODS)
def test_methods_that_a_candidate_may_have(method: str) -> None:
    other = {"method": "mst" if method != "mst" else "aim"}
    contract({"candidates": [{"method": method}, other]})


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "one candidate": ({"candidates": TWO[:1]}, {}, "generate.tune.candidates: "),
    "the same twice": (
        {"candidates": [{"method": "aim"}, {}]},
        {"method": "aim"},
        "generate.tune.candidates.1: is the same setting as candidates.0; accepted: each once",
    ),
    "no method": (
        {"candidates": [{}, {"method": "aim"}]},
        {},
        "generate.tune.candidates.0.method: missing, and generate.method names none; accepted: aim, mst, mwem",
    ),
    "jam": (
        {"candidates": [{"method": "jam"}, *TWO]},
        {},
        "generate.tune.candidates.0.method: 'jam'; accepted: aim, mst, mwem",
    ),
    "a method for texts": (
        {"candidates": [{"method": "dp_finetune"}, *TWO]},
        {},
        "generate.tune.candidates.0.method: 'dp_finetune'",
    ),
    "a network of a method without": (
        {"candidates": [{"method": "aim", "network": {"steps": 3}}, *TWO]},
        {},
        "generate.tune.candidates.0.network: is for method arn, tbart, dp_vae, table_diffusion, dp_gan, and the method",
    ),
    "a workload of a method without": (
        {"candidates": [{"method": "mst", "workload": {"ways": 3}}, *TWO]},
        {},
        "generate.tune.candidates.0.workload: is for method aim, mwem, rap, gem, and the method is 'mst'",
    ),
    "an unknown key": (
        {"candidates": [{"method": "aim", "rows": 3}, *TWO]},
        {},
        "generate.tune.candidates.0.rows: unknown key",
    ),
    "one run": ({"candidates": TWO, "runs": 1}, {}, "runs: 1; accepted: each, or a number above 1, up to 100"),
    "too many runs": ({"candidates": TWO, "runs": 101}, {}, "runs: 101; accepted"),
    "runs in words": ({"candidates": TWO, "runs": "some"}, {}, "generate.tune.runs"),
    "an extreme shape": ({"candidates": TWO, "runs": 3, "shape": -0.5}, {}, "generate.tune.shape: -0.5"),
    "a shape near 0": ({"candidates": TWO, "runs": 3, "shape": 1e-5}, {}, "shape: 1e-05; accepted: 0, or from 0.001"),
    "a shape of no number": (
        {"candidates": TWO, "shape": 2},
        {},
        "shape: 2 with runs: each, which are no random number; accepted: none",
    ),
    "a fixed order of a mixture": (
        {"candidates": [{"method": "dp_vae", "network": {"fixed_order": 0.5}}, *TWO]},
        {},
        "generate.tune.candidates.0.network.fixed_order: 'dp_vae' draws all columns of a row at once",
    ),
    "a time limit": ({"candidates": TWO}, {"time_limit": "5m"}, "generate.time_limit: with tune"),
    "a public table": (
        {"candidates": TWO},
        {"method": "aim", "public": {"uri": "/public/census", "why": "published by the office"}},
        "generate.public: with tune",
    ),
    "texts": (
        {"candidates": TWO},
        {"method": "dp_finetune", "text": {"column": "remark"}},
        "generate.tune: is for tables without texts and pictures",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    tune, generate, message = REFUSED[name]
    with pytest.raises(ContractError) as caught:
        contract(tune, **generate)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("score", "quality", "message"),
    [
        ("pairs", {"paid": {"measures": ["pairs"]}}, "quality.paid: with generate.tune"),
        ("regression", {}, "generate.tune.score.measure: regression, which needs a target of numbers"),
        (
            "accuracy",
            {"target": "hourly_wage", "task": "regression"},
            "generate.tune.score.measure: accuracy, which needs a target of cells",
        ),
    ],
)
def test_scores_that_are_refused(score: str, quality: dict[str, Any], message: str) -> None:
    with pytest.raises(ContractError) as caught:
        contract({"candidates": TWO, "score": {"measure": score}}, quality)
    assert message in str(caught.value)
