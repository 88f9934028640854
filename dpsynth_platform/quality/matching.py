"""Maximal faithfulness: the largest share of rows that can be matched one to one with real rows that look alike.

What belongs here: the cost of a match and the largest matching. What does not: which rows are compared (`records`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.columns import Column, scaled, span

ALIKE = 0.1
"""Rows look alike up to this mean difference of their columns: of 20 columns two may have another category."""


def maximal_faithfulness(columns: Sequence[Column], alike: float = ALIKE) -> float:
    """Maximal beta-faithfulness of the second table to the first, of equally many rows, in [0, 1]; 1: all match.

    Hod and Canetti (2024); Ponomareva et al., "How to DP-fy Your Data", equation 7. The cost of a match is Gower's
    distance (1971) over `alike`: the mean over columns of 1 for different categories, and of the difference of numbers
    as a share of their range. Memory is quadratic in the rows.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    near = csr_matrix(gower(columns) <= alike + 1e-6)
    matched = maximum_bipartite_matching(near, perm_type="column")
    return float((matched >= 0).mean())


def gower(columns: Sequence[Column]) -> npt.NDArray[np.float32]:
    """Gower's distances of the first table's rows to the second's, shape (rows, rows), in [0, 1].

    A missing value differs by 1 from a known one, and not from another missing one.
    """
    first, second = (len(part) for part in columns[0].parts[:2])
    total = np.zeros((first, second), dtype=np.float32)
    for column in columns:
        x, y = column.parts[:2]
        if column.size is not None:
            total += x[:, None] != y
            continue
        low, high = column.limits or span(x, y)
        x, y = (scaled(part, low, high).astype(np.float32) for part in (x, y))
        apart = np.abs(np.nan_to_num(x)[:, None] - np.nan_to_num(y))
        total += np.where(np.isnan(x)[:, None] | np.isnan(y), np.isnan(x)[:, None] != np.isnan(y), apart)
    return total / np.float32(len(columns))
