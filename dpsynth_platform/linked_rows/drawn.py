"""Drawn rows of linked tables, kept on disk between drawing and writing.

What belongs here: drawn rows by table, under the source's names of columns, and public rows. What does not: drawing
(`synth.relational.drawing`), and where rows are written to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.contracts.constraints import Values
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.sources.table_files import Source
from dpsynth_platform.synth.relational.drawing import LinkedDrawing


@dataclass(frozen=True)
class Rows:
    """Of one table.

    Attributes:
        rows: the released ones.
        left_out: those that could not keep the constraints or the order.
        types: how rows are drawn by the declared hidden types of their parent, in words; "" where none are declared.
    """

    rows: int
    left_out: int
    types: str = ""


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
        left_out, types = drawing.left_out, drawing.types_in_words
        return cls(
            schemas,
            paths,
            {name: Rows(rows[name], left_out.get(name, 0), types.get(name, "")) for name in schemas},
        )

    def read(self, name: str) -> Iterator[pa.RecordBatch]:
        with pa.memory_map(str(self.paths[name])) as file, pa.ipc.open_file(file) as reader:
            for number in range(reader.num_record_batches):
                yield reader.get_batch(number)
