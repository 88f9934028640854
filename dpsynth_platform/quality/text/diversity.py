"""Diversity: whether texts repeat each other or the generator's training texts.

What belongs here: self-BLEU, distinct n-grams, duplicates, and long verbatim runs of words of training texts. What does
not: distances from real texts (`divergences`). Real texts repeat each other, too, so each figure needs that of as many
real texts for comparison.

Verbatim runs are a sign of memorization, but their absence proves no privacy (the guarantee does), and boilerplate is
no secret. The figure is a share and shows no text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.text.words import Codes, runs_of

ORDER = 4
"""The longest runs of words in BLEU."""
SELF_BLEU_TEXTS = 100
"""Size of the sample whose texts are compared with each other."""
_NO_MATCH = 0.1


def bleu(hypothesis: Sequence[int], references: Sequence[Sequence[int]], order: int = ORDER) -> float:
    """BLEU of one text against at least one other, in [0, 1] (Papineni et al. 2002, section 2).

    Precisions without a match count as 0.1 matches (Chen and Cherry 2014, method 1). Runs that are longer than the text
    do not count. The hypothesis has at least one word.
    """
    logs = []
    for length in range(1, min(order, len(hypothesis)) + 1):
        found, most = _counted(hypothesis, length), [_counted(reference, length) for reference in references]
        matches = sum(min(count, max(part[run] for part in most)) for run, count in found.items())
        logs.append(math.log((matches or _NO_MATCH) / found.total()))
    nearest = min((len(item) for item in references), key=lambda size: (abs(size - len(hypothesis)), size))
    brevity = min(0.0, 1 - nearest / len(hypothesis))
    return math.exp(brevity + sum(logs) / len(logs))


def self_bleu(texts: Sequence[Codes], rng: np.random.Generator) -> float:
    """Mean BLEU of each text against the others in a random sample (Zhu et al., Texygen, 2018); 1: all the same.

    There must be at least two texts, none of them empty.
    """
    drawn = rng.choice(len(texts), min(SELF_BLEU_TEXTS, len(texts)), replace=False)
    sample = [texts[at].tolist() for at in drawn]
    return float(np.mean([bleu(text, sample[:at] + sample[at + 1 :]) for at, text in enumerate(sample)]))


def distinct(texts: Sequence[Codes], length: int, runs: int) -> float:
    """Share of different runs among the first `runs` runs of `length` words (distinct-n, Li et al. 2016).

    Only figures of the same number of runs are comparable, since the share falls with it. NaN for no runs.
    """
    codes = runs_of(length, texts)[0].codes[:runs]
    return len(np.unique(codes)) / len(codes) if len(codes) else float("nan")


def duplicates(texts: Sequence[Codes]) -> float:
    """Share of texts that repeat the words of an earlier text, ignoring case and white space."""
    return 1 - len({text.tobytes() for text in texts}) / len(texts)


def verbatim(texts: Sequence[Codes], training: Sequence[Codes], length: int) -> npt.NDArray[np.bool_]:
    """Which texts share a run of `length` words with a training text, ignoring case; shape (texts,)."""
    of_texts, of_training = runs_of(length, texts, training)
    found = np.zeros(len(texts), dtype=bool)
    found[of_texts.texts[np.isin(of_texts.codes, of_training.codes)]] = True
    return found


def _counted(words: Sequence[int], length: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(words[at:] for at in range(length)), strict=False))
