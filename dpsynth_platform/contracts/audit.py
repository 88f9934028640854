"""The contract's `audit`: canaries, attacks, and the limits that a candidate is held against."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dpsynth_platform.contracts.base import Part

COLUMN_ATTACKS = ("measurements", "likelihood", "nearest rows")
"""Names of the attacks on the columns of canaries (`audit.attacks`)."""


class RateLimit(Part):
    """How many of the included an attacker may find at one rate of false alarms, for an audit to pass."""

    false_positive_rate: float = Field(gt=0, lt=1)
    true_positive_rate: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _above_guessing(self) -> RateLimit:
        if self.true_positive_rate <= self.false_positive_rate:
            raise ValueError(
                f"true_positive_rate: {self.true_positive_rate:g} at {self.false_positive_rate:g} false alarms is what "
                "blind guessing reaches; accepted: more than the false_positive_rate"
            )
        return self


class Audit(Part):
    """The empirical audit. By default at most 0.5% of the expected units are canaries."""

    canaries: int | None = Field(default=None, ge=20, le=100_000)
    max_epsilon_lower_bound: float | None = Field(
        default=None, gt=0, description="The audit fails above it; by default the guarantee's epsilon."
    )
    confidence: float = Field(default=0.95, ge=0.5, lt=1)
    accept_inconclusive: str | None = Field(default=None, min_length=10)
    gates: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Names of the attacks that decide; by default all. The others are shown.",
    )
    rate_limits: list[RateLimit] = Field(
        default_factory=list, description="Most true positives at rates of false alarms; by default the frontier alone."
    )
    cumulative: Literal["gate", "report"] = Field(
        default="gate", description="Whether the family's audits, taken together, decide about a release too."
    )
    canary_texts: list[Literal["made-up", "in-distribution", "unlikely-ending"]] | None = Field(
        default=None,
        min_length=1,
        description=(
            "Of `dp_finetune`: what canaries' texts are; of several kinds each gets the same share. `made-up` words "
            "(the default), written by the base model (`in-distribution`), or begun by it and drawn at a high "
            "temperature from there (`unlikely-ending`)."
        ),
    )
    canary_rows: list[Literal["random", "plausible"]] | None = Field(
        default=None,
        min_length=1,
        description=(
            "What canaries' rows are; of several kinds each gets the same share, and results of its own. `random` (the "
            "default): columns independent of each other; `plausible`: combinations that keep all of "
            "`generate.constraints`."
        ),
    )
    model: Literal["shared", "separate"] = Field(
        default="shared",
        description=(
            "What is attacked: the model that is released, with canaries in it (`shared`), or an equal one that is "
            "trained apart with canaries and never released (`separate`), which costs what the released one costs."
        ),
    )
