import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy import accounting
from dpsynth_platform.privacy.accounting import (
    bounded_range_curve,
    bounded_range_hockey_stick,
    counts_shifts,
    epsilon,
    fft_error,
    pld_epsilon,
    renyi_curve,
    shift_hockey_stick,
)
from dpsynth_platform.privacy.events import (
    BoundedRangeSelectionEvent,
    DiscreteGaussianCountsEvent,
    SampledGaussianEvent,
)
from dpsynth_platform.privacy.guarantee import Guarantee
from dpsynth_platform.privacy.mst import calibrate_mst, mst_budget, mst_event
from dpsynth_platform.privacy.renyi import ORDERS, RenyiCurve, renyi_limit, zcdp_curve, zcdp_limit


def guarantee(eps=1.0, delta=1e-5, adjacency="add-or-remove", b=1):
    return Guarantee(eps, delta, "user", adjacency, b)


def delta_of(p, q, e):
    return float(np.maximum(p - math.exp(e) * q, 0).sum())


# Renyi


def test_renyi_conversion_is_that_of_dp_accounting():
    for rho, delta in [(0.001, 1e-9), (0.02, 1e-5), (0.5, 1e-6), (5.0, 1e-3)]:
        curve = zcdp_curve(rho)
        theirs, _ = rdp_privacy_accountant.compute_epsilon(ORDERS, curve.values, delta)
        assert curve.epsilon(delta) == pytest.approx(theirs, rel=1e-12)


def test_the_grid_of_orders_costs_next_to_nothing():
    for rho, delta in [(0.0002, 1e-9), (0.02, 1e-5), (0.5, 1e-6)]:
        fine = 1 + np.geomspace(0.05, 1e5, 20_000)
        best = np.min(rho * fine + np.log1p(-1 / fine) - (np.log(delta) + np.log(fine)) / (fine - 1))
        assert best <= zcdp_curve(rho).epsilon(delta) <= 1.002 * best


@given(eps=st.floats(0.05, 20), delta=st.floats(1e-12, 1e-2))
def test_limits_invert_the_conversion(eps, delta):
    rho = zcdp_limit(eps, delta)
    assert zcdp_curve(rho * (1 - 1e-9)).epsilon(delta) <= eps
    assert zcdp_curve(rho * (1 + 1e-6)).epsilon(delta) > eps
    order = ORDERS[60]
    single = RenyiCurve.upper([1e6 if o != order else max(0.0, renyi_limit(order, eps, delta)) for o in ORDERS])
    if renyi_limit(order, eps, delta) > 0:
        assert single.epsilon(delta) <= eps * (1 + 1e-9)


def test_discrete_gaussian_renyi_bound_holds_for_every_shift():
    sigma, cells = 1.5, np.arange(-200, 201)
    log_noise = -(cells**2) / (2 * sigma**2)
    log_noise -= np.log(np.exp(log_noise).sum())
    curve = renyi_curve(DiscreteGaussianCountsEvent(sigma, "add-or-remove", 3))
    for shift, order in itertools.product((1, 2, 3), ORDERS[:50:5]):
        logs = order * log_noise[shift:] + (1 - order) * log_noise[:-shift]
        exact = np.log(np.exp(logs).sum()) / (order - 1)
        assert 0 < exact <= curve.at(order) * (1 + 1e-12)


@pytest.mark.parametrize(
    "document", [{}, None, {"grid": "other", "rho": []}, {"grid": "octave-eighths-1", "rho": [1.0]}]
)
def test_bad_curves_are_refused(document):
    with pytest.raises(AccountingError):
        RenyiCurve.from_json(document)


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_impossible_curve_values_are_refused(bad):
    with pytest.raises(AccountingError):
        RenyiCurve((bad,) * len(ORDERS))


# Hockey-stick curves


@given(eps=st.floats(0.01, 5), e=st.floats(-6, 6))
def test_bounded_range_curve_is_the_maximum_over_t(eps, e):
    t = np.linspace(0, eps, 4001)
    first = -np.expm1(t - eps) / -math.expm1(-eps)  # P of the outcome whose log-ratio is t
    other = 1 - first
    found = np.maximum(first * -np.expm1(np.minimum(e - t, 700)), 0) + np.maximum(
        other * -np.expm1(np.minimum(e - t + eps, 700)), 0
    )
    mine = bounded_range_hockey_stick(eps, np.array([e]))[0]
    assert mine >= found.max() - 1e-12
    assert mine <= found.max() + 1e-5


@settings(max_examples=200)
@given(
    scores=st.lists(st.tuples(st.integers(-5, 5), st.integers(-1, 1)), min_size=2, max_size=6),
    eps=st.floats(0.1, 4),
    e=st.floats(-1, 4),
)
def test_exponential_mechanisms_stay_below_the_bounded_range_curve(scores, eps, e):
    before = np.array([score for score, _ in scores], dtype=float)
    after = before + np.array([change for _, change in scores])
    p, q = np.exp(eps * before / 2), np.exp(eps * after / 2)
    p, q = p / p.sum(), q / q.sum()
    limit = bounded_range_hockey_stick(eps, np.array([e]))[0] + 1e-12
    assert delta_of(p, q, e) <= limit
    assert delta_of(q, p, e) <= limit


def curve_at(eps, times, e):
    """The curve joined by straight lines over exp(e), on both sides of 0."""
    grid, deltas = bounded_range_curve(eps, times)
    above = np.interp(np.exp(np.abs(e)), np.exp(grid), deltas)
    return np.where(e >= 0, above, -np.expm1(np.minimum(e, 0)) + np.exp(np.minimum(e, 0)) * above)


@settings(deadline=None)
@given(
    eps=st.sampled_from([0.05, 0.4, 2.0, 9.0]),
    shares=st.lists(st.floats(0.0, 1.0), min_size=7, max_size=7),
    places=st.lists(st.floats(-1.2, 1.2), min_size=5, max_size=5),
)
def test_three_adaptive_choices_stay_below_their_curve(eps, shares, places):
    """Every step's t follows from the outcomes before: a tree of seven choices."""
    outcomes = [(0.0, 1.0)]
    for depth in range(3):
        t = eps * np.array(shares[2**depth - 1 : 2 ** (depth + 1) - 1])
        chances = np.expm1(t - eps) / math.expm1(-eps)
        outcomes = [
            (loss + more, mass * part)
            for (loss, mass), here, chance in zip(outcomes, t, chances, strict=True)
            for more, part in ((here, chance), (here - eps, 1 - chance))
        ]
    loss, mass = np.array(outcomes).T
    e = 3 * eps * np.array(places)
    deltas = (mass * np.maximum(-np.expm1(np.minimum(e[:, None] - loss, 0)), 0)).sum(axis=1)
    assert np.all(deltas <= curve_at(eps, 3, e) + 1e-13)


@pytest.mark.parametrize("eps", [0.02, 0.5, 3.0])
def test_the_curve_of_two_choices_is_hardly_more_than_the_largest(eps):
    e = eps * np.linspace(0, 1.4, 15)
    t = np.linspace(0, eps, 1501)[:, None]
    chance = np.expm1(t - eps) / math.expm1(-eps)
    after = bounded_range_hockey_stick(eps, e - t), bounded_range_hockey_stick(eps, e - t + eps)
    exact = (chance * after[0] + (1 - chance) * after[1]).max(axis=0)
    curve = curve_at(eps, 2, e)
    assert np.all(exact <= curve)
    assert np.all(curve <= curve_at(eps * 1.02, 2, e) + 1e-15)
    assert np.all(curve_at(eps / 1.05, 2, e) <= exact + 1e-4 * eps)


@pytest.mark.parametrize(("eps", "times"), [(0.01, 64), (0.3, 20), (1.5, 64), (20.0, 5), (250.0, 2)])
def test_the_curve_of_many_choices_is_one_of_a_pair(eps, times):
    """Convex in exp(e) and falling; it ends where nothing is left, or where losses are cut off."""
    e, deltas = bounded_range_curve(eps, times)
    assert np.all(np.diff(deltas) <= 0) and 0 <= deltas[-1] <= (1e-17 if e[-1] < accounting.MAX_LOSS else 1)
    slopes = np.diff(deltas) / (np.exp(e[:-1]) * math.expm1(e[1]))
    assert np.all(np.diff(slopes) >= -1e-12 * np.abs(slopes[:-1]) - 1e-13 * np.exp(-e[:-2]))


@pytest.mark.parametrize(("eps", "times"), [(0.05, 640), (0.4, 50), (0.01, 1000)])
def test_many_choices_cost_hardly_more_than_their_variance(eps, times):
    """A loss varies by at most epsilon^2 / 4 at each choice, and can vary so much: the sum is nearly normal."""
    claimed = pld_epsilon(dp_event.SelfComposedDpEvent(BoundedRangeSelectionEvent(eps, "zero-out", 1), times), 1e-6)
    ratio = math.sqrt(times) * eps / 2
    alike = privacy_loss_distribution.from_gaussian_mechanism(1 / ratio).get_epsilon_for_delta(1e-6)
    assert 0.985 * alike < claimed < 1.04 * alike


def test_discrete_gaussian_is_not_dominated_by_the_continuous_one():
    """At sigma = sensitivity, delta(1) is 0.141 against 0.127."""
    exact = shift_hockey_stick(1.0, (1,), np.array([1.0]))[0]
    continuous = privacy_loss_distribution.from_gaussian_mechanism(1.0).get_delta_for_epsilon(1.0)
    assert exact == pytest.approx(0.141, abs=5e-4)
    assert continuous == pytest.approx(0.127, abs=5e-4)


@pytest.mark.parametrize("shift", [1, 2, 3])
@pytest.mark.parametrize("sigma", [0.8, 3.0, 12.0])
def test_one_cell_agrees_with_dp_accounting(sigma, shift):
    theirs = privacy_loss_distribution.from_discrete_gaussian_mechanism(sigma, sensitivity=shift)
    grid = np.array([0.0, 0.1, 0.5, 1.0, 2.0])
    reference = np.array(theirs.get_delta_for_epsilon(grid))
    mine = shift_hockey_stick(sigma, (shift,), grid)
    assert np.all(mine <= reference + 1e-12)  # theirs is rounded up
    assert np.allclose(mine, reference, atol=2e-4)


@pytest.mark.parametrize("shift", [(1, 1), (2, 1), (1, -2), (0, 3)])
def test_two_cells_by_brute_force(shift):
    sigma, side = 1.3, np.arange(-25, 26)
    x, y = np.meshgrid(side, side)

    def density(a, b):
        return np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * sigma**2))

    p, q = density(0, 0) / density(0, 0).sum(), density(*shift) / density(0, 0).sum()
    for e in (-1.0, 0.0, 0.3, 1.0, 2.5):
        mine = shift_hockey_stick(sigma, shift, np.array([e]))[0]
        assert mine == pytest.approx(delta_of(p, q, e), abs=1e-12)
        assert mine == pytest.approx(delta_of(q, p, e), abs=1e-12)  # adding and removing alike


def brute_force_shifts(adjacency, b):
    """All changes of counts over 2b cells that one unit can make, up to order and signs."""
    sides = [v for v in itertools.product(range(b + 1), repeat=2 * b) if sum(v) <= b]
    others = sides if adjacency == "replace-one" else [(0,) * (2 * b)]
    moved = (tuple(x - y for x, y in zip(v, w, strict=True)) for v in sides for w in others)
    return {tuple(sorted(abs(change) for change in shift if change)) for shift in moved} - {()}


@pytest.mark.parametrize(
    ("adjacency", "b"), [("add-or-remove", 1), ("zero-out", 3), ("replace-one", 1), ("replace-one", 2)]
)
def test_every_change_that_a_unit_can_make_is_tried(adjacency, b):
    assert set(counts_shifts(adjacency, b)) == brute_force_shifts(adjacency, b)


def test_too_many_changes_leave_renyi_alone():
    assert counts_shifts("add-or-remove", 8) is not None
    assert counts_shifts("add-or-remove", 9) is None
    assert counts_shifts("replace-one", 5) is None
    result = epsilon(DiscreteGaussianCountsEvent(50.0, "add-or-remove", 20), 1e-6)
    assert (result.method, result.pld, result.epsilon) == ("renyi", None, result.renyi)


@pytest.mark.parametrize(
    ("event", "delta"),
    [
        (DiscreteGaussianCountsEvent(0.01, "add-or-remove", 1), 1e-6),  # losses that overflow
        (DiscreteGaussianCountsEvent(1e6, "add-or-remove", 1), 1e-6),  # too wide to tabulate
        (DiscreteGaussianCountsEvent(5.0, "add-or-remove", 1), 1e-13),  # near the FFT's noise
    ],
)
def test_where_pld_does_not_reach_renyi_is_claimed(event, delta):
    result = epsilon(event, delta)
    assert result.method == "renyi"
    assert math.isfinite(result.epsilon)


# Composition


def test_composed_pld_bounds_the_exact_composition_from_above_and_closely():
    """Three counts of one record each: exactly one cell moved by one in three independent tables."""
    sigma = 4.0
    event = DiscreteGaussianCountsEvent(sigma, "add-or-remove", 1)
    mine = pld_epsilon(dp_event.SelfComposedDpEvent(event, 3), 1e-5)
    exact = shift_hockey_stick(sigma, (1, 1, 1), np.array([mine, mine - 0.01]))
    assert exact[0] <= 1e-5 < exact[1]


def test_wide_noise_composes_like_the_continuous_gaussian():
    leaf = DiscreteGaussianCountsEvent(60.0, "replace-one", 2)
    mine = pld_epsilon(dp_event.SelfComposedDpEvent(leaf, 10), 1e-6)
    continuous = privacy_loss_distribution.from_gaussian_mechanism(60.0 / (2 * math.sqrt(2) * math.sqrt(10)))
    assert mine == pytest.approx(continuous.get_epsilon_for_delta(1e-6), rel=2e-3)


def gaussian_delta(ratio, e):
    """delta(e) of the Gaussian mechanism with this ratio of sensitivity to noise (Balle & Wang 2018, theorem 8)."""
    return norm.cdf(ratio / 2 - e / ratio) - math.exp(e + norm.logcdf(-ratio / 2 - e / ratio))


def steps(sigma, times, adjacency):
    return dp_event.SelfComposedDpEvent(SampledGaussianEvent(sigma, 1.0, "record", adjacency, 1), times)


@pytest.mark.parametrize(
    ("sigmas", "times", "adjacency"),
    [
        ((2.0,), 1, "add-or-remove"),
        ((30.0,), 1000, "replace-one"),
        ((100.0,), 10_000, "add-or-remove"),
        ((100.0,), 30_000, "replace-one"),
        ((150.0,), 100_000, "replace-one"),
        ((400.0,), 100_000, "replace-one"),
        ((150.0, 5000.0), 99_999, "add-or-remove"),  # one leaf with much noise makes the grid fine
    ],
)
def test_the_fft_noise_of_many_steps_is_taken_off_delta(sigmas, times, adjacency):
    """Never below the closed form, and the noise is at most half of what is taken off for it."""
    first, *others = sigmas
    event = dp_event.ComposedDpEvent([steps(first, times, adjacency), *(steps(s, 1, adjacency) for s in others)])
    moved = 2 if adjacency == "replace-one" else 1
    ratio = moved * math.sqrt(times / first**2 + sum(1 / s**2 for s in others))
    error = fft_error(times + len(others))
    for delta in (1.1e-10, 2e-10, 1e-9, 1e-8, 1e-7, 1e-6, 1e-3):
        result = epsilon(event, delta)
        assert gaussian_delta(ratio, result.epsilon) <= delta
        assert (result.pld is None) == (delta < 100 * error)
        if result.pld is not None:
            assert gaussian_delta(ratio, result.pld) <= delta - error / 2


def test_mst_numbers_at_rho_002():
    """rho = 0.02, delta = 1e-5: Renyi 0.795, pure-epsilon PLD 1.018, bounded-range PLD 0.762 if each choice is taken by
    itself, and 0.733 if they are taken together."""
    columns, delta = 13, 1e-5
    budget = mst_budget(columns, 0.02, guarantee())
    result = epsilon(mst_event(columns, budget, "add-or-remove", 1), delta)
    assert result.renyi == pytest.approx(0.795, abs=1e-3)
    assert result.pld == pytest.approx(0.733, abs=1e-3)
    assert (result.method, result.epsilon) == ("pld", result.pld)

    gaussian, interval = privacy_loss_distribution.from_gaussian_mechanism, 1e-4
    counts = (
        gaussian(budget.sigma_one, value_discretization_interval=interval)
        .self_compose(columns)
        .compose(gaussian(budget.sigma_two, value_discretization_interval=interval).self_compose(columns - 1))
    )
    pure = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(budget.epsilon_select, 0), value_discretization_interval=interval
    )
    last = math.ceil(budget.epsilon_select / interval)
    deltas = bounded_range_hockey_stick(budget.epsilon_select, interval * np.arange(-last, last + 1.0))
    alone = privacy_loss_distribution.PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -last, last, deltas).to_dense_pmf()
    )
    for choice, expected in ((pure, 1.018), (alone, 0.762)):
        composed = counts.compose(choice.self_compose(columns - 1))
        assert composed.get_epsilon_for_delta(delta) == pytest.approx(expected, abs=5e-3)


@pytest.mark.parametrize("times", [1, 2, 7, 300])
@pytest.mark.parametrize(("sigma", "sampled"), [(0.6, 1.0), (4.0, 1.0), (60.0, 1.0), (1.1, 0.02), (0.8, 0.4)])
def test_repetitions_are_those_of_dp_accounting_to_the_last_bit(times, sigma, sampled):
    """Few points stay sparse, and many are dense; what is sampled differs by direction."""
    one = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, value_discretization_interval=2.0**-10, sampling_prob=sampled
    )
    theirs, ours = one.self_compose(times), accounting._repeated(one, times)
    assert theirs._symmetric == ours._symmetric
    for their, our in ((theirs._pmf_remove, ours._pmf_remove), (theirs._pmf_add, ours._pmf_add)):
        assert type(their) is type(our)
        their, our = their.to_dense_pmf(), our.to_dense_pmf()
        assert (their._lower_loss, their._infinity_mass) == (our._lower_loss, our._infinity_mass)
        assert np.array_equal(their._probs, our._probs)


@pytest.mark.parametrize("b", [1, 4])
@pytest.mark.parametrize(("eps", "delta"), [(0.1, 1e-9), (1.0, 1e-6), (3.0, 1e-5), (10.0, 1e-5)])
def test_an_aimed_calibration_ends_where_bisection_does_with_fewer_costs(eps, delta, b, monkeypatch):
    asked = []
    monkeypatch.setattr(accounting, "epsilon", lambda *given: asked.append(given) or epsilon(*given))
    aimed = calibrate_mst.__wrapped__(7, guarantee(eps, delta, b=b))
    few = len(asked)
    monkeypatch.setattr(accounting, "_aimed", lambda *given: None)
    assert calibrate_mst.__wrapped__(7, guarantee(eps, delta, b=b)) == aimed
    assert few < len(asked) - few


def test_selection_alone_beats_its_pure_epsilon():
    event = dp_event.SelfComposedDpEvent(BoundedRangeSelectionEvent(0.1, "zero-out", 1), 20)
    assert epsilon(event, 1e-6).epsilon < 20 * 0.1
    assert epsilon(BoundedRangeSelectionEvent(0.5, "zero-out", 1), 1e-9).epsilon <= 0.5 + 1e-3


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan])
def test_impossible_deltas_are_refused(delta):
    with pytest.raises(AccountingError):
        epsilon(DiscreteGaussianCountsEvent(5.0, "zero-out", 1), delta)


# Calibration


@pytest.mark.parametrize("columns", [1, 2, 16])
@pytest.mark.parametrize(
    ("eps", "delta", "adjacency", "b"),
    [
        (1.0, 48000**-1.1, "add-or-remove", 2),
        (0.1, 1e-6, "zero-out", 1),
        (8.0, 1e-5, "replace-one", 2),
        (2.0, 2000**-1.1, "add-or-remove", 3),
        (1.0, 1e-6, "add-or-remove", 40),
    ],
)
def test_calibration_is_safe_and_close(columns, eps, delta, adjacency, b):
    target = guarantee(eps, delta, adjacency, b)
    budget = calibrate_mst(columns, target)
    result = epsilon(mst_event(columns, budget, adjacency, b), delta)
    assert 0.995 * eps <= result.epsilon <= eps


def test_calibration_stays_safe_where_the_noise_is_small():
    for eps in (20.0, 60.0):
        budget = calibrate_mst(3, guarantee(eps))
        result = epsilon(mst_event(3, budget, "add-or-remove", 1), 1e-5)
        assert 0.97 * eps <= result.epsilon <= eps


def test_a_search_that_is_too_hopeful_is_corrected(monkeypatch):
    """If rounding made the Renyi limit's event cost more than the guarantee, less is spent."""
    honest = accounting.zcdp_limit
    monkeypatch.setattr(accounting, "zcdp_limit", lambda eps, delta: 3 * honest(eps, delta))
    budget = calibrate_mst.__wrapped__(4, guarantee(1.5, b=2))
    assert 1.2 <= epsilon(mst_event(4, budget, "add-or-remove", 2), 1e-5).epsilon <= 1.5


def test_a_search_that_starts_low_goes_on(monkeypatch):
    honest = accounting.zcdp_limit
    monkeypatch.setattr(accounting, "zcdp_limit", lambda eps, delta: honest(eps, delta) / 9)
    budget = calibrate_mst.__wrapped__(4, guarantee(1.5, b=20))
    assert 1.49 <= epsilon(mst_event(4, budget, "add-or-remove", 20), 1e-5).epsilon <= 1.5


def test_budget_is_in_thirds_and_exact():
    budget = mst_budget(5, 0.3, guarantee(b=2))
    parts = (5 * 4 / (2 * budget.sigma_one**2), 4 * budget.epsilon_select**2 / 8, 4 * 4 / (2 * budget.sigma_two**2))
    assert parts == pytest.approx((0.1, 0.1, 0.1), rel=1e-3)
    assert sum(parts) == pytest.approx(budget.rho, rel=1e-12)
    assert budget.rho <= 0.3
    for sigma in (budget.sigma_one, budget.sigma_two):
        assert Fraction(sigma).denominator <= 2**10
    assert Fraction(budget.epsilon_select).denominator <= 2**20


@pytest.mark.parametrize("rho", [0.0, -1.0, math.nan, math.inf])
def test_impossible_budgets_are_refused(rho):
    with pytest.raises(AccountingError):
        mst_budget(3, rho, guarantee())


def test_unreachable_guarantees_are_refused():
    with pytest.raises(AccountingError):
        calibrate_mst(0, guarantee())
    with pytest.raises(AccountingError, match="larger epsilon"):
        calibrate_mst(3, guarantee(eps=1e-7))
