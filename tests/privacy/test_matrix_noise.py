"""Correlated noise: the sensitivity of C by all patterns of participation, and what the whole costs."""

import itertools
import math

import numpy as np
import pytest
from scipy.linalg import toeplitz

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.matrix_noise import (
    MOST_BANDS,
    MOST_ROUNDS,
    matrix_sensitivity,
    mean_square_error,
    optimized_coefficients,
    prefix_sums,
    square_root_coefficients,
)

SIGNED = (1.0, -0.4, 0.7)
FLAT = (1.0, 1.0, 0.25, 0.25, 0.125)


def matrix(coefficients, rounds):
    column = np.zeros(rounds)
    column[: len(coefficients)] = coefficients
    return toeplitz(column, np.zeros(rounds))


def patterns(rounds, participations, separation):
    """All sets of rounds of one unit, the empty one among them."""
    for number in range(participations + 1):
        for found in itertools.combinations(range(rounds), number):
            if all(later - earlier >= separation for earlier, later in itertools.pairwise(found)):
                yield list(found)


def by_all_patterns(coefficients, rounds, participations, separation):
    """The largest sum of the Gram matrix's absolute values over a unit's rounds: an independent computation."""
    gram = np.abs((c := matrix(coefficients, rounds)).T @ c)
    return max(gram[np.ix_(found, found)].sum() for found in patterns(rounds, participations, separation))


@pytest.mark.parametrize("coefficients", [(1.0,), (2.5,), SIGNED, FLAT, square_root_coefficients(4), (1.0, 0.0, 0.0)])
@pytest.mark.parametrize("rounds", [1, 2, 5, 8, 9])
def test_sensitivity_is_the_largest_over_all_patterns(coefficients, rounds):
    coefficients = coefficients[:rounds]
    for participations, separation in itertools.product(range(1, rounds + 1), range(1, 6)):
        signed = min(coefficients) < 0 or any(b > a for a, b in itertools.pairwise(coefficients))
        if signed and len(coefficients) > separation:
            with pytest.raises(AccountingError, match="at most as many bands as the separation"):
                matrix_sensitivity(coefficients, rounds, participations, separation)
            continue
        found = matrix_sensitivity(coefficients, rounds, participations, separation)
        brute = by_all_patterns(coefficients, rounds, participations, separation)
        assert brute <= found.l2_squared <= brute * (1 + 1e-9)
        assert found.l2 == math.sqrt(found.l2_squared)


def test_no_vectors_of_norm_one_move_more_and_equal_ones_move_as_much():
    rng, rounds, k, b = np.random.default_rng(3), 12, 3, 4
    for coefficients in (SIGNED, square_root_coefficients(7)):
        c, bound = matrix(coefficients, rounds), matrix_sensitivity(coefficients, rounds, k, b).l2
        largest = 0.0
        for found in patterns(rounds, k, b):
            added = np.zeros((rounds, 5))
            added[found] = rng.normal(size=(len(found), 5))
            added[found] /= np.linalg.norm(added[found], axis=1, keepdims=True)
            assert np.linalg.norm(c @ added) <= bound
            added[found] = np.eye(5)[0]
            largest = max(largest, np.linalg.norm(c @ added))
        assert largest == pytest.approx(bound, rel=1e-9)


def test_known_cases():
    """One participation: the norm of a column. One band: as many independent Gaussians as participations."""
    c = square_root_coefficients(6)
    assert matrix_sensitivity(c, 50, 1, 1).l2 == pytest.approx(np.linalg.norm(c))
    assert matrix_sensitivity(c, 50, 5, 6).l2_squared == pytest.approx(5 * np.dot(c, c))
    assert matrix_sensitivity((1.0,), 50, 7, 1).l2_squared == pytest.approx(7)
    assert matrix_sensitivity((1.0,), 50, 50, 10).l2_squared == pytest.approx(5)  # no more than five fit
    assert square_root_coefficients(4) == (1.0, 0.5, 0.375, 0.3125)
    root = matrix(square_root_coefficients(9), 9)
    assert root @ root == pytest.approx(np.tril(np.ones((9, 9))))


@pytest.mark.parametrize(
    "changes",
    [
        {"coefficients": ()},
        {"coefficients": "12"},
        {"coefficients": (0.0, 1.0)},
        {"coefficients": (-1.0,)},
        {"coefficients": (1.0, math.nan)},
        {"coefficients": (1.0, 1e7)},
        {"coefficients": (1.0, True)},
        {"coefficients": (1.0,) * 41},
        {"coefficients": (1.0, 2.0), "separation": 1},
        {"coefficients": (1.0, -0.1), "separation": 1},
        {"rounds": 0},
        {"rounds": MOST_ROUNDS + 1},
        {"rounds": 4.0},
        {"participations": 0},
        {"participations": 41},
        {"separation": 0},
        {"separation": True},
    ],
)
def test_impossible_numbers_are_refused(changes):
    good = {"coefficients": (1.0, 0.5), "rounds": 40, "participations": 4, "separation": 10}
    with pytest.raises(AccountingError, match="accepted"):
        matrix_sensitivity(**(good | changes))


def test_too_many_bands_are_refused():
    with pytest.raises(AccountingError, match=str(MOST_BANDS)):
        matrix_sensitivity((1.0,) * (MOST_BANDS + 1), MOST_ROUNDS, 1, 1)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("coefficients", [(1.0,), (1.0, 0.5, 0.375), SIGNED])
def test_error_is_that_of_the_matrices(coefficients, momentum):
    rounds = 15
    weights = prefix_sums(rounds, momentum)
    by_hand = np.zeros((rounds, rounds))
    for first in range(rounds):  # a sum of 1 in one round: the speed fades, and the model adds it up
        speed = model = 0.0
        for number in range(rounds):
            speed = momentum * speed + (number == first)
            model += speed
            by_hand[number, first] = model
    error = by_hand @ np.linalg.inv(matrix(coefficients, rounds))
    assert mean_square_error(coefficients, weights) == pytest.approx((error**2).sum() / rounds)


def loss(coefficients, workload):
    return mean_square_error(coefficients, workload) * float(np.dot(coefficients, coefficients))


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_optimized_coefficients_are_better_and_a_minimum(momentum):
    workload = prefix_sums(60, momentum)
    losses = []
    for bands in (1, 2, 5, 12):
        found = optimized_coefficients(bands, workload)
        assert len(found) == bands and found[0] == 1
        best = loss(found, workload)
        assert best <= loss(square_root_coefficients(bands), workload) * (1 + 1e-12)
        for place, step in itertools.product(range(1, bands), (-1e-3, 1e-3)):
            moved = np.array(found)
            moved[place] += step
            assert loss(moved, workload) > best * (1 - 1e-7)
        losses.append(best)
    assert losses == sorted(losses, reverse=True) and losses[-1] < 0.6 * losses[0]
