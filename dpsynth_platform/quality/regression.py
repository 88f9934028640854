"""Regression: models of a numeric target that learn from synthetic rows against models that learn from real rows.

What belongs here: training them, and testing them on the same held-out real rows. What does not: targets of categories
(`utility`), whose features and limits these are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from dpsynth_platform.quality.columns import Column, Values, of_rows, of_tables, row_counts
from dpsynth_platform.quality.features import Matrix, for_training, width
from dpsynth_platform.quality.utility import LEAST_HOLDOUT, MOST_NUMBERS, STATE, some_rows


@dataclass(frozen=True)
class Errors:
    """Scores on the held-out rows.

    Attributes:
        r_squared: share of the target's variance that is predicted; 1: all, 0: no better than the held-out mean.
        absolute_error: mean absolute error over that of the held-out median; 0: none, 1: no better.
        rank_correlation: Spearman's, of predictions and truth, in [-1, 1]; 0 for constant predictions.
    """

    r_squared: float
    absolute_error: float
    rank_correlation: float


@dataclass(frozen=True)
class Predicted:
    """Both models trained on one table, and the mean of their scores; or why there are none."""

    xgboost: Errors | None = None
    linear: Errors | None = None
    mean: Errors | None = None
    not_available: str | None = None


@dataclass(frozen=True)
class Regression:
    """Models trained on each table; or why there is no comparison. `real` is None without the mechanism's rows."""

    target: str
    holdout_rows: int = 0
    synthetic: Predicted | None = None
    real: Predicted | None = None
    not_available: str | None = None


def measure_regression(columns: Sequence[Column], target: str) -> Regression:
    """Trains on the second (synthetic) and, if given, third (real) table; tests on the first (held-out real rows).

    XGBoost with defaults and ridge regression, on the features of `utility`. Rows without a target are left out.
    """
    goal = next((column for column in columns if column.name == target), None)
    if goal is None or goal.size is not None:
        return Regression(target, not_available="the target is no column of numbers that is modelled")
    most = MOST_NUMBERS // width(columns)
    known = [some_rows(np.flatnonzero(~np.isnan(part)), most) for part in goal.parts]
    truth = goal.parts[0][known[0]]
    problem = None
    if len(truth) < LEAST_HOLDOUT:
        problem = f"fewer than {LEAST_HOLDOUT} held-out rows have a target"
    elif np.ptp(truth) == 0:
        problem = "the target of held-out rows is constant"
    elif len(columns) < 2:
        problem = "there is no column except the target"
    if problem:
        return Regression(target, len(truth), not_available=problem)
    rows = of_rows(columns, *known)
    trained = [_train_and_test(of_tables(rows, 0, table), target) for table in range(1, len(goal.parts))]
    return Regression(target, len(truth), trained[0], trained[1] if len(trained) > 1 else None)


def _train_and_test(columns: Sequence[Column], target: str) -> Predicted:
    """Trains both models on the second table and tests them on the first."""
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import RobustScaler
    from xgboost import XGBRegressor

    if not row_counts(columns)[1]:
        return Predicted(not_available="no row to train on has a target")
    truth, values = next(column for column in columns if column.name == target).parts
    test, train = for_training([column for column in columns if column.name != target])
    models = (XGBRegressor(random_state=STATE, n_jobs=1), Ridge())
    pipelines = [make_pipeline(SimpleImputer(keep_empty_features=True), RobustScaler(), model) for model in models]
    scores = [_score(truth, _predict(pipeline, train, values, test)) for pipeline in pipelines]
    return Predicted(scores[0], scores[1], Errors(*np.mean([astuple(each) for each in scores], axis=0).tolist()))


def _predict(pipeline: Any, train: Matrix, values: Values, test: Matrix) -> Values:
    """Predictions inside the range of the values that were learned, so that no line runs far beyond them."""
    low, high = float(values.min()), float(values.max())
    unit = (high - low) or 1.0
    found = pipeline.fit(train, (values - low) / unit).predict(test) * unit + low
    return np.clip(np.asarray(found, dtype=np.float64), low, high)


def _score(truth: Values, guessed: Values) -> Errors:
    from scipy.stats import spearmanr
    from sklearn.metrics import r2_score

    least = float(np.abs(truth - np.median(truth)).mean())
    ranks = float(spearmanr(truth, guessed).statistic) if np.ptp(guessed) > 0 else 0.0
    return Errors(float(r2_score(truth, guessed)), float(np.abs(truth - guessed).mean()) / least, ranks)
