"""A text of the sensitive table, as a type without access to its words.

What belongs here: the type, and its features. What does not: reading a table, and uses of features
(`evolution_votes`). A prompt has another type (`public_text`); neither type imports the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

Features = npt.NDArray[np.float32]

_LONGEST = 2000
"""Characters of a text that are used: more than the encoder reads."""


class TextEncoder(Protocol):
    """Turns texts into features of Euclidean length 1, such as `embeddings.SentenceEncoder`."""

    def encode(self, texts: Sequence[str]) -> Features:
        """Features of each text, shape (texts, features)."""


class PrivateText:
    """A text of the sensitive table. It gives its features but not its words; equal texts compare equal."""

    __slots__ = ("__text",)

    def __init__(self, text: str | None) -> None:
        self.__text = (text or "")[:_LONGEST].strip()

    @property
    def is_blank(self) -> bool:
        return not self.__text

    def features(self, encoder: TextEncoder) -> Features:
        """Features of this text, computed alone, shape (features,)."""
        found: Features = encoder.encode([self.__text])[0]
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrivateText) and self.__text == other.__text

    def __hash__(self) -> int:
        return hash(self.__text)

    def __repr__(self) -> str:
        return "<private text>"

    def _refuse(self, *_: object) -> NoReturn:
        raise TypeError("a private text cannot be shown or serialized; accepted: its features")

    __str__ = __format__ = __reduce__ = __getstate__ = _refuse
