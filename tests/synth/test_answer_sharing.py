"""Queries that share their measurements: what is paid, what is measured, and how exact their counts are."""

import dataclasses
import itertools

import numpy as np
import pytest
from test_answers import ADJACENCIES, WEIGHTINGS, exact, owned, people, plan_of, released

from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.answers import generator as answering
from dpsynth_platform.synth.answers import sharing
from dpsynth_platform.synth.answers.estimates import Noisy, answers
from dpsynth_platform.synth.answers.generator import exact_answers
from dpsynth_platform.synth.answers.layout import queries_of, tables_of
from dpsynth_platform.synth.answers.sharing import ENOUGH, combined, shared
from dpsynth_platform.synth.tabular.domain import Domain

MARGINALS = {
    "all": {"count": True},
    "cities": {"count": True, "by": ["city"], "mean": ["age"]},
    "members": {"count": True, "by": ["member"], "weight": 2.0},
    "both": {"count": True, "by": ["member", "city"]},
    "young": {"count": True, "by": ["city"], "where": {"age": {"max": 30}}},
}


def alone(monkeypatch):
    """Plans without sharing, of residuals or by ranges."""
    monkeypatch.setattr(answering, "shared", lambda tables, adjacency: tables)
    monkeypatch.setattr(answering, "products_of", lambda tables: [])


def tables_of_plan(plan):
    return answering._tables(plan)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_every_count_is_more_exact_than_alone_for_the_same_event(adjacency, monkeypatch):
    plan = plan_of(MARGINALS, adjacency=adjacency)
    assert plan.parameters["sharing"]
    served = {groups.name for table in tables_of_plan(plan) for groups in table.serves}
    assert served == {"all", "cities", "members", "both"}
    shorter = errors_of(plan)
    alone(monkeypatch)
    before = plan_of(MARGINALS, adjacency=adjacency)
    assert before.event == plan.event
    assert "sharing" not in before.parameters  # as it was before there was any
    longer = errors_of(before)
    assert shorter.keys() == longer.keys()
    for key, error in shorter.items():
        assert error < longer[key] * (ENOUGH**0.5 if key[0] in served and key[1] == "count" else 1 + 1e-9)


def errors_of(plan):
    """The standard error of each answer that has one, by query and measure, from the plan alone."""
    weighting = Guarantee.from_json(plan.guarantee).weighting
    parameters = answering._sealed(plan)
    noisy = [
        Noisy.of(table, np.zeros(answering._shape(table), np.int64), parameters.noise(table.share), weighting)
        for table in tables_of_plan(plan)
    ]
    return {
        (found.groups.name, found.measure): float(found.error[0])
        for found in answers(combined(noisy))
        if np.isfinite(found.error[0])
    }


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_without_noise_answers_are_the_exact_ones_in_the_same_order(weighting, tmp_path, monkeypatch):
    table = people(500, owners=2)
    plan = plan_of(MARGINALS, weighting=weighting, b=2)
    monkeypatch.setattr(answering, "sample_rounded_gaussian", lambda values, noise: values)
    shown = released(plan, table, tmp_path)
    assert [row["answer"] for row in exact_answers(plan, table).to_pylist()] == pytest.approx(
        [row["answer"] for row in shown], nan_ok=True
    )
    alone(monkeypatch)
    wanted = exact_answers(plan_of(MARGINALS, weighting=weighting, b=2), table).to_pylist()
    keys = ("query", "measure", "of_column", "city", "member")
    assert [[row[key] for key in keys] for row in shown] == [[row[key] for key in keys] for row in wanted]
    assert [row["answer"] for row in shown] == pytest.approx([row["answer"] for row in wanted], nan_ok=True, abs=1e-6)


def test_totals_of_different_queries_agree(tmp_path):
    rows = released(plan_of(MARGINALS, epsilon=0.1), people(100_000), tmp_path)
    totals = {}
    for row in rows:
        if row["measure"] == "count" and row["query"] != "young":
            totals[row["query"]] = totals.get(row["query"], 0.0) + row["answer"]
    assert list(totals.values()) == pytest.approx([totals["all"]] * 4)


def test_the_standard_error_is_that_of_the_linear_estimate():
    """Each count's reaction to each measured number alone, by brute force; noise of all numbers is independent."""
    plan = plan_of(MARGINALS)
    parameters, tables = answering._sealed(plan), tables_of_plan(plan)
    noisy = [
        Noisy.of(table, np.zeros(answering._shape(table), np.int64), parameters.noise(table.share), "rows")
        for table in tables
    ]
    variance = {item.table.groups.name: 0.0 for item in combined(noisy) if item.table.what == "rows"}
    for place, item in enumerate(noisy):
        if item.table.what not in ("residual", "rows"):
            continue
        for number, noise in enumerate(np.broadcast_to(item.table.noise(1.0, "rows"), item.values.shape).ravel()):
            moved = np.zeros(item.values.shape)
            moved.flat[number] = noise / item.table.stretch * item.deviation
            changed = [*noisy[:place], dataclasses.replace(item, values=moved), *noisy[place + 1 :]]
            for found in combined(changed):
                if found.table.what == "rows":
                    variance[found.table.groups.name] = variance[found.table.groups.name] + found.values[:, 0] ** 2
    for found in combined(noisy):
        if found.table.what == "rows" and found.table.groups.name != "young":
            assert np.allclose(variance[found.table.groups.name], found.deviation**2)


PEOPLE = [list(mine) for mine in itertools.product(["Aix", "Bern", None], [True, None], [20, 40], [0.0])]


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_one_owner_moves_all_numbers_together_by_no_more_than_is_paid_for(adjacency, weighting, monkeypatch):
    """All pairs of an owner's records, in units of noise: the square of their L2 change, over what the event allows."""
    plan = plan_of(MARGINALS, b=2, adjacency=adjacency, weighting=weighting)
    parameters, tables, promise = answering._sealed(plan), tables_of_plan(plan), Guarantee.from_json(plan.guarantee)

    def in_noise(records):
        numbers = zip(tables, exact_of(plan, tables, owned([records]), monkeypatch), strict=True)
        return np.concatenate(
            [(values / table.noise(parameters.noise(table.share), weighting)).ravel() for table, values in numbers]
        )

    all_of_one = np.array([in_noise([record] * 2) for record in PEOPLE] + [in_noise([])])
    farthest = (
        ((all_of_one[:, None] - all_of_one) ** 2).sum(axis=2).max()
        if adjacency == "replace-one"
        else (all_of_one**2).sum(axis=1).max()
    )
    allowed = promise.sensitivity.l2_squared / parameters.sigma_total**2
    assert farthest <= allowed
    if adjacency != "replace-one":  # replacements that move one residual farthest move others less
        assert farthest > 0.9 * allowed


def exact_of(plan, tables, table, monkeypatch):
    monkeypatch.setattr("test_answers.tables_and_guarantee", lambda plan: (tables, Guarantee.from_json(plan.guarantee)))
    return exact(plan, table, monkeypatch)


def test_noise_of_the_wrong_length_is_found(monkeypatch):
    """Contrasts that all had the noise of the shortest would show more than is paid for."""
    plan = plan_of(MARGINALS, b=2)
    parameters, tables = answering._sealed(plan), tables_of_plan(plan)
    record = [("Aix", True, 20, 0.0)] * 2
    moved = sum(
        float(((values / np.min(table.noise(parameters.noise(table.share), "rows"))) ** 2).sum())
        for table, values in zip(tables, exact_of(plan, tables, owned([record]), monkeypatch), strict=True)
    )
    assert moved > 1.2 * 4 / parameters.sigma_total**2


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("names", [("all",), ("young", "both")])
def test_queries_about_other_rows_or_alone_are_measured_as_before(adjacency, names):
    queries = {name: MARGINALS[name] for name in names}
    plan = plan_of(queries, adjacency=adjacency)
    assert "sharing" not in plan.parameters
    tables = tables_of(queries_of(plan.parameters), Domain.from_json(plan.columns), adjacency)
    assert shared(tables, adjacency) == tables == tables_of_plan(plan)


@pytest.mark.parametrize("change", [{"TURNS": 1}, {"ENOUGH": 0.0}])
def test_answers_of_another_way_of_sharing_are_refused_and_not_misread(change, tmp_path, monkeypatch):
    plan = plan_of(MARGINALS)
    released(plan, people(200), tmp_path)
    for name, value in change.items():
        monkeypatch.setattr(sharing, name, value)
    with pytest.raises(MechanismFailed, match="measured by another version"):
        answering.noisy_tables(plan, tmp_path / "model")
