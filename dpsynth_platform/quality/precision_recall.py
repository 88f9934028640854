"""Precision, recall and authenticity of single rows, after Alaa et al.

What belongs here: the three figures from features of rows. What does not: the features, and which rows are compared
(`records`).

Alaa et al., "How Faithful is your Synthetic Data?" (ICML 2022). They measure in a learned embedding; here rows are
compared by the features of `for_distances`, which learn nothing. So compare figures with the held-out rows' beside
them, and not with published ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.features import Matrix

NEIGHBOURS = 5
LEVELS = np.linspace(0.0, 1.0, 21)
"""The values of alpha and beta."""


@dataclass(frozen=True)
class PrecisionRecall:
    """Figures of one table against real rows, in [0, 1].

    Attributes:
        precision: integrated alpha-precision; 1: each ball around the real mean, with a share alpha of the real rows,
            holds a share alpha of the table's, so rows are as typical as real ones.
        recall: integrated beta-recall; 1: the share beta of the table's most typical rows covers a share beta of the
            real ones. Even rows of the same distribution stay below one: covered means near one of the table's rows.
        authenticity: share of rows that are not nearer to a real row than that row's nearest other real row. Copies of
            unique real rows have 0, and held-out rows 0.54 to 0.60 on UCI Adult.
        precisions, recalls: shares by alpha and by beta (`LEVELS`).
    """

    precision: float
    recall: float
    authenticity: float
    precisions: tuple[float, ...]
    recalls: tuple[float, ...]


def precision_recall(real: Matrix, other: Matrix) -> PrecisionRecall:
    """The figures of rows against real ones, both of shape (rows, features), with at least two real rows.

    Section 4 of the paper: balls around means hold the most typical rows, and a real row is covered by the nearest
    row of the table within the distance to its `NEIGHBOURS`-th nearest real row.
    """
    from sklearn.neighbors import NearestNeighbors

    centres = real.mean(axis=0), other.mean(axis=0)
    radii = np.quantile(_norms(real - centres[0]), LEVELS)
    precisions = _shares(_norms(other - centres[0]), radii)
    count = min(NEIGHBOURS, len(real) - 1)
    among_real = NearestNeighbors(n_neighbors=count, algorithm="brute").fit(real)
    apart = among_real.kneighbors()[0]  # without the row itself
    distances, places = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(other).kneighbors(real)
    covered = distances[:, 0] <= apart[:, -1]
    typical = _norms(other - centres[1])
    recalls = _shares(np.where(covered, typical[places[:, 0]], np.inf), np.quantile(typical, LEVELS))
    near, nearest = among_real.kneighbors(other, n_neighbors=1)
    authentic = near[:, 0] >= apart[nearest[:, 0], 0]
    return PrecisionRecall(
        _integrated(precisions), _integrated(recalls), float(authentic.mean()), tuple(precisions), tuple(recalls)
    )


def _norms(rows: Matrix) -> npt.NDArray[np.float64]:
    return np.asarray(np.linalg.norm(rows, axis=1), dtype=np.float64)


def _shares(distances: npt.NDArray[np.float64], radii: npt.NDArray[np.float64]) -> list[float]:
    """Share of the distances that are at most each radius."""
    return [float((distances <= radius).mean()) for radius in radii]


def _integrated(shares: list[float]) -> float:
    """One minus the area between a curve and the diagonal, over the area under the diagonal."""
    return float(max(0.0, 1.0 - np.abs(np.array(shares) - LEVELS).sum() / LEVELS.sum()))
