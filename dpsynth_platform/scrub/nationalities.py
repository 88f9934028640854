"""Nationalities and peoples: adjectives and plurals, with or without capitals.

What belongs here: the list, contexts in which a word is a person's nationality, and fictional ones. What does not:
countries (`lists`) and entities of the language model (`names`).

The model recognizes nationalities by capitals only, so a list is needed. Adjectives also describe languages, food and
firms ("in french", "Irish Times"). They count if a word for a person follows, or after forms of *to be*. Plurals always
count.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from dpsynth_platform.scrub.findings import Trust
from dpsynth_platform.scrub.letters import alternatives, words
from dpsynth_platform.scrub.rule import Rule, any_of, pattern_of

ENTITY = "NRP"

# Adjectives that are also nouns, with a plural in s.
_REGULAR = words("nationalities", "regular")
_ONLY_ADJECTIVES = words("nationalities", "only_adjectives")
# Nouns that are no adjectives; singulars that are also names count only after an article.
_NOUNS = words("nationalities", "nouns")
_AFTER_ARTICLE = words("nationalities", "after_article")
_PLURALS = frozenset({f"{word}s" for word in _REGULAR} | _NOUNS | {"Poles"})
_CAPITAL_ALONE = words("nationalities", "capital_alone")
"""In lower case these are other words, except before a word for a person."""
_FOLDED_PLURALS, _FOLDED_REGULAR, _FOLDED_AFTER_ARTICLE, _FOLDED_ADJECTIVES = (
    frozenset(word.casefold() for word in words)
    for words in (_PLURALS, _REGULAR, _AFTER_ARTICLE, _REGULAR | _ONLY_ADJECTIVES)
)
_PERSON = rf"(?:{alternatives('nationalities', 'person')})"
_NO_THING = r"(?!language|class|course|lesson|food|restaurant|cuisine|car|speaking|and\b|or\b|the\b|for\b|to\b|of\b)"
_PERSON_AFTER = pattern_of(rf"(?:[\s-]born)?[\s-]{{1,2}}(?:{_NO_THING}\w+[\s-])?{_PERSON}(?!\w)")
_IS_BEFORE = pattern_of(
    r"""
    \b(?:is|was|are|were|am|being|be|i'm|he's|she's|they're|we're|you're|half|part|originally|ethnic(?:ally)?|native|
    partly|proud(?:ly)?)\s(?:an?\s|not\s|also\s|half\s|originally\s|actually\s)?\Z
    """
)
_IS_AFTER = pattern_of(r"\s*(?:[.,;:!?)]|\Z|\n)|\s(?:and|or|but|by|like|who|from|too|as|because|so|while|with)\b")
_THE_BEFORE = re.compile(r"\bthe\s\Z", re.IGNORECASE)
_THEY_AFTER = pattern_of(
    r"""
    \s*(?:[.,;!?)]|\Z|\n)|\s(?:are|were|have|had|will|would|who|do|did|don't|didn't|can|could|should|and|in|on|at)\b
    """
)
_ARTICLE_BEFORE = re.compile(r"\b(?:an?|another)\s\Z", re.IGNORECASE)
_LONGEST_BEFORE = 30


def nationality_rules() -> Iterator[Rule]:
    """The rule: all words of the lists, with a check of their context."""
    words = any_of(_PLURALS | _REGULAR | _ONLY_ADJECTIVES | _AFTER_ARTICLE)
    yield Rule(ENTITY, pattern_of(rf"(?<![\w-]){words}(?![\w])"), Trust.LIST, around=_is_of_person)


def _is_of_person(text: str, start: int, end: int) -> bool:
    word = text[start:end].casefold()
    if word in _CAPITAL_ALONE and not text[start].isupper():
        return word in _FOLDED_ADJECTIVES and _PERSON_AFTER.match(text, end) is not None
    if word in _FOLDED_PLURALS:
        return not text.startswith("-", end)
    before = text[max(0, start - _LONGEST_BEFORE) : start]
    if word in _FOLDED_AFTER_ARTICLE:
        return _ARTICLE_BEFORE.search(before) is not None
    if _PERSON_AFTER.match(text, end) or (_IS_AFTER.match(text, end) and _IS_BEFORE.search(before)):
        return True
    return bool(word not in _FOLDED_REGULAR and _THEY_AFTER.match(text, end) and _THE_BEFORE.search(before))


def other_nationality(text: str, draw: random.Random) -> str:
    """A random nationality; a plural for a plural."""
    if text.casefold() in _FOLDED_PLURALS:
        return draw.choice(sorted(_REGULAR)) + "s"
    return draw.choice(sorted(_REGULAR | _ONLY_ADJECTIVES))
