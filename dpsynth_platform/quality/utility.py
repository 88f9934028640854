"""Utility: is a classifier trained on synthetic rows about as good on real people as one trained on real rows?

What belongs here: training the two classifiers, testing both on the same held-out real rows, and saying why where that
is not possible. What does not: choosing the held-out rows (they are split by owner before the mechanism), or groups of
people (`fairness`).

Both classifiers see cell codes, so that the comparison is of the data and not of its precision. Their random state is
fixed: nothing private is protected by it, and a reviewer can repeat the comparison.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.synth.tabular.domain import Domain

Codes = npt.NDArray[Any]

LEAST_HOLDOUT = 50
"""Fewer held-out rows than this say nothing about a classifier."""
LEAST_TRAINING = 50
MOST_TRAINING = 200_000
"""A classifier is trained on at most so many rows, drawn at random; more would only take time."""
_MOST_CATEGORIES = 255


@dataclass(frozen=True)
class Scores:
    """A classifier on the held-out rows; or the reason why it could not be trained.

    Attributes:
        roc_auc: for more than two classes the mean of one against the rest; None where one class only is held out.
    """

    accuracy: float | None = None
    f1_macro: float | None = None
    roc_auc: float | None = None
    not_available: str | None = None


@dataclass(frozen=True)
class Utility:
    """Both classifiers and the share of the most frequent class; or the reason why there is no comparison."""

    target: str | None = None
    holdout_rows: int = 0
    majority_accuracy: float | None = None
    synthetic: Scores | None = None
    real: Scores | None = None
    not_available: str | None = None


@dataclass(frozen=True)
class Predictions:
    """What `fairness` needs: held-out codes of all columns with the true classes and both classifiers' predictions.

    A classifier that could not be trained has no predictions.
    """

    rows: Codes
    truth: Codes
    synthetic: Codes | None
    real: Codes | None


def measure_utility(
    real: Codes, synthetic: Codes, holdout: Codes, domain: Domain, target: str | None
) -> tuple[Utility, Predictions | None]:
    """Trains on synthetic and on real rows, tests both on held-out real rows.

    Args:
        real: shape (rows, columns), cell codes of the rows that the mechanism had.
        synthetic: shape (rows, columns), of the synthetic rows.
        holdout: shape (rows, columns), of real rows whose owners the mechanism never saw.
        domain: of the columns.
        target: the column to predict; rows where it is missing are left out.
    """
    if target is None:
        return Utility(not_available="the contract names no target (quality.target)"), None
    if target not in domain.names:
        return Utility(target=target, not_available="the target column is not modelled"), None
    index = domain.names.index(target)
    missing = domain.columns[index].missing
    real, synthetic, holdout = (rows[rows[:, index] != missing] for rows in (real, synthetic, holdout))
    if len(holdout) < LEAST_HOLDOUT:
        reason = f"fewer than {LEAST_HOLDOUT} held-out rows have a target"
        return Utility(target=target, holdout_rows=len(holdout), not_available=reason), None
    truth = holdout[:, index]
    made, scores_made = _train_and_test(synthetic, holdout, index, domain)
    kept, scores_kept = _train_and_test(real, holdout, index, domain)
    majority = float(np.bincount(truth).max() / len(truth))
    utility = Utility(target, len(holdout), majority, scores_made, scores_kept)
    return utility, Predictions(holdout, truth, made, kept)


def _train_and_test(train: Codes, test: Codes, index: int, domain: Domain) -> tuple[Codes | None, Scores]:
    from sklearn.ensemble import HistGradientBoostingClassifier

    classes = np.unique(train[:, index])
    if len(train) < LEAST_TRAINING:
        return None, Scores(not_available=f"fewer than {LEAST_TRAINING} rows to train on have a target")
    if classes.size < 2:
        return None, Scores(not_available="the rows to train on have one class only")
    if len(train) > MOST_TRAINING:
        train = train[np.random.default_rng(0).choice(len(train), MOST_TRAINING, replace=False)]
    features = [position for position in range(len(domain)) if position != index]
    nominal = [
        domain.columns[position].kind == "categorical" and domain.columns[position].size <= _MOST_CATEGORIES
        for position in features
    ]
    model = HistGradientBoostingClassifier(categorical_features=nominal, early_stopping=False, random_state=0)
    model.fit(train[:, features], train[:, index])
    likely = model.predict_proba(test[:, features])
    predicted = model.classes_[likely.argmax(axis=1)]
    return predicted, _score(test[:, index], predicted, likely, model.classes_)


def _score(truth: Codes, predicted: Codes, likely: npt.NDArray[np.float64], classes: Codes) -> Scores:
    from sklearn.metrics import accuracy_score, f1_score, roc_auc_score

    present = np.unique(truth)
    areas = []
    for value in present if present.size > 1 else []:
        column = np.flatnonzero(classes == value)
        chance = likely[:, column[0]] if column.size else np.zeros(len(truth))
        areas.append(roc_auc_score(truth == value, chance))
    return Scores(
        accuracy=float(accuracy_score(truth, predicted)),
        f1_macro=float(f1_score(truth, predicted, average="macro", labels=present, zero_division=0)),
        roc_auc=float(np.mean(areas)) if areas else None,
    )
