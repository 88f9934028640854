"""What is measured for all prefixes of a column's cells at once: the matrix mechanism (Li et al. 2015).

What belongs here: the matrix of what is measured, in whole numbers, and the exact variances of what follows from it.
What does not: drawing noise, and what prefixes are for (`estimates`).

Quantiles need the number of records up to every cell: W x, with x the cells' counts and W the lower triangular matrix
of ones. Noise on x itself would add up along a prefix. The square root of W has the entries f(i - j), f(k) = f(k - 1)
(2 k - 1) / (2 k), f(0) = 1 (Henzinger, Upadhyay & Upadhyay 2023, section 3.1): W = R R. Measuring R x with noise, and
answering by R, has a variance that grows with the square of the logarithm of the number of cells. Its mean is within a
factor of 1.3 of the least that any matrix can have, for 32 to 512 cells (`tests/synth/test_answer_strategies.py`).

No entry is negative, and no column is longer than 1. So what is measured moves by no more than counts of cells do, in
L2, for every adjacency: with v >= 0 and v' >= 0 the sums of a unit's columns before and after, |v| and |v'| are at most
b, and under replacement |v - v'|^2 <= |v|^2 + |v'|^2 <= 2 b^2 (`privacy.units.count_sensitivity`).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

UNIT = 2**10
"""Entries are whole multiples of 1 / UNIT: the measured numbers are exact."""


@lru_cache(maxsize=32)
def prefix_matrix(cells: int) -> npt.NDArray[np.int64]:
    """What is measured, times `UNIT`: lower triangular, shape (cells, cells), each column at most `UNIT` long."""
    steps = np.arange(1, cells)
    root = np.concatenate([[1.0], np.cumprod((2 * steps - 1) / (2 * steps))])
    below = np.arange(cells)[:, None] - np.arange(cells)[None, :]
    whole = np.where(below >= 0, np.floor(root[below.clip(0)] * UNIT / np.linalg.norm(root)), 0.0).astype(np.int64)
    whole.setflags(write=False)
    return whole


@lru_cache(maxsize=32)
def prefix_answers(cells: int) -> Array:
    """The matrix that turns what was measured (over `UNIT`) into all prefixes' counts; shape (cells, cells).

    With noise of variance v on each measured number, the prefixes' covariance is v times this matrix times its
    transpose.
    """
    from scipy.linalg import solve_triangular

    measured = prefix_matrix(cells) / UNIT
    prefixes = np.tril(np.ones((cells, cells)))
    found: Array = solve_triangular(measured.T, prefixes.T, lower=False).T
    found.setflags(write=False)
    return found
