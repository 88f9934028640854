"""The rows of one of several linked tables, as scrubbing reads them.

What belongs here: a table's modelled columns and keys, and that they join at all. What does not: text, which is not
read, and choosing rows (`bounding.linked`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.bounding.linked import LinkedReport
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.foundation.errors import BoundingError
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.scrub.fingerprints import canonical_texts
from dpsynth_platform.scrub.scrub import checked_batches
from dpsynth_platform.sources.declared_rows import kept_rows, readable_schema, scrubbed_contract
from dpsynth_platform.sources.table_files import Source


def read_rows(
    contract: DataContract,
    source: Source,
    target: Path,
    ids: Callable[[str, pa.Array], pa.Array] = lambda _column, texts: texts,
) -> Path:
    """A table's modelled columns and keys as a Delta table, keys as texts.

    Args:
        contract: of the table (`views.table_contracts`).
        ids: what is kept in place of a column of keys, by its name and texts.

    Raises:
        SourceError: it cannot be read as declared, or a column looks like personal data.
    """
    plain = scrubbed_contract(contract)
    schema = pa.schema([item for item in readable_schema(contract, source) if item.name in plain.columns])
    keys, stored = _keys(plain), stored_schema(contract, source)

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in checked_batches(kept_rows(source, contract, schema), plain, schema):
            columns = [
                ids(item.name, pa.array(canonical_texts(column), pa.string())) if item.name in keys else column
                for item, column in zip(schema, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=stored)

    write_table(target, stored, rows())
    return target


def stored_schema(contract: DataContract, source: Source) -> pa.Schema:
    """The columns that `read_rows` writes."""
    plain = scrubbed_contract(contract)
    keys = _keys(plain)
    found = (item for item in readable_schema(contract, source) if item.name in plain.columns)
    return pa.schema([pa.field(item.name, pa.string()) if item.name in keys else item for item in found])


def _keys(plain: DataContract) -> set[str]:
    return {column for column, declared in plain.columns.items() if declared.type == "identifier"}


def check_joined(tables: LinkedTables, report: LinkedReport, planted: Mapping[str, int] | None = None) -> None:
    """Refuses tables none of whose rows has a row of the parent: nearly always, keys are written in two ways.

    Args:
        planted: rows of canaries, by table, which join always.

    Raises:
        BoundingError: such as for the key 7 in one table and "7.0" in the other.
    """
    for name in tables.private:
        found, parent = report.tables[name], tables.tables[name].parent
        rows = found.read - (planted or {}).get(name, 0)
        if parent is not None and rows and found.orphans == rows:
            raise BoundingError(
                f"tables.{name}: no row has one of {parent.table} by {', '.join(parent.columns)}; accepted: keys that "
                "are written alike in both tables (as texts: 7 and 7.0 differ), or leave the table out"
            )
