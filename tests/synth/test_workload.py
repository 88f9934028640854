import itertools

import pytest
from synth_cases import SCHEMA, contract_with

from dpsynth_platform.contracts.methods import WORKLOAD_METHODS
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import TABLE_METHODS, generator
from dpsynth_platform.synth.tabular.workload import WEIGHT_SCALE, workload_of

NAMES = ("age", "score", "day", "city", "member")


def asked(**workload):
    return workload_of(contract_with(generate={"rows": 10, "method": "aim", "workload": workload}), NAMES)


def test_all_pairs_weigh_alike_by_default():
    found = asked()
    assert len(found.weights) == 10
    assert set(found.weights.values()) == {WEIGHT_SCALE}
    assert found.target is None


def test_three_ways_bring_the_pairs_below_them():
    found = asked(ways=3, target="city")
    assert sorted({len(clique) for clique in found.weights}) == [2, 3]
    assert len(found.weights) == 20
    # A triple has three columns in common with the workload where a pair has two.
    assert {found.weights[clique] for clique in found.weights if len(clique) == 2} == {round(WEIGHT_SCALE * 2 / 3)}
    assert found.target == 3


def test_a_target_s_combinations_with_two_columns_are_candidates_where_they_are_few():
    contract = contract_with(generate={"rows": 10, "method": "aim", "workload": {"target": "city"}})
    found = workload_of(contract, NAMES, sizes=[10] * 5)
    triples = {clique for clique in found.weights if len(clique) == 3}
    assert triples == {clique for clique in itertools.combinations(range(5), 3) if 3 in clique}
    assert found.weights[(0, 3)] > found.weights[(0, 1)], "the target is in more of what is asked"
    assert found.named == workload_of(contract, NAMES).named, "what the contract itself names is as before"
    assert workload_of(contract, NAMES, sizes=[3000] * 5) == workload_of(contract, NAMES), "too many cells"
    wide = [f"c{number}" for number in range(33)]
    contract = contract_with(generate={"rows": 10, "method": "aim", "workload": {"queries": []}})
    assert workload_of(contract, wide, sizes=[2] * 33) == workload_of(contract, wide), "no target"


def test_weights_and_queries_raise_what_they_name():
    found = asked(weights={"city": 4.0}, queries=[{"columns": ["age", "score", "day", "member"], "weight": 2}])
    assert (0, 1, 2, 4) in found.weights
    assert found.weights[(0, 3)] > found.weights[(0, 1)]
    assert max(found.weights.values()) == WEIGHT_SCALE
    assert min(found.weights.values()) >= 1


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        ({"target": "name"}, "generate.workload.target: 'name' is no modelled column; accepted: age, "),
        ({"weights": {"nothing": 2}}, "generate.workload.weights: 'nothing'"),
        ({"queries": [{"columns": ["age", "remark"]}]}, r"generate.workload.queries.0: 'remark'"),
        ({"queries": [{"columns": ["age", "age"]}]}, "a column is listed twice"),
        ({"ways": 4}, "ways"),
        ({"weights": {"age": 0}}, "accepted: above 0"),
    ],
)
def test_impossible_workloads_are_refused(workload, message):
    with pytest.raises(ContractError, match=message):
        asked(**workload)


@pytest.mark.parametrize("method", [method for method in TABLE_METHODS if method not in WORKLOAD_METHODS])
@pytest.mark.parametrize(
    ("workload", "part", "fit"),
    [
        ({"target": "age"}, "target", "method aim, jam, or auto"),
        ({"ways": 3}, "ways", "method aim, jam, mwem, rap, gem, or auto"),
        ({"weights": {"age": 2.0}}, "weights", "method aim, jam, mwem, rap, gem, or auto"),
        ({"queries": [{"columns": ["age", "city"]}]}, "queries", "method aim, jam, mwem, rap, gem, or auto"),
    ],
)
def test_what_a_method_does_not_heed_is_refused_before_any_spend(method, workload, part, fit):
    contract = contract_with(generate={"rows": 10, "method": method, "workload": workload})
    with pytest.raises(ContractError) as caught:
        generator(method).plan(contract, SCHEMA, Guarantee.target(contract))
    assert f"generate.workload.{part}: has no effect with method '{method}'; accepted: {fit}" in str(caught.value)
    # To leave it out is the same run.
    without = contract_with(generate={"rows": 10, "method": method})
    assert contract.mechanism_snapshot() == without.mechanism_snapshot()
    assert generator(method).plan(without, SCHEMA, Guarantee.target(without))


def test_a_method_that_auto_stands_for_needs_no_use_for_it():
    """Which one it is follows from numbers; the reason says that the target gets no links."""
    contract = contract_with(generate={"rows": 10, "method": "auto", "workload": {"target": "age"}})
    assert generator("independent").plan(contract, SCHEMA, Guarantee.target(contract))
