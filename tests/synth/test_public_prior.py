"""Public counts as a prior: they give structure that was not measured, as far as measured counts agree."""

import numpy as np
import pytest

from dpsynth_platform.synth.tabular.estimation import Estimator, Measurement
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.synth.tabular.mixtures import MixtureEstimator
from dpsynth_platform.synth.tabular.public_prior import PublicPrior, PublicView, combined_columns
from dpsynth_platform.synth.tabular.rap import Rap
from dpsynth_platform.synth.tabular.resolution import View

SIZE, TOTAL = 4, 10_000.0
GROUPS = [[np.arange(SIZE)]] * 3
RELATED = np.full((SIZE, SIZE), 0.02) + np.eye(SIZE) * (1 - 0.02 * SIZE**2) / SIZE
REVERSED = RELATED[::-1]
FREE = np.full((SIZE, SIZE), 1 / SIZE**2)
ONE_WAY = [Measurement((index,), np.full(SIZE, TOTAL / SIZE), np.full(SIZE, 400.0)) for index in range(3)]


def prior_of(rows=5000, **shares):
    places = {"ab": (0, 1), "ac": (0, 2), "bc": (1, 2)}
    public = {places[name]: np.rint(rows * share).astype(np.int64) for name, share in shares.items()}
    return PublicPrior(public, GROUPS, ONE_WAY, TOTAL)


def measured(clique, shares, sigma=20.0):
    return Measurement(clique, TOTAL * shares, np.full(shares.shape, sigma**2))


def distance(counts, shares):
    return np.abs(np.asarray(counts) / TOTAL - shares).sum() / 2


def models(prior):
    yield Estimator(GROUPS, ONE_WAY, prior=prior), 60
    yield MixtureEstimator(ONE_WAY, Rap().start, components=200, rate=0.1, prior=prior), 200


@pytest.mark.whole_fits
@pytest.mark.parametrize("which", [0, 1])
def test_what_was_never_measured_comes_from_public_rows(which):
    model, steps = list(models(prior_of(ab=RELATED, bc=RELATED)))[which]
    model.fit(steps)
    found = model.expected_counts([(0, 1), (1, 2)])
    assert max(distance(counts, RELATED) for counts in found.values()) < 0.03


@pytest.mark.whole_fits
@pytest.mark.parametrize("which", [0, 1])
def test_what_is_measured_overrules_public_rows_and_makes_them_doubtful(which):
    model, steps = list(models(prior_of(ab=RELATED, bc=RELATED)))[which]
    model.add([measured((0, 1), REVERSED)])
    model.fit(steps)
    found = model.expected_counts([(0, 1), (1, 2)])
    assert distance(found[0, 1], REVERSED) < 0.03
    assert distance(found[1, 2], FREE) < 0.05, "what one pair contradicts says nothing of others"


def test_trust_follows_from_measured_counts():
    prior = prior_of(ab=RELATED, bc=RELATED)
    assert prior.trust([], TOTAL).agreement == 1
    half = FREE + (RELATED - FREE) / 2
    for shares, agreement in ((RELATED, 1.0), (half, 0.5), (FREE, 0.0), (REVERSED, 0.0)):
        found = prior.trust([measured((0, 1), shares)], TOTAL)
        assert found.agreement == pytest.approx(agreement, abs=0.02)
    exact = prior.trust([measured((0, 1), RELATED)], TOTAL)
    assert exact.dispersion == TOTAL / 5000, "never less than that of so few public rows"
    assert prior.trust([measured((0, 2), REVERSED)], TOTAL).agreement == 1, "that pair is not public"


def test_counts_at_a_coarse_resolution_say_as_much():
    groups = [[np.arange(SIZE), np.array([0, 0, 1, 1])]] * 3
    prior = PublicPrior({(0, 1): np.rint(5000 * RELATED).astype(np.int64)}, groups, ONE_WAY, TOTAL)
    view = View((0, 1), (1, 1))
    coarse = Measurement((0, 1), TOTAL * view.sums(FREE, groups), np.full((2, 2), 400.0), (1, 1))
    assert prior.trust([coarse], TOTAL).agreement < 0.02


def test_marginals_of_related_columns_form_a_tree():
    prior = prior_of(ab=RELATED, bc=RELATED, ac=FREE)
    assert prior.tree == [(0, 1), (1, 2)]
    rng = np.random.default_rng(1)
    chance = rng.multinomial(200, FREE.ravel()).reshape(SIZE, SIZE) / 200
    assert prior_of(200, ab=chance).tree == []


def test_relations_are_kept_where_columns_differ():
    """A public table with other shares of single columns has the same odds ratios."""
    scale = np.array([4.0, 1.0, 1.0, 0.5])
    skewed = RELATED * scale[:, None]
    prior = prior_of(10**6, ab=skewed / skewed.sum())
    assert prior.shares[0, 1] == pytest.approx(RELATED, rel=0.02)
    assert prior.shares[0, 1].sum(0) == pytest.approx(np.full(SIZE, 1 / SIZE))


def test_a_taken_marginal_is_believed_whatever_others_say():
    prior = prior_of(ab=RELATED, bc=RELATED)
    prior.take((1, 2), 400.0)
    model = Estimator(GROUPS, ONE_WAY, prior=prior)
    model.add([measured((0, 1), REVERSED)])
    model.fit(60)
    assert distance(model.expected_counts([(1, 2)])[1, 2], RELATED) < 0.03


def test_noisy_columns_gain_by_public_ones_that_agree_and_lose_nothing_by_others():
    rng = np.random.default_rng(3)
    shares = rng.dirichlet(np.ones(50))
    noisy = NoisyCounts((0,), np.rint(TOTAL * shares + rng.normal(0, 80, 50)).astype(np.int64), 80.0)

    def error(counts):
        return np.abs(counts - TOTAL * shares).sum()

    (alike,) = combined_columns([noisy], {(0,): rng.multinomial(20_000, shares)})
    assert error(alike.counts) < error(noisy.counts) / 3 and alike.sigma < 40
    (other,) = combined_columns([noisy], {(0,): rng.multinomial(20_000, shares[::-1])})
    assert error(other.counts) < 1.2 * error(noisy.counts)
    assert combined_columns([noisy], {}) == [noisy]


def test_a_public_candidate_is_no_candidate_for_measurement():
    assert PublicView.finest((0, 1)) != View.finest((0, 1))
    assert len({PublicView.finest((0, 1)): 1, View.finest((0, 1)): 2}) == 2
