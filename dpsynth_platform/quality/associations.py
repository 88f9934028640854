"""Association of two columns, for numbers, categories, and one of each.

What belongs here: Pearson's correlation, the correlation ratio and the bias-corrected Cramer's V, their matrix over all
columns, and its bands. What does not: comparing the matrices of two tables (`similarity`).

An association with a constant column is undefined: NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.columns import Codes, Column, Values

BANDS = (0.1, 0.3, 0.5)
"""Upper limits of low, weak and medium associations; others are strong."""


def pearson(first: Values, second: Values) -> float:
    """Pearson's correlation coefficient, in [-1, 1]."""
    x, y = first - first.mean(), second - second.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(np.clip(x @ y / scale, -1.0, 1.0)) if scale > 0 else float("nan")


def correlation_ratio(codes: Codes, values: Values) -> float:
    """Correlation ratio of numbers by categories, in [0, 1]: root of the share of variance between the categories."""
    _, codes = np.unique(codes, return_inverse=True)
    counts = np.bincount(codes)
    means = np.bincount(codes, weights=values) / counts
    total = float(((values - values.mean()) ** 2).sum())
    if counts.size < 2 or total == 0:
        return float("nan")
    return float(np.sqrt(min(1.0, (counts @ (means - values.mean()) ** 2) / total)))


def cramers_v(first: Codes, second: Codes) -> float:
    """Bias-corrected Cramer's V of two columns of categories, in [0, 1].

    Correction by Bergsma (Journal of the Korean Statistical Society 42, 2013); chi-squared with Yates's correction for
    tables of two by two, as `scipy.stats.chi2_contingency` has it.
    """
    _, x = np.unique(first, return_inverse=True)
    _, y = np.unique(second, return_inverse=True)
    rows, columns, n = int(x.max()) + 1, int(y.max()) + 1, len(x)
    if min(rows, columns) < 2 or n < 2:
        return float("nan")
    phi2 = max(0.0, _chi_squared(x, y, rows, columns) / n - (rows - 1) * (columns - 1) / (n - 1))
    least = min(rows - (rows - 1) ** 2 / (n - 1), columns - (columns - 1) ** 2 / (n - 1)) - 1
    return float(np.sqrt(min(1.0, phi2 / least))) if least > 1e-9 else float("nan")


def matrix(columns: Sequence[Column], table: int) -> npt.NDArray[np.float64]:
    """Associations, shape (columns, columns). Missing numbers count as zero, other missing values as a category."""
    found = np.eye(len(columns))
    for i, j in combinations(range(len(columns)), 2):
        found[i, j] = found[j, i] = _association(columns[i], columns[j], table)
    return found


def banded(associations: npt.NDArray[np.float64]) -> npt.NDArray[np.intp]:
    """The band of each absolute association (Tao et al. 2021): 0 low, 1 weak, 2 medium, 3 strong or undefined."""
    strength = np.abs(associations)
    return np.digitize(np.where(np.isnan(strength), 1.0, strength), BANDS)


def _association(first: Column, second: Column, table: int) -> float:
    x, y = first.parts[table], second.parts[table]
    if first.size is not None and second.size is not None:
        return cramers_v(x, y)
    if first.size is not None:
        return correlation_ratio(x, np.nan_to_num(y))
    if second.size is not None:
        return correlation_ratio(y, np.nan_to_num(x))
    return pearson(np.nan_to_num(x), np.nan_to_num(y))


def _chi_squared(x: npt.NDArray[Any], y: npt.NDArray[Any], rows: int, columns: int) -> float:
    """Chi-squared from non-empty cells, so that many categories need no large table."""
    n = len(x)
    of_x, of_y = np.bincount(x), np.bincount(y)
    if rows == columns == 2:
        seen = np.bincount(x * 2 + y, minlength=4).reshape(2, 2)
        expected = np.outer(of_x, of_y) / n
        off = np.abs(seen - expected)
        return float(((off - np.minimum(0.5, off)) ** 2 / expected).sum())
    cells, seen = np.unique(x * columns + y, return_counts=True)
    return float(n * ((seen**2 / (of_x[cells // columns] * of_y[cells % columns])).sum() - 1.0))
