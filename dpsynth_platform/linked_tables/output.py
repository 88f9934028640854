"""The released tables of a run: written together, while they are drawn.

What belongs here: one file for each table, public ones included, and replacing an earlier result at once. What does
not: drawing (`synth.relational.drawing`), and the formats (`one_table.output`).
"""

from __future__ import annotations

import secrets
import shutil
from pathlib import Path

import pyarrow as pa

from dpsynth_platform.foundation.errors import SourceError, file_problem
from dpsynth_platform.foundation.permissions import private_directory
from dpsynth_platform.foundation.progress import Progress
from dpsynth_platform.foundation.storage import sync
from dpsynth_platform.linked_rows.drawn import DrawnTables, Rows, public_rows, released_schemas
from dpsynth_platform.linked_tables.task import LinkedTask
from dpsynth_platform.one_table.output import check_format, write_batches
from dpsynth_platform.one_table.place import synthetic_path
from dpsynth_platform.synth.relational.drawing import LinkedDrawing


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
