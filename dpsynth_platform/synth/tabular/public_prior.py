"""Counts of public rows as a prior of an estimate: structure that was never measured, as far as measured counts agree.

What belongs here: how far public counts are trusted. What does not: counting them (`public_rows`), and fitting
(`estimation`, `mixtures`). All of it is post-processing of noisy counts, and free.

Public rows start the model (PMW-Pub, Liu et al. 2021) and stay in it as counts with a variance. Their *relations* are
used, not their columns: a marginal is fitted to the private noisy columns by iterative proportional fitting, since a
public half, an older year or another state differ in columns first. Of n private records, let E be the counts of
independent columns and D the difference from them in the fitted public marginal. Measured marginals y show two numbers
by least squares over all their cells:

- the *agreement* b in y - E = b D, within 0 and 1. Where it is 0, public rows say nothing, as with shuffled or reversed
  columns;
- the *dispersion* c of what is left, whose variance beyond that of the noise is c E. It is at least that of so few
  public rows.

A marginal that is not measured counts as E + b D with variance c E / b^2, so that a doubtful one says nothing rather
than that columns are independent. One that is measured, too, is combined with its noisy counts by inverse variance;
where a noisy count is off by more than three deviations, the public one's variance is at least the square of what is
beyond them. Before anything is measured, b is 1. Public counts of a single column are combined in the same way, with
b = 1. What a paid choice takes (`jam`) counts as it is, with the variance of the measurement that it replaces.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dpsynth_platform.synth.tabular.estimation import Array, Measurement, Trust, estimate_total, log_shares
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.measurements import NoisyCounts
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.resolution import Groups, View

FITTINGS = 20
"""Rounds of iterative proportional fitting."""
FIRST_WEIGHT = 1.0
"""Of the agreement's first value, in units of the squared differences that are measured."""
STRONGEST_PER_COLUMN = 4
LEAST_AGREEMENT = 0.05
"""Less counts as none."""
CERTAIN = 3.0
"""Deviations of its noise by which a cell's noisy count contradicts the public one."""
SMOOTH = 0.5
"""Rows that each public cell of a column has in addition."""


@dataclass(frozen=True)
class PublicView(View):
    """A clique's public marginal as a candidate, at all states; it never equals a candidate for measurement."""


class PublicPrior:
    """Public marginals over states, fitted to noisy columns; shares, of each clique's sizes.

    Args:
        public: counts of public rows.
        groups: resolutions of the columns, at which counts were measured.
        one_way: noisy counts of every column.
        total: the number of records that these show.
        free: whether marginals are believed that no choice has taken (`take`).
    """

    def __init__(
        self,
        public: Mapping[Clique, Counts],
        groups: Groups,
        one_way: Sequence[Measurement],
        total: float,
        *,
        free: bool = True,
    ) -> None:
        self._groups, self._free = groups, free
        self._taken: dict[Clique, float] = {}
        shares = [np.exp(log_shares(measured, total)) for measured in one_way]
        columns = [share / share.sum() for share in shares]
        self.rows = max(int(counts.sum()) for counts in public.values())
        self.independent = {clique: _product([columns[index] for index in clique]) for clique in public}
        self.shares = {
            clique: _fitted(counts, self.independent[clique], [columns[index] for index in clique])
            for clique, counts in public.items()
        }

    def take(self, clique: Clique, variance: float) -> None:
        """Takes a marginal as if it had been measured with noise of this variance: a paid choice preferred it."""
        self._taken[clique] = min(variance, self._taken.get(clique, math.inf))

    def required(self, trust: Trust) -> list[Clique]:
        """The marginals that a model must cover: those taken and, with any agreement, the `tree`."""
        tree = self.tree if self._free and trust.agreement else []
        return list(dict.fromkeys([*self._taken, *tree]))

    def trust(self, measured: Iterable[Measurement], total: float) -> Trust:
        """The agreement and dispersion that measured marginals show."""
        least, seen = total / self.rows, []
        for item in measured:
            if item.clique in self.shares:
                apart = self.independent[item.clique]
                view = item.view
                differ = view.sums(self.shares[item.clique] - apart, self._groups)
                expected = total * view.sums(apart, self._groups)
                seen.append((item.counts - expected, total * differ, expected, item.variance))
        if not seen:
            return Trust(1.0, least)
        found, differ, expected, noise = (
            np.concatenate([np.ravel(part) for part in parts]) for parts in zip(*seen, strict=True)
        )
        weight = 1 / (noise + expected)
        over = float((weight * differ**2).sum()) + FIRST_WEIGHT
        agreement = min(1.0, max(0.0, (float((weight * differ * found).sum()) + FIRST_WEIGHT) / over))
        if agreement < LEAST_AGREEMENT:
            return Trust(0.0, math.inf)
        left = float(((found - agreement * differ) ** 2 - noise).sum()) / float(expected.sum())
        return Trust(agreement, max(least, left))

    def measurements(
        self, cliques: Iterable[Clique], trust: Trust, measured: Mapping[View, Measurement], total: float
    ) -> list[Measurement]:
        """The public marginals of some cliques, as far as measured ones agree; not without any agreement."""
        found = []
        for clique in cliques:
            apart, shares = self.independent[clique], self.shares[clique]
            if clique in self._taken:
                expected, variance = total * shares, np.full(shares.shape, self._taken[clique])
            elif self._free and trust.agreement:
                expected = total * (apart + trust.agreement * (shares - apart))
                variance = trust.dispersion * (total * apart + 1) / trust.agreement**2
            else:
                continue
            if (noisy := measured.get(View.finest(clique))) is not None:
                variance = np.maximum(variance, _contradicted(noisy.counts - expected, noisy.variance))
            found.append(Measurement(clique, expected, variance))
        return found

    @cached_property
    def by_strength(self) -> list[Clique]:
        """Pairs of related columns by mutual information, the strongest first, without those that chance may show."""
        strengths: dict[Clique, float] = {}
        for clique, shares in self.shares.items():
            information = float((shares * np.log(shares / self.independent[clique])).sum())
            chance = math.prod(size - 1 for size in shares.shape) / (2 * self.rows)
            if len(clique) == 2 and information > 2 * chance:
                strengths[clique] = information - chance
        return sorted(strengths, key=lambda clique: (-strengths[clique], clique))

    @cached_property
    def strongest(self) -> list[Clique]:
        """The `tree`, then other strong pairs, at most `STRONGEST_PER_COLUMN` a column."""
        columns = len({index for clique in self.by_strength for index in clique})
        return list(dict.fromkeys([*self.tree, *self.by_strength]))[: STRONGEST_PER_COLUMN * columns]

    @cached_property
    def tree(self) -> list[Clique]:
        """The strongest pairs that form no circle (Chow & Liu 1968)."""
        part: dict[int, int] = {}

        def root(index: int) -> int:
            while (above := part.get(index, index)) != index:
                index = above
            return index

        found: list[Clique] = []
        for first, second in self.by_strength:
            if root(first) != root(second):
                part[root(first)] = root(second)
                found.append((first, second))
        return found


def combined_columns(one_way: Sequence[NoisyCounts], public: Mapping[Clique, Counts]) -> list[NoisyCounts]:
    """Noisy counts of columns, each combined with the public ones as far as these agree.

    Of a column, the public counts have variance c E, as above, and a cell's two counts are weighted by their inverse
    variances. Their noise is the root mean square of the cells' together.
    """
    total = estimate_total(
        [
            Measurement(item.clique, item.counts.astype(float), np.full(item.counts.shape, item.variance))
            for item in one_way
        ]
    )
    found = []
    for item in one_way:
        counts = public.get(item.clique)
        if counts is None:
            found.append(item)
            continue
        expected = total * (counts + SMOOTH) / (counts + SMOOTH).sum()
        left = float(((item.counts - expected) ** 2 - item.variance).sum()) / total
        spread = max(total / float(counts.sum()), left) * expected
        spread = np.maximum(spread, _contradicted(item.counts - expected, item.variance))
        mean = (spread * item.counts + item.variance * expected) / (spread + item.variance)
        variance = float((spread * item.variance / (spread + item.variance)).mean())
        found.append(replace(item, counts=np.rint(mean).astype(np.int64), sigma=math.sqrt(variance)))
    return found


def _contradicted(off: Array, variance: Array | float) -> Array:
    """The variance of public counts that noisy ones show by themselves: by how much each is off beyond its noise."""
    return np.asarray(np.maximum(0.0, np.abs(off) - CERTAIN * np.sqrt(variance)) ** 2, dtype=np.float64)


def _product(columns: Sequence[Array]) -> Array:
    found = np.ones(())
    for column in columns:
        found = np.multiply.outer(found, column)
    return found


def _fitted(counts: Counts, independent: Array, columns: Sequence[Array]) -> Array:
    """Shares with the columns' own, and the relations of counts; half a row a cell is independent, for empty cells."""
    smooth = counts.size / 2
    rows = counts.sum() + smooth
    found = np.asarray((counts + smooth * independent) / rows, dtype=np.float64)
    for _ in range(FITTINGS):
        for axis, column in enumerate(columns):
            others = tuple(other for other in range(found.ndim) if other != axis)
            scale = column / np.maximum(found.sum(others), np.finfo(np.float64).tiny)
            found *= scale.reshape([-1 if other == axis else 1 for other in range(found.ndim)])
    return np.asarray(found / found.sum())
