"""Fidelity at no further cost: the published rows counted beside the mechanism's own noisy counts.

What belongs here: counting rows into the cells of noisy tables (`synth.tabular.measured`), the noise bars, and both
sides' differences. What does not: real data, of which nothing but the noisy counts is known here. Verifiers count the
rows again, so that this module needs pyarrow only.

**Bars.** A figure adds `parts` noisy counts, each with Gaussian noise of deviation sigma that was rounded to whole
records. Its error is at most z sigma sqrt(parts), apart from a probability that z is chosen for, and `ROUNDING` for
each part. All bars hold at once with probability `CONFIDENCE`: half of the rest is shared by all figures of order 0,
whose number is known before any is drawn. The k-th chosen table has 1 / (k (k+1)) of the other half, shared by its
cells. Its cells are known before its own noise is drawn, so that the sum over all tables bounds the chance of any miss
even though earlier noise decides which tables follow, and how many (union bound over the conditional probabilities).
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.plain_types import plain, whole_texts
from dpsynth_platform.release.noisy_tables import ROUNDING, faults

if TYPE_CHECKING:
    from pyarrow import RecordBatch

CONFIDENCE = 0.95
GAUSSIAN, SKELLAM = "Gaussian, rounded to whole counts", "Skellam, in sums of several participants"
"""Noise of counts, in words."""
_SKELLAM_COUNTS, _REPORTS = "skellam-counts", "local-reports"


class FidelityCounter:
    """Counts rows into the cells of noisy tables, batch by batch."""

    def __init__(self, measured: Mapping[str, Any]) -> None:
        self._axes: Sequence[Mapping[str, Any]] = measured["axes"]
        self._tables: Sequence[Mapping[str, Any]] = measured["tables"]
        self._counts: list[Counter[int]] = [Counter() for _ in self._tables]

    def add(self, batch: RecordBatch) -> RecordBatch:
        """Counts a batch and returns it. Raises `KeyError` or `ArrowException` for a batch without these values."""
        groups = [_groups(batch.column(axis["column"]), axis) for axis in self._axes]
        for table, counts in zip(self._tables, self._counts, strict=True):
            cells = groups[table["axes"][0]]
            for place in table["axes"][1:]:
                cells = pc.add(pc.multiply(cells, len(self._axes[place]["labels"])), groups[place])
            for pair in pc.value_counts(cells).to_pylist():
                counts[pair["values"]] += pair["counts"]
        return batch

    def tables(self) -> list[list[int]]:
        """The counts of each table's cells, in the order of its noisy counts."""
        return [
            [counts[cell] for cell in range(len(table["measured"]))]
            for table, counts in zip(self._tables, self._counts, strict=True)
        ]


def columns_of(measured: Mapping[str, Any]) -> list[str]:
    """Names of the columns that are counted."""
    return list(dict.fromkeys(axis["column"] for axis in measured["axes"]))


def has_bars(event: Mapping[str, Any]) -> bool:
    """Whether all counts of a table have the same noise: not estimates from private reports, whose noise grows with the
    count, so that bars of their mean deviation would be too short for some."""
    return _REPORTS not in _kinds(event)


def noise_of(event: Mapping[str, Any]) -> str:
    """What the noise of the counts is, by the mechanism's event as JSON: bars take it as Gaussian."""
    return SKELLAM if _SKELLAM_COUNTS in _kinds(event) else GAUSSIAN


def _kinds(node: Any) -> Iterator[Any]:
    """Those of an event and all in it, without the packages that a recipient who verifies need not have."""
    if isinstance(node, Mapping):
        yield node.get("kind")
    for part in node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ():
        yield from _kinds(part)


def fidelity(measured: Mapping[str, Any], synthetic: Sequence[Sequence[int]], noise: str = GAUSSIAN) -> dict[str, Any]:
    """The comparison as JSON: every table with its synthetic counts, noise bars and differences.

    Args:
        measured: as of `measured_tables`; members that this function computes are replaced.
        noise: as of `noise_of`.
        synthetic: counts of rows, as of `FidelityCounter.tables`.
    """
    axes = measured["axes"]
    first = sum(len(table["measured"]) for table in measured["tables"] if not table["order"])
    tables = []
    for table, counts in zip(measured["tables"], synthetic, strict=True):
        shown = {name: table[name] for name in ("axes", "order", "sigma", "parts", "measured") if name in table}
        tables.append(shown | {"synthetic": list(counts)} | _compared(shown, counts, axes, first))
    return {
        "unit": measured["unit"],
        "noise": noise,
        "confidence": CONFIDENCE,
        "axes": [dict(axis) for axis in axes],
        "tables": tables,
        "left_out": measured["left_out"],
    }


def _compared(
    table: Mapping[str, Any], synthetic: Sequence[int], axes: Sequence[Mapping[str, Any]], first: int
) -> dict[str, Any]:
    """Bars of all cells, and differences over the cells that rows can be in, as shares of the noisy total there."""
    parts = table.get("parts") or [1] * len(table["measured"])
    z = _quantile(table["order"], len(table["measured"]), first)
    bars = [round(z * table["sigma"] * math.sqrt(part) + ROUNDING * part, 5) for part in parts]
    kept = list(_kept([axes[place] for place in table["axes"]]))
    cells = [cell for cell, keep in enumerate(kept) if keep]
    total, rows = sum(table["measured"][cell] for cell in cells), sum(synthetic[cell] for cell in cells)
    found: dict[str, Any] = {"bars": bars, "total": total}
    if total <= 0 or not rows:
        return found
    scaled = {cell: synthetic[cell] * total / rows for cell in cells}
    noise = math.sqrt(2 / math.pi) * table["sigma"]
    return found | {
        "difference": round(sum(abs(scaled[cell] - table["measured"][cell]) for cell in cells) / (2 * total), 5),
        "by_noise": round(sum(noise * math.sqrt(parts[cell]) for cell in cells) / (2 * total), 5),
        "cells": len(cells),
        "within": sum(abs(scaled[cell] - table["measured"][cell]) <= bars[cell] for cell in cells),
    }


def _quantile(order: int, cells: int, first: int) -> float:
    """Of the normal distribution, two-sided, for one cell's part of the chance of a miss."""
    part = 1 / first if not order else 1 / (order * (order + 1) * cells)
    return NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 * part / 2)


def is_possible(axis: Mapping[str, Any], group: int) -> bool:
    """Whether published rows can be in a group: not in the missing one where missing values are replaced."""
    return bool(axis["nullable"]) or group != axis["missing"]


def _kept(axes: Sequence[Mapping[str, Any]]) -> Iterator[bool]:
    """For each cell, whether published rows can be in it."""
    possible = ([is_possible(axis, group) for group in range(len(axis["labels"]))] for axis in axes)
    return map(all, itertools.product(*possible))


def _groups(column: pa.Array, axis: Mapping[str, Any]) -> pa.Array:
    """The group of each value, as int64; missing and unlisted values are in the group that has them."""
    if "groups" in axis:
        listed = [(text, group) for group, texts in enumerate(axis["groups"]) for text in texts]
        texts = texts_of(column)
        places = pc.index_in(texts, value_set=pa.array([text for text, _ in listed], pa.string()))
        found = pa.array([group for _, group in listed], pa.int64()).take(places)
    else:
        numbers = numbers_of(column, axis["kind"])
        found = pc.if_else(pc.is_null(numbers), pa.scalar(None, pa.int64()), pa.scalar(0, pa.int64()))
        for cut in axis["cuts"]:
            found = pc.add(found, pc.cast(pc.greater_equal(numbers, pa.scalar(float(cut))), pa.int64()))
    return pc.fill_null(found, axis["missing"])


def texts_of(column: pa.Array) -> pa.Array:
    """Values as the texts of which lists consist."""
    column = plain(column)
    return whole_texts(column) if pa.types.is_floating(column.type) else column.cast(pa.string())


def numbers_of(column: pa.Array, kind: str) -> pa.Array:
    """Numbers, days since 1970, or microseconds since 1970, in double precision; null for NaN."""
    column = plain(column)
    if kind == "date":
        column = column.cast(pa.date32(), safe=False).cast(pa.int32())
    elif kind == "datetime":
        column = column.cast(pa.timestamp("us", getattr(column.type, "tz", None)), safe=False).cast(pa.int64())
    numbers = column.cast(pa.float64(), safe=False)
    return pc.if_else(pc.is_nan(numbers), pa.scalar(None, pa.float64()), numbers)


def breaches(
    published: Mapping[str, Any], batches: Iterable[RecordBatch], event: Mapping[str, Any]
) -> list[tuple[str, str]]:
    """Where a published comparison does not follow from its own noisy counts and the published rows.

    Pairs of a JSON path and what is wrong. Nothing in `published` is trusted beyond its schema. `event` is the
    mechanism's, of the privacy statement.
    """
    where = "$.fidelity"
    try:
        found = [(f"{where}{below}", message) for below, message in faults(published, event)]
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
        return [(where, "its tables, or the privacy statement's event, cannot be read")]
    if found:
        return found
    try:
        counter = FidelityCounter(published)
        for batch in batches:
            counter.add(batch)
        again = fidelity(published, counter.tables(), noise_of(event))
    except (pa.ArrowException, LookupError, TypeError, ValueError, ArithmeticError, RecursionError):
        return [(where, "its cells are not those of the table's columns")]
    problems = [
        (f"{where}.tables[{place}].{name}", "does not follow from the table and the noisy counts")
        for place, (told, found) in enumerate(zip(published["tables"], again["tables"], strict=True))
        for name in sorted({*told, *found})
        if not _alike(told.get(name), found.get(name))
    ]
    others = [name for name in ("noise", "confidence") if published[name] != again[name]]
    return [*problems, *((f"{where}.{name}", "is not what the bars are computed for") for name in others)]


def _alike(told: Any, found: Any) -> bool:
    """Equal, up to the rounding of numbers that are no whole ones: processors differ in their last bits."""
    if isinstance(told, list) and isinstance(found, list):
        return len(told) == len(found) and all(map(_alike, told, found))
    if isinstance(told, float) or isinstance(found, float):
        return told is not None and found is not None and math.isclose(told, found, rel_tol=1e-9, abs_tol=2e-5)
    return bool(told == found)
