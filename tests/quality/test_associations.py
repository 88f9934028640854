from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2_contingency, pearsonr
from scipy.stats.contingency import association, crosstab

from dpsynth_platform.quality.associations import banded, correlation_ratio, cramers_v, matrix, pearson
from dpsynth_platform.quality.columns import Column

PAIRS = st.integers(2, 60).flatmap(
    lambda rows: st.tuples(
        *(st.lists(st.integers(0, 3), min_size=rows, max_size=rows).map(np.array) for _ in range(2)),
    )
)


@settings(max_examples=100, deadline=None)
@given(pair=PAIRS)
def test_cramers_v_is_that_of_the_definition(pair: tuple[np.ndarray, np.ndarray]) -> None:
    first, second = pair
    table = crosstab(first, second).count
    rows, columns = table.shape
    found = cramers_v(first, second)
    if min(rows, columns) < 2:
        assert math.isnan(found)
        return
    n = len(first)
    phi2 = max(0.0, chi2_contingency(table)[0] / n - (rows - 1) * (columns - 1) / (n - 1))
    least = min(rows - (rows - 1) ** 2 / (n - 1), columns - (columns - 1) ** 2 / (n - 1)) - 1
    if least <= 1e-9:
        assert math.isnan(found)
    else:
        assert found == pytest.approx(min(1.0, math.sqrt(phi2 / least)), abs=1e-7)


def test_without_correction_of_many_rows_it_is_scipys() -> None:
    rng = np.random.default_rng(1)
    first = rng.integers(0, 5, 200_000)
    second = np.where(rng.random(200_000) < 0.6, first, rng.integers(0, 5, 200_000))
    plain = association(crosstab(first, second).count, method="cramer")
    assert cramers_v(first, second) == pytest.approx(plain, abs=1e-3)
    assert cramers_v(first, second) == cramers_v(second, first)


def test_many_categories_need_no_large_table() -> None:
    ids = np.arange(50_000)
    assert math.isnan(cramers_v(ids, ids))
    assert cramers_v(ids // 2, ids // 2) == pytest.approx(1.0)


def test_categories_and_numbers_that_need_not_be_contiguous() -> None:
    codes = np.array([7, 7, 2, 2, 2])
    values = np.array([1.0, 3.0, 5.0, 6.0, 10.0])
    between = 2 * (2 - 5) ** 2 + 3 * (7 - 5) ** 2
    total = 16 + 4 + 0 + 1 + 25
    assert correlation_ratio(codes, values) == pytest.approx(math.sqrt(between / total))
    assert correlation_ratio(np.array([0, 0, 1]), np.array([1.0, 1.0, 2.0])) == 1.0
    assert correlation_ratio(np.array([0, 1, 0, 1]), np.array([1.0, 1.0, 2.0, 2.0])) == 0.0
    assert math.isnan(correlation_ratio(np.array([0, 0]), np.array([1.0, 2.0])))
    assert math.isnan(correlation_ratio(np.array([0, 1]), np.array([2.0, 2.0])))


def test_pearson_is_scipys() -> None:
    rng = np.random.default_rng(2)
    first = rng.normal(size=200)
    second = first * 0.3 + rng.normal(size=200)
    assert pearson(first, second) == pytest.approx(pearsonr(first, second).statistic)
    assert pearson(first, -first) == pytest.approx(-1.0)
    assert math.isnan(pearson(first, np.ones(200)))


def test_the_matrix_takes_the_measure_that_fits() -> None:
    number, other = np.array([1.0, 2.0, 3.0, np.nan]), np.array([2.0, 1.0, 4.0, 1.0])
    first, second = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0])
    columns = [
        Column("n", None, (number,)),
        Column("o", None, (other,)),
        Column("c", 3, (first,)),
        Column("d", 3, (second,)),
    ]
    found = matrix(columns, 0)
    filled = np.array([1.0, 2.0, 3.0, 0.0])
    assert np.array_equal(found, found.T)
    assert np.diag(found).tolist() == [1.0] * 4
    assert found[0, 1] == pytest.approx(pearsonr(filled, other).statistic)
    assert found[0, 2] == pytest.approx(correlation_ratio(first, filled))
    assert found[1, 3] == pytest.approx(correlation_ratio(second, other))
    assert found[2, 3] == pytest.approx(cramers_v(first, second))


def test_bands() -> None:
    found = banded(np.array([0.0, 0.0999, 0.1, -0.1, 0.2999, 0.3, -0.4999, 0.5, -1.0, 1.0, math.nan]))
    assert found.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 3]
