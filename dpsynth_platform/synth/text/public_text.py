"""What a prompt may be made of: words that anybody may read, as a type.

What belongs here: the type, and prompts. What does not: which words there are (`evolution_prompts`), and texts of the
data, which are another type (`private_text`) that has no way here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PublicText:
    """Words that anybody may read: declared by a contract, ours, or written by a model that was told only such words.

    Attributes:
        words: the text.

    Raises:
        TypeError: they are no text, as those of a private text are not.
    """

    words: str

    def __post_init__(self) -> None:
        if type(self.words) is not str:
            raise TypeError(f"a prompt of {type(self.words).__name__}; accepted: public words")

    def joined(self, others: Sequence[PublicText], between: str = "\n") -> PublicText:
        """This text and others after it."""
        return PublicText(between.join([self.words, *(other.words for other in others)]))


@dataclass(frozen=True)
class Prompt:
    """What a model is told.

    Attributes:
        instruction: what it is to do.
        request: on what.
    """

    instruction: PublicText
    request: PublicText

    def __post_init__(self) -> None:
        for part in (self.instruction, self.request):
            if type(part) is not PublicText:
                raise TypeError(f"a prompt of {type(part).__name__}; accepted: public texts")
