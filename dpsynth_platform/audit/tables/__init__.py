"""Attacks on tables: what a release, and the model behind it, say of single records.

| module | attack |
| --- | --- |
| decoding | coins solved for from the noisy counts of all marginals |
| marginal_aware | the same with a reference table, and MAMA-MIA on the release (Golob et al. 2025) |
"""
