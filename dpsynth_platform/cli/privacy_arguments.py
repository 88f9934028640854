"""Arguments that describe one mechanism, checked under the names of their options, and the event made from them.

What belongs here: the options, and which mechanism needs, accepts and can be calibrated for which. What does not: the
commands and what they print (`cli.privacy`), and accounting (`privacy`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer

from dpsynth_platform.foundation.errors import AccountingError

if TYPE_CHECKING:
    from dpsynth_platform.privacy.events import DpEvent

Mechanism = Literal["dp-sgd", "histogram", "thresholded-histogram", "tokens", "mst"]
Adjacency = Literal["add-or-remove", "zero-out", "replace-one", "fixed-graph"]
Target = Literal["noise", "steps", "contributions", "threshold", "temperature"]
"""What calibration can look for."""

NEEDED: dict[Mechanism, tuple[str, ...]] = {
    "dp-sgd": ("records", "batch_size", "noise", "steps"),
    "histogram": ("noise",),
    "thresholded-histogram": ("noise", "threshold"),
    "tokens": ("batch_size", "steps", "clipping_norm", "temperature"),
    "mst": ("columns", "noise"),
}
OPTIONAL: dict[Mechanism, tuple[str, ...]] = {
    "dp-sgd": ("sampled", "histogram_noise"),
    "histogram": ("histogram_noise",),
    "thresholded-histogram": ("histogram_noise",),
    "tokens": ("histogram_noise",),
    "mst": (),
}
_BY_ALL = ("contributions", "adjacency", "delta", "units")

# Wide enough for any use, and inside of what events accept (`events.PARAMETERS`, `events.MAX_LEAVES`).
_WHOLE = {"records": 10**12, "batch_size": 10**12, "steps": 10**5, "contributions": 10**6, "columns": 10**4}
_NUMBERS = ("noise", "histogram_noise", "threshold", "clipping_norm", "temperature")
_RANGE = (1e-9, 1e12)
# Fewer privacy units have no delta well below 1/n.
LEAST_UNITS = 3


@dataclass(frozen=True)
class MechanismArguments:
    """The options that describe one mechanism; None where one is not given.

    Raises:
        AccountingError: an argument is impossible, or does not belong to the mechanism. `parts` and `target` refuse a
            missing one.
    """

    mechanism: Annotated[Mechanism, typer.Argument(help="The mechanism; below is what each needs.")]
    noise: Annotated[
        float | None,
        typer.Option(
            help="dp-sgd: noise multiplier, the noise's standard deviation over the clipping norm of one record (one "
            "user, with --sampled user), whatever b is; histograms: standard deviation in records; mst: standard "
            "deviation of the one-column counts in records, the rest in its usual proportion."
        ),
    ] = None
    records: Annotated[
        int | None, typer.Option(help="dp-sgd: expected number of records (users, with --sampled user); public.")
    ] = None
    batch_size: Annotated[int | None, typer.Option(help="dp-sgd, tokens: expected size of a batch.")] = None
    steps: Annotated[
        int | None, typer.Option(help="dp-sgd: number of steps; tokens: number of tokens from one batch.")
    ] = None
    contributions: Annotated[int, typer.Option(help="Most records of one unit (b).")] = 1
    adjacency: Annotated[
        Adjacency,
        typer.Option(
            help="What may differ between neighbours. add-or-remove: one unit's records are there or not; zero-out: "
            "there or blank; replace-one: any others; fixed-graph: their content, not who owns them (records with "
            "several owners)."
        ),
    ] = "add-or-remove"
    sampled: Annotated[
        Literal["record", "user"],
        typer.Option(
            help="dp-sgd: what is drawn for a batch and clipped. record (with b above 1: DP-SGD-ELS, example-level "
            "sampling): each record by itself; user (DP-SGD-ULS, user-level sampling): all of a user as one."
        ),
    ] = "record"
    histogram_noise: Annotated[
        float | None,
        typer.Option(help="Standard deviation, in records, of a discrete Gaussian histogram beside the mechanism."),
    ] = None
    threshold: Annotated[float | None, typer.Option(help="thresholded-histogram: least noisy count that is shown.")] = (
        None
    )
    clipping_norm: Annotated[float | None, typer.Option(help="tokens: bound on each logit.")] = None
    temperature: Annotated[float | None, typer.Option(help="tokens: divisor of the logits.")] = None
    columns: Annotated[int | None, typer.Option(help="mst: number of columns.")] = None

    def __post_init__(self) -> None:
        own = {"mechanism", "contributions", "adjacency", *NEEDED[self.mechanism], *OPTIONAL[self.mechanism]}
        foreign = [item.name for item in fields(self) if item.name not in own and self._is_given(item.name)]
        if foreign:
            accepted = [*NEEDED[self.mechanism], *OPTIONAL[self.mechanism], *_BY_ALL]
            raise AccountingError(
                f"{_options(foreign)} {'does' if len(foreign) == 1 else 'do'} not belong to {self.mechanism}; "
                f"accepted: {_options(accepted)}"
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
                raise AccountingError(f"{_option(name)} {value}; accepted: a whole number from 1 to {most}")
        for name in _NUMBERS:
            value = getattr(self, name)
            if value is not None and not _RANGE[0] <= value <= _RANGE[1]:
                raise AccountingError(
                    f"{_option(name)} {value:g}; accepted: a finite number above 0 ({_RANGE[0]:g} to {_RANGE[1]:g})"
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
        if self.sampled == "user" and self.adjacency == "fixed-graph":
            raise AccountingError(
                "--sampled user with --adjacency fixed-graph: a record with several owners is in the gradients of all "
                "of them, so clipping one gradient bounds no owner's part; accepted: --sampled record"
            )

    def target(self, asked: Target | None) -> Target:
        """What calibration looks for: `asked`, or else the one argument that is missing.

        Raises:
            AccountingError: more is missing, or nothing is, or this mechanism has no such argument.
        """
        name, missing = self.mechanism, self._missing()
        can = [*(item for item in get_args(Target) if item in NEEDED[name]), "contributions"]
        if asked is not None and asked not in can:
            ways = ", ".join(f"--for {item}" for item in can)
            raise AccountingError(f"{name} has no {asked} to look for; accepted: {ways}")
        if asked is not None and self._is_given(asked):
            raise AccountingError(f"{_option(asked)} is what is looked for; leave it out")
        free: list[Target] = [item for item in can if item in missing]
        target = free[0] if asked is None and len(free) == 1 else asked
        rest = [item for item in missing if item != target]
        if target is None:
            lacking = f"needs {_options(rest)}" if rest else "has all that it needs"
            left_out = " or ".join(map(_option, can[:-1]))
            raise AccountingError(
                f"{name} {lacking}; accepted: leave out {left_out}, which is then looked for, or say "
                "--for contributions"
            )
        if rest:
            raise AccountingError(f"{name} needs {_options(rest)} to look for {_option(target)}")
        if target == "contributions" and self.sampled == "user" and self.histogram_noise is None:
            raise AccountingError("with --sampled user every bound costs the same; accepted: --for noise, --for steps")
        return target

    def _missing(self) -> list[str]:
        return [name for name in NEEDED[self.mechanism] if getattr(self, name) is None]

    def event(self) -> DpEvent:
        """The mechanism and the histogram beside it. Raises `AccountingError` for a missing argument."""
        from dp_accounting import dp_event

        parts = list(self.parts().values())
        return parts[0] if len(parts) == 1 else dp_event.ComposedDpEvent(parts)

    def parts(self) -> dict[str, DpEvent]:
        """The mechanism by its name, and the histogram beside it, if there is one, by its option."""
        if missing := self._missing():
            raise AccountingError(f"{self.mechanism} needs {_options(missing)}")
        beside = self.histogram_beside()
        return ({} if beside is None else {_option("histogram_noise"): beside}) | {self.mechanism: self._alone()}

    def histogram_beside(self) -> DpEvent | None:
        from dpsynth_platform.privacy.events import histogram_event

        if self.histogram_noise is None:
            return None
        return histogram_event(self.histogram_noise, self.adjacency, self.contributions)

    def _alone(self) -> DpEvent:
        from dpsynth_platform.privacy import events

        adjacency, b = self.adjacency, self.contributions
        given: dict[str, Any] = {name: getattr(self, name) for name in NEEDED[self.mechanism]}
        if self.mechanism == "dp-sgd":
            return events.dp_sgd_event(
                noise_multiplier=given.pop("noise"),
                adjacency=adjacency,
                max_contributions=b,
                sampled=self.sampled,
                **given,
            )
        if self.mechanism == "tokens":
            return events.token_selection_event(
                tokens=given.pop("steps"), adjacency=adjacency, max_contributions=b, **given
            )
        if self.mechanism == "thresholded-histogram":
            return events.ThresholdedCountsEvent(given["noise"], given["threshold"], adjacency, b)
        if self.mechanism == "mst":
            return _mst(given["columns"], given["noise"], adjacency, b)
        return events.histogram_event(given["noise"], adjacency, b)

    def delta(self, delta: float | None, units: int | None) -> float:
        """The delta that was given, or the recommended one for the number of units, as far as that is known."""
        known = self.known_units(units)
        if delta is None and units is None and known is not None and known < LEAST_UNITS:
            raise AccountingError(f"--records {known}: too few to derive delta from; accepted: --delta")
        return checked_delta(delta, known if delta is None else units)

    def known_units(self, units: int | None) -> int | None:
        """The number of privacy units; without --units, that of the records where each is one unit."""
        sampled_units = self.contributions == 1 or self.sampled == "user"
        return units if units is not None or not sampled_units else self.records


def _mst(columns: int, noise: float, adjacency: str, max_contributions: int) -> DpEvent:
    """MST whose one-column counts have this noise; `mst_budget` gives the proportion of the rest."""
    from dpsynth_platform.privacy.accounting import RHO_RANGE
    from dpsynth_platform.privacy.guarantee import Guarantee
    from dpsynth_platform.privacy.mst import mst_budget, mst_event
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


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _options(names: Iterable[str]) -> str:
    return ", ".join(map(_option, names))


def needs() -> str:
    """Which options each mechanism needs and accepts, a paragraph for each."""
    lines = []
    for mechanism, needed in NEEDED.items():
        also = f" (also {_options(OPTIONAL[mechanism])})" if OPTIONAL[mechanism] else ""
        lines.append(f"{mechanism} needs {_options(needed)}{also}.")
    return "\n\n".join([*lines, f"All accept {_options(_BY_ALL)}."])


def checked_delta(delta: float | None, units: int | None) -> float:
    """The given delta, or the recommended one for the number of units.

    Raises:
        AccountingError: neither is given, or one is impossible.
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
