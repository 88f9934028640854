"""Density ratio: is a record likelier in the release than in the population?

What belongs here: the attack of van Breugel, Sun, Qian & van der Schaar, "Membership Inference Attacks against
Synthetic Data through Overfitting Detection" (AISTATS 2023; DOMIAS), with kernel densities. What does not: shares in
marginals that the mechanism is known to measure (`marginal_aware`).
"""

from __future__ import annotations

import numpy as np

from dpsynth_platform.audit.attacks import Floats
from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.synth.tabular.domain import Codes, Domain

MOST_ROWS = 4_000
"""Rows of a density estimate, whose time is proportional to targets times rows times features."""
BANDWIDTH = 0.5
"""Standard deviation of the kernel; rows that differ in one category have a distance of one."""


def density_ratio_scores(domain: Domain, targets: Codes, synthetic: Codes, population: Codes) -> Floats:
    """Log-density of each target's cells, shape (targets, columns), in the release less that in the population.

    Cells of columns with an order are numbers, the others one-hot.
    """
    from sklearn.neighbors import KernelDensity

    rng, asked = np.random.default_rng(), _features(domain, targets)
    made, known = (
        KernelDensity(bandwidth=BANDWIDTH).fit(_features(domain, rows[rng.permutation(len(rows))[:MOST_ROWS]]))
        for rows in (synthetic, population)
    )
    return np.asarray(made.score_samples(asked) - known.score_samples(asked), dtype=np.float64)


def density_attack(evidence: Evidence) -> Floats:
    """`density_ratio_scores` of the evidence, with a reference table."""
    return density_ratio_scores(
        evidence.domain, evidence.target_codes, evidence.synthetic_codes, evidence.population_codes
    )


def _features(domain: Domain, codes: Codes) -> Floats:
    """Shape (rows, features)."""
    parts = [
        codes[:, [index]] / column.size if column.ordered else np.eye(column.size)[codes[:, index]] * np.sqrt(0.5)
        for index, column in enumerate(domain)
    ]
    return np.concatenate(parts, axis=1)
