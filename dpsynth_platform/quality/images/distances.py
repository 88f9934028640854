"""Distances between two sets of feature vectors: Frechet distance, and shares within nearest-neighbour balls.

What belongs here: the figures, in bounded memory. What does not: the features, and which pictures are compared.

Every figure depends on the number of pictures and on the features. So it is comparable only for equal numbers on both
sides, and beside the same figure of real pictures in place of the synthetic ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.floating]

NEIGHBOURS = 5
"""The k of both papers' balls, as Naeem et al. choose it."""
_ROWS = 1_000
"""Rows of a block of distances."""


@dataclass(frozen=True)
class Coverage:
    """Shares by balls around each picture that reach to its k-th nearest neighbour of the same side.

    Attributes:
        precision: synthetic pictures in a ball of any real one.
        recall: real pictures in a ball of any synthetic one.
        density: real balls that hold a synthetic picture, over k, on average; it may exceed one.
        coverage: real balls that hold any synthetic picture.
    """

    precision: float
    recall: float
    density: float
    coverage: float


def frechet_distance(first: Values, second: Values) -> float:
    """Squared Frechet (2-Wasserstein) distance of two Gaussians with the sets' means and covariances.

    Dowson and Landau, "The Frechet distance between multivariate normal distributions", J. Multivariate Analysis 1982.

    Args:
        first, second: shapes (pictures, features), of at least two pictures each.
    """
    means = [side.mean(axis=0, dtype=np.float64) for side in (first, second)]
    centred = [
        (side - mean) / np.sqrt(len(side) - 1) for side, mean in zip((first, second), means, strict=True)
    ]  # covariance: the transpose times itself
    variance = sum(float(np.sum(side * side)) for side in centred)
    return max(0.0, float(np.sum((means[0] - means[1]) ** 2)) + variance - 2 * _root_trace(centred[0], centred[1]))


def _root_trace(first: Values, second: Values) -> float:
    """Trace of the root of the product of two covariances.

    That product has the same eigenvalues, but zeros, as the product of `first @ second.T` and its transpose. So the
    trace is the sum of singular values of that matrix, or, for many pictures, of the covariances' roots.
    """
    if min(len(first), len(second)) <= first.shape[1]:
        return float(np.linalg.svd(first @ second.T, compute_uv=False).sum())
    values, vectors = np.linalg.eigh(first.T @ first)
    root = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    return float(np.sqrt(np.clip(np.linalg.eigvalsh(root @ (second.T @ second) @ root), 0, None)).sum())


def coverage(real: Values, synthetic: Values, neighbours: int = NEIGHBOURS) -> Coverage:
    """Precision and recall (Kynkäänniemi et al., "Improved Precision and Recall Metric", NeurIPS 2019, section 2);
    density and coverage (Naeem et al., "Reliable Fidelity and Diversity Metrics", ICML 2020, section 3).

    Balls are open: a picture at exactly the distance of the k-th neighbour is outside.

    Args:
        real, synthetic: shapes (pictures, features), of more than `neighbours` pictures each.
        neighbours: the k of the balls.
    """
    centre = real.mean(axis=0)
    real, synthetic = (np.ascontiguousarray(side - centre, dtype=np.float32) for side in (real, synthetic))
    real_radius, synthetic_radius = (_radii(side, neighbours) for side in (real, synthetic))
    held = np.zeros(len(synthetic), dtype=np.int64)
    covered, recalled = np.zeros(len(real), dtype=bool), np.zeros(len(real), dtype=bool)
    for start in range(0, len(real), _ROWS):
        block = slice(start, start + _ROWS)
        distances = squared_distances(real[block], synthetic)
        inside = distances < real_radius[block, None]
        held += inside.sum(axis=0)
        covered[block] = inside.any(axis=1)
        recalled[block] = (distances < synthetic_radius[None, :]).any(axis=1)
    return Coverage(
        precision=float((held > 0).mean()),
        recall=float(recalled.mean()),
        density=float(held.mean() / neighbours),
        coverage=float(covered.mean()),
    )


def squared_distances(first: Values, second: Values) -> Values:
    """Squared Euclidean distances, shape (first, second)."""
    squares = (first * first).sum(axis=1)[:, None] + (second * second).sum(axis=1)[None, :]
    found: Values = np.maximum(squares - 2 * (first @ second.T), 0)
    return found


def _radii(side: Values, neighbours: int) -> Values:
    """Squared distance of each row to its k-th nearest other row, shape (rows,)."""
    found = np.zeros(len(side), dtype=side.dtype)
    for start in range(0, len(side), _ROWS):
        distances = squared_distances(side[start : start + _ROWS], side)
        own = np.arange(len(distances))
        distances[own, start + own] = 0  # rounding apart
        found[start : start + _ROWS] = np.partition(distances, neighbours, axis=1)[:, neighbours]
    return found
