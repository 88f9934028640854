"""The contract's `quality`: what the report for reviewers compares."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpsynth_platform.contracts.base import ColumnName, Part
from dpsynth_platform.contracts.findings import MOST_FINDINGS, Finding


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
