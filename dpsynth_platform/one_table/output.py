"""Writing the synthetic table and its statement.

What belongs here: writing both so that no partial file is ever visible. What does not: their content.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain, plain_type, type_name
from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.foundation.storage import sync, write_durably, write_table
from dpsynth_platform.sources.declared_types import is_bytes, read_as
from dpsynth_platform.sources.delta_types import in_delta
from dpsynth_platform.sources.structs import nested_batch, nested_schema
from dpsynth_platform.sources.table_files import Format
from dpsynth_platform.synth.interface import Drawing

_SUFFIXES: dict[str, Format] = {".parquet": "parquet", ".csv": "csv", "": "delta"}


def format_of(path: Path) -> Format:
    """The format by a path's name. Raises `SourceError` for another name."""
    if path.suffix.lower() not in _SUFFIXES:
        raise SourceError(f"{path}: accepted: a name that ends with .parquet or .csv, or a directory for a Delta table")
    return _SUFFIXES[path.suffix.lower()]


def check_format(schema: pa.Schema, format_: Format) -> None:
    """Raises `SourceError` for a format that cannot hold the types, by writing an empty row."""
    if not _holds(schema, format_):
        beyond = [item for item in schema if not _holds(pa.schema([item]), format_)]
        wrong = ", ".join(f"{item.name} ({type_name(item.type)})" for item in beyond)
        accepted = "ignore: true in their declarations" if format_ == "parquet" else "parquet"
        raise SourceError(f"--format {format_}: cannot hold {wrong or 'these columns together'}; accepted: {accepted}")


def _holds(schema: pa.Schema, format_: Format) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        try:
            row = _empty_row(schema)
            write_batches(Path(directory) / "empty", row.schema, iter([row]), format_)
        except Exception:  # the writer of Delta tables raises no narrower type
            return False
    return True


def write_rows(
    target: Path, drawing: Drawing, names: Mapping[str, str], format_: Format, shape: pa.Schema | None = None
) -> None:
    """Writes synthetic rows while they are drawn, and replaces an earlier table.

    Args:
        names: names of the written columns, by their names in the drawing.
        shape: `structs.shape_of` the table whose structs are made of columns, except in CSV files; None: none are.

    Raises:
        ContractError: hardly any drawn row satisfies all constraints.
        SourceError: the format cannot hold the columns' types, or the target is a directory without a table.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    problem = None
    schema = pa.schema([drawing.schema.field(name).with_name(shown) for name, shown in names.items()])
    check_format(schema, format_)
    batches = (batch.select(list(names)).rename_columns(list(names.values())) for batch in drawing.batches)
    if target.is_dir() and not (format_ == "delta" and (target / "_delta_log").is_dir()):
        raise SourceError(f"{target} is a directory without a table; accepted: an unused name")
    try:
        write_batches(partial, schema, batches, format_, shape)
        if target.is_dir():
            shutil.rmtree(target)
        partial.replace(target)
        sync(target.parent)
    except pa.ArrowException as error:
        problem = f"--format {format_}: cannot hold the table's types ({type(error).__name__}); accepted: parquet"
    except OSError as error:
        problem = f"{target}: {file_problem(error)}; accepted: a place that this user can write to"
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
    if problem:
        raise SourceError(problem)


class Stated(Protocol):
    """A statement in both of its forms."""

    def to_json(self) -> dict[str, Any]: ...
    def to_markdown(self) -> str: ...


def write_statement(root: Path, made: Stated, name: str = "statement") -> Path:
    """Writes the statement as JSON and Markdown; returns the path of the latter."""
    write_durably(root / f"{name}.json", json.dumps(made.to_json(), indent=1))
    write_durably(root / f"{name}.md", made.to_markdown())
    return root / f"{name}.md"


def write_batches(
    path: Path,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
    format_: Format,
    shape: pa.Schema | None = None,
) -> None:
    """Writes a new table of a format, with structs of the shape if there is one; at least one batch for CSV."""
    import pyarrow.parquet as pq
    from pyarrow import csv

    if format_ == "csv":
        first = _flat(next(batches))
        with csv.CSVWriter(path, first.schema) as file:
            file.write_batch(first)
            for batch in batches:
                file.write_batch(_flat(batch))
        return
    if format_ == "delta":
        schema, batches = in_delta(schema, batches)
    if shape is not None:
        batches, schema = (nested_batch(batch, shape) for batch in batches), nested_schema(schema, shape)
    if format_ == "delta":
        write_table(path, schema, batches)
        return
    written = pa.schema([item if _in_parquet(item) else item.with_type(plain_type(item.type)) for item in schema])
    with pq.ParquetWriter(path, written) as file:
        for batch in batches:
            columns = [
                column if column.type == item.type else plain(column)
                for column, item in zip(batch.columns, written, strict=True)
            ]
            file.write_batch(pa.RecordBatch.from_arrays(columns, schema=written))


def _empty_row(schema: pa.Schema) -> pa.RecordBatch:
    """A row of missing values; without one, some types that a format lacks would not show."""
    nullable = pa.schema([item.with_nullable(True) for item in schema])
    return pa.RecordBatch.from_arrays([pa.nulls(1, item.type) for item in schema], schema=nullable)


def _in_parquet(item: pa.Field) -> bool:
    """Whether a Parquet file has a column's type, and not only that of its values, such as for categories of dates."""
    import pyarrow.parquet as pq

    row = _empty_row(pa.schema([item]))
    try:
        with pq.ParquetWriter(pa.BufferOutputStream(), row.schema) as file:
            file.write_batch(row)
    except pa.ArrowException:
        return False
    return True


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows for CSV: columns of types that it cannot hold are empty, since no method models them.

    Ids that are bytes are hexadecimal digits.
    """
    columns = [
        pa.nulls(batch.num_rows)
        if column.null_count == batch.num_rows and _beyond_csv(column.type)
        else read_as("identifier", plain(column))
        if is_bytes(plain_type(column.type))
        else plain(column)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _beyond_csv(type_: pa.DataType) -> bool:
    return bool(pa.types.is_nested(type_) or isinstance(type_, pa.BaseExtensionType) or pa.types.is_binary_view(type_))
