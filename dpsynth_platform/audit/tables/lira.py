"""LiRA: the likelihood-ratio attack with shadow models (Carlini et al., "Membership Inference Attacks From First
Principles", IEEE S&P 2022).

What belongs here: comparing the attacked model's log-likelihood of a record with what models with it, and without it,
say. What does not: fitting those models (`shadows`).

With the few shadow models that fit into minutes, one variance for all targets is better than one each (section VI-A).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.audit.tables.signals import log_likelihoods, needed_shadows

_LEAST_DEVIATION = 1e-9


def online_scores(signals: Floats, shadows: Floats, included: npt.NDArray[np.bool_]) -> Floats:
    """Log-ratio of two normal laws at each target's signal: of models with it, and of models without (algorithm 1).

    Args:
        signals: the attacked model's, shape (targets,).
        shadows: the shadow models', shape (models, targets).
        included: which targets were in which model, same shape; each target in at least one, and not in all.
    """
    inside, outside = (_means(shadows, chosen) for chosen in (included, ~included))
    deviation_in, deviation_out = _deviation(shadows - inside, included), _deviation(shadows - outside, ~included)
    ratio = ((signals - outside) / deviation_out) ** 2 - ((signals - inside) / deviation_in) ** 2
    return np.asarray(ratio / 2 + np.log(deviation_out / deviation_in), dtype=np.float64)


def offline_scores(signals: Floats, shadows: Floats, included: npt.NDArray[np.bool_]) -> Floats:
    """How far each target's signal is above those of models without it, in deviations (section VI-C).

    Args:
        signals: as for `online_scores`.
        shadows: likewise.
        included: likewise; models that a target was in are not looked at.
    """
    outside = _means(shadows, ~included)
    return np.asarray((signals - outside) / _deviation(shadows - outside, ~included), dtype=np.float64)


def online_attack(evidence: Evidence) -> Floats:
    """`online_scores` of the evidence; needs model and shadows."""
    shadows = needed_shadows(evidence)
    return online_scores(log_likelihoods(evidence), shadows.likelihoods, shadows.included)


def offline_attack(evidence: Evidence) -> Floats:
    """`offline_scores` of the evidence; needs model and shadows."""
    shadows = needed_shadows(evidence)
    return offline_scores(log_likelihoods(evidence), shadows.likelihoods, shadows.included)


def _means(values: Floats, chosen: npt.NDArray[np.bool_]) -> Floats:
    return np.asarray(np.where(chosen, values, 0.0).sum(axis=0) / chosen.sum(axis=0), dtype=np.float64)


def _deviation(residuals: Floats, chosen: npt.NDArray[np.bool_]) -> float:
    """Standard deviation over all targets; one degree of freedom a target goes into its mean."""
    freedom = max(1, int((chosen.sum(axis=0) - 1).sum()))
    return max(float(np.sqrt(np.square(residuals[chosen]).sum() / freedom)), _LEAST_DEVIATION)
