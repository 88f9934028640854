"""How many counted rows fulfil conditions, as far as a release's noisy counts say it: post-processing, free.

What belongs here: which noisy tables tell about a question, the interval that follows, and the count of synthetic rows
beside it. What does not: the tables and the bars that hold for all cells at once (`fidelity`). No real data is read.

**Tables.** One that has all columns of the conditions, *exact*, adds its cells of matching rows. Where a condition
splits a cell, the count lies between the sums without and with such cells. One that has only some of the columns bounds
the count from above. Single columns also bound it from below (Fréchet): of the rows that fulfil the first condition, at
most those that fail another one are missing. Where few cells of a single column are not asked for, the others are what
these leave of all rows, whose number the column of least noise says: so no limit is far above that number. A condition
that all rows fulfil is no condition.

**Confidence.** The chance of a miss is shared: `_EXACT` of it for exact tables, the rest for others. The j-th of either
kind has 1 / (j (j+1)) of that. Which tables are asked follows from columns and earlier counts, so that each one's own
noise is fresh, and all limits hold at once with the confidence asked for (union bound, as in `fidelity`). So the
narrowest may be taken. It is the confidence of one question that was asked without looking at the noisy counts.

Each of a table's two sides has half of its chance. Of several single columns, the upper limit uses one side of each.
The lower limit uses the other side: of the first column (in the order of counting) the matching rows from below, of
the other columns the remaining rows from above.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from dpsynth_platform.contracts.constraints import Values, canonical_values
from dpsynth_platform.foundation.errors import ConfigurationError
from dpsynth_platform.foundation.release_layout import SINGLE
from dpsynth_platform.release.fidelity import numbers_of, texts_of
from dpsynth_platform.release.noisy_tables import ROUNDING, label_number

if TYPE_CHECKING:
    import pyarrow as pa

_EXACT = 0.9
_ENDS = ("min", "max", "above", "below")
"""Of a range; the last two do not belong to it."""
_MOST_VALUES = 20
"""Of a list, in an error."""


@dataclass(frozen=True)
class RowCount:
    """An answer about the rows that the mechanism counted, with the values that it counted.

    These are the source's rows after scrubbing, exclusion and contribution bounding, and the audit's canaries. Numbers
    beyond the declared range count as its ends, unlisted values as missing.

    Attributes:
        estimate: the noisy count where one was made of just these rows; otherwise the share of synthetic rows, of the
            noisy total, within the limits.
        low, high: limits of the true count; `high` may be infinite where no table tells anything.
        confidence: of the limits.
        total: the noisy number of all rows that were counted.
        synthetic: the number of synthetic rows that match, and of all.
        counted: whether a noisy count was made of just these rows.
        columns: of the table that the estimate or the upper limit is from.
        unit: `records`, or `owners` where owners were weighed.
    """

    estimate: float
    low: float
    high: float
    confidence: float
    total: float
    synthetic: tuple[int, int]
    counted: bool
    columns: tuple[str, ...]
    unit: str

    def to_json(self) -> dict[str, Any]:
        """As a JSON value; an infinite limit is null."""
        return asdict(self) | {"high": self.high if math.isfinite(self.high) else None}

    def __str__(self) -> str:
        most = f"{self.high:,.0f}" if math.isfinite(self.high) else "any number"
        source = "the noisy count" if self.counted else "the synthetic rows, within these limits"
        matching, rows = self.synthetic
        return (
            f"about {self.estimate:,.0f} of {self.total:,.0f} {self.unit}, by {source}; between {self.low:,.0f} and "
            f"{most} with {100 * self.confidence:.10g}% confidence; {matching:,} of {rows:,} synthetic rows"
        )


def _conditions(where: Mapping[str, Any] | str) -> dict[str, Values]:
    """Conditions by column, of a mapping as in a contract's queries or of the text after WHERE.

    Raises `ConfigurationError` for others.
    """
    if not isinstance(where, str | Mapping):
        raise ConfigurationError(
            f"where: {type(where).__name__}; accepted: conditions as a text, or a mapping of columns to values"
        )
    try:
        if isinstance(where, str):
            from dpsynth_platform.contracts import sql  # late: it loads a parser

            found = {name: canonical_values(each, _ENDS) for name, each in sql.conditions_of(where).items()}
        else:
            found = {str(name): canonical_values(values) for name, values in where.items()}
    except ValueError as error:
        problem = str(error)
    else:
        if found:
            return found
        problem = "no condition; accepted: columns with values, such as age >= 40"
    raise ConfigurationError(f"where: {problem}")


def counted(
    dossier: Mapping[str, Any],
    tables: Mapping[str, pa.Table],
    where: Mapping[str, Any] | str,
    confidence: float = 0.95,
) -> RowCount:
    """`count_rows` of a release as `read_release` reads it. Raises `ConfigurationError` for linked tables, too."""
    if SINGLE not in tables:
        raise ConfigurationError(
            "this release has linked tables, whose noisy counts are not published; accepted: a release of one table"
        )
    return count_rows(dossier.get("fidelity"), tables[SINGLE], where, confidence)


def count_rows(
    published: Mapping[str, Any] | None, rows: pa.Table, where: Mapping[str, Any] | str, confidence: float = 0.95
) -> RowCount:
    """The count of the rows that fulfil all conditions.

    Args:
        published: the dossier's `fidelity`.
        rows: the synthetic rows.
        where: values, a list of them or a range {min, max} by column, or conditions in SQL, joined by AND.
        confidence: of the limits; for k questions at once, 1 - (1 - confidence) / k.

    Raises `ConfigurationError` for other conditions, columns without published counts, and another confidence.
    """
    if isinstance(confidence, bool) or not isinstance(confidence, int | float):
        raise ConfigurationError(f"confidence: {type(confidence).__name__}; accepted: a number, such as 0.95")
    if not 0.5 <= confidence < 1:
        raise ConfigurationError(f"confidence: {confidence:g}; accepted: from 0.5 to below 1, such as 0.95")
    conditions = _conditions(where)
    if not published or not published["tables"]:
        raise ConfigurationError("this release has no noisy counts; accepted: one whose dossier has `fidelity`")
    single = {published["axes"][table["axes"][0]]["column"]: table for table in _single(published)}
    if unknown := sorted(set(conditions) - set(single)):
        raise ConfigurationError(
            f"where: {', '.join(unknown)}: no column with published counts; accepted: {', '.join(sorted(single))}"
        )
    matching = _matching(
        rows, conditions, {name: published["axes"][table["axes"][0]] for name, table in single.items()}
    )
    sharpest = min(_single(published), key=lambda table: table["sigma"] * math.sqrt(sum(table["parts"])))
    asked = [*conditions]
    for name in asked:
        if len(conditions) > 1 and all(_groups(published["axes"][single[name]["axes"][0]], conditions[name])[0]):
            conditions = {kept: values for kept, values in conditions.items() if kept != name}
    found = [*_limits(published, conditions, 1 - confidence, sharpest)]
    low = max([0.0, *(item.low for item in found if item.exact), _least_in_common(found)])
    high = max(min((item.high for item in found), default=math.inf), low)
    total = float(sum(sharpest["measured"]))
    counted = min((item for item in found if item.sum is not None), key=lambda item: item.high - item.low, default=None)
    if counted is not None:
        estimate, columns = float(counted.sum or 0), counted.columns
    else:
        estimate = total * matching / rows.num_rows if rows.num_rows else 0.0
        columns = min(found, key=lambda item: item.high).columns
    return RowCount(
        estimate=min(max(estimate, low), high),
        low=low,
        high=high,
        confidence=confidence,
        total=total,
        synthetic=(matching, rows.num_rows),
        counted=counted is not None,
        columns=columns,
        unit=published["unit"],
    )


@dataclass(frozen=True)
class _Limit:
    """What one table says; `sum` only where its cells are just the rows that match.

    Attributes:
        low, high: limits of the rows that fulfil the table's conditions.
        others: upper limit of the rows that fail one. It has the chance of a miss of `low`: use one of both.
    """

    columns: tuple[str, ...]
    exact: bool
    low: float
    high: float
    others: float
    sum: int | None


def _least_in_common(found: Sequence[_Limit]) -> float:
    """The least number of rows that fulfil all conditions, by the counts of single columns."""
    single = [item for item in found if len(item.columns) == 1]
    columns = list({item.columns: item for item in reversed(single)}.values())[::-1]
    return columns[0].low - sum(item.others for item in columns[1:])


def _single(published: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [table for table in published["tables"] if not table["order"]]


def _limits(
    published: Mapping[str, Any], conditions: Mapping[str, Values], miss: float, sharpest: Mapping[str, Any]
) -> Iterator[_Limit]:
    """What each table says that has one of the columns, in the order of counting."""
    axes, seen = published["axes"], {True: 0, False: 0}
    for table in published["tables"]:
        own = [axes[place] for place in table["axes"]]
        columns = tuple(axis["column"] for axis in own)
        asked = set(conditions) & set(columns)
        if not asked:
            continue
        exact = len(asked) == len(conditions)
        seen[exact] += 1
        part = miss * (_EXACT if exact else 1 - _EXACT) / (seen[exact] * (seen[exact] + 1))
        z = -NormalDist().inv_cdf(part / 2)
        cells = _cells(own, conditions)
        certain, possible = ([*itertools.product(*(axis_cells[side] for axis_cells in cells))] for side in (0, 1))
        chosen = [[*map(all, certain)], [*map(all, possible)], [not all(groups) for groups in certain]]
        inner, outer, rest = (_sum(table, kept, sharpest) for kept in chosen)
        yield _Limit(
            columns,
            exact,
            inner.count - inner.error(z),
            max(outer.count + outer.error(z), 0),
            max(rest.count + rest.error(z), 0),
            inner.count if exact and chosen[0] == chosen[1] else None,
        )


def _cells(axes: Sequence[Mapping[str, Any]], conditions: Mapping[str, Values]) -> list[tuple[list[bool], list[bool]]]:
    """For each axis, which groups have only rows that match, and which have any that may."""
    return [
        ([True] * len(axis["labels"]),) * 2
        if axis["column"] not in conditions
        else _groups(axis, conditions[axis["column"]])
        for axis in axes
    ]


@dataclass(frozen=True)
class _Sum:
    """A sum of noisy counts, the variance of its noise before rounding, and how many counts it adds."""

    count: int
    variance: float
    parts: int

    @classmethod
    def of(cls, table: Mapping[str, Any], kept: Sequence[bool]) -> _Sum:
        """The cells of a table that are kept."""
        parts = sum(itertools.compress(table.get("parts") or [1] * len(kept), kept))
        return cls(sum(itertools.compress(table["measured"], kept)), parts * table["sigma"] ** 2, parts)

    @classmethod
    def of_all(cls, table: Mapping[str, Any]) -> _Sum:
        return cls.of(table, [True] * len(table["measured"]))

    def __sub__(self, other: _Sum) -> _Sum:
        """The difference of sums of different tables, whose noise is independent."""
        return _Sum(self.count - other.count, self.variance + other.variance, self.parts + other.parts)

    def error(self, z: float) -> float:
        """The most error, apart from a chance that z is chosen for."""
        return z * math.sqrt(self.variance) + ROUNDING * self.parts


def _sum(table: Mapping[str, Any], kept: Sequence[bool], sharpest: Mapping[str, Any]) -> _Sum:
    """The sum of a table's cells that are kept; of one column, the number of all rows without the others if sharper.

    The choice follows from noise scales alone, and the tables of single columns are planned before any is drawn.
    """
    found = _Sum.of(table, kept)
    if table["order"] or table is sharpest:
        return found
    return min(found, _Sum.of_all(sharpest) - _Sum.of(table, [not keep for keep in kept]), key=lambda s: s.variance)


def _groups(axis: Mapping[str, Any], values: Values) -> tuple[list[bool], list[bool]]:
    """Which groups of an axis have only values that are asked for, and which have any."""
    name, missing = axis["column"], axis["missing"]
    if "groups" in axis:
        if isinstance(values, dict):
            raise ConfigurationError(f"where: {name}: a range; accepted: values of its list")
        texts = {None if value is None else _text(value) for value in values}
        listed = set(itertools.chain.from_iterable(axis["groups"]))
        if unlisted := sorted(text for text in texts if text is not None and text not in listed):
            more = f" and {len(listed) - _MOST_VALUES} more" if len(listed) > _MOST_VALUES else ""
            accepted = ", ".join(map(repr, sorted(listed)[:_MOST_VALUES]))
            raise ConfigurationError(f"where: {name}: {unlisted[0]!r} is not in its list; accepted: {accepted}{more}")
        members = [[*group, *([None] if place == missing else [])] for place, group in enumerate(axis["groups"])]
        return [texts.issuperset(group) for group in members], [not texts.isdisjoint(group) for group in members]
    ranges = _ranges(axis, values)
    ends = _ends(axis)
    inner = [any(least <= low and high <= most for least, most in ranges) for low, high in ends]
    outer = [any(least <= high and low <= most for least, most in ranges) for low, high in ends]
    absent = isinstance(values, list) and None in values
    return [*inner, absent], [*outer, absent]


def _ranges(axis: Mapping[str, Any], values: Values) -> list[tuple[float, float]]:
    """Values of an ordered column as ranges of numbers in the unit of its cuts."""
    if isinstance(values, dict):
        ends = {end: _number(axis, value) for end, value in values.items()}
        # The neighbour in double precision: all values of ordered columns with counts are exact in it.
        least = max(ends.get("min", -math.inf), math.nextafter(ends.get("above", -math.inf), math.inf))
        most = min(ends.get("max", math.inf), math.nextafter(ends.get("below", math.inf), -math.inf))
        return [(least, most)]
    return [(_number(axis, value),) * 2 for value in values if value is not None]


def _ends(axis: Mapping[str, Any]) -> list[tuple[float, float]]:
    """The least and the greatest value of each group of an ordered axis, without the one of missing values.

    Counted values beyond the first and the last group's declared ends were moved into them.
    """
    labels = [label.split(" to ") for label in axis["labels"][:-1]]
    shown = [(label_number(axis["kind"], ends[0]), label_number(axis["kind"], ends[-1])) for ends in labels]
    if all(before[1] < after[0] for before, after in itertools.pairwise(shown)):
        return shown
    # Real numbers meet at the cuts, which labels round.
    cuts = axis["cuts"]
    lows = [shown[0][0], *cuts]
    highs = [*(math.nextafter(cut, -math.inf) for cut in cuts), shown[-1][1]]
    return list(zip(lows, highs, strict=True))


def _number(axis: Mapping[str, Any], value: Any) -> float:
    try:
        if axis["kind"] not in ("integer", "float"):
            return _moment(axis["kind"], str(value))
        if isinstance(value, int | float) and not (isinstance(value, bool) or math.isnan(value)):
            return float(value)
    except (ValueError, OverflowError):
        pass
    accepted = "a number"
    if axis["kind"] not in ("integer", "float"):
        accepted = f"a {axis['kind']} as an ISO text"
    raise ConfigurationError(f"where: {axis['column']}: {value!r}; accepted: {accepted}")


def _moment(kind: str, text: str) -> float:
    """A date or moment in the unit of cuts; one with an offset in UTC, by which moments are counted."""
    if kind == "datetime" and (moment := dt.datetime.fromisoformat(text)).tzinfo is not None:
        text = moment.astimezone(dt.UTC).replace(tzinfo=None).isoformat()
    return float(label_number(kind, text))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _matching(rows: pa.Table, conditions: Mapping[str, Values], axes: Mapping[str, Mapping[str, Any]]) -> int:
    """How many synthetic rows fulfil all conditions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kept = pa.chunked_array([pa.repeat(True, rows.num_rows)])
    for name, values in conditions.items():
        axis, column = axes[name], rows.column(name).combine_chunks()
        absent = isinstance(values, list) and None in values
        if "groups" in axis:
            found = texts_of(column)
            chosen = pa.array([_text(value) for value in values if value is not None], pa.string())
            hit = pc.is_in(found, value_set=chosen)
        else:
            found = numbers_of(column, axis["kind"])
            hit = pa.repeat(False, rows.num_rows)
            for least, most in _ranges(axis, values):
                hit = pc.or_(hit, pc.and_(pc.greater_equal(found, least), pc.less_equal(found, most)))
        kept = pc.and_(kept, pc.if_else(pc.is_null(found), absent, pc.fill_null(hit, False)))
    return int(pc.sum(kept).as_py() or 0)
