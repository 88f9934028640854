"""The rows of linked tables that a quality report compares: of owners who took part, of held-out ones, synthetic ones.

What belongs here: reading the outputs of `scrubbed` and `synthetic`, and an owner's rows by joining down from the root.
What does not: who took part and who is held out (`assets.quality`), bounding, and measuring (`quality.linked_report`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.bounding.linked import ID_COLUMN, key_texts, root_ids
from dpsynth_platform.contracts.tables import LinkedTables
from dpsynth_platform.foundation.storage import read_table, table_schema
from dpsynth_platform.linked_rows.line import OWNERS, TABLE
from dpsynth_platform.scrub.fingerprints import OWNER_COLUMN, Fingerprints, hex_column

Names = Mapping[str, Mapping[str, str]]
"""The source's names of columns, by table and plain name."""


def scrubbed_tables(tables: LinkedTables, names: Names, scrubbed: Path) -> dict[str, pa.Table]:
    """All rows of the private tables, by the source's names of columns.

    Args:
        tables: by the source's names.
    """
    found = {}
    for name in tables.private:
        table, given = _whole(scrubbed / TABLE / name), names.get(name, {})
        found[name] = table.rename_columns([given.get(column, column) for column in table.column_names])
    return found


def synthetic_tables(tables: LinkedTables, synthetic: Path) -> dict[str, pa.Table]:
    """All tables as they are released, public ones included."""
    return {name: _whole(synthetic / TABLE / name) for name in tables.tables}


def rows_of(
    tables: LinkedTables, rows: Mapping[str, pa.Table], scrubbed: Path, owners: Fingerprints
) -> dict[str, pa.Table]:
    """The owners' rows in all private tables: of the root by `owners` beside the rows, of others by their parent's."""
    known = _whole(scrubbed / OWNERS)
    chosen = known.column(ID_COLUMN).filter(pc.is_in(known.column(OWNER_COLUMN), hex_column(owners)))
    of_rows = pa.chunked_array(root_ids(tables, rows[tables.root]), pa.string())
    found = {tables.root: rows[tables.root].filter(_among(of_rows, chosen))}
    for name in tables.private[1:]:
        parent = tables.tables[name].parent
        assert parent is not None  # noqa: S101  (all but the root have one)
        above = _keys(found[parent.table], tables.tables[parent.table].key)
        found[name] = rows[name].filter(_among(_keys(rows[name], parent.columns), above))
    return found


def _keys(table: pa.Table, columns: list[str]) -> pa.Array:
    return key_texts([table.column(column).combine_chunks() for column in columns])


def _among(keys: pa.Array | pa.ChunkedArray, chosen: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Whether each key is a chosen one; null is none."""
    values = chosen.combine_chunks() if isinstance(chosen, pa.ChunkedArray) else chosen
    return pc.is_in(keys, value_set=values, skip_nulls=True)


def _whole(table: Path) -> pa.Table:
    return pa.Table.from_batches(read_table(table), table_schema(table))
