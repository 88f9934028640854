"""LiRA: the likelihood-ratio attack with shadow models (Carlini et al., "Membership Inference Attacks From First
Principles", IEEE S&P 2022).

What belongs here: comparing the attacked model's log-likelihood of a record with that of models with and without it.
What does not: fitting those models (`shadows`).

The paper has hundreds of shadow models, or one variance for all targets (section VI-A). Log-likelihoods of records
vary more between targets than losses of a classifier do, and a dozen fits of a table's mechanism take minutes. So each
target's deviation is shrunk towards that of all (Smyth, "Linear Models and Empirical Bayes Methods", 2004), and so is
the difference of its two means. With sixteen models of adult without noise this raises the online attack's area under
the curve from 0.56 to 0.61.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.tables.evidence import Evidence, log_likelihoods, needed_shadows

_LEAST_DEVIATION = 1e-9
_FREEDOM = 4
"""Weight, in models, of all targets' variance in each target's."""
_SHIFT_MODELS = 64
"""Weight, in models, of all targets' difference of means in each target's."""


def online_scores(signals: Floats, shadows: Floats, included: npt.NDArray[np.bool_]) -> Floats:
    """Log-ratio of two normal densities at each target's signal: of models with it, and without it (algorithm 1).

    `signals` of the attacked model have shape (targets,), `shadows` and membership `included` (models, targets); each
    target is in at least one model, and not in all.
    """
    inside, outside = (_means(shadows, chosen) for chosen in (included, ~included))
    deviation = _deviations(shadows - np.where(included, inside, outside), np.ones_like(included), means=2)
    own, models = (inside - outside) / deviation, len(shadows)
    shift = (own * models + own.mean() * _SHIFT_MODELS) / (models + _SHIFT_MODELS)
    return np.asarray(shift * (signals - (inside + outside) / 2) / deviation, dtype=np.float64)


def offline_scores(signals: Floats, shadows: Floats, included: npt.NDArray[np.bool_]) -> Floats:
    """Each target's signal above those of models without it, in deviations (section VI-C)."""
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
    """Standard deviation of each target's signal, shape (targets,), after subtracting `means` means."""
    squares = np.where(chosen, residuals**2, 0.0).sum(axis=0)
    freedom = np.maximum(chosen.sum(axis=0) - means, 0)
    usual = squares.sum() / max(1, int(freedom.sum()))
    variance = (squares + _FREEDOM * usual) / (freedom + _FREEDOM)
    return np.asarray(np.maximum(np.sqrt(variance), _LEAST_DEVIATION), dtype=np.float64)
