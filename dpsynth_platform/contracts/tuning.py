"""The contract's `generate.tune`: settings among which the mechanism itself chooses, by a score that is paid.

What belongs here: the settings, how often they run, and the score. What does not: the choice (`synth.tuning`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from dpsynth_platform.contracts.base import Part, refuse
from dpsynth_platform.contracts.methods import LANGUAGE_METHODS, NETWORK_METHODS, WORKLOAD_METHODS, TableMethodName
from dpsynth_platform.contracts.network_training import NETWORK_DEFAULTS, RowLanguage, TableNetwork
from dpsynth_platform.contracts.quality import Paid
from dpsynth_platform.contracts.workload import Workload
from dpsynth_platform.foundation.yaml_files import read_yaml

TUNED_METHODS = tuple(name for name in get_args(TableMethodName) if name not in ("auto", "jam"))
"""Methods that a candidate may have: `auto` has no settings, and `jam` needs counts of a public table."""
LIKELIHOOD_METHODS = ("arn", "tbart", *LANGUAGE_METHODS)
"""Of these, methods whose models know each record's likelihood."""
MOST_CANDIDATES = 20
_HELD_OUT, _CLIP = 0.2, 1.0


class Candidate(Part):
    """One setting. What it leaves out is as in `generate`, or the default of another method that it names."""

    method: TableMethodName | None = Field(default=None, description="By default that of `generate`.")
    network: TableNetwork | None = Field(
        default=None, exclude_if=lambda network: network is None, description="For methods that train a network."
    )
    language: RowLanguage | None = Field(
        default=None,
        exclude_if=lambda language: language is None,
        description="For methods that train a language model, which for all of them is that of `generate`.",
    )
    workload: Workload | None = Field(
        default=None,
        exclude_if=lambda workload: workload is None,
        description="For methods that heed one.",
    )

    def faults(self, where: str) -> Iterator[str]:
        if self.method not in TUNED_METHODS:
            shown = "missing, and generate.method names none" if self.method in (None, "auto") else repr(self.method)
            yield f"{where}.method: {shown}; accepted: {', '.join(TUNED_METHODS)}"
            return
        parts = {"network": NETWORK_METHODS, "language": LANGUAGE_METHODS, "workload": WORKLOAD_METHODS}
        for name, methods in parts.items():
            if getattr(self, name) is not None and self.method not in methods:
                accepted = ", ".join(each for each in methods if each in TUNED_METHODS)
                yield (
                    f"{where}.{name}: is for method {accepted}, and the method is {self.method!r}; accepted: such a "
                    "method, or leave it out"
                )


class Score(Part):
    """What decides between runs: a noisy measure of quality, which is part of what each run costs."""

    measure: Literal["pairs", "accuracy", "regression", "likelihood"] = Field(
        default="pairs",
        description="As in `quality.paid`: the mean distance of all pairs of columns, or how well a model of the "
        "target predicts that learns from synthetic rows alone. `likelihood`: of the records of owners on whom no run "
        f"is trained, for {' and '.join(LIKELIHOOD_METHODS)}.",
    )
    share: float = Field(
        default=0.05, gt=0, le=0.5, description="Of a run's budget (zCDP) for counts, as in `quality.paid`."
    )
    held_out: float | None = Field(
        default=None,
        gt=0,
        le=0.5,
        exclude_if=lambda share: share is None,
        description=f"Of `likelihood`: the share of owners on whom no run is trained; by default {_HELD_OUT:g}.",
    )
    clip: float | None = Field(
        default=None,
        gt=0,
        le=4,
        exclude_if=lambda clip: clip is None,
        description="Of `likelihood`: a record's log-likelihood counts no less than so many times that of equally "
        f"likely cells; by default {_CLIP:g}.",
    )

    def faults(self) -> Iterator[str]:
        for name in ("held_out", "clip"):
            if (getattr(self, name) is None) == (self.measure == "likelihood"):
                yield f"score.{name}: is for measure likelihood, and the measure is {self.measure!r}; accepted: none"


class HeldOut(Paid):
    """The score `likelihood` of one setting, as a measure that its plan pays for."""

    measures: list[Literal["likelihood"]]  # type: ignore[assignment]
    held_out: float
    clip: float


class Tune(Part):
    """Settings among which the mechanism chooses. The guarantee is that of all runs and of the choice together."""

    candidates: list[Candidate] = Field(
        min_length=2,
        max_length=MOST_CANDIDATES,
        description="Settings of the method: `network`, `workload`, or another `method`.",
    )
    runs: float | Literal["each"] = Field(
        default="each",
        description="`each`: every candidate runs once, and all are paid for. A number above 1: so many runs in "
        "expectation, each of a random candidate; how many there are is drawn once and never shown, nor are the runs "
        "that lose (Papernot & Steinke 2022). It costs less from about five runs on.",
        json_schema_extra={
            "anyOf": [{"const": "each"}, {"type": "number", "exclusiveMinimum": 1, "maximum": 100}],
        },
    )
    shape: float = Field(
        default=1.0,
        ge=0,
        le=10,
        description="Of the random number's distribution, a truncated negative binomial one: 1 geometric, 0 "
        "logarithmic, which costs less and varies more.",
    )
    score: Score = Field(default=Score(), description="What decides; each run pays for its own.")

    @model_validator(mode="after")
    def _valid(self) -> Tune:
        refuse(self._faults())
        return self

    def _faults(self) -> Iterator[str]:
        if self.runs != "each" and not 1 < self.runs <= 100:
            yield f"runs: {self.runs:g}; accepted: each, or a number above 1, up to 100"
        if 0 < self.shape < 0.001:
            yield f"shape: {self.shape:g}; accepted: 0, or from 0.001 to 10"
        if self.runs == "each" and self.shape != Tune.model_fields["shape"].default:
            yield f"shape: {self.shape:g} with runs: each, which are no random number; accepted: none"
        yield from self.score.faults()
        for number, candidate in enumerate(self.candidates):
            yield from candidate.faults(f"candidates.{number}")
            if self.score.measure == "likelihood" and candidate.method not in LIKELIHOOD_METHODS:
                yield (
                    f"candidates.{number}.method: {candidate.method!r}, with score.measure likelihood; accepted: "
                    f"{', '.join(LIKELIHOOD_METHODS)}, or another measure"
                )
            if candidate in self.candidates[:number]:
                first = self.candidates.index(candidate)
                yield f"candidates.{number}: is the same setting as candidates.{first}; accepted: each once"


class TuneFile(Part):
    """A file with `tune:`, as in a contract's `generate`."""

    tune: Tune


def read_tune(declared: Path | Mapping[str, Any], generate: Mapping[str, Any]) -> Tune:
    """The settings in a YAML file, or in a mapping of what stands below `tune`.

    Args:
        generate: what candidates leave out, as in a contract.

    Raises:
        ContractError: with a line for each fault.
    """
    from dpsynth_platform.contracts.validation import validated  # late: a contract is made of these

    document = read_yaml(declared) if isinstance(declared, Path) else {"tune": dict(declared)}
    if isinstance(document.get("tune"), dict):
        document = document | {"tune": with_settings({**generate, "tune": document["tune"]})["tune"]}
    return validated(TuneFile, document, str(declared) if isinstance(declared, Path) else "tune").tune


def with_settings(generate: Any) -> Any:
    """An unvalidated `generate` part whose candidates have all their settings, so that a sealed contract holds them."""
    tune = generate.get("tune") if isinstance(generate, dict) else None
    if not isinstance(tune, dict) or not isinstance(tune.get("candidates"), list):
        return generate
    candidates = [_whole(each, generate) if isinstance(each, dict) else each for each in tune["candidates"]]
    score = tune.get("score")
    if isinstance(score, dict) and score.get("measure") == "likelihood":
        tune = tune | {"score": {"held_out": _HELD_OUT, "clip": _CLIP} | score}
    return generate | {"tune": tune | {"candidates": candidates}}


def with_public_rows(language: dict[str, Any], public: Any) -> dict[str, Any]:
    """An unvalidated `language` part whose first stage learns the rows of `generate.public`, where there are any."""
    first = language.get("first")
    return (
        language if public is None or not isinstance(first, dict) else language | {"first": {"rows": "public"} | first}
    )


def _whole(candidate: Mapping[str, Any], generate: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(candidate)
    if found.get("method") is None:
        found["method"] = generate.get("method")
    trained = "network" if found["method"] in NETWORK_METHODS else "language"
    if found["method"] in (*NETWORK_METHODS, *LANGUAGE_METHODS):
        common = generate.get(trained) if found["method"] == generate.get("method") else None
        parts = [NETWORK_DEFAULTS[found["method"]], {} if common is None else common, found.get(trained) or {}]
        if all(isinstance(part, dict) for part in parts):
            found[trained] = with_public_rows(
                {key: value for part in parts for key, value in part.items()}, generate.get("public")
            )
    elif found["method"] in WORKLOAD_METHODS and found.get("workload") is None:
        found["workload"] = generate.get("workload") or {}
    return found
