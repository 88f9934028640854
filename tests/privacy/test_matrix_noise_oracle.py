"""Strategies, sensitivities and errors against `jax_privacy.matrix_factorization`, where it is installed
(requirements/oracle.lock)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dpsynth_platform.privacy.matrix_noise import (
    matrix_sensitivity,
    mean_square_error,
    optimized_coefficients,
    prefix_sums,
    square_root_coefficients,
)

STRATEGIES = [(1.0,), square_root_coefficients(5), square_root_coefficients(30), (1.0, 0.9, 0.2)]


@pytest.fixture(scope="module")
def oracle() -> Any:
    return pytest.importorskip("jax_privacy.matrix_factorization")


@pytest.mark.parametrize("coefficients", STRATEGIES)
@pytest.mark.parametrize(("rounds", "participations", "separation"), [(30, 3, 10), (64, 64, 5), (50, 1, 1), (40, 7, 2)])
def test_sensitivities_are_the_oracles(
    oracle: Any, coefficients: tuple[float, ...], rounds: int, participations: int, separation: int
) -> None:
    from jax import numpy as jnp

    mine = matrix_sensitivity(coefficients, rounds, participations, separation).l2_squared
    theirs = oracle.toeplitz.minsep_sensitivity_squared(jnp.array(coefficients), separation, participations, rounds)
    assert mine == pytest.approx(float(theirs), rel=1e-5)  # in single precision
    if len(coefficients) <= separation:
        whole = oracle.toeplitz.materialize_lower_triangular(jnp.array(coefficients), rounds)
        banded = oracle.sensitivity.get_sensitivity_banded(whole, separation, participations)
        assert mine**0.5 == pytest.approx(banded, rel=1e-5)


@pytest.mark.parametrize("coefficients", STRATEGIES)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_errors_are_the_oracles(oracle: Any, coefficients: tuple[float, ...], momentum: float) -> None:
    from jax import numpy as jnp

    workload = prefix_sums(40, momentum)
    theirs = oracle.toeplitz.per_query_error(
        strategy_coef=jnp.array(coefficients), n=40, workload_coef=jnp.array(workload)
    )
    assert mean_square_error(coefficients, workload) == pytest.approx(float(theirs.mean()), rel=1e-4)


@pytest.mark.parametrize(("rounds", "bands"), [(40, 4), (100, 10)])
def test_optimized_strategies_are_as_good_as_the_oracles(oracle: Any, rounds: int, bands: int) -> None:
    workload = prefix_sums(rounds)
    theirs = np.asarray(oracle.toeplitz.optimize_banded_toeplitz(rounds, bands), dtype=np.float64)
    mine = np.array(optimized_coefficients(bands, workload))
    losses = [mean_square_error(found, workload) * (found @ found) for found in (mine, theirs)]
    assert losses[0] <= losses[1] * (1 + 1e-5)


def test_the_square_root_is_the_oracles(oracle: Any) -> None:
    theirs = oracle.toeplitz.optimal_max_error_strategy_coefs(20)
    assert np.array(square_root_coefficients(20)) == pytest.approx(np.asarray(theirs), rel=1e-5)
