from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpsynth_platform.audit import bounds
from dpsynth_platform.foundation.errors import AccountingError

DELTA = 1e-5
SAFE = 1e-7
"""Probability with which a statistical test may fail without a cause."""


def p_of(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    return bounds.p_value(canaries=canaries, guesses=guesses, right=right, epsilon=epsilon, delta=delta)


def bound_of(canaries: int, guesses: int, right: int, delta: float = DELTA, confidence: float = 0.95) -> float:
    return bounds.epsilon_lower_bound(
        canaries=canaries, guesses=guesses, right=right, delta=delta, confidence=confidence
    )


def test_eighty_right_of_a_hundred_guesses_on_five_hundred_canaries_prove_no_more_than_096() -> None:
    assert bound_of(500, 100, 80) == pytest.approx(0.96, abs=0.005)


@pytest.mark.parametrize(("guesses", "ceiling"), [(20, 1.79), (50, 2.76), (100, 3.47), (500, 5.09)])
def test_the_ceiling_of_one_run_with_a_thousand_canaries(guesses: int, ceiling: float) -> None:
    """All guesses right, delta 1e-5, 95%: no audit of this size shows more."""
    highest = bounds.highest_bound(canaries=1000, guesses=guesses, delta=DELTA, confidence=0.95)
    assert highest == pytest.approx(ceiling, abs=0.005)


def test_without_delta_the_p_value_is_what_enumerating_randomized_response_gives() -> None:
    guesses, epsilon = 9, 0.7
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))
    for right in range(guesses + 1):
        brute = 0.0
        for outcome in itertools.product([0, 1], repeat=guesses):
            hits = sum(outcome)
            if hits >= right:
                brute += truthful**hits * (1 - truthful) ** (guesses - hits)
        assert p_of(20, guesses, right, epsilon, 0.0) == pytest.approx(brute, abs=1e-12)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("revealed", [1, 2, 5, 20])
def test_no_mechanism_that_sometimes_reveals_coins_together_exceeds_the_p_value(epsilon: float, revealed: int) -> None:
    """Each coin is revealed with probability delta, `revealed` of them together: the theorem's worst kind of case."""
    guesses, delta = 40, 1e-3
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))
    together = delta * guesses / revealed
    for right in range(guesses + 1):
        lucky = stats.binom.sf(right - revealed - 1, guesses - revealed, truthful)
        usual = stats.binom.sf(right - 1, guesses, truthful)
        reached = together * lucky + (1 - together) * usual
        assert reached <= p_of(guesses, guesses, right, epsilon, delta) + 1e-12


def test_delta_costs_what_the_theorem_says() -> None:
    guesses, right, epsilon, delta, canaries = 30, 27, 1.0, 1e-3, 50
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))
    beta = sum(stats.binom.pmf(k, guesses, truthful) for k in range(right, guesses + 1))
    alpha = max(
        sum(stats.binom.pmf(k, guesses, truthful) for k in range(right - i, right)) / i for i in range(1, right + 1)
    )
    assert p_of(canaries, guesses, right, epsilon, delta) == pytest.approx(beta + 2 * canaries * delta * alpha)


@settings(max_examples=60, deadline=None)
@given(
    guesses=st.integers(1, 80),
    share=st.floats(0, 1),
    abstained=st.integers(0, 100),
    confidence=st.sampled_from([0.5, 0.9, 0.95, 0.99]),
)
def test_the_bound_is_refuted_itself_and_moves_the_right_way(
    guesses: int, share: float, abstained: int, confidence: float
) -> None:
    right, canaries = int(share * guesses), guesses + abstained
    bound = bound_of(canaries, guesses, right, confidence=confidence)
    if bound > 0:
        assert p_of(canaries, guesses, right, bound, DELTA) <= 1 - confidence
        assert p_of(canaries, guesses, right, bound + 0.01, DELTA) > 1 - confidence
    assert bound_of(canaries, guesses, max(0, right - 1), confidence=confidence) <= bound
    assert bound <= bound_of(canaries, guesses, right, delta=0.0, confidence=confidence) + 1e-3
    assert bound <= bounds.highest_bound(canaries=canaries, guesses=guesses, delta=DELTA, confidence=confidence)


def test_right_needed_is_the_least_number_that_refutes() -> None:
    needed = bounds.right_needed(canaries=500, guesses=100, epsilon=1.0, delta=DELTA, confidence=0.95)
    assert needed is not None
    assert bound_of(500, 100, needed) > 1.0
    assert bound_of(500, 100, needed - 1) < 1.0
    assert bounds.right_needed(canaries=20, guesses=4, epsilon=3.0, delta=DELTA, confidence=0.95) is None
    for canaries, guesses, epsilon, confidence in ((60, 12, 0.5, 0.9), (200, 50, 2.0, 0.99), (100, 0, 1.0, 0.95)):
        asked = {"canaries": canaries, "guesses": guesses, "epsilon": epsilon, "delta": DELTA}
        refuting = [right for right in range(guesses + 1) if bounds.p_value(right=right, **asked) <= 1 - confidence]
        assert bounds.right_needed(confidence=confidence, **asked) == (refuting[0] if refuting else None)


def test_the_right_guesses_needed_of_many_canaries_are_found_quickly() -> None:
    needed = bounds.right_needed(canaries=100_000, guesses=25_000, epsilon=1.0, delta=1e-7, confidence=0.95)
    assert needed is not None and 18_000 < needed < 19_000


def test_a_tight_mechanism_is_refuted_no_more_often_than_the_confidence_allows() -> None:
    """Randomized response spends its epsilon in full, so the rate of wrong refutations comes close to one in twenty."""
    epsilon, guesses = 1.0, 100
    truthful = math.exp(epsilon) / (1 + math.exp(epsilon))
    # Exactly, without a draw: the chances of all numbers of right guesses that refute.
    refuting = [hits for hits in range(guesses + 1) if bound_of(500, guesses, hits, delta=0.0) > epsilon]
    wrong = stats.binom.pmf(refuting, guesses, truthful).sum()
    assert 0.04 < wrong <= 0.05


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """Noise of an (epsilon, delta)-DP count (Balle & Wang 2018, theorem 8), by bisection."""
    low, high = 0.1, 100.0
    for _ in range(80):
        sigma = (low + high) / 2
        spent = stats.norm.cdf(0.5 / sigma - epsilon * sigma) - math.exp(epsilon) * stats.norm.cdf(
            -0.5 / sigma - epsilon * sigma
        )
        low, high = (low, sigma) if spent < delta else (sigma, high)
    return high


def audited_gaussian_counts(sigma: float, canaries: int) -> float:
    """The bound of an audit of one noisy count a canary, a twentieth guessed in and a twentieth out."""
    rng = np.random.default_rng()
    included = rng.integers(0, 2, canaries).astype(bool)
    scores = included + rng.normal(0, sigma, canaries)
    each = canaries // 20
    right = bounds.count_right(scores, included, guess_in=each, guess_out=each)
    return bound_of(canaries, 2 * each, right)


def test_gaussian_counts_with_the_claimed_noise_are_not_refuted_too_often() -> None:
    sigma, runs = gaussian_sigma(1.0, DELTA), 200
    refuted = sum(audited_gaussian_counts(sigma, 1000) > 1.0 for _ in range(runs))
    # Fails below SAFE. With half of the noise some 86 of 100 guesses are right and 81 refute: nearly all runs fail.
    assert refuted <= stats.binom.isf(SAFE, runs, 0.05)


def test_gaussian_counts_with_a_quarter_of_the_claimed_noise_are_refuted() -> None:
    sigma = gaussian_sigma(1.0, DELTA) / 4
    # Of 600 guesses 551 are right on average, deviation 7; 458 refute: 13 deviations, below 1e-30.
    assert audited_gaussian_counts(sigma, 6000) > 1.0


def test_guesses_follow_the_scores_and_ties_the_position() -> None:
    scores = np.array([5.0, 1.0, 3.0, 3.0, 0.0])
    included = np.array([True, False, True, False, True])
    assert bounds.count_right(scores, included, guess_in=1, guess_out=0) == 1
    assert bounds.count_right(scores, included, guess_in=2, guess_out=1) == 1
    assert bounds.count_right(scores, included, guess_in=1, guess_out=2) == 2


def test_the_true_positive_rate_allows_one_false_alarm_in_a_hundred() -> None:
    others = np.arange(200.0)
    members = np.array([196.5, 197.5, 198.5, 500.0])
    scores = np.concatenate([others, members])
    included = np.arange(204) >= 200
    rate = bounds.true_positive_rate(scores, included)
    # Two of 200 may exceed the threshold, which is therefore 197.
    assert rate.value == 0.75
    assert (rate.low, rate.high) == pytest.approx(bounds.clopper_pearson(3, 4, 0.95))


def test_one_sided_coins_give_a_rate_that_says_nothing() -> None:
    none_in = bounds.true_positive_rate(np.arange(5.0), np.zeros(5, dtype=bool))
    assert (none_in.value, none_in.low, none_in.high) == (0.0, 0.0, 1.0)
    all_in = bounds.true_positive_rate(np.arange(5.0), np.ones(5, dtype=bool))
    assert all_in.value == 0.0
    assert bounds.area_under_curve(np.arange(5.0), np.ones(5, dtype=bool)) == 0.5


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (3, 10), (1, 250)])
def test_the_interval_is_clopper_and_pearsons(successes: int, trials: int) -> None:
    exact = stats.binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert bounds.clopper_pearson(successes, trials, 0.95) == pytest.approx((exact.low, exact.high))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=40))
def test_the_area_is_that_of_all_pairs_and_that_under_the_curve(drawn: list[tuple[int, bool]]) -> None:
    scores = np.array([float(score) for score, _ in drawn])
    included = np.array([coin for _, coin in drawn])
    if included.all() or not included.any():
        return
    pairs = [
        1.0 if mine > other else 0.5 if mine == other else 0.0
        for mine in scores[included]
        for other in scores[~included]
    ]
    area = bounds.area_under_curve(scores, included)
    alarms, hits = bounds.roc_curve(scores, included)
    assert area == pytest.approx(np.mean(pairs))
    assert area == pytest.approx(np.trapezoid(hits, alarms))
    assert (alarms[0], hits[0], alarms[-1], hits[-1]) == (0, 0, 1, 1)


def test_repeated_runs_are_judged_by_both_kinds_of_error() -> None:
    counted = {"included": 500, "held_out": 500, "delta": 0.0, "confidence": 0.95}
    found = bounds.clopper_pearson_epsilon(found=400, false_alarms=5, **counted)
    low, high = bounds.clopper_pearson(400, 500, 0.95)[0], bounds.clopper_pearson(5, 500, 0.95)[1]
    assert found == pytest.approx(math.log(low / high))
    assert bounds.clopper_pearson_epsilon(found=495, false_alarms=100, **counted) == pytest.approx(found)
    assert bounds.clopper_pearson_epsilon(found=250, false_alarms=250, **counted) == 0.0
    with pytest.raises(AccountingError, match="501 of 500 found"):
        bounds.clopper_pearson_epsilon(found=501, false_alarms=0, **counted)


def test_repeated_runs_refute_what_is_too_small_and_nothing_that_holds() -> None:
    """Randomized response at epsilon 2, whose two scores tie: bounds at one in ten million, far from a false alarm."""
    rng = np.random.default_rng()
    # Above 2: below SAFE. The bound's mean is 1.59, its deviation 0.021: 28 of them above 1.
    included = np.arange(20_000) % 2 == 0
    scores = np.where(rng.random(included.size) < 1 / (1 + math.exp(-2.0)), included, ~included).astype(float)
    bound = bounds.repeated_runs_bound(scores, included, delta=0.0, confidence=1 - SAFE)
    assert 1.0 < bound <= 2.0


def test_repeated_runs_of_one_kind_or_of_one_score_prove_nothing() -> None:
    for scores, included in ((np.arange(50.0), np.ones(50, dtype=bool)), (np.zeros(50), np.arange(50) % 2 == 0)):
        assert bounds.repeated_runs_bound(scores, included, delta=DELTA, confidence=0.95) == 0.0


def test_several_attacks_share_the_confidence() -> None:
    assert bounds.each_confidence(0.95, 1) == pytest.approx(0.95)
    assert bounds.each_confidence(0.95, 5) == pytest.approx(0.99)


def test_impossible_numbers_are_refused() -> None:
    with pytest.raises(AccountingError, match="11 right of 10"):
        p_of(20, 10, 11, 1.0, DELTA)
    with pytest.raises(AccountingError, match="30 guesses on 20"):
        bounds.count_right(np.zeros(20), np.zeros(20, dtype=bool), guess_in=10, guess_out=20)
    with pytest.raises(AccountingError, match="a number"):
        bounds.area_under_curve(np.array([1.0, math.nan]), np.array([True, False]))


@pytest.mark.parametrize("counts", [(1, 1, 1), (0, 2, 1), (2, 1, 0), (1, 2, 1), (0, 0, 0)])
@pytest.mark.parametrize(("guess_in", "guess_out"), [(1, 1), (0, 2), (3, 2), (2, 4)])
def test_nobody_has_more_right_guesses_than_who_knows_how_many_of_equal_canaries_were_in(
    counts: tuple[int, ...], guess_in: int, guess_out: int
) -> None:
    """By brute force: every choice of whom to guess, over every order of the coins that leaves the counts as they are.

    Whatever a mechanism gives away follows from the counts, so that a choice made by it is one of these.
    """
    duplicates = np.array([0, 1, 0, 1, 2, 0])
    owners = range(duplicates.size)
    worlds = [
        coins
        for coins in itertools.product((False, True), repeat=duplicates.size)
        if all(sum(coins[i] for i in owners if duplicates[i] == kind) == number for kind, number in enumerate(counts))
    ]
    most = max(
        np.mean([sum(coins[i] for i in guessed_in) + sum(not coins[i] for i in guessed_out) for coins in worlds])
        for guessed_in in itertools.combinations(owners, guess_in)
        for guessed_out in itertools.combinations([i for i in owners if i not in guessed_in], guess_out)
    )
    for coins in worlds:
        found = bounds.best_right(duplicates, np.array(coins), guess_in=guess_in, guess_out=guess_out)
        assert found == math.floor(most + 1e-9)


def test_where_all_canaries_differ_every_guess_can_be_right() -> None:
    included = np.random.default_rng().permutation(np.arange(500) < 240)
    assert bounds.best_right(np.arange(500), included, guess_in=62, guess_out=62) == 124
    assert bounds.best_right(np.arange(500), included, guess_in=0, guess_out=300) == 260
    # Pairs: enough of them are both in or both out, so that only the others go without a guess.
    assert bounds.best_right(np.arange(500) // 2, np.arange(500) % 4 < 2, guess_in=62, guess_out=62) == 124


def test_counts_of_a_few_sets_of_equal_canaries_are_worth_what_an_attack_by_them_finds() -> None:
    rng = np.random.default_rng()
    duplicates = np.arange(500) % 8
    found, expected = [], []
    for _ in range(60):
        included = rng.random(500) < 0.5
        known = (np.bincount(duplicates, weights=included) / np.bincount(duplicates))[duplicates]
        order = rng.permutation(500)  # the order must not depend on the coins
        found.append(bounds.count_right(known[order], included[order], guess_in=62, guess_out=62))
        expected.append(bounds.best_right(duplicates, included, guess_in=62, guess_out=62))
    # The mean difference is 0.43 (rounding down takes half of a guess), its deviation 1.23 / sqrt(60) = 0.16: to the
    # nearest end, -1.5, are 12 of them. The mean of what is expected is 72.8, its deviation 0.42: 29 of them below 85.
    assert np.mean(found) - np.mean(expected) == pytest.approx(0.5, abs=2.0)
    assert np.mean(expected) < 85 < 124
