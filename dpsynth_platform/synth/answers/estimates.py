"""Answers with intervals from noisy tables: post-processing.

What belongs here: what the released table says of each group. What does not: measuring, and columns of the release.

An interval contains the answer on the bounded, clamped rows with the probability `CONFIDENCE`, by the noise alone. What
clamping, bounding and missing values do to an answer is not in it.

- *Counts and sums* are sums of independent Gaussian numbers: the answer and 1.96 standard deviations on both sides.
- *Means* are quotients of two: the interval has all means m for which (sum - m count) is within 1.96 of its standard
  deviations (Fieller 1954), in the declared range. Where the count may be zero by its noise, it is all of the range.
- *Quantiles*: the interval has all cells c that a test does not reject, of which the upper limit of the prefix up to c
  less the share of all rows is above zero, and the lower limit of the prefix before c below it. These differences are
  sums of Gaussian numbers with exactly known variances. The interval also has what lies between such cells, so it
  contains the quantile more often than it claims: 99.8% on a smooth column of 500 cells.

Limits are clipped to what is possible: counts, and sums of what is never negative, from zero; means and quantiles to
the declared range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.figures import number_of
from dpsynth_platform.synth.answers.layout import Groups, Table, middle_of
from dpsynth_platform.synth.answers.strategies import prefix_answers
from dpsynth_platform.synth.tabular.domain import ColumnDomain
from dpsynth_platform.synth.tabular.noise import Counts, rounded_gaussian_variance

Array = npt.NDArray[np.float64]

CONFIDENCE = 0.95
DEVIATIONS = 1.959963984540054
"""Of a normal variable's standard deviations, between which and their negative it lies with that probability."""


@dataclass(frozen=True)
class Noisy:
    """A table's noisy numbers, in records, shape (groups, width), and the standard deviation of each."""

    table: Table
    values: Array
    deviation: float

    def less(self, known: Counts, weighting: str) -> Noisy:
        """Without the exact numbers of known records, such as canaries: their part is no secret of the data."""
        return replace(self, values=self.values - known / self.table.scale(weighting))

    @classmethod
    def of(cls, table: Table, values: Counts, sigma: float, weighting: str) -> Noisy:
        scale = table.scale(weighting)
        deviation = np.sqrt(rounded_gaussian_variance(sigma * table.stretch * scale)) / scale
        return cls(table, values / scale, float(deviation))


@dataclass(frozen=True)
class Answers:
    """One kind of answer of a query for all its groups; arrays of shape (groups,), NaN where nothing is known.

    Attributes:
        measure: `count`, `sum`, `mean` or `quantile`, of a `column` and at a `share` where there is one.
    """

    groups: Groups
    measure: str
    column: str | None
    share: float | None
    answer: Array
    low: Array
    high: Array
    error: Array


def answers(noisy: Sequence[Noisy]) -> Iterator[Answers]:
    """All answers, in the order of the queries."""
    found = {(item.table.groups.name, item.table.what, item.table.column): item for item in noisy}
    for item in noisy:
        groups, column = item.table.groups, item.table.column
        if item.table.what == "rows":
            yield _answers(groups, "count", None, item.values[:, 0], item.deviation, least=0.0)
        elif item.table.what == "amount" and column is not None:
            yield from _amounts(found[groups.name, "present", column], item, groups.column(column))
        elif item.table.what == "prefixes" and column is not None:
            for share in groups.query.quantiles[column]:
                yield _quantiles(item, groups.column(column), share)


def expected_in_words(noisy: Sequence[Noisy]) -> Iterator[str]:
    """What noise does to each answer, by the plan alone; values do not matter."""
    for item in noisy:
        groups, column = item.table.groups, item.table.column
        where = f"in each of {number_of(groups.number, 'group')}"
        if item.table.what == "rows":
            yield f"{groups.name}, count: a standard error of {item.deviation:.4g} {where}"
        elif item.table.what == "prefixes" and column is not None:
            reach = item.deviation * float(np.linalg.norm(prefix_answers(item.table.width), axis=1).max())
            yield f"{groups.name}, quantiles of {column}: rows up to a value are off by up to {reach:.4g} {where}"
    for found in answers(noisy):
        if found.measure == "sum":
            where = f"in each of {number_of(found.groups.number, 'group')}"
            yield f"{found.groups.name}, sum of {found.column}: a standard error of {found.error[0]:.4g} {where}"
    for item in noisy:
        column = item.table.column
        if item.table.what == "amount" and column is not None and column in item.table.groups.query.mean:
            spread = item.deviation * middle_of(item.table.groups.column(column))[1]
            yield f"{item.table.groups.name}, mean of {column}: at least {spread:.4g} / n in a group of n rows"


def _answers(
    groups: Groups, measure: str, column: str | None, values: Array, deviation: float, *, least: float = -np.inf
) -> Answers:
    reach, error = DEVIATIONS * deviation, np.full(values.size, deviation)
    answer, low, high = (np.maximum(values + side, least) for side in (0.0, -reach, reach))
    return Answers(groups, measure, column, None, answer, low, high, error)


def _amounts(present: Noisy, amount: Noisy, column: ColumnDomain) -> Iterator[Answers]:
    """The sum and the mean of a column, as far as the query asks for them."""
    groups, (middle, half) = present.table.groups, middle_of(column)
    count, total = present.values[:, 0], amount.values[:, 0]
    if column.name in groups.query.sum:
        deviation = float(np.hypot(middle * present.deviation, half * amount.deviation))
        least = 0.0 if middle >= half else -np.inf
        yield _answers(groups, "sum", column.name, middle * count + half * total, deviation, least=least)
    if column.name in groups.query.mean:
        mean, low, high = ratio(total, count, amount.deviation, present.deviation)
        with np.errstate(divide="ignore", invalid="ignore"):
            error = np.hypot(amount.deviation, mean * present.deviation) / np.where(count > 0, count, np.nan)
        # Far from the count's noise, this is the quotient's standard deviation; near it, there is none.
        error = np.where(count > 2 * DEVIATIONS * present.deviation, error * half, np.nan)
        mean, low, high = (middle + half * part for part in (mean, low, high))
        yield Answers(groups, "mean", column.name, None, mean, low, high, error)


def ratio(total: Array, count: Array, of_total: float, of_count: float) -> tuple[Array, Array, Array]:
    """Quotients in [-1, 1] of noisy sums and counts with these deviations, and their limits (Fieller 1954).

    NaN, within all that is possible, where the count may be zero.
    """
    far = DEVIATIONS**2
    # All m with (total - m count)^2 <= far (of_total^2 + m^2 of_count^2): a m^2 - 2 b m + c <= 0.
    a, b, c = count**2 - far * of_count**2, total * count, total**2 - far * of_total**2
    known = (a > 0) & (count > 0)
    root = np.sqrt(np.maximum(b**2 - a * c, 0.0))
    divisor = np.where(known, a, 1.0)
    low, high = (np.where(known, np.clip((b + side * root) / divisor, -1, 1), side) for side in (-1, 1))
    mean = np.divide(total, count, out=np.full_like(total, np.nan), where=known)
    return np.clip(mean, -1, 1), low, high


def _quantiles(noisy: Noisy, column: ColumnDomain, share: float) -> Answers:
    """The quantile of a column at a share, for every group."""
    # Differences between prefixes and the share of all rows, before the first cell and after every cell.
    of_prefixes = prefix_answers(column.missing)
    of_differences = np.vstack([np.zeros(column.missing), of_prefixes]) - share * of_prefixes[-1]
    differences = noisy.values @ of_differences.T
    reach = DEVIATIONS * noisy.deviation * np.linalg.norm(of_differences, axis=1)
    possible = (differences[:, 1:] + reach[1:] >= 0) & (differences[:, :-1] - reach[:-1] <= 0)
    some = possible.any(axis=1)
    first = np.where(some, possible.argmax(axis=1), 0)
    last = np.where(some, column.missing - 1 - possible[:, ::-1].argmax(axis=1), column.missing - 1)
    # As many prefixes as are below the share: of noisy prefixes, unlike of exact ones, no single one is the first.
    middle = np.clip((differences[:, 1:] < 0).sum(axis=1), first, last)
    low, high = cell_ends(column)
    unknown = np.full(len(middle), np.nan)
    return Answers(
        noisy.table.groups,
        "quantile",
        column.name,
        share,
        (low[middle] + high[middle]) / 2,
        low[first],
        high[last],
        unknown,
    )


def cell_ends(column: ColumnDomain) -> tuple[Array, Array]:
    """The least and the largest value of each cell but the last, in the column's unit."""
    edges = np.asarray(column.edges, dtype=np.float64)
    scale = column.step / 10 ** (column.decimals or 0)
    return edges[:-1] * scale, (edges[1:] - (1 if column.scale.whole else 0)) * scale
