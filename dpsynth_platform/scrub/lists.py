"""Public word lists: first names, family names, places, and common words that are none of them.

What belongs here: the lists that Faker carries for its languages, as sets to look words up in. What does not: deciding
that a word is personal data (`names`), and making fictional values (`replacement`).
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from dpsynth_platform.scrub.letters import words

_SHORTEST = 3
# Common English words, besides Faker's own list of them, that are also somebody's name somewhere.
_COMMON = words("lists", "common")


@dataclass(frozen=True)
class WordLists:
    """Casefolded words and phrases.

    Attributes:
        first_names: given names. last_names: family names. places: countries, states and cities; countries: of these.
        common: ordinary words, which alone are no name however many people bear them.
    """

    first_names: frozenset[str]
    last_names: frozenset[str]
    places: frozenset[str]
    countries: frozenset[str]
    common: frozenset[str]


@functools.cache
def word_lists() -> WordLists:
    """The lists of all languages that Faker knows; they take a tenth of a second to load."""
    from faker.providers.lorem.en_US import Provider as Lorem

    people = list(_providers("person"))
    addresses = list(_providers("address"))
    return WordLists(
        first_names=_words(people, r"first_names.*"),
        last_names=_words(people, r"last_names.*"),
        places=_words(addresses, r"cities|city_names?|towns|countries|states|provinces|regions"),
        countries=_words(addresses, r"countries"),
        common=_COMMON | {word.casefold() for word in Lorem.word_list},
    )


def _providers(kind: str) -> Iterator[Any]:
    package = importlib.import_module(f"faker.providers.{kind}")
    for module in pkgutil.iter_modules(package.__path__):
        yield importlib.import_module(f"{package.__name__}.{module.name}").Provider


def _words(providers: Iterable[Any], attributes: str) -> frozenset[str]:
    found: set[str] = set()
    for provider in providers:
        for name in dir(provider):
            if re.fullmatch(attributes, name):
                found.update(_texts(getattr(provider, name)))
    return frozenset(found)


def _texts(values: Any) -> Iterator[str]:
    """A provider's list, which may be a mapping to weights; words of few letters say too little alone."""
    if isinstance(values, (tuple, list, dict, set)):
        for value in values:
            if isinstance(value, str) and len(value) >= _SHORTEST:
                yield value.casefold()
