"""A table of states that has given marginals: consistent noisy counts, and the gradual update method (GUM).

What belongs here: post-processing of any method's noisy marginals, after Zhang et al. 2021 (PrivSyn), sections 4.4 and
5. What does not: which marginals are measured (`privsyn`), and rows from the table (`model`, `sampling`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.tabular.estimation import Array, Measurement, estimate_total, project
from dpsynth_platform.synth.tabular.resolution import Groups, View

Indices = npt.NDArray[np.int64]

ROUNDS = 10
RAKES = 20
FLOOR = 1e-6
"""Share of independent columns in a marginal before it is raked, so that every column's counts can be reached."""
PASSES = 60
STEP, DECAY, DECAY_PASSES = 1.0, 0.84, 4
"""Part of a difference that a pass removes, and by what it falls after so many passes."""


@dataclass(frozen=True)
class Target:
    """Counts that a table's marginal shall have: not negative, of the view's shape."""

    view: View
    counts: Array


def consistent(one_way: Sequence[Measurement], joint: Sequence[Measurement], groups: Groups) -> list[Target]:
    """All columns' counts, then the joint ones, which agree in total and in their columns' counts; none is negative.

    A column's counts are the average of all measurements over its states, weighted by precision. Each joint
    measurement is moved to its columns' counts, all cells that a difference concerns alike, and to the nearest counts
    that are not negative, in turns; and finally raked (iterative proportional fitting).

    Args:
        one_way: of every column, in order, over states.
        joint: of one or more columns, over views; repeated ones count each.
        groups: the resolutions of every column's states.
    """
    total = estimate_total([*one_way, *joint])
    columns = [_average(index, [item, *joint], total) for index, item in enumerate(one_way)]
    targets = [Target(View.finest((index,)), counts) for index, counts in enumerate(columns)]
    for item in joint:
        if len(item.clique) > 1:
            view = item.view
            margins = [
                np.bincount(groups[index][level], weights=columns[index])
                for index, level in zip(view.clique, view.levels, strict=True)
            ]
            targets.append(Target(view, _with_margins(item, margins, total)))
    return targets


def _average(index: int, measurements: Sequence[Measurement], total: float) -> Array:
    """A column's counts by all measurements that have it at its finest."""
    weighted: Array | float = 0.0
    weights: Array | float = 0.0
    for item in measurements:
        for axis, (column, level) in enumerate(zip(item.clique, item.view.levels, strict=True)):
            if column == index and level == 0:
                others = tuple(other for other in range(len(item.clique)) if other != axis)
                weight = 1 / item.variance.sum(axis=others)
                weighted, weights = weighted + weight * item.counts.sum(axis=others), weights + weight
    return project(np.asarray(weighted / weights), np.asarray(1 / weights), total)


def _with_margins(item: Measurement, margins: Sequence[Array], total: float) -> Array:
    counts, shape = item.counts, item.counts.shape
    for _ in range(ROUNDS):
        for axis, margin in enumerate(margins):
            counts = counts + (_along(margin, axis, shape) - _sums(counts, axis)) * (len(margin) / counts.size)
        counts = project(counts.ravel(), item.variance.ravel(), total).reshape(shape)
    independent = math.prod(_along(margin / total, axis, shape) for axis, margin in enumerate(margins))
    counts = counts + FLOOR * total * independent
    for _ in range(RAKES):
        for axis, margin in enumerate(margins):
            held = _sums(counts, axis)
            counts = counts * np.divide(_along(margin, axis, shape), held, out=np.zeros_like(held), where=held > 0)
    return counts


def _sums(counts: Array, axis: int) -> Array:
    others = tuple(other for other in range(counts.ndim) if other != axis)
    return np.asarray(counts.sum(axis=others, keepdims=True))


def _along(values: Array, axis: int, shape: Sequence[int]) -> Array:
    return values.reshape([-1 if axis == other else 1 for other in range(len(shape))])


def gum(
    targets: Sequence[Target],
    groups: Groups,
    rows: int,
    rng: np.random.Generator,
    *,
    passes: int = PASSES,
    progress: Progress = silent,
    seconds: float | None = None,
) -> npt.NDArray[np.int32]:
    """A table of states whose marginals come close to the targets', shape (rows, columns).

    Columns are independent at first. Each pass takes all targets in random order. Rows leave cells with too many rows,
    for cells with too few: half of them become copies of a row there (*duplicate*), half only get the states of the
    target's columns (*replace*). So other columns' relations are kept, and empty cells are reached.

    Args:
        targets: single columns at their finest, of every column; and any other views. Of one total.
        groups: the resolutions of every column's states.
        seconds: no pass begins after so many.
    """
    began = time.monotonic()
    alone = {target.view.clique[0]: target.counts for target in targets if target.view == View.finest(target.view.clique[:1])}
    table = np.empty((rows, len(groups)), dtype=np.int32, order="F")
    for index, counts in alone.items():
        table[:, index] = rng.permutation(np.repeat(np.arange(counts.size), shared_out(counts, rows, rng)))
    joint = {index for target in targets for index in target.view.clique if len(target.view.clique) > 1}
    kept = [target for target in targets if len(target.view.clique) > 1 or target.view.clique[0] not in joint]
    states = {index: counts for index, counts in alone.items()}
    for number in range(passes if joint else 0):
        step = STEP * DECAY ** (number // DECAY_PASSES)
        table = np.asfortranarray(table[rng.permutation(rows)])
        for place in rng.permutation(len(kept)):
            _update(table, kept[place], groups, states, step, rng)
        progress("making rows", number + 1, passes)
        if seconds is not None and time.monotonic() - began > seconds:
            break
    return table


def _update(table, target, groups, states, step, rng) -> None:
    view, counts = target.view, target.counts.ravel()
    cells = np.zeros(len(table), dtype=np.int64)
    shape = target.counts.shape
    for index, level, size in zip(view.clique, view.levels, shape, strict=True):
        column = table[:, index]
        cells = cells * size + (groups[index][level][column] if level else column)
    held = np.bincount(cells, minlength=counts.size)
    lacking = counts * (len(table) / counts.sum()) - held
    leaving = np.floor(np.maximum(-lacking, 0) * step + rng.uniform(size=counts.size)).astype(np.int64)
    lacking = np.maximum(lacking, 0)
    leaving = np.minimum(leaving, held)
    if not leaving.any() or not lacking.any():
        return
    order = np.argsort(cells.astype(np.uint16) if counts.size <= 2**16 else cells, kind="stable")
    starts = np.cumsum(held) - held
    ranks = np.arange(len(table)) - np.repeat(starts, held)
    free = order[ranks < np.repeat(leaving, held)]
    free = rng.permutation(free)
    wanted = np.repeat(np.arange(counts.size), shared_out(lacking, free.size, rng))
    copied = (rng.random(free.size) < 0.5) & (held[wanted] > 0)
    donors = order[starts[wanted[copied]] + (rng.random(int(copied.sum())) * held[wanted[copied]]).astype(np.int64)]
    table[free[copied]] = table[donors]
    free, wanted = free[~copied], wanted[~copied]
    for index, level, coordinate in zip(view.clique, view.levels, np.unravel_index(wanted, shape), strict=True):
        table[free, index] = coordinate if level == 0 else _states_in(coordinate, groups[index][level], states[index], rng)


def _states_in(wanted: Indices, group: Indices, counts: Array, rng: np.random.Generator) -> Indices:
    from dpsynth_platform.synth.tabular.sampling import systematic
    members = np.arange(int(group.max()) + 1)[:, None] == group
    return systematic(members * np.maximum(counts, FLOOR), wanted, rng)


def shared_out(weights: Array, number: int, rng: np.random.Generator) -> Indices:
    """Whole numbers with this sum, each the weight's share rounded up or down at random."""
    ends = np.cumsum(weights) * (number / weights.sum())
    ends[-1] = number
    return np.diff(np.floor(ends + rng.uniform()).astype(np.int64), prepend=0)
