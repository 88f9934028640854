"""A noisy mean embedding of pictures by class: random Fourier features in whole numbers, and their sums.

What belongs here: frequencies, a record's features, and the queries. What does not: noise and files (`noisy_results`).

The method is DP-MERF (Harder et al. 2021, section 4): means of random features (Rahimi & Recht 2007) of each class. A
frequency covers a window of the picture, of a quarter of its sides, half or all of them, so that some features see
details. Everything is in whole numbers: a product of pixels and frequencies is a phase, whose cosine and sine come from
a table. So a record's features depend on this record only (`exact_sums`), and `clipped` bounds their norm exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.pixels import Pixels
from dpsynth_platform.privacy.units import RECORD_PARTS
from dpsynth_platform.synth.images.embedding_plan import COUNTS, EMBEDDING, EmbeddingPlan
from dpsynth_platform.synth.images.exact_sums import UNIT, Batch, Sums, Whole, cells, class_sums, clipped
from dpsynth_platform.synth.images.measured_sums import MeasuredSums
from dpsynth_platform.synth.images.moments_fitting import Floats, counts_from
from dpsynth_platform.synth.images.noisy_results import Results

TURN = 2**24
"""A whole turn of a phase."""
PLACES = 2**16
"""Of the table of cosines."""
WINDOWS = (4, 2, 1)
"""The parts of a picture's sides that a frequency covers, in turn."""
LEAST_SIDE = 3
BANDWIDTH = 0.3
"""Of the kernel, in grey ranges, times the square root of a window's values."""


@dataclass(frozen=True)
class Embedding:
    """What is measured: noisy class counts, and the noisy mean features of each class.

    Attributes:
        frequencies: whole numbers of 1 / `TURN` turns for a grey level; shape (values, frequencies).
        counts: shape (classes,).
        means: cosines, then sines; shape (classes, 2 * frequencies).
        deviations: of the noise of each entry of a class's mean; shape (classes,).
    """

    frequencies: Whole
    counts: Floats
    means: Floats
    deviations: Floats


def measured(results: Results[EmbeddingPlan]) -> Embedding:
    """The embedding; each result is measured where it is not there yet."""
    plan = results.plan
    found = results.query(COUNTS, lambda batch: cells(batch.classes, batch, plan.classes), RECORD_PARTS)
    counts = counts_from(found)
    public = _frequencies(results)

    def sums(batch: Batch) -> Sums:
        return class_sums(features(batch, public), batch.classes, plan.classes)

    means = results.query(EMBEDDING, sums, UNIT) / counts[:, None]
    return Embedding(public, counts, means, results.deviation(EMBEDDING) / counts)


def sums_with(results: Results[EmbeddingPlan], pictures: Pixels) -> MeasuredSums:
    """The noisy sums of complete measurements, and what some pictures would add to them."""
    found = measured(results)
    mine = Batch(pictures, np.zeros(len(pictures), dtype=np.int64))
    vectors = features(mine, found.frequencies) / UNIT
    return MeasuredSums(found.means * found.counts[:, None], vectors, results.deviation(EMBEDDING))


def features(batch: Batch, frequencies: Whole) -> Whole:
    """Each record's cosines and sines, of norm `UNIT` times its share at most; shape (records, 2 * frequencies)."""
    # Whole numbers below 2^53, so the product is exact.
    phases = (batch.pixels.reshape(-1, len(frequencies)).astype(np.float64) @ frequencies).astype(np.int64)
    places = phases // (TURN // PLACES) % PLACES
    table = np.rint(UNIT * np.cos(np.arange(PLACES) * (2 * math.pi / PLACES)))
    both = np.concatenate([table[places], table[(places - PLACES // 4) % PLACES]], axis=1)
    return clipped(both, UNIT * math.sqrt(frequencies.shape[1]), batch.shares)


def drawn_frequencies(plan: EmbeddingPlan) -> Whole:
    """The public frequencies of a plan; shape (values, frequencies)."""
    generator = np.random.default_rng(plan.seed)
    height, width, channels = plan.shape
    found = np.zeros((plan.frequencies, height, width, channels))
    for number in range(plan.frequencies):
        part = WINDOWS[number % len(WINDOWS)]
        high, wide = (min(side, max(LEAST_SIDE, side // part)) for side in (height, width))
        top, left = generator.integers(height - high + 1), generator.integers(width - wide + 1)
        window = generator.standard_normal((high, wide, channels))
        found[number, top : top + high, left : left + wide] = window / (BANDWIDTH * math.sqrt(window.size))
    whole = np.rint(found.reshape(plan.frequencies, -1).T * (TURN / (2 * math.pi * 255)))
    return np.clip(whole, -TURN / 2, TURN / 2)


def _frequencies(results: Results[EmbeddingPlan]) -> Whole:
    """As a file, so that measuring and all that follows have the same ones."""

    def made() -> dict[str, npt.NDArray[Any]]:
        return {"frequencies": drawn_frequencies(results.plan).astype(np.int32)}

    return results.kept("frequencies", made)["frequencies"].astype(np.float64)
