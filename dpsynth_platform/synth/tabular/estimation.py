"""From noisy marginals to a distribution: the estimate of Private-PGM (McKenna, Sheldon & Miklau 2019), regularized.

What belongs here: combining measurements, and potentials that fit them. What does not: how they were measured (`mst`,
`aim`) and inference itself (`propagation`). All of it is post-processing of noisy counts.

P is proportional to exp(sum of potentials), one for each cell of each measured view (`resolution`). Matching all noisy
counts y closely would fit the noise. So the potentials minimize

    T log Z(potentials) - sum y * potential + sum sigma / (2 trust) * (potential - anchor)^2

over the cells of all measured views (T the number of records, sigma the deviation of a cell's noise): the likelihood
of the counts, with a Gaussian prior around the *anchor*, the model of independent columns. (Relaxed maximum entropy
with a square penalty: Dudik, Phillips & Schapire 2007.) At the minimum, a cell's expected count differs from its noisy
one by sigma / trust per unit between potential and anchor. The trusts were chosen by marginals and associations of
adult and texas. Pairs have more trust than single columns, whose potentials all pairs influence: with little trust, a
pair whose columns almost determine each other keeps records in many cells that must become empty.

The function is convex and smooth. L-BFGS comes close to the minimum in some sixty steps (Nocedal & Wright 2006,
algorithm 7.4), preconditioned by the diagonal of its Hessian for independent cells, T P + sigma / trust. Without
progress it continues without its history; otherwise a fit may end far from the minimum.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.tabular.junction import Attributes, Clique, JunctionTree, covering, junction_tree
from dpsynth_platform.synth.tabular.propagation import Beliefs, Layout, Propagator, marginal, pair_marginals
from dpsynth_platform.synth.tabular.resolution import Groups, View, coarse

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[np.float64]

TRUST = 2.5
ONE_WAY_TRUST = 0.5
# Pairs of steps and slopes that L-BFGS keeps, and the length of its first step.
MEMORY = 20
FIRST_STEP = 0.5
SHRINK = 0.3
MAX_BACKTRACKS = 15
SUFFICIENT_DECREASE = 1e-4
# Under factors, independent columns are fitted to their shares with almost no prior.
ANCHOR_PRIOR = 1e-2
ANCHOR_ITERATIONS = 50
# A fit ends when a step gains less than this per record.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Measurement:
    """Noisy counts of a clique's cells, with the variance of each cell's noise; `levels` () stand for all states."""

    clique: Clique
    counts: Array
    variance: Array
    levels: tuple[int, ...] = ()

    @property
    def view(self) -> View:
        return View(self.clique, self.levels) if self.levels else View.finest(self.clique)


@dataclass(frozen=True)
class Trust:
    """How far measured counts agree with a prior's: `agreement` from 0 to 1, and `dispersion`, in records."""

    agreement: float
    dispersion: float


class Prior(Protocol):
    """Marginals over states that are believed as far as measured ones agree (`public_prior`).

    Attributes:
        shares: of each clique.
    """

    @property
    def shares(self) -> Mapping[Clique, Array]: ...

    def required(self, trust: Trust) -> Sequence[Clique]: ...

    def trust(self, measured: Iterable[Measurement], total: float) -> Trust: ...

    def measurements(
        self, cliques: Iterable[Clique], trust: Trust, measured: Mapping[View, Measurement], total: float
    ) -> list[Measurement]: ...


def combined(old: Measurement | None, new: Measurement) -> Measurement:
    """A measurement together with an earlier one of the same view: by inverse variance."""
    if old is None:
        return new
    weight = 1 / old.variance + 1 / new.variance
    counts = (old.counts / old.variance + new.counts / new.variance) / weight
    return Measurement(new.clique, counts, 1 / weight, new.levels)


def estimate_total(measurements: Sequence[Measurement]) -> float:
    """Number of records by the minimum-variance unbiased combination of the measurements' sums, at least 1."""
    variances = np.array([measurement.variance.sum() for measurement in measurements])
    sums = np.array([measurement.counts.sum() for measurement in measurements])
    return max(1.0, float((sums / variances).sum() / (1 / variances).sum()))


def project(counts: Array, variance: Array, total: float) -> Array:
    """The nearest non-negative vector of that total: min sum (x - counts)^2 / variance; shape (cells,).

    The solution is max(0, counts - shift * variance) for the unique shift with that total; the total is piecewise
    linear in the shift, with breakpoints counts / variance.
    """
    order = np.argsort(-counts / variance)
    held, widths = np.cumsum(counts[order]), np.cumsum(variance[order])
    shifts = (held - total) / widths
    active = np.flatnonzero((counts / variance)[order] > shifts)
    return np.asarray(np.maximum(0.0, counts - shifts[active[-1]] * variance), dtype=np.float64)


class Estimator:
    """A distribution fitted to measurements, which may be added during its use.

    An attribute without a measurement in `one_way` is uniform at first. The `factors` are logarithms over the
    attributes' states; -inf rules combinations out (`conditioning`). The tree always covers the cliques `cover`.
    Of a `prior`, it has the strongest pairs, and all others that it covers anyway.
    """

    def __init__(
        self,
        groups: Groups,
        one_way: Sequence[Measurement],
        *,
        device: str = "cpu",
        factors: Mapping[Clique, Array] | None = None,
        cover: Sequence[Clique] = (),
        prior: Prior | None = None,
    ) -> None:
        self.groups, self._device, self.prior = groups, device, prior
        self._factors = factors or {}
        self._attributes = Attributes.of([len(levels[0]) for levels in groups], coarse(groups))
        self._columns = self._attributes.columns
        self._combined: dict[View, Measurement] = {}
        self._believed: dict[View, Measurement] = {}
        self._required: list[Clique] = []
        for measurement in one_way:
            self._combine(measurement)
        self.total = estimate_total(list(self._combined.values()))
        self._parameters: dict[View, torch.Tensor] = {}
        for index, size in enumerate(self._attributes.sizes[: self._columns]):
            self._parameters[View.finest((index,))] = self._tensor(np.zeros(size))
        for view, measurement in self._combined.items():
            self._parameters[view] = self._tensor(log_shares(measurement, self.total))
        self._anchors = dict(self._parameters)
        self.tree: JunctionTree = junction_tree(self._attributes, [*self.cliques, *cover])
        self._task = self._new_task()
        if self._factors:
            self._anchor_under_factors()
        self.add([])
        self.beliefs = self._task.at(self._flat()).beliefs

    @property
    def cliques(self) -> list[Clique]:
        """Every attribute and every measured view in the order of the parameters, then the factors' other cliques."""
        measured = self._measured
        return [*measured, *(clique for clique in self._factors if clique not in measured)]

    @property
    def _needed(self) -> list[Clique]:
        """The `cliques` that the tree must cover: of the prior's unmeasured ones, those only that it requires."""
        free = {view.clique for view in self._believed.keys() - self._combined.keys()}
        return [*(clique for clique in self.cliques if clique not in free), *self._required]

    @property
    def _measured(self) -> list[Clique]:
        return [view.attributes(self._columns) for view in self._parameters]

    def add(self, measurements: Sequence[Measurement]) -> None:
        """Adds measurements for the next `fit`. Repeated ones are combined by inverse variance."""
        for measurement in measurements:
            self._combine(measurement)
            self.tree = covering(self.tree, self._needed, measurement.view.attributes(self._columns))
            self._parameters.setdefault(measurement.view, self._tensor(np.zeros(measurement.counts.shape)))
        self.total = estimate_total(list(self._combined.values()))
        self._believe()
        self._task = self._new_task()

    def begin(self, potentials: Mapping[Clique, Array]) -> None:
        """The next fit begins at these potentials, over the states of measured views, as far as they are measured."""
        for view in self._parameters:
            if (values := potentials.get(view.attributes(self._columns))) is not None:
                self._parameters[view] = self._tensor(values)

    def fit(self, iterations: int, progress: Progress = silent, *, seconds: float | None = None) -> None:
        """Improves the potentials by at most so many steps, or to the first step after so many seconds.

        Never limit seconds inside of a mechanism, where time would reveal sensitive information (`cost`).
        """
        self._keep(minimize(self._task, self._flat(), iterations, TOLERANCE * self.total, progress, seconds))

    def within(self, views: Iterable[View], most_cells: float) -> list[View]:
        """The views with which the model stays within its size, among them all that its tree covers already.

        Measuring a view extends the tree by no more than this checks.
        """
        most = max(most_cells, self.tree.cells)
        return [view for view in views if self.tree.extended_cells(view.attributes(self._columns)) <= most]

    def expected(self, clique: Clique) -> torch.Tensor:
        """Expected counts of a clique's cells, shape of its sizes; a clique may contain groups."""
        return self.total * marginal(self.beliefs, clique)

    def expected_counts(self, cliques: Sequence[Clique]) -> dict[Clique, Array]:
        """Expected counts of each clique's cells, in records; pairs together take less time."""
        pairs = pair_marginals(self.beliefs, [clique for clique in cliques if len(clique) == 2])
        return {
            clique: self.total * (pairs[clique] if clique in pairs else marginal(self.beliefs, clique)).numpy()
            for clique in cliques
        }

    @property
    def potentials(self) -> dict[Clique, Array]:
        """The potentials of every attribute and every measured view, without the factors."""
        layout = self._task.propagator.layout
        flat = self._task.fitted(self._flat())
        return {clique: layout.view(flat, clique).cpu().numpy() for clique in self._measured}

    def _believe(self) -> None:
        """Brings the prior's pairs up to date with what is measured."""
        if self.prior is None:
            return
        before, self._believed = self._believed, {}
        trust = self.prior.trust(self._combined.values(), self.total)
        self._required = list(self.prior.required(trust))
        for clique in self._required:
            self.tree = covering(self.tree, self._needed, clique)
        covered = [clique for clique in self.prior.shares if self.tree.home(clique) is not None]
        found = self.prior.measurements(covered, trust, self._combined, self.total)
        self._believed = {item.view: item for item in found}
        for view in before.keys() - self._believed.keys() - self._combined.keys():
            del self._parameters[view]
        for view, item in self._believed.items():
            self._parameters.setdefault(view, self._tensor(np.zeros(item.counts.shape)))

    def _combine(self, new: Measurement) -> None:
        self._combined[new.view] = combined(self._combined.get(new.view), new)

    def _new_task(self) -> _Task:
        import torch

        layout = Layout(self._attributes.sizes, tuple(self.cliques))
        counts, prior, anchors, source = [], [], [], []
        start = 0
        for view, values in self._parameters.items():
            measured, believed = self._combined.get(view), self._believed.get(view)
            measured = measured if believed is None else combined(measured, believed)
            trust = ONE_WAY_TRUST if len(view.clique) == 1 else TRUST
            counts.append(measured.counts.ravel() if measured else np.zeros(values.numel()))
            prior.append(np.sqrt(measured.variance.ravel()) / trust if measured else np.ones(values.numel()))
            anchors.append(self._anchors.get(view, torch.zeros_like(values)).reshape(-1))
            source.append(start + self._places(view))
            start += values.numel()
        places = np.concatenate(source)
        task = _Task(
            Propagator(self.tree, layout, self._device),
            self.total,
            counts=self._tensor(np.concatenate(counts)),
            prior=self._tensor(np.concatenate(prior)),
            anchor=torch.cat(anchors),
            factors=self._tensor(np.zeros(layout.cells if self._factors else 0)),
            source=torch.as_tensor(places, device=self._device) if places.size > start else None,
        )
        for clique, factor in self._factors.items():
            layout.view(task.factors, clique).copy_(self._tensor(factor))
        return task.without_impossible() if self._factors else task

    def _places(self, view: View) -> npt.NDArray[np.int64]:
        """The view's cell of each cell of its attributes: only factors distinguish parts of a state."""
        found = np.zeros(1, dtype=np.int64)
        for index, level in zip(view.clique, view.levels, strict=True):
            seen = self.groups[index][level]
            found = (found[:, None] * (int(seen.max()) + 1) + (seen if level == 0 else np.unique(seen))).ravel()
        return found

    def _anchor_under_factors(self) -> None:
        """Replaces the anchors by independent columns that have the measured shares under the factors.

        Otherwise, anchors would suppress a value whose combinations with others are all unlikely by the factors.
        """
        import torch

        shares = torch.exp(self._flat()) * self.total
        task = replace(self._task, counts=shares, prior=self._task.prior * ANCHOR_PRIOR).without_impossible()
        self._keep(minimize(task, self._flat(), ANCHOR_ITERATIONS, TOLERANCE * self.total))
        self._anchors = dict(self._parameters)
        self._task = self._new_task()

    def _keep(self, found: Point[Beliefs]) -> None:
        self.beliefs = found.beliefs
        ends = list(accumulate((values.numel() for values in self._parameters.values()), initial=0))
        for number, (view, values) in enumerate(self._parameters.items()):
            self._parameters[view] = found.parameters[ends[number] : ends[number + 1]].view(values.shape)

    def _flat(self) -> torch.Tensor:
        import torch

        return torch.cat([values.reshape(-1) for values in self._parameters.values()])

    def _tensor(self, values: Array) -> torch.Tensor:
        import torch

        return torch.as_tensor(values, dtype=torch.float64, device=self._device)


Found = TypeVar("Found")


@dataclass(frozen=True)
class Point(Generic[Found]):
    """A minimized function at some parameters, with the `beliefs` that it rests on; `curvature` is about the diagonal
    of its Hessian.
    """

    parameters: torch.Tensor
    value: float
    slope: torch.Tensor
    curvature: torch.Tensor
    beliefs: Found


class Function(Protocol[Found]):
    """A convex and smooth function."""

    def at(self, parameters: torch.Tensor) -> Point[Found]: ...


@dataclass(frozen=True)
class _Task:
    """The fitted noisy counts with the prior's precision and mean, as flat arrays over the cells of all views.

    Attributes:
        factors: of the cliques' cells; may be empty.
        source: the parameter of each cell of the measured attributes; None if they are in the same order.
    """

    propagator: Propagator
    total: float
    counts: torch.Tensor
    prior: torch.Tensor
    anchor: torch.Tensor
    factors: torch.Tensor
    source: torch.Tensor | None

    def fitted(self, parameters: torch.Tensor) -> torch.Tensor:
        """The potentials of the measured attributes' cells."""
        return parameters if self.source is None else parameters[self.source]

    def gathered(self, marginals: torch.Tensor) -> torch.Tensor:
        """Marginals of the parameters' cells."""
        import torch

        if self.source is None:
            return marginals[: self.counts.numel()]
        return torch.zeros_like(self.counts).index_add_(0, self.source, marginals[: self.source.numel()])

    def potentials(self, parameters: torch.Tensor) -> torch.Tensor:
        """The potentials of all cliques' cells, with the factors."""
        fitted = self.fitted(parameters)
        if not self.factors.numel():
            return fitted
        found = self.factors.clone()
        found[: fitted.numel()] += fitted
        return found

    def without_impossible(self) -> _Task:
        """The task with count zero in cells that the factors rule out, which no parameter can fit."""
        import torch

        _, marginals = self.propagator.run(self.factors)
        possible = self.gathered(marginals) > 0
        return replace(self, counts=torch.where(possible, self.counts, 0.0))

    def at(self, parameters: torch.Tensor) -> Point[Beliefs]:
        """The function at these parameters; see the module."""
        beliefs, marginals = self.propagator.run(self.potentials(parameters))
        off = parameters - self.anchor
        pull = self.prior * off
        expected = self.gathered(marginals) * self.total
        value = self.total * beliefs.log_partition - self.counts @ parameters + (pull @ off) / 2
        return Point(parameters, float(value), expected - self.counts + pull, expected + self.prior, beliefs)


def minimize(
    task: Function[Found],
    start: torch.Tensor,
    iterations: int,
    tolerance: float,
    progress: Progress = silent,
    seconds: float | None = None,
) -> Point[Found]:
    """The last point of L-BFGS from a start; see `Estimator.fit`."""
    began, now = time.monotonic(), task.at(start)
    history: list[tuple[torch.Tensor, torch.Tensor]] = []
    for iteration in range(iterations):
        moved = _line_search(task, now, _direction(now, history))
        step, change = moved.parameters - now.parameters, moved.slope - now.slope
        small = now.value - moved.value < tolerance
        over = small and not history
        # After a very small gain, the history may be misleading: the next step is without it.
        history = [] if small else history[1 - MEMORY :]
        if float(step @ change) > 0 and not small:
            history.append((step, change))
        now = moved
        progress("estimating", iteration + 1, iterations)
        if over or (seconds is not None and time.monotonic() - began > seconds):
            break
    progress("estimating", iterations, iterations)
    return now


def _line_search(task: Function[Found], now: Point[Found], direction: torch.Tensor) -> Point[Found]:
    """The first of ever shorter steps against the direction with a sufficient decrease; else no step."""
    gain = float(now.slope @ direction)
    length = 1.0
    for _ in range(MAX_BACKTRACKS):
        moved = task.at(now.parameters - length * direction)
        if moved.value <= now.value - SUFFICIENT_DECREASE * length * gain:
            return moved
        length *= SHRINK
    return now


def _direction(now: Point[Found], history: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """The inverse Hessian, approximated by the history, times the slope: the opposite of a descent direction."""
    direction = now.slope.clone()
    if not history:
        return direction.div_(now.curvature).mul_(FIRST_STEP)
    scales = []
    for step, change in reversed(history):
        scales.append((step @ direction) / (step @ change))
        direction -= scales[-1] * change
    step, change = history[-1]
    direction *= (step @ change) / (change @ (change / now.curvature)) / now.curvature
    for (step, change), scale in zip(history, reversed(scales), strict=True):
        direction += (scale - (change @ direction) / (step @ change)) * step
    return direction


def log_shares(measurement: Measurement, total: float) -> Array:
    """Logarithms of an attribute's fitted shares, of at least a tenth of a standard deviation of records.

    A cell that seems empty may still be needed.
    """
    fitted = project(measurement.counts, measurement.variance, total)
    floor = np.minimum(np.sqrt(measurement.variance) / 10, total / fitted.size)
    return np.asarray(np.log(np.maximum(fitted, floor) / total))
