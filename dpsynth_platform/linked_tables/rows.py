"""The views that a mechanism may read: at most the bounds' rows of each owner.

What belongs here: reading the tables, the owners' fingerprints, and bounding them. What does not: how rows are chosen
(`bounding.linked`). Text is not read; keys are read as texts, and stay in the work directory.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.bounding.linked import ID_COLUMN, root_ids, write_linked
from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.linked_rows.rows import check_joined, read_rows
from dpsynth_platform.linked_rows.views import in_table
from dpsynth_platform.linked_tables.task import LinkedTask
from dpsynth_platform.one_table.place import BOUNDED
from dpsynth_platform.one_table.rows import READING
from dpsynth_platform.scrub.fingerprints import (
    OWNER_COLUMN,
    FingerprintKeys,
    Fingerprints,
    distinct_owners,
    owner_fingerprints,
)
from dpsynth_platform.secrets.vault import Vault


def bounded_views(task: LinkedTask, vault: Vault, work: Path, progress: Progress) -> tuple[Path, Fingerprints]:
    """The view of each private table as a Delta table below one directory in `work`, and the owners.

    Raises:
        SourceError: a table cannot be read as declared, no row of the root has an owner, a column looks like personal
            data, or a table was changed meanwhile.
        BoundingError, EngineError: bounding failed; such as for a key that stands in several rows, or a table none of
            whose rows joins.
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
        report = write_linked(
            task.tables, read, work / BOUNDED, engine=engine, owners=owners, key=vault.create("order")
        )
    check_joined(task.tables, report)
    shutil.rmtree(work / "read")
    progress("bounding", 1, 1)
    return work / BOUNDED, distinct_owners(owners.select([OWNER_COLUMN]).to_batches())


def _owners(task: LinkedTask, root: Path, keys: FingerprintKeys) -> pa.Table:
    """The owners' ids and fingerprints. Raises `SourceError` if no row has an owner."""
    found = [pc.drop_null(each).unique() for each in root_ids(task.tables, root)]
    ids = pa.chunked_array(found, pa.string()).unique()
    if not len(ids):
        raise SourceError(f"tables.{task.tables.root}: no row has an owner; accepted: a table with keys")
    return pa.table({ID_COLUMN: ids, OWNER_COLUMN: owner_fingerprints(ids.to_pylist(), keys)})
