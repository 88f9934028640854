"""Arguments that describe one mechanism, checked under the names of their options, and the event made from them.

What belongs here: which mechanism needs, takes and can look for what, and words for what does not fit. What does not:
the commands and what they print (`privacy_command`), and accounting (`privacy`).
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from dpsynth_platform.foundation.errors import AccountingError

if TYPE_CHECKING:
    from dpsynth_platform.privacy.events import DpEvent


class Mechanism(enum.StrEnum):
    """The mechanisms that the command knows."""

    dp_sgd = "dp-sgd"
    histogram = "histogram"
    thresholded = "thresholded-histogram"
    tokens = "tokens"
    mst = "mst"


class Solve(enum.StrEnum):
    """What calibration looks for."""

    noise = "noise"
    steps = "steps"
    contributions = "contributions"
    threshold = "threshold"
    temperature = "temperature"


class Sampling(enum.StrEnum):
    """What a sample of DP-SGD is drawn from."""

    record = "record"
    user = "user"


class Neighbours(enum.StrEnum):
    """Adjacencies."""

    add_or_remove = "add-or-remove"
    zero_out = "zero-out"
    replace_one = "replace-one"
    fixed_graph = "fixed-graph"


NEEDED: dict[Mechanism, tuple[str, ...]] = {
    Mechanism.dp_sgd: ("records", "batch_size", "noise", "steps"),
    Mechanism.histogram: ("noise",),
    Mechanism.thresholded: ("noise", "threshold"),
    Mechanism.tokens: ("batch_size", "steps", "clipping_norm", "temperature"),
    Mechanism.mst: ("columns", "noise"),
}
TAKEN: dict[Mechanism, tuple[str, ...]] = {
    Mechanism.dp_sgd: ("sampled", "histogram_noise"),
    Mechanism.histogram: ("histogram_noise",),
    Mechanism.thresholded: ("histogram_noise",),
    Mechanism.tokens: ("histogram_noise",),
    Mechanism.mst: (),
}
_BY_ALL = ("contributions", "adjacency", "delta", "units")

# Wide enough for any use, and inside of what events accept (`events.PARAMETERS`, `events.MAX_LEAVES`).
_WHOLE = {"records": 10**12, "batch_size": 10**12, "steps": 10**5, "contributions": 10**6, "columns": 10**4}
_NUMBERS = ("noise", "histogram_noise", "threshold", "clipping_norm", "temperature")
_RANGE = (1e-9, 1e12)
# Fewer privacy units have no delta well below 1/n.
LEAST_UNITS = 3


@dataclass(frozen=True)
class Asked:
    """The arguments that describe one mechanism; None where one was not given.

    Raises:
        AccountingError: an argument is impossible, or does not belong to the mechanism. One that is missing is refused
            by `complete` and `looked_for`.
    """

    mechanism: Mechanism
    records: int | None = None
    batch_size: int | None = None
    steps: int | None = None
    noise: float | None = None
    contributions: int = 1
    adjacency: Neighbours = Neighbours.add_or_remove
    sampled: Sampling = Sampling.record
    histogram_noise: float | None = None
    threshold: float | None = None
    clipping_norm: float | None = None
    temperature: float | None = None
    columns: int | None = None

    def __post_init__(self) -> None:
        own = {"mechanism", "contributions", "adjacency", *NEEDED[self.mechanism], *TAKEN[self.mechanism]}
        foreign = [item.name for item in fields(self) if item.name not in own and self._is_given(item.name)]
        if foreign:
            accepted = [*NEEDED[self.mechanism], *TAKEN[self.mechanism], *_BY_ALL]
            raise AccountingError(
                f"{options(foreign)} {'does' if len(foreign) == 1 else 'do'} not belong to {self.mechanism.value}; "
                f"accepted: {options(accepted)}"
            )
        self._check_numbers()
        self._check_together()

    def _is_given(self, name: str) -> bool:
        default = next(item.default for item in fields(self) if item.name == name)
        return bool(getattr(self, name) != default)

    def _check_numbers(self) -> None:
        for name, most in _WHOLE.items():
            value = getattr(self, name)
            if value is not None and not 1 <= value <= most:
                raise AccountingError(f"{option(name)} {value}; accepted: a whole number from 1 to {most}")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not _RANGE[0] <= value <= _RANGE[1]:
                raise AccountingError(
                    f"{option(name)} {value:g}; accepted: a finite number above 0 ({_RANGE[0]:g} to {_RANGE[1]:g})"
                )

    def _check_together(self) -> None:
        if self.records is not None and self.batch_size is not None and self.batch_size > self.records:
            raise AccountingError(
                f"--batch-size {self.batch_size} of --records {self.records}; accepted: at most as many"
            )
        if self.threshold is not None and self.threshold <= self.contributions:
            raise AccountingError(
                f"--threshold {self.threshold:g} with --contributions {self.contributions}; accepted: a threshold "
                "above that, or the cell of one unit is shown"
            )
        if self.sampled is Sampling.user and self.adjacency is Neighbours.fixed_graph:
            raise AccountingError(
                "--sampled user with --adjacency fixed-graph: a record with several owners is in the gradients of all "
                "of them, so clipping one bounds no one's part; accepted: --sampled record"
            )

    def complete(self) -> None:
        """Refuses a mechanism of which something is missing, naming all of it."""
        if missing := self._missing():
            raise AccountingError(f"{self.mechanism.value} needs {options(missing)}")

    def looked_for(self, solve: Solve | None) -> Solve:
        """What calibration looks for: what was asked for, or else the one thing that is missing.

        Raises:
            AccountingError: more is missing, or nothing is, or this mechanism has no such thing.
        """
        name, missing = self.mechanism.value, self._missing()
        can = [*(item for item in NEEDED[self.mechanism] if item in list(Solve)), "contributions"]
        if solve is not None and solve.value not in can:
            ways = ", ".join(f"--for {item}" for item in can)
            raise AccountingError(f"{name} has no {solve.value} to look for; accepted: {ways}")
        if solve is not None and self._is_given(solve.value):
            raise AccountingError(f"{option(solve.value)} is what is looked for; leave it out")
        free = [item for item in missing if item in can]
        if solve is None and len(free) == 1:
            solve = Solve(free[0])
        rest = [item for item in missing if solve is None or item != solve.value]
        if solve is None:
            lacking = f"needs {options(rest)}" if rest else "has all that it needs"
            left_out = " or ".join(map(option, can[:-1]))
            raise AccountingError(
                f"{name} {lacking}; accepted: leave out {left_out}, which is then looked for, or say "
                "--for contributions"
            )
        if rest:
            raise AccountingError(f"{name} needs {options(rest)} to look for {option(solve.value)}")
        if solve is Solve.contributions and self.sampled is Sampling.user and self.histogram_noise is None:
            raise AccountingError("with --sampled user every bound costs the same; accepted: --for noise, --for steps")
        return solve

    def _missing(self) -> list[str]:
        return [name for name in NEEDED[self.mechanism] if getattr(self, name) is None]

    def event(self) -> DpEvent:
        """The event of all together. Raises `AccountingError` for a missing argument."""
        from dp_accounting import dp_event

        parts = list(self.parts().values())
        return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)

    def parts(self) -> dict[str, DpEvent]:
        """The mechanism, and the histogram beside it, where there is one, by its option."""
        self.complete()
        beside = self.histogram_beside()
        return ({} if beside is None else {option("histogram_noise"): beside}) | {self.mechanism.value: self._alone()}

    def histogram_beside(self) -> DpEvent | None:
        """The event of the histogram beside the mechanism."""
        from dpsynth_platform.privacy.events import histogram_event

        if self.histogram_noise is None:
            return None
        return histogram_event(self.histogram_noise, self.adjacency.value, self.contributions)

    def _alone(self) -> DpEvent:
        from dpsynth_platform.privacy import events

        adjacency, b = self.adjacency.value, self.contributions
        given: dict[str, Any] = {name: getattr(self, name) for name in NEEDED[self.mechanism]}
        if self.mechanism is Mechanism.dp_sgd:
            return events.dp_sgd_event(
                noise_multiplier=given.pop("noise"),
                adjacency=adjacency,
                max_contributions=b,
                sampled=self.sampled.value,
                **given,
            )
        if self.mechanism is Mechanism.tokens:
            return events.token_selection_event(
                tokens=given.pop("steps"), adjacency=adjacency, max_contributions=b, **given
            )
        if self.mechanism is Mechanism.thresholded:
            return events.ThresholdedCountsEvent(given["noise"], given["threshold"], adjacency, b)
        if self.mechanism is Mechanism.mst:
            return _mst(given["columns"], given["noise"], adjacency, b)
        return events.histogram_event(given["noise"], adjacency, b)

    def delta(self, delta: float | None, units: int | None) -> float:
        """The delta that was given, or the recommended one: where units are what is sampled, their number is known."""
        known = self.known_units(units)
        if delta is None and units is None and known is not None and known < LEAST_UNITS:
            raise AccountingError(f"--records {known}: too few to derive delta from; accepted: --delta")
        return checked_delta(delta, known if delta is None else units)

    def known_units(self, units: int | None) -> int | None:
        """The number of privacy units, if it is known."""
        sampled_units = self.contributions == 1 or self.sampled is Sampling.user
        return units if units is not None or not sampled_units else self.records


def _mst(columns: int, noise: float, adjacency: str, max_contributions: int) -> DpEvent:
    """MST whose one-column counts have this noise. The rest is in the proportion to it that `mst_budget` gives."""
    from dpsynth_platform.privacy.accounting import RHO_RANGE
    from dpsynth_platform.privacy.events import mst_event
    from dpsynth_platform.privacy.guarantee import Guarantee
    from dpsynth_platform.privacy.mst import mst_budget
    from dpsynth_platform.privacy.units import count_sensitivity

    thirds = 1 if columns == 1 else 3
    doubled = thirds * columns * count_sensitivity(adjacency, max_contributions).l2_squared
    rho = doubled / (2 * noise**2)
    if not RHO_RANGE[0] <= rho <= RHO_RANGE[1]:
        least, most = (math.sqrt(doubled / (2 * end)) for end in reversed(RHO_RANGE))
        raise AccountingError(f"--noise {noise:g} of mst; accepted: {least:.3g} to {most:.3g} for these columns")
    # Of the guarantee, only adjacency and b count here.
    budget = mst_budget(columns, rho, Guarantee(1.0, 0.5, "user", adjacency, max_contributions))
    return mst_event(columns, replace(budget, sigma_one=noise), adjacency, max_contributions)


def option(name: str) -> str:
    """An argument's option."""
    return f"--{name.replace('_', '-')}"


def options(names: Iterable[str]) -> str:
    """Several options, in words."""
    return ", ".join(map(option, names))


def needs() -> str:
    """Which mechanism needs and takes what, a paragraph for each."""
    lines = []
    for mechanism, needed in NEEDED.items():
        also = f" (also {options(TAKEN[mechanism])})" if TAKEN[mechanism] else ""
        lines.append(f"{mechanism.value} needs {options(needed)}{also}.")
    return "\n\n".join([*lines, f"All take {options(_BY_ALL)}."])


def checked_delta(delta: float | None, units: int | None) -> float:
    """A delta that was given, or the one that the number of units recommends.

    Raises:
        AccountingError: neither is known, or one is impossible.
    """
    from dpsynth_platform.privacy.guarantee import recommended_delta

    if units is not None and units < LEAST_UNITS:
        raise AccountingError(f"--units {units}; accepted: a whole number from {LEAST_UNITS}")
    if delta is not None:
        if not 0 < delta < 1:
            raise AccountingError(f"--delta {delta:g}; accepted: between 0 and 1, exclusive")
        return delta
    if units is None:
        raise AccountingError("delta is not known; accepted: --delta, or --units to derive it from")
    return recommended_delta(units)
