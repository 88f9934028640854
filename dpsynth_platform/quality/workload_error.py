"""Error on the declared workload: how well the synthetic rows answer the queries that they were made for.

What belongs here: the weighted distance of the workload's marginals. What does not: which marginals those are
(`synth.tabular.workload`), or distances of all marginals (`fidelity`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.quality.fidelity import MOST_MARGINALS, Codes, marginal_distances


@dataclass(frozen=True)
class WorkloadError:
    """Error on `measured` of the `marginals` that a workload names, in [0, 1]; 0: the same.

    Attributes:
        synthetic, largest: weighted mean of the total variation distances, and the largest.
        resampled: the mean for a bootstrap of the real rows, which cannot be much improved on.
        independent: the mean for real columns combined at random.
    """

    marginals: int
    measured: int
    synthetic: float
    largest: float
    resampled: float
    independent: float


def measure_workload(
    real: Codes, synthetic: Codes, names: Sequence[str], sizes: Sequence[int], weights: Mapping[tuple[int, ...], float]
) -> WorkloadError | None:
    """The workload error (Ponomareva et al., "How to DP-fy Your Data", equation 1), with total variation distances.

    Of more than `MOST_MARGINALS` marginals a sample is measured, which depends on the names alone.

    Args:
        real, synthetic: cell codes of shape (rows, columns).
        names, sizes: of the columns: names and numbers of cells.
        weights: positive, by the places of a marginal's columns.

    Returns None for a workload without marginals, and tables without rows.
    """
    if not weights or not len(real) or not len(synthetic):
        return None
    marginals = sorted(weights, key=lambda marginal: canonical_digest(sorted(names[place] for place in marginal)))
    marginals = marginals[:MOST_MARGINALS]
    rng = np.random.default_rng(0)  # reviewers can repeat it; it protects nothing
    resampled = real[rng.integers(len(real), size=len(synthetic))]
    independent = np.stack([rng.permutation(real[:, place]) for place in range(len(names))], axis=1)
    share = np.array([weights[marginal] for marginal in marginals], dtype=np.float64)
    share /= share.sum()
    made, drawn, shuffled = (
        np.array(marginal_distances(real, rows, sizes, marginals)) for rows in (synthetic, resampled, independent)
    )
    return WorkloadError(
        len(weights),
        len(marginals),
        float(share @ made),
        float(made.max()),
        float(share @ drawn),
        float(share @ shuffled),
    )
