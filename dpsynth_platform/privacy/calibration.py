"""Calibration: the least noise, the most steps or the largest contribution bound that meets a guarantee.

What belongs here: searches over one public parameter of an event, whatever else the event holds, so that a split budget
(a histogram beside DP-SGD) is calibrated as one. What does not: epsilon for a given event (`accounting.epsilon`), and
the calibration of MST, whose parameters move together (`accounting.calibrate_mst`).

Every result was checked as it is returned: the event made from it costs at most the epsilon asked for. Only that it is
the best rests on cost being monotone in the parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from dpsynth_platform.errors import AccountingError
from dpsynth_platform.privacy.accounting import EpsilonResult, delta_slack, epsilon
from dpsynth_platform.privacy.events import MAX_LEAVES, DpEvent

Value = TypeVar("Value", int, float)

# Noise is a multiple of this: exact as a binary float and as a decimal, so that plan, mechanism and accountant mean the
# same number.
NOISE_STEP = 2.0**-10
NOISE_RANGE = (2.0**-6, 2.0**20)
MAX_BOUND = 4096


@dataclass(frozen=True)
class Calibrated(Generic[Value]):
    """A parameter that meets a guarantee, the event made from it and what that costs."""

    value: Value
    event: DpEvent
    result: EpsilonResult


def noise_for(event_of: Callable[[float], DpEvent], target_epsilon: float, delta: float) -> Calibrated[float]:
    """The least noise, up to a 1000th of itself, with which an event costs at most an epsilon at `delta`.

    Args:
        event_of: the event for a noise (a noise multiplier, or a deviation in records).
        target_epsilon: what it may cost.
        delta: at which delta.

    Raises:
        AccountingError: an impossible epsilon or delta, or no noise in NOISE_RANGE meets it, as when another part of
            the event alone costs more.
    """
    _check(target_epsilon, delta)

    def fits(noise: float) -> bool:
        event = event_of(noise)
        # More noise than thresholds bear is no reason to look for still more.
        return delta_slack(event) >= delta or epsilon(event, delta).epsilon <= target_epsilon

    high = 1.0
    while not fits(high):
        high *= 4
        if high > NOISE_RANGE[1]:
            raise AccountingError(
                f"no noise up to {NOISE_RANGE[1]:g} meets epsilon {target_epsilon:g} at delta {delta:.3g}; accepted: a "
                "larger epsilon, or less spent on the other parts"
            )
    low = high / 4 if high > 1 else 1.0
    while low > NOISE_RANGE[0] and fits(low):
        low, high = low / 2, low
    while high - low > max(NOISE_STEP, high / 1000):
        middle = math.ceil(math.sqrt(low * high) / NOISE_STEP) * NOISE_STEP
        if not low < middle < high:
            break
        low, high = (low, middle) if fits(middle) else (middle, high)
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


def _most(
    event_of: Callable[[int], DpEvent], target_epsilon: float, delta: float, largest: int, name: str
) -> Calibrated[int]:
    _check(target_epsilon, delta)

    def fits(number: int) -> bool:
        return epsilon(event_of(number), delta).epsilon <= target_epsilon

    if not fits(1):
        raise AccountingError(
            f"one {name} costs more than epsilon {target_epsilon:g} at delta {delta:.3g}; accepted: a larger epsilon, "
            "or more noise"
        )
    low, high = 1, 2
    while high <= largest and fits(high):
        low, high = high, 2 * high
    high = min(high, largest + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return _checked(event_of, low, target_epsilon, delta)


def _checked(
    event_of: Callable[[Value], DpEvent], value: Value, target_epsilon: float, delta: float
) -> Calibrated[Value]:
    event = event_of(value)
    result = epsilon(event, delta)
    if result.epsilon > target_epsilon:
        raise AccountingError(f"calibration to epsilon {target_epsilon:g} failed; accepted: another epsilon")
    return Calibrated(value, event, result)


def _check(target_epsilon: float, delta: float) -> None:
    if not (math.isfinite(target_epsilon) and target_epsilon > 0):
        raise AccountingError(f"epsilon {target_epsilon!r}; accepted: a finite number above 0")
    if not 0 < delta < 1:
        raise AccountingError(f"delta {delta!r}; accepted: a number between 0 and 1")
