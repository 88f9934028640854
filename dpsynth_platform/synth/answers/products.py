"""Counts of several queries with ranges on the same columns: measured once, by Kronecker products (`ranges`).

What belongs here: which queries are measured together, with which matrix for each column, and each one's counts from
what was measured. What does not: the matrices and the cells themselves.

Queries are measured together if they group by the same columns and differ in ranges on one or two columns alone. The
matrix of each column is the one with the least of the largest ratio of a query's variance to that which it would have
alone with its own part of the budget. If that does not fall for every query, each is measured alone. All of it follows
from queries and domains, and is sealed in the plan.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dpsynth_platform.contracts.answers import Query
from dpsynth_platform.synth.answers.estimates import Noisy
from dpsynth_platform.synth.answers.layout import Groups, Table
from dpsynth_platform.synth.answers.ranges import CELLS, STRATEGIES, Ranges

MOST_COLUMNS = 2
"""With ranges: each multiplies the whole numbers by 1,024."""
MOST_RANGE_CELLS = 256
"""Of a column."""
MOST_NUMBERS = 2**16
"""Measured for all groups of queries that are measured together."""
ENOUGH = 0.99
"""The largest ratio of variances for which queries are measured together."""


def products_of(tables: Sequence[Table]) -> list[list[Any]]:
    """What a plan seals of the queries to measure together: their names, the columns with ranges, their matrices."""
    found = []
    for family in _families(tables):
        columns = _columns(family)
        plain = _ranges(family, columns, (CELLS,) * len(columns))
        if max(axis.ranges.shape[1] for axis in plain.axes) > MOST_RANGE_CELLS:
            continue
        shares = np.array([table.share for table in family])
        variances = [{name: (axis.answers(name) ** 2).sum(axis=1) for name in STRATEGIES} for axis in plain.axes]
        best, least = None, ENOUGH
        for names in itertools.product(STRATEGIES, repeat=len(columns)):
            variance = np.prod([of[name] for of, name in zip(variances, names, strict=True)], axis=0)
            ratio = float((variance * shares).max() / math.fsum(shares))
            # Differences of rounding decide nothing.
            if ratio < least * (1 - 1e-6):
                ranges = replace(plain, strategies=names)
                if ranges.numbers * family[0].groups.number <= MOST_NUMBERS:
                    best, least = names, ratio
        if best is not None:
            found.append([[table.groups.name for table in family], list(columns), list(best)])
    return found


def with_products(tables: Sequence[Table], products: Sequence[Sequence[Any]]) -> tuple[Table, ...]:
    """The tables to measure in place of these, by what a plan has sealed."""
    alone = {table.groups.name: table for table in tables if table.what == "rows"}
    found = [
        _together([alone.pop(name) for name in names], tuple(columns), tuple(matrices))
        for names, columns, matrices in products
    ]
    return (*found, *(table for table in tables if table.what != "rows" or table.groups.name in alone))


def counts_of(noisy: Noisy) -> Iterator[Noisy]:
    """Each query's counts, by what was measured together."""
    ranges = noisy.table.ranges
    if ranges is None:
        return
    for groups, answer in zip(noisy.table.serves, ranges.answers, strict=True):
        deviation = noisy.deviation * float(np.linalg.norm(answer))
        yield Noisy(Table(groups, "rows", None, 0.0), (noisy.values @ answer).reshape(-1, 1), deviation)


def _families(tables: Sequence[Table]) -> list[list[Table]]:
    """Queries that differ in ranges alone, each two or more; of more columns than can be, those with the same ones."""
    families: dict[str, list[Table]] = {}
    for table in tables:
        if table.what == "rows":
            families.setdefault(json.dumps([table.groups.query.by, _common(table)], sort_keys=True), []).append(table)
    found = []
    for family in families.values():
        if len(_columns(family)) <= MOST_COLUMNS:
            found.append(family)
            continue
        parts: dict[tuple[str, ...], list[Table]] = {}
        for table in family:
            parts.setdefault(_columns([table]), []).append(table)
        found += [part for columns, part in parts.items() if len(columns) <= MOST_COLUMNS]
    return [family for family in found if len(family) > 1 and _columns(family)]


def _columns(family: Sequence[Table]) -> tuple[str, ...]:
    """The columns with ranges, in their own order."""
    named = {name for table in family for name, values in table.groups.query.where.items() if isinstance(values, dict)}
    return tuple(name for name in family[0].groups.domain.names if name in named)


def _common(table: Table) -> dict[str, Any]:
    """The conditions that are no ranges."""
    return {name: values for name, values in table.groups.query.where.items() if not isinstance(values, dict)}


def _ranges(family: Sequence[Table], columns: tuple[str, ...], strategies: tuple[str, ...]) -> Ranges:
    wanted = tuple(tuple(table.groups.query.where.get(name) for name in columns) for table in family)
    return Ranges(family[0].groups.domain, columns, wanted, strategies)


def _together(family: Sequence[Table], columns: tuple[str, ...], strategies: tuple[str, ...]) -> Table:
    groups = family[0].groups
    query = Query(count=True, by=groups.query.by, where=_common(family[0]))
    return Table(
        groups=Groups(f"{groups.name} by ranges", query, groups.domain),
        what="ranges",
        column=None,
        share=math.fsum(table.share for table in family),
        serves=tuple(table.groups for table in family),
        ranges=_ranges(family, columns, strategies),
    )
