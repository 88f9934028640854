"""Attacks by an attacker who knows which marginals the mechanism measured, and how common their cells are.

What belongs here: the attack of Golob, Pentyala, Maratkhan & De Cock, "Privacy Vulnerabilities in Marginals-based
Synthetic Data" (SaTML 2025; MAMA-MIA), on the released rows, and its form for an attacker with the noisy counts. What
does not: attacks on all columns at once (`density`), the decoding itself (`decoding`), or residuals (`grem`): a record
moves many residuals of a pair, which need a decoder of their own.

A model fitted to marginals depends on a record only through its cells in these marginals. Other features of the rows
only add noise to an attack.
"""

from __future__ import annotations

import numpy as np
from scipy import stats
from scipy.special import logsumexp

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.tables.decoding import Cells, LogDensity, decoded_scores, exponential_people, shown_noise
from dpsynth_platform.audit.tables.evidence import Evidence, needed_model
from dpsynth_platform.synth.tabular.model import Model, clique_scores, measured_cells

_PRIOR = 0.5
"""Records added to every cell of a table before computing its share (Jeffreys)."""
_SUMMED = 64
"""The density sums over fewer other records in a cell; for more, a normal approximation is as good."""
_CHUNK = 20_000


def share_ratio_scores(targets: Cells, synthetic: Cells, reference: Cells) -> Floats:
    """Mean over the measured marginals of the target's share in the release by that in the population (MAMA-MIA).

    Arguments are flat cells in every measured marginal, shape (rows, marginals); the result has shape (targets,).
    """
    scores = np.zeros(len(targets))
    for mine, made, known in zip(targets.T, synthetic.T, reference.T, strict=True):
        scores += _shares(made, mine) / _shares(known, mine)
    return np.asarray(scores / targets.shape[1], dtype=np.float64)


def known_people(others: Cells, scale: float) -> LogDensity:
    """Log-density of counts of other people, given a reference table of the population, with normal noise.

    A Poisson number whose mean is estimated from another Poisson number, with Jeffreys' prior: negative binomial.
    `others` are the reference's records in each target's cells, shape (targets, marginals), and `scale` > 0 other
    people in the data per record of the reference.
    """
    mean = (others.ravel() + _PRIOR) * scale
    variance = mean * (1 + scale)
    few = np.flatnonzero(mean + 4 * np.sqrt(variance) < _SUMMED)
    distinct, place = np.unique(others.ravel()[few], return_inverse=True)
    number = np.arange(_SUMMED)
    prior = stats.nbinom.logpmf(number, distinct[:, None] + _PRIOR, 1 / (1 + scale))

    def density(counts: Floats, noise: Floats) -> Floats:
        flat, deviation = counts.ravel(), np.broadcast_to(noise, counts.shape).ravel()
        found = -((flat - mean) ** 2) / (2 * (variance + deviation**2))
        for start in range(0, few.size, _CHUNK):
            part = few[start : start + _CHUNK]
            distance = (flat[part][:, None] - number) / deviation[part][:, None]
            found[part] = logsumexp(prior[place[start : start + _CHUNK]] - distance**2 / 2, axis=1)
        return np.asarray(found.reshape(counts.shape), dtype=np.float64)

    return density


def shares_attack(evidence: Evidence) -> Floats:
    """`share_ratio_scores` of the evidence; needs a model, which names the measured marginals."""
    model = needed_model(evidence)
    cells = [measured_cells(model, codes) for codes in (evidence.synthetic_codes, evidence.population_codes)]
    return share_ratio_scores(measured_cells(model, evidence.target_codes), *cells)


def counts_attack(evidence: Evidence) -> Floats:
    """The model's noisy counts, decoded; needs a model.

    The reference table gives other people's counts; without one, independent columns are assumed.
    """
    model = needed_model(evidence)
    measurements = (*model.measurements.one_way, *model.measurements.joint)
    seen, cells = clique_scores(model, evidence.targets), measured_cells(model, evidence.target_codes)
    if evidence.reference is None:
        density = exponential_people(np.maximum(seen.expected, 0) + evidence.counted)
    else:
        density = known_people(*_reference_counts(evidence, model, cells))
    return decoded_scores(seen.counts, cells, shown_noise(measurements), density, evidence.counted)


def _reference_counts(evidence: Evidence, model: Model, cells: Cells) -> tuple[Cells, float]:
    """Records of the reference table in each target's cells, and other people in the data per record of it.

    Half of the targets are assumed to be in the data.
    """
    known = measured_cells(model, evidence.population_codes)
    others = [
        np.bincount(all_of, minlength=int(mine.max()) + 1)[mine] for all_of, mine in zip(known.T, cells.T, strict=True)
    ]
    people = model.total - evidence.counted * len(cells) / 2
    return np.stack(others, axis=1), max(people, 1.0) / len(known)


def _shares(cells: Cells, targets: Cells) -> Floats:
    """Share of the rows that are in each target's cell."""
    counts = np.bincount(cells, minlength=int(targets.max()) + 1)
    return np.asarray((counts[targets] + _PRIOR) / (len(cells) + _PRIOR), dtype=np.float64)
