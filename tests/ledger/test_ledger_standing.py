"""Classes of owners against sums taken owner by owner."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import people

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.ledger.standing import Standing

NOTHING = (0.0, 0.0, 0.0)
WHO = st.sets(st.integers(0, 15))
COST = st.tuples(*[st.integers(0, 5).map(float)] * 3)


def standing_of(history):
    standing = Standing.empty(NOTHING)
    for who, cost in history:
        standing = standing.charged(people(*who), cost)
    return standing


@settings(max_examples=200, deadline=None)
@given(
    here=WHO,
    started=st.lists(st.tuples(WHO, COST), max_size=12),
    pending=st.lists(st.tuples(WHO, COST), max_size=4),
    cost=COST,
    limits=st.tuples(*[st.integers(-1, 25)] * 3),
)
def test_affordable_is_what_owner_by_owner_sums_say(here, started, pending, cost, limits):
    """Costs are two orders and a slack: fits if some order fits and the slack does."""
    reserved = [(people(*who), spent) for who, spent in pending]
    fits = standing_of(started).affordable(people(*here), reserved, cost, limits)
    kept = {bytes(name) for name in people(*here)[fits]}
    for owner in here:
        sums = [cost[i] + sum(spent[i] for who, spent in [*started, *pending] if owner in who) for i in range(3)]
        # Sums are rounded up by a hair, so a whole number that equals its limit does not fit, save zero.
        below = [total < limit or total == limit == 0 for total, limit in zip(sums, limits, strict=True)]
        assert (bytes(people(owner)[0]) in kept) == ((below[0] or below[1]) and below[2])


@settings(max_examples=100, deadline=None)
@given(history=st.lists(st.tuples(WHO, COST), max_size=12))
def test_owners_stand_where_their_entries_put_them(history):
    standing = standing_of(history)
    assert np.array_equal(standing.owners, people(*set().union(*(who for who, _ in history))))
    for owner in set().union(*(who for who, _ in history)):
        told = standing.sums[standing.class_of[np.searchsorted(standing.owners, people(owner)[0])]]
        true = [sum(cost[i] for who, cost in history if owner in who) for i in range(3)]
        assert all(exact <= mine <= exact * (1 + 1e-12) for exact, mine in zip(true, told, strict=True))
    assert len(np.unique(standing.sums, axis=0)) == len(standing.sums)
    again = Standing.from_blobs(*standing.to_blobs().values(), NOTHING)
    assert again.to_blobs() == standing.to_blobs()


def test_equal_histories_are_one_class_and_a_part_splits_off():
    everybody, half = people(*range(100)), people(*range(50))
    standing = Standing.empty(NOTHING).charged(everybody, (1.0, 0.5, 0.0))
    assert len(standing.sums) == 1
    standing = standing.charged(half, (1.0, 0.5, 0.0))
    assert len(standing.sums) == 2
    late = standing.charged(people(*range(50, 100)), (1.0, 0.5, 0.0))
    assert len(late.sums) == 1
    assert len(late.to_blobs()["class_of"]) == 4 * 100


@pytest.mark.parametrize(
    "blobs",
    [
        (b"x", b"", b""),
        (b"a" * 16, b"", b""),
        (b"a" * 16, b"abc", b""),
        (b"a" * 16, bytes(4), b""),
        (b"a" * 16, bytes(4), bytes(8)),
        (b"b" * 16 + b"a" * 16, bytes(8), bytes(24)),
    ],
)
def test_a_damaged_standing_is_refused(blobs):
    with pytest.raises(LedgerError, match=r"damaged|sorted"):
        Standing.from_blobs(*blobs, NOTHING)
