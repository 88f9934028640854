"""Pseudo-marginals: on trees those of exact inference, on loops a relaxation of it."""

import itertools

import numpy as np
import pytest
from scipy import optimize

from dpsynth_platform.synth.tabular import estimation, local_consistency
from dpsynth_platform.synth.tabular.estimation import ONE_WAY_TRUST, TRUST, Estimator, Measurement, log_shares
from dpsynth_platform.synth.tabular.local_consistency import LocalEstimator, resistances, strongest_tree
from dpsynth_platform.synth.tabular.resolution import View

RECORDS, SIGMA = 5000, 30.0


@pytest.fixture(autouse=True)
def to_the_end(monkeypatch):
    """Fits end where nothing is gained."""
    monkeypatch.setattr(estimation, "TOLERANCE", 1e-12)
    monkeypatch.setattr(local_consistency, "TOLERANCE", 1e-12)


def measured(sizes, pairs, seed=1, sigma=SIGMA):
    """Noisy counts of all columns and of pairs, each pair of a distribution of its own with uniform columns."""
    rng = np.random.default_rng(seed)

    def noisy(clique, counts):
        return Measurement(clique, counts + rng.normal(0, sigma, counts.shape), np.full(counts.shape, sigma**2))

    one_way = [noisy((index,), np.full(size, RECORDS / size)) for index, size in enumerate(sizes)]
    joint = []
    for a, b in pairs:
        shares = rng.dirichlet(np.ones(sizes[a] * sizes[b])).reshape(sizes[a], sizes[b])
        for _ in range(50):
            shares = shares / shares.sum(axis=1, keepdims=True) / sizes[a]
            shares = shares / shares.sum(axis=0) / sizes[b]
        joint.append(noisy((a, b), RECORDS * shares))
    return one_way, joint


def fitted(sizes, one_way, joint, iterations=100, turns=10):
    model = LocalEstimator([[np.arange(size)] for size in sizes], one_way)
    model.add(joint)
    model.fit(iterations, turns=turns)
    return model


TREES = {
    "chain": ((3, 4, 2, 5), ((0, 1), (1, 2), (2, 3))),
    "star": ((4, 2, 3, 3), ((0, 1), (0, 2), (0, 3))),
    "two trees and a column alone": ((3, 4, 2, 5, 3), ((0, 1), (2, 3))),
}


@pytest.mark.parametrize("name", TREES)
def test_on_a_tree_the_estimate_is_that_of_exact_inference(name):
    sizes, pairs = TREES[name]
    one_way, joint = measured(sizes, pairs)
    exact = Estimator([[np.arange(size)] for size in sizes], one_way)
    exact.add(joint)
    exact.fit(400)
    every = list(itertools.combinations(range(len(sizes)), 2))
    expected, found = exact.expected_counts(every), fitted(sizes, one_way, joint).expected_counts(every)
    for pair in every:
        np.testing.assert_allclose(found[pair], expected[pair], atol=0.05)  # of 5,000 records
    assert max(np.abs(expected[item.clique] - item.counts).max() for item in joint) > 20, (
        "and not just the noisy counts"
    )


LOOP = ((2, 3, 2), ((0, 1), (1, 2), (0, 2)))


@pytest.mark.parametrize("sizes, pairs", [LOOP, ((4, 3, 5, 3, 4), tuple(itertools.combinations(range(5), 2)))])
def test_pairs_agree_in_their_columns(sizes, pairs):
    model = fitted(sizes, *measured(sizes, pairs))
    assert set(model.tables) == set(pairs)
    for (a, b), table in model.tables.items():
        assert table.min() >= 0
        np.testing.assert_allclose(table.sum(axis=1), model.shares[a], atol=1e-6)
        np.testing.assert_allclose(table.sum(axis=0), model.shares[b], atol=1e-6)


def objective(one_way, joint, weights, total, shares, tables):
    """The module's formula, of pseudo-marginals that agree in their columns."""
    found = 0.0
    for item, own in zip(one_way, shares, strict=True):
        found += ((item.counts - total * own) ** 2 * ONE_WAY_TRUST / np.sqrt(item.variance)).sum() / 2
        found += total * (own * (np.log(own) - log_shares(item, total))).sum()
    for item, weight in zip(joint, weights, strict=True):
        table = tables[item.clique]
        found += ((item.counts - total * table) ** 2 * TRUST / np.sqrt(item.variance)).sum() / 2
        found += total * weight * (table * np.log(table / np.outer(table.sum(axis=1), table.sum(axis=0)))).sum()
    return found


def frustrated():
    """Two pairs of equal columns, and a third of opposite ones: no distribution has all three."""
    one_way, joint = measured(*LOOP, sigma=SIGMA)
    same = np.array([[0.5, 0.0, 0.0], [0.0, 0.25, 0.25]])
    for item, shares in zip(joint, (same, same.T, np.array([[0.0, 0.5], [0.5, 0.0]])), strict=True):
        item.counts[...] = RECORDS * shares
    return one_way, joint


@pytest.mark.parametrize("case", [*range(2), "frustrated"])
def test_on_a_loop_the_minimum_is_below_that_of_all_distributions(case):
    """Brute force over the twelve cells of a joint distribution."""
    sizes, pairs = LOOP
    one_way, joint = frustrated() if case == "frustrated" else measured(sizes, pairs, case)
    model = fitted(sizes, one_way, joint)
    weights = [2 / 3] * 3  # of three spanning trees, each pair is in two

    def at(logits):
        shares = np.exp(logits - logits.max()).reshape(sizes)
        shares /= shares.sum()
        own = [shares.sum(axis=tuple({0, 1, 2} - {index})) for index in range(3)]
        tables = {pair: shares.sum(axis=({0, 1, 2} - set(pair)).pop()) for pair in pairs}
        return objective(one_way, joint, weights, model.total, own, tables)

    exact = optimize.minimize(at, np.random.default_rng(1).normal(size=12), method="BFGS").fun
    relaxed = objective(one_way, joint, weights, model.total, model.shares, model.tables)
    assert relaxed < exact + 1e-5 * abs(exact)
    if case == "frustrated":
        assert relaxed < 0.5 * exact


def test_a_minimum_on_a_loop_is_one_among_all_that_agree():
    """Moves that keep all sums of a pair, in any direction, do not improve the fit."""
    sizes, pairs = LOOP
    one_way, joint = measured(sizes, pairs)
    model = fitted(sizes, one_way, joint)
    least = objective(one_way, joint, [2 / 3] * 3, model.total, model.shares, model.tables)
    for pair, (i, j) in itertools.product(pairs, itertools.combinations(range(2), 2)):
        for step in (1e-3, -1e-3):
            move = np.zeros_like(model.tables[pair])
            move[np.ix_([i, j], [0, 1])] = [[step, -step], [-step, step]]
            if (model.tables[pair] + move).min() <= 0:
                continue
            tables = model.tables | {pair: model.tables[pair] + move}
            assert objective(one_way, joint, [2 / 3] * 3, model.total, model.shares, tables) > least


def test_weights_are_shares_of_spanning_forests():
    pairs = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (2, 4), (1, 4), (5, 6)]
    forests = [some for some in itertools.combinations(pairs, 5) if len(set(components(7, some))) == 2]
    expected = [np.mean([pair in some for some in forests]) for pair in pairs]
    np.testing.assert_allclose(resistances(7, pairs), expected)
    assert expected[-1] == 1


def components(columns, pairs):
    found = list(range(columns))
    for a, b in pairs:
        found = [found[a] if item == found[b] else item for item in found]
    return found


def test_the_tree_of_other_pairs_has_the_strongest_measured_ones():
    strong, weak = np.eye(2) / 2, np.array([[0.3, 0.2], [0.2, 0.3]])
    shares = [np.array([0.5, 0.5])] * 3
    assert strongest_tree({(0, 1): weak, (0, 2): strong, (1, 2): strong}, shares) == [(0, 2), (1, 2)]


def test_repeated_measurements_count_by_their_precision():
    sizes, pairs = (3, 3), ((0, 1),)
    one_way, (item,) = measured(sizes, pairs)
    other = Measurement((0, 1), item.counts + 9, item.variance / 4)
    once = Measurement((0, 1), item.counts + 9 * 4 / 5, item.variance / 5)
    found = [fitted(sizes, one_way, some).expected_counts(pairs)[0, 1] for some in ([item, other], [once])]
    np.testing.assert_allclose(*found, atol=1e-6)


def test_only_views_of_all_states_may_be_measured_and_without_pairs_columns_are_independent():
    one_way, _ = measured((3, 2), ())
    model = LocalEstimator([[np.arange(3), np.zeros(3, dtype=int)], [np.arange(2)]], one_way)
    assert model.within([View((0, 1), (1, 0)), View.finest((0, 1))], 0.0) == [View.finest((0, 1))]
    model.fit(9)
    np.testing.assert_allclose(model.expected_counts([(0, 1)])[0, 1], model.total * np.outer(*model.shares), rtol=1e-9)
