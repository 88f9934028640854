"""Distances of single columns that respect order and size: Kolmogorov-Smirnov, Wasserstein, and chi-squared.

What belongs here: one distance of a column at a time, beside that of a bootstrap of the real rows. What does not: total
variation of cells (`fidelity`), where a value one step off counts as much as one far off.

Missing numbers are left out, since `fidelity` compares their share; missing categories are a category.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from dpsynth_platform.quality.associations import cramers_v
from dpsynth_platform.quality.columns import Column, Values, scaled, span

Kind = Literal["kolmogorov_smirnov", "wasserstein", "cramers_v"]


@dataclass(frozen=True)
class SingleDistance:
    """One distance of one column, in [0, 1] (0: the same); `resampled` is that of a bootstrap of the real rows."""

    column: str
    kind: Kind
    synthetic: float
    resampled: float


def measure_single_columns(columns: Sequence[Column]) -> tuple[SingleDistance, ...]:
    """The distances of every column of a real (first) and a synthetic table (second), both with rows.

    A column of numbers has two, one of categories one; columns with no known number in a table have none.

    - `kolmogorov_smirnov`: largest gap of the distribution functions (Castellon et al. 2023).
    - `wasserstein`: area between them, as a share of the declared range, or else of the range of both tables.
    - `cramers_v`: root of the normalized chi-squared statistic of value against table, bias-corrected (`associations`).
    """
    rng = np.random.default_rng(0)  # reviewers can repeat it; it protects nothing
    real_rows, rows = (len(part) for part in columns[0].parts[:2])
    drawn = rng.integers(real_rows, size=rows)
    return tuple(found for column in columns for found in _distances(column, column.parts[0][drawn]))


def kolmogorov_smirnov(first: Values, second: Values) -> float:
    """The two-sample statistic, in [0, 1], of known numbers."""
    from scipy.stats import ks_2samp

    return float(ks_2samp(first, second, method="asymp").statistic)


def wasserstein(first: Values, second: Values, low: float, high: float) -> float:
    """Earth mover's distance of numbers inside [low, high], as a share of that range."""
    from scipy.stats import wasserstein_distance

    return float(wasserstein_distance(scaled(first, low, high), scaled(second, low, high)))


def chi_squared(first: Values, second: Values) -> float:
    """Bias-corrected Cramer's V of category codes against the table that they come from, in [0, 1]."""
    tables = np.repeat([0, 1], [len(first), len(second)])
    found = cramers_v(np.concatenate([first, second]), tables)
    return 0.0 if np.isnan(found) else found  # a single category in both tables


def _distances(column: Column, drawn: Values) -> Iterator[SingleDistance]:
    real, synthetic = column.parts[:2]
    if column.size is not None:
        yield SingleDistance(column.name, "cramers_v", chi_squared(real, synthetic), chi_squared(real, drawn))
        return
    real, synthetic, drawn = (part[~np.isnan(part)] for part in (real, synthetic, drawn))
    if not (real.size and synthetic.size and drawn.size):
        return
    found = (kolmogorov_smirnov(real, part) for part in (synthetic, drawn))
    yield SingleDistance(column.name, "kolmogorov_smirnov", *found)
    low, high = column.limits or span(real, synthetic)
    areas = (wasserstein(real, part, low, high) for part in (synthetic, drawn))
    yield SingleDistance(column.name, "wasserstein", *areas)
