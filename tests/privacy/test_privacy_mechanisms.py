"""Every mechanism's cost against something that was computed in another way."""

import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import pld_privacy_accountant, privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import binom, norm

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy import sampled
from dpsynth_platform.privacy.accounting import (
    bounded_range_hockey_stick,
    cost,
    epsilon,
    group_epsilon,
    pld_epsilon,
    renyi_curve,
    shift_hockey_stick,
    threshold_slack,
)
from dpsynth_platform.privacy.events import (
    MAX_HISTORIES,
    BoundedRangeSelectionEvent,
    GaussianCountsEvent,
    ParallelDpEvent,
    SampledGaussianEvent,
    ThresholdedCountsEvent,
    dp_sgd_event,
    event_from_json,
    event_to_json,
    histogram_event,
    histories,
    token_selection_event,
)
from dpsynth_platform.privacy.guarantee import recommended_delta
from dpsynth_platform.privacy.renyi import ORDERS
from dpsynth_platform.privacy.sampled import sampled_gaussian_renyi


def step(sigma, q, b=1, adjacency="add-or-remove", sampled="record"):
    return SampledGaussianEvent(sigma, q, sampled, adjacency, b)


def repeated(event, times):
    return dp_event.SelfComposedDpEvent(event, times)


def together(*events):
    return dp_event.ComposedDpEvent(list(events))


def log_mixture(x, sigma, q, b, unit=1.0):
    k = np.arange(b + 1)
    return logsumexp(binom.logpmf(k, b, q) + norm.logpdf(x[:, None], k * unit, sigma), axis=1)


def renyi_by_quadrature(log_p, log_q, x, order):
    logs = order * log_p + (1 - order) * log_q
    return float(logsumexp(logs) + math.log(x[1] - x[0])) / (order - 1)


def gaussian_delta(ratio, e):
    """Balle & Wang 2018, theorem 8: sensitivity over deviation is `ratio`."""
    return norm.cdf(ratio / 2 - e / ratio) - math.exp(e) * norm.cdf(-ratio / 2 - e / ratio)


# DP-SGD


@pytest.mark.parametrize(("sigma", "q"), [(0.6, 0.01), (1.0, 0.05), (3.01, 0.0544), (10.0, 0.5)])
def test_one_record_is_the_subsampled_gaussian(sigma, q):
    event = repeated(step(sigma, q), 300)
    theirs = dp_event.SelfComposedDpEvent(dp_event.PoissonSampledDpEvent(q, dp_event.GaussianDpEvent(sigma)), 300)
    orders = [float(order) for order in ORDERS if order == int(order) and order <= 65]
    assert len(orders) >= 6
    rdp = rdp_privacy_accountant.RdpAccountant(orders).compose(theirs)
    assert [renyi_curve(event).at(order) for order in orders] == pytest.approx(list(rdp.rdp), rel=1e-5)
    accountant = pld_privacy_accountant.PLDAccountant().compose(theirs)
    assert pld_epsilon(event, 1e-6) == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)


def test_mixture_of_gaussians_at_one_record_is_the_subsampled_gaussian():
    mixture = dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.95, 0.05])
    theirs = pld_privacy_accountant.PLDAccountant(value_discretization_interval=5e-4)
    theirs.compose(dp_event.SelfComposedDpEvent(mixture, 200))
    assert pld_epsilon(repeated(step(1.0, 0.05), 200), 1e-6) == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-3)


@pytest.mark.parametrize(("sigma", "q", "b"), [(1.0, 0.05, 1), (1.5, 0.1, 2), (2.0, 0.02, 5), (4.0, 0.3, 8)])
def test_renyi_of_several_records_bounds_both_directions(sigma, q, b):
    curve = sampled_gaussian_renyi(sigma, q, b, False)
    x = np.arange(-40 * sigma, 40 * sigma + 40 * b, sigma / 64)
    mixture, zero = log_mixture(x, sigma, q, b), norm.logpdf(x, 0, sigma)
    for order in (1.25, 1.5, 2.0, 3.0, ORDERS[20], 5.0, 9.0, 17.0):
        forward = renyi_by_quadrature(mixture, zero, x, order)
        backward = renyi_by_quadrature(zero, mixture, x, order)
        mine = curve[ORDERS.index(order)]
        assert max(forward, backward) <= mine * (1 + 1e-6) + 1e-10
        if order == int(order):
            assert mine == pytest.approx(max(forward, backward), rel=1e-5)


@pytest.mark.parametrize(("sigma", "q", "b"), [(1.0, 1e-9, 2), (0.4, 0.2, 2), (20.0, 0.05, 3), (8.0, 0.9, 64)])
def test_quadrature_and_convolution_give_one_curve(sigma, q, b, monkeypatch):
    """Ledgers hold curves of either and compare them, to a billionth."""
    curves = []
    for points, table in ((sampled.MAX_QUADRATURE, False), (0, True)):
        monkeypatch.setattr(sampled, "MAX_QUADRATURE", points)
        one = sampled._Step(sigma, q, b)
        assert (one.table is not None) == table
        curves.append(np.array([one.divergence(order) for order in ORDERS]))
    integrated, convolved = curves
    assert np.all(np.abs(integrated - convolved) <= 1e-12 + 1e-11 * convolved)


@pytest.mark.parametrize("b", [1, 3])
def test_renyi_curve_never_falls_and_never_passes_the_full_batch(b):
    curve = np.array(sampled_gaussian_renyi(1.5, 0.1, b, False))
    assert np.all(np.diff(curve) > -1e-12) and curve[-1] > 10 * curve[0] > 0
    assert np.all(curve <= np.array(ORDERS) * b**2 / (2 * 1.5**2) * (1 + 1e-12))


def monte_carlo_delta(sigma, q, b, steps, e, rng, forward, samples=200_000):
    """delta(e) and a bound on its error that fails with probability below 1e-7 (Bernstein, empirical)."""
    losses = np.zeros(samples)
    k = np.arange(b + 1)
    log_p = binom.logpmf(k, b, q)
    for _ in range(steps):
        drawn = rng.binomial(b, q, samples) if forward else 0
        x = drawn + sigma * rng.standard_normal(samples)
        ratio = logsumexp(log_p + (np.multiply.outer(x, k) - k * k / 2) / sigma**2, axis=1)
        losses += ratio if forward else -ratio
    values = np.maximum(-np.expm1(np.minimum(e - losses, 0.0)), 0.0)
    error = math.sqrt(2 * values.var() * 17.5 / samples) + 7 * 17.5 / (3 * samples)
    return values.mean(), error


@pytest.mark.parametrize(("sigma", "q", "b"), [(1.5, 0.1, 3), (1.0, 0.05, 1)])
def test_monte_carlo_of_the_privacy_loss(sigma, q, b):
    delta, steps, rng = 0.02, 20, np.random.default_rng(20_261_120)
    claimed = pld_epsilon(repeated(step(sigma, q, b), steps), delta)
    found = [monte_carlo_delta(sigma, q, b, steps, claimed, rng, forward) for forward in (True, False)]
    for value, error in found:
        assert value <= delta + error
    value, error = max(found)
    assert error < 0.1 * delta
    assert value >= delta * 0.98 - error


def test_a_full_batch_is_the_gaussian_mechanism():
    for adjacency, moved in (("add-or-remove", 3), ("zero-out", 3), ("replace-one", 6)):
        claimed = epsilon(step(20.0, 1.0, 3, adjacency), 1e-6)
        assert claimed.method == "pld"
        assert gaussian_delta(moved / 20.0, claimed.epsilon) == pytest.approx(1e-6, rel=0.01)
        assert renyi_curve(step(20.0, 1.0, 3, adjacency)).at(2.0) == pytest.approx(2 * moved**2 / 800, rel=1e-9)


@pytest.mark.parametrize(("sigma", "q", "b"), [(1.5, 0.1, 1), (3.0, 0.05, 2)])
def test_replacement_is_bounded_whatever_the_gradients(sigma, q, b):
    curve = sampled_gaussian_renyi(sigma, q, b, True)
    removal = sampled_gaussian_renyi(sigma, q, b, False)
    x = np.arange(-60 * sigma, 60 * sigma, sigma / 64)
    for one, other in ((1.0, -1.0), (1.0, 0.0), (1.0, 0.5), (0.3, -1.0)):
        p, r = log_mixture(x, sigma, q, b, one), log_mixture(x, sigma, q, b, other)
        for order in (1.5, 2.0, 3.0, 9.0):
            assert renyi_by_quadrature(p, r, x, order) <= curve[ORDERS.index(order)] * (1 + 1e-9)
    assert all(2 * less < more for less, more in zip(removal, curve, strict=True))
    assert pld_epsilon(step(sigma, q, b, "replace-one"), 1e-6) is None


def test_sampling_users_costs_as_one_record_whatever_b():
    by_user = epsilon(repeated(step(2.0, 0.05, 7, sampled="user"), 100), 1e-6)
    assert by_user == epsilon(repeated(step(2.0, 0.05), 100), 1e-6)
    assert epsilon(repeated(step(2.0, 0.05, 2), 100), 1e-6).epsilon > 1.3 * by_user.epsilon


def test_zero_out_costs_as_much_as_add_or_remove():
    for make in (
        lambda adjacency: step(2.0, 0.05, 2, adjacency),
        lambda adjacency: histogram_event(5.0, adjacency, 3),
        lambda adjacency: ThresholdedCountsEvent(5.0, 60.0, adjacency, 2),
    ):
        assert epsilon(make("zero-out"), 1e-6) == epsilon(make("add-or-remove"), 1e-6)


def test_a_replayed_batch_costs_more_than_a_fresh_one():
    """200 steps at q = 0.05, sigma = 1: 5.49; five replayed with fresh noise: 6.08; five fresh ones: 5.55."""
    delta, once = 1e-6, step(1.0, 0.05)
    twice = step(1 / math.sqrt(2), 0.05)  # two looks at one batch
    assert epsilon(repeated(once, 200), delta).epsilon == pytest.approx(5.49, abs=0.005)
    assert epsilon(repeated(once, 205), delta).epsilon == pytest.approx(5.55, abs=0.005)
    replayed = together(repeated(once, 195), repeated(twice, 5))
    assert epsilon(replayed, delta).epsilon == pytest.approx(6.08, abs=0.005)


def test_where_mixtures_are_too_large_renyi_is_claimed():
    result = epsilon(step(200.0, 0.1, 65), 1e-6)
    assert (result.method, result.pld) == ("renyi", None)
    assert math.isfinite(result.epsilon)


def test_beyond_many_records_the_gain_from_sampling_is_given_away():
    assert renyi_curve(step(500.0, 0.1, 256)).at(2.0) < 0.2 * renyi_curve(step(500.0, 1.0, 256)).at(2.0)
    for adjacency in ("add-or-remove", "replace-one"):
        assert renyi_curve(step(500.0, 0.1, 257, adjacency)) == renyi_curve(step(500.0, 1.0, 257, adjacency))


# Histograms and votes


@pytest.mark.parametrize(("adjacency", "b", "l2"), [("add-or-remove", 2, 2.0), ("replace-one", 2, 2 * math.sqrt(2))])
def test_continuous_counts_by_the_closed_form(adjacency, b, l2):
    claimed = pld_epsilon(GaussianCountsEvent(9.0, adjacency, b), 1e-5)
    assert gaussian_delta(l2 / 9.0, claimed) == pytest.approx(1e-5, rel=0.01)
    assert gaussian_delta(l2 / 9.0, claimed) <= 1e-5


def test_discrete_and_continuous_noise_differ_at_small_scale_and_agree_at_large():
    """At 1 sensitivity delta(1) differs by 11%, at 5 by 4%; at 60 epsilon is the same."""
    for sigma, relative in ((1.0, 0.11), (5.0, 0.043)):
        exact = shift_hockey_stick(sigma, (1,), np.array([1.0]))[0]
        assert exact / gaussian_delta(1 / sigma, 1.0) - 1 == pytest.approx(relative, abs=0.01)
    discrete, continuous = (pld_epsilon(histogram_event(60.0, discrete=kind), 1e-6) for kind in (True, False))
    assert discrete == pytest.approx(continuous, rel=2e-3)
    small, smooth = (renyi_curve(histogram_event(1.0, discrete=kind)) for kind in (True, False))
    assert small == smooth


def test_ten_votes_cost_as_one_with_less_noise():
    votes = repeated(histogram_event(30.0, "add-or-remove", 2, discrete=False), 10)
    assert gaussian_delta(2 * math.sqrt(10) / 30, epsilon(votes, 1e-6).epsilon) == pytest.approx(1e-6, rel=0.02)


# Thresholds


def lone_cells_pass(sigma, threshold, parts):
    noise = np.arange(-400, 401)
    weights = np.exp(-(noise**2.0) / (2 * sigma**2))
    weights /= weights.sum()
    return 1 - math.prod(1 - weights[noise + part >= threshold].sum() for part in parts)


@pytest.mark.parametrize(("sigma", "threshold", "b"), [(2.0, 9.0, 1), (3.0, 16.5, 3), (5.0, 20.0, 2)])
def test_slack_is_at_least_the_chance_that_a_lone_cell_is_shown(sigma, threshold, b):
    slack = threshold_slack(ThresholdedCountsEvent(sigma, threshold, "add-or-remove", b))
    exact = [
        lone_cells_pass(sigma, threshold, parts)
        for size in range(1, b + 1)
        for parts in itertools.combinations_with_replacement(range(1, b + 1), size)
        if sum(parts) <= b
    ]
    assert max(exact) <= slack < 4 * max(exact)


@pytest.mark.parametrize("delta", [1e-3, 1e-4])
def test_thresholded_counts_against_the_exact_curve(delta):
    """b = 2: one record in a cell that others have too, one in a cell of its own."""
    sigma, threshold = 3.0, 17.0
    claimed = epsilon(ThresholdedCountsEvent(sigma, threshold, "add-or-remove", 2), delta).epsilon
    cells = np.arange(-120, 121)
    q = np.exp(-(cells**2.0) / (2 * sigma**2))
    q /= q.sum()
    p, alone = np.roll(q, 1), lone_cells_pass(sigma, threshold, (1,))
    with_unit = alone + np.maximum((1 - alone) * p - math.exp(claimed) * q, 0).sum()
    without = np.maximum(q - math.exp(claimed) * (1 - alone) * p, 0).sum()
    assert max(with_unit, without) <= delta


def test_slack_is_kept_apart_and_adds_up():
    once = ThresholdedCountsEvent(10.0, 80.0, "add-or-remove", 1)
    slack = threshold_slack(once)
    assert cost(repeated(once, 7)).delta_slack == pytest.approx(7 * slack, rel=1e-9)
    assert cost(ParallelDpEvent([once, histogram_event(3.0)])).delta_slack == pytest.approx(slack, rel=1e-9)
    with pytest.raises(AccountingError, match="slack on delta"):
        renyi_curve(once)
    with pytest.raises(AccountingError, match="thresholds alone take"):
        epsilon(once, slack / 2)
    with pytest.raises(AccountingError, match="higher thresholds"):
        cost(repeated(ThresholdedCountsEvent(10.0, 12.0, "add-or-remove", 1), 20))
    with pytest.raises(AccountingError, match="above that"):
        ThresholdedCountsEvent(10.0, 2.0, "add-or-remove", 2)


# Tokens


def test_tokens_cost_half_the_square_of_c_over_s_tau_each():
    """Amin et al. 2024: zCDP of (c / s tau)^2 / 2 for each token."""
    event = token_selection_event(tokens=500, clipping_norm=10.0, temperature=2.0, batch_size=250)
    rho = 500 * (10 / (250 * 2)) ** 2 / 2
    curve = renyi_curve(event)
    assert curve.at(2.0) == pytest.approx(2 * rho, rel=1e-9)
    replaced = token_selection_event(
        tokens=1, clipping_norm=1.0, temperature=1.0, batch_size=10, adjacency="replace-one", max_contributions=3
    )
    assert replaced == repeated(BoundedRangeSelectionEvent(1.2, "replace-one", 3), 1)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_softmax_of_clipped_logits_stays_below_the_bounded_range_curve(adjacency):
    rng, clip, temperature, batch = np.random.default_rng(3), 2.0, 0.5, 6
    event = token_selection_event(
        tokens=1, clipping_norm=clip, temperature=temperature, batch_size=batch, adjacency=adjacency
    )
    limit = event.event.epsilon
    for _ in range(300):
        logits = rng.uniform(-clip, clip, (batch, 5))
        other = logits.copy()
        other[0] = rng.choice([-clip, clip], 5) if adjacency == "replace-one" else 0.0
        logits[0] = rng.choice([-clip, clip], 5)
        p, q = (np.exp(side.sum(axis=0) / (batch * temperature)) for side in (logits, other))
        p, q = p / p.sum(), q / q.sum()
        for e in (-0.3, 0.0, 0.2, 0.6):
            curve = bounded_range_hockey_stick(limit, np.array([e]))[0] + 1e-12
            assert np.maximum(p - math.exp(e) * q, 0).sum() <= curve
            assert np.maximum(q - math.exp(e) * p, 0).sum() <= curve


@pytest.mark.parametrize("times", [1, 4])
def test_bounded_range_pld_against_brute_force(times):
    """Independent two-outcome choices at the worst t of each grid point, all combinations of outcomes."""
    eps, delta = 0.4, 1e-3
    claimed = pld_epsilon(repeated(BoundedRangeSelectionEvent(eps, "zero-out", 1), times), delta)
    worst = 0.0
    for t in np.linspace(0, eps, 201)[1:-1]:
        first = math.expm1(t - eps) / math.expm1(-eps)
        ratios = {1: (first, t), 0: (1 - first, t - eps)}
        total = 0.0
        for picks in itertools.product((0, 1), repeat=times):
            mass = math.prod(ratios[pick][0] for pick in picks)
            loss = sum(ratios[pick][1] for pick in picks)
            total += mass * max(0.0, -math.expm1(claimed - loss)) if loss > claimed else 0.0
        worst = max(worst, total)
    assert worst <= delta
    assert times > 1 or worst == pytest.approx(delta, rel=0.05)


# Parallel composition


def test_parallel_branches_cost_the_dearest():
    small, large = histogram_event(20.0), repeated(step(1.5, 0.02), 50)
    both = ParallelDpEvent([small, large])
    assert epsilon(both, 1e-6) == epsilon(large, 1e-6)
    orderwise = np.maximum(renyi_curve(small).values, renyi_curve(large).values)
    assert renyi_curve(both).values == pytest.approx(tuple(orderwise), rel=1e-9)
    before = histogram_event(15.0)
    whole = epsilon(together(before, both), 1e-6)
    assert whole.pld == max(epsilon(together(before, one), 1e-6).pld for one in (small, large))
    assert whole.epsilon < epsilon(together(before, small, large), 1e-6).epsilon


def test_twelve_months_of_other_people_cost_one():
    month = repeated(step(1.5, 0.02), 50)
    assert epsilon(ParallelDpEvent([month] * 12), 1e-6) == epsilon(month, 1e-6)
    assert len(histories(ParallelDpEvent([month] * 12))) == 1


def test_what_parallel_composition_does_not_cover_is_refused():
    branches = ParallelDpEvent([histogram_event(float(noise)) for noise in range(1, 6)])
    with pytest.raises(AccountingError, match="at least one branch"):
        ParallelDpEvent([])
    with pytest.raises(AccountingError, match="another branch"):
        ParallelDpEvent([histogram_event(3.0, "replace-one")])
    with pytest.raises(AccountingError, match="inside of each branch"):
        renyi_curve(repeated(branches, 2))
    with pytest.raises(AccountingError, match=f"up to {MAX_HISTORIES}"):
        renyi_curve(together(*[branches] * 8))


# Groups


def test_group_privacy_is_valid_and_loose():
    one, three = (repeated(step(4.0, 0.05, b), 100) for b in (1, 3))
    assert group_epsilon(one, 1e-6, 1) == epsilon(one, 1e-6).epsilon
    assert group_epsilon(one, 1e-6, 3) > epsilon(three, 1e-6).epsilon
    gaussian = group_epsilon(GaussianCountsEvent(4.0, "add-or-remove", 1), 1e-6, 10)
    assert gaussian_delta(10 / 4.0, gaussian) <= 1e-6
    assert gaussian > 1.2 * epsilon(GaussianCountsEvent(4.0, "add-or-remove", 10), 1e-6).epsilon


def test_groups_behind_a_threshold_keep_their_slack():
    one, two = (ThresholdedCountsEvent(10.0, 90.0, "add-or-remove", b) for b in (1, 2))
    assert epsilon(two, 1e-6).epsilon < group_epsilon(one, 1e-6, 2) < math.inf
    low = ThresholdedCountsEvent(10.0, 50.0, "add-or-remove", 1)
    with pytest.raises(AccountingError, match="smaller group"):
        group_epsilon(low, 2 * threshold_slack(low), 10)


@pytest.mark.parametrize("size", [0, -1, True, 1.5])
def test_impossible_groups_are_refused(size):
    with pytest.raises(AccountingError, match="group"):
        group_epsilon(histogram_event(5.0), 1e-6, size)


# Delta


def test_recommended_deltas():
    assert recommended_delta(75_316, "logarithm") == pytest.approx(1.18e-6, rel=5e-3)
    assert recommended_delta(75_316) == pytest.approx(75_316**-1.1)
    assert all(recommended_delta(n, rule) < 1 / n for n in (3, 1000, 10**9) for rule in ("power", "logarithm"))
    for units, rule in ((2, "power"), (0, "power"), (True, "power"), (1000, "other")):
        with pytest.raises(AccountingError):
            recommended_delta(units, rule)


# JSON and refusals

NEW = [
    step(1.0, 0.05, 3),
    step(1.0, 1.0, 3, "replace-one", "user"),
    GaussianCountsEvent(2.0, "zero-out", 1),
    ThresholdedCountsEvent(2.0, 30.0, "zero-out", 4),
    dp_sgd_event(records=1000, batch_size=10, noise_multiplier=1.0, steps=5),
    together(histogram_event(10.0), ParallelDpEvent([histogram_event(3.0), repeated(step(1.0, 0.1), 9)])),
]


@pytest.mark.parametrize("event", NEW, ids=lambda event: type(event).__name__)
def test_json_gives_the_same_event(event):
    assert event_from_json(json.loads(json.dumps(event_to_json(event), allow_nan=False))) == event


EXTREME = [1e-12, 1e-6, 0.3, 1e6, 1e15]


@pytest.mark.parametrize("value", EXTREME)
@pytest.mark.parametrize("b", [1, 70, 10**9])
def test_extreme_parameters_give_a_bound_and_no_surprise(value, b):
    made = [GaussianCountsEvent(value, "replace-one", b), histogram_event(value, "zero-out", b)]
    made += [step(value, q, b, adjacency) for q in (1e-12, 0.5) for adjacency in ("replace-one", "add-or-remove")]
    made += [BoundedRangeSelectionEvent(value, "add-or-remove", b)]
    for event in made:
        result = epsilon(event, 1e-6)
        assert 0 <= result.epsilon < math.inf
        assert result.epsilon <= result.renyi
    whole = epsilon(together(made[0], BoundedRangeSelectionEvent(1e-12, "replace-one", b)), 1e-6)
    assert 0 <= whole.epsilon < math.inf


@pytest.mark.parametrize("value", [0.0, -0.0, 5e-324, 1e-13, 1e16, 1e308, math.inf, -math.inf, math.nan, -1.0, True])
def test_parameters_out_of_range_are_refused(value):
    for make in (
        lambda: histogram_event(value),
        lambda: GaussianCountsEvent(value, "zero-out", 1),
        lambda: BoundedRangeSelectionEvent(value, "zero-out", 1),
        lambda: step(value, 0.1),
        lambda: ThresholdedCountsEvent(1.0, value, "zero-out", 1),
    ):
        with pytest.raises(AccountingError):
            make()


@settings(max_examples=15, deadline=None)
@given(
    sigma=st.floats(0.5, 20),
    q=st.floats(1e-4, 0.9),
    b=st.integers(1, 6),
    more=st.floats(1.05, 3.0),
    adjacency=st.sampled_from(["add-or-remove", "replace-one"]),
)
def test_more_noise_and_fewer_records_never_cost_more(sigma, q, b, more, adjacency):
    curve, quieter, fewer, rarer = (
        np.array(renyi_curve(event).values)
        for event in (
            step(sigma, q, b, adjacency),
            step(sigma * more, q, b, adjacency),
            step(sigma, q, max(1, b - 1), adjacency),
            step(sigma, q / more, b, adjacency),
        )
    )
    for less in (quieter, fewer, rarer):
        assert np.all(less <= curve * (1 + 1e-9) + 1e-9)


STEP = event_to_json(step(1.0, 0.05))
THRESHOLD = event_to_json(ThresholdedCountsEvent(2.0, 30.0, "zero-out", 1))


@pytest.mark.parametrize(
    "document",
    [
        STEP | {"sampling_probability": 0.0},
        STEP | {"sampling_probability": 1.01},
        STEP | {"sampling_probability": math.nan},
        STEP | {"noise_multiplier": math.inf},
        STEP | {"noise_multiplier": 0},
        STEP | {"sampled": "batch"},
        STEP | {"sampled": ["record"]},
        STEP | {"max_contributions": 0},
        STEP | {"clipping_norm": 1.0},
        THRESHOLD | {"threshold": 1.0},
        THRESHOLD | {"threshold": "30"},
        {"kind": "parallel", "events": []},
        {"kind": "parallel", "events": STEP},
        {"kind": "parallel", "events": [STEP | {"adjacency": "replace-one"}]},
        {"kind": "parallel", "events": [STEP | {"adjacency": "fixed-graph"}]},
        STEP | {"adjacency": "fixed-graph", "sampled": "user"},
    ],
)
def test_bad_documents_are_refused(document):
    with pytest.raises(AccountingError):
        event_from_json(document)


@pytest.mark.parametrize(
    "change",
    [{"records": 0}, {"records": 10.5}, {"batch_size": 1001}, {"batch_size": True}, {"steps": 0},
     {"steps": 10**6}, {"noise_multiplier": math.nan}, {"max_contributions": 0}, {"adjacency": "node"},
     {"sampled": "x"}],
)  # fmt: skip
def test_bad_dp_sgd_is_refused(change):
    with pytest.raises(AccountingError):
        dp_sgd_event(**{"records": 1000, "batch_size": 10, "noise_multiplier": 1.0, "steps": 5} | change)


@pytest.mark.parametrize(
    "change", [{"tokens": 0}, {"clipping_norm": 0.0}, {"temperature": math.inf}, {"batch_size": -1},
               {"max_contributions": 0}]
)  # fmt: skip
def test_bad_token_selection_is_refused(change):
    with pytest.raises(AccountingError):
        token_selection_event(**{"tokens": 5, "clipping_norm": 1.0, "temperature": 1.0, "batch_size": 10} | change)


def test_dp_accountings_own_replacement_needs_no_factor_of_ours():
    """Replacement of a full batch: our factor of 2 before the event is their REPLACE_ONE for the Gaussian."""
    mine = pld_epsilon(step(4.45, 1.0, 1, "replace-one"), 1e-5)
    assert mine == pytest.approx(1.77, abs=0.005)
    theirs = privacy_loss_distribution.from_gaussian_mechanism(4.45, sensitivity=2.0).get_epsilon_for_delta(1e-5)
    assert mine == pytest.approx(theirs, rel=2e-3)
