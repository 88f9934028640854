from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpsynth_platform.foundation.errors import VerificationFailed
from dpsynth_platform.release.commitments import NONCE_BYTES, NonceBook, check, commit

_nonces = st.binary(min_size=NONCE_BYTES, max_size=NONCE_BYTES)


@given(st.text(), st.text(), _nonces, _nonces)
def test_a_commitment_opens_only_with_its_own_value_and_nonce(one: str, two: str, first: bytes, second: bytes) -> None:
    commitment = commit(one, first)
    assert check(commitment, one, first)
    assert check(commitment, two, second) == ((one, first) == (two, second))


def test_only_nonces_of_full_length() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        commit("x", b"short")


def test_the_book_repeats_itself_for_the_same_values_and_stays_restricted(tmp_path: Path) -> None:
    values = {"candidate": "aa", "model": "bb"}
    first = NonceBook(tmp_path / "nonces").commit_all(values)
    again = NonceBook(tmp_path / "nonces").commit_all(dict(reversed(values.items())))
    other = NonceBook(tmp_path / "nonces").commit_all(values | {"model": "cc"})
    assert first == again
    assert set(first) == set(values)
    assert other["candidate"] != first["candidate"], "the same value is not recognizable in another release"
    for path in (tmp_path / "nonces").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    value, nonce = NonceBook(tmp_path / "nonces").open(values, "model")
    assert value == "bb"
    assert check(first["model"], value, nonce)


def test_two_books_never_agree(tmp_path: Path) -> None:
    """Every byte of every nonce is drawn: else whoever knows a few values could try the others."""
    values = {str(number): "y" for number in range(64)}
    told = [NonceBook(tmp_path / name).commit_all(values) for name in ("a", "b")]
    assert not set(told[0].values()) & set(told[1].values())
    nonces = [NonceBook(tmp_path / name).open(values, label)[1] for name in ("a", "b") for label in values]
    assert len({commitment for book in told for commitment in book.values()}) == len(nonces) == 128
    # 128 draws of 256 values have 101 different ones, give or take 3.7: 64 is nearly ten deviations off, below 1e-20.
    assert all(len(set(column)) > 64 for column in zip(*nonces, strict=True))


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    book = NonceBook(tmp_path)
    with pytest.raises(VerificationFailed, match="nothing was committed"):
        book.open({"x": "y"}, "x")
    book.commit_all({"x": "y"})
    with pytest.raises(VerificationFailed, match="label 'z'"):
        book.open({"x": "y"}, "z")
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text())["x"]["value"] == "y"
    path.write_text("{")
    with pytest.raises(VerificationFailed, match="cannot be read"):
        book.commit_all({"x": "y"})
