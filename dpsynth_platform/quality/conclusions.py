"""Conclusions of an analysis, drawn from a table's rows by the usual tests.

What belongs here: what a declared finding says of one table, and whether it fits the table's columns. What does not:
declaring it (`contracts.findings`), and comparing the conclusions of two tables (`parity`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import is_text
from dpsynth_platform.contracts.findings import Finding
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.quality.columns import numbers_of
from dpsynth_platform.quality.one_type import plain

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Conclusion = Literal["higher", "lower", "no difference"]


def conclusion(finding: Finding, table: pa.Table) -> Conclusion | None:
    """What a table's rows say: whether a difference, correlation or coefficient is positive, negative or neither.

    Means and shares are compared by Welch's t-test (the first group against the second), quantities correlated by
    Spearman's, and coefficients tested with errors that are robust to unequal variances (HC1). None: too few rows, or
    constant ones.
    """
    table = table.filter(pa.array(_meets(table, finding.where))) if finding.where else table
    if finding.groups is not None:
        sides = [
            _known(_quantity(table.filter(pa.array(_meets(table, group))), finding.compare)) for group in finding.groups
        ]
        return _by_groups(sides[0], sides[1], finding.level)
    if finding.correlate is not None:
        both = np.stack([_quantity(table, each) for each in finding.correlate])
        return _by_ranks(both[:, ~np.isnan(both).any(axis=0)], finding.level)
    terms = finding.on or []
    outcome, first = _quantity(table, finding.regress), _quantity(table, terms[0])
    others = [np.ones((len(table), 1)), *(_columns(table, each) for each in terms[1:])]
    whole = np.concatenate([outcome[:, None], first[:, None], *others], axis=1)
    whole = whole[~np.isnan(whole).any(axis=1)]
    return _by_regression(whole[:, 0], whole[:, 1], whole[:, 2:], finding.level)


def _by_groups(first: Floats, second: Floats, level: float) -> Conclusion | None:
    from scipy.stats import ttest_ind

    if min(first.size, second.size) < 2 or (np.ptp(first) == 0 and np.ptp(second) == 0):
        return None
    found = ttest_ind(first, second, equal_var=False)
    return _decided(float(found.statistic), float(found.pvalue), level)


def _by_ranks(both: Floats, level: float) -> Conclusion | None:
    from scipy.stats import spearmanr

    if both.shape[1] < 3 or (np.ptp(both, axis=1) == 0).any():
        return None
    found = spearmanr(both[0], both[1])
    return _decided(float(found.statistic), float(found.pvalue), level)


def _by_regression(outcome: Floats, first: Floats, others: Floats, level: float) -> Conclusion | None:
    """The coefficient of `first`, from what the other columns leave of it and of the outcome (Frisch and Waugh)."""
    from scipy.stats import t

    free = len(outcome) - others.shape[1] - 1
    if free < 1:
        return None
    left, errors = (each - others @ np.linalg.lstsq(others, each, rcond=None)[0] for each in (first, outcome))
    square = float(left @ left)
    if square <= 1e-12 * max(1.0, float(first @ first)):
        return None  # the other columns determine it
    slope = float(left @ errors) / square
    errors = errors - slope * left
    deviation = float(np.sqrt((left * left) @ (errors * errors) * len(outcome) / free)) / square
    if deviation == 0:
        return _decided(slope, 0.0 if slope else 1.0, level)
    return _decided(slope, float(2 * t.sf(abs(slope / deviation), free)), level)


def _decided(statistic: float, chance: float, level: float) -> Conclusion:
    return "no difference" if not chance < level else "higher" if statistic > 0 else "lower"


def _quantity(table: pa.Table, quantity: Any) -> Floats:
    """A column's numbers with NaN where missing, or 1 for rows that meet a condition, shape (rows,)."""
    if not isinstance(quantity, str):
        return _meets(table, quantity).astype(np.float64)
    column = plain(table.column(quantity))
    return numbers_of(pa.chunked_array([column.cast(pa.int8()) if pa.types.is_boolean(column.type) else column]))


def _columns(table: pa.Table, quantity: Any) -> Floats:
    """A quantity as columns of a regression: categories without the most frequent one, shape (rows, columns)."""
    if not isinstance(quantity, str) or not is_text(plain(table.column(quantity)).type):
        return _quantity(table, quantity)[:, None]
    codes = plain(table.column(quantity)).dictionary_encode()
    places = codes.indices.fill_null(len(codes.dictionary)).to_numpy(zero_copy_only=False)
    counts = np.bincount(places, minlength=1)
    kept = np.argsort(-counts, kind="stable")[1 : np.count_nonzero(counts)]
    return np.asarray(places[:, None] == kept[None, :], dtype=np.float64)


def _meets(table: pa.Table, condition: Any) -> Mask:
    """Which rows have the values of a condition, shape (rows,); a missing value meets `null` only."""
    met = np.ones(len(table), dtype=np.bool_)
    for name, values in condition.items():
        met &= _has(plain(table.column(name)), values)
    return met


def _has(column: pa.Array, values: Any) -> Mask:
    if isinstance(values, dict) or not (pa.types.is_boolean(column.type) or is_text(column.type)):
        return _in_numbers(column, values)
    texts = column.cast(pa.large_string())
    wanted = [_text(value) for value in values if value is not None]
    met = pc.is_in(texts, value_set=pa.array(wanted, pa.large_string()))
    if None in values:
        met = pc.or_(met, texts.is_null())
    return np.asarray(met.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _in_numbers(column: pa.Array, values: Any) -> Mask:
    numbers = numbers_of(pa.chunked_array([column]))
    if isinstance(values, dict):
        low, high = (_number(column.type, values.get(end)) for end in ("min", "max"))
        return (numbers >= (-np.inf if low is None else low)) & (numbers <= (np.inf if high is None else high))
    met = np.isin(numbers, [number for value in values if (number := _number(column.type, value)) is not None])
    return met | np.isnan(numbers) if None in values else met


def _number(type_: pa.DataType, value: Any) -> float | None:
    """A declared value in the unit of `numbers_of`."""
    if value is None or isinstance(value, int | float):
        return None if value is None else float(value)
    return float(numbers_of(pa.chunked_array([pa.array([value]).cast(type_)]))[0])


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _known(values: Floats) -> Floats:
    return np.asarray(values[~np.isnan(values)])


def check_findings(findings: Sequence[Any], table: pa.Table) -> None:
    """Raises `SourceError` for columns that a table lacks, texts as numbers, and values of another kind."""
    for finding in findings:
        if isinstance(finding, Finding):
            _check(finding, table)


def _check(finding: Finding, table: pa.Table) -> None:
    for name in finding.columns:
        if name not in table.column_names:
            raise SourceError(
                f"findings: {finding.label!r}: no column {name!r} in the real table; "
                f"accepted: {', '.join(table.column_names)}"
            )
    for name in finding.numbers:
        if is_text(plain(table.column(name)).type):
            raise SourceError(
                f"findings: {finding.label!r}: column {name!r} holds texts; accepted: a column of numbers, or a "
                "condition such as {column: value}"
            )
    try:
        conclusion(finding, table.slice(0, 2))
    except (pa.ArrowException, TypeError, ValueError):
        problem = "a declared value is of another kind than its column"  # the library's message may quote one
    else:
        return
    raise SourceError(f"findings: {finding.label!r}: {problem}; accepted: values as the column has them")
