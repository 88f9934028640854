"""From noisy sums to the numbers of a model: post-processing only.

What belongs here: estimates from noisy sums whose noise is known. What does not: the sums themselves
(`moments_measuring`). Nothing here reads a record; divisors are noisy.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

BINS = 64
"""Cells of a histogram of norms."""
STEPS = 4
"""Residuals are in quarters of a grey level."""
LEAST_COUNT = 1.0


def counts_from(noisy: Floats) -> Floats:
    """Class counts of at least `LEAST_COUNT`."""
    return np.maximum(noisy, LEAST_COUNT)


def norm_from(noisy: Floats, deviation: float, largest: float, quantile: float) -> float:
    """A clipping norm: the upper end of the cell in which a quantile of a noisy histogram of norms lies.

    Cells below three deviations of the noise count nothing; where all do, a third of the largest norm.
    """
    kept = np.where(noisy >= 3 * deviation, noisy, 0.0)
    if not kept.any():
        return largest / 3
    place = int(np.searchsorted(np.cumsum(kept), quantile * kept.sum()))
    return largest * (min(place, len(kept) - 1) + 1) / len(kept)


def whole_means(sums: Floats, counts: Floats, deviation: float, dimensions: int) -> npt.NDArray[np.float64]:
    """Class means in whole `STEPS` of a grey level, clipped to pixels' range; shape (classes, values).

    Args:
        deviation: of the sums' noise, in each of `dimensions` orthogonal directions.
    """
    common = sums.sum(axis=0) / counts.sum()
    means = shrunk_means(sums / counts[:, None], common, deviation / counts, dimensions)
    return np.rint(np.clip(means, 0, 255) * STEPS)


def shrunk_means(means: Floats, common: Floats, deviations: Floats, dimensions: int) -> Floats:
    """Each row moved to the common one by the noise's part of their distance (positive-part James-Stein)."""
    away = means - common
    squares = np.maximum((away**2).sum(axis=1), 1e-12)
    kept = np.maximum(0.0, 1 - deviations**2 * dimensions / squares)
    shrunk: Floats = common + kept[:, None] * away
    return shrunk


def symmetric(upper: Floats) -> Floats:
    """The symmetric matrix of an upper triangle; also for a stack of them."""
    triangle = np.triu(upper)
    whole: Floats = triangle + np.swapaxes(np.triu(upper, 1), -1, -2)
    return whole


def components_of(covariance: Floats, between: Floats, deviation: float, most: int) -> Floats:
    """The leading eigenvectors of a noisy covariance, as columns: those whose variance stands out of the noise's.

    A symmetric matrix of noise of `deviation` on its diagonal, and 1 / sqrt(2) of it elsewhere, has no eigenvalue above
    sqrt(2 n) deviations, nearly (Wigner's law). At least eight are kept, or all.

    Args:
        covariance: within classes, noisy.
        between: of class means; its noise is small.
        deviation: of the noise of the covariance's diagonal.
        most: how many vectors at most.
    """
    size = len(covariance)
    values, vectors = np.linalg.eigh(covariance + between)
    values, vectors = values[::-1], vectors[:, ::-1]
    above = int((values > math.sqrt(2 * size) * deviation).sum())
    leading: Floats = np.ascontiguousarray(vectors[:, : min(size, most, max(8, above))])
    return leading


def positive(matrix: Floats, least: float, most: float) -> Floats:
    """The nearest symmetric matrix with eigenvalues between `least` and `most`; never nearly singular."""
    values, vectors = np.linalg.eigh(matrix)
    found: Floats = (vectors * np.clip(values, max(least, 1e-8 * most), most)) @ vectors.T
    return (found + found.T) / 2


def shrunk_covariances(covariances: Floats, counts: Floats, deviation: float, most: float) -> Floats:
    """Each class's covariance, moved to the common one by the noise's part of their squared distance, and positive.

    Args:
        covariances: noisy; shape (classes, size, size).
        deviation: of the noise of a sum's diagonal, so that a covariance has deviation / count.
        most: the squared clipping norm, which no variance exceeds.
    """
    size = covariances.shape[1]
    common = np.einsum("c,cij->ij", counts / counts.sum(), covariances)
    least = 1e-4 * max(float(np.trace(common)), 1e-6) / size
    found = []
    for covariance, count in zip(covariances, counts, strict=True):
        away = covariance - common
        noise = (deviation / count) ** 2 * size * (size + 1) / 2
        kept = max(0.0, 1 - noise / max(float((away**2).sum()), 1e-12))
        found.append(positive(common + kept * away, least, most))
    return np.stack(found)


def clusters_of_draws(
    centre: Floats, covariance: Floats, number: int, generator: np.random.Generator, drawn: int = 3000
) -> Floats:
    """Centres of k-means on draws of a normal distribution; shape (number, size)."""
    from sklearn.cluster import KMeans

    factor = np.linalg.cholesky(covariance)
    draws = centre + generator.standard_normal((drawn, len(centre))) @ factor.T
    means = KMeans(number, n_init=1, max_iter=10, random_state=int(generator.integers(2**31))).fit(draws)
    return np.asarray(means.cluster_centers_, dtype=np.float64)


def clipped_moments(location: Floats, scale: Floats) -> tuple[Floats, Floats]:
    """Mean and variance of a normal variable that is clipped to [0, 1]; elementwise."""
    from scipy.special import ndtr

    low, high = -location / scale, (1 - location) / scale
    density_low, density_high = (np.exp(-(end**2) / 2) / math.sqrt(2 * math.pi) for end in (low, high))
    inside, above = ndtr(high) - ndtr(low), ndtr(-high)
    mean = location * inside + scale * (density_low - density_high) + above
    square = (
        (location**2 + scale**2) * inside
        + 2 * location * scale * (density_low - density_high)
        + scale**2 * (low * density_low - high * density_high)
        + above
    )
    return mean, np.maximum(square - mean**2, 1e-9)


def before_clipping(means: Floats, variances: Floats, rounds: int = 100) -> tuple[Floats, Floats]:
    """Location and scale of the normal variables that have these means and variances once clipped to [0, 1].

    By a damped fixed point; where none has them, it is near the nearest.
    """
    means = np.clip(means, 0.002, 0.998)
    variances = np.clip(variances, 1e-5, 0.95 * means * (1 - means))
    location, scale = means.copy(), np.sqrt(variances)
    for _ in range(rounds):
        mean, variance = clipped_moments(location, scale)
        scale = np.clip(scale * (variances / variance) ** 0.3, 1e-3, 5)
        location = np.clip(location + 0.7 * (means - mean), -4, 5)
    return location, scale


def low_frequencies(height: int, width: int, channels: int, number: int) -> Floats:
    """Orthonormal columns: `number` x `number` low frequencies (cosines, DCT-II) of each channel.

    Shape (height * width * channels, size), in the pixels' order.
    """
    vertical, horizontal = _cosines(height, min(number, height)), _cosines(width, min(number, width))
    plane = np.einsum("hu,wv->hwuv", vertical, horizontal).reshape(height * width, -1)
    return np.kron(plane, np.eye(channels))


def _cosines(size: int, number: int) -> Floats:
    places = np.arange(size)[:, None] + 0.5
    waves = np.cos(np.pi * places * np.arange(number) / size) * math.sqrt(2 / size)
    waves[:, 0] /= math.sqrt(2)
    return np.asarray(waves)
