"""Releases: a published synthetic dataset with the dossier that proves it.

What belongs here: the evidence check, commitments, dossier, page, signature, publication and offline verification. What
does not: making the synthetic rows, deciding on budgets, or collecting approvals. What is published holds DP or
declared numbers only.
"""
