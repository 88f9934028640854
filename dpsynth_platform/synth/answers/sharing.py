"""Counts of several queries about the same rows: measured once, by the residuals of their groups (ResidualPlanner).

What belongs here: whether queries share their measurements, with which parts of the budget, and each one's counts from
what was measured. What does not: residuals themselves (`tabular.residuals`), and exact numbers (`measuring`).

Two queries that count the same rows by other columns measure some sums of groups twice, the total at least. Each sum is
measured once instead, as a residual. Parts of the budget minimize the largest ratio of a query's variance to that which
it would have alone with its own part. If that does not fall for every query, each is measured alone: all of it follows
from the plan. Where records are added or removed, it can always fall. Answers then agree with each other, too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import numpy as np

from dpsynth_platform.contracts.answers import Query
from dpsynth_platform.synth.answers.estimates import Noisy
from dpsynth_platform.synth.answers.layout import Groups, Table
from dpsynth_platform.synth.answers.products import counts_of
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.residuals import (
    best_shares,
    cell_variance,
    marginal,
    residual,
    stretch_squared,
    weights_of,
)

MOST_SHARED = 2**16
"""Groups of a query that shares: contrasts are as many times larger than counts."""
ENOUGH = 0.99
"""The largest ratio of variances for which queries share."""
TURNS = 40
ROUNDED = 1 + 2.0**-30
"""Noise is so much wider than it must be: far more than what roots and quotients are rounded by."""


def shared(tables: Sequence[Table], adjacency: str) -> tuple[Table, ...]:
    """The tables to measure in place of these: residuals first, for queries that are more exact by them."""
    families: dict[str, list[Table]] = {}
    for table in tables:
        if table.what == "rows" and table.groups.number <= MOST_SHARED:
            where = json.dumps(table.groups.query.model_dump(mode="json")["where"], sort_keys=True)
            families.setdefault(where, []).append(table)
    found: list[Table] = []
    for family in families.values():
        found += _residuals_of(family, adjacency) if len(family) > 1 else []
    alone = {groups.name for table in found for groups in table.serves}
    return (*found, *(table for table in tables if table.what != "rows" or table.groups.name not in alone))


def _residuals_of(family: Sequence[Table], adjacency: str) -> list[Table]:
    """The tables of residuals for these queries; none if some query's counts would not be more exact."""
    domain = family[0].groups.domain
    sizes, whole = domain.sizes, math.fsum(table.share for table in family)
    cliques = [_clique(table.groups) for table in family]
    pulls, best, least = np.ones(len(family)), {}, ENOUGH
    for _ in range(TURNS):
        workload: dict[Clique, float] = {}
        for clique, table, pull in zip(cliques, family, pulls.tolist(), strict=True):
            workload[clique] = workload.get(clique, 0.0) + pull * table.share / table.groups.number
        weights = weights_of(workload, sizes)
        stretches = {part: float(stretch_squared([sizes[i] for i in part], adjacency)) for part in weights}
        shares = best_shares(weights, stretches)
        variances = {part: stretches[part] / (whole * share) for part, share in shares.items()}
        ratios = np.array(
            [cell_variance(clique, sizes, variances) * item.share for clique, item in zip(cliques, family, strict=True)]
        )
        if ratios.max() < least:
            best, least = shares, float(ratios.max())
        pulls *= ratios / ratios.max()
    serves, where = tuple(table.groups for table in family), family[0].groups.query.where
    return [
        Table(
            groups=Groups(
                f"{family[0].groups.name} {list(part)}",
                Query(count=True, by=[domain.names[index] for index in part], where=where),
                domain,
            ),
            what="residual",
            column=None,
            share=whole * share / ROUNDED,
            stretch=math.sqrt(stretch_squared([sizes[index] for index in part], adjacency)) * ROUNDED,
            serves=serves,
        )
        for part, share in best.items()
    ]


def combined(noisy: Sequence[Noisy]) -> list[Noisy]:
    """The tables with each query's own counts in place of what it shares with others, in the order of the queries."""
    families: dict[tuple[str, ...], list[Noisy]] = {}
    for item in noisy:
        if item.table.serves:
            families.setdefault(tuple(groups.name for groups in item.table.serves), []).append(item)
    if not families:
        return list(noisy)
    found: list[Noisy] = []
    for family in families.values():
        if family[0].table.what == "ranges":
            found += counts_of(family[0])
        else:
            found += [_counts(family, groups) for groups in family[0].table.serves]
    found += [item for item in noisy if not item.table.serves]
    return sorted(found, key=lambda item: item.table.groups.place)


def _counts(family: Sequence[Noisy], groups: Groups) -> Noisy:
    """A query's counts, by the residuals of its groups."""
    sizes, own = groups.domain.sizes, _clique(groups)
    parts: Mapping[Clique, Noisy] = {_clique(item.table.groups): item for item in family}
    residuals = {
        part: residual(item.values.reshape([sizes[index] - 1 for index in part])) for part, item in parts.items()
    }
    counts = marginal(own, sizes, residuals)
    wanted = [groups.domain.names.index(name) for name in groups.query.by]
    counts = counts.transpose([own.index(index) for index in wanted])
    variance = cell_variance(own, sizes, {part: item.deviation**2 for part, item in parts.items()})
    return Noisy(Table(groups, "rows", None, 0.0), counts.reshape(-1, 1), math.sqrt(variance))


def _clique(groups: Groups) -> Clique:
    return tuple(sorted(groups.domain.names.index(name) for name in groups.query.by))
