"""A text of the sensitive table, as a type that has no way to words.

What belongs here: the type, and what turns it into features. What does not: reading a table, and what features are for
(`evolution_votes`). A prompt is made of another type (`public_text`); neither knows the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.float32]

_LONGEST = 2000
"""Characters of a text that are looked at: more than the encoder reads of it."""


class TextEncoder(Protocol):
    """What turns texts into features of Euclidean length 1; `embeddings.SentenceEncoder` is one."""

    def encode(self, texts: Sequence[str]) -> Features:
        """Features of each text, shape (texts, features)."""


class PrivateText:
    """A text of the sensitive table. It gives its features, and in no way its words; equal ones are known as such."""

    __slots__ = ("__text",)

    def __init__(self, text: str | None) -> None:
        self.__text = (text or "")[:_LONGEST].strip()

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to be read."""
        return not self.__text

    def features(self, encoder: TextEncoder) -> Features:
        """Features of this text, computed by itself, shape (features,)."""
        found: Features = encoder.encode([self.__text])[0]
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrivateText) and self.__text == other.__text

    def __hash__(self) -> int:
        return hash(self.__text)

    def __repr__(self) -> str:
        return "<private text>"

    def __str__(self) -> NoReturn:
        raise TypeError("a private text has no words to show; accepted: its features")

    def __format__(self, specification: str) -> NoReturn:
        raise TypeError("a private text has no words to show; accepted: its features")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private text is not handed on; accepted: its features")

    def __getstate__(self) -> NoReturn:
        raise TypeError("a private text is not handed on; accepted: its features")
