"""Fairness: how classifiers trained on synthetic and on real rows treat protected groups.

What belongs here: selection, true positive and false positive rates of each group, and gaps between groups. What does
not: training (`utility`), or a verdict; people decide which difference is acceptable.

Groups that are too small for a rate are listed without it, and do not count in sums and gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpsynth_platform.quality.columns import Codes
from dpsynth_platform.quality.utility import Predictions

LEAST_ROWS = 50
"""Groups with fewer held-out rows have no rates."""
LEAST_OUTCOMES = 10
"""Groups with fewer rows of the favourable (other) outcome have no true (false) positive rate."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Protected:
    """A protected column: the group of each held-out row, and the groups' names by code."""

    column: str
    codes: Codes
    names: Sequence[str]


@dataclass(frozen=True)
class GroupRates:
    """One classifier's rates in one group; None where the group is too small."""

    selection: float | None
    true_positive: float | None
    false_positive: float | None


@dataclass(frozen=True)
class Group:
    """A protected group, with each trained classifier's rates."""

    value: str
    synthetic: GroupRates | None
    real: GroupRates | None


@dataclass(frozen=True)
class Gaps:
    """Gaps between the groups' rates; None if fewer than two groups have the rate.

    Attributes:
        selection, true_positive, false_positive: largest minus smallest rate.
        equalized_odds: the larger of the last two (equalized odds difference; Hardt et al. 2016).
        fped, fned: sums over groups of the absolute difference between their false positive (false negative) rate and
            that of all rows (equality differences; Dixon et al. 2018).
    """

    selection: float | None
    true_positive: float | None
    false_positive: float | None
    equalized_odds: float | None
    fped: float | None
    fned: float | None


@dataclass(frozen=True)
class Fairness:
    """The groups of one protected column, and each classifier's gaps between them."""

    column: str
    outcome: str
    groups: tuple[Group, ...] = ()
    synthetic: Gaps | None = None
    real: Gaps | None = None
    not_available: str | None = None


def measure_fairness(
    predictions: Predictions | None, protected: Sequence[Protected], outcome: int | None, name: str
) -> tuple[Fairness, ...]:
    """The rates of all protected groups on the held-out rows.

    `outcome` is the code of the favourable outcome (None: the rarest class), and `name` its name.
    """
    if predictions is None:
        reason = "there is no classifier to compare"
        return tuple(Fairness(each.column, outcome="", not_available=reason) for each in protected)
    favourable = predictions.minority if outcome is None else outcome
    return tuple(_of_column(predictions, each, favourable, name) for each in protected)


def _of_column(predictions: Predictions, protected: Protected, favourable: int, name: str) -> Fairness:
    codes = protected.codes[predictions.rows]
    values = np.unique(codes)
    positive = predictions.truth == favourable
    chosen = [
        None if predicted is None else predicted == favourable
        for predicted in (predictions.synthetic, predictions.real)
    ]
    rates = [
        [None if selected is None else _rates(selected[codes == code], positive[codes == code]) for code in values]
        for selected in chosen
    ]
    groups = tuple(Group(protected.names[int(code)], *both) for code, *both in zip(values, *rates, strict=True))
    made, kept = (
        None if selected is None else _gaps(_rates(selected, positive), [each for each in found if each])
        for selected, found in zip(chosen, rates, strict=True)
    )
    return Fairness(protected.column, name, groups, made, kept)


def _rates(selected: Mask, positive: Mask) -> GroupRates:
    if len(selected) < LEAST_ROWS:
        return GroupRates(None, None, None)
    return GroupRates(float(selected.mean()), _share(selected[positive]), _share(selected[~positive]))


def _share(selected: Mask) -> float | None:
    return float(selected.mean()) if len(selected) >= LEAST_OUTCOMES else None


def _gaps(overall: GroupRates, groups: Sequence[GroupRates]) -> Gaps:
    true, false = (_gap([getattr(each, name) for each in groups]) for name in ("true_positive", "false_positive"))
    return Gaps(
        selection=_gap([each.selection for each in groups]),
        true_positive=true,
        false_positive=false,
        equalized_odds=max(true, false) if true is not None and false is not None else None,
        fped=_spread(overall.false_positive, [each.false_positive for each in groups]),
        # A false negative rate is one minus the true positive rate, so their differences are the same.
        fned=_spread(overall.true_positive, [each.true_positive for each in groups]),
    )


def _gap(rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return max(known) - min(known) if len(known) > 1 else None


def _spread(overall: float | None, rates: Sequence[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(abs(rate - overall) for rate in known) if overall is not None and len(known) > 1 else None
