"""Drawing rows from a fitted model: post-processing that sees the model only.

What belongs here: ancestral sampling along the tree and splitting merged states. What does not: the model, and turning
codes into values (`restore`).

Draws are *systematic*: within each group of rows that share the parent's state, every state gets its expected number of
rows, rounded up or down at random (one uniform offset), and the rows are shuffled. The expectation is that of
independent draws and the sampling error is smaller.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from dpsynth_platform.synth.tabular.compression import ColumnStates
from dpsynth_platform.synth.tabular.domain import Codes, ColumnDomain
from dpsynth_platform.synth.tabular.inference import Array
from dpsynth_platform.synth.tabular.model import Model
from dpsynth_platform.synth.tabular.restore import restore


def sample(model: Model, rows: int) -> pa.Table:
    """A table of the source's schema with `rows` rows, fresh at every call (seeded by the operating system)."""
    rng = np.random.default_rng()
    return restore(model.domain, sample_codes(model, rows, rng), model.release, rng)


def sample_codes(model: Model, rows: int, rng: np.random.Generator) -> Codes:
    """Cell codes of the modelled columns, shape (rows, columns); cells that may not be released do not occur."""
    beliefs = model.beliefs(releasable=True)
    pairs, roots = model.forest.directed
    states = np.empty((rows, len(model.states)), dtype=np.int32, order="F")
    for root in roots:
        states[:, root] = systematic(beliefs.marginals[(root,)].numpy(), rows, rng)
    for parent, child in pairs:
        conditional = beliefs.conditionals[(parent, child)].numpy()
        states[:, child] = _in_groups(states[:, parent], conditional.__getitem__, rng)
    codes = np.empty_like(states)
    for index, (column, merged) in enumerate(zip(model.domain, model.states, strict=True)):
        codes[:, index] = _cells(column, merged, states[:, index], rng)
    return codes


def systematic(probabilities: Array, rows: int, rng: np.random.Generator) -> Codes:
    """`rows` draws in random order; outcome i occurs floor or ceiling of rows * probabilities[i] times."""
    cumulative = np.cumsum(probabilities)
    points = (np.arange(rows) + rng.uniform()) / max(rows, 1) * cumulative[-1]
    # Rounding may put the last point on the end itself; only an outcome that is possible may catch it.
    possible = int(np.flatnonzero(probabilities)[-1])
    drawn = np.minimum(np.searchsorted(cumulative, points, side="right"), possible)
    return rng.permutation(drawn.astype(np.int32))


def _in_groups(given: Codes, probabilities: Callable[[int], Array], rng: np.random.Generator) -> Codes:
    """Systematic draws within each group of rows that share a state."""
    drawn = np.empty_like(given)
    order = np.argsort(given, kind="stable")
    states, starts = np.unique(given[order], return_index=True)
    ends = np.append(starts[1:], given.size)
    for state, start, end in zip(states, starts, ends[: states.size], strict=True):
        drawn[order[start:end]] = systematic(probabilities(int(state)), end - start, rng)
    return drawn


def _cells(column: ColumnDomain, merged: ColumnStates, states: Codes, rng: np.random.Generator) -> Codes:
    """A cell for every row's state, among those that may be released."""

    def shares(state: int) -> Array:
        inside = (merged.state_of == state) & column.allowed
        weights = np.where(inside, merged.share, 0.0)
        return weights if weights.any() else inside.astype(np.float64)

    return _in_groups(states, shares, rng)
