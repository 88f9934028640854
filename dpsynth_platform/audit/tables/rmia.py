"""RMIA: the relative membership inference attack (Zarifzadeh, Liu & Shokri, "Low-Cost High-Power Membership Inference
Attacks", ICML 2024).

What belongs here: comparing a target's likelihood ratio between model and shadow models with those of other records of
the population. What does not: the models (`shadows`).

The paper's offline form infers the likelihood under models with the target from that under models without it, by a
line; for densities, which have no natural scale, the line is a constant factor, which does not change the order.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.tables.evidence import Evidence, log_likelihoods, needed_shadows


def relative_scores(ratios: Floats, reference_ratios: Floats, *, gamma: float = 1.0) -> Floats:
    """Share of the reference records that a target's likelihood ratio exceeds by the factor gamma (equations 2 and 3).

    Where a target exceeds all references or none, the distance to the last one keeps the order.

    Args:
        ratios: log p(x | model) - log p(x) of the targets, shape (targets,).
        reference_ratios: the same of the population's records, shape (references,).
        gamma: at least 1; the order of targets hardly depends on it.
    """
    known = np.sort(reference_ratios) + np.log(gamma)
    share = np.searchsorted(known, ratios, side="right") / known.size
    beyond = np.maximum(ratios - known[-1], 0) + np.minimum(ratios - known[0], 0)
    return np.asarray(share + beyond, dtype=np.float64)


def online_attack(evidence: Evidence) -> Floats:
    """p(x) is the mean over all shadow models, half of which had the target (section 3.1). Needs model and shadows."""
    shadows = needed_shadows(evidence)
    return _scores(evidence, np.ones_like(shadows.included))


def offline_attack(evidence: Evidence) -> Floats:
    """p(x) is the mean over the shadow models without the target. Needs model and shadows."""
    return _scores(evidence, ~needed_shadows(evidence).included)


def _scores(evidence: Evidence, models: npt.NDArray[np.bool_]) -> Floats:
    shadows = needed_shadows(evidence)
    usual = logsumexp(shadows.likelihoods, b=models, axis=0) - np.log(models.sum(axis=0))
    known = logsumexp(shadows.reference_likelihoods, axis=0) - np.log(len(models))
    return relative_scores(log_likelihoods(evidence) - usual, log_likelihoods(evidence, shadows.references) - known)
