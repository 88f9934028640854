"""The marginals that a workload asks for: the contract's `generate.workload`, or a file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from dpsynth_platform.contracts.base import ColumnName, Part


class Query(Part):
    """A marginal of the workload: counts of every combination of its columns' values."""

    columns: list[ColumnName] = Field(min_length=2, max_length=6)
    weight: float = Field(default=1.0, gt=0, le=1000)

    @field_validator("columns")
    @classmethod
    def _distinct(cls, columns: list[str]) -> list[str]:
        if len(set(columns)) < len(columns):
            raise ValueError("a column is listed twice; accepted: distinct columns")
        return columns


class Workload(Part):
    """The marginals that `aim` chooses from, and their weights.

    All combinations of `ways` columns; `target` gives each column's marginal with it priority; `weights` are by column,
    1 by default; `queries` are further combinations.
    """

    ways: Literal[2, 3] = 2
    target: ColumnName | None = None
    weights: dict[ColumnName, Annotated[float, Field(gt=0, le=1000)]] = Field(default_factory=dict)
    queries: list[Query] = Field(default_factory=list, max_length=1000)

    def renamed(self, names: Mapping[str, str]) -> Workload:
        """The same workload of columns under other names; a name that is not in `names` stays."""

        def of(name: str) -> str:
            return names.get(name, name)

        return self.model_copy(
            update={
                "target": None if self.target is None else of(self.target),
                "weights": {of(name): weight for name, weight in self.weights.items()},
                "queries": [
                    query.model_copy(update={"columns": [of(name) for name in query.columns]}) for query in self.queries
                ],
            }
        )


class WorkloadFile(Part):
    """A file with `workload:`, as in a contract's `generate`."""

    workload: Workload


def read_workload(path: Path) -> Workload:
    """The workload that a YAML file declares. Raises `ContractError` with a line for each fault."""
    from dpsynth_platform.foundation.yaml_files import read_yaml

    return workload_in(read_yaml(path), str(path))


def workload_in(document: Mapping[str, Any], where: str = "workload") -> Workload:
    """The workload of a mapping with `workload:`. Raises `ContractError` with a line for each fault."""
    from dpsynth_platform.contracts.validation import validated  # late: a contract is made of these

    return validated(WorkloadFile, document, where).workload
