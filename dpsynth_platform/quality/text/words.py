"""Words and n-grams of texts as numbers, for all measures that count words.

What belongs here: splitting texts into words, and coding words and n-grams. What does not: measures (`divergences`,
`diversity`, `next_token`), and the word pieces of language models (`embeddings`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]

WORD = r"\w+|[^\w\s]"
"""A word, a number, or a punctuation mark; together they cover all characters except white space."""
_WORDS = re.compile(WORD)


@dataclass(frozen=True)
class Runs:
    """The runs of n words inside each text of one corpus: their codes, and the index of each run's text, ascending.

    Equal runs have equal codes in all corpora that were coded together.
    """

    codes: Codes
    texts: Codes


def code_words(*corpora: Sequence[str]) -> list[list[Codes]]:
    """The codes of each text's words in order, ignoring case, for each corpus."""
    known: dict[str, int] = {}
    return [
        [
            np.array([known.setdefault(word, len(known)) for word in _WORDS.findall(text.lower())], dtype=np.int64)
            for text in corpus
        ]
        for corpus in corpora
    ]


def runs_of(length: int, *corpora: Sequence[Codes]) -> list[Runs]:
    """The runs of `length` words of each corpus, coded together. No run crosses the end of a text."""
    texts = [text for corpus in corpora for text in corpus]
    words = np.concatenate([np.zeros(0, dtype=np.int64), *texts])
    places = np.repeat(np.arange(len(texts)), [len(text) for text in texts])
    codes = words
    for step in range(1, length):
        # Codes are made dense after each word, so that products do not overflow and runs do not collide.
        wider = codes[:-1] * (words.max(initial=0) + 1) + words[step:]
        codes = np.unique(wider, return_inverse=True)[1] if len(wider) else wider
    inside = places[: len(codes)] == places[length - 1 :] if len(codes) else np.zeros(0, dtype=bool)
    codes, places = codes[inside], places[: len(codes)][inside]
    ends = np.cumsum([0] + [len(corpus) for corpus in corpora])
    cuts = np.searchsorted(places, ends)
    return [
        Runs(codes[cuts[at] : cuts[at + 1]], places[cuts[at] : cuts[at + 1]] - ends[at]) for at in range(len(corpora))
    ]
