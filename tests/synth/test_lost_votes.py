"""Votes below their noise are reported before anything is spent, with better settings, and only these."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest
from text_cases import letters_contract, save_model, tiny_llama

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.planning import plan_release
from dpsynth_platform.synth.text.evolution_sealing import EvolutionParameters
from dpsynth_platform.synth.text.lost_votes import lost_votes_of

SCHEMA = pa.schema([(name, pa.string()) for name in ("letter", "reader", "region", "body")])
FEW = {"population": 4, "rounds": 3, "variations": 1}
TRAINING = {"steps": 2, "batch_size": 20, "replay_steps": 1, "learning_rate": 1e-5}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("base"), tiny_llama(positions=256))


def contract_of(base, *, units=1000, epsilon=4.0, method="aug_pe", resample=None, **evolution):
    own = {"evolution": FEW | evolution} if method == "aug_pe" else {}
    chosen = {} if resample is None else {"resample": resample}
    generate = {"method": method, "base_model": str(base), "rows": 10}
    return letters_contract(
        {"region": {"type": "categorical", "values": ["north", "south"]}},
        generate
        | {"text": {"given": ["region"], "max_tokens": 48} | own | chosen}
        | ({} if own else {"training": TRAINING}),
        privacy={
            "max_contributions": 1,
            "guarantee": {"epsilon": epsilon, "delta": 1e-5},
            "expected_units": units,
        },
    )


def checked(contract):
    plan = plan_release(contract, SCHEMA, None)
    return lost_votes_of(contract, plan), plan


def test_rounds_with_votes_below_the_noise_are_reported_with_a_working_advice(base):
    said, plan = checked(contract_of(base, population=400))
    noise = EvolutionParameters.of(plan).sigma
    assert noise > 1000 / 800
    assert f"gets about 1.25 votes, less than the noise of {noise:.3g}" in said
    most = int(re.search(r"generate\.text\.evolution\.population up to (\d+)", said)[1])
    assert 1000 / (2 * most) > 2.9 * noise
    assert checked(contract_of(base, population=most))[0] is None


def test_where_no_population_is_small_enough_something_else_is_advised(base):
    said, _ = checked(contract_of(base, units=100, epsilon=0.5, rounds=10))
    assert "better: fewer rounds, variations or columns in generate.text.given" in said


@pytest.mark.parametrize("method", ["aug_pe", "dp_finetune"])
def test_clusters_with_votes_below_the_noise_are_reported(base, method):
    asked = {"clusters": 200, "noise": 10.0}
    said, _ = checked(contract_of(base, method=method, resample=asked))
    assert said == (
        "each cluster gets about 5 votes, less than the noise of 10: what is taken is mostly random; better: "
        "generate.text.resample.clusters up to 33"
    )
    assert checked(contract_of(base, method=method, resample=asked | {"clusters": 33}))[0] is None


@pytest.mark.parametrize("method", ["aug_pe", "dp_finetune"])
def test_sums_of_labels_below_the_noise_are_reported(base, method):
    asked = {"by": "labels", "noise": 10.0}
    said, _ = checked(contract_of(base, method=method, units=300, resample=asked))
    expected = "each label has about 150 records, whose features add up to less than the noise of length 196: "
    assert expected in said
    found, _ = checked(contract_of(base, method="dp_finetune", resample=asked | {"pool": 1}))
    assert found is None  # with a pool of 1, labels are exchanged


def test_too_few_people_for_any_clusters(base):
    said, _ = checked(contract_of(base, method="dp_finetune", units=100, resample={"clusters": 10, "noise": 20}))
    assert "better: no generate.text.resample" in said


def test_noise_that_takes_the_whole_budget_is_refused_with_the_noise_that_would(base):
    with pytest.raises(AccountingError, match=r"0\.1 alone costs epsilon .* of 4;") as refused:
        checked(contract_of(base, method="dp_finetune", resample={"noise": 0.1}))
    enough = float(re.search(r"accepted: ([\d.]+) or more", str(refused.value))[1])
    with pytest.raises(AccountingError, match=r"alone costs epsilon"):
        checked(contract_of(base, method="dp_finetune", resample={"noise": 0.79 * enough}))
    checked(contract_of(base, method="dp_finetune", resample={"noise": enough}))


def test_a_plan_tells_how_many_prompts_it_takes(base):
    """400 candidates, 2 rounds of 300 variations, 3 rounds of 2 more for each candidate; 1,900 to be clustered."""
    asked = {"population": 100, "variations": 3, "rounds": 3, "lookahead": 2}
    parameters = EvolutionParameters.of(checked(contract_of(base, resample={"clusters": 200}, **asked))[1])
    assert parameters.prompts == 400 + 2 * 300 + 3 * 2 * 400 + 1900
    _, plan = checked(contract_of(base, **asked))
    assert (
        "That takes some 3,400 prompts, and each time that rows are drawn one" in plan.describe()["training_in_words"]
    )


def test_where_there_are_more_labels_than_texts_each_keeps_one(base):
    """So a smaller population is no way out."""
    asked = {"units": 100, "epsilon": 0.5, "rounds": 10, "variations": 3}
    few, _ = checked(contract_of(base, **asked, population=1))
    more, plan = checked(contract_of(base, **asked, population=2))
    assert EvolutionParameters.of(plan).survivors == 2
    assert few == more and "better: fewer rounds, variations or columns" in few


def test_a_pool_of_one_is_reported(base):
    """What was sealed with it can still be read."""
    said, _ = checked(contract_of(base, method="dp_finetune", resample={"clusters": 33, "pool": 1}))
    assert said == "every text is taken, so that votes cost and choose nothing; better: a larger pool"


def test_records_with_several_owners_vote_in_full_each(base):
    contract = contract_of(base, method="dp_finetune", units=7000, resample={"clusters": 300})
    plan = plan_release(contract, SCHEMA, None)
    assert lost_votes_of(contract, plan) is None
    shared = contract.privacy.model_copy(update={"adjacency": "fixed-graph"})
    fewer = contract.generate.training.model_copy(update={"expected_records": 1500})
    generate = contract.generate.model_copy(update={"training": fewer})
    told_of = lost_votes_of(contract.model_copy(update={"privacy": shared, "generate": generate}), plan)
    assert "each cluster gets about 5 votes" in told_of
