"""Matrix mechanisms: noise that is correlated over rounds, by a banded lower-triangular Toeplitz matrix C.

What belongs here: the coefficients of C, its sensitivity under repeated participation and the error of what is summed
up, all of public numbers. What does not: the noise itself, and what a unit adds (`federation.gradients`).

The released sums are S + s C^-1 Z for rows Z of independent noise: C^-1 spreads noise so that much of it cancels in the
sums over rounds that a model consists of (Denisov et al. 2022; Choquette-Choo et al. 2023, "(Amplified) banded matrix
factorization"). C has the entries c_0, c_1, ..., c_(bands - 1) from the diagonal down, the same in each column, as many
as the column has room for. With one band, noise is independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.foundation.errors import AccountingError

Array = NDArray[np.float64]

MOST_ROUNDS = 2**14
MOST_BANDS = 2**10
"""A server keeps two vectors as long as the model for each band."""
# Of a coefficient: no square of a used one overflows or vanishes.
LARGEST = 1e6
# The sum of squares is rounded by less, relatively, for up to `MOST_ROUNDS` rounds.
ROUNDING = 2.0**-36


@dataclass(frozen=True)
class MatrixSensitivity:
    """How far one unit moves C S in the Frobenius norm, if it moves a row of S by 1 at most; rounded up."""

    l2_squared: float

    @property
    def l2(self) -> float:
        return math.sqrt(self.l2_squared)


@lru_cache(maxsize=256, typed=True)
def matrix_sensitivity(
    coefficients: tuple[float, ...], rounds: int, participations: int, separation: int
) -> MatrixSensitivity:
    """The sensitivity of C for a unit in at most k rounds, of which two are at least b apart.

    Let u_t be what the unit adds in round t, |u_t| <= 1, and 0 outside of its rounds. C U is the sum of c_t u_t' over
    its rounds, for columns c_t of C, so that

        |C U|^2 = sum over s, t of <c_s, c_t> <u_s, u_t> <= sum over s, t of |<c_s, c_t>|.

    - If C has at most b bands, two columns of the unit have no common row: the right side is the sum of their squared
      norms. These do not rise with t, as later columns end with the matrix. So the first possible rounds, 0, b, 2b,
      ..., are the worst (Choquette-Choo et al. 2023, theorem 2).
    - If the coefficients are not negative and do not rise, the same rounds are the worst (Kalinin & Lampert 2024,
      theorem 2); no product is negative, so that the right side is the squared norm of the columns' sum.

    In both cases equality holds for equal u_t, so this is exact. Fewer rounds than k cost no more.

    Args:
        coefficients: c_0, c_1, ...
        rounds: of the whole mechanism, n.
        participations: k. Of them, only as many count as fit into n rounds.
        separation: b: rounds t and t + b are allowed, nearer ones not; 1 is any round.

    Raises:
        AccountingError: a number is impossible, or C has more than b bands and coefficients that are negative or rise.
    """
    for name, value, most in (
        ("rounds", rounds, MOST_ROUNDS),
        ("participations", participations, rounds),
        ("separation", separation, MOST_ROUNDS),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            raise AccountingError(f"matrix mechanism: {name} {value!r}; accepted: a whole number from 1 to {most}")
    check_coefficients(coefficients, rounds)
    column = np.zeros(rounds)
    column[: len(coefficients)] = coefficients
    if len(coefficients) > separation and (column[-1] < 0 or np.any(np.diff(column) > 0)):
        raise AccountingError(
            f"matrix mechanism: {len(coefficients)} bands for participations {separation} rounds apart, with "
            "coefficients that are negative or rise; accepted: at most as many bands as the separation, or others"
        )
    moved = np.zeros(rounds)
    for first in range(0, min(rounds, participations * separation), separation):
        moved[first:] += column[: rounds - first]
    return MatrixSensitivity(float(moved @ moved) * (1 + ROUNDING))


def check_coefficients(coefficients: Sequence[float], rounds: int) -> None:
    """Raises `AccountingError` unless they are of an invertible matrix of so many rounds."""
    numbers = all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in coefficients)
    most = min(rounds, MOST_BANDS)
    if (
        not numbers
        or not 1 <= len(coefficients) <= most
        or not all(abs(value) <= LARGEST for value in coefficients)  # also refuses NaN
        or coefficients[0] < 1 / LARGEST
    ):
        raise AccountingError(
            f"matrix mechanism: coefficients {coefficients!r:.200}; accepted: 1 to {most} numbers up to {LARGEST:g}, "
            f"the first from {1 / LARGEST:g} up"
        )


def prefix_sums(rounds: int, momentum: float = 0.0) -> Array:
    """How much of a round's sum is in the model j rounds later, j from 0; shape (rounds,).

    The model of plain sums has 1; with momentum m in [0, 1), a sum returns with weights 1, m, m^2, ...
    """
    return np.cumsum(momentum ** np.arange(rounds, dtype=np.float64))


def mean_square_error(coefficients: Sequence[float], workload: Array) -> float:
    """The mean over all rounds of the squared error of the model, for independent noise of deviation 1.

    With the coefficients a of the workload and g of C^-1, round t has the error sum over j <= t of (a * g)_j^2.

    Args:
        workload: of `prefix_sums`; shape (rounds,).
    """
    spread, rounds = _divided(workload, coefficients), len(workload)
    return float(spread**2 @ np.arange(rounds, 0, -1)) / rounds


def square_root_coefficients(bands: int) -> tuple[float, ...]:
    """The first coefficients of the square root of the prefix sums (Fichtenberger, Henzinger & Upadhyay 2023)."""
    j = np.arange(1, bands)
    return tuple(np.cumprod(np.append(1.0, (2 * j - 1) / (2 * j))).tolist())


def optimized_coefficients(bands: int, workload: Array) -> tuple[float, ...]:
    """Those of the least error for a guarantee, if a unit's rounds are at least `bands` apart; c_0 is 1.

    Then the noise is in proportion to |c|, so that |c|^2 `mean_square_error` is what is minimized, from the square root
    of the prefix sums on (L-BFGS; Choquette-Choo et al. 2023, section 4). With g = 1 / c as power series and B = a g,
    dB / dc_i = -x^i B g.
    """
    from scipy.optimize import minimize

    rounds = len(workload)
    weights = np.arange(rounds, 0, -1) / rounds

    def logarithm(rest: Array) -> tuple[float, Array]:
        column = np.append(1.0, rest)
        spread = _divided(workload, column)
        error, norm = float(weights @ spread**2), float(column @ column)
        moved = _divided(spread, column)
        parts = 2 * weights * spread
        gradient = np.array([-(parts[i:] @ moved[: rounds - i]) for i in range(1, len(column))])
        return math.log(error * norm), gradient / error + 2 * rest / norm

    start = np.array(square_root_coefficients(bands)[1:])
    if not len(start):
        return (1.0,)
    found = minimize(logarithm, start, jac=True, method="L-BFGS-B", options={"maxiter": 500})
    best: Array = found.x if found.fun <= logarithm(start)[0] else start
    return (1.0, *(float(value) for value in best))


def _divided(series: Array, coefficients: Sequence[float] | Array) -> Array:
    """The power series over that of the coefficients: C^-1 times a vector."""
    from scipy.signal import lfilter

    found: Array = lfilter([1.0], np.asarray(coefficients, dtype=np.float64), series)
    return found
