"""The Renyi filter that an account is sealed with: what still fits under a cap, whatever was chosen before.

What belongs here: choosing the sealed orders and weights, and the comparison of a sum of curves with the cap. What does
not: which entries are summed (`store`, `owners`).

A Renyi filter is valid at one order fixed beforehand (Feldman & Zrnic 2021, theorem 4.3): as long as the sum of
adaptively chosen curves at that order stays within a limit, so does the divergence of everything together. "Grant if
some order still fits" alone is not valid, since an adversary may choose later mechanisms to suit the order that still
fits. So each order gets its own share of delta when the account is opened, and its own limit from that share; the union
bound over the shares then makes "some order fits" valid.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.privacy.renyi import GRID, ORDERS, RenyiCurve, renyi_limit, zcdp_curve

Cost: TypeAlias = tuple[float, ...]
Vector: TypeAlias = NDArray[np.float64]

# Shares of an account's delta. Most goes to the order that suits Gaussian-like mechanisms under this cap; seven orders
# an octave apart cover others; a tenth is reserved for mechanisms with their own delta (`delta_slack`).
MAIN_SHARE = 0.8
SIDE_SHARE = 0.1
SLACK_SHARE = 0.1
_OCTAVE = 8  # steps of ORDERS
_SIDE_OCTAVES = (-3, -2, -1, 1, 2, 3, 4)

# More than the rounding error of a sum of thousands of floats.
_ROUND_UP = 1 + 1e-11
# One, and the rounding error of the shares.
_ALL_SHARES = 1 + 1e-12


@dataclass(frozen=True)
class RenyiFilter:
    """Sealed orders with their weights: shares of delta that, with `slack_share`, sum to at most one."""

    epsilon: float
    delta: float
    orders: tuple[float, ...]
    weights: tuple[float, ...]
    slack_share: float

    @classmethod
    def seal(cls, epsilon: float, delta: float) -> RenyiFilter:
        """The default filter for a cap."""
        gains = [renyi_limit(order, epsilon, MAIN_SHARE * delta) / order for order in ORDERS]
        main = gains.index(max(gains))
        sides = [main + _OCTAVE * octaves for octaves in _SIDE_OCTAVES]
        sides = [index for index in sides if 0 <= index < len(ORDERS)]
        shares = {main: MAIN_SHARE} | {index: SIDE_SHARE / len(sides) for index in sides}
        chosen = sorted(shares)
        return cls(
            epsilon=epsilon,
            delta=delta,
            orders=tuple(ORDERS[index] for index in chosen),
            weights=tuple(shares[index] for index in chosen),
            slack_share=SLACK_SHARE,
        )

    @classmethod
    def from_json(cls, document: dict[str, Any], epsilon: float, delta: float) -> RenyiFilter:
        """Raises `LedgerError` for another grid of orders."""
        if document["grid"] != GRID:
            raise LedgerError(f"the account is sealed on the grid {document['grid']!r}; this version knows {GRID!r}")
        return cls(
            epsilon, delta, tuple(document["orders"]), tuple(document["weights"]), float(document["slack_share"])
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON value without the cap, which is stored beside it."""
        return {
            "grid": GRID,
            "orders": list(self.orders),
            "weights": list(self.weights),
            "slack_share": self.slack_share,
        }

    @property
    def is_valid(self) -> bool:
        """Whether it keeps its cap: distinct orders of the grid, and shares of delta of at most one together."""
        return (
            0 < len(self.orders) == len(self.weights) == len(set(self.orders))
            and set(self.orders) <= set(ORDERS)
            and all(weight > 0 for weight in self.weights)
            and self.slack_share >= 0
            and math.fsum((*self.weights, self.slack_share)) <= _ALL_SHARES
        )

    @property
    def limits(self) -> tuple[float, ...]:
        """The limit of each sealed order (a negative one can never be met), then the reserved delta."""
        per_order = [
            renyi_limit(order, self.epsilon, self.delta * weight)
            for order, weight in zip(self.orders, self.weights, strict=True)
        ]
        return (*per_order, self.slack_share * self.delta)

    @property
    def nothing(self) -> Cost:
        """The sum of no costs."""
        return (0.0,) * (len(self.orders) + 1)

    def cost(self, curve: RenyiCurve, delta_slack: float = 0.0) -> Cost:
        """A mechanism's part of each of `limits`: its curve at the sealed orders, then its own delta."""
        return (*(curve.at(order) for order in self.orders), delta_slack)

    def fits(self, spent: Iterable[tuple[RenyiCurve, float]]) -> bool:
        """Whether mechanisms, each a curve and a delta slack, together stay under the cap."""
        return self.admits(self._sum(spent))

    def admits(self, total: Cost) -> bool:
        """Whether a sum of costs stays under the cap."""
        return bool(within(np.asarray(total), self.limits))

    def admits_slack(self, total: Cost) -> bool:
        """Whether the delta that curves do not cover stays within its share; part of `admits`."""
        return bool(_below(np.asarray(total), self.limits)[-1])

    def slack_left(self, total: Cost) -> float:
        """How much delta is left for mechanisms with their own delta."""
        return max(0.0, self.limits[-1] - total[-1])

    def room(self, total: Cost, cost: Cost) -> float:
        """The largest factor by which a cost above 0 at every order, scaled, fits beside a sum; 0 if none does.

        It is 1 or more exactly where `cost` itself fits. The delta that curves do not cover is needed whole.
        """
        if not self.admits_slack(add_up(total, cost)):
            return 0.0
        *orders, _ = zip(self.limits, total, cost, strict=True)
        return max(0.0, max((limit / _ROUND_UP - taken) / part for limit, taken, part in orders))

    def used(self, total: Cost) -> float:
        """The share of the cap that a sum of costs takes: of the order that is used least, or of the reserved delta.

        Above one, nothing more fits.
        """
        *orders, slack = zip(total, self.limits, strict=True)
        of_orders = (taken / limit for taken, limit in orders if limit > 0)
        of_slack = slack[0] / slack[1] if slack[1] > 0 else 0.0
        return max(min(of_orders, default=1.0), of_slack)

    def left(self, spent: Iterable[tuple[RenyiCurve, float]], delta: float) -> float:
        """Largest epsilon at `delta` of a zCDP mechanism that still fits after `spent`; at most the cap's."""
        return self.left_beside(self._sum(spent), delta)

    def left_beside(self, total: Cost, delta: float) -> float:
        """`left`, for a sum of costs."""
        rest = np.asarray(self.limits) - np.asarray(total)
        rho = float(np.max(rest[:-1] / np.asarray(self.orders)))
        if rho <= 0 or rest[-1] < 0:
            return 0.0
        return min(zcdp_curve(rho).epsilon(delta), self.epsilon)

    def _sum(self, spent: Iterable[tuple[RenyiCurve, float]]) -> Cost:
        total = self.nothing
        for curve, slack in spent:
            total = add_up(total, self.cost(curve, slack))
        return total


def add_up(total: Cost, cost: Cost) -> Cost:
    """A sum of costs, each part rounded up, so that no number of additions falls below the true sum.

    Raises:
        LedgerError: they have different numbers of parts, because a row was changed by hand.
    """
    if len(total) != len(cost):
        raise LedgerError("a row of the ledger cannot be read; verify it with `dpsynth ledger verify`")
    return tuple(
        mine + more if mine == 0 or more == 0 else math.nextafter(mine + more, math.inf)
        for mine, more in zip(total, cost, strict=True)
    )


def within(sums: Vector, limits: Sequence[float]) -> NDArray[np.bool_]:
    """Whether sums of costs, shape (..., orders + 1), stay under `limits`: at some order, and in the delta slack."""
    below = _below(sums, limits)
    fits: NDArray[np.bool_] = below[..., :-1].any(axis=-1) & below[..., -1]
    return fits


def _below(sums: Vector, limits: Sequence[float]) -> NDArray[np.bool_]:
    below: NDArray[np.bool_] = sums * _ROUND_UP <= np.asarray(limits)
    return below
