"""Declared constraints in terms of columns' cells, and which rows keep them.

What belongs here: declared values as sets of cells (the grid is cut where a set ends, so that each cell is in it or
not), and checking rows. What does not: the declarations (`contracts.constraints`), and a model's distribution under
them (`conditioning`). Nothing here reads the data.

All declarations become three kinds of rules: *boxes* (combinations of sets that may not occur, or the only ones that
may), *dependencies* (one column's cell determines another's) and *orders* of two columns.
"""

from __future__ import annotations

import bisect
import datetime as dt
import itertools
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.contracts.constraints import Constraint, Values, canonical_values
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.tabular.domain import Codes, ColumnDomain, Domain
from dpsynth_platform.synth.tabular.junction import Clique

Mask = npt.NDArray[np.bool_]

CONSTRAINTS = "generate.constraints"
"""Where constraints are declared, for messages."""
LARGEST_EXACT = 2**53
ANYTHING, NOTHING = -1, -2
"""In place of a cell: determined by a missing value, and by a value whose dependent value was not learned."""
_EPOCH = dt.datetime(1970, 1, 1)
_MICROSECOND = dt.timedelta(microseconds=1)
_AMOUNTS = ("integer", "float")
_ACCEPTED = {
    "date": "a date such as 2026-01-31",
    "datetime": "a moment such as 2026-01-31T12:00:00",
    "time": "a time of day in quotes, such as '12:30'",
}


@dataclass(frozen=True)
class ValueSet:
    """Some values of one column.

    Attributes:
        missing: whether a missing value is in the set.
        codes: of categorical and boolean columns.
        spans: of ordered columns, half-open intervals [first, end) in steps of their scale.
    """

    missing: bool = False
    codes: tuple[int, ...] = ()
    spans: tuple[tuple[float, float], ...] = ()

    @property
    def cuts(self) -> set[float]:
        return {end for span in self.spans for end in span}

    def cells(self, column: ColumnDomain) -> Mask:
        """Which cells are in the set, shape (cells,); no cell may contain an end of the set inside."""
        inside = np.zeros(column.size, dtype=np.bool_)
        inside[list(self.codes)] = True
        for low, high in self.spans:
            first = bisect.bisect_left(column.edges[:-1], low)
            inside[first : bisect.bisect_left(column.edges[:-1], high)] = True
        inside[column.missing] = self.missing
        return inside


@dataclass(frozen=True)
class Boxes:
    """Combinations of values: every row must be in one of them (`wanted`), or no row in any.

    A box has a set for each column of the clique (ascending indices); None means all values.
    """

    clique: Clique
    boxes: tuple[tuple[ValueSet | None, ...], ...]
    wanted: bool

    def sets(self, index: int) -> list[ValueSet]:
        place = self.clique.index(index)
        return [box[place] for box in self.boxes if box[place] is not None]  # type: ignore[misc]

    def holds(self, inside: Callable[[int, ValueSet], Mask]) -> Any:
        """Where the rule holds, if `inside(index, set)` is a mask of where a column is in a set; masks broadcast."""
        found: Any = False
        for box in self.boxes:
            parts = [
                inside(index, values) for index, values in zip(self.clique, box, strict=True) if values is not None
            ]
            found = found | math.prod(parts[1:], start=parts[0]) if parts else True
        return found if self.wanted else ~found


@dataclass(frozen=True)
class Dependency:
    """The value of `column` determines that of `dependent` (indices).

    Attributes:
        allow_missing: whether a row may lack one of them.
        targets: values of `column`, and what they determine; (): not yet learned.
    """

    column: int
    dependent: int
    allow_missing: bool
    targets: tuple[tuple[ValueSet, ValueSet], ...] = ()

    @property
    def clique(self) -> Clique:
        return (min(self.column, self.dependent), max(self.column, self.dependent))

    def given(self, domain: Domain) -> npt.NDArray[np.int64]:
        """The dependent cell for each cell of `column`, or ANYTHING or NOTHING; shape (cells of `column`,)."""
        column, dependent = domain.columns[self.column], domain.columns[self.dependent]
        found = np.full(column.size, ANYTHING, dtype=np.int64)
        for values, target in self.targets:
            cells = np.flatnonzero(target.cells(dependent))
            found[values.cells(column)] = int(cells[0]) if cells.size else NOTHING
        return found

    def holds(self, given: npt.NDArray[np.int64], codes: npt.NDArray[Any], missing: int) -> Mask:
        """Where it holds, by the `given` cells, the dependent column's codes, and its code for missing values."""
        return np.where((given == ANYTHING) | (codes == missing), self.allow_missing, given == codes).astype(np.bool_)


@dataclass(frozen=True)
class Order:
    """The column `low` has no value above that of the column `high`, and no equal one if `strict`.

    `allow_missing` says whether a row may lack one of them.
    """

    low: int
    high: int
    strict: bool
    allow_missing: bool

    @property
    def clique(self) -> Clique:
        return (min(self.low, self.high), max(self.low, self.high))

    def holds(self, low: npt.NDArray[np.float64], high: npt.NDArray[np.float64]) -> Mask:
        """Where it holds, for both columns' numbers with NaN for missing values."""
        missing = np.isnan(low) | np.isnan(high)
        return np.where(missing, self.allow_missing, low < high if self.strict else low <= high).astype(np.bool_)


@dataclass(frozen=True)
class Conditions:
    """All rules that every row must keep, over one domain."""

    boxes: tuple[Boxes, ...] = ()
    dependencies: tuple[Dependency, ...] = ()
    orders: tuple[Order, ...] = ()

    @classmethod
    def of(
        cls,
        domain: Domain,
        constraints: Iterable[Constraint] = (),
        given: Mapping[str, Values] | None = None,
        *,
        learned: Sequence[int] = (),
    ) -> Conditions:
        """The rules of declared constraints, and of `given` values that all rows must have, by column.

        A constraint on a column with unknown values makes no rule yet. In `learned` columns, a declared value that was
        not learned does not occur. Raises `ContractError` for unknown columns or values, or if no value is left, with a
        line for each fault.
        """
        places = {name: index for index, name in enumerate(domain.names)}
        faults: list[str] = []
        found = cls()
        for number, constraint in enumerate(constraints):
            reader = _Reader(domain, places, f"{CONSTRAINTS}.{number}", faults, {*learned, *domain.unknown})
            found = found.joined(reader.rules(constraint))
        for name, values in (given or {}).items():
            reader = _Reader(domain, places, "given", faults)
            if (index := reader.index(name)) is not None:
                wanted = reader.values(name, values, name)
                found = found.joined(cls(boxes=(Boxes((index,), ((wanted,),), True),)))
        if faults:
            raise ContractError("\n".join(faults))
        return found

    def joined(self, other: Conditions) -> Conditions:
        return Conditions(self.boxes + other.boxes, self.dependencies + other.dependencies, self.orders + other.orders)

    def __bool__(self) -> bool:
        return bool(self.boxes or self.dependencies or self.orders)

    @property
    def known(self) -> Conditions:
        """The conditions without dependencies that are not yet learned."""
        return replace(self, dependencies=tuple(item for item in self.dependencies if item.targets))

    @property
    def unlearned(self) -> tuple[Dependency, ...]:
        return tuple(item for item in self.dependencies if not item.targets)

    @property
    def columns(self) -> list[int]:
        rules: tuple[Boxes | Dependency | Order, ...] = (*self.boxes, *self.dependencies, *self.orders)
        return sorted({index for rule in rules for index in rule.clique})

    def cut(self, domain: Domain) -> Domain:
        """The domain with cells cut at the ends of the rules' sets."""
        cuts: dict[int, set[float]] = {}
        for box in self.boxes:
            for index in box.clique:
                for values in box.sets(index):
                    cuts.setdefault(index, set()).update(values.cuts)
        for item in self.dependencies:
            for values, target in item.targets:
                cuts.setdefault(item.column, set()).update(values.cuts)
                cuts.setdefault(item.dependent, set()).update(target.cuts)
        return Domain(tuple(_cut(column, cuts.get(index, set())) for index, column in enumerate(domain)))


@dataclass(frozen=True)
class Judge:
    """Checks rows by their released values.

    Attributes:
        domain: cut for the conditions (`Conditions.cut`), all of which are known.
    """

    domain: Domain
    conditions: Conditions

    @cached_property
    def _given(self) -> tuple[npt.NDArray[np.int64], ...]:
        return tuple(item.given(self.domain) for item in self.conditions.dependencies)

    def keeps(self, values: Mapping[str, pa.Array]) -> Mask:
        """Whether each row keeps all rules, shape (rows,); `values` holds the columns in the release's types."""
        names = self.domain.names
        arrays = {index: values[names[index]] for index in self.conditions.columns}
        rules: tuple[Boxes | Dependency, ...] = (*self.conditions.boxes, *self.conditions.dependencies)
        coded = {index for rule in rules for index in rule.clique}
        codes: dict[int, Codes] = {index: self.domain.columns[index].encode(arrays[index]) for index in coded}
        kept: Any = np.ones(len(next(iter(arrays.values()))), dtype=np.bool_)
        for box in self.conditions.boxes:
            kept &= box.holds(lambda index, wanted: wanted.cells(self.domain.columns[index])[codes[index]])
        for item, given in zip(self.conditions.dependencies, self._given, strict=True):
            missing = self.domain.columns[item.dependent].missing
            kept &= item.holds(given[codes[item.column]], codes[item.dependent], missing)
        for order in self.conditions.orders:
            low, high = (self.domain.columns[index].numbers(arrays[index]) for index in (order.low, order.high))
            kept &= order.holds(low, high)
        return np.asarray(kept)


@dataclass(frozen=True)
class _Reader:
    """Reads one declaration and appends its faults to `faults`."""

    domain: Domain
    places: Mapping[str, int]
    where: str
    faults: list[str]
    learned: set[int] = field(default_factory=set)

    def rules(self, constraint: Constraint) -> Conditions:
        """The rules of a constraint; none if it has a fault."""
        before = len(self.faults)
        for name in constraint.columns:
            self.index(name)
        if len(self.faults) > before:
            return Conditions()
        if constraint.forbid is not None:
            found = Conditions(boxes=(self._boxes([constraint.forbid], "forbid", wanted=False),))
        elif constraint.only is not None:
            found = Conditions(boxes=(self._boxes(constraint.only, "only", wanted=True),))
        elif constraint.determines is not None:
            found = Conditions(dependencies=(self._dependency(constraint),))
        else:
            found = Conditions(orders=tuple(self._orders(constraint)))
        known = len(self.faults) == before and not set(self.domain.unknown) & set(found.columns)
        return found if known else Conditions()

    def index(self, name: str) -> int | None:
        if name not in self.places:
            self._fault("", f"{name!r} is no modelled column; accepted: {', '.join(self.places)}")
        return self.places.get(name)

    def values(self, name: str, values: Values, path: str) -> ValueSet:
        column = self.domain.columns[self.places[name]]
        try:
            return value_set(column, values, learned=self.places[name] in self.learned)
        except ValueError as error:
            self._fault(path, str(error))
        return ValueSet()

    def _boxes(self, boxes: Sequence[Mapping[str, Values]], kind: str, *, wanted: bool) -> Boxes:
        clique = tuple(sorted({self.places[name] for box in boxes for name in box}))
        names = self.domain.names
        found = []
        for number, box in enumerate(boxes):
            path = f"{kind}.{number}." if wanted else f"{kind}."
            sets = {self.places[name]: self.values(name, values, path + name) for name, values in box.items()}
            if not sets:
                self._fault(f"{kind}.{number}", f"no column; accepted: values of {', '.join(names)}")
            found.append(tuple(sets.get(index) for index in clique))
        return Boxes(clique, tuple(found), wanted)

    def _dependency(self, constraint: Constraint) -> Dependency:
        index, dependent = self.places[constraint.columns[0]], self.places[constraint.columns[1]]
        column, other = self.domain.columns[index], self.domain.columns[dependent]
        for item in (column, other):
            if item.kind not in ("categorical", "boolean", "integer"):
                self._fault("determines", f"{item.name!r} is a {item.kind}; accepted: categorical, boolean, integer")
        targets = []
        for key, value in (constraint.mapping or {}).items():
            given = self.values(column.name, [key], "mapping")
            targets.append((given, self.values(other.name, [value], f"mapping.{key}")))
        if constraint.mapping is not None and index not in self.learned:
            self._covers(column, [given for given, _ in targets])
        return Dependency(index, dependent, constraint.allow_missing, tuple(targets))

    def _covers(self, column: ColumnDomain, given: Sequence[ValueSet]) -> None:
        """Adds a fault unless every value of a column is in exactly one of the given sets."""
        cut = _cut(column, {cut for values in given for cut in values.cuts})
        times = np.sum([values.cells(cut) for values in given], axis=0)[: cut.missing]
        for code in np.flatnonzero(times != 1)[:1].tolist():
            problem = "occurs more than once" if times[code] else "is not in it"
            self._fault("mapping", f"{cut.label(code)} of {column.name!r} {problem}; accepted: each value once")

    def _orders(self, constraint: Constraint) -> Iterator[Order]:
        columns = [self.domain.columns[self.places[name]] for name in constraint.columns]
        kinds = {"amount" if column.kind in _AMOUNTS else column.kind for column in columns}
        if len(kinds) > 1 or not all(column.ordered for column in columns):
            self._fault(
                "ascending",
                f"{', '.join(f'{column.name} ({column.kind})' for column in columns)}; accepted: columns of one kind: "
                "numbers, dates, moments or times of day",
            )
            return
        for column in columns:
            if column.scale.whole and max(-column.edges[0], column.edges[-1]) * column.step > LARGEST_EXACT:
                self._fault("ascending", f"{column.name!r} has a range beyond {LARGEST_EXACT}; accepted: a smaller one")
        for low, high in itertools.pairwise(columns):
            yield Order(self.places[low.name], self.places[high.name], constraint.strict, constraint.allow_missing)

    def _fault(self, path: str, problem: str) -> None:
        self.faults.append(f"{self.where}{f'.{path}' if path else ''}: {problem}")


def value_set(column: ColumnDomain, values: Values, *, learned: bool = False) -> ValueSet:
    """Declared values of a column as a set.

    If the column's values are `learned`, declared values that were not learned do not occur, and are no fault.

    Raises:
        ValueError: one is not a value of the column, or a range contains none.
    """
    values = canonical_values(values)
    if isinstance(values, dict):
        if not column.ordered:
            raise ValueError(f"a range of a {column.kind} column; accepted: a list of its values")
        first, last = column.edges[0], column.last
        low = max(first, _step(column, values["min"], math.ceil)) if "min" in values else first
        high = min(last, _step(column, values["max"], math.floor)) if "max" in values else last
        if low > high:
            raise ValueError("it contains no value of the column's declared range; accepted: a range that overlaps it")
        return ValueSet(spans=((low, _after(column, high)),))
    missing = any(value is None for value in values)
    if missing and not column.nullable:
        raise ValueError("a missing value, but the column is not nullable; accepted: its values")
    present = [value for value in values if value is not None]
    if not column.ordered:
        known = [value for value in present if not learned or str(value) in column.values]
        return ValueSet(missing, codes=tuple(sorted({_code(column, value) for value in known})))
    steps = {value: _step(column, value) for value in present}
    for value, step in steps.items():
        if not column.edges[0] <= step <= column.last:
            raise ValueError(f"{value!r} is outside of the declared range; accepted: a value in the range")
    return ValueSet(missing, spans=tuple((step, _after(column, step)) for step in sorted(set(steps.values()))))


def unit(column: ColumnDomain) -> Fraction:
    """A step of an ordered column in its numbers (`ColumnDomain.numbers`)."""
    return Fraction(column.step, 10 ** (column.decimals or 0)) if column.scale.whole else Fraction(1)


def _code(column: ColumnDomain, value: Any) -> int:
    if column.kind == "boolean":
        words = {"true": 1, "false": 0}
        if str(value).lower() not in words:
            raise ValueError(f"{value!r}; accepted: true, false")
        return words[str(value).lower()]
    text = str(value)
    if text not in column.values:
        if not column.values:
            raise ValueError(
                f"{value!r} is not in the column's list of values, which is empty; accepted: a missing value"
            )
        shown = ", ".join(column.values[:20]) + (", ..." if len(column.values) > 20 else "")
        raise ValueError(f"{value!r} is not in the column's list of values; accepted: {shown}")
    return column.values.index(text)


def _step(column: ColumnDomain, value: Any, rounded: Callable[[Fraction], int] | None = None) -> float:
    """A value in steps; one between two steps is `rounded`, or refused."""
    exact = _number(column, value) / unit(column)
    if not column.scale.whole:
        return float(exact)
    if exact.denominator != 1 and rounded is None:
        raise ValueError(f"{value!r} lies between two values of the column; accepted: a value of its resolution")
    return int(exact) if rounded is None else rounded(exact)


def _number(column: ColumnDomain, value: Any) -> Fraction:
    """A value in the column's own unit, exactly."""
    accepted = _ACCEPTED.get(column.kind, "a number")
    try:
        if isinstance(value, bool):
            pass
        elif column.kind in _AMOUNTS:
            # A decimal text is taken exactly; a double as its shortest text.
            return _exact(str(value)) if column.scale.whole else Fraction(float(value))
        elif column.kind == "date":
            return Fraction((dt.date.fromisoformat(str(value)) - _EPOCH.date()).days)
        elif column.kind == "datetime":
            moment = dt.datetime.fromisoformat(str(value))
            plain = moment.astimezone(dt.UTC).replace(tzinfo=None) if moment.tzinfo else moment
            return Fraction((plain - _EPOCH) // _MICROSECOND)
        elif not isinstance(value, int | float):  # YAML reads 12:30 as a number in base sixty
            time = dt.time.fromisoformat(str(value))
            return Fraction((dt.datetime.combine(_EPOCH, time.replace(tzinfo=None)) - _EPOCH) // _MICROSECOND)
    except (ValueError, ArithmeticError):
        pass
    raise ValueError(f"{value!r}; accepted: {accepted}")


def _exact(text: str) -> Fraction:
    """Raises `ValueError`, also if the fraction would have more digits than any column's numbers."""
    if not text.isascii() or not abs(Decimal(text).adjusted()) <= sys.float_info.max_10_exp:
        raise ValueError
    return Fraction(text)


def _after(column: ColumnDomain, step: float) -> float:
    return step + 1 if column.scale.whole else math.nextafter(step, math.inf)


def _cut(column: ColumnDomain, cuts: set[float]) -> ColumnDomain:
    """A column with further edges; the largest of real values may become a single cell."""
    if not cuts:
        return column
    first, last = column.edges[0], column.edges[-1]
    inside = {cut for cut in cuts if first < cut < last or (cut == last and not column.scale.whole)}
    return replace(column, edges=(*sorted(inside | set(column.edges[:-1])), last)) if inside else column
