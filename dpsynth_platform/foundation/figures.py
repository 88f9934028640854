"""Numbers in words: how counts, bounds, estimates and moments are written wherever people read them.

What belongs here: rounding, singular and plural, and a moment to the second. What does not: the sentences that they
stand in.
"""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def number_of(number: int, what: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def upper_bound(number: float, digits: int = 3) -> str:
    """A bound with at most so many significant digits, rounded up: what is shown is never less than what is meant.

    What is meant by a float is its shortest decimal form: 0.1 is shown as 0.1, though the float is a little more.
    """
    return _rounded(number, digits, ROUND_CEILING)


def lower_bound(number: float, digits: int = 3) -> str:
    """The same, rounded down: what is shown is never more than what is meant."""
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
