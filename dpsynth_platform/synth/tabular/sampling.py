"""Drawing rows from a fitted model: post-processing that reads the model only.

What belongs here: ancestral sampling down the junction tree, splitting merged states, and batches of rows. What does
not: the model, its distribution under conditions (`conditioning`), values (`placing`) and released columns (`restore`).

Draws are *systematic* within each group of a batch's rows with the same separator states. Every cell of the rest gets
its expected number of rows, rounded up or down at random (one uniform offset); then the rows are shuffled. The
expectation is that of independent draws and the sampling error is smaller.

Rows are drawn from states that can keep all conditions. If values inside of these states break an order of two columns,
the pair is drawn again. Finally a row is drawn again as a whole if its released values break a condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.contracts.constraints import Scalar, Values
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.interface import Drawing
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.conditioning import Conditioned, conditioned
from dpsynth_platform.synth.tabular.constraints import CONSTRAINTS, Conditions, Order
from dpsynth_platform.synth.tabular.domain import Codes
from dpsynth_platform.synth.tabular.estimation import Array
from dpsynth_platform.synth.tabular.joint import Joint
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.measured import measured_tables
from dpsynth_platform.synth.tabular.model import Model, joint_codes
from dpsynth_platform.synth.tabular.placing import Placed, cells_of_weekdays
from dpsynth_platform.synth.tabular.propagation import Beliefs, rows_in_groups
from dpsynth_platform.synth.tabular.restore import ReleaseSchema, completed

if TYPE_CHECKING:
    import torch

BATCH_ROWS = 2**18
"""Rows that are in memory at once."""
LEAST_ACCEPTABLE = 1e-3
"""Drawing stops if a smaller share of drawn rows keeps all conditions."""
ENOUGH_TRIED = 20_000
"""Drawn rows before that share is checked."""
COUNTED_ROWS = 2**14
"""Rows of a network from which a dependency is learned."""
MOST_REDRAWS = 100
"""Of a pair of values in the wrong order; then the whole row is drawn again."""


def drawing(
    model: Model, rows: int | None = None, given: Mapping[str, Values] | None = None, *, progress: Progress = silent
) -> Drawing:
    """Rows of the source's schema, drawn while they are read, with fresh randomness of the operating system.

    They keep the conditions of the model's fit, and have the `given` values by column. Without `rows`, there are as
    many as records by the noisy counts, at least one. Raises `ContractError` if no row can have the given values, or
    too few rows keep all conditions.
    """
    sampler = Sampler.of(model, given)
    wanted = max(1, round(model.total)) if rows is None else rows
    return Drawing(
        sampler.release.schema,
        wanted,
        sampler.batches(wanted, progress),
        missing=model.missing,
        measured=measured_tables(model),
    )


def drawing_counted(
    model: Model, column: str, shares: Sequence[tuple[Scalar, int]], given: Mapping[str, Values] | None = None
) -> Drawing:
    """As `drawing`, in one batch and random order, with so many rows for each value of `column` in `shares`."""
    rng, rows = np.random.default_rng(), sum(number for _, number in shares)
    parts = [Sampler.of(model, {**(given or {}), column: [value]}).values(number, rng) for value, number in shares]
    table = pa.Table.from_batches(parts).take(pa.array(rng.permutation(rows))).combine_chunks()
    arrays = {name: table.column(name).chunk(0) for name in table.column_names}
    batches = iter([completed(arrays, rows, model.release)])
    return Drawing(model.release.schema, rows, batches, missing=model.missing, measured=measured_tables(model))


@dataclass(frozen=True)
class Sampler:
    """The distribution that rows are drawn from, over the parts of states and without what may not be released.

    Attributes:
        network: draws so many rows of parts, where a network is the model.
        known: columns whose values are not drawn (`synth.relational`).
    """

    under: Conditioned
    beliefs: Beliefs
    release: ReleaseSchema
    network: Callable[[int, np.random.Generator], Codes] | None = None
    known: frozenset[int] = frozenset()

    @classmethod
    def of(cls, model: Model, given: Mapping[str, Values] | None = None) -> Sampler:
        """For a model and required values of all rows. Raises `ContractError` if no row can have them."""
        conditions = model.conditions.joined(Conditions.of(model.domain.released, given=given))
        cliques = (*model.potentials, *model.cover)
        under = conditioned(model.domain, model.states, conditions, cliques, model.groups, model.components)
        sampler = cls(under, under.beliefs(model.potentials, releasable=True), model.release)
        return (
            sampler if model.joint is None else replace(sampler, network=_by_network(model, model.joint, under, given))
        )

    def batches(self, rows: int, progress: Progress = silent) -> Iterator[pa.RecordBatch]:
        """So many rows, with surrogate ids that continue from batch to batch; raises as `values`."""
        rng = np.random.default_rng()
        for first in range(0, rows, BATCH_ROWS):
            progress("drawing rows", first, rows)
            number = min(BATCH_ROWS, rows - first)
            table = self.values(number, rng)
            arrays = {name: table.column(name) for name in table.schema.names}
            yield completed(arrays, number, self.release, first + 1)
        progress("drawing rows", rows, rows)

    def values(self, rows: int, rng: np.random.Generator) -> pa.RecordBatch:
        """So many rows of the modelled columns that keep all conditions. Raises `ContractError` if too few do."""
        found: list[pa.RecordBatch] = []
        tried = kept = 0
        while kept < rows:
            # Scaled by the share of lost rows so far, with a margin.
            asked = math.ceil((rows - kept) * 1.02 * max(tried, 1) / max(kept, 1)) if tried else rows
            drawn = self._drawn(min(asked + 8 if tried else asked, BATCH_ROWS), rng)
            tried += drawn.num_rows
            if self.under.conditions:
                values = dict(zip(drawn.schema.names, drawn.columns, strict=True))
                drawn = drawn.filter(pa.array(self.under.judge.keeps(values)))
            found.append(drawn)
            kept += drawn.num_rows
            if tried >= ENOUGH_TRIED and kept < LEAST_ACCEPTABLE * tried:
                raise ContractError(
                    f"{CONSTRAINTS}: of {tried} rows drawn from the model {kept} keep them all, with the requested "
                    "values; accepted: constraints and values that more of the model's rows keep"
                )
        if len(found) == 1 and kept == rows:
            return found[0]
        return pa.Table.from_batches(found).slice(0, rows).combine_chunks().to_batches()[0]

    def _drawn(self, rows: int, rng: np.random.Generator) -> pa.RecordBatch:
        states = draw_states(self.beliefs, rows, rng) if self.network is None else self.network(rows, rng)
        placed = Placed(self.under.domain, self.cells(states, rng), rng)
        return self.in_order(states, placed, rng).batch(self.release.schema)

    def cells(self, states: Codes, rng: np.random.Generator) -> Codes:
        """Cell codes of rows in these states, without cells that may not be released."""
        codes = np.empty_like(states[:, : len(self.under.states)])  # without a mixture's component
        # Days come last: the day within a state depends on the weekday.
        for index in sorted(range(len(self.under.states)), key=lambda index: index in self._weekdays):
            codes[:, index] = self._column_cells(index, states[:, index], codes, rng)
        for item in self.under.computed:
            given = item.given(self.under.domain)[codes[:, item.column]]
            drawn, missing = codes[:, item.dependent], self.under.domain.columns[item.dependent].missing
            codes[:, item.dependent] = np.where(item.holds(given, drawn, missing) | (given < 0), drawn, given)
        return codes

    def in_order(self, states: Codes, placed: Placed, rng: np.random.Generator) -> Placed:
        """The same values, drawn again where they break an order."""
        for orders in self._orders:
            self._put_in_order(orders, states, placed, rng)
        return placed

    def _column_cells(self, index: int, states: Codes, codes: Codes, rng: np.random.Generator) -> Codes:
        """A column's cell for every row's state; for days, one with the row's weekday if the state has any."""
        merged = self.under.states[index]
        weekday = self._weekdays.get(index)
        if weekday is None:
            return draw_cells(merged, states, rng)
        return draw_days(merged, states, codes[:, weekday], self._shares_by_weekday[index], rng)

    @cached_property
    def _weekdays(self) -> dict[int, int]:
        """The weekday attribute of each column of days, by index."""
        domain = self.under.domain
        return {
            index: part
            for part, index in domain.parts.items()
            if domain.columns[part].kind == "weekday" and domain.columns[index].kind != "gap"
        }

    @cached_property
    def _shares_by_weekday(self) -> dict[int, Array]:
        domain = self.under.domain
        return {
            index: cells_of_weekdays(domain.columns[index], self.under.states[index].share) for index in self._weekdays
        }

    @cached_property
    def _orders(self) -> list[list[Order]]:
        """The orders, grouped by common columns."""
        groups: list[list[Order]] = []
        for order in self.under.orders:
            linked = [group for group in groups if any(set(order.clique) & set(other.clique) for other in group)]
            groups = [group for group in groups if group not in linked]
            groups.append([other for group in linked for other in group] + [order])
        return groups

    def _put_in_order(self, orders: Sequence[Order], states: Codes, placed: Placed, rng: np.random.Generator) -> None:
        """Draws cells and values of the orders' columns again, in the rows' states, where an order is broken."""
        columns = sorted({index for order in orders for index in order.clique})
        redrawn = [index for index in columns if index not in self.known]
        codes, rows = placed.codes, np.arange(len(states))
        for _ in range(MOST_REDRAWS):
            amounts = {index: placed.amounts(index, rows) for index in columns}
            rows = rows[~np.all([order.holds(amounts[order.low], amounts[order.high]) for order in orders], axis=0)]
            if not rows.size:
                return
            for index in redrawn:
                codes[rows, index] = self._column_cells(index, states[rows, index], codes[rows], rng)
                placed.place(index, rows)


def _by_network(
    model: Model, joint: Joint, under: Conditioned, given: Mapping[str, Values] | None
) -> Callable[[int, np.random.Generator], Codes]:
    """Draws parts by a network; given columns come first."""
    names = model.domain.released.names
    first = [names.index(name) for name in given or {}]
    return partial(joint.draw, under.potentials({}, releasable=True), under.parents, first)


def counts_by_network(model: Model, joint: Joint, under: Conditioned) -> Callable[[Clique], torch.Tensor]:
    """Expected counts of parts, by a sample of a network's rows: for dependencies that are learned from it."""
    import torch

    drawn = _by_network(model, joint, under, None)(COUNTED_ROWS, np.random.default_rng())

    def counts(clique: Clique) -> torch.Tensor:
        shape = [under.states[index].size for index in clique]
        cells = np.bincount(joint_codes(drawn, clique, under.sizes), minlength=math.prod(shape))
        return torch.from_numpy(cells.reshape(shape).astype(np.float64))

    return counts


def draw_states(beliefs: Beliefs, rows: int, rng: np.random.Generator) -> Codes:
    """States of all columns, and then of a mixture's component, shape (rows, columns or one more)."""
    import torch

    tree, attributes = beliefs.tree, beliefs.tree.attributes
    states = np.empty((rows, len(tree.sizes)), dtype=np.int32, order="F")
    for axes, separator, conditional in zip(tree.axes, tree.separators, beliefs.conditionals, strict=True):
        given, weights = joint_codes(states, separator, tree.sizes), conditional.cpu().numpy()
        first = axes[: len(separator)]
        if first == separator:
            drawn, brought = systematic(weights, given, rng), axes[len(separator) :]
        else:  # some groups are known: their states are outcomes, too
            row_of = rows_in_groups(attributes, first, separator, torch.device("cpu")).numpy()
            group = np.repeat(row_of, weights.shape[1])
            order = np.argsort(group, kind="stable")
            starts = np.searchsorted(group[order], np.arange(tree.shape_cells(separator)))
            drawn, brought = order[_systematic(weights.ravel()[order], starts, given, rng)], axes
        for index in reversed(brought):
            drawn, states[:, index] = np.divmod(drawn, tree.sizes[index])
            if index < attributes.columns and (groups := attributes.groups[index]) is not None:
                states[:, attributes.columns + index] = groups[states[:, index]]
    return states[:, : attributes.columns]


def systematic(conditional: Array, given: npt.NDArray[np.int64], rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """An outcome for every row by its group's probabilities, in random order within the group; shape (rows,).

    Of a group's n rows, outcome i gets floor or ceiling of n * P[i]. `conditional` is P[outcome | group], shape
    (groups, outcomes), whose rows need not sum to one.
    """
    groups, outcomes = conditional.shape
    starts = np.arange(groups) * outcomes
    return np.asarray(_systematic(conditional.ravel(), starts, given, rng) - starts[given])


def draw_cells(merged: ColumnStates, states: Codes, rng: np.random.Generator) -> Codes:
    """A cell for every row's state."""
    if merged.size == merged.state_of.size:
        return np.argsort(merged.state_of).astype(np.int32)[states]
    order = np.argsort(merged.state_of, kind="stable")
    starts = np.searchsorted(merged.state_of[order], np.arange(merged.size))
    found = _systematic(merged.share[order], starts, states.astype(np.int64), rng)
    return order[found].astype(np.int32)


def draw_days(merged: ColumnStates, states: Codes, weekdays: Codes, shares: Array, rng: np.random.Generator) -> Codes:
    """A cell for every row's state of a column of days, with the row's weekday (7: missing) if the state has it.

    `shares` are those of each weekday in the cells (`placing.cells_of_weekdays`).
    """
    cells = merged.state_of.size
    order = np.argsort(merged.state_of, kind="stable")
    starts = np.searchsorted(merged.state_of[order], np.arange(merged.size))
    weights = np.concatenate([shares, merged.share[None, :]])[:, order]
    held = np.add.reduceat(weights, starts, axis=1)
    group = weekdays.astype(np.int64)
    group[held[group, states] <= 0] = 7
    offsets = np.arange(8)[:, None] * cells + starts
    found = _systematic(weights.ravel(), offsets.ravel(), group * merged.size + states, rng)
    return order[found % cells].astype(np.int32)


def _systematic(
    weights: Array, starts: npt.NDArray[np.int64], given: npt.NDArray[np.int64], rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    """The index of every row's outcome in `weights`, where the outcomes of group g begin at `starts[g]`."""
    ends = np.append(starts[1:], weights.size)
    shuffled = rng.permutation(given.size)
    # NumPy sorts numbers of two bytes by radix sort, in a fraction of the time.
    short = given.astype(np.uint16) if starts.size <= 2**16 else given
    order = shuffled[np.argsort(short[shuffled], kind="stable")]
    group = given[order]
    members = np.bincount(group, minlength=starts.size)
    before = np.cumsum(members) - members
    offsets = np.asarray(rng.uniform(size=starts.size))
    points = (np.arange(given.size) - before[group] + offsets[group]) / members[group]
    # One search for all groups: group g's points and sums are in [g, g + 1].
    sums = np.cumsum(weights)
    held = np.add.reduceat(weights, starts)
    sums -= np.repeat(sums[starts] - weights[starts], ends - starts)
    sums /= np.maximum(np.repeat(held, ends - starts), np.finfo(np.float64).tiny)
    sums += np.repeat(np.arange(starts.size), ends - starts)
    found = np.searchsorted(sums, group + points, side="right")
    # Rounding may put a point on its group's end; only a possible outcome may be drawn then.
    possible, places = weights > 0, np.arange(weights.size)
    first = np.minimum.reduceat(np.where(possible, places, weights.size), starts)
    last = np.maximum.reduceat(np.where(possible, places, -1), starts)
    drawn = np.empty_like(given)
    drawn[order] = np.clip(found, first[group], last[group])
    return drawn
