import numpy as np
import pytest
from audit_cases import categories, run, table_of
from synth_cases import SCHEMA, contract_with

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular.workload import WEIGHT_SCALE

MWEM = generator("mwem")
COLUMNS = categories(a=3, b=3, c=2, d=2)


def plan_with(**workload):
    contract = contract_with(
        columns={"person_id": {"type": "identifier"}, **COLUMNS},
        generate={"rows": 10, "method": "mwem", "workload": workload},
    )
    schema = SCHEMA.empty_table().select(["person_id"]).schema
    for name in COLUMNS:
        schema = schema.append(SCHEMA.field("name").with_name(name))
    return MWEM.plan(contract, schema, Guarantee.target(contract))


def table(rows=3000):
    """b follows a, d follows c."""
    rng = np.random.default_rng(2)
    a, c = rng.integers(0, 3, rows), rng.integers(0, 2, rows)
    return table_of(COLUMNS, np.stack([a, a, c, c], axis=1))


def best(scores, *_):
    return int(np.argmax(scores))


def test_rounds_have_the_same_noise_and_all_are_used():
    plan = plan_with()
    found = run(plan, table())
    one, joint = ({draw.scale for draw in part} for part in (found.of("noise")[:4], found.of("noise")[4:]))
    assert len(one) == len(joint) == 1
    assert len(found.of("choice")) == len(found.of("noise")) - 4 == plan.parameters["rounds"] == 6


def test_the_worst_marginals_come_first():
    chosen = [item.clique for item in run(plan_with(), table(), choose=best).measured[4:]]
    assert set(chosen[:2]) == {(0, 1), (2, 3)}


def test_only_what_the_workload_names_is_measured():
    plan = plan_with(ways=3)
    assert set(map(len, plan.parameters["workload"])) == {2, 3}
    queries = plan_with(queries=[{"columns": ["a", "b", "c"], "weight": 4}])
    weights = dict(zip(map(tuple, queries.parameters["workload"]), queries.parameters["workload_weights"], strict=True))
    assert weights == dict.fromkeys([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)], WEIGHT_SCALE // 4) | {
        (0, 1, 2): WEIGHT_SCALE
    }
    assert (0, 1, 2) in {item.clique for item in run(queries, table(), choose=best).measured}


def test_a_workload_that_does_not_fit_into_memory_is_refused():
    wide = {"type": "categorical", "values": [str(number) for number in range(700)]}
    contract = contract_with(
        columns__age=wide, columns__city=wide, columns__member=wide, generate__workload={"ways": 3}
    )
    with pytest.raises(ContractError, match=r"generate\.workload: all that may be measured has .* fewer ways"):
        MWEM.plan(contract, SCHEMA, Guarantee.target(contract))
