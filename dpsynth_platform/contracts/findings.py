"""Findings: the conclusions of a published analysis, declared so that they can be drawn again from other rows.

What belongs here: the declaration and its faults. What does not: drawing a conclusion (`quality.conclusions`).

    findings:
      - {name: men work longer, compare: hours, groups: [{sex: Male}, {sex: Female}]}             # means
      - {compare: {income: ">50K"}, groups: [{education: [Masters, Doctorate]}, {education: HS-grad}]}    # shares
      - {correlate: [age, hours], where: {age: {min: 18}}}
      - {regress: hours, on: [age, sex, education]}      # the sign of the first one's coefficient
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from dpsynth_platform.contracts.base import ColumnName, Part, refuse
from dpsynth_platform.contracts.constraints import canonical_values

MOST_FINDINGS = 1000
_FORMS = "exactly one of compare (with groups), correlate, and regress (with on)"

Condition = dict[ColumnName, Any]
"""Values by column, all of which a row has: a value, a list of values, or a range with `min` or `max` or both."""
Quantity = ColumnName | Condition
"""A column of numbers, or a condition: 1 for rows that meet it, and 0 for others."""


class Finding(Part):
    """One conclusion of an analysis: which way a difference, correlation or coefficient goes, if it is significant."""

    name: str | None = Field(default=None, max_length=200, description="In reports; default: what is compared.")
    compare: Quantity | None = Field(default=None, description="Whose mean, or share, is compared in two groups.")
    groups: list[Condition] | None = Field(
        default=None, min_length=2, max_length=2, description="For `compare`: the conditions of both groups."
    )
    correlate: list[Quantity] | None = Field(
        default=None, min_length=2, max_length=2, description="Two quantities, by Spearman's rank correlation."
    )
    regress: Quantity | None = Field(default=None, description="The outcome of a linear regression.")
    on: list[Quantity] | None = Field(
        default=None,
        min_length=1,
        max_length=50,
        description="For `regress`: what it depends on; the conclusion is about the first. Others may be categories.",
    )
    where: Condition = Field(default_factory=dict, description="Which rows are used; default: all.")
    level: float = Field(default=0.05, gt=0, lt=1, description="Level of significance of the two-sided test.")

    @field_validator("compare", "regress", "where", mode="before")
    @classmethod
    def _one(cls, quantity: Any) -> Any:
        return _canonical(quantity)

    @field_validator("groups", "correlate", "on", mode="before")
    @classmethod
    def _several(cls, quantities: Any) -> Any:
        return [_canonical(each) for each in quantities] if isinstance(quantities, list) else quantities

    @model_validator(mode="after")
    def _one_form(self) -> Finding:
        refuse(self._faults())
        return self

    def _faults(self) -> Iterator[str]:
        forms = [form for form in (self.compare, self.correlate, self.regress) if form is not None]
        if len(forms) != 1:
            yield f"{len(forms)} forms given; accepted: {_FORMS}"
        elif (self.groups is not None) != (self.compare is not None) or (self.on is not None) != (
            self.regress is not None
        ):
            yield f"groups go with compare, and on with regress; accepted: {_FORMS}"

    @property
    def columns(self) -> list[str]:
        """Names of the columns that it is about, each once."""
        quantities = [self.compare, *(self.groups or ()), *(self.correlate or ()), self.regress, *(self.on or ())]
        return list(dict.fromkeys(name for each in [*quantities, self.where] for name in _names(each)))

    @property
    def numbers(self) -> list[str]:
        """Names of the columns whose numbers it uses."""
        quantities = [self.compare, self.regress, *(self.correlate or ()), *(self.on or ())[:1]]
        return [each for each in quantities if isinstance(each, str)]

    @property
    def label(self) -> str:
        """Its name, or the columns that it is about, without a value."""
        if self.name is not None:
            return self.name
        if self.correlate is not None:
            return f"correlation of {' and '.join(map(_worded, self.correlate))}"
        if self.on is not None:
            return f"effect of {_worded(self.on[0])} on {_worded(self.regress)}"
        return f"difference of {_worded(self.compare)} by {_worded((self.groups or [{}])[0])}"


class FindingsFile(Part):
    """A file with `findings:`, each as in a contract's `quality`."""

    findings: list[Finding] = Field(min_length=1, max_length=MOST_FINDINGS)


def read_findings(path: Path) -> list[Finding]:
    """The findings that a YAML file declares. Raises `ContractError` with a line for each fault."""
    from dpsynth_platform.contracts.validation import validated  # late: a contract is made of these
    from dpsynth_platform.foundation.yaml_files import read_yaml

    return list(validated(FindingsFile, read_yaml(path), str(path)).findings)


def findings_of(given: Iterable[Any]) -> list[Any]:
    """Findings from mappings; functions stay as they are. Raises `ContractError` with a line for each fault."""
    from dpsynth_platform.contracts.validation import validated

    found = list(given)
    places = [place for place, each in enumerate(found) if not callable(each)]
    if places:
        declared = validated(FindingsFile, {"findings": [found[place] for place in places]}, "findings").findings
        for place, finding in zip(places, declared, strict=True):
            found[place] = finding
    return found


def _canonical(quantity: Any) -> Any:
    if not isinstance(quantity, dict):
        return quantity
    return {name: canonical_values(values) for name, values in quantity.items()}


def _names(quantity: Any) -> list[str]:
    return [] if quantity is None else [quantity] if isinstance(quantity, str) else list(quantity)


def _worded(quantity: Any) -> str:
    return " and ".join(_names(quantity))
