"""The contract's `quality`: what the report for reviewers compares."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpsynth_platform.contracts.base import ColumnName, Part


class Quality(Part):
    """What the quality report measures: a target column to predict, and the protected columns for fairness."""

    target: ColumnName | None = None
    task: Literal["classification"] = "classification"
    protected: list[ColumnName] = Field(default_factory=list)
    holdout: float = Field(
        default=0.1, gt=0, le=0.5, description="Share of owners that the mechanism does not see, for tests."
    )
