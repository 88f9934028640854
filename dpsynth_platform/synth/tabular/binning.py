"""The cells of ordered columns, from the contract.

What belongs here: cutting a declared range into cells. What does not: coding values (`domain`), and merging cells by
their noisy counts (`compression`).

Declared edges or numbers of bins define the cells. Otherwise the cells are a fine public grid, which noisy counts make
coarser later. A finer grid costs no privacy, since every record is in one cell and each cell's noise is the same; it
costs time, and noise in sums over many cells.

A value that many records share (zero, a top code) must not be spread over its neighbourhood, and its detection would
need the data. So declared points are single cells, and on a grid also zero and the ends of the range, to which outside
values are clamped. Whole numbers in a range up to twice `GRID` have one cell per value.

Many quantities are mostly small and sometimes large (money, durations, counts). So cells are equal except towards zero,
where their width is proportional to the values.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

GRID = 256
"""Equal cells of a fine grid; of whole numbers, up to twice as many values have a cell each.

On ten columns (smooth, narrow in a wide range, heavy-tailed, spiky) at 50,000 records and epsilon 1, twice as many
cells are no better, and half as many lose narrow columns; with 32 equal bins, columns are ten times farther from the
real ones (`tests/benchmarks/bench_columns.py`).
"""
COARSE_BINS = 32
"""Equal bins of a column that is cut for display; a whole-number range up to MAX_SINGLE_VALUES has single values."""
MAX_SINGLE_VALUES = 100
CELLS_PER_OCTAVE = 4
OCTAVES = 20
"""The grid gets finer down to a millionth of the largest value."""


def whole_edges(
    low: int,
    high: int,
    bins: int | Sequence[int] | None,
    points: Iterable[int] = (),
    *,
    amounts: bool = False,
    coarse: bool = False,
) -> tuple[int, ...]:
    """Edges of cells of the whole numbers low..high: cell i is edges[i] to edges[i + 1] - 1; the last is high + 1.

    Args:
        low: the least value; `high` is the largest.
        bins: inner edges, or the number of equal bins, or None for a fine grid.
        points: values that are single cells.
        amounts: whether zero is meaningful, unlike in dates.
        coarse: few equal bins in place of the fine grid.
    """
    if isinstance(bins, Sequence):
        cuts = {low, *bins}
    else:
        values = high - low + 1
        single = values <= (MAX_SINGLE_VALUES if coarse else 2 * GRID)
        number = min(bins or (values if single else COARSE_BINS if coarse else GRID), values)
        cuts = {low + values * index // number for index in range(number)}
        if bins is None and number < values:
            near = _towards_zero(low, high, values / number) if amounts and not coarse else []
            cuts |= {cut for cut in map(round, near) if low < cut <= high}
            points = [*points, low, high, *([0] if amounts and low < 0 < high else [])]
    cuts |= {cut for point in points for cut in (point, point + 1)}
    return (*sorted(cuts - {high + 1}), high + 1)


def real_edges(
    low: float,
    high: float,
    bins: int | Sequence[float] | None,
    points: Iterable[float] = (),
    *,
    coarse: bool = False,
) -> tuple[float, ...]:
    """Edges of cells of the real numbers low..high: cell i is [edges[i], edges[i + 1]); the last includes its end.

    A point's cell ends at the next double, so that it holds one number; at the range's end it has the same edge twice.
    Arguments as for `whole_edges`.
    """
    if isinstance(bins, Sequence):
        cuts = {low, *bins}
    else:
        number = bins or (COARSE_BINS if coarse else GRID)
        cuts = {low * (1 - index / number) + high * (index / number) for index in range(number)}
        if bins is None:
            near = [] if coarse else _towards_zero(low, high, high / number - low / number)
            cuts |= {cut for cut in near if low < cut < high}
            points = [*points, low, high, *([0.0] if low < 0 < high else [])]
    cuts |= {cut for point in points for cut in (point, math.nextafter(point, math.inf)) if cut <= high}
    return (*sorted(cuts), high)


def gap_edges(longest: int) -> tuple[int, ...]:
    """Edges of cells of the gaps 0..longest: as for amounts, and finer towards zero down to single steps."""
    edges = whole_edges(0, longest, None, amounts=True)
    if longest < 2 * GRID:
        return edges
    near = map(round, _towards_zero(0, longest, longest / GRID, math.ceil(math.log2(longest))))
    return tuple(sorted({*edges, *(cut for cut in near if 0 < cut <= longest)}))


def _towards_zero(low: float, high: float, width: float, octaves: int = OCTAVES) -> list[float]:
    """Cuts in geometric progression, where their distance is below `width`; not sorted."""
    ratio = 2 ** (-1 / CELLS_PER_OCTAVE)
    cuts = []
    for sign, largest in ((1, high), (-1, -low)):
        sizes = [largest * ratio**index for index in range(CELLS_PER_OCTAVE * octaves)] if largest > 0 else []
        cuts += [sign * size for size in sizes if size * (1 - ratio) < width]
    return cuts
