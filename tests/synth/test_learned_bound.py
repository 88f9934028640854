"""The private choice of b: sensitivity by brute force, the distribution, its cost, and an audit that finds no noise."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from dpsynth_platform.audit.bounds import clopper_pearson
from dpsynth_platform.foundation.errors import AccountingError, BoundingError
from dpsynth_platform.privacy.accounting import epsilon as epsilon_of
from dpsynth_platform.privacy.events import adjacency_of, event_from_json, event_to_json
from dpsynth_platform.synth.learned_bound import (
    OwnerCounts,
    learned_contributions,
    quantile_event,
    sensitivity,
    utilities,
)

AT_MOST = 6
SAFE = 1e-7
"""Probability with which a statistical test may fail without a cause."""
owners = st.lists(st.integers(1, 9), max_size=12)
quantiles = st.fractions(min_value=Fraction(1, 20), max_value=1, max_denominator=20)


def array(counts: Sequence[int]) -> OwnerCounts:
    return np.array(counts, dtype=np.int64)


def moved(before: Sequence[int], after: Sequence[int], quantile: Fraction) -> int:
    pairs = zip(*(utilities(array(counts), AT_MOST, quantile) for counts in (before, after)), strict=True)
    return max(abs(one - other) for one, other in pairs)


@settings(max_examples=200, deadline=None)
@given(counts=owners, more=st.integers(1, 9), quantile=quantiles)
def test_one_owner_more_moves_no_utility_by_more_than_its_sensitivity(
    counts: list[int], more: int, quantile: Fraction
) -> None:
    for adjacency in ("add-or-remove", "zero-out"):
        assert moved(counts, [*counts, more], quantile) <= sensitivity(quantile, adjacency)


@settings(max_examples=200, deadline=None)
@given(counts=owners, one=st.integers(1, 9), other=st.integers(1, 9), quantile=quantiles)
def test_one_owner_replaced_moves_no_utility_by_more_than_its_sensitivity(
    counts: list[int], one: int, other: int, quantile: Fraction
) -> None:
    assert moved([*counts, one], [*counts, other], quantile) <= sensitivity(quantile, "replace-one")


@pytest.mark.parametrize("quantile", [Fraction(1, 2), Fraction(9, 10), Fraction(1, 5)])
def test_the_sensitivities_are_reached(quantile: Fraction) -> None:
    many = [1] * 7 + [9] * 3
    added = max(moved(many, [*many, count], quantile) for count in (1, 9))
    assert added == sensitivity(quantile, "add-or-remove")
    # All F(b) n-far from the target on one side: a replaced owner moves the utility by the whole step.
    assert moved([1] * 10, [1] * 9 + [9], quantile) == sensitivity(quantile, "replace-one")


def test_utilities_are_those_of_a_quantile() -> None:
    counts = [1] * 50 + [2] * 30 + [3] * 15 + [8] * 5
    found = utilities(array(counts), AT_MOST, Fraction(8, 10))
    assert found == [-abs(5 * number - 4 * 100) for number in (50, 80, 95, 95, 95, 95)]
    assert 1 + int(np.argmax(found)) == 2


def test_the_draws_have_the_mechanisms_distribution() -> None:
    counts, quantile, epsilon, draws = array([1] * 6 + [2] * 3 + [4] * 2 + [7]), Fraction(3, 4), 0.8, 4000
    scores = np.array(utilities(counts, AT_MOST, quantile))
    expected = np.exp(epsilon * scores / (2 * sensitivity(quantile, "add-or-remove")))
    expected *= draws / expected.sum()
    assert expected.min() > 50
    found = Counter(
        learned_contributions(counts, at_most=AT_MOST, quantile=quantile, epsilon=epsilon, adjacency="add-or-remove")
        for _ in range(draws)
    )
    assert stats.chisquare([found[b] for b in range(1, AT_MOST + 1)], expected).pvalue > SAFE


def proven(epsilon: float, draws: int = 600) -> float:
    """A lower bound on the choice's epsilon, from neighbours whose best bound differs; it is too high only by chance,
    with probability SAFE.
    """
    quantile = Fraction(3, 4)
    neighbours = [1] * 10 + [5] * 10, [1] * 10 + [5] * 11
    shares = []
    for counts in neighbours:
        drawn = [
            learned_contributions(
                array(counts), at_most=AT_MOST, quantile=quantile, epsilon=epsilon, adjacency="add-or-remove"
            )
            for _ in range(draws)
        ]
        shares.append(clopper_pearson(sum(b < 5 for b in drawn), draws, 1 - SAFE / 2))
    (low, _), (_, high) = shares
    return math.log(low / high) if low > 0 else 0.0


def test_an_audit_passes_the_choice_and_finds_one_without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    epsilon = 1.0
    assert proven(epsilon) <= epsilon
    monkeypatch.setattr(
        "dpsynth_platform.synth.learned_bound.select_by_exponential_mechanism",
        lambda scores, epsilon, sensitivity: int(np.argmax(scores)),
    )
    assert proven(epsilon) > 2 * epsilon


@pytest.mark.parametrize("adjacency", ["add-or-remove", "zero-out", "replace-one"])
def test_its_cost_is_accounted_for(adjacency: str) -> None:
    event = quantile_event(0.5, adjacency)
    assert event_from_json(event_to_json(event)) == event
    assert adjacency_of(event) == (adjacency, 1)
    assert 0 < epsilon_of(event, 1e-6).epsilon <= 0.5


def test_what_does_not_fit_is_refused() -> None:
    fine = {"at_most": 5, "quantile": Fraction(1, 2), "epsilon": 1.0, "adjacency": "add-or-remove"}
    counts = array([1, 2, 3])
    assert 1 <= learned_contributions(counts, **fine) <= 5  # type: ignore[arg-type]
    assert 1 <= learned_contributions(array([]), **fine) <= 5  # type: ignore[arg-type]
    assert learned_contributions(counts, **(fine | {"at_most": 1})) == 1  # type: ignore[arg-type]
    for key, value, error, words in (
        ("at_most", 0, BoundingError, "1 to 10000"),
        ("at_most", 10_001, BoundingError, "1 to 10000"),
        ("quantile", Fraction(0), BoundingError, "above 0"),
        ("quantile", Fraction(3, 2), BoundingError, "at most 1"),
        ("quantile", Fraction(1, 1001), BoundingError, "thousandths"),
        ("epsilon", 0.0, AccountingError, "finite"),
        ("adjacency", "nearby", AccountingError, "accepted"),
        ("adjacency", "fixed-graph", BoundingError, "declare max_contributions"),
    ):
        with pytest.raises(error, match=words):
            learned_contributions(counts, **(fine | {key: value}))  # type: ignore[arg-type]
