"""The views that a mechanism may read: at most the bounds' rows of each owner.

What belongs here: reading the tables, the owners' fingerprints, and bounding them. What does not: how rows are chosen
(`bounding.linked`). Text is not read; keys are read as texts, and stay in the work directory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.bounding.linked import ID_COLUMN, root_ids, write_linked
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.contracts.contract import DataContract
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.storage import write_table
from dpsynth_platform.linked_tables.task import LinkedTask
from dpsynth_platform.linked_tables.views import in_table
from dpsynth_platform.one_table.declaration import scrubbed_contract
from dpsynth_platform.one_table.rows import BOUNDED, READING, kept_rows
from dpsynth_platform.one_table.task import readable_schema
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    FingerprintKeys,
    Fingerprints,
    canonical_texts,
    distinct_owners,
    owner_fingerprints,
)
from dpsynth_platform.scrub.scrub import checked_batches
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.sources.table_files import Source


def bounded_views(task: LinkedTask, vault: Vault, work: Path, progress: Progress) -> tuple[Path, Fingerprints]:
    """The view of each private table as a Delta table below one directory in `work`, and the owners.

    Raises:
        SourceError: a table cannot be read as declared, no row of the root has an owner, a column looks like personal
            data, or a table was changed meanwhile.
        BoundingError, EngineError: bounding failed; such as for a key that stands in several rows.
    """
    read = {}
    versions = {name: source.version for name, source in task.sources.items()}
    progress(READING, 0, 1)  # steps between would disclose the numbers of rows
    for name in task.tables.private:
        with in_table(name):
            read[name] = read_rows(task.contracts[name], task.sources[name], work / "read" / name)
    for name, source in task.sources.items():
        if replace(source).version != versions[name]:
            raise SourceError(f"{source.path}: the table was changed while it was read; run again")
    keys = FingerprintKeys(vault.create("owner-inner"), (vault.create("owner-outer"),))
    owners = _owners(task, read[task.tables.root], keys)
    progress(READING, 1, 1)
    progress("bounding", 0, 1)
    with DuckDBChoice().open(work) as engine:
        write_linked(task.tables, read, work / BOUNDED, engine=engine, owners=owners, key=vault.create("order"))
    shutil.rmtree(work / "read")
    progress("bounding", 1, 1)
    return work / BOUNDED, distinct_owners(owners.select([OWNER_COLUMN]).to_batches())


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


def _owners(task: LinkedTask, root: Path, keys: FingerprintKeys) -> pa.Table:
    """The owners' ids and fingerprints. Raises `SourceError` if no row has an owner."""
    found = [pc.drop_null(each).unique() for each in root_ids(task.tables, root)]
    ids = pa.chunked_array(found, pa.string()).unique()
    if not len(ids):
        raise SourceError(f"tables.{task.tables.root}: no row has an owner; accepted: a table with keys")
    return pa.table({ID_COLUMN: ids, OWNER_COLUMN: owner_fingerprints(ids.to_pylist(), keys)})
