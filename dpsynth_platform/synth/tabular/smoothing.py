"""Denoising the noisy counts of an ordered column's cells by smoothing its density.

What belongs here: an estimate of the records in each cell from the noisy counts of all cells of an ordered column.
What does not: which cells are merged later (`compression`). All of it is post-processing.

**Pieces.** Cells are cut into pieces of flat density: the cut with the least sum of squared differences in units of the
noise's variance, plus 2 log(cells) for each piece (the Potts functional; Boysen, Kempe, Liebscher, Munk & Wittich
2009), by exact dynamic programming. Noise averages out in empty pieces; a value that many records share is a piece. The
pieces' records are non-negative and sum to the table's total. Inside of a piece they follow the slope of its neighbours
(`shapes`).

**Tails.** Noise alone explains a faint piece. If it holds less than both neighbours, its density falls off from these
as a Lomax distribution with the piece's mass (`_tail`). A range that was declared wide is mostly such a tail: records
spread evenly over it would dominate the column's mean and deviation. On ten columns of adult and texas and seven
artificial ones at epsilon 1, the mean error of the logarithm of the deviation falls from 1.2 to 0.4. An exponential
tail is too short for amounts of money; zeroing what is within the noise is worse.

**Isolated pieces.** A faint piece may have no neighbours, such as the amounts of a column that is mostly zero. On a
grid with narrower cells towards one end, the density falls off from that end: the shares are the mean over all scales
and the flat density, weighted by the likelihood of the noisy counts. With three such columns of texas at epsilon 1, the
largest difference of the distribution functions falls from 0.018 to 0.007. On equal cells, the piece stays flat.
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
    """Records in each cell: non-negative, with sum `total` (zero if that is negative); shape (cells,).

    `counts` are noisy counts of neighbouring cells with deviation `sigma`; the width of a cell of one value is 0.
    """
    if total <= 0:
        return np.zeros(counts.size)
    widths = widths / (widths.max() or 1.0)  # the squares of the widest ranges overflow double precision
    starts = _pieces(counts / sigma, widths)
    sizes = np.diff(np.append(starts, counts.size))
    piece_of = np.repeat(np.arange(starts.size), sizes)
    spans, squares = np.add.reduceat(widths, starts), np.add.reduceat(widths**2, starts)
    # The best flat density, times the width; a single cell keeps its count.
    flat = np.divide(spans, squares, out=np.zeros(starts.size), where=(sizes > 1) & (squares > 0))
    fit = np.where(sizes > 1, flat * np.add.reduceat(widths * counts, starts), counts[starts])
    variances = np.where(sizes > 1, np.maximum(spans * flat, 1.0), 1.0)
    held = project(fit + variances * (total - fit.sum()) / variances.sum(), variances, total)
    faint = held**2 <= _price(counts.size) * variances * sigma**2
    tilt = shapes.tilts(held, spans)
    fitted = held[piece_of]
    beside = _neighbour_densities(held, spans, sizes == 1)
    for piece in np.flatnonzero((sizes > 1) & (held > 0)):
        cells = slice(starts[piece], starts[piece] + sizes[piece])
        ways = np.cumsum(widths[cells] if spans[piece] else np.ones(sizes[piece]))
        ways /= ways[-1]
        if faint[piece] and spans[piece] and np.isnan(beside[piece]).all():
            fitted[cells] *= _isolated(counts[cells] / held[piece], sigma / held[piece], widths[cells])
            continue
        sides = beside[piece] * spans[piece] / held[piece]
        low = faint[piece] and not np.isnan(sides).all() and np.nanmin(sides) > 1
        below = _tail(np.nan_to_num(sides), ways) if low else shapes.share_below(tilt[piece], ways)
        fitted[cells] *= np.maximum(np.diff(below, prepend=0.0), 0.0)
    return fitted


def _neighbour_densities(masses: Array, widths: Array, single: npt.NDArray[np.bool_]) -> Array:
    """The density on either side of each piece, NaN where unknown; shape (pieces, 2).

    A neighbour of one cell may be a peak: the piece behind it counts instead, if it is less dense. Pieces of no width
    are skipped.
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
    places = np.arange(values.size) + by
    inside = (places >= 0) & (places < values.size)
    return np.where(inside, values[np.where(inside, places, 0)], np.nan)


def _tail(sides: Array, ways: Array) -> Array:
    """Share of a piece's records below each share (`ways`) of its width, where its density falls off from both sides.

    `sides` are the densities there in units of the piece's mean density, with a sum above one; 0: no slope there.
    """
    # The density (before (1 + r u)^-(k+1) + after (1 + r (1-u))^-(k+1)) has mass one for one rate r: a fixed point,
    # reached from above, since the right side is a concave function of r.
    before, after = sides
    steepest = rate = sides.sum() / TAIL
    for _ in range(_STEPS):
        rate = steepest * (1 - (1 + rate) ** -TAIL)
    left = 1 - (1 + rate * ways) ** -TAIL
    right = (1 + rate * (1 - ways)) ** -TAIL - (1 + rate) ** -TAIL
    below = before * left + after * right
    return np.asarray(below / below[-1])


def _isolated(counts: Array, sigma: float, widths: Array) -> Array:
    """Share of an isolated piece's records in each of its cells, shape (cells,).

    `counts` and `sigma` are in parts of the piece's records; not all widths are zero.
    """
    ways = np.append(0.0, np.cumsum(widths) / widths.sum())
    plain = np.diff(ways)
    half = widths.size // 2
    first, last = widths[:half].sum(), widths[widths.size - half :].sum()
    if math.isclose(first, last):
        return plain
    if first > last:
        return _isolated(counts[::-1], sigma, widths[::-1])[::-1]
    # Scales from the whole piece down to its narrowest cell, each half of the previous one.
    rates = 2.0 ** np.arange(math.ceil(-math.log2(plain[plain > 0].min())) + 1)[:, None]
    tails = np.diff((1 - (1 + rates * ways) ** -TAIL) / (1 - (1 + rates) ** -TAIL), axis=1)
    shares = np.vstack([plain, tails])
    misfits = (((counts - shares) / sigma) ** 2).sum(axis=1)
    likelihoods = np.exp((misfits.min() - misfits) / 2)
    return np.asarray(likelihoods @ shares / likelihoods.sum())


def _price(cells: int) -> float:
    """The penalty for each piece, in squared deviations of the noise."""
    return 2 * math.log(cells)


def _pieces(counts: Array, widths: Array) -> npt.NDArray[np.int64]:
    """First cell of each piece; counts in units of the noise's deviation, widths in parts of the widest."""
    cells = counts.size
    price = _price(cells)
    # Prefix sums of c^2, w c and w^2 give any piece's misfit at once.
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
