"""Copies: does the release contain members, exactly or nearly, more often than non-members?

What belongs here: counting members and held-out records that equal a released row in all columns or in all but few.
What does not: distances as attacks (`audit.attacks.nearest_scores`), or a reviewer's table of distances
(`quality.closeness`).

A copy alone is no leak: common combinations occur at random, for members and non-members. Only the difference is
evidence (Stadler et al. 2022; Ponomareva et al. 2026, section 7.5.3).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

from dpsynth_platform.audit.attacks import nearest_scores
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.synth.tabular.domain import Codes


@dataclass(frozen=True)
class Copies:
    """Members and held-out records that a released row equals in all but at most `columns_off` columns.

    `p_value` is by `excess_p_value`.
    """

    columns_off: int
    members: int
    of_members: int
    held_out: int
    of_held_out: int
    p_value: float

    @property
    def excess(self) -> float:
        """Share of the members with a copy, less that of the held-out records."""
        return self.members / self.of_members - self.held_out / self.of_held_out


def count_copies(members: Codes, held_out: Codes, synthetic: Codes, *, columns_off: int = 0) -> Copies:
    """Compares how often members and held-out records have a copy in the release.

    The result on canaries may be published; the result on people may not. All are cells, shape (rows, columns), with
    held-out records of the members' distribution. Raises `AccountingError` if a group is empty.
    """
    if not len(members) or not len(held_out):
        raise AccountingError(
            f"audit: {len(members)} members, {len(held_out)} held-out records; accepted: at least one of each, whose "
            "copies are compared"
        )
    found = nearest_scores(np.concatenate([members, held_out]), synthetic, 1) >= -columns_off
    inside, outside = int(found[: len(members)].sum()), int(found[len(members) :].sum())
    return Copies(
        columns_off=columns_off,
        members=inside,
        of_members=len(members),
        held_out=outside,
        of_held_out=len(held_out),
        p_value=excess_p_value(inside, len(members), outside, len(held_out)),
    )


def excess_p_value(members: int, of_members: int, held_out: int, of_held_out: int) -> float:
    """Probability of at least so many among the members if both groups were equal (Fisher's exact test, one-sided)."""
    table = [[members, of_members - members], [held_out, of_held_out - held_out]]
    return float(stats.fisher_exact(table, alternative="greater").pvalue)
