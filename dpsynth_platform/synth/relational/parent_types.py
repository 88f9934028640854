"""Hidden types of a parent row, on which all of its rows in one table depend: post-processing of a view's model.

What belongs here: the types by the model's pairs of columns, and the model refitted with the type as a column. What
does not: the mechanism, which measures nothing for this, and drawing (`drawing`).

Given the rows before, a model of a view forgets: what the third row has in common with the first one passes through
the second. A hidden type of the parent that all its rows share keeps it (the latent variables of PrivLava; Cai, Xiao
& Cormode 2023, who pay for measurements of them). Here they follow from what is measured anyway. If rows of one parent
are independent given its type y, then pairs of a column and one of another row, or of the parent, have the marginals

    P(a, b) = sum_y P(y) P(a | y) P(b | y),

with the same P(. | y) for a row and for the row before. Expectation maximization fits a latent class model (Goodman
1974) to all such marginals of the fitted model, each with the same weight (a composite likelihood; Lindsay 1988). Pairs
of columns of one row tell nothing, as these depend on each other given the type, too.

Then the model is fitted again, to all noisy counts and to the pairs (type, column). So it has the greatest entropy that
agrees with both: of what a row says of the next one, the type explains its part, and the direct dependence keeps the
rest. Both together say no more than what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.constraints import Constraint
from dpsynth_platform.contracts.tables import LinkedTables, children_name, context_name, previous_name
from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.synth.tabular.conditioning import Conditioned, conditioned
from dpsynth_platform.synth.tabular.domain import ColumnDomain
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.marginals import fitted
from dpsynth_platform.synth.tabular.measurements import Measurements, NoisyCounts
from dpsynth_platform.synth.tabular.model import Model
from dpsynth_platform.synth.tabular.propagation import marginal, pair_marginals
from dpsynth_platform.synth.tabular.resolution import View
from dpsynth_platform.synth.tabular.restore import ReleaseSchema

TYPE = "row__type"
"""The type of a row's parent, in a view."""
STARTS, STEPS, TOLERANCE = 8, 500, 1e-7
SMOOTHING = 0.01
"""Of each type's distribution, the part that is that of all rows, so that no value is impossible in a type."""
LOOSENESS = 0.25
"""Deviation of pairs (type, column) in the refit, by the least one of the noisy counts."""
LEAST_EXPLAINED = 1 / 3
"""Of what pairs have in common, the part that types must explain: rows that avoid each other's values have none."""
MOST_FARTHER = 0.005
"""A model with types may be so much farther from the noisy counts than the one without (`farther`)."""
_LEAST = 1e-300


@dataclass(frozen=True)
class _Feature:
    """A column by its states, and how they follow from the values whose distribution depends on the type.

    Attributes:
        index: the column's.
        values: which distribution it has: equal ones for a row and the row before.
        of_values: 1 where a state has a value, shape (states, values); states without any are missing values.
    """

    index: int
    values: int
    of_values: Array


@dataclass(frozen=True)
class Classes:
    """A latent class model.

    Attributes:
        weights: P(y).
        given: P(value | y), by number of values' distribution; shape (values, types).
        fit: the mean log-likelihood.
    """

    weights: Array
    given: tuple[Array, ...]
    fit: float


Pair = tuple[_Feature, _Feature, Array]
"""Two columns, and the share of each of their states."""


def typed(model: Model, tables: LinkedTables, name: str, constraints: Sequence[Constraint] = ()) -> Model | None:
    """The model of a table's view with a further column `TYPE`, of the categories 1 to the declared number of types.

    None where none are declared, or the noisy counts tell none: types do not explain what pairs have in common, or the
    model with them is farther from the counts.

    Args:
        constraints: under which the model was fitted.
    """
    types = tables.tables[name].types
    found = None if types is None else _with_types(model, tables, name, types)
    if types is None or found is None:
        return None
    joints, weights = found
    place, noise = len(model.domain), min(item.sigma for item in model.measurements.one_way)

    def counts(clique: Clique, shares: Array, sigma: float) -> NoisyCounts:
        padded = np.concatenate([shares, np.zeros((*shares.shape[:-1], 1))], axis=-1)  # no type is missing
        return NoisyCounts(clique, np.rint(padded * model.total).astype(np.int64), sigma)

    pairs = [counts((index, place), joint, LOOSENESS * noise) for index, joint in sorted(joints.items())]
    measured = model.measurements
    stored = replace(
        measured, one_way=(*measured.one_way, counts((place,), weights, 0.0)), joint=(*measured.joint, *pairs)
    )
    column = ColumnDomain(TYPE, "categorical", nullable=False, values=tuple(str(each + 1) for each in range(types)))
    schema, treatments = model.release.schema, model.release.treatments
    release = ReleaseSchema(schema.append(pa.field(TYPE, pa.string())), treatments | {TYPE: "modelled"})
    plan = replace(model.plan, columns=[*model.plan.columns, column.to_json()], release=release.to_json())
    # The sum of types makes the number of rows more exact, so that states by all counts could be others than those of
    # the joint counts.
    other = fitted(plan, stored, constraints, begin=model)
    return other if farther(other, model) <= MOST_FARTHER else None


def of_parent(tables: LinkedTables, name: str) -> list[str]:
    """The columns of a view that are alike for all rows of one parent, without its type."""
    return [*(context_name(*each) for each in tables.context(name)), *map(children_name, tables.siblings(name))]


def farther(found: Model, model: Model) -> float:
    """How much farther from the noisy counts the model with types is than that without, in total variation.

    The most of any single column, or the mean over all measured marginals, whichever is more: single pairs may change
    by some of their noise.
    """
    more = distances(found, model.measurements) - distances(model, model.measurements)
    return float(max(more[: len(model.measurements.one_way)].max(), more.mean()))


def distances(model: Model, measured: Measurements) -> Array:
    """Total variation of each measured marginal, of the noisy counts, and the model's; shape (marginals,).

    Counts are over the states and groups of the model's first columns.
    """
    under, found = _under(model), []
    beliefs = under.beliefs(model.potentials)
    for place, item in enumerate((*measured.one_way, *measured.joint)):
        counts = item.counts.astype(np.float64)
        if place < len(measured.one_way):
            counts = model.states[item.clique[0]].merge(counts)
        view = View(item.clique, item.levels or (0,) * len(item.clique))
        shares = _over_states(under, item.clique, marginal(beliefs, item.clique).numpy())
        found.append(np.abs(view.sums(shares, model.groups) - counts / model.total).sum() / 2)
    return np.array(found)


def explained(pairs: Sequence[Pair], classes: Classes) -> float:
    """The part of pairs' mutual information that the types explain; 0 where there is none."""
    alone = most = 0.0
    for _, _, shares in pairs:
        independent = np.outer(shares.sum(axis=1), shares.sum(axis=0))
        alone += float((shares * np.log(np.maximum(independent, _LEAST))).sum()) / len(pairs)
        most += float((shares * np.log(np.maximum(shares, _LEAST))).sum()) / len(pairs)
    return (classes.fit - alone) / (most - alone) if most - alone > TOLERANCE else 0.0


def _with_types(model: Model, tables: LinkedTables, name: str, types: int) -> tuple[dict[int, Array], Array] | None:
    """P(state, type) of each column that the types tell something of, by its index, and P(type); None without types."""
    rows, parents = _features(model, tables, name)
    siblings = [(own, before) for own, *_ in rows for _, *others in rows for before in others]
    known = [(own, above) for own, *_ in rows for above in parents]
    number = next(each for each in parents if model.domain.columns[each.index].name == children_name(name))
    numbers = [(before, number) for _, *others in rows for before in others]
    shares = _shares(model, [(a.index, b.index) for a, b in (*siblings, *known, *numbers)])

    def present(pairs: Sequence[tuple[_Feature, _Feature]]) -> list[Pair]:
        return [(a, b, _present(shares[a.index, b.index], a, b)) for a, b in pairs]

    classes = latent_classes(present(siblings), types)
    if explained(present(siblings), classes) < LEAST_EXPLAINED:
        return None
    above = with_known(present(known), classes)
    weights = np.mean([each.sum(axis=0) for each in above.values()], axis=0)
    joints = {}
    for each in parents:
        joints[each.index] = _scaled(above[each.values], shares[rows[0][0].index, each.index].sum(axis=0), weights)
    of_number = joints[number.index]
    of_number = of_number / np.maximum(of_number.sum(axis=1, keepdims=True), _LEAST)
    for own, *others in rows:
        for each, of_type in ((own, weights), *((before, classes.weights) for before in others)):
            joint = each.of_values @ classes.given[each.values] * of_type
            missing = ~each.of_values.any(axis=1)
            with_number = shares[each.index, number.index]
            # Which rows have none before them follows from their number.
            joint[missing] = (with_number @ of_number)[missing]
            joints[each.index] = _scaled(joint, with_number.sum(axis=1), weights)
    return joints, weights


def latent_classes(pairs: Sequence[Pair], types: int) -> Classes:
    """The likeliest latent class model, of several starts that are the same each time."""
    sizes = {each.values: each.of_values.shape[1] for a, b, _ in pairs for each in (a, b)}
    overall = _overall(pairs, sizes)
    found = []
    for start in range(STARTS):
        rng = np.random.default_rng(start)
        given = tuple(overall[place][:, None] * rng.dirichlet(np.ones(types), sizes[place]) for place in sorted(sizes))
        found.append(_maximized(pairs, Classes(np.full(types, 1 / types), _normed(given), -np.inf), overall))
    return max(found, key=lambda each: each.fit)


def with_known(pairs: Sequence[Pair], classes: Classes) -> dict[int, Array]:
    """P(value, type) of the pairs' second columns, by the distributions of their first ones given the type.

    Its sums are P(type) in all rows: the pairs of `latent_classes` are of rows that have another before them.
    """
    grouped: dict[int, list[Pair]] = {}
    for pair in pairs:
        grouped.setdefault(pair[1].values, []).append(pair)
    found = {}
    for values, several in grouped.items():
        alone = np.mean([shares.sum(axis=0) for _, _, shares in several], axis=0)
        start = alone[:, None] * classes.weights
        joint = start
        for _ in range(STEPS):
            counts = np.zeros_like(joint)
            for a, _, shares in several:
                given = a.of_values @ classes.given[a.values]
                counts += joint * ((shares / np.maximum(given @ joint.T, _LEAST)).T @ given)
            new = (1 - SMOOTHING) * counts / len(several) + SMOOTHING * start
            done = np.abs(new - joint).max() < TOLERANCE
            joint = new
            if done:
                break
        found[values] = joint
    return found


def _maximized(pairs: Sequence[Pair], classes: Classes, overall: Mapping[int, Array]) -> Classes:
    for _ in range(STEPS):
        new = _step(pairs, classes, overall)
        done = new.fit - classes.fit < TOLERANCE
        classes = new
        if done:
            break
    return classes


def _step(pairs: Sequence[Pair], classes: Classes, overall: Mapping[int, Array]) -> Classes:
    """One step of expectation maximization; `fit` is that before it."""
    weights = np.zeros_like(classes.weights)
    counts = [np.zeros_like(each) for each in classes.given]
    fit = 0.0
    for a, b, shares in pairs:
        of_a, of_b = (each.of_values @ classes.given[each.values] for each in (a, b))
        expected = np.maximum((of_a * classes.weights) @ of_b.T, _LEAST)
        ratio = shares / expected
        fit += float((shares * np.log(expected)).sum())
        from_b, from_a = classes.weights * (ratio @ of_b), classes.weights * (ratio.T @ of_a)
        weights += (of_a * from_b).sum(axis=0)
        counts[a.values] += classes.given[a.values] * (a.of_values.T @ from_b)
        counts[b.values] += classes.given[b.values] * (b.of_values.T @ from_a)
    given = tuple(
        (1 - SMOOTHING) * each + SMOOTHING * overall[place][:, None] for place, each in enumerate(_normed(counts))
    )
    return Classes(weights / weights.sum(), given, fit / len(pairs))


def _normed(given: Sequence[Array]) -> tuple[Array, ...]:
    return tuple(each / np.maximum(each.sum(axis=0), _LEAST) for each in given)


def _overall(pairs: Sequence[Pair], sizes: Mapping[int, int]) -> dict[int, Array]:
    """The distribution of values whatever the type."""
    found = {place: np.zeros(size) for place, size in sizes.items()}
    for a, b, shares in pairs:
        for each, of_state in ((a, shares.sum(axis=1)), (b, shares.sum(axis=0))):
            found[each.values] += each.of_values.T @ (of_state / np.maximum(each.of_values.sum(axis=1), 1))
    return {place: values / values.sum() for place, values in found.items()}


def _features(model: Model, tables: LinkedTables, name: str) -> tuple[list[list[_Feature]], list[_Feature]]:
    """Columns of a row each with those of the rows before, and the columns of the parent."""
    domain, lags = model.domain, range(1, tables.lags(name) + 1)
    places = {(column.reads, column.kind): index for index, column in enumerate(domain)}
    rows: list[list[_Feature]] = []
    for own in tables.passed_on(name):
        for index, column in enumerate(domain):
            if column.reads != (own,):
                continue
            before = [places[(previous_name(own, lag),), column.kind] for lag in lags]
            rows.append(_alike(model, [index, *before], len(rows)))
    known = set(of_parent(tables, name))
    parents = [index for index, column in enumerate(domain) if set(column.reads) <= known]
    found = [_Feature(index, len(rows) + n, np.eye(model.states[index].size)) for n, index in enumerate(parents)]
    return rows, found


def _alike(model: Model, indices: Sequence[int], values: int) -> list[_Feature]:
    """A column and those of rows before: their values are cells, as far as one of them distinguishes these."""
    own, *before = indices
    missing = model.domain.columns[own].missing
    states = np.stack([model.states[index].state_of for index in indices])
    _, value_of = np.unique(states, axis=1, return_inverse=True)
    found = []
    for index, of_cell in zip(indices, states, strict=True):
        has = np.zeros((model.states[index].size, int(value_of.max()) + 1))
        has[of_cell, value_of.ravel()] = 1.0
        if index in before:
            has[of_cell[missing]] = 0.0
        found.append(_Feature(index, values, has))
    return found


def _shares(model: Model, cliques: Sequence[Clique]) -> dict[Clique, Array]:
    """The model's marginals of pairs over states."""
    under = _under(model)
    found = pair_marginals(under.beliefs(model.potentials), {(min(pair), max(pair)) for pair in cliques})
    whole = {clique: _over_states(under, clique, values.numpy()) for clique, values in found.items()}
    return {(a, b): whole[a, b] if a < b else whole[b, a].T for a, b in cliques}


def _over_states(under: Conditioned, clique: Clique, shares: Array) -> Array:
    """Sums of parts' shares."""
    for axis, index in enumerate(clique):
        parents = under.parents[index]
        sums = np.zeros((int(parents.max()) + 1, parents.size))
        sums[parents, np.arange(parents.size)] = 1.0
        shares = np.moveaxis(np.tensordot(sums, shares, (1, axis)), 0, axis)
    return shares


def _under(model: Model) -> Conditioned:
    return conditioned(
        model.domain, model.states, model.conditions, (*model.potentials, *model.cover), model.groups, model.components
    )


def _present(shares: Array, a: _Feature, b: _Feature) -> Array:
    """The shares of states with values, with sum one; independent ones where noise leaves none."""
    possible = np.outer(a.of_values.any(axis=1), b.of_values.any(axis=1)).astype(np.float64)
    kept = shares.clip(0) * possible
    kept = kept if kept.sum() > 0 else possible
    return np.asarray(kept / max(kept.sum(), _LEAST))


def _scaled(joint: Array, states: Array, types: Array) -> Array:
    """The nearest table of (state, type) with these sums: iterative proportional fitting."""
    for _ in range(100):
        joint = joint * (states / np.maximum(joint.sum(axis=1), _LEAST))[:, None]
        joint = joint * (types / np.maximum(joint.sum(axis=0), _LEAST))
    return joint
