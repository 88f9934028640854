"""Fictional linked tables made from a contract and its public tables, for a rehearsal.

What belongs here: rows of private tables that join, with more children than the bounds allow. What does not: the values
of single tables (`synth.mock`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.linked_rows.drawn import public_rows
from dpsynth_platform.linked_rows.views import table_contracts
from dpsynth_platform.sources.delta_types import in_delta
from dpsynth_platform.sources.linked_source import LinkedSource, in_table, source_of_contract
from dpsynth_platform.synth.mock import mock_table

_MOST_CHILDREN = 3
"""Of one row in the mean, about; more would make deep trees large."""
_MOST_ROWS = 20_000


def write_mock_tables(contract: DataContract, rows: int, directory: Path) -> None:
    """Writes a Delta table for each table of a contract: `rows` fictional ones of the root; public ones as they are.

    Reads the source's metadata and public tables.

    Raises:
        ContractError, SourceError: as of a plan (`line.plan_of`).
    """
    found = source_of_contract(contract, rows=False)
    for name in found.declared.lookups:
        with in_table(name):
            write_table(directory / name, *in_delta(*public_rows(found.sources[name]), codes=True))
    for name, table in _private(contract, found, rows).items():
        given = found.given(name)
        shown = table.rename_columns([given[column] for column in table.column_names])
        write_table(directory / name, *in_delta(shown.schema, shown.to_batches(), codes=True))


def _private(contract: DataContract, found: LinkedSource, rows: int) -> dict[str, pa.Table]:
    """The private tables by plain names of columns."""
    contracts, tables = table_contracts(found, contract.privacy.model_dump(mode="json")), found.tables
    rng, made = np.random.default_rng(), dict[str, pa.Table]()
    for name in tables.private:
        table, number, links = tables.tables[name], rows, dict[str, pa.Array]()
        if table.parent is not None:
            above, key = made[table.parent.table], tables.tables[table.parent.table].key
            # One more than the bound, where that is small: some rows are left out.
            most = min(tables.most(name), 2 * _MOST_CHILDREN)
            parents = np.repeat(np.arange(len(above)), rng.integers(0, most + 2, size=len(above)))[:_MOST_ROWS]
            number = len(parents)
            links = {
                own: above.column(other).combine_chunks().take(pa.array(parents))
                for own, other in zip(table.parent.columns, key, strict=True)
            }
        whole = mock_table(contracts[name], number)
        for column in table.keys:
            values = links.get(column, pa.array(np.arange(1, number + 1)))
            whole = whole.set_column(whole.column_names.index(column), column, values)
        made[name] = whole
    return made
