"""An upper bound on the number of records that any choice keeps.

What belongs here: the linear program and its solver. What does not: a choice of records. The best choice is hard to
find (set packing, for b = 1); with fractions of records it is a linear program, whose optimum is at least as high
(Ganesh et al. 2025).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.int64]

MAX_EDGES = 2_000_000
"""Ownerships in the program: half a minute and 1.2 GB. Beyond, time grows much faster than size."""
MAX_SECONDS = 120.0


@dataclass(frozen=True)
class UpperBound:
    """No choice keeps more than `records`; if that is None, `reason` says why it is unknown."""

    records: int | None
    reason: str | None = None


def refusal(edges: int) -> UpperBound | None:
    """The result for a linear program that is too large to solve, or None."""
    if edges <= MAX_EDGES:
        return None
    return UpperBound(None, f"{edges} ownerships in the linear program; up to {MAX_EDGES} are solved")


def upper_bound(records: Codes, owners: Codes, total: int, max_contributions: int) -> UpperBound:
    """The optimum of the linear program, rounded down: any choice keeps at most so many records.

    maximize sum_r x_r subject to sum_{r of u} x_r <= b for every owner u, 0 <= x_r <= 1. The result is computed from
    the dual values y >= 0: b sum_u y_u + sum_r max(0, 1 - sum_{u of r} y_u) is an upper bound for any of them (weak
    duality), so the solver's tolerances do not matter.

    Args:
        records, owners: one entry each for every distinct ownership: codes from 0. Shape (edges,).
        total: number of records.
        max_contributions: b.
    """
    busy = np.bincount(owners)[owners] > max_contributions if owners.size else np.zeros(0, dtype=bool)
    if not busy.any():
        return UpperBound(total)
    refused = refusal(int(np.count_nonzero(busy)))
    if refused is not None:
        return refused
    contested, rows = np.unique(records[busy], return_inverse=True)
    bound = _solve(rows, np.unique(owners[busy], return_inverse=True)[1], max_contributions)
    if bound is None:
        return UpperBound(None, f"the linear program was not solved within {MAX_SECONDS:g} seconds")
    # Rounding errors of these sums are far below a millionth.
    return UpperBound(total - len(contested) + int(np.floor(bound + 1e-6)))


def _solve(records: Codes, owners: Codes, max_contributions: int) -> float | None:
    """The dual bound over records and owners numbered without gaps, or None if the solver did not finish."""
    from scipy import optimize, sparse

    owned = sparse.csr_matrix((np.ones(len(records)), (owners, records)))
    solved = optimize.linprog(
        -np.ones(owned.shape[1]),
        A_ub=owned,
        b_ub=np.full(owned.shape[0], float(max_contributions)),
        bounds=(0, 1),
        method="highs-ds",
        options={"time_limit": MAX_SECONDS},
    )
    if solved.status != 0:
        return None
    prices = np.maximum(0.0, -solved.ineqlin.marginals)
    return float(max_contributions * prices.sum() + np.maximum(0.0, 1.0 - owned.T @ prices).sum())
