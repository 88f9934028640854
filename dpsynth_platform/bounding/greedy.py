"""Sequential greedy bounding: the reference, and the end of the parallel rounds.

What belongs here: the greedy of Ganesh et al. 2025 ("It's my data too"), which goes through the records in a given
order and keeps one if none of its owners has b already. What does not: making the order, and the rounds in SQL
(`rounds`), which come to the very same records.

Memory is one counter for each owner; the records are only passed by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence, Sequence


def greedy(records: Iterable[Sequence[int]], room: MutableSequence[int] | MutableMapping[int, int]) -> Iterator[bool]:
    """Whether each record is kept, in the given order.

    The result is maximal: every record that is dropped has an owner with no room left, who keeps b others before it.

    Args:
        records: each record's distinct owners, as indices or keys of `room`.
        room: how many more records each owner may keep, b at first; counted down on the way.
    """
    for owners in records:
        keep = all(room[owner] > 0 for owner in owners)
        if keep:
            for owner in owners:
                room[owner] -= 1
        yield keep
