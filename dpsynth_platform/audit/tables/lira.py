"""LiRA: the likelihood-ratio attack with shadow models (Carlini et al., "Membership Inference Attacks From First
Principles", IEEE S&P 2022).

What belongs here: comparing the attacked model's log-likelihood of a record with what models with it, and without it,
say. What does not: fitting those models (`shadows`).

The paper has hundreds of shadow models, or one variance for all targets (section VI-A). Log-likelihoods of records vary
more from one target to the next than losses of a classifier do, and a table's mechanism is fitted a dozen times in
minutes. So each target has a deviation of its own, with the model or without it, that leans on that of all (Smyth,
"Linear Models and Empirical Bayes Methods", 2004), and so has the difference of its two means. With sixteen models of
adult without noise that brings the online attack's area under the curve from 0.56 to 0.61.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.audit.tables.signals import log_likelihoods, needed_shadows

_LEAST_DEVIATION = 1e-9
_FREEDOM = 4
"""Models by which all targets' variance counts in each target's."""
_SHIFT_MODELS = 64
"""Models with which a target's own difference of means counts as much as that of all targets."""


def online_scores(signals: Floats, shadows: Floats, included: npt.NDArray[np.bool_]) -> Floats:
    """Log-ratio of two normal laws at each target's signal: of models with it, and of models without (algorithm 1).

    Args:
        signals: the attacked model's, shape (targets,).
        shadows: the shadow models', shape (models, targets).
        included: which targets were in which model, same shape; each target in at least one, and not in all.
    """
    inside, outside = (_means(shadows, chosen) for chosen in (included, ~included))
    deviation = _deviations(shadows - np.where(included, inside, outside), np.ones_like(included), means=2)
    own, models = (inside - outside) / deviation, len(shadows)
    shift = (own * models + own.mean() * _SHIFT_MODELS) / (models + _SHIFT_MODELS)
    return np.asarray(shift * (signals - (inside + outside) / 2) / deviation, dtype=np.float64)


def offline_scores(signals: Floats, shadows: Floats, included: npt.NDArray[np.bool_]) -> Floats:
    """How far each target's signal is above those of models without it, in deviations (section VI-C).

    Args:
        signals: as for `online_scores`.
        shadows: likewise.
        included: likewise; models that a target was in are not looked at.
    """
    outside = _means(shadows, ~included)
    return np.asarray((signals - outside) / _deviations(shadows - outside, ~included, means=1), dtype=np.float64)


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


def _deviations(residuals: Floats, chosen: npt.NDArray[np.bool_], *, means: int) -> Floats:
    """Standard deviation of each target's signal, shape (targets,); so many means were taken from it."""
    squares = np.where(chosen, residuals**2, 0.0).sum(axis=0)
    freedom = np.maximum(chosen.sum(axis=0) - means, 0)
    usual = squares.sum() / max(1, int(freedom.sum()))
    variance = (squares + _FREEDOM * usual) / (freedom + _FREEDOM)
    return np.asarray(np.maximum(np.sqrt(variance), _LEAST_DEVIATION), dtype=np.float64)
