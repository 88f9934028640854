"""The contract's `queries`: what is asked of a table where answers are released, and no rows (`kind: answers`).

What belongs here: the declaration of a query and its faults. What does not: SQL (`sql`), checks against columns
(`cross_checks`), and what is measured (`synth.answers`). All of it is public.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from dpsynth_platform.contracts.base import ColumnName, Name, Part, key_path, refuse
from dpsynth_platform.contracts.constraints import canonical_values

MOST_QUERIES = 200
ANSWER_COLUMNS = ("query", "measure", "of_column", "at_share", "answer", "low", "high", "standard_error")
"""Columns of a table of answers, beside those that queries group by."""
AMOUNT_TYPES = ("integer", "float")
"""Types of columns with sums, means and quantiles."""
GROUP_TYPES = ("categorical", "boolean", "integer", "float", "date", "datetime", "time")
Share = Annotated[float, Field(gt=0, lt=1)]


class Query(Part):
    """Counts, sums, means and quantiles of the rows of a table, by the declared values of columns.

    A group for every combination of the declared values of `by`, and of missing ones: which of them occur is not
    looked at. Values outside of a column's declared range are clamped to it.
    """

    count: bool = Field(default=False, description="How many rows each group has.")
    sum: list[ColumnName] = Field(default_factory=list, max_length=20, description="Columns that are added up.")
    mean: list[ColumnName] = Field(
        default_factory=list, max_length=20, description="Columns of which the mean is asked."
    )
    quantiles: dict[ColumnName, Annotated[list[Share], Field(min_length=1, max_length=20)]] = Field(
        default_factory=dict, max_length=20, description="Shares by column, such as {income: [0.25, 0.5]}; 0.5: median."
    )
    by: list[ColumnName] = Field(default_factory=list, max_length=6, description="Columns that make groups.")
    where: dict[ColumnName, Any] = Field(
        default_factory=dict,
        max_length=20,
        description="Which rows count: values by column, a list, a range {min: ..., max: ...} or one value.",
    )
    weight: float = Field(
        default=1.0, gt=0, le=1000, description="Of this query's part of the budget, beside those of the others."
    )

    @model_validator(mode="before")
    @classmethod
    def _of_sql(cls, document: Any) -> Any:
        """Reads a query in SQL: a text, or the key `sql` beside `weight`."""
        if isinstance(document, str):
            document = {"sql": document}
        if not isinstance(document, dict) or "sql" not in document:
            return document
        from dpsynth_platform.contracts.sql import query_of  # late: it loads a parser

        others = [key for key in document if key not in ("sql", "weight")]
        if others or not isinstance(document["sql"], str):
            raise ValueError(
                f"sql: with {', '.join(map(str, others)) or 'no text'}; accepted: a text, beside weight alone"
            )
        return {**query_of(document["sql"]), **{key: document[key] for key in ("weight",) if key in document}}

    @field_validator("where")
    @classmethod
    def _values(cls, where: dict[str, Any]) -> dict[str, Any]:
        found, faults = {}, []
        for name, values in where.items():
            try:
                found[name] = canonical_values(values)
            except ValueError as error:
                faults.append(f"{key_path(name)}: {error}")
        refuse(faults)
        return found

    @model_validator(mode="after")
    def _asks(self) -> Query:
        refuse(self._faults())
        return self

    def _faults(self) -> Iterator[str]:
        if not (self.count or self.sum or self.mean or self.quantiles):
            yield "nothing is asked; accepted: count: true, sum, mean or quantiles"
        for key, names in (("sum", self.sum), ("mean", self.mean), ("by", self.by)):
            if len(set(names)) < len(names):
                yield f"{key}: a column is listed twice; accepted: distinct columns"
        for name, shares in self.quantiles.items():
            if len(set(shares)) < len(shares):
                yield f"{key_path('quantiles', name)}: a share is listed twice; accepted: distinct shares"

    @property
    def amounts(self) -> tuple[str, ...]:
        """The columns that are added up, each once: for their sum, their mean or both."""
        return tuple(dict.fromkeys((*self.sum, *self.mean)))

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that it reads, each once."""
        return tuple(dict.fromkeys((*self.by, *self.where, *self.amounts, *self.quantiles)))

    def renamed(self, names: Mapping[str, str]) -> dict[str, Any]:
        """The same about columns of other names, as a document; a name that is not in the mapping stays."""

        def of(name: str) -> str:
            return names.get(name, name)

        document = self.model_dump()
        for key in ("sum", "mean", "by"):
            document[key] = [of(name) for name in document[key]]
        for key in ("quantiles", "where"):
            document[key] = {of(name): part for name, part in document[key].items()}
        return document


Queries = dict[Name, Query]
"""Queries by name."""
