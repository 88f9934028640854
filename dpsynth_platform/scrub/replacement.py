"""Fictional values in the place of personal data.

What belongs here: making a value of the same kind and format, alike for alike within one document or one owner, never
the original. What does not: finding personal data (`detection`), dates and ages (`dates`), postal addresses and numbers
(`formats`), deciding which finding is replaced (`scrub`).

Within a document, values are fresh from the operating system's randomness and derived from nothing. Within an owner
they are drawn by a generator that HMAC-SHA256 seeds from a secret key, the owner's fingerprint and the original:
without the key nobody can try originals out, and even with it a value says only that it is one of the many originals
that lead to the same name. Whoever has both key and a guess can test the guess, hence the key stays in the vault.

Names, towns and companies come from Faker's lists. Numbers are our own, from ranges that are kept free for examples
where there are such: domains of RFC 2606, addresses of RFC 5737, 3849 and 7042, phone numbers that end in 555-0100 to
555-0199 (free in North America only), social security numbers that are not issued, cards and IBANs whose issuer does
not exist. Other numbers (passports, accounts, ids) keep their shape and nothing else, so that chance may make them
somebody's.
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
"""Makes a value in an original's place, given a generator's Faker."""


@dataclass
class _Stage:
    """What holds for one document: words that no fictional value may repeat, the owner, the choices made so far."""

    names: set[str]
    owner: str | None
    fictional: dict[tuple[str, str], str] = field(default_factory=dict)


class Replacer:
    """Replaces findings by fictional values. Holds nothing from one document to the next.

    Args:
        locale: Faker's, whose names, towns and companies are used.
        key: secret of 32 bytes: values are the same throughout an owner; None: fresh in each document.
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
            **{entity: _of_number(make) for entity, make in formats.NUMBERS.items()},
        }

    def whole(self, text: str, entity: str, owner: str | None = None) -> str:
        """A fictional value for a whole column's value."""
        return self.values([(text, entity)], owner)[text, entity]

    def values(self, originals: Iterable[tuple[str, str]], owner: str | None = None) -> dict[tuple[str, str], str]:
        """A fictional value for each (original, entity type) of one record."""
        distinct = sorted(set(originals), key=lambda pair: (-len(pair[0].split()), pair))
        names = {word for original, entity in distinct if entity in _NAMES for word in _words(original)}
        stage = _Stage(names, owner if self._key is not None else None)
        # Full names first, so that a first name that follows alone is known as one.
        return {(original, entity): self._fictional(original, entity, stage) for original, entity in distinct}

    def _fictional(self, original: str, entity: str, stage: _Stage) -> str:
        if entity == "PERSON":
            return self._person(original, stage)
        return self._remembered(original, entity, stage, self._makers.get(entity, formats.same_shape_of))

    def _person(self, original: str, stage: _Stage) -> str:
        """Word by word: titles and particles stay, an initial becomes another, the last word is the family name.

        Where nothing else is there, or at the end, they are somebody's name themselves ("Hon", "le").
        """
        parts = re.split(r"([^\w'\u2019.-]+)", original)
        words = [number for number in range(0, len(parts), 2) if parts[number]]
        named = [number for number in words if _is_name(parts[number])] or words
        named += [number for number in words[-1:] if number > named[-1] and _is_particle(parts[number])]
        for number in named:
            word = parts[number]
            if len(word.rstrip(".")) == 1:
                parts[number] = self._remembered(word, "INITIAL", stage, formats.same_shape_of)
            else:
                family = number == named[-1] and (len(named) > 1 or not self._is_first_name(word))
                parts[number] = self._remembered(word, "PERSON", stage, self._family if family else self._given)
        value = "".join(parts)
        return "***" if original.strip() and value.casefold() == original.casefold() else value

    @staticmethod
    def _family(_: str, fake: Any) -> str:
        return str(fake.last_name())

    def _given(self, original: str, fake: Any) -> str:
        folded = original.casefold()
        women, men = (self._first_names(kind) for kind in ("female", "male"))
        if (folded in women) != (folded in men):
            return str(fake.first_name_female() if folded in women else fake.first_name_male())
        return str(fake.first_name())

    @staticmethod
    def _first_names(kind: str) -> frozenset[str]:
        from faker.providers.person.en_US import Provider

        return frozenset(name.casefold() for name in getattr(Provider, f"first_names_{kind}"))

    def _is_first_name(self, word: str) -> bool:
        return word.casefold() in self._lists.first_names

    def _place(self, original: str, fake: Any) -> str:
        return str(fake.country() if original.casefold() in self._lists.countries else fake.city())

    def _remembered(self, original: str, entity: str, stage: _Stage, make: Maker) -> str:
        key = (entity, original.casefold())
        if key not in stage.fictional:
            stage.fictional[key] = self._other_value(original, entity, stage, make)
        return _in_style(stage.fictional[key], original)

    def _other_value(self, original: str, entity: str, stage: _Stage, make: Maker) -> str:
        """A value other than the original and without its names; a mask where chance does not give one."""
        # Other names of the record are not looked at where values hold throughout an owner: they differ by record.
        barred = stage.names if stage.owner is None else set(_words(original)) & stage.names
        self._faker.random = self._generator(original, entity, stage.owner)
        for _ in range(_ATTEMPTS):
            value = make(original, self._faker)
            if value.casefold() != original.casefold() and barred.isdisjoint(_words(value)):
                return value
        return "***"

    def _generator(self, original: str, entity: str, owner: str | None) -> random.Random:
        if self._key is None or owner is None:
            return self._random
        message = "|".join((owner, entity, original.casefold())).encode("utf-8", "surrogatepass")
        return random.Random(hmac.digest(self._key, message, hashlib.sha256))


def substituted(text: str, findings: Sequence[Finding], value: Callable[[str, str], str]) -> str:
    """The text with `value(original, entity type)` in each finding's place."""
    parts = []
    position = 0
    for item in findings:
        parts += [text[position : item.start], value(text[item.start : item.end], item.entity)]
        position = item.end
    return "".join([*parts, text[position:]])


def _of_number(make: Callable[[str, random.Random], str]) -> Maker:
    return lambda text, fake: make(text, fake.random)


def _is_name(word: str) -> bool:
    bare = word.replace(".", "").casefold()
    return bool(bare) and bare not in TITLES and bare not in DEGREES and not _is_particle(word)


def _is_particle(word: str) -> bool:
    return word.islower() and word.replace(".", "") in PARTICLES


def _in_style(value: str, original: str) -> str:
    """All capitals or all small letters, where the original is written so."""
    letters = [letter for letter in original if letter.isalpha()]
    if len(letters) > 1 and original.isupper():
        return value.upper()
    return value.lower() if letters and original.islower() else value


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())
