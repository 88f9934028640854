"""The quality report: fidelity, similarity, utility, fairness and closeness of synthetic data beside the real data.

Everything here reads real rows outside the guarantee. Its results are restricted: for reviewers, never for a gate that
acts on its own and never for what is published.
"""
