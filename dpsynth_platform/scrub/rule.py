"""Rules: patterns with a check and context words that distinguish personal data from other text.

What belongs here: the type and the helpers that all modules of rules share. What does not: patterns (`rules`,
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
"""Characters before and after a match that are searched for context words."""
DIGIT = re.compile(r"\d")


@dataclass(frozen=True)
class Rule:
    """One pattern with its conditions.

    Attributes:
        pattern: the group `value`, if there is one, is the finding.
        check: condition on the finding's text.
        context: pattern of words that must occur nearby.
        unless_checked: with `context`: only matches that fail `check` need it.
        around: condition on the text around the finding, given text, start and end.
        needs: every match contains a match of this fast pattern, so that most texts are skipped.
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
    """A verbose pattern, by default ignoring case."""
    return re.compile(text, flags | re.VERBOSE)


def context_of(words: str) -> re.Pattern[str]:
    """A pattern of beginnings of words, ignoring case."""
    return re.compile(rf"\b(?:{words})", re.IGNORECASE)


def any_of(words: Iterable[str]) -> str:
    """A pattern of these words in lower case, as a tree by letters, which is fast for long lists."""
    tree: dict[str, list[str]] = {}
    for word in sorted({word.casefold() for word in words}):
        tree.setdefault(word[:1], []).append(word[1:])
    parts = [letter + (any_of(rest) if rest != [""] else "") for letter, rest in tree.items() if letter]
    return f"(?:{'|'.join(parts)}){'?' if '' in tree else ''}"


def digits_in(text: str) -> str:
    """The digits of a text."""
    return re.sub(r"\D", "", text)


@functools.cache
def presidio(name: str) -> Any:
    """One of Presidio's recognizers, for its check sums."""
    from presidio_analyzer import predefined_recognizers

    return getattr(predefined_recognizers, name)()
