"""Attacks on tables: what a release, and the model behind it, say of single records.

| module | attack |
| --- | --- |
| decoding | coins solved for from the noisy counts of all marginals |
| marginal_aware | the same with a reference table, and MAMA-MIA on the release (Golob et al. 2025) |
| lira, rmia | likelihood beside that of shadow models (Carlini et al. 2022; Zarifzadeh et al. 2024) |
| meta_classifier | classifier on features of shadow models' samples (Stadler et al. 2022; Houssiau et al. 2022) |
| density | density ratio between release and population (DOMIAS; van Breugel et al. 2023) |
| attributes, copies | guesses of a sensitive column; copies of members beside copies of held-out records |

`attacks(evidence)` runs those on membership that the evidence allows; `fit_shadows` adds shadow models to it.
"""

from dpsynth_platform.audit.tables.evidence import Evidence
from dpsynth_platform.audit.tables.registry import ATTACKS, attacks

__all__ = ["ATTACKS", "Evidence", "attacks"]
