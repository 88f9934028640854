"""The quality report: fidelity, similarity, utility, fairness and closeness of synthetic data beside the real data.

Everything here reads real rows outside the guarantee. Results are restricted: for reviewers, never for automatic gates,
and never published.
"""
