"""Drawing rows from a fitted model: post-processing that sees the model only.

What belongs here: ancestral sampling down the junction tree and splitting merged states. What does not: the model, and
turning codes into values (`restore`).

Draws are *systematic*: within each group of rows that share the separator's states, every cell of the rest gets its
expected number of rows, rounded up or down at random (one uniform offset), and the rows are shuffled. The expectation
is that of independent draws and the sampling error is smaller.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.synth.tabular.compression import ColumnStates
from dpsynth_platform.synth.tabular.domain import Codes, ColumnDomain
from dpsynth_platform.synth.tabular.estimation import Array
from dpsynth_platform.synth.tabular.model import Model, joint_codes
from dpsynth_platform.synth.tabular.propagation import Beliefs
from dpsynth_platform.synth.tabular.restore import restore


def sample(model: Model, rows: int) -> pa.Table:
    """A table of the source's schema with `rows` rows, fresh at every call (seeded by the operating system)."""
    rng = np.random.default_rng()
    return restore(model.domain, sample_codes(model, rows, rng), model.release, rng)


def sample_codes(model: Model, rows: int, rng: np.random.Generator) -> Codes:
    """Cell codes of the modelled columns, shape (rows, columns); cells that may not be released do not occur."""
    states = draw_states(model.beliefs(releasable=True), rows, rng)
    codes = np.empty_like(states)
    for index, (column, merged) in enumerate(zip(model.domain, model.states, strict=True)):
        codes[:, index] = _cells(column, merged, states[:, index], rng)
    return codes


def draw_states(beliefs: Beliefs, rows: int, rng: np.random.Generator) -> Codes:
    """States of all columns, shape (rows, columns)."""
    tree = beliefs.tree
    states = np.empty((rows, len(tree.sizes)), dtype=np.int32, order="F")
    for axes, separator, conditional in zip(tree.axes, tree.separators, beliefs.conditionals, strict=True):
        given = joint_codes(states, separator, tree.sizes)
        drawn = systematic(conditional.cpu().numpy(), given, rng)
        for index in reversed(axes[len(separator) :]):
            drawn, states[:, index] = np.divmod(drawn, tree.sizes[index])
    return states


def systematic(conditional: Array, given: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """An outcome for every row by its group's probabilities, in random order within the group.

    Args:
        conditional: P[outcome | group], shape (groups, outcomes); rows need not sum to one.
        given: each row's group, shape (rows,).
        rng: where the randomness comes from.

    Returns:
        Outcomes, shape (rows,): of a group's n rows, outcome i gets floor or ceiling of n * P[i].
    """
    groups, outcomes = conditional.shape
    shuffled = rng.permutation(given.size)
    order = shuffled[np.argsort(given[shuffled], kind="stable")]
    group = given[order]
    members = np.bincount(group, minlength=groups)
    starts = np.cumsum(members) - members
    offsets = np.asarray(rng.uniform(size=groups))
    points = (np.arange(given.size) - starts[group] + offsets[group]) / members[group]
    cumulative = np.cumsum(conditional, axis=1)
    cumulative /= np.maximum(cumulative[:, -1:], np.finfo(np.float64).tiny)
    # One search for all groups: group g's points and sums stand in [g, g + 1].
    cumulative += np.arange(groups)[:, None]
    found = np.searchsorted(cumulative.ravel(), group + points, side="right") - group * outcomes
    # Rounding may put a point on its group's end itself; only an outcome that is possible may catch it.
    possible = outcomes - 1 - np.asarray(np.argmax(conditional[:, ::-1] > 0, axis=1))
    drawn = np.empty_like(given)
    drawn[order] = np.minimum(found, possible[group])
    return drawn


def _cells(column: ColumnDomain, merged: ColumnStates, states: Codes, rng: np.random.Generator) -> Codes:
    """A cell for every row's state, among those that may be released."""
    allowed = column.allowed
    weights = np.zeros((merged.size, column.size))
    weights[merged.state_of, np.arange(column.size)] = np.where(allowed, merged.share, 0.0)
    # A state all of whose weight is on a cell that may not be released: the others share it.
    lost = np.asarray(~weights.any(axis=1))[merged.state_of] & allowed
    weights[merged.state_of[lost], np.flatnonzero(lost)] = 1.0
    return systematic(weights, states.astype(np.int64), rng).astype(np.int32)
