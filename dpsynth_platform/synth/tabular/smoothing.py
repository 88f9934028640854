"""Noisy counts of neighbouring cells made to tell more: the column's density, without what is only noise.

What belongs here: an estimate of the records in each cell from the noisy counts of all cells of a column with an order.
What does not: which cells are told apart later (`compression`). All of it is post-processing.

Cells are cut into *pieces* in which the density is flat as far as noise lets one see: the cut with the least sum of
squared differences in units of the noise's variance, plus 2 log(cells) for each piece (the Potts functional; Boysen,
Kempe, Liebscher, Munk & Wittich 2009), found exactly by dynamic programming. Of cells without anything in them that
makes one piece, where their noise averages out, and a single value that many records share is a piece of its own.

Each piece gets its records, none of them less than zero, and together as many as the table has: all columns tell that
together, and much better than the one whose many cells each have their noise. Inside of a piece they are spread along
the slope that the pieces beside it suggest (`shapes`).

A faint piece, which noise alone could have made, with less than there is on both sides, is not taken for a plain: its
density falls off from what is beside it, by a Lomax distribution whose scale is such that it has its records (`_tail`).
Where a range was declared wide, nearly all of it is such a tail, with mostly noise in it: spread evenly, records that
are not even there would lie all over the range, and the mean and the deviation of the column would be theirs. On ten
columns of adult and texas and seven made-up ones at epsilon 1, the logarithm of the deviation was off by 1.2 in the
mean, and is by 0.4; a tail that falls exponentially is too short for amounts of money, and putting what is within the
noise to zero is worse for all.

A faint piece may have nothing beside it: the amounts of a column that is zero for nearly everybody. How steeply they
fall off is then for the piece's own counts to say. On a grid whose cells are narrower towards one end, they fall off
from there; of all scales and a plain, the mean is taken, each weighed by how likely it makes the noisy counts. With
three such columns of texas at epsilon 1, the largest difference of the distribution functions goes from 0.018 to 0.007,
and the histograms of all columns agree by 99.2 in place of 98.9%. Where cells are all alike, nothing is known of where
values are, and the piece stays a plain.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.tabular import shapes
from dpsynth_platform.synth.tabular.estimation import Array, project

TAIL = 2.0
"""Exponent of a tail, P[beyond x] = (1 + x / scale)^-TAIL: about the heaviest whose variance is finite."""
_STEPS = 100


def smoothed(counts: Array, sigma: float, widths: Array, total: float) -> Array:
    """Records in each cell; not negative, and `total` together.

    Args:
        counts: noisy counts of neighbouring cells, shape (cells,).
        sigma: the noise's standard deviation.
        widths: of the cells; a cell of no width is one value.
        total: records in all cells; below zero counts as none.
    """
    if total <= 0:
        return np.zeros(counts.size)
    widths = widths / (widths.max() or 1.0)  # squares of the widest ranges would be none in double precision
    starts = _pieces(counts / sigma, widths)
    sizes = np.diff(np.append(starts, counts.size))
    piece_of = np.repeat(np.arange(starts.size), sizes)
    spans, squares = np.add.reduceat(widths, starts), np.add.reduceat(widths**2, starts)
    # The flat density that fits best, times the width; a cell alone keeps its count.
    flat = np.divide(spans, squares, out=np.zeros(starts.size), where=(sizes > 1) & (squares > 0))
    fit = np.where(sizes > 1, flat * np.add.reduceat(widths * counts, starts), counts[starts])
    variances = np.where(sizes > 1, np.maximum(spans * flat, 1.0), 1.0)
    held = project(fit + variances * (total - fit.sum()) / variances.sum(), variances, total)
    faint = held**2 <= _price(counts.size) * variances * sigma**2
    tilt = shapes.tilts(held, spans)
    fitted = held[piece_of]
    beside = _beside(held, spans, sizes == 1)
    for piece in np.flatnonzero((sizes > 1) & (held > 0)):
        cells = slice(starts[piece], starts[piece] + sizes[piece])
        ways = np.cumsum(widths[cells] if spans[piece] else np.ones(sizes[piece]))
        ways /= ways[-1]
        if faint[piece] and spans[piece] and np.isnan(beside[piece]).all():
            fitted[cells] *= _alone(counts[cells] / held[piece], sigma / held[piece], widths[cells])
            continue
        sides = beside[piece] * spans[piece] / held[piece]
        low = faint[piece] and not np.isnan(sides).all() and np.nanmin(sides) > 1
        below = _tail(np.nan_to_num(sides), ways) if low else shapes.share_below(tilt[piece], ways)
        fitted[cells] *= np.maximum(np.diff(below, prepend=0.0), 0.0)
    return fitted


def _beside(masses: Array, widths: Array, single: npt.NDArray[np.bool_]) -> Array:
    """The density on either side of each piece, NaN where nothing is known of it; shape (pieces, 2).

    A single value that many share has no flanks: beside a piece of one cell it counts what is behind that, if it is
    less. A piece of no width is nobody's neighbour.
    """
    beside = np.full((masses.size, 2), np.nan)
    wide = np.flatnonzero(widths > shapes.NO_WIDTH * widths.max())
    density = masses[wide] / widths[wide]
    for side, step in enumerate((-1, 1)):
        nearest, behind = (_shifted(density, steps * step) for steps in (1, 2))
        alone = _shifted(single[wide].astype(np.float64), step) == 1
        beside[wide, side] = np.where(alone, np.minimum(nearest, behind), nearest)
    return beside


def _shifted(values: Array, by: int) -> Array:
    """The values so many places further, NaN where there is none."""
    places = np.arange(values.size) + by
    inside = (places >= 0) & (places < values.size)
    return np.where(inside, values[np.where(inside, places, 0)], np.nan)


def _tail(sides: Array, ways: Array) -> Array:
    """Share of a piece's records below each share of the way through it, where its density falls off from both sides.

    Args:
        sides: the densities beside it, in parts of the piece's mean density, together more than one; 0: it does not
            fall off from there. Shape (2,).
        ways: shape (cells,).
    """
    # The density (before (1 + r u)^-(k+1) + after (1 + r (1-u))^-(k+1)) has mass one for one rate r: a fixed point,
    # which is reached from above, as the right side is a concave function of r.
    before, after = sides
    steepest = rate = sides.sum() / TAIL
    for _ in range(_STEPS):
        rate = steepest * (1 - (1 + rate) ** -TAIL)
    left = 1 - (1 + rate * ways) ** -TAIL
    right = (1 + rate * (1 - ways)) ** -TAIL - (1 + rate) ** -TAIL
    below = before * left + after * right
    return np.asarray(below / below[-1])


def _alone(counts: Array, sigma: float, widths: Array) -> Array:
    """Share of a piece's records in each of its cells, where nothing is known of what is beside it; shape (cells,).

    Args:
        counts: noisy counts, in parts of the piece's records.
        sigma: the noise's deviation, likewise.
        widths: of the cells, not all of them zero.
    """
    ways = np.append(0.0, np.cumsum(widths) / widths.sum())
    plain = np.diff(ways)
    half = widths.size // 2
    first, last = widths[:half].sum(), widths[widths.size - half :].sum()
    if math.isclose(first, last):
        return plain
    if first > last:
        return _alone(counts[::-1], sigma, widths[::-1])[::-1]
    # Scales from the whole piece down to its narrowest cell, each half of the one before.
    rates = 2.0 ** np.arange(math.ceil(-math.log2(plain[plain > 0].min())) + 1)[:, None]
    tails = np.diff((1 - (1 + rates * ways) ** -TAIL) / (1 - (1 + rates) ** -TAIL), axis=1)
    shares = np.vstack([plain, tails])
    misfits = (((counts - shares) / sigma) ** 2).sum(axis=1)
    likelihoods = np.exp((misfits.min() - misfits) / 2)
    return np.asarray(likelihoods @ shares / likelihoods.sum())


def _price(cells: int) -> float:
    """Of a piece, in squared deviations of the noise: what it tells must be worth more."""
    return 2 * math.log(cells)


def _pieces(counts: Array, widths: Array) -> npt.NDArray[np.int64]:
    """First cell of each piece; counts in units of the noise's deviation, widths in parts of the widest."""
    cells = counts.size
    price = _price(cells)
    # Sums over the first cells of c^2, w c and w^2, so that any piece's misfit is known at once.
    sums = [np.append(0.0, np.cumsum(values)) for values in (counts**2, widths * counts, widths**2)]
    best, first = np.zeros(cells + 1), np.zeros(cells + 1, dtype=np.int64)
    for end in range(1, cells + 1):
        square, cross, width = (values[end] - values[:end] for values in sums)
        misfit = square - np.divide(cross**2, width, out=np.zeros(end), where=width > 0)
        misfit[-1] = 0.0
        cost = best[:end] + np.maximum(misfit, 0.0) + price
        first[end] = np.argmin(cost)
        best[end] = cost[first[end]]
    starts = [cells]
    while starts[-1] > 0:
        starts.append(int(first[starts[-1]]))
    return np.array(starts[:0:-1], dtype=np.int64)
