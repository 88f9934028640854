"""Exact inference in graphical models whose cliques form a forest (Private-PGM; McKenna, Sheldon & Miklau 2019).

What belongs here: the forest, belief propagation over it, and the maximum-entropy-like fit of its potentials to noisy
marginals. All of it is post-processing. What does not: how the marginals were measured (`mst`) and how rows are drawn
(`sampling`).

A *clique* is a tuple of attribute indices: `(a,)` or `(a, b)` with a < b. A *clique vector* maps cliques to arrays of
their shape. Everything is in float64; the device is torch's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from dpsynth_platform.synth.interface import Progress, silent

Clique = tuple[int, ...]
Array = npt.NDArray[np.float64]
CliqueVector = dict[Clique, torch.Tensor]

ITERATIONS = 800
"""Mirror-descent steps. More do not help: past about a thousand, the fit follows the noise."""
MAX_BACKTRACKS = 30
STEP_GROWTH = 1.25


@dataclass(frozen=True)
class Measurement:
    """Noisy counts of a clique's cells.

    Attributes:
        counts: shape (size of each attribute of the clique).
        variance: of each cell's noise, same shape.
    """

    clique: Clique
    counts: Array
    variance: Array


@dataclass(frozen=True)
class Forest:
    """Attributes with their numbers of states, and the edges between them.

    Raises:
        ValueError: an edge closes a cycle, repeats, or is not an ascending pair of attributes.
    """

    sizes: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        components = Components(len(self.sizes))
        for a, b in self.edges:
            if not 0 <= a < b < len(self.sizes) or not components.join(a, b):
                raise ValueError("edges must be ascending pairs of attributes that close no cycle")

    @cached_property
    def directed(self) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
        """((parent, child) pairs, parents first) and the roots, one for each component."""
        neighbours: dict[int, list[int]] = {index: [] for index in range(len(self.sizes))}
        for a, b in self.edges:
            neighbours[a].append(b)
            neighbours[b].append(a)
        seen: set[int] = set()
        roots, pairs = [], []
        for start in neighbours:
            if start in seen:
                continue
            roots.append(start)
            seen.add(start)
            queue = [start]
            for parent in queue:
                children = [child for child in neighbours[parent] if child not in seen]
                seen.update(children)
                pairs += [(parent, child) for child in children]
                queue += children
        return tuple(pairs), tuple(roots)

    @property
    def cliques(self) -> tuple[Clique, ...]:
        """All attributes and all edges."""
        return (*((index,) for index in range(len(self.sizes))), *self.edges)


class Components:
    """Which attributes are connected so far (union-find)."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def root(self, item: int) -> int:
        """The representative of the item's component."""
        while self._parent[item] != item:
            self._parent[item] = self._parent[self._parent[item]]
            item = self._parent[item]
        return item

    def join(self, a: int, b: int) -> bool:
        """Connects two items; False if they already were."""
        first, second = self.root(a), self.root(b)
        self._parent[first] = second
        return first != second


@dataclass(frozen=True)
class Beliefs:
    """What belief propagation finds.

    Attributes:
        marginals: P of every attribute and every edge (axes in the clique's order).
        conditionals: for each (parent, child), P[child | parent], shape (parent's states, child's states).
    """

    marginals: CliqueVector
    conditionals: dict[tuple[int, int], torch.Tensor]


def propagate(forest: Forest, potentials: Mapping[Clique, torch.Tensor]) -> Beliefs:
    """Exact marginals of P(x) proportional to exp(sum of potentials), by sum-product on the forest.

    A potential of -inf rules its cell out; each attribute must keep a state that is possible.

    Upwards each edge takes one exp of its cells, scaled by each parent state's maximum; downwards the parent's belief
    is spread by the conditionals that this leaves.
    """
    pairs, roots = forest.directed
    unary = {index: potentials[(index,)] for index in range(len(forest.sizes))}
    conditionals = {}
    for parent, child in reversed(pairs):
        edge = potentials[(parent, child)] if parent < child else potentials[(child, parent)].T
        scores = edge + unary[child]
        peak = scores.amax(dim=1, keepdim=True)
        weights = (scores - peak).exp_()
        norm = weights.sum(dim=1, keepdim=True)
        conditionals[(parent, child)] = weights / norm
        unary[parent] = unary[parent] + (peak + norm.log()).squeeze(1)
    marginals: CliqueVector = {(root,): torch.softmax(unary[root], dim=0) for root in roots}
    for parent, child in pairs:
        joint = marginals[(parent,)].unsqueeze(1) * conditionals[(parent, child)]
        marginals[(child,)] = joint.sum(dim=0)
        marginals[(parent, child) if parent < child else (child, parent)] = joint if parent < child else joint.T
    return Beliefs(marginals, conditionals)


def estimate_total(measurements: Sequence[Measurement]) -> float:
    """Number of records by the minimum-variance unbiased combination of the measurements' sums, at least 1."""
    variances = np.array([measurement.variance.sum() for measurement in measurements])
    sums = np.array([measurement.counts.sum() for measurement in measurements])
    return max(1.0, float((sums / variances).sum() / (1 / variances).sum()))


def project(counts: Array, variance: Array, total: float) -> Array:
    """The nearest non-negative vector of that total: min sum (x - counts)^2 / variance; shape (cells,).

    The solution is max(0, counts - shift * variance) for the one shift that gives the total; the function of the shift
    is piecewise linear between its breakpoints counts / variance.
    """
    order = np.argsort(-counts / variance)
    held, widths = np.cumsum(counts[order]), np.cumsum(variance[order])
    shifts = (held - total) / widths
    active = np.flatnonzero((counts / variance)[order] > shifts)
    return np.asarray(np.maximum(0.0, counts - shifts[active[-1]] * variance), dtype=np.float64)


def fit(
    forest: Forest,
    measurements: Sequence[Measurement],
    total: float,
    *,
    device: str = "cpu",
    iterations: int = ITERATIONS,
    progress: Progress = silent,
) -> CliqueVector:
    """Potentials of the forest that fit the measurements, by entropic mirror descent with a line search.

    Minimizes sum over cells of (total * P - count)^2 / (2 * variance) (Private-PGM, algorithm 1; Armijo's step rule).
    It starts from the product of the one-way fits, so that what was not measured stays as independent as it can be.

    Raises:
        ValueError: a measurement's clique is not one of the forest's.
    """
    targets = _merged(forest, measurements, device)
    potentials = _independent(forest, measurements, total, device)
    beliefs = propagate(forest, potentials).marginals
    loss, gradient = _loss(targets, beliefs, total)
    step = min(float(variance.min()) for _, variance in targets.values()) / total
    for iteration in range(iterations):
        for _ in range(MAX_BACKTRACKS):
            candidate = dict(potentials)
            for clique, slope in gradient.items():
                candidate[clique] = potentials[clique] - step * slope
            moved = propagate(forest, candidate).marginals
            new_loss, new_gradient = _loss(targets, moved, total)
            expected = sum(
                float((slope * (beliefs[clique] - moved[clique])).sum()) for clique, slope in gradient.items()
            )
            if loss - new_loss >= 0.5 * total * expected:
                break
            step /= 2
        else:
            break  # no step improves the fit any more: converged to machine precision
        potentials, beliefs, loss, gradient = candidate, moved, new_loss, new_gradient
        step *= STEP_GROWTH
        progress("estimating", iteration + 1, iterations)
    progress("estimating", iterations, iterations)
    return potentials


def _merged(
    forest: Forest, measurements: Sequence[Measurement], device: str
) -> dict[Clique, tuple[torch.Tensor, torch.Tensor]]:
    """(counts, variance) of each measured clique; repeated measurements combined by inverse variance."""
    weighted: dict[Clique, tuple[Array, Array]] = {}
    for measurement in measurements:
        if measurement.clique not in forest.cliques:
            raise ValueError(f"clique {measurement.clique} is not in the forest")
        sums, weights = weighted.get(measurement.clique, (np.zeros(()), np.zeros(())))
        precision = 1 / measurement.variance
        weighted[measurement.clique] = (sums + measurement.counts * precision, weights + precision)
    return {
        clique: (
            torch.as_tensor(sums / weights, dtype=torch.float64, device=device),
            torch.as_tensor(1 / weights, dtype=torch.float64, device=device),
        )
        for clique, (sums, weights) in weighted.items()
    }


def _independent(forest: Forest, measurements: Sequence[Measurement], total: float, device: str) -> CliqueVector:
    """Potentials of the product of the one-way fits; uniform where an attribute was not measured alone."""
    shapes = {clique: tuple(forest.sizes[index] for index in clique) for clique in forest.cliques}
    potentials = {clique: torch.zeros(shape, dtype=torch.float64, device=device) for clique, shape in shapes.items()}
    for measurement in measurements:
        if len(measurement.clique) == 1:
            fitted = project(measurement.counts, measurement.variance, total)
            # A tenth of a standard deviation in place of zero: a cell that looks empty may still be needed.
            floor = np.minimum(np.sqrt(measurement.variance) / 10, total / fitted.size)
            logs = np.log(np.maximum(fitted, floor) / total)
            potentials[measurement.clique] = torch.as_tensor(logs, device=device)
    return potentials


def _loss(
    targets: Mapping[Clique, tuple[torch.Tensor, torch.Tensor]], marginals: CliqueVector, total: float
) -> tuple[float, CliqueVector]:
    """The weighted squared error and its derivative by the expected counts."""
    loss, gradient = 0.0, {}
    for clique, (counts, variance) in targets.items():
        residual = total * marginals[clique] - counts
        gradient[clique] = residual / variance
        loss += 0.5 * float((residual * gradient[clique]).sum())
    return loss, gradient
