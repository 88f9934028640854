"""Mixtures of product distributions against their definition."""

import dataclasses
import math
import shutil

import numpy as np
import pytest
from synth_cases import grant_for, people

from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.synth.interface import generator
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
