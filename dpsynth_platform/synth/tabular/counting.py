"""Exact counts of the bounded records. Sensitive: only a mechanism may call this, and only with noise to follow.

What belongs here: one pass over the bounded table for marginals of single columns or of sets of columns, or for the
values that occur. What does not: noise (`noise`) and what the counts are for (`learning`, `mst`, `aim`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.storage import read_table
from dpsynth_platform.synth.tabular.compression import ColumnStates
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.noise import Counts

LONGEST_VALUE = 200
"""Bytes of a text that may be a value. Longer ones are no categories, and are not told apart from missing ones."""


def count_values(bounded: Path, columns: Sequence[ColumnDomain]) -> list[Counter[str]]:
    """Number of records with every value that occurs in some columns, as texts.

    Null, texts of more than `LONGEST_VALUE` bytes and what is no UTF-8 are no values. Whether a record's value is one
    depends on that record alone.
    """
    counts: list[Counter[str]] = [Counter() for _ in columns]
    for batch in read_table(bounded, columns=[column.name for column in columns]):
        for column, found in zip(columns, counts, strict=True):
            values = column.texts(batch.column(column.name)).cast(pa.binary())
            values = values.filter(pc.less_equal(pc.binary_length(values), LONGEST_VALUE))
            for value in pc.value_counts(values).to_pylist():
                try:
                    found[value["values"].decode()] += value["counts"]
                except UnicodeDecodeError:
                    continue
    return counts


def count_one_way(bounded: Path, domain: Domain) -> list[Counts]:
    """Number of records in every cell of every column."""
    counts = [np.zeros(size, dtype=np.int64) for size in domain.sizes]
    for batch in read_table(bounded, columns=list(domain.names)):
        codes = domain.encode(batch)
        for index, size in enumerate(domain.sizes):
            counts[index] += np.bincount(codes[:, index], minlength=size)
    return counts


def count_cliques(
    bounded: Path, domain: Domain, states: Sequence[ColumnStates], cliques: Iterable[Clique]
) -> dict[Clique, Counts]:
    """Number of records in every cell of every clique, over states; each of the shape of its columns' states."""
    sizes = [column.size for column in states]
    shapes = {clique: tuple(sizes[index] for index in clique) for clique in cliques}
    counts = {clique: np.zeros(math.prod(shape), dtype=np.int64) for clique, shape in shapes.items()}
    for batch in read_table(bounded, columns=list(domain.names)):
        codes = domain.encode(batch)
        merged = [column.state_of[codes[:, index]].astype(np.int64) for index, column in enumerate(states)]
        for clique, total in counts.items():
            cells = merged[clique[0]]
            for index in clique[1:]:
                cells = cells * sizes[index] + merged[index]
            total += np.bincount(cells, minlength=total.size)
    return {clique: total.reshape(shapes[clique]) for clique, total in counts.items()}
