import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_cases import people

from dpsynth_platform.errors import LedgerError
from dpsynth_platform.ledger.owners import affordable, check_participants, commitment, contained, from_blob, to_blob


@settings(max_examples=150, deadline=None)
@given(
    here=st.sets(st.integers(0, 15)),
    history=st.lists(st.tuples(st.sets(st.integers(0, 15)), st.tuples(*[st.integers(0, 5)] * 3)), max_size=12),
    cost=st.tuples(*[st.integers(0, 5)] * 3),
    limits=st.tuples(*[st.integers(-1, 15)] * 3),
)
def test_affordable_is_what_owner_by_owner_sums_say(here, history, cost, limits):
    """Costs are two orders and a slack: fits if some order fits and the slack does."""
    fits = affordable(people(*here), [(people(*who), spent) for who, spent in history], cost, limits)
    kept = {bytes(name) for name in people(*here)[fits]}
    for owner in here:
        sums = [cost[i] + sum(spent[i] for who, spent in history if owner in who) for i in range(3)]
        # Sums are rounded up by a hair, so a whole number that equals its limit does not fit, save zero.
        below = [total < limit or total == limit == 0 for total, limit in zip(sums, limits, strict=True)]
        assert (bytes(people(owner)[0]) in kept) == ((below[0] or below[1]) and below[2])


def test_long_histories_are_kept_apart():
    """More entries than one byte of history has bits."""
    history = [(people(number), (1.0, 0.0)) for number in range(30)] + [(people(*range(0, 30, 2)), (1.0, 0.0))]
    fits = affordable(people(*range(30)), history, (1.0, 0.0), (2.5, 0.0))
    assert {bytes(name) for name in people(*range(30))[fits]} == {bytes(people(n)[0]) for n in range(1, 30, 2)}


@given(here=st.sets(st.integers(0, 50)), there=st.sets(st.integers(0, 50)))
def test_contained(here, there):
    both = people(*here)[contained(people(*here), people(*there))]
    assert np.array_equal(both, people(*(here & there)))


def test_trailing_zero_bytes_survive():
    names = np.array([b"\x01" + bytes(15), b"\x01" + bytes(14) + b"\x02"], dtype="S16")
    assert np.array_equal(from_blob(to_blob(names)), names)
    assert len(to_blob(names)) == 32


@pytest.mark.parametrize(
    "bad",
    [
        np.array([b"b" * 16, b"a" * 16], dtype="S16"),
        np.array([b"a" * 16, b"a" * 16], dtype="S16"),
        np.array([b"a" * 32], dtype="S32"),
        np.array([[b"a" * 16]], dtype="S16"),
    ],
)
def test_what_is_no_set_of_fingerprints_is_refused(bad):
    with pytest.raises(LedgerError):
        check_participants(bad)


def test_commitments_bind_and_hide():
    nonce = bytes(32)
    assert commitment(nonce, people(1, 2)) == hashlib.sha256(nonce + people(1, 2).tobytes()).hexdigest()
    assert commitment(nonce, people(1, 2)) != commitment(nonce, people(1, 3))
    assert commitment(nonce, people(1, 2)) != commitment(b"\x01" * 32, people(1, 2))


def test_damaged_blobs_are_refused():
    with pytest.raises(LedgerError):
        from_blob(b"short")
