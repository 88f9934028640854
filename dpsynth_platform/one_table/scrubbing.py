"""Scrubbing of one file, or of a table in memory, without a contract: `dpsynth scrub run` and `dpsynth.scrub`.

What belongs here: reading the table, its rules and key, and writing the scrubbed one as a whole or not at all. What
does not: what is scrubbed and how (`scrub.alone`).
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.foundation.errors import ConfigurationError, SourceError, file_problem
from dpsynth_platform.foundation.permissions import PRIVATE_UMASK, private_files
from dpsynth_platform.foundation.progress import Progress, silent
from dpsynth_platform.foundation.regular_files import read_regular
from dpsynth_platform.foundation.scratch import scratch_directory
from dpsynth_platform.foundation.storage import sync
from dpsynth_platform.one_table.output import check_format, format_of, write_batches
from dpsynth_platform.scrub.alone import ScrubChoice, TableScrub
from dpsynth_platform.sources.dialect import Dialect
from dpsynth_platform.sources.structs import nested_batch, nested_schema
from dpsynth_platform.sources.table_files import Source, check_exists, open_source
from dpsynth_platform.sources.text_files import COLUMN, SCHEMA, TEXT_SUFFIX, is_text_file, paragraphs, write_paragraphs

SCRUBBING = "scrubbing"
_KEY_BYTES = 32
_KEY = re.compile(rf"[0-9a-f]{{{2 * _KEY_BYTES}}}\n?")


@dataclass(frozen=True)
class Scrubbed:
    """What was written, and the report of `scrub.alone.TableScrub.report`."""

    out: Path
    report: dict[str, Any] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        return {"out": str(self.out)} | self.report


def scrub_file(
    path: Path,
    out: Path,
    choice: ScrubChoice,
    *,
    dialect: Dialect | None = None,
    key: Path | None = None,
    progress: Progress = silent,
    processes: int | None = None,
) -> Scrubbed:
    """Scrubs a Parquet file or directory, Delta table, CSV or text file into a new one, private to this user.

    Args:
        out: a new path; its name says the format, as in `output.format_of`, or `.txt` for a text.
        key: file of the key for hashes, and for the fictional values of owners; made if it does not exist.
        processes: number of detector processes; None: one for each core.

    Raises:
        ConfigurationError: the key's file cannot be used.
        ContractError: an option that does not fit the table.
        SourceError: the table cannot be read or written, or a column that would stay may hold personal data.
    """
    check_exists(path)
    _check_out(path, out)
    named = (*(choice.columns or ()), *choice.keep, *choice.drop, *([choice.owner] if choice.owner else []))
    if is_text_file(path):
        if not is_text_file(out) or named or dialect not in (None, Dialect()):
            raise SourceError(
                f"{path}: a text has no columns; accepted: --out with a name that ends with {TEXT_SUFFIX}, and no "
                "option for columns or CSV"
            )
        choice = replace(choice, columns=(COLUMN,), key=_key(choice, key))
        table = TableScrub(SCHEMA, choice, str(path))
        rows = paragraphs(path)
        write: Callable[[Path, Iterator[pa.RecordBatch]], None] = write_paragraphs
    else:
        source = replace(open_source(path, {}, dialect, named), may_be_empty=True)
        format_ = format_of(out)
        TableScrub(source.schema, replace(choice, key=bytes(_KEY_BYTES)), str(path))  # refuses before a key is made
        table = TableScrub(source.schema, replace(choice, key=_key(choice, key)), str(path))
        check_format(table.schema, format_)
        rows = _rows(source)

        def write(partial: Path, batches: Iterator[pa.RecordBatch]) -> None:
            write_batches(partial, table.schema, _at_least_one(batches, table.schema), format_, source.shape)

    _write(out, lambda partial: _scrub(table, rows, processes, progress, lambda batches: write(partial, batches)))
    return Scrubbed(out, table.report())


def scrub_table(
    data: pa.Table, choice: ScrubChoice, *, key: Path | None = None, progress: Progress = silent, processes: int = 1
) -> tuple[pa.Table, dict[str, Any]]:
    """Scrubs a table in memory: the scrubbed table, and the report.

    Raises:
        ConfigurationError, ContractError, SourceError: as `scrub_file`.
    """
    source = replace(open_source(data, {}), may_be_empty=True)
    table = TableScrub(source.schema, replace(choice, key=_key(choice, key)), str(source.path))
    found: list[pa.RecordBatch] = []
    _scrub(table, _rows(source), processes, progress, found.extend)
    schema = table.schema
    if source.shape is not None:
        found, schema = [nested_batch(one, source.shape) for one in found], nested_schema(schema, source.shape)
    return pa.Table.from_batches(found, schema), table.report()


def read_key(path: Path) -> bytes:
    """The key in a file that only this user can read; a file that does not exist is made.

    Raises:
        ConfigurationError: it cannot be read or made, is open to others, or holds something else.
    """
    problem = "it is no key that `dpsynth scrub run` made"
    try:
        if not os.path.lexists(path):
            made = secrets.token_bytes(_KEY_BYTES)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{made.hex()}\n")
                file.flush()
                os.fsync(file.fileno())
            return made
        text = read_regular(path, 1000).decode("ascii", "replace")
        if stat.S_IMODE(path.stat().st_mode) & PRIVATE_UMASK:
            problem = "others can read it"
        elif _KEY.fullmatch(text):
            return bytes.fromhex(text)
    except OSError as error:
        problem = file_problem(error)
    raise ConfigurationError(f"--key {path}: {problem}; accepted: a file of mode 0600 with a key, or a new name")


def _key(choice: ScrubChoice, key: Path | None) -> bytes | None:
    return choice.key if key is None else read_key(key)


def _check_out(path: Path, out: Path) -> None:
    if os.path.lexists(out):
        raise SourceError(f"--out {out}: exists; accepted: a new name, since nothing is replaced")
    if not out.parent.is_dir():
        raise SourceError(f"--out {out}: its directory does not exist; accepted: a name in an existing one")
    if path.is_dir() and out.resolve().is_relative_to(path.resolve()):
        raise SourceError(f"--out {out}: lies in the table {path}; accepted: a name outside of it")


def _rows(source: Source) -> Iterator[pa.RecordBatch]:
    for batch in source.batches():
        yield batch.rename_columns(source.schema.names)


def _at_least_one(batches: Iterator[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches; an empty one if there are none, which the writer of CSV files needs."""
    empty = True
    for batch in batches:
        empty = False
        yield batch
    if empty:
        yield pa.RecordBatch.from_pylist([], schema)


def _scrub(
    table: TableScrub,
    rows: Iterator[pa.RecordBatch],
    processes: int | None,
    progress: Progress,
    take: Callable[[Iterator[pa.RecordBatch]], None],
) -> None:
    """Gives the scrubbed batches to `take`. The number of rows is not known before, and shown beside the bar."""
    progress(SCRUBBING, 0, 1)
    scrubbed = table.batches(
        rows, processes=processes, progress=lambda done, _: progress(SCRUBBING, 0, 1, f"{done:,} rows")
    )
    with closing(scrubbed):
        take(scrubbed)
    progress(SCRUBBING, 1, 1)


def _write(out: Path, write: Callable[[Path], None]) -> None:
    """Writes beside the target, and names the result once it is whole. What a killed process left is removed later."""
    problem = ""
    try:
        with scratch_directory("dpsynth-scrub-", out.parent) as place, private_files():
            partial = place / f"table{out.suffix}"
            write(partial)
            if partial.is_file():
                sync(partial)
            if os.path.lexists(out):
                raise SourceError(f"--out {out}: was made meanwhile; accepted: a new name")
            partial.rename(out)
            sync(out.parent)
    except pa.ArrowException as error:
        problem = f"{out}: cannot hold the table ({type(error).__name__}); accepted: .parquet"
    except OSError as error:
        problem = f"{out}: {file_problem(error)}; accepted: a place that this user can write to"
    if problem:
        raise SourceError(problem)
