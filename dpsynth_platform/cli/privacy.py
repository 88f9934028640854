"""`dpsynth privacy`: what a mechanism costs, and the noise, steps or bound that a guarantee allows.

What belongs here: the commands, and results in words. What does not: arguments into events (`privacy_arguments`), and
accounting (`privacy`). Nothing here reads data or a deployment: every number comes from the command line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from dpsynth_platform.cli.privacy_arguments import (
    Asked,
    Mechanism,
    Neighbours,
    Sampling,
    Solve,
    checked_delta,
    needs,
)
from dpsynth_platform.cli.terminal import Json, TerminalOutput, command
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.privacy.guarantee import WEAK_DELTA

if TYPE_CHECKING:
    from dpsynth_platform.privacy.accounting import EpsilonResult
    from dpsynth_platform.privacy.calibration import Calibrated
    from dpsynth_platform.privacy.events import DpEvent


class PlainCommand(TyperCommand):
    """A command that words a wrong value itself, where its parser's library would speak of its own types."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            error.message = _plain(error.message)
            raise


def _plain(message: str) -> str:
    for told, kind in (("integer", "a whole number"), ("number", "a number")):
        if told in message and "nput" in message:
            return f"accepted: {kind}"
    return message.removeprefix("Value error, ")


privacy_app = typer.Typer(
    no_args_is_help=True, help="Privacy arithmetic on public numbers: cost, calibration, explanation. Reads no data."
)

MechanismName = Annotated[Mechanism, typer.Argument(help="The mechanism; below is what each needs.")]
Records = Annotated[
    int | None, typer.Option(help="dp-sgd: expected number of records (users, with --sampled user); public.")
]
BatchSize = Annotated[int | None, typer.Option(help="dp-sgd, tokens: expected size of a batch.")]
Steps = Annotated[int | None, typer.Option(help="dp-sgd: number of steps; tokens: number of tokens from one batch.")]
Noise = Annotated[
    float | None,
    typer.Option(
        help="dp-sgd: noise multiplier, the noise's deviation over the clipping norm of one record (of one user, with "
        "--sampled user), whatever b is; histograms: deviation in records; mst: deviation of the one-column counts in "
        "records, the rest in its usual proportion."
    ),
]
Contributions = Annotated[int, typer.Option(help="Most records of one unit (b).")]
AdjacencyName = Annotated[
    Neighbours,
    typer.Option(
        "--adjacency",
        help="What may differ between neighbours. add-or-remove: one unit's records are there or not; zero-out: there "
        "or blank; replace-one: any others; fixed-graph: what they say, not who owns them (records with several "
        "owners).",
    ),
]
SampledName = Annotated[
    Sampling,
    typer.Option(
        "--sampled",
        help="dp-sgd: what is drawn for a batch and clipped. record (with b above 1: DP-SGD-ELS, example-level "
        "sampling): each record by itself; user (DP-SGD-ULS, user-level sampling): all of a user as one.",
    ),
]
HistogramNoise = Annotated[
    float | None, typer.Option(help="Deviation, in records, of a discrete Gaussian histogram beside the mechanism.")
]
Threshold = Annotated[float | None, typer.Option(help="thresholded-histogram: least noisy count that is shown.")]
ClippingNorm = Annotated[float | None, typer.Option(help="tokens: bound on each logit.")]
Temperature = Annotated[float | None, typer.Option(help="tokens: by which the logits are divided.")]
Columns = Annotated[int | None, typer.Option(help="mst: number of columns.")]
Delta = Annotated[
    float | None,
    typer.Option(
        help="Delta, well below 1/n for n privacy units; default: 1/n^1.1, n from --units or, of dp-sgd with b = 1 or "
        "--sampled user, --records."
    ),
]
OwnDelta = Annotated[float | None, typer.Option(help="Delta; default: the file's own, or 1/n^1.1 of --units.")]
Units = Annotated[int | None, typer.Option(help="Number n of privacy units, to derive delta from and to judge it by.")]
METHODS = (
    "The smaller of two bounds is told: PLD (privacy loss distributions, close to exact) and Renyi (moments of the "
    "privacy loss, looser, and what the ledger adds up)."
)
_EPILOG = f"{needs()}\n\n{METHODS}"


@privacy_app.command("epsilon", cls=PlainCommand, epilog=_EPILOG)
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
    columns: Columns = None,
    delta: Delta = None,
    units: Units = None,
    as_json: Json = False,
) -> None:
    """What a mechanism costs: epsilon at a delta."""
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
        columns=columns,
    )
    asked.complete()
    event, at = asked.event(), asked.delta(delta, units)
    output = TerminalOutput(as_json)
    _show(output, event, epsilon(event, at), _alone_each(asked, at), units=asked.known_units(units))
    if mechanism is Mechanism.mst:
        _say_parts(output, event, at)


@privacy_app.command("calibrate", cls=PlainCommand, epilog=_EPILOG)
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
    """Looks for what a guarantee allows: the least noise, threshold or temperature, the most steps, the largest bound.

    A histogram beside the mechanism (--histogram-noise) is part of what all together may cost.
    """
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
        columns=columns,
    )
    if not (math.isfinite(target) and target > 0):
        raise AccountingError(f"--epsilon {target:g}; accepted: a finite number above 0")
    sought, at = asked.looked_for(solve), asked.delta(delta, units)
    found = _found(asked, sought, target, at)
    asked = replace(asked, **{sought.value: found.value})
    output = TerminalOutput(as_json)
    output.print(f"{_found_words(mechanism, sought)}: {found.value}")
    more = {"target_epsilon": target, "for": sought.value, sought.value: found.value} | _alone_each(asked, at)
    _show(output, found.event, found.result, more, units=asked.known_units(units))
    if mechanism is Mechanism.mst:
        _say_parts(output, found.event, at)


@privacy_app.command("explain", cls=PlainCommand, epilog=METHODS)
@command
def privacy_explain(
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON file with an event, or that holds one: of dpsynth plan, of dpsynth privacy, a statement, a "
            "dossier."
        ),
    ],
    delta: OwnDelta = None,
    units: Units = None,
    group: Annotated[int | None, typer.Option(help="Also for a group of so many units (loose).")] = None,
    as_json: Json = False,
) -> None:
    """What an event costs part by part, in words."""
    from dpsynth_platform.privacy.accounting import cost, epsilon, group_epsilon
    from dpsynth_platform.privacy.events import adjacency_of, counts_owners, histories

    if group is not None and group < 1:
        raise AccountingError(f"--group {group}; accepted: a whole number from 1")
    event, own = _read_event(file)
    at = checked_delta(delta if delta is not None or units is not None else own, units)
    result = epsilon(event, at)
    adjacency, b = adjacency_of(event)
    more: dict[str, Any] = {
        "adjacency": adjacency,
        "max_contributions": b,
        "weighting": "owners" if counts_owners(event) else "rows",
        "parts": _parts(event, at),
        "ways_of_one_unit": len(histories(event)),
        "delta_slack": cost(event).delta_slack,
    }
    if group is not None:
        more["group"] = {"size": group, "epsilon": group_epsilon(event, at, group), "bound": "loose"}
    output = TerminalOutput(as_json)
    _show(output, event, result, more, units=units)
    _say_parts(output, event, at)
    if group is not None:
        output.print(f"For {group} units together: epsilon {_rounded(more['group']['epsilon'])} (a loose bound)")


def _parts(event: DpEvent, delta: float) -> list[dict[str, Any]]:
    """The event's mechanisms, each with what it would cost alone."""
    from dp_accounting import dp_event

    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.events import event_to_json, leaves

    return [
        {
            "mechanism": event_to_json(leaf)["kind"],
            "words": _in_words(leaf, times),
            "times": times,
            "epsilon_alone": epsilon(dp_event.SelfComposedDpEvent(leaf, times), delta).epsilon,
        }
        for leaf, times in leaves(event)
    ]


def _say_parts(output: TerminalOutput, event: DpEvent, delta: float) -> None:
    output.print("By parts (their epsilons do not simply add up):")
    output.table(
        ("part", "epsilon alone"),
        [(part["words"], _rounded(part["epsilon_alone"])) for part in _parts(event, delta)],
    )


def _in_words(leaf: DpEvent, times: int) -> str:
    """A mechanism with its numbers, as often as it runs."""
    from dpsynth_platform.foundation.figures import number_of
    from dpsynth_platform.privacy import events

    if isinstance(leaf, events.BoundedRangeSelectionEvent):
        return f"{number_of(times, 'choice')} by the exponential mechanism, range {leaf.epsilon:g}{_counted(leaf)}"
    if isinstance(leaf, events.SampledGaussianEvent):
        return (
            f"{number_of(times, 'step')} of DP-SGD, noise multiplier {leaf.noise_multiplier:g}, {leaf.sampled}s "
            f"sampled with probability {leaf.sampling_probability:g}"
        )
    if isinstance(leaf, events.GaussianVotesEvent):
        return f"{number_of(times, 'histogram')} of votes with Gaussian noise, sigma {leaf.sigma:g}"
    noise = "Gaussian" if isinstance(leaf, events.GaussianCountsEvent) else "discrete Gaussian"
    cut = f", shown from {leaf.threshold:g} up" if isinstance(leaf, events.ThresholdedEvent) else ""
    return f"{number_of(times, 'table')} of counts with {noise} noise, sigma {leaf.sigma:g}{cut}{_counted(leaf)}"


def _counted(leaf: DpEvent) -> str:
    """What is counted, where it is not rows."""
    return ", owners counted once each" if getattr(leaf, "weighting", "rows") == "owners" else ""


def _read_event(file: Path) -> tuple[DpEvent, float | None]:
    """The event in a file, and the delta that stands beside it, if one does."""
    from dpsynth_platform.privacy.events import event_from_json

    try:
        document = json.loads(read_regular(file))
    except OSError:
        raise AccountingError(f"{file}: cannot be read; accepted: a JSON file with an event") from None
    except (ValueError, RecursionError):
        raise AccountingError(f"{file}: not JSON; accepted: a JSON file with an event") from None
    for name in ("plan", "statement"):
        if isinstance(document, dict) and isinstance(document.get(name), dict):
            document = document[name]
    if not isinstance(document, dict) or not document.keys() & {"kind", "event"}:
        raise AccountingError(
            f"{file}: holds no event; accepted: JSON of dpsynth plan or dpsynth privacy, a statement, or a dossier"
        )
    if "kind" in document:  # the event itself, which may be a repetition with an event of its own
        return event_from_json(document), None
    return event_from_json(document["event"]), _own_delta(file, document)


def _own_delta(file: Path, document: Mapping[str, Any]) -> float | None:
    for holder in (document, document.get("guarantee"), document.get("target")):
        if isinstance(holder, dict) and "delta" in holder:
            delta = holder["delta"]
            if isinstance(delta, bool) or not isinstance(delta, (int, float)) or not 0 < delta < 1:
                raise AccountingError(f"{file}: its delta is not between 0 and 1; accepted: --delta")
            return float(delta)
    return None


def _found(asked: Asked, sought: Solve, target: float, delta: float) -> Calibrated[Any]:
    """What is looked for. Where the histogram beside the mechanism is too dear, the refusal says so."""
    from dpsynth_platform.privacy.accounting import epsilon

    beside = asked.histogram_beside()
    if beside is None:
        return _search(asked, sought, target, delta)
    alone = epsilon(beside, delta).epsilon
    if alone > target:
        raise AccountingError(
            f"the histogram alone costs epsilon {_rounded(alone)} at delta {delta:.3g}, above the {target:g} of all "
            "together; accepted: a larger --histogram-noise, or a larger --epsilon"
        )
    try:
        return _search(asked, sought, target, delta)
    except AccountingError as error:
        raise AccountingError(
            f"{error} (the histogram alone costs epsilon {_rounded(alone)}: a larger --histogram-noise leaves more)"
        ) from None


def _search(asked: Asked, sought: Solve, target: float, delta: float) -> Calibrated[Any]:
    from dpsynth_platform.privacy import calibration

    def event_of(value: float) -> DpEvent:
        looked_at: dict[str, Any] = {sought.value: value}
        return replace(asked, **looked_at).event()

    if sought is Solve.noise:
        if asked.mechanism is Mechanism.mst:
            return _mst_noise(asked, target, delta)
        return calibration.noise_for(event_of, target, delta)
    if sought is Solve.temperature:
        return calibration.temperature_for(event_of, target, delta)
    if sought is Solve.threshold:
        return calibration.threshold_for(event_of, target, delta, above=asked.contributions)
    if sought is Solve.steps:
        return calibration.steps_for(event_of, target, delta)
    return calibration.contributions_for(event_of, target, delta)


def _mst_noise(asked: Asked, target: float, delta: float) -> Calibrated[float]:
    """The noise of MST as a plan's is calibrated."""
    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.calibration import Calibrated
    from dpsynth_platform.privacy.events import mst_event
    from dpsynth_platform.privacy.guarantee import Guarantee
    from dpsynth_platform.privacy.mst import calibrate_mst

    columns, adjacency, b = asked.columns or 1, asked.adjacency.value, asked.contributions
    budget = calibrate_mst(columns, Guarantee(target, delta, "user", adjacency, b))
    event = mst_event(columns, budget, adjacency, b)
    return Calibrated(budget.sigma_one, event, epsilon(event, delta))


def _found_words(mechanism: Mechanism, sought: Solve) -> str:
    """What was found, with its unit."""
    if sought is Solve.noise and mechanism is Mechanism.dp_sgd:
        return "noise multiplier (times the clipping norm)"
    if sought is Solve.noise and mechanism is Mechanism.mst:
        return "noise of the one-column counts (standard deviation, in records)"
    if sought is Solve.steps and mechanism is Mechanism.tokens:
        return "tokens from one batch, at most"
    return {
        Solve.noise: "noise (standard deviation, in records)",
        Solve.steps: "steps, at most",
        Solve.contributions: "records of one unit (b), at most",
        Solve.threshold: "threshold (noisy records), at least",
        Solve.temperature: "temperature, at least",
    }[sought]


def _alone_each(asked: Asked, delta: float) -> dict[str, Any]:
    """What the histogram and the mechanism beside it cost each by itself; nothing where there is one of them."""
    from dpsynth_platform.privacy.accounting import epsilon

    if asked.histogram_noise is None:
        return {}
    return {"alone": {name: epsilon(event, delta).epsilon for name, event in asked.parts().items()}}


_METHOD_WORDS = {"pld": "PLD, privacy loss distributions", "renyi": "Renyi, moments of the privacy loss"}
_ADJACENCY_WORDS = {
    "add-or-remove": "there or not",
    "zero-out": "there or blank",
    "replace-one": "there or replaced by any others",
    "fixed-graph": "whatever its records say; who owns which is not protected",
}


def _show(
    output: TerminalOutput, event: DpEvent, result: EpsilonResult, more: Mapping[str, Any], *, units: int | None = None
) -> None:
    from dpsynth_platform.foundation.figures import number_of
    from dpsynth_platform.privacy.events import adjacency_of, event_to_json
    from dpsynth_platform.privacy.guarantee import tier

    too_large = _delta_notes(result.delta, units)
    level = None if too_large else tier(result.epsilon)
    notes = [*too_large, *_loose_notes(event, result)]
    output.json(
        {
            "epsilon": result.epsilon,
            "delta": result.delta,
            "method": result.method,
            "epsilon_by_pld": result.pld,
            "epsilon_by_renyi": result.renyi,
            "tier": level,
            **more,
            "notes": notes,
            "event": event_to_json(event),
        }
    )
    judged = f"a {level} guarantee" if level else f"delta {result.delta:.4g}: too large to promise anything"
    output.print(
        f"epsilon {_rounded(result.epsilon)} at delta {result.delta:.4g} (by {_METHOD_WORDS[result.method]}): {judged}"
    )
    adjacency, b = adjacency_of(event)
    output.print(f"for one unit of at most {number_of(b, 'record')}, {adjacency}: {_ADJACENCY_WORDS[adjacency]}")
    if alone := more.get("alone"):
        costs = ", ".join(f"{name} {_rounded(value)}" for name, value in alone.items())
        output.print(f"epsilon of each alone: {costs} (they do not simply add up)")
    for note in notes:
        output.print(f"note: {note}")


def _delta_notes(delta: float, units: int | None) -> list[str]:
    """Why delta is too large to promise anything, where it is."""
    if units is not None and delta >= 1 / units:
        return [f"delta {delta:.3g} is not below 1/{units}: it would allow to show one unit of them all in full"]
    if delta > WEAK_DELTA:
        return [
            "delta must be well below 1/n, n the number of privacy units: a mechanism that shows one unit of them all "
            "in full has delta 1/n"
        ]
    return []


def _loose_notes(event: DpEvent, result: EpsilonResult) -> list[str]:
    """Where only the looser of the two bounds can be computed."""
    from dpsynth_platform.privacy.events import SampledGaussianEvent, adjacency_of, leaves
    from dpsynth_platform.privacy.units import replaces

    if result.pld is not None:
        return []
    adjacency, _ = adjacency_of(event)
    sampled = any(isinstance(leaf, SampledGaussianEvent) for leaf, _ in leaves(event))
    why = f"sampling under {adjacency}" if sampled and replaces(adjacency) else "such noise, delta or b"
    return [f"PLD does not reach {why}, so this is the Renyi bound: it holds, but is loose"]


def _rounded(epsilon: float) -> str:
    """Five digits, rounded up: what is shown is never less than what is meant."""
    from dpsynth_platform.foundation.figures import upper_bound

    return upper_bound(epsilon, 5) if epsilon > 0 else "0"
