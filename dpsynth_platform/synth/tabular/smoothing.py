"""Noisy counts of neighbouring cells made to tell more: the column's density, without what is only noise.

What belongs here: an estimate of the records in each cell from the noisy counts of all cells of a column with an order.
What does not: which cells are told apart later (`compression`). All of it is post-processing.

Cells are cut into *pieces* in which the density is flat as far as noise lets one see: the cut with the least sum of
squared differences in units of the noise's variance, plus 2 log(cells) for each piece (the Potts functional; Boysen,
Kempe, Liebscher, Munk & Wittich 2009), found exactly by dynamic programming. Of cells without anything in them that
makes one piece, where their noise averages out, and a single value that many records share is a piece of its own.

Each piece gets its records, none of them less than zero, and inside of it they are spread along the slope that the
pieces beside it suggest (`shapes`).
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.tabular import shapes
from dpsynth_platform.synth.tabular.estimation import Array, project


def smoothed(counts: Array, sigma: float, widths: Array) -> Array:
    """Records in each cell; not negative, and together as many as the noisy counts, or none if those are negative.

    Args:
        counts: noisy counts of neighbouring cells, shape (cells,).
        sigma: the noise's standard deviation.
        widths: of the cells; a cell of no width is one value.
    """
    total = float(counts.sum())
    if total <= 0:
        return np.zeros(counts.size)
    starts = _pieces(counts / sigma, widths)
    sizes = np.diff(np.append(starts, counts.size))
    piece_of = np.repeat(np.arange(starts.size), sizes)
    spans, squares = np.add.reduceat(widths, starts), np.add.reduceat(widths**2, starts)
    # The flat density that fits best, times the width; a cell alone keeps its count.
    flat = np.divide(spans, squares, out=np.zeros(starts.size), where=(sizes > 1) & (squares > 0))
    fit = np.where(sizes > 1, flat * np.add.reduceat(widths * counts, starts), counts[starts])
    variances = np.where(sizes > 1, np.maximum(spans * flat, 1.0), 1.0)
    held = project(fit + variances * (total - fit.sum()) / variances.sum(), variances, total)
    tilt = shapes.tilts(held, spans)
    fitted = held[piece_of]
    for piece in np.flatnonzero(sizes > 1):
        cells = slice(starts[piece], starts[piece] + sizes[piece])
        ways = np.cumsum(widths[cells] if spans[piece] else np.ones(sizes[piece]))
        ways /= ways[-1]
        fitted[cells] *= np.diff(shapes.share_below(tilt[piece], ways), prepend=0.0)
    return fitted


def _pieces(counts: Array, widths: Array) -> npt.NDArray[np.int64]:
    """First cell of each piece; counts in units of the noise's deviation."""
    cells = counts.size
    penalty = 2 * math.log(cells) if cells > 1 else 0.0
    widths = widths / (widths.max() or 1.0)
    # Sums over the first cells of c^2, w c and w^2, so that any piece's misfit is known at once.
    sums = [np.append(0.0, np.cumsum(values)) for values in (counts**2, widths * counts, widths**2)]
    best, first = np.zeros(cells + 1), np.zeros(cells + 1, dtype=np.int64)
    for end in range(1, cells + 1):
        square, cross, width = (values[end] - values[:end] for values in sums)
        misfit = square - np.divide(cross**2, width, out=np.zeros(end), where=width > 0)
        misfit[-1] = 0.0
        cost = best[:end] + np.maximum(misfit, 0.0) + penalty
        first[end] = np.argmin(cost)
        best[end] = cost[first[end]]
    starts = [cells]
    while starts[-1] > 0:
        starts.append(int(first[starts[-1]]))
    return np.array(starts[:0:-1], dtype=np.int64)
