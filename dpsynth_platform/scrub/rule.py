"""What a rule is: a shape, with the check and the context words that tell it from other text.

What belongs here: the type and the helpers that all modules of rules share. What does not: any shape (`rules`,
`national_numbers`, `coordinates`, `nationalities`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dpsynth_platform.scrub.findings import Candidate, Trust

Check = Callable[[str], bool]
Around = Callable[[str, int, int], bool]

CONTEXT_BEFORE, CONTEXT_AFTER = 60, 25
"""Characters before a match in which a context word makes it likely, and after it."""
DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class Rule:
    """One shape.

    Attributes:
        pattern: what to look for; the group `value`, where there is one, is the finding.
        check: says whether a match is one; None: every match is.
        context: words of which one must stand near; None: none is needed.
        unless_checked: with `context`: a match that passes `check` needs no context, any other does.
        around: says of a text and of where the finding begins and ends in it whether the words around make it one.
        needs: a character without which no match is possible, so that most texts are passed over quickly.
    """

    entity: str
    pattern: re.Pattern[str]
    trust: Trust = Trust.SHAPE
    check: Check | None = None
    context: re.Pattern[str] | None = None
    unless_checked: bool = False
    needs: re.Pattern[str] | None = None
    around: Around | None = None

    def find(self, text: str) -> Iterator[Candidate]:
        """Matches in the text that hold."""
        if self.needs is not None and not self.needs.search(text):
            return
        for match in self.pattern.finditer(text):
            group = "value" if "value" in self.pattern.groupindex else 0
            start, end = match.span(group)
            if start < end and self._holds(text, start, end):
                yield Candidate(start, end, self.entity, self.trust)

    def _holds(self, text: str, start: int, end: int) -> bool:
        if self.around is not None and not self.around(text, start, end):
            return False
        checked = self.check is None or self.check(text[start:end])
        if self.context is None:
            return checked
        if self.unless_checked and checked:
            return True
        if not self.unless_checked and not checked:
            return False
        near = text[max(0, start - CONTEXT_BEFORE) : start], text[end : end + CONTEXT_AFTER]
        return any(self.context.search(part) for part in near)


def pattern_of(text: str, flags: re.RegexFlag = re.IGNORECASE) -> re.Pattern[str]:
    """A pattern that is written with blanks for the eye, and reads capitals and small letters alike."""
    return re.compile(text, flags | re.VERBOSE)


def context_of(words: str) -> re.Pattern[str]:
    """Context words, as the beginnings of words in any case."""
    return re.compile(rf"\b(?:{words})", re.IGNORECASE)


def any_of(words: Iterable[str]) -> str:
    """A pattern of these words, in small letters and without signs. It is a tree by letters: long lists stay quick."""
    tree: dict[str, list[str]] = {}
    for word in sorted({word.casefold() for word in words}):
        tree.setdefault(word[:1], []).append(word[1:])
    parts = [letter + (any_of(rest) if rest != [""] else "") for letter, rest in tree.items() if letter]
    return f"(?:{'|'.join(parts)}){'?' if '' in tree else ''}"


def digits_in(text: str) -> str:
    """The digits alone."""
    return re.sub(r"\D", "", text)


@functools.cache
def presidio(name: str) -> Any:
    """One of Presidio's recognizers, for its sums; imported late."""
    from presidio_analyzer import predefined_recognizers

    return getattr(predefined_recognizers, name)()
