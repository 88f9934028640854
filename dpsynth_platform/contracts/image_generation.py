"""The contract's `generate.image`: the column of pictures, and what they are conditioned by."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from dpsynth_platform.contracts.base import ColumnName, Part
from dpsynth_platform.contracts.columns import conditioning_values

MOST_CLASSES = 1000
"""The most classes of pictures."""


class ImageGeneration(Part):
    """The column of pictures, its conditioning columns, and the part of the budget for all other columns."""

    column: ColumnName | None = Field(default=None, description="The image column; by default the only one.")
    given: list[ColumnName] | None = Field(
        default=None,
        description=(
            "Modelled columns with a list of values by which pictures are made: each combination of their values is a "
            "class. By default the only such column; records with other values are not learned from."
        ),
    )
    columns_share: float = Field(
        default=0.1,
        gt=0,
        lt=1,
        description=(
            "Part of epsilon for the modelled columns; the pictures have the rest, or all where no column is modelled."
        ),
    )


def image_column_of(image: ImageGeneration, columns: Mapping[str, Any]) -> str | None:
    """The named image column, else the only one, else None."""
    found = [name for name, column in columns.items() if column and column.type == "image"]
    return image.column or (found[0] if len(found) == 1 else None)


def conditions_of(image: ImageGeneration, columns: Mapping[str, Any], modelled: list[str]) -> list[str]:
    """The declared conditioning columns, else the only modelled column with a list of values, else none."""
    listed = [name for name in modelled if columns[name] and conditioning_values(columns[name])]
    if image.given is None:
        return listed if len(listed) == 1 else []
    return [name for name in listed if name in image.given]
