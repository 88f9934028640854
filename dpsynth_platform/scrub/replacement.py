"""Fictional values that replace personal data.

What belongs here: making a value of the same kind and format, consistent within one document or one owner, and never
the original. What does not: detection (`detection`), dates and ages (`dates`), postal addresses and numbers
(`formats`), deciding which finding is replaced (`scrub`).

Within a document, values are drawn from the operating system's randomness. Within an owner, HMAC-SHA256 seeds a
generator from a secret key, the owner's fingerprint and the original. Without the key nobody can test guesses of
originals; with it a match is one of many originals with the same value. So the key stays in the vault.

Names, towns and companies come from Faker's lists. Numbers are made here, if possible from ranges reserved for
examples: domains of RFC 2606, addresses of RFC 5737, 3849 and 7042, phone numbers that end in 555-0100 to 555-0199
(reserved in North America only), social security numbers that are not issued, cards and IBANs whose issuer does not
exist. Other numbers (passports, accounts, ids) keep their shape only, and may by chance be real.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsynth_platform.scrub import formats
from dpsynth_platform.scrub.dates import other_age, other_date
from dpsynth_platform.scrub.findings import Finding
from dpsynth_platform.scrub.lists import word_lists
from dpsynth_platform.scrub.name_parts import DEGREES, PARTICLES, TITLES
from dpsynth_platform.scrub.nationalities import other_nationality

_ATTEMPTS = 20
_NAMES = ("PERSON", "LOCATION", "ORGANIZATION")
Maker = Callable[[str, Any], str]
"""Makes a value from an original, given a Faker with its generator."""


@dataclass
class _Record:
    """One record: words that no fictional value may repeat, the owner, and the values made so far."""

    names: set[str]
    owner: str | None
    fictional: dict[tuple[str, str], str] = field(default_factory=dict)


class Replacer:
    """Replaces findings by fictional values. Keeps no state between records.

    Args:
        locale: Faker's locale for names, towns and companies.
        key: secret of 32 bytes, for values that are consistent within an owner; None: fresh for each record.
    """

    def __init__(self, locale: str = "en_US", key: bytes | None = None) -> None:
        from faker import Factory

        self._key = key
        self._random: random.Random = random.SystemRandom()
        self._faker: Any = Factory.create(locale)
        self._faker.random = self._random
        self._lists = word_lists()
        self._makers: dict[str, Maker] = {
            "LOCATION": self._place,
            "ORGANIZATION": lambda _, fake: fake.company(),
            "NRP": lambda text, fake: other_nationality(text, fake.random),
            "TITLE": lambda _, fake: fake.job(),
            "ADDRESS": lambda text, fake: formats.address(text, fake, self._lists.countries),
            "EMAIL_ADDRESS": formats.email,
            "URL": formats.url,
            "DATE_TIME": lambda text, fake: other_date(text, fake.random),
            "AGE": lambda text, fake: other_age(text, fake.random),
            **{entity: _with_faker(make) for entity, make in formats.NUMBERS.items()},
        }

    def whole(self, text: str, entity: str, owner: str | None = None) -> str:
        """A fictional value for a column's whole value."""
        return self.values([(text, entity)], owner)[text, entity]

    def values(self, originals: Iterable[tuple[str, str]], owner: str | None = None) -> dict[tuple[str, str], str]:
        """A fictional value for each (original, entity type) of one record."""
        distinct = sorted(set(originals), key=lambda pair: (-len(pair[0].split()), pair))
        names = {word for original, entity in distinct if entity in _NAMES for word in _words(original)}
        record = _Record(names, owner if self._key is not None else None)
        # Full names come first, so that a first name alone is recognized afterwards.
        return {(original, entity): self._fictional(original, entity, record) for original, entity in distinct}

    def _fictional(self, original: str, entity: str, record: _Record) -> str:
        if entity == "PERSON":
            return self._person(original, record)
        return self._remembered(original, entity, record, self._makers.get(entity, formats.same_shape_of))

    def _person(self, original: str, record: _Record) -> str:
        """Word by word: titles and particles stay, an initial becomes another, the last word is the family name.

        Alone, or at the end, titles and particles are names themselves ("Hon", "le").
        """
        parts = re.split(r"([^\w'\u2019.-]+)", original)
        words = [number for number in range(0, len(parts), 2) if parts[number]]
        named = [number for number in words if _is_name(parts[number])] or words
        named += [number for number in words[-1:] if number > named[-1] and _is_particle(parts[number])]
        for number in named:
            word = parts[number]
            if len(word.rstrip(".")) == 1:
                parts[number] = self._remembered(word, "INITIAL", record, formats.same_shape_of)
            else:
                first_name = word.casefold() in self._lists.first_names
                family = number == named[-1] and (len(named) > 1 or not first_name)
                make: Maker = (lambda _, fake: str(fake.last_name())) if family else _given_name
                parts[number] = self._remembered(word, "PERSON", record, make)
        value = "".join(parts)
        return "***" if original.strip() and value.casefold() == original.casefold() else value

    def _place(self, original: str, fake: Any) -> str:
        return str(fake.country() if original.casefold() in self._lists.countries else fake.city())

    def _remembered(self, original: str, entity: str, record: _Record, make: Maker) -> str:
        key = (entity, original.casefold())
        if key not in record.fictional:
            record.fictional[key] = self._other_value(original, entity, record, make)
        return _in_style(record.fictional[key], original)

    def _other_value(self, original: str, entity: str, record: _Record, make: Maker) -> str:
        """A value that differs from the original and shares no names; a mask if no attempt succeeds."""
        # An owner's values must not depend on other names of the record, since these differ by record.
        excluded = record.names if record.owner is None else set(_words(original)) & record.names
        self._faker.random = self._generator(original, entity, record.owner)
        for _ in range(_ATTEMPTS):
            value = make(original, self._faker)
            if value.casefold() != original.casefold() and excluded.isdisjoint(_words(value)):
                return value
        return "***"

    def _generator(self, original: str, entity: str, owner: str | None) -> random.Random:
        if self._key is None or owner is None:
            return self._random
        message = "|".join((owner, entity, original.casefold())).encode("utf-8", "surrogatepass")
        return random.Random(hmac.digest(self._key, message, hashlib.sha256))


def substituted(text: str, findings: Sequence[Finding], value: Callable[[str, str], str]) -> str:
    """The text with each finding replaced by `value(original, entity type)`."""
    parts = []
    position = 0
    for item in findings:
        parts += [text[position : item.start], value(text[item.start : item.end], item.entity)]
        position = item.end
    return "".join([*parts, text[position:]])


def _with_faker(make: Callable[[str, random.Random], str]) -> Maker:
    return lambda text, fake: make(text, fake.random)


def _given_name(original: str, fake: Any) -> str:
    from faker.providers.person.en_US import Provider

    folded = original.casefold()
    female, male = (
        any(name.casefold() == folded for name in names)
        for names in (Provider.first_names_female, Provider.first_names_male)
    )
    if female != male:
        return str(fake.first_name_female() if female else fake.first_name_male())
    return str(fake.first_name())


def _is_name(word: str) -> bool:
    bare = word.replace(".", "").casefold()
    return bool(bare) and bare not in TITLES and bare not in DEGREES and not _is_particle(word)


def _is_particle(word: str) -> bool:
    return word.islower() and word.replace(".", "") in PARTICLES


def _in_style(value: str, original: str) -> str:
    """In capitals, or in lower case, like the original."""
    letters = [letter for letter in original if letter.isalpha()]
    if len(letters) > 1 and original.isupper():
        return value.upper()
    return value.lower() if letters and original.islower() else value


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
