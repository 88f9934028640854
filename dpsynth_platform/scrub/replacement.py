"""Fictional values in the place of personal data.

What belongs here: making a value of the same kind, fresh from the operating system's randomness and never derived from
the original, alike for alike within one document. What does not: finding personal data (`text`).

Names, towns and companies come from Faker's lists. Numbers are our own: Faker's could be somebody's. They come from
ranges that are kept free for examples: domains of RFC 2606, addresses of RFC 5737, phone numbers 555-0100 to 555-0199,
social security numbers that are not issued, and numbers of cards and accounts whose issuer does not exist.
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpsynth_platform.scrub.text import Finding

_ATTEMPTS = 20
_NAMES = ("PERSON", "LOCATION", "ORGANIZATION")


@dataclass
class _Document:
    """The words of a record's real names, which no fictional one may repeat, and the choices made so far."""

    names: set[str]
    fictional: dict[tuple[str, str], str] = field(default_factory=dict)


class Replacer:
    """Replaces findings by fictional values. Holds nothing from one document to the next."""

    def __init__(self) -> None:
        from faker import Factory

        self._random = random.SystemRandom()
        self._faker: Any = Factory.create("en_US")
        self._faker.random = self._random
        self._makers: dict[str, Callable[[str], str]] = {
            "PERSON": lambda _: self._faker.last_name(),
            "LOCATION": lambda _: self._faker.city(),
            "ORGANIZATION": lambda _: self._faker.company(),
            "EMAIL_ADDRESS": lambda _: f"{self._faker.user_name()}@example.org",
            "PHONE_NUMBER": lambda _: f"({self._random.randrange(200, 1000)}) 555-01{self._digits(2)}",
            "US_SSN": lambda _: f"9{self._digits(2)}-{self._random.randrange(1, 50):02d}-{self._digits(4)}",
            "CREDIT_CARD": lambda _: f"0000 {self._digits(4)} {self._digits(4)} {self._digits(4)}",
            "IBAN_CODE": lambda _: f"XX00{self._digits(16)}",
            "IP_ADDRESS": lambda _: f"192.0.2.{self._random.randrange(256)}",
            "URL": lambda _: f"https://www.example.org/{self._faker.user_name()}",
            "DATE_TIME": lambda _: self._faker.date(),
        }

    def whole(self, text: str, entity: str) -> str:
        """A fictional value for a whole column's value."""
        return self.document([text], [[Finding(0, len(text), entity)]])[0]

    def document(self, texts: Sequence[str], findings: Sequence[Sequence[Finding]]) -> list[str]:
        """The texts of one record with every finding replaced; the same original gets the same value in all of them.

        Args:
            findings: of each text, in order and free of overlap.
        """
        originals = [
            (text[item.start : item.end], item.entity)
            for text, items in zip(texts, findings, strict=True)
            for item in items
        ]
        stage = _Document({word for original, entity in originals if entity in _NAMES for word in _words(original)})
        # Full names first, so that a first name that follows alone is known as one.
        for original, entity in sorted(originals, key=lambda pair: -len(pair[0].split())):
            self._fictional(original, entity, stage)
        return [
            _substituted(text, items, lambda original, entity: self._fictional(original, entity, stage))
            for text, items in zip(texts, findings, strict=True)
        ]

    def _fictional(self, original: str, entity: str, stage: _Document) -> str:
        words = original.split() if entity == "PERSON" else []
        if not words:
            return self._remembered(original, entity, stage, self._makers.get(entity, self._same_shape))
        makers = [lambda _: self._faker.first_name()] * (len(words) - 1) + [self._makers["PERSON"]]
        return " ".join(self._remembered(word, entity, stage, maker) for word, maker in zip(words, makers, strict=True))

    def _remembered(self, original: str, entity: str, stage: _Document, make: Callable[[str], str]) -> str:
        key = (entity, original.casefold())
        if key not in stage.fictional:
            stage.fictional[key] = _other_value(original, stage.names, make)
        return stage.fictional[key]

    def _same_shape(self, original: str) -> str:
        """Letters for letters and digits for digits: for ids, codes and whatever has no list of its own."""
        letters = re.sub(r"[^\W\d_]", lambda _: self._random.choice(string.ascii_uppercase), original)
        return re.sub(r"\d", lambda _: self._digits(1), letters)

    def _digits(self, count: int) -> str:
        return "".join(self._random.choice(string.digits) for _ in range(count))


def _other_value(original: str, names: set[str], make: Callable[[str], str]) -> str:
    """A value other than the original and without any of the names; a mask where chance does not give one."""
    for _ in range(_ATTEMPTS):
        value = make(original)
        if value.casefold() != original.casefold() and names.isdisjoint(_words(value)):
            return value
    return "***"


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.casefold())


def masked(text: str, findings: Sequence[Finding]) -> str:
    """The text with each finding's type in its place, such as `<PERSON>`."""
    return _substituted(text, findings, lambda _, entity: f"<{entity}>")


def _substituted(text: str, findings: Sequence[Finding], value: Callable[[str, str], Any]) -> str:
    parts = []
    position = 0
    for item in findings:
        parts += [text[position : item.start], value(text[item.start : item.end], item.entity)]
        position = item.end
    return "".join([*parts, text[position:]])
