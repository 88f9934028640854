"""The curves of a step with several records of a unit: against quadrature, against every cut, against dp_accounting."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, MixtureGaussianPrivacyLoss
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import binom, norm

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy import accounting, mixtures
from dpsynth_platform.privacy.accounting import fft_error, pld_epsilon
from dpsynth_platform.privacy.events import dp_sgd_event
from dpsynth_platform.privacy.mixtures import ROUNDING, SampledMixture

EXTREMES = [
    (0.3, 0.01, 3),
    (100.0, 0.001, 2),
    (100.0, 0.9, 64),
    (0.125, 1e-12, 2),
    (4.0, 1e-12, 64),
    (4.0, 1 - 1e-9, 64),
    (3.9, 0.5, 64),
    (1.0, 1e-6, 16),
    (8.0, 0.05, 64),
    (0.0625, 0.3, 1),
]


def curve(step, direction, e):
    return step.removal(e) if direction == "removal" else step.addition(e)


def grid(step, direction, points):
    low, high = step.removal_range() if direction == "removal" else step.addition_range()
    return np.linspace(low - 0.1, high + 0.1, points)


def theirs(sigma, q, b, direction):
    numbers = np.arange(b + 1)
    return MixtureGaussianPrivacyLoss(
        sigma,
        numbers.astype(float).tolist(),
        binom.pmf(numbers, b, q).tolist(),
        adjacency_type=AdjacencyType.REMOVE if direction == "removal" else AdjacencyType.ADD,
    )


def delta_in_twenty_digits(sigma, q, b, e, direction):
    """Quadrature of the positive part of the difference of the densities."""
    with mpmath.workdps(22):
        sigma, q, e = mpmath.mpf(sigma), mpmath.mpf(q), mpmath.mpf(e)
        p = [mpmath.binomial(b, k) * q**k * (1 - q) ** (b - k) for k in range(b + 1)]
        sign = 1 if direction == "removal" else -1

        def mixture(x):
            return mpmath.fsum(chance * mpmath.npdf(x, k, sigma) for k, chance in enumerate(p))

        def beyond(x):
            return mpmath.log(mixture(x) / mpmath.npdf(x, 0, sigma)) - sign * e

        def integrand(x):
            upper, lower = mixture(x), mpmath.npdf(x, 0, sigma)
            return upper - mpmath.exp(e) * lower if direction == "removal" else lower - mpmath.exp(e) * upper

        even = mpmath.findroot(beyond, (-20 * sigma, b + 20 * sigma), solver="bisect", tol=1e-20, maxsteps=100)
        ends = [even + sign * part * sigma for part in range(0, int(14 + b / sigma), 2)]
        return abs(mpmath.quad(integrand, ends))


@pytest.mark.parametrize(
    ("sigma", "q", "b", "e"), [(1.0, 0.2, 2, 0.7), (0.6, 0.05, 3, 9.0), (2.5, 0.5, 5, -0.8), (1.5, 0.01, 4, 0.03)]
)
def test_curves_by_quadrature_in_twenty_digits(sigma, q, b, e):
    step = SampledMixture(sigma, q, b)
    at = {"removal": [e], "addition": [-e if abs(e) > -step.least_ratio else e]}
    for direction, [place] in at.items():
        claimed = curve(step, direction, np.array([place]))[0]
        exact, less = (delta_in_twenty_digits(sigma, q, b, place - off, direction) for off in (0.0, 4 * ROUNDING))
        assert exact > 1e-9
        assert float(exact) * (1 - 1e-15) <= claimed <= float(less) * (1 + 1e-14) + 4e-16


@pytest.mark.parametrize("direction", ["removal", "addition"])
@pytest.mark.parametrize(("sigma", "q", "b"), EXTREMES)
def test_curves_are_close_above_those_of_dp_accounting(sigma, q, b, direction):
    step, reference = SampledMixture(sigma, q, b), theirs(sigma, q, b, direction)
    e = grid(step, direction, 60)
    if direction == "addition":  # theirs accepts no losses that do not exist, and loses digits next to them
        e = e[e < -step.least_ratio * (1 - 1e-4)]
    mine, other = curve(step, direction, e), np.array(reference.get_delta_for_epsilon(e))
    assert np.all(mine >= other - 4e-16)
    # Theirs rounds x to 1e-6, which costs up to the square of that by half the slope of the density's excess.
    assert np.all(mine - other <= 4.1 * ROUNDING + 1e-12 * b / sigma**3 + 1e-15)
    assert np.all(np.diff(mine) <= 1e-15)


@settings(max_examples=60, deadline=None)
@given(
    b=st.integers(1, 64),
    ratio=st.floats(0.01, 16.4),
    q=st.one_of(st.floats(1e-9, 0.999), st.floats(1e-9, 1e-3)),
    part=st.floats(0, 1),
)
def test_no_cut_of_the_outputs_tells_more_and_the_best_tells_as_much(b, ratio, q, part):
    sigma = b / ratio
    step, numbers = SampledMixture(sigma, q, b), np.arange(b + 1)
    chances = binom.pmf(numbers, b, q)
    x = np.linspace(-11 * sigma, b + 11 * sigma, 1500)
    log_p = binom.logpmf(numbers, b, q)
    log_ratio = logsumexp(log_p + (np.multiply.outer(x, numbers) - numbers**2 / 2) / sigma**2, axis=1)
    for direction, sign in (("removal", 1), ("addition", -1)):
        low, high = step.removal_range() if sign == 1 else step.addition_range()
        e = low + part * (high - low)
        # One cut is the best one, but for what logsumexp rounds.
        cuts = np.append(x, np.interp(sign * e, log_ratio, x))
        with_unit = norm.sf(sign * np.subtract.outer(cuts, numbers) / sigma) @ chances
        without = norm.sf(sign * cuts / sigma)
        upper, lower = (with_unit, without) if sign == 1 else (without, with_unit)
        told = upper - np.exp(e) * lower
        claimed = curve(step, direction, np.array([e]))[0]
        assert np.all(told <= claimed + 1e-12)
        assert claimed <= max(0.0, told.max()) + 4.1 * ROUNDING + 0.01 * upper[np.argmax(told)]


@pytest.mark.parametrize(("sigma", "q", "b"), EXTREMES)
@pytest.mark.parametrize("points", [2, 40, 20_000])
def test_losses_are_inverted_in_a_few_rounds(sigma, q, b, points, monkeypatch):
    monkeypatch.setattr(mixtures, "MAX_ROUNDS", 12)
    step = SampledMixture(sigma, q, b)
    for direction in ("removal", "addition"):
        deltas = curve(step, direction, grid(step, direction, points))
        assert deltas[-1] <= 1e-21 and deltas[0] > 0.05


def test_what_is_not_inverted_or_too_large_is_refused(monkeypatch):
    with pytest.raises(AccountingError, match="18 records at noise 1; accepted: noise from b / 17"):
        SampledMixture(1.0, 0.1, 18)
    monkeypatch.setattr(mixtures, "MAX_ROUNDS", 1)
    with pytest.raises(AccountingError, match="losses of 3 records at noise 1 are out of reach"):
        SampledMixture(1.0, 0.1, 3).removal(np.linspace(0.0, 5.0, 100))


def test_losses_that_do_not_exist_have_no_delta():
    step = SampledMixture(1.0, 0.1, 3)
    most = -3 * math.log1p(-0.1)
    assert step.addition(np.array([most + 1e-9, most + 1.0])).tolist() == [0.0, 0.0]
    assert step.removal(np.array([-50.0, -most - 0.1])) == pytest.approx([1.0, -math.expm1(-most - 0.1)], rel=1e-11)


@pytest.mark.parametrize(
    ("sigma", "q", "b", "steps", "delta"),
    [(1.0, 0.2, 2, 10, 1e-4), (3.0, 0.2, 8, 10, 1e-9), (100.0, 0.05, 4, 1000, 1e-6), (0.5, 0.9, 2, 3, 1e-8)],
)
def test_composed_steps_cost_what_dp_accounting_says(sigma, q, b, steps, delta):
    event = dp_sgd_event(
        records=10_000,
        batch_size=round(10_000 * q),
        noise_multiplier=sigma,
        steps=steps,
        max_contributions=b,
    )
    numbers = np.arange(b + 1)
    reference = privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma,
        numbers.astype(float).tolist(),
        binom.pmf(numbers, b, q).tolist(),
        value_discretization_interval=accounting._interval(event.event),
    ).self_compose(steps)
    expected = reference.get_epsilon_for_delta(delta - fft_error(steps))
    assert expected * (1 - 1e-7) <= pld_epsilon(event, delta) <= expected * (1 + 1e-6)
