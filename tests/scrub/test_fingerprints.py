"""Fingerprints: one person is one owner, and a record's id is its owner's own affair."""

from __future__ import annotations

import datetime as dt
import hashlib
import hmac

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.scrub.fingerprints import (
    FingerprintKeys,
    canonical_text,
    canonical_texts,
    distinct_owners,
    fingerprint_hex,
    fingerprints_from_hex,
    keyed,
    owner_fingerprint,
    record_ids,
    rotated,
)

KEYS = FingerprintKeys(b"1" * 32, (b"2" * 32,))


def test_the_text_of_an_id_counts_and_not_its_storage_type() -> None:
    assert canonical_text(7) == canonical_text("7") == "7"
    assert canonical_text("007") != canonical_text(7)
    assert canonical_text(dt.date(2026, 1, 2)) == "2026-01-02"
    assert canonical_text("Zoe\u0308") == canonical_text("Zo\u00eb")


def test_normalization_is_what_the_contract_declares() -> None:
    assert canonical_text(" Ab ") == " Ab "
    assert canonical_text(" Ab ", ["trim"]) == "Ab"
    assert canonical_text(" Ab ", ["casefold"]) == " ab "
    assert canonical_text(" STRASSE ", ["trim", "casefold"]) == canonical_text("stra\u00dfe", ["trim", "casefold"])


@pytest.mark.parametrize("value", [None, "", "  "])
def test_no_id(value: str | None) -> None:
    assert canonical_text(value, ["trim"]) is None


def test_a_fingerprint_is_the_doubly_keyed_hash() -> None:
    inner = hmac.new(KEYS.inner, b"P-1", hashlib.sha256).digest()
    assert owner_fingerprint("P-1", KEYS) == hmac.new(KEYS.outer[0], inner, hashlib.sha256).hexdigest()[:32]
    assert owner_fingerprint("P-1", FingerprintKeys(KEYS.inner, (b"3" * 32,))) != owner_fingerprint("P-1", KEYS)
    assert owner_fingerprint("P-1", FingerprintKeys(b"3" * 32, KEYS.outer)) != owner_fingerprint("P-1", KEYS)
    assert "1111" not in repr(KEYS)


def test_fingerprints_stay_what_they_are() -> None:
    """Ledgers hold them for years: one outer key, and two."""
    assert owner_fingerprint("P-1", KEYS) == "0d52bee023cfc18a10b0376dc672af1f"
    nested = FingerprintKeys(KEYS.inner, (*KEYS.outer, b"3" * 32))
    assert owner_fingerprint("P-1", nested) == "fc2edb5fefd71079edbae982888ab8da"


def test_stored_fingerprints_are_carried_over_to_a_further_key() -> None:
    ids = [f"P-{number}" for number in range(600)]  # enough for values that end or begin with a zero byte
    stored = fingerprints_from_hex(owner_fingerprint(text, KEYS) for text in ids)
    assert any(text.endswith("00") for text in fingerprint_hex(stored))
    keys = KEYS
    for further in (b"3" * 32, b"4" * 32):
        keys = FingerprintKeys(keys.inner, (*keys.outer, further))
        stored = rotated(stored, further)
        assert fingerprint_hex(stored) == [owner_fingerprint(text, keys) for text in ids]
    assert stored.dtype == np.dtype("S16")
    assert any(text.endswith("00") for text in fingerprint_hex(stored))
    other_order = FingerprintKeys(KEYS.inner, (*KEYS.outer, b"4" * 32, b"3" * 32))
    assert owner_fingerprint("P-1", other_order) != fingerprint_hex(stored)[1]
    assert len(rotated(fingerprints_from_hex([]), b"3" * 32)) == 0


parts = st.lists(st.text(max_size=4) | st.none(), max_size=4)


def record_id(owner: str, values: list[str | None], key: bytes) -> str:
    (found,) = record_ids([owner], [[value] for value in values], keyed(key)).to_pylist()
    return str(found)


@given(key=st.binary(max_size=80), message=st.binary(max_size=200))
def test_a_keyed_hash_is_hmac_sha256(key: bytes, message: bytes) -> None:
    assert list(keyed(key)([message, b"x", message])) == [
        hmac.digest(key, each, "sha256") for each in (message, b"x", message)
    ]


@given(values=st.lists(st.text(max_size=4) | st.none(), max_size=4), trim=st.booleans())
def test_a_column_of_ids_has_the_text_of_each(values: list[str | None], trim: bool) -> None:
    steps = ["trim"] if trim else []
    assert canonical_texts(pa.array(values, pa.large_string()), steps) == [canonical_text(v, steps) for v in values]


def test_whole_numbers_as_ids() -> None:
    values = [0, -7, 2**63 - 1, None]
    assert canonical_texts(pa.array(values)) == [canonical_text(value) for value in values]


def test_record_ids_stay_what_they_are() -> None:
    ids = record_ids(["ab" * 16] * 2, [["1", None], ["", "xy"]], keyed(b"3" * 32)).to_pylist()
    wanted = [
        hmac.digest(b"3" * 32, ("ab" * 16 + text).encode(), "sha256")[:16].hex() for text in ("|1:1|0:", "|-|2:xy")
    ]
    assert ids == wanted


@given(first=parts, second=parts)
def test_record_ids_differ_where_keys_differ(first: list[str | None], second: list[str | None]) -> None:
    same = record_id("a" * 32, first, b"3" * 32) == record_id("a" * 32, second, b"3" * 32)
    assert same == (first == second)


def test_record_ids_differ_between_owners_and_keys() -> None:
    ids = {record_id(owner, ["1"], key) for owner in ("a" * 32, "b" * 32) for key in (b"3" * 32, b"4" * 32)}
    assert len(ids) == 4


def test_distinct_owners_are_sorted_and_whole() -> None:
    texts = ["ff" * 16, "00" * 16, "ab" * 15 + "00", "00" * 16]
    batches = pa.table({"_owner": texts}).to_batches(max_chunksize=2)
    owners = distinct_owners(batches)
    assert fingerprint_hex(owners) == sorted(set(texts))
    assert owners.dtype == np.dtype("S16")
    assert len(distinct_owners([])) == 0


def test_what_is_no_fingerprint_is_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        fingerprints_from_hex(["abcd"])
