"""Copies: do members come back in the release, exactly or nearly, more often than people who were not in?

What belongs here: counting released rows that equal a record in all columns or in all but few, beside the same of
held-out records. What does not: distances as attacks (`audit.attacks.nearest_scores`), or the table of distances that a
reviewer sees (`quality.closeness`).

A copy alone is no leak: common combinations come up by chance, for those who were in and for those who were not. Only
the difference says something (Stadler et al. 2022; Ponomareva et al. 2026, section 7.5.3).
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
    """Records that some released row equals in all columns but `columns_off` at most.

    Attributes:
        columns_off: 0 for exact copies.
        members: how many of the members have a copy.
        of_members: how many members there are.
        held_out: how many of the held-out records have one.
        of_held_out: how many held-out records there are.
        p_value: probability of so many among the members, or more, if they were copied no more often than the others
            (Fisher's exact test, one-sided).
    """

    columns_off: int
    members: int
    of_members: int
    held_out: int
    of_held_out: int
    p_value: float

    @property
    def excess(self) -> float:
        """Share of the members that have a copy, less that of the held-out records."""
        return self.members / self.of_members - self.held_out / self.of_held_out


def count_copies(members: Codes, held_out: Codes, synthetic: Codes, *, columns_off: int = 0) -> Copies:
    """Compares how often either group has a copy in the release.

    With canaries, members are the included ones and held-out ones the others, and the result may be published. With
    people, it may not.

    Args:
        members: cells of records that were in, shape (members, columns).
        held_out: cells of records of the same distribution that were not.
        synthetic: cells of the released rows.
        columns_off: in how many columns a copy may differ.

    Raises:
        AccountingError: a group is empty.
    """
    if not len(members) or not len(held_out):
        raise AccountingError("audit: copies are compared with held-out records; accepted: some of either")
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
    """Probability of so many among the members, or more, if both groups were alike (Fisher's exact test, one-sided).

    Args:
        members: how many of the members something was found of.
        of_members: how many members there are.
        held_out: how many of the held-out records it was found of.
        of_held_out: how many held-out records there are.
    """
    table = [[members, of_members - members], [held_out, of_held_out - held_out]]
    return float(stats.fisher_exact(table, alternative="greater").pvalue)
