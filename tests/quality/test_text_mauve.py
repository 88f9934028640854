from __future__ import annotations

import numpy as np
import pytest

from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.text.mauve import SCALING, area, cluster_counts, default_clusters, frontier, mauve

CLUSTERS = 8


def groups(shares: list[float], texts: int, seed: int) -> np.ndarray:
    """Features in well separated groups, of those shares."""
    rng = np.random.default_rng(seed)
    middle = np.eye(len(shares), 16)[np.repeat(np.arange(len(shares)), np.multiply(shares, texts).astype(int))]
    return (middle + rng.normal(scale=0.02, size=middle.shape)).astype(np.float32)


def test_frontier_and_area_by_hand() -> None:
    first, second = np.array([0.5, 0.5]), np.array([1.0, 0.0])
    curve = frontier(first, second, scaling=1.0)
    assert curve[0].tolist() == [0, 1]
    assert curve[-1].tolist() == [1, 0]
    # The mixture in the middle is (3/4, 1/4): KL(second|R) = ln 4/3, KL(first|R) = (ln 2/3 + ln 2) / 2.
    middle = curve[len(curve) // 2]
    assert middle == pytest.approx([3 / 4, np.exp(-(np.log(2 / 3) + np.log(2)) / 2)])
    assert (np.diff(curve[:, 0]) > 0).all()
    assert (np.diff(curve[:, 1]) < 0).all()


def test_equal_histograms_have_the_whole_area_and_disjoint_ones_nearly_none() -> None:
    half = np.array([0.5, 0.5, 0.0])
    assert area(frontier(half, half, SCALING)) == pytest.approx(1)
    assert area(frontier(half, np.array([0.0, 0.0, 1.0]), SCALING)) < 0.01


def test_clusters_find_groups() -> None:
    first, second = cluster_counts(groups([0.5, 0.5], 100, 1), groups([0.5, 0.25, 0.25], 100, 2), 3, 0)
    assert sorted(zip(first, second, strict=True)) == [(0, 25), (50, 25), (50, 50)]


def test_mauve_falls_with_what_is_missing() -> None:
    real = groups([0.25] * 4, 200, 1)
    scores = [
        mauve(real, groups(shares, 200, 2), 4, 0) for shares in ([0.25] * 4, [0.4, 0.4, 0.1, 0.1], [0.5, 0.5], [1.0])
    ]
    assert scores[0] == pytest.approx(1, abs=1e-9)
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] < 0.2


def test_texts_that_are_all_alike_are_no_error() -> None:
    same = np.ones((20, 8), dtype=np.float32)
    assert mauve(same, same, 2, 0) == pytest.approx(1)


@pytest.mark.parametrize("clusters", [1, 11])
def test_too_few_texts_for_the_clusters(clusters: int) -> None:
    with pytest.raises(SourceError, match=f"{clusters} clusters of 20 texts; accepted: 2 to 10"):
        mauve(groups([1.0], 10, 1), groups([1.0], 10, 2), clusters, 0)


def test_default_is_a_tenth() -> None:
    assert [default_clusters(texts) for texts in (40, 800, 12)] == [4, 80, 2]


def test_values_are_those_of_the_authors_program() -> None:
    """The area of its very histograms is the same; with clusters of our own, values are as near as its own seeds'."""
    oracle = pytest.importorskip("mauve")
    rng = np.random.default_rng(1)
    first = rng.normal(size=(400, 24)).astype(np.float32)
    second = (rng.normal(size=(400, 24)) + 0.35).astype(np.float32)
    theirs = [oracle.compute_mauve(p_features=first, q_features=second, seed=seed) for seed in range(3)]
    for found in theirs:
        assert area(frontier(found.p_hist, found.q_hist, SCALING)) == pytest.approx(found.mauve, abs=1e-9)
        assert found.num_buckets == default_clusters(400)
    ours = [mauve(first, second, default_clusters(400), seed) for seed in range(3)]
    assert 0.2 < np.mean(ours) < 0.9
    assert np.mean(ours) == pytest.approx(np.mean([found.mauve for found in theirs]), abs=0.1)
