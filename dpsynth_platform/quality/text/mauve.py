"""MAUVE: similarity of two sets of feature vectors, on clusters of both together.

What belongs here: the clusters, the divergence frontier of two histograms, and its area (Pillutla et al., "MAUVE:
Measuring the Gap Between Neural Text and Human Text using Divergence Frontiers", NeurIPS 2021, section 2 and appendix
on its computation). What does not: features of texts (`embeddings`), and drawing texts for trials (`trials`).

Values are comparable only for equal numbers of texts, clusters, scaling factor and features. The value of two samples
of real texts is the upper limit (guide, section 5.6).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.process_state import own_warning_filters

Values = npt.NDArray[np.float64]
Features = npt.NDArray[np.float32]

SCALING = 5.0
"""The constant c of the paper's equation (2), the authors' choice. It changes the scale, not the order."""
EXPLAINED_VARIANCE = 0.9
"""Share of the variance that the leading principal components explain."""
TEXTS_PER_CLUSTER = 10
"""The authors' default, counted in texts of one side."""
_STARTS = 5
_STEPS = 500
_POINTS = 25
_EDGE = 1e-6


def default_clusters(texts: int) -> int:
    """Number of clusters for `texts` texts on each side."""
    return max(2, round(texts / TEXTS_PER_CLUSTER))


def mauve(first: Features, second: Features, clusters: int, state: int) -> float:
    """MAUVE of two sets of features, in [0, 1]; 1: the same histogram of clusters.

    Args:
        first, second: shapes (texts, features), of equal numbers of texts.
        clusters: number of clusters of both together, at least 2; more than half the texts raise `SourceError`.
        state: random state of k-means.
    """
    counts = cluster_counts(first, second, clusters, state)
    return area(frontier(counts[0] / counts[0].sum(), counts[1] / counts[1].sum(), SCALING))


def cluster_counts(first: Features, second: Features, clusters: int, state: int) -> tuple[Values, Values]:
    """Counts of each side per cluster, by k-means on the leading principal components of both. Raises like `mauve`."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.preprocessing import normalize

    texts = len(first) + len(second)
    if not 2 <= clusters <= texts // 2:
        raise SourceError(f"MAUVE: {clusters} clusters of {texts} texts; accepted: 2 to {texts // 2}, or more texts")
    together = _leading(normalize(np.concatenate([first, second]).astype(np.float64)))
    means = KMeans(clusters, n_init=_STARTS, max_iter=_STEPS, random_state=state)
    with own_warning_filters():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different texts than clusters leave empty ones
        found = means.fit_predict(together)
    sides = found[: len(first)], found[len(first) :]
    counts = [np.bincount(side, minlength=clusters).astype(np.float64) for side in sides]
    return counts[0], counts[1]


def frontier(first: Values, second: Values, scaling: float) -> Values:
    """The divergence curve, shape (points, 2), from (0, 1) to (1, 0), of two distributions on the same cells.

    Its points are exp(-c KL(second|R)) and exp(-c KL(first|R)), in nats, for mixtures R of both (equation 1).
    """
    curve = [(0.0, 1.0)]
    for weight in np.linspace(_EDGE, 1 - _EDGE, _POINTS)[::-1]:
        mixture = weight * first + (1 - weight) * second
        x, y = (float(np.exp(-scaling * kullback_leibler(side, mixture))) for side in (second, first))
        curve.append((x, y))
    return np.array([*curve, (1.0, 0.0)])


def area(curve: Values) -> float:
    """Area under a divergence curve, in [0, 1]."""
    return float(np.trapezoid(curve[:, 1], curve[:, 0]))


def kullback_leibler(first: Values, second: Values) -> float:
    """KL(first|second) in nats; `second` is positive wherever `first` is."""
    support = first > 0
    return float(np.sum(first[support] * np.log(first[support] / second[support])))


def _leading(features: Values) -> Any:
    from sklearn.decomposition import PCA

    if np.ptp(features, axis=0).max() == 0:
        return features  # without variance there are no components
    solver = "covariance_eigh" if len(features) >= features.shape[1] else "full"  # the same, by the smaller matrix
    return PCA(EXPLAINED_VARIANCE, svd_solver=solver).fit_transform(features)
