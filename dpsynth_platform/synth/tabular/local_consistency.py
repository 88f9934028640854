"""Pairs of columns that agree in their columns, fitted to noisy counts without a junction tree.

What belongs here: the estimate of Private-PGM over the local polytope instead of the marginal polytope (APPGM; McKenna,
Pradhan, Sheldon & Miklau 2021). What does not: rows (`gum`), and which pairs are measured (`appgm`). All of it is
post-processing of noisy counts.

Many pairs of columns need a junction tree that does not fit in memory. Their *pseudo-marginals* do: a table for each
measured pair, whose sums are the shares of its columns. No distribution need have all of them. Let mu be
pseudo-marginals, y noisy counts, T the number of records and s = sigma / trust as in `estimation`. The fit minimizes

    sum (y - T mu)^2 / (2 s) + T sum over pairs rho I(mu_ab) + T sum over columns KL(mu_a || anchor_a)

with the mutual information I, and the anchor of `estimation`. With rho 1, on a tree of pairs, this is the dual of what
`estimation` minimizes, and the estimate is the same. On other graphs rho is the share of spanning forests that have the
pair, which is its effective resistance. So the function is convex (tree-reweighted entropy; Wainwright, Jaakkola &
Willsky 2005).

I(mu_ab) is the least KL(mu_ab || q_a q_b), at q = mu: q and mu are improved in turns. Given q, all tables have positive
shares of the entropy (convex belief propagation; Hazan & Shashua 2010). The dual is then smooth and without
constraints. Its parameters are potentials of all cells, and messages between each pair and its columns; L-BFGS finds
them as in `estimation`. The difference of a pair's sums from its columns is the dual's slope: zero at the minimum.

A pair that was not measured has the counts of the tree of measured pairs with the most mutual information.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.tabular.estimation import (
    ONE_WAY_TRUST,
    TOLERANCE,
    TRUST,
    Array,
    Measurement,
    Point,
    combined,
    estimate_total,
    log_shares,
    minimize,
)
from dpsynth_platform.synth.tabular.junction import Attributes, Clique, junction_tree
from dpsynth_platform.synth.tabular.propagation import Layout, Propagator, pair_marginals
from dpsynth_platform.synth.tabular.resolution import Groups, View

if TYPE_CHECKING:
    import torch

Indices = npt.NDArray[np.int64]
LEAST = 1e-300


class LocalEstimator:
    """Pseudo-marginals of all columns and of measured pairs, which may be added during its use.

    Attributes:
        shares: of every column's states.
        tables: shares of each measured pair's cells, since the last fit.
    """

    def __init__(self, groups: Groups, one_way: Sequence[Measurement]) -> None:
        self.groups, self._one_way = groups, list(one_way)
        self._pairs: dict[Clique, Measurement] = {}
        self.total = estimate_total(one_way)
        self.anchors = [log_shares(item, self.total) for item in one_way]
        self.shares = [np.exp(anchor) / np.exp(anchor).sum() for anchor in self.anchors]
        self.tables: dict[Clique, Array] = {}
        self._parameters = [np.concatenate(self.anchors), np.zeros(0), np.zeros(0)]

    def within(self, views: Iterable[View], most_cells: float) -> list[View]:
        """The views that may be measured: those of all states, whatever their number."""
        return [view for view in views if not any(view.levels)]

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Adds measured pairs for the next `fit`. Repeated ones are combined by inverse variance."""
        for item in measurements:
            if item.clique not in self._pairs:
                columns, joint, messages = self._parameters
                new = np.zeros(item.counts.size), np.zeros(sum(item.counts.shape))
                self._parameters = [columns, np.append(joint, new[0]), np.append(messages, new[1])]
            self._pairs[item.clique] = combined(self._pairs.get(item.clique), item)
        self.total = estimate_total([*self._one_way, *self._pairs.values()])

    def fit(self, iterations: int, progress: Progress = silent, *, turns: int = 1) -> None:
        """Improves the tables by at most so many steps in each turn, and the references of pairs between turns."""
        import torch

        for _ in range(turns if self._pairs else 0):
            start, ends = torch.from_numpy(np.concatenate(self._parameters)), _ends(self._parameters)
            found = minimize(self._dual(), start, iterations, TOLERANCE * self.total, progress)
            self._parameters = np.split(found.parameters.numpy(), ends)
            columns, joint = found.beliefs
            self.shares = np.split(columns, _ends(self.shares))
            cells = np.split(joint, _ends([item.counts for item in self._pairs.values()]))
            tables = zip(self._pairs.items(), cells, strict=True)
            self.tables = {pair: own.reshape(item.counts.shape) for (pair, item), own in tables}

    def expected(self, clique: Clique) -> torch.Tensor:
        """Expected counts of a pair's cells."""
        import torch

        return torch.from_numpy(self.expected_counts([clique])[clique])

    def expected_counts(self, cliques: Sequence[Clique]) -> dict[Clique, Array]:
        """Expected counts of each pair's cells, in records; see the module."""
        import torch

        found = {pair: self.tables[pair] for pair in cliques if pair in self.tables}
        if len(found) < len(cliques):
            sizes = tuple(own.size for own in self.shares)
            edges = strongest_tree(self.tables, self.shares)
            layout = Layout(sizes, (*((index,) for index in range(len(sizes))), *edges))
            columns = [_log(own) for own in self.shares]
            ratios = [(_log(self.tables[a, b]) - np.add.outer(columns[a], columns[b])).ravel() for a, b in edges]
            tree = junction_tree(Attributes.of(sizes), layout.cliques)
            beliefs, _ = Propagator(tree, layout).run(torch.from_numpy(np.concatenate([*columns, *ratios])))
            others = pair_marginals(beliefs, [pair for pair in cliques if pair not in found])
            found |= {pair: values.numpy() for pair, values in others.items()}
        return {pair: self.total * found[pair] for pair in cliques}

    def _dual(self) -> _Dual:
        pairs, sizes = list(self._pairs), [own.size for own in self.shares]
        starts = np.cumsum([0, *sizes])
        logs = [_log(own) for own in self.shares]
        first, second, owner, sent = [], [], [], 0
        for a, b in pairs:
            first.append(sent + np.repeat(np.arange(sizes[a]), sizes[b]))
            second.append(sent + sizes[a] + np.tile(np.arange(sizes[b]), sizes[a]))
            owner += [np.arange(starts[a], starts[a + 1]), np.arange(starts[b], starts[b + 1])]
            sent += sizes[a] + sizes[b]
        measured = [*self._one_way, *self._pairs.values()]
        trusts = [ONE_WAY_TRUST] * len(sizes) + [TRUST] * len(pairs)
        cells = [own.size for own in first]
        return _Dual(
            self.total,
            counts=np.concatenate([item.counts.ravel() for item in measured]),
            prior=np.concatenate(
                [np.sqrt(item.variance.ravel()) / trust for item, trust in zip(measured, trusts, strict=True)]
            ),
            anchor=np.concatenate([*self.anchors, np.zeros(sum(cells))]),
            weight=np.repeat(resistances(len(sizes), pairs), cells),
            reference=np.concatenate([np.add.outer(logs[a], logs[b]).ravel() for a, b in pairs]),
            first=np.concatenate(first),
            second=np.concatenate(second),
            owner=np.concatenate(owner),
            columns=starts[:-1],
            tables=np.cumsum([0, *cells[:-1]]),
        )


@dataclass(frozen=True)
class _Dual:
    """The dual function for fixed references, over flat arrays: columns' states, then cells of pairs.

    Attributes:
        weight: rho of each cell's pair; `reference` is the logarithm of q_a q_b.
        first: the message of each pair's cell for its first column, of all messages; `second` for the other.
        owner: the column's state of each message.
        columns: where each column begins; `tables` where each pair does among the cells of pairs.
    """

    total: float
    counts: Array
    prior: Array
    anchor: Array
    weight: Array
    reference: Array
    first: Indices
    second: Indices
    owner: Indices
    columns: Indices
    tables: Indices

    def at(self, parameters: torch.Tensor) -> Point[tuple[Array, Array]]:
        """The dual, with the shares of columns and pairs that it implies."""
        import torch

        states, number = self.counts.size - self.reference.size, self.owner.size
        potentials, messages = np.split(parameters.numpy(), [self.counts.size])
        received = np.bincount(self.owner, messages, states)
        alone, columns = _normalized(potentials[:states] - received, self.columns)
        scaled = (potentials[states:] + messages[self.first] + messages[self.second]) / self.weight
        together, joint = _normalized(scaled + self.reference, self.tables)
        sums = np.bincount(self.first, joint, number) + np.bincount(self.second, joint, number)
        own, shares = columns[self.owner], np.concatenate([columns, joint])
        off = potentials - self.anchor
        pull = self.prior * off
        entropy = alone.sum() + self.weight[self.tables] @ together
        value = self.total * float(entropy) - float(self.counts @ potentials) + float(pull @ off) / 2
        slope = [self.total * shares - self.counts + pull, self.total * (sums - own)]
        shares = np.concatenate([columns, joint / self.weight])
        curvature = [self.total * shares + self.prior, self.total * (sums + own) + 1.0]
        first, second = (torch.from_numpy(np.concatenate(parts)) for parts in (slope, curvature))
        return Point(parameters, value, first, second, (columns, joint))


def strongest_tree(tables: dict[Clique, Array], shares: Sequence[Array]) -> list[Clique]:
    """The spanning forest of pairs with the most mutual information (Chow & Liu 1968)."""

    def information(pair: Clique) -> float:
        table = tables[pair]
        independent = np.outer(shares[pair[0]], shares[pair[1]])
        return float((table * (_log(table) - _log(independent))).sum())

    found: list[Clique] = []
    component = list(range(len(shares)))
    for a, b in sorted(tables, key=information, reverse=True):
        kept, gone = component[a], component[b]
        if kept != gone:
            found.append((a, b))
            component = [kept if item == gone else item for item in component]
    return found


def resistances(columns: int, pairs: Sequence[Clique]) -> Array:
    """The share of a graph's spanning forests that have each pair (Kirchhoff's theorem)."""
    laplacian = np.zeros((columns, columns))
    for a, b in pairs:
        laplacian[[a, b, a, b], [a, b, b, a]] += [1.0, 1.0, -1.0, -1.0]
    inverse = np.linalg.pinv(laplacian, hermitian=True)
    return np.array([inverse[a, a] + inverse[b, b] - 2 * inverse[a, b] for a, b in pairs])


def _normalized(logits: Array, starts: Indices) -> tuple[Array, Array]:
    """The logarithm of each part's sum of exponentials, and shares within parts."""
    lengths = np.diff([*starts, logits.size])
    peaks = np.maximum.reduceat(logits, starts)
    weights = np.exp(logits - np.repeat(peaks, lengths))
    sums = np.add.reduceat(weights, starts)
    return peaks + np.log(sums), weights / np.repeat(sums, lengths)


def _log(shares: Array) -> Array:
    return np.asarray(np.log(np.maximum(shares, LEAST)))


def _ends(parts: Sequence[Array]) -> list[int]:
    """Where to split the parts' concatenation."""
    return list(itertools.accumulate(part.size for part in parts))[:-1]
