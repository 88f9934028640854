"""Fairness: does training on synthetic rows change how a classifier treats protected groups?

What belongs here: selection, true positive and false positive rates of each group, for the classifier trained on
synthetic rows beside the one trained on real rows, and what sums them up. What does not: training them (`utility`), or
a verdict: what difference is acceptable is a person's question.

Groups that are too small for a rate are named but their rates are left out, of the sums and gaps too.
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
"""Groups with fewer held-out rows of the favourable outcome have no true positive rate; of others, no false one."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Protected:
    """A protected column of the held-out rows.

    Attributes:
        codes: group of each held-out row.
        names: of the groups, by their code.
    """

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
    """A protected group, with the rates of each classifier that could be trained."""

    value: str
    synthetic: GroupRates | None
    real: GroupRates | None


@dataclass(frozen=True)
class Gaps:
    """How differently one classifier treats the groups; each None with fewer than two groups that have the rate.

    Attributes:
        selection, true_positive, false_positive: largest minus smallest rate.
        equalized_odds: the larger of the last two (equalized odds difference; Hardt et al. 2016).
        fped, fned: sums over groups of how far their false positive (false negative) rate is from that of all rows
            (equality differences; Dixon et al. 2018).
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
    """The rates of every protected column's groups on the held-out rows.

    Args:
        outcome: code of the favourable outcome; None: the class that fewest held-out rows have.
        name: of the favourable outcome.
    """
    if predictions is None:
        reason = "there is no classifier to compare"
        return tuple(Fairness(each.column, outcome="", not_available=reason) for each in protected)
    favourable = predictions.minority if outcome is None else outcome
    return tuple(_of_column(predictions, each, favourable, name) for each in protected)


def _of_column(predictions: Predictions, protected: Protected, favourable: int, name: str) -> Fairness:
    codes = protected.codes[predictions.rows]
    values = np.unique(codes)
    deserving = predictions.truth == favourable
    chosen = [
        None if guesses is None else guesses == favourable for guesses in (predictions.synthetic, predictions.real)
    ]
    rates = [
        [None if selected is None else _rates(selected[codes == code], deserving[codes == code]) for code in values]
        for selected in chosen
    ]
    groups = tuple(Group(protected.names[int(code)], *both) for code, *both in zip(values, *rates, strict=True))
    made, kept = (
        None if selected is None else _gaps(_rates(selected, deserving), [each for each in found if each])
        for selected, found in zip(chosen, rates, strict=True)
    )
    return Fairness(protected.column, name, groups, made, kept)


def _rates(selected: Mask, deserving: Mask) -> GroupRates:
    if len(selected) < LEAST_ROWS:
        return GroupRates(None, None, None)
    return GroupRates(float(selected.mean()), _share(selected[deserving]), _share(selected[~deserving]))


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


def _known(rates: Sequence[float | None]) -> list[float]:
    return [rate for rate in rates if rate is not None]


def _gap(rates: Sequence[float | None]) -> float | None:
    known = _known(rates)
    return max(known) - min(known) if len(known) > 1 else None


def _spread(overall: float | None, rates: Sequence[float | None]) -> float | None:
    known = _known(rates)
    return sum(abs(rate - overall) for rate in known) if overall is not None and len(known) > 1 else None
