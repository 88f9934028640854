"""Similarity: does a text share n-grams with some released texts?

What belongs here: the similarity attack of Meeus et al. ("The Canary's Echo", ICML 2025) by sets of n-grams. What does
not: n-gram models (`ngrams`), runs of characters anywhere in the release (`audit.attacks.overlap_scores`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import sparse

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.texts.evidence import TextEvidence
from dpsynth_platform.audit.texts.ngrams import ORDER, Gram, grams

MOST_SIMILAR = 5
"""Number of most similar texts that count. With one, noise decides; with many, a text copied once is lost."""
_CHUNK = 64


def similarity_scores(
    targets: Sequence[str], texts: Sequence[str], *, order: int = ORDER, most_similar: int = MOST_SIMILAR
) -> Floats:
    """Mean Jaccard similarity, by n-grams of `order` words, of each target to its `most_similar` texts.

    There must be at least one text; if there are fewer than `most_similar`, all count. Shape (targets,).
    """
    asked_for = dict.fromkeys(gram for target in targets for gram in grams(target, order))
    places = {gram: place for place, gram in enumerate(asked_for)}
    asked, sizes = _held(targets, places, order)
    others, other_sizes = _held(texts, places, order)
    nearest, found = min(most_similar, len(texts)), np.empty(len(targets))
    for start in range(0, len(targets), _CHUNK):
        part = slice(start, start + _CHUNK)
        shared = (asked[part] @ others.T).toarray()
        either = sizes[part, None] + other_sizes[None] - shared
        likeness = shared / np.maximum(1, either)
        found[part] = np.partition(likeness, -nearest, axis=1)[:, -nearest:].mean(axis=1)
    return found


def similarity_attack(evidence: TextEvidence) -> Floats:
    """`similarity_scores` to the release, less those to the reference where there is one."""
    scores = similarity_scores(evidence.targets, evidence.synthetic)
    return scores if evidence.reference is None else scores - similarity_scores(evidence.targets, evidence.reference)


def _held(texts: Sequence[str], places: Mapping[Gram, int], order: int) -> tuple[sparse.csr_matrix, Floats]:
    """Which n-grams of `places` each text has, shape (texts, places), and how many n-grams it has in total."""
    columns: list[int] = []
    ends, sizes = [0], []
    for text in texts:
        own = set(grams(text, order))
        columns += [places[gram] for gram in own if gram in places]
        ends.append(len(columns))
        sizes.append(len(own))
    ones = np.ones(len(columns), np.int32)
    return sparse.csr_matrix((ones, columns, ends), (len(texts), len(places))), np.array(sizes, dtype=np.float64)
