"""Agreement: how many rows of a table agree with a record in given columns?

What belongs here: counting queries for features of shadow models. What does not: comparing the counts.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.tabular.domain import Codes

Query = tuple[int, ...]
"""Indices of the columns to agree in, ascending."""

PAIRS = 120
"""Most queried pairs of columns."""
LARGER = 60
"""Queried larger sets of columns, of three columns up to all."""


def draw_queries(columns: int, rng: np.random.Generator) -> tuple[Query, ...]:
    """All single columns, pairs, and larger sets of random size (Houssiau et al. 2022, TAPAS; section 3.2)."""
    pairs = list(itertools.combinations(range(columns), 2))
    chosen = [pairs[place] for place in rng.permutation(len(pairs))[:PAIRS]]
    larger = {
        tuple(sorted(rng.choice(columns, size, replace=False).tolist()))
        for size in rng.integers(3, columns + 1, LARGER if columns > 2 else 0)
    }
    return (*((index,) for index in range(columns)), *sorted(chosen), *sorted(larger))


def agreeing_rows(targets: Codes, rows: Codes, queries: Sequence[Query]) -> npt.NDArray[np.int64]:
    """Number of rows that agree with each target in a query's columns, shape (targets, queries).

    `targets` and `rows` are cells, of shapes (targets, columns) and (rows, columns).
    """
    together = np.concatenate([targets, rows])
    found = np.empty((len(targets), len(queries)), dtype=np.int64)
    for place, query in enumerate(queries):
        cells = np.zeros(len(together), dtype=np.int64)
        for index in query:
            _, cells = np.unique(cells * (int(together[:, index].max()) + 1) + together[:, index], return_inverse=True)
        found[:, place] = np.bincount(cells[len(targets) :], minlength=len(together))[cells[: len(targets)]]
    return found
