"""Maximum mean discrepancy of two tables' rows, in time linear in the rows.

What belongs here: the estimate with random features. What does not: which rows are compared (`records`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.features import Matrix

_FEATURES = 512
_BLOCK = 4_096


def mean_discrepancy(first: Matrix, second: Matrix, columns: int) -> float:
    """Maximum mean discrepancy (Gretton et al., JMLR 13, 2012) for a Gaussian kernel, in [0, sqrt(2)]; 0: the same.

    The kernel is exp(-2 d^2 / columns): it depends on the number of columns alone, so that reports compare. The
    squared discrepancy is the unbiased estimate, by `_FEATURES` random Fourier features (Rahimi and Recht 2007) of a
    fixed state. A negative estimate is shown as zero.

    Args:
        first, second: features of `for_distances`, shapes (rows, features), each of at least two rows.
        columns: number of columns that the features are of.
    """
    from sklearn.kernel_approximation import RBFSampler

    kernel = RBFSampler(gamma=2.0 / columns, n_components=_FEATURES, random_state=0).fit(first[:1])
    sums, own = zip(*(_sums(kernel, rows) for rows in (first, second)), strict=True)
    sizes = len(first), len(second)
    within = sum(
        (total @ total - norms) / (size * (size - 1)) for total, norms, size in zip(sums, own, sizes, strict=True)
    )
    squared = within - 2 * (sums[0] @ sums[1]) / (sizes[0] * sizes[1])
    return float(np.sqrt(max(0.0, float(squared))))


def _sums(kernel: Any, rows: Matrix) -> tuple[npt.NDArray[np.float64], float]:
    """Sum of the rows' random features, shape (features,), and sum of their squared norms, in bounded memory."""
    total, norms = np.zeros(_FEATURES), 0.0
    for start in range(0, len(rows), _BLOCK):
        block = kernel.transform(rows[start : start + _BLOCK].astype(np.float64))
        total += block.sum(axis=0)
        norms += float((block * block).sum())
    return total, norms
