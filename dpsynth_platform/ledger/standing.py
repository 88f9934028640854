"""The standing of an account's owners: what started entries charged, in classes of owners with the same sum.

What belongs here: classes, splitting them when an entry covers part of one, and which participants can still be
charged. What does not: the database, and sums common to all owners (`verdicts`). Restricted, like all about owners.

A decision about millions of owners reads this one table instead of the participants of all earlier entries. It follows
from them and from the order in which they started, so that `verify` can recompute it and compare every byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.ledger.filter import Cost, Vector, within
from dpsynth_platform.ledger.owners import Participants, contained, from_blob, place_of, to_blob

_CLASS = np.dtype("<u4")
_PART = np.dtype("<f8")
Classes = NDArray[np.uint32]


@dataclass(frozen=True)
class Standing:
    """Owners and what each was charged.

    Attributes:
        owners: sorted fingerprints of all charged owners, shape (owners,).
        class_of: each one's class, shape (owners,).
        sums: the charges of a member of each class, rounded up, shape (classes, orders + 1); rows are distinct.
    """

    owners: Participants
    class_of: Classes
    sums: Vector

    @classmethod
    def empty(cls, nothing: Cost) -> Standing:
        """The standing before the first entry has started."""
        return cls(from_blob(b""), np.zeros(0, dtype=_CLASS), np.zeros((0, len(nothing)), dtype=_PART))

    @classmethod
    def from_blobs(cls, owners: bytes, class_of: bytes, sums: bytes, nothing: Cost) -> Standing:
        """Reads `to_blobs`. Raises `LedgerError` if they are damaged or inconsistent."""
        try:
            standing = cls(
                from_blob(owners),
                np.frombuffer(class_of, dtype=_CLASS),
                np.frombuffer(sums, dtype=_PART).reshape(-1, len(nothing)),
            )
        except ValueError:
            raise LedgerError("the stored standing of owners is damaged") from None
        classes = int(standing.class_of.max()) + 1 if len(standing.class_of) else 0
        if len(standing.class_of) != len(standing.owners) or classes > len(standing.sums):
            raise LedgerError("the stored standing of owners is damaged")
        return standing

    def to_blobs(self) -> dict[str, bytes]:
        """Owners (16 bytes each), their classes (4 bytes each) and the classes' sums, by name of column."""
        return {
            "owners": to_blob(self.owners),
            "class_of": self.class_of.astype(_CLASS).tobytes(),
            "sums": self.sums.astype(_PART).tobytes(),
        }

    def charged(self, members: Participants, cost: Cost) -> Standing:
        """The standing after an entry that costs each of its members `cost`."""
        new = members[~contained(members, self.owners)]
        sums = np.concatenate([self.sums, np.zeros((1, len(cost)), dtype=_PART)])
        places = np.searchsorted(self.owners, new)
        owners = np.insert(self.owners, places, new) if len(new) else self.owners
        class_of = np.insert(self.class_of, places, len(self.sums)) if len(new) else self.class_of
        joined = np.zeros(len(owners), dtype=bool)
        joined[place_of(members, owners)[0]] = True
        return Standing(owners, *_split(class_of, sums, joined, cost))

    def affordable(
        self,
        participants: Participants,
        pending: Sequence[tuple[Participants, Cost]],
        cost: Cost,
        limits: Sequence[float],
    ) -> NDArray[np.bool_]:
        """For each participant, whether its charges, what is pending and `cost` together stay under the cap.

        Individual filters (Feldman & Zrnic 2021, section 5): valid if owners who do not fit are left out silently.

        Args:
            participants: those of the new entry.
            pending: participants and cost of each reservation that has not started.
            cost: the new entry's cost (`RenyiFilter.cost`).
            limits: the account's (`RenyiFilter.limits`).
        """
        sums = np.concatenate([self.sums, np.zeros((1, len(cost)), dtype=_PART)])
        class_of = np.full(len(participants), len(self.sums), dtype=_CLASS)
        places, found = place_of(participants, self.owners)
        class_of[found] = self.class_of[places[found]]
        for members, spent in pending:
            class_of, sums = _split(class_of, sums, contained(participants, members), spent)
        return within(sums + np.asarray(cost), limits)[class_of]


def _split(class_of: Classes, sums: Vector, joined: NDArray[np.bool_], cost: Cost) -> tuple[Classes, Vector]:
    """Splits each class into those who joined and the others; merges classes of equal sums, drops empty ones."""
    halves = np.concatenate([sums, _add_up(sums, np.asarray(cost))])
    half_of = class_of + joined.astype(_CLASS) * _CLASS.type(len(sums))
    used = np.flatnonzero(np.bincount(half_of, minlength=len(halves)))
    distinct, number = np.unique(halves[used], axis=0, return_inverse=True)
    new_number = np.zeros(len(halves), dtype=_CLASS)
    new_number[used] = number.reshape(-1)
    return new_number[half_of], distinct


def _add_up(sums: Vector, cost: Vector) -> Vector:
    """`filter.add_up`, for many sums."""
    total: Vector = np.where((sums == 0) | (cost == 0), sums + cost, np.nextafter(sums + cost, np.inf))
    return total
