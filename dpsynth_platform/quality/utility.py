"""Utility: classifiers trained on synthetic rows against classifiers trained on real rows.

What belongs here: training them, testing them on the same held-out real rows, and reasons why that is not possible.
What does not: choosing the held-out rows (split by owner before the mechanism), targets of numbers (`regression`), or
groups of people (`fairness`).

Classifiers and preprocessing are those of the DP-2Stage benchmark (Afonja et al., TMLR 2025, section 5.1.2) and its
published code: XGBoost with defaults, and logistic regression with balanced classes and 50 iterations. Features are
one-hot categories and standardized numbers (over held-out and training rows together), imputed by the mean and scaled
robustly. The random state is fixed so that reviewers can repeat the comparison; it protects nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from dpsynth_platform.foundation.process_state import own_warning_filters
from dpsynth_platform.quality.columns import Codes, Column, Values, of_rows, of_tables, row_counts
from dpsynth_platform.quality.features import Matrix, for_training, width

LEAST_HOLDOUT = 50
"""The least held-out rows that can test a classifier."""
MOST_CLASSES = 50
MOST_NUMBERS = 50_000_000
"""Limit for rows times features; of more rows a random sample is used."""
STATE = 1000


@dataclass(frozen=True)
class Scores:
    """Accuracy, F1 and ROC AUC on the held-out rows, in [0, 1].

    F1 and AUC are those of the rarer class; for more than two classes the mean over classes (AUC: against the rest).
    """

    f1: float
    roc_auc: float
    accuracy: float


@dataclass(frozen=True)
class Trained:
    """Both classifiers trained on one table, and the mean of their scores; or why there are none."""

    xgboost: Scores | None = None
    logistic_regression: Scores | None = None
    mean: Scores | None = None
    not_available: str | None = None


@dataclass(frozen=True)
class Utility:
    """Classifiers trained on each table and the share of the most frequent class; or why there is no comparison.

    `classes` counts the held-out rows' classes; `real` is None without a table of the mechanism's real rows.
    """

    target: str | None = None
    holdout_rows: int = 0
    classes: int = 0
    majority_accuracy: float | None = None
    synthetic: Trained | None = None
    real: Trained | None = None
    not_available: str | None = None


@dataclass(frozen=True)
class Predictions:
    """XGBoost's predictions for `fairness`.

    Attributes:
        rows: indices of the held-out rows that have a target.
        truth, synthetic, real: true and predicted target codes of those rows; None if no classifier could be trained.
        minority: the rarest class of those rows.
    """

    rows: Codes
    truth: Codes
    synthetic: Codes | None
    real: Codes | None
    minority: int


def measure_utility(columns: Sequence[Column], target: str | None) -> tuple[Utility, Predictions | None]:
    """Trains on the second (synthetic) and, if given, third (real) table; tests on the first (held-out real rows).

    Rows without a value of the target, a column of categories, are left out.
    """
    if target is None:
        return Utility(not_available="no target is named (quality.target of the contract)"), None
    goal = next((column for column in columns if column.name == target), None)
    if goal is None or goal.size is None:
        return Utility(target=target, not_available="the target is no column of categories that is modelled"), None
    known = [some_rows(np.flatnonzero(part != goal.size - 1), MOST_NUMBERS // width(columns)) for part in goal.parts]
    truth = goal.parts[0][known[0]]
    present, counts = np.unique(truth, return_counts=True)
    problem = None
    if len(truth) < LEAST_HOLDOUT:
        problem = f"fewer than {LEAST_HOLDOUT} held-out rows have a target"
    elif not 2 <= len(present) <= MOST_CLASSES:
        problem = f"held-out rows have {len(present)} classes; accepted: 2 to {MOST_CLASSES}"
    elif len(columns) < 2:
        problem = "there is no column except the target"
    if problem:
        return Utility(target, len(truth), len(present), not_available=problem), None
    minority = int(present[counts.argmin()])
    known_rows = of_rows(columns, *known)
    trained, guesses = zip(
        *(_train_and_test(of_tables(known_rows, 0, table), target) for table in range(1, len(goal.parts))), strict=True
    )
    found = Utility(target, len(truth), len(present), float(counts.max() / len(truth)), *trained)
    return found, Predictions(known[0], truth, guesses[0], guesses[1] if len(guesses) > 1 else None, minority)


def some_rows(rows: Codes, most: int) -> Codes:
    """These rows, or a fixed random sample of so many, in order."""
    return rows if len(rows) <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def _train_and_test(columns: Sequence[Column], target: str) -> tuple[Trained, Codes | None]:
    """Trains both classifiers on the second table and tests them on the first. Also returns XGBoost's predictions."""
    from sklearn.linear_model import LogisticRegression
    from xgboost import XGBClassifier

    goal = next(column for column in columns if column.name == target)
    truth, classes = goal.parts
    if not row_counts(columns)[1]:
        return Trained(not_available="no row to train on has a target"), None
    test, train = for_training([column for column in columns if column.name != target])
    # One thread gives the same trees, and does not wait for cores that other processes use.
    trees = XGBClassifier(random_state=STATE, n_jobs=1)
    scores, predicted = [], []
    for model in (trees, LogisticRegression(class_weight="balanced", max_iter=50)):
        values, chances = _predict(model, train, classes, test)
        predicted.append(values[chances.argmax(axis=1)])
        scores.append(_score(truth, predicted[-1], chances, values))
    mean = Scores(*np.mean([astuple(each) for each in scores], axis=0).tolist())
    return Trained(scores[0], scores[1], mean), predicted[0]


def _predict(model: Any, train: Matrix, classes: Codes, test: Matrix) -> tuple[Codes, Matrix]:
    """The training rows' classes, and test rows' probabilities of shape (rows, classes); a single class is certain."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import RobustScaler

    values, labels = np.unique(classes, return_inverse=True)
    if values.size == 1:
        return values, np.ones((len(test), 1))
    pipeline = make_pipeline(SimpleImputer(keep_empty_features=True), RobustScaler(), model)
    with own_warning_filters():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the measure fixes 50 iterations
        pipeline.fit(train, labels)
    return values, np.asarray(pipeline.predict_proba(test))


def _score(truth: Codes, guessed: Codes, chances: Values, classes: Codes) -> Scores:
    from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

    present, counts = np.unique(truth, return_counts=True)
    judged = present if present.size > 2 else present[[counts.argmin()]]
    areas = []
    for value in judged:
        column = np.flatnonzero(classes == value)
        areas.append(roc_auc_score(truth == value, chances[:, column[0]] if column.size else np.zeros(len(truth))))
    return Scores(
        f1=float(f1_score(truth, guessed, average="macro", labels=judged, zero_division=0)),
        roc_auc=float(np.mean(areas)),
        accuracy=float(accuracy_score(truth, guessed)),
    )
