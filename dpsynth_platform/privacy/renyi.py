"""Renyi curves on one fixed grid of orders, and their conversion to (epsilon, delta) and back.

What belongs here: the curve as the ledger stores and adds it. What does not: which mechanism has which curve
(`accounting`). It imports little on purpose: the ledger needs no more of accounting to decide.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import Any

from dpsynth_platform.foundation.errors import AccountingError

# Orders 1 + 2^(k/8) from 1.25 to 4097: epsilon converted on this grid exceeds the one over all orders by less than
# 0.1% of its square-root part. The grid's name is stored beside every curve; another grid needs another name.
GRID = "octave-eighths-1"
ORDERS: tuple[float, ...] = tuple(1 + 2 ** (k / 8) for k in range(-16, 97))

_ROUND_UP = 1 + 2.0**-40

# Another machine's special functions may differ in their last bits. Stored values exceed computed ones by these margins
# (as much on epsilon), so that they are never below what another machine computes.
STORED_MARGIN = 1e-9
STORED_LEAST = 1e-9
_STORED = Context(prec=10, rounding=ROUND_CEILING)


@dataclass(frozen=True)
class RenyiCurve:
    """Upper bounds on the Renyi divergence, one for each order of `ORDERS`.

    Raises:
        AccountingError: another number of values, or one that is negative, infinite or NaN.
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.values) != len(ORDERS):
            raise AccountingError(f"a Renyi curve has {len(ORDERS)} values, found {len(self.values)}")
        for value in self.values:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise AccountingError("a Renyi curve's values are finite and not negative")

    @classmethod
    def upper(cls, values: Sequence[float]) -> RenyiCurve:
        """A curve from computed values, each rounded up by more than the arithmetic's error."""
        return cls(tuple(float(value) * _ROUND_UP for value in values))

    def stored(self) -> RenyiCurve:
        """The curve for storage: rounded up to ten digits, by more than machines differ."""
        return RenyiCurve(tuple(stored_number(value, STORED_LEAST) for value in self.values))

    def stores(self, computed: RenyiCurve) -> bool:
        """Whether this curve is `computed.stored()`, here or on another machine (`stores_number`)."""
        return all(
            stores_number(mine, value, STORED_LEAST) for mine, value in zip(self.values, computed.values, strict=True)
        )

    @classmethod
    def from_json(cls, document: Any) -> RenyiCurve:
        """Raises `AccountingError` for another grid or impossible values."""
        if not isinstance(document, dict) or document.get("grid") != GRID or not isinstance(document["rho"], list):
            raise AccountingError(f"a Renyi curve's document must be on the grid {GRID!r}")
        return cls(tuple(document["rho"]))

    def to_json(self) -> dict[str, Any]:
        return {"grid": GRID, "rho": list(self.values)}

    def at(self, order: float) -> float:
        """The bound at an order of the grid. Raises `AccountingError` for any other."""
        try:
            return self.values[ORDERS.index(order)]
        except ValueError:
            raise AccountingError(f"order {order!r} is not on the grid {GRID!r}") from None

    def scaled(self, factor: float) -> RenyiCurve:
        """The curve of so many such mechanisms; a factor need not be whole."""
        return RenyiCurve(tuple(min(value * factor, sys.float_info.max) for value in self.values))

    def epsilon(self, delta: float) -> float:
        """The least epsilon at `delta` over the grid's orders. Raises `AccountingError` for delta outside (0, 1)."""
        if not 0 < delta < 1:
            raise AccountingError(f"delta {delta!r}; accepted: a number between 0 and 1")
        return max(0.0, min(rho - _slack(order, delta) for order, rho in zip(ORDERS, self.values, strict=True)))


def stored_number(computed: float, least: float = 0.0) -> float:
    """A cost for storage: at least `least` and a billionth above `computed`, rounded up to ten digits."""
    return float(_STORED.create_decimal_from_float(computed * (1 + STORED_MARGIN) + least))


def stores_number(stored: float, computed: float, least: float = 0.0) -> bool:
    """Whether `stored` may be `stored_number(computed)`, made here or on another machine.

    It is never below what is computed here. Above, four margins allow for its own margin, its last digit and another
    machine's difference.
    """
    return computed <= stored <= computed * (1 + 4 * STORED_MARGIN) + 4 * least


def zcdp_curve(rho: float) -> RenyiCurve:
    """The curve rho * alpha of a rho-zCDP mechanism (Bun & Steinke 2016)."""
    return RenyiCurve.upper([rho * order for order in ORDERS])


def renyi_limit(order: float, epsilon: float, delta: float) -> float:
    """The largest Renyi divergence at `order` that still implies (epsilon, delta)-DP; negative if none does."""
    return (epsilon + _slack(order, delta)) / _ROUND_UP


def zcdp_limit(epsilon: float, delta: float) -> float:
    """The largest rho whose zCDP curve converts to at most `epsilon` at `delta`; 0 if none does."""
    return max(0.0, max(renyi_limit(order, epsilon, delta) / order for order in ORDERS))


def _slack(order: float, delta: float) -> float:
    """epsilon = rho - slack: proposition 12 of Canonne, Kamath & Steinke 2020."""
    return (math.log(delta) + math.log(order)) / (order - 1) - math.log1p(-1 / order)
