"""Rules for the part of a JSON value that may leave, and how they combine.

What belongs here: rules for single values, for lists, and for objects of known fields. What does not: which facet has
which fields (`export`). A rule returns what may leave, or `WITHHELD`; it never changes its argument.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

LONGEST_NAME = 2_000


class _Withheld:
    """A rule's result for a value that may not leave."""


WITHHELD: Final = _Withheld()
Rule = Callable[[Any], Any]
"""The part of a value that may leave, or `WITHHELD`."""

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


def text(longest: int) -> Rule:
    """A text from a public source (a contract, a declaration, a name), without control characters."""

    def rule(value: Any) -> Any:
        ok = isinstance(value, str) and len(value) <= longest and not _CONTROL.search(value)
        return value if ok else WITHHELD

    return rule


def matching(pattern: str) -> Rule:
    """A text that the whole pattern matches."""
    compiled = re.compile(pattern)
    return lambda value: value if isinstance(value, str) and compiled.fullmatch(value) else WITHHELD


def one_of(*words: str) -> Rule:
    """One of the given texts."""
    return lambda value: value if isinstance(value, str) and value in words else WITHHELD


def number(low: float = 0.0, high: float = math.inf) -> Rule:
    """A finite number in a range."""

    def rule(value: Any) -> Any:
        ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return value if ok and low <= value <= high else WITHHELD

    return rule


def whole(value: Any) -> Any:
    """A whole number from 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else WITHHELD


def flag(value: Any) -> Any:
    """True or false."""
    return value if isinstance(value, bool) else WITHHELD


def listed(rule: Rule) -> Rule:
    """A list without the items that may not leave."""

    def kept(value: Any) -> Any:
        if not isinstance(value, list):
            return WITHHELD
        return [found for item in value if (found := rule(item)) is not WITHHELD]

    return kept


def by_name(rule: Rule) -> Rule:
    """An object whose keys are names, without the values that may not leave."""

    def kept(value: Any) -> Any:
        if not isinstance(value, Mapping):
            return WITHHELD
        pairs = ((name, rule(item)) for name, item in value.items() if NAME(name) is not WITHHELD)
        return {name: found for name, found in pairs if found is not WITHHELD}

    return kept


@dataclass(frozen=True)
class Record:
    """An object with these fields and no others; if a required one is missing or withheld, so is the whole."""

    required: Mapping[str, Rule]
    optional: Mapping[str, Rule] = field(default_factory=dict)

    def __call__(self, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return WITHHELD
        known = {**self.required, **self.optional}
        found = {name: rule(value[name]) for name, rule in known.items() if name in value}
        found = {name: item for name, item in found.items() if item is not WITHHELD}
        return found if self.required.keys() <= found.keys() else WITHHELD


NAME = text(LONGEST_NAME)
