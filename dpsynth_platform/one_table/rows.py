"""The rows that a mechanism may read: at most b of each owner.

What belongs here: preparing a table's rows and bounding them. What does not: how (`scrub`, `bounding`). Ids become
keyed fingerprints, and stay in the work directory. Text is read only where a language model writes a column of it, and
scrubbed by the line's own rules.

Where each row is its own unit, bounding is the identity. Without a text or pictures, rows get no ids and are written
once, for the mechanism. With them, each row gets a random id as its owner's: methods for texts sort records by owners,
and federated ones for pictures add up each owner's.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.foundation.errors import SourceError
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.storage import read_table, write_table
from dpsynth_platform.one_table.declaration import in_options
from dpsynth_platform.one_table.place import BOUNDED
from dpsynth_platform.one_table.task import Reading
from dpsynth_platform.scrub.fingerprints import (
    FINGERPRINT_DTYPE,
    OWNER_COLUMN,
    FingerprintKeys,
    Fingerprints,
    distinct_owners,
)
from dpsynth_platform.scrub.scrub import ScrubKeys, checked_batches, scrub_batches
from dpsynth_platform.secrets.vault import Vault
from dpsynth_platform.sources.declared_rows import kept_rows, scrubbed_contract, with_row

READING = "reading rows"
_VISIBLE = r"[^\p{C}\p{Z}]"
"""Neither a blank nor a control character, such as NUL or a space without width."""


def bounded_rows(task: Reading, vault: Vault, work: Path, progress: Progress) -> tuple[Path, Fingerprints]:
    """A Delta table below `work` with at most b rows of each owner, and the owners; all rows and no owner without ids.

    Raises:
        SourceError: the rows cannot be read as declared, no row has an owner, or a text where texts are written, a
            column looks like personal data, or the table was changed meanwhile.
        BoundingError, EngineError: bounding failed.
    """
    version = task.source.version

    def check_unchanged() -> None:
        if replace(task.source).version != version:
            raise SourceError(f"{task.source.path}: the table was changed while it was read; run again")

    with in_options(task.given):
        contract = task.contract
        if task.row is not None and contract.text_column is None and contract.image_column is None:
            participants = _all_rows(task, work, progress, check_unchanged)
        else:
            participants = _owned_rows(task, vault, work, progress, check_unchanged)
    return work / BOUNDED, participants


def _all_rows(task: Reading, work: Path, progress: Progress, check: Callable[[], None]) -> Fingerprints:
    """Writes the modelled columns of all rows, each its own unit; returns no owners."""
    contract = scrubbed_contract(task.contract)
    schema = pa.schema([item for item in task.readable if item.name in contract.modelled])
    progress(READING, 0, 1)  # steps between would disclose the number of rows
    write_table(
        work / BOUNDED, schema, checked_batches(kept_rows(task.source, task.contract, schema), contract, schema)
    )
    check()
    progress(READING, 1, 1)
    return np.empty(0, FINGERPRINT_DTYPE)


def _owned_rows(task: Reading, vault: Vault, work: Path, progress: Progress, check: Callable[[], None]) -> Fingerprints:
    """Writes at most b rows of each owner; returns the owners' fingerprints."""
    from dpsynth_platform.bounding.single_owner import write_bounded

    contract, schema = scrubbed_contract(task.contract), with_row(task.readable, task.row)
    rows = kept_rows(task.source, task.contract, task.readable)
    keys = ScrubKeys(
        owner=FingerprintKeys(vault.create("owner-inner"), (vault.create("owner-outer"),)),
        record=vault.create("record"),
        column=vault.create("column"),
    )
    progress(READING, 0, 1)  # steps between would disclose the number of rows
    prepared, batches, _ = scrub_batches(
        rows if task.row is None else _with_ids(rows, schema),
        contract,
        schema,
        keys,
        processes=task.options.processes,
    )
    write_table(work / "prepared", prepared, _with_some_text(task, batches))
    check()
    participants = distinct_owners(read_table(work / "prepared", columns=[OWNER_COLUMN]))
    progress(READING, 1, 1)
    progress("bounding", 0, 1)
    with DuckDBChoice().open(work) as engine:
        write_bounded(
            work / "prepared",
            work / BOUNDED,
            engine=engine,
            columns=contract.read_by_mechanism,
            participants=participants,
            max_contributions=contract.privacy.max_contributions,
            key=vault.create("order"),
        )
    shutil.rmtree(work / "prepared")
    progress("bounding", 1, 1)
    return participants


def _with_ids(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows with a last column of random ids: a position would depend on other rows."""
    for batch in batches:
        ids = pa.array([secrets.token_hex(16) for _ in range(batch.num_rows)], pa.string())
        yield pa.RecordBatch.from_arrays([*batch.columns, ids], schema=schema)


def _with_some_text(task: Reading, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same batches. Raises `SourceError` after the last one if a text is to be written, and no row has one."""
    column = task.contract.text_column
    found = column is None
    for batch in batches:
        found = found or bool(pc.any(pc.match_substring_regex(batch.column(column), _VISIBLE)).as_py())
        yield batch
    if not found:
        raise SourceError(
            f"{task.source.path}: no row has a text in column {task.options.text!r}; accepted: texts that are not blank"
        )
