"""What a plan pays for beside its mechanism: learning undeclared values before it, measures of quality after it.

What belongs here: how much of a plan's budget goes into learning which values columns have (partition selection) and
into bought measures, the noise and the threshold that follow, and their events beside a mechanism's own. What does not:
the mechanisms (`synth.tabular.learning`, `synth.tabular.paid`) and what the events cost (`accounting`).

The values that a column has are counted, every count gets noise, and those from a threshold up are shown (Korolova et
al. 2009; Desfontaines, Voss & Gipson 2022 for the optimum of one record a unit). A value that occurs may be one
person's. It stays hidden because a count of b or less passes the threshold with a probability of at most the slack,
which is a part of delta.

All columns are learned alike, before anything else, and the mechanism that follows is fixed in advance: neither its
noise nor the number of its steps depends on the values. So the cost is that of adaptive sequential composition. The
whole is calibrated as one event and claimed once.

Measures of quality come last. What is measured depends on the rows that the mechanism led to; noise and number of the
measures do not. Their precisions add up to that of one table of counts (`selection`), so the same composition holds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dp_accounting import dp_event

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import sigma_from, threshold_slack
from dpsynth_platform.privacy.events import (
    PARAMETERS,
    DpEvent,
    GaussianMeasuresEvent,
    ThresholdedGaussianCountsEvent,
)
from dpsynth_platform.privacy.guarantee import Guarantee

SHARE_OF_EACH = 0.04
"""Of rho, for each column: about the share of its marginal afterwards, where values near the noise are lost."""
MOST_SHARE = 0.2
SLACK_SHARE = 0.01
"""Of delta, for all columns together. An account reserves a tenth of its delta for slack (`ledger.filter`), enough for
ten releases; ten times as much would lower thresholds by a tenth."""


@dataclass(frozen=True)
class Learning:
    """How one column's values are learned.

    Attributes:
        sigma: noise of each value's count, in records.
        threshold: the least noisy count that is shown, in records.
    """

    sigma: float
    threshold: int


@dataclass(frozen=True)
class Partitions:
    """The number of columns whose values are learned for a mechanism, and measures' part of rho; both may be 0."""

    columns: int = 0
    measures: float = 0.0

    @property
    def learned(self) -> float:
        """Part of rho that goes into learning."""
        return min(SHARE_OF_EACH * self.columns, MOST_SHARE)

    @property
    def share(self) -> float:
        """Part of rho that the mechanism itself does not get."""
        return self.learned + self.measures

    def sigma_of_measures(self, guarantee: Guarantee, rho: float) -> float:
        """Noise of a table of counts that costs as much as all measures together, in records; as `learning`."""
        of_all = rho * self.measures / (1 - self.share)
        return sigma_from(math.sqrt(guarantee.sensitivity.l2_squared / (2 * of_all)))

    def learning(self, guarantee: Guarantee, rho: float) -> Learning:
        """Noise and threshold of each column's counts.

        Args:
            guarantee: of the whole, with its adjacency, b and delta.
            rho: the zCDP cost of the mechanism beside it, which has 1 - `share` of the whole.

        Raises:
            AccountingError: no column is learned, or no noise or threshold is in range.
        """
        if self.columns < 1:
            raise AccountingError("thresholds for no column; accepted: at least one whose values are learned")
        squared = guarantee.sensitivity.l2_squared
        of_each = rho * self.learned / (1 - self.share) / self.columns
        sigma = sigma_from(math.sqrt(squared / (2 * of_each)))
        return Learning(sigma, _least_threshold(sigma, guarantee, SLACK_SHARE * guarantee.delta / self.columns))

    def beside(self, event: DpEvent, guarantee: Guarantee, rho: float) -> DpEvent:
        """The event of learning, of the mechanism that follows, whose zCDP cost is `rho`, and of measures."""
        learned = [self.learning(guarantee, rho)] * self.columns if self.columns else []
        sigma = self.sigma_of_measures(guarantee, rho) if self.measures else None
        return composed_beside(learned, event, guarantee, sigma)


NOTHING_LEARNED = Partitions()


def composed_beside(
    learned: list[Learning], event: DpEvent, guarantee: Guarantee, sigma_of_measures: float | None = None
) -> DpEvent:
    """The event of learning columns, of the mechanism that follows, and of measures; its own where there are none."""
    before = [_event(one.sigma, one.threshold, guarantee) for one in learned]
    neighbours = (guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)
    after = [] if sigma_of_measures is None else [GaussianMeasuresEvent(sigma_of_measures, *neighbours)]
    return dp_event.ComposedDpEvent([*before, event, *after]) if before or after else event


def _event(sigma: float, threshold: int, guarantee: Guarantee) -> ThresholdedGaussianCountsEvent:
    neighbours = (guarantee.adjacency, guarantee.max_contributions, guarantee.weighting)
    return ThresholdedGaussianCountsEvent(sigma, float(threshold), *neighbours)


def _least_threshold(sigma: float, guarantee: Guarantee, slack: float) -> int:
    """The least whole threshold that shows a cell of one unit alone with a chance of at most `slack`; above its count.

    Raises:
        AccountingError: there is none in range.
    """

    def hides(threshold: int) -> bool:
        return threshold_slack(_event(sigma, threshold, guarantee)) <= slack

    low, step = 1 if guarantee.weighting == "owners" else guarantee.max_contributions, 1
    while not hides(low + step):
        low, step = low + step, 2 * step
        if low + step > PARAMETERS[1]:
            raise AccountingError(
                f"no threshold hides values of one unit up to a chance of {slack:.3g}; accepted: a larger delta"
            )
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if hides(middle) else (middle, high)
    return high
