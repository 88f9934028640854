"""Fairness: does training on synthetic rows change how a classifier treats protected groups?

What belongs here: selection and true positive rates of each group, for the classifier trained on synthetic rows beside
the one trained on real rows. What does not: training them (`utility`), or a verdict: what difference is acceptable is
a person's question.

The favourable outcome is the last declared value of the target. Groups that are too small for a rate are named but
their rates are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.utility import Predictions
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain

LEAST_ROWS = 50
"""Groups with fewer held-out rows have no rates."""
LEAST_POSITIVES = 10
"""Groups with fewer held-out rows of the favourable outcome have no true positive rate."""


@dataclass(frozen=True)
class GroupRates:
    """One classifier's rates in one group; None where the group is too small."""

    selection: float | None
    true_positive: float | None


@dataclass(frozen=True)
class Group:
    """A protected group, with the rates of each classifier that could be trained."""

    value: str
    synthetic: GroupRates | None
    real: GroupRates | None


@dataclass(frozen=True)
class Fairness:
    """The groups of one protected column.

    Attributes:
        synthetic_selection_gap: largest minus smallest selection rate; None with fewer than two groups that have one.
        synthetic_true_positive_gap: the same of the true positive rates; likewise for the classifier on real rows.
    """

    column: str
    outcome: str
    groups: tuple[Group, ...] = ()
    synthetic_selection_gap: float | None = None
    real_selection_gap: float | None = None
    synthetic_true_positive_gap: float | None = None
    real_true_positive_gap: float | None = None
    not_available: str | None = None


def measure_fairness(
    predictions: Predictions | None, domain: Domain, target: str | None, protected: Sequence[str]
) -> tuple[Fairness, ...]:
    """The rates of every protected column's groups on the held-out rows."""
    if predictions is None or target is None:
        reason = "there is no classifier to compare"
        return tuple(Fairness(column, outcome="", not_available=reason) for column in protected)
    goal = domain.columns[domain.names.index(target)]
    return tuple(_of_column(predictions, domain, goal, column) for column in protected)


def _of_column(predictions: Predictions, domain: Domain, goal: ColumnDomain, column: str) -> Fairness:
    index = domain.names.index(column)
    favourable = goal.missing - 1
    groups = []
    for code in np.unique(predictions.rows[:, index]):
        inside = predictions.rows[:, index] == code
        synthetic, real = (
            None if guesses is None else _rates(guesses[inside], predictions.truth[inside], favourable)
            for guesses in (predictions.synthetic, predictions.real)
        )
        groups.append(Group(domain.columns[index].label(int(code)), synthetic, real))
    made = [group.synthetic for group in groups if group.synthetic]
    kept = [group.real for group in groups if group.real]
    return Fairness(
        column=column,
        outcome=goal.label(favourable),
        groups=tuple(groups),
        synthetic_selection_gap=_gap([rates.selection for rates in made]),
        real_selection_gap=_gap([rates.selection for rates in kept]),
        synthetic_true_positive_gap=_gap([rates.true_positive for rates in made]),
        real_true_positive_gap=_gap([rates.true_positive for rates in kept]),
    )


def _rates(predicted: npt.NDArray[Any], truth: npt.NDArray[Any], favourable: int) -> GroupRates:
    if len(predicted) < LEAST_ROWS:
        return GroupRates(None, None)
    selected, deserving = predicted == favourable, truth == favourable
    found = float(selected[deserving].mean()) if deserving.sum() >= LEAST_POSITIVES else None
    return GroupRates(float(selected.mean()), found)


def _gap(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return max(known) - min(known) if len(known) > 1 else None
