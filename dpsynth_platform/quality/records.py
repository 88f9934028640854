"""Measures of whole rows: detection, maximum mean discrepancy, precision, recall, authenticity, faithfulness.

What belongs here: which rows are compared, in equal numbers, and the figures of each table together. What does not:
each measure (`detection`, `mean_discrepancy`, `precision_recall`, `matching`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpsynth_platform.quality.columns import Column, of_rows, of_tables, row_counts
from dpsynth_platform.quality.detection import detection_auc
from dpsynth_platform.quality.features import for_distances, for_training, width
from dpsynth_platform.quality.matching import maximal_faithfulness
from dpsynth_platform.quality.mean_discrepancy import mean_discrepancy
from dpsynth_platform.quality.precision_recall import PrecisionRecall, precision_recall

MOST_ROWS = 2_000
"""A fixed random sample of so many rows of each table is compared: some measures are quadratic in rows."""
MOST_MATCHED = 1_000
"""So many of them are matched one to one, which takes more time where many look alike."""
LEAST_ROWS = 50
"""Fewer rows of a table say nothing."""
_MOST_DISCREPANCY_ROWS = 10_000
"""The mean discrepancy takes time that is linear in rows, and the error of its estimate falls with them."""
_MOST_NUMBERS = 20_000_000


@dataclass(frozen=True)
class Records:
    """How rows of one table compare with real ones; see the functions of these names."""

    detection_auc: float
    mean_discrepancy: float
    precision_recall: PrecisionRecall
    maximal_faithfulness: float


@dataclass(frozen=True)
class RecordMeasures:
    """The figures against `rows` real rows of as many others.

    Attributes:
        synthetic: of synthetic rows.
        real: of held-out real rows, the best possible; None without (enough of) them.
        independent: of real rows whose columns are combined at random.
    """

    rows: int
    synthetic: Records
    real: Records | None
    independent: Records


def measure_records(columns: Sequence[Column]) -> RecordMeasures | None:
    """Measures the second (synthetic) table; None for tables of fewer than `LEAST_ROWS` rows.

    Without a third table (the mechanism's real rows), rows are compared with those of the first; else with those of the
    third, and the first's (held-out ones) give the best possible figures. All have the rows of the smallest table.
    """
    counts = row_counts(columns)
    held_out = len(counts) > 2 and counts[0] >= LEAST_ROWS
    tables = ([2] if len(counts) > 2 else [0]) + [1] + ([0] if held_out else [])
    rows = min(MOST_ROWS, *(counts[table] for table in tables))
    if rows < LEAST_ROWS:
        return None
    drawn = _drawn(columns, tables, MOST_ROWS)
    apart, training = for_distances(drawn), for_training(drawn)
    matched = of_rows(drawn, *[np.arange(min(MOST_MATCHED, len(apart[0])))] * len(apart))
    many = for_distances(_drawn(columns, tables, _MOST_DISCREPANCY_ROWS))
    found = [
        Records(
            detection_auc(training[0], training[table]),
            mean_discrepancy(many[0], many[table], len(columns)),
            precision_recall(apart[0], apart[table]),
            maximal_faithfulness(of_tables(matched, 0, table)),
        )
        for table in range(1, len(apart))
    ]
    return RecordMeasures(len(apart[0]), found[0], found[1] if held_out else None, found[-1])


def _drawn(columns: Sequence[Column], tables: Sequence[int], most: int) -> tuple[Column, ...]:
    """As many rows of each of these tables, and a further table: columns of the first one's rows, combined at random.

    Those are other rows, as far as there are any: a classifier would recognize rare numbers that both hold.
    """
    counts = row_counts(columns)
    rows = min(most, max(LEAST_ROWS, _MOST_NUMBERS // width(columns)), *(counts[table] for table in tables))
    rng = np.random.default_rng(0)  # reviewers can repeat it; it protects nothing
    orders = [rng.permutation(counts[table]) for table in tables]
    drawn = of_rows(of_tables(columns, *tables, tables[0]), *(order[:rows] for order in orders), orders[0][-rows:])
    return tuple(replace(item, parts=(*item.parts[:-1], rng.permutation(item.parts[-1]))) for item in drawn)
