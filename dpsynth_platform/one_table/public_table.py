"""The public table beside a private one: its declaration, and that it is not the private one again.

What belongs here: the options `public` and `public_why`. What does not: what methods make of it (`synth.tabular`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from dpsynth_platform.contracts.columns import Column
from dpsynth_platform.foundation.digests import digest_file
from dpsynth_platform.foundation.errors import ContractError, SourceError
from dpsynth_platform.sources.directories import data_files
from dpsynth_platform.sources.table_files import Source, check_exists, open_source, table_digest
from dpsynth_platform.sources.tables import is_delta
from dpsynth_platform.synth.tabular.public_rows import way_out


def declared_public(place: str | Path | None, why: str | None) -> dict[str, Any] | None:
    """As a contract's `generate.public`; None without one. Raises `ContractError` for one of both alone."""
    if place is None and why is None:
        return None
    if place is None or why is None:
        raise ContractError("--public and --public-why go together: a public table, and why it is public")
    path = Path(place)
    check_exists(path)
    layout = {} if not path.is_dir() else {"format": "delta" if is_delta(path) else "parquet"}
    return {"uri": str(path.resolve()), "why": why, **layout}


def check_apart(place: str | Path, source: Source, declared: Mapping[str, Column]) -> None:
    """Refuses a public table that overlaps with the private one, or has the same content.

    Files are compared by their content. A table in memory is compared by its values. The private table's rows are read
    for that, as for the name of its content.

    Raises:
        ContractError: it is the same table.
        SourceError: it cannot be read.
    """
    path = Path(place).resolve()
    if source.table is None:
        own = source.path.resolve()
        same = path.is_relative_to(own) or own.is_relative_to(path)
        same = same or not _contents(_opened(path, declared)).isdisjoint(_contents(source))
    else:
        same = _values(_opened(path, declared)) == _values(source)
    if same:
        raise ContractError(
            f"--public {place}: it is the table itself, or holds the same rows; accepted: another table, which is "
            "public: no mechanism protects its rows"
        )


def _opened(path: Path, declared: Mapping[str, Column]) -> Source:
    try:
        return open_source(path, declared)
    except SourceError as error:
        problem = way_out(str(error).removeprefix(f"{path}: "), "parquet")
    raise SourceError(f"--public {path}: {problem}")


def _contents(source: Source) -> set[str]:
    """Names of the content, whatever the files' names; of a Delta table at any version, its own id."""
    if source.format == "delta":
        return {source.version.rpartition("@")[0]}
    files = data_files(source.path) if source.path.is_dir() else [source.path]
    return {*source.versions, *map(digest_file, files)}


def _values(source: Source) -> str:
    """A name of the values, whatever file they are in, which decides the width of numbers."""
    rows = pa.Table.from_batches(source.batches())
    return table_digest(pa.table({name: _widest(rows[name]) for name in sorted(rows.column_names)}))


def _widest(column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_floating(column.type):
        return column.cast(pa.float64())
    return column.cast(pa.int64()) if pa.types.is_integer(column.type) and column.type != pa.uint64() else column
