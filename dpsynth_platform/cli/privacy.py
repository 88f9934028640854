"""`dpsynth privacy`: what a mechanism costs, and the noise, steps or bound that a guarantee allows.

What belongs here: the commands, and results in words. What does not: arguments into events (`privacy_arguments`), and
accounting (`privacy`). Nothing here reads data or a deployment: every number comes from the command line.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpsynth_platform.cli.privacy_arguments import Mechanism, MechanismArguments, Target, checked_delta, needs
from dpsynth_platform.cli.terminal import Commands, TerminalOutput
from dpsynth_platform.foundation.errors import AccountingError
from dpsynth_platform.foundation.figures import number_of, upper_bound
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.privacy.guarantee import WEAK_DELTA

if TYPE_CHECKING:
    from dpsynth_platform.privacy.accounting import EpsilonResult
    from dpsynth_platform.privacy.calibration import Calibrated
    from dpsynth_platform.privacy.events import DpEvent


privacy_app = Commands(
    no_args_is_help=True, help="Privacy arithmetic on public numbers: cost, calibration, explanation. Reads no data."
)

Delta = Annotated[
    float | None,
    typer.Option(
        help="Delta, well below 1/n for n privacy units; default: 1/n^1.1, n from --units or, for dp-sgd with b = 1 or "
        "--sampled user, --records."
    ),
]
Units = Annotated[int | None, typer.Option(help="Number n of privacy units, to derive delta from and to judge it by.")]
METHODS = (
    "The result is the smaller of two bounds: PLD (privacy loss distributions, close to exact) and Renyi (moments of "
    "the privacy loss, looser, and what the ledger adds up)."
)
_EPILOG = f"{needs()}\n\n{METHODS}"


@privacy_app.command("epsilon", epilog=_EPILOG)
def privacy_epsilon(
    output: TerminalOutput, arguments: MechanismArguments, delta: Delta = None, units: Units = None
) -> None:
    """What a mechanism costs: epsilon at a delta."""
    from dpsynth_platform.privacy.accounting import epsilon

    event, at = arguments.event(), arguments.delta(delta, units)
    _show(output, event, epsilon(event, at), _alone_each(arguments, at), units=arguments.known_units(units))
    if arguments.mechanism == "mst":
        _print_parts(output, event, at)


@privacy_app.command("calibrate", epilog=_EPILOG)
def privacy_calibrate(
    output: TerminalOutput,
    arguments: MechanismArguments,
    limit: Annotated[float, typer.Option("--epsilon", help="The epsilon that everything together may cost.")],
    solve: Annotated[
        Target | None, typer.Option("--for", help="What to look for; default: the argument that is missing.")
    ] = None,
    delta: Delta = None,
    units: Units = None,
) -> None:
    """Looks for what a guarantee allows: the least noise, threshold or temperature, the most steps, the largest bound.

    The cost of a histogram beside the mechanism (--histogram-noise) is part of --epsilon.
    """
    if not (math.isfinite(limit) and limit > 0):
        raise AccountingError(f"--epsilon {limit:g}; accepted: a finite number above 0")
    target, at = arguments.target(solve), arguments.delta(delta, units)
    found = _found(arguments, target, limit, at)
    arguments = replace(arguments, **{target: found.value})
    output.print(f"{_found_words(arguments.mechanism, target)}: {found.value}")
    more = {"target_epsilon": limit, "for": target, target: found.value} | _alone_each(arguments, at)
    _show(output, found.event, found.result, more, units=arguments.known_units(units))
    if arguments.mechanism == "mst":
        _print_parts(output, found.event, at)


@privacy_app.command("explain", epilog=METHODS)
def privacy_explain(
    output: TerminalOutput,
    file: Annotated[
        Path,
        typer.Argument(
            help="JSON file that is or contains an event: output of dpsynth plan or dpsynth privacy, a statement, a "
            "dossier."
        ),
    ],
    delta: Annotated[
        float | None, typer.Option(help="Delta; default: the one in the file, or 1/n^1.1 with n from --units.")
    ] = None,
    units: Units = None,
    group: Annotated[int | None, typer.Option(help="Also the cost for a group of this many units (loose).")] = None,
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
    _show(output, event, result, more, units=units)
    _print_parts(output, event, at)
    if group is not None:
        output.print(f"For {group} units together: epsilon {_rounded(more['group']['epsilon'])} (a loose bound)")


@privacy_app.command("tuning", epilog=METHODS)
def privacy_tuning(
    output: TerminalOutput,
    files: Annotated[
        list[Path],
        typer.Argument(
            help="JSON files with the events of the runs to choose from, as for explain; the noisy score that decides "
            "is a part of each, such as quality.paid."
        ),
    ],
    runs: Annotated[float, typer.Option(help="Expected number of runs, above 1. Each takes one FILE at random.")] = 5.0,
    shape: Annotated[
        float,
        typer.Option(help="Of the distribution of that number: 1 geometric, 0 logarithmic, near -1 the widest."),
    ] = 1.0,
    delta: Annotated[float | None, typer.Option(help="Delta; default: the largest one in the files.")] = None,
    units: Units = None,
) -> None:
    """What the best of several runs costs, if neither the other results nor the number of runs are ever shown.

    By Papernot & Steinke, 2022. Beside it: one run of each file, and one run of each with all results shown.
    """
    from dp_accounting import dp_event

    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.events import best_run_event

    read = [_read_event(file) for file in files]
    own = max((found for _, found in read if found is not None), default=None)
    at = checked_delta(delta if delta is not None or units is not None else own, units)
    events = [event for event, _ in read]
    best = best_run_event(events, runs, shape)
    result, composed = epsilon(best, at), epsilon(dp_event.ComposedDpEvent(events), at)
    ones = [epsilon(event, at).epsilon for event in events]
    more = {
        "runs": runs,
        "shape": shape,
        "epsilon_of_one_run": dict(zip(map(str, files), ones, strict=True)),
        "epsilon_of_all_shown": composed.epsilon,
    }
    unscored = [str(file) for file, event in zip(files, events, strict=True) if not _has_measures(event)]
    notes = [f"{', '.join(unscored)}: {_NO_SCORE}"] if unscored else []
    _show(output, best, result, more, units=units, notes=notes)
    rows = [(f"one run of {file}", _rounded(one)) for file, one in zip(files, ones, strict=True)]
    rows.append((f"one run of each file ({len(files)}), all results shown", _rounded(composed.epsilon)))
    rows.append((f"the best of {runs:g} runs in expectation, nothing else shown", _rounded(result.epsilon)))
    output.table(("what", "epsilon"), rows)


_NO_SCORE = (
    "no measure of quality is part of it; the bound holds only if what decides follows from a run's own result, with "
    "no further look at the data"
)


def _has_measures(event: DpEvent) -> bool:
    from dpsynth_platform.privacy.events import GaussianMeasuresEvent, leaves

    return any(isinstance(leaf, GaussianMeasuresEvent) for leaf, _ in leaves(event))


def _parts(event: DpEvent, delta: float) -> list[dict[str, Any]]:
    from dp_accounting import dp_event

    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.events import atoms, event_to_json

    return [
        {
            "mechanism": event_to_json(leaf)["kind"],
            "words": _in_words(leaf, times),
            "times": times,
            "epsilon_alone": epsilon(dp_event.SelfComposedDpEvent(leaf, times), delta).epsilon,
        }
        for leaf, times in atoms(event)
    ]


def _print_parts(output: TerminalOutput, event: DpEvent, delta: float) -> None:
    output.print("By parts (their epsilons do not simply add up):")
    output.table(
        ("part", "epsilon alone"),
        [(part["words"], _rounded(part["epsilon_alone"])) for part in _parts(event, delta)],
    )


def _in_words(leaf: DpEvent, times: int) -> str:
    from dpsynth_platform.privacy import events

    if isinstance(leaf, events.BestRunEvent):
        of = "one mechanism" if len(leaf.events) == 1 else f"one of {len(leaf.events)} mechanisms"
        often = "" if times == 1 else f"{times} times "
        return f"{often}the best of {leaf.mean:.3g} runs in expectation (shape {leaf.shape:g}), each of {of}"
    if isinstance(leaf, events.BoundedRangeSelectionEvent):
        return f"{number_of(times, 'choice')} by the exponential mechanism, range {leaf.epsilon:g}{_counted(leaf)}"
    if isinstance(leaf, events.LocalReportsEvent):
        return f"{number_of(times, 'private report')} of each unit, epsilon {leaf.epsilon:g} (delta 0)"
    if isinstance(leaf, events.SampledGaussianEvent):
        return (
            f"{number_of(times, 'step')} of DP-SGD, noise multiplier {leaf.noise_multiplier:g}, {leaf.sampled}s "
            f"sampled with probability {leaf.sampling_probability:g}"
        )
    if isinstance(leaf, events.GaussianVotesEvent):
        return f"{number_of(times, 'histogram')} of votes with Gaussian noise, sigma {leaf.sigma:g}"
    if isinstance(leaf, events.GaussianSumsEvent):
        return f"{number_of(times, 'set')} of sums of vectors with Gaussian noise, sigma {leaf.sigma:g}"
    if isinstance(leaf, (events.SkellamCountsEvent, events.SkellamSumsEvent)):
        table = isinstance(leaf, events.SkellamCountsEvent)
        what = f"{number_of(times, 'table')} of counts" if table else f"{number_of(times, 'set')} of sums of vectors"
        return f"{what} with Skellam noise, sigma {leaf.sigma:g} for a change of {leaf.sensitivity.l2:g}"
    if isinstance(leaf, events.GaussianMeasuresEvent):
        return (
            f"measures of quality with Gaussian noise, as a table of counts with sigma {leaf.sigma:g}{_counted(leaf)}"
        )
    noise = "Gaussian" if isinstance(leaf, events.GaussianCountsEvent) else "discrete Gaussian"
    cut = f", shown from {leaf.threshold:g} up" if isinstance(leaf, events.ThresholdedEvent) else ""
    return f"{number_of(times, 'table')} of counts with {noise} noise, sigma {leaf.sigma:g}{cut}{_counted(leaf)}"


def _counted(leaf: DpEvent) -> str:
    return ", owners counted once each" if getattr(leaf, "weighting", "rows") == "owners" else ""


def _read_event(file: Path) -> tuple[DpEvent, float | None]:
    """The event in a file, and the delta beside it, if there is one."""
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
    if "kind" in document:  # the event itself, which may be a repetition that contains an event
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


def _found(arguments: MechanismArguments, target: Target, limit: float, delta: float) -> Calibrated[Any]:
    """The calibrated value; the refusal says so where the histogram beside the mechanism costs too much."""
    from dpsynth_platform.privacy.accounting import epsilon

    beside = arguments.histogram_beside()
    if beside is None:
        return _search(arguments, target, limit, delta)
    alone = epsilon(beside, delta).epsilon
    if alone > limit:
        raise AccountingError(
            f"the histogram alone costs epsilon {_rounded(alone)} at delta {delta:.3g}, above the {limit:g} of all "
            "together; accepted: a larger --histogram-noise, or a larger --epsilon"
        )
    try:
        return _search(arguments, target, limit, delta)
    except AccountingError as error:
        raise AccountingError(
            f"{error} (the histogram alone costs epsilon {_rounded(alone)}: a larger --histogram-noise leaves more)"
        ) from None


def _search(arguments: MechanismArguments, target: Target, limit: float, delta: float) -> Calibrated[Any]:
    from dpsynth_platform.privacy import calibration

    def event_of(value: float) -> DpEvent:
        changed: dict[str, Any] = {target: value}
        return replace(arguments, **changed).event()

    if target == "noise" and arguments.mechanism == "mst":
        return _mst_noise(arguments, limit, delta)
    if target == "noise":
        return calibration.noise_for(event_of, limit, delta)
    if target == "temperature":
        return calibration.temperature_for(event_of, limit, delta)
    if target == "threshold":
        return calibration.threshold_for(event_of, limit, delta, above=arguments.contributions)
    if target == "steps":
        return calibration.steps_for(event_of, limit, delta)
    return calibration.contributions_for(event_of, limit, delta)


def _mst_noise(arguments: MechanismArguments, limit: float, delta: float) -> Calibrated[float]:
    """The noise of MST, calibrated as for a plan."""
    from dpsynth_platform.privacy.accounting import epsilon
    from dpsynth_platform.privacy.calibration import Calibrated
    from dpsynth_platform.privacy.guarantee import Guarantee
    from dpsynth_platform.privacy.mst import calibrate_mst, mst_event

    columns, adjacency, b = arguments.columns or 1, arguments.adjacency, arguments.contributions
    budget = calibrate_mst(columns, Guarantee(limit, delta, "user", adjacency, b))
    event = mst_event(columns, budget, adjacency, b)
    return Calibrated(budget.sigma_one, event, epsilon(event, delta))


def _found_words(mechanism: Mechanism, target: Target) -> str:
    if target == "noise" and mechanism == "dp-sgd":
        return "noise multiplier (times the clipping norm)"
    if target == "noise" and mechanism == "mst":
        return "noise of the one-column counts (standard deviation, in records)"
    if target == "steps" and mechanism == "tokens":
        return "tokens from one batch, at most"
    return {
        "noise": "noise (standard deviation, in records)",
        "steps": "steps, at most",
        "contributions": "records of one unit (b), at most",
        "threshold": "threshold (noisy records), at least",
        "temperature": "temperature, at least",
    }[target]


def _alone_each(arguments: MechanismArguments, delta: float) -> dict[str, Any]:
    """The costs of the mechanism and of the histogram beside it; empty without a histogram."""
    from dpsynth_platform.privacy.accounting import epsilon

    if arguments.histogram_noise is None:
        return {}
    return {"alone": {name: epsilon(event, delta).epsilon for name, event in arguments.parts().items()}}


_METHOD_WORDS = {"pld": "PLD, privacy loss distributions", "renyi": "Renyi, moments of the privacy loss"}
_ADJACENCY_WORDS = {
    "add-or-remove": "there or not",
    "zero-out": "there or blank",
    "replace-one": "there or replaced by any others",
    "fixed-graph": "whatever its records contain; who owns which is not protected",
}


def _show(
    output: TerminalOutput,
    event: DpEvent,
    result: EpsilonResult,
    more: Mapping[str, Any],
    *,
    units: int | None = None,
    notes: Sequence[str] = (),
) -> None:
    from dpsynth_platform.privacy.events import adjacency_of, event_to_json
    from dpsynth_platform.privacy.guarantee import tier

    too_large = _delta_notes(result.delta, units)
    level = None if too_large else tier(result.epsilon)
    notes = [*too_large, *_loose_notes(event, result), *notes]
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
    """Why delta is too large to promise anything; empty where it is not."""
    if units is not None and delta >= 1 / units:
        return [f"delta {delta:.3g} is not below 1/{units}: a mechanism may then show one unit in full"]
    if delta > WEAK_DELTA:
        return [
            "delta must be well below 1/n, n the number of privacy units: a mechanism that shows one random unit in "
            "full has delta 1/n"
        ]
    return []


def _loose_notes(event: DpEvent, result: EpsilonResult) -> list[str]:
    from dpsynth_platform.privacy.events import BestRunEvent, SampledGaussianEvent, adjacency_of, atoms, leaves
    from dpsynth_platform.privacy.units import replaces

    if result.pld is not None:
        return []
    adjacency, _ = adjacency_of(event)
    sampled = any(isinstance(leaf, SampledGaussianEvent) for leaf, _ in leaves(event))
    why = f"sampling under {adjacency}" if sampled and replaces(adjacency) else "such noise, delta or b"
    if any(isinstance(atom, BestRunEvent) for atom, _ in atoms(event)):
        why = "the best of several runs"
    return [f"PLD does not reach {why}, so this is the Renyi bound: it holds, but is loose"]


def _rounded(epsilon: float) -> str:
    """Five digits, rounded up: the shown epsilon is never less than the computed one."""
    return upper_bound(epsilon, 5) if epsilon > 0 else "0"
