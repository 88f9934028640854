"""Costs against computations that share nothing with the accountant: high precision, closed forms, own convolutions."""

import itertools
import math

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from scipy.optimize import brentq
from scipy.signal import fftconvolve
from scipy.stats import binom, norm

from dpsynth_platform.privacy.accounting import (
    bounded_range_hockey_stick,
    epsilon,
    pld_epsilon,
    renyi_curve,
    threshold_slack,
)
from dpsynth_platform.privacy.events import (
    BoundedRangeSelectionEvent,
    GaussianCountsEvent,
    ParallelDpEvent,
    SampledGaussianEvent,
    ThresholdedCountsEvent,
    histogram_event,
)
from dpsynth_platform.privacy.renyi import ORDERS
from dpsynth_platform.privacy.sampled import sampled_gaussian_renyi


def repeated(event, times):
    return dp_event.SelfComposedDpEvent(event, times)


def together(*events):
    return dp_event.ComposedDpEvent(list(events))


def step(sigma, q, b):
    return SampledGaussianEvent(sigma, q, "record", "add-or-remove", b)


def gaussian_delta(ratio, e):
    return norm.cdf(ratio / 2 - e / ratio) - np.exp(e) * norm.cdf(-ratio / 2 - e / ratio)


# Sampled Gaussians


@pytest.mark.parametrize(
    ("sigma", "q", "b", "order"),
    [(0.7, 0.003, 1, 2.0), (1.2, 0.02, 3, 3.0), (0.9, 0.5, 2, ORDERS[20]), (2.5, 0.9, 4, 9.0)],
)
def test_renyi_of_a_step_in_thirty_digits(sigma, q, b, order):
    with mpmath.workdps(30):
        s, p, a = mpmath.mpf(sigma), mpmath.mpf(q), mpmath.mpf(order)

        def mixture(x):
            return mpmath.fsum(
                mpmath.binomial(b, k) * p**k * (1 - p) ** (b - k) * mpmath.npdf(x, k, s) for k in range(b + 1)
            )

        def divergence(one, other):
            reach = 20 * s + 2 * a * b
            grid = mpmath.linspace(-reach, reach, 25)
            return mpmath.log(mpmath.quad(lambda x: one(x) ** a * other(x) ** (1 - a), grid, maxdegree=5)) / (a - 1)

        def alone(x):
            return mpmath.npdf(x, 0, s)

        exact = max(divergence(mixture, alone), divergence(alone, mixture))
    mine = sampled_gaussian_renyi(sigma, q, b, False)[ORDERS.index(order)]
    assert exact <= mine
    assert mine <= exact * (1 + 1e-8 if order == int(order) else 1.2)  # between whole orders along a chord


@pytest.mark.parametrize("delta", [1e-8, 1e-4])
@pytest.mark.parametrize(("sigma", "q", "b"), [(0.8, 0.01, 1), (1.3, 0.2, 4), (0.6, 0.6, 2), (5.0, 0.05, 10)])
def test_one_step_by_integration(sigma, q, b, delta):
    """The hockey-stick divergence at the claimed epsilon, in both directions, is delta or a hair below."""
    claimed = pld_epsilon(step(sigma, q, b), delta)
    x = np.linspace(-12 * sigma, 12 * sigma + b, 100_001)
    mixture = sum(binom.pmf(k, b, q) * norm.pdf(x, k, sigma) for k in range(b + 1))
    alone = norm.pdf(x, 0, sigma)
    spent = [
        np.maximum(one - math.exp(claimed) * other, 0).sum() * (x[1] - x[0])
        for one, other in ((mixture, alone), (alone, mixture))
    ]
    assert 0.995 * delta < max(spent) <= delta * (1 + 1e-9)


def losses(sigma, q, b, grid, forward):
    """Masses of one step's privacy loss on a grid, each loss rounded down; and the place of the first."""
    x = np.linspace(-12 * sigma, 12 * sigma + b, 100_001)
    mixture = np.logaddexp.reduce([binom.logpmf(k, b, q) + norm.logpdf(x, k, sigma) for k in range(b + 1)], axis=0)
    ratio = mixture - norm.logpdf(x, 0, sigma)
    masses = np.exp(mixture if forward else mixture - ratio) * (x[1] - x[0])
    place = np.floor((ratio if forward else -ratio) / grid).astype(int)
    return np.bincount(place - place.min(), weights=masses), int(place.min())


def beyond(e, loss, masses):
    """The hockey-stick divergence at e of a distribution of losses."""
    tail = loss > e
    return float((masses[tail] * -np.expm1(e - loss[tail])).sum())


@pytest.mark.parametrize(
    ("parts", "delta"),
    [([((1.1, 0.05, 1), 3), ((1.8, 0.1, 3), 2)], 1e-5), ([((2.5, 0.3, 2), 4), ((4.0, 0.02, 6), 4)], 1e-3)],
)
def test_steps_of_different_kinds_by_an_own_convolution(parts, delta):
    """Losses rounded down give a lower bound on epsilon, which is less than a grid step for each mechanism away."""
    claimed, grid = pld_epsilon(together(*(repeated(step(*how), times) for how, times in parts)), delta), 1e-3
    lower = 0.0
    for forward in (True, False):
        masses, first = np.ones(1), 0
        for how, times in parts:
            one, place = losses(*how, grid, forward)
            for _ in range(times):
                masses, first = fftconvolve(masses, one), first + place
        loss = grid * (first + np.arange(len(masses)))
        lower = max(lower, brentq(lambda e, *tail: beyond(e, *tail) - delta, 0, 50, args=(loss, masses)))
    steps = sum(times for _, times in parts)
    assert lower <= claimed <= lower + grid * steps


# Gaussians of different widths


@pytest.mark.parametrize("parts", [[(3.0, 40), (11.0, 200)], [(0.9, 1), (50.0, 5)], [(200.0, 5000), (30.0, 3)]])
@pytest.mark.parametrize("delta", [1e-9, 1e-3])
def test_gaussians_compose_to_a_gaussian(parts, delta):
    event = together(*(repeated(GaussianCountsEvent(sigma, "zero-out", 1), times) for sigma, times in parts))
    ratio = math.sqrt(sum(times / sigma**2 for sigma, times in parts))
    exact = brentq(lambda e: gaussian_delta(ratio, e) - delta, 0, 300)
    assert exact <= pld_epsilon(event, delta) <= exact * (1 + 2e-4)
    assert exact < renyi_curve(event).epsilon(delta) < 1.3 * exact


# Discrete Gaussians beside choices


def discrete_losses(sigma, shift):
    """Losses and masses of discrete Gaussian counts that are moved by `shift`, equal losses as one."""
    cells = np.arange(-math.ceil(9 * sigma) - 3, math.ceil(9 * sigma) + 4)
    weights = np.exp(-(cells**2.0) / (2 * sigma**2))
    weights /= weights.sum()
    twice, masses = np.zeros(1), np.ones(1)  # losses times 2 sigma^2 are integers
    for moved in shift:
        twice = np.add.outer(twice, moved**2 - 2 * cells * moved).ravel()
        masses = np.multiply.outer(masses, weights).ravel()
    distinct, place = np.unique(twice, return_inverse=True)
    return distinct / (2 * sigma**2), np.bincount(place, weights=masses)


@pytest.mark.parametrize(("narrow", "wide", "choice", "delta"), [(2.3, 7.0, 0.3, 1e-4), (0.6, 1.4, 1.5, 1e-6)])
def test_counts_beside_a_choice_outcome_by_outcome(narrow, wide, choice, delta):
    """Two tables of different noise and a choice, under all changes that two records can make, mixed at will."""
    event = together(
        *(histogram_event(sigma, max_contributions=2) for sigma in (narrow, wide)),
        BoundedRangeSelectionEvent(choice, "add-or-remove", 2),
    )
    claimed, worst = pld_epsilon(event, delta), 0.0
    for one, other in itertools.product([(2,), (1, 1), (1,)], repeat=2):
        (first, p), (second, q) = discrete_losses(narrow, one), discrete_losses(wide, other)
        loss, mass = np.add.outer(first, second).ravel(), np.multiply.outer(p, q).ravel()
        for t in np.linspace(0.02, 0.98, 25) * choice:
            chance = math.expm1(t - choice) / math.expm1(-choice)
            spent = sum(
                (mass * part * np.maximum(-np.expm1(np.minimum(claimed - loss - more, 0)), 0)).sum()
                for part, more in ((chance, t), (1 - chance, t - choice))
            )
            worst = max(worst, spent)
    assert 0.5 * delta < worst <= delta


# Choices


@pytest.mark.parametrize("eps", [0.05, 0.7, 3.0, 12.0])
def test_renyi_of_the_worst_choice(eps):
    t = np.linspace(0, eps, 20_001)[1:-1]
    first = np.expm1(t - eps) / np.expm1(-eps)
    curve = renyi_curve(BoundedRangeSelectionEvent(eps, "zero-out", 1))
    for order in ORDERS[::9]:
        logs = np.logaddexp(np.log(first) + (order - 1) * t, np.log1p(-first) + (order - 1) * (t - eps))
        exact = logs.max() / (order - 1)
        assert 0.2 * curve.at(order) < exact <= curve.at(order) * (1 + 1e-12)


# Thresholds where records are replaced


def shown(sigma, count, threshold, reach):
    """Distribution of a cell's outcome: hidden (first), or a noisy count from the threshold up."""
    noise = np.arange(-reach, reach + 1)
    weights = np.exp(-(noise**2.0) / (2 * sigma**2))
    weights /= weights.sum()
    outcome = np.zeros(2 * reach + 20)
    if count == 0:
        outcome[0] = 1.0
        return outcome
    passing = noise + count >= threshold
    outcome[0] = weights[~passing].sum()
    outcome[noise[passing] + count + reach] = weights[passing]
    return outcome


@pytest.mark.parametrize(("adjacency", "b"), [("add-or-remove", 2), ("replace-one", 1), ("fixed-graph", 2)])
def test_thresholds_cell_by_cell(adjacency, b):
    """A popular cell and two that nobody else has: all ways for one unit's records to be there before and after."""
    sigma, threshold, reach = 2.0, 11.5, 20
    event = ThresholdedCountsEvent(sigma, threshold, adjacency, b)
    ways, worst = list(itertools.product(range(3), repeat=b)), 0.0
    delta = 3 * threshold_slack(event)
    claimed = epsilon(event, delta).epsilon

    def outcome(places):
        cells = [shown(sigma, others + places.count(cell), threshold, reach) for cell, others in enumerate((7, 0, 0))]
        return np.einsum("i,j,k->ijk", *cells)

    for before, after in itertools.product(ways, [()] if adjacency == "add-or-remove" else ways):
        p, q = outcome(before), outcome(after)
        for one, other in ((p, q), (q, p)):
            worst = max(worst, np.maximum(one - math.exp(claimed) * other, 0).sum())
    assert 0.03 * delta < worst <= delta


# Parallel branches


def test_branches_that_outcomes_decide_cost_more_than_the_dearest():
    """Why nothing that was shown before may decide in which branch a unit is (`ParallelDpEvent`).

    First a noisy count; then, by what it showed, a choice or another noisy count. Each way costs the same epsilon.
    """
    delta, first = 1e-3, 3.0
    before = GaussianCountsEvent(first, "add-or-remove", 1)
    choice = BoundedRangeSelectionEvent(2.0, "add-or-remove", 1)
    target = pld_epsilon(together(before, choice), delta)
    other = brentq(lambda noise: gaussian_delta(math.hypot(1 / first, 1 / noise), target) - delta, 0.3, 100)
    count = GaussianCountsEvent(other, "add-or-remove", 1)
    claimed = epsilon(together(before, ParallelDpEvent([choice, count])), delta).epsilon
    assert claimed == pytest.approx(target, rel=1e-3)

    x = np.linspace(-12 * first, 12 * first + 1, 100_001)
    rest = claimed - (2 * x - 1) / (2 * first**2)
    by_choice, by_count = bounded_range_hockey_stick(2.0, rest), gaussian_delta(1 / other, np.minimum(rest, 50.0))

    def spent(conditional):
        return float((norm.pdf(x, 1, first) * conditional).sum() * (x[1] - x[0]))

    assert max(spent(by_choice), spent(by_count)) <= delta * (1 + 1e-3)
    assert spent(np.maximum(by_choice, by_count)) > 1.1 * delta
