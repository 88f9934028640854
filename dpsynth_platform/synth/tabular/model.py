"""The fitted model on disk, and the audit's queries.

What belongs here: writing and reading a model directory, likelihoods of given records and the noisy counts of their
cells. What does not: fitting (`estimation`), the mechanisms (`mst`, `aim`), drawing rows (`sampling`).

| file | holds |
| --- | --- |
| measurements.jsonl | every noisy number the mechanism released, in order (`measurements`) |
| model.npz | the potentials and how cells map to states |
| model.json | plan, cliques and the digest of model.npz; written last, so a directory without it holds no model |

A model is differentially private but stays restricted: only releases are published.

A *mixture* of product distributions, P(x) = sum over k of w_k * product over i of P_k(x_i), is a graphical model with
one hidden attribute, the component k. It follows the columns, with the potentials log w_k and log P_k(x_i).
"""

from __future__ import annotations

import io
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import MechanismFailed
from dpsynth_platform.foundation.storage import write_durably
from dpsynth_platform.synth.interface import SealedPlan, generator
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.constraints import Conditions
from dpsynth_platform.synth.tabular.domain import Codes, Domain
from dpsynth_platform.synth.tabular.estimation import Array
from dpsynth_platform.synth.tabular.joint import Joint
from dpsynth_platform.synth.tabular.junction import Attributes, Clique, junction_tree
from dpsynth_platform.synth.tabular.measurements import Measurements, NoisyCounts, read_measurements
from dpsynth_platform.synth.tabular.missing import MissingShare, missing_shares
from dpsynth_platform.synth.tabular.propagation import Beliefs, Layout, Propagator
from dpsynth_platform.synth.tabular.resolution import Groups, coarse
from dpsynth_platform.synth.tabular.restore import ReleaseSchema

MODEL_FILE = "model.json"
ARRAYS_FILE = "model.npz"

MIXTURE_ROWS = 2**11
"""Rows whose likelihood under all components of a mixture is in memory at once."""
LEAST_PROBABILITY = 1e-12
"""Floor of a likelihood's factors, so that a record with an impossible value keeps a finite score."""


@dataclass(frozen=True)
class Model:
    """A graphical model over the columns' states, fitted to the measurements.

    Attributes:
        groups: the resolutions of each column's states (`resolution`).
        potentials: of every attribute and every measured clique, over states.
        total: estimated number of records, from the noisy counts.
        cover: cliques of the junction tree of the fit, so that another tree is no larger; () where unknown.
        conditions: of the fit, which rows keep; models on disk have none (`conditioning`).
        joint: the distribution of states where a network is the model; the potentials are then of single columns.
        components: of a mixture, whose potentials are (c,) and (i, c) of every column i: c is the number of columns and
            the index of the hidden attribute. 0 for other models.
    """

    plan: SealedPlan
    states: tuple[ColumnStates, ...]
    groups: Groups
    potentials: Mapping[Clique, Array]
    total: float
    measurements: Measurements
    cover: tuple[Clique, ...] = ()
    conditions: Conditions = field(default_factory=Conditions)
    components: int = 0
    joint: Joint | None = None

    @cached_property
    def domain(self) -> Domain:
        return Domain.from_json(self.plan.columns).with_values(self.measurements.learned)

    @cached_property
    def release(self) -> ReleaseSchema:
        return ReleaseSchema.from_json(self.plan.release)

    @cached_property
    def missing(self) -> tuple[MissingShare, ...]:
        return missing_shares(self.domain, self.measurements.one_way)

    @cached_property
    def attributes(self) -> Attributes:
        return Attributes.with_hidden([column.size for column in self.states], coarse(self.groups), self.components)

    def beliefs(self, *, releasable: bool) -> Beliefs:
        """The distribution; `releasable` rules out states without a cell that may be released."""
        import torch

        alone = {(index,): np.zeros(column.size) for index, column in enumerate(self.states)}
        potentials = alone | dict(self.potentials)
        layout = Layout(self.attributes.sizes, tuple(sorted(potentials, key=lambda clique: (len(clique), clique))))
        flat = torch.from_numpy(np.concatenate([potentials[clique].ravel() for clique in layout.cliques]))
        if releasable:
            for index, (column, states) in enumerate(zip(self.domain, self.states, strict=True)):
                ruled_out = torch.from_numpy(~states.allowed(column.allowed))
                layout.view(flat, (index,)).masked_fill_(ruled_out, -torch.inf)
        beliefs, _ = Propagator(junction_tree(self.attributes, [*layout.cliques, *self.cover]), layout).run(flat)
        return beliefs


@dataclass(frozen=True)
class CliqueScores:
    """The noisy counts of given records' cells.

    Attributes:
        cliques: names of the columns of each measurement, one-way marginals first.
        counts: noisy count of each record's cell, shape (records, cliques). Sets of columns were counted over states.
        expected: the count under independence: the product of several columns' noisy shares times the total; for one
            column, the mean over its cells. Same shape.
        sigmas: standard deviation of each clique's noise, shape (cliques,).
    """

    cliques: tuple[tuple[str, ...], ...]
    counts: Array
    expected: Array
    sigmas: Array


def save_model(directory: Path, model: Model) -> None:
    """Writes the model, which exists once `model.json` does."""
    arrays: dict[str, npt.NDArray[Any]] = {_name(clique): values for clique, values in model.potentials.items()}
    for index, states in enumerate(model.states):
        arrays |= {f"state_of.{index}": states.state_of, f"share.{index}": states.share}
        arrays |= {f"group.{index}.{level}": group for level, group in enumerate(model.groups[index])}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    write_durably(directory / ARRAYS_FILE, buffer.getvalue())
    document = {
        "plan": json.loads(model.plan.to_json()),
        "arrays": digest_file(directory / ARRAYS_FILE),
        "cliques": list(model.potentials),
        "total": model.total,
        "cover": list(model.cover),
        "components": model.components,
    }
    write_durably(directory / MODEL_FILE, json.dumps(document, indent=1))


def load_model(directory: Path) -> Model:
    """Reads a complete model. Raises `MechanismFailed` if there is none, or its files do not belong together."""
    try:
        document = json.loads((directory / MODEL_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MechanismFailed("the model directory holds no complete model; materialize the model again") from None
    plan = SealedPlan.from_json(json.dumps(document["plan"]))
    if digest_file(directory / ARRAYS_FILE) != document["arrays"]:
        raise MechanismFailed("the model's arrays were altered; materialize the model again")
    with np.load(directory / ARRAYS_FILE, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    cliques = [tuple(clique) for clique in document["cliques"]]
    columns = len(plan.columns)
    model = Model(
        plan=plan,
        states=tuple(ColumnStates(arrays[f"state_of.{index}"], arrays[f"share.{index}"]) for index in range(columns)),
        groups=[_stored_groups(arrays, index) for index in range(columns)],
        potentials={clique: arrays[_name(clique)] for clique in cliques},
        total=document["total"],
        measurements=read_measurements(directory, plan.digest),
        cover=tuple(tuple(clique) for clique in document.get("cover", ())),
        components=document.get("components", 0),
    )
    return replace(model, joint=generator(plan.method).joint(plan, directory))


def log_likelihood(model: Model, table: pa.Table) -> Array:
    """Natural log-probability of each record's cells under the model, shape (records,); ignores unmodelled columns."""
    codes = model.domain.encode(table)
    states = _states_of(model, codes)
    if model.joint is not None:
        likelihood = model.joint.log_likelihood(states)
    else:
        likelihood = _log_mixture(model, states) if model.components else _log_graphical(model, states)
    for index, column in enumerate(model.states):
        likelihood += _log(column.share[codes[:, index]])
    return likelihood


def _log_graphical(model: Model, states: Codes) -> Array:
    """Log-probability of each row's states under a model without hidden attributes."""
    beliefs = model.beliefs(releasable=False)
    groups = [
        column if group is None else group[column] for column, group in zip(states.T, coarse(model.groups), strict=True)
    ]
    states = np.concatenate([states, np.stack(groups, axis=1)], axis=1)
    likelihood = np.zeros(len(states))
    for axes, conditional in zip(beliefs.tree.axes, beliefs.conditionals, strict=True):
        cells = joint_codes(states, axes, model.attributes.sizes)
        likelihood += _log(conditional.numpy().ravel()[cells])
    return likelihood


def _log_mixture(model: Model, states: Codes) -> Array:
    """Log-probability of each row's states under a mixture, at least that of `LEAST_PROBABILITY` in every column."""
    hidden = len(model.states)
    weights, shares = model.potentials[(hidden,)], [model.potentials[(index, hidden)] for index in range(hidden)]
    norms = [np.logaddexp.reduce(share, axis=0) for share in shares]
    total = np.logaddexp.reduce(weights + sum(norms))
    found = np.empty(len(states))
    for first in range(0, len(states), MIXTURE_ROWS):
        rows = slice(first, first + MIXTURE_ROWS)
        scores = np.tile(weights, (len(states[rows]), 1))
        for index, share in enumerate(shares):
            scores += share[states[rows, index]]
        found[rows] = np.logaddexp.reduce(scores, axis=1) - total
    return np.maximum(found, hidden * math.log(LEAST_PROBABILITY))


def clique_scores(model: Model, table: pa.Table) -> CliqueScores:
    """The noisy counts of each record's cell in every measured clique."""
    codes = model.domain.encode(table)
    states = _states_of(model, codes)
    names = model.domain.names
    merged = [
        column.merge(measured.counts.astype(np.float64))
        for column, measured in zip(model.states, model.measurements.one_way, strict=True)
    ]
    counts, expected = [], []
    for index, measured in enumerate(model.measurements.one_way):
        counts.append(measured.counts[codes[:, index]])
        expected.append(np.full(table.num_rows, model.total / measured.counts.size))
    for measured in model.measurements.joint:
        groups = _groups_seen(model, measured)
        seen = _codes_seen(states, measured.clique, groups)
        counts.append(measured.counts[tuple(seen.T)])
        shares = [
            np.bincount(group, weights=merged[index].clip(0))[seen[:, place]] / model.total
            for place, (index, group) in enumerate(zip(measured.clique, groups, strict=True))
        ]
        expected.append(model.total * np.prod(shares, axis=0))
    every = (*model.measurements.one_way, *model.measurements.joint)
    return CliqueScores(
        cliques=tuple(tuple(names[index] for index in measured.clique) for measured in every),
        counts=np.stack(counts, axis=1).astype(np.float64),
        expected=np.stack(expected, axis=1),
        sigmas=np.array([measured.sigma for measured in every]),
    )


def measured_cells(model: Model, codes: Codes) -> npt.NDArray[np.int64]:
    """Flat index of each record's cell in every noisy marginal, shape (records, cliques) as in `CliqueScores`."""
    states = _states_of(model, codes)
    cells = [codes[:, index].astype(np.int64) for index in range(len(model.measurements.one_way))]
    for measured in model.measurements.joint:
        seen = _codes_seen(states, measured.clique, _groups_seen(model, measured))
        cells.append(joint_codes(seen, range(len(measured.clique)), measured.counts.shape))
    return np.stack(cells, axis=1)


def joint_codes(states: npt.NDArray[Any], axes: Iterable[int], sizes: Sequence[int]) -> npt.NDArray[np.int64]:
    """Flat index of each row's cell in an array over the given columns, in their order; shape (rows,)."""
    cells = np.zeros(states.shape[0], dtype=np.int64)
    for index in axes:
        cells = cells * sizes[index] + states[:, index]
    return cells


def _groups_seen(model: Model, measured: NoisyCounts) -> list[npt.NDArray[np.int64]]:
    """For each column of a measurement, the group of each of its states."""
    levels = measured.levels or (0,) * len(measured.clique)
    return [model.groups[index][level] for index, level in zip(measured.clique, levels, strict=True)]


def _codes_seen(states: Codes, clique: Clique, groups: Sequence[npt.NDArray[np.int64]]) -> npt.NDArray[np.int64]:
    """The groups of each row's states, shape (rows, columns of the clique)."""
    return np.stack([group[states[:, index]] for index, group in zip(clique, groups, strict=True)], axis=1)


def _stored_groups(arrays: Mapping[str, npt.NDArray[Any]], index: int) -> list[npt.NDArray[np.int64]]:
    levels = itertools.takewhile(lambda name: name in arrays, (f"group.{index}.{level}" for level in itertools.count()))
    return [arrays[name] for name in levels]


def _name(clique: Clique) -> str:
    return f"potential.{'.'.join(map(str, clique))}"


def _states_of(model: Model, codes: Codes) -> Codes:
    return np.stack([column.state_of[codes[:, index]] for index, column in enumerate(model.states)], axis=1)


def _log(probabilities: Array) -> Array:
    return np.log(np.maximum(probabilities, LEAST_PROBABILITY))
