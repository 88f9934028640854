"""Shares of a secret, of which a threshold restores it and fewer say nothing about it (Shamir 1979).

What belongs here: the polynomials. What does not: who gets a share, and whether shares are true (`secure_sum`).

A secret of 32 bytes is the value at 0 of a polynomial of degree threshold - 1, in whole numbers modulo a prime; the
other coefficients are uniform, from the operating system. Holder number i has the value at i + 1. The time of Python's
arithmetic depends on the numbers.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce

PRIME = 2**256 + 297  # the first above 2^256
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(
    secret: bytes, threshold: int, holders: Iterable[int], below: Callable[[int], int] = secrets.randbelow
) -> dict[int, bytes]:
    """A share of 33 bytes for each holder; the secret has 32 bytes. `below` draws uniform numbers below a limit."""
    falling = [*(below(PRIME) for _ in range(threshold - 1)), int.from_bytes(secret, "big")]
    return {
        holder: reduce(lambda value, factor: (value * (holder + 1) + factor) % PRIME, falling, 0).to_bytes(
            SHARE_BYTES, "big"
        )
        for holder in holders
    }


def restore(shares: Mapping[int, bytes]) -> bytes | None:
    """The secret of exactly `threshold` shares by their holders; None if no 32 bytes have them.

    Other or false shares may give another secret: the caller compares it with what was committed to.
    """
    factors = _at_zero(tuple(shares))
    value = sum(factor * int.from_bytes(share, "big") for factor, share in zip(factors, shares.values(), strict=True))
    value %= PRIME
    return None if value >> 8 * SECRET_BYTES else value.to_bytes(SECRET_BYTES, "big")


@lru_cache(maxsize=256)
def _at_zero(holders: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange's factors of the holders' values, for the value at 0."""
    points = [holder + 1 for holder in holders]
    factors = []
    for point in points:
        above = below = 1
        for other in points:
            if other != point:
                above, below = above * other % PRIME, below * (other - point) % PRIME
        factors.append(above * pow(below, -1, PRIME) % PRIME)
    return tuple(factors)
