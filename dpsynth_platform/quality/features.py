"""Features: the columns of several tables as one matrix per table, for classifiers and for distances between rows.

What belongs here: one-hot coding and scaling. What does not: using the matrices (`utility`, `closeness`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.columns import Column, Values, scaled

Matrix = npt.NDArray[Any]

MOST_CATEGORIES = 200
"""In a column with more, the rarest share one feature, which limits the memory for columns of ids."""


def for_training(columns: Sequence[Column]) -> list[Matrix]:
    """One matrix per table, each of shape (rows, features), for at least one column.

    Categories are one-hot; numbers get mean 0 and variance 1 over all tables together; missing ones are NaN.
    """
    return _beside(_one_hot(item) if item.size is not None else _standardized(item) for item in columns)


def for_distances(columns: Sequence[Column]) -> list[Matrix]:
    """One matrix per table, each of shape (rows, features), float32, for at least one column.

    Numbers are scaled to [0, 1] over all tables, missing ones become their mean; rows that differ in one category only
    have a Euclidean distance of one.
    """
    blocks = (_one_hot(item, np.sqrt(0.5)) if item.size is not None else _spanned(item) for item in columns)
    return [rows.astype(np.float32) for rows in _beside(blocks)]


def width(columns: Sequence[Column]) -> int:
    """Number of features, or a little more."""
    return sum(1 if item.size is None else min(item.size, MOST_CATEGORIES + 1) for item in columns)


def _beside(blocks: Iterable[list[Matrix]]) -> list[Matrix]:
    return [np.concatenate(parts, axis=1) for parts in zip(*blocks, strict=True)]


def _one_hot(column: Column, hot: float = 1.0) -> list[Matrix]:
    """A feature for each category that any table contains."""
    counts = np.bincount(np.concatenate(column.parts), minlength=column.size or 0)
    order = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
    place = np.full(counts.size, 0)
    place[order] = np.minimum(np.arange(order.size), MOST_CATEGORIES)
    rows = hot * np.eye(min(order.size, MOST_CATEGORIES + 1))
    return [rows[place[part]] for part in column.parts]


def _standardized(column: Column) -> list[Matrix]:
    known = _known(column)
    low, deviation = (float(known.mean()), float(known.std())) if known.size else (0.0, 0.0)
    return [scaled(part, low, low + deviation)[:, None] for part in column.parts]


def _spanned(column: Column) -> list[Matrix]:
    known = _known(column)
    low, high, mean = (known.min(), known.max(), known.mean()) if known.size else (0.0, 0.0, 0.0)
    return [scaled(np.nan_to_num(part, nan=mean), low, high)[:, None] for part in column.parts]


def _known(column: Column) -> Values:
    together = np.concatenate(column.parts)
    return np.asarray(together[~np.isnan(together)])
