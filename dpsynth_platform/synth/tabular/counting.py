"""Exact counts of the bounded records. Sensitive: only a mechanism may call this, and must add noise.

What belongs here: counting marginals, or the values that occur, in one pass over the bounded table, and each record's
weight. What does not: noise (`noise`) and the use of the counts (`learning`, `mst`, `aim`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.engine import Engine
from dpsynth_platform.foundation.errors import BoundingError, EngineError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import read_table, table_schema
from dpsynth_platform.privacy.units import RECORD_PARTS, row_weight
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, Fingerprints, distinct_owners, fingerprints_of
from dpsynth_platform.synth.tabular.blocks import blocks_of, marginals_of
from dpsynth_platform.synth.tabular.coding import coding_of
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.domain import Codes, Domain
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.noise import Counts
from dpsynth_platform.synth.tabular.sql_counting import SqlCounter

_Found = TypeVar("_Found")

LONGEST_VALUE = 200
"""Bytes of the longest text that may be a category; longer ones count as missing."""


@dataclass(frozen=True)
class Records:
    """The counts of the bounded table.

    Attributes:
        bounded: a Delta table, or one in memory.
        weighting: `rows`, or `owners`: each row weighs `units.row_weight` of its owner's rows in this table, so that an
            owner weighs at most one record.
        engine: an engine to count with, open during the counting; None: this process counts.
    """

    bounded: Path | pa.Table
    domain: Domain
    weighting: str = "rows"
    engine: Engine | None = None

    @property
    def parts(self) -> int:
        """Counts are in units of 1/`parts` record."""
        return RECORD_PARTS if self.weighting == "owners" else 1

    def values(self) -> dict[int, Counter[str]]:
        """Records with every value that occurs in the columns with unknown values, in `parts`, by column index.

        Values are texts, without null, texts of more than `LONGEST_VALUE` bytes and invalid UTF-8. Whether a record's
        value is valid depends on that record alone.
        """
        unknown = {index: self.domain.columns[index] for index in self.domain.unknown}
        counts: dict[int, Counter[str]] = {index: Counter() for index in unknown}
        for batch, weights in self.rows([column.name for column in unknown.values()]):
            for index, column in unknown.items():
                texts = column.texts(batch.column(column.name)).cast(pa.binary())
                short = pc.fill_null(pc.less_equal(pc.binary_length(texts), LONGEST_VALUE), False)
                found = texts.filter(short).dictionary_encode()
                mine = None if weights is None else weights[short.to_numpy(zero_copy_only=False)]
                sums = _sums(found.indices.to_numpy(), mine, len(found.dictionary))
                for value, amount in zip(found.dictionary.to_pylist(), sums.tolist(), strict=True):
                    if (text := _decoded(value)) is not None:
                        counts[index][text] += amount
        return counts

    def one_way(self) -> list[Counts]:
        found = self._by_engine(lambda sql: sql.one_way())
        if found is not None:
            return found
        counts = [np.zeros(size, dtype=np.int64) for size in self.domain.sizes]
        for codes, weights in self.batches():
            for index, size in enumerate(self.domain.sizes):
                counts[index] += _sums(codes[:, index], weights, size)
        return counts

    def cliques(
        self,
        states: Sequence[ColumnStates],
        cliques: Iterable[Clique],
        progress: Progress = silent,
        stage: str = "counting combinations",
    ) -> dict[Clique, Counts]:
        """Records in every cell of every clique, over states, in `parts`; each of the shape of its columns' states.

        `progress` reports only the stage's beginning and end: anything between would depend on the number of records.
        """
        progress(stage, 0, 1)
        sizes = [column.size for column in states]
        blocks = blocks_of(sizes, list(dict.fromkeys(cliques)))
        found = self._by_engine(lambda sql: sql.cliques(states, list(blocks)))
        counts = marginals_of(blocks, self._blocks(states, list(blocks)) if found is None else found)
        progress(stage, 1, 1)
        return counts

    def _blocks(self, states: Sequence[ColumnStates], blocks: Sequence[Clique]) -> dict[Clique, Counts]:
        sizes = [column.size for column in states]
        shapes = {block: tuple(sizes[index] for index in block) for block in blocks}
        counts = {block: np.zeros(math.prod(shape), dtype=np.int64) for block, shape in shapes.items()}
        for codes, weights in self.batches():
            merged = [column.state_of[codes[:, index]].astype(np.int64) for index, column in enumerate(states)]
            for block, total in counts.items():
                cells = merged[block[0]]
                for index in block[1:]:
                    cells = cells * sizes[index] + merged[index]
                total += _sums(cells, weights, total.size)
        return {block: total.reshape(shapes[block]) for block, total in counts.items()}

    def _by_engine(self, count: Callable[[SqlCounter], _Found]) -> _Found | None:
        """The engine's counts; None if this process must count.

        The mechanism's cost is spent by now, so an engine that stops must not stop the mechanism.
        """
        if self.engine is None or self._failed:
            return None
        try:
            return None if self._sql is None else count(self._sql)
        except EngineError:
            self._failed.append(True)
            return None

    @cached_property
    def _failed(self) -> list[bool]:
        """Not empty once the engine has stopped."""
        return []

    @cached_property
    def _sql(self) -> SqlCounter | None:
        """The engine's counter, None if SQL cannot express all cells exactly. Raises `EngineError`."""
        if self.engine is None or isinstance(self.bounded, pa.Table):
            return None
        owners = self.weighting == "owners"
        coding = coding_of(self.domain, table_schema(self.bounded), [OWNER_COLUMN] if owners else [])
        if coding is None:
            return None
        return SqlCounter(self.engine, self.bounded, self.domain, coding, owners=owners)

    def batches(self) -> Iterator[tuple[Codes, Counts | None]]:
        """Cell codes, and each row's weight; None for equal weights."""
        for batch, weights in self.rows(self.domain.reads):
            yield self.domain.encode(batch), weights

    def rows(self, names: Sequence[str]) -> Iterator[tuple[pa.RecordBatch, Counts | None]]:
        """Rows of some columns, and each row's weight in `parts`; None for equal weights."""
        if self.weighting == "rows":
            for batch in self._batches_of(list(names)):
                yield batch, None
            return
        owners, weights = self._owners
        for batch in self._batches_of([*names, OWNER_COLUMN]):
            yield batch, weights[_places(batch, owners)]

    def _batches_of(self, names: list[str]) -> Iterator[pa.RecordBatch]:
        if isinstance(self.bounded, pa.Table):
            yield from self.bounded.select(names).to_batches()
        else:
            yield from read_table(self.bounded, columns=names)

    @cached_property
    def _owners(self) -> tuple[Fingerprints, Counts]:
        """The owners, sorted, and the weight of each of their rows."""
        owners = distinct_owners(self._batches_of([OWNER_COLUMN]))
        rows = np.zeros(owners.size, dtype=np.int64)
        for batch in self._batches_of([OWNER_COLUMN]):
            rows += np.bincount(_places(batch, owners), minlength=owners.size)
        return owners, row_weight(rows)


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _sums(cells: Codes | Counts, weights: Counts | None, size: int) -> Counts:
    """Sums of weights by cell, exact for whole numbers below 2^53."""
    sums = np.bincount(cells, weights=weights, minlength=size)
    return sums.astype(np.int64)


def _places(batch: pa.RecordBatch, owners: Fingerprints) -> Counts:
    """The index of each row's owner. Raises `BoundingError` for an unknown owner: the table has changed."""
    mine = fingerprints_of(batch.column(OWNER_COLUMN))
    places = np.searchsorted(owners, mine)
    if places.size and (places.max() >= owners.size or np.any(owners[places] != mine)):
        raise BoundingError("the bounded data changed while it was counted; nothing may use it")
    return places
