"""Utility: is a classifier trained on synthetic rows about as good on real people as one trained on real rows?

What belongs here: training the classifiers, testing them on the same held-out real rows, and saying why where that is
not possible. What does not: choosing the held-out rows (they are split by owner before the mechanism), or groups of
people (`fairness`).

The classifiers are those of the DP-2Stage benchmark (Afonja et al., TMLR 2025, section 5.1.2), and what is done before
them is that of its published code: XGBoost with its defaults and logistic regression with balanced classes and 50
iterations, on one-hot categories and standardized numbers (both over the held-out and the training rows together), then
imputed by the mean and scaled robustly. Their random state is fixed: nothing private is protected by it, and a reviewer
can repeat the comparison.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpsynth_platform.quality.columns import Codes, Column, Values, of_rows, of_tables, row_counts
from dpsynth_platform.quality.features import Matrix, for_training, width

LEAST_HOLDOUT = 50
"""Fewer held-out rows than this say nothing about a classifier."""
MOST_CLASSES = 50
_MOST_NUMBERS = 50_000_000
"""So many features of all rows together fit well into memory; of more rows, some are drawn at random."""
_STATE = 1000


@dataclass(frozen=True)
class Scores:
    """Classifiers on the held-out rows, in [0, 1].

    Attributes:
        f1: of the class that fewer held-out rows have; for more than two classes the mean over classes.
        roc_auc: of that class; for more than two the mean of each against the rest.
        accuracy: share of held-out rows that were told right.
    """

    f1: float
    roc_auc: float
    accuracy: float


@dataclass(frozen=True)
class Trained:
    """Both classifiers trained on one table, and the mean of their scores; or the reason why there are none."""

    xgboost: Scores | None = None
    logistic_regression: Scores | None = None
    mean: Scores | None = None
    not_available: str | None = None


@dataclass(frozen=True)
class Utility:
    """Classifiers trained on each table and the share of the most frequent class; or why there is no comparison.

    Attributes:
        classes: number of classes that held-out rows have.
        real: trained on the real rows that the mechanism had; None where there is no such table.
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
    """What `fairness` needs: which held-out rows have a target, its true classes, and what XGBoost took them for.

    Attributes:
        rows: indices of the held-out rows.
        truth, synthetic, real: target codes of those rows; None where no classifier could be trained.
        minority: the class that fewest of those rows have.
    """

    rows: Codes
    truth: Codes
    synthetic: Codes | None
    real: Codes | None
    minority: int


def measure_utility(columns: Sequence[Column], target: str | None) -> tuple[Utility, Predictions | None]:
    """Trains on synthetic and, where there are any, on real rows; tests all on held-out real rows.

    Args:
        columns: of the held-out rows, the synthetic rows, and perhaps the real rows that the mechanism had.
        target: the column of categories to predict; rows where it is missing are left out.
    """
    if target is None:
        return Utility(not_available="no target is named (quality.target of the contract)"), None
    goal = next((column for column in columns if column.name == target), None)
    if goal is None or goal.size is None:
        return Utility(target=target, not_available="the target is no column of categories that is modelled"), None
    known = [_some(np.flatnonzero(part != goal.size - 1), _MOST_NUMBERS // width(columns)) for part in goal.parts]
    truth = goal.parts[0][known[0]]
    present, counts = np.unique(truth, return_counts=True)
    utility = Utility(target, len(truth), len(present))
    if len(truth) < LEAST_HOLDOUT:
        return _without(utility, f"fewer than {LEAST_HOLDOUT} held-out rows have a target"), None
    if not 2 <= len(present) <= MOST_CLASSES:
        return _without(utility, f"held-out rows have {len(present)} classes; accepted: 2 to {MOST_CLASSES}"), None
    if len(columns) < 2:
        return _without(utility, "there is no column but the target"), None
    minority = int(present[counts.argmin()])
    known_rows = of_rows(columns, *known)
    trained, guesses = zip(
        *(_train_and_test(of_tables(known_rows, 0, table), target) for table in range(1, len(goal.parts))), strict=True
    )
    found = Utility(target, len(truth), len(present), float(counts.max() / len(truth)), *trained)
    return found, Predictions(known[0], truth, guesses[0], guesses[1] if len(guesses) > 1 else None, minority)


def _without(utility: Utility, reason: str) -> Utility:
    return Utility(utility.target, utility.holdout_rows, utility.classes, not_available=reason)


def _some(rows: Codes, most: int) -> Codes:
    return rows if len(rows) <= most else np.sort(np.random.default_rng(0).choice(rows, most, replace=False))


def _train_and_test(columns: Sequence[Column], target: str) -> tuple[Trained, Codes | None]:
    """Both classifiers trained on the second table and tested on the first; XGBoost's guesses."""
    goal = next(column for column in columns if column.name == target)
    truth, classes = goal.parts
    if not row_counts(columns)[1]:
        return Trained(not_available="no row to train on has a target"), None
    test, train = for_training([column for column in columns if column.name != target])
    scores, guesses = [], []
    for model in _models():
        values, chances = _predict(model, train, classes, test)
        guesses.append(values[chances.argmax(axis=1)])
        scores.append(_score(truth, guesses[-1], chances, values))
    mean = Scores(*(float(np.mean([getattr(each, name) for each in scores])) for name in ("f1", "roc_auc", "accuracy")))
    return Trained(scores[0], scores[1], mean), guesses[0]


def _models() -> list[Any]:
    from sklearn.linear_model import LogisticRegression
    from xgboost import XGBClassifier

    # One thread gives the same trees, and does not stand still where other processes have the cores.
    trees = XGBClassifier(random_state=_STATE, n_jobs=1)
    return [trees, LogisticRegression(class_weight="balanced", max_iter=50)]


def _predict(model: Any, train: Matrix, classes: Codes, test: Matrix) -> tuple[Codes, Matrix]:
    """Classes that the rows to train on have, and the chance of each for every row to test, shape (rows, classes).

    Rows of one class only teach nothing but that: everybody is of it.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import RobustScaler

    values, labels = np.unique(classes, return_inverse=True)
    if values.size == 1:
        return values, np.ones((len(test), 1))
    pipeline = make_pipeline(SimpleImputer(keep_empty_features=True), RobustScaler(), model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fifty iterations are part of the measure
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
