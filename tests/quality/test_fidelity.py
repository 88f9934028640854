from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from dpsynth_platform.quality import fidelity
from dpsynth_platform.quality.fidelity import distance, k_way_distance, measure_fidelity, total_variation

NAMES, SIZES = ("a", "b", "c"), (2, 3, 4)
ROWS = st.integers(1, 30).flatmap(
    lambda rows: st.tuples(*(arrays.arrays(np.int32, rows, elements=st.integers(0, size - 1)) for size in SIZES))
)


def table(columns: tuple[np.ndarray, ...]) -> np.ndarray:
    return np.stack(columns, axis=1)


def test_total_variation_of_a_small_example() -> None:
    assert total_variation(np.array([1.0, 1.0, 2.0]), np.array([1.0, 0.0, 0.0])) == pytest.approx(0.75)
    assert total_variation(np.array([2.0, 2.0]), np.array([5.0, 5.0])) == 0.0
    assert total_variation(np.array([1.0, 0.0]), np.array([0.0, 7.0])) == 1.0


def test_distances_of_a_small_example() -> None:
    real = np.array([[0, 0], [0, 0], [1, 1], [1, 1]])
    synthetic = np.array([[0, 0], [0, 1], [1, 0], [1, 1], [0, 0], [0, 1], [1, 0], [1, 1]])
    found = measure_fidelity(real, synthetic, ("a", "b"), (2, 2))
    assert [item.synthetic for item in found.columns] == [0.0, 0.0]
    (pair,) = found.pairs
    assert (pair.first, pair.second) == ("a", "b")
    # Both have independent, balanced columns; the real ones are always equal.
    assert pair.synthetic == pair.independent == pytest.approx(0.5)


@settings(max_examples=60, deadline=None)
@given(real=ROWS, synthetic=ROWS)
def test_distances_are_those_of_the_definition(real: tuple, synthetic: tuple) -> None:
    truth, made = table(real), table(synthetic)
    found = measure_fidelity(truth, made, NAMES, SIZES)
    assert [(item.first, item.second) for item in found.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    for item in found.pairs:
        first, second = NAMES.index(item.first), NAMES.index(item.second)
        distance = independent = 0.0
        for x in range(SIZES[first]):
            for y in range(SIZES[second]):
                mine = np.mean((truth[:, first] == x) & (truth[:, second] == y))
                other = np.mean((made[:, first] == x) & (made[:, second] == y))
                product = np.mean(truth[:, first] == x) * np.mean(truth[:, second] == y)
                distance += abs(mine - other) / 2
                independent += abs(mine - product) / 2
        assert item.synthetic == pytest.approx(distance, abs=1e-12)
        assert item.independent == pytest.approx(independent, abs=1e-12)
        singles = {one.column: one.synthetic for one in found.columns}
        assert item.synthetic >= max(singles[item.first], singles[item.second]) - 1e-12
        assert item.synthetic <= 1 + 1e-12


@settings(max_examples=60, deadline=None)
@given(real=ROWS, synthetic=ROWS, ways=st.integers(1, 3))
def test_k_way_distances_are_those_of_the_definition(real: tuple, synthetic: tuple, ways: int) -> None:
    truth, made = table(real), table(synthetic)
    expected = []
    for marginal in combinations(range(3), ways):
        first, second = ([tuple(row) for row in rows[:, marginal].tolist()] for rows in (truth, made))
        cells = product(*(range(SIZES[column]) for column in marginal))
        gaps = [abs(first.count(cell) / len(first) - second.count(cell) / len(second)) for cell in cells]
        expected.append(sum(gaps) / 2)
    found = k_way_distance(truth, made, SIZES, ways)
    assert found.mean == pytest.approx(np.mean(expected), abs=1e-12)
    assert found.largest == pytest.approx(max(expected), abs=1e-12)
    assert (found.ways, found.measured) == (ways, found.marginals) == (ways, len(expected))


def test_the_report_holds_the_three_way_distances() -> None:
    rng = np.random.default_rng(1)
    truth, made = (np.stack([rng.integers(0, size, 300) for size in SIZES], axis=1) for _ in range(2))
    found = measure_fidelity(truth, made, NAMES, SIZES)
    assert found.triples == k_way_distance(truth, made, SIZES, 3)
    assert found.resampled_triples is not None
    assert found.resampled_triples.mean > 0
    assert measure_fidelity(truth[:, :2], made[:, :2], NAMES[:2], SIZES[:2]).triples is None


def test_of_many_marginals_a_sample_is_compared_and_always_the_same() -> None:
    rng = np.random.default_rng(2)
    truth, made = rng.integers(0, 2, (50, 12)), rng.integers(0, 2, (60, 12))
    found = k_way_distance(truth, made, [2] * 12, 3, most=40)
    assert (found.measured, found.marginals) == (40, 220)
    assert found == k_way_distance(truth, made, [2] * 12, 3, most=40)
    whole = k_way_distance(truth, made, [2] * 12, 3)
    assert whole.measured == 220
    assert found.mean == pytest.approx(whole.mean, rel=0.3)
    assert found.largest <= whole.largest


def test_cells_without_number_are_no_harder(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    truth, made = rng.integers(0, 50, 200), rng.integers(0, 40, 300)
    dense = distance(truth, made, 50)
    monkeypatch.setattr(fidelity, "_MOST_CELLS", 10)
    assert distance(truth, made, 50) == pytest.approx(dense, abs=1e-12)
    huge = 10**15
    assert distance(truth * 10**13, made * 10**13, huge) == pytest.approx(dense, abs=1e-12)


@settings(max_examples=30, deadline=None)
@given(rows=ROWS)
def test_a_table_is_at_no_distance_from_itself(rows: tuple) -> None:
    found = measure_fidelity(table(rows), table(rows), NAMES, SIZES)
    assert found.mean_column == found.mean_pair == 0.0
    assert found.triples is not None
    assert found.triples.largest == 0.0


def test_a_bootstrap_of_many_rows_is_close_to_the_truth() -> None:
    real = np.random.default_rng().integers(0, 2, size=(20_000, 2))
    found = measure_fidelity(real, real[:5000], ("a", "b"), (2, 2))
    # A column's deviation is 0.007: 0.06 are 8 of them, 1e-15; a pair's four cells add up to 0.01 on average. That all
    # four are exactly as in the truth takes counts that four divides, 1 / 64, and then has a chance of 3e-6: 5e-8.
    assert max(item.resampled for item in found.columns) < 0.06
    assert 0 < found.pairs[0].resampled < 0.06


def test_without_rows_there_is_a_reason_instead_of_numbers() -> None:
    nothing, something = np.zeros((0, 2), dtype=int), np.zeros((3, 2), dtype=int)
    assert measure_fidelity(nothing, something, ("a", "b"), (2, 2)).not_available == "there are no real rows to compare"
    empty = measure_fidelity(something, nothing, ("a", "b"), (2, 2))
    assert empty.not_available == "there are no synthetic rows to compare"
    assert math.isnan(empty.mean_pair)
