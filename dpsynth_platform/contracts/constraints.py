"""Constraints: which rows cannot occur, as a contract, a schema file or a constraints file declares it.

What belongs here: the declaration and its faults. What does not: checks against columns, and cells
(`synth.tabular.constraints`). All of it is public: constraints cost nothing. No mechanism depends on them, and a model
can be fitted again under others without reading data, with one exception: the mechanism counts gaps of dates, moments
and times of day in a declared order (`gap_orders`).

    constraints:
      - forbid: {age: {max: 14}, marital: [Married, Divorced]}      # these together do not occur
      - only: [{sex: Female, title: [Ms, Dr]}, {sex: Male, title: [Mr, Dr]}]   # nothing but these
      - {column: education, determines: years, mapping: {Bachelors: 13, Masters: 14}}
      - {column: ward, determines: hospital}                        # learned from the noisy counts
      - {ascending: [admitted, discharged]}                         # strict: true, allow_missing: false
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dpsynth_platform.contracts.base import key_path
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.yaml_files import plain_number, read_yaml, text_of

Scalar = bool | int | float | str | None
"""One value; dates, moments and times of day as ISO texts, None for a missing one."""
Values = list[Scalar] | dict[str, Scalar]
"""Values of a column: a list, or a range with `min` or `max` or both, inclusive."""

MOST_CONSTRAINTS = 1000
MOST_COLUMNS = 6
"""Of one constraint."""
KINDS = ("forbid", "only", "determines", "ascending")
MOMENTS = ("date", "datetime", "time")
"""Types of columns that are counted by gaps where their order is declared (`synth.tabular.attributes`)."""


class Constraint(BaseModel):
    """One constraint; exactly one of `forbid`, `only`, `determines` and `ascending` says what kind it is."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    forbid: dict[str, Any] | None = Field(
        default=None, description="Values of two or more columns that do not occur together: lists, ranges or a value."
    )
    only: list[dict[str, Any]] | None = Field(
        default=None,
        min_length=1,
        max_length=10_000,
        description="The only combinations that occur; columns that one omits may have any value.",
    )
    column: str | None = Field(default=None, description="For `determines`: the column that determines the other.")
    determines: str | None = Field(default=None, description="The column that follows from `column`.")
    mapping: dict[str, Any] | None = Field(
        default=None,
        min_length=1,
        description="What each value of `column` determines; by default learned from the noisy counts.",
    )
    ascending: list[str] | None = Field(
        default=None,
        description="Two or more columns whose values do not decrease from one to the next. Of dates, moments and "
        "times of day, the mechanism counts the later one by its gap to the earlier one.",
    )
    strict: bool = Field(default=False, description="For `ascending`: whether equal values are excluded.")
    allow_missing: bool = Field(
        default=True, description="For `ascending` and `determines`: whether a row may lack some of the values."
    )

    @field_validator("forbid", mode="before")
    @classmethod
    def _box(cls, box: Any) -> Any:
        return None if box is None else _canonical_box(box)

    @field_validator("only", mode="before")
    @classmethod
    def _boxes(cls, boxes: Any) -> Any:
        return [_canonical_box(box) for box in boxes] if isinstance(boxes, list) else boxes

    @field_validator("mapping", mode="before")
    @classmethod
    def _mapping(cls, mapping: Any) -> Any:
        if not isinstance(mapping, dict):
            return mapping
        keys = [_text(key) for key in mapping]
        return {key: _scalar(value) for key, value in zip(keys, mapping.values(), strict=True)}

    @model_validator(mode="after")
    def _one_kind(self) -> Constraint:
        if lines := list(self._faults()):
            raise ValueError("\n".join(lines))
        return self

    def _faults(self) -> Iterator[str]:
        kinds = [kind for kind in KINDS if getattr(self, kind) is not None]
        if len(kinds) != 1:
            yield f"{' and '.join(kinds) or 'nothing'} given; accepted: exactly one of {', '.join(KINDS)}"
            return
        (kind,) = kinds
        if kind != "determines" and (self.column, self.mapping) != (None, None):
            yield "column and mapping go with determines"
        if kind != "ascending" and self.strict:
            yield "strict goes with ascending"
        if kind in ("forbid", "only") and not self.allow_missing:
            yield f"allow_missing goes with ascending and determines; with {kind}, null is a missing value"
        if kind == "determines" and self.column is None:
            yield "column: missing; accepted: the column that determines the other"
        columns = self.columns
        if len(columns) < 2:
            yield (
                f"{kind}: {len(columns)} column; accepted: two or more (exclude values of one column in its "
                "declaration)"
            )
        if kind in ("forbid", "only") and len(columns) > MOST_COLUMNS:
            yield f"{kind}: {len(columns)} columns; accepted: up to {MOST_COLUMNS}"
        if self.ascending is not None and len(columns) < len(self.ascending):
            yield "ascending: a column is listed twice; accepted: distinct columns"

    @property
    def columns(self) -> list[str]:
        """Names of the columns that it is about, each once."""
        named = (
            self.forbid or (),
            *(self.only or ()),
            [name for name in (self.column, self.determines) if name is not None],
            self.ascending or (),
        )
        return list(dict.fromkeys(name for names in named for name in names))

    def renamed(self, names: Mapping[str, str]) -> Constraint:
        """The same about columns of other names; a name that is not in the mapping stays."""

        def boxed(box: dict[str, Any]) -> dict[str, Any]:
            return {names.get(name, name): values for name, values in box.items()}

        def named(name: str | None) -> str | None:
            return None if name is None else names.get(name, name)

        return self.model_copy(
            update={
                "forbid": None if self.forbid is None else boxed(self.forbid),
                "only": None if self.only is None else [boxed(box) for box in self.only],
                "column": named(self.column),
                "determines": named(self.determines),
                "ascending": None if self.ascending is None else [names.get(name, name) for name in self.ascending],
            }
        )


def gap_orders(constraints: Iterable[Constraint], kinds: Mapping[str, str]) -> dict[str, tuple[tuple[str, ...], bool]]:
    """The columns that are counted by a gap: for each, the earlier ones, nearest first, and whether it is strict.

    Args:
        constraints: as declared.
        kinds: of the modelled columns, by name.
    """
    found: dict[str, tuple[tuple[str, ...], bool]] = {}

    def before(names: Iterable[str]) -> set[str]:
        seen, left = set[str](), list(names)
        while left:
            if (name := left.pop()) not in seen:
                seen.add(name)
                left.extend(found[name][0] if name in found else ())
        return seen

    for constraint in constraints:
        names = constraint.ascending or []
        of = {kinds.get(name) for name in names}
        if len(of) != 1 or not of <= set(MOMENTS):
            continue
        for place, later in enumerate(names[1:], 1):
            earlier = tuple(reversed(names[:place]))
            # In a circle, some column has to come first.
            if later not in found and later not in before(earlier):
                found[later] = (earlier, constraint.strict)
    return found


class ConstraintsFile(BaseModel):
    """A file with `constraints:`, each as in a contract."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    constraints: list[Constraint] = Field(max_length=MOST_CONSTRAINTS)


def read_constraints(path: Path, texts: Collection[str] = ()) -> list[Constraint]:
    """The constraints that a file declares; `texts` names the columns whose values are texts.

    Raises:
        ContractError: a line for each fault.
    """
    from dpsynth_platform.contracts.validation import validated  # late: a contract is made of these

    document = read_yaml(path)
    check_quoted(document, texts, str(path))
    return list(validated(ConstraintsFile, document, str(path)).constraints)


def check_quoted(document: Mapping[str, Any], texts: Collection[str], where: str) -> None:
    """Raises `ContractError` where `constraints` have unquoted numbers or booleans for texts."""
    faults = [f"{where}: constraints.{fault}" for fault in unquoted(document.get("constraints"), texts)]
    if faults:
        raise ContractError("\n".join(faults))


def canonical_values(values: Any, ends: Collection[str] = ("min", "max")) -> Values:
    """Declared values as a list of scalars, or a range with some of these ends.

    Raises:
        ValueError: it is neither a value, nor a list of values, nor a range.
    """
    if isinstance(values, dict):
        if not values or not set(values) <= set(ends):
            raise ValueError("accepted: a value, a list of values, or a range {min: ..., max: ...}")
        found = {name: _scalar(value) for name, value in values.items()}
        if None in found.values():
            raise ValueError("the end of a range is null; accepted: min, max or both")
        return found
    if isinstance(values, list):
        if not values:
            raise ValueError("an empty list; accepted: a value, a list of values, or a range {min: ..., max: ...}")
        return [_scalar(value) for value in values]
    return [_scalar(values)]


def _canonical_box(box: Any) -> Any:
    if not isinstance(box, dict):
        raise ValueError("accepted: a mapping of columns to values, such as {age: {max: 14}, marital: [Married]}")
    found = {}
    for name, values in box.items():
        try:
            found[str(name)] = canonical_values(values)
        except ValueError as error:
            problem = str(error)
        else:
            continue
        raise ValueError(f"{key_path(str(name))}: {problem}")
    return found


def _scalar(value: Any) -> Scalar:
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | str):
        return plain_number(value)  # type: ignore[no-any-return]
    raise ValueError("accepted: a text, a number, a date, true, false, or null for a missing value")


def _text(key: Any) -> str:
    if key is None:
        raise ValueError("a missing value determines nothing; accepted: values of the column")
    scalar = key if isinstance(key, int | float) else _scalar(key)
    return str(scalar).lower() if isinstance(scalar, bool) else text_of(scalar)


def unquoted(constraints: Any, texts: Collection[str]) -> Iterator[str]:
    """Unquoted numbers and booleans for columns of texts: YAML loses their spelling.

    Args:
        constraints: unvalidated.
        texts: names of the columns whose values are texts.
    """
    for number, constraint in enumerate(constraints if isinstance(constraints, list) else []):
        for path, name, values in _declared_values(constraint):
            for value in values if isinstance(values, list) else [values]:
                if name not in texts or not isinstance(value, bool | int | float):
                    continue
                try:
                    text_of(value)
                except ValueError as error:
                    yield f"{number}.{path}: {error}"


def _declared_values(constraint: Any) -> Iterator[tuple[str, str, Any]]:
    """Path, column and values of an unvalidated constraint."""
    if not isinstance(constraint, dict):
        return
    boxes = [("forbid", constraint.get("forbid"))]
    if isinstance(only := constraint.get("only"), list):
        boxes += [(f"only.{place}", box) for place, box in enumerate(only)]
    for path, box in boxes:
        for name, values in box.items() if isinstance(box, dict) else ():
            yield f"{path}.{key_path(str(name))}", str(name), values
    if isinstance(mapping := constraint.get("mapping"), dict):
        yield "mapping", str(constraint.get("determines")), list(mapping.values())
