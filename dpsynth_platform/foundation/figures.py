"""Counts, bounds, estimates and moments as text for people.

What belongs here: rounding, singular and plural, moments to the second. What does not: the sentences around them.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def number_of(number: int, what: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def upper_bound(number: float, digits: int = 3) -> str:
    """A bound with at most so many significant digits, rounded up from the float's shortest decimal form.

    So 0.1 stays 0.1, although the float is slightly larger.
    """
    return _rounded(number, digits, ROUND_CEILING)


def lower_bound(number: float, digits: int = 3) -> str:
    """As `upper_bound`, rounded down."""
    return _rounded(number, digits, ROUND_FLOOR)


def _rounded(number: float, digits: int, way: str) -> str:
    meant = Decimal(repr(float(number)))
    found = meant.quantize(Decimal(1).scaleb(meant.adjusted() - digits + 1), way)
    return f"{float(found):.{digits}g}"


def rounded(number: float, digits: int = 3) -> str:
    """An estimate with at most so many significant digits, without an exponent from 1 to a quadrillion: `93,800`."""
    return f"{float(f'{number:.{digits}g}'):,.15g}"


def moment(at: str) -> str:
    """A moment of UTC in ISO 8601, to the second: `2026-01-31 07:30:00 UTC`."""
    return f"{at[:19].replace('T', ' ')} UTC"
