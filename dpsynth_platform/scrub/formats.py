"""Fictional numbers, e-mail and web addresses, and postal addresses in the original's format.

What belongs here: for each kind, a value from a range reserved for examples, with the original's separators, brackets
and length. What does not: names (`replacement`), dates and ages (`dates`).
"""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Mapping
from typing import Any

from dpsynth_platform.scrub.coordinates import other_coordinates
from dpsynth_platform.scrub.letters import LOWER

Draw = random.Random
_DIGIT = re.compile(r"\d")
_LETTER_OR_DIGIT = re.compile(r"[^\W_]")
_EXTENSION = re.compile(r"\s?(?:x|ext\.?|extension|(?<=\d{4})\s?/)\s?\d{1,5}$", re.IGNORECASE)
_COUNTRY_CODE = re.compile(r"(?:\+|00)(?:1|7|\d\d)(?!\d{0,5}$)")
# The first five of the last seven digits of a fictional telephone number.
_RESERVED_NUMBER = "55501"
_LOCAL_DIGITS = 7
_STREET_NUMBER = re.compile(r"\d+")
_PART = re.compile(r"([,;\n]+[ >|]*)")
_LABELLED = re.compile(
    r"(?:PSC|CMR|Unit|Box|APO|FPO|DPO|P\.?\s?O\.?\s?Box|Postfach|Apt|Apartment|Suite|Ste|Flat|Room|Rm|Floor|\#)\.?\s?\#?[A-Z]?\d",
    re.IGNORECASE,
)
_TOWN_CODE = re.compile(r"^(?P<town>[^\d]*?)(?P<code>[A-Z]{0,2}[ -]?\d[\dA-Z -]*)$")


def same_shape(text: str, draw: Draw) -> str:
    """Letters for letters, in their case, and digits for digits."""
    return _LETTER_OR_DIGIT.sub(lambda match: _alike(match.group(), draw), text)


def same_shape_of(text: str, fake: Any) -> str:
    """`same_shape` with the randomness of a Faker."""
    return same_shape(text, fake.random)


def laid_out(text: str, digits: str, draw: Draw) -> str:
    """The text with its digits replaced by these, in order, and other letters for its letters."""
    coming = iter(digits)
    return _LETTER_OR_DIGIT.sub(
        lambda match: next(coming) if match.group().isdecimal() else _alike(match.group(), draw), text
    )


def phone(text: str, draw: Draw) -> str:
    """A telephone number that ends in 555-0100 to 555-0199; country code, separators and length stay.

    A text of two numbers ("697-5683/313-7987") becomes two.
    """
    one, slash, other = text.rpartition("/")
    if min(len(_DIGIT.findall(one)), len(_DIGIT.findall(other))) >= _LOCAL_DIGITS:
        return phone(one, draw) + slash + phone(other, draw)
    extension = _EXTENSION.search(text)
    number = text[: extension.start()] if extension else text
    code = _COUNTRY_CODE.match(number)
    kept = code.group() if code else ""
    count = len(_DIGIT.findall(number[len(kept) :]))
    last = (_RESERVED_NUMBER + digits(2, draw))[-count:]
    area = "".join(str(draw.randrange(2, 10)) if not place else digits(1, draw) for place in range(count - len(last)))
    rest = laid_out(number[len(kept) :], area + last, draw)
    return kept + rest + (same_shape_digits(extension.group(), draw) if extension else "")


def social_security(text: str, draw: Draw) -> str:
    """Numbers of area 900 to 999 and group 01 to 49, which are not issued, not even to taxpayers."""
    places = range(0, len(_DIGIT.findall(text)), 9)
    numbers = "".join(f"9{digits(2, draw)}{draw.randrange(1, 50):02d}{digits(4, draw)}" for _ in places)
    return laid_out(text, numbers, draw)


def card(text: str, draw: Draw) -> str:
    """A card number of an issuer that does not exist, 0000."""
    return laid_out(text, "0000" + digits(len(_DIGIT.findall(text)) - 4, draw), draw)


def iban(text: str, draw: Draw) -> str:
    """An account of the country XX, which does not exist, with the check digits 00, which are never valid."""
    start = re.match(r"[a-zA-Z]{2}\d{2}", text)
    if start is None:
        return same_shape(text, draw)
    return ("XX00" if start.group().isupper() else "xx00") + same_shape(text[4:], draw)


def ip_address(text: str, draw: Draw) -> str:
    """An address of the networks for documentation (RFC 5737, RFC 3849); the mask stays, and nothing else after /."""
    address, slash, mask = text.partition("/")
    if not re.fullmatch(r"[0-9]{1,3}", mask):
        slash = mask = ""
    if ":" in address:
        return f"2001:db8::{draw.randrange(1, 65536):x}:{draw.randrange(1, 65536):x}{slash}{mask}"
    network = draw.choice(("192.0.2", "198.51.100", "203.0.113"))
    return f"{network}.{draw.randrange(256)}{slash}{mask}"


def mac_address(text: str, draw: Draw) -> str:
    """An address of the range for documentation (RFC 7042)."""
    separator = "-" if "-" in text else ":"
    return separator.join(("00", "00", "5e", "00", "53", f"{draw.randrange(256):02x}"))


def hexadecimal(text: str, draw: Draw) -> str:
    """Replaces each hexadecimal digit; in another text, every letter and digit."""
    if re.search(r"[^\W\d_a-fA-F]", text):
        return same_shape(text, draw)
    return re.sub(r"[0-9a-fA-F]", lambda _: draw.choice("0123456789abcdef"), text)


NUMBERS: Mapping[str, Callable[[str, Draw], str]] = {
    "PHONE_NUMBER": phone,
    "US_SSN": social_security,
    "CREDIT_CARD": card,
    "IBAN_CODE": iban,
    "IP_ADDRESS": ip_address,
    "MAC_ADDRESS": mac_address,
    "UUID": hexadecimal,
    "COORDINATES": other_coordinates,
}
"""Makers of numbers by entity type; any other number keeps its shape."""


def email(text: str, fake: Any) -> str:
    """An address at example.org, with a full stop if the original has one."""
    local = text.partition("@")[0]
    parts = [fake.first_name(), fake.last_name()] if "." in local else [fake.first_name()[0] + fake.last_name()]
    name = re.sub(r"[^\w.]", "", ".".join(parts)).lower()
    return f"{name}{digits(2, fake.random) if _DIGIT.search(local) else ''}@example.org"


def url(text: str, fake: Any) -> str:
    """An address below example.org, with the original's scheme, and a path if it has one."""
    scheme = re.match(r"[a-z]+://", text, re.IGNORECASE)
    rest = text[scheme.end() :] if scheme else text
    word = re.sub(r"\W", "", str(fake.last_name())).lower()
    host = "www.example.org" if rest.lower().startswith("www.") else f"{word}.example.org"
    path = rest.partition("/")[2]
    return f"{scheme.group() if scheme else ''}{host}{f'/{word}' if path else '/' if rest.endswith('/') else ''}"


def address(text: str, fake: Any, countries: frozenset[str]) -> str:
    """A postal address part by part: numbers of the same length, other streets, towns and countries."""
    parts = _PART.split(text)
    for number in range(0, len(parts), 2):
        parts[number] = _address_part(parts[number], number == 0, fake, countries)
    return "".join(parts)


def _address_part(part: str, first: bool, fake: Any, countries: frozenset[str]) -> str:
    words = part.strip()
    if not words:
        return part
    before, after = part[: len(part) - len(part.lstrip())], part[len(part.rstrip()) :]
    if words.casefold() in countries:
        value = fake.country()
    elif _LABELLED.match(words):
        value = same_shape_digits(words, fake.random)
    elif first:
        numbers = _STREET_NUMBER.findall(words)
        value = fake.street_name()
        if re.match(r"\d", words):
            value = f"{digits_of(numbers[0], fake.random)} {value}"
        elif numbers:
            value = f"{value} {digits_of(numbers[-1], fake.random)}"
    elif (coded := _TOWN_CODE.match(words)) is not None:
        code = same_shape(coded["code"], fake.random)
        value = f"{fake.city()} {code}" if coded["town"].strip() else code
    elif (coded := re.match(r"(?P<code>[\dA-Z-]*\d[\dA-Z-]*) ", words)) is not None:
        value = f"{same_shape(coded['code'], fake.random)} {fake.city()}"
    elif len(words) == 2 and words.isupper():
        value = same_shape(words, fake.random)
    else:
        value = fake.city()
    return before + (str(value).lower() if words.islower() else str(value)) + after


def same_shape_digits(text: str, draw: Draw) -> str:
    """Digits for digits; letters stay."""
    return _DIGIT.sub(lambda _: digits(1, draw), text)


def digits_of(number: str, draw: Draw) -> str:
    """A number of the same length, without a leading zero."""
    return str(draw.randrange(1, 10)) + digits(len(number) - 1, draw)


def digits(count: int, draw: Draw) -> str:
    """A text of `count` digits."""
    return "".join(draw.choice(string.digits) for _ in range(count))


def _alike(letter: str, draw: Draw) -> str:
    if letter.isdecimal():
        return draw.choice(string.digits)
    return draw.choice(string.ascii_lowercase if letter in LOWER else string.ascii_uppercase)
