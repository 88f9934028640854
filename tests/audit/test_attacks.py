from __future__ import annotations

import numpy as np
import pytest

from dpsynth_platform.audit.attacks import (
    ATTACKS,
    MEASUREMENTS,
    TEXT_ATTACKS,
    equal_cells,
    equal_items,
    likelihood_scores,
    nearest_scores,
    overlap_scores,
)
from dpsynth_platform.foundation.errors import AccountingError


def test_the_nearest_rows_are_found_as_by_brute_force() -> None:
    rng = np.random.default_rng()
    canaries, rows = rng.integers(0, 4, (150, 6)), rng.integers(0, 4, (400, 6))
    distance = (canaries[:, None, :] != rows[None, :, :]).sum(axis=2)
    expected = -np.sort(distance, axis=1)[:, :5].mean(axis=1)
    assert nearest_scores(canaries, rows, 5) == pytest.approx(expected)
    assert nearest_scores(canaries, rows[:2], 5) == pytest.approx(-distance[:, :2].mean(axis=1))


def test_rows_of_the_same_cells_and_equal_texts_are_alike() -> None:
    cells = equal_cells(np.array([[1, 2], [0, 2], [1, 2], [1, 3]]))
    assert len(cells) == 4 and cells[0] == cells[2] and len(set(cells.tolist())) == 3
    assert equal_items(["b", "a", "b", ""]).tolist() == [0, 1, 0, 2]


def test_guesses_are_fixed_shares_of_the_canaries() -> None:
    assert MEASUREMENTS.guesses(500) == (0, 100)
    assert all(sum(attack.guesses(20)) >= 4 for attack in ATTACKS)
    assert all(attack.share_in + attack.share_out <= 0.25 for attack in ATTACKS)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AccountingError, match="at least one"):
        nearest_scores(np.zeros((3, 2)), np.zeros((0, 2)))


def test_what_a_text_gains_is_held_against_texts_that_were_as_unlikely() -> None:
    """All texts gain, the unlikely ones most; those that were in gain a little more. Only that little is left."""
    rng = np.random.default_rng(4)
    before = rng.normal(-6, 1, 400)
    known = np.arange(400) % 2 == 0
    after = before - 0.5 * before + 0.2 * known + rng.normal(0, 0.02, 400)
    scores = likelihood_scores(before, after)
    assert scores[known].min() > scores[~known].max()
    gains = after - before
    assert gains[known].min() < gains[~known].max(), "the plain gain would have done"


def test_likelihoods_that_do_not_differ_are_no_division_by_zero() -> None:
    assert np.isfinite(likelihood_scores(np.full(5, -3.0), np.arange(5.0))).all()
    with pytest.raises(AccountingError, match="3 likelihoods before training, 4 after"):
        likelihood_scores(np.zeros(3), np.zeros(4))


def test_a_canary_that_stands_in_a_synthetic_text_scores_highest():
    canaries = ["bafumo tiresa gopuvi", "zidane kolume parito", "short", "nomeka vusido lefapo"]
    texts = ["he wrote bafumo tiresa gopuvi twice", "zidane kolume, and no more", ""]
    whole, part, short, absent = overlap_scores(canaries, texts)
    assert whole == 1.0
    assert 0 < part < 1
    assert short == absent == 0.0
    assert all(sum(attack.guesses(20)) >= 4 for attack in TEXT_ATTACKS)
