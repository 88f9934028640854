import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger_cases import people

from dpsynth_platform.foundation.errors import LedgerError
from dpsynth_platform.ledger.owners import check_participants, commitment, contained, from_blob, place_of, to_blob


@given(here=st.sets(st.integers(0, 50)), there=st.sets(st.integers(0, 50)))
def test_contained(here, there):
    both = people(*here)[contained(people(*here), people(*there))]
    assert np.array_equal(both, people(*(here & there)))


def test_owners_that_share_half_of_their_fingerprint_are_told_apart():
    """No two of ours ever will; the search must not depend on it."""
    rng = np.random.default_rng(1)
    raw = np.unique(np.frombuffer(bytes(rng.integers(0, 2, 40 * 16, dtype=np.uint8)), dtype="S16"))
    halves = [bytes(8) + bytes([0] * 7 + [number]) for number in range(1, 9)]
    everybody = np.unique(np.concatenate([raw, np.array(halves, dtype="S16")]))
    for size in (1, 5, 20, len(everybody)):
        others = np.sort(rng.choice(everybody, size, replace=False))
        place, found = place_of(everybody, others)
        assert np.array_equal(found, np.isin(everybody, others))
        assert np.array_equal(others[place[found]], everybody[found])


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
