"""Calibration, pinned on CTCL (Tan et al. 2025), appendices D and E, PubMed."""

import math

import pytest
from dp_accounting import dp_event
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy import calibration
from dpsynth_platform.privacy.accounting import EpsilonResult, delta_slack, epsilon
from dpsynth_platform.privacy.calibration import (
    NOISE_STEP,
    contributions_for,
    noise_for,
    steps_for,
    temperature_for,
    threshold_for,
)
from dpsynth_platform.privacy.events import ThresholdedCountsEvent, dp_sgd_event, histogram_event, token_selection_event
from dpsynth_platform.privacy.guarantee import recommended_delta

RECORDS = 75_316
DELTA = recommended_delta(RECORDS, "logarithm")
HISTOGRAM = histogram_event(10.0)


def training(noise, steps=2000, b=1, sampled="record"):
    return dp_sgd_event(
        records=RECORDS,
        batch_size=4096,
        noise_multiplier=noise,
        steps=steps,
        max_contributions=b,
        sampled=sampled,
    )


def with_histogram(noise):
    return dp_event.ComposedDpEvent([HISTOGRAM, training(noise)])


@pytest.mark.parametrize(("eps", "noise"), [(4, 3.01), (2, 5.49), (1, 10.3)])
def test_noise_of_ctcl_appendix_e(eps, noise):
    found = noise_for(training, eps, DELTA)
    assert found.value == pytest.approx(noise, rel=0.01)
    assert 0.998 * eps < found.result.epsilon <= eps
    assert found.result == epsilon(training(found.value), DELTA)


@pytest.mark.parametrize(
    ("eps", "noise", "histogram", "alone"), [(4, 3.03, 0.39, 3.96), (2, 5.63, 0.39, 1.94), (1, 11.33, 0.39, 0.9)]
)
def test_split_budget_of_ctcl_appendix_d(eps, noise, histogram, alone):
    found = noise_for(with_histogram, eps, DELTA)
    assert found.value == pytest.approx(noise, rel=0.01)
    assert 0.998 * eps < found.result.epsilon <= eps
    assert epsilon(HISTOGRAM, DELTA).epsilon == pytest.approx(histogram, abs=0.005)
    assert epsilon(training(found.value), DELTA).epsilon == pytest.approx(alone, abs=0.01)


def test_the_histogram_may_be_continuous_as_in_the_paper():
    event = dp_event.ComposedDpEvent([histogram_event(10.0, discrete=False), training(11.33)])
    assert epsilon(event, DELTA).epsilon == pytest.approx(1, abs=0.01)


def test_more_noise_in_the_histogram_leaves_more_for_training():
    """Appendix D: from 10 to 20 changes the noise multiplier from 3.03 to 3.02."""
    found = noise_for(lambda noise: dp_event.ComposedDpEvent([histogram_event(20.0), training(noise)]), 4, DELTA)
    assert found.value == pytest.approx(3.02, rel=0.01)
    assert found.value <= noise_for(with_histogram, 4, DELTA).value


def test_steps_invert_noise():
    noise = noise_for(training, 4, DELTA).value
    found = steps_for(lambda steps: training(noise, steps), 4, DELTA)
    assert 2000 <= found.value <= 2010
    assert epsilon(training(noise, found.value + 1), DELTA).epsilon > 4 >= found.result.epsilon


def test_contribution_bound_inverts_noise():
    """Four records of a user cost epsilon 4 at a noise multiplier of 11.61, found by calibrating the noise."""
    found = contributions_for(lambda b: training(11.61, b=b), 4, DELTA)
    assert found.value == 4
    assert 0.99 * 4 < found.result.epsilon <= 4 < epsilon(training(11.61, b=5), DELTA).epsilon


def test_records_of_users_need_more_noise_than_users_sampled():
    by_user = noise_for(lambda noise: training(noise, b=2, sampled="user"), 4, DELTA).value
    assert by_user == pytest.approx(3.005, rel=2e-3)
    needed = [epsilon(training(times * by_user, b=2), DELTA).epsilon for times in (1.5, 2.2)]
    assert needed[0] > 4 > needed[1]


@pytest.mark.parametrize("eps", [0.3, 4, 20])
def test_noise_for_records_of_users_is_found_in_few_evaluations(eps, monkeypatch):
    asked = []

    def counted(event, delta):
        asked.append(event)
        return epsilon(event, delta)

    def steps(noise):
        return dp_sgd_event(records=1000, batch_size=200, noise_multiplier=noise, steps=10, max_contributions=2)

    monkeypatch.setattr(calibration, "epsilon", counted)
    found = noise_for(steps, eps, 1e-4)
    assert len(asked) == len(set(asked)) <= 8
    assert found.result == epsilon(steps(found.value), 1e-4)
    least = found.value - max(NOISE_STEP, found.value / 1000)
    assert found.result.epsilon <= eps < epsilon(steps(least), 1e-4).epsilon


@settings(max_examples=200, deadline=None)
@given(
    least=st.floats(0.02, 1e5),
    below=st.floats(1.0001, 1e9),
    power=st.sampled_from([0.0, 1e-3, 1.0, 30.0]),
)
def test_noise_is_found_whatever_the_cost_looks_like(least, below, power):
    """A cliff at `least`, on a slope: the search ends, soon, at a noise that was checked, a 1000th above at most."""
    asked = []

    def cost(event, delta):
        asked.append(event.sigma)
        falling = (least / event.sigma) ** power
        return EpsilonResult(min(1.0, falling) if event.sigma >= least else below * falling, delta, "pld", 1.0, 1.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calibration, "epsilon", cost)
        found = noise_for(lambda noise: histogram_event(noise, discrete=False), 1.0, 1e-6)
    assert found.value >= least > found.value - max(NOISE_STEP, found.value / 1000) * (1 + 1e-12)
    assert found.value in asked and found.result.epsilon <= 1
    assert len(asked) <= 35


def test_small_epsilon_and_large_epsilon():
    for eps in (0.05, 30.0):
        found = noise_for(lambda noise: histogram_event(noise), eps, 1e-6)
        assert 0.98 * eps < found.result.epsilon <= eps


def test_noise_under_a_threshold_may_be_too_little_and_too_much():
    def shown_from_60(noise):
        return ThresholdedCountsEvent(noise, 60.0, "add-or-remove", 1)

    found = noise_for(shown_from_60, 1, 1e-6)
    assert found.value == pytest.approx(4.23, rel=0.01)
    assert 0.99 < found.result.epsilon <= 1
    with pytest.raises(AccountingError, match=r"no noise meets epsilon 0\.1 .* with threshold 60; accepted: a higher"):
        noise_for(shown_from_60, 0.1, 1e-6)


def test_noise_is_found_where_only_a_narrow_range_of_it_meets_the_target():
    """With threshold 24 the least epsilon is 0.9645, at a noise of 4.47; from 4.63 on the threshold takes delta."""

    def shown_from_24(noise):
        return ThresholdedCountsEvent(noise, 24.0, "add-or-remove", 1)

    for eps in (0.966, 0.97, 0.99):
        found = noise_for(shown_from_24, eps, 1e-6)
        assert found.result.epsilon <= eps < epsilon(shown_from_24(0.995 * found.value), 1e-6).epsilon
    with pytest.raises(AccountingError, match=r"no noise meets epsilon 0\.95 .* with threshold 24"):
        noise_for(shown_from_24, 0.95, 1e-6)


def test_contribution_bound_under_a_threshold():
    def shown_from_30(b, noise=5.0):
        return ThresholdedCountsEvent(noise, 30.0, "add-or-remove", b)

    found = contributions_for(shown_from_30, 4, 1e-6)
    assert found.value == 4 and found.result.epsilon <= 4
    assert epsilon(shown_from_30(5), 1e-6).epsilon > 4
    assert delta_slack(shown_from_30(8)) > 1e-6  # where the search first looks beyond: no epsilon at all
    assert contributions_for(lambda b: shown_from_30(b, 1.0), 1e6, 0.9).value == 29  # 30 would not be above b
    with pytest.raises(AccountingError, match="threshold 30 alone takes"):
        contributions_for(lambda b: shown_from_30(b, 20.0), 4, 1e-6)


def test_least_threshold():
    def shown_from(threshold):
        return ThresholdedCountsEvent(5.0, float(threshold), "add-or-remove", 2)

    found = threshold_for(shown_from, 2, 1e-6, above=2)
    assert found.result.epsilon <= 2
    below = shown_from(found.value - 1)
    assert delta_slack(below) >= 1e-6 or epsilon(below, 1e-6).epsilon > 2
    with pytest.raises(AccountingError, match="noisy counts alone cost more"):
        threshold_for(shown_from, 0.5, 1e-6, above=2)


def test_least_temperature():
    def tokens(temperature):
        return token_selection_event(tokens=500, clipping_norm=10.0, temperature=temperature, batch_size=250)

    found = temperature_for(tokens, 2, 1e-6)
    assert found.result.epsilon <= 2 < epsilon(tokens(0.998 * found.value), 1e-6).epsilon


@pytest.mark.parametrize("eps", [0.0, -1.0, math.nan, math.inf])
def test_impossible_epsilons_are_refused(eps):
    with pytest.raises(AccountingError, match="epsilon"):
        noise_for(training, eps, DELTA)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_impossible_deltas_are_refused(delta):
    with pytest.raises(AccountingError, match="delta"):
        steps_for(lambda steps: training(3.0, steps), 1.0, delta)


def test_what_no_parameter_meets_is_refused():
    with pytest.raises(AccountingError, match="less spent on the other parts"):
        noise_for(with_histogram, 0.1, DELTA)
    with pytest.raises(AccountingError, match="one step costs more"):
        steps_for(lambda steps: training(0.1, steps), 0.5, DELTA)
    with pytest.raises(AccountingError, match="one record of a unit costs more"):
        contributions_for(lambda b: histogram_event(1.0, max_contributions=b), 0.5, DELTA)
