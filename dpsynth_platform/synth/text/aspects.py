"""Aspects of public texts: what a writer is given before each text that it learns to write.

What belongs here: keywords of a text, the values of its other columns, and the prompts with some of them. What does
not: training (`writer`), the layout of prompts (`layout`), and topics (`topics`).

CTCL (Tan et al. 2025, section 3.1) lets a language model of 2B parameters describe each document in several aspects,
among them keywords and the document's type. Here no model is asked. Keywords are those of the universal topic that the
text is nearest to, at any level, as `ctcl` gives them; or words of the text itself, by TF-IDF. Other aspects are
columns of the table. Each time that a text is read, other aspects stand before it, so that a writer learns to use any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.contracts.text_generation import KEYWORDS_COLUMN, TOPIC_LEVELS, UNIVERSAL_TOPICS
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.synth.conditions import Condition, Given
from dpsynth_platform.synth.text.embeddings import SentenceEncoder
from dpsynth_platform.synth.text.layout import Encoder, TextLayout
from dpsynth_platform.synth.text.topic_building import text_keywords
from dpsynth_platform.synth.text.topics import load_topics
from dpsynth_platform.synth.text.trained import encoded

Row = tuple[list[int], list[int]]
"""The tokens of a prompt, and of the text after it."""

WITH_TOPIC, WITH_WORDS, WITH_COLUMN = 0.5, 0.3, 0.8
"""How often a prompt has the keywords of a topic, words of the text itself, and each other column."""
_FEWEST_WORDS = 3
_CHARACTERS_A_TOKEN = 6
"""About as many characters of a text are learned for each token; keywords are of these."""


class Aspects:
    """Public texts with all that may stand before them.

    Args:
        texts: distinct, with no blank one.
        columns: values of other columns, by name, one for each text.
        written: the name of the texts' column, which is the last line of each prompt.

    Raises:
        ConfigurationError: the longest prompt leaves no room for a text.
    """

    def __init__(
        self,
        texts: Sequence[str],
        columns: Mapping[str, Sequence[str | None]],
        *,
        written: str,
        tokenizer: Any,
        max_tokens: int,
        progress: Progress,
    ) -> None:
        self._texts, self._columns, self._written = texts, columns, written
        self._tokenizer, self._max_tokens = tokenizer, max_tokens
        models = [load_topics(UNIVERSAL_TOPICS, level) for level in TOPIC_LEVELS]
        self._labels = tuple(dict.fromkeys(label for model in models for label in model.labels))
        self._encoder = lru_cache(maxsize=None)(self._encoder_for)
        self._encoder(tuple(columns), True)  # refuses too long prompts, before features are computed
        learned = [text[: _CHARACTERS_A_TOKEN * max_tokens] for text in texts]
        features = SentenceEncoder().encode(learned, progress)
        self._topics = [(model.keywords, (features @ model.centers.T).argmax(axis=1)) for model in models]
        self._words = [words.split(", ") if words else [] for words in text_keywords(learned)]

    def row(self, number: int, seed: Sequence[int]) -> Row:
        """One text's tokens after aspects that the seed chooses."""
        rng = np.random.default_rng(seed)
        names = tuple(name for name in self._columns if rng.random() < WITH_COLUMN)
        keywords = self._keywords(number, rng)
        values = tuple(self._columns[name][number] for name in names)
        encoder = self._encoder(names, keywords is not None)
        given: Given = values if keywords is None else (keywords, *values)
        body = encoder.layout.body({self._written: self._texts[number]}) or ""
        return encoded(encoder, [(given, body)])[0]

    def _keywords(self, number: int, rng: np.random.Generator) -> str | None:
        chosen, level, words = rng.random(), rng.integers(len(self._topics)), self._words[number]
        if chosen < WITH_TOPIC:
            labels, nearest = self._topics[level]
            return str(labels[nearest[number]])
        if chosen < WITH_TOPIC + WITH_WORDS and len(words) >= _FEWEST_WORDS:
            size = int(rng.integers(_FEWEST_WORDS, len(words) + 1))
            return ", ".join(words[at] for at in _places(rng, len(words), size))
        return None

    def _encoder_for(self, names: tuple[str, ...], with_keywords: bool) -> Encoder:
        conditions = [Condition(name, tuple(dict.fromkeys(self._columns[name]))) for name in names]
        topics = [Condition(KEYWORDS_COLUMN, self._labels)] if with_keywords else []
        layout = TextLayout((self._written,), (*topics, *conditions), self._max_tokens)
        return Encoder(layout, self._tokenizer)


def _places(rng: np.random.Generator, words: int, size: int) -> npt.NDArray[np.int64]:
    return rng.permutation(words)[:size].astype(np.int64)
