"""Merged cells: the states in which pairs of columns are measured.

What belongs here: merging a column's cells by their noisy one-way counts, with each cell's share of its state. All of
it is post-processing of noisy counts. What does not: the counts themselves.

**Categories**, as in MST (McKenna, Miklau & Sheldon 2021): all cells of a column whose noisy count is below three
standard deviations become one *state*. **Ordered columns** merge neighbours only: a cell with less than three standard
deviations by the smoothed counts (`smoothing`) joins the neighbour that holds less. So the zeros and the top code of a
spiky column remain single states. Missing values are a separate state.

Pairs have more noise than single columns, and more of it with more states. So a fine grid (`binning`) has fewer states:

- `adaptive`: of more than `FEW_CELLS` cells, the neighbours with the least records times root of width are merged until
  `ADAPTIVE_STATES` are left. States of equal contents would merge all large amounts, on which correlations depend most;
  states that are fine for large amounts only would lose the others. Equal products minimize the mean root of a value's
  distance (Zador 1982). With true states of texas's rows, 81 instead of 79% of associations have the right strength;
- `quantile`: `QUANTILES` states of about equal contents, as far as single cells permit;
- `privtree`: the interval with the most records is halved, and so on (PrivTree, Zhang, Xiao & Xie 2016, in one
  dimension). Intervals below three standard deviations stay whole;
- `kmeans`: the means with the least sum of squared distances, by exact dynamic programming.

As published, private trees, quantiles and means each have noise of their own. Here all three are functions of the one
table of noisy counts that every column pays for: post-processing, without noise or budget of their own. So a tree needs
no decay of its counts, and means no rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain
from dpsynth_platform.synth.tabular.estimation import Array, Measurement, estimate_total, project
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.synth.tabular.smoothing import smoothed

THRESHOLD_SIGMAS = 3.0

_Number = TypeVar("_Number", np.float64, np.int64)


def compress(
    domain: Domain, one_way: Sequence[NoisyCounts], most_states: int | None = None
) -> tuple[ColumnStates, ...]:
    """The states of every column by its noisy one-way counts; `most_states` limits those of ordered columns further."""
    total = estimate_total([as_measurement(measured) for measured in one_way])
    return tuple(
        _ordered(column, measured, total, most_states) if column.ordered else _by_rarity(column.size, measured)
        for column, measured in zip(domain, one_way, strict=True)
    )


def as_measurement(noisy: NoisyCounts) -> Measurement:
    """Noisy counts as a measurement for the estimator."""
    counts = noisy.counts.astype(np.float64)
    return Measurement(noisy.clique, counts, np.full(counts.shape, noisy.variance), noisy.levels)


def one_way_measurements(one_way: Sequence[NoisyCounts], states: Sequence[ColumnStates]) -> list[Measurement]:
    """The one-way counts over states; a merged state's variance is the sum of its cells'."""
    return [
        Measurement(
            measured.clique,
            column.merge(measured.counts.astype(np.float64) if column.fitted is None else column.fitted),
            column.merge(np.full(measured.counts.shape, measured.variance)),
        )
        for measured, column in zip(one_way, states, strict=True)
    ]


def _by_rarity(size: int, measured: NoisyCounts) -> ColumnStates:
    counts, sigma = measured.counts, measured.sigma
    rare = counts < THRESHOLD_SIGMAS * sigma
    if rare.sum() <= 1:
        return ColumnStates(np.arange(size, dtype=np.int32), np.ones(size))
    state_of = np.cumsum(~rare) - 1
    state_of[rare] = (~rare).sum()
    share = np.ones(size)
    share[rare] = _shares(counts[rare].astype(np.float64), sigma)
    return ColumnStates(state_of.astype(np.int32), share)


def _shares(counts: Array, sigma: float) -> Array:
    """Shares of merged cells: the nearest non-negative counts to the noisy ones, or equal shares of a sum <= 0."""
    total = float(counts.sum())
    if total <= 0:
        return np.full(counts.size, 1 / counts.size)
    return project(counts, np.full(counts.size, sigma**2), total) / total


def _ordered(column: ColumnDomain, measured: NoisyCounts, total: float, most_states: int | None) -> ColumnStates:
    counts, sigma = measured.counts[:-1].astype(np.float64), measured.sigma
    fitted = smoothed(counts, sigma, column.widths, total - float(measured.counts[-1]))
    most = min(column.most_states - 1, most_states or counts.size)
    least = THRESHOLD_SIGMAS * sigma
    if column.cutting == "quantile" and most < counts.size:
        state_of = _quantiles(fitted, most)
    elif column.cutting == "privtree" and most < counts.size:
        state_of = _tree(fitted, column.widths, least, most)
    elif column.cutting == "kmeans" and most < counts.size:
        state_of = _means(fitted, column.widths, least, most)
    else:
        state_of = _together(fitted, column.widths, least, most)
    of_state = np.bincount(state_of, weights=fitted)[state_of]
    equal = 1 / np.bincount(state_of)[state_of]
    share = np.divide(fitted, of_state, out=equal, where=of_state > 0)
    return ColumnStates(
        state_of=np.append(state_of, state_of[-1] + 1).astype(np.int32),
        share=np.append(share, 1.0),
        fitted=np.append(fitted, measured.counts[-1]),
    )


def _together(masses: Array, widths: Array, threshold: float, most: int) -> npt.NDArray[np.int64]:
    """The state of each cell.

    Cells below the threshold join the neighbour that holds less, the lightest first. Then the two neighbours with the
    least records times root of width are merged until `most` are left.
    """
    held, spans, sizes = masses.copy(), widths.copy(), np.ones(masses.size, dtype=np.int64)
    while held.size > 1:
        lightest = int(np.argmin(held))
        if held[lightest] < threshold:
            before, after = (held[at] if 0 <= at < held.size else np.inf for at in (lightest - 1, lightest + 1))
            first = lightest - 1 if before < after else lightest
        elif held.size > most:
            first = int(np.argmin((held[:-1] + held[1:]) * np.sqrt(spans[:-1] + spans[1:])))
        else:
            break
        held, spans, sizes = _joined(held, first), _joined(spans, first), _joined(sizes, first)
    return np.repeat(np.arange(sizes.size), sizes)


def _joined(values: npt.NDArray[_Number], first: int) -> npt.NDArray[_Number]:
    """The values with the one after `first` added to it."""
    values[first] += values[first + 1]
    return np.delete(values, first + 1)


def _quantiles(masses: Array, number: int) -> npt.NDArray[np.int64]:
    middles = np.cumsum(masses) - masses / 2
    wanted = np.floor(number * middles / max(float(masses.sum()), np.finfo(np.float64).tiny))
    # The middle of empty cells at the end is the end itself.
    wanted = np.minimum(wanted, number - 1)
    return np.asarray(np.unique(wanted, return_inverse=True)[1], dtype=np.int64)


def _tree(masses: Array, widths: Array, threshold: float, most: int) -> npt.NDArray[np.int64]:
    """The state of each cell: the interval with the most records is halved until there are `most`, or all are light."""
    ends, held = np.append(0.0, np.cumsum(widths)), np.append(0.0, np.cumsum(masses))
    leaves: list[tuple[int, int]] = [(0, masses.size)]
    whole: list[tuple[int, int]] = []
    while leaves and len(leaves) + len(whole) < most:
        first, last = leaves.pop(int(np.argmax([held[last] - held[first] for first, last in leaves])))
        if held[last] - held[first] < threshold or last - first == 1:
            whole.append((first, last))
            continue
        inner = ends[first + 1 : last]
        middle = first + 1 + int(np.argmin(np.abs(inner - (ends[first] + ends[last]) / 2)))
        leaves += [(first, middle), (middle, last)]
    starts = sorted(first for first, _ in (*leaves, *whole))
    return np.repeat(np.arange(len(starts)), np.diff([*starts, masses.size]))


def _means(masses: Array, widths: Array, threshold: float, most: int) -> npt.NDArray[np.int64]:
    """The state of each cell: the best `most` means of its values by squares, among states above the threshold."""
    single = _together(masses, widths, threshold, masses.size)
    held = np.bincount(single, masses)
    centres = np.cumsum(widths) - widths / 2
    middles = np.bincount(single, masses * centres) / np.maximum(held, np.finfo(np.float64).tiny)
    if held.size <= most:
        return single
    middles = (middles - middles.min()) / (np.ptp(middles) or 1.0)
    sums = [np.append(0.0, np.cumsum(values)) for values in (held, held * middles, held * middles**2)]

    def spread(end: int) -> Array:
        """The squares of states first..end - 1 around their mean, for every `first` below `end`."""
        count, first, second = (values[end] - values[:end] for values in sums)
        return np.asarray(second - first**2 / np.maximum(count, np.finfo(np.float64).tiny))

    spreads = [spread(end) for end in range(1, held.size + 1)]
    best = np.array([values[0] for values in spreads])
    cuts = []
    for _ in range(most - 1):  # best[end - 1]: with one cluster less
        options = [np.append(0.0, best[: end - 1]) + spreads[end - 1] for end in range(1, held.size + 1)]
        cuts.append([int(np.argmin(values)) for values in options])
        best = np.array([values.min() for values in options])
    starts, end = [], held.size
    for found in reversed(cuts):
        end = found[end - 1]
        if end == 0:
            break
        starts.append(end)
    return np.searchsorted(np.array(sorted(starts)), np.arange(held.size), side="right")[single]
