"""Outliers: the texts that a generator is likeliest to give away.

What belongs here: choosing, among possible targets, those that are unlike the rest. What does not: attacks.

A text that many others resemble leaves no trace of its own. SynBench (section 3, stage 1) therefore asks about the
texts that lie farthest from all others, and about local outliers (Breunig, Kriegel, Ng & Sander, SIGMOD 2000). It
embeds texts with a sentence encoder; here they are words weighted by rarity, compared by their angles, so that no
model is needed. All words count: the directions that most texts share (latent semantic analysis) leave out rare ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpsynth_platform.audit.texts.ngrams import words
from dpsynth_platform.foundation.errors import AccountingError

NEIGHBOURS = 20
"""Of a text, for its local outlier factor."""
LEAST = 20
"""Texts of which some may be called unusual."""


def outliers(texts: Sequence[str], share: float) -> npt.NDArray[np.bool_]:
    """Which texts are unusual: the share that is farthest from the middle, and the share of largest outlier factor.

    Choose among members and others together, so that the choice says nothing of who was in.

    Args:
        texts: possible targets.
        share: of the texts, by each of both measures; so many, and up to twice as many, are chosen.

    Returns:
        Shape (texts,).

    Raises:
        AccountingError: there are too few texts, none of them has words, or the share is not in (0, 1).
    """
    from sklearn.neighbors import LocalOutlierFactor

    if len(texts) < LEAST or not 0 < share < 1:
        raise AccountingError(
            f"audit: outliers, {share:g} of {len(texts)} texts; accepted: a share in (0, 1) of at least {LEAST} texts"
        )
    weighted = _weighted(texts)
    neighbours = min(NEIGHBOURS, len(texts) - 1)
    factor = LocalOutlierFactor(n_neighbors=neighbours, metric="cosine").fit(weighted).negative_outlier_factor_
    # Texts are of length one, so those of least product with their mean are the farthest from it.
    nearness = weighted @ np.asarray(weighted.mean(axis=0)).ravel()
    chosen = np.zeros(len(texts), dtype=bool)
    for usual in (nearness, factor):
        chosen[np.argsort(usual)[: math.ceil(share * len(texts))]] = True
    return chosen


def _weighted(texts: Sequence[str]) -> sparse.csr_matrix:
    """Shape (texts, words), each text of length one."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    if not any(words(text) for text in texts):
        raise AccountingError("audit: outliers are sought among texts without words; accepted: texts")
    return TfidfVectorizer(analyzer=words, sublinear_tf=True).fit_transform(texts)
