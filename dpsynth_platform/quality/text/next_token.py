"""Next-token accuracy: how often a small language model, trained on some texts, predicts the next word of real ones.

What belongs here: that model and its score. What does not: which texts train and which test (`report`).

The model uses n-grams of up to three preceding words with back-off. It has no parameters to tune, trains in a second on
a CPU, and is deterministic; a pretrained model would know most answers without the texts. The accuracies of CTCL (Tan
et al. 2025, section 4.1.1) are of neural models with some ten million weights, and not comparable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsynth_platform.quality.text.words import Codes, runs_of

CONTEXT = 3
"""The most words before the predicted one."""


def next_token_accuracy(train: Sequence[Codes], test: Sequence[Codes]) -> float:
    """Share of the words of `test`, including ends of texts, that the model trained on `train` predicts correctly.

    The prediction is the word that most often follows the longest context in `train`, of at most three words; ties are
    decided by the words' frequency. The beginning of a text counts as a word. Words are coded together.
    """
    # 0 marks the beginning of a text, and 1 its end.
    train, test = ([np.concatenate([[0], words + 2, [1]]) for words in texts] for texts in (train, test))
    truth = _after(test, 0)
    guesses = np.full(len(truth), np.bincount(_after(train, 0)).argmax())
    for context in range(1, CONTEXT + 1):
        places, found = _guesses(train, test, context)
        guesses[places] = found
    return float((guesses == truth).mean())


def _after(texts: Sequence[Codes], context: int) -> Codes:
    """The words of all texts, in order, that have `context` words before them; beginnings are not among them."""
    return np.concatenate([text[max(1, context) :] for text in texts])


def _guesses(train: Sequence[Codes], test: Sequence[Codes], context: int) -> tuple[Codes, Codes]:
    """Places in `_after(test, 0)` whose context occurs in `train`, and the prediction for each."""
    # Without the ends, since no word follows a text's last run.
    seen, asked = runs_of(context, [text[:-1] for text in train], [text[:-1] for text in test])
    known, answers = _most_frequent(seen.codes, _after(train, context), np.bincount(_after(train, 0)))
    at = np.searchsorted(known, asked.codes)
    hit = np.append(known, -1)[at] == asked.codes
    places = np.flatnonzero(np.concatenate([np.arange(1, len(text)) for text in test]) >= context)
    return places[hit], answers[at[hit]]


def _most_frequent(runs: Codes, words: Codes, frequency: Codes) -> tuple[Codes, Codes]:
    """The different runs, ascending, and the word that most often follows each; `frequency` of words decides ties."""
    size = len(frequency)
    pairs, counts = np.unique(runs * size + words, return_counts=True)
    first, second = pairs // size, pairs % size
    order = np.lexsort((second, frequency[second], counts, first))
    last = np.flatnonzero(np.diff(first, append=-1))  # the pairs are sorted by run, before and after `lexsort`
    return first[last], second[order][last]
