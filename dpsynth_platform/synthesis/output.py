"""What a run leaves for others to see: the synthetic table and its statement.

What belongs here: writing both so that nothing half done is ever visible. What does not: their content.
"""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.errors import SourceError
from dpsynth_platform.storage import sync, write_durably, write_table
from dpsynth_platform.synthesis.delta_types import kept
from dpsynth_platform.synthesis.sources import Format
from dpsynth_platform.synthesis.statement import Statement

_NAMES: dict[Format, str] = {"parquet": "synthetic.parquet", "csv": "synthetic.csv", "delta": "synthetic"}


def write_rows(root: Path, table: pa.Table, format_: Format) -> Path:
    """Writes the synthetic table in place of an earlier one, and returns its path.

    Raises:
        SourceError: the format cannot hold the columns' types.
    """
    target = root / _NAMES[format_]
    partial = root / f".{target.name}.{secrets.token_hex(8)}"
    problem = None
    try:
        _write(partial, table, format_)
        if target.is_dir():
            shutil.rmtree(target)
        partial.replace(target)
        sync(root)
    except pa.ArrowException as error:
        problem = type(error).__name__
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        partial.unlink(missing_ok=True)
    if problem:
        raise SourceError(f"--format {format_}: cannot hold the table's types ({problem}); accepted: parquet")
    return target


def write_statement(root: Path, made: Statement) -> Path:
    """Writes the statement for people and for programs, and returns the path of the former."""
    write_durably(root / "statement.json", json.dumps(made.to_json(), indent=1))
    write_durably(root / "statement.md", made.to_markdown())
    return root / "statement.md"


def _write(path: Path, table: pa.Table, format_: Format) -> None:
    import pyarrow.parquet as pq
    from pyarrow import csv

    if format_ == "parquet":
        pq.write_table(table, path)
    elif format_ == "csv":
        csv.write_csv(_flat(table), path)
    else:
        table = pa.table([kept(column) for column in table.columns], names=table.column_names)
        write_table(path, table.schema, table.to_batches())


def _flat(table: pa.Table) -> pa.Table:
    """Without what CSV cannot hold; columns of such types are empty, since no method models them."""
    for place, item in enumerate(table.schema):
        if pa.types.is_nested(item.type) and table.column(place).null_count == table.num_rows:
            table = table.set_column(place, item.name, pa.nulls(table.num_rows))
    return table
