"""Next-token accuracy: how often a small model of language, trained on some texts, tells the next word of real ones.

What belongs here: that model and its score. What does not: which texts train and which test (`report`).

The model is one of n-grams of words with back-off, and no neural one: it has nothing to tune, trains in a second on a
CPU, gives the same figure each time, and sees only what the texts themselves teach; a model that was trained before
would know most answers without them. It is blind for what lies more than three words back. CTCL's accuracies (Tan et
al. 2025, section 4.1.1) are of neural models of some ten million weights: they are no measure for these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpsynth_platform.quality.text.words import Codes, runs_of

CONTEXT = 3
"""The most words before the one to tell."""


def next_token_accuracy(train: Sequence[Codes], test: Sequence[Codes]) -> float:
    """Share of the words of `test`, ends of texts included, that the model trained on `train` tells right.

    The guess is what most often followed the longest run of up to three words before the place that `train` has, at the
    beginning of a text as a word of its own; of what followed as often, the more frequent word.

    Args:
        train, test: codes of words, coded together; at least one text each.
    """
    train, test = ([_whole(text) for text in texts] for texts in (train, test))
    truth = _after(test, 0)
    guesses = np.full(len(truth), np.bincount(_after(train, 0)).argmax())
    for context in range(1, CONTEXT + 1):
        places, found = _guesses(train, test, context)
        guesses[places] = found
    return float((guesses == truth).mean())


def _whole(words: Codes) -> Codes:
    """A text's words between one for its beginning (0) and one for its end (1)."""
    return np.concatenate([[0], words + 2, [1]])


def _after(texts: Sequence[Codes], context: int) -> Codes:
    """The words that have so many before them, beginnings aside, of all texts in order."""
    return np.concatenate([text[max(1, context) :] for text in texts])


def _guesses(train: Sequence[Codes], test: Sequence[Codes], context: int) -> tuple[Codes, Codes]:
    """For each word of `test` whose context of so many words `train` has: its number, and the guess."""
    # The last run of a text has nothing after it, hence without the end.
    seen, asked = runs_of(context, [text[:-1] for text in train], [text[:-1] for text in test])
    known, answers = _most_frequent(seen.codes, _after(train, context), np.bincount(_after(train, 0)))
    at = np.searchsorted(known, asked.codes)
    hit = np.append(known, -1)[at] == asked.codes
    return _numbers(test, context)[hit], answers[at[hit]]


def _numbers(texts: Sequence[Codes], context: int) -> Codes:
    """Numbers of the words that `_after` gives, among those that it gives for no context."""
    before = np.concatenate([np.arange(1, len(text)) for text in texts])
    return np.flatnonzero(before >= context)


def _most_frequent(runs: Codes, words: Codes, frequency: Codes) -> tuple[Codes, Codes]:
    """The different runs, ascending, and the word that followed each most often.

    Args:
        runs, words: each run's code, and the word after it.
        frequency: of each word anywhere; it decides between words that followed as often.
    """
    size = len(frequency)
    pairs, counts = np.unique(runs * size + words, return_counts=True)
    first, second = pairs // size, pairs % size
    order = np.lexsort((second, frequency[second], counts, first))
    last = np.flatnonzero(np.diff(first, append=-1))  # the pairs are in order of their runs, before and after sorting
    return first[last], second[order][last]
