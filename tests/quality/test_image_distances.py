"""Distances of feature sets against closed forms, and against computations that are written out."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.linalg import sqrtm

from dpsynth_platform.quality.images import distances
from dpsynth_platform.quality.images.distances import coverage, frechet_distance


def with_moments(rows: int, mean: np.ndarray, covariance: np.ndarray, seed: int) -> np.ndarray:
    """Rows whose sample mean and covariance are exactly these."""
    raw = np.random.default_rng(seed).normal(size=(rows, len(mean)))
    raw -= raw.mean(axis=0)
    white = raw @ np.linalg.inv(np.linalg.cholesky(np.cov(raw.T)).T)
    return white @ np.linalg.cholesky(covariance).T + mean


def test_frechet_is_the_closed_form_of_gaussians() -> None:
    """For commuting covariances: squared distances of means and of standard deviations, summed."""
    first = with_moments(500, np.zeros(3), np.diag([1.0, 4.0, 9.0]), 1)
    second = with_moments(400, np.array([1.0, -2.0, 0.5]), np.diag([4.0, 4.0, 1.0]), 2)
    assert frechet_distance(first, second) == pytest.approx(1 + 4 + 0.25 + (2 - 1) ** 2 + 0 + (3 - 1) ** 2)
    assert frechet_distance(second, first) == pytest.approx(frechet_distance(first, second))


@pytest.mark.parametrize("rows", [8, 30, 200])
def test_frechet_is_that_of_the_covariances_roots(rows: int) -> None:
    """Fewer rows than features, as many, and more: each by the general formula."""
    rng = np.random.default_rng(rows)
    first, second = rng.normal(size=(rows, 30)) @ rng.normal(size=(30, 30)), rng.normal(1, 2, size=(rows + 5, 30))
    covariances = np.cov(first.T), np.cov(second.T)
    root = np.real(sqrtm(covariances[0] @ covariances[1]))
    moved = np.sum((first.mean(axis=0) - second.mean(axis=0)) ** 2)
    expected = moved + np.trace(covariances[0] + covariances[1] - 2 * root)
    assert frechet_distance(first, second) == pytest.approx(expected, rel=1e-4)


def test_frechet_of_equal_sets_is_zero_and_of_a_shift_its_square() -> None:
    features = np.random.default_rng(0).normal(size=(60, 20)).astype(np.float32)
    assert frechet_distance(features, features) == pytest.approx(0, abs=1e-9)
    assert frechet_distance(features, features + np.float32(0.5)) == pytest.approx(20 * 0.25, rel=1e-4)


def by_definition(real: np.ndarray, synthetic: np.ndarray, k: int) -> tuple[float, float, float, float]:
    """Precision, recall, density and coverage, written as in the papers."""

    def radius(side: np.ndarray, at: int) -> float:
        return sorted(np.linalg.norm(side[at] - other) for other in np.delete(side, at, axis=0))[k - 1]

    real_radii = [radius(real, at) for at in range(len(real))]
    made_radii = [radius(synthetic, at) for at in range(len(synthetic))]
    inside = [[np.linalg.norm(y - x) < r for x, r in zip(real, real_radii, strict=True)] for y in synthetic]
    recalled = [any(np.linalg.norm(x - y) < r for y, r in zip(synthetic, made_radii, strict=True)) for x in real]
    precision = np.mean([any(row) for row in inside])
    density = np.mean([sum(row) for row in inside]) / k
    covered = np.mean([any(row[at] for row in inside) for at in range(len(real))])
    return float(precision), float(np.mean(recalled)), float(density), float(covered)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_shares_are_those_of_the_definitions(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "_ROWS", 7)  # several blocks
    rng = np.random.default_rng(k)
    real, made = rng.normal(size=(40, 3)), rng.normal(0.7, 1.3, size=(33, 3))
    found = coverage(real, made, k)
    assert (found.precision, found.recall, found.density, found.coverage) == pytest.approx(by_definition(real, made, k))


def test_equal_sets_are_covered_and_far_ones_are_not() -> None:
    features = np.random.default_rng(0).normal(size=(200, 8))
    same = coverage(features, features)
    assert (same.precision, same.recall, same.coverage) == (1, 1, 1) and same.density == pytest.approx(1, abs=0.02)
    far = coverage(features, features + 100)
    assert (far.precision, far.recall, far.density, far.coverage) == (0, 0, 0, 0)
    one = coverage(features, np.repeat(features[:1], 200, axis=0))
    assert one.precision == 1 and one.recall == 0 and one.coverage < 0.2
