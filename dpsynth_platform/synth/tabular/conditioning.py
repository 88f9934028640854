"""A model's distribution under conditions: declared constraints, and required values of rows.

What belongs here: states cut so that they decide conditions as far as possible, the factors that this adds to the
model, and dependencies learned from it. What does not: the conditions (`constraints`), fitting (`estimation`) and
drawing (`sampling`). All of it is post-processing.

A state is cut into *parts* where a set of values ends inside of it, each with its share of the state's records. Boxes
and dependencies rule out combinations of parts, and inference on the junction tree conditions on them exactly. Disjoint
parts decide an order of two columns. For overlapping parts, the factor is the probability that independent values keep
the order, and sampling draws only such values. So potentials fitted with these factors describe rows that keep all
conditions. If a factor would make the tree too large, rows that break the condition are drawn again (`sampling`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.synth.tabular.attributes import modelled_conditions
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.constraints import (
    CONSTRAINTS,
    Boxes,
    Conditions,
    Dependency,
    Judge,
    Order,
    ValueSet,
    unit,
)
from dpsynth_platform.synth.tabular.domain import ColumnDomain, Domain
from dpsynth_platform.synth.tabular.estimation import Array
from dpsynth_platform.synth.tabular.junction import Attributes, Clique, JunctionTree, covering, junction_tree
from dpsynth_platform.synth.tabular.propagation import IMPOSSIBLE, Beliefs, Layout, Propagator
from dpsynth_platform.synth.tabular.resolution import Groups, coarse

if TYPE_CHECKING:
    import torch

Indices = npt.NDArray[np.int64]
Rule = Boxes | Dependency | Order

FACTOR_CELLS = 2**22
"""The most cells of a condition's factor."""
TREE_CELLS = 2**22
"""Conditions add no factor that would make the junction tree larger than this, or than it is without any."""
MOST_TREE_CELLS = 2**27
"""1 GiB of numbers; conditions with a larger tree are refused."""
LEAST_SHARE = 1e-6
"""The least share of a part in its state: declared values may occur even if noisy counts are zero."""
LEAST_ORDERED = 1e-3
"""Pairs of parts are ruled out if a smaller share of their pairs of values keeps an order, so that drawing ends."""


@dataclass(frozen=True)
class Conditioned:
    """A model's states under conditions.

    Attributes:
        conditions: all conditions on rows, with learned dependencies.
        rows: the columns of rows, with cells cut for the conditions; `domain` are the model's attributes likewise.
        orders: orders that are kept by drawing pairs of values again; gaps keep the others.
        states: the parts: cells to parts, and shares of cells in them; `parents` are the model's states of the parts.
        tree: covers the model's cliques and those of the factors.
        factors: logarithms, over parts.
        computed: dependencies without a factor; sampling computes the dependent value.
    """

    conditions: Conditions
    rows: Domain
    orders: tuple[Order, ...]
    domain: Domain
    states: tuple[ColumnStates, ...]
    parents: tuple[Indices, ...]
    tree: JunctionTree
    factors: Mapping[Clique, Array]
    computed: tuple[Dependency, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        return self.tree.sizes

    @cached_property
    def judge(self) -> Judge:
        return Judge(self.rows, self.conditions)

    def groups(self, groups: Sequence[Sequence[Indices]]) -> list[list[Indices]]:
        """Resolutions of the parts, from those of the model's states."""
        return [[group[parents] for group in levels] for levels, parents in zip(groups, self.parents, strict=True)]

    def whole(self, clique: Clique, values: Array) -> Array:
        """Values over states, from values over parts that agree in all parts of a state."""
        firsts = [
            np.unique(self.parents[index], return_index=True)[1]
            if index < len(self.parents)
            else np.arange(self.sizes[index])
            for index in clique
        ]
        return values[np.ix_(*firsts)]

    def potentials(self, of_states: Mapping[Clique, Array], *, releasable: bool) -> dict[Clique, Array]:
        """Logarithms of weights over parts: the model's over states with those of the conditions (see `beliefs`)."""
        parents = [*self.parents, *map(np.arange, self.sizes[len(self.parents) :])]
        flat = {clique: values[np.ix_(*(parents[i] for i in clique))] for clique, values in of_states.items()}
        for clique, factor in self.factors.items():
            flat[clique] = flat[clique] + factor if clique in flat else factor
        if releasable:
            for index, (column, states) in enumerate(zip(self.domain, self.states, strict=True)):
                kept = np.where(states.allowed(column.allowed), 0.0, -np.inf)
                flat[(index,)] = flat[(index,)] + kept if (index,) in flat else kept
        return flat

    def beliefs(self, potentials: Mapping[Clique, Array], *, releasable: bool = False) -> Beliefs:
        """The distribution over parts, by the model's potentials over states; {} checks whether any row is possible.

        `releasable` rules out parts without a cell that may be released. Raises `ContractError` if no row is possible.
        """
        import torch

        flat = self.potentials(potentials, releasable=releasable)
        layout = Layout(self.sizes, tuple(sorted(flat, key=lambda clique: (len(clique), clique))))
        values = torch.from_numpy(np.concatenate([np.zeros(0), *(flat[clique].ravel() for clique in layout.cliques)]))
        beliefs, _ = Propagator(self.tree, layout).run(values)
        if float(beliefs.log_partition) < IMPOSSIBLE:
            raise _no_row()
        return beliefs


def conditioned(
    domain: Domain,
    states: Sequence[ColumnStates],
    conditions: Conditions,
    cliques: Sequence[Clique],
    groups: Groups = (),
    components: int = 0,
) -> Conditioned:
    """A model's states (at the resolutions `groups`) under known conditions on rows (`Domain.released`).

    `cliques` are those of the junction tree of the model's fit, `components` of a mixture (`Model`). Raises
    `ContractError` if the model with its states cut would not fit into memory.
    """
    rows, asked = conditions.cut(domain.released), conditions
    conditions = modelled_conditions(domain, asked)
    cut = conditions.cut(domain)
    pieces = [releasable(new, _pieces(old, new, column)) for old, new, column in zip(domain, cut, states, strict=True)]
    small = [item for item in conditions.dependencies if _factor_fits(item, cut, states)]
    parts, parents = [], []
    factors: dict[Clique, Array] = {}
    for index, (column, piece) in enumerate(zip(cut, pieces, strict=True)):
        signatures = _signatures(index, column, cut, conditions.boxes, small)
        part, parent, mass = _parts(piece, signatures)
        parts.append(part)
        parents.append(parent)
        if signatures:
            factors[(index,)] = np.log(np.maximum(mass, LEAST_SHARE))
    grouped = coarse(groups) or [None] * len(parts)
    attributes = Attributes.with_hidden(
        [column.size for column in parts],
        [None if group is None else group[parent] for group, parent in zip(grouped, parents, strict=True)],
        components,
    )
    tree = junction_tree(attributes, cliques)
    if tree.cells > MOST_TREE_CELLS:
        raise ContractError(
            f"{CONSTRAINTS}: they distinguish so many values that the model would not fit into memory; accepted: "
            "fewer constraints, or broader sets of values"
        )
    made = Conditioned(asked, rows, conditions.orders, cut, tuple(parts), tuple(parents), tree, factors, ())
    kept, known = list(cliques), list[Rule]()
    rules: tuple[Rule, ...] = (*small, *conditions.boxes, *conditions.orders)
    for rule in rules:
        clique = rule.clique
        if tree.shape_cells(clique) > FACTOR_CELLS:
            continue
        grown = covering(tree, kept, clique)
        if grown.cells > max(TREE_CELLS, tree.cells):
            continue
        tree = grown
        kept.append(clique)
        known.append(rule)
        factor = _factor(made, rule)
        factors[clique] = factors[clique] + factor if clique in factors else factor
    computed = tuple(item for item in conditions.dependencies if item not in known)
    return replace(made, tree=tree, computed=computed)


def check_possible(domain: Domain, conditions: Conditions) -> None:
    """Raises `ContractError` for conditions whose sets of values contradict each other."""
    finely = {index for order in conditions.orders for index in order.clique}
    states = []
    for index, column in enumerate(domain):
        single = np.arange(column.size, dtype=np.int32)
        even = ColumnStates(np.zeros_like(single), np.full(column.size, 1 / column.size))
        states.append(ColumnStates(single, np.ones(column.size)) if index in finely else even)
    made = conditioned(domain, states, conditions.known, [])
    weights = made.potentials({}, releasable=True)
    joint = [clique for clique in weights if len(clique) > 1]
    if len({index for clique in joint for index in clique}) < sum(map(len, joint)):
        made.beliefs({}, releasable=True)
        return
    # No column is in two sets of columns: each is possible or not by itself, without loading torch for seconds.
    for clique, whole in weights.items():
        for axis, index in enumerate(clique if len(clique) > 1 else ()):
            whole = whole + weights[(index,)].reshape([-1 if axis == other else 1 for other in range(whole.ndim)])
        if whole.max() < IMPOSSIBLE:
            raise _no_row()


def _no_row() -> ContractError:
    return ContractError(
        f"{CONSTRAINTS}: no row can keep them all, with the requested values; accepted: constraints and values that "
        "leave some combination"
    )


def with_learned(conditions: Conditions, under: Conditioned, expected: Callable[[Clique], torch.Tensor]) -> Conditions:
    """The conditions with all dependencies learned: each state's likeliest value, by `expected` counts of parts."""
    found = []
    for item in conditions.unlearned:
        joint = expected(item.clique).cpu().numpy()
        joint = joint if item.column < item.dependent else joint.T
        found.append(_learned(item, under, joint))
    return replace(conditions, dependencies=conditions.known.dependencies + tuple(found))


def _learned(item: Dependency, under: Conditioned, joint: Array) -> Dependency:
    column, dependent = under.domain.columns[item.column], under.domain.columns[item.dependent]
    parents = under.parents[item.column]
    by_state = np.zeros((int(parents.max()) + 1, joint.shape[1]))
    np.add.at(by_state, parents, joint)
    parts = under.states[item.dependent]
    by_cell = by_state[:, parts.state_of] * np.where(dependent.allowed, parts.share, 0.0)
    by_cell[:, dependent.missing] = 0.0
    state_of = parents[under.states[item.column].state_of]
    targets = []
    for state, cell in enumerate(by_cell.argmax(axis=1).tolist()):
        cells = np.flatnonzero(state_of == state)
        values = _set_of(column, cells[cells != column.missing])
        if values is not None:
            targets.append((values, _value_in(dependent, cell)))
    return replace(item, targets=tuple(targets))


def _set_of(column: ColumnDomain, cells: Indices) -> ValueSet | None:
    if not cells.size:
        return None
    if not column.ordered:
        return ValueSet(codes=tuple(cells.tolist()))
    return ValueSet(spans=tuple((column.edges[cell], column.edges[cell + 1]) for cell in cells.tolist()))


def _value_in(column: ColumnDomain, cell: int) -> ValueSet:
    """One value of a cell: the middle one of several whole numbers."""
    if not column.ordered:
        return ValueSet(codes=(cell,))
    middle = (int(column.edges[cell]) + int(column.edges[cell + 1]) - 1) // 2
    return ValueSet(spans=((middle, middle + 1),))


def _pieces(old: ColumnDomain, new: ColumnDomain, states: ColumnStates) -> ColumnStates:
    """The states over cut cells: each piece has a part of the cell's share by its width."""
    if new.edges == old.edges:
        return states
    starts, ends = np.asarray(new.edges[:-1], dtype=np.float64), np.asarray(new.edges[1:], dtype=np.float64)
    bounds = np.asarray(old.edges, dtype=np.float64)
    cell = np.clip(np.searchsorted(bounds[:-1], starts, side="right") - 1, 0, old.missing - 1)
    width = bounds[1:][cell] - bounds[cell]
    part = np.divide(ends - starts, width, out=np.ones(starts.size), where=width > 0)
    origin = np.append(cell, old.missing)
    return ColumnStates(states.state_of[origin], states.share[origin] * np.append(part, 1.0))


def releasable(column: ColumnDomain, states: ColumnStates) -> ColumnStates:
    """The states with share 0 for cells that may not be released, if others of the same state may."""
    share = np.where(column.allowed, states.share, 0.0)
    left = states.merge(share)[states.state_of]
    others = states.merge(column.allowed.astype(np.float64))[states.state_of]
    # If a cell that may not be released has all of a state's weight, the others share it equally.
    even = np.divide(column.allowed, others, out=states.share.copy(), where=others > 0)
    return ColumnStates(states.state_of, np.divide(share, left, out=even, where=left > 0))


def _signatures(
    index: int, column: ColumnDomain, domain: Domain, boxes: Sequence[Boxes], dependencies: Sequence[Dependency]
) -> list[Indices]:
    """Arrays over a column's cells; cells that differ in one of them belong to different parts."""
    sets = {values for rule in boxes if index in rule.clique for values in rule.sets(index)}
    found = [values.cells(column).astype(np.int64) for values in sets]
    for item in dependencies:
        given = item.given(domain)
        if index == item.column:
            found.append(given)
        elif index == item.dependent:
            named = np.full(column.size, -1, dtype=np.int64)
            alone = np.append(given[given >= 0], column.missing)
            named[alone] = alone
            found.append(named)
    return found


def _parts(states: ColumnStates, signatures: Sequence[Indices]) -> tuple[ColumnStates, Indices, Array]:
    """The parts of a column, the state of each, and P[part | its state]."""
    if not signatures:
        return states, np.arange(states.size), np.ones(states.size)
    keys = np.stack([states.state_of.astype(np.int64), *signatures])
    _, first, part_of = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    part_of = part_of.ravel()
    mass = np.bincount(part_of, weights=states.share).astype(np.float64)
    share = np.divide(states.share, mass[part_of], out=1 / np.bincount(part_of)[part_of], where=mass[part_of] > 0)
    return ColumnStates(part_of.astype(np.int32), share), states.state_of[first].astype(np.int64), mass


def _factor_fits(item: Dependency, domain: Domain, states: Sequence[ColumnStates]) -> bool:
    """Whether a dependency's factor is small enough, by an upper bound on its parts."""
    kinds = np.unique(item.given(domain)).size
    most = min(domain.columns[item.column].size, states[item.column].size * kinds)
    return most * min(domain.columns[item.dependent].size, states[item.dependent].size + kinds) <= FACTOR_CELLS


def _factor(made: Conditioned, rule: Rule) -> Array:
    if isinstance(rule, Boxes):
        return _of_boxes(made, rule)
    return _of_order(made, rule) if isinstance(rule, Order) else _of_dependency(made, rule)


def _of_boxes(made: Conditioned, rule: Boxes) -> Array:
    firsts = {index: np.unique(made.states[index].state_of, return_index=True)[1] for index in rule.clique}

    def inside(index: int, values: ValueSet) -> npt.NDArray[np.bool_]:
        shape = [-1 if other == index else 1 for other in rule.clique]
        return values.cells(made.domain.columns[index])[firsts[index]].reshape(shape)

    shape = tuple(made.sizes[index] for index in rule.clique)
    return np.where(np.broadcast_to(rule.holds(inside), shape), 0.0, -np.inf)


def _of_dependency(made: Conditioned, item: Dependency) -> Array:
    given, codes = (
        np.unique(made.states[index].state_of, return_index=True)[1] for index in (item.column, item.dependent)
    )
    missing = made.domain.columns[item.dependent].missing
    holds = item.holds(item.given(made.domain)[given][:, None], codes[None, :], missing)
    factor = np.where(holds, 0.0, -np.inf)
    return factor if item.column < item.dependent else factor.T


def _of_order(made: Conditioned, order: Order) -> Array:
    low, high = made.domain.columns[order.low], made.domain.columns[order.high]
    kept = np.full((low.size, high.size), float(order.allow_missing))
    kept[:-1, :-1] = _ordered(low, high, order.strict)
    by_low, by_high = (_shares(made.states[index]) for index in (order.low, order.high))
    chance = by_low @ kept @ by_high.T
    factor = np.where(chance < LEAST_ORDERED, -np.inf, np.log(np.maximum(chance, LEAST_ORDERED)))
    return factor if order.low < order.high else factor.T


def _shares(states: ColumnStates) -> Array:
    """Shares of cells by part, shape (parts, cells)."""
    found = np.zeros((states.size, states.state_of.size))
    found[states.state_of, np.arange(states.state_of.size)] = states.share
    return found


def _ordered(low: ColumnDomain, high: ColumnDomain, strict: bool) -> Array:
    """Probability that a value of a cell is not above (strict: is below) one of another, shape (cells, cells).

    Values are uniform in their cells. Probabilities are exactly 0 or 1 where all values agree.
    """
    (first, end, last), (other_first, other_end, other_last) = _bounds(low), _bounds(high)
    a, b, c, d = first[:, None], end[:, None], other_first[None, :], other_end[None, :]
    wide, other_wide = b - a, d - c
    scale = np.maximum(np.maximum(wide, other_wide), np.finfo(np.float64).tiny)
    corners = ((1, d, a), (-1, d, b), (-1, c, a), (1, c, b))
    area = sum(
        (sign * np.square(np.maximum((x - y) / scale, 0.0)) / 2 for sign, x, y in corners), np.zeros(scale.shape)
    )
    below = np.divide(area, wide * other_wide / scale**2, out=np.full(area.shape, 0.5), where=(wide * other_wide) > 0)
    # For whole numbers, half of the pairs of equal values were counted.
    steps = [float(unit(column)) if column.scale.whole else 0.0 for column in (low, high)]
    common = np.maximum(np.minimum(b, d) - np.maximum(a, c), 0.0) * max(steps)
    ties = np.divide(common, wide * other_wide, out=np.zeros(area.shape), where=(wide * other_wide) > 0)
    chance = np.clip(below + (-ties if strict else ties) / 2, LEAST_ORDERED, 1.0)
    lowest, highest = last[:, None], other_last[None, :]
    certain = lowest < c if strict else lowest <= c
    impossible = a >= highest if strict else a > highest
    return np.where(impossible, 0.0, np.where(certain, 1.0, chance))


def _bounds(column: ColumnDomain) -> tuple[Array, Array, Array]:
    """Start, end and largest value of each cell but the last, as numbers (`ColumnDomain.numbers`)."""
    step = unit(column)
    edges = np.array([float(edge * step) if column.scale.whole else edge for edge in map(_exact, column.edges)])
    start, end = edges[:-1], edges[1:]
    return start, end, end - float(step) if column.scale.whole else end


def _exact(edge: float) -> float:
    return int(edge) if float(edge).is_integer() else edge
