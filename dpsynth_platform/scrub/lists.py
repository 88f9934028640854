"""Public word lists: first names, family names, places, and common words.

What belongs here: Faker's lists of all languages as sets. What does not: deciding that a word is personal data
(`names`), and making fictional values (`replacement`).
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
# Common English words that are also names, in addition to Faker's list of words.
_COMMON = words("lists", "common")


@dataclass(frozen=True)
class WordLists:
    """Casefolded words and phrases. `places` are countries, states and cities; `common` words alone are no names."""

    first_names: frozenset[str]
    last_names: frozenset[str]
    places: frozenset[str]
    countries: frozenset[str]
    common: frozenset[str]


@functools.cache
def word_lists() -> WordLists:
    """The lists of all of Faker's languages; loading takes a tenth of a second."""
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
    """The texts in providers' lists, which may be mappings to weights. Very short words are too ambiguous."""
    lists = [getattr(item, name) for item in providers for name in dir(item) if re.fullmatch(attributes, name)]
    collections = (values for values in lists if isinstance(values, (tuple, list, dict, set)))
    texts = (value for values in collections for value in values if isinstance(value, str))
    return frozenset(text.casefold() for text in texts if len(text) >= _SHORTEST)
