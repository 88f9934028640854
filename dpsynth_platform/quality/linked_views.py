"""The views of linked tables as quality measures read them: bounded rows with all ancestors and the row before.

What belongs here: bounding real and synthetic rows alike by `bounding.linked`, and features of an owner's rows. What
does not: measuring (`linked`).

Views differ from the mechanism's in two ways: their context is every column of every ancestor, and they have the row
before wherever rows have an order. The order of rows without `order_by` is by a fixed key, so that reviewers can repeat
it; it protects nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.bounding.linked import ID_COLUMN, root_ids, write_linked
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.foundation.digests import canonical_digest
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.foundation.storage import read_table, table_schema
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, canonical_texts
from dpsynth_platform.synth.tabular.domain import Domain, declared_domain

Codes = npt.NDArray[Any]
_KEY = bytes(32)


@dataclass(frozen=True)
class Feature:
    """A number or category of each row of the root.

    Attributes:
        values: of shape (rows,); categories as codes.
        size: number of categories, of which the last is for owners without one; None: numbers, with NaN.
    """

    values: Codes
    size: int | None


@dataclass(frozen=True)
class LinkedViews:
    """The views of one side's private tables.

    Attributes:
        tables: with the views' context and lags.
        keys: of each public table.
        rows: by table: the columns of `LinkedTables.view`, and `_owner`.
    """

    tables: LinkedTables
    keys: Mapping[str, Sequence[str]]
    rows: Mapping[str, pa.Table]

    @classmethod
    def of(
        cls, tables: LinkedTables, given: Mapping[str, pa.Table], public: Mapping[str, pa.Table], work: Path
    ) -> LinkedViews:
        """Bounds the rows. `public` has the public tables. Errors are those of `write_linked`."""
        shown = _shown(tables)
        keys = {}
        for name in tables.lookups:
            found = canonical_texts(public[name].column(tables.tables[name].key[0]).combine_chunks())
            keys[name] = sorted(each for each in set(found) if each is not None)
        read = {name: _read(tables, name, given) for name in tables.private}
        ids = sorted({text for part in root_ids(tables, read[tables.root]) for text in part.to_pylist()} - {None})
        owners = pa.table(
            {
                ID_COLUMN: pa.array(ids, pa.string()),
                OWNER_COLUMN: pa.array([canonical_digest(each)[:32] for each in ids], pa.string()),
            }
        )
        with tempfile.TemporaryDirectory(dir=work) as place:
            target = Path(place) / "views"
            with DuckDBChoice(threads=1).open(Path(place) / "spill") as engine:
                write_linked(shown, read, target, engine=engine, owners=owners, key=_KEY)
            rows = {
                name: pa.Table.from_batches(read_table(target / name), table_schema(target / name))
                for name in tables.private
            }
        return cls(shown, keys, rows)

    def domain(self, name: str) -> Domain:
        """The cells of a view's columns: as declared, or few equal ones."""
        columns = self.tables.view(name, self.keys)
        return declared_domain(columns, list(columns))

    def resampled(self, roots: int) -> LinkedViews:
        """Owners with all their rows, drawn with replacement: so many that about `roots` rows of the root are expected.

        By a fixed seed, so that reviewers can repeat it; it protects nothing.
        """
        root = self.rows[self.tables.root]
        if not root.num_rows:
            return self
        owners = pc.unique(root.column(OWNER_COLUMN))
        number = max(1, round(len(owners) * roots / root.num_rows))
        times = np.bincount(np.random.default_rng(0).integers(len(owners), size=number), minlength=len(owners))
        rows = {}
        for name, table in self.rows.items():
            of = pc.index_in(table.column(OWNER_COLUMN), value_set=owners).to_numpy()
            rows[name] = table.take(pa.array(np.repeat(np.arange(table.num_rows), times[of])))
        return replace(self, rows=rows)

    def features(self, name: str) -> dict[str, Feature]:
        """Of each row of the root: its owner's number of rows in a table, their means, and most frequent values."""
        root, rows = self.rows[self.tables.root], self.rows[name]
        owners = pa.chunked_array([*root.column(OWNER_COLUMN).chunks, *rows.column(OWNER_COLUMN).chunks])
        codes = owners.combine_chunks().dictionary_encode().indices.to_numpy()
        of_root, of_rows = codes[: root.num_rows], codes[root.num_rows :]
        number = int(codes.max(initial=-1)) + 1
        found = {"rows": Feature(np.bincount(of_rows, minlength=number).astype(np.float64)[of_root], None)}
        own = self.tables.own_columns(name)
        for column in self.domain(name):
            if column.name not in own:
                continue
            if column.ordered:
                values = column.numbers(rows.column(column.name))
                known = ~np.isnan(values)
                total = np.bincount(of_rows[known], weights=values[known], minlength=number)
                count = np.bincount(of_rows[known], minlength=number)
                mean = np.full(number, np.nan)
                np.divide(total, count, out=mean, where=count > 0)
                found[column.name] = Feature(mean[of_root], None)
            else:
                most = _most_frequent(of_rows, column.encode(rows.column(column.name)), number, column.size)
                found[column.name] = Feature(most[of_root], column.size + 1)
        return found


def key_rows(table: pa.Table, columns: Sequence[str]) -> list[tuple[str | None, ...]]:
    """The texts of a key's columns, row by row."""
    texts = [canonical_texts(table.column(name).combine_chunks()) for name in columns]
    return list(zip(*texts, strict=True))


def unordered(table: pa.Table, parent: Sequence[str], order: Sequence[str]) -> float | None:
    """The share of rows that come before the row above them, of the same parent, by `order`; nulls are last.

    Rows without one above do not count; None if all are.
    """
    ids = pa.array(["|".join(f"{len(each or '')}:{each}" for each in key) for key in key_rows(table, parent)])
    codes = np.asarray(ids.cast(pa.string()).dictionary_encode().indices.to_numpy(zero_copy_only=False))
    stable = np.argsort(codes, kind="stable")
    ranks = np.stack([_ranks(table.column(name)) for name in order], axis=1)[stable]
    same = codes[stable][1:] == codes[stable][:-1]
    above, below = ranks[:-1][same], ranks[1:][same]
    if not len(below):
        return None
    differs = above != below
    first = differs.argmax(axis=1)
    place = np.arange(len(first))
    return float(np.mean(differs.any(axis=1) & (below[place, first] < above[place, first])))


def _shown(tables: LinkedTables) -> LinkedTables:
    """The declaration of the measured views."""
    parts = {}
    for name, table in tables.tables.items():
        if table.public is not None or table.parent is None:
            parts[name] = table.model_copy(update={"constraints": []})
            continue
        context = [f"{other}.{column}" for other in tables.ancestors(name) for column in tables.own_columns(other)]
        lags = int(bool(table.order_by) and (table.max_children or 1) > 1)
        parts[name] = table.model_copy(update={"context": context, "lags": lags, "constraints": []})
    return tables.model_copy(update={"tables": parts})


def _read(tables: LinkedTables, name: str, given: Mapping[str, pa.Table]) -> pa.Table:
    """A table's modelled columns and keys, keys as texts."""
    owner = [tables.owner] if tables.owner is not None and name == tables.root else []
    ids = dict.fromkeys([*tables.tables[name].keys, *owner])
    lookups = tables.tables[name].lookups
    columns = [*tables.own_columns(name), *ids]
    if name not in given or (missing := [each for each in columns if each not in given[name].column_names]):
        lost = "the table" if name not in given else f"column {', '.join(missing)}"
        raise BoundingError(f"tables.{name}: {lost} is missing; accepted: all declared tables and columns")
    found = {}
    for column in columns:
        values = given[name].column(column).combine_chunks()
        as_text = column in ids or column in lookups
        found[column] = pa.array(canonical_texts(values), pa.string()) if as_text else values
    return pa.table(found)


def _ranks(column: pa.ChunkedArray) -> Codes:
    return np.asarray(pc.rank(column.combine_chunks(), tiebreaker="min"), dtype=np.int64)


def _most_frequent(owners: Codes, codes: Codes, number: int, size: int) -> Codes:
    """Each owner's most frequent code, the lowest of equally frequent ones; `size` for owners without rows."""
    pairs, counts = np.unique(owners.astype(np.int64) * size + codes, return_counts=True)
    order = np.lexsort((-pairs, counts))  # the last of an owner is assigned last
    found = np.full(number, size, dtype=np.int64)
    found[pairs[order] // size] = pairs[order] % size
    return found
