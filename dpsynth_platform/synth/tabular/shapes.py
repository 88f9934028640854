"""The distribution of values inside of cells: a density that is linear in each cell, from the neighbours' masses.

What belongs here: the slopes, and the shares and draws that follow. What does not: the masses, which callers take from
noisy or synthetic counts, so that all of it is post-processing.

Each cell keeps its mass. Its slope is the harmonic mean of the slopes towards both neighbours, and zero where those
differ in sign (van Leer 1974): no density is negative or has a peak that the masses lack.

A *tilt* t in [-1, 1] is the slope relative to the cell: the density at the share u of the way through the cell is
1 + t (2u - 1) times the mean.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

NO_WIDTH = 1e-12
"""In parts of the widest cell's width: a narrower cell counts as a point."""


def tilts(masses: Array, widths: Array) -> Array:
    """The tilt of each cell, from masses and widths >= 0 of adjacent cells; all (cells,); points are skipped."""
    tilt = np.zeros(masses.size)
    wide = np.flatnonzero(widths > NO_WIDTH * widths.max())
    if wide.size < 3:
        return tilt
    width = widths[wide] / widths[wide].max()
    density = masses[wide] / width
    slopes = 2 * np.diff(density) / (width[1:] + width[:-1])
    before, after = slopes[:-1], slopes[1:]
    rising = before * after > 0
    inner = np.zeros(before.size)
    inner[rising] = 2 / (1 / before[rising] + 1 / after[rising])
    filled = density[1:-1] > 0
    tilt[wide[1:-1][filled]] = np.clip((inner * width[1:-1])[filled] / (2 * density[1:-1][filled]), -1, 1)
    return tilt


def share_below(tilt: float, way: Array) -> Array:
    """Share of a cell's mass below each share of its width (`way`); the shape of `way`."""
    return np.asarray((1 - tilt) * way + tilt * way**2)


def draw(tilt: Array, rng: np.random.Generator) -> Array:
    """A position in (0, 1] for each tilt, drawn from its density; the inverse of `share_below`. Shape of `tilt`."""
    share = 1 - rng.random(tilt.shape)
    return np.asarray(2 * share / (1 - tilt + np.sqrt((1 - tilt) ** 2 + 4 * tilt * share)))
