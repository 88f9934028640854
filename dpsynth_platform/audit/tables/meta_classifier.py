"""The shadow-model meta-classifier: a classifier on features of synthetic tables.

What belongs here: the attack of Stadler, Oprisanu & Troncoso, "Synthetic Data: Anonymisation Groundhog Day" (USENIX
Security 2022), with the counting queries of TAPAS (Houssiau et al. 2022) as features. What does not: fitting shadow
models and counting (`shadows`, `agreement`).

The papers train one classifier a target, on hundreds of shadow models. Here one is trained for all targets together: a
feature is how many more synthetic rows than usual agree with the target in some columns, which means the same whoever
the target is. Thirty models and a thousand targets give thirty thousand examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.tables.agreement import agreeing_rows
from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.audit.tables.signals import needed_shadows
from dpsynth_platform.foundation.errors import AccountingError

Features = npt.NDArray[np.floating[Any]]

MOST_EXAMPLES = 30_000
"""Examples that the classifier is trained on; of more, some are drawn."""


def meta_scores(agreements: Features, shadows: Features, included: npt.NDArray[np.bool_]) -> Floats:
    """Log-odds of "in" by a logistic regression that is trained on the shadow models.

    Args:
        agreements: of each target with the attacked sample, shape (targets, queries).
        shadows: with the shadow models' samples, shape (models, targets, queries).
        included: which targets were in which model, shape (models, targets).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    out = (~included).sum(axis=0)[:, None]
    total = np.where(included[:, :, None], 0.0, shadows).sum(axis=0)
    usual = total / out
    # A model without the target must not be compared with itself.
    others = np.where(included[:, :, None], usual, (total - shadows) / np.maximum(out - 1, 1))
    examples = _surprise(shadows, others).reshape(-1, shadows.shape[2])
    labels = included.ravel()
    some = np.random.default_rng().permutation(len(labels))[:MOST_EXAMPLES]
    classifier: Any = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=200))
    classifier.fit(examples[some], labels[some])
    return np.asarray(classifier.decision_function(_surprise(agreements, usual)), dtype=np.float64)


def meta_attack(evidence: Evidence) -> Floats:
    """`meta_scores` of the evidence; needs shadows with queries."""
    shadows = needed_shadows(evidence)
    if not shadows.queries:
        raise AccountingError("audit: the meta-classifier needs shadow models' samples; accepted: shadows with queries")
    found = agreeing_rows(evidence.target_codes, evidence.synthetic_codes, shadows.queries)
    return meta_scores(found * (shadows.sampled / len(evidence.synthetic_codes)), shadows.agreements, shadows.included)


def _surprise(found: Features, usual: Features) -> Features:
    """Rows more than usual, in deviations of a Poisson number."""
    return np.asarray((found - usual) / np.sqrt(usual + 1), dtype=np.float64)
