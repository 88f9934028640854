"""The released tables of a run: written together, while they are drawn.

What belongs here: one file for each table, public ones included, and replacing an earlier result at once. What does
not: drawing (`synth.relational.drawing`), and the formats (`one_table.output`).
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.constraints import Values
from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.storage import sync
from dpsynth_platform.linked_tables.task import LinkedTask
from dpsynth_platform.one_table.output import check_format, write_batches
from dpsynth_platform.one_table.place import synthetic_path
from dpsynth_platform.sources.table_files import Source
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
    names = {name: task.given(name) for name in task.tables.tables}
    for schema in released_schemas(drawing, names).values():
        check_format(schema, format_)
    for left in target.parent.glob(f".{target.name}.{'[0-9a-f]' * 16}"):
        shutil.rmtree(left, ignore_errors=True)  # of a killed run: only one at a time writes here
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    problem = None
    try:
        private_directory(partial)
        drawn = DrawnTables.of(drawing, roots, names, partial / "spill", given=task.conditions, progress=progress)
        for name, schema in drawn.schemas.items():
            write_batches(synthetic_path(partial, format_, name), schema, drawn.read(name), format_)
        for name in task.tables.lookups:
            write_batches(synthetic_path(partial, format_, name), *public_rows(task.sources[name]), format_)
        shutil.rmtree(partial / "spill")
        if target.is_dir():
            shutil.rmtree(target)
        partial.rename(target)
        sync(target.parent)
        return dict(drawn.rows)
    except pa.ArrowException as error:
        problem = f"--format {format_}: cannot hold the tables' types ({type(error).__name__}); accepted: parquet"
    except OSError as error:
        problem = f"{target}: {file_problem(error)}; accepted: a place that this user can write to"
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    raise SourceError(problem)


def public_rows(source: Source) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """A public table as it is, by the source's names of columns."""
    given = {plain: shown for shown, plain in source.names.items()}
    schema = pa.schema([item.with_name(given[item.name]) for item in source.plain_schema])
    return schema, (batch.rename_columns(schema.names) for batch in source.batches())


def released_schemas(drawing: LinkedDrawing, names: Mapping[str, Mapping[str, str]]) -> dict[str, pa.Schema]:
    """The columns of each private table's released rows, by the source's names (by table and plain name)."""
    return {
        table: pa.schema([item.with_name(names[table][item.name]) for item in released.schema])
        for table, released in drawing.released.items()
    }


@dataclass(frozen=True)
class DrawnTables:
    """Drawn rows of all private tables, kept in a directory and read again one table after the other.

    So memory does not depend on their number, though batches are of whole families.
    """

    schemas: Mapping[str, pa.Schema]
    paths: Mapping[str, Path]
    rows: Mapping[str, Rows]

    @classmethod
    def of(
        cls,
        drawing: LinkedDrawing,
        roots: int,
        names: Mapping[str, Mapping[str, str]],
        directory: Path,
        *,
        given: Mapping[str, Values] | None = None,
        progress: Progress = silent,
    ) -> DrawnTables:
        """Draws all rows.

        Args:
            names: the source's names of columns, by table and plain name.
            directory: new; for the caller to remove.
            given: values that all roots have, by column.

        Raises:
            ContractError: no root can have the given values, or too few rows keep the constraints.
        """
        schemas = released_schemas(drawing, names)
        private_directory(directory)
        paths = {name: directory / str(number) for number, name in enumerate(schemas)}
        rows = dict.fromkeys(schemas, 0)
        with ExitStack() as files:
            writers = {
                name: files.enter_context(pa.ipc.new_file(str(path), schemas[name])) for name, path in paths.items()
            }
            for found in drawing.batches(roots, given, progress):
                for name, batch in found.items():
                    named = [names[name][column] for column in batch.schema.names]
                    writers[name].write_batch(batch.rename_columns(named))
                    rows[name] += batch.num_rows
        return cls(schemas, paths, {name: Rows(rows[name], drawing.left_out.get(name, 0)) for name in schemas})

    def read(self, name: str) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self.paths[name])) as file, pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
