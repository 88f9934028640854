"""A declared public table in a sealed plan: what is read from it, and its counts over a mechanism's states.

What belongs here: reading its rows, the digest that a plan seals, and exact counts of public rows, which cost nothing.
What does not: what an estimate makes of them (`public_prior`), and private rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import TypeAdapter

from dpsynth_platform.compute.plain_types import plain, whole_texts
from dpsynth_platform.contracts.columns import CategoricalColumn, Column
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.public_rows import PublicRows
from dpsynth_platform.contracts.source import Source
from dpsynth_platform.contracts.uris import local_path
from dpsynth_platform.foundation.errors import ConfigurationError, SourceError
from dpsynth_platform.foundation.figures import number_of
from dpsynth_platform.foundation.redaction import reason_of
from dpsynth_platform.scrub.fitting import TEXT, fits
from dpsynth_platform.sources.declared_types import read_as, read_type
from dpsynth_platform.sources.structs import FlatTable
from dpsynth_platform.sources.table_files import table_digest
from dpsynth_platform.synth.tabular.column_states import ColumnStates
from dpsynth_platform.synth.tabular.counting import Records
from dpsynth_platform.synth.tabular.domain import Domain
from dpsynth_platform.synth.tabular.junction import Clique
from dpsynth_platform.synth.tabular.noise import Counts

MOST_CELLS = 2**22
"""Of all public counts together; the largest marginals are left out first."""


@dataclass(frozen=True)
class SealedRows:
    """A public table as a plan holds it. All of it is public.

    Attributes:
        columns: the declarations of the columns that are read, by name.
        digest: SHA-256 of their values, columns by name and rows in the table's order.
        rows: their number.
        unlisted: of each column, the rows whose value is missing or not in its list.
    """

    uri: str
    format: Literal["delta", "parquet", "csv"]
    columns: Mapping[str, Any]
    digest: str
    rows: int
    unlisted: Mapping[str, int]

    @classmethod
    def of(cls, declared: PublicRows, contract: DataContract, domain: Domain) -> SealedRows:
        """The contract's public table. Raises `ConfigurationError` if it cannot be read, or has none of the columns."""
        columns = {name: contract.columns[name] for name in domain.reads}
        rows = read_rows(declared.source, columns)
        found = cls(
            declared.uri,
            declared.format,
            {name: columns[name].model_dump(mode="json") for name in rows.column_names},
            table_digest(rows),
            rows.num_rows,
            {},
        )
        known = found.attributes(domain)
        where = f"{contract.dataset}: generate.public.uri: {declared.uri}"
        if not rows.num_rows or len(known) < 2:
            held = f"{number_of(rows.num_rows, 'row')} and {rows.num_columns}" if rows.num_columns else "none"
            raise ConfigurationError(
                f"{where} has {held} of the modelled columns ({', '.join(rows.column_names) or 'by their names'}); "
                "accepted: at least one row, and two columns of the contract's names"
            )
        own = [column for column in domain if column.derived is None and column.most is None]
        unlisted = {
            column.name: int((column.codes(rows) == column.missing).sum())
            for column in own
            if column.name in rows.column_names
        }
        empty = [name for name, number in unlisted.items() if number == rows.num_rows]
        if rows.num_columns - len(empty) < 2:
            raise ConfigurationError(
                f"{where}: no value of {', '.join(empty)} is a listed or readable one; accepted: two columns or more "
                "with values as the private table has them, spelled alike"
            )
        return cls(**{**asdict(found), "unlisted": unlisted})

    def __str__(self) -> str:
        lost = [f"{name} {number:,}" for name, number in self.unlisted.items() if number]
        return (
            f"{number_of(self.rows, 'row')} with {', '.join(self.columns)}; missing or unlisted values: "
            f"{', '.join(lost) or 'none'}"
        )

    def to_json(self) -> dict[str, Any]:
        """What a plan says of it: rows, columns, and missing or unlisted values of each column."""
        return {"rows": self.rows, "columns": sorted(self.columns), "unlisted": self.unlisted}

    def attributes(self, domain: Domain) -> list[int]:
        """The indices of the attributes of which the table has all columns."""
        return [index for index, column in enumerate(domain) if set(column.reads) <= set(self.columns)]

    @property
    def paths(self) -> tuple[Path, ...]:
        """What a worker must see."""
        return () if "://" in self.uri.removeprefix("file://") else (local_path(self.uri),)

    def read(self) -> pa.Table:
        """The rows. Raises `ConfigurationError` if the table is not there, or has other rows than the plan's."""
        adapter: TypeAdapter[Any] = TypeAdapter(Column)
        columns = {name: adapter.validate_python(column) for name, column in self.columns.items()}
        rows = read_rows(Source(uri=self.uri, format=self.format, key=["key"]), columns)
        if set(rows.column_names) != set(columns) or table_digest(rows) != self.digest:
            raise ConfigurationError(
                f"public table {self.uri}: its rows are not those of the plan; accepted: the same rows again, or a new "
                "plan, which is a new spend: materialize raw again"
            )
        return rows

    def opened(self, domain: Domain) -> PublicCounts:
        """The rows, to be counted. Raises as `read`."""
        known = self.attributes(domain)
        return PublicCounts(known, Records(self.read(), Domain(tuple(domain.columns[index] for index in known))))


@dataclass(frozen=True)
class PublicCounts:
    """Exact counts of public rows by the `known` attributes, which cost nothing; `records` have these alone."""

    known: Sequence[int]
    records: Records

    def one_way(self) -> dict[Clique, Counts]:
        """Rows in each cell of each known attribute."""
        return {(index,): counts for index, counts in zip(self.known, self.records.one_way(), strict=True)}

    def cliques(self, states: Sequence[ColumnStates], cliques: Collection[Clique]) -> dict[Clique, Counts]:
        """Rows in each cell, over states, of the known cliques among these.

        Of more than `MOST_CELLS` cells, the largest cliques are left out.
        """
        place = {index: number for number, index in enumerate(self.known)}
        own = [states[index] for index in self.known]
        sizes = {
            clique: math.prod(states[index].size for index in clique) for clique in cliques if set(clique) <= set(place)
        }
        small = sorted(sizes, key=lambda clique: (sizes[clique], clique))
        kept = small[: int(np.searchsorted(np.cumsum([sizes[clique] for clique in small]), MOST_CELLS, side="right"))]
        renamed = {clique: tuple(place[index] for index in clique) for clique in kept}
        found = self.records.cliques(own, renamed.values())
        return {clique: found[other] for clique, other in renamed.items()}


def read_rows(source: Source, columns: Mapping[str, Any]) -> pa.Table:
    """The declared columns that the table has. Raises `ConfigurationError` if it cannot be read by the declarations."""
    from dpsynth_platform.sources.delta import open_delta
    from dpsynth_platform.sources.plain_files import open_files

    problem = ""
    try:
        opened: Any = open_delta(source.uri) if source.format == "delta" else open_files(source, columns)
        table = FlatTable(opened.table, columns)
        names = [name for name in sorted(columns) if name in table.schema.names]  # a plan's JSON keeps no order
        for name in names:
            found = table.schema.field(name).type
            good, accepted = fits(columns[name], read_type(columns[name].type, found))
            if not good and not pa.types.is_null(found):
                raise SourceError(f"column {name} has the type {found}; accepted: {accepted}")
        batches = list(table.batches(names)) if names else []
        return pa.table({name: _values(batches, name, columns[name]) for name in names})
    except SourceError as error:
        problem = way_out(str(error).removeprefix(f"{source.uri}: "), source.format)
    except (OSError, ValueError, pa.ArrowException) as error:
        problem = f"it cannot be read ({reason_of(error)})"
    raise ConfigurationError(f"public table {source.uri}: {problem}")


def way_out(problem: str, format: str) -> str:  # noqa: A002
    """A problem of a source, with what is accepted of a public table: it has no dialect of CSV."""
    fault, _, accepted = problem.partition("; accepted: ")
    if "csv" in accepted:
        return f"{fault}; accepted: CSV in UTF-8 with commas and a decimal point, or a Parquet file"
    if format == "delta":
        return f"{problem}; for files, declare generate.public.format: parquet or csv"
    return problem


def _values(batches: Sequence[pa.RecordBatch], name: str, column: Any) -> pa.ChunkedArray:
    """A column's values as a private table's are read."""
    parts = [read_as(column.type, plain(batch.column(name)), name) for batch in batches]
    if isinstance(column, CategoricalColumn) and column.whole_numbers:
        parts = [whole_texts(part) if any(check(part.type) for check in TEXT) else part for part in parts]
    return pa.chunked_array(parts) if parts else pa.chunked_array([pa.nulls(0)])
