"""Sequential greedy bounding: the reference, and the last stage of the parallel rounds.

What belongs here: the greedy of Ganesh et al. 2025 ("It's my data too"), which visits the records in a given order and
keeps one if none of its owners has b already. What does not: the order, and the rounds in SQL (`rounds`), which keep
the same records.

Memory is one counter for each owner; records are streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence, Sequence


def greedy(records: Iterable[Sequence[int]], room: MutableSequence[int] | MutableMapping[int, int]) -> Iterator[bool]:
    """Whether each record is kept, in the given order.

    The result is maximal: every dropped record has an owner who keeps b records before it.

    Args:
        records: each record's distinct owners, as indices or keys of `room`.
        room: how many more records each owner may keep, initially b; is decremented.
    """
    for owners in records:
        keep = all(room[owner] > 0 for owner in owners)
        if keep:
            for owner in owners:
                room[owner] -= 1
        yield keep
