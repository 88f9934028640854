"""`dpsynth privacy`: what a mechanism costs, and the noise, steps or bound that a guarantee allows.

What belongs here: arguments into events, and results into words. What does not: accounting (`privacy`). Nothing here
reads data or a deployment: every number comes from the command line.
"""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsynth_platform.errors import AccountingError
from dpsynth_platform.terminal import Json, Shown, command

if TYPE_CHECKING:
    from dpsynth_platform.privacy.accounting import EpsilonResult
    from dpsynth_platform.privacy.events import DpEvent

privacy_app = typer.Typer(
    no_args_is_help=True, help="Privacy arithmetic on public numbers: cost, calibration, explanation. Reads no data."
)


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


MechanismName = Annotated[Mechanism, typer.Argument(help="The mechanism.")]
Records = Annotated[
    int | None, typer.Option(help="dp-sgd: expected number of records (users, with --sampled user); public.")
]
BatchSize = Annotated[int | None, typer.Option(help="dp-sgd, tokens: expected size of a batch.")]
Steps = Annotated[int | None, typer.Option(help="dp-sgd: number of steps; tokens: number of tokens from one batch.")]
Noise = Annotated[
    float | None,
    typer.Option(help="dp-sgd: noise multiplier (of the clipping norm); histograms: deviation in records."),
]
Contributions = Annotated[int, typer.Option(help="Most records of one unit (b).")]
AdjacencyName = Annotated[
    Neighbours,
    typer.Option("--adjacency", help="Which datasets are neighbours; fixed-graph: records may have several owners."),
]
SampledName = Annotated[
    Sampling, typer.Option("--sampled", help="dp-sgd: draw and clip records (b above 1: DP-SGD-ELS) or users (ULS).")
]
HistogramNoise = Annotated[
    float | None, typer.Option(help="Deviation, in records, of a discrete Gaussian histogram beside the mechanism.")
]
Threshold = Annotated[float | None, typer.Option(help="thresholded-histogram: least noisy count that is shown.")]
ClippingNorm = Annotated[float | None, typer.Option(help="tokens: bound on each logit.")]
Temperature = Annotated[float | None, typer.Option(help="tokens: by which the logits are divided.")]
Columns = Annotated[int | None, typer.Option(help="mst: number of columns.")]
Delta = Annotated[
    float | None, typer.Option(help="Delta; default: 1/n^1.1, n from --units or, of dp-sgd with b = 1, --records.")
]
Units = Annotated[int | None, typer.Option(help="Number of privacy units, to derive delta from.")]

_WHOLE = ("records", "batch_size", "steps", "contributions")
_ABOVE_ZERO = ("noise", "histogram_noise", "threshold", "clipping_norm", "temperature")


@dataclass(frozen=True)
class Asked:
    """The arguments that describe one mechanism. What a mechanism needs and was not given is refused by `event`."""

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

    def event(self) -> DpEvent:
        """The event. Raises `AccountingError` for a missing or impossible argument."""
        from dp_accounting import dp_event

        from dpsynth_platform.privacy.events import histogram_event

        self._check()
        event = self._mechanism()
        if self.histogram_noise is None:
            return event
        histogram = histogram_event(self.histogram_noise, self.adjacency.value, self.contributions)
        return dp_event.ComposedDpEvent([histogram, event])

    def _mechanism(self) -> DpEvent:
        from dpsynth_platform.privacy import events

        adjacency, b = self.adjacency.value, self.contributions
        if self.mechanism is Mechanism.dp_sgd:
            return events.dp_sgd_event(
                records=self.given("records"),
                batch_size=self.given("batch_size"),
                noise_multiplier=self.given("noise"),
                steps=self.given("steps"),
                adjacency=adjacency,
                max_contributions=b,
                sampled=self.sampled.value,
            )
        if self.mechanism is Mechanism.histogram:
            return events.histogram_event(self.given("noise"), adjacency, b)
        if self.mechanism is Mechanism.thresholded:
            return events.ThresholdedCountsEvent(self.given("noise"), self.given("threshold"), adjacency, b)
        if self.mechanism is Mechanism.tokens:
            return events.token_selection_event(
                tokens=self.given("steps"),
                clipping_norm=self.given("clipping_norm"),
                temperature=self.given("temperature"),
                batch_size=self.given("batch_size"),
                adjacency=adjacency,
                max_contributions=b,
            )
        raise AccountingError("mst is calibrated to an epsilon; accepted: dpsynth privacy calibrate mst --columns ...")

    def _check(self) -> None:
        """Refuses impossible numbers under the names of their options."""
        for name in _WHOLE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise AccountingError(f"{_option(name)} {value}; accepted: a whole number from 1")
        for name in _ABOVE_ZERO:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise AccountingError(f"{_option(name)} {value:g}; accepted: a finite number above 0")

    def given(self, name: str) -> Any:
        """An argument that this mechanism needs."""
        value = getattr(self, name)
        if value is None:
            raise AccountingError(f"{self.mechanism.value} needs {_option(name)}")
        return value

    def delta(self, delta: float | None, units: int | None) -> float:
        """The delta that was given, or the recommended one: where units are what is sampled, their number is known."""
        return _delta(delta, self._units(units))

    def notes(self, delta: float, units: int | None) -> list[str]:
        """What is odd about the arguments, though it can be computed."""
        known = self._units(units)
        if known is None or delta < 1 / known:
            return []
        return [f"delta {delta:.3g} is not below 1/{known}: it would allow to show one unit of them all in full"]

    def _units(self, units: int | None) -> int | None:
        sampled_units = self.contributions == 1 or self.sampled is Sampling.user
        return units if units is not None or not sampled_units else self.records


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _delta(delta: float | None, units: int | None) -> float:
    from dpsynth_platform.privacy.guarantee import recommended_delta

    if delta is None:
        if units is None:
            raise AccountingError("delta is not known; accepted: --delta, or --units to derive it from")
        return recommended_delta(units)
    if not 0 < delta < 1:
        raise AccountingError(f"delta {delta!r}; accepted: a number between 0 and 1")
    return delta


@privacy_app.command("epsilon")
@command
def privacy_epsilon(
    mechanism: MechanismName,
    noise: Noise = None,
    records: Records = None,
    batch_size: BatchSize = None,
    steps: Steps = None,
    contributions: Contributions = 1,
    adjacency: AdjacencyName = Neighbours.add_or_remove,
    sampled: SampledName = Sampling.record,
    histogram_noise: HistogramNoise = None,
    threshold: Threshold = None,
    clipping_norm: ClippingNorm = None,
    temperature: Temperature = None,
    delta: Delta = None,
    units: Units = None,
    as_json: Json = False,
) -> None:
    """What a mechanism costs: epsilon at a delta, by the smaller of PLD and Renyi."""
    from dpsynth_platform.privacy.accounting import epsilon

    asked = Asked(
        mechanism,
        records=records,
        batch_size=batch_size,
        steps=steps,
        noise=noise,
        contributions=contributions,
        adjacency=adjacency,
        sampled=sampled,
        histogram_noise=histogram_noise,
        threshold=threshold,
        clipping_norm=clipping_norm,
        temperature=temperature,
    )
    event, at = asked.event(), asked.delta(delta, units)
    _show(Shown(as_json), event, epsilon(event, at), {}, asked.notes(at, units))


@privacy_app.command("calibrate")
@command
def privacy_calibrate(
    mechanism: MechanismName,
    target: Annotated[float, typer.Option("--epsilon", help="The epsilon that all together may cost.")],
    solve: Annotated[Solve | None, typer.Option("--for", help="What to look for; default: what is missing.")] = None,
    noise: Noise = None,
    records: Records = None,
    batch_size: BatchSize = None,
    steps: Steps = None,
    contributions: Contributions = 1,
    adjacency: AdjacencyName = Neighbours.add_or_remove,
    sampled: SampledName = Sampling.record,
    histogram_noise: HistogramNoise = None,
    threshold: Threshold = None,
    clipping_norm: ClippingNorm = None,
    temperature: Temperature = None,
    columns: Columns = None,
    delta: Delta = None,
    units: Units = None,
    as_json: Json = False,
) -> None:
    """The least noise, the most steps or the largest contribution bound for an epsilon; a split budget as one."""
    asked = Asked(
        mechanism,
        records=records,
        batch_size=batch_size,
        steps=steps,
        noise=noise,
        contributions=contributions,
        adjacency=adjacency,
        sampled=sampled,
        histogram_noise=histogram_noise,
        threshold=threshold,
        clipping_norm=clipping_norm,
        temperature=temperature,
    )
    at = asked.delta(delta, units)
    shown = Shown(as_json)
    if mechanism is Mechanism.mst:
        _calibrate_mst(shown, asked, columns, target, at)
        return
    solve = solve or _missing(asked)
    search = _SEARCHES[solve](asked)
    found = search(target, at)
    shown.say(f"{_found_words(mechanism, solve)}: {found.value}")
    more = {"target_epsilon": target, "for": solve.value, solve.value: found.value}
    _show(shown, found.event, found.result, more, asked.notes(at, units))


@privacy_app.command("explain")
@command
def privacy_explain(
    file: Annotated[
        Path, typer.Argument(help="JSON file with an event, or that holds one: a plan, a statement, a dossier.")
    ],
    delta: Delta = None,
    units: Units = None,
    group: Annotated[int | None, typer.Option(help="Also for a group of so many units (loose).")] = None,
    as_json: Json = False,
) -> None:
    """What an event costs part by part, in words."""
    from dpsynth_platform.privacy.accounting import cost, epsilon, group_epsilon
    from dpsynth_platform.privacy.events import adjacency_of, histories, leaves

    event = _read_event(file)
    at = _delta(delta, units)
    result = epsilon(event, at)
    adjacency, b = adjacency_of(event)
    parts = [
        {"mechanism": type(leaf).__name__, "times": times, "epsilon_alone": _alone(leaf, times, at)}
        for leaf, times in leaves(event)
    ]
    more: dict[str, Any] = {
        "adjacency": adjacency,
        "max_contributions": b,
        "parts": parts,
        "ways_of_one_unit": len(histories(event)),
        "delta_slack": cost(event).delta_slack,
    }
    if group is not None:
        more["group"] = {"size": group, "epsilon": group_epsilon(event, at, group), "bound": "loose"}
    shown = Shown(as_json)
    _show(shown, event, result, more)
    shown.say("By parts (their epsilons do not simply add up):")
    shown.table(
        ("mechanism", "times", "epsilon alone"),
        [(part["mechanism"], part["times"], f"{part['epsilon_alone']:.4g}") for part in parts],
    )
    if group is not None:
        shown.say(f"For {group} units together: epsilon {more['group']['epsilon']:.4g} (a loose bound)")


def _alone(leaf: DpEvent, times: int, delta: float) -> float:
    from dp_accounting import dp_event

    from dpsynth_platform.privacy.accounting import epsilon

    return epsilon(dp_event.SelfComposedDpEvent(leaf, times), delta).epsilon


def _read_event(file: Path) -> DpEvent:
    from dpsynth_platform.privacy.events import event_from_json

    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        raise AccountingError(f"{file}: cannot be read; accepted: a JSON file with an event") from None
    except (ValueError, RecursionError):
        raise AccountingError(f"{file}: not JSON; accepted: a JSON file with an event") from None
    for name in ("statement", "event"):
        if isinstance(document, dict) and name in document:
            document = document[name]
    return event_from_json(document)


def _missing(asked: Asked) -> Solve:
    if asked.noise is None and asked.mechanism is not Mechanism.tokens:
        return Solve.noise
    if asked.steps is None and asked.mechanism in (Mechanism.dp_sgd, Mechanism.tokens):
        return Solve.steps
    raise AccountingError("nothing is left to look for; accepted: --for noise, --for steps or --for contributions")


def _noise_search(asked: Asked) -> Callable[[float, float], Any]:
    from dpsynth_platform.privacy.calibration import noise_for

    if asked.mechanism is Mechanism.tokens:
        raise AccountingError("tokens have a temperature in place of noise; accepted: --for steps, --for contributions")
    return lambda target, delta: noise_for(lambda noise: replace(asked, noise=noise).event(), target, delta)


def _steps_search(asked: Asked) -> Callable[[float, float], Any]:
    from dpsynth_platform.privacy.calibration import steps_for

    if asked.mechanism not in (Mechanism.dp_sgd, Mechanism.tokens):
        raise AccountingError(f"{asked.mechanism.value} has no steps; accepted: --for noise, --for contributions")
    return lambda target, delta: steps_for(lambda steps: replace(asked, steps=steps).event(), target, delta)


def _contributions_search(asked: Asked) -> Callable[[float, float], Any]:
    from dpsynth_platform.privacy.calibration import contributions_for

    if asked.mechanism is Mechanism.dp_sgd and asked.sampled is Sampling.user and asked.histogram_noise is None:
        raise AccountingError("with --sampled user every bound costs the same; accepted: --for noise, --for steps")
    return lambda target, delta: contributions_for(lambda b: replace(asked, contributions=b).event(), target, delta)


_SEARCHES: dict[Solve, Callable[[Asked], Callable[[float, float], Any]]] = {
    Solve.noise: _noise_search,
    Solve.steps: _steps_search,
    Solve.contributions: _contributions_search,
}


def _found_words(mechanism: Mechanism, solve: Solve) -> str:
    """What was found, with its unit."""
    if solve is Solve.contributions:
        return "records of one unit (b), at most"
    if solve is Solve.steps:
        return "tokens from one batch, at most" if mechanism is Mechanism.tokens else "steps, at most"
    return (
        "noise multiplier (times the clipping norm)"
        if mechanism is Mechanism.dp_sgd
        else "noise (standard deviation, in records)"
    )


def _calibrate_mst(shown: Shown, asked: Asked, columns: int | None, target: float, delta: float) -> None:
    from dataclasses import asdict

    from dpsynth_platform.privacy.accounting import calibrate_mst, epsilon
    from dpsynth_platform.privacy.events import mst_event
    from dpsynth_platform.privacy.guarantee import Guarantee

    if columns is None:
        raise AccountingError("mst needs --columns")
    if asked.histogram_noise is not None:
        raise AccountingError("mst takes the whole budget; accepted: no --histogram-noise")
    unit = "example" if asked.contributions == 1 else "user"
    adjacency = asked.adjacency.value
    budget = calibrate_mst(columns, Guarantee(target, delta, unit, adjacency, asked.contributions))
    event = mst_event(columns, budget, adjacency, asked.contributions)
    noise = asdict(budget)
    shown.say("noise: " + ", ".join(f"{name} {value:g}" for name, value in noise.items()))
    _show(shown, event, epsilon(event, delta), {"target_epsilon": target, "for": "noise", "noise": noise})


def _show(shown: Shown, event: DpEvent, result: EpsilonResult, more: dict[str, Any], notes: Sequence[str] = ()) -> None:
    from dpsynth_platform.privacy.events import adjacency_of, event_to_json
    from dpsynth_platform.privacy.guarantee import tier

    level = tier(result.epsilon)
    shown.json(
        {
            "epsilon": result.epsilon,
            "delta": result.delta,
            "method": result.method,
            "epsilon_by_pld": result.pld,
            "epsilon_by_renyi": result.renyi,
            "tier": level,
            **more,
            "notes": list(notes),
            "event": event_to_json(event),
        }
    )
    # Rounded up, so that what is shown is never less than what is meant.
    rounded = math.ceil(result.epsilon * 10_000) / 10_000
    shown.say(f"epsilon {rounded:g} at delta {result.delta:.4g} (by {result.method}): a {level} guarantee")
    adjacency, b = adjacency_of(event)
    shown.say(f"for one unit of at most {b} record{'' if b == 1 else 's'}, {adjacency}")
    for note in notes:
        shown.say(f"note: {note}")
