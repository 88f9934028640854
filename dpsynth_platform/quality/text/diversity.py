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
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.text.words import Codes, runs_of

ORDER = 4
"""The longest runs of words in BLEU."""
SELF_BLEU_TEXTS = 100
"""Size of the sample whose texts are compared with each other."""
_NO_MATCH = 0.1
Run = tuple[int, ...]


def bleu(hypothesis: Sequence[int], references: Sequence[Sequence[int]], order: int = ORDER) -> float:
    """BLEU of one text against at least one other, in [0, 1] (Papineni et al. 2002, section 2).

    Precisions without a match count as 0.1 matches (Chen and Cherry 2014, method 1). Runs that are longer than the text
    do not count. The hypothesis has at least one word.
    """
    most = [Counter[Run]() for _ in range(order)]
    for reference in references:
        for length, found in enumerate(most, 1):
            found |= _counted(reference, length)
    return _bleu(_counted_runs(hypothesis, order), most, _nearest(len(hypothesis), map(len, references)))


def self_bleu(texts: Sequence[Codes], rng: np.random.Generator) -> float:
    """Mean BLEU of each text against the others in a random sample (Zhu et al., Texygen, 2018); 1: all the same.

    There must be at least two texts, none of them empty.
    """
    drawn = rng.choice(len(texts), min(SELF_BLEU_TEXTS, len(texts)), replace=False)
    sample = [texts[at].tolist() for at in drawn]
    counted = [_counted_runs(text, ORDER) for text in sample]
    # The most often that a text has a run, and the second most: the most of the others, where it is this text's.
    first, second = ([Counter[Run]() for _ in range(ORDER)] for _ in range(2))
    for runs in counted:
        for own, most, next_most in zip(runs, first, second, strict=True):
            for run, count in own.items():
                next_most[run] = max(next_most[run], min(count, most[run]))
                most[run] = max(most[run], count)
    scores = []
    for at, (text, runs) in enumerate(zip(sample, counted, strict=True)):
        others = [
            {run: most[run] if count < most[run] else next_most[run] for run, count in own.items()}
            for own, most, next_most in zip(runs, first, second, strict=True)
        ]
        lengths = (len(other) for place, other in enumerate(sample) if place != at)
        scores.append(_bleu(runs, others, _nearest(len(text), lengths)))
    return float(np.mean(scores))


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


def _bleu(runs: Sequence[Counter[Run]], most: Sequence[Mapping[Run, int]], nearest: int) -> float:
    """BLEU of a text's runs of one word, of two, ..., by the most of each in one reference, and the length nearest."""
    logs = []
    for found, of_references in zip(runs, most, strict=True):
        if found:
            matches = sum(min(count, of_references[run]) for run, count in found.items())
            logs.append(math.log((matches or _NO_MATCH) / found.total()))
    brevity = min(0.0, 1 - nearest / runs[0].total())
    return math.exp(brevity + sum(logs) / len(logs))


def _nearest(length: int, lengths: Iterable[int]) -> int:
    return min(lengths, key=lambda size: (abs(size - length), size))


def _counted_runs(words: Sequence[int], order: int) -> list[Counter[Run]]:
    return [_counted(words, length) for length in range(1, order + 1)]


def _counted(words: Sequence[int], length: int) -> Counter[Run]:
    return Counter(zip(*(words[at:] for at in range(length)), strict=False))
