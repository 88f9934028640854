from __future__ import annotations

import numpy as np
import pytest

from dpsynth_platform.quality.columns import Column
from dpsynth_platform.quality.regression import measure_regression

Table = dict[str, np.ndarray]


def rows(count: int, seed: int, *, linked: bool = True, slope: float = 3.0) -> Table:
    """Income is a line over skill and a step over group, with noise of a tenth of its deviation; or is unrelated."""
    rng = np.random.default_rng(seed)
    skill, group = rng.normal(size=count), rng.integers(0, 2, count)
    income = slope * skill + 4.0 * group + 0.3 * rng.normal(size=count)
    return {"skill": skill, "group": group, "income": income if linked else rng.permutation(income)}


def beside(*tables: Table) -> tuple[Column, ...]:
    """Columns of held-out, synthetic and perhaps real rows."""
    sizes = {"skill": None, "group": 3, "income": None}
    return tuple(Column(name, size, tuple(table[name] for table in tables)) for name, size in sizes.items())


def test_models_learn_what_is_there_and_not_what_is_not() -> None:
    found = measure_regression(beside(rows(500, 1), rows(1000, 2, linked=False), rows(1000, 3)), "income")
    # The noise has a variance of .09 of 9 + 4 + .09 in all.
    assert found.real.linear.r_squared == pytest.approx(1 - 0.09 / 13.09, abs=0.005)
    assert found.real.linear.absolute_error == pytest.approx(0.3 / np.sqrt(13.09), abs=0.03)
    assert found.real.linear.rank_correlation > 0.99
    assert found.real.xgboost.r_squared > 0.95
    assert found.real.mean.r_squared == pytest.approx((found.real.linear.r_squared + found.real.xgboost.r_squared) / 2)
    assert found.synthetic.linear.r_squared < 0.1
    assert found.synthetic.linear.absolute_error > 0.9
    assert (found.target, found.holdout_rows, found.not_available) == ("income", 500, None)


def test_what_was_learned_reversed_is_worse_than_the_mean() -> None:
    found = measure_regression(beside(rows(500, 1), rows(1000, 2, slope=-3.0)), "income")
    assert found.real is None
    assert found.synthetic.linear.r_squared < -1
    assert found.synthetic.linear.rank_correlation < 0


def test_a_constant_synthetic_target_predicts_nothing() -> None:
    made = rows(200, 2)
    made["income"] = np.full(200, 2.0)
    found = measure_regression(beside(rows(500, 1), made), "income").synthetic.mean
    assert found.r_squared <= 0
    assert found.rank_correlation == 0.0


def test_rows_without_a_target_are_left_out_and_reasons_given() -> None:
    held, made = rows(100, 1), rows(200, 2)
    held["income"][:40] = np.nan
    assert measure_regression(beside(held, made), "income").holdout_rows == 60
    held["income"][:60] = np.nan
    assert "fewer than 50 held-out rows" in measure_regression(beside(held, made), "income").not_available
    assert "no column of numbers" in measure_regression(beside(held, made), "group").not_available
    constant = rows(100, 1) | {"income": np.zeros(100)}
    assert "is constant" in measure_regression(beside(constant, made), "income").not_available
    nothing = rows(200, 2) | {"income": np.full(200, np.nan)}
    found = measure_regression(beside(rows(100, 1), made, nothing), "income")
    assert found.real.not_available == "no row to train on has a target"
    assert found.synthetic.mean is not None
