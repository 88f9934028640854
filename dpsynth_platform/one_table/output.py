"""What a run leaves for others to see: the synthetic table and its statement.

What belongs here: writing both so that nothing half done is ever visible. What does not: their content.
"""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.compute.plain_types import plain
from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.foundation.storage import sync, write_durably, write_table
from dpsynth_platform.one_table.statement import Words
from dpsynth_platform.sources.delta_types import kept, kept_type
from dpsynth_platform.sources.table_files import Format
from dpsynth_platform.synth.interface import Drawing

_NAMES: dict[Format, str] = {"parquet": "synthetic.parquet", "csv": "synthetic.csv", "delta": "synthetic"}
_SUFFIXES: dict[str, Format] = {".parquet": "parquet", ".csv": "csv", "": "delta"}


def synthetic_path(root: Path, format_: Format) -> Path:
    """Where the synthetic table of an output lies."""
    return root / _NAMES[format_]


def format_of(path: Path) -> Format:
    """The format that a path's name asks for. Raises `SourceError` if it asks for none."""
    if path.suffix.lower() not in _SUFFIXES:
        raise SourceError(f"{path}: accepted: a name that ends with .parquet or .csv, or a directory for a Delta table")
    return _SUFFIXES[path.suffix.lower()]


def check_format(schema: pa.Schema, format_: Format) -> None:
    """Refuses a format that cannot hold a table's types: a table without rows is written in it.

    Raises:
        SourceError: it cannot.
    """
    if not _holds(schema, format_):
        wrong = ", ".join(f"{item.name} ({item.type})" for item in schema if not _holds(pa.schema([item]), format_))
        raise SourceError(f"--format {format_}: cannot hold {wrong or 'these columns together'}; accepted: parquet")


def _holds(schema: pa.Schema, format_: Format) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        try:
            _write(Path(directory) / "empty", schema, iter([pa.RecordBatch.from_pylist([], schema)]), format_)
        except Exception:  # the writer of Delta tables has no other type for it
            return False
    return True


def write_rows(target: Path, drawing: Drawing, names: Mapping[str, str], format_: Format) -> None:
    """Writes synthetic rows while they are drawn, in place of an earlier table.

    Args:
        target: file, or directory of the Delta table.
        drawing: the rows.
        names: what the columns that are written are called, by their names in the drawing.
        format_: of the table.

    Raises:
        ContractError: next to no drawn row keeps all constraints.
        SourceError: the format cannot hold the columns' types, or what is there is no table.
    """
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    problem = None
    schema = pa.schema([drawing.schema.field(name).with_name(shown) for name, shown in names.items()])
    check_format(schema, format_)
    batches = (batch.select(list(names)).rename_columns(list(names.values())) for batch in drawing.batches)
    if target.is_dir() and not (format_ == "delta" and (target / "_delta_log").is_dir()):
        raise SourceError(f"{target}: there is a directory that is no table; accepted: a name that is free")
    try:
        _write(partial, schema, batches, format_)
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


def write_statement(root: Path, made: Words, name: str = "statement") -> Path:
    """Writes the statement for people and for programs, and returns the path of the former."""
    write_durably(root / f"{name}.json", json.dumps(made.to_json(), indent=1))
    write_durably(root / f"{name}.md", made.to_markdown())
    return root / f"{name}.md"


def _write(path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], format_: Format) -> None:
    import pyarrow.parquet as pq
    from pyarrow import csv

    if format_ == "parquet":
        with pq.ParquetWriter(path, schema) as file:
            for batch in batches:
                file.write_batch(batch)
    elif format_ == "csv":
        first = _flat(next(batches))
        with csv.CSVWriter(path, first.schema) as file:
            file.write_batch(first)
            for batch in batches:
                file.write_batch(_flat(batch))
    else:
        plain = pa.schema([item.with_type(kept_type(item.type)) for item in schema])
        write_table(
            path,
            plain,
            (pa.RecordBatch.from_arrays([kept(column) for column in batch.columns], schema=plain) for batch in batches),
        )


def _flat(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Without what CSV cannot hold; columns of such types are empty, since no method models them."""
    columns = [
        pa.nulls(batch.num_rows) if column.null_count == batch.num_rows and _beyond_csv(column.type) else plain(column)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _beyond_csv(type_: pa.DataType) -> bool:
    return bool(pa.types.is_nested(type_) or isinstance(type_, pa.BaseExtensionType) or pa.types.is_binary_view(type_))
