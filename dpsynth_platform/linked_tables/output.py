"""The released tables of a run: written together, while they are drawn.

What belongs here: one file for each table, public ones included, and replacing an earlier result at once. What does
not: drawing (`synth.relational.drawing`), and the formats (`one_table.output`).
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.storage import sync
from dpsynth_platform.linked_tables.task import LinkedTask
from dpsynth_platform.one_table.output import check_format, write_batches
from dpsynth_platform.one_table.place import synthetic_path
from dpsynth_platform.synth.relational.drawing import LinkedDrawing


@dataclass(frozen=True)
class Rows:
    """Of one table: the released rows, and those left out as they could not keep the constraints or the order."""

    rows: int
    left_out: int


def write_tables(
    task: LinkedTask, drawing: LinkedDrawing, roots: int, target: Path, progress: Progress
) -> dict[str, Rows]:
    """Writes all tables below `target`, in place of an earlier result; returns the rows of the private ones.

    Batches of whole families are kept on disk between drawing and writing, so that memory does not depend on their
    number.

    Raises:
        ContractError: too few drawn rows keep the constraints.
        SourceError: the format cannot hold a table's types, or the place cannot be written to.
    """
    format_ = task.options.format
    schemas = {name: _named(task, name, drawing.released[name].schema) for name in task.tables.private}
    for schema in schemas.values():
        check_format(schema, format_)
    for left in target.parent.glob(f".{target.name}.{'[0-9a-f]' * 16}"):
        shutil.rmtree(left, ignore_errors=True)  # of a killed run: only one at a time writes here
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    problem = None
    try:
        private_directory(partial)
        with _Spill(partial / "spill", schemas) as spill:
            for found in drawing.batches(roots, task.conditions, progress):
                spill.add({name: _renamed(task, name, batch) for name, batch in found.items()})
        rows = {}
        for name, schema in schemas.items():
            write_batches(synthetic_path(partial, format_, name), schema, spill.read(name), format_)
            rows[name] = Rows(spill.rows[name], drawing.left_out.get(name, 0))
        for name in task.tables.lookups:
            write_batches(synthetic_path(partial, format_, name), *_public(task, name), format_)
        shutil.rmtree(partial / "spill")
        if target.is_dir():
            shutil.rmtree(target)
        partial.rename(target)
        sync(target.parent)
        return rows
    except pa.ArrowException as error:
        problem = f"--format {format_}: cannot hold the tables' types ({type(error).__name__}); accepted: parquet"
    except OSError as error:
        problem = f"{target}: {file_problem(error)}; accepted: a place that this user can write to"
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    raise SourceError(problem)


def _public(task: LinkedTask, name: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A public table as it is."""
    source = task.sources[name]
    schema = pa.schema([item.with_name(task.given(name)[item.name]) for item in source.plain_schema])
    return schema, (batch.rename_columns(schema.names) for batch in source.batches())


def _named(task: LinkedTask, name: str, schema: pa.Schema) -> pa.Schema:
    given = task.given(name)
    return pa.schema([item.with_name(given[item.name]) for item in schema])


def _renamed(task: LinkedTask, name: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    given = task.given(name)
    return batch.rename_columns([given[column] for column in batch.schema.names])


class _Spill:
    """Batches of several tables, which are read again one table after the other."""

    def __init__(self, directory: Path, schemas: dict[str, pa.Schema]) -> None:
        self._paths = {name: directory / str(number) for number, name in enumerate(schemas)}
        self._schemas = schemas
        self.rows = dict.fromkeys(schemas, 0)
        private_directory(directory)

    def __enter__(self) -> _Spill:
        self._writers = {name: pa.ipc.new_file(str(path), self._schemas[name]) for name, path in self._paths.items()}
        return self

    def __exit__(self, *raised: object) -> None:
        for writer in self._writers.values():
            writer.close()

    def add(self, found: dict[str, pa.RecordBatch]) -> None:
        for name, batch in found.items():
            self._writers[name].write_batch(batch)
            self.rows[name] += batch.num_rows

    def read(self, name: str) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self._paths[name])) as file, pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
