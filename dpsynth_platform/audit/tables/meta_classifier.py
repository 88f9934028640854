"""The shadow-model meta-classifier: a classifier on features of synthetic tables.

What belongs here: the attack of Stadler, Oprisanu & Troncoso, "Synthetic Data: Anonymisation Groundhog Day" (USENIX
Security 2022), with the counting queries of TAPAS (Houssiau et al. 2022) as features. What does not: fitting shadow
models and counting (`shadows`, `agreement`).

The papers train one classifier a target, on hundreds of shadow models. Here one serves all targets: a feature is how
many more synthetic rows than usual agree with the target in some columns, which has the same meaning for each target.
Thirty models and a thousand targets give thirty thousand examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.tables.agreement import agreeing_rows
from dpsynth_platform.audit.tables.evidence import Evidence, needed_shadows
from dpsynth_platform.foundation.errors import AccountingError

Features = npt.NDArray[np.floating[Any]]

MOST_EXAMPLES = 30_000
"""Training examples of the classifier; of more, a random part is used."""


def meta_scores(agreements: Features, shadows: Features, included: npt.NDArray[np.bool_]) -> Floats:
    """Log-odds of "in" by a logistic regression trained on the shadow models.

    `agreements` of targets with the attacked sample have shape (targets, queries), those with `shadows` (models,
    targets, queries), membership `included` (models, targets).
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
        raise AccountingError("audit: there are no samples of shadow models; accepted: `fit_shadows` with queries")
    found = agreeing_rows(evidence.target_codes, evidence.synthetic_codes, shadows.queries)
    return meta_scores(found * (shadows.sampled / len(evidence.synthetic_codes)), shadows.agreements, shadows.included)


def _surprise(found: Features, usual: Features) -> Features:
    """Rows above the usual number, in standard deviations of a Poisson number."""
    return np.asarray((found - usual) / np.sqrt(usual + 1), dtype=np.float64)
