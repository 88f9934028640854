import dataclasses
import itertools
import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synth_cases import SCHEMA, contract_with, grant_for, people, write_bounded

from dpsynth_platform.foundation.errors import ContractError, GrantRefused
from dpsynth_platform.privacy.events import event_from_json
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.units import count_sensitivity
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular import drawing
from dpsynth_platform.synth.tabular.aim import ONE_WAY_SHARE, SHARES_WITH_TARGET, AimParameters, _in_turn, scores
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.marginals import SCORE_SCALE
from dpsynth_platform.synth.tabular.measurements import read_measurements
from dpsynth_platform.synth.tabular.model import clique_scores, load_model
from dpsynth_platform.synth.tabular.resolution import Sums, View
from dpsynth_platform.synth.tabular.rounds import hidden_by_noise, misfit
from dpsynth_platform.synth.tabular.workload import WEIGHT_SCALE

AIM = generator("aim")


def plan_with(**workload):
    contract = contract_with(generate={"rows": 500, "method": "aim", "workload": workload})
    return AIM.plan(contract, SCHEMA, Guarantee.target(contract))


@pytest.fixture(scope="module")
def aim_plan():
    return plan_with(target="city")


@pytest.mark.parametrize(("columns", "turns"), [(5, 1), (8, 1), (14, 2), (22, 4), (40, 4)])
def test_larger_candidates_take_turns_and_pairs_are_always_there(columns, turns):
    """All triples with the last column: at least two for each column in a round, and each within `turns` rounds."""
    pairs = [View.finest(pair) for pair in itertools.combinations(range(columns), 2)]
    triples = [View.finest((a, b, columns - 1)) for a, b in itertools.combinations(range(columns - 1), 2)]
    rounds = [_in_turn([*pairs, *triples], columns, done) for done in range(2 * turns)]
    assert all(views[: len(pairs)] == pairs for views in rounds)
    seen = [set(views[len(pairs) :]) for views in rounds]
    assert seen[:turns] == seen[turns:]
    assert set.union(*seen[:turns]) == set(triples) and sum(map(len, seen[:turns])) == len(triples)
    assert turns == 1 or min(map(len, seen)) >= 2 * columns


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return write_bounded(people(3000), tmp_path_factory.mktemp("aim") / "table")


@pytest.fixture
def recorded(monkeypatch):
    """What reaches the two draws, in order; nothing is drawn."""
    asked = []
    monkeypatch.setattr(
        drawing, "sample_rounded_gaussian", lambda counts, sigma: asked.append(("noise", sigma)) or counts
    )
    monkeypatch.setattr(
        drawing,
        "select_by_exponential_mechanism",
        lambda scores, epsilon, sensitivity: asked.append(("choice", epsilon, sensitivity)) or int(np.argmax(scores)),
    )
    return asked


def test_everything_drawn_is_within_the_sealed_budget(aim_plan, rows, tmp_path, recorded):
    """Added up independently: precisions are 1 / sigma^2, and there are no more choices than rounds."""
    AIM.measure(aim_plan, rows, tmp_path)
    chosen = AimParameters(**aim_plan.parameters)
    used = sum(1 / Fraction(entry[1]) ** 2 for entry in recorded if entry[0] == "noise")
    total = 1 / Fraction(chosen.sigma_total) ** 2
    assert Fraction(99, 100) * total < used <= total
    choices = [entry for entry in recorded if entry[0] == "choice"]
    assert 1 <= len(choices) <= chosen.rounds
    # b = 2 in the contract: a user moves an L1 distance by two records.
    assert set(choices) == {("choice", chosen.epsilon_select, WEIGHT_SCALE * 2 * SCORE_SCALE)}
    assert [entry[0] for entry in recorded[:9]] == ["noise"] * 9  # five columns, four links to the target


def test_choices_before_a_fit_have_no_column_in_common(aim_plan, rows, tmp_path, recorded):
    plan = dataclasses.replace(aim_plan, parameters=aim_plan.parameters | {"choices_per_fit": 2})
    AIM.measure(plan, rows, tmp_path)
    chosen = read_measurements(tmp_path, plan.digest).chosen
    assert len(chosen) >= 6
    assert all(not set(one) & set(other) for one, other in zip(chosen[::2], chosen[1::2], strict=False))


def test_the_model_never_grows_beyond_its_cells(rows, tmp_path, recorded):
    """Without a target, whose links are measured in any case."""
    plan = plan_with()
    for most in (120, 400):
        small = dataclasses.replace(plan, parameters=plan.parameters | {"model_cells": most})
        directory = tmp_path / str(most)
        directory.mkdir()
        AIM.fit(small, rows, grant_for(small), directory)
        beliefs = load_model(directory).beliefs(releasable=True)
        assert most / 4 < beliefs.tree.cells <= most


def test_the_event_names_all_precision_and_all_choices(aim_plan):
    chosen = AimParameters(**aim_plan.parameters)
    counts, choices = event_from_json(aim_plan.event).events
    assert counts.sigma == chosen.sigma_total
    assert (choices.count, choices.event.epsilon) == (chosen.rounds, chosen.epsilon_select)
    assert {counts.max_contributions, choices.event.max_contributions} == {2}


@pytest.mark.parametrize("change", [{"sigma_total": 0.5}, {"epsilon_select": 1.0}, {"rounds": 400}])
def test_a_budget_that_the_event_does_not_account_for_is_refused(aim_plan, rows, tmp_path, change):
    cheaper = dataclasses.replace(aim_plan, parameters=aim_plan.parameters | change)
    with pytest.raises(GrantRefused, match="not that of its noise scales"):
        AIM.fit(cheaper, rows, grant_for(cheaper), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_weights_above_those_of_the_scores_sensitivity_are_refused(aim_plan):
    heavy = [2 * weight for weight in aim_plan.parameters["workload_weights"]]
    with pytest.raises(GrantRefused, match="weights outside of 1 to 256"):
        AIM.check(dataclasses.replace(aim_plan, parameters=aim_plan.parameters | {"workload_weights": heavy}))


def test_every_result_is_durable_before_the_next_draw(aim_plan, rows, tmp_path, monkeypatch):
    lines = lambda: (tmp_path / "measurements.jsonl").read_bytes().count(b"\n")  # noqa: E731
    seen = []
    monkeypatch.setattr(drawing, "sample_rounded_gaussian", lambda counts, sigma: seen.append(lines()) or counts)
    monkeypatch.setattr(drawing, "select_by_exponential_mechanism", lambda scores, e, s: seen.append(lines()) or 0)
    AIM.measure(aim_plan, rows, tmp_path)
    assert seen == list(range(1, len(seen) + 1))
    assert lines() == len(seen) + 2


def test_without_noise_the_sample_follows_the_data(rows, tmp_path, recorded):
    plan = plan_with()
    AIM.fit(plan, rows, grant_for(plan), tmp_path)
    stored = read_measurements(tmp_path, plan.digest)
    names = Domain.from_json(plan.columns).names
    chosen = {tuple(sorted(names[index] for index in clique)) for clique in stored.chosen}
    assert {("age", "city"), ("city", "member")} <= chosen
    sample, real = AIM.sample(tmp_path, 3000), people(3000)
    sample.validate(full=True)
    for columns in (("age", "city"), ("city", "member")):
        seen = [list(zip(*(table[name].to_pylist() for name in columns), strict=True)) for table in (real, sample)]
        assert sum(abs(seen[0].count(pair) - seen[1].count(pair)) for pair in set(seen[0] + seen[1])) / 6000 < 0.08


def test_estimation_can_be_repeated_and_scored_without_the_data(aim_plan, rows, tmp_path):
    AIM.fit(aim_plan, rows, grant_for(aim_plan), tmp_path)
    first = load_model(tmp_path)
    AIM.estimate(aim_plan, tmp_path)
    again = load_model(tmp_path)
    assert set(first.potentials) == set(again.potentials)
    for clique, values in first.potentials.items():
        np.testing.assert_allclose(values, again.potentials[clique], atol=1e-12)
    table = people(50, seed=6)
    scores = clique_scores(again, table)
    states = [column.state_of[codes] for column, codes in zip(again.states, again.domain.encode(table).T, strict=True)]
    for place, measured in enumerate(again.measurements.joint):
        levels = measured.levels or (0,) * len(measured.clique)
        cells = [
            again.groups[index][level][states[index]] for index, level in zip(measured.clique, levels, strict=True)
        ]
        np.testing.assert_array_equal(scores.counts[:, 5 + place], measured.counts[tuple(cells)])
        shape = tuple(int(again.groups[i][level].max()) + 1 for i, level in zip(measured.clique, levels, strict=True))
        assert measured.counts.shape == shape  # the groups are those that were measured
    assert scores.counts.shape == scores.expected.shape == (50, 5 + len(again.measurements.joint))
    assert np.isfinite(scores.expected).all()
    assert json.dumps(aim_plan.describe())


@pytest.mark.parametrize(
    "workload",
    [
        {"ways": 3},
        {"queries": [{"columns": ["age", "city", "day", "member"], "weight": 50}], "weights": {"city": 3}},
    ],
)
def test_larger_combinations_are_measured_and_sampled(workload, rows, tmp_path, recorded):
    plan = plan_with(**workload)
    AIM.fit(plan, rows, grant_for(plan), tmp_path)
    stored = read_measurements(tmp_path, plan.digest)
    assert max(len(clique) for clique in stored.chosen) >= 3
    assert {len(item.clique) for item in stored.joint} == {len(clique) for clique in stored.chosen}
    sample = AIM.sample(tmp_path, 300)
    sample.validate(full=True)
    assert np.isfinite(clique_scores(load_model(tmp_path), people(20)).expected).all()


def test_a_workload_that_does_not_fit_into_memory_is_refused():
    wide = {"type": "categorical", "values": [str(number) for number in range(700)]}
    contract = contract_with(
        columns__age=wide,
        columns__city=wide,
        columns__member=wide,
        generate={"rows": 10, "method": "aim", "workload": {"ways": 3}},
    )
    with pytest.raises(ContractError, match=r"generate\.workload: all that may be measured has .* fewer ways"):
        AIM.plan(contract, SCHEMA, Guarantee.target(contract))


@pytest.mark.parametrize("columns", [1, 2])
def test_tables_of_one_and_two_columns(columns, tmp_path):
    names = ["age", "member"][:columns]
    contract = contract_with(generate={"rows": 50, "method": "aim"})
    contract = contract.model_copy(
        update={"columns": {name: contract.columns[name] for name in ("person_id", *names)}}, deep=True
    )
    schema = SCHEMA
    plan = AIM.plan(contract, schema, Guarantee.target(contract))
    rows = write_bounded(people(400).select([*names, "_owner"]), tmp_path / "table")
    (tmp_path / "model").mkdir()
    AIM.fit(plan, rows, grant_for(plan), tmp_path / "model")
    assert AIM.sample(tmp_path / "model", 20).num_rows == 20


# Sensitivity.

SIZES = (5, 3)
GROUPS = [[np.arange(5), np.array([0, 0, 1, 1, 1])], [np.arange(3), np.array([0, 1, 1])]]
SUMS = Sums(GROUPS)
RECORDS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), max_size=12)
MINE = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=3)


def counted(records):
    counts = np.zeros(SIZES, dtype=np.int64)
    for record in records:
        counts[record] += 1
    return counts


@settings(deadline=None)
@given(RECORDS, MINE, MINE, st.integers(0, 2**32 - 1))
def test_one_user_moves_views_and_scores_by_no_more_than_the_sensitivity(others, mine, instead, seed):
    expected = np.random.default_rng(seed).uniform(0, 4, SIZES)
    for adjacency, left, right in (
        ("add-or-remove", others, others + mine),
        ("zero-out", others + mine, others),
        ("replace-one", others + mine, others + instead),
    ):
        bound = count_sensitivity(adjacency, 3)
        before, after = counted(left), counted(right)
        for view in SUMS.views((0, 1)):
            change = view.counts(after, GROUPS) - view.counts(before, GROUPS)
            assert np.abs(change).sum() <= bound.l1
            assert (change**2).sum() <= bound.l2_squared
        worth = [scores((0, 1), counts, expected, SUMS, 2.0, 1) for counts in (before, after)]
        assert [view for view, _ in worth[0]] == list(SUMS.views((0, 1)))
        assert all(abs(new - old) <= bound.l1 * SCORE_SCALE for (_, old), (_, new) in zip(*worth, strict=True))


def test_the_bound_on_scores_is_reached():
    zero, three = (scores((0, 1), counted([(4, 2)] * times), np.zeros(SIZES), SUMS, 1.0, 1) for times in (0, 3))
    assert len(zero) == 4
    assert all(new - old == 3 * SCORE_SCALE for (_, old), (_, new) in zip(zero, three, strict=True))


def test_all_views_are_weighed_as_each_alone_would_be():
    """By the definition, view for view: the misfit of its sums, less what noise hides of them."""
    rng = np.random.default_rng(8)
    counts, expected = rng.integers(0, 9, SIZES), rng.uniform(0, 9, SIZES)
    for view, worth in scores((0, 1), counts, expected, SUMS, 3.0, 1):
        known = view.sums(expected, GROUPS)
        alone = misfit(view.counts(counts, GROUPS), known, hidden_by_noise(known, 3.0), 1)
        assert worth == pytest.approx(alone, abs=known.size + 1)  # sums of fractions round in another order


def test_noise_hides_what_few_coarse_cells_show():
    """A link that is spread over many cells is worth measuring coarsely."""
    sizes = (40, 40)
    groups = [[np.arange(40), np.arange(40) // 20]] * 2
    expected = np.full(sizes, 5.0)
    counts = expected.copy()
    counts[:20, :20] += 1
    counts[20:, 20:] += 1
    worth = {
        view.levels: value for view, value in scores((0, 1), counts.astype(np.int64), expected, Sums(groups), 40.0, 1)
    }
    assert max(worth, key=worth.get) == (1, 1)
    assert worth[(0, 0)] < 0 < worth[(1, 1)]


def test_views_of_a_pair_are_all_candidates():
    assert len(SUMS.views((0, 1))) == 4
    assert View.finest((0, 1)).levels == (0, 0)


def test_with_a_target_its_links_get_what_single_columns_need_less(aim_plan):
    """All shares together are the whole; without a target, nothing is kept for links."""
    aimed, plain = (AIM.sealed(each.parameters) for each in (aim_plan, plan_with()))
    assert (aimed.one_way_share, aimed.target_share) == SHARES_WITH_TARGET
    assert (plain.one_way_share, plain.target_share) == (ONE_WAY_SHARE, 0.0)
    assert aimed.rounds_share == pytest.approx(1 - sum(SHARES_WITH_TARGET))
