"""Releases: a published synthetic dataset with its dossier.

What belongs here: evidence check, commitments, dossier, page, signature, publication and offline verification. What
does not: synthetic rows, budgets, or collecting approvals. What is published holds DP or declared numbers only.
"""
