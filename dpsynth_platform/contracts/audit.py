"""The contract's `audit`: canaries, attacks, and the limits for a candidate."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from dpsynth_platform.contracts.base import Part

COLUMN_ATTACKS = ("measurements", "likelihood", "nearest rows")
"""Names of the attacks on the columns of canaries (`audit.attacks`)."""
MOST_OWNERS = 100_000
"""Fictional ones, of canaries and of shared secrets each."""


class RateLimit(Part):
    """The most true positives at one rate of false alarms with which an audit passes."""

    false_positive_rate: float = Field(gt=0, lt=1)
    true_positive_rate: float = Field(gt=0, lt=1)

    @model_validator(mode="after")
    def _above_guessing(self) -> RateLimit:
        if self.true_positive_rate <= self.false_positive_rate:
            raise ValueError(
                f"true_positive_rate: {self.true_positive_rate:g} at {self.false_positive_rate:g} false alarms is the "
                "rate of random guessing; accepted: more than the false_positive_rate"
            )
        return self


class SharedSecrets(Part):
    """Fictional secrets, each in the records of several owners: the guarantee for one owner does not cover them."""

    owners: list[int] = Field(
        default=[1, 4, 10],
        min_length=1,
        max_length=10,
        description="The numbers of owners that share a secret, each with as many records as the bound allows.",
    )
    each: int = Field(default=20, ge=2, le=1000, description="Secrets for each number; about half of them join.")

    @property
    def total(self) -> int:
        """Owners of all secrets, of whom half join in the mean."""
        return self.each * sum(self.owners)

    @model_validator(mode="after")
    def _few_owners(self) -> SharedSecrets:
        if min(self.owners) < 1 or len(set(self.owners)) < len(self.owners):
            raise ValueError(f"owners: {self.owners}; accepted: distinct whole numbers from 1")
        if self.total > MOST_OWNERS:
            raise ValueError(f"{self.total} fictional owners in all; accepted: at most {MOST_OWNERS}")
        return self


def canaries_of(declared: int | None, expected_units: int) -> int:
    """The number of candidate canaries: declared, or 0.5% of the expected units (at least 20, at most 500)."""
    return max(20, min(500, int(0.005 * expected_units))) if declared is None else declared


class Audit(Part):
    """The empirical audit. By default at most 0.5% of the expected units are canaries."""

    canaries: int | None = Field(default=None, ge=20, le=MOST_OWNERS)
    max_epsilon_lower_bound: float | None = Field(
        default=None, gt=0, description="The audit fails above it; by default the guarantee's epsilon."
    )
    confidence: float = Field(default=0.95, ge=0.5, lt=1)
    accept_inconclusive: str | None = Field(default=None, min_length=10)
    gates: list[str] | None = Field(
        default=None,
        min_length=1,
        description="Names of the attacks that decide; by default all. Reports show the others too.",
    )
    rate_limits: list[RateLimit] = Field(
        default_factory=list, description="Limits by rate of false alarms; by default only the frontier decides."
    )
    cumulative: Literal["gate", "report"] = Field(
        default="gate", description="Whether the combined result of the family's audits decides about a release too."
    )
    canary_texts: list[Literal["made-up", "in-distribution", "unlikely-ending"]] | None = Field(
        default=None,
        min_length=1,
        description=(
            "Kinds of the canaries' texts, in equal shares (`dp_finetune`): `made-up` words (the default), written by "
            "the base model (`in-distribution`), or begun by it and continued at a high temperature "
            "(`unlikely-ending`)."
        ),
    )
    canary_rows: list[Literal["random", "plausible"]] | None = Field(
        default=None,
        min_length=1,
        description=(
            "Kinds of the canaries' rows, in equal shares with separate results. `random` (the default): independent "
            "columns; `plausible`: combinations that satisfy `generate.constraints`."
        ),
    )
    shared_secrets: SharedSecrets | None = Field(
        default=None,
        exclude_if=lambda secrets: secrets is None,  # contracts without any keep their digests
        description=(
            "Further fictional texts that several owners share. The report says how many the model or its texts "
            "reveal, beside what the guarantee promises so many owners together; no verdict depends on it."
        ),
    )
    model: Literal["shared", "separate"] = Field(
        default="shared",
        description=(
            "Which model is attacked: the released one, with canaries in it (`shared`), or a second one that is "
            "trained with canaries and never released (`separate`), which doubles the cost."
        ),
    )
