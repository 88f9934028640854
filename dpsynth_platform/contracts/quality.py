"""The contract's `quality`: what the report for reviewers compares, and what is bought for the public dossier."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator

from dpsynth_platform.contracts.base import ColumnName, Name, Part
from dpsynth_platform.contracts.findings import MOST_FINDINGS, Finding

MOST_SELECTS = 200
MOST_TARGET_VALUES = 50
"""Of a target whose classifier's accuracy is bought."""


class Paid(Part):
    """Measures that are bought with a share of the release's budget, so that the public dossier may show them."""

    measures: list[Literal["accuracy", "regression", "pairs"]] = Field(
        min_length=1,
        description="`accuracy`: of a classifier of the target that learns from synthetic rows alone; `regression`: "
        "mean absolute error of a regressor, for a target of numbers; `pairs`: mean total variation distance of all "
        "pairs of columns. All compare real rows with a sample of the model.",
    )
    share: float = Field(
        default=0.05,
        gt=0,
        le=0.5,
        description="Share of the budget (zCDP) of the release's counts, for all of "
        "them together; with `arn` and other networks, their counts have `network.columns_share` of the guarantee.",
    )

    @field_validator("measures")
    @classmethod
    def _distinct(cls, names: list[str]) -> list[str]:
        if len(set(names)) < len(names):
            raise ValueError(f"{', '.join(names)} contains duplicates; accepted: each measure once")
        return names


class Quality(Part):
    """What the quality report measures: a target to predict, protected columns for fairness, and findings to repeat."""

    target: ColumnName | None = None
    task: Literal["classification", "regression"] = Field(
        default="classification",
        description="`regression` predicts numbers, and has no fairness figures; `classification` predicts cells.",
    )
    protected: list[ColumnName] = Field(default_factory=list)
    findings: list[Finding] = Field(
        default_factory=list,
        max_length=MOST_FINDINGS,
        exclude_if=lambda findings: not findings,
        description="Conclusions of an analysis; the report says which of them synthetic rows lead to, too.",
    )
    holdout: float = Field(
        default=0.1, gt=0, le=0.5, description="Share of owners that the mechanism does not see, for tests."
    )
    queries: dict[Name, Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]] = Field(
        default_factory=dict,
        max_length=MOST_SELECTS,
        exclude_if=lambda queries: not queries,
        description="With `tables`: SELECT statements by name, in DuckDB's SQL. The report has the relative errors of "
        "their answers. The last column is a number; the others name its group.",
    )
    paid: Paid | None = Field(
        default=None,
        exclude_if=lambda paid: paid is None,
        description="Measures that the mechanism takes with noise, for the public dossier. For tables without texts "
        "and pictures.",
    )
