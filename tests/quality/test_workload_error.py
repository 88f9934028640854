from __future__ import annotations

import numpy as np
import pytest

from dpsynth_platform.quality import workload_error as module
from dpsynth_platform.quality.fidelity import k_way_distance, measure_fidelity
from dpsynth_platform.quality.workload_error import measure_workload

NAMES, SIZES = ("a", "b", "c"), (2, 3, 4)


def tables() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return tuple(np.stack([rng.integers(0, size, rows) for size in SIZES], axis=1) for rows in (400, 300))  # type: ignore[return-value]


def by_brute_force(real: np.ndarray, made: np.ndarray, marginal: tuple[int, ...]) -> float:
    sides = [[tuple(row) for row in rows[:, marginal].tolist()] for rows in (real, made)]
    cells = {*sides[0], *sides[1]}
    return sum(abs(sides[0].count(x) / len(real) - sides[1].count(x) / len(made)) for x in cells) / 2


def test_the_error_is_the_weighted_mean_of_the_definition() -> None:
    real, made = tables()
    weights = {(0, 1): 3.0, (1, 2): 1.0, (0, 1, 2): 4.0}
    distances = {marginal: by_brute_force(real, made, marginal) for marginal in weights}
    found = measure_workload(real, made, NAMES, SIZES, weights)
    assert found.synthetic == pytest.approx(sum(weights[each] * distances[each] for each in weights) / 8)
    assert found.largest == pytest.approx(max(distances.values()))
    assert (found.marginals, found.measured) == (3, 3)


def test_the_same_table_has_no_error_and_lost_relations_show() -> None:
    rng = np.random.default_rng(2)
    value = rng.integers(0, 2, 4000)
    real = np.stack([value, value], axis=1)
    same = measure_workload(real, real, NAMES[:2], (2, 2), {(0, 1): 1.0})
    assert same.synthetic == same.largest == 0.0
    # Columns combined at random: half of the mass is off the diagonal.
    lost = np.stack([value, rng.permutation(value)], axis=1)
    found = measure_workload(real, lost, NAMES[:2], (2, 2), {(0, 1): 1.0})
    assert found.synthetic == pytest.approx(0.5, abs=0.05)
    assert found.independent == pytest.approx(0.5, abs=0.05)
    assert found.resampled < 0.05


def test_without_a_workload_or_rows_there_is_none() -> None:
    real, made = tables()
    assert measure_workload(real, made, NAMES, SIZES, {}) is None
    assert measure_workload(real, made[:0], NAMES, SIZES, {(0, 1): 1.0}) is None


def test_a_sample_of_the_workload_depends_on_names_and_not_on_places(monkeypatch: pytest.MonkeyPatch) -> None:
    real, made = tables()
    weights = {(0, 1): 1.0, (0, 2): 2.0, (1, 2): 3.0}
    monkeypatch.setattr(module, "MOST_MARGINALS", 2)
    found = measure_workload(real, made, NAMES, SIZES, weights)
    assert (found.marginals, found.measured) == (3, 2)
    turned = {tuple(sorted(2 - place for place in each)): weight for each, weight in weights.items()}
    other = measure_workload(real[:, ::-1], made[:, ::-1], NAMES[::-1], SIZES[::-1], turned)
    assert (other.synthetic, other.largest) == pytest.approx((found.synthetic, found.largest))


def test_sampled_sets_of_columns_are_those_of_the_names_in_any_order() -> None:
    rng = np.random.default_rng(3)
    real, made = rng.integers(0, 3, (200, 10)), rng.integers(0, 3, (150, 10))
    names, turned = [f"column {place}" for place in range(10)], rng.permutation(10)
    found = k_way_distance(real, made, [3] * 10, 4, 20, names)
    other = k_way_distance(real[:, turned], made[:, turned], [3] * 10, 4, 20, [names[place] for place in turned])
    assert (found.mean, found.largest) == pytest.approx((other.mean, other.largest))
    assert found.measured == 20
    renamed = k_way_distance(real, made, [3] * 10, 4, 20, [name.upper() for name in names])
    assert renamed.mean != found.mean


def test_four_and_five_ways_are_those_of_the_definition_also_of_huge_columns() -> None:
    rng = np.random.default_rng(4)
    real, made = rng.integers(0, 2, (60, 5)), rng.integers(0, 2, (50, 5))
    found = measure_fidelity(real, made, list("abcde"), [2] * 5)
    assert [item.ways for item in found.more] == [4, 5]
    assert found.more[1].mean == pytest.approx(by_brute_force(real, made, (0, 1, 2, 3, 4)))
    # The product of these sizes has 140 bits; a wrapped number would make different rows equal.
    huge = measure_fidelity(real * 2**27, made * 2**27, list("abcde"), [2**28] * 5)
    assert huge.more[1].mean == pytest.approx(found.more[1].mean)
    assert measure_fidelity(real[:, :3], made[:, :3], list("abc"), [2] * 3).more == ()
