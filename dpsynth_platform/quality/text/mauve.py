"""MAUVE: how well two sets of feature vectors cover each other, by clusters that are common to both.

What belongs here: the clusters, the divergence frontier of two histograms, and its area (Pillutla et al., "MAUVE:
Measuring the Gap Between Neural Text and Human Text using Divergence Frontiers", NeurIPS 2021, section 2 and appendix
on its computation). What does not: features of texts (`embeddings`), and drawing texts for several trials (`report`).

Values compare only where the number of texts, the clusters, the scaling factor and the features are the same. They
depend on the number of texts: what two samples of real texts reach is the ceiling (guide, section 5.6).
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import SourceError

Values = npt.NDArray[np.float64]
Features = npt.NDArray[np.float32]

SCALING = 5.0
"""The constant c of the paper's equation (2), as the authors chose it: it stretches the scale, and keeps the order."""
EXPLAINED_VARIANCE = 0.9
"""Principal components are kept until they explain so much of the variance."""
TEXTS_PER_CLUSTER = 10
"""The authors' default: as many clusters as a tenth of the texts of each side."""
_STARTS = 5
_STEPS = 500
_POINTS = 25
_EDGE = 1e-6


def default_clusters(texts: int) -> int:
    """Number of clusters for so many texts of each side."""
    return max(2, round(texts / TEXTS_PER_CLUSTER))


def mauve(first: Features, second: Features, clusters: int, state: int) -> float:
    """MAUVE of two sets of features, in [0, 1]; 1: they fall into the clusters alike.

    Args:
        first, second: shapes (texts, features), of as many texts.
        clusters: number of clusters of both together, at least 2.
        state: of the random starts of k-means.

    Raises:
        SourceError: there are not even two texts for each cluster.
    """
    counts = cluster_counts(first, second, clusters, state)
    return area(frontier(counts[0] / counts[0].sum(), counts[1] / counts[1].sum(), SCALING))


def cluster_counts(first: Features, second: Features, clusters: int, state: int) -> tuple[Values, Values]:
    """How many of each side fall into each cluster: k-means on the leading principal components of both together.

    Raises:
        SourceError: there are not even two texts for each cluster.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.preprocessing import normalize

    texts = len(first) + len(second)
    if not 2 <= clusters <= texts // 2:
        raise SourceError(f"MAUVE: {clusters} clusters of {texts} texts; accepted: 2 to {texts // 2}, or more texts")
    together = _leading(normalize(np.concatenate([first, second]).astype(np.float64)))
    means = KMeans(clusters, n_init=_STARTS, max_iter=_STEPS, random_state=state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different texts than clusters: some stay empty
        found = means.fit_predict(together)
    sides = found[: len(first)], found[len(first) :]
    counts = [np.bincount(side, minlength=clusters).astype(np.float64) for side in sides]
    return counts[0], counts[1]


def frontier(first: Values, second: Values, scaling: float) -> Values:
    """The divergence curve, shape (points, 2), from (0, 1) to (1, 0).

    For mixtures R of both distributions: exp(-c KL(second|R)) and exp(-c KL(first|R)), in nats; equation (1) of the
    paper.

    Args:
        first, second: probabilities of the same cells, shape (cells,).
        scaling: the constant c.
    """
    weights = np.linspace(_EDGE, 1 - _EDGE, _POINTS)
    curve = [
        (
            np.exp(-scaling * kullback_leibler(second, weight * first + (1 - weight) * second)),
            np.exp(-scaling * kullback_leibler(first, weight * first + (1 - weight) * second)),
        )
        for weight in weights[::-1]
    ]
    return np.array([(0.0, 1.0), *curve, (1.0, 0.0)])


def area(curve: Values) -> float:
    """Area under a divergence curve, in [0, 1]."""
    return float(np.trapezoid(curve[:, 1], curve[:, 0]))


def kullback_leibler(first: Values, second: Values) -> float:
    """KL(first|second) in nats; `second` is positive wherever `first` is."""
    there = first > 0
    return float(np.sum(first[there] * np.log(first[there] / second[there])))


def _leading(features: Values) -> Any:
    from sklearn.decomposition import PCA

    if np.ptp(features, axis=0).max() == 0:
        return features  # all alike: there is no variance to explain
    return PCA(EXPLAINED_VARIANCE, svd_solver="covariance_eigh").fit_transform(features)
