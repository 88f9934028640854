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

from dpsynth_platform.scrub.letters import words_of

_SHORTEST = 3
# Common English words, besides Faker's own list of them, that are also somebody's name somewhere.
_COMMON = words_of(
    """
    a an and any are as at away be but by can come dear did do does done ever even every for from get go god had
    has have he hello her here hi him his home how i if in is it its just last let like long make many may me
    miss more most mr mrs ms much must my new next no not now of off on one only or other our out over own
    please said say see she so some still such sure than thank thanks that the their them then there these they
    this those three to today tomorrow too two under until up us very was we well were what when where which
    while who whom whose why will with within would yes yesterday yet you your street road avenue drive lane
    court place square park house city town state church school university college company inc corporation group
    department office north south east west northern southern monday tuesday wednesday thursday friday saturday
    sunday january february march april june july august september october november december internet windows
    apple amazon oracle java ruby perl mac bible christ jesus christian christians american english german
    french van von del san santa los las prince king queen lord lady angel star summer winter autumn spring rose
    lily grace faith hope joy iris ivy jade ruby pearl amber sage basil sky ocean storm river brook forest
    destiny heaven harmony melody justice royal major general page price case chase chance art guy bill mark
    rich gene dale earl duke dean robin jean sun moon don drew pat sue will grant pierce frank ernest jack carol
    holly sandy dawn eve misty rusty penny bob rob nick chip buddy junior baby see also subject re fwd note
    email phone fax address name number date time account card code billing please return arrived meet call
    limit atm pin faq url usa ok tv cd pc
    """
)


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
