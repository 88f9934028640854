"""Sums in fixed point, their noise and guarantees. Each statistical bound is missed with probability below 1e-7."""

import itertools
import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, skellam
from seeded_stream import Counted

from dpsynth_platform.federation import noise, trust
from dpsynth_platform.federation.noise import TABLE_BITS, sample_skellam, skellam_tails
from dpsynth_platform.federation.sums import (
    SumPlan,
    add,
    clip,
    decode,
    encode,
    fixed_point,
    norms,
    plan_of_counts,
)
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import epsilon
from dpsynth_platform.privacy.events import GaussianCountsEvent, SkellamCountsEvent, SkellamSumsEvent

PLAN = SumPlan(8, 6, 2, 3, 16, 1000 * 16, 64.0)


@given(st.integers(2, 62), st.lists(st.integers(-(2**61), 2**61 - 1), min_size=1, max_size=5))
def test_what_is_in_range_is_decoded_as_it_was(bits, values):
    half = 2 ** (bits - 1)
    units = np.array([(value + half) % (2 * half) - half for value in values], dtype=np.int64)
    assert np.array_equal(decode(encode(units, bits), bits), units)


@given(
    participants=st.integers(2, 1000),
    bound=st.integers(1, 2**40),
    variance=st.integers(1, 2**40).map(lambda steps: steps / 1024),
    length=st.integers(1, 10**6),
    sign=st.sampled_from([-1, 1]),
)
def test_all_at_their_bound_with_the_largest_noise_do_not_overflow(participants, bound, variance, length, sign):
    plan = SumPlan(participants, participants, 1, length, 1, bound, variance)
    entry = encode(np.array([sign * bound], dtype=np.int64), plan.modulus_bits)
    total = encode(np.array([sign * (plan.noise_reach - 1)], dtype=np.int64), plan.modulus_bits)
    for _ in range(participants):
        total = add(total, entry, plan.modulus_bits)
    assert decode(total, plan.modulus_bits)[0] == sign * (participants * bound + plan.noise_reach - 1)


def test_the_largest_noise_is_a_bound_over_all_entries():
    plan = SumPlan(4, 3, 1, 1000, 1, 10, 25.0)
    with mpmath.workdps(40):
        tail = mpmath.fsum(mpmath.besseli(k, 100) for k in range(plan.noise_reach, plan.noise_reach + 400))
        assert 2 * 1000 * mpmath.exp(-100) * tail <= 2.0**-60


@pytest.mark.parametrize(
    "change",
    [
        {"participants": 1},
        {"minimum": 9},
        {"minimum": 1},
        {"minimum": 5},
        {"minimum": "6"},
        {"colluders": 4},
        {"colluders": -1},
        {"length": 0},
        {"bound": 2**60},
        {"bound": 1.5},
        {"scale": True},
        {"share_variance": 0.0},
        {"share_variance": math.nan},
        {"share_variance": 0.3},
        {"share_variance": 64},
        {"more": 1},
    ],
)
def test_impossible_plans_are_refused(change):
    assert SumPlan.from_json(PLAN.to_json()) == PLAN
    with pytest.raises(AccountingError):
        SumPlan.from_json(PLAN.to_json() | change)


@given(participants=st.integers(2, 40), minimum=st.integers(2, 40), colluders=st.integers(0, 40))
def test_plans_of_which_two_sets_could_be_opened_are_refused(participants, minimum, colluders):
    if minimum <= participants and 2 * minimum > participants + colluders:
        plan = replace(PLAN, participants=participants, minimum=minimum, colluders=colluders)
        assert plan.honest >= 1
        return
    with pytest.raises(AccountingError):
        replace(PLAN, participants=participants, minimum=minimum, colluders=colluders)


def test_vectors_beyond_the_plan_are_refused_without_their_values():
    inside = np.array([16000, -16000, 0])
    PLAN.check_vector(inside)
    for wrong in (inside + 1, inside - 1, inside[:2], inside.astype(float), inside.reshape(3, 1)):
        with pytest.raises(AccountingError) as found:
            PLAN.check_vector(wrong)
        assert "1600" not in str(found.value)


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-50, 50)), min_size=1, max_size=6), st.integers(1, 40))
def test_clipping_moves_no_entry_further(pairs, bound):
    one, other = (np.array(side, dtype=np.int64) for side in zip(*pairs, strict=True))
    assert np.all(np.abs(clip(one, bound) - clip(other, bound)) <= np.abs(one - other))


@given(
    st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8),
    st.sampled_from([1, 3, 1000]),
    st.sampled_from([1, 10, 1024]),
)
def test_vectors_in_fixed_point_keep_their_norms(values, norm, scale):
    vector = np.array(values)
    units = fixed_point(vector, norm, scale)
    l1, l2_squared = norms(len(values), norm, scale)
    assert sum(abs(int(entry)) for entry in units) <= l1
    assert sum(int(entry) ** 2 for entry in units) <= l2_squared == (norm * scale) ** 2
    assert np.all(np.abs(units) <= np.abs(vector) * scale)
    if np.linalg.norm(vector) < 0.99 * norm:
        assert np.all(np.abs(units - vector * scale) < 1)


@pytest.mark.parametrize(
    ("vector", "units"),
    [([math.nan], [0]), ([math.inf, 1.0], [0, 1000]), ([1e300, -1e300], [707, -707]), ([1e200, 1.0], [1000, 0])],
)
def test_what_is_not_finite_counts_as_nothing_and_what_is_huge_is_clipped(vector, units):
    assert fixed_point(np.array(vector), 1, 1000).tolist() == pytest.approx(units, abs=1)


def test_a_norm_that_does_not_fit_is_refused():
    with pytest.raises(AccountingError, match="norm of 4"):
        fixed_point(np.array([1.0]), 4, 2**51)


def test_vectors_of_a_person_in_two_silos_may_point_alike():
    event = replace(PLAN, norm=2, silos=2).event
    assert isinstance(event, SkellamSumsEvent)
    moved = 2 * fixed_point(np.array([2.0, 0, 0]), 2, 16)
    assert 0.99 * event.sensitivity.l2 <= np.linalg.norm(moved) <= event.sensitivity.l2
    assert event.variance == 4 * 64
    spread = 2 * fixed_point(np.full(3, 9.0), 2, 16)
    assert 0.9 * event.sensitivity.l1 <= spread.sum() <= event.sensitivity.l1


# Sensitivity on neighbours, over several silos.


@pytest.mark.parametrize(("b", "silos"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_a_person_in_several_silos_moves_the_sum_by_what_the_event_says(b, silos):
    event = replace(PLAN, max_contributions=b, silos=silos).event
    farthest = [0, 0]
    for cells in itertools.product(range(3), repeat=b * silos):
        for present in itertools.product([0, 1], repeat=b * silos):
            moved = np.bincount(cells, weights=present, minlength=3) * PLAN.scale
            farthest = [max(farthest[0], np.abs(moved).sum()), max(farthest[1], (moved**2).sum())]
    assert farthest == [event.sensitivity.l1, event.sensitivity.l2_squared]


# Noise.


@pytest.mark.parametrize("variance", [2.0**-10, 0.25, 3.0, 900.0])
def test_tables_are_the_distribution_in_seventy_digits(variance):
    tails, _ = skellam_tails(variance)
    with mpmath.workdps(90):
        reach = len(tails)
        p = [mpmath.exp(-variance) * mpmath.besseli(k, variance) for k in range(reach + 300)]
        for k in sorted({1, 2, 3, reach // 2, reach} - {0}):
            tail = 2 * mpmath.fsum(p[k:])
            assert abs(mpmath.mpf(tails[reach - k]) / 2**TABLE_BITS - tail) < mpmath.mpf(2) ** -198


def test_the_first_bits_decide_or_more_are_drawn(monkeypatch):
    tails, firsts = skellam_tails(3.0)

    class Words:
        def __init__(self, *words):
            self.given = list(words)

        def words(self, number):
            taken, self.given = self.given[:number], self.given[number:]
            return np.array(taken, dtype=np.uint64)

    most = 2**64 - 1
    place = len(firsts) - 2  # P[|X| >= 2]
    first = int(firsts[place])
    assert noise._draws(3.0, 1, Words((first - 1) << 1))[0] == 2
    assert noise._draws(3.0, 1, Words((first + 1) << 1 | 1))[0] == -1
    assert noise._draws(3.0, 1, Words(first << 1, 0, 0, 0, 0))[0] == 2
    assert noise._draws(3.0, 1, Words(first << 1, most, most, most, most))[0] == 1
    assert noise._draws(3.0, 1, Words(0, *[0] * 4))[0] in (len(tails), len(tails) - 1)


@pytest.mark.parametrize(("variance", "parts"), [(0.5, 1), (6.0, 1), (6.0, 4), (300.0, 3)])
def test_draws_and_sums_of_shares_have_the_distribution(monkeypatch, variance, parts):
    stream = Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)
    number = 200_000
    drawn = sum(sample_skellam(variance / parts if parts != 3 else 100.0, number) for _ in range(parts))
    law = skellam(variance / 2, variance / 2)
    edge = int(3 * math.sqrt(variance)) + 1
    expected = number * np.array([law.cdf(-edge), *law.pmf(np.arange(1 - edge, edge)), law.sf(edge - 1)])
    found = np.bincount(np.clip(drawn, -edge, edge) + edge, minlength=2 * edge + 1)
    assert ((found - expected) ** 2 / expected).sum() < chi2.isf(1e-8, 2 * edge)


def test_wide_noise_is_a_sum_of_draws(monkeypatch):
    stream = Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)
    monkeypatch.setattr(noise, "MOST_OF_A_DRAW", 4.0)
    drawn = sample_skellam(10.0, 100_000)
    # Deviation of the mean of squares: sqrt((3 V^2 + V - V^2) / n).
    assert abs((drawn**2).mean() - 10) < 6 * math.sqrt((2 * 100 + 10) / 100_000)


def test_draws_are_fresh():
    assert not np.array_equal(sample_skellam(100.0, 50), sample_skellam(100.0, 50))


@pytest.mark.parametrize("variance", [0.0, -1.0, 0.3, math.nan, 2.0**60])
def test_other_variances_are_refused(variance):
    with pytest.raises(AccountingError):
        sample_skellam(variance, 1)


# Guarantees.


@pytest.mark.parametrize(("minimum", "colluders"), [(8, 0), (5, 0), (6, 2), (7, 5)])
def test_the_fewest_honest_shares_meet_the_guarantee_as_gaussian_noise_does(minimum, colluders):
    plan = plan_of_counts(
        participants=8,
        minimum=minimum,
        colluders=colluders,
        cells=40,
        most_records=10_000,
        target_epsilon=1.0,
        delta=1e-6,
    )
    honest = (minimum - colluders) * plan.share_variance
    assert epsilon(SkellamCountsEvent(honest, plan.scale, "add-or-remove", 1), 1e-6).epsilon <= 1
    assert epsilon(SkellamCountsEvent(0.99 * honest, plan.scale, "add-or-remove", 1), 1e-6).epsilon > 1
    gaussian = epsilon(GaussianCountsEvent(math.sqrt(honest) / plan.scale, "add-or-remove", 1), 1e-6).epsilon
    assert gaussian == pytest.approx(1, rel=3e-3)


def test_a_person_in_two_silos_needs_twice_the_deviation():
    common = {
        "participants": 5,
        "minimum": 4,
        "colluders": 1,
        "cells": 9,
        "most_records": 99,
        "target_epsilon": 2.0,
        "delta": 1e-6,
    }
    one, two = plan_of_counts(**common), plan_of_counts(**common, silos=2)
    assert two.share_variance == pytest.approx(4 * one.share_variance, rel=0.01)
    with pytest.raises(AccountingError, match="silos"):
        replace(one, silos=6)


def test_who_agrees_on_the_digest_accounts_for_the_same_event():
    changes = [{}, {"adjacency": "replace-one"}, {"max_contributions": 2}, {"silos": 2}, {"norm": 1}, {"norm": 2}]
    plans = [replace(PLAN, **change) for change in changes]
    assert len({plan.digest for plan in plans}) == 6
    assert plans[2].event == plans[3].event and len({plan.event for plan in plans}) == 5
    assert all(SumPlan.from_json(plan.to_json()) == plan for plan in plans)
    with pytest.raises(AccountingError, match="fixed-graph"):
        replace(PLAN, norm=1, adjacency="fixed-graph")


def test_several_tables_in_one_vector_cost_as_much_as_a_sum_of_each():
    plan = replace(PLAN, tables=3)
    apart = dp_event.ComposedDpEvent([PLAN.event] * 3)
    assert plan.digest != PLAN.digest and plan.modulus_bits == PLAN.modulus_bits
    assert epsilon(plan.event, 1e-6) == epsilon(apart, 1e-6)
    for wrong in ({"tables": 4}, {"tables": 0}, {"tables": 2, "norm": 1}):
        with pytest.raises(AccountingError, match="tables"):
            replace(PLAN, **wrong)


def test_a_whole_sum_is_the_counts_with_noise(monkeypatch):
    stream = Counted()
    monkeypatch.setattr(noise, "SecureStream", lambda: stream)
    plan = SumPlan(6, 4, 1, 2000, 16, 500 * 16, 6400.0)
    rng = np.random.default_rng(3)
    counts = rng.integers(0, 500, (5, 2000))
    total = np.zeros(2000, dtype=np.uint64)
    for table in counts:
        units = table * plan.scale
        plan.check_vector(units)
        share = units + sample_skellam(plan.share_variance, plan.length)
        total = add(total, encode(share, plan.modulus_bits), plan.modulus_bits)
    error = decode(total, plan.modulus_bits) - counts.sum(axis=0) * plan.scale
    assert abs((error**2).mean() / (5 * 6400) - 1) < 6 * math.sqrt(2.01 / 2000)


def test_each_party_has_its_guarantee():
    event = PLAN.event
    spent = epsilon(dp_event.ComposedDpEvent([event, event]), 1e-6).epsilon
    distributed = trust.protections("distributed", [PLAN, PLAN], 1e-6)
    assert {(party.epsilon, party.delta) for party in distributed} == {(spent, 1e-6)}
    none_known = trust.protections("distributed", [PLAN, replace(PLAN, colluders=0)], 1e-6)
    assert [party.rests_on == "nothing" for party in none_known] == [False, True, False]
    assert none_known[1].epsilon is None
    aggregator, participants, recipient = trust.protections("central", GaussianCountsEvent(9.0, "zero-out", 1), 1e-6)
    assert (aggregator.epsilon, aggregator.rests_on) == (None, "nothing")
    assert participants.epsilon == recipient.epsilon == epsilon(GaussianCountsEvent(9.0, "zero-out", 1), 1e-6).epsilon
    assert {(party.epsilon, party.delta) for party in trust.protections("local", 1.5, 1e-6)} == {(1.5, 0.0)}
    wrong = (("local", event), ("local", True), ("central", 1.0), ("other", event), ("distributed", event))
    for model, cost in (*wrong, ("distributed", []), ("distributed", GaussianCountsEvent(9.0, "zero-out", 1))):
        with pytest.raises(AccountingError):
            trust.protections(model, cost, 1e-6)
