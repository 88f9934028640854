"""The type of public text, the only content that prompts may have.

What belongs here: the type, and prompts made of it. What does not: the words (`evolution_prompts`), and
texts of the data, which have another type (`private_text`) that cannot be converted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class PublicText:
    """Public words: declared by a contract, fixed in the code, or written by a model from such words.

    Raises:
        TypeError: the words are not a `str`.
    """

    words: str

    def __post_init__(self) -> None:
        if type(self.words) is not str:
            raise TypeError(f"a prompt of {type(self.words).__name__}; accepted: public words")

    def joined(self, others: Sequence[PublicText]) -> PublicText:
        return PublicText("\n".join([self.words, *(other.words for other in others)]))


@dataclass(frozen=True)
class Prompt:
    """A prompt with a system message (`instruction`) and a user message (`request`)."""

    instruction: PublicText
    request: PublicText

    def __post_init__(self) -> None:
        for part in (self.instruction, self.request):
            if type(part) is not PublicText:
                raise TypeError(f"a prompt of {type(part).__name__}; accepted: public texts")

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a chat."""
        parts = (("system", self.instruction), ("user", self.request))
        return [{"role": role, "content": part.words} for role, part in parts]
