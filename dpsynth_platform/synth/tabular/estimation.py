"""From noisy marginals to a distribution: the estimate of Private-PGM (McKenna, Sheldon & Miklau 2019).

What belongs here: combining measurements, and potentials that fit them. What does not: how they were measured (`mst`,
`aim`) and inference itself (`propagation`). All of it is post-processing of noisy counts.

The estimate minimizes sum (T P - y)^2 / (2 v) over the cells of all measured cliques (T the number of records, y the
noisy count, v its variance) by entropic mirror descent: P is proportional to exp(sum of potentials), and each step
subtracts from a clique's potentials a multiple of its cells' (T P - y) / v.

Left alone, that fits the noise: a cell in which nothing is expected takes whatever noise it was given. So the
potentials of cliques of two attributes and more are drawn back to zero, where the model knows of no dependence. A cell
of expected count m then follows its noisy count by about the share m / (m + v / k), k = TRUST times the noise's
deviation: half of the way where it expects half a deviation of records. Without this, more than about a hundred steps
make the estimate worse; with it the result hardly depends on how many were taken (Dudik, Phillips & Schapire 2007 on
relaxed maximum entropy).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dpsynth_platform.synth.interface import Progress, silent
from dpsynth_platform.synth.tabular.junction import Clique, JunctionTree, junction_tree
from dpsynth_platform.synth.tabular.propagation import Layout, Propagator, marginal

Array = npt.NDArray[np.float64]

TRUST = 2.0
MAX_BACKTRACKS = 30
STEP_GROWTH = 1.25
# A fit ends when a step takes less than this off the objective, where a cell that is off by its noise's deviation
# counts one half.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Measurement:
    """Noisy counts of a clique's cells.

    Attributes:
        clique: attribute indices, ascending.
        counts: shape (size of each attribute of the clique).
        variance: of each cell's noise, same shape.
    """

    clique: Clique
    counts: Array
    variance: Array


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


class Estimator:
    """A distribution that is fitted to measurements, more of which may come while it is used.

    Args:
        sizes: number of states of each attribute.
        one_way: measurements of single attributes; where there is none, nothing is known of an attribute at first.
        device: torch's.

    Attributes:
        total: estimated number of records.
        tree: the junction tree of all measured cliques.
        beliefs: the distribution as it is now.
    """

    def __init__(self, sizes: Sequence[int], one_way: Sequence[Measurement], *, device: str = "cpu") -> None:
        self._sizes, self._device = tuple(sizes), device
        self._combined: dict[Clique, Measurement] = {}
        for measurement in one_way:
            self._combine(measurement)
        self.total = estimate_total(list(self._combined.values()))
        self._potentials: dict[Clique, torch.Tensor] = {
            (index,): self._zeros([size]) for index, size in enumerate(sizes)
        }
        for clique, measurement in self._combined.items():
            self._potentials[clique] = self._tensor(_independent(measurement, self.total))
        self._step: float | None = None
        self.tree: JunctionTree = junction_tree(self._sizes, self._potentials)
        self._task = self._arranged()
        self.beliefs, _ = self._task.propagator.run(self._flat())

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Takes measurements in; `fit` makes use of them. Repeated ones are combined by inverse variance."""
        for measurement in measurements:
            self._combine(measurement)
            self._potentials.setdefault(measurement.clique, self._zeros(measurement.counts.shape))
        self.total = estimate_total(list(self._combined.values()))
        if any(self.tree.home(clique) is None for clique in self._potentials):
            self.tree = junction_tree(self._sizes, self._potentials)
        self._task = self._arranged()

    def fit(self, iterations: int, progress: Progress = silent) -> None:
        """Moves the potentials towards the fit, by at most so many steps from where they are."""
        task, flat = self._task, self._flat()
        beliefs, marginals = task.propagator.run(flat)
        slope = task.slope(flat, marginals)
        step = self._step or float(1 / task.weights.max()) / self.total
        for iteration in range(iterations):
            for _ in range(MAX_BACKTRACKS):
                candidate = flat - step * slope
                moved, moved_marginals = task.propagator.run(candidate)
                moved_slope = task.slope(candidate, moved_marginals)
                way = marginals - moved_marginals
                gain = self.total * float(slope @ way)
                # A step is too long if it leads past the lowest point in its direction.
                if gain >= 0 and float(moved_slope @ way) >= 0:
                    break
                step /= 2
            else:
                break  # no step improves the fit any more: converged to machine precision
            flat, beliefs, marginals, slope = candidate, moved, moved_marginals, moved_slope
            step *= STEP_GROWTH
            progress("estimating", iteration + 1, iterations)
            if gain < TOLERANCE:
                break
        progress("estimating", iterations, iterations)
        self._step, self.beliefs = step, beliefs
        layout = task.propagator.layout
        self._potentials = {clique: layout.view(flat, clique) for clique in layout.cliques}

    def expected(self, clique: Clique) -> torch.Tensor:
        """Expected counts of a clique's cells, shape of its sizes."""
        return self.total * marginal(self.beliefs, clique)

    @property
    def potentials(self) -> dict[Clique, Array]:
        """The potentials of every attribute and every measured clique."""
        return {clique: values.cpu().numpy() for clique, values in self._potentials.items()}

    def _combine(self, new: Measurement) -> None:
        old = self._combined.get(new.clique)
        if old is None:
            self._combined[new.clique] = new
            return
        weight = 1 / old.variance + 1 / new.variance
        counts = (old.counts / old.variance + new.counts / new.variance) / weight
        self._combined[new.clique] = Measurement(new.clique, counts, 1 / weight)

    def _arranged(self) -> _Task:
        """Everything in flat arrays, in the order of the layout."""
        layout = Layout(self._sizes, tuple(sorted(self._potentials, key=lambda clique: (len(clique), clique))))
        counts, weights, decay = [], [], []
        for clique in layout.cliques:
            measured = self._combined.get(clique)
            nothing = np.zeros(layout.shape(clique))
            counts.append(measured.counts if measured else nothing)
            weights.append(1 / measured.variance if measured else nothing)
            decay.append(1 / (TRUST * np.sqrt(measured.variance)) if measured and len(clique) > 1 else nothing)
        flat = [self._tensor(np.concatenate([part.ravel() for part in parts])) for parts in (counts, weights, decay)]
        return _Task(Propagator(self.tree, layout), self.total, *flat)

    def _flat(self) -> torch.Tensor:
        """The potentials in the order of the layout."""
        return torch.cat([self._potentials[clique].reshape(-1) for clique in self._task.propagator.layout.cliques])

    def _tensor(self, values: Array) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.float64, device=self._device)

    def _zeros(self, shape: Sequence[int]) -> torch.Tensor:
        return self._tensor(np.zeros(shape))


@dataclass(frozen=True)
class _Task:
    """What is fitted, as flat arrays over the cells of all cliques: counts, 1 / variance, and the pull to zero."""

    propagator: Propagator
    total: float
    counts: torch.Tensor
    weights: torch.Tensor
    decay: torch.Tensor

    def slope(self, potentials: torch.Tensor, marginals: torch.Tensor) -> torch.Tensor:
        """By what a step changes the potentials: the misfit of every cell, and the way back to zero."""
        return (self.total * marginals - self.counts) * self.weights + self.decay * potentials


def _independent(measurement: Measurement, total: float) -> Array:
    """Logarithms of an attribute's fitted shares, with a tenth of a standard deviation of records in place of none.

    A cell that looks empty may still be needed.
    """
    fitted = project(measurement.counts, measurement.variance, total)
    floor = np.minimum(np.sqrt(measurement.variance) / 10, total / fitted.size)
    return np.asarray(np.log(np.maximum(fitted, floor) / total))
