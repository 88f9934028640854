"""The rows that a mechanism may read: whose they are, and at most b of each owner.

What belongs here: preparing a table's rows and bounding them, with the platform's own parts. What does not: those
parts (`scrub`, `bounding`). Text is not read at all; ids become keyed fingerprints, and stay in the work directory.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from dpsynth_platform.compute.choice import DuckDBChoice
from dpsynth_platform.errors import SourceError
from dpsynth_platform.scrub.fingerprints import (
    FINGERPRINT_BYTES,
    FINGERPRINT_DTYPE,
    OWNER_COLUMN,
    FingerprintKeys,
    Fingerprints,
    distinct_owners,
    fingerprint_hex,
)
from dpsynth_platform.scrub.scrub import ScrubKeys, scrub_batches
from dpsynth_platform.storage import read_table, write_table
from dpsynth_platform.synth.interface import Progress
from dpsynth_platform.synthesis.declaration import scrubbed_contract
from dpsynth_platform.synthesis.delta_types import kept
from dpsynth_platform.synthesis.task import Task, readable_schema
from dpsynth_platform.vault import Vault

READING = "reading rows"


def bounded_rows(task: Task, vault: Vault, work: Path, progress: Progress) -> tuple[Path, Fingerprints]:
    """A Delta table below `work` with at most b rows of each owner, and the owners who took part.

    Raises:
        SourceError: the rows cannot be read as declared, nobody owns one, a column looks like personal data, or the
            table was changed meanwhile.
        BoundingError, EngineError: bounding stopped.
    """
    from dpsynth_platform.bounding.single_owner import write_bounded

    version = task.source.version
    contract = scrubbed_contract(task.contract)
    keys = ScrubKeys(
        owner=FingerprintKeys(vault.create("owner-inner"), (vault.create("owner-outer"),)),
        record=vault.create("record"),
        column=vault.create("column"),
    )
    progress(READING, 0, 1)  # and no step between: they would tell how many rows there are
    schema, batches, _ = scrub_batches(
        _owned(task),
        contract,
        readable_schema(task.contract, task.source, task.row),
        keys,
        processes=1,
    )
    write_table(work / "prepared", schema, batches)
    if replace(task.source).version != version:
        raise SourceError(f"{task.source.path}: the table was changed while it was read; run again")
    participants = distinct_owners(read_table(work / "prepared", columns=[OWNER_COLUMN]))
    progress(READING, 1, 1)
    progress("bounding", 0, 1)
    with DuckDBChoice().open(work) as engine:
        write_bounded(
            work / "prepared",
            work / "bounded",
            engine=engine,
            columns=contract.modelled,
            participants=participants,
            max_contributions=contract.privacy.max_contributions,
            key=vault.create("order"),
        )
    progress("bounding", 1, 1)
    return work / "bounded", participants


def _owned(task: Task) -> Iterator[pa.RecordBatch]:
    """The rows, without text; where each is a unit of its own, with a random id each."""
    schema, modelled = readable_schema(task.contract, task.source, task.row), set(task.contract.modelled)

    def column(batch: pa.RecordBatch, item: pa.Field) -> pa.Array:
        if item.name == task.row:
            return _random_ids(batch.num_rows)
        found = batch.column(item.name)
        codes = task.contract.columns[item.name].type == "categorical"
        return kept(found, codes=codes) if item.name in modelled else found

    for batch in task.source.batches([name for name in schema.names if name != task.row]):
        yield pa.RecordBatch.from_arrays([column(batch, item) for item in schema], schema=schema)


def _random_ids(rows: int) -> pa.Array:
    drawn = np.frombuffer(secrets.token_bytes(FINGERPRINT_BYTES * rows), FINGERPRINT_DTYPE)
    return pa.array(fingerprint_hex(drawn), pa.string())
