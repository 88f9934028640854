"""Rows of a table's view, given the parent's columns and the rows before: post-processing.

What belongs here: drawing the own columns of many rows whose evidence differs. What does not: which rows there are and
what their evidence is (`drawing`), and inference (`evidence`, and of networks `neural.columnwise`).

Values are drawn as in single tables (`tabular.sampling`): states, cells, values in order, and rows that break a
constraint again. Only that known columns keep their values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.contracts.tables import gap_name, previous_name
from dpsynth_platform.synth.relational.evidence import GivenEvidence
from dpsynth_platform.synth.tabular.column_states import Array
from dpsynth_platform.synth.tabular.domain import Codes
from dpsynth_platform.synth.tabular.joint import Joint
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.model import Model
from dpsynth_platform.synth.tabular.placing import Placed
from dpsynth_platform.synth.tabular.sampling import Sampler

MOST_TRIED = 10
"""Further draws of a row whose values break a constraint, before it is left out."""


class Given(Protocol):
    """The distribution of the drawn columns' states given the known ones."""

    def draw(self, states: Codes, rng: np.random.Generator) -> None:
        """Fills in the states of the drawn columns, shape (rows, columns)."""


@dataclass(frozen=True)
class GivenNetwork:
    """That of a network: known columns are read before any other is drawn.

    Attributes:
        weights: of parts of states, and `parents`: the state of each part (`tabular.joint`).
    """

    joint: Joint
    weights: Mapping[Clique, Array]
    parents: Sequence[npt.NDArray[np.int64]]
    known: tuple[int, ...]

    def draw(self, states: Codes, rng: np.random.Generator) -> None:
        self.joint.fill(states, self.weights, self.parents, self.known, rng)


@dataclass(frozen=True)
class ViewSampler:
    """The distribution of a view's own columns given its evidence.

    Attributes:
        own: names of the columns that are drawn.
        gap: the column whose value is at a gap after that of the row before (`LinkedTables.gap`).
    """

    sampler: Sampler
    given: Given
    own: tuple[str, ...]
    gap: str | None = None

    @classmethod
    def of(cls, model: Model, evidence: Collection[str], gap: str | None = None) -> ViewSampler:
        domain = model.domain
        known = frozenset(index for index, column in enumerate(domain) if set(column.reads) <= set(evidence))
        sampler = replace(Sampler.of(model), known=known)
        under = sampler.under
        given: Given
        if model.joint is not None:
            given = GivenNetwork(
                model.joint, under.potentials({}, releasable=True), under.parents, tuple(sorted(known))
            )
        else:
            given = GivenEvidence.of(
                [column.size for column in under.states],
                under.tree.attributes.groups,
                under.potentials(model.potentials, releasable=True),
                known,
            )
        return cls(sampler, given, tuple(name for name in domain.released.names if name not in evidence), gap)

    def draw(self, evidence: pa.Table, rng: np.random.Generator) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        """Own columns of a row for each row of evidence, and which of them keep all constraints.

        A value that would lie beyond the declared range, by its gap, is drawn again, and at last is that range's end.
        """
        found, kept = self._drawn(evidence, rng)
        for tried in range(1, MOST_TRIED + 1):
            again = np.flatnonzero(~kept)
            if not again.size:
                break
            other, good = self._drawn(evidence.take(pa.array(again)), rng, at_the_end=tried == MOST_TRIED)
            place = np.arange(len(kept))
            place[again] = len(kept) + np.arange(again.size)
            found = pa.concat_tables([found, other]).take(pa.array(place))
            kept[again] = good
        return found, kept

    def _drawn(
        self, evidence: pa.Table, rng: np.random.Generator, *, at_the_end: bool = False
    ) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
        under, rows = self.sampler.under, evidence.num_rows
        states: Codes = np.zeros((rows, len(under.states)), dtype=np.int32, order="F")
        known: dict[int, Codes] = {}
        for index in sorted(self.sampler.known):
            known[index] = under.domain.columns[index].codes(evidence)
            states[:, index] = under.states[index].state_of[known[index]]
        self.given.draw(states, rng)
        codes = self.sampler.cells(states, rng)
        for index, found in known.items():
            codes[:, index] = found
        placed = Placed(under.domain, codes, rng)
        for index in known:
            column = under.domain.columns[index]
            if column.ordered and column.derived is None:
                placed.fix(index, evidence.column(column.name).combine_chunks())
        sampler, inside = self.sampler, np.ones(rows, dtype=np.bool_)
        if self.gap is not None:
            names = [column.name for column in under.domain]
            index, gap, before = (
                names.index(each) for each in (self.gap, gap_name(self.gap), previous_name(self.gap, 1))
            )
            inside = placed.follow(index, before, gap) | at_the_end
            sampler = replace(sampler, known=sampler.known | {index})
        batch = sampler.in_order(states, placed, rng).batch(sampler.release.schema)
        values = dict(zip(batch.schema.names, batch.columns, strict=True))
        kept = inside & under.judge.keeps(values) if under.conditions else inside
        return pa.Table.from_batches([batch]).select(list(self.own)), kept
