"""Outliers: the texts that a generator is likeliest to reveal.

What belongs here: choosing unusual texts among possible targets. What does not: attacks.

A text that many others resemble leaves no separate trace. SynBench (section 3, stage 1) therefore attacks the texts
farthest from all others, and local outliers (Breunig, Kriegel, Ng & Sander, SIGMOD 2000). It embeds texts with a
sentence encoder (`synbench` does); in `outliers` texts are words weighted by rarity, so that no model is needed. All
words count: latent semantic analysis would drop rare ones. Texts are compared by angle in both cases.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpsynth_platform.audit.texts.ngrams import words
from dpsynth_platform.foundation.errors import AccountingError

NEIGHBOURS = 20
"""For the local outlier factor of a text."""
LEAST = 20
"""Least number of texts to choose from."""


def outliers(texts: Sequence[str], share: float) -> npt.NDArray[np.bool_]:
    """Which texts are unusual, shape (texts,): the share farthest from the mean, and that of largest outlier factor.

    Together these are up to twice the share. Choose among members and others together, so that the choice reveals no
    membership.

    Raises:
        AccountingError: there are too few texts, none of them has words, or the share is not in (0, 1).
    """
    check_choice(len(texts), share)
    return unusual(_weighted(texts), share)


def unusual(vectors: Any, share: float) -> npt.NDArray[np.bool_]:
    """Which vectors are unusual, as in `outliers`: dense or sparse, shape (texts, features), each of length one."""
    from sklearn.neighbors import LocalOutlierFactor

    size = vectors.shape[0]
    check_choice(size, share)
    neighbours = min(NEIGHBOURS, size - 1)
    factor = LocalOutlierFactor(n_neighbors=neighbours, metric="cosine").fit(vectors).negative_outlier_factor_
    # Vectors have length one, so those of least product with their mean are the farthest from it.
    nearness = vectors @ np.asarray(vectors.mean(axis=0)).ravel()
    chosen = np.zeros(size, dtype=bool)
    for usual in (nearness, factor):
        chosen[np.argsort(usual, kind="stable")[: math.ceil(share * size)]] = True
    return chosen


def check_choice(texts: int, share: float) -> None:
    """Raises `AccountingError` if a share of so many texts cannot be chosen."""
    if texts < LEAST or not 0 < share < 1:
        raise AccountingError(
            f"audit: outliers, {share:g} of {texts} texts; accepted: a share in (0, 1) of at least {LEAST} texts"
        )


def _weighted(texts: Sequence[str]) -> sparse.csr_matrix:
    """Shape (texts, words), each text of length one."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    if not any(words(text) for text in texts):
        raise AccountingError("audit: outliers: no text has words; accepted: texts with words")
    return TfidfVectorizer(analyzer=words, sublinear_tf=True).fit_transform(texts)
