"""What single owners have spent, for readers of restricted numbers.

What belongs here: class sizes and what each class has left, the worst owner, the distribution. What does not: deciding
(`standing`), and fingerprints. All of it depends on who took part and is restricted: it goes to a private file in the
restricted zone, never into a log, a message or metadata.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpsynth_platform.ledger.filter import RenyiFilter
from dpsynth_platform.ledger.standing import Standing

_SHARES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True)
class OwnerSpending:
    """What the owners of one account have left. Restricted.

    "Left" is the largest epsilon, at the account's delta, of a Gaussian-like mechanism that would still charge the
    owner; an owner who was never charged has `epsilon_left_unspent`.

    Attributes:
        owners: how many were ever charged.
        exhausted: how many have nothing left.
        worst_epsilon_left: of the owner who has least left; None where nobody was charged.
        epsilon_left_quantiles: by share of the charged owners, the least spent first.
        classes: owners with the same history, the least left first: their number, and what each has left.
    """

    family: str
    epsilon_cap: float
    delta: float
    epsilon_left_unspent: float
    owners: int
    exhausted: int
    worst_epsilon_left: float | None
    epsilon_left_quantiles: dict[str, float]
    classes: tuple[dict[str, float], ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def shares(self, steps: int = 10) -> tuple[tuple[float, float, float], ...]:
        """The charged owners by what they have left: (from, to, share) in equal steps up to the most that can be left.

        Each step excludes its lower end, except the first. Coarser than `classes`, for readers of the operator's
        numbers.
        """
        if not self.owners:
            return ()
        width, counts = self.epsilon_left_unspent / steps, [0.0] * steps
        for item in self.classes:
            step = math.ceil(item["epsilon_left"] / width) - 1 if width else 0
            counts[min(max(step, 0), steps - 1)] += item["owners"]
        return tuple((step * width, (step + 1) * width, count / self.owners) for step, count in enumerate(counts))


def owner_spending(family: str, sealed: RenyiFilter, standing: Standing | None) -> OwnerSpending:
    """The report for an account, from the standing of its owners (without reservations that have not started)."""
    standing = standing or Standing.empty(sealed.nothing)
    left = np.array([sealed.left_beside(tuple(total), sealed.delta) for total in standing.sums.tolist()])
    sizes = np.bincount(standing.class_of, minlength=len(left))
    order = np.argsort(left, kind="stable")
    per_owner = np.repeat(left[order][::-1], sizes[order][::-1])
    return OwnerSpending(
        family=family,
        epsilon_cap=sealed.epsilon,
        delta=sealed.delta,
        epsilon_left_unspent=sealed.left_beside(sealed.nothing, sealed.delta),
        owners=len(per_owner),
        exhausted=int((per_owner <= 0).sum()),
        worst_epsilon_left=float(per_owner[-1]) if len(per_owner) else None,
        epsilon_left_quantiles={
            f"{share:g}": float(per_owner[round(share * (len(per_owner) - 1))]) for share in _SHARES if len(per_owner)
        },
        classes=tuple({"owners": int(sizes[index]), "epsilon_left": float(left[index])} for index in order),
    )
