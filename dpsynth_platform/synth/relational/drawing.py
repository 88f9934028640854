"""Rows of all linked tables, drawn from the models of their views: post-processing.

What belongs here: the order of drawing, from the root down and from each parent's first child to its last, and keys
that join. What does not: a row's values given its evidence (`views`).

Roots are drawn in batches, and all that belongs to a batch with it, so that memory does not depend on their number. Of
all parents together, the first children are drawn, then the second ones given these, and so on. Keys are made anew:
numbers that continue from batch to batch; a part of a key that refers to the parent has the parent's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dpsynth_platform.compute.plain_types import laid_out
from dpsynth_platform.contracts.constraints import Constraint, Values
from dpsynth_platform.contracts.tables import (
    POSITION,
    LinkedTables,
    children_name,
    context_name,
    previous_name,
)
from dpsynth_platform.foundation.errors import ContractError
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.synth.interface import SealedPlan
from dpsynth_platform.synth.relational.parent_types import TYPE, of_parent, typed
from dpsynth_platform.synth.relational.sealing import SealedTables
from dpsynth_platform.synth.relational.views import ViewSampler
from dpsynth_platform.synth.tabular.marginals import model_under
from dpsynth_platform.synth.tabular.restore import ReleaseSchema, completed, surrogates
from dpsynth_platform.synth.tabular.sampling import Sampler

BATCH_ROWS, BATCH_ROOTS = 2**20, 2**16
"""The most rows of all tables that are in memory at once, by their bounds, and the most roots."""
LEAST_KEPT = 0.5
"""Drawing stops if fewer of a table's rows can keep its constraints."""


@dataclass(frozen=True)
class _Rows:
    """Rows of one table in a batch, with what their children need.

    Attributes:
        values: the modelled columns, numbers of children, and context columns of all ancestors.
        keys: the key's columns.
    """

    values: pa.Table
    keys: dict[str, pa.Array]

    def take(self, index: npt.NDArray[np.int64]) -> _Rows:
        at = pa.array(index)
        return _Rows(self.values.take(at), {name: column.take(at) for name, column in self.keys.items()})


@dataclass(frozen=True)
class LinkedDrawing:
    """The models of all views.

    Attributes:
        roots: how many the noisy counts show.
        released: the schema of each table's released rows.
        types: of tables whose rows have hidden types, that of each parent.
        left_out: of each table, drawn rows that could not keep its constraints, so far.
    """

    tables: LinkedTables
    directory: Path
    roots: int
    released: Mapping[str, ReleaseSchema]
    children: Mapping[str, ViewSampler]
    types: Mapping[str, ViewSampler] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, plan: SealedPlan, directory: Path) -> LinkedDrawing:
        """Reads the complete models; raises as `Generator.draw`."""
        sealed = SealedTables.of(plan)
        tables = sealed.tables
        root = model_under(directory / tables.root)
        children: dict[str, ViewSampler] = {}
        types: dict[str, ViewSampler] = {}
        for name in tables.private[1:]:
            evidence, constraints = tables.evidence(name), _constraints(tables, name)
            model = model_under(directory / name, constraints)
            other = typed(model, tables, name, constraints)
            if other is not None:
                model, evidence = other, [*evidence, TYPE]
                types[name] = ViewSampler.of(model, of_parent(tables, name))
            children[name] = ViewSampler.of(model, evidence, tables.gap(name))
        return cls(
            tables=tables,
            directory=directory,
            roots=max(1, round(root.total)),
            released={name: ReleaseSchema.from_json(sealed.released[name]) for name in tables.private},
            children=children,
            types=types,
        )

    @property
    def types_in_words(self) -> dict[str, str]:
        """Of each table with declared hidden types: whether rows are drawn by them, which noisy counts decide."""
        declared = {name: table.types for name, table in self.tables.tables.items() if table.types is not None}
        without = "drawn without hidden types, which the noisy counts do not show"
        return {
            name: f"drawn by {number} hidden types of a row's parent" if name in self.types else without
            for name, number in declared.items()
        }

    def batches(
        self, roots: int, given: Mapping[str, Values] | None = None, progress: Progress = silent
    ) -> Iterator[dict[str, pa.RecordBatch]]:
        """The released rows of all tables for so many roots, in batches of whole families.

        Args:
            given: values that all roots have, by column.

        Raises:
            ContractError: no root can have the given values, or too few rows keep the constraints.
        """
        root = model_under(self.directory / self.tables.root, _constraints(self.tables, self.tables.root))
        sampler, rng = Sampler.of(root, given), np.random.default_rng()
        made = dict.fromkeys(self.tables.private, 0)
        size = max(1, min(BATCH_ROOTS, BATCH_ROWS // self.tables.rows_of_owner))
        for first in range(0, roots, size):
            progress("drawing rows", first, roots)
            values = pa.Table.from_batches([sampler.values(min(size, roots - first), rng)])
            found: dict[str, pa.RecordBatch] = {}
            self._release(self.tables.root, _Rows(values, {}), None, found, made, rng)
            yield found
        progress("drawing rows", roots, roots)

    def _release(
        self,
        name: str,
        rows: _Rows,
        parents: tuple[_Rows, npt.NDArray[np.int64], npt.NDArray[np.int64]] | None,
        found: dict[str, pa.RecordBatch],
        made: dict[str, int],
        rng: np.random.Generator,
    ) -> None:
        """Adds a table's released rows to `found`, and all rows below them.

        Args:
            parents: of each row, those of the table above, the place of its parent there, and its number under it.
        """
        number, release = rows.values.num_rows, self.released[name]
        values = {
            column: laid_out(rows.values.column(column).combine_chunks(), release.schema.field(column).type)
            for column in self.tables.own_columns(name)
            if column in release.schema.names
        }
        keys = self._keys(name, number, made[name] + 1, parents)
        whole = completed(values | _shown(keys, release.schema), number, release, made[name] + 1)
        found[name] = whole
        made[name] += number
        kept = _Rows(rows.values, {column: keys[column] for column in self.tables.tables[name].key})
        for child in self.tables.children(name):
            drawn, parent, place = self._below(child, kept, rng)
            self._release(child, drawn, (kept, parent, place), found, made, rng)

    def _keys(
        self,
        name: str,
        rows: int,
        first: int,
        parents: tuple[_Rows, npt.NDArray[np.int64], npt.NDArray[np.int64]] | None,
    ) -> dict[str, pa.Array]:
        """The columns of keys: the parent's, and new ones."""
        table, schema, found = self.tables.tables[name], self.released[name].schema, dict[str, pa.Array]()
        if table.parent is not None and parents is not None:
            above, parent, _ = parents
            own_key = self.tables.tables[table.parent.table].key
            for column, other in zip(table.parent.columns, own_key, strict=True):
                found[column] = above.keys[other].take(pa.array(parent)).cast(schema.field(column).type)
        new = [column for column in table.key if column not in found]
        for column in new:
            item = schema.field(column)
            within = parents is not None and len(new) < len(table.key)
            if within and pa.types.is_integer(item.type):
                assert parents is not None  # noqa: S101  (`within` asks)
                found[column] = pa.array(parents[2]).cast(item.type)
            else:
                found[column] = surrogates(rows, item, first)
        return found

    def _below(
        self, name: str, above: _Rows, rng: np.random.Generator
    ) -> tuple[_Rows, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """All children in a table of some rows: with the place of each one's parent, and its number under it."""
        tables, sampler = self.tables, self.children[name]
        numbers = above.values.column(children_name(name)).to_numpy().astype(np.int64)
        own, evidence = tables.passed_on(name), [*tables.evidence(name), TYPE]
        parent_table = tables.ancestors(name)[0]
        context = self._context(above.values, parent_table)
        shared = self._with_types(name, context, numbers, rng)
        lags = tables.lags(name)
        history: list[pa.Table | None] = [None] * lags
        parts: list[pa.Table] = []
        parents: list[npt.NDArray[np.int64]] = []
        lost = asked = 0
        alive = np.arange(len(numbers))
        for turn in range(1, int(numbers.max(initial=0)) + 1):
            alive = alive[numbers[alive] >= turn]
            at = pa.array(alive)
            columns: dict[str, Any] = {each: shared.column(each).take(at) for each in shared.column_names}
            known = {each: columns[each] for each in evidence if each in columns}
            if POSITION in evidence:
                known[POSITION] = pa.array(np.full(alive.size, turn), pa.int32())
            if children_name(name) in evidence:
                known[children_name(name)] = pa.array(numbers[alive], pa.int32())
            for lag, past in enumerate(history, 1):
                for column in own:
                    kind = sampler.sampler.release.schema.field(previous_name(column, lag)).type
                    values = pa.nulls(alive.size, kind) if past is None else past.column(column).take(at).cast(kind)
                    known[previous_name(column, lag)] = values
            drawn, kept = sampler.draw(pa.table(known), rng)
            asked, lost = asked + alive.size, lost + int((~kept).sum())
            good = pa.array(kept)
            parts.append(drawn.filter(good).append_column("turn", pa.array(np.full(int(kept.sum()), turn))))
            parents.append(alive[kept])
            alive, drawn = alive[kept], drawn.filter(good)
            for lag in range(lags - 1, 0, -1):
                history[lag] = history[lag - 1]
            if lags:
                history[0] = _scattered(drawn.select(own), alive, len(numbers), history[0])
        self.left_out[name] = self.left_out.get(name, 0) + lost
        if lost > (1 - LEAST_KEPT) * asked:
            raise ContractError(
                f"tables.{name}.constraints: of {asked} rows, {lost} can keep them not even after many draws; "
                "accepted: constraints that more of the model's rows keep"
            )
        if not parts:
            empty = sampler.sampler.release.schema.empty_table().select(list(sampler.own))
            parts, parents = [empty.append_column("turn", pa.array([], pa.int64()))], [np.zeros(0, dtype=np.int64)]
        whole, parent = pa.concat_tables(parts), np.concatenate(parents)
        order = np.argsort(parent, kind="stable")
        whole, parent = whole.take(pa.array(order)), parent[order]
        starts = np.flatnonzero(np.append(True, parent[1:] != parent[:-1])) if parent.size else parent
        place = np.arange(parent.size) - np.repeat(starts, np.diff(np.append(starts, parent.size))) + 1
        joined = whole.drop(["turn"]).append_column(children_name(name), pa.array(numbers[parent], pa.int32()))
        for column in context.column_names:
            joined = joined.append_column(column, context.column(column).take(pa.array(parent)))
        return _Rows(joined, {}), parent, place

    def _with_types(
        self, name: str, parents: pa.Table, numbers: npt.NDArray[np.int64], rng: np.random.Generator
    ) -> pa.Table:
        """The parents with their types in a table, if it has any.

        What rows know of those before them is left open, so that types are those of all rows, not of the first.
        """
        if name not in self.types:
            return parents
        known = parents.append_column(children_name(name), pa.array(numbers, pa.int32()))
        drawn, _ = self.types[name].draw(known, rng)
        return parents.append_column(TYPE, drawn.column(TYPE))

    def _context(self, values: pa.Table, name: str) -> pa.Table:
        """The columns of a table and its ancestors, by their names in the views below."""
        names = {each: context_name(name, each) for each in self.tables.passed_on(name)}
        for other in self.tables.ancestors(name):
            names |= {shown: shown for each in self.tables.passed_on(other) if (shown := context_name(other, each))}
        names |= {number: number for each in self.tables.siblings(name) if (number := children_name(each))}
        kept = {each: shown for each, shown in names.items() if each in values.column_names}
        return values.select(list(kept)).rename_columns(list(kept.values()))


def _constraints(tables: LinkedTables, name: str) -> list[Constraint]:
    return [Constraint(**each) for each in tables.constraints(name)]


def _shown(keys: Mapping[str, pa.Array], schema: pa.Schema) -> dict[str, pa.Array]:
    return {name: column for name, column in keys.items() if name in schema.names}


def _scattered(drawn: pa.Table, places: npt.NDArray[np.int64], size: int, before: pa.Table | None) -> pa.Table:
    """The drawn rows at their parents' places, and what was there before at the others."""
    index = np.full(size, -1, dtype=np.int64)
    index[places] = np.arange(places.size)
    if before is None:
        return drawn.take(pa.array(index, mask=index < 0))
    index = np.where(index < 0, drawn.num_rows + np.arange(size), index)
    return pa.concat_tables([drawn, before]).take(pa.array(index))
