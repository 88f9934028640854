"""Measures of whole rows against closed forms and brute force; every table is drawn by a fixed state."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from dpsynth_platform.quality.columns import Column
from dpsynth_platform.quality.detection import detection_auc
from dpsynth_platform.quality.matching import gower, maximal_faithfulness
from dpsynth_platform.quality.mean_discrepancy import mean_discrepancy
from dpsynth_platform.quality.precision_recall import precision_recall
from dpsynth_platform.quality.records import LEAST_ROWS, measure_records


def normal(rows: int, seed: int, mean: float = 0.0, width: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1.0, (rows, width))


def test_detection_is_half_for_equal_distributions_and_one_for_separate_ones() -> None:
    real = normal(600, 1)
    assert detection_auc(real, normal(600, 2)) == pytest.approx(0.5, abs=0.06)
    assert detection_auc(real, normal(600, 3, mean=10.0)) > 0.995
    # Of two normal distributions a deviation apart in each of three columns, no classifier has more than
    # Phi(sqrt(3 / 2)) = 0.89.
    assert 0.8 < detection_auc(real, normal(600, 4, mean=1.0)) < 0.92


def test_mean_discrepancy_is_that_of_the_exact_kernel() -> None:
    first, second, columns = normal(400, 1), normal(300, 2, mean=0.7), 3
    within = [rbf_kernel(rows, gamma=2 / columns) for rows in (first, second)]
    squared = sum((each.sum() - len(each)) / (len(each) * (len(each) - 1)) for each in within)
    squared -= 2 * rbf_kernel(first, second, gamma=2 / columns).mean()
    assert mean_discrepancy(first, second, columns) == pytest.approx(np.sqrt(squared), rel=0.1)


def test_mean_discrepancy_is_small_for_the_same_distribution_and_large_for_another() -> None:
    assert mean_discrepancy(normal(2000, 1), normal(2000, 2), 3) < 0.05
    # Far apart, the kernel between the tables is zero, and within one 1 / (1 + 4 * 2 / 3) ** 1.5 on average.
    far = mean_discrepancy(normal(2000, 3), normal(2000, 4, mean=100.0), 3)
    assert far == pytest.approx(np.sqrt(2 * (1 + 8 / 3) ** -1.5), abs=0.03)


def test_precision_and_recall_of_the_same_rows_are_one_and_copies_are_not_authentic() -> None:
    real = normal(500, 1)
    found = precision_recall(real, np.random.default_rng(2).permutation(real))
    assert found.precision == pytest.approx(1.0, abs=0.01)
    assert found.recall == pytest.approx(1.0, abs=0.01)
    assert found.authenticity == 0.0


def test_rows_elsewhere_have_neither_precision_nor_recall() -> None:
    real = normal(500, 1)
    found = precision_recall(real, normal(500, 2, mean=50.0))
    assert found.precision == pytest.approx(0.0, abs=0.01)
    assert found.recall == pytest.approx(0.0, abs=0.01)
    assert found.authenticity == 1.0
    assert max(found.precisions) == 0.0


def test_only_typical_rows_are_not_precise_and_cover_little() -> None:
    """All rows at the real mean lie inside every ball: the curve is 1 for every alpha but the first."""
    real = normal(500, 1)
    found = precision_recall(real, np.tile(real.mean(axis=0), (500, 1)) + normal(500, 2) * 1e-9)
    # The first ball has the radius of the most typical row; at alpha zero the diagonal is missed by one.
    assert found.precision == pytest.approx(0.0, abs=0.06)
    assert found.precisions[1] == 1.0
    assert found.recall < 0.1


def test_held_out_rows_are_precise_and_cover_most() -> None:
    real = normal(1000, 1)
    found = precision_recall(real, normal(1000, 2))
    assert found.precision > 0.93
    assert found.recall > 0.8
    assert 0.4 < found.authenticity < 0.8


def test_authenticity_by_brute_force() -> None:
    real, made = normal(40, 1), normal(30, 2)
    apart = np.linalg.norm(made[:, None] - real[None], axis=2)
    within = np.linalg.norm(real[:, None] - real[None], axis=2) + np.diag([np.inf] * 40)
    nearest = apart.argmin(axis=1)
    expected = np.mean(apart[np.arange(30), nearest] >= within.min(axis=1)[nearest])
    assert precision_recall(real, made).authenticity == pytest.approx(expected)


def mixed(rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    numbers = rng.random(rows)
    numbers[rng.random(rows) < 0.2] = np.nan
    return numbers, rng.integers(0, 3, rows)


def test_gowers_distance_is_that_of_the_definition() -> None:
    (x, c), (y, d) = mixed(7, 1), mixed(5, 2)
    columns = [Column("n", None, (x, y), limits=(0.0, 2.0)), Column("c", 4, (c, d))]
    found = gower(columns)
    for i in range(7):
        for j in range(5):
            missing = np.isnan(x[i]), np.isnan(y[j])
            number = float(missing[0] != missing[1]) if any(missing) else abs(x[i] - y[j]) / 2.0
            assert found[i, j] == pytest.approx((number + float(c[i] != d[j])) / 2, abs=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_faithfulness_is_the_best_of_all_bijections(seed: int) -> None:
    (x, c), (y, d) = mixed(6, seed), mixed(6, seed + 100)
    columns = [Column("n", None, (x, y), limits=(0.0, 1.0)), Column("c", 4, (c, d))]
    near = gower(columns) <= 0.25
    expected = max(np.mean([near[i, place] for i, place in enumerate(order)]) for order in permutations(range(6)))
    assert maximal_faithfulness(columns, alike=0.25) == pytest.approx(expected)


def test_a_table_that_repeats_one_real_row_is_hardly_faithful() -> None:
    """Each row has a real one at no cost, but a real row may be matched once only."""
    real = np.arange(100)
    columns = [Column("c", 101, (real, np.zeros(100, dtype=int)))]
    assert maximal_faithfulness(columns) == 0.01
    assert maximal_faithfulness([Column("c", 101, (real, real[::-1]))]) == 1.0


def people(rows: int, seed: int, linked: bool = True) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    skill = rng.random(rows)
    return skill, (skill > 0.5).astype(int) if linked else rng.integers(0, 2, rows)


def beside(*tables: tuple[np.ndarray, np.ndarray]) -> tuple[Column, ...]:
    skill, rich = zip(*tables, strict=True)
    return Column("skill", None, skill), Column("rich", 3, rich)


def test_lost_relations_show_in_whole_rows() -> None:
    """The synthetic table is as good as the baseline of columns combined at random, and worse than held-out rows."""
    found = measure_records(beside(people(400, 1), people(500, 2, linked=False), people(900, 3)))
    assert found.rows == 400
    # A half of the synthetic rows cannot occur, and all others can: the best AUC is 0.75.
    assert found.synthetic.detection_auc == pytest.approx(0.75, abs=0.06)
    assert found.real.detection_auc == pytest.approx(0.5, abs=0.08)
    assert found.synthetic.mean_discrepancy > 5 * found.real.mean_discrepancy
    assert found.independent.detection_auc == pytest.approx(found.synthetic.detection_auc, abs=0.08)
    assert found.synthetic.maximal_faithfulness < 0.8 < 0.9 < found.real.maximal_faithfulness
    assert found == measure_records(beside(people(400, 1), people(500, 2, linked=False), people(900, 3)))


def test_few_held_out_rows_are_left_out_and_few_others_give_no_figure() -> None:
    few = LEAST_ROWS - 1
    found = measure_records(beside(people(few, 1), people(100, 2), people(100, 3)))
    assert (found.rows, found.real) == (100, None)
    assert measure_records(beside(people(100, 1), people(few, 2))) is None
    assert measure_records(beside(people(100, 1), people(few, 2), people(100, 3))) is None


def test_memory_is_bounded_by_the_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    from dpsynth_platform.quality import records

    monkeypatch.setattr(records, "MOST_ROWS", 60)
    assert measure_records(beside(people(300, 1), people(300, 2))).rows == 60
