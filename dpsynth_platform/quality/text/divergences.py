"""Fidelity by counts: how far lengths, kinds of named entities, and runs of words are from those of real texts.

What belongs here: divergences of two distributions over few or many cells (after SynBench, section 3, "fidelity", and
the guide, section 5.6, "statistics-based metrics"). What does not: meaning (`mauve`), and what one corpus shows by
itself (`diversity`).

All that sees counts of words depends on how many texts there are, so two samples of real texts of the same size belong
beside each figure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.text.mauve import area, frontier, kullback_leibler
from dpsynth_platform.quality.text.words import Codes, runs_of

_CELLS_A_DOUBLING = 2


def jensen_shannon(first: npt.ArrayLike, second: npt.ArrayLike) -> float:
    """Jensen-Shannon divergence in bits, in [0, 1], of two histograms of the same cells, each with something in it."""
    one, other = (np.asarray(counts, dtype=np.float64) for counts in (first, second))
    one, other = one / one.sum(), other / other.sum()
    middle = (one + other) / 2
    return (kullback_leibler(one, middle) + kullback_leibler(other, middle)) / (2 * float(np.log(2)))


def length_divergence(first: Codes, second: Codes) -> float:
    """Jensen-Shannon divergence of numbers of words a text, in cells of half a doubling: 1, 2, 3, 4 to 5, 6 to 7, ...

    Args:
        first, second: number of words of each text, none of them empty.
    """
    cells = [np.floor(_CELLS_A_DOUBLING * np.log2(lengths + 1)).astype(np.int64) for lengths in (first, second)]
    size = int(max(part.max() for part in cells)) + 1
    return jensen_shannon(*(np.bincount(part, minlength=size) for part in cells))


def entity_divergence(first: Codes, second: Codes) -> float:
    """Jensen-Shannon divergence of the entity types that two corpora mention, NaN where one mentions none.

    Args:
        first, second: shapes (texts, types), how often each text mentions each type.
    """
    counts = [part.sum(axis=0) for part in (first, second)]
    if not all(part.sum() for part in counts):
        return float("nan")
    return jensen_shannon(*counts)


def entity_rate_divergence(first: Codes, second: Codes) -> float:
    """Jensen-Shannon divergence of how many entities a text mentions, in the cells of `length_divergence`."""
    return length_divergence(first.sum(axis=1), second.sum(axis=1))


def run_divergences(first: Sequence[Codes], second: Sequence[Codes], length: int) -> tuple[float, float]:
    """Jensen-Shannon divergence of the runs of so many words, and the area under their divergence frontier.

    The area is that of MAUVE with scaling 1 on counts of n-grams (Kurakin et al. 2023; guide, section 5.6). Both set a
    corpus against mixtures of the two, so they are finite without smoothing; half an occurrence more for each run would
    hide most of the difference, since most runs of three words occur once. NaN where a corpus has no such run.

    Args:
        first, second: the words of each text, coded together.
    """
    counts = _counts([runs.codes for runs in runs_of(length, first, second)])
    if not all(part.sum() for part in counts):
        return float("nan"), float("nan")
    one, other = (part / part.sum() for part in counts)
    return jensen_shannon(one, other), area(frontier(one, other, scaling=1.0))


def vocabulary_overlap(first: Sequence[Codes], second: Sequence[Codes]) -> float:
    """Words that both corpora use, of those that either uses (Jaccard index). Both use some."""
    one, other = ({code for text in part for code in text.tolist()} for part in (first, second))
    return len(one & other) / len(one | other)


def _counts(parts: Sequence[Codes]) -> tuple[Codes, Codes]:
    _, dense = np.unique(np.concatenate(parts), return_inverse=True)
    size = int(dense.max(initial=-1)) + 1
    cut = len(parts[0])
    return np.bincount(dense[:cut], minlength=size), np.bincount(dense[cut:], minlength=size)
