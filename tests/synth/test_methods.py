"""What holds for every method alike."""

import dataclasses
import json
from fractions import Fraction
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from audit_cases import METHODS as AUDITED
from audit_cases import categories, claim_of, plan_for, run, table_of
from synth_cases import SCHEMA, contract_with, grant_for, people, write_bounded

from dpsynth_platform.contracts.generation import Generate
from dpsynth_platform.contracts.methods import (
    ANSWERS,
    IMAGE_METHODS,
    LANGUAGE_METHODS,
    LINKED,
    NETWORK_METHODS,
    TEXT_METHODS,
    TUNED,
    TableMethodName,
)
from dpsynth_platform.foundation.errors import ContractError, GrantRefused, MechanismFailed
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.statement import WORDS
from dpsynth_platform.synth.automatic import AUTO
from dpsynth_platform.synth.interface import DECLARED, METHODS, TABLE_METHODS, generator
from dpsynth_platform.synth.tabular import drawing, mixtures
from dpsynth_platform.synth.tabular.measurements import read_measurements
from dpsynth_platform.synth.tabular.model import clique_scores, load_model

PAGE = Path(__file__).parents[2] / "docs/guides/generators.md"


def plan_of(method, **changes):
    contract = contract_with(**changes)
    return generator(method).plan(contract, SCHEMA, Guarantee.target(contract))


@pytest.fixture(scope="module")
def plans():
    return {method: plan_of(method) for method in TABLE_METHODS}


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_bounded(people(2000), tmp_path_factory.mktemp("methods") / "table")


@pytest.fixture
def exact(monkeypatch):
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", lambda counts, sigma: counts)
    monkeypatch.setattr(drawing, "select_by_exponential_mechanism", lambda scores, *_: int(np.argmax(scores)))


def test_all_lists_of_methods_agree():
    assert set(get_args(Generate.model_fields["method"].annotation)) == {AUTO, *METHODS}
    assert {*TABLE_METHODS, *LANGUAGE_METHODS, *TEXT_METHODS, *IMAGE_METHODS, ANSWERS} == set(METHODS)
    assert set(get_args(TableMethodName)) == {AUTO, *TABLE_METHODS, *LANGUAGE_METHODS}
    assert set(WORDS) == {*METHODS, TUNED, LINKED}
    assert {*AUDITED, "independent", *NETWORK_METHODS} == set(TABLE_METHODS)
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    for method in (AUTO, *TABLE_METHODS, *LANGUAGE_METHODS):
        assert any(line.startswith(f"| `{method}` |") for line in rows), method


@pytest.mark.parametrize("method", TABLE_METHODS)
def test_a_plan_says_what_it_will_do(plans, method):
    plan = plans[method]
    described = plan.describe()
    assert json.dumps(described)
    assert (plan.method, plan.why) == (method, DECLARED)
    assert dataclasses.replace(plan, why="for fun").digest == plan.digest
    assert dataclasses.replace(plan, time_limit=60.0).digest != plan.digest
    assert described["one_way_cells"] <= described["most_cells_measured"]
    assert described["predicted_memory_bytes"] > 0


@pytest.mark.parametrize("method", TABLE_METHODS)
def test_from_table_to_rows_and_again_without_the_table(plans, rows, tmp_path, monkeypatch, method):
    monkeypatch.setattr(mixtures, "fresh", lambda: np.random.default_rng(0))
    plan, made = plans[method], generator(method)
    made.fit(plan, rows, grant_for(plan), tmp_path)
    first = load_model(tmp_path)
    made.sample(tmp_path, 300).validate(full=True)
    assert made.sample(tmp_path, 300).schema.names == [name for name in SCHEMA.names if name != "name"]
    made.estimate(plan, tmp_path)
    again = load_model(tmp_path)
    for clique, values in first.potentials.items():
        np.testing.assert_allclose(values, again.potentials[clique], atol=1e-9)
    scores = clique_scores(again, people(20, seed=3))
    assert scores.counts.shape == (20, 5 + len(again.measurements.joint))
    assert np.isfinite(scores.expected).all()
    with pytest.raises(MechanismFailed, match="not measured twice"):
        made.measure(plan, rows, tmp_path)


@pytest.mark.parametrize("method", sorted({*TABLE_METHODS} - {"histogram", *NETWORK_METHODS}))  # they have own tests
@pytest.mark.whole_fits
def test_links_are_kept_by_all_that_look_for_them(plans, rows, tmp_path, exact, method):
    plan, made = plans[method], generator(method)
    made.fit(plan, rows, grant_for(plan), tmp_path)
    real, sample = people(2000), made.sample(tmp_path, 2000)
    for columns in (("age", "city"), ("city", "member")):
        seen = [list(zip(*(table[name].to_pylist() for name in columns), strict=True)) for table in (real, sample)]
        distance = sum(abs(seen[0].count(pair) - seen[1].count(pair)) for pair in set(seen[0] + seen[1])) / 4000
        assert distance > 0.2 if method == "independent" else distance < 0.1


@pytest.mark.parametrize("method", TABLE_METHODS)
def test_every_draw_is_durable_before_the_next(plans, rows, tmp_path, monkeypatch, method):
    lines = lambda: (tmp_path / "measurements.jsonl").read_bytes().count(b"\n")  # noqa: E731
    seen = []
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", lambda counts, sigma: seen.append(lines()) or counts)
    monkeypatch.setattr(drawing, "select_by_exponential_mechanism", lambda *_: seen.append(lines()) or 0)
    generator(method).measure(plans[method], rows, tmp_path)
    assert seen == list(range(1, len(seen) + 1))
    assert lines() == len(seen) + 2


@pytest.mark.parametrize("method", TABLE_METHODS)
def test_parameters_that_the_event_does_not_account_for_are_refused(plans, rows, tmp_path, method):
    plan = plans[method]
    name = "sigma_one" if method == "mst" else "sigma_total"
    cheaper = dataclasses.replace(plan, parameters=plan.parameters | {name: plan.parameters[name] / 2})
    with pytest.raises(GrantRefused, match="not that of its noise scales"):
        generator(method).fit(cheaper, rows, grant_for(cheaper), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", TABLE_METHODS)
def test_one_column(tmp_path, method):
    if method in NETWORK_METHODS:
        with pytest.raises(ContractError, match="nothing to learn by method"):
            plan_for(method, categories(a=3), epsilon=4.0, b=2)
        return
    plan = plan_for(method, categories(a=3), epsilon=4.0, b=2)
    table = table_of(["a"], np.array([[0], [1], [1]] * 50))
    found = run(plan, table)
    assert [draw.kind for draw in found.draws] == ["noise"]
    claim = claim_of(plan)
    assert 0.99 * claim.precision < 1 / Fraction(found.draws[0].scale) ** 2 <= claim.precision
    owners = pa.array([f"{index:032x}" for index in range(150)])
    bounded = write_bounded(table.append_column("_owner", owners), tmp_path / "table")
    (tmp_path / "model").mkdir()
    generator(method).fit(plan, bounded, grant_for(plan), tmp_path / "model")
    assert generator(method).sample(tmp_path / "model", 7).num_rows == 7


@pytest.mark.parametrize("method", TABLE_METHODS)
@pytest.mark.parametrize(
    ("workload", "where"),
    [
        ({"target": "remark"}, "target: 'remark'"),
        ({"weights": {"zone": 2.0}}, "weights: 'zone'"),
        ({"queries": [{"columns": ["age", "city"]}, {"columns": ["age", "zone"]}]}, "queries.1: 'zone'"),
    ],
)
def test_a_workload_of_columns_that_are_not_modelled_is_refused(method, workload, where):
    """Also by methods that have no use for it: it is a mistake all the same."""
    with pytest.raises(ContractError) as caught:
        plan_of(method, generate__workload=workload)
    assert f"generate.workload.{where} is no modelled column; accepted: age, score, day, city, mem" in str(caught.value)


WIDE = categories(a=10_000, b=10_000, c=10_000)


@pytest.mark.parametrize("method", TABLE_METHODS)
def test_pairs_with_too_many_cells_are_refused_or_not_counted(tmp_path, method):
    if method not in ("privbayes", "independent"):
        with pytest.raises(ContractError, match="declare fewer bins or shorter lists of values"):
            plan_for(method, WIDE, epsilon=1.0, b=1)
        return
    plan = plan_for(method, WIDE, epsilon=1.0, b=1)
    codes = np.random.default_rng(5).integers(0, 10_000, (4000, 3))
    bounded = write_bounded(table_of(WIDE, codes), tmp_path / "table")
    (tmp_path / "model").mkdir()
    generator(method).fit(plan, bounded, grant_for(plan), tmp_path / "model")
    assert {len(item.clique) for item in read_measurements(tmp_path / "model", plan.digest).joint} <= {1, 2}
    assert generator(method).sample(tmp_path / "model", 50).num_rows == 50
