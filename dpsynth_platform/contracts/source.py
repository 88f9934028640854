"""The contract's `source`: where the sensitive table lies."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dpsynth_platform.contracts.base import ColumnName, Part


class Source(Part):
    """Where the sensitive table lives and what identifies a record in it."""

    uri: str = Field(min_length=1, description="Path or URI of the table; ${DPSYNTH_HOME} is replaced.")
    format: Literal["delta"] = "delta"
    key: list[ColumnName] = Field(min_length=1, description="Columns that together identify a record.")
    period_column: ColumnName | None = Field(
        default=None, description="Date column that says to which period a record belongs (datasets with a cadence)."
    )
