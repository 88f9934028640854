"""The largest part of a guarantee that several mechanisms may each have, if the whole is to meet it.

What belongs here: the search. What does not: what the whole costs (`privacy.accounting`).
"""

from __future__ import annotations

from collections.abc import Callable

from dpsynth_platform.foundation.errors import AccountingError

LEAST_USED = 0.99
"""Of epsilon, before the search ends."""
MOST_TRIED = 16


def largest(spent: Callable[[float], float], target: float, first: float, where: str, accepted: str) -> float:
    """The largest part found whose whole costs at most `target`; cost is about in proportion to it.

    Args:
        spent: the cost of the whole, by the part.
        first: the part to start with.
        where: the key, for errors; `accepted` is what else may help.

    Raises:
        AccountingError: none is found.
    """
    fits, exceeds, part = 0.0, float("inf"), first
    for _ in range(MOST_TRIED):
        cost = spent(part)
        if cost <= target:
            fits = max(fits, part)
            if cost >= LEAST_USED * target:
                break
        else:
            exceeds = min(exceeds, part)
        part *= (1 + LEAST_USED) / 2 * target / cost
        if not fits < part < exceeds:
            part = (fits * exceeds) ** 0.5 if fits else exceeds / 2
    if not fits:
        raise AccountingError(
            f"{where}: no noise of its runs meets epsilon {target:g}; accepted: a larger epsilon, or {accepted}"
        )
    return fits
