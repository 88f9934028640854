"""Mixtures of product distributions against their definition."""

import dataclasses
import math
import shutil

import numpy as np
import pytest
from synth_cases import grant_for, people

from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.synth.interface import generator
from dpsynth_platform.synth.tabular import mixtures
from dpsynth_platform.synth.tabular.estimation import Measurement
from dpsynth_platform.synth.tabular.marginals import model_under
from dpsynth_platform.synth.tabular.model import LEAST_PROBABILITY, load_model, log_likelihood, save_model
from dpsynth_platform.synth.tabular.sampling import drawing


@pytest.fixture(scope="module")
def stored(plan, bounded, tmp_path_factory):
    """A random mixture on disk, whose components rule some states out; its weights and shares, and the directory."""
    fitted, directory = (tmp_path_factory.mktemp(name) for name in ("fitted", "mixture"))
    generator("mst").fit(plan, bounded, grant_for(plan), fitted)
    shutil.copy(fitted / "measurements.jsonl", directory)
    model, rng = load_model(fitted), np.random.default_rng(8)
    hidden = len(model.states)
    weights = rng.dirichlet(np.ones(4))
    shares = [rng.dirichlet(np.full(column.size, 0.5), size=4).T for column in model.states]
    shares[3][0, :3] = 0.0
    with np.errstate(divide="ignore"):
        potentials = {(hidden,): np.log(weights) + 3.0}
        potentials |= {(index, hidden): np.log(share / share.sum(axis=0)) for index, share in enumerate(shares)}
    shares = [share / share.sum(axis=0) for share in shares]
    save_model(directory, dataclasses.replace(model, potentials=potentials, cover=(), components=4))
    return weights, shares, directory


def test_a_stored_mixture_has_the_likelihoods_of_its_definition(stored, monkeypatch):
    monkeypatch.setattr("dpsynth_platform.synth.tabular.model.MIXTURE_ROWS", 64)
    weights, shares, directory = stored
    model, table = load_model(directory), people(200, seed=5)
    assert model.components == 4
    codes = model.domain.encode(table)
    states = [column.state_of[codes[:, index]] for index, column in enumerate(model.states)]
    inside = np.prod([column.share[codes[:, index]] for index, column in enumerate(model.states)], axis=0)
    expected = inside * sum(
        weight * np.prod([share[state, k] for share, state in zip(shares, states, strict=True)], axis=0)
        for k, weight in enumerate(weights)
    )
    assert (expected == 0).sum() < 20
    possible = expected > 0
    found = log_likelihood(model, table)
    np.testing.assert_allclose(found[possible], np.log(expected[possible]), rtol=1e-9)
    assert found.min() > 2 * len(shares) * math.log(LEAST_PROBABILITY)


def test_the_columns_of_a_stored_mixture_are_its_weighted_shares(stored):
    weights, shares, directory = stored
    beliefs = load_model(directory).beliefs(releasable=False)
    for index, share in enumerate(shares):
        home = beliefs.tree.home((index, len(shares)))
        axes = beliefs.tree.axes[home]
        found = beliefs.cliques[home].numpy().sum(axis=1 - axes.index(index))
        np.testing.assert_allclose(found, share @ weights, atol=1e-12)


def test_a_dependency_is_learned_from_a_mixture_and_kept_by_its_rows(stored):
    directory = stored[2]
    model = model_under(directory, [Constraint(column="age", determines="city")])
    assert model.potentials.keys() == load_model(directory).potentials.keys()
    rows = drawing(model, 500, {"member": [True]}).table()
    assert set(rows["member"].to_pylist()) == {True}
    pairs = set(zip(rows["age"].to_pylist(), rows["city"].to_pylist(), strict=True))
    known = [pair for pair in pairs if None not in pair]
    assert len(known) == len({age for age, _ in known}) > 5


SIZES = (3, 2, 4, 2)


def measured(clique, counts, sigma=5.0):
    return Measurement(clique, counts, np.full(counts.shape, sigma**2))


def estimator(method, one_way, components=6):
    made = generator(method)
    return mixtures.MixtureEstimator(one_way, made.start, components=components, rate=made.rate)


def joint_of(potentials):
    """The distribution over all rows by its definition."""
    hidden = len(SIZES)
    joint = np.zeros(SIZES)
    for component, weight in enumerate(np.exp(potentials[(hidden,)])):
        product = np.array(weight)
        for index in range(hidden):
            product = np.multiply.outer(product, np.exp(potentials[(index, hidden)][:, component]))
        joint += product
    return joint


@pytest.fixture
def counts():
    """Of 4,000 records, whose columns are all related."""
    rng = np.random.default_rng(3)
    return 4000 * rng.dirichlet(np.full(math.prod(SIZES), 0.4)).reshape(SIZES)


def over(values, clique):
    return values.sum(axis=tuple(index for index in range(len(SIZES)) if index not in clique))


@pytest.fixture(params=["rap", "gem"])
def fitted(request, counts, monkeypatch):
    """Products of columns are computed for few components at a time."""
    monkeypatch.setattr(mixtures, "CHUNK_NUMBERS", 20)
    monkeypatch.setattr(mixtures, "fresh", lambda: np.random.default_rng(4))
    found = estimator(request.param, [measured((index,), over(counts, (index,))) for index in range(len(SIZES))])
    found.add([measured(clique, over(counts, clique)) for clique in [(0, 1), (1, 2), (0, 2, 3), (0, 1, 2, 3)]])
    found.fit(3)
    return found


def test_expected_counts_are_those_of_the_mixtures_definition(fitted):
    joint = joint_of(fitted.potentials)
    assert joint.sum() == pytest.approx(1)
    cliques = [(0,), (1, 3), (0, 2, 3), (0, 1, 2, 3)]
    for clique, found in fitted.expected_counts(cliques).items():
        np.testing.assert_allclose(found, fitted.total * over(joint, clique), rtol=1e-4)


def test_the_slope_is_that_of_the_loss_by_finite_differences(fitted):
    """Along shares that still sum to one: of two states of a column, one gains what the other loses."""
    views = [replaced(view) for view in fitted._views()]
    fitted._alone = fitted._alone.double()

    def loss(shares):
        joint = joint_of({(4,): np.full(6, -math.log(6))} | dict(by_column(np.log(shares))))
        off = sum(
            ((over(joint, view.clique) - view.shares.numpy()) ** 2 * view.weights.numpy()).sum() for view in views
        )
        pull = (shares * (np.log(shares) - fitted._alone.numpy())).sum() / 6
        return off / 2 + mixtures.PULL * fitted.total * pull

    shares = fitted._shares().detach().double()
    slope = fitted._slope(shares, views).numpy()
    for first, second, component in [(0, 2, 0), (4, 3, 3), (6, 5, 5), (10, 9, 1)]:
        step = np.zeros(shares.shape)
        step[first, component], step[second, component] = 1e-6, -1e-6
        difference = (loss(shares.numpy() + step) - loss(shares.numpy() - step)) / 2e-6
        assert (slope[first, component] - slope[second, component]) / 6 == pytest.approx(difference, rel=1e-4)


def replaced(view):
    return dataclasses.replace(view, shares=view.shares.double(), weights=view.weights.double())


def by_column(logs):
    ends = np.cumsum((0, *SIZES))
    for index, size in enumerate(SIZES):
        yield (index, 4), logs[ends[index] : ends[index] + size]


@pytest.mark.parametrize("method", ["rap", "gem"])
@pytest.mark.whole_fits
def test_a_fit_comes_near_all_counts_whatever_their_cliques(method, counts, monkeypatch):
    """A graphical model of all six pairs would be the whole joint table."""
    monkeypatch.setattr(mixtures, "fresh", lambda: np.random.default_rng(4))
    found = estimator(method, [measured((index,), over(counts, (index,))) for index in range(len(SIZES))], 60)
    pairs = [(a, b) for a in range(4) for b in range(a + 1, 4)]

    def off():
        return max(np.abs(values - over(counts, pair)).max() for pair, values in found.expected_counts(pairs).items())

    before = off()
    found.add([measured(pair, over(counts, pair)) for pair in pairs])
    found.fit(200)
    assert off() < 40 < 200 < before
    assert found.total == pytest.approx(4000)


@pytest.mark.whole_fits
def test_repeated_counts_are_combined_and_impossible_cells_emptied(counts, monkeypatch):
    monkeypatch.setattr(mixtures, "fresh", lambda: np.random.default_rng(4))
    found = estimator("rap", [measured((index,), over(counts, (index,))) for index in range(len(SIZES))], 60)
    pair = over(counts, (0, 1))
    possible = np.ones(pair.shape, dtype=bool)
    possible[0, 0] = False
    found.add([measured((0, 1), pair + 300.0), measured((0, 1), pair - 300.0)])
    found.fit(200)
    before = found.expected_counts([(0, 1)])[(0, 1)]
    assert np.abs(before - pair).max() < 40
    found.add([Measurement((0, 1), np.zeros(pair.shape), np.where(possible, np.inf, 0.25))])
    found.fit(200)
    assert found.expected_counts([(0, 1)])[(0, 1)][0, 0] < 20 < 200 < before[0, 0]
    assert found.total == pytest.approx(4000, rel=0.2)
