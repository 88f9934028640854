"""All rows of linked tables in memory, by the declaration's names: for comparing released tables with real ones.

What belongs here: reading whole tables. What does not: what a mechanism may read (`rows`), and measuring (`quality`).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.linked_source import in_table, source_of
from dpsynth_platform.sources.table_places import tables_at


def whole_tables(tables: LinkedTables, data: Path, dialect: Dialect) -> dict[str, pa.Table]:
    """Every declared table, with the columns and types that are declared.

    Raises:
        SourceError: a table is missing, or cannot be read as declared.
    """
    places, found = tables_at(data), {}
    for name in tables.tables:
        source = source_of(tables, name, places, dialect)
        with in_table(name):
            given = {plain: shown for shown, plain in source.names.items()}
            rows = pa.Table.from_batches(source.batches(), source.plain_schema)
        found[name] = rows.rename_columns([given[column] for column in rows.column_names])
    return found
