from __future__ import annotations

import numpy as np
import pytest

from dpsynth_platform.quality.columns import Column, declared
from dpsynth_platform.quality.single_columns import (
    chi_squared,
    kolmogorov_smirnov,
    measure_single_columns,
    wasserstein,
)
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain


def test_a_shift_of_numbers_has_the_distances_of_the_closed_form() -> None:
    """A uniform grid that moves by a quarter of the range: the functions differ by 1/4 everywhere between."""
    grid = np.arange(1024) / 1024
    assert kolmogorov_smirnov(grid, grid + 0.25) == pytest.approx(0.25)
    assert wasserstein(grid, grid + 0.25, 0.0, 1.25) == pytest.approx(0.25 / 1.25)
    assert kolmogorov_smirnov(grid, grid) == wasserstein(grid, grid, 0.0, 1.0) == 0.0
    # Total variation of cells is blind to how far values move; these are not.
    assert kolmogorov_smirnov(grid, grid + 5) == 1.0
    assert wasserstein(np.zeros(10), np.ones(10), 0.0, 1.0) == 1.0


def test_cramers_v_is_the_root_of_chi_squared_over_rows() -> None:
    """Two tables of 500 rows over three categories, by hand."""
    first, second = np.repeat([0, 1, 2], [300, 100, 100]), np.repeat([0, 1, 2], [100, 200, 200])
    chi2 = 2 * (100**2 / 200) + 4 * (50**2 / 150)  # expected: 200, 150, 150 in each table
    n, corrected = 1000, (2 - 1) * (3 - 1) / 999
    least = min(3 - 4 / 999, 2 - 1 / 999) - 1
    assert chi_squared(first, second) == pytest.approx(np.sqrt((chi2 / n - corrected) / least))
    assert chi_squared(first, first) == 0.0
    assert chi_squared(np.zeros(10, dtype=int), np.zeros(20, dtype=int)) == 0.0
    assert chi_squared(np.zeros(500, dtype=int), np.repeat([1, 2], 250)) == pytest.approx(1.0, abs=0.01)


def test_each_column_has_its_distances_beside_those_of_a_bootstrap() -> None:
    rng = np.random.default_rng(1)
    real, made = rng.normal(size=2000), rng.normal(1.0, size=1500)
    made[:300] = np.nan
    columns = [
        Column("n", None, (real, made), limits=(-10.0, 10.0)),
        Column("c", 3, (rng.integers(0, 2, 2000), np.ones(1500, dtype=int))),
        Column("unknown", None, (np.full(2000, np.nan), made)),
    ]
    found = {(item.column, item.kind): item for item in measure_single_columns(columns)}
    assert set(found) == {("n", "kolmogorov_smirnov"), ("n", "wasserstein"), ("c", "cramers_v")}
    # The shift of normal distributions by their deviation: 2 Phi(1/2) - 1, and 1 of a declared range of 20.
    assert found["n", "kolmogorov_smirnov"].synthetic == pytest.approx(0.383, abs=0.05)
    assert found["n", "wasserstein"].synthetic == pytest.approx(1 / 20, abs=0.005)
    assert all(item.resampled < item.synthetic / 3 for item in found.values())
    assert found == {(item.column, item.kind): item for item in measure_single_columns(columns)}, "it is repeatable"


def test_the_range_is_the_declared_one() -> None:
    import pyarrow as pa

    ages = ColumnDomain("age", "integer", nullable=True, edges=(0.0, 50.0, 101.0))
    cents = ColumnDomain("paid", "float", nullable=False, edges=(100.0, 901.0), decimals=2)
    table = pa.table({"age": [10, 20], "paid": [1.5, 2.5]})
    limits = {item.name: item.limits for item in declared(Domain((ages, cents)), [table, table])}
    assert limits == {"age": (0.0, 100.0), "paid": (1.0, 9.0)}
