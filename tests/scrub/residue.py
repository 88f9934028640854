"""What must not be left in a scrubbed text: an independent look for numbers and addresses.

What belongs here: patterns of e-mail addresses, phone, card and social security numbers, written apart from those of
the product and wider where that costs nothing, and the few values that are recognizably fictional. What does not:
names and places, which no pattern can tell.
"""

from __future__ import annotations

import re

_EMAIL = re.compile(r"[\w.+%-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+")
_PHONES = (
    re.compile(r"(?<![\d.-])(?:\+?1[ .-]?)?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?![\d-])"),
    re.compile(r"(?<![\w+])\+\d{1,3}[ .-]?\(?\d{1,4}\)?(?:[ .-]?\d{2,4}){2,4}(?![\d-])"),
    re.compile(r"(?<![\w.-])\(\d{3}\)[ -]?\d{3}-?\d{4}(?![\w-])"),
)
_CARD = re.compile(r"(?<![\w.-])(?:\d{4}[ -]?){3}\d{4}(?![\w.-])")
_SSN = re.compile(r"(?<![\w.-])\d{3}-\d{2}-\d{4}(?![\w-])")


def _luhn(digits: str) -> bool:
    doubled = [int(digit) * (2 if place % 2 else 1) for place, digit in enumerate(reversed(digits))]
    return sum(number - 9 if number > 9 else number for number in doubled) % 10 == 0


def residues(text: str) -> list[str]:
    """Kinds of what is left, once for each time."""
    found = [
        "e-mail" for match in _EMAIL.finditer(text) if not re.search(r"[@.]example\.org", match.group(), re.IGNORECASE)
    ]
    for pattern in _PHONES:
        for match in pattern.finditer(text):
            digits = re.sub(r"\D", "", match.group())
            if not re.search(r"5501\d\d$", digits):
                found.append("phone")
    for match in _CARD.finditer(text):
        digits = re.sub(r"\D", "", match.group())
        if _luhn(digits) and digits[0] in "3456" and not digits.startswith("0000"):
            found.append("card")
    for match in _SSN.finditer(text):
        if not re.fullmatch(r"9\d\d-[0-4]\d-\d{4}", match.group()):
            found.append("SSN")
    return found
