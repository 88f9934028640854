"""Calibration: the least noise, threshold or temperature, the most steps or the largest bound b for a guarantee.

What belongs here: searches over one public parameter of an event, whatever else the event holds, so that a split budget
(a histogram beside DP-SGD) is calibrated as one. What does not: epsilon for a given event (`accounting.epsilon`), and
the calibration of MST, whose parameters depend on each other (`mst.calibrate_mst`).

Every result is checked: its event costs at most the target epsilon. Only that it is the best rests on cost being
monotone in the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dp_accounting import dp_event

from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.privacy.accounting import EpsilonResult, delta_slack, epsilon
from dpsynth_platform.privacy.events import MAX_LEAVES, DpEvent, ThresholdedEvent, leaves
from dpsynth_platform.privacy.units import check_epsilon_delta

Value = TypeVar("Value", int, float)

# Noise is a multiple of this: exact as a binary float and as a decimal, so that plan, mechanism and accountant mean the
# same number.
NOISE_STEP = 2.0**-10
NOISE_RANGE = (2.0**-6, 2.0**20)
MAX_BOUND = 4096
# Interpolations of a search before it bisects, as where cost is no smooth curve.
MAX_AIMED = 6
GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class Calibrated(Generic[Value]):
    """A parameter that meets a guarantee, the event made from it and what that costs."""

    value: Value
    event: DpEvent
    result: EpsilonResult


def noise_for(event_of: Callable[[float], DpEvent], target_epsilon: float, delta: float) -> Calibrated[float]:
    """The least noise with which an event costs at most an epsilon at `delta`, up to a 1000th of itself or NOISE_STEP.

    Args:
        event_of: the event for a noise (a noise multiplier, or a deviation in records).

    Raises:
        AccountingError: an impossible epsilon or delta, or no noise in NOISE_RANGE meets it, as when another part of
            the event alone costs more, or a threshold allows too little noise.
    """
    return _least(event_of, target_epsilon, delta, "noise")


def temperature_for(event_of: Callable[[float], DpEvent], target_epsilon: float, delta: float) -> Calibrated[float]:
    """The least temperature, as `noise_for`, with which a choice of tokens costs at most an epsilon at `delta`."""
    return _least(event_of, target_epsilon, delta, "temperature")


def threshold_for(
    event_of: Callable[[int], DpEvent], target_epsilon: float, delta: float, *, above: int
) -> Calibrated[int]:
    """The least whole threshold above `above` (b) with which thresholded counts cost at most an epsilon at `delta`.

    Raises:
        AccountingError: an impossible epsilon or delta, or the counts alone cost more.
    """
    check_epsilon_delta(target_epsilon, delta)
    low, high = above, above + 1
    while not _fits(event_of(high), target_epsilon, delta):
        if not delta_slack(event_of(high)):
            raise AccountingError(
                f"no threshold meets epsilon {target_epsilon:g} at delta {delta:.3g}: the noisy counts alone cost "
                "more; accepted: a larger epsilon, or more noise"
            )
        low, high = high, above + 2 * (high - above)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _fits(event_of(middle), target_epsilon, delta) else (middle, high)
    return _checked(event_of, high, target_epsilon, delta)


def steps_for(event_of: Callable[[int], DpEvent], target_epsilon: float, delta: float) -> Calibrated[int]:
    """The most steps with which an event costs at most an epsilon at `delta`, up to MAX_LEAVES.

    Raises:
        AccountingError: an impossible epsilon or delta, or one step costs more.
    """
    return _most(event_of, target_epsilon, delta, MAX_LEAVES, "step")


def contributions_for(event_of: Callable[[int], DpEvent], target_epsilon: float, delta: float) -> Calibrated[int]:
    """The largest contribution bound b with which an event costs at most an epsilon at `delta`, up to MAX_BOUND.

    Raises:
        AccountingError: an impossible epsilon or delta, or b = 1 costs more.
    """
    return _most(event_of, target_epsilon, delta, MAX_BOUND, "record of a unit")


def _fits(event: DpEvent, target_epsilon: float, delta: float) -> bool:
    """Whether the event meets the target. One whose thresholds take all of delta does not, whatever its noise."""
    return delta_slack(event) < delta and epsilon(event, delta).epsilon <= target_epsilon


def _least(event_of: Callable[[float], DpEvent], target_epsilon: float, delta: float, name: str) -> Calibrated[float]:
    check_epsilon_delta(target_epsilon, delta)
    found: dict[float, Calibrated[float]] = {}

    def spent(value: float) -> float:
        """Epsilon, or infinity where the thresholds take all of delta."""
        if value not in found:
            event = event_of(value)
            if delta_slack(event) >= delta:
                return math.inf
            found[value] = Calibrated(value, event, epsilon(event, delta))
        return found[value].result.epsilon

    def fits(value: float) -> bool:
        return spent(value) <= target_epsilon

    if _thresholds(event_of(1.0)):
        start = _under_thresholds(event_of, target_epsilon, delta)
    else:
        start = next((4.0**power for power in range(int(math.log(NOISE_RANGE[1], 4)) + 1) if fits(4.0**power)), None)
    if start is None:
        raise _nothing_meets(event_of(1.0), target_epsilon, delta, name)
    # Below a noise that meets it, cost is monotone, under thresholds too: more noise only raises their slack.
    low, high = (start / 4 if start / 4 in found else _on_grid(start / 2)), start
    while low > NOISE_RANGE[0] and fits(low):
        low, high = _on_grid(low / 2), low
    aimed = 0
    while high - low > _tolerance(high):
        middle = _upwards(math.sqrt(low * high))
        if aimed < MAX_AIMED:
            costs = {value: calibrated.result.epsilon for value, calibrated in found.items()}
            middle, aimed = _aim(costs, target_epsilon, low, high), aimed + 1
        low, high = (low, middle) if fits(middle) else (middle, high)
    if not fits(high):
        raise _failed(target_epsilon)
    return found[high]


def _tolerance(value: float) -> float:
    """The most by which a calibrated value may exceed the least."""
    return max(NOISE_STEP, value / 1000)


def _upwards(value: float) -> float:
    return math.ceil(value / NOISE_STEP) * NOISE_STEP


def _aim(costs: dict[float, float], target_epsilon: float, low: float, high: float) -> float:
    """The next value to try between `low`, which costs too much, and `high`, which does not.

    Cost is about a power of the value, so a line in logarithms goes through the two known costs nearest to the target.
    Where it meets the target near an end, the value a tolerance from that end is next, and may well be the last; else
    the value half a tolerance above.
    """
    away = {value: math.log(cost / target_epsilon) for value, cost in costs.items() if cost > 0}
    nearest = sorted(away, key=lambda value: abs(away[value]))[:2]
    if len(nearest) < 2 or away[nearest[0]] == away[nearest[1]]:
        return _upwards(math.sqrt(low * high))
    one, other = nearest
    middle = math.log(one) + math.log(other / one) * away[one] / (away[one] - away[other])
    middle = math.exp(min(max(middle, math.log(low)), math.log(high)))
    tolerance = _tolerance(high)
    if high - middle <= 2 * tolerance:
        return _upwards(high - tolerance)
    if middle - low <= _tolerance(low):
        return _on_grid(low + _tolerance(low))
    return _upwards(middle + tolerance / 2)


def _under_thresholds(event_of: Callable[[float], DpEvent], target_epsilon: float, delta: float) -> float | None:
    """A noise that meets the target under thresholds, or None.

    Too little noise costs epsilon, and too much lets cells of one unit pass. Golden-section search over the logarithm
    of the noise approaches the least epsilon in between until it meets the target.
    """
    least, most = NOISE_RANGE
    if delta_slack(event_of(least)) >= delta:
        return None
    bearable = least
    while most - bearable > NOISE_STEP:
        middle = math.sqrt(bearable * most)
        bearable, most = (middle, most) if delta_slack(event_of(middle)) < delta else (bearable, middle)

    def spent(logarithm: float) -> tuple[float, float]:
        noise = _on_grid(math.exp(logarithm))
        event = event_of(noise)
        return (epsilon(event, delta).epsilon if delta_slack(event) < delta else math.inf), noise

    low, high = math.log(least), math.log(bearable)
    left, right = high - (high - low) * GOLDEN, low + (high - low) * GOLDEN
    at_left, at_right = spent(left), spent(right)
    while min(at_left, at_right)[0] > target_epsilon and high - low > 1e-4:
        if at_left[0] < at_right[0]:
            high, right, at_right = right, left, at_left
            left = high - (high - low) * GOLDEN
            at_left = spent(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + (high - low) * GOLDEN
            at_right = spent(right)
    lowest, noise = min(at_left, at_right)
    return noise if lowest <= target_epsilon else None


def _most(
    event_of: Callable[[int], DpEvent], target_epsilon: float, delta: float, largest: int, name: str
) -> Calibrated[int]:
    check_epsilon_delta(target_epsilon, delta)

    def fits(number: int) -> bool:
        try:
            event = event_of(number)
        except AccountingError:  # no such event, as with more records of a unit than a threshold hides
            return False
        return _fits(event, target_epsilon, delta)

    one = event_of(1)
    if not _fits(one, target_epsilon, delta):
        raise _one_costs_more(one, target_epsilon, delta, name)
    low, high = 1, 2
    while high <= largest and fits(high):
        low, high = high, 2 * high
    high = min(high, largest + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return _checked(event_of, low, target_epsilon, delta)


def _on_grid(noise: float) -> float:
    return max(1.0, math.floor(noise / NOISE_STEP)) * NOISE_STEP


def _thresholds(event: DpEvent) -> str:
    """The event's thresholds in words; empty if it has none."""
    found = sorted({leaf.threshold for leaf, _ in leaves(event) if isinstance(leaf, ThresholdedEvent)})
    return " and ".join(f"threshold {threshold:g}" for threshold in found)


def _nothing_meets(event: DpEvent, target_epsilon: float, delta: float, name: str) -> AccountingError:
    if thresholds := _thresholds(event):
        return AccountingError(
            f"no {name} meets epsilon {target_epsilon:g} at delta {delta:.3g} with {thresholds}; accepted: a higher "
            "threshold, a larger epsilon, or a larger delta"
        )
    return AccountingError(
        f"no {name} up to {NOISE_RANGE[1]:g} meets epsilon {target_epsilon:g} at delta {delta:.3g}; accepted: a larger "
        f"epsilon{_less_elsewhere(event)}"
    )


def _one_costs_more(event: DpEvent, target_epsilon: float, delta: float, name: str) -> AccountingError:
    if delta_slack(event) >= delta:
        return AccountingError(
            f"one {name}: of delta {delta:.3g}, {_thresholds(event)} alone takes {delta_slack(event):.3g}; accepted: a "
            "higher threshold, less noise, or a larger delta"
        )
    return AccountingError(
        f"one {name} costs more than epsilon {target_epsilon:g} at delta {delta:.3g}; accepted: a larger epsilon, or "
        f"more noise{_less_elsewhere(event)}"
    )


def _less_elsewhere(event: DpEvent) -> str:
    return ", or less spent on the other parts" if isinstance(event, dp_event.ComposedDpEvent) else ""


def _checked(
    event_of: Callable[[Value], DpEvent], value: Value, target_epsilon: float, delta: float
) -> Calibrated[Value]:
    event = event_of(value)
    result = epsilon(event, delta)
    if result.epsilon > target_epsilon:
        raise _failed(target_epsilon)
    return Calibrated(value, event, result)


def _failed(target_epsilon: float) -> AccountingError:
    return AccountingError(f"calibration to epsilon {target_epsilon:g} failed; accepted: another epsilon")
