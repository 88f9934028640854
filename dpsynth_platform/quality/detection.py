"""Detection: how well a classifier tells rows of two tables apart, which it has to learn from both.

What belongs here: the classifier two-sample test. What does not: predicting a column (`utility`), or which rows are
compared (`records`).
"""

from __future__ import annotations

import numpy as np

from dpsynth_platform.quality.features import Matrix

_FOLDS = 3
_STATE = 1000


def detection_auc(real: Matrix, other: Matrix) -> float:
    """ROC AUC of XGBoost, cross-validated, for whether a row is of the other table, in [0, 1].

    Lopez-Paz and Oquab, "Revisiting Classifier Two-Sample Tests" (ICLR 2017), with AUC for accuracy. About 0.5: no
    difference was found; 1: every row is recognized. Both tables have the same number of rows, at least `_FOLDS`.

    Args:
        real, other: features of shape (rows, features); NaN is a missing number.
    """
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from xgboost import XGBClassifier

    rows = np.concatenate([real, other])
    labels = np.repeat([0, 1], [len(real), len(other)])
    # A fixed state, so that reviewers can repeat it; one thread, which gives the same trees.
    folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=_STATE)
    trees = XGBClassifier(n_estimators=50, max_depth=4, random_state=_STATE, n_jobs=1)
    chances = cross_val_predict(trees, rows, labels, cv=folds, method="predict_proba")[:, 1]
    return float(roc_auc_score(labels, chances))
