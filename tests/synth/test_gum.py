"""A table by its marginals: against exact counts of known tables, and counts that noise made disagree."""

import itertools

import numpy as np
import pytest
from synth_cases import SCHEMA, contract_with, people

from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular.estimation import Measurement, estimate_total
from dpsynth_platform.synth.tabular.gum import Target, consistent, first_table, gum, model_of_table, shared_out
from dpsynth_platform.synth.tabular.marginals import model_under
from dpsynth_platform.synth.tabular.measurements import read_measurements
from dpsynth_platform.synth.tabular.model import load_model, log_likelihood, save_model
from dpsynth_platform.synth.tabular.resolution import View
from dpsynth_platform.synth.tabular.sampling import drawing

SIZES = (3, 4, 12, 2)
GROUPS = [[np.arange(size)] for size in SIZES]
GROUPS[2].append(np.arange(12) // 4)


def known(rows=4000):
    """A table in which each column depends on others."""
    rng = np.random.default_rng(4)
    a, c = rng.integers(0, 3, rows), rng.integers(0, 12, rows)
    b = (a + (c > 5) + (rng.random(rows) < 0.2)) % 4
    return np.stack([a, b, c, (b + c // 6 + (rng.random(rows) < 0.1)) % 2], axis=1)


def counts_of(table, view):
    shape = view.shape(GROUPS)
    seen = [GROUPS[index][level][table[:, index]] for index, level in zip(view.clique, view.levels, strict=True)]
    return np.bincount(np.ravel_multi_index(seen, shape), minlength=np.prod(shape)).reshape(shape).astype(float)


def measured(table, view, noise=0.0, variance=1.0):
    counts = counts_of(table, view)
    counts += noise * np.random.default_rng(sum(view.clique)).normal(size=counts.shape)
    return Measurement(view.clique, counts, np.full(counts.shape, variance), view.levels)


ONE = [View.finest((index,)) for index in range(4)]
VIEWS = {
    "all pairs": [View.finest(pair) for pair in itertools.combinations(range(4), 2)],
    "a triple": [View.finest((0, 1, 3)), View.finest((1, 2))],
    "groups": [View((0, 2), (0, 1)), View((2, 3), (1, 0)), View.finest((0, 1))],
}


@pytest.mark.parametrize("views", VIEWS.values(), ids=VIEWS)
def test_a_table_reaches_the_exact_marginals_of_a_known_one(views):
    table = known()
    targets = consistent([measured(table, view) for view in ONE], [measured(table, view) for view in views], GROUPS)
    for target in targets:
        np.testing.assert_allclose(target.counts, counts_of(table, target.view), atol=0.05)
    made = gum(targets, GROUPS, len(table), np.random.default_rng(3), passes=200)
    assert made.shape == table.shape
    for target in targets:
        found = counts_of(made, target.view)
        # Half a row in every cell is rounding; some rows more are left by the random order of updates.
        assert np.abs(found - target.counts).sum() / 2 <= 0.008 * len(table)
        assert np.abs(found - target.counts).max() <= 12


def test_the_relation_of_two_columns_follows_from_those_to_a_third():
    """Columns b and d are counted with c alone, on which both depend."""
    rng = np.random.default_rng(4)
    c = rng.integers(0, 12, 4000)
    b, d = (c // 3 + (rng.random(4000) < 0.3)) % 4, (c // 6 + (rng.random(4000) < 0.2)) % 2
    table = np.stack([rng.integers(0, 3, 4000), b, c, d], axis=1)
    joint = [measured(table, View.finest(pair)) for pair in ((1, 2), (2, 3))]
    made = gum(
        consistent([measured(table, view) for view in ONE], joint, GROUPS), GROUPS, 4000, np.random.default_rng(3)
    )
    exact, found = (counts_of(rows, View.finest((1, 3))) for rows in (table, made))
    independent = np.outer(exact.sum(axis=1), exact.sum(axis=0)) / 4000
    assert np.abs(found - exact).sum() < 0.2 * np.abs(independent - exact).sum()


def test_noisy_counts_become_consistent():
    table = known()
    one_way = [measured(table, view, 40, 1600) for view in ONE]
    joint = [measured(table, view, 20, 400) for view in (*VIEWS["all pairs"], *VIEWS["groups"])]
    targets = consistent(one_way, joint, GROUPS)
    total = estimate_total([*one_way, *joint])
    columns = {target.view.clique[0]: target.counts for target in targets[:4]}
    assert len(targets) == 4 + len(joint)
    for target in targets:
        assert target.counts.min() >= 0
        assert target.counts.sum() == pytest.approx(total)
        for axis, (index, level) in enumerate(zip(target.view.clique, target.view.levels, strict=True)):
            held = target.counts.sum(axis=tuple(other for other in range(target.counts.ndim) if other != axis))
            expected = np.bincount(GROUPS[index][level], weights=columns[index])
            np.testing.assert_allclose(held, expected, atol=0.02 * total / held.size)


def test_a_column_is_the_average_by_precision():
    one_way = [
        Measurement((0,), np.array([60.0, 40.0]), np.full(2, 4.0)),
        Measurement((1,), np.ones(2) * 50, np.ones(2)),
    ]
    joint = [Measurement((0, 1), np.array([[40.0, 40.0], [10.0, 10.0]]), np.full((2, 2), 1.0))]
    targets = consistent(one_way, joint, [[np.arange(2)]] * 2)
    # Weights 1/4 and 1/2 for 60 and 80.
    np.testing.assert_allclose(targets[0].counts, [(60 / 4 + 80 / 2) / 0.75, (40 / 4 + 20 / 2) / 0.75], rtol=1e-6)


@pytest.mark.parametrize("number", [0, 1, 7, 1000])
def test_whole_numbers_are_the_parts_rounded_up_or_down(number):
    weights = np.array([0.0, 3.0, 1e-9, 2.0, 0.5])
    found = shared_out(weights, number, np.random.default_rng(number))
    assert found.sum() == number
    assert (np.abs(found - weights / weights.sum() * number) < 1 + 1e-9).all()


def test_a_time_limit_ends_the_passes():
    table = known(200)
    targets = consistent([measured(table, v) for v in ONE], [measured(table, v) for v in VIEWS["all pairs"]], GROUPS)
    steps = []
    made = gum(targets, GROUPS, 200, np.random.default_rng(1), seconds=0.0, progress=lambda *step: steps.append(step))
    assert made.shape == (200, 4)
    assert len(steps) == 1


# Models.


@pytest.fixture(scope="module")
def stored(bounded, tmp_path_factory):
    """The plan of another method, and its measurements."""
    contract = contract_with(generate__method="mwem")
    plan = generator("mwem").plan(contract, SCHEMA, Guarantee.target(contract))
    directory = tmp_path_factory.mktemp("mwem")
    generator("mwem").measure(plan, bounded, directory)
    return plan, directory


def test_any_methods_measurements_make_a_table_whose_rows_keep_conditions(stored):
    plan, directory = stored
    measurements = read_measurements(directory, plan.digest)
    model = model_of_table(plan, measurements, 2000)
    again = model_of_table(plan, measurements, 2000)
    assert model.components == again.components > 100
    for clique, values in model.potentials.items():
        np.testing.assert_array_equal(values, again.potentials[clique])
    save_model(directory, model)
    assert np.isfinite(log_likelihood(load_model(directory), people(50))).all()
    under = model_under(directory, [Constraint(column="age", determines="city")])
    rows = drawing(under, 300, {"member": [True]}).table()
    assert rows.num_rows == 300
    assert set(rows["member"].to_pylist()) == {True}


def test_a_table_starts_with_the_pairs_of_the_strongest_tree():
    """With two pairs of equal columns, the third pair, of which the tree has no part, follows from them."""
    equal, weak = np.eye(4) / 4, np.full((4, 4), 1 / 16)
    pairs = [Target(View.finest(pair), counts) for pair, counts in (((0, 1), weak), ((0, 2), equal), ((1, 2), equal))]
    alone = [Target(View.finest((index,)), np.full(4, 1 / 4)) for index in range(4)]
    table = first_table([*alone, *pairs], 4, 4000, np.random.default_rng(1))
    assert (table[:, 0] == table[:, 2]).mean() > 0.99
    assert (table[:, 1] == table[:, 2]).mean() > 0.99
    assert np.bincount(table[:, 3]).tolist() == [1000] * 4
    assert 0.2 < (table[:, 3] == table[:, 0]).mean() < 0.3
