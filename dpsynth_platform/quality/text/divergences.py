"""Fidelity by counts: divergences of lengths, types of named entities, and runs of words from those of real texts.

What belongs here: divergences of two distributions over cells (after SynBench, section 3, "fidelity", and the guide,
section 5.6, "statistics-based metrics"). What does not: meaning (`mauve`), and measures of one corpus (`diversity`).

Counts of words depend on the number of texts, so each figure needs that of two samples of real texts of the same size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.text.mauve import Features, area, cluster_counts, frontier, kullback_leibler
from dpsynth_platform.quality.text.words import Codes, runs_of

_CELLS_A_DOUBLING = 2


def jensen_shannon(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Jensen-Shannon divergence in bits, in [0, 1], of two histograms of the same cells, neither empty."""
    one, other = (np.asarray(counts, dtype=np.float64) for counts in (first, second))
    one, other = one / one.sum(), other / other.sum()
    middle = (one + other) / 2
    return (kullback_leibler(one, middle) + kullback_leibler(other, middle)) / (2 * float(np.log(2)))


def length_divergence(first: Codes, second: Codes) -> float:
    """Jensen-Shannon divergence of words per text, in cells of half a doubling: 1, 2, 3, 4 to 5, 6 to 7, ..."""
    cells = [np.floor(_CELLS_A_DOUBLING * np.log2(lengths + 1)).astype(np.int64) for lengths in (first, second)]
    size = int(max(part.max() for part in cells)) + 1
    return jensen_shannon(*(np.bincount(part, minlength=size) for part in cells))


def entity_divergence(first: Codes, second: Codes) -> float:
    """Jensen-Shannon divergence of entity types; NaN if a corpus has none. Counts have the shape (texts, types)."""
    if not (first.any() and second.any()):
        return float("nan")
    return jensen_shannon(first.sum(axis=0), second.sum(axis=0))


def entity_rate_divergence(first: Codes, second: Codes) -> float:
    """Jensen-Shannon divergence of entities per text, in the cells of `length_divergence`."""
    return length_divergence(first.sum(axis=1), second.sum(axis=1))


def topic_divergence(first: Features, second: Features, topics: int, state: int) -> float:
    """Jensen-Shannon divergence of topics: clusters of the sentence features of both (`mauve.cluster_counts`)."""
    return jensen_shannon(*cluster_counts(first, second, topics, state))


def run_divergences(first: Sequence[Codes], second: Sequence[Codes], length: int) -> tuple[float, float]:
    """Jensen-Shannon divergence of the runs of `length` words, and the area under their divergence frontier.

    The area is that of MAUVE with scaling 1 on counts of n-grams (Kurakin et al. 2023; guide, section 5.6). Both are
    finite without smoothing, which would hide most of the difference, since most runs of three words occur once. NaN if
    a corpus has no such run. Words are coded together.
    """
    counts = _counts([runs.codes for runs in runs_of(length, first, second)])
    if not all(part.sum() for part in counts):
        return float("nan"), float("nan")
    one, other = (part / part.sum() for part in counts)
    return jensen_shannon(one, other), area(frontier(one, other, scaling=1.0))


def vocabulary_overlap(first: Sequence[Codes], second: Sequence[Codes]) -> float:
    """Jaccard index of the corpora's words; neither corpus may be empty."""
    one, other = ({code for text in part for code in text.tolist()} for part in (first, second))
    return len(one & other) / len(one | other)


def _counts(parts: Sequence[Codes]) -> tuple[Codes, Codes]:
    _, dense = np.unique(np.concatenate(parts), return_inverse=True)
    size = int(dense.max(initial=-1)) + 1
    cut = len(parts[0])
    return np.bincount(dense[:cut], minlength=size), np.bincount(dense[cut:], minlength=size)
