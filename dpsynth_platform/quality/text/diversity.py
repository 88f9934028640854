"""Diversity: whether texts repeat each other, and whether they repeat what the generator was trained on.

What belongs here: self-BLEU, distinct n-grams, duplicates, and long runs of words that stand verbatim in training
texts. What does not: distances from real texts (`divergences`). No single figure is good or bad by itself: real texts
repeat each other, too, so those of as many real texts belong beside them.

Verbatim runs are a sign of memorization, never a proof of privacy where there are none (the guarantee is), and boiler
plate that many people wrote is no secret. The figure says how often, never what.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.text.words import Codes, runs_of

ORDER = 4
"""BLEU goes up to runs of so many words."""
SELF_BLEU_TEXTS = 100
"""Each of so many texts is compared with all others of them."""
_NO_MATCH = 0.1


def bleu(hypothesis: Sequence[int], references: Sequence[Sequence[int]], order: int = ORDER) -> float:
    """BLEU of one text against several, in [0, 1] (Papineni et al. 2002, section 2).

    Precisions without a match count as 0.1 matches (Chen and Cherry 2014, method 1); runs that are longer than the text
    are left out of the mean.

    Args:
        hypothesis: codes of at least one word.
        references: codes of words, at least one text.
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
    """Mean BLEU of texts against all the others (Zhu et al., Texygen, 2018), of a random sample of them; 1: all alike.

    Args:
        texts: codes of the words of at least two texts, none of them empty.
    """
    drawn = rng.choice(len(texts), min(SELF_BLEU_TEXTS, len(texts)), replace=False)
    sample = [texts[at].tolist() for at in drawn]
    return float(np.mean([bleu(text, sample[:at] + sample[at + 1 :]) for at, text in enumerate(sample)]))


def distinct(texts: Sequence[Codes], length: int, runs: int) -> float:
    """Share of different runs among the first so many runs of `length` words (distinct-n, Li et al. 2016).

    The share falls with the number of runs, so that figures compare only where that is the same. NaN for no runs.
    """
    codes = runs_of(length, texts)[0].codes[:runs]
    return len(np.unique(codes)) / len(codes) if len(codes) else float("nan")


def duplicates(texts: Sequence[Codes]) -> float:
    """Share of texts that have the same words in the same order as one before them; case and blanks do not count."""
    return 1 - len({text.tobytes() for text in texts}) / len(texts)


def verbatim(texts: Sequence[Codes], training: Sequence[Codes], length: int) -> npt.NDArray[np.bool_]:
    """Which texts have a run of so many words that a training text has word for word (but for case); shape (texts,)."""
    of_texts, of_training = runs_of(length, texts, training)
    found = np.zeros(len(texts), dtype=bool)
    found[of_texts.texts[np.isin(of_texts.codes, of_training.codes)]] = True
    return found


def _counted(words: Sequence[int], length: int) -> Counter[tuple[int, ...]]:
    return Counter(zip(*(words[at:] for at in range(length)), strict=False))
